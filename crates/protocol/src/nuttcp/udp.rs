//! Framing of UDP data.
//!
//! ```text
//! BOD0 | 250 ms | BOD1 | data … | EOD0 | 500 ms | EOD1 | 500 ms | EOD2 … EOD4
//! ```
//!
//! The receiver counts from BOD1 (or the first data) to the first of EOD1 to EOD4. Data after EOD0
//! was delayed and counts. With intervals, bytes 24 to 31 of each datagram contain the number of
//! payload bytes sent up to its end, in the byte order of the sender.

use std::cell::Cell;

use super::parameters::{NuttcpDirection, NuttcpTest};
use crate::plain::ReceivedTotals;

/// Time from BOD0 to BOD1, in nanoseconds.
pub const START_GAP_NS: u64 = 250_000_000;

/// Time from one EOD to the next, in nanoseconds.
pub const EOD_GAP_NS: u64 = 500_000_000;

/// Silence after EOD0 after which EOD1 to EOD4 count as lost, in nanoseconds.
const EOD_TIMEOUT_NS: u64 = 5 * EOD_GAP_NS;

/// Position of the count of bytes in a datagram.
const COUNT_RANGE: std::ops::Range<usize> = 24..32;

/// Largest plausible count; a larger one has the other byte order (the rule of upstream receivers).
const COUNT_LIMIT: u64 = 1 << 32;

/// Reader of the counts in the datagrams of one sender. The first count determines the byte order.
#[derive(Clone, Debug, Default)]
pub struct CountReader {
    big_endian: Cell<Option<bool>>,
}

impl CountReader {
    /// Returns the count of a datagram in bytes; `None` if the datagram is too small for one.
    #[inline]
    pub fn read(&self, datagram: &[u8]) -> Option<u64> {
        let count = *datagram.get(COUNT_RANGE)?.first_chunk()?;
        let little = u64::from_le_bytes(count);
        let big_endian = self.big_endian.get().unwrap_or_else(|| {
            let big = little > COUNT_LIMIT;
            self.big_endian.set(Some(big));
            big
        });
        Some(match big_endian {
            true => u64::from_be_bytes(count),
            false => little,
        })
    }
}

/// Writes the number of bytes sent up to the end of a datagram, if it fits.
#[inline]
pub fn write_count(datagram: &mut [u8], sent_bytes: u64) {
    if let Some(count) = datagram.get_mut(COUNT_RANGE) {
        count.copy_from_slice(&sent_bytes.to_ne_bytes());
    }
}

/// Classification of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NuttcpDatagram {
    /// First payload or BOD1: the duration begins.
    Begin,
    /// Payload.
    Data,
    /// Marker other than the first and the last.
    Marker,
    /// End marker.
    End,
    /// Datagram that is too small for payload and no marker.
    Unrelated,
}

/// Receiver of a test's datagrams on all its ports.
#[derive(Clone, Debug)]
pub struct NuttcpUdpReceiver {
    buffer_bytes: u64,
    has_counts: bool,
    idle_timeout_ns: u64,
    /// Duration that the client requested.
    duration_ns: Option<u64>,
    bytes: u64,
    packets: u64,
    start_ns: Option<u64>,
    last_ns: u64,
    eod_ns: Option<u64>,
    end_ns: Option<u64>,
    counts: CountReader,
    sent_bytes: Option<u64>,
    unrelated: u64,
}

impl NuttcpUdpReceiver {
    /// Creates a receiver; the idle timeout begins at `now_ns`.
    #[must_use]
    pub fn new(test: &NuttcpTest, now_ns: u64) -> Self {
        Self {
            buffer_bytes: test.buffer_bytes as u64,
            has_counts: test.numbers_datagrams(),
            idle_timeout_ns: test.idle_timeout_ns(),
            duration_ns: test.duration_ns,
            bytes: 0,
            packets: 0,
            start_ns: None,
            last_ns: now_ns,
            eod_ns: None,
            end_ns: None,
            counts: CountReader::default(),
            sent_bytes: None,
            unrelated: 0,
        }
    }

