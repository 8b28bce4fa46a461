//! Headers in front of the payload of datagrams and requests, by protocol.

use linerate_dialect::control::flow as own;
use linerate_dialect::iperf2::{bounceback, datagram as iperf2};
use linerate_dialect::iperf3::{Counters, udp as iperf3};
use linerate_dialect::nuttcp;
use linerate_dialect::sockperf;
use linerate_host::sys::clock::Nanos;

use crate::flow::is_greeting;

/// Header format in front of the payload of a flow.
#[derive(Clone, Debug, Default)]
pub enum Framing {
    /// Sequence number and send time of our own protocol.
    #[default]
    Own,
    /// No header: payload from the first byte on.
    Bare,
    /// iperf3 datagrams.
    Iperf3(Counters),
    /// iperf2 datagrams.
    Iperf2 {
        /// Bytes after sequence number and time, the same in every datagram.
        header: Box<[u8]>,
        /// Offset of the wall clock from the monotonic clock.
        wall_ahead_ns: u64,
        /// True if the remote end numbers with 64 bits.
        wide: bool,
    },
    /// Stream that starts with these bytes: its client's settings, or a pattern that identifies the
    /// tool.
    Begun(Box<[u8]>),
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
pub enum Seen {
    /// Payload with a sequence number from 0, and the send time on the sender's clock.
    Numbered(u64, Option<Nanos>),
    /// Payload without a sequence number.
    Plain,
    /// No payload: a hello or a marker.
    Aside,
    /// Marker: the start if before payload, the end if after it.
    Marker,
    /// End of the flow, with the number of datagrams before it where the sender reports that.
    End(Option<u64>),
}

/// Byte range of a bounceback message that the responder fills in.
const BOUNCEBACK_ANSWERED: std::ops::Range<usize> = 28..44;

impl Framing {
    /// Writes sequence number and time into a datagram; bytes behind the header stay.
    #[inline]
    pub fn write(&self, datagram: &mut [u8], number: u64, now: Nanos) {
        match self {
            Self::Own => own::write_header(datagram, number, now),
            Self::Iperf3(counters) => iperf3::write_header(
                datagram,
                *counters,
                iperf3::Header {
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
                let room = rest.len().min(header.len());
                rest[..room].copy_from_slice(&header[..room]);
                iperf2::write_number(head, number + 1, now.wrapping_add(*wall_ahead_ns));
            }
            Self::Nuttcp(_) => {
                let sent = (number + 1).wrapping_mul(datagram.len() as u64);
                nuttcp::write_count(datagram, sent);
            }
            Self::Bare | Self::Begun(_) | Self::Ttcp | Self::Sockperf | Self::Bounceback { .. } => {
            }
        }
    }

    /// Reads the header of a datagram.
    #[inline]
    #[must_use]
    pub fn read(&self, datagram: &[u8]) -> Seen {
        match self {
            Self::Own => {
                if is_greeting(datagram) {
                    return Seen::Aside;
                }
                match own::read_header(datagram) {
                    Some(header) => Seen::Numbered(header.sequence, Some(header.sent_ns)),
                    None => Seen::Plain,
                }
            }
            Self::Bare | Self::Begun(_) => Seen::Plain,
            Self::Iperf3(counters) => {
                if iperf3::is_answer(datagram) {
                    return Seen::Aside;
                }
                match iperf3::read_header(datagram, *counters) {
                    Some(header) if header.sequence > 0 => {
                        Seen::Numbered(header.sequence - 1, Some(header.sent_ns))
                    }
                    _ => Seen::Plain,
                }
            }
            Self::Iperf2 { wide, .. } => match iperf2::read_header(datagram, *wide) {
                Some(header) if header.sequence > 0 => {
                    Seen::Numbered(header.sequence.unsigned_abs() - 1, Some(header.sent_ns))
                }
                Some(header) if header.sequence < 0 => {
                    Seen::End(Some(header.sequence.unsigned_abs() - 1))
                }
                _ => Seen::Plain,
            },
            Self::Nuttcp(counts) => numbered_by_bytes(counts, datagram),
            Self::Ttcp if datagram.len() <= linerate_dialect::ttcp::MARKER_LIMIT_BYTES => {
                Seen::Marker
            }
            Self::Ttcp | Self::Sockperf | Self::Bounceback { .. } => Seen::Plain,
        }
    }

    /// Writes the prefix of a stream into payload that starts at `offset` of the stream.
    #[inline]
    pub fn begin(&self, offset: u64, payload: &mut [u8]) {
        let Self::Begun(header) = self else {
            return;
        };
        let begun = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(rest) = header.get(begun..) {
            let room = rest.len().min(payload.len());
            payload[..room].copy_from_slice(&rest[..room]);
        }
    }

    /// Returns whether datagrams carry sequence numbers.
    #[must_use]
    pub fn is_numbered(&self) -> bool {
        matches!(
            self,
            Self::Own | Self::Iperf3(_) | Self::Iperf2 { .. } | Self::Nuttcp(_)
        )
    }

    /// Returns whether sequence numbers come with send times.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.is_numbered() && !matches!(self, Self::Nuttcp(_))
    }

    /// Returns whether a reply is an unchanged copy of its request.
    #[must_use]
    pub fn echoes(&self) -> bool {
        !matches!(self, Self::Sockperf | Self::Bounceback { .. })
    }

