//! Datagrams towards a client, for a thread that does other work in between.

use linerate_dialect::iperf2::Settings;
use linerate_dialect::iperf2::datagram::{HEADER_BYTES, UNANSWERED_ENDS, write_end, write_number};
use linerate_host::sys::clock::Nanos;

use super::super::limits::Limits;
use super::super::worker::{Refusals, Sending};
use super::udp::{SETTINGS_BYTES, asked, bounded, payload};
use crate::pacer::Pacer;

/// Interval between two end markers.
const END_NS: Nanos = 10_000_000;

/// Sans-I/O sender of a flow towards a client: provides the next datagram and decides the end.
pub struct Back {
    sending: Sending,
    payload: Vec<u8>,
    pacer: Pacer,
    /// Offset from our clock to the clock of the timestamps.
    wall: Nanos,
    /// True if the flow is ended early, at the time limit of unconnected clients.
    is_cut: bool,
    datagrams: u64,
    bytes: u64,
    /// Number of end markers sent and time of the next one, once the flow ends.
    ends: Option<(u32, Nanos)>,
    refusals: Refusals,
    is_gone: bool,
}

impl Back {
    /// Creates the flow that a client requests with these settings, starting now. On a second flow,
    /// for which the client listens, datagrams carry no settings.
    #[must_use]
    pub fn new(settings: &Settings, is_second: bool, now: Nanos, wall: Nanos) -> Self {
        let (sending, is_cut) = bounded(asked(settings, &Limits::default()), now);
        let payload = match is_second {
            true => payload(&sending, SETTINGS_BYTES, None, now, wall),
            false => payload(&sending, HEADER_BYTES, Some(settings), now, wall),
        };
        Self {
            pacer: sending.pacer(now, payload.len()),
            sending,
            payload,
            wall,
            is_cut,
            datagrams: 0,
            bytes: 0,
            ends: None,
            refusals: Refusals::default(),
            is_gone: false,
        }
    }

    /// Returns whether the client requests more time than the limit.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the datagram that may leave now, if any; [`Self::left`] confirms it.
    pub fn due(&mut self, now: Nanos) -> Option<&[u8]> {
        if self.is_over() {
            return None;
        }
        if self.ends.is_none() && self.sending.is_spent(now, self.bytes) {
            self.ends = Some((0, now));
        }
        let stamp = now.wrapping_add(self.wall);
        match self.ends {
            Some((_, at)) if now < at => return None,
            Some(_) => write_end(&mut self.payload, self.datagrams, stamp),
            None if self.pacer.wait_until(now).is_some() => return None,
            None => {
                self.pacer.give_up(now, self.payload.len() as u64);
                write_number(&mut self.payload, self.datagrams + 1, stamp);
            }
        }
        Some(&self.payload)
    }

    /// Confirms that the datagram was sent.
    pub fn left(&mut self, now: Nanos) {
        match &mut self.ends {
            Some((count, at)) => {
                *count += 1;
                *at = now + END_NS;
            }
            None => {
                let bytes = self.payload.len() as u64;
                self.pacer.left(bytes, now);
                self.bytes += bytes;
                self.datagrams += 1;
            }
        }
    }

    /// Handles a datagram from the client: after an end marker, it is the acknowledgement of that.
    pub fn answered(&mut self) {
        if let Some((count @ 1.., _)) = &mut self.ends {
            *count = UNANSWERED_ENDS;
        }
    }

    /// Counts an ICMP error of an earlier datagram.
    pub fn refused(&mut self, now: Nanos) {
        self.is_gone |= self.refusals.take(now);
    }

    /// Returns whether the flow is finished or the client is gone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_gone || self.ends.is_some_and(|(count, _)| count >= UNANSWERED_ENDS)
    }
}

#[cfg(test)]
mod tests {
    use linerate_dialect::iperf2::datagram::read_header;
    use linerate_dialect::iperf2::{Amount, Way};

    use super::*;

    const MS: Nanos = 1_000_000;

    fn settings(rate: u64) -> Settings {
        Settings {
            way: Way::Reverse,
            amount: Some(Amount::Time(1_000 * MS)),
            rate: Some(rate),
            buffer_bytes: Some(1_000),
            version: Some((0x0002_0001, 0x0008_0003)),
            ..Settings::default()
        }
    }

    /// Returns the numbers of all datagrams when the flow is polled every `step`, by a clock of the
    /// system's own.
    fn numbers(back: &mut Back, begin: Nanos, step: Nanos) -> Vec<i64> {
        let (mut now, mut all) = (begin, Vec::new());
        while !back.is_over() {
            assert!(now < begin + 5_000 * MS, "it never ends");
            while let Some(datagram) = back.due(now) {
                assert_eq!(datagram.len(), 1_000);
                all.push(read_header(datagram, true).unwrap().sequence);
                back.left(now);
            }
            now += step;
        }
        all
    }

    #[test]
    fn a_flow_has_its_rate_and_says_its_end() {
        for step in [MS / 10, 7 * MS] {
            // Times of the settings are of the system's clock.
            let now = linerate_host::sys::clock::now();
            // A datagram a millisecond.
            let mut back = Back::new(&settings(8_000_000), false, now, 0);
            let all = numbers(&mut back, now, step);
            let (payload, ends) = all.split_at(all.len() - UNANSWERED_ENDS as usize);
            // The last of them is due at the end, or at the last poll.
            assert!((985..=1_001).contains(&payload.len()), "{}", payload.len());
            let counted: Vec<i64> = (1..=payload.len() as i64).collect();
            assert_eq!(payload, counted);
            assert!(ends.iter().all(|end| -end == payload.len() as i64 + 1));
        }
    }

    #[test]
    fn an_end_that_is_answered_is_said_no_more() {
        let now = linerate_host::sys::clock::now();
        let mut back = Back::new(&settings(8_000_000), false, now, 0);
        // A datagram before the end is no acknowledgement.
        back.answered();
        let after = now + 2_000 * MS;
        assert!(
            back.due(after)
                .is_some_and(|end| read_header(end, true).unwrap().sequence < 0)
        );
        back.answered();
        assert!(!back.is_over(), "it has not left");
        back.left(after);
        back.answered();
        assert!(back.is_over());
    }

    #[test]
    fn nobody_is_sent_what_he_refuses() {
        let now = linerate_host::sys::clock::now();
        let mut back = Back::new(&settings(8_000_000), true, now, 0);
        let mut refused = 0;
        while !back.is_over() {
            assert!(refused < 100, "it goes on for ever");
            back.refused(now + refused * MS);
            refused += 1;
        }
        assert!(back.due(now).is_none());
    }

    #[test]
    fn a_second_flow_says_nothing_but_numbers() {
        let now = linerate_host::sys::clock::now();
        let asked = Settings {
            trip_times: true,
            ..settings(8_000_000)
        };
        let mut back = Back::new(&asked, true, now, 0);
        let at = now + 10 * MS;
        let datagram = back.due(at).unwrap();
        assert!(
            datagram[HEADER_BYTES..SETTINGS_BYTES]
                .iter()
                .all(|byte| *byte == 0)
        );
        let mut back = Back::new(&asked, false, now, 0);
        let first = back.due(at).unwrap();
        assert!(Settings::read(&first[HEADER_BYTES..], HEADER_BYTES).is_some());
    }
}
