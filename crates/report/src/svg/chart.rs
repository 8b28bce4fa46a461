//! Chart with two axes.

use std::fmt::Write;

use super::axis::ChartAxis;
use super::{
    CHARACTER_WIDTH, DrawingSize, PlotArea, SERIES_COLORS, downsample, escape_markup,
    format_coordinate, open_svg,
};

/// Chart with two axes.
pub(crate) struct LineChart {
    /// Title and accessible name.
    pub(crate) title: String,
    /// True for a secondary chart, which is drawn with less height.
    pub(crate) is_secondary: bool,
    pub(crate) x: ChartAxis,
    pub(crate) y: ChartAxis,
    pub(crate) series: Vec<ChartSeries>,
    /// Highlighted ranges of x.
    pub(crate) shades: Vec<ShadedRange>,
    /// Horizontal reference lines.
    pub(crate) references: Vec<ReferenceLine>,
}

/// Marks of one colour with one name.
pub(crate) struct ChartSeries {
    pub(crate) name: String,
    pub(crate) mark: SeriesMark,
}

/// Form in which values are drawn.
pub(crate) enum SeriesMark {
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
pub(crate) struct ShadedRange {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) label: &'static str,
}

/// A horizontal reference line.
pub(crate) struct ReferenceLine {
    pub(crate) value: f64,
    pub(crate) label: String,
}

/// Height of a secondary chart.
const SECONDARY_HEIGHT: f64 = 180.0;
const TOP_MARGIN: f64 = 26.0;
const BOTTOM_MARGIN: f64 = 44.0;
const RIGHT_MARGIN: f64 = 16.0;

impl LineChart {
    /// Renders the chart as SVG.
    pub(crate) fn draw(&self, mut size: DrawingSize) -> String {
        if self.is_secondary {
            size.height = SECONDARY_HEIGHT;
        }
        let height = size.height - TOP_MARGIN - BOTTOM_MARGIN;
        let y_ticks = self.y.ticks(height, 30.0);
        let longest = y_ticks
            .iter()
            .map(|tick| tick.label.chars().count())
            .max()
            .unwrap_or(1);
        let left = longest as f64 * CHARACTER_WIDTH + 14.0;
        let plot = PlotArea {
            left,
            top: TOP_MARGIN,
            width: size.width - left - RIGHT_MARGIN,
            height,
        };
        let mut out = String::new();
        open_svg(&mut out, size, size.height, &self.title, Some(plot));
        self.draw_frame(&mut out, plot, &y_ticks);
        let has_bars = |series: &&ChartSeries| matches!(series.mark, SeriesMark::Bars(_));
        let bar_series = self.series.iter().filter(has_bars).count();
        for (position, series) in self.series.iter().enumerate() {
            write!(
                out,
                "<g class=\"s{position} c{}\">{}</g>",
                position % SERIES_COLORS,
                self.draw_series(&series.mark, plot, (position, bar_series))
            )
            .expect("writing to a String cannot fail");
        }
        let mut label_positions: Vec<f64> = Vec::new();
        for reference in &self.references {
            // Labels of close lines would overlap: the second one goes to the other end.
            let y = plot.y(self.y.position(reference.value));
            let overlaps = label_positions
                .iter()
                .any(|label_y| (label_y - y).abs() < 32.0);
            self.draw_reference(&mut out, plot, reference, overlaps);
            label_positions.push(y);
        }
        out.push_str("</svg>");
        out
    }

