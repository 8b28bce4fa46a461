//! Where the time of a round trip went.

use linerate_metric::plan::Stamping;
use linerate_metric::record::{Record, Stage, StagePass};
use linerate_metric::units::{format_count, format_nanos, format_share};

use super::sentence_note;
use super::table::table;
use crate::style::{Paint, Style, clean, wrap};

/// Characters of the longest bar.
const BAR: usize = 18;

/// The stages as a table, with how they were found; `None` when nobody asked for them.
pub(super) fn stages(record: &Record, style: &Style) -> Option<String> {
    let pass = record.stage_pass.as_ref()?;
    let mut blocks = Vec::new();
    if !record.stages.is_empty() {
        blocks.push(rows(record, pass, style));
    }
    let lines: Vec<_> = wrap(&pass_words(record, pass), style.width)
        .iter()
        .map(|line| style.paint(Paint::Dim, line))
        .collect();
    blocks.push(lines.join("\n"));
    let notes = pass.notes.iter();
    blocks.extend(notes.map(|why| sentence_note(&clean(why), style, style.width)));
    Some(blocks.join("\n"))
}

fn rows(record: &Record, pass: &StagePass, style: &Style) -> String {
    let whole = pass.sum_of_medians_ns.max(1) as f64;
    let longest = record.stages.iter().map(|stage| stage.p50_ns).max();
    let longest = longest.unwrap_or(1).max(1) as f64;
    let row = |stage: &Stage, is_part: bool| {
        let bar = (stage.p50_ns as f64 / longest * BAR as f64).round() as usize;
        let (indent, bar, share) = if is_part {
            // A part is of another pass: it has no share of this one's sum.
            (
                "  ",
                style.glyph("▒", "-").repeat(bar.min(BAR)),
                String::new(),
            )
        } else {
            let share = format_share(stage.p50_ns as f64 / whole);
            ("", style.glyph("█", "#").repeat(bar), share)
        };
        vec![
            format!("{indent}{}", clean(&stage.stage)),
            bar,
            share,
            format_nanos(stage.p50_ns as f64),
            format_nanos(stage.p90_ns as f64),
            format_nanos(stage.p99_ns as f64),
        ]
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for stage in &record.stages {
        rows.push(row(stage, false));
        rows.extend(stage.parts.iter().map(|part| row(part, true)));
    }
    rows.push(vec![
        "sum of medians".to_owned(),
        String::new(),
        String::new(),
        format_nanos(pass.sum_of_medians_ns as f64),
        String::new(),
        String::new(),
    ]);
    table(&["stage", "", "share", "p50", "p90", "p99"], rows, 2, style)
}

/// How the stages were found, in one sentence or two.
pub(crate) fn pass_words(record: &Record, pass: &StagePass) -> String {
    let mut text = match &pass.rtt_ns {
        None => "no round trip of the stamped pass has all of its stamps".to_owned(),
        Some(rtt) => format!(
            "stages of {} stamped round trips ({} stamps), p50 {}",
            format_count(pass.round_trips),
            stamps(record),
            format_nanos(rtt.p50 as f64)
        ),
    };
    if pass.left_out > 0 {
        text.push_str(&format!(
            " ({} lack a stamp and are left out)",
            format_count(pass.left_out)
        ));
    }
    if let Some(asking) = pass.asking_ns {
        let size = format_nanos(asking.unsigned_abs() as f64);
        // Then the difference is mostly of something else.
        let unlike = record
            .validity
            .iter()
            .any(|doubt| doubt.doubt == "stages-unlike");
        text.push_str(&if asking >= 0 && unlike {
            format!(
                "; that pass was {size} slower than the run, which is more than stamps cost: see \
                 stages-unlike"
            )
        } else if asking >= 0 {
            format!("; asking for the stamps cost {size}, and the figures above are without it")
        } else {
            format!("; the pass without stamps was {size} slower: the machine changed meanwhile")
        });
    }
    if let Some(watching) = pass.watching_ns.filter(|&cost| cost >= 0)
        && record.stages.iter().any(|stage| !stage.parts.is_empty())
    {
        text.push_str(&format!(
            "; indented parts are of a pass that watched the scheduler too, {} slower: they do not add up to their stage",
            format_nanos(watching as f64)
        ));
    }
    text.push_str(&clock_words(&record.stages));
    text
}

/// How far the clocks that stamped may be apart; empty where it was one clock.
fn clock_words(stages: &[Stage]) -> String {
    let by_device = stages.iter().any(|stage| stage.stamps == "hardware");
    let error = stages.iter().filter_map(|stage| stage.clock_error_ns).max();
    let error = error.map(|error| format_nanos(error as f64));
    match (by_device, error) {
        (_, None) => String::new(),
        (false, Some(error)) => {
            format!("; the hosts' clocks are known to {error}, which the two path stages share")
        }
        (true, Some(error)) => format!(
            "; devices' clocks, and hosts', are known to {error} in the worst stage, and neighbours share it with opposite signs"
        ),
    }
}

/// Which clocks gave the stamps.
fn stamps(record: &Record) -> String {
    let mut kinds: Vec<_> = (record.stages.iter())
        .map(|stage| clean(&stage.stamps).into_owned())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(" and ")
}

/// How the receive drivers worked, where that was asked for.
pub(super) fn drivers(record: &Record, style: &Style) -> Option<String> {
    let work = &record.timeline.as_ref()?.driver;
    if work.is_empty() {
        let asked = record.plan.stamps == Stamping::Driver;
        return asked.then(|| {
            let why =
                "receive driver: not known, because the kernel's tracepoints could not be read";
            wrap(why, style.width).join("\n")
        });
    }
    let rows = work.iter().map(|work| {
        let (period, duration) = (&work.period_ns, &work.duration_ns);
        vec![
            crate::figures::role(work.role).to_owned(),
            format_nanos(period.p50 as f64),
            format_nanos(period.p99 as f64),
            format_nanos(duration.p50 as f64),
            format_nanos(duration.p99 as f64),
        ]
    });
    Some(table(
        &[
            "receive driver",
            "period p50",
            "p99",
            "duration p50",
            "p99 ",
        ],
        rows.collect(),
        1,
        style,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_are_told() {
        let stage = |stamps: &str, clock_error_ns| Stage {
            stamps: stamps.to_owned(),
            clock_error_ns,
            ..Stage::default()
        };
        let own = stage("software", None);
        for (stages, want) in [
            (vec![own.clone()], ""),
            (
                vec![own.clone(), stage("software", Some(4_000))],
                "; the hosts' clocks",
            ),
            (
                vec![
                    stage("hardware", Some(300)),
                    own,
                    stage("hardware", Some(650)),
                ],
                "; devices' clocks, and hosts', are known to 650 ns",
            ),
        ] {
            let text = clock_words(&stages);
            assert!(
                text.starts_with(want) && text.is_empty() == want.is_empty(),
                "{text}"
            );
        }
    }
}