    /// Counts a datagram and returns its kind.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, datagram: &[u8]) -> NuttcpDatagram {
        if datagram.len() <= 4 {
            return self.marker(now_ns, datagram);
        }
        self.bytes += datagram.len() as u64;
        self.packets += 1;
        self.last_ns = self.last_ns.max(now_ns);
        if self.has_counts {
            self.read_count(datagram);
        }
        if self.start_ns.is_none() {
            self.start_ns = Some(now_ns);
            return NuttcpDatagram::Begin;
        }
        NuttcpDatagram::Data
    }

    fn marker(&mut self, now_ns: u64, datagram: &[u8]) -> NuttcpDatagram {
        match datagram {
            b"BOD0" => {
                self.last_ns = self.last_ns.max(now_ns);
                NuttcpDatagram::Marker
            }
            b"BOD1" if self.start_ns.is_none() => {
                self.start_ns = Some(now_ns);
                self.last_ns = self.last_ns.max(now_ns);
                NuttcpDatagram::Begin
            }
            b"BOD1" => NuttcpDatagram::Marker,
            b"EOD0" => {
                self.last_ns = self.last_ns.max(now_ns);
                self.eod_ns.get_or_insert(now_ns);
                NuttcpDatagram::Marker
            }
            [b'E', b'O', b'D', number @ b'1'..=b'9'] => {
                if self.end_ns.is_none() {
                    // Without EOD0, the number gives the time since it was sent.
                    let passed_ns = u64::from(number - b'0') * EOD_GAP_NS;
                    if self.eod_ns.is_none() {
                        self.last_ns = self.last_ns.max(now_ns.saturating_sub(passed_ns));
                    }
                    self.end_ns = Some(now_ns);
                }
                NuttcpDatagram::End
            }
            _ => {
                self.unrelated += 1;
                NuttcpDatagram::Unrelated
            }
        }
    }

    #[inline]
    fn read_count(&mut self, datagram: &[u8]) {
        if let Some(sent) = self.counts.read(datagram) {
            self.sent_bytes = self.sent_bytes.max(Some(sent));
        }
    }

    /// Records that the client closed its side of the control connection: everything was sent.
    pub fn control_closed(&mut self, now_ns: u64) {
        if self.eod_ns.is_none() && self.end_ns.is_none() {
            // Without a marker, the requested duration shows the end.
            let planned_ns = self.start_ns.zip(self.duration_ns);
            let planned_ns = planned_ns.map(|(start, duration)| start.saturating_add(duration));
            self.last_ns = self
                .last_ns
                .max(planned_ns.map_or(0, |end| end.min(now_ns)));
        }
        self.eod_ns.get_or_insert(now_ns);
    }

    /// Returns the time at which the client stopped sending: payload before it may be lost. `None`
    /// until its marker, or the end of its control connection.
    #[must_use]
    pub fn end_ns(&self) -> Option<u64> {
        self.eod_ns.or(self.end_ns).map(|_| self.last_ns)
    }

    /// Returns the time at which the test is over without further datagrams.
    #[must_use]
    pub fn deadline_ns(&self) -> u64 {
        match self.eod_ns {
            Some(eod_ns) => eod_ns.saturating_add(EOD_TIMEOUT_NS),
            None => self.last_ns.saturating_add(self.idle_timeout_ns),
        }
    }

    /// Returns whether the test has ended, by its marker or by silence.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.end_ns.is_some() || now_ns >= self.deadline_ns()
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn totals(&self) -> ReceivedTotals {
        ReceivedTotals {
            bytes: self.bytes,
            packets: self.packets,
            duration_ns: self
                .start_ns
                .map(|start_ns| self.last_ns.saturating_sub(start_ns))
                .filter(|&duration| duration > 0),
        }
    }

    /// Returns the bytes that were sent on all ports before the last received datagram; `None` if
    /// the datagrams contain no count.
    #[must_use]
    pub fn sent_bytes(&self) -> Option<u64> {
        self.sent_bytes
    }

    /// Returns the number of lost datagrams before the last received one; `None` if the datagrams
    /// contain no count. Later losses are not included.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        let missing = self.sent_bytes?.saturating_sub(self.bytes);
        Some(missing / self.buffer_bytes.max(1))
    }
}

