//! A chart with its legend and its data as a table; the table is also the data of the crosshair.

use std::fmt::Write;

use super::pretty;
use crate::svg::{BarChart, COLORS, Chart, Heat, NARROW, WIDE, escape};
use crate::text::Grid;

/// Largest number of rows in a data table; of more rows, every n-th is shown.
const ROWS: usize = 240;

/// Data of a chart.
pub(super) struct Data {
    /// Headings of the x column and of each series.
    pub(super) headings: Vec<String>,
    pub(super) rows: Vec<Row>,
}

/// Row of the data table: an x with the value of each series.
pub(super) struct Row {
    pub(super) x: f64,
    pub(super) text: String,
    /// Value for the drawing and as text; `None` if unknown.
    pub(super) cells: Vec<Option<(f64, String)>>,
}

/// Length of a text that is kept on one line.
const SHORT: usize = 16;

/// Renders a text table as HTML.
pub(super) fn grid(grid: &Grid) -> String {
    let longest = |column: usize| {
        let cells = grid.rows.iter().filter_map(|row| row.get(column));
        let lengths = cells.map(|cell| cell.chars().count());
        lengths.max().unwrap_or(0)
    };
    let class = |column: usize| match column < grid.left {
        true if longest(column) <= SHORT => " class=\"text short\"",
        true => " class=\"text\"",
        false => "",
    };
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr>");
    for (column, heading) in grid.headings.iter().enumerate() {
        out.push_str(&format!(
            "<th scope=\"col\"{}>{}</th>",
            class(column),
            escape(heading)
        ));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &grid.rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            out.push_str(&format!(
                "<td{}>{}</td>",
                class(column),
                match column < grid.left {
                    true => breakable(&pretty(cell)),
                    false => above_interval(&pretty(cell)),
                }
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Escapes a text and allows line breaks after dots and underscores of long names.
fn breakable(text: &str) -> String {
    let word = |word: &str| match word.chars().count() > SHORT {
        true => escape(word).replace('.', ".<wbr>").replace('_', "_<wbr>"),
        false => escape(word),
    };
    let words: Vec<String> = text.split(' ').map(word).collect();
    words.join(" ")
}

/// Escapes a figure and puts its interval on a line below, which halves the width of the table.
fn above_interval(text: &str) -> String {
    let parts = text.split_once(" (").and_then(|(value, rest)| {
        let interval = rest.strip_suffix(')')?;
        interval.contains(" to ").then_some((value, interval))
    });
    match parts {
        Some((value, interval)) => format!(
            "{}<span class=\"interval\">{}</span>",
            escape(value),
            below(interval)
        ),
        None => escape(text),
    }
}

/// Escapes the line below a figure. It may break between the bounds of an interval, but not between
/// a number and its unit.
pub(super) fn below(text: &str) -> String {
    const KEPT: &str = "\u{a0}";
    let ends: Vec<String> = (text.split(" to "))
        .map(|end| escape(end).replace(' ', KEPT))
        .collect();
    match ends.len() {
        1 => escape(text),
        _ => ends.join(&format!(" to{KEPT}")),
    }
}

/// Renders commands or a settings file for copying; they are not wrapped.
pub(super) fn commands(text: &str) -> String {
    // Lines are escaped one by one, because escaping removes line ends.
    let lines: Vec<String> = text.lines().map(escape).collect();
    format!("<pre class=\"command\">{}</pre>\n", lines.join("\n"))
}

/// Renders preformatted text; control characters are removed.
pub(super) fn lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| escape(&pretty(line))).collect();
    format!(
        "<div class=\"scroll\"><pre>{}</pre></div>\n",
        lines.join("\n")
    )
}

/// Renders a chart with axes.
pub(super) fn chart(chart: &Chart, data: &Data) -> String {
    let legend = if chart.series.len() > 1 {
        let items: String = chart
            .series
            .iter()
            .enumerate()
            .map(|(position, series)| {
                format!(
                    "<label class=\"k{position} c{}\"><input type=\"checkbox\" checked><i></i>{}</label>",
                    position % COLORS,
                    escape(&series.name)
                )
            })
            .collect();
        format!("<div class=\"legend\">{items}</div>")
    } else {
        String::new()
    };
    framed(
        &chart.title,
        &legend,
        &(chart.draw(WIDE) + &chart.draw(NARROW)),
        &table(chart, data),
    )
}

/// Renders horizontal bars.
pub(super) fn bars(bars: &BarChart) -> String {
    let mut rows = String::new();
    for bar in &bars.bars {
        write!(
            rows,
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            escape(&bar.name),
            escape(&bar.text)
        )
        .expect("a string takes all that is written");
    }
    let table = format!(
        "<details><summary>Data</summary><div class=\"scroll\"><table><thead><tr><th>measurement</th><th>{}</th></tr></thead><tbody>{rows}</tbody></table></div></details>",
        escape(&bars.axis.label)
    );
    framed(
        &bars.title,
        "",
        &(bars.draw(WIDE) + &bars.draw(NARROW)),
        &table,
    )
}

/// Renders a heat map, whose cells show its data.
pub(super) fn heat(heat: &Heat) -> String {
    framed(&heat.title, "", &(heat.draw(WIDE) + &heat.draw(NARROW)), "")
}

fn framed(title: &str, legend: &str, drawing: &str, table: &str) -> String {
    format!(
        "<figure class=\"chart\">\n<figcaption><h4>{}</h4>{legend}</figcaption>\n<div class=\"canvas\">{drawing}<div class=\"tip\" hidden></div></div>\n{table}\n</figure>\n",
        escape(title)
    )
}

fn table(chart: &Chart, data: &Data) -> String {
    let mut out = String::from("<details><summary>Data</summary>");
    let every = data.rows.len().div_ceil(ROWS).max(1);
    if every > 1 {
        write!(
            out,
            "<p class=\"muted\">Every {every}th of {} rows; the record has all rows.</p>",
            data.rows.len()
        )
        .expect("a string takes all that is written");
    }
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    for heading in &data.headings {
        out.push_str(&format!("<th scope=\"col\">{}</th>", escape(heading)));
    }
    out.push_str("</tr></thead><tbody>");
    for row in data.rows.iter().step_by(every) {
        // Positions are shares of the plot, valid for both drawings.
        out.push_str(&format!(
            "<tr data-x=\"{:.4}\"><th scope=\"row\">{}</th>",
            chart.x.position(row.x),
            escape(&row.text)
        ));
        for cell in &row.cells {
            match cell {
                Some((value, text)) => out.push_str(&format!(
                    "<td data-y=\"{:.3}\">{}</td>",
                    chart.y.position(*value),
                    escape(text)
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
    fn cells_break_where_people_would_break_them() {
        let rows = vec![
            vec![
                "sysctls.net.core.busy_poll <x>".to_owned(),
                "1.5".to_owned(),
                "53.5 us (53.4 us to 53.6 us)".to_owned(),
            ],
            vec!["mtu".to_owned(), "on".to_owned(), "12 (star)".to_owned()],
        ];
        let page = grid(&Grid::new(&["what", "value", "figure"], rows, 2).unwrap());
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
    fn commands_are_copied_as_they_are() {
        let text = "[tuned]\nmtu = 9000 # 5 us & more\n";
        let page = commands(text);
        assert!(
            page.contains(">[tuned]\nmtu = 9000 # 5 us &amp; more</pre>"),
            "{page}"
        );
    }
}
