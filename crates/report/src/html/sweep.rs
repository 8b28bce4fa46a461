//! The heat map of a sweep.

use linerate_metric::figure as figures;
use linerate_metric::set::RunSet;

use super::figure;
use super::pretty;
use crate::svg::Heat;
use crate::text::{sweep_cells, sweep_rank};

/// The first two axes against each other; empty for one axis, whose table says it all.
pub(super) fn section(set: &RunSet) -> String {
    let Some(found) = &set.result.sweep else {
        return String::new();
    };
    let Some(cells) = sweep_cells(found) else {
        return String::new();
    };
    let (rows, columns) = (&found.axes[0], &found.axes[1]);
    let others = match found.axes.len() {
        2 => "",
        _ => ", best over all else that was varied",
    };
    let heat = Heat {
        title: format!(
            "{} by {} and {}{others}",
            found.figure, rows.name, columns.name
        ),
        row_label: rows.name.clone(),
        column_label: columns.name.clone(),
        rows: rows.values.clone(),
        columns: columns.values.clone(),
        cells: (cells.iter())
            .map(|row| {
                let cell = |value: &Option<f64>| {
                    let text = |value| pretty(&figures::format(&found.figure, value));
                    value.map(|value| (sweep_rank(found, value), text(value)))
                };
                row.iter().map(cell).collect()
            })
            .collect(),
    };
    format!("<section>\n{}</section>\n", figure::heat(&heat))
}
