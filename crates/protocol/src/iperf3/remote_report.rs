//! Conversion of a peer's results to a [`RemoteReport`].

use linerate_record::plan::Direction;

use super::flow::Iperf3Direction;
use super::params::{Iperf3Params, Iperf3Transport};
use super::results::{FlowResult, Iperf3Results};
use crate::remote_report::{RemoteFigures, RemoteFlow, RemoteReport};

/// Returns the report of the remote end: `results` are its results, and `at_client` is
/// true if this end is the client. Flows that the parameters do not have are left out.
///
/// A receiver counts what arrived and what was lost, a sender what it sent and retransmitted.
/// Upstream writes the other numbers too, but without meaning; they are `None`. The omitted time is
/// excluded: 3.12 counts its datagrams but does not report their number. It then follows from the
/// bytes, and the loss is known only if it is zero.
#[must_use]
pub fn remote_report(
    params: &Iperf3Params,
    at_client: bool,
    results: &Iperf3Results,
) -> RemoteReport {
    let flows = params.flows();
    let flows = results.flows.iter().filter_map(|result| {
        let flow = flows.iter().find(|flow| flow.id == result.id)?;
        let direction = if at_client {
            flow.direction_at_client()
        } else {
            flow.direction_at_server()
        };
        Some(RemoteFlow {
            id: Some(result.id),
            direction,
            figures: flow_figures(params, direction, results, result),
        })
    });
    RemoteReport {
        flows: flows.collect(),
        text: results.output_text.clone(),
        // A client also ends the flows that it receives.
        stopped_early: !at_client && params.direction != Iperf3Direction::Forward,
    }
}

fn flow_figures(
    params: &Iperf3Params,
    direction: Direction,
    results: &Iperf3Results,
    flow: &FlowResult,
) -> RemoteFigures {
    let udp = params.protocol == Iperf3Transport::Udp;
    let (packets, lost) = if udp {
        datagram_counts(params, direction, flow)
    } else {
        (None, None)
    };
    let common = RemoteFigures {
        bytes: flow.bytes,
        duration_ns: match (flow.start_ns, flow.end_ns) {
            (Some(start), Some(end)) => end.checked_sub(start).filter(|ns| *ns > 0),
            _ => None,
        },
        ..RemoteFigures::default()
    };
    match direction {
        Direction::Send => RemoteFigures {
            packets,
            lost,
            ipdv_ns: flow.ipdv_ns.filter(|_| udp),
            ..common
        },
        Direction::Receive => RemoteFigures {
            packets,
            retransmits: flow
                .retransmits
                .filter(|_| !udp && results.has_retransmits != Some(false)),
            ..common
        },
    }
}

/// Returns the datagrams that the peer sent, or received and lost, without the omitted time.
fn datagram_counts(
    params: &Iperf3Params,
    direction: Direction,
    flow: &FlowResult,
) -> (Option<u64>, Option<u64>) {
    // The highest number, not the count of arrivals.
    let (packets, lost) = match (flow.omitted_packets, flow.omitted_lost) {
        _ if params.omit_ns == 0 => (flow.packets, flow.lost),
        (Some(packets), Some(lost)) => (subtract(flow.packets, packets), subtract(flow.lost, lost)),
        _ => {
            // Every datagram has exactly the requested length.
            let arrived = flow
                .bytes
                .and_then(|bytes| bytes.checked_div(params.block_bytes.into()));
            return (arrived, flow.lost.filter(|lost| *lost == 0));
        }
    };
    match direction {
        Direction::Receive => (packets, None),
        Direction::Send => {
            let arrived = packets
                .zip(lost)
                .map(|(total, lost)| total.saturating_sub(lost));
            (arrived, lost)
        }
    }
}

fn subtract(total: Option<u64>, omitted: u64) -> Option<u64> {
    total.map(|total| total.saturating_sub(omitted))
}
