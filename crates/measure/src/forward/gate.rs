//! Queues with somebody at the gate: a transmit queue that is held to a bit rate, and queues whose frames are
//! described as they pass.
//!
//! A loop over such queues is compiled for itself, so that all others pay nothing.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use linerate_host::sys::clock;
use linerate_port::kind::{AnyReceive, AnyTransmit};
use linerate_port::{Absence, Burst, Memory, Pool, PortError, QueueCounters, Receive, Transmit};

use super::settings::Settings;
use super::stream::Facts;

mod describe;

/// Bursts that may wait to be shown; what comes meanwhile is left out and counted.
const WAITING: usize = 32;

/// Time that a queue which had nothing to send may make up for.
const CATCH_UP_NS: u64 = 1_000_000;

/// When a queue may send again, so that it keeps to a bit rate: bursts leave whole, and each is paid for
/// before the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    l2_bps: u64,
    free_ns: u64,
    /// Bytes that leave unpaced: those that are put into circulation before anybody forwards.
    first: u64,
}

impl Pace {
    pub(super) fn new(l2_bps: u64, first: u64) -> Self {
        Self {
            l2_bps: l2_bps.max(1),
            free_ns: 0,
            first,
        }
    }

    fn allows(&self, now_ns: u64) -> bool {
        now_ns >= self.free_ns
    }

    fn sent(&mut self, now_ns: u64, bytes: u64) {
        if self.first > 0 {
            self.first = self.first.saturating_sub(bytes);
            return;
        }
        let from = self.free_ns.max(now_ns.saturating_sub(CATCH_UP_NS));
        let bits = u128::from(bytes) * 8;
        let took = bits * 1_000_000_000 / u128::from(self.l2_bps);
        self.free_ns = from.saturating_add(u64::try_from(took).unwrap_or(u64::MAX));
    }
}

/// Where descriptions of frames go.
#[derive(Clone)]
pub(super) struct Teller {
    lines: SyncSender<String>,
    unseen: Arc<AtomicU64>,
}

/// Where they come out.
pub(super) struct Told {
    lines: Receiver<String>,
    unseen: Arc<AtomicU64>,
}

/// Both ends.
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
    /// What has come since it was asked last.
    pub(super) fn read(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.lines.try_iter().take(WAITING).collect();
        match self.unseen.swap(0, Relaxed) {
            0 => {}
            1 => lines.push("(1 packet passed faster than packets can be shown)".to_owned()),
            unseen => lines.push(format!(
                "({unseen} packets passed faster than packets can be shown)"
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

/// A queue whose frames are described.
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
            .map(|frame| describe::frame(self.memory.bytes(frame), "Receive", self.queue));
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

/// A queue with somebody at its gate.
pub(super) struct Gated<Q> {
    queue: Q,
    shown: Option<Shown>,
    pace: Option<Pace>,
}

/// Both queues of a stream as settings have them watched.
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
        pace: None,
    };
    let transmit = Gated {
        queue: transmit,
        shown: shown(settings.verbose.sent(), tx_port, tx_queue),
        pace: (settings.rate(tx_port, tx_queue))
            .map(|rate| Pace::new(rate, settings.first_bytes())),
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

    fn is_joined(&self) -> Option<bool> {
        self.queue.is_joined()
    }

    fn absences(&self) -> Vec<Absence> {
        self.queue.absences()
    }
}

impl Transmit for Gated<AnyTransmit> {
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let now = clock::now();
        if self.pace.is_some_and(|pace| !pace.allows(now)) {
            return 0;
        }
        let lines: Vec<String> = self.shown.iter().fold(Vec::new(), |mut lines, shown| {
            let frames = burst.frames().iter();
            lines.extend(
                frames.map(|frame| describe::frame(shown.memory.bytes(frame), "Send", shown.queue)),
            );
            lines
        });
        let before = self.queue.counters().read().bytes;
        let sent = self.queue.transmit(pool, burst);
        if sent > 0 {
            if let Some(pace) = &mut self.pace {
                pace.sent(now, self.queue.counters().read().bytes - before);
            }
            if let Some(shown) = &self.shown {
                shown.tell("sent", lines.into_iter().take(sent).collect());
            }
        }
        sent
    }

    fn reclaim(&mut self, pool: &mut Pool) -> usize {
        self.queue.reclaim(pool)
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        self.queue.counters()
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.queue.refresh()
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

    /// Bursts of 2048 bytes at 1 Gbit/s, offered every microsecond: one in 16.384 us.
    #[test]
    fn a_queue_keeps_to_its_rate() {
        for (rate, bytes) in [(1_000_000_000, 2048), (10_000_000, 64), (3, 1)] {
            let mut pace = Pace::new(rate, 0);
            let (mut sent, mut now) = (0u64, 10_000_000);
            let end = now + 10_000_000_000;
            while now < end {
                if pace.allows(now) {
                    pace.sent(now, bytes);
                    sent += bytes;
                    // Far from the next turn there is nothing to ask.
                    now = now.max(pace.free_ns.min(end)).max(now + 1000);
                } else {
                    now += 1000;
                }
            }
            let want = rate as f64 * 10.0 / 8.0;
            let off = (sent as f64 - want).abs();
            // What was made up for at the start, and the burst that the end cuts.
            let room = want * 0.001 + 2.0 * bytes as f64;
            assert!(off <= room, "{rate}: {sent} instead of {want}");
        }
    }

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
