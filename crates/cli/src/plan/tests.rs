//! Tests each option of `throughput` in each kind of run: none is silently ignored.

use std::collections::BTreeSet;

use OptionEffect::{OutputOnly as B, Rejected as R, Run as E};
use clap::FromArgMatches;
use linerate_interop::{CLIENT_PROTOCOLS, check_plan};
use linerate_record::command_line::CommandLine;
use linerate_record::plan::Direction;
use linerate_record::record::Record;

use super::*;
use crate::args::{Cli, Command, command};
use crate::load_option::LoadOption;
use crate::shell_words;

/// Effect of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionEffect {
    /// Changes the run.
    Run,
    /// Changes only output or judgement.
    OutputOnly,
    /// Rejected.
    Rejected,
}

/// Kinds of runs.
const KINDS: [(&str, &[&str]); 4] = [
    ("TCP", &[]),
    ("UDP", &["-u"]),
    ("--connect", &["--connect"]),
    ("-b max", &["-u", "-b", "max"]),
];

/// Option id, options that it requires, how it is given, and its effect in each kind of run.
type OptionCase = (&'static str, &'static str, &'static str, [OptionEffect; 4]);

const TABLE: &[OptionCase] = &[
    ("reverse", "", "-R", [E, E, R, E]),
    ("bidir", "", "--bidir", [E, E, R, R]),
    ("bitrate", "", "-b 10M", [E, E, R, R]),
    ("pps", "-l 100", "--pps 10k", [E, E, R, R]),
    ("trial", "", "--trial 200ms", [R, R, R, E]),
    ("resolution", "", "--resolution 5%", [R, R, R, E]),
    ("pacing", "--pps 1k -l 100", "--pacing socket", [E, E, R, R]),
    ("connect", "", "--connect", [E, R, R, R]),
    ("offload", "", "--offload zerocopy", [E, E, R, E]),
    ("verify", "", "--verify", [E, E, R, R]),
    ("batch", "", "--batch 8", [R, E, R, R]),
    ("threads", "-P 4", "--threads 2", [E, E, E, E]),
    (
        "rt_yield",
        "--sched fifo:50 --wait spin",
        "--rt-yield",
        [E, E, E, E],
    ),
    ("bytes", "", "-n 1M", [E, E, R, R]),
    ("trace", "", "--trace file", [E, E, R, R]),
    (
        "trace_on",
        "--trace file",
        "--trace-on call>1ms",
        [E, E, R, R],
    ),
    ("port", "", "-p 6000", [E, E, E, E]),
    ("udp", "", "-u", [E, R, R, R]),
    ("time", "", "-t 3", [E, E, E, E]),
    ("length", "", "-l 512", [E, E, E, E]),
    ("parallel", "", "-P 3", [E, E, E, E]),
    ("interval", "", "-i 2", [E, E, E, E]),
    ("omit", "", "-O 1", [E, E, E, E]),
    ("window", "", "-w 1M", [E, E, E, E]),
    ("sndbuf", "", "--sndbuf 1M", [E, E, E, E]),
    ("rcvbuf", "", "--rcvbuf 1M", [E, E, E, E]),
    ("mss", "", "-M 1000", [E, R, E, R]),
    ("no_delay", "", "-N", [E, R, E, R]),
    ("tos", "", "-S ef", [E, E, E, E]),
    ("socket_priority", "", "--socket-priority 3", [E, E, E, E]),
    ("rcvlowat", "", "--rcvlowat 100", [E, R, E, R]),
    ("congestion", "", "-C reno", [E, R, E, R]),
    ("bind", "", "-B 127.0.0.1", [E, E, E, E]),
    ("source_port", "", "--source-port 6000", [E, E, E, E]),
    ("ipv4", "", "-4", [E, E, E, E]),
    ("ipv6", "", "-6", [E, E, E, E]),
    ("wait", "", "--wait spin", [E, E, E, E]),
    ("cpu", "", "--cpu 0/1", [E, E, E, E]),
    ("sched", "", "--sched fifo:5", [E, E, E, E]),
    ("hold_latency", "", "--hold-latency", [E, E, E, E]),
    ("calls", "", "--calls", [E, E, E, E]),
    ("retry", "", "--retry 3", [E, E, E, E]),
    ("key", "", "--key Cargo.toml", [E, E, E, E]),
    ("peer", "", "--peer iperf3", [E, E, R, R]),
    (
        "far_report",
        "--peer discard",
        "--far-report cat",
        [E, E, R, R],
    ),
    ("repeat", "", "--repeat 3", [E, E, E, R]),
    ("expect", "", "--expect goodput>1G", [B, B, R, B]),
    ("json", "", "--json", [B, B, B, B]),
    ("json_stream", "", "--json-stream", [B, B, B, B]),
    ("output", "", "-o file", [B, B, B, B]),
    ("html", "", "--html file", [B, B, B, B]),
    ("label", "", "--label name", [B, B, B, B]),
    ("quiet", "", "-q", [B, B, B, B]),
    ("verbose", "", "-v", [B, B, B, B]),
    ("no_store", "", "--no-store", [B, B, B, B]),
    ("color", "", "--color never", [B, B, B, B]),
    ("tui", "", "--tui", [B, B, B, B]),
    ("fail_on_finding", "", "--fail-on-finding", [B, B, B, B]),
    ("dev", "--ip 10.0.0.2/24", "--dev tap:t0", [E, E, E, E]),
    ("ip", "--dev tap:t0", "--ip 10.0.0.2/24", [E, E, E, E]),
    (
        "gateway",
        "--dev tap:t0 --ip 10.0.0.2/24",
        "--gateway 10.0.0.1",
        [E, E, E, E],
    ),
    (
        "profile",
        "--dev tap:t0 --ip 10.0.0.2/24",
        "--profile embedded-tuned",
        [E, E, E, E],
    ),
    (
        "set",
        "--dev tap:t0 --ip 10.0.0.2/24",
        "--set tcp.send_buffer=16K",
        [E, E, E, E],
    ),
    (
        "config",
        "--dev tap:t0 --ip 10.0.0.2/24",
        "--config file",
        [R, R, R, R],
    ),
    (
        "control",
        "--dev tap:t0 --ip 10.0.0.2/24",
        "--control kernel",
        [E, R, E, R],
    ),
];

/// Returns the plan as text; `None` if the command line is rejected.
fn planned(parts: &[&str]) -> Option<String> {
    let arguments = ["linerate", "throughput", "host"].into_iter();
    let arguments = arguments.chain(parts.iter().flat_map(|part| part.split_whitespace()));
    let matches = command().try_get_matches_from(arguments).ok()?;
    let Command::Throughput(args) = Cli::from_arg_matches(&matches).ok()?.command else {
        panic!("another command");
    };
    let text = |run: MeasurementPlan| format!("{:?} {} {:?}", run.client, run.repeat, run.trace);
    if matches!(args.bitrate, Some(LoadOption::Max { .. })) {
        let search = plan_search(&args).ok()?;
        let SearchPlan {
            options,
            trial_ns,
            confirmation_ns,
            measurement,
        } = search;
        let run = text(measurement);
        return Some(format!("{run} {options:?} {trial_ns} {confirmation_ns}"));
    }
    plan_throughput(&args).ok().map(text)
}

#[test]
fn every_option_is_in_the_table() {
    let command = command();
    let throughput = command.find_subcommand("throughput").unwrap();
    let options = throughput.get_arguments().map(|arg| arg.get_id().as_str());
    let existing: BTreeSet<_> = options.filter(|&id| id != "host").collect();
    let listed: BTreeSet<_> = TABLE.iter().map(|row| row.0).collect();
    assert_eq!(existing, listed);
}

#[test]
fn no_option_is_ignored() {
    for (kind, base) in KINDS {
        assert!(planned(base).is_some(), "{kind}");
    }
    for (id, required, option, effects) in TABLE {
        for ((kind, base), expected) in KINDS.into_iter().zip(effects) {
            // If a required option is rejected, so is this one.
            let without = planned(&[base, &[*required][..]].concat());
            let with = planned(&[base, &[*required, *option][..]].concat());
            let got = match with {
                None => R,
                Some(with) if Some(&with) == without.as_ref() => B,
                Some(_) => E,
            };
            assert_eq!(got, *expected, "{id} with {kind}");
        }
    }
}

#[test]
fn connections_refuse_each_option_by_itself() {
    for option in [
        "--batch 8",
        "--trace file",
        "--trace-on call>1ms",
        "--pacing socket",
        "--trial 200ms",
        "--resolution 5%",
        "--wait io-uring",
    ] {
        assert_eq!(planned(&["--connect", option]), None, "{option}");
    }
}

/// Returns the records of the fault-injection bank.
fn bank_records() -> Vec<(String, Record)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/bank/recorded");
    let files = std::fs::read_dir(dir).expect("the bank");
    let read = |file: std::fs::DirEntry| {
        let text = std::fs::read_to_string(file.path()).expect("readable");
        let mut document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let record = serde_json::from_value(document["record"].take()).expect("a record");
        (file.file_name().to_string_lossy().into_owned(), record)
    };
    files.map(|file| read(file.expect("a file"))).collect()
}

