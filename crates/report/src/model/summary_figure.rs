//! Figure of a run: name, meaning, formatted value.

/// Figure of a run as a table cell with its heading.
pub(crate) struct SummaryFigure {
    /// Table heading.
    pub(crate) name: &'static str,
    /// Explanation for a first-time reader.
    pub(crate) meaning: &'static str,
    /// Value with unit; `None` if not measured.
    pub(crate) value: Option<String>,
}

/// Creates a figure.
pub(crate) fn summary_figure(
    name: &'static str,
    meaning: &'static str,
    value: Option<String>,
) -> SummaryFigure {
    SummaryFigure {
        name,
        meaning,
        value,
    }
}
