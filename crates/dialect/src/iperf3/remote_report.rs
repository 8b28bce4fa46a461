//! Conversion of a peer's results to a [`FarReport`].

use super::flow::Way;
use super::params::{Params, Protocol};
use super::results::{FlowResult, Results};
use crate::remote_report::{FarFigures, FarFlow, FarReport};

use linerate_metric::plan::Direction;

/// Returns the report of the remote end: `theirs` are its results, and `at_client` is true if this
/// end is the client. Flows that the parameters do not have are left out.
///
/// A receiver counts what arrived and what was lost, a sender what it sent and retransmitted.
/// Upstream writes the other numbers too, but without meaning; they are `None`. The omitted time is
/// excluded: 3.12 counts its datagrams but does not report their number. It then follows from the
/// bytes, and the loss is known only if it is zero.
#[must_use]
pub fn far_report(params: &Params, at_client: bool, theirs: &Results) -> FarReport {
    let flows = params.flows();
    let flows = theirs.flows.iter().filter_map(|result| {
        let flow = flows.iter().find(|flow| flow.id == result.id)?;
        let direction = if at_client {
            flow.at_client()
        } else {
            flow.at_server()
        };
        Some(FarFlow {
            id: Some(result.id),
            direction,
            figures: figures(params, direction, theirs, result),
        })
    });
    FarReport {
        flows: flows.collect(),
        text: theirs.output_text.clone(),
        // A client also ends the flows that it receives.
        stopped_first: !at_client && params.way != Way::Forward,
    }
}

fn figures(
    params: &Params,
    direction: Direction,
    theirs: &Results,
    flow: &FlowResult,
) -> FarFigures {
    let udp = params.protocol == Protocol::Udp;
    let (packets, lost) = if udp {
        datagrams(params, direction, flow)
    } else {
        (None, None)
    };
    let common = FarFigures {
        bytes: flow.bytes,
        duration_ns: match (flow.start_ns, flow.end_ns) {
            (Some(start), Some(end)) => end.checked_sub(start).filter(|ns| *ns > 0),
            _ => None,
        },
        ..FarFigures::default()
    };
    match direction {
        Direction::Send => FarFigures {
            packets,
            lost,
            ipdv_ns: flow.ipdv_ns.filter(|_| udp),
            ..common
        },
        Direction::Receive => FarFigures {
            packets,
            retransmits: flow
                .retransmits
                .filter(|_| !udp && theirs.knows_retransmits != Some(false)),
            ..common
        },
    }
}

/// Returns the datagrams that the peer sent, or received and lost, without the omitted time.
fn datagrams(
    params: &Params,
    direction: Direction,
    flow: &FlowResult,
) -> (Option<u64>, Option<u64>) {
    // The highest number, not the count of arrivals.
    let (packets, lost) = match (flow.omitted_packets, flow.omitted_lost) {
        _ if params.omit_ns == 0 => (flow.packets, flow.lost),
        (Some(packets), Some(lost)) => (without(flow.packets, packets), without(flow.lost, lost)),
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
                .map(|(all, lost)| all.saturating_sub(lost));
            (arrived, lost)
        }
    }
}

fn without(all: Option<u64>, omitted: u64) -> Option<u64> {
    all.map(|all| all.saturating_sub(omitted))
}
