//! Flow diagram of losses: a band that gets thinner at each place of loss.

use std::fmt::Write;

use super::path_diagram::shorten;
use super::{
    CHARACTER_WIDTH, DrawingSize, SERIES_COLORS, escape_markup, format_coordinate, open_svg,
};

/// Amount sent, and the losses by place.
pub(crate) struct LossFlow {
    /// Title and accessible name.
    pub(crate) title: String,
    /// Amount sent: text and number of packets.
    pub(crate) sent: (String, u64),
    /// Places of loss in path order: name, number of packets, text.
    pub(crate) losses: Vec<(String, u64, String)>,
    /// Amount received: number and noun as text.
    pub(crate) received: (String, String),
}

/// Height of the band before any loss.
const BAND_HEIGHT: f64 = 64.0;
const TOP_MARGIN: f64 = 24.0;
/// Smallest height that is drawn: a single lost packet must be visible.
const MIN_HEIGHT: f64 = 1.5;
/// Height of the text below the curves.
const TEXT_HEIGHT: f64 = 40.0;
/// Line height of the list of places.
const LINE_HEIGHT: f64 = 18.0;

impl LossFlow {
    /// Renders the diagram as SVG.
    pub(crate) fn draw(&self, size: DrawingSize) -> String {
        let total = self.sent.1.max(1) as f64;
        let mut out = String::new();
        let step = size.width / (self.losses.len() as f64 + 1.4);
        let label_width = step * 1.1;
        let fits = |text: &str| text.chars().count() as f64 * CHARACTER_WIDTH <= label_width;
        // Names and numbers that do not fit below their places go to a list.
        let is_list =
            !(self.losses.iter()).all(|(name, _, loss_text)| fits(name) && fits(loss_text));
        let list = if is_list {
            LINE_HEIGHT * self.losses.len() as f64
        } else {
            0.0
        };
        let height = TOP_MARGIN + BAND_HEIGHT + 44.0 + TEXT_HEIGHT + list;
        open_svg(&mut out, size, height, &self.title, None);
        let _ = write!(
            out,
            "<text class=\"name\" x=\"0\" y=\"14\">{}</text><text class=\"name end\" x=\"{}\" y=\"14\">{}</text>",
            escape_markup(&shorten(&self.sent.0, size.width * 0.48)),
            format_coordinate(size.width),
            escape_markup(&shorten(
                &format!("{} {}", self.received.0, self.received.1),
                size.width * 0.48
            ))
        );
        let mut band_height = BAND_HEIGHT;
        let mut x = 0.0;
        for (position, (name, count, loss_text)) in self.losses.iter().enumerate() {
            let lost_height = (*count as f64 / total * BAND_HEIGHT)
                .max(MIN_HEIGHT)
                .min(band_height);
            let end = step * (position as f64 + 0.7);
            let remaining = (band_height - lost_height).max(0.0);
            // The band up to the place of loss; the lost part bends down there.
            let _ = write!(
                out,
                "<rect class=\"kept\" x=\"{}\" y=\"{TOP_MARGIN}\" width=\"{}\" height=\"{}\"/>",
                format_coordinate(x),
                format_coordinate(end - x),
                format_coordinate(band_height)
            );
            let (y0, y1, low) = (
                TOP_MARGIN + remaining,
                TOP_MARGIN + band_height,
                TOP_MARGIN + BAND_HEIGHT + 34.0,
            );
            let bend = (step * 0.34).min(46.0);
            let _ = write!(
                out,
                "<g class=\"c{}\"><path class=\"gone\" d=\"M{e} {}C{m} {} {m} {} {m} {low}h{}C{} {} {} {} {e} {}Z\"/></g>",
                (position + 1) % SERIES_COLORS,
                format_coordinate(y0),
                format_coordinate(y0),
                format_coordinate(y1),
                format_coordinate(-lost_height),
                format_coordinate(end + bend - lost_height),
                format_coordinate(y1 + 4.0),
                format_coordinate(end + bend - lost_height),
                format_coordinate(y1),
                format_coordinate(y1),
                e = format_coordinate(end),
                m = format_coordinate(end + bend),
                low = format_coordinate(low),
            );
            let mark = (position + 1).to_string();
            let below = match is_list {
                true => vec![(14.0, "value", &mark)],
                false => vec![(14.0, "value", loss_text), (29.0, "about", name)],
            };
            for (line, class, text) in below {
                let _ = write!(
                    out,
                    "<text class=\"{class} mid\" x=\"{}\" y=\"{}\">{}</text>",
                    format_coordinate(end + bend - lost_height / 2.0),
                    format_coordinate(low + line),
                    escape_markup(text)
                );
            }
            if is_list {
                let y = format_coordinate(low + 20.0 + LINE_HEIGHT * (position as f64 + 1.0));
                let _ = write!(
                    out,
                    "<text class=\"value\" x=\"0\" y=\"{y}\">{mark}</text><text class=\"about\" x=\"18\" y=\"{y}\">{}</text><text class=\"value end\" x=\"{}\" y=\"{y}\">{}</text>",
                    escape_markup(name),
                    format_coordinate(size.width),
                    escape_markup(loss_text)
                );
            }
            band_height = remaining;
            x = end;
        }
        let _ = write!(
            out,
            "<rect class=\"kept\" x=\"{}\" y=\"{TOP_MARGIN}\" width=\"{}\" height=\"{}\"/></svg>",
            format_coordinate(x),
            format_coordinate(size.width - x),
            format_coordinate(band_height.max(MIN_HEIGHT))
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NARROW_SIZE, WIDE_SIZE};
    use super::*;

    #[test]
    fn every_loss_narrows_the_band() {
        let flow = LossFlow {
            title: "flow".to_owned(),
            sent: ("1,000 sent".to_owned(), 1000),
            losses: vec![
                ("qdisc".to_owned(), 1, "1".to_owned()),
                ("udp-receive-queue".to_owned(), 500, "500".to_owned()),
            ],
            received: ("arrived".to_owned(), "499".to_owned()),
        };
        for size in [WIDE_SIZE, NARROW_SIZE] {
            let drawn = flow.draw(size);
            assert_eq!(drawn.matches("class=\"kept\"").count(), 3);
            assert_eq!(drawn.matches("class=\"gone\"").count(), 2);
            // Half is lost, and a single packet stays visible.
            assert!(drawn.contains("height=\"30.5\"/></svg>"), "{drawn}");
        }
    }

    #[test]
    fn names_and_numbers_are_never_shortened() {
        let loss = |name: &str, count: u64| (name.to_owned(), count, format!("{count} (12.5 %)"));
        let flow = |count: usize| LossFlow {
            title: "flow".to_owned(),
            sent: ("9,000,000 sent".to_owned(), 9_000_000),
            losses: [
                loss("udp-receive-queue", 1_234_567),
                loss("softnet-backlog", 1_234_568),
                loss("interface-rx", 1_234_569),
                loss("path", 1_234_570),
            ][..count]
                .to_vec(),
            received: ("4,061,726".to_owned(), "arrived".to_owned()),
        };
        for (size, count) in [
            (WIDE_SIZE, 4),
            (WIDE_SIZE, 1),
            (NARROW_SIZE, 1),
            (NARROW_SIZE, 3),
            (NARROW_SIZE, 4),
        ] {
            let flow = flow(count);
            let drawn = flow.draw(size);
            assert!(!drawn.contains('…'), "{count}: {drawn}");
            for (name, _, text) in &flow.losses {
                assert_eq!(drawn.matches(&format!(">{name}<")).count(), 1, "{drawn}");
                assert_eq!(drawn.matches(&format!(">{text}<")).count(), 1, "{drawn}");
            }
        }
    }
}
