//! A thread that prints what happens: who measures never waits for a terminal, a pipe or a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::thread;

use jiff::Timestamp;
use linerate_metric::event::{Event, Problem, What};

use crate::failure::Failure;
use crate::output::Output;
use crate::scene::Scene;

/// Interval lines that may wait: minutes of a test, and no more than a few hundred kilobytes.
const WAITING_INTERVALS: usize = 1024;

/// What else may wait. It comes a few times a test, and one client has few tests; a server has as many as
/// strangers like, each with a record of some ten kilobytes.
const WAITING_REST: usize = 1024;

/// What waits to be printed or shown.
pub enum Told {
    /// Something happened, and when.
    Event(Timestamp, Event),
    /// Something for a screen alone.
    #[cfg_attr(not(feature = "tui"), allow(dead_code))]
    Scene(Scene),
    /// Nothing more comes: some teller may still be held by a thread that is about to end.
    End,
}

/// Tells the printer what happens, from any thread and without waiting.
#[derive(Clone)]
pub struct Teller {
    queue: Sender<Told>,
    room: Arc<Room>,
}

/// What waits of each sort.
struct Room {
    intervals: Share,
    rest: Share,
}

/// What waits of one sort, and what found no room.
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
    /// Whether there is room for one more; one that finds none is counted.
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

    /// How many found no room since the last time.
    fn left_out(&self) -> Option<usize> {
        Some(self.left_out.swap(0, Relaxed)).filter(|&count| count > 0)
    }
}

impl Teller {
    /// A teller whose events somebody else takes from the queue.
    #[cfg(feature = "tui")]
    pub fn of(queue: Sender<Told>) -> Self {
        Self {
            queue,
            // A screen takes whatever comes, many times a second.
            room: Arc::new(Room::up_to(usize::MAX, usize::MAX)),
        }
    }

    /// Says that nothing more comes.
    #[cfg(feature = "tui")]
    pub fn end(&self) {
        let _ = self.queue.send(Told::End);
    }

    /// Shows something where there is a screen; a printer has no use for it.
    pub fn show(&self, scene: Scene) {
        let _ = self.queue.send(Told::Scene(scene));
    }

    /// Puts it in the queue. What finds too many of its sort before it is left out.
    pub fn tell(&self, event: Event) {
        if !self.room.of(&event).enter() {
            return;
        }
        // The printer goes only after the last word.
        let _ = self.queue.send(Told::Event(Timestamp::now(), event));
    }
}

/// Runs `body` beside a thread that prints what it tells; returns when all of it is printed.
///
/// # Errors
/// That the thread could not be had.
pub fn while_printing<T>(
    output: &mut Output,
    body: impl FnOnce(&Teller) -> T,
) -> Result<T, Failure> {
    let (queue, waiting) = mpsc::channel();
    let room = Arc::new(Room::up_to(WAITING_INTERVALS, WAITING_REST));
    let counted = Arc::clone(&room);
    thread::scope(|scope| {
        // Owned here: should `body` panic, the queue closes and the printer ends.
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
                        "warning: {count} interval lines were left out: standard output is not \
                         read fast enough (the records have them)"
                    ));
                }
                if let Some(count) = counted.rest.left_out() {
                    output.remark(&format!(
                        "warning: {count} lines about tests were left out, and so were records of those tests: \
                         they come faster than standard output and the disk take them"
                    ));
                }
            }
        };
        thread::Builder::new()
            .name("printer".to_owned())
            .spawn_scoped(scope, print)
            .map_err(|error| {
                Failure::failed(Problem::new(
                    format!("no thread to print with ({error})"),
                    "this process",
                    "raise the limit of processes: `ulimit -u`",
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
