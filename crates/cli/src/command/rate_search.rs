//! `linerate throughput -b max`: search for the highest UDP rate within a loss limit.

use jiff::Timestamp;
use linerate_host::stop_flag::Stop;
use linerate_measure::rate_search::{Ask, End, Next, Search, Seen};
use linerate_metric::event::{Event, What};
use linerate_metric::exit;
use linerate_metric::pace::Burst;
use linerate_metric::plan::Plan;
use linerate_metric::record::{Doubt, Record, Summary, new_id};
use linerate_metric::run_set::{RateSearch, RunSet, SET_SCHEMA, SetResult, Trial};
use linerate_metric::units::{format_bit_rate, format_share};

use super::measure::{ended_by_far_end, judge, stop_on_signals};
use crate::args::ThroughputArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::plan::{self, SearchPlan};
use crate::port_devices::Nics;
use crate::printer::Teller;
use crate::ui_update::{Part, Scene};
use crate::{lab_network, live};

/// Datagrams per second of a flow above which they are sent in bursts: one by one, a sender reaches
/// about 200,000, and less with a clock read before each.
const SINGLE_PER_SECOND: f64 = 100_000.0;

/// Time between such bursts.
const BURST_EVERY_S: f64 = 100e-6;

/// Lateness of a send that may have overflowed a queue with the burst after it.
const STALL_NS: u64 = 1_000_000;

/// Runs the command and returns the exit code.
pub fn run(args: &ThroughputArgs) -> u8 {
    let mut output = Output::new(&args.measure.output)
        .labelled(args.measure.label.as_deref())
        .with_page(
            args.measure.html.as_deref(),
            &format!("linerate to {}", args.measure.host),
        );
    let result = plan::search(args).and_then(|search| find(&search, args, &mut output));
    let code = result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.measure.fail_on_finding)
}

/// State of a search.
struct Made {
    search: Search,
    runs: Vec<Record>,
    trials: Vec<Trial>,
    failure: Option<Failure>,
}

