//! A UDP flow, at the server.

use super::datagram::{HEADER_BYTES, LEGACY_HEADER_BYTES, read_header};
use super::report::{Layout, REPORT_BYTES, REPORT_LEAST_BYTES, Report};
use super::settings::{Settings, Way, flags};
use super::tally::Tally;
use super::word;

/// How long a flow is quiet after its end before it can be forgotten, in nanoseconds. A client that
/// misses the report asks again after 10 ms (2.1) or 250 ms (2.0), and stock servers wait no longer.
pub const QUIET_NS: u64 = 400_000_000;

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Payload; it is counted.
    Payload,
    /// The client's last word.
    End,
    /// Nothing that belongs here.
    Stray,
}

/// One flow: what comes from one address and port.
#[derive(Debug)]
pub struct UdpServer {
    settings: Option<Settings>,
    layout: Layout,
    wide: bool,
    tally: Tally,
    /// The last number of the client, once it has said that it is the last.
    ended: Option<u64>,
    report: [u8; REPORT_BYTES],
}

impl UdpServer {
    /// Opens a flow with its first datagram, which counts as payload unless it only asks for some.
    /// `None` for what cannot open one: too small, or the end of a flow that is over.
    #[must_use]
    pub fn open(datagram: &[u8], now_wall_ns: u64) -> Option<Self> {
        let at = |offset| Settings::read(datagram.get(offset..)?, offset);
        let settings = at(HEADER_BYTES);
        // Without an extension the bit may be a digit of the payload.
        let wide = settings
            .as_ref()
            .is_some_and(|settings| settings.version.is_some() && settings.wide);
        let first = read_header(datagram, wide)?;
        if first.sequence < 0 {
            return None;
        }
        let layout = layout(datagram, settings.as_ref());
        let mut flow = Self {
            layout,
            // 2.0.5 has the same 4 bytes earlier, when it wants both directions.
            settings: settings.or_else(|| at(LEGACY_HEADER_BYTES)),
            wide,
            tally: Tally::default(),
            ended: None,
            report: [0; REPORT_BYTES],
        };
        flow.receive(datagram, now_wall_ns);
        Some(flow)
    }

    /// What the client wants; `None` for an old one, which can only send.
    #[must_use]
    pub fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Who sends.
    #[must_use]
    pub fn way(&self) -> Way {
        self.settings.as_ref().map_or(Way::Forward, |s| s.way)
    }

    /// Takes a datagram of this flow.
    #[inline]
    pub fn receive(&mut self, datagram: &[u8], now_wall_ns: u64) -> Heard {
        // Behind a first datagram with room for what it says, smaller ones may follow (`-l 12`).
        let wide = self.wide && datagram.len() >= HEADER_BYTES;
        let Some(header) = read_header(datagram, wide) else {
            return Heard::Stray;
        };
        if self.ended.is_some() {
            // A late datagram is no payload any more, and a repeated end wants its answer again.
            return if header.sequence < 0 {
                Heard::End
            } else {
                Heard::Stray
            };
        }
        if header.sequence >= 0 {
            if self.way() == Way::Reverse {
                return Heard::Stray;
            }
            self.tally.take(header, datagram.len(), now_wall_ns);
            return Heard::Payload;
        }
        self.ended = Some(header.sequence.unsigned_abs());
        if self.way() != Way::Reverse {
            // Stock servers count the end, and so do their clients.
            self.tally.take(header, datagram.len(), now_wall_ns);
        }
        self.report = self.report().write(self.layout);
        Heard::End
    }

    /// The flow was quiet for so long that no end will come: what there is, is all.
    pub fn give_up(&mut self) {
        self.ended.get_or_insert(0);
    }

    /// The answer to the end, no larger than `at_most` bytes: the size of what it answers, unless the
    /// client is known to be where it says. `None` before the end, for a client that wants none, and
    /// where there is no room for what clients read.
    #[must_use]
    pub fn answer(&self, at_most: usize) -> Option<&[u8]> {
        self.ended?;
        let wanted = self
            .settings
            .as_ref()
            .is_none_or(|s| !s.no_fin && s.way == Way::Forward);
        let bytes = at_most.min(REPORT_BYTES);
        (wanted && bytes >= REPORT_LEAST_BYTES).then(|| &self.report[..bytes])
    }

    /// How long the last datagram was on its way, in nanoseconds, from a client that says that the clocks
    /// agree; below zero if they do not.
    #[inline]
    #[must_use]
    pub fn delay_ns(&self) -> Option<i64> {
        let agrees = self.settings.as_ref().is_some_and(|s| s.trip_times);
        self.tally.last_transit_ns().filter(|_| agrees)
    }

    /// Whether the client has said the end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// What was counted here.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What the client is told; with transit times when it says that the clocks agree.
    #[must_use]
    pub fn report(&self) -> Report {
        let with_transit = self.settings.as_ref().is_some_and(|s| s.trip_times);
        self.tally.report(with_transit)
    }

    /// Datagrams that the client says it sent, without the end; `None` until it has said so, and from
    /// a client that never does.
    #[must_use]
    pub fn client_sent(&self) -> Option<u64> {
        self.ended.and_then(|last| last.checked_sub(1))
    }
}

/// Where a client looks for the report. One that has digits where today's versions have the upper
/// half of the number is an old one; one that has zeros there may be either, and today's is likelier.
fn layout(datagram: &[u8], settings: Option<&Settings>) -> Layout {
    match (settings, word(datagram, LEGACY_HEADER_BYTES)) {
        (None, Some(0)) | (Some(_), _) | (_, None) => Layout::Today,
        (None, Some(word)) if word & !(flags::DUAL | flags::NOW) == 0 => Layout::Legacy,
        (None, Some(word)) => {
            let digits = word.to_be_bytes();
            if digits.iter().all(u8::is_ascii_digit) {
                Layout::Legacy
            } else {
                Layout::Today
            }
        }
    }
}
