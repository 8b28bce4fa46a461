//! Headers in front of the payload of datagrams and requests, by protocol.

use linerate_protocol::control::flow as own;
use linerate_protocol::iperf2::{bounceback, datagram as iperf2};
use linerate_protocol::iperf3::{CounterWidth, udp as iperf3};
use linerate_protocol::nuttcp;
use linerate_protocol::sockperf;
use linerate_sys::clock::Nanos;

use crate::flow::is_opening_datagram;

/// Header format in front of the payload of a flow.
#[derive(Clone, Debug, Default)]
pub enum Framing {
    /// Sequence number and send time of our own protocol.
    #[default]
    Linerate,
    /// No header: payload from the first byte on.
    NoHeader,
    /// iperf3 datagrams.
    Iperf3(CounterWidth),
    /// iperf2 datagrams.
    Iperf2 {
        /// Bytes after sequence number and time, the same in every datagram.
        header: Box<[u8]>,
        /// Offset of the wall clock from the monotonic clock.
        wall_ahead_ns: u64,
        /// True if the remote end numbers with 64 bits.
        wide_numbers: bool,
    },
    /// Stream that starts with these bytes: its client's settings, or a pattern that identifies the
    /// tool.
    Prefix(Box<[u8]>),
    /// nuttcp datagrams: bytes sent up to the end of each, where the datagram has space for the
    /// count.
    Nuttcp(nuttcp::CountReader),
    /// ttcp datagrams: up to 4 bytes are markers.
    Ttcp,
    /// sockperf requests.
    Sockperf,
    /// iperf2 bounceback requests over TCP.
    Bounceback {
        /// Offset of the wall clock from the monotonic clock.
        wall_ahead_ns: u64,
    },
}

/// Classification of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramClass {
    /// Payload with a sequence number from 0, and the send time on the sender's clock.
    Numbered(u64, Option<Nanos>),
    /// Payload without a sequence number.
    Plain,
    /// No payload: a hello or a marker.
    NonPayload,
    /// Marker: the start if before payload, the end if after it.
    Marker,
    /// End of the flow, with the number of datagrams before it where the sender reports that.
    End(Option<u64>),
}

/// Byte range of a bounceback message that the responder fills in.
const BOUNCEBACK_REPLY_FIELDS: std::ops::Range<usize> = 28..44;

impl Framing {
    /// Writes sequence number and time into a datagram; bytes behind the header stay.
    #[inline]
    pub fn write_header(&self, datagram: &mut [u8], number: u64, now: Nanos) {
        match self {
            Self::Linerate => own::write_header(datagram, number, now),
            Self::Iperf3(counters) => iperf3::write_header(
                datagram,
                *counters,
                iperf3::Iperf3Header {
                    sequence: number + 1,
                    sent_ns: now,
                },
            ),
            Self::Iperf2 {
                header,
                wall_ahead_ns,
                ..
            } => {
                let (head, rest) = datagram.split_at_mut(datagram.len().min(iperf2::HEADER_BYTES));
                let length = rest.len().min(header.len());
                rest[..length].copy_from_slice(&header[..length]);
                iperf2::write_number(head, number + 1, now.wrapping_add(*wall_ahead_ns));
            }
            Self::Nuttcp(_) => {
                let sent = (number + 1).wrapping_mul(datagram.len() as u64);
                nuttcp::write_count(datagram, sent);
            }
            Self::NoHeader
            | Self::Prefix(_)
            | Self::Ttcp
            | Self::Sockperf
            | Self::Bounceback { .. } => {}
        }
    }

