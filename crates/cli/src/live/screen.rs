//! The picture on a terminal.

use linerate_metric::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline, Wrap};

use super::state::{Rate, State};

/// Draws it. Colours are left to the terminal.
pub(super) fn draw(state: &State, frame: &mut Frame<'_>) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let [head, gauge, curve, figures, findings, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(4),
        Constraint::Length(5),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let title = match state.title.is_empty() {
        true => "linerate: starting".to_owned(),
        false => format!("linerate: {}", state.title),
    };
    frame.render_widget(Line::styled(title, bold), head);
    let now = state.now_ns as f64 / 1e9;
    let (share, label) = match state.duration_ns {
        Some(all) if all > 0 => (
            (state.now_ns as f64 / all as f64).clamp(0.0, 1.0),
            format!("{now:.1} of {:.1} s", all as f64 / 1e9),
        ),
        _ => (0.0, format!("{now:.1} s")),
    };
    frame.render_widget(Gauge::default().ratio(share).label(label), gauge);

    let format = |rate: f64| match state.rate {
        Rate::Trips => format!("{} round trips", format_per_second(rate)),
        Rate::Frames => format!("{} frames", format_per_second(rate)),
        Rate::Bits => format_bit_rate(rate),
    };
    let latest = state.rates.back().copied();
    let heading = latest.map_or_else(
        || "rate".to_owned(),
        |rate| format!("rate: {}", format(rate)),
    );
    let block = Block::bordered().title(heading);
    let width = usize::from(block.inner(curve).width);
    let seen = state.rates.iter().copied().fold(0.0, f64::max);
    let highest = seen.max(1.0);
    // The heights are shares of the highest: it is the scale.
    let block = match seen > 0.0 {
        true => {
            block.title_bottom(Line::from(format!("full height: {}", format(seen))).right_aligned())
        }
        false => block,
    };
    // Sparklines take whole numbers: a thousandth of the highest is finer than a cell.
    let shown = columns(
        state
            .rates
            .iter()
            .skip(state.rates.len().saturating_sub(width))
            .map(|rate| (rate / highest * 1000.0) as u64)
            .collect(),
        width,
    );
    frame.render_widget(
        Sparkline::default().block(block).data(&shown).max(1000),
        curve,
    );

    frame.render_widget(
        Paragraph::new(lines(state)).block(Block::bordered().title("figures")),
        figures,
    );
    let doubts = state.doubts();
    let text = match doubts.is_empty() {
        true if !state.trials.is_empty() => {
            state.trials.iter().cloned().collect::<Vec<_>>().join("\n")
        }
        true => "no doubt so far; what slows the run is told when it is over".to_owned(),
        false => doubts.join("\n"),
    };
    frame.render_widget(
        Paragraph::new(text)
            .wrap(Wrap { trim: true })
            .block(
                Block::bordered().title(match (&doubts[..], state.trials.is_empty()) {
                    ([], false) => "trials",
                    _ => "doubts",
                }),
            ),
        findings,
    );
    let paused = if state.paused { "PAUSED  " } else { "" };
    // What a key led to has the whole line for itself: the name of a file is there to be read.
    let keys = match state.said.is_empty() {
        true => format!("{paused}p pause  s save  q quit"),
        false => format!("{paused}{}", state.said),
    };
    frame.render_widget(Line::styled(keys, bold), foot);
}

/// As many columns as there are: few intervals are drawn as broad ones, which a glance can compare.
fn columns(heights: Vec<u64>, width: usize) -> Vec<u64> {
    let broad = (width / heights.len().max(1)).clamp(1, BROAD);
    let each = heights.into_iter();
    each.flat_map(|height| std::iter::repeat_n(height, broad))
        .collect()
}

/// Columns of an interval at most: the first one alone is not the whole width.
const BROAD: usize = 8;

/// The latest percentiles, and what was lost.
fn lines(state: &State) -> Vec<Line<'static>> {
    let trips = state.trips.map(|trips| {
        let time = |ns: u64| format_nanos(ns as f64);
        format!(
            "p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
            time(trips.p50),
            time(trips.p90),
            time(trips.p99),
            time(trips.p99_9),
            time(trips.max)
        )
    });
    let mut losses: Vec<String> = state
        .losses
        .iter()
        .map(|loss| format!("{} lost at {}", format_count(loss.packets), loss.place))
        .collect();
    if losses.is_empty() {
        losses.extend(
            state.loss().map(|(lost, share)| {
                format!("{} lost ({})", format_count(lost), format_share(share))
            }),
        );
        let again = state.retransmits;
        losses.extend(again.map(|again| format!("{} sent again", format_count(again))));
    }
    let mut lines: Vec<String> = trips.into_iter().collect();
    lines.push(losses.join("  "));
    lines.into_iter().map(Line::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(state, frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_picture_has_rate_percentiles_losses_and_findings() {
        let mut state = State {
            title: "UDP latency with 192.0.2.1:5201".to_owned(),
            rate: Rate::Trips,
            duration_ns: Some(10_000_000_000),
            now_ns: 2_500_000_000,
            lost: Some(3),
            asked: 100,
            findings: vec!["the cores are shared".to_owned()],
            ..State::default()
        };
        state.rates.extend([100.0, 200.0, 150.0]);
        let text = drawn(&state, 80, 24);
        for part in [
            "192.0.2.1:5201",
            "2.5 of 10.0 s",
            "150 /s",
            "3 lost (3.00 %)",
            "3 questions have no answer (3.00 %)",
            "full height: 200 /s",
            "the cores are shared",
            "q quit",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // A file's name is readable at the usual width, and the keys come back.
        let said = "saved 1234 events to linerate-live-20261122T213605Z.jsonl";
        state.say(said.to_owned());
        assert!(drawn(&state, 80, 24).contains(said));
        state.said.clear();
        state.rate = Rate::Frames;
        state.lost = None;
        state.findings.clear();
        state.trials.push_front("trial 7, throughput".to_owned());
        let text = drawn(&state, 80, 24);
        assert!(
            text.contains("150 /s frames") && text.contains("trial 7"),
            "{text}"
        );
        // However small the terminal is.
        drawn(&state, 10, 3);
        drawn(&State::default(), 1, 1);
    }
}
