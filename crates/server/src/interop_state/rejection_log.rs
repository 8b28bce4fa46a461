//! Rate-limited log of rejections: one event a client, and few a second.

use std::collections::HashMap;
use std::net::SocketAddr;

use linerate_sys::clock::Nanos;

/// Silence of a rejected flow after which its next datagram is reported again.
const REPEAT_INTERVAL_NS: Nanos = 2_000_000_000;

/// Interval between two reports about an address whose connections start no test.
const NO_TEST_REPEAT_INTERVAL_NS: Nanos = 60_000_000_000;

/// Reason of a connection that started no test.
const NO_TEST_STARTED: &str = "fruitless";

/// Limit of reported rejections with one reason and protocol in [`WINDOW_NS`].
const REPORT_LIMIT: u32 = 5;

/// Length of the window of that limit.
const WINDOW_NS: Nanos = 1_000_000_000;

/// Limit of remembered clients (about 100 kB). Above it, a client may be reported twice.
const CLIENT_LIMIT: usize = 1_024;

/// Key that groups rejections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectionKey {
    /// Reason, as a short id.
    pub reason: &'static str,
    /// Protocol of the client.
    pub protocol: &'static str,
    /// Address of the client. Each connection has its own port; datagrams of one flow have one
    /// address and port.
    pub from: SocketAddr,
}

impl RejectionKey {
    /// Creates the key of a connection that started no test. The port is left out, because port
    /// scanners open one connection after another: an address is reported once a minute.
    #[must_use]
    pub fn no_test_started(protocol: &'static str, from: SocketAddr) -> Self {
        Self {
            reason: NO_TEST_STARTED,
            protocol,
            from: SocketAddr::new(from.ip(), 0),
        }
    }

    /// Returns the minimum interval between two reports of this key.
    fn repeat_interval_ns(&self) -> Nanos {
        match self.reason {
            NO_TEST_STARTED => NO_TEST_REPEAT_INTERVAL_NS,
            _ => REPEAT_INTERVAL_NS,
        }
    }
}

/// Rejections that were reported, with their times.
#[derive(Debug, Default)]
pub struct RejectionLog {
    clients: HashMap<RejectionKey, Nanos>,
    by_reason: HashMap<(&'static str, &'static str), ReasonCounter>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReasonCounter {
    window_start_ns: Nanos,
    reported: u32,
    suppressed: u64,
}

impl RejectionLog {
    /// Returns `Some` if a rejection is to be reported now, with the number of suppressed ones of
    /// its kind.
    pub fn report(&mut self, now: Nanos, key: RejectionKey) -> Option<u64> {
        let recent =
            |key: &RejectionKey, last: Nanos| now.saturating_sub(last) < key.repeat_interval_ns();
        let last_report = self.clients.get(&key);
        let is_repeat = last_report.is_some_and(|&last| recent(&key, last));
        if !is_repeat && self.clients.len() >= CLIENT_LIMIT {
            self.clients.retain(|key, &mut last| recent(key, last));
            if self.clients.len() >= CLIENT_LIMIT {
                self.clients.clear();
            }
        }
        // Bounded: as many entries as there are reasons and protocols.
        let counter = self
            .by_reason
            .entry((key.reason, key.protocol))
            .or_default();
        if is_repeat && key.reason == NO_TEST_STARTED {
            // One more connection of a scan: the interval starts again.
            counter.suppressed += 1;
            return None;
        }
        self.clients.insert(key, now);
        if is_repeat {
            return None;
        }
        if now.saturating_sub(counter.window_start_ns) >= WINDOW_NS {
            (counter.window_start_ns, counter.reported) = (now, 0);
        }
        if counter.reported >= REPORT_LIMIT {
            counter.suppressed += 1;
            return None;
        }
        counter.reported += 1;
        Some(std::mem::take(&mut counter.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn protocol_key(protocol: &'static str, port: u16) -> RejectionKey {
        RejectionKey {
            reason: "dialect",
            protocol,
            from: SocketAddr::from(([10, 77, 0, 1], port)),
        }
    }

    #[test]
    fn a_flow_is_reported_once() {
        let mut log = RejectionLog::default();
        let reports = (0..1_000).filter_map(|datagram| {
            let now = SECOND + datagram * SECOND / 100;
            log.report(now, protocol_key("iperf2", 4_000))
        });
        assert_eq!(reports.collect::<Vec<_>>(), [0]);
        // Another run from the same port, later.
        assert_eq!(
            log.report(20 * SECOND, protocol_key("iperf2", 4_000)),
            Some(0)
        );
    }

    #[test]
    fn one_protocol_does_not_hide_another() {
        let mut log = RejectionLog::default();
        for port in 1..=100 {
            log.report(SECOND, protocol_key("iperf3", port));
        }
        assert_eq!(log.report(SECOND, protocol_key("nuttcp", 1)), Some(0));
        assert_eq!(log.report(SECOND, protocol_key("iperf3", 101)), None);
        assert_eq!(
            log.report(3 * SECOND, protocol_key("iperf3", 102)),
            Some(96),
            "suppressed rejections are counted"
        );
    }

    #[test]
    fn connections_without_a_test_are_reported_once_a_minute() {
        let mut log = RejectionLog::default();
        let mut report = |second: u64, host: u8, port: u16| {
            let from = SocketAddr::from(([10, 77, 0, host], port));
            log.report(
                second * SECOND,
                RejectionKey::no_test_started("iperf3", from),
            )
        };
        assert_eq!(report(1, 1, 4_000), Some(0));
        for second in 2..30 {
            assert_eq!(report(second, 1, 4_000 + second as u16), None, "{second}");
        }
        assert_eq!(report(30, 2, 4_000), Some(28), "another address");
        for second in 31..61 {
            assert_eq!(report(second, 1, 4_000 + second as u16), None, "{second}");
        }
        assert_eq!(report(61, 1, 5_000), Some(30), "the others are counted");
    }

    #[test]
    fn memory_is_bounded() {
        let mut log = RejectionLog::default();
        for port in 0..60_000 {
            log.report(SECOND + u64::from(port), protocol_key("plain", port));
            assert!(log.clients.len() <= CLIENT_LIMIT);
        }
    }
}
