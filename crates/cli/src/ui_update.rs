//! Updates for the full-screen display (`--tui`), in addition to events: current part of a series,
//! results, warnings.

use std::sync::mpsc::Sender;

use linerate_port::{DropCause, QueueTotals};
use linerate_record::figure;
use linerate_record::record::Record;

/// Update that only a screen shows.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "tui"), allow(dead_code))]
pub enum UiUpdate {
    /// Title: the object of the measurement.
    Title(String),
    /// A part of a series starts.
    PartStarted(SeriesPart),
    /// Result of a part, or another line of progress.
    Line(String),
    /// A warning, or a note on the figures.
    Warning(String),
    /// Number of frames forwarded between two times since the start.
    Frames {
        start_ns: u64,
        end_ns: u64,
        count: u64,
    },
    /// Packets lost so far, by loss point.
    LossCounters(Vec<(String, u64)>),
    /// Runs use hosts of a lab: counters of this host do not apply.
    LabHosts,
    /// Step that the user must do by hand and confirm with Enter; the sender signals the
    /// confirmation.
    ManualStep(String, Sender<()>),
}

impl UiUpdate {
    /// Returns the line with the result of a run of a series: the main figure of its kind.
    pub fn part_result(name: &str, record: &Record) -> Self {
        let figure = figure::default_for(record.kind);
        Self::Line(match figure.value_in(record) {
            Some(value) => format!("{name}: {}", figure::format(figure.name, value)),
            None => format!("{name}: no {}", figure.name),
        })
    }

    /// Returns the drops of ports so far, by queue and cause.
    pub fn port_drops(queues: impl IntoIterator<Item = (String, QueueTotals)>) -> Self {
        let by_cause = |(name, totals): (String, QueueTotals)| {
            let causes = DropCause::ALL.iter();
            causes.map(move |&cause| {
                let loss_point = format!("{name} ({})", cause.name());
                (loss_point, totals.drops_by(cause))
            })
        };
        Self::LossCounters(queues.into_iter().flat_map(by_cause).collect())
    }
}

/// One part of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesPart {
    /// Name of such parts: `run`, `pair`.
    pub name: &'static str,
    /// Number of the part, from 1.
    pub number: usize,
    /// Total number of parts, if known.
    pub total: Option<usize>,
    /// The total is a maximum: a search may end earlier.
    pub at_most: bool,
    /// Settings of the part.
    pub settings: String,
}
