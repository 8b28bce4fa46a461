//! Diagram of the packet path: components of the client, devices in between, components of the
//! server.
//!
//! Each host is a column of boxes from the program down to the port. The path runs down one column,
//! across below both, and up the other.

use std::fmt::Write;

use super::{
    BOLD_FACTOR, CHARACTER_WIDTH, DrawingSize, escape_markup, format_coordinate, open_svg,
};

/// Two hosts and the devices between them.
pub(crate) struct PathDiagram {
    /// Title and accessible name.
    pub(crate) title: String,
    /// Column of the client.
    pub(crate) client: HostColumn,
    /// Column of the server.
    pub(crate) server: HostColumn,
    /// Devices from port to port, in path order.
    pub(crate) between: Vec<String>,
    /// True if payload flows from client to server.
    pub(crate) to_server: bool,
    /// True if payload or responses flow from server to client.
    pub(crate) to_client: bool,
}

/// A host: its boxes from the program at the top to the port.
pub(crate) struct HostColumn {
    pub(crate) title: String,
    /// Rows of boxes.
    pub(crate) rows: Vec<Vec<PathBox>>,
}

/// A box of the diagram.
#[derive(Clone, Default)]
pub(crate) struct PathBox {
    /// Name of the component.
    pub(crate) name: String,
    /// Details of the component.
    pub(crate) details: String,
}

impl PathBox {
    pub(crate) fn new(name: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            details: details.into(),
        }
    }
}

const TITLE_HEIGHT: f64 = 22.0;
const LINE_HEIGHT: f64 = 15.0;
const PADDING: f64 = 7.0;
/// Gap between two rows of boxes, for an arrow.
const ROW_GAP: f64 = 18.0;
/// Gap between boxes of one row.
const BOX_GAP: f64 = 6.0;
/// Height of the connection below the columns, with the names of devices.
const CONNECTION_HEIGHT: f64 = 64.0;
/// Relative character width of the details, which have a smaller font.
const DETAILS_FACTOR: f64 = 0.95;
/// Largest number of lines of details in a box.
const MAX_LINES: usize = 5;

impl PathDiagram {
    /// Renders the diagram as SVG.
    pub(crate) fn draw(&self, size: DrawingSize) -> String {
        let column_gap = size.width * if size.width > 500.0 { 0.16 } else { 0.06 };
        let width = (size.width - column_gap) / 2.0;
        let columns = [
            (&self.client, 0.0, self.to_server, self.to_client),
            (
                &self.server,
                width + column_gap,
                self.to_client,
                self.to_server,
            ),
        ];
        // Rows are aligned from below, so that the ports are opposite each other.
        let rows = self.client.rows.len().max(self.server.rows.len());
        let heights: Vec<f64> = (0..rows)
            .map(|from_below| {
                columns
                    .iter()
                    .filter_map(|(column, ..)| {
                        let row = column.rows.iter().rev().nth(from_below)?;
                        Some(row_height(row, width))
                    })
                    .fold(0.0, f64::max)
            })
            .collect();
        let columns_height =
            TITLE_HEIGHT + heights.iter().sum::<f64>() + ROW_GAP * rows.saturating_sub(1) as f64;
        let total = columns_height + CONNECTION_HEIGHT;
        let mut out = String::new();
        open_svg(&mut out, size, total, &self.title, None);
        for (column, column_x, down, up) in columns {
            draw_text(&mut out, "name", column_x, 14.0, &column.title, width);
            let mut bottom = columns_height;
            for (from_below, row) in column.rows.iter().rev().enumerate() {
                let top = bottom - heights[from_below];
                draw_boxes(&mut out, row, column_x, top, width, heights[from_below]);
                if from_below + 1 < column.rows.len() {
                    draw_arrow(
                        &mut out,
                        column_x + width / 2.0,
                        top - ROW_GAP,
                        top,
                        down,
                        up,
                    );
                }
                bottom = top - ROW_GAP;
            }
        }
        self.draw_connection(
            &mut out,
            columns_height,
            (width / 2.0, size.width - width / 2.0),
            size,
        );
        out.push_str("</svg>");
        out
    }

