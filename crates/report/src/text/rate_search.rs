//! Search for the highest rate as text: a line per trial, and the result.

use linerate_record::run_set::{RateSearchResult, RateSearchTrial, RunSet};
use linerate_stats::units::{format_precise_bit_rate, format_share};

use crate::phrases;
use crate::rate_search::{describe_result, describe_verdict, loss_limit_name, trial_table};
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap, wrap_with_prefix};

/// Describes a trial: `trial 3: 52.000 Mb/s intended, 52.000 Mb/s offered, 48.204 Mb/s received,
/// 7.30 % lost; fails: 1,612 datagrams lost`.
#[must_use]
pub fn describe_trial(trial: &RateSearchTrial, width: usize) -> String {
    let intended = match trial.intended_bps {
        Some(rate) => format!("{} intended", format_precise_bit_rate(rate)),
        None => "maximum rate".to_owned(),
    };
    let prefix = format!("trial {}: ", trial.number);
    let text = format!(
        "{intended}, {} offered, {} received, {} lost; {}",
        format_precise_bit_rate(trial.offered_bps),
        format_precise_bit_rate(trial.goodput_bps),
        format_share(trial.loss_fraction),
        describe_verdict(trial)
    );
    wrap_with_prefix(&prefix, &prefix, &text, width)
}

/// Renders the result of a search and its trials.
pub(super) fn render_search(set: &RunSet, search: &RateSearchResult, style: &TextStyle) -> String {
    let title = set.runs.first().map_or_else(String::new, |run| {
        format!(
            "{}: ",
            strip_control_characters(&phrases::plan_title(&run.plan))
        )
    });
    let title = format!("{title}highest rate with {}", loss_limit_name(search));
    let mut text = style.paint(PaintRole::Bold, &title);
    for line in wrap(&describe_result(search), style.width) {
        text.push('\n');
        text.push_str(&line);
    }
    text.push_str("\n\n");
    text.push_str(&trial_table(search).render(style));
    text
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::SearchEnd;
    use linerate_record::record::Record;
    use linerate_record::run_set::{SET_SCHEMA, SetResult};

    use super::*;

    #[test]
    fn trials_of_close_rates_print_apart_and_with_their_reasons() {
        let trial = |offered: f64, received: f64, lost: u64, failure: Option<&str>, repeated| {
            let trial: RateSearchTrial = serde_json::from_value(serde_json::json!({
                "number": 4, "intended_bps": offered, "offered_bps": offered,
                "goodput_bps": received, "loss_fraction": lost as f64 / 1e6, "lost": lost,
                "passed": failure.is_none(), "failure": failure, "is_repeated": repeated,
                "record": "x",
            }))
            .unwrap();
            describe_trial(&trial, 200)
        };
        for (text, expected) in [
            (
                trial(61.52e9, 61.52e9, 12, Some("loss"), true),
                "61.520 Gb/s intended, 61.520 Gb/s offered, 61.520 Gb/s received, <0.01 % lost; is \
                 repeated: 12 datagrams lost",
            ),
            (
                trial(61.48e9, 55.0e9, 0, Some("queue"), false),
                "61.480 Gb/s intended, 61.480 Gb/s offered, 55.000 Gb/s received, 0.00 % lost; fails: \
                 10.5 % arrived late, so a queue fills",
            ),
            (
                trial(1e9, 1e9, 0, None, false),
                "1.0000 Gb/s intended, 1.0000 Gb/s offered, 1.0000 Gb/s received, 0.00 % lost; passes",
            ),
        ] {
            assert_eq!(text, format!("trial 4: {expected}"));
        }
    }

    /// The verdicts do not fit beside the figures: their table has the numbers, too.
    #[test]
    fn verdicts_of_a_narrow_table_have_the_numbers_of_their_trials() {
        let trial = |number: u32, goodput_bps: f64, failure: Option<&str>| {
            serde_json::json!({
                "number": number, "intended_bps": 5e6, "offered_bps": 5e6,
                "goodput_bps": goodput_bps, "loss_fraction": 0.0, "lost": 0, "queue_limit": 0.01,
                "passed": failure.is_none(), "failure": failure, "is_confirmation": true,
                "record": "x",
            })
        };
        let search: RateSearchResult = serde_json::from_value(serde_json::json!({
            "loss_limit": 0.0, "resolution": 0.01, "confirmed": true, "stopped_by": "resolution",
            "trials": [trial(9, 4.87e6, Some("queue")), trial(10, 4.96e6, None)],
        }))
        .unwrap();
        let style = TextStyle {
            width: 80,
            ..TextStyle::PLAIN
        };
        let table = trial_table(&search).render(&style);
        let verdicts = [
            "9      does not confirm: 2.60 % arrived late (limit 1.00 %), so a queue fills",
            "10                     confirms: 0.80 % arrived late (limit 1.00 %)",
        ];
        for (line, verdict) in table.lines().rev().take(2).zip(verdicts.iter().rev()) {
            let words = |text: &str| {
                text.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            assert_eq!(words(line), words(verdict), "{table}");
            assert!(line.chars().count() <= 80, "{table}");
        }
    }

    /// The first trial floods the path and must not be shown as the result.
    #[test]
    fn the_result_of_a_search_comes_first_in_every_format() {
        let run = include_str!("../../tests/fixtures/run-1.json");
        let run: Record = serde_json::from_str(run).unwrap();
        let trial = |number, offered: f64, lost: f64| RateSearchTrial {
            number,
            intended_bps: (number > 1).then_some(offered),
            offered_bps: offered,
            goodput_bps: offered * (1.0 - lost),
            loss_fraction: lost,
            passed: lost == 0.0,
            ..serde_json::from_value(serde_json::json!({
                "number": 0, "offered_bps": 0.0, "goodput_bps": 0.0, "loss_fraction": 0.0,
                "passed": false, "record": run.id,
            }))
            .unwrap()
        };
        let found = RateSearchResult {
            loss_limit: 0.0,
            resolution: 0.02,
            rate_bps: Some(6e9),
            goodput_bps: Some(6e9),
            loss_fraction: Some(0.0),
            failed_bps: Some(24e9),
            confirmed: false,
            stopped_by: SearchEnd::Interrupted.into(),
            trials: vec![trial(1, 24e9, 0.5), trial(2, 6e9, 0.0)],
        };
        let set = RunSet {
            schema: SET_SCHEMA.to_owned(),
            id: "20261122T000000Z-aaaaaa".to_owned(),
            kind: "search".to_owned(),
            started: run.started,
            interrupted: true,
            runs: vec![run.clone(), run],
            result: SetResult {
                search: Some(Box::new(found.clone())),
                ..SetResult::default()
            },
        };
        let page = crate::html::render_set("x", &set);
        let (head, rest) = page.split_once("</header>").unwrap();
        for part in [
            "Highest rate with no loss",
            "6.00&nbsp;Gb/s",
            "Interrupted: these are the results",
        ] {
            assert!(head.contains(part), "{part}: {head}");
        }
        assert!(!head.contains("12.0&nbsp;Gb/s"), "{head}");
        assert!(rest.contains("Trials of the search") && rest.contains("All 2 runs"));
        let markdown = crate::markdown::render_search(&found);
        assert!(
            markdown.starts_with("Highest rate with no loss: 6.00 Gb/s offered")
                && markdown
                    .contains("| 1 | maximum | 24.000 Gb/s | 12.000 Gb/s | 50.0 % | fails |"),
            "{markdown}"
        );
    }
}
