//! `linerate capacity`: the RFC 2544 tests of a device between two ports.

use std::time::Duration;

use jiff::Timestamp;
use linerate_measure::capacity::{Measured, Options, Test, run as measure_capacity};
use linerate_measure::generate::template::{SHORTEST_BYTES, Sizes, TemplateError, fitted_size};
use linerate_measure::generate::{Settings, What as Sent};
use linerate_metric::capacity::{Capacity, CapacityTrial};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::generate::TemplatePlan;
use linerate_metric::record::new_id;
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_report::text;

use super::generator_ports::Named;
use super::measure::stop_on_signals;
use crate::args::{self, CapacityArgs};
use crate::failure::Failure;
use crate::live;
use crate::output::Output;

/// Ratio of the time of deciding trials to that of the first ones.
const FIRST: u32 = 20;

/// Runs the command and returns the exit code.
pub fn run(args: &CapacityArgs) -> u8 {
    let mut output = Output::new(&args.output)
        .labelled(args.label.as_deref())
        .with_page(args.html.as_deref(), "linerate capacity");
    let code = measure(args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.fail_on_finding)
}

/// Default sizes: those of RFC 2544 (section 9.1), and a mix of them.
const SIZES: [&str; 8] = ["64", "128", "256", "512", "1024", "1280", "1518", "imix"];

/// Returns the default sizes: that of the template, else all of RFC 2544, raised to the minimum for
/// the headers; and a note if sizes were raised.
fn fitting_sizes(plan: &TemplatePlan) -> Result<(Vec<String>, Option<String>), TemplateError> {
    if let Some(size) = &plan.size {
        return Ok((vec![size.clone()], None));
    }
    let least = fitted_size(plan)?;
    if least <= SHORTEST_BYTES {
        return Ok((SIZES.map(str::to_owned).to_vec(), None));
    }
    let mut sizes: Vec<String> = SIZES
        .iter()
        .map(|size| match size.parse::<u16>() {
            Ok(bytes) => bytes.max(least).to_string(),
            Err(_) => Sizes::imix_from(least),
        })
        .collect();
    sizes.dedup();
    let note = format!(
        "frames of {SHORTEST_BYTES} B are too short for these headers, a number and a time: the minimum of {least} B \
         replaces them, in the mix too (--sizes sets other sizes)"
    );
    Ok((sizes, Some(note)))
}

fn options(
    args: &CapacityArgs,
    sizes: &[String],
    line_bps: Option<u64>,
) -> Result<Options, Failure> {
    let sizes: Result<Vec<(String, f64)>, TemplateError> = sizes
        .iter()
        .map(|size| {
            Ok((
                size.clone(),
                Sizes::read(size, args.frames.seed.unwrap_or(1))?.mean(),
            ))
        })
        .collect();
    let mut goals = args.loss.clone();
    goals.sort_by(f64::total_cmp);
    goals.dedup();
    if args.trial.is_zero() {
        return Err(Failure::usage(Problem::new(
            "a trial needs a time above 0",
            "--trial",
            "use 60s, as RFC 2544 requires, or 1s for a quick test",
        )));
    }
    let first = args.first_trial.unwrap_or(args.trial / FIRST);
    let tests = args.tests.iter().map(|test| match test {
        args::Test::Throughput => Test::Throughput,
        args::Test::Latency => Test::Latency,
        args::Test::FrameLoss => Test::FrameLoss,
        args::Test::BackToBack => Test::BackToBack,
    });
    Ok(Options {
        sizes: sizes.map_err(linerate_measure::MeasureError::from)?,
        tests: tests.collect(),
        goals,
        resolution: args.resolution,
        trial_s: args.trial.as_secs_f64(),
        first_s: first
            .max(Duration::from_millis(1))
            .min(args.trial)
            .as_secs_f64(),
        shares: args.latency_at.clone(),
        trials: args.trials,
        tries: args.tries,
        searches: args.burst_searches,
        line_bps,
    })
}

