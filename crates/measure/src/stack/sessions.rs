//! Tests of our own dialect that clients run with a host on a stack: each is talked about by a thread of
//! its own, while the thread that owns the stack moves its payload.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use linerate_metric::event::Event;

use super::StackThread;
use super::services::reception::{Desk, Visitor};
use super::services::{ServiceKind, ServiceSpec};
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
    /// What its reception needs.
    pub desk: Desk,
    stop: Arc<AtomicBool>,
}

/// Our own server, where it is among the services; what happens to its tests goes to `events`.
pub fn open(
    services: &[ServiceSpec],
    events: mpsc::Sender<Event>,
) -> (Option<Opened>, mpsc::Receiver<Visitor>) {
    let (visitors, come) = mpsc::channel();
    let own = services
        .iter()
        .find(|spec| spec.kind == ServiceKind::Linerate);
    let opened = own.map(|spec| {
        let stop: Arc<AtomicBool> = Arc::default();
        let emit: Emit = Arc::new(move |event| {
            // Whoever listened has gone when the host ends.
            let _ = events.send(event);
        });
        let options = ServerOptions {
            port: spec.port,
            peers: PeerOptions {
                // One thread moves the payload of all: two tests would measure each other.
                max_tests: Some(1),
                ..PeerOptions::default()
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
    (opened, come)
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