/// Returns why a command of a finding cannot run; of another program's, the shell checks the syntax.
fn why_rejected(line: &str) -> Option<String> {
    let arguments = match shell_words::split_args(line) {
        Ok(arguments) => arguments,
        Err(error) => return Some(format!("{error:?}")),
    };
    if arguments.first().map(String::as_str) != Some("linerate") {
        let syntax = std::process::Command::new("sh")
            .args(["-n", "-c", line])
            .status();
        let is_valid = syntax.expect("a shell").success() && !line.contains(['<', '>', '{', '}']);
        return (!is_valid).then(|| "not a command as it stands".to_owned());
    }
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return Some(error.to_string()),
    };
    let describe = |failure: CommandFailure| format!("{failure:?}");
    let plans = match Cli::from_arg_matches(&matches).ok()?.command {
        Command::Throughput(args) if matches!(args.bitrate, Some(LoadOption::Max { .. })) => {
            plan_search(&args).map(|planned| vec![planned.measurement.client.plan])
        }
        Command::Throughput(args) => {
            plan_throughput(&args).map(|planned| vec![planned.client.plan])
        }
        Command::Latency(args) => latency::plan_latency(&args).map(|planned| match planned {
            LatencySeries::Single(run) => vec![run.client.plan],
            LatencySeries::Sizes(client, _)
            | LatencySeries::Waiting(client)
            | LatencySeries::Curve(client)
            | LatencySeries::Loaded(client, ..) => vec![client.plan],
        }),
        _ => Ok(Vec::new()),
    };
    match plans {
        Ok(plans) => {
            let check_error = plans.iter().find_map(|plan| check_plan(plan).err());
            check_error.map(|error| error.to_string())
        }
        Err(failure) => Some(describe(failure)),
    }
}

