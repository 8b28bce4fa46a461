//! Queue of this end below its sockets: frames to the other end wait behind it.

use linerate_sys::clock::Nanos;

/// Interval of the readings: a queue that matters takes longer, and reading takes a call a flow.
pub(super) const READ_INTERVAL_NS: Nanos = 500_000_000;

/// Time for which a queue may stand still until it no longer counts as draining: on a slow link one
/// datagram of 1,500 B takes 1.2 s at 10 kb/s.
const STANDSTILL_NS: Nanos = 2_000_000_000;

/// Bytes that wait below the sockets of this end, and the time until they are sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendQueue {
    /// Time of the last reading.
    read_ns: Nanos,
    /// Bytes in the queues then; the kernel counts the memory of datagrams.
    queued_bytes: u64,
    /// Bytes that the senders had passed to their sockets then.
    sent_bytes: u64,
    /// Time of the last reading at which the queue was shorter than before, or more was sent.
    moved_ns: Nanos,
    /// Time at which the queue will be empty.
    empty_ns: Nanos,
    /// Time since which the queue may stand still: at the last reading bytes waited, without a sign
    /// that any had left.
    still_since_ns: Option<Nanos>,
    /// Acknowledged bytes at the first such reading in a row, and that time.
    still: Option<(u64, Nanos)>,
    /// Longest time without an acknowledgement while bytes waited: its start and its length.
    longest_standstill: (Nanos, Nanos),
}