/// Next action of a transmitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NuttcpSendAction {
    /// Send this marker to the port of this stream.
    Marker {
        /// Contents of the datagram.
        bytes: [u8; 4],
        /// Number of the stream, from 0.
        stream: u16,
    },
    /// Send a buffer to the port of this stream, with its count ([`NuttcpUdpSender::write_count`]).
    Data {
        /// Number of the stream, from 0.
        stream: u16,
    },
    /// Send nothing before this time.
    Wait {
        /// Time of the next call.
        until_ns: u64,
    },
    /// The transmission is complete. A client closes its side of the control connection now.
    Finished,
}

/// Transmitter of a test's datagrams.
#[derive(Clone, Debug)]
pub struct NuttcpUdpSender {
    state: UdpSenderState,
    start_gap_ns: u64,
    eod_gap_ns: u64,
    stream: u16,
    streams: u16,
    has_counts: bool,
    buffer_bytes: u64,
    remaining_buffers: Option<u64>,
    duration_ns: Option<u64>,
    rate_kbps: Option<u64>,
    rate_is_instantaneous: bool,
    strict_rate: bool,
    sent_datagrams: u64,
}

#[derive(Clone, Copy, Debug)]
enum UdpSenderState {
    Start,
    /// BOD0 was sent.
    Waiting {
        until_ns: u64,
    },
    /// BOD1 was sent at the first time; the next buffer is sent at the second.
    Data {
        start_ns: u64,
        next_send_ns: u64,
    },
    /// EODs up to this number were sent, the last one at this time.
    Ending {
        number: u8,
        at_ns: u64,
    },
}

impl NuttcpUdpSender {
    /// Creates a transmitter.
    #[must_use]
    pub fn new(test: &NuttcpTest) -> Self {
        // An upstream client that prints intervals gives up if an interval has no payload, even if
        // it has markers.
        let max_gap_ns = match test.direction {
            NuttcpDirection::ToClient => test.interval_ns.map_or(u64::MAX, |length| length / 2),
            NuttcpDirection::ToServer => u64::MAX,
        };
        Self {
            state: UdpSenderState::Start,
            start_gap_ns: START_GAP_NS.min(max_gap_ns),
            eod_gap_ns: EOD_GAP_NS.min(max_gap_ns),
            stream: 0,
            streams: test.streams.max(1),
            has_counts: test.numbers_datagrams(),
            buffer_bytes: test.buffer_bytes as u64,
            remaining_buffers: test.buffer_limit,
            duration_ns: test.duration_ns,
            rate_kbps: test.rate_kbps,
            rate_is_instantaneous: test.rate_is_instantaneous,
            strict_rate: false,
            sent_datagrams: 0,
        }
    }

    /// Makes the rate a strict limit: no buffer is sent before its own time at the rate has passed.
    /// Upstream transmitters send the first one at once.
    #[must_use]
    pub fn with_strict_rate(mut self) -> Self {
        self.strict_rate = true;
        self
    }

