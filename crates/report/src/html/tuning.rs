//! Result of a search over knobs as HTML: before and after, changes and commands, rejected
//! settings.

use linerate_metric::expect::Unit::Nanos;
use linerate_metric::experiment::Setting;
use linerate_metric::figure as figures;
use linerate_metric::plan::Kind;
use linerate_metric::run_set::RunSet;
use linerate_metric::tuning::{Trial, Tuning};
use linerate_metric::units::{format_bytes, format_share};

use super::figure::{self, Data, Row};
use super::{pretty, unit};
use crate::phrases;
use crate::svg::{Axis, Chart, Mark, Reference, Series, Unit, escape};
use crate::text::{Grid, tuning as text};

/// Renders the search, the goal before and after, and the changes with their commands.
pub(super) fn section(set: &RunSet) -> String {
    let Some(found) = set.result.tuning.as_deref() else {
        return String::new();
    };
    let mut out = format!(
        "<section>\n<h2>Before and after</h2>\n<p class=\"muted\">{} of <code>linerate {}</code>; {}.</p>\n",
        escape(&found.goal),
        escape(&found.command),
        escape(&text::spent_words(found))
    );
    match text::before_and_after(found) {
        Some(mut grid) => {
            // The page has space for longer labels.
            for row in &mut grid.rows {
                match row[0].as_str() {
                    "buffers" => "memory of the socket buffers, both ends".clone_into(&mut row[0]),
                    "cpu" => row[0] = format!("CPU time of both ends, {}", for_what(set)),
                    _ => {}
                }
            }
            out.push_str(&figure::grid(&grid));
        }
        None => out.push_str(&paragraph(&text::without_proof(found))),
    }
    if let Some(limit) = found.memory_limit_bytes {
        out.push_str(&paragraph(&format!(
            "Memory limit of a setting: {}.",
            format_bytes(limit)
        )));
    }
    out.push_str(&pointed(found));
    out.push_str("</section>\n");
    out.push_str(&changes(found));
    out
}

/// Returns the unit of CPU time of a run.
fn for_what(set: &RunSet) -> &'static str {
    match set.runs.first().map(|run| run.kind) {
        Some(Kind::Latency) => "per round trip",
        _ => "per byte",
    }
}

fn paragraph(said: &str) -> String {
    format!("<p>{}</p>\n", escape(&pretty(said)))
}

/// Renders the findings of the first measurement and the knobs that were therefore tried first.
fn pointed(found: &Tuning) -> String {
    let rows = found.findings.iter().map(|finding| {
        vec![
            finding.cause.clone(),
            finding.what.clone(),
            format_share(finding.cost),
            text::pointed_words(finding),
        ]
    });
    let headings = ["cause", "finding", "cost", "tried first"];
    let grid = Grid::new(&headings, rows.collect(), 2);
    grid.map_or_else(String::new, |grid| {
        format!(
            "<h3>Findings of the first measurement</h3>\n{}",
            figure::grid(&grid)
        )
    })
}

/// Renders the changes, their commands, and snippets for other tools.
fn changes(found: &Tuning) -> String {
    let Some(grid) = text::changes(found) else {
        return String::new();
    };
    let mut out = format!(
        "<section>\n<h2>Changes</h2>\n{}<p class=\"muted\">Last column: {} with all changes but \
         this one.</p>\n",
        figure::grid(&grid),
        escape(&found.goal)
    );
    if let Some(mark) = text::undecided(found) {
        out.push_str(&paragraph(mark));
    }
    match found.proof.is_some() {
        true => {
            out.push_str("<h3>Command with the changes</h3>\n");
            out.push_str(&figure::commands(&format!(
                "linerate {}",
                found.tuned_command
            )));
        }
        false => out.push_str(&paragraph(text::UNPROVED)),
    }
    let commands: Vec<&str> = (found.changes.iter())
        .flat_map(|change| change.commands.iter().map(String::as_str))
        .collect();
    if !commands.is_empty() {
        out.push_str("<h3>Commands for the settings</h3>\n");
        out.push_str(&figure::commands(&commands.join("\n")));
    }
    for snippet in &found.snippets {
        let what = phrases::capitalised(text::of_format(&snippet.format));
        out.push_str(&format!("<h3>{}</h3>\n", escape(&what)));
        out.push_str(&figure::commands(&snippet.text));
    }
    if found.kept {
        out.push_str(&paragraph(text::KEPT));
    }
    out.push_str("</section>\n");
    out
}

