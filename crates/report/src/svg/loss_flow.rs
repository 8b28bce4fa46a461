//! Flow diagram of losses: a band that gets thinner at each place of loss.

use std::fmt::Write;

use super::path_diagram::cut;
use super::{CHARACTER, COLORS, Size, escape, number, open};

/// Amount sent, and the losses by place.
pub(crate) struct Flow {
    /// Title and accessible name.
    pub(crate) title: String,
    /// Amount sent: text and number of packets.
    pub(crate) sent: (String, u64),
    /// Places of loss in path order: name, number of packets, text.
    pub(crate) lost: Vec<(String, u64, String)>,
    /// Amount received: number and noun as text.
    pub(crate) arrived: (String, String),
}

/// Height of the band before any loss.
const BAND: f64 = 64.0;
const TOP: f64 = 24.0;
/// Smallest height that is drawn: a single lost packet must be visible.
const LEAST: f64 = 1.5;
/// Height of the text below the curves.
const TEXT: f64 = 40.0;
/// Line height of the list of places.
const LINE: f64 = 18.0;

impl Flow {
    /// Renders the diagram as SVG.
    pub(crate) fn draw(&self, size: Size) -> String {
        let all = self.sent.1.max(1) as f64;
        let mut out = String::new();
        let step = size.width / (self.lost.len() as f64 + 1.4);
        let room = step * 1.1;
        let fits = |text: &str| text.chars().count() as f64 * CHARACTER <= room;
        // Names and numbers that do not fit below their places go to a list.
        let listed = !(self.lost.iter()).all(|(name, _, words)| fits(name) && fits(words));
        let list = if listed {
            LINE * self.lost.len() as f64
        } else {
            0.0
        };
        let height = TOP + BAND + 44.0 + TEXT + list;
        open(&mut out, size, height, &self.title, None);
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
            // The band up to the place of loss; the lost part bends down there.
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
            let mark = (position + 1).to_string();
            let below = match listed {
                true => vec![(14.0, "value", &mark)],
                false => vec![(14.0, "value", words), (29.0, "about", name)],
            };
            for (line, class, text) in below {
                let _ = write!(
                    out,
                    "<text class=\"{class} mid\" x=\"{}\" y=\"{}\">{}</text>",
                    number(end + reach - thin / 2.0),
                    number(low + line),
                    escape(text)
                );
            }
            if listed {
                let y = number(low + 20.0 + LINE * (position as f64 + 1.0));
                let _ = write!(
                    out,
                    "<text class=\"value\" x=\"0\" y=\"{y}\">{mark}</text><text class=\"about\" x=\"18\" y=\"{y}\">{}</text><text class=\"value end\" x=\"{}\" y=\"{y}\">{}</text>",
                    escape(name),
                    number(size.width),
                    escape(words)
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
            // Half is lost, and a single packet stays visible.
            assert!(drawn.contains("height=\"30.5\"/></svg>"), "{drawn}");
        }
    }

    #[test]
    fn names_and_numbers_are_never_cut() {
        let place = |name: &str, count: u64| (name.to_owned(), count, format!("{count} (12.5 %)"));
        let flow = |count: usize| Flow {
            title: "flow".to_owned(),
            sent: ("9,000,000 sent".to_owned(), 9_000_000),
            lost: [
                place("udp-receive-queue", 1_234_567),
                place("softnet-backlog", 1_234_568),
                place("interface-rx", 1_234_569),
                place("path", 1_234_570),
            ][..count]
                .to_vec(),
            arrived: ("4,061,726".to_owned(), "arrived".to_owned()),
        };
        for (size, count) in [(WIDE, 4), (WIDE, 1), (NARROW, 1), (NARROW, 3), (NARROW, 4)] {
            let flow = flow(count);
            let drawn = flow.draw(size);
            assert!(!drawn.contains('…'), "{count}: {drawn}");
            for (name, _, words) in &flow.lost {
                assert_eq!(drawn.matches(&format!(">{name}<")).count(), 1, "{drawn}");
                assert_eq!(drawn.matches(&format!(">{words}<")).count(), 1, "{drawn}");
            }
        }
    }
}
