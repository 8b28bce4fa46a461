//! What a rule is.

use linerate_metric::finding::Finding;

use crate::case::Case;

/// One thing that can keep a network stack from being faster.
///
/// Pure: the same record gives the same findings.
pub trait Rule: Sync {
    /// Its id: kebab-case, the `cause` of its findings, and the name of its section in docs/CAUSES.md.
    fn id(&self) -> &'static str;

    /// What it finds: nothing, or a finding for each direction or end that it concerns.
    fn examine(&self, case: &Case<'_>) -> Vec<Finding>;
}
