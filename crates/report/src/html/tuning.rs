//! Result of a search over knobs as HTML: before and after, changes and commands, rejected
//! settings.

use linerate_record::expect::FigureUnit::Nanos;
use linerate_record::experiment::KnobValues;
use linerate_record::figure as figures;
use linerate_record::plan::RunKind;
use linerate_record::run_set::RunSet;
use linerate_record::tuning::{Tuning, TuningTrial};
use linerate_stats::units::{format_bytes, format_share};

use super::figure::{self, ChartData, ChartRow};
use super::{axis_unit, with_micro_sign};
use crate::model::{self, Grid};
use crate::svg::{
    AxisUnit, ChartAxis, ChartSeries, LineChart, ReferenceLine, SeriesMark, escape_markup,
};

/// Renders the search, the goal before and after, and the changes with their commands.
pub(super) fn tuning_section(set: &RunSet) -> String {
    let Some(tuning) = set.result.tuning.as_deref() else {
        return String::new();
    };
    let mut out = format!(
        "<section>\n<h2>Before and after</h2>\n<p class=\"muted\">{} of <code>linerate {}</code>; {}.</p>\n",
        escape_markup(&tuning.goal),
        escape_markup(&tuning.command),
        escape_markup(&crate::tuning::describe_spent_runs(tuning))
    );
    match crate::tuning::before_after_table(tuning) {
        Some(mut grid) => {
            // The page has space for longer labels.
            for row in &mut grid.rows {
                match row[0].as_str() {
                    "buffers" => "memory of the socket buffers, both ends".clone_into(&mut row[0]),
                    "cpu" => row[0] = format!("CPU time of both ends, {}", cpu_time_unit(set)),
                    _ => {}
                }
            }
            out.push_str(&figure::render_grid(&grid));
        }
        None => out.push_str(&paragraph(&crate::tuning::explain_missing_proof(tuning))),
    }
    if let Some(limit) = tuning.memory_limit_bytes {
        out.push_str(&paragraph(&format!(
            "Memory limit of a setting: {}.",
            format_bytes(limit)
        )));
    }
    out.push_str(&finding_table(tuning));
    out.push_str("</section>\n");
    out.push_str(&change_section(tuning));
    out
}

/// Returns the unit of CPU time of a run.
fn cpu_time_unit(set: &RunSet) -> &'static str {
    match set.runs.first().map(|run| run.kind) {
        Some(RunKind::Latency) => "per round trip",
        _ => "per byte",
    }
}

fn paragraph(sentence: &str) -> String {
    format!("<p>{}</p>\n", escape_markup(&with_micro_sign(sentence)))
}

/// Renders the findings of the first measurement and the knobs that were therefore tried first.
fn finding_table(tuning: &Tuning) -> String {
    let rows = tuning.findings.iter().map(|finding| {
        vec![
            finding.cause.to_string(),
            finding.summary.clone(),
            format_share(finding.cost),
            crate::tuning::describe_knobs(finding),
        ]
    });
    let headings = ["cause", "finding", "cost", "tried first"];
    let grid = Grid::new(&headings, rows.collect(), 2);
    grid.map_or_else(String::new, |grid| {
        format!(
            "<h3>Findings of the baseline</h3>\n{}",
            figure::render_grid(&grid)
        )
    })
}

/// Renders the changes, their commands, and snippets for other tools.
fn change_section(tuning: &Tuning) -> String {
    let Some(grid) = crate::tuning::change_table(tuning) else {
        return String::new();
    };
    let mut out = format!(
        "<section>\n<h2>Changes</h2>\n{}<p class=\"muted\">Last column: {} with all changes but \
         this one.</p>\n",
        figure::render_grid(&grid),
        escape_markup(&tuning.goal)
    );
    if let Some(mark) = crate::tuning::undecided_note(tuning) {
        out.push_str(&paragraph(mark));
    }
    match tuning.proof.is_some() {
        true => {
            out.push_str("<h3>Command with the changes</h3>\n");
            out.push_str(&figure::render_commands(&format!(
                "linerate {}",
                tuning.tuned_command
            )));
        }
        false => out.push_str(&paragraph(crate::tuning::UNPROVED_NOTE)),
    }
    let commands: Vec<&str> = (tuning.changes.iter())
        .flat_map(|change| change.commands.iter().map(String::as_str))
        .collect();
    if !commands.is_empty() {
        out.push_str("<h3>Commands for the settings</h3>\n");
        out.push_str(&figure::render_commands(&commands.join("\n")));
    }
    for snippet in &tuning.snippets {
        let heading = model::capitalise(crate::tuning::snippet_use(&snippet.format));
        out.push_str(&format!("<h3>{}</h3>\n", escape_markup(&heading)));
        out.push_str(&figure::render_commands(&snippet.text));
    }
    if tuning.settings_kept {
        out.push_str(&paragraph(crate::tuning::KEPT_NOTE));
    }
    out.push_str("</section>\n");
    out
}

