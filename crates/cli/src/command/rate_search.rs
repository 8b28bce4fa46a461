//! `linerate throughput -b max`: search for the highest UDP rate within a loss limit.

use jiff::Timestamp;
use linerate_host::stop_flag::StopFlag;
use linerate_interop::run_client;
use linerate_record::event::{Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::ids::{CaveatId, SearchEnd};
use linerate_record::plan::{PerEnd, Plan, RunKind, WaitMode};
use linerate_record::record::{Caveat, DirectionFigures, Record, Summary, new_id};
use linerate_record::run_set::{RateSearchResult, RateSearchTrial, RunSet, SET_SCHEMA, SetResult};
use linerate_record::stack::STACK_NAME;
use linerate_session::rate_search::{
    MaxRateSearch, RateSearchStep, RateTrial, RateTrialResult, TrialVerdict,
};
use linerate_session::thread_plan::sleeping_wait;
use linerate_stats::units::{format_bit_rate, format_share};

use super::measure::{judge_expectations, server_ended_failure, stop_on_signals};
use crate::args::ThroughputArgs;
use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::plan::SearchPlan;
use crate::port_devices::PortDevices;
use crate::ui_update::{SeriesPart, UiUpdate};
use crate::{lab_network, live, plan};

/// Lateness of a send that may have overflowed a queue with the burst after it.
const STALL_NS: u64 = 1_000_000;

/// Runs the command and returns the exit code.
pub fn run(args: &ThroughputArgs) -> u8 {
    let mut output = CommandOutput::new(&args.measure.output)
        .with_label(args.measure.label.as_deref())
        .with_report(
            args.measure.html.as_deref(),
            &args.measure.report_title(RunKind::Throughput),
        );
    let result = plan::plan_search(args).and_then(|search| run_search(&search, args, &mut output));
    let code = result.unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.measure.fail_on_finding)
}

/// State of a search.
struct SearchState {
    search: MaxRateSearch,
    runs: Vec<Record>,
    trials: Vec<RateSearchTrial>,
    failure: Option<CommandFailure>,
}