    fn draw_frame(&self, out: &mut String, plot: PlotArea, y_ticks: &[super::axis::AxisTick]) {
        let mut put = |text: std::fmt::Arguments<'_>| {
            out.write_fmt(text)
                .expect("writing to a String cannot fail");
        };
        let bottom = plot.top + plot.height;
        for shade in &self.shades {
            let (from, to) = (
                plot.x(self.x.position(shade.from)),
                plot.x(self.x.position(shade.to)),
            );
            put(format_args!(
                "<rect class=\"shade\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                format_coordinate(from),
                format_coordinate(plot.top),
                format_coordinate(to - from),
                format_coordinate(plot.height)
            ));
            if to - from > shade.label.len() as f64 * CHARACTER_WIDTH {
                put(format_args!(
                    "<text class=\"tick mid\" x=\"{}\" y=\"{}\">{}</text>",
                    format_coordinate(f64::midpoint(from, to)),
                    format_coordinate(plot.top + 14.0),
                    escape_markup(shade.label)
                ));
            }
        }
        let mut grid = String::new();
        for tick in y_ticks {
            let y = plot.y(tick.position);
            write!(
                grid,
                "M{} {}h{}",
                format_coordinate(plot.left),
                format_coordinate(y),
                format_coordinate(plot.width)
            )
            .expect("writing to a String cannot fail");
            put(format_args!(
                "<text class=\"tick end\" x=\"{}\" y=\"{}\">{}</text>",
                format_coordinate(plot.left - 8.0),
                format_coordinate(y + 4.0),
                escape_markup(&tick.label)
            ));
        }
        put(format_args!("<path class=\"grid\" d=\"{grid}\"/>"));
        put(format_args!(
            "<path class=\"axis\" d=\"M{} {}h{}\"/>",
            format_coordinate(plot.left),
            format_coordinate(bottom),
            format_coordinate(plot.width)
        ));
        // A label that would touch the previous one is left out.
        let mut last_label_end = f64::NEG_INFINITY;
        for tick in self.x.ticks(plot.width, 56.0) {
            let half_width = tick.label.chars().count() as f64 * CHARACTER_WIDTH / 2.0;
            let x = plot.x(tick.position);
            let (middle, class) = if x + half_width > plot.left + plot.width + RIGHT_MARGIN {
                (plot.left + plot.width + RIGHT_MARGIN, "tick end")
            } else {
                (x, "tick mid")
            };
            if x - half_width < last_label_end + 6.0 {
                continue;
            }
            last_label_end = x + half_width;
            put(format_args!(
                "<path class=\"axis\" d=\"M{} {}v4\"/><text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>",
                format_coordinate(x),
                format_coordinate(bottom),
                format_coordinate(middle),
                format_coordinate(bottom + 18.0),
                escape_markup(&tick.label)
            ));
        }
        put(format_args!(
            "<text class=\"label\" x=\"0\" y=\"14\">{}</text>",
            escape_markup(&self.y.label)
        ));
        put(format_args!(
            "<text class=\"label end\" x=\"{}\" y=\"{}\">{}</text>",
            format_coordinate(plot.left + plot.width),
            format_coordinate(bottom + 38.0),
            escape_markup(&self.x.label)
        ));
    }

    /// Draws one series. The pair is the position of a bar series among those with bars, and their
    /// number.
    fn draw_series(&self, mark: &SeriesMark, plot: PlotArea, bar_slot: (usize, usize)) -> String {
        let to_plot = |x: f64, y: f64| (plot.x(self.x.position(x)), plot.y(self.y.position(y)));
        let columns = plot.width as usize;
        match mark {
            SeriesMark::Line(points) => {
                let points: Vec<_> = points.iter().map(|&(x, y)| to_plot(x, y)).collect();
                let mut points = downsample::reduce_line(&points, columns);
                drop_invisible(&mut points);
                path_element("line", &points)
            }
            SeriesMark::Measured(points) => {
                let line: Vec<_> = points.iter().map(|&(x, y, _)| to_plot(x, y)).collect();
                let mut out = path_element("line", &line);
                for (&(_, _, (low, high)), &center) in points.iter().zip(&line) {
                    out.push_str(&self.draw_whisker(plot, center.0, (low, high)));
                    out.push_str(&circle_element(center));
                }
                out
            }
            SeriesMark::Points(points) => points
                .iter()
                .map(|&(x, y)| circle_element(to_plot(x, y)))
                .collect(),
            SeriesMark::Step(spans) if spans.len() > columns => {
                // More spans than pixels: a line for the mean, and a band from the lowest to the
                // highest value.
                let sampled = downsample::reduce_spans(spans, columns / 2);
                let range_band = band_element(sampled.iter().map(|&(x, low, _, high)| {
                    let ((x, low), (_, high)) = (to_plot(x, low), to_plot(x, high));
                    (x, low, high)
                }));
                let mean: Vec<_> = sampled
                    .iter()
                    .map(|&(x, _, mean, _)| to_plot(x, mean))
                    .collect();
                range_band + &path_element("line", &mean)
            }
            SeriesMark::Step(spans) => {
                // There are no values between spans that do not meet, so the line is interrupted
                // there.
                let segments = spans.chunk_by(|a, b| b.0 <= a.1);
                let mut out = String::new();
                for segment in segments {
                    let points: Vec<_> = segment
                        .iter()
                        .flat_map(|&(from, to, value)| [to_plot(from, value), to_plot(to, value)])
                        .collect();
                    // An area shows amounts, so it needs a linear axis from zero; areas of several
                    // series would cover each other.
                    if self.y.starts_at_zero() && self.series.len() == 1 {
                        out.push_str(&area_element(&points, plot));
                    }
                    out.push_str(&path_element("line", &points));
                }
                out
            }
            SeriesMark::Bars(spans) => {
                let mut out = String::new();
                // Of several spans in one pixel the highest is drawn, so that spikes stay visible.
                let spans: Vec<_> = if spans.len() > columns {
                    let width = (self.x_range(spans)) / columns as f64;
                    downsample::reduce_spans(spans, columns / 2)
                        .into_iter()
                        .map(|(x, _, _, highest)| (x - width / 2.0, x + width / 2.0, highest))
                        .collect()
                } else {
                    spans.clone()
                };
                for (from, to, value) in spans {
                    let ((left, top), (right, _)) = (to_plot(from, value), to_plot(to, value));
                    if value <= 0.0 {
                        continue;
                    }
                    let share = (right - left) / bar_slot.1.max(1) as f64;
                    let left = left + share * bar_slot.0 as f64;
                    let right = left + share;
                    let gap = ((right - left) * 0.15).min(3.0);
                    write!(
                        out,
                        "<rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                        format_coordinate(left + gap),
                        format_coordinate(top),
                        format_coordinate((right - left - 2.0 * gap).max(1.0)),
                        format_coordinate((plot.top + plot.height - top).max(1.0))
                    )
                    .expect("writing to a String cannot fail");
                }
                out
            }
        }
    }

    /// Draws a confidence interval as a whisker; an end outside the drawing has no cap.
    fn draw_whisker(&self, plot: PlotArea, x: f64, (low, high): (f64, f64)) -> String {
        let y = |value: f64| plot.y(self.y.position(value));
        let (from, to) = (y(low), y(high));
        if from - to < 0.5 {
            return String::new();
        }
        let mut d = format!(
            "M{} {}V{}",
            format_coordinate(x),
            format_coordinate(from),
            format_coordinate(to)
        );
        for end in [low, high] {
            if self.y.shows(end) {
                d.push_str(&format!(
                    "M{} {}h8",
                    format_coordinate(x - 4.0),
                    format_coordinate(y(end))
                ));
            }
        }
        format!("<path class=\"whisker\" d=\"{d}\"/>")
    }

    fn x_range(&self, spans: &[(f64, f64, f64)]) -> f64 {
        match (spans.first(), spans.last()) {
            (Some(first), Some(last)) => last.1 - first.0,
            _ => 0.0,
        }
    }

    fn draw_reference(
        &self,
        out: &mut String,
        plot: PlotArea,
        reference: &ReferenceLine,
        at_start: bool,
    ) {
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
            format_coordinate(plot.left),
            format_coordinate(y),
            format_coordinate(plot.width),
            if at_start { "start" } else { "end" },
            format_coordinate(if at_start {
                plot.left + 6.0
            } else {
                plot.left + plot.width - 4.0
            }),
            format_coordinate(text),
            escape_markup(&reference.label)
        )
        .expect("writing to a String cannot fail");
    }
}