/// Renders the rejected settings and the trials of the search.
pub(super) fn rejected_section(set: &RunSet) -> String {
    let Some(tuning) = set.result.tuning.as_deref() else {
        return String::new();
    };
    let rows = (tuning.rejected.iter()).map(|rejected| {
        vec![
            rejected.knob.clone(),
            rejected.value.clone(),
            rejected.reason.clone(),
        ]
    });
    let rejected = Grid::new(&["knob", "value", "why"], rows.collect(), 3);
    let rejected = rejected.map_or_else(String::new, |grid| {
        format!("<h2>Rejected settings</h2>\n{}", figure::render_grid(&grid))
    });
    let trials = trial_chart(tuning);
    match rejected.is_empty() && trials.is_empty() {
        true => String::new(),
        false => format!("<section>\n{rejected}{trials}</section>\n"),
    }
}

/// Describes a setting: `rcvbuf=64K wait=spin`; `start` for the empty setting.
fn describe_setting(setting: &KnobValues) -> String {
    let set: Vec<String> = (setting.iter())
        .map(|(knob, value)| format!("{knob}={value}"))
        .collect();
    match set.is_empty() {
        true => "baseline".to_owned(),
        false => set.join(" "),
    }
}

/// Renders the figure of each trial, with that of the start as reference.
fn trial_chart(tuning: &Tuning) -> String {
    let measured: Vec<(usize, f64, &TuningTrial)> = (tuning.trials.iter().enumerate())
        .filter_map(|(number, trial)| Some((number + 1, trial.value?, trial)))
        .collect();
    if measured.len() < 2 {
        return String::new();
    }
    let values = || measured.iter().map(|(_, value, _)| *value);
    let (lowest, highest) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    );
    let unit =
        figures::find(&tuning.goal).map_or(AxisUnit::COUNT, |goal| axis_unit(goal.unit, highest));
    let written = |value: f64| with_micro_sign(&figures::format(&tuning.goal, value));
    let start = (measured.iter()).find(|(_, _, trial)| trial.setting.is_empty());
    let chart = LineChart {
        title: format!("Trials of the search: {}", tuning.goal),
        is_secondary: false,
        x: ChartAxis::between("trial", 1.0, tuning.trials.len() as f64, AxisUnit::COUNT),
        // A logarithmic axis, because a single slow trial would compress the fast ones.
        y: match figures::find(&tuning.goal).map(|goal| goal.unit) {
            Some(Nanos) => ChartAxis::log_time(&tuning.goal, lowest, highest),
            _ => ChartAxis::from_zero(&tuning.goal, highest, unit),
        },
        series: vec![ChartSeries {
            name: tuning.goal.clone(),
            mark: SeriesMark::Points(
                (measured.iter())
                    .map(|(number, value, _)| (*number as f64, *value))
                    .collect(),
            ),
        }],
        shades: Vec::new(),
        references: (start.iter())
            .map(|(_, value, _)| ReferenceLine {
                value: *value,
                label: "baseline".to_owned(),
            })
            .collect(),
    };
    let rows = measured.iter().map(|(number, value, trial)| {
        let rejection =
            (trial.rejected.as_ref()).map_or_else(String::new, |why| format!(" ({why})"));
        ChartRow {
            x: *number as f64,
            text: format!("{number}: {}{rejection}", describe_setting(&trial.setting)),
            cells: vec![Some((*value, written(*value)))],
        }
    });
    let data = ChartData {
        headings: vec!["trial".to_owned(), tuning.goal.clone()],
        rows: rows.collect(),
    };
    figure::render_chart(&chart, &data)
}

#[cfg(test)]
mod tests {
    use linerate_record::comparison::{
        BetterWhen, ComparisonSide, ComparisonSpec, RunPair, SIGNIFICANCE, compare_pairs,
    };
    use linerate_record::experiment::KnobValues;
    use linerate_record::ids::{CauseId, TuneStage};
    use linerate_record::run_set::{SET_SCHEMA, SetResult};
    use linerate_record::tuning::{
        ConfigSnippet, FindingHint, RejectedSetting, RunCounts, TuningChange,
    };
    use linerate_stats::statistics::estimate;

    use super::*;

