//! Which documents are meant.

use jiff::Timestamp;
use linerate_metric::expect::Expectation;

use super::entry::Entry;

/// Conditions that all must hold; an empty one holds for every document.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// One of these kinds; `set` stands for all sets.
    pub kinds: Vec<String>,
    /// One of these names is the far end's, one of the hosts', or the address of a client that was served.
    pub hosts: Vec<String>,
    /// All of these tags.
    pub tags: Vec<String>,
    /// This text is in the label, or in the name of the experiment, whatever the case of its letters.
    pub label: Option<String>,
    /// Started at this time or later.
    pub since: Option<Timestamp>,
    /// Started before this time.
    pub until: Option<Timestamp>,
    /// The plan of this fingerprint.
    pub plan: Option<String>,
    /// Thresholds; a document that lacks the figure is not meant.
    pub thresholds: Vec<Expectation>,
    /// Leaves out runs that belong to a set.
    pub whole: bool,
    /// Takes what a server kept of runs whose clients keep their own records, too.
    pub copies: bool,
    /// The newest so many.
    pub limit: Option<usize>,
}

impl Filter {
    /// Whether a document is meant; `member` says that it belongs to a set.
    pub(super) fn takes(&self, entry: &Entry, member: bool) -> bool {
        let kind = |kind: &String| {
            entry.kind == *kind || (kind == "set" && entry.kind.starts_with("set:"))
        };
        let host = |host: &String| {
            let client = entry.client.as_ref();
            entry.target == *host || entry.hosts.contains(host) || client == Some(host)
        };
        let label = |part: &String| {
            let names = [&entry.label, &entry.experiment].into_iter().flatten();
            let part = part.to_lowercase();
            names
                .map(|name| name.to_lowercase())
                .any(|name| name.contains(&part))
        };
        (self.kinds.is_empty() || self.kinds.iter().any(kind))
            && (self.hosts.is_empty() || self.hosts.iter().any(host))
            && self.tags.iter().all(|tag| entry.tags.contains(tag))
            && self.label.as_ref().is_none_or(label)
            && self.since.is_none_or(|since| entry.started >= since)
            && self.until.is_none_or(|until| entry.started < until)
            && self.plan.as_ref().is_none_or(|plan| entry.plan == *plan)
            && !(self.whole && member)
            && (self.copies || entry.kept_by.is_none())
            && self.thresholds.iter().all(|threshold| {
                let value = entry.figures.get(threshold.figure().name);
                value.is_some_and(|value| threshold.holds(*value))
            })
    }
}