/// Renders the rejected settings and the trials of the search.
pub(super) fn in_vain(set: &RunSet) -> String {
    let Some(found) = set.result.tuning.as_deref() else {
        return String::new();
    };
    let rows = (found.vain.iter())
        .map(|vain| vec![vain.knob.clone(), vain.value.clone(), vain.why.clone()]);
    let vain = Grid::new(&["knob", "value", "why"], rows.collect(), 3);
    let vain = vain.map_or_else(String::new, |grid| {
        format!("<h2>Rejected settings</h2>\n{}", figure::grid(&grid))
    });
    let trials = trials(found);
    match vain.is_empty() && trials.is_empty() {
        true => String::new(),
        false => format!("<section>\n{vain}{trials}</section>\n"),
    }
}

/// Describes a setting: `rcvbuf=64K wait=spin`; `start` for the empty setting.
fn setting_words(setting: &Setting) -> String {
    let set: Vec<String> = (setting.iter())
        .map(|(knob, value)| format!("{knob}={value}"))
        .collect();
    match set.is_empty() {
        true => "start".to_owned(),
        false => set.join(" "),
    }
}

/// Renders the figure of each trial, with that of the start as reference.
fn trials(found: &Tuning) -> String {
    let known: Vec<(usize, f64, &Trial)> = (found.trials.iter().enumerate())
        .filter_map(|(number, trial)| Some((number + 1, trial.value?, trial)))
        .collect();
    if known.len() < 2 {
        return String::new();
    }
    let values = || known.iter().map(|(_, value, _)| *value);
    let (lowest, highest) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    );
    let unit = figures::named(&found.goal).map_or(Unit::COUNT, |goal| unit(goal.unit, highest));
    let written = |value: f64| pretty(&figures::format(&found.goal, value));
    let start = (known.iter()).find(|(_, _, trial)| trial.setting.is_empty());
    let chart = Chart {
        title: format!("Trials of the search: {}", found.goal),
        low: false,
        x: Axis::between("trial", 1.0, found.trials.len() as f64, Unit::COUNT),
        // A logarithmic axis, because a single slow trial would compress the fast ones.
        y: match figures::named(&found.goal).map(|goal| goal.unit) {
            Some(Nanos) => Axis::log_time(&found.goal, lowest, highest),
            _ => Axis::from_zero(&found.goal, highest, unit),
        },
        series: vec![Series {
            name: found.goal.clone(),
            mark: Mark::Points(
                (known.iter())
                    .map(|(number, value, _)| (*number as f64, *value))
                    .collect(),
            ),
        }],
        shades: Vec::new(),
        references: (start.iter())
            .map(|(_, value, _)| Reference {
                value: *value,
                label: "start".to_owned(),
            })
            .collect(),
    };
    let rows = known.iter().map(|(number, value, trial)| {
        let refused = (trial.refused.as_ref()).map_or_else(String::new, |why| format!(" ({why})"));
        Row {
            x: *number as f64,
            text: format!("{number}: {}{refused}", setting_words(&trial.setting)),
            cells: vec![Some((*value, written(*value)))],
        }
    });
    let data = Data {
        headings: vec!["trial".to_owned(), found.goal.clone()],
        rows: rows.collect(),
    };
    figure::chart(&chart, &data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::comparison::{Better, Pair, Question, SIGNIFICANCE, Side, of_pairs};
    use linerate_metric::experiment::Setting;
    use linerate_metric::run_set::{SET_SCHEMA, SetResult};
    use linerate_metric::statistics::estimate;
    use linerate_metric::tuning::{Change, Pointed, Snippet, Spent, Vain};

    fn tuned(proved: bool) -> RunSet {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let run: linerate_metric::record::Record = serde_json::from_str(text).unwrap();
        let question = Question {
            figure: "goodput".to_owned(),
            better: Better::Higher,
            effect: 0.05,
            significance: SIGNIFICANCE,
        };
        let side = |label: &str| Side {
            label: label.to_owned(),
            value: None,
            records: Vec::new(),
        };
        let pairs = (0..9).map(|n| Pair {
            a: 1e9 + f64::from(n) * 1e6,
            b: 3e9 + f64::from(n) * 2e6,
            b_first: n % 2 == 0,
            line_rtt_ns: None,
            dropped: None,
        });
        let proof = of_pairs(&question, [side("start"), side("tuned")], pairs.collect());
        let trial = |setting: &[(&str, &str)], value| Trial {
            setting: (setting.iter())
                .map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()))
                .collect::<Setting>(),
            value,
            ..Trial::default()
        };
        let tuning = Tuning {
            goal: "goodput".to_owned(),
            better: Better::Higher,
            memory_limit_bytes: Some(1 << 20),
            command: "throughput <host> -t 1".to_owned(),
            tuned_command: "throughput <host> -t 1 --rcvbuf 64K".to_owned(),
            findings: vec![Pointed {
                cause: "receive-window".to_owned(),
                cost: 0.66,
                what: "the receive window was full".to_owned(),
                knobs: vec!["rcvbuf".to_owned()],
            }],
            knobs: Vec::new(),
            changes: vec![Change {
                knob: "rcvbuf".to_owned(),
                from: "4K".to_owned(),
                to: "64K".to_owned(),
                commands: vec!["sysctl -w net.ipv4.tcp_rmem='4096 65536 65536'".to_owned()],
                without: estimate(&[0.33]),
                undecided: false,
            }],
            snippets: vec![Snippet {
                format: "sysctl".to_owned(),
                text: "net.ipv4.tcp_rmem = 4096 65536 65536\n# a & b".to_owned(),
            }],
            vain: vec![Vain {
                knob: "wait".to_owned(),
                value: "spin".to_owned(),
                why: "no gain over the start".to_owned(),
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
            spent: Spent {
                search: 3,
                proof: 18,
                ..Spent::default()
            },
            stopped_in: (!proved).then(|| "proof".to_owned()),
            best_seen: None,
            seed: 1,
            kept: false,
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
        let page = crate::html::of_set("x", &tuned(true));
        for (what, text) in [
            (
                "before and after",
                "<td class=\"text\">goodput</td><td>1.00 Gb/s</td><td>3.01 Gb/s</td>",
            ),
            (
                "memory",
                "memory of the socket buffers, both ends</td><td>8 KiB</td><td>68 KiB</td>",
            ),
            ("processor time", "CPU time of both ends, per byte</td>"),
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
                "<td class=\"text short\">spin</td><td class=\"text\">no gain over the start</td>",
            ),
            ("the pairs", "Difference of B to A in each pair: goodput"),
            ("the search", "Trials of the search: goodput"),
            ("a trial", "2: rcvbuf=64K</th>"),
        ] {
            assert!(page.contains(text), "{what}: no `{text}` in {page}");
        }
        assert!(!page.contains("Rejected settings:"), "the terminal's text");
    }

    #[test]
    fn a_search_without_proof_promises_nothing() {
        let page = crate::html::of_set("x", &tuned(false));
        assert!(page.contains("Interrupted during the proof"), "{page}");
        assert!(page.contains(text::UNPROVED));
        assert!(!page.contains("Command with the changes"));
        assert!(!page.contains("in each pair"));
    }
}