fn run_search(
    search_plan: &SearchPlan,
    args: &ThroughputArgs,
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    output.check_files()?;
    let screen = args.measure.screen.is_enabled();
    live::check_terminal(screen)?;
    let stop = stop_on_signals()?;
    let _devices =
        PortDevices::for_stack(args.measure.local_stack.stack.dev.as_ref(), &stop, output)?;
    let mut state = live::run_with_output(screen, &stop, output, |events| {
        run_trials(search_plan, screen, &stop, events)
    })?;
    let interrupted = stop.is_set();
    if let Some(failure) = state.failure.as_mut().filter(|_| interrupted) {
        failure.code = exit_codes::INTERRUPTED;
    }
    if state.runs.is_empty() {
        return Err(state.failure.expect("a search without a run has a failure"));
    }
    let failure = state.failure.take();
    let set = result_set(search_plan, state, interrupted || failure.is_some());
    let winner = result_figures(&set).cloned().unwrap_or_default();
    let verdicts = judge_expectations(&args.measure, |expectation| expectation.evaluate(&winner));
    output.write_set(&set, &verdicts)?;
    if let Some(failure) = failure {
        // With --json the document is already printed.
        if output.is_json() {
            output.warn(&format!("error: {}", failure.problem));
        } else {
            output.report_failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if interrupted {
        exit_codes::INTERRUPTED
    } else if verdicts.iter().any(|verdict| !verdict.holds) {
        exit_codes::GATE
    } else {
        exit_codes::OK
    })
}

/// Returns the figures of the trial that decides the result.
fn result_figures(set: &RunSet) -> Option<&Summary> {
    let search = set.result.search.as_ref()?;
    let trial = deciding_trial(&search.trials, search.rate_bps?)?;
    let run = set.runs.iter().find(|run| run.id == trial.record)?;
    Some(&run.summary)
}

/// Returns the confirming trial, or else the last one that passed at this rate.
fn deciding_trial(trials: &[RateSearchTrial], rate_bps: f64) -> Option<&RateSearchTrial> {
    let has_rate = |trial: &&RateSearchTrial| {
        let rate = trial.intended_bps.unwrap_or(trial.offered_bps);
        trial.passed && (rate - rate_bps).abs() <= 1e-6 * rate_bps
    };
    let mut passed = trials.iter().rev().filter(|trial| trial.passed);
    let confirmed = passed.find(|trial| trial.is_confirmation);
    confirmed.or_else(|| trials.iter().rev().find(has_rate))
}

fn run_trials(
    search_plan: &SearchPlan,
    full_screen: bool,
    stop: &StopFlag,
    events: &EventSender,
) -> SearchState {
    let flag = stop.atomic();
    let network = lab_network::lab_network();
    let mut state = SearchState {
        search: MaxRateSearch::new(search_plan.options),
        runs: Vec::new(),
        trials: Vec::new(),
        failure: None,
    };
    let mut wait = common_wait(&search_plan.measurement.client.plan);
    let mut number = 1;
    while let RateSearchStep::Try(trial_request) = state.search.next() {
        let mut client = search_plan.measurement.client.clone();
        client.plan.wait.clone_from(&wait);
        set_trial_plan(&mut client.plan, search_plan, trial_request);
        let emit = |what| {
            events.send(Event {
                test: number,
                kind: what,
            })
        };
        events.show(UiUpdate::PartStarted(SeriesPart {
            name: "trial",
            number: number as usize,
            settings: describe_rate(trial_request.intended_bps),
            ..SeriesPart::default()
        }));
        let outcome = run_client(&client, network.as_ref(), &flag, &mut |what| {
            // The result line of a short trial is enough.
            let is_reported = trial_request.is_confirmation || full_screen;
            if is_reported
                || !matches!(
                    what,
                    EventKind::Started { .. } | EventKind::Connected { .. }
                )
            {
                emit(what);
            }
        });
        let (mut record, failure) = match outcome {
            Ok((record, failure)) => (record, failure.map(CommandFailure::from)),
            Err(error) => {
                let failure = CommandFailure::from(error);
                let is_default = search_plan.measurement.client.plan.wait.is_none();
                if is_default && wait.is_some() && failure.problem.object == "--wait" {
                    // A server on a user-space stack waits in one way only.
                    wait = None;
                    continue;
                }
                state.failure = Some(failure);
                break;
            }
        };
        let server_ended = record.interrupted && failure.is_none() && !stop.is_set();
        state.failure = failure.or_else(|| server_ended.then(|| server_ended_failure(&record)));
        record.label = Some(format!(
            "trial {number}, {}",
            describe_rate(trial_request.intended_bps)
        ));
        emit(EventKind::Finished {
            record: Box::new(record.clone()),
        });
        let is_over = record.interrupted || state.failure.is_some() || stop.is_set();
        let result = trial_result(&record).filter(|_| !is_over);
        if let Some(result) = result {
            // The path has decided the size of the datagrams.
            state
                .search
                .set_floor_bps(search_plan.floor_bps(record.plan.payload_bytes));
            let queue_limit = state.search.queue_limit();
            let (failure, is_repeated) = match state.search.record(result) {
                TrialVerdict::Passed => (None, false),
                TrialVerdict::Failed(failure) => (Some(failure.into()), false),
                TrialVerdict::Repeated(failure) => (Some(failure.into()), true),
            };
            let trial = RateSearchTrial {
                number,
                intended_bps: trial_request.intended_bps,
                offered_bps: result.offered_bps,
                goodput_bps: result.received_bps,
                loss_fraction: result.loss,
                passed: failure.is_none(),
                failure,
                queue_limit: Some(queue_limit),
                is_repeated,
                lost: record.summary.lost,
                is_confirmation: trial_request.is_confirmation,
                record: record.id.clone(),
            };
            emit(EventKind::Trial {
                trial: Box::new(trial.clone()),
            });
            state.trials.push(trial);
        }
        state.runs.push(record);
        if result.is_none() {
            break;
        }
        number += 1;
    }
    state
}

/// Returns the wait modes of all trials. By default a receiver spins in the first one, which has no
/// rate, and sleeps in the others; the result is for runs with a rate, so it sleeps in all of them.
/// `None`: the user-space stack decides.
fn common_wait(plan: &Plan) -> Option<PerEnd<WaitMode>> {
    let sleeps = plan.stack.client != STACK_NAME;
    let default_wait = || sleeps.then(|| PerEnd::same(sleeping_wait(plan)));
    plan.wait.clone().or_else(default_wait)
}

/// Returns the rate of a trial as text.
fn describe_rate(rate_bps: Option<f64>) -> String {
    rate_bps.map_or_else(|| "unlimited".to_owned(), format_bit_rate)
}

/// Sets the plan of one trial.
fn set_trial_plan(plan: &mut Plan, search_plan: &SearchPlan, trial_request: RateTrial) {
    plan.duration_ns = Some(if trial_request.is_confirmation {
        search_plan.confirmation_ns
    } else {
        plan.interval_ns = None;
        search_plan.trial_ns
    });
    let Some(rate) = trial_request.intended_bps else {
        return;
    };
    let each = rate / f64::from(plan.streams);
    plan.rate_bps = Some((each as u64).max(1));
}

/// Returns the result of a trial for the search; `None` if figures are missing.
fn trial_result(record: &Record) -> Option<RateTrialResult> {
    let summary = &record.summary;
    let times = record
        .directions
        .iter()
        .map(DirectionFigures::send_duration_ns);
    let duration_ns = times.max().flatten().or(summary.duration_ns)?;
    let seconds = duration_ns as f64 / 1e9;
    let streams = record
        .directions
        .iter()
        .flat_map(|direction| &direction.streams);
    let not_sent: u64 = streams
        .filter_map(|stream| stream.sender.as_ref()?.send_refused)
        .sum();
    let not_sent = not_sent as f64 * (record.plan.payload_bytes * 8) as f64 / seconds.max(1e-9);
    let mut caveats = record.validity.iter();
    let load_met = !caveats.any(|caveat| caveat.id == CaveatId::ToolLimit);
    Some(RateTrialResult {
        offered_bps: summary.offered_bps? + not_sent,
        received_bps: summary.goodput_bps?,
        loss: summary.loss_fraction?,
        load_met,
        stall_burst: summary
            .lateness_ns
            .filter(|lateness| lateness.max > STALL_NS)
            .map_or(0.0, |lateness| {
                lateness.max as f64 / 1e9 / seconds.max(1e-9)
            }),
    })
}

fn result_set(search_plan: &SearchPlan, state: SearchState, interrupted: bool) -> RunSet {
    let (bounds, stopped_by) = match state.search.next() {
        RateSearchStep::Done(bounds) => (Some(bounds), bounds.end),
        RateSearchStep::Try(_) => (None, SearchEnd::Interrupted),
    };
    let low = match bounds {
        Some(bounds) => bounds.low_bps,
        // Interrupted: the highest rate that passed so far.
        None => state
            .trials
            .iter()
            .filter(|trial| trial.passed)
            .map(|trial| trial.intended_bps.unwrap_or(trial.offered_bps))
            .reduce(f64::max),
    };
    let winner = low.and_then(|low| deciding_trial(&state.trials, low));
    let result = RateSearchResult {
        loss_limit: search_plan.options.max_loss,
        resolution: search_plan.options.resolution,
        rate_bps: low,
        goodput_bps: winner.map(|trial| trial.goodput_bps),
        loss_fraction: winner.map(|trial| trial.loss_fraction),
        failed_bps: bounds
            .and_then(|bounds| bounds.high_bps)
            .filter(|&high| low.is_none_or(|low| high > low)),
        confirmed: bounds.is_some_and(|bounds| bounds.confirmed),
        stopped_by: stopped_by.into(),
        trials: state.trials,
    };
    let mut runs = state.runs;
    if let Some(caveat) = resolution_missed(&result)
        && let Some(trial) = result
            .rate_bps
            .and_then(|rate| deciding_trial(&result.trials, rate))
        && let Some(run) = runs.iter_mut().find(|run| run.id == trial.record)
    {
        run.validity.push(caveat);
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
fn resolution_missed(search: &RateSearchResult) -> Option<Caveat> {
    let gap = search.gap()?;
    (search.stopped_by == SearchEnd::Resolution && gap > search.resolution).then(|| {
        Caveat::new(
            CaveatId::ResolutionMissed,
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
        let search = |rate, failed, end: SearchEnd| RateSearchResult {
            resolution: 0.01,
            rate_bps: Some(rate),
            failed_bps: Some(failed),
            stopped_by: end.into(),
            ..RateSearchResult::default()
        };
        assert!(resolution_missed(&search(0.95e9, 1e9, SearchEnd::Resolution)).is_some());
        assert!(resolution_missed(&search(0.995e9, 1e9, SearchEnd::Resolution)).is_none());
        assert!(resolution_missed(&search(0.5e9, 1e9, SearchEnd::Sender)).is_none());
        let mut none = search(1e9, 1e9, SearchEnd::Resolution);
        none.failed_bps = None;
        assert!(resolution_missed(&none).is_none());
    }
}