    /// Draws the connection from port to port with the devices on it.
    fn draw_connection(
        &self,
        out: &mut String,
        top: f64,
        (from, to): (f64, f64),
        size: DrawingSize,
    ) {
        let y = top + 38.0;
        let arrow_head = |at: f64, towards: f64| {
            format!(
                "M{} {}l{} -6v12Z",
                format_coordinate(at),
                format_coordinate(y),
                format_coordinate(towards)
            )
        };
        let up = |at: f64| {
            format!(
                "M{} {}l-5 8h10Z",
                format_coordinate(at),
                format_coordinate(top + 2.0)
            )
        };
        let _ = write!(
            out,
            "<path class=\"way\" d=\"M{} {}V{y}H{}V{}\"/>",
            format_coordinate(from),
            format_coordinate(top + 2.0),
            format_coordinate(to),
            format_coordinate(top + 2.0)
        );
        let mut heads = String::new();
        if self.to_server {
            heads.push_str(&up(to));
        }
        if self.to_client {
            heads.push_str(&up(from));
        }
        let count = self.between.len();
        if count == 0 {
            let middle = f64::midpoint(from, to);
            if self.to_server {
                heads.push_str(&arrow_head(
                    middle + if self.to_client { 16.0 } else { 6.0 },
                    -10.0,
                ));
            }
            if self.to_client {
                heads.push_str(&arrow_head(
                    middle - if self.to_server { 16.0 } else { 6.0 },
                    10.0,
                ));
            }
        }
        let _ = write!(out, "<path class=\"head\" d=\"{heads}\"/>");
        // Devices that do not fit in one row are replaced by their number.
        let label_space = (to - from) / count.max(1) as f64;
        let fits = self
            .between
            .iter()
            .all(|name| text_width(name) + 24.0 <= label_space);
        let labels: Vec<String> = match (fits, count) {
            (true, _) | (_, 0 | 1) => self.between.clone(),
            (false, n) => vec![format!("{n} switches")],
        };
        let label_space = (to - from) / labels.len().max(1) as f64;
        for (position, name) in labels.iter().enumerate() {
            let width = (text_width(name) + 18.0).min(size.width * 0.6);
            let box_x = from + label_space * (position as f64 + 0.5) - width / 2.0;
            draw_frame(out, box_x, y - 14.0, width, 28.0);
            let shortened = shorten(name, width - 8.0);
            let _ = write!(
                out,
                "<text class=\"name mid\" x=\"{}\" y=\"{}\">{}</text>",
                format_coordinate(box_x + width / 2.0),
                format_coordinate(y + 4.5),
                escape_markup(&shortened)
            );
        }
    }
}

fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER_WIDTH * 1.05
}

/// Returns the height of a row of boxes.
fn row_height(row: &[PathBox], width: f64) -> f64 {
    let box_width =
        (width - BOX_GAP * row.len().saturating_sub(1) as f64) / row.len().max(1) as f64;
    let lines = row
        .iter()
        .map(|part| 1 + fold_lines(&part.details, box_width).len());
    lines.max().unwrap_or(1) as f64 * LINE_HEIGHT + 2.0 * PADDING
}

fn draw_boxes(out: &mut String, row: &[PathBox], left: f64, top: f64, width: f64, height: f64) {
    let box_width =
        (width - BOX_GAP * row.len().saturating_sub(1) as f64) / row.len().max(1) as f64;
    for (position, part) in row.iter().enumerate() {
        let x = left + (box_width + BOX_GAP) * position as f64;
        draw_frame(out, x, top, box_width, height);
        let mut y = top + PADDING + 11.0;
        draw_text(
            out,
            "value",
            x + 8.0,
            y,
            &part.name,
            (box_width - 14.0) / BOLD_FACTOR,
        );
        for line in fold_lines(&part.details, box_width) {
            y += LINE_HEIGHT;
            draw_text(
                out,
                "about",
                x + 8.0,
                y,
                &line,
                (box_width - 12.0) / DETAILS_FACTOR,
            );
        }
    }
}

fn draw_frame(out: &mut String, x: f64, y: f64, width: f64, height: f64) {
    let _ = write!(
        out,
        "<rect class=\"box\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"5\"/>",
        format_coordinate(x),
        format_coordinate(y),
        format_coordinate(width),
        format_coordinate(height)
    );
}

