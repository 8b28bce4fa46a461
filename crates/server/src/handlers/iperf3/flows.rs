//! Data flows of an iperf3 test.

use std::io::Read;
use std::slice::from_ref;
use std::time::Duration;

use linerate_protocol::iperf3::udp::{Iperf3Header, UdpHello, read_header, write_header};
use linerate_protocol::iperf3::{
    COOKIE_BYTES, CounterWidth, Iperf3Direction, Iperf3Flow, Iperf3Params, Iperf3Transport,
};
use linerate_record::plan::{Direction, Plan, RunKind};
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;
use linerate_workload::sequence_tracker::SequenceTracker;

use super::super::payload::PayloadRing;
use super::super::test_run::TestRun;
use super::super::worker::{
    DatagramAction, DatagramFlow, FlowWorkerResult, SendPlan, SequenceStats, receive_datagrams,
    receive_stream, send_datagrams, send_stream,
};
use super::super::{AcceptedClient, set_tos};
use crate::interop_limits::InteropLimits;
use crate::interop_state::IncomingFlow;

/// Time of a block at its rate from which waiting for it takes too long.
const LONG_BLOCK_NS: Nanos = 100_000_000;

/// Time after the planned end in which a client may still send its end: its clock started later, by
/// half a round trip.
const END_GRACE_NS: Nanos = 500_000_000;

/// Prepares a flow's socket; `None` if it is not a flow of this test.
pub fn prepare_socket(params: &Iperf3Params, incoming: &IncomingFlow) -> Option<()> {
    let socket = &incoming.socket;
    if let Some(bytes) = params.window_bytes {
        let bytes = usize::try_from(bytes).ok()?;
        // A size that the kernel does not grant is visible in the record.
        let _ = socket.set_send_buffer_size(bytes);
        let _ = socket.set_recv_buffer_size(bytes);
    }
    if let Some(tos) = params.tos {
        set_tos(socket, tos);
    }
    if params.protocol == Iperf3Transport::Udp {
        let (_, first) = incoming.early_datagrams.first()?;
        let hello = UdpHello::read(first)?;
        return socket.send(&hello.reply()).ok().map(|_| ());
    }
    // The cookie that identified the connection.
    socket.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut cookie = [0; COOKIE_BYTES];
    (&*socket).read_exact(&mut cookie).ok()?;
    if params.no_delay {
        let _ = socket.set_tcp_nodelay(true);
    }
    // The largest segment (-M) needs no call: the client's SYN announced it for both ends.
    if let Some(name) = &params.congestion {
        // Its availability was checked before.
        let _ = socket.set_tcp_congestion(name.as_bytes());
    }
    Some(())
}

/// Returns the plan of the client's request.
pub fn plan(params: &Iperf3Params, client: &AcceptedClient) -> Plan {
    let protocol = match params.protocol {
        Iperf3Transport::Udp => linerate_record::plan::TransportProtocol::Udp,
        _ => linerate_record::plan::TransportProtocol::Tcp,
    };
    let mut plan = Plan::new(RunKind::Throughput, protocol, client.local.ip().to_string());
    plan.port = client.port;
    plan.directions = match params.direction {
        Iperf3Direction::Forward => vec![Direction::Send],
        Iperf3Direction::Reverse => vec![Direction::Receive],
        Iperf3Direction::Both => vec![Direction::Send, Direction::Receive],
    };
    plan.streams = params.parallel;
    plan.duration_ns = params.duration_ns;
    plan.amount_bytes = params.amount_bytes.or_else(|| {
        let blocks = params.blocks?;
        Some(blocks.saturating_mul(u64::from(params.block_bytes)))
    });
    plan.omit_ns = params.omit_ns;
    plan.payload_bytes = u64::from(params.block_bytes);
    plan.window_bytes = params.window_bytes;
    plan.rate_bps = params.rate_bps.or(params.kernel_rate_bps);
    plan.socket.mss_bytes = params.mss_bytes;
    plan.socket.no_delay = params.no_delay;
    plan.socket.tos = params.tos;
    plan.congestion_control.clone_from(&params.congestion);
    plan.congestion_control_requested = params.congestion.is_some();
    plan
}

/// Starts the worker of a flow.
///
/// # Errors
/// If no thread or memory is available.
pub fn begin_flow(
    test: &mut TestRun,
    params: &Iperf3Params,
    flow: Iperf3Flow,
    incoming: IncomingFlow,
) -> Result<(), SessionError> {
    let IncomingFlow {
        socket,
        early_datagrams: early,
        key,
        ..
    } = incoming;
    test.hold_open_flow(key, true);
    let block = params.block_bytes as usize;
    let idle = test.timeouts().idle;
    let send_plan = SendPlan {
        rate_bps: params.rate_bps.or(params.kernel_rate_bps),
        burst_bytes: u64::from(params.burst.unwrap_or(0)) * block as u64,
        ..SendPlan::new(block, idle)
    };
    // The client ends the test; at the time limit the server terminates it.
    let limits = InteropLimits {
        time_ns: None,
        ..*test.limits()
    };
    let send_plan = send_plan.within_limits(&limits, params.parallel);
    let counters = params.counter_width;
    if !flow.from_client {
        test.reserve(block as u64)?;
    }
    match (params.protocol, flow.from_client) {
        (Iperf3Transport::Udp, true) => test.spawn(
            flow.id,
            FlowRole::Receiver,
            socket,
            move |context, socket| {
                let mut flow = Iperf3UdpFlow::new(counters);
                // The hello was answered before; nothing else is.
                receive_datagrams(context, socket, early, &mut flow, |_, _, _| false)
            },
        ),
        (Iperf3Transport::Udp, false) => {
            test.spawn(flow.id, FlowRole::Sender, socket, move |context, socket| {
                let mut payload = vec![0; block];
                fastrand::fill(&mut payload);
                let stamp = |datagram: &mut [u8], sequence, sent_ns| {
                    write_header(datagram, counters, Iperf3Header { sequence, sent_ns });
                };
                send_datagrams(
                    context,
                    socket,
                    &send_plan,
                    &mut payload,
                    stamp,
                    |_, _, _| false,
                )
            })
        }
        (_, true) => test.spawn(
            flow.id,
            FlowRole::Receiver,
            socket,
            move |context, socket| {
                receive_stream(context, socket, idle, FlowWorkerResult::default())
            },
        ),
        (_, false) => {
            let send_plan = with_end_for_slow_blocks(send_plan, params, clock::now());
            test.spawn(flow.id, FlowRole::Sender, socket, move |context, socket| {
                let mut payload = PayloadRing::random(block);
                let result = send_stream(context, from_ref(socket), &send_plan, &mut payload);
                if send_plan
                    .until_ns
                    .is_some_and(|until| clock::now() >= until)
                {
                    let _ = socket.shutdown(std::net::Shutdown::Write);
                }
                result
            })
        }
    }
}

