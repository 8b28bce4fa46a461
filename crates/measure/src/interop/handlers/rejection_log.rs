//! Rate-limited log of rejections: one event a client, and few a second.

use std::collections::HashMap;
use std::net::SocketAddr;

use linerate_host::sys::clock::Nanos;

/// Silence of a rejected flow after which its next datagram is reported again.
const AGAIN_NS: Nanos = 2_000_000_000;

/// Interval between two reports about an address whose connections start no test.
const FRUITLESS_NS: Nanos = 60_000_000_000;

/// Reason of a connection that started no test.
const FRUITLESS: &str = "fruitless";

/// Limit of reported rejections with one reason and protocol in [`WINDOW_NS`].
const TOLD: u32 = 5;

/// Length of the window of that limit.
const WINDOW_NS: Nanos = 1_000_000_000;

/// Limit of remembered clients (about 100 kB). Above it, a client may be reported twice.
const CLIENTS: usize = 1_024;

/// Key that groups rejections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refused {
    /// Reason, as a short id.
    pub why: &'static str,
    /// Protocol of the client.
    pub dialect: &'static str,
    /// Address of the client. Each connection has its own port; datagrams of one flow have one
    /// address and port.
    pub from: SocketAddr,
}

impl Refused {
    /// Creates the key of a connection that started no test. The port is left out, because port
    /// scanners open one connection after another: an address is reported once a minute.
    #[must_use]
    pub fn fruitless(dialect: &'static str, from: SocketAddr) -> Self {
        Self {
            why: FRUITLESS,
            dialect,
            from: SocketAddr::new(from.ip(), 0),
        }
    }

    /// Returns the minimum interval between two reports of this key.
    fn again_ns(&self) -> Nanos {
        match self.why {
            FRUITLESS => FRUITLESS_NS,
            _ => AGAIN_NS,
        }
    }
}

/// Rejections that were reported, with their times.
#[derive(Debug, Default)]
pub struct Refusals {
    clients: HashMap<Refused, Nanos>,
    sorts: HashMap<(&'static str, &'static str), Sort>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sort {
    since_ns: Nanos,
    told: u32,
    untold: u64,
}

impl Refusals {
    /// Returns `Some` if a rejection is to be reported now, with the number of suppressed ones of
    /// its kind.
    pub fn tell(&mut self, now: Nanos, refused: Refused) -> Option<u64> {
        let recent = |refused: &Refused, last: Nanos| now.saturating_sub(last) < refused.again_ns();
        let known = self.clients.get(&refused);
        let goes_on = known.is_some_and(|&last| recent(&refused, last));
        if !goes_on && self.clients.len() >= CLIENTS {
            self.clients
                .retain(|refused, &mut last| recent(refused, last));
            if self.clients.len() >= CLIENTS {
                self.clients.clear();
            }
        }
        // Bounded: as many entries as there are reasons and protocols.
        let sort = self
            .sorts
            .entry((refused.why, refused.dialect))
            .or_default();
        if goes_on && refused.why == FRUITLESS {
            // One more connection of a scan: the interval starts again.
            sort.untold += 1;
            return None;
        }
        self.clients.insert(refused, now);
        if goes_on {
            return None;
        }
        if now.saturating_sub(sort.since_ns) >= WINDOW_NS {
            (sort.since_ns, sort.told) = (now, 0);
        }
        if sort.told >= TOLD {
            sort.untold += 1;
            return None;
        }
        sort.told += 1;
        Some(std::mem::take(&mut sort.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn refused(dialect: &'static str, port: u16) -> Refused {
        Refused {
            why: "dialect",
            dialect,
            from: SocketAddr::from(([10, 77, 0, 1], port)),
        }
    }

    #[test]
    fn a_flow_is_told_once_however_many_datagrams_it_has() {
        let mut refusals = Refusals::default();
        let told = (0..1_000).filter_map(|datagram| {
            let now = SECOND + datagram * SECOND / 100;
            refusals.tell(now, refused("iperf2", 4_000))
        });
        assert_eq!(told.collect::<Vec<_>>(), [0]);
        // Another run from the same port, later.
        assert_eq!(
            refusals.tell(20 * SECOND, refused("iperf2", 4_000)),
            Some(0)
        );
    }

    #[test]
    fn one_dialect_does_not_hide_another() {
        let mut refusals = Refusals::default();
        for port in 1..=100 {
            refusals.tell(SECOND, refused("iperf3", port));
        }
        assert_eq!(refusals.tell(SECOND, refused("nuttcp", 1)), Some(0));
        assert_eq!(refusals.tell(SECOND, refused("iperf3", 101)), None);
        assert_eq!(
            refusals.tell(3 * SECOND, refused("iperf3", 102)),
            Some(96),
            "suppressed rejections are counted"
        );
    }

    #[test]
    fn an_address_whose_connections_come_to_nothing_is_told_once_a_minute() {
        let mut refusals = Refusals::default();
        let mut tell = |second: u64, host: u8, port: u16| {
            let from = SocketAddr::from(([10, 77, 0, host], port));
            refusals.tell(second * SECOND, Refused::fruitless("iperf3", from))
        };
        assert_eq!(tell(1, 1, 4_000), Some(0));
        for second in 2..30 {
            assert_eq!(tell(second, 1, 4_000 + second as u16), None, "{second}");
        }
        assert_eq!(tell(30, 2, 4_000), Some(28), "another address");
        for second in 31..61 {
            assert_eq!(tell(second, 1, 4_000 + second as u16), None, "{second}");
        }
        assert_eq!(tell(61, 1, 5_000), Some(30), "the others are counted");
    }

    #[test]
    fn memory_is_bounded() {
        let mut refusals = Refusals::default();
        for port in 0..60_000 {
            refusals.tell(SECOND + u64::from(port), refused("plain", port));
            assert!(refusals.clients.len() <= CLIENTS);
        }
    }
}
