//! Diagram of the packet path: components of the client, devices in between, components of the
//! server.
//!
//! Each host is a column of boxes from the program down to the port. The path runs down one column,
//! across below both, and up the other.

use std::fmt::Write;

use super::{BOLD, CHARACTER, Size, escape, number, open};

/// Two hosts and the devices between them.
pub(crate) struct Way {
    /// Title and accessible name.
    pub(crate) title: String,
    /// Column of the client.
    pub(crate) near: Column,
    /// Column of the server.
    pub(crate) far: Column,
    /// Devices from port to port, in path order.
    pub(crate) between: Vec<String>,
    /// True if payload flows from client to server.
    pub(crate) there: bool,
    /// True if payload or responses flow from server to client.
    pub(crate) back: bool,
}

/// A host: its boxes from the program at the top to the port.
pub(crate) struct Column {
    pub(crate) title: String,
    /// Rows of boxes.
    pub(crate) rows: Vec<Vec<Place>>,
}

/// A box of the diagram.
#[derive(Clone, Default)]
pub(crate) struct Place {
    /// Name of the component.
    pub(crate) name: String,
    /// Details of the component.
    pub(crate) about: String,
}

impl Place {
    pub(crate) fn new(name: impl Into<String>, about: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            about: about.into(),
        }
    }
}

const TITLE: f64 = 22.0;
const LINE: f64 = 15.0;
const PADDING: f64 = 7.0;
/// Gap between two rows of boxes, for an arrow.
const GAP: f64 = 18.0;
/// Gap between boxes of one row.
const BESIDE: f64 = 6.0;
/// Height of the connection below the columns, with the names of devices.
const ACROSS: f64 = 64.0;
/// Relative character width of the details, which have a smaller font.
const ABOUT: f64 = 0.95;
/// Largest number of lines of details in a box.
const LINES: usize = 3;

impl Way {
    /// Renders the diagram as SVG.
    pub(crate) fn draw(&self, size: Size) -> String {
        let apart = size.width * if size.width > 500.0 { 0.16 } else { 0.06 };
        let width = (size.width - apart) / 2.0;
        let columns = [
            (&self.near, 0.0, self.there, self.back),
            (&self.far, width + apart, self.back, self.there),
        ];
        // Rows are aligned from below, so that the ports are opposite each other.
        let rows = self.near.rows.len().max(self.far.rows.len());
        let heights: Vec<f64> = (0..rows)
            .map(|from_below| {
                columns
                    .iter()
                    .filter_map(|(column, ..)| {
                        let row = column.rows.iter().rev().nth(from_below)?;
                        Some(height(row, width))
                    })
                    .fold(0.0, f64::max)
            })
            .collect();
        let below = TITLE + heights.iter().sum::<f64>() + GAP * rows.saturating_sub(1) as f64;
        let total = below + ACROSS;
        let mut out = String::new();
        open(&mut out, size, total, &self.title, None);
        for (column, left, down, up) in columns {
            text(&mut out, "name", left, 14.0, &column.title, width);
            let mut bottom = below;
            for (from_below, row) in column.rows.iter().rev().enumerate() {
                let top = bottom - heights[from_below];
                boxes(&mut out, row, left, top, width, heights[from_below]);
                if from_below + 1 < column.rows.len() {
                    arrow(&mut out, left + width / 2.0, top - GAP, top, down, up);
                }
                bottom = top - GAP;
            }
        }
        self.across(
            &mut out,
            below,
            (width / 2.0, size.width - width / 2.0),
            size,
        );
        out.push_str("</svg>");
        out
    }

