//! Caveats about the runs behind a verdict.

use std::collections::BTreeMap;

use linerate_record::experiment::{ExperimentPoint, ExperimentResult, KnobValues};
use linerate_record::ids::{CaveatId, StoredId};
use linerate_record::record::Record;

use crate::file::Experiment;

/// Caveats about parts of a record without figures of experiments: stages, timeline, series.
const UNRELATED_CAVEATS: &[CaveatId] = &[
    CaveatId::ClockUnknown,
    CaveatId::DeviceTimestampsUnread,
    CaveatId::NoStages,
    CaveatId::NoTimeline,
    CaveatId::SeriesCut,
    CaveatId::StagesApart,
    CaveatId::StagesThin,
    CaveatId::StagesDiffer,
];

/// Collects the runs behind a verdict.
pub(crate) struct CaveatCollector<'a> {
    experiment: &'a Experiment,
    runs: &'a [Record],
    /// Run ids, with true if a tail percentile was read from the run.
    tail_figure_by_run: BTreeMap<&'a str, bool>,
}

impl<'a> CaveatCollector<'a> {
    pub(crate) fn new(experiment: &'a Experiment, runs: &'a [Record]) -> Self {
        Self {
            experiment,
            runs,
            tail_figure_by_run: BTreeMap::new(),
        }
    }

    /// Adds the runs with this figure at the points of `setting`.
    pub(crate) fn add_runs(
        &mut self,
        result: &'a ExperimentResult,
        setting: &KnobValues,
        figure: &str,
    ) {
        let mut figures = self.experiment.figures.iter();
        let source = figures.find(|source| source.name == figure);
        // A computed figure is not affected by disturbances of the run.
        if source.is_some_and(|source| source.is_exact) {
            return;
        }
        let is_tail =
            source.is_some_and(|source| source.pointers.iter().any(|from| from.contains("/p99")));
        let has_figure = |point: &&ExperimentPoint| {
            let has_value = |(knob, value)| point.setting.get(knob) == Some(value);
            point.figures.contains_key(figure) && setting.iter().all(has_value)
        };
        for run in result
            .points
            .iter()
            .filter(has_figure)
            .flat_map(|p| &p.runs)
        {
            *self.tail_figure_by_run.entry(run).or_default() |= is_tail;
        }
    }

    /// Returns each kind of caveat with the number of affected runs, most frequent first: `steal in
    /// 2 of 4 runs`.
    pub(crate) fn summarize(&self) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for run in self.runs {
            let Some(is_tail) = self.tail_figure_by_run.get(run.id.as_str()) else {
                continue;
            };
            // A thin tail affects the highest percentiles only.
            let is_relevant = |id: &&StoredId<CaveatId>| {
                !id.is_one_of(UNRELATED_CAVEATS) && (*is_tail || **id != CaveatId::ThinTail)
            };
            let ids = run.validity.iter().map(|caveat| &caveat.id);
            let mut kinds: Vec<&str> = ids.filter(is_relevant).map(StoredId::as_str).collect();
            kinds.sort_unstable();
            kinds.dedup();
            for kind in kinds {
                *counts.entry(kind).or_default() += 1;
            }
        }
        let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let run_count = self.tail_figure_by_run.len();
        let descriptions = counts.iter().map(|(kind, count)| match run_count {
            1 => format!("{kind} in its run"),
            run_count => format!("{kind} in {count} of {run_count} runs"),
        });
        descriptions.collect()
    }
}
