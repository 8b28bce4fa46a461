//! What the peer's results say of a run.

use super::flow::Way;
use super::params::{Params, Protocol};
use super::results::{FlowResult, Results};
use crate::far::{FarFigures, FarFlow, FarReport};

use linerate_metric::plan::Direction;

/// What the other end of a test said of it: `theirs` are its results, and `at_client` tells which end
/// the near one is. Flows that the parameters do not have are left out.
///
/// A receiver knows what arrived and what was lost, a sender what it sent and sent again; the other
/// numbers, which stock ends write all the same, are unknown. An omitted time is left out: 3.12 counts
/// its datagrams and does not say how many they were, so they follow from the bytes there, and what was
/// lost is only known when nothing was.
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
        // A client says the end of what comes to it, too.
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

/// Datagrams sent there, or arrived there and lost, without the omitted time.
fn datagrams(
    params: &Params,
    direction: Direction,
    flow: &FlowResult,
) -> (Option<u64>, Option<u64>) {
    // The highest number, not how many came.
    let (packets, lost) = match (flow.omitted_packets, flow.omitted_lost) {
        _ if params.omit_ns == 0 => (flow.packets, flow.lost),
        (Some(packets), Some(lost)) => (without(flow.packets, packets), without(flow.lost, lost)),
        _ => {
            // Every datagram is exactly as long as was asked for.
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