    /// Draws the connection from port to port with the devices on it.
    fn across(&self, out: &mut String, top: f64, (from, to): (f64, f64), size: Size) {
        let y = top + 38.0;
        let head = |at: f64, towards: f64| {
            format!("M{} {}l{} -6v12Z", number(at), number(y), number(towards))
        };
        let up = |at: f64| format!("M{} {}l-5 8h10Z", number(at), number(top + 2.0));
        let _ = write!(
            out,
            "<path class=\"way\" d=\"M{} {}V{y}H{}V{}\"/>",
            number(from),
            number(top + 2.0),
            number(to),
            number(top + 2.0)
        );
        let mut heads = String::new();
        if self.there {
            heads.push_str(&up(to));
        }
        if self.back {
            heads.push_str(&up(from));
        }
        let count = self.between.len();
        if count == 0 {
            let middle = f64::midpoint(from, to);
            if self.there {
                heads.push_str(&head(middle + if self.back { 16.0 } else { 6.0 }, -10.0));
            }
            if self.back {
                heads.push_str(&head(middle - if self.there { 16.0 } else { 6.0 }, 10.0));
            }
        }
        let _ = write!(out, "<path class=\"head\" d=\"{heads}\"/>");
        // Devices that do not fit in one row are replaced by their number.
        let room = (to - from) / count.max(1) as f64;
        let fits = self.between.iter().all(|name| wide(name) + 24.0 <= room);
        let named: Vec<String> = match (fits, count) {
            (true, _) | (_, 0 | 1) => self.between.clone(),
            (false, n) => vec![format!("{n} switches")],
        };
        let room = (to - from) / named.len().max(1) as f64;
        for (position, name) in named.iter().enumerate() {
            let width = (wide(name) + 18.0).min(size.width * 0.6);
            let left = from + room * (position as f64 + 0.5) - width / 2.0;
            frame(out, left, y - 14.0, width, 28.0);
            let fitting = cut(name, width - 8.0);
            let _ = write!(
                out,
                "<text class=\"name mid\" x=\"{}\" y=\"{}\">{}</text>",
                number(left + width / 2.0),
                number(y + 4.5),
                escape(&fitting)
            );
        }
    }
}

fn wide(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER * 1.05
}

/// Returns the height of a row of boxes.
fn height(row: &[Place], width: f64) -> f64 {
    let each = (width - BESIDE * row.len().saturating_sub(1) as f64) / row.len().max(1) as f64;
    let lines = row.iter().map(|place| 1 + folded(&place.about, each).len());
    lines.max().unwrap_or(1) as f64 * LINE + 2.0 * PADDING
}

fn boxes(out: &mut String, row: &[Place], left: f64, top: f64, width: f64, height: f64) {
    let each = (width - BESIDE * row.len().saturating_sub(1) as f64) / row.len().max(1) as f64;
    for (position, place) in row.iter().enumerate() {
        let x = left + (each + BESIDE) * position as f64;
        frame(out, x, top, each, height);
        let mut y = top + PADDING + 11.0;
        text(out, "value", x + 8.0, y, &place.name, (each - 14.0) / BOLD);
        for line in folded(&place.about, each) {
            y += LINE;
            text(out, "about", x + 8.0, y, &line, (each - 12.0) / ABOUT);
        }
    }
}

fn frame(out: &mut String, x: f64, y: f64, width: f64, height: f64) {
    let _ = write!(
        out,
        "<rect class=\"box\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"5\"/>",
        number(x),
        number(y),
        number(width),
        number(height)
    );
}

/// Draws an arrow between two rows, in the directions of the payload.
fn arrow(out: &mut String, x: f64, from: f64, to: f64, down: bool, up: bool) {
    let _ = write!(
        out,
        "<path class=\"way\" d=\"M{} {}V{}\"/><path class=\"head\" d=\"{}{}\"/>",
        number(x),
        number(from + 1.0),
        number(to - 1.0),
        if down {
            format!("M{} {}l-5 -8h10Z", number(x), number(to - 1.0))
        } else {
            String::new()
        },
        if up {
            format!("M{} {}l-5 8h10Z", number(x), number(from + 1.0))
        } else {
            String::new()
        },
    );
}

fn text(out: &mut String, class: &str, x: f64, y: f64, text: &str, room: f64) {
    let _ = write!(
        out,
        "<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>",
        number(x),
        number(y),
        escape(&cut(text, room))
    );
}