    /// Returns the next action; a returned datagram counts as sent.
    pub fn next_action(&mut self, now_ns: u64) -> NuttcpSendAction {
        match self.state {
            UdpSenderState::Start => {
                self.state = UdpSenderState::Waiting {
                    until_ns: now_ns.saturating_add(self.start_gap_ns),
                };
                self.marker(*b"BOD0")
            }
            UdpSenderState::Waiting { until_ns } if now_ns < until_ns => {
                NuttcpSendAction::Wait { until_ns }
            }
            UdpSenderState::Waiting { .. } => {
                let first = match self.rate_kbps {
                    Some(kbps) if self.strict_rate => transfer_time_ns(self.buffer_bytes, kbps),
                    _ => 0,
                };
                self.state = UdpSenderState::Data {
                    start_ns: now_ns,
                    next_send_ns: now_ns.saturating_add(first),
                };
                self.marker(*b"BOD1")
            }
            UdpSenderState::Data {
                start_ns,
                next_send_ns,
            } => self.data(now_ns, start_ns, next_send_ns),
            UdpSenderState::Ending { number: 4, .. } => NuttcpSendAction::Finished,
            UdpSenderState::Ending { number, at_ns } => {
                let until_ns = at_ns.saturating_add(self.eod_gap_ns);
                if now_ns < until_ns {
                    return NuttcpSendAction::Wait { until_ns };
                }
                self.state = UdpSenderState::Ending {
                    number: number + 1,
                    at_ns: now_ns,
                };
                let marker = self.marker([b'E', b'O', b'D', b'1' + number]);
                self.next_stream();
                marker
            }
        }
    }

    fn data(&mut self, now_ns: u64, start_ns: u64, next_send_ns: u64) -> NuttcpSendAction {
        let time_is_over = self
            .duration_ns
            .is_some_and(|time_ns| now_ns.saturating_sub(start_ns) >= time_ns);
        if self.remaining_buffers == Some(0) || time_is_over {
            self.state = UdpSenderState::Ending {
                number: 0,
                at_ns: now_ns,
            };
            return self.marker(*b"EOD0");
        }
        if now_ns < next_send_ns {
            // A long wait at a low rate must not exceed the duration.
            let end_ns = self
                .duration_ns
                .map_or(u64::MAX, |time_ns| start_ns.saturating_add(time_ns));
            return NuttcpSendAction::Wait {
                until_ns: next_send_ns.min(end_ns),
            };
        }
        self.sent_datagrams += 1;
        if let Some(remaining) = &mut self.remaining_buffers {
            *remaining -= 1;
        }
        let next_send_ns = match (self.rate_kbps, self.rate_is_instantaneous) {
            (None, _) => 0,
            (Some(kbps), false) => {
                let first = if self.strict_rate {
                    self.buffer_bytes
                } else {
                    0
                };
                start_ns.saturating_add(transfer_time_ns(self.sent_bytes() + first, kbps))
            }
            (Some(kbps), true) => now_ns.saturating_add(transfer_time_ns(self.buffer_bytes, kbps)),
        };
        self.state = UdpSenderState::Data {
            start_ns,
            next_send_ns,
        };
        let stream = self.stream;
        self.next_stream();
        NuttcpSendAction::Data { stream }
    }

    fn marker(&self, bytes: [u8; 4]) -> NuttcpSendAction {
        NuttcpSendAction::Marker {
            bytes,
            stream: self.stream,
        }
    }

    fn next_stream(&mut self) {
        self.stream = (self.stream + 1) % self.streams;
    }

    /// Writes the count of bytes into the last returned buffer, if the test has counts.
    #[inline]
    pub fn write_count(&self, buffer: &mut [u8]) {
        if self.has_counts {
            write_count(buffer, self.sent_bytes());
        }
    }

    /// Ends the data now.
    pub fn finish(&mut self) {
        self.remaining_buffers = Some(0);
    }

    /// Returns the payload bytes sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_datagrams * self.buffer_bytes
    }

    /// Returns the datagrams sent, without markers.
    #[must_use]
    pub fn sent_datagrams(&self) -> u64 {
        self.sent_datagrams
    }
}

/// Returns the time that `bytes` take at a rate, in nanoseconds.
fn transfer_time_ns(bytes: u64, kbps: u64) -> u64 {
    let ns = u128::from(bytes) * 8_000_000 / u128::from(kbps.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}
