//! A figure over time as a page: one point for each run, its levels, and where they changed.

use super::figure::{self as frame, ChartData, ChartRow};
use super::{axis_unit, frame_page, with_micro_sign};
use crate::history::{FigureTrend, PlanTrends, describe_period};
use crate::model::{Grid, format_change, format_value};
use crate::phrases;
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

/// Renders the page of many runs: the figures of each plan over time.
#[must_use]
pub fn render_over_time(title: &str, plans: &[PlanTrends]) -> String {
    let mut body = format!(
        "<header>\n<p class=\"brand\">linerate</p>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n",
        escape_markup(title),
        describe_period(plans)
    );
    let (series, single): (Vec<_>, Vec<_>) = plans.iter().partition(|plan| !plan.trends.is_empty());
    body.push_str("<ul>\n");
    for plan in &series {
        let described: Vec<String> = plan.trends.iter().map(FigureTrend::describe).collect();
        body.push_str(&format!(
            "<li><b>{}</b>: {}</li>\n",
            escape_markup(&plan.title),
            escape_markup(&with_micro_sign(&described.join(". ")))
        ));
    }
    body.push_str("</ul>\n</header>\n");
    for plan in &series {
        body.push_str(&format!("<h2>{}</h2>\n", escape_markup(&plan.title)));
        body.extend(plan.trends.iter().map(trend_section));
    }
    let rows = single
        .iter()
        .flat_map(|plan| phrases::measurements(&plan.runs));
    let rows = rows.map(|row| {
        vec![
            row.run.started.strftime("%Y-%m-%d %H:%M").to_string(),
            row.run.plan.host.clone(),
            row.name,
            with_micro_sign(&row.figure),
            with_micro_sign(&row.meaning),
        ]
    });
    let headings = ["started", "host", "run", "figure", "meaning"];
    if let Some(grid) = Grid::new(&headings, rows.collect(), 3) {
        let heading = match series.is_empty() {
            true => "Runs",
            false => "Runs of other plans",
        };
        body.push_str(&format!(
            "<section>\n<h2>{heading}</h2>\n{}</section>\n",
            frame::render_grid(&grid)
        ));
    }
    frame_page(title, &body)
}

/// Renders chart and levels of a trend.
pub(super) fn trend_section(trend: &FigureTrend) -> String {
    let value = |value: f64| with_micro_sign(&format_value(trend.unit, value));
    let Some(first) = trend.points.first() else {
        return "<section><p>No record has this figure.</p></section>\n".to_owned();
    };
    let last = (trend.points.iter()).map(|point| point.started).max();
    let span = last.map_or(0, |last| last.as_second() - first.started.as_second());
    let (unit_name, unit_seconds) = match span {
        span if span < 7_200 => ("minutes", 60.0),
        span if span < 172_800 => ("hours", 3_600.0),
        _ => ("days", 86_400.0),
    };
    let elapsed =
        |at: jiff::Timestamp| (at.as_second() - first.started.as_second()) as f64 / unit_seconds;
    let points = || {
        trend
            .points
            .iter()
            .map(|point| (elapsed(point.started), point.value))
    };
    let values = || trend.points.iter().map(|point| point.value);
    let low = values().fold(0.0, f64::min);
    let high = values().fold(0.0, f64::max);
    let levels = trend.levels.iter().map(|level| {
        let from = elapsed(trend.points[level.from].started);
        let to = match trend.points.get(level.to) {
            Some(next) => elapsed(next.started),
            None => elapsed(trend.points[level.to - 1].started),
        };
        (from, to, level.figure.median)
    });
    let unit = axis_unit(trend.unit, high);
    let last = points().next_back().map_or(1.0, |(day, _)| day);
    let chart = LineChart {
        title: format!("{} over time", trend.figure),
        is_secondary: false,
        x: ChartAxis::between(
            &format!(
                "{unit_name} since {}",
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
        x: elapsed(point.started),
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
            (level.to - level.from).to_string(),
            value(level.figure.median),
            level
                .ratio
                .map_or_else(String::new, |ratio| format_change(ratio - 1.0)),
            since.id.clone(),
        ]
    });
    let grid = Grid {
        headings: ["since", "runs", "median", "change", "first run"]
            .map(str::to_owned)
            .into(),
        rows: level_rows.collect(),
        left_columns: 1,
    };
    let levels = match trend.levels.len() {
        1 => format!(
            "<p>{}.</p>\n",
            escape_markup(&with_micro_sign(&trend.describe()))
        ),
        _ => frame::render_grid(&grid),
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
        levels
    )
}
