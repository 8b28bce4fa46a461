//! Tables of text cells and figures of a run, before any layout.

/// Headings and rows of text cells.
pub(crate) struct Grid {
    pub(crate) headings: Vec<String>,
    /// Rows; each has as many cells as there are headings.
    pub(crate) rows: Vec<Vec<String>>,
    /// Number of left-aligned columns.
    pub(crate) left_columns: usize,
}

impl Grid {
    /// Creates a table; `None` without rows.
    pub(crate) fn new(
        headings: &[&str],
        rows: Vec<Vec<String>>,
        left_columns: usize,
    ) -> Option<Self> {
        let headings = headings.iter().map(|&heading| heading.to_owned());
        (!rows.is_empty()).then(|| Self {
            headings: headings.collect(),
            rows,
            left_columns,
        })
    }
}

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
