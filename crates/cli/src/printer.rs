//! Printer thread: measuring threads never wait for a terminal, a pipe or a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::thread;

use jiff::Timestamp;
use linerate_metric::event::{Event, Problem, What};

use crate::failure::Failure;
use crate::output::Output;
use crate::ui_update::Scene;

/// Maximum number of queued interval lines: minutes of a test, at most a few hundred kilobytes.
const WAITING_INTERVALS: usize = 1024;

/// Maximum number of other queued events. A test has few of them, but a server's unvalidated
/// clients can start any number of tests, each with a record of some ten kilobytes.
const WAITING_REST: usize = 1024;

/// Message to the printer or to the screen.
pub enum Told {
    /// An event and its time.
    Event(Timestamp, Event),
    /// An update that only a screen shows.
    #[cfg_attr(not(feature = "tui"), allow(dead_code))]
    Scene(Scene),
    /// Ends the printer, although threads that are about to end may still hold senders.
    End,
}

/// Sender of events to the printer, from any thread and without blocking.
#[derive(Clone)]
pub struct Teller {
    queue: Sender<Told>,
    room: Arc<Room>,
}

/// Limits of the queue, by sort of event.
struct Room {
    intervals: Share,
    rest: Share,
}

/// Number of queued events of one sort, and of those dropped at the limit.
struct Share {
    limit: usize,
    waiting: AtomicUsize,
    left_out: AtomicUsize,
}

impl Room {
    fn up_to(intervals: usize, rest: usize) -> Self {
        let share = |limit| Share {
            limit,
            waiting: AtomicUsize::new(0),
            left_out: AtomicUsize::new(0),
        };
        Self {
            intervals: share(intervals),
            rest: share(rest),
        }
    }

    fn of(&self, event: &Event) -> &Share {
        match event.what {
            What::Interval { .. } => &self.intervals,
            _ => &self.rest,
        }
    }
}

impl Share {
    /// Reserves space for one event and returns true; at the limit it counts a dropped event and
    /// returns false.
    fn enter(&self) -> bool {
        let add = |waiting| (waiting < self.limit).then_some(waiting + 1);
        let entered = self.waiting.fetch_update(Relaxed, Relaxed, add).is_ok();
        if !entered {
            self.left_out.fetch_add(1, Relaxed);
        }
        entered
    }

    fn leave(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Returns the number of events dropped since the last call, if any.
    fn left_out(&self) -> Option<usize> {
        Some(self.left_out.swap(0, Relaxed)).filter(|&count| count > 0)
    }
}

impl Teller {
    /// Creates a sender without limits whose receiver is a screen.
    #[cfg(feature = "tui")]
    pub fn of(queue: Sender<Told>) -> Self {
        Self {
            queue,
            // The screen empties its queue many times a second.
            room: Arc::new(Room::up_to(usize::MAX, usize::MAX)),
        }
    }

    /// Announces that no more messages follow.
    #[cfg(feature = "tui")]
    pub fn end(&self) {
        let _ = self.queue.send(Told::End);
    }

    /// Sends an update to the screen; a printer ignores it.
    pub fn show(&self, scene: Scene) {
        let _ = self.queue.send(Told::Scene(scene));
    }

    /// Queues an event; at the limit of its sort it is dropped.
    pub fn tell(&self, event: Event) {
        if !self.room.of(&event).enter() {
            return;
        }
        // The printer ends only after the last message.
        let _ = self.queue.send(Told::Event(Timestamp::now(), event));
    }
}

/// Runs `body` while a thread prints the events it sends; returns when all of them are printed.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn while_printing<T>(
    output: &mut Output,
    body: impl FnOnce(&Teller) -> T,
) -> Result<T, Failure> {
    let (queue, waiting) = mpsc::channel();
    let room = Arc::new(Room::up_to(WAITING_INTERVALS, WAITING_REST));
    let counted = Arc::clone(&room);
    thread::scope(|scope| {
        // The sender is owned here: if `body` panics, the queue closes and the printer ends.
        let teller = Teller { queue, room };
        let print = move || {
            while let Ok(told) = waiting.recv() {
                let (at, event) = match told {
                    Told::Event(at, event) => (at, event),
                    Told::Scene(_) => continue,
                    Told::End => break,
                };
                counted.of(&event).leave();
                output.event(&event, at);
                if let Some(count) = counted.intervals.left_out() {
                    output.remark(&format!(
                        "warning: {count} interval lines were dropped: standard output is not \
                         read fast enough (the records have them)"
                    ));
                }
                if let Some(count) = counted.rest.left_out() {
                    output.remark(&format!(
                        "warning: {count} event lines were dropped, with the records of their tests: \
                         tests end faster than standard output and the disk accept them"
                    ));
                }
            }
        };
        thread::Builder::new()
            .name("printer".to_owned())
            .spawn_scoped(scope, print)
            .map_err(|error| {
                Failure::failed(Problem::new(
                    format!("cannot start the printer thread ({error})"),
                    "this process",
                    "raise the process limit: `ulimit -u`",
                ))
            })?;
        let result = body(&teller);
        let _ = teller.queue.send(Told::End);
        Ok(result)
    })
}

#[cfg(test)]
mod tests {
    use linerate_metric::record::Doubt;

    use super::*;

    #[test]
    fn what_waits_is_bounded_and_what_is_left_out_is_counted() {
        let room = Room::up_to(1, 2);
        let doubt = Event {
            test: 1,
            what: What::Doubted {
                doubt: Doubt::new("x", "why"),
            },
        };
        let entered: Vec<bool> = (0..4).map(|_| room.of(&doubt).enter()).collect();
        assert_eq!(entered, [true, true, false, false]);
        room.rest.leave();
        assert!(room.of(&doubt).enter());
        assert_eq!(
            (room.rest.left_out(), room.rest.left_out()),
            (Some(2), None)
        );
        assert_eq!(room.intervals.waiting.load(Relaxed), 0);
    }
}
