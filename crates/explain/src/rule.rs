//! Interface of a rule.

use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;

use crate::reference::CauseReference;
use crate::run_view::RunView;

/// A rule that detects one cause, limit or unknown of a run's performance.
///
/// Pure: the same record gives the same findings.
pub trait Rule: Sync {
    /// Returns the `cause` of its findings, which has a section in docs/CAUSES.md.
    fn id(&self) -> CauseId;

    /// Returns the data of its section in docs/CAUSES.md.
    fn reference(&self) -> CauseReference;

    /// Returns a finding for each direction or end that is affected.
    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding>;
}
