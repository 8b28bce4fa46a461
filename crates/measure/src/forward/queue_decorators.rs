//! Queue decorators: a transmit queue with a bit rate limit, and queues whose frames are described
//! one by one.
//!
//! The loop over decorated queues is compiled separately, so that undecorated queues have no
//! overhead.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use linerate_host::sys::clock::{self, Nanos};
use linerate_port::kinds::ring::RingTransmit;
use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{
    Absence, Burst, Memory, Partner, Pool, PortError, QueueCounters, Receive, Transmit,
};

use super::settings::Settings;
use super::stream::Facts;

use rate_limit::Held;

mod frame_description;
mod rate_limit;

/// Maximum bursts of descriptions that wait to be printed; later ones are skipped and counted.
const WAITING: usize = 32;

/// Sending end for descriptions of frames.
#[derive(Clone)]
pub(super) struct Teller {
    lines: SyncSender<String>,
    unseen: Arc<AtomicU64>,
}

/// Receiving end for descriptions of frames.
pub(super) struct Told {
    lines: Receiver<String>,
    unseen: Arc<AtomicU64>,
}

/// Creates both ends of a channel for descriptions.
pub(super) fn telling() -> (Teller, Told) {
    let (lines, waiting) = sync_channel(WAITING);
    let unseen = Arc::<AtomicU64>::default();
    let teller = Teller {
        lines,
        unseen: Arc::clone(&unseen),
    };
    let told = Told {
        lines: waiting,
        unseen,
    };
    (teller, told)
}

impl Told {
    /// Returns the descriptions that have arrived since the last call.
    pub(super) fn read(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.lines.try_iter().take(WAITING).collect();
        match self.unseen.swap(0, Relaxed) {
            0 => {}
            1 => lines.push(
                "(1 packet skipped: packets arrive faster than they can be printed)".to_owned(),
            ),
            unseen => lines.push(format!(
                "({unseen} packets skipped: packets arrive faster than they can be printed)"
            )),
        }
        lines
    }
}

impl Teller {
    fn tell(&self, text: String, frames: usize) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.lines.try_send(text)
        {
            self.unseen.fetch_add(frames as u64, Relaxed);
        }
    }
}

/// Describes the frames of a queue.
struct Shown {
    port: u32,
    queue: u32,
    memory: Memory,
    teller: Teller,
}

impl Shown {
    fn received(&self, burst: &Burst, before: usize) {
        let frames = &burst.frames()[before..];
        let lines = frames
            .iter()
            .map(|frame| frame_description::frame(self.memory.bytes(frame), "Receive", self.queue));
        self.tell("received", lines.collect());
    }

    fn tell(&self, what: &str, lines: Vec<String>) {
        let (Self { port, queue, .. }, count) = (self, lines.len());
        let text = format!(
            "port {port}/queue {queue}: {what} {count} packets\n{}",
            lines.join("\n")
        );
        self.teller.tell(text, count);
    }
}

/// Queue with an optional rate limit and optional descriptions.
pub(super) struct Gated<Q> {
    queue: Q,
    shown: Option<Shown>,
    held: Option<Held>,
}

/// Transmit queue of the loop, with or without decorators.
pub(super) trait Outlet: Transmit + Into<AnyTransmit> {
    /// True if frames may wait for a rate limit; the loop omits the calls otherwise.
    const HOLDS: bool = false;

    /// Sends the waiting frames whose time has come.
    fn leave(&mut self, pool: &mut Pool) {
        let _ = pool;
    }

    /// Returns the deadline of the next waiting frame; `None` if no frame waits.
    fn due(&self) -> Option<Nanos> {
        None
    }

    /// Returns whether the queue has accepted no waiting frame for long, so that its peer seems
    /// gone.
    fn is_stuck(&self) -> bool {
        false
    }

    /// Frees the waiting frames; returns their number.
    fn end(&mut self, pool: &mut Pool) -> u64 {
        let _ = pool;
        0
    }
}

impl Outlet for AnyTransmit {}
impl Outlet for RingTransmit {}

