//! Figure of a run: name, meaning, formatted value.

/// One figure of a run, as a heading with a formatted value.
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
