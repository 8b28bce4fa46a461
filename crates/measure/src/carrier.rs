//! Caveats about ports without carrier or without a peer.

use linerate_record::record::Caveat;

/// Remedy.
pub(crate) const REMEDY: &str = "set it up where it is down (`ip link set IF up`), plug in its cable, or set its peer up (`ip link set PEER up`)";

/// Returns the warning for a port without carrier at the start or end of a run.
pub(crate) fn run_warning(port: &str) -> Caveat {
    Caveat::new(
        "no-carrier",
        format!(
            "{port} had no carrier at the start or end of the run: frames sent meanwhile were dropped; \
             {REMEDY}"
        ),
    )
}

/// Returns the warning before a run.
#[must_use]
pub fn start_warning(port: &str) -> String {
    format!("{port} has no carrier: frames sent to it are dropped; {REMEDY}")
}

/// Makes the caveat about a port whose peer has never connected.
pub fn no_peer_caveat(port: &str) -> Caveat {
    Caveat::new(
        "no-peer",
        format!("no peer connected to the other end of {port}: {NO_PEER_NEXT_STEP}"),
    )
}

/// Remedy for a port without a peer.
pub const NO_PEER_NEXT_STEP: &str =
    "start the other process with the same name, one of the two with role=server";
