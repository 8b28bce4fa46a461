//! A UDP flow, at the client.

use super::datagram::{self, HEADER_BYTES, LEGACY_HEADER_BYTES, UNANSWERED_ENDS, write_number};
use super::report::Report;
use super::settings::{Settings, Way};
use super::{Iperf2Error, fill_from};

/// What a client has to send next, besides payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send what [`UdpClient::write_request`] makes: the server is to begin.
    Request,
    /// Send what [`UdpClient::write_end`] makes.
    End,
    /// Nothing before this time, of the clock that never goes back.
    At(u64),
    /// Nothing.
    Nothing,
}

/// Gaps between the ends, in nanoseconds: 2.1 servers answer at once, and stock clients give up after
/// 2 s. Ours grow, because a server at the end of a long queue answers late.
const END_GAPS_NS: [u64; 10] = [
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    250_000_000,
    250_000_000,
    250_000_000,
    500_000_000,
    500_000_000,
];

/// The same for requests; a stock client asks 100 times with at most 20 ms between.
const REQUEST_GAP_NS: u64 = 20_000_000;
const REQUESTS: usize = 100;

/// One flow to a server.
#[derive(Debug)]
pub struct UdpClient {
    settings: Settings,
    datagram_bytes: usize,
    sent: u64,
    asked: usize,
    ends: usize,
    ending: bool,
    /// When the next request or end is due.
    due_ns: u64,
    report: Option<Report>,
}

impl UdpClient {
    /// A flow of datagrams of `datagram_bytes` each. An old server (`settings.version` is `None`) gets
    /// 12 bytes of header and zeros where today's versions have flags: digits there would be some.
    ///
    /// # Errors
    /// [`Iperf2Error::DatagramTooSmall`], [`Iperf2Error::Unsendable`].
    pub fn new(settings: Settings, datagram_bytes: usize) -> Result<Self, Iperf2Error> {
        let least = if settings.version.is_some() {
            settings.room_bytes(HEADER_BYTES)
        } else {
            LEGACY_HEADER_BYTES
        };
        if datagram_bytes < least {
            return Err(Iperf2Error::DatagramTooSmall {
                bytes: datagram_bytes,
                least,
            });
        }
        // Whether the header has room for everything is found out now.
        settings.write(&mut [0; 128], HEADER_BYTES)?;
        Ok(Self {
            settings,
            datagram_bytes,
            sent: 0,
            asked: 0,
            ends: 0,
            ending: false,
            due_ns: 0,
            report: None,
        })
    }

    /// What this end wants.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A datagram with everything but its number and time.
    #[must_use]
    pub fn template(&self) -> Vec<u8> {
        let mut datagram = vec![0; self.datagram_bytes];
        // The word of the flags stays zero for an old server, which takes the rest as it likes.
        let mut header = LEGACY_HEADER_BYTES + 4 + 4;
        if self.settings.version.is_some() || self.settings.dual.is_some() {
            header = self.settings.room_bytes(HEADER_BYTES);
            if let Some(rest) = datagram.get_mut(HEADER_BYTES..) {
                self.settings
                    .write(rest, HEADER_BYTES)
                    .expect("that it can be written was found out before");
            }
        }
        if let Some(payload) = datagram.get_mut(header..) {
            fill_from(payload, header);
        }
        datagram
    }

    /// So many datagrams of payload were sent: made from the template, numbered from 1
    /// ([`datagram::write_number`]).
    pub fn count(&mut self, sent: u64) {
        self.sent = sent;
    }

    /// The request for a server's payload: the first datagram, again and again.
    pub fn write_request(&mut self, datagram: &mut [u8], now_wall_ns: u64, now_ns: u64) {
        self.asked += 1;
        self.due_ns = now_ns.saturating_add(REQUEST_GAP_NS);
        write_number(datagram, 1, now_wall_ns);
    }

    /// All payload was sent; the end is due. A client that only asks has none.
    pub fn finish(&mut self, now_ns: u64) {
        self.ending = true;
        self.due_ns = now_ns;
    }

    /// Says the end.
    pub fn write_end(&mut self, datagram: &mut [u8], now_wall_ns: u64, now_ns: u64) {
        let gap = END_GAPS_NS.get(self.ends).copied().unwrap_or(0);
        self.ends += 1;
        self.due_ns = now_ns.saturating_add(gap);
        datagram::write_end(datagram, self.sent, now_wall_ns);
    }

    /// What is to be sent now, besides payload; requests until whoever reads the payload has some.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> Due {
        let at = |what| {
            if now_ns >= self.due_ns {
                what
            } else {
                Due::At(self.due_ns)
            }
        };
        if self.settings.way == Way::Reverse {
            return match self.asked == REQUESTS {
                true => Due::Nothing,
                false => at(Due::Request),
            };
        }
        if !self.ending || self.report.is_some() {
            return Due::Nothing;
        }
        // Nobody answers an end without a report: it is said a few times.
        let tries = if self.wants_report() {
            END_GAPS_NS.len()
        } else {
            UNANSWERED_ENDS as usize
        };
        if self.ends < tries {
            at(Due::End)
        } else if now_ns < self.due_ns {
            // The last answer may still come.
            Due::At(self.due_ns)
        } else {
            Due::Nothing
        }
    }

    /// Whether the server answers the end.
    #[must_use]
    pub fn wants_report(&self) -> bool {
        self.settings.way == Way::Forward && !self.settings.no_fin
    }

    /// Takes a datagram that the server answered an end with; whether it is its report. The first one counts.
    pub fn receive(&mut self, datagram: &[u8]) -> bool {
        let report = Report::read(datagram).filter(|_| self.ending && self.wants_report());
        let is_report = report.is_some();
        self.report = self.report.take().or(report);
        is_report
    }

    /// The server's report, once it is there.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Datagrams of payload that were sent, without the end.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes of a datagram.
    #[must_use]
    pub fn datagram_bytes(&self) -> usize {
        self.datagram_bytes
    }
}
