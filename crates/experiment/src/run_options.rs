//! Options of a run of an experiment.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use linerate_record::experiment::{CoreDistance, KnobValues};
use linerate_record::run_set::RunSet;

use crate::location::RunLocation;
use crate::point_state::PointMeasurement;
use crate::process::EventListener;

/// Options of a run.
pub struct RunOptions<'a> {
    /// Id of the resulting set.
    pub id: String,
    /// Argument that selected the experiment: a file, or the name of a built-in one.
    pub experiment_arg: String,
    pub started: Timestamp,
    /// Results of an earlier process that was interrupted.
    pub completed: &'a [PointMeasurement],
    /// True for fewer points and shorter measurements (`--quick`).
    pub quick: bool,
    pub location: RunLocation,
    /// Restricts the run to points with these values.
    pub at_points: KnobValues,
    /// Number of rounds; `None`: as in the file.
    pub repeats: Option<u32>,
    /// Label of the table to which points are added.
    pub label: Option<String>,
    /// Reads the current content of that table; called after the last point, since others may add
    /// points meanwhile.
    pub read_table: &'a dyn Fn() -> Option<RunSet>,
    /// Directory of the results.
    pub results_dir: PathBuf,
    /// Path of the program that measures: this one.
    pub program: PathBuf,
    /// Number of CPUs of this machine.
    pub cores: usize,
    /// Measures the distance between two CPUs.
    ///
    /// Virtual machines migrate within seconds, so it is called before and after each run, but only
    /// if an assertion depends on it.
    pub measure_distance: fn() -> Option<CoreDistance>,
    /// Stops the run.
    pub stop: &'a AtomicBool,
    /// Receives the events of commands while they measure.
    pub listener: Option<EventListener>,
}
