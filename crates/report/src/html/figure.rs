//! A chart with its legend and its data as a table; the table is also the data of the crosshair.

use std::fmt::Write;

use super::with_micro_sign;
use crate::model::Grid;
use crate::svg::{
    BarChart, HeatMap, LineChart, NARROW_SIZE, SERIES_COLORS, WIDE_SIZE, escape_markup,
};

/// Largest number of rows in a data table; of more rows, every n-th is shown.
const MAX_ROWS: usize = 240;

/// Data of a chart.
pub(super) struct ChartData {
    /// Headings of the x column and of each series.
    pub(super) headings: Vec<String>,
    pub(super) rows: Vec<ChartRow>,
}

/// Row of the data table: an x with the value of each series.
pub(super) struct ChartRow {
    pub(super) x: f64,
    pub(super) text: String,
    /// Value for the drawing and as text; `None` if unknown.
    pub(super) cells: Vec<Option<(f64, String)>>,
}

/// Length of a text that is kept on one line.
const MAX_UNBROKEN_CHARS: usize = 16;

/// Renders a text table as HTML.
pub(super) fn render_grid(grid: &Grid) -> String {
    let longest = |column: usize| {
        let cells = grid.rows.iter().filter_map(|row| row.get(column));
        let lengths = cells.map(|cell| cell.chars().count());
        lengths.max().unwrap_or(0)
    };
    let class = |column: usize| match column < grid.left_columns {
        true if longest(column) <= MAX_UNBROKEN_CHARS => " class=\"text short\"",
        true => " class=\"text\"",
        false => "",
    };
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr>");
    for (column, heading) in grid.headings.iter().enumerate() {
        out.push_str(&format!(
            "<th scope=\"col\"{}>{}</th>",
            class(column),
            escape_markup(heading)
        ));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &grid.rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            out.push_str(&format!(
                "<td{}>{}</td>",
                class(column),
                match column < grid.left_columns {
                    true => with_break_points(&with_micro_sign(cell)),
                    false => render_interval_cell(&with_micro_sign(cell)),
                }
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Escapes a text and allows line breaks after dots and underscores of long names.
fn with_break_points(text: &str) -> String {
    let with_breaks = |with_breaks: &str| match with_breaks.chars().count() > MAX_UNBROKEN_CHARS {
        true => escape_markup(with_breaks)
            .replace('.', ".<wbr>")
            .replace('_', "_<wbr>"),
        false => escape_markup(with_breaks),
    };
    let tokens: Vec<String> = text.split(' ').map(with_breaks).collect();
    tokens.join(" ")
}

/// Escapes a figure and puts its interval on a line below, which halves the width of the table.
fn render_interval_cell(text: &str) -> String {
    let parts = text.split_once(" (").and_then(|(value, rest)| {
        let interval = rest.strip_suffix(')')?;
        interval.contains(" to ").then_some((value, interval))
    });
    match parts {
        Some((value, interval)) => format!(
            "{}<span class=\"interval\">{}</span>",
            escape_markup(value),
            render_second_line(interval)
        ),
        None => escape_markup(text),
    }
}

/// Escapes the line below a figure. It may break between the bounds of an interval, but not between
/// a number and its unit.
pub(super) fn render_second_line(text: &str) -> String {
    const NO_BREAK_SPACE: &str = "\u{a0}";
    let bounds: Vec<String> = (text.split(" to "))
        .map(|bound| escape_markup(bound).replace(' ', NO_BREAK_SPACE))
        .collect();
    match bounds.len() {
        1 => escape_markup(text),
        _ => bounds.join(&format!(" to{NO_BREAK_SPACE}")),
    }
}

/// Renders commands or a settings file for copying; they are not wrapped.
pub(super) fn render_commands(text: &str) -> String {
    // Lines are escaped one by one, because escaping removes line ends.
    let lines: Vec<String> = text.lines().map(escape_markup).collect();
    format!("<pre class=\"command\">{}</pre>\n", lines.join("\n"))
}

/// Renders preformatted text; control characters are removed.
pub(super) fn render_preformatted(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .map(|line| escape_markup(&with_micro_sign(line)))
        .collect();
    format!(
        "<div class=\"scroll\"><pre>{}</pre></div>\n",
        lines.join("\n")
    )
}

/// Renders a chart with axes.
pub(super) fn render_chart(chart: &LineChart, data: &ChartData) -> String {
    let legend = if chart.series.len() > 1 {
        let items: String = chart
            .series
            .iter()
            .enumerate()
            .map(|(position, series)| {
                format!(
                    "<label class=\"k{position} c{}\"><input type=\"checkbox\" checked><i></i>{}</label>",
                    position % SERIES_COLORS,
                    escape_markup(&series.name)
                )
            })
            .collect();
        format!("<div class=\"legend\">{items}</div>")
    } else {
        String::new()
    };
    render_figure(
        &chart.title,
        &legend,
        &(chart.draw(WIDE_SIZE) + &chart.draw(NARROW_SIZE)),
        &data_table(chart, data),
    )
}

/// Renders horizontal bars.
pub(super) fn render_bars(bars: &BarChart) -> String {
    let mut rows = String::new();
    for bar in &bars.bars {
        write!(
            rows,
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            escape_markup(&bar.name),
            escape_markup(&bar.text)
        )
        .expect("writing to a String cannot fail");
    }
    let table = format!(
        "<details><summary>Data</summary><div class=\"scroll\"><table><thead><tr><th>measurement</th><th>{}</th></tr></thead><tbody>{rows}</tbody></table></div></details>",
        escape_markup(&bars.axis.label)
    );
    render_figure(
        &bars.title,
        "",
        &(bars.draw(WIDE_SIZE) + &bars.draw(NARROW_SIZE)),
        &table,
    )
}

/// Renders a heat map, whose cells show its data.
pub(super) fn render_heat_map(heat: &HeatMap) -> String {
    render_figure(
        &heat.title,
        "",
        &(heat.draw(WIDE_SIZE) + &heat.draw(NARROW_SIZE)),
        "",
    )
}

fn render_figure(title: &str, legend: &str, drawing: &str, table: &str) -> String {
    format!(
        "<figure class=\"chart\">\n<figcaption><h4>{}</h4>{legend}</figcaption>\n<div class=\"canvas\">{drawing}<div class=\"tip\" hidden></div></div>\n{table}\n</figure>\n",
        escape_markup(title)
    )
}

fn data_table(chart: &LineChart, data: &ChartData) -> String {
    let mut out = String::from("<details><summary>Data</summary>");
    let row_step = data.rows.len().div_ceil(MAX_ROWS).max(1);
    if row_step > 1 {
        write!(
            out,
            "<p class=\"muted\">Every {row_step}th of {} rows; the record has all rows.</p>",
            data.rows.len()
        )
        .expect("writing to a String cannot fail");
    }
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    for heading in &data.headings {
        out.push_str(&format!(
            "<th scope=\"col\">{}</th>",
            escape_markup(heading)
        ));
    }
    out.push_str("</tr></thead><tbody>");
    for row in data.rows.iter().step_by(row_step) {
        // Positions are shares of the plot, valid for both drawings.
        out.push_str(&format!(
            "<tr data-x=\"{:.4}\"><th scope=\"row\">{}</th>",
            chart.x.position(row.x),
            escape_markup(&row.text)
        ));
        for cell in &row.cells {
            match cell {
                Some((value, text)) => out.push_str(&format!(
                    "<td data-y=\"{:.3}\">{}</td>",
                    chart.y.position(*value),
                    escape_markup(text)
                )),
                None => out.push_str("<td>-</td>"),
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></details>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_break_at_dots_and_underscores() {
        let rows = vec![
            vec![
                "sysctls.net.core.busy_poll <x>".to_owned(),
                "1.5".to_owned(),
                "53.5 us (53.4 us to 53.6 us)".to_owned(),
            ],
            vec!["mtu".to_owned(), "on".to_owned(), "12 (star)".to_owned()],
        ];
        let page = render_grid(&Grid::new(&["what", "value", "figure"], rows, 2).unwrap());
        for cell in [
            "<td class=\"text\">sysctls.<wbr>net.<wbr>core.<wbr>busy_<wbr>poll &lt;x&gt;</td>",
            "<td class=\"text\">mtu</td>",
            "<th scope=\"col\" class=\"text short\">value</th>",
            "<td class=\"text short\">1.5</td>",
            "<td>53.5 µs<span class=\"interval\">53.4\u{a0}µs to\u{a0}53.6\u{a0}µs</span></td>",
            "<td>12 (star)</td>",
        ] {
            assert!(page.contains(cell), "no {cell} in {page}");
        }
    }

    #[test]
    fn commands_are_not_changed() {
        let text = "[tuned]\nmtu = 9000 # 5 us & more\n";
        let page = render_commands(text);
        assert!(
            page.contains(">[tuned]\nmtu = 9000 # 5 us &amp; more</pre>"),
            "{page}"
        );
    }
}
