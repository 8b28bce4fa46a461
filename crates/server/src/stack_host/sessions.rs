//! Sessions of the linerate service on a stack. Each session has a thread for its control
//! connection, while the thread that owns the stack moves its payload.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use linerate_protocol::amplification_guard::IpNetwork;
use linerate_record::event::Event;
use linerate_session::control_connection::ControlStream;
use linerate_transport::stack_thread::StackThread;

use crate::interop_state::InteropState;
use crate::options::{EventCallback, InteropOptions, ServerOptions};
use crate::server_session::serve_session;
use crate::server_stack::ServerStack;
use crate::server_state::ServerState;
use crate::stack_services::acceptor::{AcceptHandle, AcceptedConnection};
use crate::stack_services::{ServiceContext, ServiceKind, ServiceSpec};

/// Longest delay until the end of the host is noticed.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The linerate service of a host, before its stack is started.
pub struct LinerateService {
    handle: AcceptHandle,
    stop: Arc<AtomicBool>,
}

/// Prepares the context of the services, and the linerate service if it is among them. Events of
/// its tests, and rejections of all services, go to `events`.
pub fn prepare(
    services: &[ServiceSpec],
    allow: &[IpNetwork],
    events: mpsc::Sender<Event>,
) -> (
    ServiceContext,
    Option<LinerateService>,
    mpsc::Receiver<AcceptedConnection>,
) {
    let (connections, accepted) = mpsc::channel();
    let emit: EventCallback = Arc::new(move |event| {
        // The receiver is gone when the host ends.
        let _ = events.send(event);
    });
    let peer_options = InteropOptions {
        allowed_networks: allow.to_vec(),
        ..InteropOptions::default()
    };
    let ports = services.iter().map(|spec| spec.port).collect();
    let interop_options = ServerOptions {
        interop: peer_options.clone(),
        ..ServerOptions::default()
    };
    let interop = Arc::new(InteropState::new(
        &interop_options,
        ports,
        Arc::clone(&emit),
    ));
    let linerate_spec = services
        .iter()
        .find(|spec| spec.kind == ServiceKind::Linerate);
    let service = linerate_spec.map(|spec| {
        let stop: Arc<AtomicBool> = Arc::default();
        let options = ServerOptions {
            port: spec.port,
            interop: InteropOptions {
                // One thread moves all payload, so two tests would disturb each other.
                max_tests: Some(1),
                ..peer_options
            },
            ..ServerOptions::default()
        };
        let interop = InteropState::new(&options, vec![spec.port], Arc::clone(&emit));
        let server = ServerState::new(options, emit, Arc::clone(&stop), None).with_interop(interop);
        LinerateService {
            handle: AcceptHandle {
                server: Arc::new(server),
                connections,
            },
            stop,
        }
    });
    let handle = service.as_ref().map(|prepared| prepared.handle.clone());
    (
        ServiceContext {
            interop,
            linerate: handle,
        },
        service,
        accepted,
    )
}

/// The session threads. They end when this is dropped.
pub struct ServiceSessions {
    stop: Arc<AtomicBool>,
}

impl ServiceSessions {
    /// Starts to accept control connections.
    pub fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        prepared: LinerateService,
        stack: &'scope StackThread,
        connections: mpsc::Receiver<AcceptedConnection>,
    ) -> Self {
        let LinerateService { handle, stop } = prepared;
        let server = handle.server;
        let stop_flag = Arc::clone(&stop);
        scope.spawn(move || {
            let mut sessions: Vec<ScopedJoinHandle<'scope, ()>> = Vec::new();
            while !stop_flag.load(Relaxed) {
                sessions.retain(|session| !session.is_finished());
                let Ok(connection) = connections.recv_timeout(STOP_POLL_INTERVAL) else {
                    continue;
                };
                // Without a permit the pair is closed, and with it the connection.
                if let Some(permit) = server.acquire_permit(connection.peer.ip(), || None) {
                    let server: Arc<ServerState> = Arc::clone(&server);
                    sessions.push(scope.spawn(move || {
                        let control_stream = ControlStream::bridged(
                            connection.pair,
                            connection.local,
                            connection.peer,
                        );
                        serve_session(
                            &server,
                            ServerStack::Netstack(stack),
                            control_stream,
                            &[],
                            permit,
                        );
                    }));
                }
            }
        });
        Self { stop }
    }
}

impl Drop for ServiceSessions {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}
