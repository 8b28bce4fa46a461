//! Chart with two axes.

use std::fmt::Write;

use super::axis::Axis;
use super::{CHARACTER, COLORS, Plot, Size, downsample, escape, number, open};

/// Chart with two axes.
pub(crate) struct Chart {
    /// Title and accessible name.
    pub(crate) title: String,
    /// True for a secondary chart, which is drawn with less height.
    pub(crate) low: bool,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// Highlighted ranges of x.
    pub(crate) shades: Vec<Shade>,
    /// Horizontal reference lines.
    pub(crate) references: Vec<Reference>,
}

/// Marks of one colour with one name.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) mark: Mark,
}

/// Form in which values are drawn.
pub(crate) enum Mark {
    /// Points joined by a line.
    Line(Vec<(f64, f64)>),
    /// Points joined by a line, each with its confidence interval `(low, high)`.
    Measured(Vec<(f64, f64, (f64, f64))>),
    /// Separate points.
    Points(Vec<(f64, f64)>),
    /// Values over spans `(from, to, value)`; adjacent spans are joined.
    Step(Vec<(f64, f64, f64)>),
    /// Columns over spans, from zero.
    Bars(Vec<(f64, f64, f64)>),
}

/// A highlighted range of x.
pub(crate) struct Shade {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) label: &'static str,
}

/// A horizontal reference line.
pub(crate) struct Reference {
    pub(crate) value: f64,
    pub(crate) label: String,
}

/// Height of a secondary chart.
const LOW: f64 = 180.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;
const RIGHT: f64 = 16.0;

impl Chart {
    /// Renders the chart as SVG.
    pub(crate) fn draw(&self, mut size: Size) -> String {
        if self.low {
            size.height = LOW;
        }
        let height = size.height - TOP - BOTTOM;
        let y_ticks = self.y.ticks(height, 30.0);
        let longest = y_ticks
            .iter()
            .map(|tick| tick.label.chars().count())
            .max()
            .unwrap_or(1);
        let left = longest as f64 * CHARACTER + 14.0;
        let plot = Plot {
            left,
            top: TOP,
            width: size.width - left - RIGHT,
            height,
        };
        let mut out = String::new();
        open(&mut out, size, size.height, &self.title, Some(plot));
        self.frame(&mut out, plot, &y_ticks);
        let has_bars = |series: &&Series| matches!(series.mark, Mark::Bars(_));
        let beside = self.series.iter().filter(has_bars).count();
        for (position, series) in self.series.iter().enumerate() {
            write!(
                out,
                "<g class=\"s{position} c{}\">{}</g>",
                position % COLORS,
                self.mark(&series.mark, plot, (position, beside))
            )
            .expect("a string takes all that is written");
        }
        let mut taken: Vec<f64> = Vec::new();
        for reference in &self.references {
            // Labels of close lines would overlap: the second one goes to the other end.
            let y = plot.y(self.y.position(reference.value));
            let crowded = taken.iter().any(|other| (other - y).abs() < 32.0);
            self.reference(&mut out, plot, reference, crowded);
            taken.push(y);
        }
        out.push_str("</svg>");
        out
    }