    /// Turns the expected reply into the request for it.
    pub fn ask(&self, message: &mut [u8], number: u64, now: Nanos) {
        if let Self::Sockperf = self
            && let Some(head) = message.get_mut(..sockperf::HEADER_BYTES)
            && let Some(header) = sockperf::Header::read(head)
        {
            sockperf::Header::question(number + 1, header.length).write(head);
        } else if let Self::Own = self {
            own::write_header(message, number, now);
        }
    }

    /// Returns the number, from 0, of the request that a datagram replies to.
    #[must_use]
    pub fn answers(&self, datagram: &[u8]) -> Option<u64> {
        match self {
            Self::Sockperf => sockperf::Header::read(datagram)?.sequence.checked_sub(1),
            _ => own::read_header(datagram).map(|header| header.sequence),
        }
    }

    /// Returns whether part of a reply, from offset `offset` of the message on, matches the
    /// expected bytes.
    #[inline]
    #[must_use]
    pub fn is_right(&self, piece: &[u8], expected: &[u8], place: usize) -> bool {
        let Self::Bounceback { .. } = self else {
            return piece == expected;
        };
        piece.len() == expected.len()
            && (piece.iter().zip(expected).zip(place..))
                .all(|((a, b), at)| a == b || BOUNCEBACK_ANSWERED.contains(&at))
    }
}

/// Writes the next request of an iperf2 bounceback flow into a message.
pub fn bounce(client: &mut bounceback::Client, message: &mut [u8], now_wall_ns: u64) {
    let question = client.question(now_wall_ns);
    let bytes = question.len().min(message.len());
    message[..bytes].copy_from_slice(&question[..bytes]);
}

/// Classifies a nuttcp datagram; all have one size, so the byte count gives the sequence number.
fn numbered_by_bytes(counts: &nuttcp::CountReader, datagram: &[u8]) -> Seen {
    match datagram {
        [b'E', b'O', b'D', b'1'..=b'9'] => return Seen::End(None),
        _ if datagram.len() <= 4 => return Seen::Aside,
        _ => {}
    }
    let Some(sent) = counts.read(datagram) else {
        return Seen::Plain;
    };
    match (sent / datagram.len() as u64).checked_sub(1) {
        Some(number) if sent.is_multiple_of(datagram.len() as u64) => Seen::Numbered(number, None),
        _ => Seen::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framings() -> Vec<Framing> {
        vec![
            Framing::Own,
            Framing::Iperf3(Counters::Bits32),
            Framing::Iperf3(Counters::Bits64),
            Framing::Iperf2 {
                header: vec![0; 60].into(),
                wall_ahead_ns: 1_700_000_000_000_000_000,
                wide: true,
            },
            Framing::Nuttcp(nuttcp::CountReader::default()),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for framing in framings() {
            for number in [0, 1, 41, 1_000_000] {
                let mut datagram = vec![0xee; 1_000];
                framing.write(&mut datagram, number, 5_000_000);
                match framing.read(&datagram) {
                    Seen::Numbered(read, _) => assert_eq!(read, number, "{framing:?}"),
                    seen => panic!("{framing:?}: {seen:?}"),
                }
            }
        }
    }

    #[test]
    fn small_datagrams_hurt_nobody() {
        for framing in framings() {
            for bytes in 0..80 {
                let mut datagram = vec![0xee; bytes];
                framing.write(&mut datagram, 7, 5_000_000);
                let _ = framing.read(&datagram);
                let _ = framing.answers(&datagram);
            }
        }
    }

    #[test]
    fn ends_and_markers_are_no_payload() {
        let iperf2 = framings().swap_remove(3);
        let mut end = [0; 16];
        super::iperf2::write_end(&mut end, 50, 0);
        assert_eq!(iperf2.read(&end), Seen::End(Some(50)));
        for (bytes, seen) in [
            (b"BOD0", Seen::Aside),
            (b"BOD1", Seen::Aside),
            (b"EOD0", Seen::Aside),
            (b"EOD3", Seen::End(None)),
        ] {
            assert_eq!(
                Framing::Nuttcp(nuttcp::CountReader::default()).read(bytes),
                seen
            );
        }
        assert_eq!(Framing::Ttcp.read(b"1234"), Seen::Marker);
        assert_eq!(Framing::Ttcp.read(b"12345"), Seen::Plain);
        assert_eq!(Framing::Iperf3(Counters::Bits32).read(b"6789"), Seen::Aside);
    }

    #[test]
    fn an_answer_is_told_from_its_question() {
        let header = sockperf::Header::question(10, 64).answered();
        let mut message = vec![7; 64];
        header.write(&mut message);
        let answer = message.clone();
        Framing::Sockperf.ask(&mut message, 9, 0);
        assert!(sockperf::Header::read(&message).unwrap().is_question());
        assert_eq!(Framing::Sockperf.answers(&answer), Some(9));
        let bounced = Framing::Bounceback { wall_ahead_ns: 0 };
        let (mut question, mut answer) = ([0xff_u8; 64], [0xff_u8; 64]);
        answer[30] = 3;
        assert!(bounced.is_right(&answer, &question, 0));
        assert!(bounced.is_right(&answer[20..], &question[20..], 20));
        question[2] = 1;
        assert!(!bounced.is_right(&answer, &question, 0));
    }
}