fn find(asked: &SearchPlan, args: &ThroughputArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    let screen = args.measure.screen.is_asked();
    live::check(screen)?;
    let stop = stop_on_signals()?;
    let _nics = Nics::for_stack(args.measure.near.stack.dev.as_ref(), &stop, output)?;
    let mut made = live::while_told(screen, &stop, output, |teller| {
        trials(asked, screen, &stop, teller)
    })?;
    let interrupted = stop.is_set();
    if let Some(failure) = made.failure.as_mut().filter(|_| interrupted) {
        failure.code = exit::INTERRUPTED;
    }
    if made.runs.is_empty() {
        return Err(made.failure.expect("a search without a run says why"));
    }
    let failure = made.failure.take();
    let set = set_of(asked, made, interrupted || failure.is_some());
    let winner = winner(&set).cloned().unwrap_or_default();
    let verdicts = judge(&args.measure, |expectation| expectation.judge(&winner));
    output.set(&set, &verdicts)?;
    if let Some(failure) = failure {
        // With --json the document is already printed.
        if output.is_json() {
            output.remark(&format!("error: {}", failure.problem));
        } else {
            output.failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if interrupted {
        exit::INTERRUPTED
    } else if verdicts.iter().any(|verdict| !verdict.holds) {
        exit::GATE
    } else {
        exit::OK
    })
}

/// Returns the figures of the trial that decides the result.
fn winner(set: &RunSet) -> Option<&Summary> {
    let search = set.result.search.as_ref()?;
    let trial = best(&search.trials, search.rate_bps?)?;
    let run = set.runs.iter().find(|run| run.id == trial.record)?;
    Some(&run.summary)
}

/// Returns the confirming trial, or else the last one that passed at this rate.
fn best(trials: &[Trial], rate_bps: f64) -> Option<&Trial> {
    let same = |trial: &&Trial| {
        let rate = trial.asked_bps.unwrap_or(trial.offered_bps);
        trial.passed && (rate - rate_bps).abs() <= 1e-6 * rate_bps
    };
    let mut passed = trials.iter().rev().filter(|trial| trial.passed);
    let confirmed = passed.find(|trial| trial.confirms);
    confirmed.or_else(|| trials.iter().rev().find(same))
}

fn trials(asked: &SearchPlan, screened: bool, stop: &Stop, teller: &Teller) -> Made {
    let flag = stop.as_flag();
    let network = lab_network::around();
    let mut made = Made {
        search: Search::new(asked.options),
        runs: Vec::new(),
        trials: Vec::new(),
        failure: None,
    };
    for number in 1.. {
        let Next::Try(ask) = made.search.next() else {
            break;
        };
        let mut client = asked.measurement.client.clone();
        vary(&mut client.plan, asked, ask);
        let tell = |what| teller.tell(Event { test: number, what });
        teller.show(Scene::Part(Part {
            name: "trial",
            number: number as usize,
            words: said(ask.rate_bps),
            ..Part::default()
        }));
        let ran = client.run_within(network.as_ref(), &flag, &mut |what| {
            // The result line of a short trial is enough.
            let is_told = ask.confirms || screened;
            if is_told || !matches!(what, What::Started { .. } | What::Connected { .. }) {
                tell(what);
            }
        });
        let (mut record, failure) = match ran {
            Ok((record, failure)) => (record, failure.map(Failure::from)),
            Err(error) => {
                made.failure = Some(error.into());
                break;
            }
        };
        let left = record.interrupted && failure.is_none() && !stop.is_set();
        made.failure = failure.or_else(|| left.then(|| ended_by_far_end(&record)));
        record.label = Some(format!("trial {number}, {}", said(ask.rate_bps)));
        tell(What::Finished {
            record: Box::new(record.clone()),
        });
        let over = record.interrupted || made.failure.is_some() || stop.is_set();
        let seen = seen(&record).filter(|_| !over);
        if let Some(seen) = seen {
            let trial = Trial {
                number,
                asked_bps: ask.rate_bps,
                offered_bps: seen.offered_bps,
                goodput_bps: seen.received_bps,
                loss_fraction: seen.loss,
                passed: seen.passes(asked.options.loss),
                confirms: ask.confirms,
                record: record.id.clone(),
            };
            tell(What::Trial {
                trial: Box::new(trial.clone()),
            });
            made.trials.push(trial);
            made.search.take(seen);
        }
        made.runs.push(record);
        if seen.is_none() {
            break;
        }
    }
    made
}

/// Returns the rate of a trial as text.
fn said(rate_bps: Option<f64>) -> String {
    rate_bps.map_or_else(|| "unlimited".to_owned(), format_bit_rate)
}

/// Sets the plan of one trial.
fn vary(plan: &mut Plan, asked: &SearchPlan, ask: Ask) {
    plan.duration_ns = Some(if ask.confirms {
        asked.confirmation_ns
    } else {
        plan.interval_ns = None;
        asked.trial_ns
    });
    let Some(rate) = ask.rate_bps else { return };
    let each = rate / f64::from(plan.streams);
    plan.rate_bps = Some((each as u64).max(1));
    // Small datagrams at a high rate cannot be sent one by one: those of 100 us are sent as one
    // burst. An undecided payload size counts as a full Ethernet packet.
    let payload = match plan.payload_bytes {
        0 => 1_472,
        bytes => bytes,
    };
    let per_second = each / 8.0 / payload as f64;
    let may = !plan.udp_offload.asked || plan.udp_offload.gso == Some(true);
    if may && per_second > SINGLE_PER_SECOND {
        let count = (per_second * BURST_EVERY_S).ceil();
        plan.pace.burst = Some(Burst::Payloads(count as u64));
    }
}

/// Returns the result of a trial for the search; `None` if figures are missing.
fn seen(record: &Record) -> Option<Seen> {
    let summary = &record.summary;
    let seconds = summary.duration_ns? as f64 / 1e9;
    let streams = record.directions.iter().flat_map(|way| &way.streams);
    let refused: u64 = streams
        .filter_map(|stream| stream.sender.as_ref()?.send_refused)
        .sum();
    let refused = refused as f64 * (record.plan.payload_bytes * 8) as f64 / seconds.max(1e-9);
    let doubts = |id: &str| record.validity.iter().any(|doubt| doubt.doubt == id);
    Some(Seen {
        offered_bps: summary.offered_bps? + refused,
        received_bps: summary.goodput_bps?,
        loss: summary.loss_fraction?,
        kept: !doubts("tool-limit"),
        burst: summary
            .lateness_ns
            .filter(|lateness| lateness.max > STALL_NS)
            .map_or(0.0, |lateness| {
                lateness.max as f64 / 1e9 / seconds.max(1e-9)
            }),
    })
}

fn set_of(asked: &SearchPlan, made: Made, interrupted: bool) -> RunSet {
    let (found, stopped_by) = match made.search.next() {
        Next::Over(found) => {
            let name = match found.end {
                End::Resolution => "resolution",
                End::Sender => "sender",
                End::Floor => "floor",
                End::Trials => "trials",
            };
            (Some(found), name)
        }
        Next::Try(_) => (None, "interrupted"),
    };
    let low = match found {
        Some(found) => found.low_bps,
        // Interrupted: the highest rate that passed so far.
        None => made
            .trials
            .iter()
            .filter(|trial| trial.passed)
            .map(|trial| trial.asked_bps.unwrap_or(trial.offered_bps))
            .reduce(f64::max),
    };
    let winner = low.and_then(|low| best(&made.trials, low));
    let result = RateSearch {
        loss_limit: asked.options.loss,
        resolution: asked.options.resolution,
        rate_bps: low,
        goodput_bps: winner.map(|trial| trial.goodput_bps),
        loss_fraction: winner.map(|trial| trial.loss_fraction),
        failed_bps: found
            .and_then(|found| found.high_bps)
            .filter(|&high| low.is_none_or(|low| high > low)),
        confirmed: found.is_some_and(|found| found.confirmed),
        stopped_by: stopped_by.to_owned(),
        trials: made.trials,
    };
    let mut runs = made.runs;
    if let Some(doubt) = wide(&result)
        && let Some(trial) = result.rate_bps.and_then(|rate| best(&result.trials, rate))
        && let Some(run) = runs.iter_mut().find(|run| run.id == trial.record)
    {
        run.validity.push(doubt);
    }
    let first = runs.first();
    let started = first.map_or_else(Timestamp::now, |run| run.started);
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "search".to_owned(),
        started,
        interrupted,
        result: SetResult {
            search: Some(Box::new(result)),
            ..SetResult::default()
        },
        runs,
    }
}

/// Returns a warning if the interval between passed and failed rates is wider than the resolution.
fn wide(search: &RateSearch) -> Option<Doubt> {
    let gap = search.gap()?;
    (search.stopped_by == "resolution" && gap > search.resolution).then(|| {
        Doubt::new(
            "resolution-missed",
            format!(
                "the highest passed and the lowest failed rate are {} apart, but the resolution is {}: rates \
                 between them passed a short trial and failed the longer one",
                format_share(gap),
                format_share(search.resolution)
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_ends_wide_says_so() {
        let search = |rate, failed, end: &str| RateSearch {
            resolution: 0.01,
            rate_bps: Some(rate),
            failed_bps: Some(failed),
            stopped_by: end.to_owned(),
            ..RateSearch::default()
        };
        assert!(wide(&search(0.95e9, 1e9, "resolution")).is_some());
        assert!(wide(&search(0.995e9, 1e9, "resolution")).is_none());
        assert!(wide(&search(0.5e9, 1e9, "sender")).is_none());
        let mut none = search(1e9, 1e9, "resolution");
        none.failed_bps = None;
        assert!(wide(&none).is_none());
    }
}
