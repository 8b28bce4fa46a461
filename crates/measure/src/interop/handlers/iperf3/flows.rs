//! Data flows of an iperf3 test.

use std::io::Read;
use std::slice::from_ref;
use std::time::Duration;

use linerate_dialect::iperf3::udp::{Header, Hello, read_header, write_header};
use linerate_dialect::iperf3::{COOKIE_BYTES, Counters, Flow, Params, Protocol, Way};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Kind, Plan};

use super::super::limits::Limits;
use super::super::payload::Ring;
use super::super::test_run::{IDLE, Test};
use super::super::worker::{
    Datagrams, Moved, Numbers, Sending, Take, receive_datagrams, receive_stream, send_datagrams,
    send_stream,
};
use super::super::{Caller, set_tos};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::sequence_tracker::Sequence;
use crate::session::udp_demux::Arrived;

/// Time of a block at its rate from which waiting for it takes too long.
const LONG_BLOCK_NS: Nanos = 100_000_000;

/// Time after the planned end in which a client may still send its end: its clock started later, by
/// half a round trip.
const END_GRACE_NS: Nanos = 500_000_000;

/// Prepares a flow's socket; `None` if it is not a flow of this test.
pub fn open(params: &Params, arrived: &Arrived) -> Option<()> {
    let socket = &arrived.socket;
    if let Some(bytes) = params.window_bytes {
        let bytes = usize::try_from(bytes).ok()?;
        // A size that the kernel does not grant is visible in the record.
        let _ = socket.set_send_buffer_size(bytes);
        let _ = socket.set_recv_buffer_size(bytes);
    }
    if let Some(tos) = params.tos {
        set_tos(socket, tos);
    }
    if params.protocol == Protocol::Udp {
        let (_, first) = arrived.early.first()?;
        let hello = Hello::read(first)?;
        return socket.send(&hello.answer()).ok().map(|_| ());
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
pub fn plan(params: &Params, caller: &Caller) -> Plan {
    let protocol = match params.protocol {
        Protocol::Udp => linerate_metric::plan::Protocol::Udp,
        _ => linerate_metric::plan::Protocol::Tcp,
    };
    let mut plan = Plan::new(Kind::Throughput, protocol, caller.local.ip().to_string());
    plan.port = caller.door;
    plan.directions = match params.way {
        Way::Forward => vec![Direction::Send],
        Way::Reverse => vec![Direction::Receive],
        Way::Both => vec![Direction::Send, Direction::Receive],
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
    plan.congestion_control_asked = params.congestion.is_some();
    plan
}

/// Starts the worker of a flow.
///
/// # Errors
/// If no thread or memory is available.
pub fn begin_flow(
    test: &mut Test,
    params: &Params,
    flow: Flow,
    arrived: Arrived,
) -> Result<(), MeasureError> {
    let Arrived {
        socket, early, key, ..
    } = arrived;
    test.keep(key, true);
    let block = params.block_bytes as usize;
    let sending = Sending {
        rate_bps: params.rate_bps.or(params.kernel_rate_bps),
        burst_bytes: u64::from(params.burst.unwrap_or(0)) * block as u64,
        ..Sending::new(block, IDLE)
    };
    // The client ends the test; at the time limit the server terminates it.
    let limits = Limits {
        time_ns: None,
        ..*test.limits()
    };
    let sending = sending.within(&limits, params.parallel);
    let counters = params.counters;
    if !flow.from_client {
        test.reserve(block as u64)?;
    }
    match (params.protocol, flow.from_client) {
        (Protocol::Udp, true) => test.spawn(flow.id, Part::Sink, socket, move |context, socket| {
            let mut flow = Incoming::new(counters);
            // The hello was answered before; nothing else is.
            receive_datagrams(context, socket, early, &mut flow, |_, _, _| false)
        }),
        (Protocol::Udp, false) => {
            test.spawn(flow.id, Part::Source, socket, move |context, socket| {
                let mut payload = vec![0; block];
                fastrand::fill(&mut payload);
                let stamp = |datagram: &mut [u8], sequence, sent_ns| {
                    write_header(datagram, counters, Header { sequence, sent_ns });
                };
                send_datagrams(context, socket, &sending, &mut payload, stamp, |_, _, _| {
                    false
                })
            })
        }
        (_, true) => test.spawn(flow.id, Part::Sink, socket, |context, socket| {
            receive_stream(context, socket, IDLE, Moved::default())
        }),
        (_, false) => {
            let sending = ending_for_who_waits(sending, params, clock::now());
            test.spawn(flow.id, Part::Source, socket, move |context, socket| {
                let mut payload = Ring::random(block);
                let moved = send_stream(context, from_ref(socket), &sending, &mut payload);
                if sending.until_ns.is_some_and(|until| clock::now() >= until) {
                    let _ = socket.shutdown(std::net::Shutdown::Write);
                }
                moved
            })
        }
    }
}

/// Sets a planned end for slow blocks. The reference client reads whole blocks and checks its clock
/// between two of them. Where a block takes long at the rate, the end of the stream frees a client
/// that waits for the rest of one.
fn ending_for_who_waits(sending: Sending, params: &Params, now: Nanos) -> Sending {
    match params.duration_ns {
        Some(time) if sending.block_ns() > LONG_BLOCK_NS => {
            let time = time.saturating_add(params.omit_ns);
            sending.until(now.saturating_add(time).saturating_add(END_GRACE_NS))
        }
        _ => sending,
    }
}

/// Datagrams from a client.
struct Incoming {
    counters: Counters,
    sequence: Sequence,
    bytes: u64,
}

impl Incoming {
    fn new(counters: Counters) -> Self {
        Self {
            counters,
            sequence: Sequence::new(),
            bytes: 0,
        }
    }
}

impl Datagrams for Incoming {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        let header = read_header(datagram, self.counters);
        // Numbers start at 1; a repeated hello has none.
        let Some((header, number)) = header.and_then(|h| Some((h, h.sequence.checked_sub(1)?)))
        else {
            return match Hello::read(datagram) {
                Some(_) => Take::Other,
                None => Take::Unread,
            };
        };
        self.bytes += datagram.len() as u64;
        self.sequence.take(number);
        self.sequence
            .take_transit(now.wrapping_sub(header.sent_ns) as i64);
        Take::Payload
    }

    fn is_over(&mut self, _: Nanos) -> bool {
        // The control connection ends it.
        false
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: self.bytes,
            packets: self.sequence.received(),
            calls: 0,
            missing: self.sequence.missing(),
            ..Totals::default()
        }
    }

    fn numbers(&mut self) -> Option<Numbers> {
        Some(Numbers {
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

    #[test]
    fn who_waits_for_a_long_block_is_freed_when_his_time_is_over() {
        let second = 1_000_000_000;
        let ends = |rate_bps, duration_ns| {
            let params = Params {
                duration_ns,
                omit_ns: second,
                ..Params::default()
            };
            let sending = Sending {
                rate_bps,
                ..Sending::new(128 << 10, IDLE)
            };
            ending_for_who_waits(sending, &params, 5 * second).until_ns
        };
        // 10 s a block, and 1 ms.
        assert_eq!(
            ends(Some(100_000), Some(2 * second)),
            Some(8 * second + END_GRACE_NS)
        );
        assert_eq!(ends(Some(1_000_000_000), Some(2 * second)), None);
        assert_eq!(ends(None, Some(2 * second)), None);
        assert_eq!(ends(Some(100_000), None), None);
    }
}
