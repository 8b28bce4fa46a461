//! A flow that gets thinner: what is lost at each place leaves it there.

use std::fmt::Write;

use super::path::cut;
use super::{COLORS, Size, escape, number, open};

/// What was sent, and where some of it was lost.
pub(crate) struct Flow {
    /// What it shows.
    pub(crate) title: String,
    /// What came in: its name and how many.
    pub(crate) sent: (String, u64),
    /// Places in the order in which they are passed: their name, how many were lost, and that in words.
    pub(crate) lost: Vec<(String, u64, String)>,
    /// What came out, in words.
    pub(crate) arrived: (String, String),
}

/// The band where nothing is lost yet.
const BAND: f64 = 64.0;
const TOP: f64 = 24.0;
/// Least height of what is drawn at all: a single packet is a loss.
const LEAST: f64 = 1.5;
/// Between the lowest line of text and the end of what leaves.
const TEXT: f64 = 40.0;

impl Flow {
    /// Draws it.
    pub(crate) fn draw(&self, size: Size) -> String {
        let all = self.sent.1.max(1) as f64;
        let mut out = String::new();
        let height = TOP + BAND + 44.0 + TEXT;
        open(&mut out, size, height, &self.title, None);
        let step = size.width / (self.lost.len() as f64 + 1.4);
        let _ = write!(
            out,
            "<text class=\"name\" x=\"0\" y=\"14\">{}</text><text class=\"name end\" x=\"{}\" y=\"14\">{}</text>",
            escape(&cut(&self.sent.0, size.width * 0.48)),
            number(size.width),
            escape(&cut(
                &format!("{} {}", self.arrived.0, self.arrived.1),
                size.width * 0.48
            ))
        );
        let mut left = BAND;
        let mut x = 0.0;
        for (position, (name, count, words)) in self.lost.iter().enumerate() {
            let thin = (*count as f64 / all * BAND).max(LEAST).min(left);
            let end = step * (position as f64 + 0.7);
            let keep = (left - thin).max(0.0);
            // The band up to the place, then what leaves it bends down.
            let _ = write!(
                out,
                "<rect class=\"kept\" x=\"{}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/>",
                number(x),
                number(end - x),
                number(left)
            );
            let (y0, y1, low) = (TOP + keep, TOP + left, TOP + BAND + 34.0);
            let reach = (step * 0.34).min(46.0);
            let _ = write!(
                out,
                "<g class=\"c{}\"><path class=\"gone\" d=\"M{e} {}C{m} {} {m} {} {m} {low}h{}C{} {} {} {} {e} {}Z\"/></g>",
                (position + 1) % COLORS,
                number(y0),
                number(y0),
                number(y1),
                number(-thin),
                number(end + reach - thin),
                number(y1 + 4.0),
                number(end + reach - thin),
                number(y1),
                number(y1),
                e = number(end),
                m = number(end + reach),
                low = number(low),
            );
            for (line, class, text) in [(14.0, "value", words), (29.0, "about", name)] {
                let _ = write!(
                    out,
                    "<text class=\"{class} mid\" x=\"{}\" y=\"{}\">{}</text>",
                    number(end + reach - thin / 2.0),
                    number(low + line),
                    escape(&cut(text, step * 1.1))
                );
            }
            left = keep;
            x = end;
        }
        let _ = write!(
            out,
            "<rect class=\"kept\" x=\"{}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/></svg>",
            number(x),
            number(size.width - x),
            number(left.max(LEAST))
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NARROW, WIDE};
    use super::*;

    #[test]
    fn every_place_takes_its_part_off_the_band() {
        let flow = Flow {
            title: "flow".to_owned(),
            sent: ("1,000 sent".to_owned(), 1000),
            lost: vec![
                ("qdisc".to_owned(), 1, "1".to_owned()),
                ("udp-receive-queue".to_owned(), 500, "500".to_owned()),
            ],
            arrived: ("arrived".to_owned(), "499".to_owned()),
        };
        for size in [WIDE, NARROW] {
            let drawn = flow.draw(size);
            assert_eq!(drawn.matches("class=\"kept\"").count(), 3);
            assert_eq!(drawn.matches("class=\"gone\"").count(), 2);
            // Half of it is gone, and the one packet can be seen.
            assert!(drawn.contains("height=\"30.5\"/></svg>"), "{drawn}");
        }
    }
}
