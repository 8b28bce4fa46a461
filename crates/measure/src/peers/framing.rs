//! What stands in front of the payload of datagrams and questions, as each dialect has it.

use linerate_dialect::control::flow as own;
use linerate_dialect::iperf2::{bounceback, datagram as iperf2};
use linerate_dialect::iperf3::{Counters, udp as iperf3};
use linerate_dialect::nuttcp;
use linerate_dialect::sockperf;
use linerate_host::sys::clock::Nanos;

use crate::flow::is_greeting;

/// What stands in front of the payload of a flow.
#[derive(Clone, Debug, Default)]
pub enum Framing {
    /// Number and time of our own.
    #[default]
    Own,
    /// Nothing: payload from the first byte on.
    Bare,
    /// Datagrams of iperf3.
    Iperf3(Counters),
    /// Datagrams of iperf2.
    Iperf2 {
        /// What stands behind number and time in each of them.
        header: Box<[u8]>,
        /// How far the wall clock is ahead of the monotonic one.
        wall_ahead_ns: u64,
        /// Whether the far end numbers with 64 bits.
        wide: bool,
    },
    /// A stream whose first bytes are these: what its client wants, or whose payload it is.
    Begun(Box<[u8]>),
    /// Datagrams of nuttcp: how much was sent up to the end of each, where there is room.
    Nuttcp(nuttcp::CountReader),
    /// Datagrams of ttcp: those of up to 4 bytes are markers.
    Ttcp,
    /// Questions of sockperf.
    Sockperf,
    /// Questions of iperf2, over TCP.
    Bounceback {
        /// How far the wall clock is ahead of the monotonic one.
        wall_ahead_ns: u64,
    },
}

/// What a datagram turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Payload with a number from 0 on, and the time at which it left on the sender's clock.
    Numbered(u64, Option<Nanos>),
    /// Payload without a number.
    Plain,
    /// No payload: a greeting, or a marker.
    Aside,
    /// No payload: a marker, which is the start before payload and the end behind it.
    Marker,
    /// The last word of the sender, who may have said how many datagrams there were before it.
    End(Option<u64>),
}

/// Fields of a bounceback that the answering end fills in.
const BOUNCEBACK_ANSWERED: std::ops::Range<usize> = 28..44;

impl Framing {
    /// Numbers and stamps a datagram; what is behind the header stays as it is.
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

    /// Reads what stands in front of a datagram.
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

    /// Writes what a stream begins with into payload that begins at an offset of it.
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

    /// Whether datagrams tell their number.
    #[must_use]
    pub fn is_numbered(&self) -> bool {
        matches!(
            self,
            Self::Own | Self::Iperf3(_) | Self::Iperf2 { .. } | Self::Nuttcp(_)
        )
    }

    /// Whether their numbers come with the times at which they left.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.is_numbered() && !matches!(self, Self::Nuttcp(_))
    }

    /// Whether the answer to a question is the question as it was asked.
    #[must_use]
    pub fn echoes(&self) -> bool {
        !matches!(self, Self::Sockperf | Self::Bounceback { .. })
    }

    /// Makes a question of the message that its answer has to be.
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

    /// The number of the question that a datagram answers, from 0.
    #[must_use]
    pub fn answers(&self, datagram: &[u8]) -> Option<u64> {
        match self {
            Self::Sockperf => sockperf::Header::read(datagram)?.sequence.checked_sub(1),
            _ => own::read_header(datagram).map(|header| header.sequence),
        }
    }

    /// Whether a piece of an answer, from a place of the message on, is what it has to be.
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

/// Writes the next question of a flow of iperf2's into a message.
pub fn bounce(client: &mut bounceback::Client, message: &mut [u8], now_wall_ns: u64) {
    let question = client.question(now_wall_ns);
    let bytes = question.len().min(message.len());
    message[..bytes].copy_from_slice(&question[..bytes]);
}

/// A datagram of nuttcp's: each is of one size, so that the count of bytes is a number.
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
