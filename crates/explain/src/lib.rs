//! Why a run was no faster: a record in, findings out.
//!
//! Nothing here measures, asks the machine, or knows where a record came from: a record from another
//! host is explained as well as one's own. Each rule is a file of [`rules`], pure, and tells its finding
//! only with the readings that prove it. What could not be read is said as that.
#![forbid(unsafe_code)]

pub mod case;
pub mod draft;
pub mod rule;
pub mod rules;

mod ends;
mod rank;

pub use rank::FOLLOWS;
pub use rule::Rule;
pub use rules::RULES;

use linerate_metric::finding::Finding;
use linerate_metric::record::Record;
use linerate_metric::set::RunSet;

use crate::case::Case;

/// Why a run was no faster: what costs most comes first, and behind it what only follows from it.
///
/// Causes come before limits, limits before what is not known.
#[must_use]
pub fn explain(record: &Record) -> Vec<Finding> {
    if record.interrupted && record.summary.duration_ns.is_none() {
        return Vec::new();
    }
    let places = ends::places(record);
    let named = ends::by_their_parts(record, &places);
    let mut case = Case::new(named.as_ref().unwrap_or(record));
    case.places = places;
    let found = RULES.iter().flat_map(|rule| rule.examine(&case));
    rank::rank(found.collect())
}

/// Puts the findings into a record, in place of those that it had.
pub fn complete(record: &mut Record) {
    record.findings = explain(record);
}

/// The same for each run of a set.
pub fn complete_set(set: &mut RunSet) {
    for run in &mut set.runs {
        complete(run);
    }
}
