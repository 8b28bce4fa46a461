//! Filter of documents.

use jiff::Timestamp;
use linerate_record::expect::Expectation;

use super::entry::HistoryEntry;

/// Conditions that must all hold; an empty condition always holds.
#[derive(Clone, Debug, Default)]
pub struct HistoryFilter {
    /// Accepted kinds; `set` matches all sets.
    pub kinds: Vec<String>,
    /// Accepted names: remote host, a host name, or the address of a served client.
    pub hosts: Vec<String>,
    /// Required tags.
    pub tags: Vec<String>,
    /// Text contained in the label or the experiment's name, ignoring case.
    pub label: Option<String>,
    /// Earliest start time.
    pub since: Option<Timestamp>,
    /// End of the start times (exclusive).
    pub until: Option<Timestamp>,
    /// Fingerprint of the plan.
    pub plan: Option<String>,
    /// Thresholds; a document without the figure does not match.
    pub thresholds: Vec<Expectation>,
    /// True to leave out runs that belong to a set.
    pub skip_members: bool,
    /// True to include copies recorded by a server.
    pub copies: bool,
    /// Largest number of documents; the newest are kept.
    pub limit: Option<usize>,
}

impl HistoryFilter {
    /// Returns whether a document matches; the flag is true if it belongs to a set.
    pub(super) fn matches(&self, entry: &HistoryEntry, is_member: bool) -> bool {
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
            && !(self.skip_members && is_member)
            && (self.copies || entry.recorded_by.is_none())
            && self.thresholds.iter().all(|threshold| {
                let value = entry.figures.get(threshold.figure().name);
                value.is_some_and(|value| threshold.is_met_by(*value))
            })
    }
}
