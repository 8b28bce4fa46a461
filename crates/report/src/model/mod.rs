//! Types and formatting that the builders of results and all output formats share.
//!
//! This module imports only [`crate::style`]; everything else in the crate may import it.

mod format;
mod grid;
mod summary_figure;
mod value_names;

pub(crate) use format::{
    INTERVAL_LEGEND, UNKNOWN, capitalise, count_of, format_address, format_change, format_duration,
    format_estimate, format_factor, format_ratio, format_relative, format_short, format_value,
    or_unknown,
};
pub(crate) use grid::Grid;
pub(crate) use summary_figure::{SummaryFigure, summary_figure};
pub(crate) use value_names::{
    core_list, direction_name, finding_location, role_name, skipped_copies, wait_mode_name,
};
