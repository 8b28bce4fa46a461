//! Datagrams towards a client, for a thread that does other work in between.

use std::net::SocketAddr;

use linerate_protocol::iperf2::Iperf2Settings;
use linerate_protocol::iperf2::datagram::{
    ENDS_WITHOUT_REPLY, HEADER_BYTES, write_end, write_number,
};
use linerate_sys::clock::Nanos;
use linerate_workload::pacer::Pacer;

use super::super::worker::{SendPlan, UnreachableCounter};
use super::udp::{SETTINGS_BYTES, build_payload, limit_send_time, requested_send_plan};
use crate::interop_limits::InteropLimits;

/// Interval between two end markers.
const END_MARKER_INTERVAL_NS: Nanos = 10_000_000;

/// Sans-I/O sender of a flow towards a client: provides the next datagram and decides the end.
pub struct Iperf2ReverseFlow {
    send_plan: SendPlan,
    payload: Vec<u8>,
    pacer: Pacer,
    /// Offset from our clock to the clock of the timestamps.
    wall_offset_ns: Nanos,
    /// True if the flow is ended early, at the time limit of unconnected clients.
    is_time_limited: bool,
    datagrams: u64,
    bytes: u64,
    /// Number of end markers sent and time of the next one, once the flow ends.
    end_markers: Option<(u32, Nanos)>,
    unreachable: UnreachableCounter,
    is_gone: bool,
}

impl Iperf2ReverseFlow {
    /// Creates the flow that a client requests with these settings, starting now. On a second flow,
    /// for which the client listens, datagrams carry no settings.
    #[must_use]
    pub fn new(
        settings: &Iperf2Settings,
        peer: SocketAddr,
        is_second: bool,
        now: Nanos,
        wall_offset_ns: Nanos,
    ) -> Self {
        let (send_plan, is_time_limited) = limit_send_time(
            requested_send_plan(settings, peer, &InteropLimits::default()),
            now,
        );
        let payload = match is_second {
            true => build_payload(&send_plan, SETTINGS_BYTES, None, now, wall_offset_ns),
            false => build_payload(
                &send_plan,
                HEADER_BYTES,
                Some(settings),
                now,
                wall_offset_ns,
            ),
        };
        Self {
            pacer: send_plan.pacer(now, payload.len()),
            send_plan,
            payload,
            wall_offset_ns,
            is_time_limited,
            datagrams: 0,
            bytes: 0,
            end_markers: None,
            unreachable: UnreachableCounter::default(),
            is_gone: false,
        }
    }

    /// Returns whether the client requests more time than the limit.
    #[must_use]
    pub fn is_time_limited(&self) -> bool {
        self.is_time_limited
    }

    /// Returns the datagram that may leave now, if any; [`Self::confirm_sent`] confirms it.
    pub fn next_datagram(&mut self, now: Nanos) -> Option<&[u8]> {
        if self.is_finished() {
            return None;
        }
        if self.end_markers.is_none() && self.send_plan.is_complete(now, self.bytes) {
            self.end_markers = Some((0, now));
        }
        let stamp = now.wrapping_add(self.wall_offset_ns);
        match self.end_markers {
            Some((_, at)) if now < at => return None,
            Some(_) => write_end(&mut self.payload, self.datagrams, stamp),
            None if self.pacer.wait_until(now).is_some() => return None,
            None => {
                self.pacer.drop_overdue(now, self.payload.len() as u64);
                write_number(&mut self.payload, self.datagrams + 1, stamp);
            }
        }
        Some(&self.payload)
    }

    /// Confirms that the datagram was sent.
    pub fn confirm_sent(&mut self, now: Nanos) {
        match &mut self.end_markers {
            Some((count, at)) => {
                *count += 1;
                *at = now + END_MARKER_INTERVAL_NS;
            }
            None => {
                let bytes = self.payload.len() as u64;
                self.pacer.record_sent(bytes, now);
                self.bytes += bytes;
                self.datagrams += 1;
            }
        }
    }

    /// Handles a datagram from the client: after an end marker, it is the acknowledgement of that.
    pub fn on_client_datagram(&mut self) {
        if let Some((count @ 1.., _)) = &mut self.end_markers {
            *count = ENDS_WITHOUT_REPLY;
        }
    }

    /// Counts an ICMP error of an earlier datagram.
    pub fn on_send_error(&mut self, now: Nanos) {
        self.is_gone |= self.unreachable.record(now);
    }

