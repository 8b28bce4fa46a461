//! Caveats about the runs behind a verdict.

use std::collections::BTreeMap;

use linerate_metric::experiment::{ExperimentResult, Point, Setting};
use linerate_metric::record::Record;

use crate::file::Experiment;

/// Caveats about parts of a record without figures of experiments: stages, timeline, series.
const OF_OTHER_PARTS: &[&str] = &[
    "clock-unknown",
    "device-stamps-unread",
    "no-stages",
    "no-timeline",
    "series-cut",
    "stages-apart",
    "stages-thin",
    "stages-unlike",
];

/// Caveat about the highest percentiles only.
const OF_THE_TAIL: &str = "thin-tail";

/// Collects the runs behind a verdict.
pub(crate) struct Ground<'a> {
    experiment: &'a Experiment,
    runs: &'a [Record],
    /// Run ids, with true if a tail percentile was read from the run.
    of: BTreeMap<&'a str, bool>,
}

impl<'a> Ground<'a> {
    pub(crate) fn new(experiment: &'a Experiment, runs: &'a [Record]) -> Self {
        Self {
            experiment,
            runs,
            of: BTreeMap::new(),
        }
    }

    /// Adds the runs with this figure at the points of `setting`.
    pub(crate) fn rests_on(
        &mut self,
        result: &'a ExperimentResult,
        setting: &Setting,
        figure: &str,
    ) {
        let mut figures = self.experiment.figures.iter();
        let known = figures.find(|known| known.name == figure);
        // A computed figure is not affected by disturbances of the run.
        if known.is_some_and(|known| known.exact) {
            return;
        }
        let tail = known.is_some_and(|known| known.from.iter().any(|from| from.contains("/p99")));
        let has = |point: &&Point| {
            let fits = |(knob, value)| point.setting.get(knob) == Some(value);
            point.figures.contains_key(figure) && setting.iter().all(fits)
        };
        for run in result.points.iter().filter(has).flat_map(|p| &p.runs) {
            *self.of.entry(run).or_default() |= tail;
        }
    }

    /// Returns each kind of caveat with the number of affected runs, most frequent first: `steal in
    /// 2 of 4 runs`.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for run in self.runs {
            let Some(tail) = self.of.get(run.id.as_str()) else {
                continue;
            };
            let speaks =
                |doubt: &&str| !OF_OTHER_PARTS.contains(doubt) && (*tail || *doubt != OF_THE_TAIL);
            let kinds = run.validity.iter().map(|doubt| doubt.doubt.as_str());
            let mut kinds: Vec<&str> = kinds.filter(speaks).collect();
            kinds.sort_unstable();
            kinds.dedup();
            for kind in kinds {
                *counts.entry(kind).or_default() += 1;
            }
        }
        let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let all = self.of.len();
        let told = counts.iter().map(|(kind, count)| match all {
            1 => format!("{kind} in its run"),
            all => format!("{kind} in {count} of {all} runs"),
        });
        told.collect()
    }
}
