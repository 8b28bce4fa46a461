//! Facts of ports in the form of the record.

use std::time::Instant;

use linerate_record::forward::{BusyPollFacts, PeerOutage, XdpFacts};

use crate::capabilities::XdpBinding;
use crate::kinds::AnyReceive;
use crate::queue::RxQueue;

/// Converts the binding of an AF_XDP socket to the form of the record.
pub fn xdp_facts(binding: &XdpBinding) -> XdpFacts {
    XdpFacts {
        mode: if binding.native { "native" } else { "generic" }.to_owned(),
        zero_copy: binding.zero_copy,
        need_wakeup: binding.need_wakeup,
        busy_poll: binding.busy_poll.as_ref().map(|polling| BusyPollFacts {
            budget: polling.budget,
            napi_id: polling.napi_id(),
        }),
    }
}

/// Returns the times without a peer at a queue that overlap a run which began at `started_at`.
pub fn outages_since(receive: &AnyReceive, started_at: Instant) -> Vec<PeerOutage> {
    let ns_since = |time: Instant| {
        let ns_since = time.saturating_duration_since(started_at);
        u64::try_from(ns_since.as_nanos()).unwrap_or(u64::MAX)
    };
    let outages = receive.peer_outages().into_iter();
    outages
        .filter(|outage| outage.until.is_none_or(|until| until > started_at))
        .map(|outage| PeerOutage {
            from_ns: ns_since(outage.from),
            until_ns: outage.until.map(ns_since),
        })
        .collect()
}