    /// Returns whether the flow is finished or the client is gone.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_gone
            || self
                .end_markers
                .is_some_and(|(count, _)| count >= ENDS_WITHOUT_REPLY)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use linerate_protocol::iperf2::datagram::read_header;
    use linerate_protocol::iperf2::{Iperf2Direction, TestAmount};

    use super::*;

    const MS: Nanos = 1_000_000;

    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5001);

    fn settings(rate: u64) -> Iperf2Settings {
        Iperf2Settings {
            direction: Iperf2Direction::Reverse,
            amount: Some(TestAmount::Time(1_000 * MS)),
            rate: Some(rate),
            buffer_bytes: Some(1_000),
            version: Some((0x0002_0001, 0x0008_0003)),
            ..Iperf2Settings::default()
        }
    }

    /// Returns the numbers of all datagrams when the flow is polled every `step`, by a clock of the
    /// system's own.
    fn numbers(flow: &mut Iperf2ReverseFlow, begin: Nanos, step: Nanos) -> Vec<i64> {
        let (mut now, mut all) = (begin, Vec::new());
        while !flow.is_finished() {
            assert!(now < begin + 5_000 * MS, "it never ends");
            while let Some(datagram) = flow.next_datagram(now) {
                assert_eq!(datagram.len(), 1_000);
                all.push(read_header(datagram, true).unwrap().sequence);
                flow.confirm_sent(now);
            }
            now += step;
        }
        all
    }

    #[test]
    fn a_flow_has_its_rate_and_sends_end_markers() {
        for step in [MS / 10, 7 * MS] {
            // Times of the settings are of the system's clock.
            let now = linerate_sys::clock::now();
            // A datagram a millisecond.
            let mut flow = Iperf2ReverseFlow::new(&settings(8_000_000), PEER, false, now, 0);
            let all = numbers(&mut flow, now, step);
            let (payload, end_markers) = all.split_at(all.len() - ENDS_WITHOUT_REPLY as usize);
            // The last of them is due at the end, or at the last poll.
            assert!((985..=1_001).contains(&payload.len()), "{}", payload.len());
            let counted: Vec<i64> = (1..=payload.len() as i64).collect();
            assert_eq!(payload, counted);
            assert!(
                end_markers
                    .iter()
                    .all(|end| -end == payload.len() as i64 + 1)
            );
        }
    }

    #[test]
    fn an_acknowledged_end_is_not_repeated() {
        let now = linerate_sys::clock::now();
        let mut flow = Iperf2ReverseFlow::new(&settings(8_000_000), PEER, false, now, 0);
        // A datagram before the end is no acknowledgement.
        flow.on_client_datagram();
        let after = now + 2_000 * MS;
        assert!(
            flow.next_datagram(after)
                .is_some_and(|end| read_header(end, true).unwrap().sequence < 0)
        );
        flow.on_client_datagram();
        assert!(!flow.is_finished(), "it has not left");
        flow.confirm_sent(after);
        flow.on_client_datagram();
        assert!(flow.is_finished());
    }

    #[test]
    fn a_client_that_rejects_datagrams_is_sent_no_more() {
        let now = linerate_sys::clock::now();
        let mut flow = Iperf2ReverseFlow::new(&settings(8_000_000), PEER, true, now, 0);
        let mut errors = 0;
        while !flow.is_finished() {
            assert!(errors < 100, "it goes on for ever");
            flow.on_send_error(now + errors * MS);
            errors += 1;
        }
        assert!(flow.next_datagram(now).is_none());
    }

    #[test]
    fn a_second_flow_carries_no_settings() {
        let now = linerate_sys::clock::now();
        let requested = Iperf2Settings {
            trip_times: true,
            ..settings(8_000_000)
        };
        let mut flow = Iperf2ReverseFlow::new(&requested, PEER, true, now, 0);
        let at = now + 10 * MS;
        let datagram = flow.next_datagram(at).unwrap();
        assert!(
            datagram[HEADER_BYTES..SETTINGS_BYTES]
                .iter()
                .all(|byte| *byte == 0)
        );
        let mut flow = Iperf2ReverseFlow::new(&requested, PEER, false, now, 0);
        let first = flow.next_datagram(at).unwrap();
        assert!(Iperf2Settings::read(&first[HEADER_BYTES..], HEADER_BYTES).is_some());
    }
}
