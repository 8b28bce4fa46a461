//! Server side of a UDP flow.

use super::datagram::{HEADER_BYTES, LEGACY_HEADER_BYTES, read_header};
use super::receiver_stats::Tally;
use super::report::{Layout, REPORT_BYTES, REPORT_LEAST_BYTES, Report};
use super::settings::{Settings, Way, flags};
use super::word;

/// Silence after the end of a flow before its state can be removed, in nanoseconds. A client that
/// misses the report repeats the end after 10 ms (2.1) or 250 ms (2.0), and servers of upstream
/// wait no longer.
pub const QUIET_NS: u64 = 400_000_000;

/// Classification of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Counted payload.
    Payload,
    /// End of the flow, sent by the client.
    End,
    /// Datagram that does not belong to the flow.
    Stray,
}

/// UDP flow from one address and port.
#[derive(Debug)]
pub struct UdpServer {
    settings: Option<Settings>,
    layout: Layout,
    wide: bool,
    tally: Tally,
    /// Number in the client's end datagram, once it has arrived.
    ended: Option<u64>,
    report: [u8; REPORT_BYTES],
}

impl UdpServer {
    /// Opens a flow with its first datagram, which counts as payload unless it is only a request.
    /// `None` if it cannot open a flow: it is too small, or the end of an earlier flow.
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
            // 2.0.5 has the header 4 bytes earlier if both directions are requested.
            settings: settings.or_else(|| at(LEGACY_HEADER_BYTES)),
            wide,
            tally: Tally::default(),
            ended: None,
            report: [0; REPORT_BYTES],
        };
        flow.receive(datagram, now_wall_ns);
        Some(flow)
    }

    /// Returns the client's settings; `None` for an old client, which can only send.
    #[must_use]
    pub fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Returns the requested direction.
    #[must_use]
    pub fn way(&self) -> Way {
        self.settings.as_ref().map_or(Way::Forward, |s| s.way)
    }

    /// Processes a datagram of this flow.
    #[inline]
    pub fn receive(&mut self, datagram: &[u8], now_wall_ns: u64) -> Heard {
        // The first datagram has room for the settings; later ones may be smaller (`-l 12`).
        let wide = self.wide && datagram.len() >= HEADER_BYTES;
        let Some(header) = read_header(datagram, wide) else {
            return Heard::Stray;
        };
        if self.ended.is_some() {
            // A late datagram no longer counts as payload; a repeated end gets its reply again.
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
            // Servers and clients of upstream count the end datagram too.
            self.tally.take(header, datagram.len(), now_wall_ns);
        }
        self.report = self.report().write(self.layout);
        Heard::End
    }

    /// Ends the flow without an end datagram, after a long silence.
    pub fn give_up(&mut self) {
        self.ended.get_or_insert(0);
    }

    /// Returns the reply to the end datagram, of at most `at_most` bytes: the size of that
    /// datagram, unless the client's address is validated. `None` before the end, for a client that
    /// requests no report, and if the limit is below the part that clients read.
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

    /// Returns the delay of the last datagram in nanoseconds, if the client reports synchronised
    /// clocks; negative if they are not.
    #[inline]
    #[must_use]
    pub fn delay_ns(&self) -> Option<i64> {
        let agrees = self.settings.as_ref().is_some_and(|s| s.trip_times);
        self.tally.last_transit_ns().filter(|_| agrees)
    }

    /// Returns whether the client has sent the end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns the receive counters.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the report for the client; with transit times if it reports synchronised clocks.
    #[must_use]
    pub fn report(&self) -> Report {
        let with_transit = self.settings.as_ref().is_some_and(|s| s.trip_times);
        self.tally.report(with_transit)
    }

    /// Returns the number of datagrams that the client reports to have sent, without the end;
    /// `None` until the end, and from a client that sends none.
    #[must_use]
    pub fn client_sent(&self) -> Option<u64> {
        self.ended.and_then(|last| last.checked_sub(1))
    }
}

/// Returns the report layout that a client expects. An old client has digits where current versions
/// have the upper half of the number. Zeros there are possible in both; the current layout is more
/// probable.
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
