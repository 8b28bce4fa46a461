//! Caveats about ports without carrier or without a peer.

use linerate_record::forward::PeerOutage;
use linerate_record::ids::CaveatId;
use linerate_record::record::Caveat;
use linerate_stats::units::format_nanos;

/// Remedy.
pub const NO_CARRIER_REMEDY: &str = "set it up where it is down (`ip link set IF up`), plug in its cable, or set its peer up (`ip link set PEER up`)";

/// Returns the warning for a port without carrier at the start or end of a run.
pub fn no_carrier_caveat(port: &str) -> Caveat {
    Caveat::new(
        CaveatId::NoCarrier,
        format!(
            "{port} had no carrier at the start or end of the run: frames sent meanwhile were dropped; \
             {NO_CARRIER_REMEDY}"
        ),
    )
}

/// Returns the warning before a run.
#[must_use]
pub fn no_carrier_warning(port: &str) -> String {
    format!("{port} has no carrier: frames sent to it are dropped; {NO_CARRIER_REMEDY}")
}

/// Makes the caveat about a port whose peer has never connected.
pub fn no_peer_caveat(port: &str) -> Caveat {
    Caveat::new(
        CaveatId::NoPeer,
        format!("no peer connected to the other end of {port}: {NO_PEER_NEXT_STEP}"),
    )
}

/// Remedy for a port without a peer.
pub const NO_PEER_NEXT_STEP: &str =
    "start the other process with the same name, one of the two with role=server";

/// Makes the caveat about a peer that left during a run. The figures of such a run cover its full
/// time.
pub fn peer_outage_caveat(port: &str, outages: &[PeerOutage], duration_ns: u64) -> Option<Caveat> {
    let first = outages.first()?;
    let time_text = |ns: u64| format_nanos(ns as f64);
    let without_peer_ns: u64 = (outages.iter())
        .map(|outage| {
            let until = outage.until_ns.unwrap_or(duration_ns).min(duration_ns);
            until.saturating_sub(outage.from_ns)
        })
        .sum();
    let repetitions = match outages.len() {
        1 => String::new(),
        repetitions => format!(" ({repetitions} times in total)"),
    };
    let reconnection = match (first.until_ns, outages.last()?.until_ns) {
        (_, None) => "no peer has reconnected".to_owned(),
        (Some(first), _) => format!("a peer reconnected at {}", time_text(first)),
        (None, Some(_)) => "a peer connected later".to_owned(),
    };
    Some(Caveat::new(
        CaveatId::PeerLeft,
        format!(
            "the peer of {port} disconnected {} after the start{repetitions}, and {reconnection}: figures cover the full {}, \
             including {} without a peer",
            time_text(first.from_ns),
            time_text(duration_ns),
            time_text(without_peer_ns)
        ),
    ))
}
