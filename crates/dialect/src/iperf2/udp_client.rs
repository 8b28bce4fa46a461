//! A UDP flow, at the client.

use super::datagram::{HEADER_BYTES, Header, LEGACY_HEADER_BYTES, read_header, write_header};
use super::report::Report;
use super::settings::{Settings, Way};
use super::tally::Tally;
use super::{Iperf2Error, fill_from};

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Payload; it is counted.
    Payload,
    /// The other end's last word.
    End,
    /// The server's report.
    Report,
    /// Nothing that belongs here.
    Stray,
}

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
    sent: i64,
    tally: Tally,
    asked: usize,
    ends: usize,
    ending: bool,
    /// When the next request or end is due.
    due_ns: u64,
    far_ended: bool,
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
            tally: Tally::default(),
            asked: 0,
            ends: 0,
            ending: false,
            due_ns: 0,
            far_ended: false,
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

    /// Numbers and stamps the next datagram of payload, made from the template.
    #[inline]
    pub fn write_next(&mut self, datagram: &mut [u8], now_wall_ns: u64) {
        self.sent += 1;
        Self::write(datagram, self.sent, now_wall_ns);
    }

    /// So many datagrams of payload were made from the template by somebody else, numbered from 1.
    pub fn count(&mut self, sent: u64) {
        self.sent = i64::try_from(sent).unwrap_or(i64::MAX - 1);
    }

    /// The request for a server's payload: the first datagram, again and again.
    pub fn write_request(&mut self, datagram: &mut [u8], now_wall_ns: u64, now_ns: u64) {
        self.asked += 1;
        self.due_ns = now_ns.saturating_add(REQUEST_GAP_NS);
        Self::write(datagram, 1, now_wall_ns);
    }

    /// All payload was sent; the end is due. A client that only asks has none.
    pub fn finish(&mut self, now_ns: u64) {
        self.ending = true;
        self.due_ns = now_ns;
    }

    /// Says the end. All of them have the same number, so that those which get lost do not count as
    /// lost payload.
    pub fn write_end(&mut self, datagram: &mut [u8], now_wall_ns: u64, now_ns: u64) {
        let gap = END_GAPS_NS.get(self.ends).copied().unwrap_or(0);
        self.ends += 1;
        self.due_ns = now_ns.saturating_add(gap);
        Self::write(datagram, -(self.sent + 1), now_wall_ns);
    }

    fn write(datagram: &mut [u8], sequence: i64, now_wall_ns: u64) {
        let header = Header {
            sequence,
            sent_ns: now_wall_ns,
        };
        // Both halves always: old servers take the upper one for payload, and a stock client that
        // listens for a second flow reads 64 bits although no flag announces them.
        write_header(datagram, true, header);
    }

    /// What is to be sent now, besides payload.
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
            let begun = self.tally.arrived() > 0 || self.far_ended;
            return match begun || self.asked == REQUESTS || self.ending {
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
            3
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

    /// Takes a datagram from the server.
    #[inline]
    pub fn receive(&mut self, datagram: &[u8], now_wall_ns: u64) -> Heard {
        if self.settings.way == Way::Forward {
            return match Report::read(datagram) {
                Some(report) if self.ending => {
                    self.report.get_or_insert(report);
                    Heard::Report
                }
                _ => Heard::Stray,
            };
        }
        // Servers number with 64 bits what they send.
        let Some(header) = read_header(datagram, true) else {
            return Heard::Stray;
        };
        if self.far_ended {
            return Heard::Stray;
        }
        self.tally.take(header, datagram.len(), now_wall_ns);
        if header.sequence < 0 {
            self.far_ended = true;
            return Heard::End;
        }
        Heard::Payload
    }

    /// What came from the server and was counted here; its end, with all bytes of a datagram, is in it.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether the server has said its end.
    #[must_use]
    pub fn far_ended(&self) -> bool {
        self.far_ended
    }

    /// The server's report, once it is there.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Datagrams of payload that were sent, without the end.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.unsigned_abs()
    }

    /// Bytes of a datagram.
    #[must_use]
    pub fn datagram_bytes(&self) -> usize {
        self.datagram_bytes
    }
}
