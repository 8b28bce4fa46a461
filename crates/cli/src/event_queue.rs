//! Queue of events from measuring threads to a printer or a screen: sending never blocks, and the
//! printer's queue is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};

use jiff::Timestamp;
use linerate_record::event::{Event, EventKind};

use crate::ui_update::UiUpdate;

/// Maximum number of queued interval lines: minutes of a test, at most a few hundred kilobytes.
const MAX_QUEUED_INTERVALS: usize = 1024;

/// Maximum number of other queued events. A test has few of them, but a server's unvalidated
/// clients can start any number of tests, each with a record of some ten kilobytes.
const MAX_QUEUED_EVENTS: usize = 1024;

/// Message to the printer or to the screen.
pub enum UiMessage {
    /// An event and its time.
    Event(Timestamp, Event),
    /// An update that only a screen shows.
    #[cfg_attr(not(feature = "tui"), allow(dead_code))]
    Update(UiUpdate),
    /// Ends the printer, although threads that are about to end may still hold senders.
    End,
}

/// Sender of events to the printer, from any thread and without blocking.
#[derive(Clone)]
pub struct EventSender {
    queue: Sender<UiMessage>,
    limits: Arc<QueueLimits>,
}

/// Receiver of the printer's queue.
pub struct EventReceiver {
    queue: Receiver<UiMessage>,
    limits: Arc<QueueLimits>,
}

/// Limits of the queue, by sort of event.
struct QueueLimits {
    intervals: QueueLimit,
    rest: QueueLimit,
}

/// Number of queued events of one sort, and of those dropped at the limit.
struct QueueLimit {
    limit: usize,
    queued: AtomicUsize,
    dropped: AtomicUsize,
}

impl QueueLimits {
    fn new(intervals: usize, rest: usize) -> Self {
        let limit_of = |limit| QueueLimit {
            limit,
            queued: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        };
        Self {
            intervals: limit_of(intervals),
            rest: limit_of(rest),
        }
    }

    fn limit_for(&self, event: &Event) -> &QueueLimit {
        match event.kind {
            EventKind::Interval { .. } => &self.intervals,
            _ => &self.rest,
        }
    }
}

impl QueueLimit {
    /// Reserves space for one event and returns true; at the limit it counts a dropped event and
    /// returns false.
    fn reserve(&self) -> bool {
        let add = |queued| (queued < self.limit).then_some(queued + 1);
        let reserved = self.queued.fetch_update(Relaxed, Relaxed, add).is_ok();
        if !reserved {
            self.dropped.fetch_add(1, Relaxed);
        }
        reserved
    }

    fn release(&self) {
        self.queued.fetch_sub(1, Relaxed);
    }

    /// Returns the number of events dropped since the last call, if any.
    fn take_dropped(&self) -> Option<usize> {
        Some(self.dropped.swap(0, Relaxed)).filter(|&count| count > 0)
    }
}

/// Creates the queue of a printer, with its limits.
pub fn printer_queue() -> (EventSender, EventReceiver) {
    let (queue, receiver) = mpsc::channel();
    let limits = Arc::new(QueueLimits::new(MAX_QUEUED_INTERVALS, MAX_QUEUED_EVENTS));
    let receiver = EventReceiver {
        queue: receiver,
        limits: Arc::clone(&limits),
    };
    (EventSender { queue, limits }, receiver)
}

impl EventSender {
    /// Creates a sender without limits whose receiver is a screen.
    #[cfg(feature = "tui")]
    pub fn unbounded(queue: Sender<UiMessage>) -> Self {
        Self {
            queue,
            // The screen empties its queue many times a second.
            limits: Arc::new(QueueLimits::new(usize::MAX, usize::MAX)),
        }
    }

    /// Announces that no more messages follow.
    pub fn finish(&self) {
        let _ = self.queue.send(UiMessage::End);
    }

    /// Sends an update to the screen; a printer ignores it.
    pub fn show(&self, update: UiUpdate) {
        let _ = self.queue.send(UiMessage::Update(update));
    }

    /// Queues an event; at the limit of its sort it is dropped.
    pub fn send(&self, event: Event) {
        if !self.limits.limit_for(&event).reserve() {
            return;
        }
        // The printer ends only after the last message.
        let _ = self.queue.send(UiMessage::Event(Timestamp::now(), event));
    }
}

impl EventReceiver {
    /// Waits for the next event; `None` after the last one.
    pub fn receive(&self) -> Option<(Timestamp, Event)> {
        loop {
            match self.queue.recv().ok()? {
                UiMessage::Event(at, event) => {
                    self.limits.limit_for(&event).release();
                    return Some((at, event));
                }
                UiMessage::Update(_) => {}
                UiMessage::End => return None,
            }
        }
    }

    /// Returns a warning for each sort of event that was dropped since the last call.
    pub fn take_drop_warnings(&self) -> impl Iterator<Item = String> {
        let intervals = self.limits.intervals.take_dropped().map(|count| {
            format!(
                "warning: {count} interval lines were dropped: standard output is not \
                 read fast enough (the records have them)"
            )
        });
        let rest = self.limits.rest.take_dropped().map(|count| {
            format!(
                "warning: {count} event lines were dropped, with the records of their tests: \
                 tests end faster than standard output and the disk accept them"
            )
        });
        intervals.into_iter().chain(rest)
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::CaveatId;
    use linerate_record::record::Caveat;

    use super::*;

    #[test]
    fn the_queue_is_bounded_and_drops_are_counted() {
        let limits = QueueLimits::new(1, 2);
        let caveat = Event {
            test: 1,
            kind: EventKind::CaveatRaised {
                caveat: Caveat::new(CaveatId::Steal, "why"),
            },
        };
        let reserved: Vec<bool> = (0..4)
            .map(|_| limits.limit_for(&caveat).reserve())
            .collect();
        assert_eq!(reserved, [true, true, false, false]);
        limits.rest.release();
        assert!(limits.limit_for(&caveat).reserve());
        assert_eq!(
            (limits.rest.take_dropped(), limits.rest.take_dropped()),
            (Some(2), None)
        );
        assert_eq!(limits.intervals.queued.load(Relaxed), 0);
    }
}