    fn frame(&self, out: &mut String, plot: Plot, y_ticks: &[super::axis::Tick]) {
        let mut put = |text: std::fmt::Arguments<'_>| {
            out.write_fmt(text)
                .expect("a string takes all that is written");
        };
        let bottom = plot.top + plot.height;
        for shade in &self.shades {
            let (from, to) = (
                plot.x(self.x.position(shade.from)),
                plot.x(self.x.position(shade.to)),
            );
            put(format_args!(
                "<rect class=\"shade\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                number(from),
                number(plot.top),
                number(to - from),
                number(plot.height)
            ));
            if to - from > shade.label.len() as f64 * CHARACTER {
                put(format_args!(
                    "<text class=\"tick mid\" x=\"{}\" y=\"{}\">{}</text>",
                    number(f64::midpoint(from, to)),
                    number(plot.top + 14.0),
                    escape(shade.label)
                ));
            }
        }
        let mut grid = String::new();
        for tick in y_ticks {
            let y = plot.y(tick.at);
            write!(
                grid,
                "M{} {}h{}",
                number(plot.left),
                number(y),
                number(plot.width)
            )
            .expect("a string takes all that is written");
            put(format_args!(
                "<text class=\"tick end\" x=\"{}\" y=\"{}\">{}</text>",
                number(plot.left - 8.0),
                number(y + 4.0),
                escape(&tick.label)
            ));
        }
        put(format_args!("<path class=\"grid\" d=\"{grid}\"/>"));
        put(format_args!(
            "<path class=\"axis\" d=\"M{} {}h{}\"/>",
            number(plot.left),
            number(bottom),
            number(plot.width)
        ));
        // A label that would touch the previous one is left out.
        let mut taken = f64::NEG_INFINITY;
        for tick in self.x.ticks(plot.width, 56.0) {
            let half = tick.label.chars().count() as f64 * CHARACTER / 2.0;
            let x = plot.x(tick.at);
            let (middle, class) = if x + half > plot.left + plot.width + RIGHT {
                (plot.left + plot.width + RIGHT, "tick end")
            } else {
                (x, "tick mid")
            };
            if x - half < taken + 6.0 {
                continue;
            }
            taken = x + half;
            put(format_args!(
                "<path class=\"axis\" d=\"M{} {}v4\"/><text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>",
                number(x),
                number(bottom),
                number(middle),
                number(bottom + 18.0),
                escape(&tick.label)
            ));
        }
        put(format_args!(
            "<text class=\"label\" x=\"0\" y=\"14\">{}</text>",
            escape(&self.y.label)
        ));
        put(format_args!(
            "<text class=\"label end\" x=\"{}\" y=\"{}\">{}</text>",
            number(plot.left + plot.width),
            number(bottom + 38.0),
            escape(&self.x.label)
        ));
    }

    /// Draws one series. The pair is the position of a bar series among those with bars, and their
    /// number.
    fn mark(&self, mark: &Mark, plot: Plot, lane: (usize, usize)) -> String {
        let at = |x: f64, y: f64| (plot.x(self.x.position(x)), plot.y(self.y.position(y)));
        let columns = plot.width as usize;
        match mark {
            Mark::Line(points) => {
                let points: Vec<_> = points.iter().map(|&(x, y)| at(x, y)).collect();
                let mut points = downsample::line(&points, columns);
                drop_invisible(&mut points);
                path("line", &points)
            }
            Mark::Measured(points) => {
                let line: Vec<_> = points.iter().map(|&(x, y, _)| at(x, y)).collect();
                let mut out = path("line", &line);
                for (&(_, _, (low, high)), &place) in points.iter().zip(&line) {
                    out.push_str(&self.whisker(plot, place.0, (low, high)));
                    out.push_str(&circle(place));
                }
                out
            }
            Mark::Points(points) => points.iter().map(|&(x, y)| circle(at(x, y))).collect(),
            Mark::Step(spans) if spans.len() > columns => {
                // More spans than pixels: a line for the mean, and a band from the lowest to the
                // highest value.
                let few = downsample::spans(spans, columns / 2);
                let reach = band(few.iter().map(|&(x, low, _, high)| {
                    let ((x, low), (_, high)) = (at(x, low), at(x, high));
                    (x, low, high)
                }));
                let mean: Vec<_> = few.iter().map(|&(x, _, mean, _)| at(x, mean)).collect();
                reach + &path("line", &mean)
            }
            Mark::Step(spans) => {
                // There are no values between spans that do not meet, so the line is interrupted
                // there.
                let pieces = spans.chunk_by(|a, b| b.0 <= a.1);
                let mut out = String::new();
                for piece in pieces {
                    let points: Vec<_> = piece
                        .iter()
                        .flat_map(|&(from, to, value)| [at(from, value), at(to, value)])
                        .collect();
                    // An area shows amounts, so it needs a linear axis from zero; areas of several
                    // series would cover each other.
                    if self.y.starts_at_zero() && self.series.len() == 1 {
                        out.push_str(&area(&points, plot));
                    }
                    out.push_str(&path("line", &points));
                }
                out
            }
            Mark::Bars(spans) => {
                let mut out = String::new();
                // Of several spans in one pixel the highest is drawn, so that spikes stay visible.
                let spans: Vec<_> = if spans.len() > columns {
                    let width = (self.x_span(spans)) / columns as f64;
                    downsample::spans(spans, columns / 2)
                        .into_iter()
                        .map(|(x, _, _, highest)| (x - width / 2.0, x + width / 2.0, highest))
                        .collect()
                } else {
                    spans.clone()
                };
                for (from, to, value) in spans {
                    let ((left, top), (right, _)) = (at(from, value), at(to, value));
                    if value <= 0.0 {
                        continue;
                    }
                    let share = (right - left) / lane.1.max(1) as f64;
                    let left = left + share * lane.0 as f64;
                    let right = left + share;
                    let gap = ((right - left) * 0.15).min(3.0);
                    write!(
                        out,
                        "<rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                        number(left + gap),
                        number(top),
                        number((right - left - 2.0 * gap).max(1.0)),
                        number((plot.top + plot.height - top).max(1.0))
                    )
                    .expect("a string takes all that is written");
                }
                out
            }
        }
    }

    /// Draws a confidence interval as a whisker; an end outside the drawing has no cap.
    fn whisker(&self, plot: Plot, x: f64, (low, high): (f64, f64)) -> String {
        let y = |value: f64| plot.y(self.y.position(value));
        let (from, to) = (y(low), y(high));
        if from - to < 0.5 {
            return String::new();
        }
        let mut d = format!("M{} {}V{}", number(x), number(from), number(to));
        for end in [low, high] {
            if self.y.shows(end) {
                d.push_str(&format!("M{} {}h8", number(x - 4.0), number(y(end))));
            }
        }
        format!("<path class=\"whisker\" d=\"{d}\"/>")
    }

    fn x_span(&self, spans: &[(f64, f64, f64)]) -> f64 {
        match (spans.first(), spans.last()) {
            (Some(first), Some(last)) => last.1 - first.0,
            _ => 0.0,
        }
    }

    fn reference(&self, out: &mut String, plot: Plot, reference: &Reference, at_start: bool) {
        let y = plot.y(self.y.position(reference.value));
        // The label goes below the line if there is no space above it.
        let text = if y - plot.top < 18.0 {
            y + 15.0
        } else {
            y - 6.0
        };
        write!(
            out,
            "<path class=\"reference\" d=\"M{} {}h{}\"/><text class=\"note {}\" x=\"{}\" y=\"{}\">{}</text>",
            number(plot.left),
            number(y),
            number(plot.width),
            if at_start { "start" } else { "end" },
            number(if at_start {
                plot.left + 6.0
            } else {
                plot.left + plot.width - 4.0
            }),
            number(text),
            escape(&reference.label)
        )
        .expect("a string takes all that is written");
    }
}