fn measure(args: &CapacityArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    let shown = args.screen.is_asked();
    live::check(shown)?;
    let named = Named::new(&args.ports, None, false)?;
    let line_bps = named.line_bps(&args.ports);
    let plan = args.frames.plan(None)?;
    let (sizes, note) = match &args.sizes[..] {
        [] => fitting_sizes(&plan).map_err(linerate_measure::MeasureError::from)?,
        asked => (asked.to_vec(), None),
    };
    let options = options(args, &sizes, line_bps)?;
    let base = Settings {
        what: Sent::Template(plan.clone()),
        line_bps,
        drain: args.drain,
        threads: args.ports.threads,
        cpus: args
            .ports
            .cpu
            .clone()
            .map(|cpus| cpus.0)
            .unwrap_or_default(),
        learn: args.ports.learn,
        ..Settings::default()
    };
    let threads = base.check_threads(true);
    threads.map_err(|error| Failure::from(error).of_option("cpu"))?;
    // Before opening, because that truncates the file of a port that writes one.
    for (size, _) in &options.sizes {
        let plan = TemplatePlan {
            size: Some(size.clone()),
            ..plan.clone()
        };
        let what = Sent::Template(plan);
        let sized = Settings {
            what,
            ..base.clone()
        };
        sized.check_template()?;
    }
    // Before a device is changed, so that an early exit restores it.
    let stop = stop_on_signals()?;
    let _nics = named.nics(&stop, output)?;
    let mut ports = named.open()?;
    if let Some(note) = &note {
        output.told(&format!("note: {note}"));
    }
    let (send, receive) = named.names();
    let started = Timestamp::now();
    if output.is_stream() {
        let what = started_of(&send, receive.as_deref(), &base);
        output.event(&Event { test: 1, what }, Timestamp::now());
    }
    let mut tell = |trial: &CapacityTrial| {
        if output.is_stream() {
            let trial = Box::new(trial.clone());
            let what = What::CapacityTrial { trial };
            output.event(&Event { test: 1, what }, Timestamp::now());
        } else {
            output.progress(&text::capacity_trial(trial));
        }
    };
    let names = (send.as_str(), receive.as_deref());
    let flag = stop.as_flag();
    let measured = match shown {
        true => live::while_told(true, &stop, output, |teller| {
            let told = |what| teller.tell(Event { test: 1, what });
            told(started_of(&send, receive.as_deref(), &base));
            measure_capacity(&mut ports, names, options, &base, &flag, &mut |trial| {
                let trial = Box::new(trial.clone());
                told(What::CapacityTrial { trial });
            })
        })?,
        false => measure_capacity(&mut ports, names, options, &base, &flag, &mut tell),
    }?;
    let (interrupted, failed) = (measured.interrupted, measured.failure.is_some());
    let troubled = measured
        .doubts
        .iter()
        .any(|doubt| doubt.doubt == "port-stopped");
    let mut measured = measured;
    let failure = measured.failure.take().map(Failure::from);
    let mut set = set_of(
        args,
        measured,
        (&send, receive.as_deref()),
        line_bps,
        started,
    );
    set.result.notes.splice(0..0, note);
    output.set(&set, &[])?;
    if let Some(failure) = failure {
        output.remark(&format!("error: {}", failure.problem));
        return Ok(failure.code);
    }
    Ok(match (interrupted, failed || troubled) {
        (true, _) => exit::INTERRUPTED,
        (false, true) => exit::FAILED,
        (false, false) => exit::OK,
    })
}

/// Returns the first event for a stream or a screen.
fn started_of(send: &str, receive: Option<&str>, base: &Settings) -> What {
    use linerate_metric::plan::{Cpus, Ends, Kind, Plan, Protocol, Wait};
    let names = receive.map_or_else(|| send.to_owned(), |to| format!("{send} to {to}"));
    let mut plan = Plan::new(Kind::Generate, Protocol::Udp, names);
    // The number of trials is unknown in advance.
    plan.duration_ns = None;
    plan.port = 0;
    plan.stack = Ends::both("port".to_owned());
    What::Started {
        wait: Ends::both(Wait::Spin),
        cpu: Ends::both(Cpus(base.cpus.clone())),
        plan: Box::new(plan),
        because: None,
    }
}

fn set_of(
    args: &CapacityArgs,
    measured: Measured,
    names: (&str, Option<&str>),
    line_bps: Option<u64>,
    started: Timestamp,
) -> RunSet {
    let notes = measured.doubts.iter();
    let notes = notes.map(|doubt| format!("{} [{}]", doubt.why, doubt.doubt));
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "capacity".to_owned(),
        started,
        interrupted: measured.interrupted,
        result: SetResult {
            capacity: Some(Box::new(Capacity {
                send: names.0.to_owned(),
                receive: names.1.unwrap_or(names.0).to_owned(),
                trial_ns: u64::try_from(args.trial.as_nanos()).unwrap_or(u64::MAX),
                resolution: args.resolution,
                line_bps,
                sizes: measured.sizes,
            })),
            notes: notes.collect(),
            ..SetResult::default()
        },
        runs: measured.records,
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::generate::VlanPlan;

    use super::*;

    #[test]
    fn sizes_that_nobody_asked_for_fit_the_headers() {
        let (sizes, note) = fitting_sizes(&TemplatePlan::default()).unwrap();
        assert_eq!(sizes, SIZES);
        assert_eq!(note, None);
        // A mix of the user's own comes from a template file, because a list of sizes uses commas
        // itself.
        let plan = TemplatePlan {
            size: Some("64:7,594:4".to_owned()),
            ..TemplatePlan::default()
        };
        let (sizes, note) = fitting_sizes(&plan).unwrap();
        assert_eq!((sizes.join(" ").as_str(), note), ("64:7,594:4", None));
        let tag = VlanPlan {
            id: "1".to_owned(),
            ..VlanPlan::default()
        };
        let plan = TemplatePlan {
            ipv6: Some(Default::default()),
            tcp: Some(Default::default()),
            vlan: vec![tag; 11],
            ..TemplatePlan::default()
        };
        // Headers of 14 + 44 + 40 + 20 B, tag of 10 B, FCS of 4 B.
        let (sizes, note) = fitting_sizes(&plan).unwrap();
        let want = "132 256 512 1024 1280 1518 132:7,594:4,1518:1";
        assert_eq!(sizes.join(" "), want);
        assert!(note.unwrap().contains("minimum of 132 B"));
    }
}