/// Decorates both queues of a stream as the settings require.
pub(super) fn gated(
    receive: AnyReceive,
    transmit: AnyTransmit,
    facts: &Facts,
    settings: &Settings,
    memory: &Memory,
    teller: Option<&Teller>,
) -> (Gated<AnyReceive>, Gated<AnyTransmit>) {
    let ([rx_port, rx_queue], [tx_port, tx_queue]) = (facts.from, facts.to);
    let shown = |wanted: bool, port, queue| {
        teller.filter(|_| wanted).map(|teller| Shown {
            port,
            queue,
            memory: memory.clone(),
            teller: teller.clone(),
        })
    };
    let receive = Gated {
        queue: receive,
        shown: shown(settings.verbose.received(), rx_port, rx_queue),
        held: None,
    };
    let transmit = Gated {
        queue: transmit,
        shown: shown(settings.verbose.sent(), tx_port, tx_queue),
        held: (settings.rate(tx_port, tx_queue)).map(|rate| Held::new(rate, facts.descriptors)),
    };
    (receive, transmit)
}

impl Receive for Gated<AnyReceive> {
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let before = burst.len();
        let came = self.queue.receive(pool, burst);
        if came > 0
            && let Some(shown) = &self.shown
        {
            shown.received(burst, before);
        }
        came
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        self.queue.counters()
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.queue.refresh()
    }

    fn ended(&self) -> bool {
        self.queue.ended()
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_handle()
    }

    fn partner(&self) -> Option<Partner> {
        self.queue.partner()
    }

    fn absences(&self) -> Vec<Absence> {
        self.queue.absences()
    }
}

impl Gated<AnyTransmit> {
    /// Accepts frames into the ring of the rate limit, or sends them at once without a limit.
    fn accept(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let Some(held) = &mut self.held else {
            return self.queue.transmit(pool, burst);
        };
        let now = clock::now();
        held.leave(now, &mut self.queue, pool);
        let taken = held.take(burst);
        held.leave(now, &mut self.queue, pool);
        taken
    }
}

impl Transmit for Gated<AnyTransmit> {
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let Some(shown) = &self.shown else {
            return self.accept(pool, burst);
        };
        // Sent frames belong to the port and can no longer be read.
        let frames = burst.frames().iter();
        let mut lines: Vec<String> = frames
            .map(|frame| frame_description::frame(shown.memory.bytes(frame), "Send", shown.queue))
            .collect();
        let taken = self.accept(pool, burst);
        lines.truncate(taken);
        if let Some(shown) = self.shown.as_ref().filter(|_| taken > 0) {
            shown.tell("sent", lines);
        }
        taken
    }

    fn reclaim(&mut self, pool: &mut Pool) -> usize {
        self.leave(pool);
        self.queue.reclaim(pool)
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        self.queue.counters()
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.queue.refresh()
    }
}

impl Outlet for Gated<AnyTransmit> {
    const HOLDS: bool = true;

    fn leave(&mut self, pool: &mut Pool) {
        if let Some(held) = &mut self.held {
            held.leave(clock::now(), &mut self.queue, pool);
        }
    }

    fn due(&self) -> Option<Nanos> {
        self.held.as_ref()?.due()
    }

    fn is_stuck(&self) -> bool {
        self.held.as_ref().is_some_and(Held::is_stuck)
    }

    fn end(&mut self, pool: &mut Pool) -> u64 {
        self.held.as_mut().map_or(0, |held| held.end(pool))
    }
}

impl From<Gated<AnyReceive>> for AnyReceive {
    fn from(gated: Gated<Self>) -> Self {
        gated.queue
    }
}

impl From<Gated<AnyTransmit>> for AnyTransmit {
    fn from(gated: Gated<Self>) -> Self {
        gated.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_counted() {
        let (teller, told) = telling();
        for at in 0..WAITING + 2 {
            teller.tell(at.to_string(), 3);
        }
        let lines = told.read();
        assert_eq!((lines.len(), lines[0].as_str()), (WAITING + 1, "0"));
        assert!(lines[WAITING].contains("(6 packets"), "{}", lines[WAITING]);
        assert!(told.read().is_empty());
    }
}
