//! Sessions of the linerate service on a stack. Each session has a thread for its control
//! connection,
//! while the thread that owns the stack moves its payload.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use linerate_dialect::amplification_guard::Network;
use linerate_metric::event::Event;

use super::StackThread;
use super::services::acceptor::{Desk, Visitor};
use super::services::{Front, ServiceKind, ServiceSpec};
use crate::interop::handlers::Hall;
use crate::session::control_connection::Line;
use crate::session::server_session::serve_on;
use crate::session::server_stack::Footing;
use crate::session::server_state::House;
use crate::session::{Emit, PeerOptions, ServerOptions};

/// Longest delay until the end of the host is noticed.
const LOOK_UP: Duration = Duration::from_millis(50);

/// The linerate service of a host, before its stack is started.
pub struct Opened {
    desk: Desk,
    stop: Arc<AtomicBool>,
}

/// Prepares the context of the services, and the linerate service if it is among them. Events of
/// its
/// tests, and rejections of all services, go to `events`.
pub fn open(
    services: &[ServiceSpec],
    allow: &[Network],
    events: mpsc::Sender<Event>,
) -> (Front, Option<Opened>, mpsc::Receiver<Visitor>) {
    let (visitors, come) = mpsc::channel();
    let emit: Emit = Arc::new(move |event| {
        // The receiver is gone when the host ends.
        let _ = events.send(event);
    });
    let guests = PeerOptions {
        allow: allow.to_vec(),
        ..PeerOptions::default()
    };
    let ports = services.iter().map(|spec| spec.port).collect();
    let others = ServerOptions {
        peers: guests.clone(),
        ..ServerOptions::default()
    };
    let hall = Arc::new(Hall::new(&others, ports, Arc::clone(&emit)));
    let own = services
        .iter()
        .find(|spec| spec.kind == ServiceKind::Linerate);
    let opened = own.map(|spec| {
        let stop: Arc<AtomicBool> = Arc::default();
        let options = ServerOptions {
            port: spec.port,
            peers: PeerOptions {
                // One thread moves all payload, so two tests would disturb each other.
                max_tests: Some(1),
                ..guests
            },
            ..ServerOptions::default()
        };
        let hall = Hall::new(&options, vec![spec.port], Arc::clone(&emit));
        let house = House::new(options, emit, Arc::clone(&stop), None).with_hall(hall);
        Opened {
            desk: Desk {
                house: Arc::new(house),
                visitors,
            },
            stop,
        }
    });
    let desk = opened.as_ref().map(|open| open.desk.clone());
    (Front { hall, desk }, opened, come)
}

/// The session threads. They end when this is dropped.
pub struct Sessions {
    stop: Arc<AtomicBool>,
}

impl Sessions {
    /// Starts to accept control connections.
    pub fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        open: Opened,
        stack: &'scope StackThread,
        visitors: mpsc::Receiver<Visitor>,
    ) -> Self {
        let Opened { desk, stop } = open;
        let house = desk.house;
        let stopped = Arc::clone(&stop);
        scope.spawn(move || {
            let mut sessions: Vec<ScopedJoinHandle<'scope, ()>> = Vec::new();
            while !stopped.load(Relaxed) {
                sessions.retain(|session| !session.is_finished());
                let Ok(visitor) = visitors.recv_timeout(LOOK_UP) else {
                    continue;
                };
                // Without a permit the pair is closed, and with it the connection.
                if let Some(seat) = house.seat() {
                    let house: Arc<House> = Arc::clone(&house);
                    sessions.push(scope.spawn(move || {
                        let line = Line::bridged(visitor.pair, visitor.local, visitor.peer);
                        serve_on(&house, Footing::Stack(stack), line, &[], seat);
                    }));
                }
            }
        });
        Self { stop }
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}