impl SendQueue {
    /// Returns whether it is time for the next reading.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now >= self.read_ns.saturating_add(READ_INTERVAL_NS)
    }

    /// Adds a reading and returns the time that the queue needs.
    ///
    /// A queue with nothing to move is gone or stands still: what waits in front of a dead link
    /// explains no silence.
    pub(super) fn update(&mut self, now: Nanos, queued_bytes: u64, sent_bytes: u64) -> Nanos {
        let interval_ns = now.saturating_sub(self.read_ns);
        let drained = self.queued_bytes.saturating_sub(queued_bytes);
        let moved = drained.max(sent_bytes.saturating_sub(self.sent_bytes));
        let is_first = self.read_ns == 0;
        let may_stand_still = !is_first && moved == 0 && queued_bytes > 0;
        let is_unchanged = queued_bytes == self.queued_bytes;
        let since_ns = if is_unchanged { self.read_ns } else { now };
        self.still_since_ns = may_stand_still.then_some(since_ns);
        if !may_stand_still {
            self.still = None;
        }
        self.read_ns = now;
        (self.queued_bytes, self.sent_bytes) = (queued_bytes, sent_bytes);
        if is_first || moved == 0 || queued_bytes == 0 {
            if queued_bytes == 0 {
                self.empty_ns = self.empty_ns.min(now);
            }
            return self.empty_ns.saturating_sub(now);
        }
        self.moved_ns = now;
        let delay_ns = u128::from(queued_bytes) * u128::from(interval_ns) / u128::from(moved);
        let delay_ns = Nanos::try_from(delay_ns).unwrap_or(Nanos::MAX);
        self.empty_ns = now.saturating_add(delay_ns);
        delay_ns
    }

    /// Returns the time at which the queue is empty; earlier than now if it is.
    pub(super) fn empty_ns(&self) -> Nanos {
        self.empty_ns
    }

    /// Returns whether the last reading left open if anything moves: a call that blocks refills the
    /// queue, and is counted once it returns.
    pub(super) fn may_stand_still(&self) -> bool {
        self.still_since_ns.is_some()
    }

    /// Adds the acknowledged bytes of a reading that left it open.
    pub(super) fn acknowledged(&mut self, now: Nanos, bytes: u64) {
        match self.still {
            Some((before, since_ns)) if before == bytes => {
                let length_ns = now.saturating_sub(since_ns);
                if length_ns > self.longest_standstill.1 {
                    self.longest_standstill = (since_ns, length_ns);
                }
            }
            _ => self.still = self.still_since_ns.map(|since_ns| (bytes, since_ns)),
        }
    }

    /// Returns start and length of the longest time in which bytes waited and none was acknowledged.
    pub(super) fn longest_standstill(&self) -> (Nanos, Nanos) {
        self.longest_standstill
    }

    /// Returns whether bytes were waiting lately, and left.
    pub(super) fn is_draining(&self, now: Nanos) -> bool {
        now < self.moved_ns.saturating_add(STANDSTILL_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    /// Readings of a sender at `sent_bps` for `send_s` seconds in front of a link of `link_bps`,
    /// until `end_s`. The kernel counts 1.5 times the payload. Returns the time at which the queue
    /// was empty, and the estimates: time and delay in seconds.
    fn simulate(
        sent_bps: f64,
        send_s: f64,
        link_bps: f64,
        end_s: f64,
    ) -> (f64, Vec<(f64, f64)>, SendQueue) {
        let (mut queue, mut estimates, mut emptied) = (SendQueue::default(), Vec::new(), 0.0);
        let (mut waiting, mut sent) = (0.0_f64, 0.0);
        let steps = (end_s * 2.0) as u64;
        for step in 1..=steps {
            let at = step as f64 / 2.0;
            let bytes = if at <= send_s { sent_bps / 16.0 } else { 0.0 };
            sent += bytes;
            waiting = (waiting + bytes - link_bps / 16.0).max(0.0);
            if waiting > 0.0 {
                emptied = at + 0.5;
            }
            let now = SECOND + step * READ_INTERVAL_NS;
            let delay = queue.update(now, (waiting * 1.5) as u64, sent as u64);
            estimates.push((at, delay as f64 / 1e9));
        }
        (emptied, estimates, queue)
    }

    #[test]
    fn a_deep_queue_explains_the_silence_until_it_is_empty() {
        // 2 Mb/s for 4 s into 250 kb/s: 28 s more.
        let (emptied, estimates, queue) = simulate(2e6, 4.0, 250e3, 40.0);
        assert!((31.0..33.0).contains(&emptied), "{emptied}");
        for &(at, delay) in estimates
            .iter()
            .filter(|(at, _)| *at > 4.5 && *at < emptied - 1.0)
        {
            let remaining = emptied - at;
            assert!(
                (delay - remaining).abs() < 1.5,
                "{at}: {delay} of {remaining}"
            );
        }
        assert!(!queue.is_draining(SECOND * 100) && queue.empty_ns() < SECOND * 40);
    }

    #[test]
    fn the_queue_of_a_fast_link_explains_nothing() {
        // 10 Gb/s through a link of 10 Gb/s: what is in the ring of the device.
        let mut queue = SendQueue::default();
        for step in 1..20 {
            let now = step * READ_INTERVAL_NS;
            let delay = queue.update(now, 300_000, step * 625_000_000);
            assert!(delay < 1_000_000, "{delay}");
        }
    }

    #[test]
    fn the_longest_standstill_is_kept() {
        // Bytes sent, waiting and acknowledged, twice a second.
        let readings = [
            (10, 2, 8),
            (20, 2, 18),
            // A call fills the queue as fast as it drains.
            (20, 2, 20),
            (20, 2, 22),
            (20, 2, 24),
            (30, 12, 26),
            // The peer reads nothing.
            (30, 12, 26),
            (30, 12, 26),
            (30, 12, 26),
            (30, 12, 26),
            (40, 12, 36),
            // Nothing is left.
            (40, 0, 48),
            (40, 0, 48),
            (40, 0, 48),
            (40, 0, 48),
            (40, 0, 48),
        ];
        let mut queue = SendQueue::default();
        for ((sent, queued, acknowledged), number) in readings.into_iter().zip(2..) {
            queue.update(number * READ_INTERVAL_NS, queued, sent);
            if queue.may_stand_still() {
                queue.acknowledged(number * READ_INTERVAL_NS, acknowledged);
            }
        }
        assert_eq!(queue.longest_standstill(), (7 * SECOND / 2, 2 * SECOND));
    }

    #[test]
    fn a_queue_that_stands_still_explains_nothing() {
        let mut queue = SendQueue::default();
        queue.update(SECOND, 1_000_000, 1_000_000);
        assert_eq!(queue.update(2 * SECOND, 900_000, 1_000_000), 9 * SECOND);
        assert!(queue.is_draining(2 * SECOND));
        // The link is gone.
        let delays = (3..20).map(|second| queue.update(second * SECOND, 900_000, 1_000_000));
        let delays: Vec<_> = delays.collect();
        assert_eq!((delays[0], delays[16]), (8 * SECOND, 0));
        assert!(!queue.is_draining(5 * SECOND));
        // It never moved at all.
        let mut stuck = SendQueue::default();
        assert_eq!(stuck.update(SECOND, 5_000, 5_000), 0);
        assert_eq!(stuck.update(2 * SECOND, 5_000, 5_000), 0);
    }
}
