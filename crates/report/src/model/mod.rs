//! Tables, figures and formatting of values, shared by the builders and the output formats.
//!
//! This module imports no other module of the crate.

mod format;
mod grid;
mod value_names;

pub(crate) use format::{
    INTERVAL_LEGEND, UNKNOWN, capitalise, count_of, format_address, format_change, format_duration,
    format_estimate, format_factor, format_ratio, format_relative, format_short, format_value,
    or_unknown,
};
pub(crate) use grid::{Grid, SummaryFigure, summary_figure};
pub(crate) use value_names::{
    core_list, direction_name, finding_location, skipped_copies, wait_mode_name,
};
