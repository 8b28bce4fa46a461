//! Tests of our own dialect that clients run with a host on a stack: each is talked about by a thread of
//! its own, while the thread that owns the stack moves its payload.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use linerate_dialect::guard::Network;
use linerate_metric::event::Event;

use super::StackThread;
use super::services::reception::{Desk, Visitor};
use super::services::{Front, ServiceKind, ServiceSpec};
use crate::peers::serve::Hall;
use crate::session::footing::Footing;
use crate::session::house::House;
use crate::session::session::serve_on;
use crate::session::wire::Line;
use crate::session::{Emit, PeerOptions, ServerOptions};

/// How soon it is noticed that the host ends.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Our own server at a host, before its stack stands.
pub struct Opened {
    desk: Desk,
    stop: Arc<AtomicBool>,
}

/// What services need, and our own server where it is among them; what happens to its tests, and who is refused
/// what, goes to `events`.
pub fn open(
    services: &[ServiceSpec],
    allow: &[Network],
    events: mpsc::Sender<Event>,
) -> (Front, Option<Opened>, mpsc::Receiver<Visitor>) {
    let (visitors, come) = mpsc::channel();
    let emit: Emit = Arc::new(move |event| {
        // Whoever listened has gone when the host ends.
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
                // One thread moves the payload of all: two tests would measure each other.
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

/// The threads that talk. They end when this goes.
pub struct Sessions {
    stop: Arc<AtomicBool>,
}

impl Sessions {
    /// Takes who comes from now on.
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
                // Without a seat the pair closes, and with it the connection.
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
