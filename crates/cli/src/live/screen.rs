//! Drawing of the full-screen display.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};

use super::run::{Curve, Run};
use super::state::{Picture, State};

/// Minimum rows of the screen for frames around its parts and a curve of the rate.
const ROOMY: u16 = 18;

/// Maximum rows of the title.
const HEAD: usize = 2;

/// Minimum rows of a curve with its frame; below it, curves of both directions share a row.
const CURVE: u16 = 4;

/// Maximum columns of an interval, so that the first one does not fill the whole width.
const BROAD: usize = 8;

/// Draws the screen, in the terminal's own colours.
pub(super) fn draw(state: &State, frame: &mut Frame<'_>) {
    let area = frame.area();
    let width = usize::from(area.width);
    let picture = state.shown();
    let foot = foot(state, width);
    let head = head(picture, width);
    let [top, gauge, middle, bottom] = Layout::vertical([
        Constraint::Length(rows(&head)),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(rows(&foot)),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(text(&head).style(bold), top);
    let (share, label) = progress(picture);
    frame.render_widget(Gauge::default().ratio(share).label(label), gauge);
    match area.height < ROOMY {
        true => short(picture, frame, middle),
        false => roomy(picture, frame, middle),
    }
    frame.render_widget(text(&foot).style(bold), bottom);
}

/// Returns the title, and the current part of a series.
fn head(picture: &Picture, width: usize) -> Vec<String> {
    let title = match (picture.title.as_str(), picture.run.title.as_str()) {
        ("", "") => "starting",
        ("", title) | (title, _) => title,
    };
    let mut lines = wrap(&format!("linerate: {title}"), width);
    lines.truncate(HEAD);
    if let Some(part) = &picture.part {
        // A part is named by its setting, or by the title of its run if it has none.
        let words = match part.words.is_empty() {
            true => &picture.run.title,
            false => &part.words,
        };
        lines.push(cut(&format!("now: {words}"), width));
    }
    lines
}

/// Returns the progress as a fraction and as text.
fn progress(picture: &Picture) -> (f64, String) {
    let run = &picture.run;
    // Without intervals, the wall clock shows the progress.
    let now = match run.now_ns {
        0 => picture.going_on().as_secs_f64(),
        told => told as f64 / 1e9,
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
    let Some(part) = &picture.part else {
        return (share, time);
    };
    let time = format!("{time} ({} total)", clock(picture.elapsed));
    match part.of {
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

/// Formats a time: `42 s`, `3 min 07 s`, `2 h 05 min`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

/// Draws each part with a frame, on a large screen.
fn roomy(picture: &Picture, frame: &mut Frame<'_>, area: Rect) {
    let inner = usize::from(area.width.saturating_sub(2));
    let figures = figures(picture, inner);
    let findings = findings(picture, inner);
    let framed = |lines: &[String]| {
        u16::try_from(lines.len())
            .unwrap_or(u16::MAX)
            .saturating_add(2)
    };
    let is_series = picture.part.is_some() || !picture.done.is_empty();
    let done = listed(picture, inner, usize::from(area.height));
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
    curves(picture, frame, above);
    frame.render_widget(
        text(&figures).block(Block::bordered().title("figures")),
        below,
    );
    if is_series {
        let title = match picture.done.len() {
            0 => "finished: none yet".to_owned(),
            _ => "finished, latest first".to_owned(),
        };
        frame.render_widget(text(&done).block(Block::bordered().title(title)), list);
    }
    frame.render_widget(
        text(&findings).block(Block::bordered().title("findings")),
        last,
    );
}

/// Draws the parts without frames, on a small screen: latest figures, finished parts, findings.
fn short(picture: &Picture, frame: &mut Frame<'_>, area: Rect) {
    let width = usize::from(area.width);
    let room = usize::from(area.height);
    let mut lines = match (picture.run.curves.is_empty(), waited_for(picture)) {
        (true, Some(words)) => vec![cut(&words, width)],
        _ => wrap(&heading(picture), width),
    };
    lines.extend(figures(picture, width));
    lines.truncate(room.div_ceil(2).max(1));
    let left = room.saturating_sub(lines.len());
    let found = findings(picture, width);
    let done = listed(picture, width, left);
    // Finished parts and findings share the rows: each gets half, and the rows that the other does
    // not need.
    let for_found = found
        .len()
        .min((left / 2).max(left.saturating_sub(done.len())));
    lines.extend(done.into_iter().take(left - for_found));
    lines.extend(found.into_iter().take(for_found));
    frame.render_widget(text(&lines), area);
}

/// Returns the latest rate, per direction if there are two.
fn heading(picture: &Picture) -> String {
    let run = &picture.run;
    match &run.curves[..] {
        [] => "rate: none yet".to_owned(),
        curves => {
            let rates: Vec<String> = (curves.iter())
                .map(|curve| rate_of(run, curve, curves.len() > 1))
                .collect();
            format!("rate: {}", rates.join(", "))
        }
    }
}

fn rate_of(run: &Run, curve: &Curve, is_named: bool) -> String {
    let rate = run.rate.format(curve.rates.back().copied().unwrap_or(0.0));
    match curve.direction.filter(|_| is_named) {
        Some(direction) => format!("{direction} {rate}"),
        None => rate,
    }
}

/// Draws one curve per direction, one above the other.
fn curves(picture: &Picture, frame: &mut Frame<'_>, area: Rect) {
    let run = &picture.run;
    let several = run.curves.len() > 1;
    if run.curves.is_empty() {
        let block = Block::bordered().title(heading(picture));
        let width = usize::from(block.inner(area).width);
        let lines = match waited_for(picture) {
            Some(words) => wrap(&words, width),
            None => Vec::new(),
        };
        return frame.render_widget(text(&lines).block(block), area);
    }
    let count = u16::try_from(run.curves.len()).unwrap_or(u16::MAX);
    let each = Constraint::Fill(1);
    let layout = match area.height / count >= CURVE {
        true => Layout::vertical(vec![each; run.curves.len()]),
        false => Layout::horizontal(vec![each; run.curves.len()]),
    };
    for (part, curve) in layout.split(area).iter().zip(&run.curves) {
        let title = match several {
            true => rate_of(run, curve, true),
            false => heading(picture),
        };
        self::curve(run, curve, title, frame, *part);
    }
}

/// Returns the text in place of a rate before the first one arrives.
fn waited_for(picture: &Picture) -> Option<String> {
    let run = &picture.run;
    let going_on = clock(picture.going_on());
    match (&picture.part, run.has_begun()) {
        (_, true) if run.losses.is_some() => Some("this run has ended".to_owned()),
        (_, true) if run.is_silent => Some(format!(
            "{}, for {going_on}: no intervals (-i 0), figures follow at the end",
            run.title
        )),
        (_, true) => Some(format!("{}, for {going_on}", run.title)),
        (Some(part), false) => Some(format!(
            "{} {}, for {going_on}: no data yet",
            part.name, part.number
        )),
        (None, false) => None,
    }
}

fn curve(run: &Run, curve: &Curve, title: String, frame: &mut Frame<'_>, area: Rect) {
    let rates = &curve.rates;
    let block = Block::bordered().title(title);
    let width = usize::from(block.inner(area).width);
    let seen = rates.iter().copied().fold(0.0, f64::max);
    // Heights are fractions of the highest rate, which is the scale.
    let block = match seen > 0.0 {
        true => {
            let full = format!("full height: {}", run.rate.format(seen));
            block.title_bottom(Line::from(full).right_aligned())
        }
        false => block,
    };
    // Sparklines take integers: a thousandth of the highest rate is finer than a cell.
    let shown = columns(
        rates
            .iter()
            .skip(rates.len().saturating_sub(width))
            .map(|rate| (rate / seen.max(1.0) * 1000.0) as u64)
            .collect(),
        width,
    );
    frame.render_widget(
        Sparkline::default().block(block).data(&shown).max(1000),
        area,
    );
}

/// Repeats each height so that few intervals fill the width in broad columns.
fn columns(heights: Vec<u64>, width: usize) -> Vec<u64> {
    let broad = (width / heights.len().max(1)).clamp(1, BROAD);
    let each = heights.into_iter();
    each.flat_map(|height| std::iter::repeat_n(height, broad))
        .collect()
}

fn figures(picture: &Picture, width: usize) -> Vec<String> {
    let lines = picture.run.figures().into_iter();
    lines.flat_map(|parts| flow(&parts, width)).collect()
}

fn findings(picture: &Picture, width: usize) -> Vec<String> {
    let found = picture.findings();
    if found.is_empty() {
        let none = "none so far: causes are shown when the run has ended";
        return wrap(none, width);
    }
    found.iter().flat_map(|text| wrap(text, width)).collect()
}

/// Returns at most `rows` lines of finished parts.
fn listed(picture: &Picture, width: usize, rows: usize) -> Vec<String> {
    let lines = picture.done.iter().flat_map(|line| wrap(line, width));
    lines.take(rows).collect()
}

fn foot(state: &State, width: usize) -> Vec<String> {
    let paused = if state.is_paused() { "PAUSED  " } else { "" };
    let said = Some(&state.said).filter(|said| !said.is_empty());
    // A message replaces the key list, but not a manual step that is waiting.
    let (first, then) = match (&state.hands, said) {
        (Some((words, _)), said) => (format!("{words}, then press Enter"), said),
        (None, Some(said)) => (said.clone(), None),
        (None, None) => ("p pause  s save  q quit".to_owned(), None),
    };
    let mut lines = wrap(&format!("{paused}{first}"), width);
    lines.extend(then.iter().flat_map(|said| wrap(said, width)));
    lines
}

fn rows(lines: &[String]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}

fn text(lines: &[String]) -> Paragraph<'static> {
    Paragraph::new(lines.iter().cloned().map(Line::from).collect::<Vec<_>>())
}

/// Truncates a text, with an ellipsis in place of the rest.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width && width > 0 {
        true => text.chars().take(width - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Joins parts into lines of at most `width` columns; longer parts wrap.
fn flow(parts: &[String], width: usize) -> Vec<String> {
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
    let mut room = width;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if room < width && length + 1 > room {
            lines.push(String::new());
            room = width;
        }
        let line = lines.last_mut().expect("there is a line from the start");
        if room < width {
            line.push(' ');
            room -= 1;
        }
        if length <= room {
            line.push_str(word);
            room -= length;
            continue;
        }
        for letter in word.chars() {
            if room == 0 {
                lines.push(String::new());
                room = width;
            }
            lines.last_mut().expect("one was pushed").push(letter);
            room -= 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::Told;
    use crate::ui_update::{Part, Scene};
    use linerate_measure::SeenPlace;
    use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame)).unwrap();
        terminal.backend().to_string()
    }

    fn running() -> State {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "192.0.2.1");
        (plan.port, plan.duration_ns) = (5_201, Some(10_000_000_000));
        let mut run = Run::of(&plan);
        run.now_ns = 2_500_000_000;
        (run.lost, run.asked) = (Some(3), 100);
        run.curves = vec![Curve {
            direction: Some(Direction::Send),
            rates: [100.0, 200.0, 150.0].into(),
        }];
        let seen = |place, packets| SeenPlace {
            direction: Direction::Send,
            place,
            packets,
        };
        run.seen = vec![
            seen("qdisc", Some(3)),
            seen("interface-tx", Some(0)),
            seen("udp-receive-queue", None),
        ];
        let mut state = State::default();
        state.take(Told::Scene(Scene::Remark(
            "the cores are shared".to_owned(),
        )));
        state.picture.run = run;
        state
    }

    #[test]
    fn the_picture_has_rate_percentiles_losses_and_findings() {
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
            "the cores are shared",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The file name is readable at the usual width.
        let said = "saved 1234 events to linerate-live-20261122T213605Z.jsonl";
        state.say(said.to_owned());
        assert!(drawn(&state, 80, 24).contains(said));
        let narrow = drawn(&state, 40, 12);
        assert!(
            narrow.contains("linerate-live-20261122T213605Z.jsonl"),
            "{narrow}"
        );
        // A manual step is shown too, and replaces an earlier message.
        let (sender, _waiting) = std::sync::mpsc::channel();
        state.take(Told::Scene(Scene::Hands("set hops=2".to_owned(), sender)));
        let text = drawn(&state, 80, 24);
        assert!(text.contains("set hops=2, then press Enter"), "{text}");
        assert!(!text.contains("saved"), "{text}");
        state.say(said.to_owned());
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
            drawn(&State::default(), width, height);
        }
    }

    #[test]
    fn of_a_series_it_shows_what_runs_and_what_is_over() {
        let mut state = State::default();
        state.take(Told::Scene(Scene::Title(
            "sweep of throughput far".to_owned(),
        )));
        for number in 1..=7 {
            state.take(Told::Scene(Scene::Part(Part {
                name: "run",
                number,
                of: Some(12),
                at_most: false,
                words: format!("length={number}K"),
            })));
            state.take(Told::Scene(Scene::Line(format!(
                "run {number} of 12: length={number}K: {number} Gbit/s"
            ))));
        }
        state.picture.run.duration_ns = Some(1_000_000_000);
        state.picture.run.now_ns = 500_000_000;
        for (width, height) in [(80, 24), (200, 60), (40, 12)] {
            let text = drawn(&state, width, height);
            for part in [
                "sweep of throughput far",
                "now: length=7K",
                "run 7 of 12: 0.5 of 1.0 s",
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
        let mut state = State::default();
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "192.0.2.1");
        plan.directions = vec![Direction::Send, Direction::Receive];
        state.picture.run = Run::of(&plan);
        for (direction, bytes) in [("send", 1_000), ("receive", 250), ("send", 500)] {
            let interval = serde_json::json!({
                "start_ns": 0, "end_ns": 1_000_000_000u64, "direction": direction,
                "counted_at": "receiver", "bytes": bytes,
            });
            let interval = serde_json::from_value(interval).expect("an interval");
            state.picture.run.interval(&interval);
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
    fn a_run_that_tells_nothing_before_its_end_is_seen_going_on() {
        let mut state = State::default();
        state.pass(Duration::from_secs(60));
        state.take(Told::Scene(Scene::Part(Part {
            name: "point",
            number: 3,
            of: Some(4),
            words: "hops=2".to_owned(),
            ..Part::default()
        })));
        state.pass(Duration::from_secs(65));
        for (width, height) in [(100, 24), (100, 12)] {
            let text = drawn(&state, width, height);
            for part in [
                "now: hops=2",
                "point 3 of 4: 5.0 s (1 min 05 s total)",
                "point 3, for 5 s: no data yet",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "192.0.2.1");
        (plan.interval_ns, plan.duration_ns) = (Some(0), Some(10_000_000_000));
        state.picture.run = Run::of(&plan);
        let text = drawn(&state, 100, 24);
        for part in [
            "UDP latency with 192.0.2.1",
            "for 5 s",
            "-i 0",
            "5.0 of 10.0 s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn lines_are_broken_at_spaces_and_long_words_within() {
        assert_eq!(wrap("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("", 3), [""]);
        let parts = ["p50 1 us", "p99 2 us", "max 30 us"].map(str::to_owned);
        assert_eq!(flow(&parts, 18), ["p50 1 us  p99 2 us", "max 30 us"]);
        assert_eq!(cut("abcdef", 4), "abc…");
    }
}