    /// Reads the header of a datagram.
    #[inline]
    #[must_use]
    pub fn classify(&self, datagram: &[u8]) -> DatagramClass {
        match self {
            Self::Linerate => {
                if is_opening_datagram(datagram) {
                    return DatagramClass::NonPayload;
                }
                match own::read_header(datagram) {
                    Some(header) => DatagramClass::Numbered(header.sequence, Some(header.sent_ns)),
                    None => DatagramClass::Plain,
                }
            }
            Self::NoHeader | Self::Prefix(_) => DatagramClass::Plain,
            Self::Iperf3(counters) => {
                if iperf3::is_reply(datagram) {
                    return DatagramClass::NonPayload;
                }
                match iperf3::read_header(datagram, *counters) {
                    Some(header) if header.sequence > 0 => {
                        DatagramClass::Numbered(header.sequence - 1, Some(header.sent_ns))
                    }
                    _ => DatagramClass::Plain,
                }
            }
            Self::Iperf2 {
                wide_numbers: wide, ..
            } => match iperf2::read_header(datagram, *wide) {
                Some(header) if header.sequence > 0 => DatagramClass::Numbered(
                    header.sequence.unsigned_abs() - 1,
                    Some(header.sent_ns),
                ),
                Some(header) if header.sequence < 0 => {
                    DatagramClass::End(Some(header.sequence.unsigned_abs() - 1))
                }
                _ => DatagramClass::Plain,
            },
            Self::Nuttcp(counts) => classify_nuttcp(counts, datagram),
            Self::Ttcp if datagram.len() <= linerate_protocol::ttcp::MARKER_LIMIT_BYTES => {
                DatagramClass::Marker
            }
            Self::Ttcp | Self::Sockperf | Self::Bounceback { .. } => DatagramClass::Plain,
        }
    }