/// Shortens a text to a width.
pub(super) fn cut(text: &str, room: f64) -> String {
    let most = (room / CHARACTER).max(1.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Wraps text to the lines of a box; the last line holds the rest and is shortened later.
fn folded(text: &str, width: f64) -> Vec<String> {
    let most = ((width - 12.0) / (CHARACTER * ABOUT)).max(4.0) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_last = lines.len() == LINES;
        match lines.last_mut() {
            Some(line) if is_last || line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Diagram of forwarding: receive queues, threads, transmit queues.
pub(crate) struct Crossing {
    /// Title and accessible name.
    pub(crate) title: String,
    /// Receive queues.
    pub(crate) from: Vec<Place>,
    /// Forwarding threads.
    pub(crate) threads: Vec<Place>,
    /// Transmit queues.
    pub(crate) to: Vec<Place>,
    /// Streams as indices of receive queue, thread and transmit queue.
    pub(crate) streams: Vec<(usize, usize, usize)>,
}

impl Crossing {
    /// Renders three columns of boxes with a line for each stream.
    pub(crate) fn draw(&self, size: Size) -> String {
        let apart = size.width * 0.09;
        let width = (size.width - 2.0 * apart) / 3.0;
        let columns = [&self.from, &self.threads, &self.to];
        let tall = columns
            .iter()
            .flat_map(|places| places.iter())
            .map(|place| height(std::slice::from_ref(place), width))
            .fold(0.0, f64::max);
        let most = columns.iter().map(|places| places.len()).max().unwrap_or(0);
        let whole = most as f64 * (tall + 10.0);
        let mut out = String::new();
        open(&mut out, size, TITLE + whole, &self.title, None);
        let left = |column: usize| (width + apart) * column as f64;
        let middle = |column: usize, place: usize| {
            let count = columns[column].len().max(1) as f64;
            TITLE + whole / count * (place as f64 + 0.5)
        };
        for (column, name) in ["received from", "forwarded by", "sent to"]
            .iter()
            .enumerate()
        {
            text(&mut out, "about", left(column), 13.0, name, width);
        }
        for &(from, thread, to) in &self.streams {
            for (column, one, other) in [(0, from, thread), (1, thread, to)] {
                let (x, end) = (left(column) + width, left(column + 1));
                let (y, end_y) = (middle(column, one), middle(column + 1, other));
                let half = f64::midpoint(x, end);
                let _ = write!(
                    out,
                    "<path class=\"way\" d=\"M{} {}C{h} {} {h} {} {} {}\"/><path class=\"head\" d=\"M{} {}l-8 -5v10Z\"/>",
                    number(x),
                    number(y),
                    number(y),
                    number(end_y),
                    number(end - 7.0),
                    number(end_y),
                    number(end - 1.0),
                    number(end_y),
                    h = number(half),
                );
            }
        }
        for (column, places) in columns.iter().enumerate() {
            for (position, place) in places.iter().enumerate() {
                let top = middle(column, position) - tall / 2.0;
                boxes(
                    &mut out,
                    std::slice::from_ref(place),
                    left(column),
                    top,
                    width,
                    tall,
                );
            }
        }
        out.push_str("</svg>");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NARROW, WIDE};
    use super::*;

    fn column(title: &str, rows: usize) -> Column {
        let row = |n| {
            vec![Place::new(
                format!("place {n}"),
                "what is known of it, in words",
            )]
        };
        Column {
            title: title.to_owned(),
            rows: (0..rows).map(row).collect(),
        }
    }

    #[test]
    fn all_places_are_drawn_and_switches_are_counted_where_they_do_not_fit() {
        let mut way = Way {
            title: "way".to_owned(),
            near: column("client", 4),
            far: column("server", 2),
            between: vec!["s1".to_owned(), "s2".to_owned()],
            there: true,
            back: false,
        };
        for size in [WIDE, NARROW] {
            let drawn = way.draw(size);
            assert_eq!(drawn.matches("class=\"box\"").count(), 8, "{drawn}");
            assert!(drawn.contains(">s1<") && drawn.contains(">s2<"));
        }
        way.between = (0..9).map(|n| format!("a-long-name-{n}")).collect();
        assert!(way.draw(NARROW).contains("9 switches"));
    }

    #[test]
    fn every_stream_of_a_crossing_has_its_lines() {
        let crossing = Crossing {
            title: "crossing".to_owned(),
            from: vec![Place::new("a", ""), Place::new("b", "")],
            threads: vec![Place::new("thread 0", "")],
            to: vec![Place::new("a", ""), Place::new("b", "")],
            streams: vec![(0, 0, 1), (1, 0, 0)],
        };
        assert_eq!(crossing.draw(WIDE).matches("class=\"way\"").count(), 4);
    }

    #[test]
    fn lines_that_were_folded_to_fit_are_not_cut() {
        let mut way = Way {
            title: "way".to_owned(),
            near: column("sent", 0),
            far: column("received", 1),
            between: Vec::new(),
            there: true,
            back: false,
        };
        for about in [
            "send queue, bursts of 32",
            "1 send, 1 receive, noqueue",
            "blocking, any core (seen on cores 0-1)",
        ] {
            way.near.rows = vec![vec![Place::new("ring:0", about)]];
            assert!(!way.draw(NARROW).contains('…'), "{about}");
        }
    }

    #[test]
    fn the_bold_name_of_a_box_stays_in_it() {
        let mut out = String::new();
        let place = Place::new("0 shm:x23421-17", "queue 0");
        boxes(&mut out, &[place], 0.0, 0.0, 100.0, 60.0);
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
        assert_eq!(cut("abcdefgh", CHARACTER * 4.0), "abc…");
        let lines = folded("one two three four five six seven eight nine", 60.0);
        assert_eq!(lines.len(), LINES);
    }
}
