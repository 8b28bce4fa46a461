//! Tables, figures and formatting of values, shared by the builders and the output formats.
//!
//! This module imports no other module of the crate.

mod format;
mod grid;
mod value_names;

pub(crate) use format::{
    INTERVAL_LEGEND, UNKNOWN, capitalise, format_address, format_bounds, format_change,
    format_duration, format_estimate, format_factor, format_ratio, format_relative, format_short,
    format_value, interval_headings, or_unknown,
};
pub(crate) use grid::{Grid, SummaryFigure, summary_figure};
pub(crate) use linerate_stats::units::count_of;
pub(crate) use value_names::{
    core_list, direction_name, finding_location, role_name, skipped_copies, wait_mode_name,
};
