//! Table of text cells, before any layout.

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