fn circle((left, top): (f64, f64)) -> String {
    format!(
        "<circle class=\"mark\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>",
        number(left),
        number(top)
    )
}

impl Plot {
    fn x(&self, position: f64) -> f64 {
        self.left + position * self.width
    }

    fn y(&self, position: f64) -> f64 {
        self.top + (1.0 - position) * self.height
    }
}

/// Removes points within half a pixel of the previous one; the last point stays.
fn drop_invisible(points: &mut Vec<(f64, f64)>) {
    let Some(last) = points.pop() else { return };
    let mut kept = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    points.retain(|&(x, y)| {
        let visible = (x - kept.0).abs() >= 0.5 || (y - kept.1).abs() >= 0.5;
        if visible {
            kept = (x, y);
        }
        visible
    });
    points.push(last);
}

fn path(class: &str, points: &[(f64, f64)]) -> String {
    format!("<path class=\"{class}\" d=\"{}\"/>", line_to(points))
}

fn line_to(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (position, &(x, y)) in points.iter().enumerate() {
        d.push(if position == 0 { 'M' } else { 'L' });
        d.push_str(&number(x));
        d.push(' ');
        d.push_str(&number(y));
    }
    d
}

fn area(points: &[(f64, f64)], plot: Plot) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    let bottom = number(plot.top + plot.height);
    format!(
        "<path class=\"area\" d=\"{}L{} {bottom}L{} {bottom}Z\"/>",
        line_to(points),
        number(last.0),
        number(first.0)
    )
}

fn band(points: impl Iterator<Item = (f64, f64, f64)>) -> String {
    let points: Vec<_> = points.collect();
    let mut outline: Vec<_> = points.iter().map(|&(x, _, high)| (x, high)).collect();
    outline.extend(points.iter().rev().map(|&(x, low, _)| (x, low)));
    format!("<path class=\"band\" d=\"{}Z\"/>", line_to(&outline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::{Unit, WIDE};

    /// Bars at the same position would hide each other.
    #[test]
    fn bars_of_several_series_stand_beside_each_other() {
        let series = |name: &str| Series {
            name: name.to_owned(),
            mark: Mark::Bars(vec![(0.0, 10.0, 5.0)]),
        };
        let chart = Chart {
            title: "x".to_owned(),
            low: true,
            x: Axis::between("time", 0.0, 10.0, Unit::COUNT),
            y: Axis::from_zero("lost", 10.0, Unit::COUNT),
            series: vec![series("send"), series("receive")],
            shades: Vec::new(),
            references: Vec::new(),
        };
        let drawing = chart.draw(WIDE);
        let number = |bar: &str, name: &str| -> f64 {
            let (_, rest) = bar.split_once(&format!("{name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let bars: Vec<&str> = drawing.split("<rect class=\"bar\"").skip(1).collect();
        assert_eq!(bars.len(), 2);
        let end = number(bars[0], " x") + number(bars[0], "width");
        assert!(end <= number(bars[1], " x"), "{drawing}");
    }

    #[test]
    fn measured_points_are_marked_and_intervals_that_leave_the_drawing_have_no_cap() {
        let chart = |high: f64| Chart {
            title: "x".to_owned(),
            low: false,
            x: Axis::between("hops", 0.0, 4.0, Unit::COUNT),
            y: Axis::from_zero("trip", 100.0, Unit::COUNT),
            series: vec![Series {
                name: "a".to_owned(),
                mark: Mark::Measured(vec![
                    (0.0, 40.0, (40.0, 40.0)),
                    (2.0, 50.0, (45.0, high)),
                    (4.0, 60.0, (60.0, 60.0)),
                ]),
            }],
            shades: Vec::new(),
            references: Vec::new(),
        };
        let caps = |drawing: &str| {
            let (_, whisker) = drawing.split_once("class=\"whisker\" d=\"").unwrap();
            let (path, _) = whisker.split_once('"').unwrap();
            path.matches('h').count()
        };
        let whole = chart(60.0).draw(WIDE);
        assert_eq!(whole.matches("<circle class=\"mark\"").count(), 3);
        assert_eq!(whole.matches("class=\"whisker\"").count(), 1);
        assert_eq!(caps(&whole), 2);
        assert_eq!(caps(&chart(900.0).draw(WIDE)), 1);
    }
}
