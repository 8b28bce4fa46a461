//! Client side of a UDP flow.

use super::datagram::{self, ENDS_WITHOUT_REPLY, HEADER_BYTES, LEGACY_HEADER_BYTES, write_number};
use super::report::Iperf2Report;
use super::settings::{Iperf2Direction, Iperf2Settings};
use super::{Iperf2Error, fill_from};

/// Next control datagram of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iperf2ClientAction {
    /// Send the datagram of [`Iperf2UdpClient::write_request`]: it starts the server.
    Request,
    /// Send the datagram of [`Iperf2UdpClient::write_end`].
    End,
    /// Send nothing before this time of the monotonic clock.
    WaitUntil(u64),
    /// Do not send anything.
    Idle,
}

/// Intervals between the end datagrams, in nanoseconds. Servers of 2.1 reply at once, and clients
/// of upstream give up after 2 s. These intervals grow, because a server behind a long queue
/// replies late: with the last, the wait is as long as that for a first answer.
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
    3_000_000_000,
];

/// Interval between requests in nanoseconds, and their number; upstream's client sends 100 with at
/// most 20 ms between them.
const REQUEST_GAP_NS: u64 = 20_000_000;
const REQUESTS: usize = 100;

/// UDP flow to a server.
#[derive(Debug)]
pub struct Iperf2UdpClient {
    settings: Iperf2Settings,
    datagram_bytes: usize,
    sent: u64,
    requests_sent: usize,
    ends_sent: usize,
    is_ending: bool,
    /// Time of the next request or end datagram.
    next_send_ns: u64,
    report: Option<Iperf2Report>,
}

impl Iperf2UdpClient {
    /// Creates a flow of datagrams of `datagram_bytes` each. For an old server (`settings.version`
    /// is `None`) the header is 12 bytes, followed by zeros where current versions have flags:
    /// digits there would be read as flags.
    ///
    /// # Errors
    /// [`Iperf2Error::DatagramTooSmall`], [`Iperf2Error::Unencodable`].
    pub fn new(settings: Iperf2Settings, datagram_bytes: usize) -> Result<Self, Iperf2Error> {
        let min_bytes = if settings.version.is_some() {
            settings.required_bytes(HEADER_BYTES)
        } else {
            LEGACY_HEADER_BYTES
        };
        if datagram_bytes < min_bytes {
            return Err(Iperf2Error::DatagramTooSmall {
                bytes: datagram_bytes,
                min_bytes,
            });
        }
        // Checks now that the header can express all settings.
        settings.write(&mut [0; 128], HEADER_BYTES)?;
        Ok(Self {
            settings,
            datagram_bytes,
            sent: 0,
            requests_sent: 0,
            ends_sent: 0,
            is_ending: false,
            next_send_ns: 0,
            report: None,
        })
    }

    /// Returns the settings of this client.
    #[must_use]
    pub fn settings(&self) -> &Iperf2Settings {
        &self.settings
    }

    /// Returns a datagram with all fields except number and time.
    #[must_use]
    pub fn template(&self) -> Vec<u8> {
        let mut datagram = vec![0; self.datagram_bytes];
        // The flags word stays zero for an old server; it ignores the rest.
        let mut header = LEGACY_HEADER_BYTES + 4 + 4;
        if self.settings.version.is_some() || self.settings.dual.is_some() {
            header = self.settings.required_bytes(HEADER_BYTES);
            if let Some(rest) = datagram.get_mut(HEADER_BYTES..) {
                self.settings
                    .write(rest, HEADER_BYTES)
                    .expect("writing the settings was checked in `new`");
            }
        }
        if let Some(payload) = datagram.get_mut(header..) {
            fill_from(payload, header);
        }
        datagram
    }

    /// Sets the number of payload datagrams sent: made from the template, numbered from 1
    /// ([`datagram::write_number`]).
    pub fn set_sent(&mut self, sent: u64) {
        self.sent = sent;
    }

    /// Writes the request for the server's payload: the first datagram, repeated.
    pub fn write_request(&mut self, datagram: &mut [u8], now_wall_ns: u64, now_ns: u64) {
        self.requests_sent += 1;
        self.next_send_ns = now_ns.saturating_add(REQUEST_GAP_NS);
        write_number(datagram, 1, now_wall_ns);
    }

    /// Records that all payload was sent; the end follows. A client that only receives sends none.
    pub fn finish(&mut self, now_ns: u64) {
        self.is_ending = true;
        self.next_send_ns = now_ns;
    }

    /// Writes an end datagram.
    pub fn write_end(&mut self, datagram: &mut [u8], now_wall_ns: u64, now_ns: u64) {
        let gap = END_GAPS_NS.get(self.ends_sent).copied().unwrap_or(0);
        self.ends_sent += 1;
        self.next_send_ns = now_ns.saturating_add(gap);
        datagram::write_end(datagram, self.sent, now_wall_ns);
    }

    /// Returns the control datagram to send now. Stop sending requests as soon as payload arrives.
    #[must_use]
    pub fn next_action(&self, now_ns: u64) -> Iperf2ClientAction {
        let at = |action| {
            if now_ns >= self.next_send_ns {
                action
            } else {
                Iperf2ClientAction::WaitUntil(self.next_send_ns)
            }
        };
        if self.settings.direction == Iperf2Direction::Reverse {
            return match self.requests_sent == REQUESTS {
                true => Iperf2ClientAction::Idle,
                false => at(Iperf2ClientAction::Request),
            };
        }
        if !self.is_ending || self.report.is_some() {
            return Iperf2ClientAction::Idle;
        }
        // Without a report no reply comes: the end is repeated a fixed number of times.
        let max_ends = if self.expects_report() {
            END_GAPS_NS.len()
        } else {
            ENDS_WITHOUT_REPLY as usize
        };
        if self.ends_sent < max_ends {
            at(Iperf2ClientAction::End)
        } else if now_ns < self.next_send_ns {
            // The last reply may still arrive.
            Iperf2ClientAction::WaitUntil(self.next_send_ns)
        } else {
            Iperf2ClientAction::Idle
        }
    }

    /// Returns whether the server replies to the end with a report.
    #[must_use]
    pub fn expects_report(&self) -> bool {
        self.settings.direction == Iperf2Direction::Forward && !self.settings.no_fin
    }

    /// Reads a datagram from the server and returns whether it is a report. Only the first one
    /// counts.
    pub fn receive(&mut self, datagram: &[u8]) -> bool {
        let report =
            Iperf2Report::read(datagram).filter(|_| self.is_ending && self.expects_report());
        let is_report = report.is_some();
        self.report = self.report.take().or(report);
        is_report
    }

    /// Returns the server's report, once it has arrived.
    #[must_use]
    pub fn report(&self) -> Option<&Iperf2Report> {
        self.report.as_ref()
    }

    /// Returns the number of payload datagrams sent, without the end.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the bytes of a datagram.
    #[must_use]
    pub fn datagram_bytes(&self) -> usize {
        self.datagram_bytes
    }
}
