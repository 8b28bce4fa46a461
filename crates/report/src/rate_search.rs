//! Search for the highest rate: the result as a sentence, the trials as a table.

use linerate_record::ids::{SearchEnd, TrialFailure};
use linerate_record::run_set::{RateSearchResult, RateSearchTrial};
use linerate_stats::units::{count_of, format_bit_rate, format_precise_bit_rate, format_share};

use crate::model::Grid;

/// Summarises a search: `Highest rate with no loss: 48.1 Mb/s offered, 48.1 Mb/s received, …`.
pub(crate) fn search_headline(search: &RateSearchResult) -> String {
    format!(
        "Highest rate with {}: {}",
        loss_limit_name(search),
        describe_result(search)
    )
}

pub(crate) fn loss_limit_name(search: &RateSearchResult) -> String {
    match search.loss_limit > 0.0 {
        true => format!("at most {} loss", format_share(search.loss_limit)),
        false => "no loss".to_owned(),
    }
}

/// Returns the table of trials.
pub(crate) fn trial_table(search: &RateSearchResult) -> Grid {
    let rows = search
        .trials
        .iter()
        .map(|trial| {
            vec![
                trial.number.to_string(),
                trial
                    .intended_bps
                    .map_or_else(|| "maximum".to_owned(), format_precise_bit_rate),
                format_precise_bit_rate(trial.offered_bps),
                format_precise_bit_rate(trial.goodput_bps),
                format_share(trial.loss_fraction),
                describe_verdict(trial),
            ]
        })
        .collect();
    let headings = ["trial", "intended", "offered", "goodput", "lost", "verdict"];
    Grid {
        headings: headings.map(str::to_owned).into(),
        rows,
        left_columns: 1,
    }
}

/// Share of late datagrams from which the verdict of a trial that passed has it.
const MIN_LATE_SHARE: f64 = 0.001;

/// Describes the verdict on a trial with its reason: `fails: 12 datagrams lost`.
pub(crate) fn describe_verdict(trial: &RateSearchTrial) -> String {
    let verdict = match (trial.passed, trial.is_repeated, trial.is_confirmation) {
        (true, _, true) => "confirms",
        (true, _, false) => "passes",
        (false, true, _) => "is repeated",
        (false, false, true) => "does not confirm",
        (false, false, false) => "fails",
    };
    let late =
        1.0 - trial.loss_fraction - trial.goodput_bps / trial.offered_bps.max(f64::MIN_POSITIVE);
    let arrived_late = || {
        let limit = trial.queue_limit.map_or_else(String::new, |limit| {
            format!(" (limit {})", format_share(limit))
        });
        format!("{} arrived late{limit}", format_share(late))
    };
    let failure = trial.failure.as_ref().and_then(|failure| failure.known());
    let reason = match (failure, trial.lost) {
        (Some(TrialFailure::Loss), Some(lost)) => {
            format!("{} lost", count_of(lost, "datagram"))
        }
        (Some(TrialFailure::Queue), _) => format!("{}, so a queue fills", arrived_late()),
        (None, _) if trial.passed && trial.queue_limit.is_some() && late >= MIN_LATE_SHARE => {
            arrived_late()
        }
        _ => return verdict.to_owned(),
    };
    format!("{verdict}: {reason}")
}

/// Describes the result: `48.1 Mb/s offered, 48.1 Mb/s received, 0 % lost, confirmed. 48.6 Mb/s
/// failed.`
pub(crate) fn describe_result(search: &RateSearchResult) -> String {
    let Some(rate) = search.rate_bps else {
        return match search.stopped_by.known() {
            Some(SearchEnd::MinimumRate) => {
                "No rate passed: there was loss at every rate.".to_owned()
            }
            _ => "No rate passed before the search ended.".to_owned(),
        };
    };
    let mut text = format!("{} offered", format_bit_rate(rate));
    if let (Some(goodput), Some(loss)) = (search.goodput_bps, search.loss_fraction) {
        text.push_str(&format!(
            ", {} received, {} lost",
            format_bit_rate(goodput),
            format_share(loss)
        ));
    }
    text.push_str(if search.confirmed {
        ", confirmed."
    } else {
        ", not confirmed."
    });
    match (search.stopped_by.known(), search.failed_bps) {
        (Some(SearchEnd::Sender), _) => {
            text.push_str(" The sender could not offer more: the sender or its link is the limit (see the findings).");
        }
        (_, Some(failed)) => {
            text.push_str(&format!(" {} failed.", format_bit_rate(failed)));
            if let Some(gap) = search.gap().filter(|&gap| gap > search.resolution) {
                text.push_str(&format!(
                    " The result lies between the two: the gap of {} exceeds the resolution of {}.",
                    format_share(gap),
                    format_share(search.resolution)
                ));
            }
        }
        _ => {}
    }
    match search.stopped_by.known() {
        Some(SearchEnd::Trials) => {
            text.push_str(" The limit of trials was reached: the received rate varies.")
        }
        Some(SearchEnd::Interrupted) => text.push_str(" The search was interrupted."),
        _ => {}
    }
    text
}
