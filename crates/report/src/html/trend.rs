//! A figure over time as a page: one point for each run, its levels, and where they changed.

use linerate_record::expect::FigureUnit;

use super::figure::{self as frame, ChartData, ChartRow};
use super::{frame_page, with_micro_sign};
use crate::history::FigureTrend;
use crate::model::{Grid, format_change, format_value};
use crate::svg::{AxisUnit, ChartAxis, ChartSeries, LineChart, SeriesMark, escape_markup};

/// Renders the page of a trend.
#[must_use]
pub fn render_trend(trend: &FigureTrend) -> String {
    let title = format!("Trend of {}", trend.figure);
    let body = format!(
        "<header><h1>{}</h1></header>\n{}",
        escape_markup(&title),
        trend_section(trend)
    );
    frame_page(&title, &body)
}

/// Renders chart and levels of a trend.
pub(super) fn trend_section(trend: &FigureTrend) -> String {
    let value = |value: f64| with_micro_sign(&format_value(trend.unit, value));
    let Some(first) = trend.points.first() else {
        return "<section><p>No record has this figure.</p></section>\n".to_owned();
    };
    let days = |at: jiff::Timestamp| (at.as_second() - first.started.as_second()) as f64 / 86_400.0;
    let points = || {
        trend
            .points
            .iter()
            .map(|point| (days(point.started), point.value))
    };
    let values = || trend.points.iter().map(|point| point.value);
    let low = values().fold(0.0, f64::min);
    let high = values().fold(0.0, f64::max);
    let levels = trend.levels.iter().map(|level| {
        let from = days(trend.points[level.from].started);
        let to = match trend.points.get(level.to) {
            Some(next) => days(next.started),
            None => days(trend.points[level.to - 1].started),
        };
        (from, to, level.figure.median)
    });
    let unit = match trend.unit {
        FigureUnit::BitRate => AxisUnit::for_bit_rate(high),
        FigureUnit::Nanos => AxisUnit::for_time(high),
        _ => AxisUnit::COUNT,
    };
    let last = points().next_back().map_or(1.0, |(day, _)| day);
    let chart = LineChart {
        title: format!("{} over time", trend.figure),
        is_secondary: false,
        x: ChartAxis::between(
            &format!(
                "days since {}",
                first.started.strftime("%Y-%m-%d %H:%M UTC")
            ),
            0.0,
            last.max(0.01),
            AxisUnit::COUNT,
        ),
        y: ChartAxis::including_zero(&trend.figure, low, high, unit),
        series: vec![
            ChartSeries {
                name: trend.figure.clone(),
                mark: SeriesMark::Line(points().collect()),
            },
            ChartSeries {
                name: "level".to_owned(),
                mark: SeriesMark::Step(levels.collect()),
            },
        ],
        shades: Vec::new(),
        references: Vec::new(),
    };
    let level_at = |index: usize| {
        let mut levels = trend.levels.iter();
        let level = levels.find(|level| (level.from..level.to).contains(&index))?;
        Some((level.figure.median, value(level.figure.median)))
    };
    let rows = (trend.points.iter().enumerate()).map(|(index, point)| ChartRow {
        x: days(point.started),
        text: format!("{} {}", point.started.strftime("%Y-%m-%d %H:%M"), point.id),
        cells: vec![Some((point.value, value(point.value))), level_at(index)],
    });
    let data = ChartData {
        headings: vec!["run".to_owned(), trend.figure.clone(), "level".to_owned()],
        rows: rows.collect(),
    };
    let level_rows = trend.levels.iter().map(|level| {
        let since = &trend.points[level.from];
        vec![
            since.started.strftime("%Y-%m-%d %H:%M").to_string(),
            since.id.clone(),
            (level.to - level.from).to_string(),
            value(level.figure.median),
            level
                .ratio
                .map_or_else(String::new, |ratio| format_change(ratio - 1.0)),
        ]
    });
    let grid = Grid {
        headings: ["since", "first run", "runs", "median", "change"]
            .map(str::to_owned)
            .into(),
        rows: level_rows.collect(),
        left_columns: 2,
    };
    let plans = match trend.plans {
        0 | 1 => String::new(),
        plans => {
            format!("<p>The runs have {plans} different plans: a change may come from these.</p>\n")
        }
    };
    format!(
        "<section>\n<h2>{}</h2>\n{}{plans}{}</section>\n",
        escape_markup(&trend.figure),
        frame::render_chart(&chart, &data),
        frame::render_grid(&grid)
    )
}
