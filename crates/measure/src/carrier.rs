//! Ports whose interface has no carrier.

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
