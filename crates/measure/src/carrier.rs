//! Ports whose interface has nothing at the other end of its wire.

use linerate_metric::record::Doubt;

/// What to do about it.
pub(crate) const NEXT: &str = "set it up where it is down (`ip link set IF up`), plug its cable in, or set its far end up (`ip link set PEER up`)";

/// That a port had no carrier at the start of a run or at its end.
pub(crate) fn doubt(port: &str) -> Doubt {
    Doubt::new(
        "no-carrier",
        format!(
            "{port} had no carrier when the run began or when it ended: what was handed to it meanwhile was \
             thrown away; {NEXT}"
        ),
    )
}

/// The same before a run.
#[must_use]
pub fn warning(port: &str) -> String {
    format!("{port} has no carrier: what is handed to it is thrown away; {NEXT}")
}
