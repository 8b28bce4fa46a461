//! Drawing of the full-screen display.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};

use super::run::{LiveRun, RateCurve};
use super::state::{ScreenModel, ScreenState};

/// Minimum rows of the screen for frames around its parts and a curve of the rate.
const MIN_FRAMED_ROWS: u16 = 18;

/// Maximum rows of the title.
const MAX_TITLE_ROWS: usize = 2;

/// Minimum rows of a curve with its frame; below it, curves of both directions share a row.
const MIN_CURVE_ROWS: u16 = 4;

/// Maximum columns of an interval, so that the first one does not fill the whole width.
const MAX_INTERVAL_COLUMNS: usize = 8;

/// Draws the screen, in the terminal's own colours.
pub(super) fn draw(state: &ScreenModel, frame: &mut Frame<'_>) {
    let area = frame.area();
    let width = usize::from(area.width);
    let shown = state.visible();
    let foot = footer(state, width);
    let head = header(shown, width);
    let [top, gauge, middle, bottom] = Layout::vertical([
        Constraint::Length(row_count(&head)),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(row_count(&foot)),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(paragraph(&head).style(bold), top);
    let (share, label) = progress(shown);
    frame.render_widget(Gauge::default().ratio(share).label(label), gauge);
    match area.height < MIN_FRAMED_ROWS {
        true => draw_compact(shown, frame, middle),
        false => draw_framed(shown, frame, middle),
    }
    frame.render_widget(paragraph(&foot).style(bold), bottom);
}

/// Returns the title, and the current part of a series.
fn header(state: &ScreenState, width: usize) -> Vec<String> {
    let title = match (state.title.as_str(), state.run.title.as_str()) {
        ("", "") => "starting",
        ("", title) | (title, _) => title,
    };
    let mut lines = wrap(&format!("linerate: {title}"), width);
    lines.truncate(MAX_TITLE_ROWS);
    if let Some(part) = &state.part {
        // A part is named by its setting, or by the title of its run if it has none.
        let text = match part.settings.is_empty() {
            true => &state.run.title,
            false => &part.settings,
        };
        lines.push(truncate(&format!("now: {text}"), width));
    }
    lines
}

/// Returns the progress as a fraction and as text.
fn progress(state: &ScreenState) -> (f64, String) {
    let run = &state.run;
    // Without intervals, the wall clock shows the progress.
    let now = match run.now_ns {
        0 => state.part_elapsed().as_secs_f64(),
        now_ns => now_ns as f64 / 1e9,
    };
    let (share, time) = match run.duration_ns {
        Some(all) if all > 0 => {
            let all = all as f64 / 1e9;
            (
                (now / all).clamp(0.0, 1.0),
                format!("{:.1} of {all:.1} s", now.min(all)),
            )
        }
        _ => (0.0, format!("{now:.1} s")),
    };
    let Some(part) = &state.part else {
        return (share, time);
    };
    // One time for a series: that of all its parts.
    let time = clock(state.elapsed);
    match part.total {
        Some(of) => {
            let most = if part.at_most { " at most" } else { "" };
            let before = part.number.saturating_sub(1) as f64;
            (
                ((before + share) / of.max(1) as f64).clamp(0.0, 1.0),
                format!("{} {} of {of}{most}: {time}", part.name, part.number),
            )
        }
        None => (share, format!("{} {}: {time}", part.name, part.number)),
    }
}

/// Formats a time: `200 ms`, `42 s`, `3 min 07 s`, `2 h 05 min`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => format!("{} ms", time.as_millis()),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

/// Draws each part with a frame, on a large screen.
fn draw_framed(state: &ScreenState, frame: &mut Frame<'_>, area: Rect) {
    let inner = usize::from(area.width.saturating_sub(2));
    let figures = figure_lines(state, inner);
    let findings = finding_lines(state, inner);
    let framed = |lines: &[String]| {
        u16::try_from(lines.len())
            .unwrap_or(u16::MAX)
            .saturating_add(2)
    };
    let is_series = state.part.is_some() || !state.finished_lines.is_empty();
    let done = finished_lines(state, inner, usize::from(area.height));
    // The curve gets at least a third of the rows, and those that the other parts do not need.
    let figures_rows = framed(&figures).min(area.height / 3);
    let rest = area.height.saturating_sub(figures_rows);
    let findings_rows = framed(&findings).clamp(3, (rest / 3).max(3));
    let done_rows = match is_series {
        true => framed(&done).clamp(3, (rest / 3).max(3)),
        false => 0,
    };
    let [above, below, list, last] = Layout::vertical([
        Constraint::Min(0),
        Constraint::Length(figures_rows),
        Constraint::Length(done_rows),
        Constraint::Length(findings_rows),
    ])
    .areas(area);
    draw_curves(state, frame, above);
    frame.render_widget(
        paragraph(&figures).block(Block::bordered().title("figures")),
        below,
    );
    if is_series {
        let title = match state.finished_lines.len() {
            0 => "finished: none yet".to_owned(),
            _ => "finished, latest first".to_owned(),
        };
        frame.render_widget(paragraph(&done).block(Block::bordered().title(title)), list);
    }
    frame.render_widget(
        paragraph(&findings).block(Block::bordered().title("findings")),
        last,
    );
}

/// Draws the parts without frames, on a small screen: latest figures, finished parts, findings.
fn draw_compact(state: &ScreenState, frame: &mut Frame<'_>, area: Rect) {
    let width = usize::from(area.width);
    let rows = usize::from(area.height);
    let mut lines = match (state.run.curves.is_empty(), waiting_text(state)) {
        (true, Some(words)) => vec![truncate(&words, width)],
        _ => wrap(&rate_title(state), width),
    };
    lines.extend(figure_lines(state, width));
    lines.truncate(rows.div_ceil(2).max(1));
    let rows_left = rows.saturating_sub(lines.len());
    let finding_lines = finding_lines(state, width);
    let done = finished_lines(state, width, rows_left);
    // Finished parts and findings share the rows: each gets half, and the rows that the other does
    // not need.
    let finding_rows = finding_lines
        .len()
        .min((rows_left / 2).max(rows_left.saturating_sub(done.len())));
    lines.extend(done.into_iter().take(rows_left - finding_rows));
    lines.extend(finding_lines.into_iter().take(finding_rows));
    frame.render_widget(paragraph(&lines), area);
}

/// Returns the latest rate, per direction if there are two.
fn rate_title(state: &ScreenState) -> String {
    let run = &state.run;
    match &run.curves[..] {
        [] => "rate: none yet".to_owned(),
        curves => {
            let rates: Vec<String> = (curves.iter())
                .map(|curve| format_rate(run, curve, curves.len() > 1))
                .collect();
            format!("rate: {}", rates.join(", "))
        }
    }
}

fn format_rate(run: &LiveRun, curve: &RateCurve, is_named: bool) -> String {
    let rate = run.unit.format(curve.rates.back().copied().unwrap_or(0.0));
    match curve.direction.filter(|_| is_named) {
        Some(direction) => format!("{direction} {rate}"),
        None => rate,
    }
}

/// Draws one curve per direction, one above the other.
fn draw_curves(state: &ScreenState, frame: &mut Frame<'_>, area: Rect) {
    let run = &state.run;
    let several = run.curves.len() > 1;
    if run.curves.is_empty() {
        let block = Block::bordered().title(rate_title(state));
        let width = usize::from(block.inner(area).width);
        let lines = match waiting_text(state) {
            Some(words) => wrap(&words, width),
            None => Vec::new(),
        };
        return frame.render_widget(paragraph(&lines).block(block), area);
    }
    let count = u16::try_from(run.curves.len()).unwrap_or(u16::MAX);
    let each = Constraint::Fill(1);
    let layout = match area.height / count >= MIN_CURVE_ROWS {
        true => Layout::vertical(vec![each; run.curves.len()]),
        false => Layout::horizontal(vec![each; run.curves.len()]),
    };
    for (part, curve) in layout.split(area).iter().zip(&run.curves) {
        let title = match several {
            true => format_rate(run, curve, true),
            false => rate_title(state),
        };
        self::draw_curve(run, curve, title, frame, *part);
    }
}

/// Returns the text in place of a rate before the first one arrives.
fn waiting_text(state: &ScreenState) -> Option<String> {
    let run = &state.run;
    let elapsed = clock(state.part_elapsed());
    match (&state.part, run.has_started()) {
        (_, true) if run.losses.is_some() => Some("this run has ended".to_owned()),
        (_, true) if run.is_silent => Some(format!(
            "{}, for {elapsed}: no intervals (-i 0), figures follow at the end",
            run.title
        )),
        (_, true) => Some(format!("{}, for {elapsed}", run.title)),
        (Some(part), false) => Some(format!(
            "{} {}, for {elapsed}: no data yet",
            part.name, part.number
        )),
        (None, false) => None,
    }
}

fn draw_curve(run: &LiveRun, curve: &RateCurve, title: String, frame: &mut Frame<'_>, area: Rect) {
    let rates = &curve.rates;
    let block = Block::bordered().title(title);
    let width = usize::from(block.inner(area).width);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    // Heights are fractions of the highest rate, which is the scale.
    let block = match highest > 0.0 {
        true => {
            let full = format!("full height: {}", run.unit.format(highest));
            block.title_bottom(Line::from(full).right_aligned())
        }
        false => block,
    };
    // Sparklines take integers: a thousandth of the highest rate is finer than a cell.
    let shown = widen(
        rates
            .iter()
            .skip(rates.len().saturating_sub(width))
            .map(|rate| (rate / highest.max(1.0) * 1000.0) as u64)
            .collect(),
        width,
    );
    frame.render_widget(
        Sparkline::default().block(block).data(&shown).max(1000),
        area,
    );
}

/// Repeats each height so that few intervals fill the width in broad columns.
fn widen(heights: Vec<u64>, width: usize) -> Vec<u64> {
    let columns_each = (width / heights.len().max(1)).clamp(1, MAX_INTERVAL_COLUMNS);
    let each = heights.into_iter();
    each.flat_map(|height| std::iter::repeat_n(height, columns_each))
        .collect()
}

fn figure_lines(state: &ScreenState, width: usize) -> Vec<String> {
    let lines = state.run.figure_lines().into_iter();
    lines.flat_map(|parts| join_parts(&parts, width)).collect()
}

fn finding_lines(state: &ScreenState, width: usize) -> Vec<String> {
    let found = state.findings();
    if found.is_empty() {
        let none = "none so far: causes are shown when the run has ended";
        return wrap(none, width);
    }
    found.iter().flat_map(|text| wrap(text, width)).collect()
}

/// Returns at most `rows` lines of finished parts.
fn finished_lines(state: &ScreenState, width: usize, rows: usize) -> Vec<String> {
    let lines = state
        .finished_lines
        .iter()
        .flat_map(|line| wrap(line, width));
    lines.take(rows).collect()
}

fn footer(state: &ScreenModel, width: usize) -> Vec<String> {
    let paused = if state.is_paused() { "PAUSED  " } else { "" };
    let message = Some(&state.message).filter(|message| !message.is_empty());
    // A message replaces the key list, but not a manual step that is waiting.
    let (first, then) = match (&state.manual_step, message) {
        (Some((text, _)), message) => (format!("{text}, then press Enter"), message),
        (None, Some(message)) => (message.clone(), None),
        (None, None) => ("p pause  s save  q quit".to_owned(), None),
    };
    let mut lines = wrap(&format!("{paused}{first}"), width);
    lines.extend(then.iter().flat_map(|message| wrap(message, width)));
    lines
}

fn row_count(lines: &[String]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}

fn paragraph(lines: &[String]) -> Paragraph<'static> {
    Paragraph::new(lines.iter().cloned().map(Line::from).collect::<Vec<_>>())
}

/// Truncates a text, with an ellipsis in place of the rest.
fn truncate(text: &str, width: usize) -> String {
    match text.chars().count() > width && width > 0 {
        true => text.chars().take(width - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Joins parts into lines of at most `width` columns; longer parts wrap.
fn join_parts(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= width => {
                line.push_str("  ");
                line.push_str(part);
            }
            _ => lines.extend(wrap(part, width)),
        }
    }
    lines
}

/// Wraps a text at spaces, and within words that are longer than a line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let mut columns_left = width;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if columns_left < width && length + 1 > columns_left {
            lines.push(String::new());
            columns_left = width;
        }
        let line = lines.last_mut().expect("there is a line from the start");
        if columns_left < width {
            line.push(' ');
            columns_left -= 1;
        }
        if length <= columns_left {
            line.push_str(word);
            columns_left -= length;
            continue;
        }
        for letter in word.chars() {
            if columns_left == 0 {
                lines.push(String::new());
                columns_left = width;
            }
            lines.last_mut().expect("one was pushed").push(letter);
            columns_left -= 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::LossPoint;
    use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
    use linerate_session::loss::LiveLoss;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::event_queue::UiMessage;
    use crate::ui_update::{SeriesPart, UiUpdate};
    fn drawn(state: &ScreenModel, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame)).unwrap();
        terminal.backend().to_string()
    }

    fn running() -> ScreenModel {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "192.0.2.1");
        (plan.port, plan.duration_ns) = (5_201, Some(10_000_000_000));
        let mut run = LiveRun::from_plan(&plan);
        run.now_ns = 2_500_000_000;
        (run.lost, run.attempts) = (Some(3), 100);
        run.curves = vec![RateCurve {
            direction: Some(Direction::Send),
            rates: [100.0, 200.0, 150.0].into(),
        }];
        let loss_point = |place, packets| LiveLoss {
            direction: Direction::Send,
            point: place,
            packets,
        };
        run.loss_points = vec![
            loss_point(LossPoint::Qdisc, Some(3)),
            loss_point(LossPoint::InterfaceTx, Some(0)),
            loss_point(LossPoint::UdpReceiveQueue, None),
        ];
        let mut state = ScreenModel::default();
        state.apply(UiMessage::Update(UiUpdate::Warning(
            "the CPUs are shared".to_owned(),
        )));
        state.current.run = run;
        state
    }

    #[test]
    fn the_screen_has_rate_percentiles_losses_and_findings() {
        let mut state = running();
        for (width, height) in [(80, 24), (200, 60), (40, 12)] {
            let text = drawn(&state, width, height);
            for part in [
                "192.0.2.1:5201",
                "2.5 of 10.0 s",
                "150 /s",
                "3 lost (3.00 %)",
                "3 at qdisc",
                "q quit",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let text = drawn(&state, 80, 24);
        for part in [
            "unknown during the run: udp-receive-queue",
            "3 requests have no response (3.00 %)",
            "full height: 200 /s",
            "the CPUs are shared",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The file name is readable at the usual width.
        let message = "saved 1234 events to linerate-live-20261122T213605Z.jsonl";
        state.set_message(message.to_owned());
        assert!(drawn(&state, 80, 24).contains(message));
        let narrow = drawn(&state, 40, 12);
        assert!(
            narrow.contains("linerate-live-20261122T213605Z.jsonl"),
            "{narrow}"
        );
        // A manual step is shown too, and replaces an earlier message.
        let (sender, _waiting) = std::sync::mpsc::channel();
        state.apply(UiMessage::Update(UiUpdate::ManualStep(
            "set hops=2".to_owned(),
            sender,
        )));
        let text = drawn(&state, 80, 24);
        assert!(text.contains("set hops=2, then press Enter"), "{text}");
        assert!(!text.contains("saved"), "{text}");
        state.set_message(message.to_owned());
        for (width, height) in [(80, 24), (40, 12)] {
            let text = drawn(&state, width, height);
            for part in [
                "set hops=2, then press Enter",
                "linerate-live-20261122T213605Z.jsonl",
            ] {
                assert!(text.contains(part), "{width}x{height} {part}: {text}");
            }
        }
        // Any size of terminal works.
        for (width, height) in [(10, 3), (1, 1), (200, 1), (1, 60), (40, 5), (3, 18)] {
            drawn(&state, width, height);
            drawn(&ScreenModel::default(), width, height);
        }
    }

    #[test]
    fn a_series_shows_the_current_and_finished_parts() {
        let mut state = ScreenModel::default();
        state.apply(UiMessage::Update(UiUpdate::Title(
            "sweep of throughput far".to_owned(),
        )));
        for number in 1..=7 {
            state.apply(UiMessage::Update(UiUpdate::PartStarted(SeriesPart {
                name: "run",
                number,
                total: Some(12),
                at_most: false,
                settings: format!("length={number}K"),
            })));
            state.apply(UiMessage::Update(UiUpdate::Line(format!(
                "run {number} of 12: length={number}K: {number} Gbit/s"
            ))));
        }
        state.current.run.duration_ns = Some(1_000_000_000);
        state.current.run.now_ns = 500_000_000;
        for (width, height) in [(80, 24), (200, 60), (40, 12)] {
            let text = drawn(&state, width, height);
            for part in [
                "sweep of throughput far",
                "now: length=7K",
                "run 7 of 12: 0 ms",
                "length=7K: 7 Gbit/s",
                "none so far",
            ] {
                assert!(text.contains(part), "{width}x{height} {part}: {text}");
            }
        }
        assert!(drawn(&state, 200, 60).contains("run 1 of 12"));
    }

    /// A curve shows one direction only.
    #[test]
    fn both_directions_of_a_run_have_their_own_rate() {
        let mut state = ScreenModel::default();
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "192.0.2.1");
        plan.directions = vec![Direction::Send, Direction::Receive];
        state.current.run = LiveRun::from_plan(&plan);
        for (direction, bytes) in [("send", 1_000), ("receive", 250), ("send", 500)] {
            let interval = serde_json::json!({
                "start_ns": 0, "end_ns": 1_000_000_000u64, "direction": direction,
                "counted_at": "receiver", "bytes": bytes,
            });
            let interval = serde_json::from_value(interval).expect("an interval");
            state.current.run.add_interval(&interval);
        }
        for (width, height) in [(80, 24), (80, 40), (60, 12)] {
            let text = drawn(&state, width, height);
            for rate in ["send 4.00 kb/s", "receive 2.00 kb/s"] {
                assert!(text.contains(rate), "{width}x{height} {rate}: {text}");
            }
        }
        let text = drawn(&state, 80, 24);
        for scale in ["full height: 8.00 kb/s", "full height: 2.00 kb/s"] {
            assert!(text.contains(scale), "{scale}: {text}");
        }
    }

    #[test]
    fn a_silent_run_shows_its_elapsed_time() {
        let mut state = ScreenModel::default();
        state.set_elapsed(Duration::from_secs(60));
        state.apply(UiMessage::Update(UiUpdate::PartStarted(SeriesPart {
            name: "point",
            number: 3,
            total: Some(4),
            settings: "hops=2".to_owned(),
            ..SeriesPart::default()
        })));
        state.set_elapsed(Duration::from_secs(65));
        for (width, height) in [(100, 24), (100, 12)] {
            let text = drawn(&state, width, height);
            for part in [
                "now: hops=2",
                "point 3 of 4: 1 min 05 s",
                "point 3, for 5 s: no data yet",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "192.0.2.1");
        (plan.interval_ns, plan.duration_ns) = (Some(0), Some(10_000_000_000));
        state.current.run = LiveRun::from_plan(&plan);
        let text = drawn(&state, 100, 24);
        for part in ["UDP latency with 192.0.2.1", "for 5 s", "-i 0"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn lines_are_broken_at_spaces_and_long_words_within() {
        assert_eq!(wrap("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("", 3), [""]);
        let parts = ["p50 1 us", "p99 2 us", "max 30 us"].map(str::to_owned);
        assert_eq!(join_parts(&parts, 18), ["p50 1 us  p99 2 us", "max 30 us"]);
        assert_eq!(truncate("abcdef", 4), "abc…");
    }
}