/// Draws an arrow between two rows, in the directions of the payload.
fn draw_arrow(out: &mut String, x: f64, from: f64, to: f64, down: bool, up: bool) {
    let _ = write!(
        out,
        "<path class=\"way\" d=\"M{} {}V{}\"/><path class=\"head\" d=\"{}{}\"/>",
        format_coordinate(x),
        format_coordinate(from + 1.0),
        format_coordinate(to - 1.0),
        if down {
            format!(
                "M{} {}l-5 -8h10Z",
                format_coordinate(x),
                format_coordinate(to - 1.0)
            )
        } else {
            String::new()
        },
        if up {
            format!(
                "M{} {}l-5 8h10Z",
                format_coordinate(x),
                format_coordinate(from + 1.0)
            )
        } else {
            String::new()
        },
    );
}

fn draw_text(out: &mut String, class: &str, x: f64, y: f64, text: &str, max_width: f64) {
    let _ = write!(
        out,
        "<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>",
        format_coordinate(x),
        format_coordinate(y),
        escape_markup(&shorten(text, max_width))
    );
}

/// Shortens a text to a width.
pub(super) fn shorten(text: &str, max_width: f64) -> String {
    let max_chars = (max_width / CHARACTER_WIDTH).max(1.0) as usize;
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Wraps text to the lines of a box; the last line holds the rest and is shortened later.
fn fold_lines(text: &str, width: f64) -> Vec<String> {
    let max_chars = ((width - 12.0) / (CHARACTER_WIDTH * DETAILS_FACTOR)).max(4.0) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_last = lines.len() == MAX_LINES;
        match lines.last_mut() {
            Some(line)
                if is_last || line.chars().count() + 1 + word.chars().count() <= max_chars =>
            {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Diagram of forwarding: receive queues, threads, transmit queues.
pub(crate) struct ForwardDiagram {
    /// Title and accessible name.
    pub(crate) title: String,
    /// Receive queues.
    pub(crate) receive_queues: Vec<PathBox>,
    /// Forwarding threads.
    pub(crate) threads: Vec<PathBox>,
    /// Transmit queues.
    pub(crate) transmit_queues: Vec<PathBox>,
    /// Streams as indices of receive queue, thread and transmit queue.
    pub(crate) streams: Vec<(usize, usize, usize)>,
}

impl ForwardDiagram {
    /// Renders three columns of boxes with a line for each stream.
    pub(crate) fn draw(&self, size: DrawingSize) -> String {
        let column_gap = size.width * 0.09;
        let width = (size.width - 2.0 * column_gap) / 3.0;
        let columns = [&self.receive_queues, &self.threads, &self.transmit_queues];
        let box_height = columns
            .iter()
            .flat_map(|places| places.iter())
            .map(|part| row_height(std::slice::from_ref(part), width))
            .fold(0.0, f64::max);
        let max_boxes = columns.iter().map(|places| places.len()).max().unwrap_or(0);
        let total_height = max_boxes as f64 * (box_height + 10.0);
        let mut out = String::new();
        open_svg(
            &mut out,
            size,
            TITLE_HEIGHT + total_height,
            &self.title,
            None,
        );
        let column_x = |column: usize| (width + column_gap) * column as f64;
        let center_y = |column: usize, part: usize| {
            let count = columns[column].len().max(1) as f64;
            TITLE_HEIGHT + total_height / count * (part as f64 + 0.5)
        };
        for (column, name) in ["received from", "forwarded by", "sent to"]
            .iter()
            .enumerate()
        {
            draw_text(&mut out, "about", column_x(column), 13.0, name, width);
        }
        for &(from, thread, to) in &self.streams {
            for (column, left_index, right_index) in [(0, from, thread), (1, thread, to)] {
                let (x, end) = (column_x(column) + width, column_x(column + 1));
                let (y, end_y) = (
                    center_y(column, left_index),
                    center_y(column + 1, right_index),
                );
                let middle_x = f64::midpoint(x, end);
                let _ = write!(
                    out,
                    "<path class=\"way\" d=\"M{} {}C{h} {} {h} {} {} {}\"/><path class=\"head\" d=\"M{} {}l-8 -5v10Z\"/>",
                    format_coordinate(x),
                    format_coordinate(y),
                    format_coordinate(y),
                    format_coordinate(end_y),
                    format_coordinate(end - 7.0),
                    format_coordinate(end_y),
                    format_coordinate(end - 1.0),
                    format_coordinate(end_y),
                    h = format_coordinate(middle_x),
                );
            }
        }
        for (column, places) in columns.iter().enumerate() {
            for (position, part) in places.iter().enumerate() {
                let top = center_y(column, position) - box_height / 2.0;
                draw_boxes(
                    &mut out,
                    std::slice::from_ref(part),
                    column_x(column),
                    top,
                    width,
                    box_height,
                );
            }
        }
        out.push_str("</svg>");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NARROW_SIZE, WIDE_SIZE};
    use super::*;

    fn column(title: &str, rows: usize) -> HostColumn {
        let row = |n| {
            vec![PathBox::new(
                format!("place {n}"),
                "what is known of it, in words",
            )]
        };
        HostColumn {
            title: title.to_owned(),
            rows: (0..rows).map(row).collect(),
        }
    }

    #[test]
    fn all_places_are_drawn_and_switches_are_counted_where_they_do_not_fit() {
        let mut diagram = PathDiagram {
            title: "way".to_owned(),
            client: column("client", 4),
            server: column("server", 2),
            between: vec!["s1".to_owned(), "s2".to_owned()],
            to_server: true,
            to_client: false,
        };
        for size in [WIDE_SIZE, NARROW_SIZE] {
            let drawn = diagram.draw(size);
            assert_eq!(drawn.matches("class=\"box\"").count(), 8, "{drawn}");
            assert!(drawn.contains(">s1<") && drawn.contains(">s2<"));
        }
        diagram.between = (0..9).map(|n| format!("a-long-name-{n}")).collect();
        assert!(diagram.draw(NARROW_SIZE).contains("9 switches"));
    }

    #[test]
    fn every_stream_of_a_crossing_has_its_lines() {
        let crossing = ForwardDiagram {
            title: "crossing".to_owned(),
            receive_queues: vec![PathBox::new("a", ""), PathBox::new("b", "")],
            threads: vec![PathBox::new("thread 0", "")],
            transmit_queues: vec![PathBox::new("a", ""), PathBox::new("b", "")],
            streams: vec![(0, 0, 1), (1, 0, 0)],
        };
        assert_eq!(crossing.draw(WIDE_SIZE).matches("class=\"way\"").count(), 4);
    }

    #[test]
    fn lines_that_were_folded_to_fit_are_not_cut() {
        let mut diagram = PathDiagram {
            title: "way".to_owned(),
            client: column("sent", 0),
            server: column("received", 1),
            between: Vec::new(),
            to_server: true,
            to_client: false,
        };
        for details in [
            "send queue, bursts of 32",
            "1 send, 1 receive, noqueue",
            "blocking, any CPU (seen on CPUs 0-1)",
        ] {
            diagram.client.rows = vec![vec![PathBox::new("ring:0", details)]];
            assert!(!diagram.draw(NARROW_SIZE).contains('…'), "{details}");
        }
    }

    #[test]
    fn the_bold_name_of_a_box_stays_in_it() {
        let mut out = String::new();
        let part = PathBox::new("0 shm:x23421-17", "queue 0");
        draw_boxes(&mut out, &[part], 0.0, 0.0, 100.0, 60.0);
        let (_, rest) = out.split_once("<text class=\"value\"").unwrap();
        let (name, _) = rest.split_once('>').unwrap().1.split_once('<').unwrap();
        // A character of DejaVu Sans Bold at 13 px is 8.2 px wide.
        assert!(
            name.ends_with('…') && name.chars().count() as f64 * 8.2 < 92.0,
            "{name}"
        );
    }

    #[test]
    fn texts_that_are_too_long_are_cut() {
        assert_eq!(shorten("abcdefgh", CHARACTER_WIDTH * 4.0), "abc…");
        let lines = fold_lines("one two three four five six seven eight nine", 60.0);
        assert_eq!(lines.len(), MAX_LINES);
    }
}