    fn tuned(proved: bool) -> RunSet {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let run: linerate_record::record::Record = serde_json::from_str(text).unwrap();
        let spec = ComparisonSpec {
            figure: "goodput".to_owned(),
            better: BetterWhen::Higher,
            effect: 0.05,
            significance: SIGNIFICANCE,
        };
        let side = |label: &str| ComparisonSide {
            label: label.to_owned(),
            ..ComparisonSide::default()
        };
        let pairs = (0..9).map(|n| RunPair {
            a: 1e9 + f64::from(n) * 1e6,
            b: 3e9 + f64::from(n) * 2e6,
            b_first: n % 2 == 0,
            cache_line_rtt_ns: None,
            dropped: None,
        });
        let proof = compare_pairs(&spec, [side("baseline"), side("tuned")], pairs.collect());
        let trial = |setting: &[(&str, &str)], value| TuningTrial {
            setting: (setting.iter())
                .map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()))
                .collect::<KnobValues>(),
            value,
            ..TuningTrial::default()
        };
        let tuning = Tuning {
            goal: "goodput".to_owned(),
            better: BetterWhen::Higher,
            memory_limit_bytes: Some(1 << 20),
            command: "throughput <host> -t 1".to_owned(),
            tuned_command: "throughput <host> -t 1 --rcvbuf 64K".to_owned(),
            findings: vec![FindingHint {
                cause: CauseId::ReceiveWindow.into(),
                cost: 0.66,
                summary: "the receive window was full".to_owned(),
                knobs: vec!["rcvbuf".to_owned()],
            }],
            knobs: Vec::new(),
            changes: vec![TuningChange {
                knob: "rcvbuf".to_owned(),
                from: "4K".to_owned(),
                to: "64K".to_owned(),
                commands: vec!["sysctl -w net.ipv4.tcp_rmem='4096 65536 65536'".to_owned()],
                without: estimate(&[0.33]),
                undecided: false,
            }],
            snippets: vec![ConfigSnippet {
                format: "sysctl".to_owned(),
                text: "net.ipv4.tcp_rmem = 4096 65536 65536\n# a & b".to_owned(),
            }],
            rejected: vec![RejectedSetting {
                knob: "wait".to_owned(),
                value: "spin".to_owned(),
                reason: "no gain over the baseline".to_owned(),
            }],
            trials: vec![
                trial(&[], Some(1e9)),
                trial(&[("rcvbuf", "64K")], Some(3e9)),
                trial(&[("wait", "spin")], None),
            ],
            proof: proved.then(|| Box::new(proof)),
            memory_bytes: [Some(8192.0), Some(69_632.0)],
            cpu_ns: [Some(1.5), Some(0.5)],
            runs: 24,
            run_counts: RunCounts {
                search: 3,
                proof: 18,
                ..RunCounts::default()
            },
            stopped_in: (!proved).then(|| TuneStage::Proof.into()),
            best_trial: None,
            seed: 1,
            settings_kept: false,
        };
        RunSet {
            schema: SET_SCHEMA.to_owned(),
            id: "20261121T150000Z-5e7002".to_owned(),
            kind: "tune".to_owned(),
            started: run.started,
            interrupted: !proved,
            runs: vec![run],
            result: SetResult {
                tuning: Some(Box::new(tuning)),
                ..SetResult::default()
            },
        }
    }

    #[test]
    fn a_search_has_a_page_and_no_copy_of_the_terminal() {
        let page = crate::html::render_set("x", &tuned(true));
        for (aspect, text) in [
            (
                "before and after",
                "<td class=\"text\">goodput</td><td>1.00 Gb/s</td><td>3.01 Gb/s</td>",
            ),
            (
                "memory",
                "memory of the socket buffers, both ends</td><td>8 KiB</td><td>68 KiB</td>",
            ),
            ("CPU time", "CPU time of both ends, per byte</td>"),
            ("the limit", "Memory limit of a setting: 1 MiB"),
            (
                "what pointed there",
                "<td class=\"text\">the receive window was full</td><td>66.0 %</td><td>rcvbuf</td>",
            ),
            (
                "the change",
                "<td class=\"text short\">4K</td><td class=\"text short\">64K</td><td>-67 %</td>",
            ),
            (
                "the command, escaped",
                "linerate throughput &lt;host&gt; -t 1 --rcvbuf 64K</pre>",
            ),
            ("by hand", "sysctl -w net.ipv4.tcp_rmem="),
            ("as a file", "<h3>For a file in /etc/sysctl.d</h3>"),
            ("as it is there", "# a &amp; b</pre>"),
            (
                "in vain",
                "<td class=\"text short\">spin</td><td class=\"text\">no gain over the baseline</td>",
            ),
            ("the pairs", "Difference of B to A in each pair: goodput"),
            ("the search", "Trials of the search: goodput"),
            ("a trial", "2: rcvbuf=64K</th>"),
        ] {
            assert!(page.contains(text), "{aspect}: no `{text}` in {page}");
        }
        assert!(!page.contains("Rejected settings:"), "the terminal's text");
    }

    #[test]
    fn a_search_without_proof_promises_nothing() {
        let page = crate::html::render_set("x", &tuned(false));
        assert!(page.contains("Interrupted during the proof"), "{page}");
        assert!(page.contains(crate::tuning::UNPROVED_NOTE));
        assert!(!page.contains("Command with the changes"));
        assert!(!page.contains("in each pair"));
    }
}