/// Sets a planned end for slow blocks. The reference client reads whole blocks and checks its clock
/// between two of them. Where a block takes long at the rate, the end of the stream frees a client
/// that waits for the rest of one.
fn with_end_for_slow_blocks(send_plan: SendPlan, params: &Iperf3Params, now: Nanos) -> SendPlan {
    match params.duration_ns {
        Some(time) if send_plan.block_ns() > LONG_BLOCK_NS => {
            let time = time.saturating_add(params.omit_ns);
            send_plan.end_by(now.saturating_add(time).saturating_add(END_GRACE_NS))
        }
        _ => send_plan,
    }
}

/// Datagrams from a client.
struct Iperf3UdpFlow {
    counters: CounterWidth,
    sequence: SequenceTracker,
    /// Number of the first datagram: 1, or 0 with some implementations.
    first_number: u64,
    bytes: u64,
}

impl Iperf3UdpFlow {
    fn new(counters: CounterWidth) -> Self {
        Self {
            counters,
            sequence: SequenceTracker::new(),
            first_number: 1,
            bytes: 0,
        }
    }
}

impl DatagramFlow for Iperf3UdpFlow {
    #[inline]
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction {
        let header = read_header(datagram, self.counters);
        if self.bytes == 0 && header.is_some_and(|header| header.sequence == 0) {
            self.first_number = 0;
        }
        // A repeated hello has no number.
        let number = |sequence: u64| sequence.checked_sub(self.first_number);
        let Some((header, number)) = header.and_then(|h| Some((h, number(h.sequence)?))) else {
            return match UdpHello::read(datagram) {
                Some(_) => DatagramAction::Ignore,
                None => DatagramAction::Unparsed,
            };
        };
        self.bytes += datagram.len() as u64;
        self.sequence.record(number);
        self.sequence.record_arrival(number, now);
        self.sequence.record_times(number, header.sent_ns, now);
        DatagramAction::Payload
    }

    fn is_finished(&mut self, _: Nanos) -> bool {
        // The control connection ends it.
        false
    }

    fn totals(&self) -> PayloadTotals {
        PayloadTotals {
            bytes: self.bytes,
            packets: self.sequence.received(),
            calls: 0,
            missing: self.sequence.missing(),
            ..PayloadTotals::default()
        }
    }

    fn start_ns(&self) -> Option<Nanos> {
        self.sequence.start_ns()
    }

    fn sequence_stats(&mut self) -> Option<SequenceStats> {
        Some(SequenceStats {
            lost: Some(self.sequence.missing()),
            out_of_order: Some(self.sequence.out_of_order()),
            duplicates: Some(self.sequence.duplicates()),
            ipdv_ns: self.sequence.ipdv_ns(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeouts::Timeouts;

    #[test]
    fn numbers_from_zero_or_one_show_losses() {
        for first in [0, 1] {
            let mut flow = Iperf3UdpFlow::new(CounterWidth::Bits32);
            for sequence in (first..first + 10).filter(|sequence| sequence % 4 != 3) {
                let mut datagram = [0; 100];
                let header = Iperf3Header {
                    sequence,
                    sent_ns: 1_000_000 * (sequence + 1),
                };
                write_header(&mut datagram, CounterWidth::Bits32, header);
                assert_eq!(flow.receive(9, &mut datagram), DatagramAction::Payload);
            }
            let (totals, stats) = (flow.totals(), flow.sequence_stats().unwrap());
            assert_eq!((totals.packets, totals.missing), (8, 2), "from {first}");
            assert_eq!(
                (stats.lost, stats.out_of_order),
                (Some(2), Some(0)),
                "from {first}"
            );
        }
    }

    #[test]
    fn a_client_waiting_for_a_long_block_is_freed_at_its_end() {
        let second = 1_000_000_000;
        let end_of = |rate_bps, duration_ns| {
            let params = Iperf3Params {
                duration_ns,
                omit_ns: second,
                ..Iperf3Params::default()
            };
            let send_plan = SendPlan {
                rate_bps,
                ..SendPlan::new(128 << 10, Timeouts::DEFAULT.idle)
            };
            with_end_for_slow_blocks(send_plan, &params, 5 * second).until_ns
        };
        // 10 s a block, and 1 ms.
        assert_eq!(
            end_of(Some(100_000), Some(2 * second)),
            Some(8 * second + END_GRACE_NS)
        );
        assert_eq!(end_of(Some(1_000_000_000), Some(2 * second)), None);
        assert_eq!(end_of(None, Some(2 * second)), None);
        assert_eq!(end_of(Some(100_000), None), None);
    }
}