#[test]
fn commands_of_findings_can_be_run() {
    let (mut checked_commands, mut failures) = (0, Vec::new());
    for (name, mut record) in bank_records() {
        if let Some(typed) = &mut record.command {
            (typed.wrapper, typed.program) = (Vec::new(), String::new());
        }
        let mut cases = vec![record.clone()];
        // In a lab, each command names the host it is for.
        let mut in_lab = record.clone();
        let typed = in_lab.command.get_or_insert_with(|| {
            let mut command = CommandLine::new(record.kind.to_string());
            command.push_positional(record.plan.host.clone());
            command
        });
        typed.wrapper = ["linerate", "lab", "exec", "pair/client", "--"]
            .map(str::to_owned)
            .into();
        for finding in linerate_explain::explain(&in_lab) {
            let line = finding.command.unwrap_or_default();
            let is_inside = line.is_empty() || line.contains("linerate lab exec pair/");
            // The kernel has one log, and a server on the user-space stack runs anywhere.
            let is_anywhere = ["linerate stack ", "dmesg "]
                .iter()
                .any(|start| line.starts_with(start));
            if !is_inside && !is_anywhere {
                failures.push(format!("{name} in a lab: {line}"));
            }
        }
        record.command = None;
        cases.push(record.clone());
        if matches!(record.kind, RunKind::Throughput | RunKind::Latency) {
            cases.extend(["fd77::2", "fe80::1%eth0"].map(|host| {
                let mut over_v6 = record.clone();
                over_v6.plan.host = host.to_owned();
                over_v6
            }));
        }
        // Variants: servers of other tools, and `ttcp -r`, which waits for its client.
        for protocol in CLIENT_PROTOCOLS {
            let mut record = record.clone();
            record.plan.peer_protocol = Some(protocol.name.to_owned());
            record.plan.port = protocol.port + 1;
            let waits_for_client =
                protocol.name == "ttcp" && record.plan.directions == [Direction::Receive];
            // Some protocols are not supported over our stack.
            let by_kernel = record.plan.client_stack.is_none();
            if waits_for_client || by_kernel && check_plan(&record.plan).is_ok() {
                cases.push(record);
            }
        }
        for record in cases {
            let dialect = &record.plan.peer_protocol;
            for finding in linerate_explain::explain(&record) {
                let line = finding.command.unwrap_or_default();
                let why = why_rejected(&line);
                failures.extend(why.map(|why| format!("{name}, {dialect:?}: {line}: {why}")));
                // Without -p the command would use the default port.
                assert!(
                    !line.contains("--peer") || record.command.is_some() || line.contains(" -p "),
                    "{name}: {line}"
                );
                checked_commands += u32::from(line.starts_with("linerate "));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(
        checked_commands > 300,
        "{checked_commands} commands were looked at"
    );
}