    /// Writes the prefix of a stream into payload that starts at `offset` of the stream.
    #[inline]
    pub fn write_prefix(&self, offset: u64, payload: &mut [u8]) {
        let Self::Prefix(header) = self else {
            return;
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(rest) = header.get(start..) {
            let length = rest.len().min(payload.len());
            payload[..length].copy_from_slice(&rest[..length]);
        }
    }

    /// Returns whether datagrams carry sequence numbers.
    #[must_use]
    pub fn is_numbered(&self) -> bool {
        matches!(
            self,
            Self::Linerate | Self::Iperf3(_) | Self::Iperf2 { .. } | Self::Nuttcp(_)
        )
    }

    /// Returns whether a reply is an unchanged copy of its request.
    #[must_use]
    pub fn replies_are_copies(&self) -> bool {
        !matches!(self, Self::Sockperf | Self::Bounceback { .. })
    }

    /// Turns the expected reply into the request for it.
    pub fn make_request(&self, message: &mut [u8], number: u64, now: Nanos) {
        if let Self::Sockperf = self
            && let Some(head) = message.get_mut(..sockperf::HEADER_BYTES)
            && let Some(header) = sockperf::SockperfHeader::read(head)
        {
            sockperf::SockperfHeader::request(number + 1, header.length).write(head);
        } else if let Self::Linerate = self {
            own::write_header(message, number, now);
        }
    }

    /// Returns the number, from 0, of the request that a datagram replies to.
    #[must_use]
    pub fn reply_number(&self, datagram: &[u8]) -> Option<u64> {
        match self {
            Self::Sockperf => sockperf::SockperfHeader::read(datagram)?
                .sequence
                .checked_sub(1),
            _ => own::read_header(datagram).map(|header| header.sequence),
        }
    }

    /// Returns whether part of a reply, from offset `offset` of the message on, matches the
    /// expected bytes.
    #[inline]
    #[must_use]
    pub fn is_expected(&self, part: &[u8], expected: &[u8], offset: usize) -> bool {
        let Self::Bounceback { .. } = self else {
            return part == expected;
        };
        part.len() == expected.len()
            && (part.iter().zip(expected).zip(offset..))
                .all(|((a, b), at)| a == b || BOUNCEBACK_REPLY_FIELDS.contains(&at))
    }
}

/// Writes the next request of an iperf2 bounceback flow into a message.
pub fn write_bounceback(
    client: &mut bounceback::BouncebackClient,
    message: &mut [u8],
    now_wall_ns: u64,
) {
    let request = client.request(now_wall_ns);
    let bytes = request.len().min(message.len());
    message[..bytes].copy_from_slice(&request[..bytes]);
}

/// Classifies a nuttcp datagram; all have one size, so the byte count gives the sequence number.
fn classify_nuttcp(counts: &nuttcp::CountReader, datagram: &[u8]) -> DatagramClass {
    match datagram {
        [b'E', b'O', b'D', b'1'..=b'9'] => return DatagramClass::End(None),
        _ if datagram.len() <= 4 => return DatagramClass::NonPayload,
        _ => {}
    }
    let Some(sent) = counts.read(datagram) else {
        return DatagramClass::Plain;
    };
    match (sent / datagram.len() as u64).checked_sub(1) {
        Some(number) if sent.is_multiple_of(datagram.len() as u64) => {
            DatagramClass::Numbered(number, None)
        }
        _ => DatagramClass::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framings() -> Vec<Framing> {
        vec![
            Framing::Linerate,
            Framing::Iperf3(CounterWidth::Bits32),
            Framing::Iperf3(CounterWidth::Bits64),
            Framing::Iperf2 {
                header: vec![0; 60].into(),
                wall_ahead_ns: 1_700_000_000_000_000_000,
                wide_numbers: true,
            },
            Framing::Nuttcp(nuttcp::CountReader::default()),
        ]
    }

    #[test]
    fn written_headers_are_read_back() {
        for framing in framings() {
            for number in [0, 1, 41, 1_000_000] {
                let mut datagram = vec![0xee; 1_000];
                framing.write_header(&mut datagram, number, 5_000_000);
                match framing.classify(&datagram) {
                    DatagramClass::Numbered(read, _) => assert_eq!(read, number, "{framing:?}"),
                    class => panic!("{framing:?}: {class:?}"),
                }
            }
        }
    }

    #[test]
    fn small_datagrams_do_not_panic() {
        for framing in framings() {
            for bytes in 0..80 {
                let mut datagram = vec![0xee; bytes];
                framing.write_header(&mut datagram, 7, 5_000_000);
                let _ = framing.classify(&datagram);
                let _ = framing.reply_number(&datagram);
            }
        }
    }

    #[test]
    fn ends_and_markers_are_no_payload() {
        let iperf2 = framings().swap_remove(3);
        let mut end = [0; 16];
        super::iperf2::write_end(&mut end, 50, 0);
        assert_eq!(iperf2.classify(&end), DatagramClass::End(Some(50)));
        for (bytes, class) in [
            (b"BOD0", DatagramClass::NonPayload),
            (b"BOD1", DatagramClass::NonPayload),
            (b"EOD0", DatagramClass::NonPayload),
            (b"EOD3", DatagramClass::End(None)),
        ] {
            assert_eq!(
                Framing::Nuttcp(nuttcp::CountReader::default()).classify(bytes),
                class
            );
        }
        assert_eq!(Framing::Ttcp.classify(b"1234"), DatagramClass::Marker);
        assert_eq!(Framing::Ttcp.classify(b"12345"), DatagramClass::Plain);
        assert_eq!(
            Framing::Iperf3(CounterWidth::Bits32).classify(b"6789"),
            DatagramClass::NonPayload
        );
    }

    #[test]
    fn a_reply_is_distinguished_from_its_request() {
        let header = sockperf::SockperfHeader::request(10, 64).to_reply();
        let mut message = vec![7; 64];
        header.write(&mut message);
        let reply = message.clone();
        Framing::Sockperf.make_request(&mut message, 9, 0);
        assert!(
            sockperf::SockperfHeader::read(&message)
                .unwrap()
                .is_request()
        );
        assert_eq!(Framing::Sockperf.reply_number(&reply), Some(9));
        let bounced = Framing::Bounceback { wall_ahead_ns: 0 };
        let (mut request, mut reply) = ([0xff_u8; 64], [0xff_u8; 64]);
        reply[30] = 3;
        assert!(bounced.is_expected(&reply, &request, 0));
        assert!(bounced.is_expected(&reply[20..], &request[20..], 20));
        request[2] = 1;
        assert!(!bounced.is_expected(&reply, &request, 0));
    }
}
