//! Server side of a UDP flow.

use super::datagram::{HEADER_BYTES, LEGACY_HEADER_BYTES, read_header};
use super::read_u32;
use super::receiver_stats::Iperf2ReceiverStats;
use super::report::{Iperf2Report, REPORT_BYTES, REPORT_MIN_BYTES, ReportLayout};
use super::settings::{Iperf2Direction, Iperf2Settings, flags};

/// Silence after the end of a flow before its state can be removed, in nanoseconds. A client that
/// misses the report repeats the end after 10 ms (2.1) or 250 ms (2.0), and servers of upstream
/// wait no longer.
pub const QUIET_NS: u64 = 400_000_000;

/// Classification of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iperf2Datagram {
    /// Counted payload.
    Payload,
    /// End of the flow, sent by the client.
    End,
    /// Datagram that does not belong to the flow.
    Unrelated,
}

/// UDP flow from one address and port.
#[derive(Debug)]
pub struct Iperf2UdpServer {
    settings: Option<Iperf2Settings>,
    layout: ReportLayout,
    wide: bool,
    stats: Iperf2ReceiverStats,
    /// Number in the client's end datagram, once it has arrived.
    end_number: Option<u64>,
    report: [u8; REPORT_BYTES],
}

impl Iperf2UdpServer {
    /// Opens a flow with its first datagram, which counts as payload unless it is only a request.
    /// `None` if it cannot open a flow: it is too small, or the end of an earlier flow.
    #[must_use]
    pub fn open(datagram: &[u8], now_wall_ns: u64) -> Option<Self> {
        let at = |offset| Iperf2Settings::read(datagram.get(offset..)?, offset);
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
            stats: Iperf2ReceiverStats::default(),
            end_number: None,
            report: [0; REPORT_BYTES],
        };
        flow.receive(datagram, now_wall_ns);
        Some(flow)
    }

    /// Returns the client's settings; `None` for an old client, which can only send.
    #[must_use]
    pub fn settings(&self) -> Option<&Iperf2Settings> {
        self.settings.as_ref()
    }

    /// Returns the requested direction.
    #[must_use]
    pub fn direction(&self) -> Iperf2Direction {
        self.settings
            .as_ref()
            .map_or(Iperf2Direction::Forward, |s| s.direction)
    }

    /// Processes a datagram of this flow.
    #[inline]
    pub fn receive(&mut self, datagram: &[u8], now_wall_ns: u64) -> Iperf2Datagram {
        // The first datagram has space for the settings; later ones may be smaller (`-l 12`).
        let wide = self.wide && datagram.len() >= HEADER_BYTES;
        let Some(header) = read_header(datagram, wide) else {
            return Iperf2Datagram::Unrelated;
        };
        if self.end_number.is_some() {
            // A late datagram no longer counts as payload; a repeated end gets its reply again.
            return if header.sequence < 0 {
                Iperf2Datagram::End
            } else {
                Iperf2Datagram::Unrelated
            };
        }
        if header.sequence >= 0 {
            if self.direction() == Iperf2Direction::Reverse {
                return Iperf2Datagram::Unrelated;
            }
            self.stats.record(header, datagram.len(), now_wall_ns);
            return Iperf2Datagram::Payload;
        }
        self.end_number = Some(header.sequence.unsigned_abs());
        if self.direction() != Iperf2Direction::Reverse {
            // Servers and clients of upstream count the end datagram too.
            self.stats.record(header, datagram.len(), now_wall_ns);
        }
        self.report = self.report().write(self.layout);
        Iperf2Datagram::End
    }

    /// Ends the flow without an end datagram, after a long silence.
    pub fn give_up(&mut self) {
        self.end_number.get_or_insert(0);
    }

    /// Returns the reply to the end datagram, of at most `max_bytes` bytes: the size of that
    /// datagram, unless the client's address is validated. `None` before the end, for a client that
    /// requests no report, and if the limit is below the part that clients read.
    #[must_use]
    pub fn reply(&self, max_bytes: usize) -> Option<&[u8]> {
        self.end_number?;
        let is_requested = self
            .settings
            .as_ref()
            .is_none_or(|s| !s.no_fin && s.direction == Iperf2Direction::Forward);
        let bytes = max_bytes.min(REPORT_BYTES);
        (is_requested && bytes >= REPORT_MIN_BYTES).then(|| &self.report[..bytes])
    }

    /// Returns the delay of the last datagram in nanoseconds, if the client reports synchronised
    /// clocks; negative if they are not.
    #[inline]
    #[must_use]
    pub fn delay_ns(&self) -> Option<i64> {
        let clocks_synchronized = self.settings.as_ref().is_some_and(|s| s.trip_times);
        self.stats.last_transit_ns().filter(|_| clocks_synchronized)
    }

    /// Returns whether the client has sent the end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end_number.is_some()
    }

    /// Returns the receive counters.
    #[must_use]
    pub fn stats(&self) -> &Iperf2ReceiverStats {
        &self.stats
    }

    /// Returns the report for the client; with transit times if it reports synchronised clocks.
    #[must_use]
    pub fn report(&self) -> Iperf2Report {
        let with_transit = self.settings.as_ref().is_some_and(|s| s.trip_times);
        self.stats.report(with_transit)
    }

    /// Returns the number of datagrams that the client reports to have sent, without the end;
    /// `None` until the end, and from a client that sends none.
    #[must_use]
    pub fn client_sent(&self) -> Option<u64> {
        let end_number = self.end_number.filter(|&number| number > 0)?;
        end_number.checked_sub(self.stats.first_number()?)
    }
}

/// Returns the report layout that a client expects. An old client has digits where current versions
/// have the upper half of the number. Zeros there are possible in both; the current layout is more
/// probable.
fn layout(datagram: &[u8], settings: Option<&Iperf2Settings>) -> ReportLayout {
    match (settings, read_u32(datagram, LEGACY_HEADER_BYTES)) {
        (None, Some(0)) | (Some(_), _) | (_, None) => ReportLayout::Current,
        (None, Some(word)) if word & !(flags::DUAL | flags::NOW) == 0 => ReportLayout::Legacy,
        (None, Some(word)) => {
            let digits = word.to_be_bytes();
            if digits.iter().all(u8::is_ascii_digit) {
                ReportLayout::Legacy
            } else {
                ReportLayout::Current
            }
        }
    }
}
