//! A thread that prints what happens: who measures never waits for a terminal, a pipe or a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::thread;

use jiff::Timestamp;
use linerate_metric::event::{Event, Problem, What};

use crate::failure::Failure;
use crate::output::Output;

/// Interval lines that may wait: minutes of a test, and no more than a few hundred kilobytes.
/// Everything else comes a few times a test and is never left out.
const WAITING_INTERVALS: usize = 1024;

/// Tells the printer what happens, from any thread and without waiting.
#[derive(Clone)]
pub struct Teller {
    /// `None` is the end: some teller may still be held by a thread that is about to end.
    queue: Sender<Option<(Timestamp, Event)>>,
    intervals: Arc<Intervals>,
}

struct Intervals {
    limit: usize,
    waiting: AtomicUsize,
    left_out: AtomicUsize,
}

impl Intervals {
    fn up_to(limit: usize) -> Self {
        Self {
            limit,
            waiting: AtomicUsize::new(0),
            left_out: AtomicUsize::new(0),
        }
    }
}

impl Teller {
    /// A teller whose events somebody else takes from the queue.
    #[cfg(feature = "tui")]
    pub fn of(queue: Sender<Option<(Timestamp, Event)>>) -> Self {
        Self {
            queue,
            // A screen takes whatever comes, many times a second.
            intervals: Arc::new(Intervals::up_to(usize::MAX)),
        }
    }

    /// Says that nothing more comes.
    #[cfg(feature = "tui")]
    pub fn end(&self) {
        let _ = self.queue.send(None);
    }

    /// Puts it in the queue. An interval that finds too many before it is left out.
    pub fn tell(&self, event: Event) {
        if matches!(event.what, What::Interval { .. }) {
            let limit = self.intervals.limit;
            let add = |waiting| (waiting < limit).then_some(waiting + 1);
            let room = self.intervals.waiting.fetch_update(Relaxed, Relaxed, add);
            if room.is_err() {
                self.intervals.left_out.fetch_add(1, Relaxed);
                return;
            }
        }
        // The printer goes only after the last word.
        let _ = self.queue.send(Some((Timestamp::now(), event)));
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
    let intervals = Arc::new(Intervals::up_to(WAITING_INTERVALS));
    let counted = Arc::clone(&intervals);
    thread::scope(|scope| {
        // Owned here: should `body` panic, the queue closes and the printer ends.
        let teller = Teller { queue, intervals };
        let print = move || {
            while let Ok(Some((at, event))) = waiting.recv() {
                if matches!(event.what, What::Interval { .. }) {
                    counted.waiting.fetch_sub(1, Relaxed);
                }
                output.event(&event, at);
                let left_out = counted.left_out.swap(0, Relaxed);
                if left_out > 0 {
                    output.remark(&format!(
                        "warning: {left_out} interval lines were left out: standard output is not \
                         read fast enough (the records have them)"
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
        let _ = teller.queue.send(None);
        Ok(result)
    })
}