fn circle_element((left, top): (f64, f64)) -> String {
    format!(
        "<circle class=\"mark\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>",
        format_coordinate(left),
        format_coordinate(top)
    )
}

impl PlotArea {
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
    let mut previous = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    points.retain(|&(x, y)| {
        let visible = (x - previous.0).abs() >= 0.5 || (y - previous.1).abs() >= 0.5;
        if visible {
            previous = (x, y);
        }
        visible
    });
    points.push(last);
}

fn path_element(class: &str, points: &[(f64, f64)]) -> String {
    format!("<path class=\"{class}\" d=\"{}\"/>", path_data(points))
}

fn path_data(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (position, &(x, y)) in points.iter().enumerate() {
        d.push(if position == 0 { 'M' } else { 'L' });
        d.push_str(&format_coordinate(x));
        d.push(' ');
        d.push_str(&format_coordinate(y));
    }
    d
}

fn area_element(points: &[(f64, f64)], plot: PlotArea) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    let bottom = format_coordinate(plot.top + plot.height);
    format!(
        "<path class=\"area\" d=\"{}L{} {bottom}L{} {bottom}Z\"/>",
        path_data(points),
        format_coordinate(last.0),
        format_coordinate(first.0)
    )
}

fn band_element(points: impl Iterator<Item = (f64, f64, f64)>) -> String {
    let points: Vec<_> = points.collect();
    let mut outline: Vec<_> = points.iter().map(|&(x, _, high)| (x, high)).collect();
    outline.extend(points.iter().rev().map(|&(x, low, _)| (x, low)));
    format!("<path class=\"band\" d=\"{}Z\"/>", path_data(&outline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::{AxisUnit, WIDE_SIZE};

    /// Bars at the same position would hide each other.
    #[test]
    fn bars_of_several_series_do_not_overlap() {
        let series = |name: &str| ChartSeries {
            name: name.to_owned(),
            mark: SeriesMark::Bars(vec![(0.0, 10.0, 5.0)]),
        };
        let chart = LineChart {
            title: "x".to_owned(),
            is_secondary: true,
            x: ChartAxis::between("time", 0.0, 10.0, AxisUnit::COUNT),
            y: ChartAxis::from_zero("lost", 10.0, AxisUnit::COUNT),
            series: vec![series("send"), series("receive")],
            shades: Vec::new(),
            references: Vec::new(),
        };
        let drawing = chart.draw(WIDE_SIZE);
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
        let chart = |high: f64| LineChart {
            title: "x".to_owned(),
            is_secondary: false,
            x: ChartAxis::between("hops", 0.0, 4.0, AxisUnit::COUNT),
            y: ChartAxis::from_zero("trip", 100.0, AxisUnit::COUNT),
            series: vec![ChartSeries {
                name: "a".to_owned(),
                mark: SeriesMark::Measured(vec![
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
        let inside = chart(60.0).draw(WIDE_SIZE);
        assert_eq!(inside.matches("<circle class=\"mark\"").count(), 3);
        assert_eq!(inside.matches("class=\"whisker\"").count(), 1);
        assert_eq!(caps(&inside), 2);
        assert_eq!(caps(&chart(900.0).draw(WIDE_SIZE)), 1);
    }
}
