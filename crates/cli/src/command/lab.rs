//! `linerate lab`: test networks of hosts, switches and links.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use linerate_lab::{LabInfo, LinkSpec, Topology};
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_report::text;
use linerate_stats::units::{format_bit_rate, format_bytes, format_nanos, format_share};
use serde::Serialize;

use crate::args::{LabAction, LabArgs};
use crate::failure::CommandFailure;
use crate::output::{OutputFormat, print_failure};
use crate::standard_streams::{print_stderr, print_stdout, stderr_style};

/// Maximum number of switches in a row: an IP packet passes 255 hops at most, and each takes time
/// to build.
const MAX_SWITCHES: usize = 255;

/// Runs the process that holds a lab.
pub fn hold(arguments: &[OsString]) -> ExitCode {
    if let [step, rest @ ..] = arguments
        && step == linerate_lab::LINK_STEP
    {
        return super::lab_link::run(rest);
    }
    match linerate_lab::hold(arguments.iter().cloned()) {
        Ok(()) => ExitCode::from(exit_codes::OK),
        Err(error) => {
            let failure = CommandFailure::from(error);
            print_stderr(&text::render_error(&failure.problem, &stderr_style()));
            ExitCode::from(failure.code)
        }
    }
}

/// Runs the command and returns the exit code.
pub fn run(args: LabArgs) -> u8 {
    let json = match &args.action {
        LabAction::Up { json, .. } | LabAction::List { json } => *json,
        LabAction::Exec { .. } | LabAction::Down { .. } => false,
    };
    run_action(args.action).unwrap_or_else(|failure| {
        if json {
            print_failure(OutputFormat::Json, &failure, 0);
        } else {
            print_stderr(&text::render_error(&failure.problem, &stderr_style()));
        }
        failure.code
    })
}

#[derive(Serialize)]
struct LabsDocument<'a> {
    schema: &'static str,
    labs: &'a [LabInfo],
}

fn print_json(labs: &[LabInfo]) {
    let document = LabsDocument {
        schema: "linerate/labs/1",
        labs,
    };
    print_stdout(&serde_json::to_string(&document).expect("a lab holds only what JSON can say"));
}

fn run_action(action: LabAction) -> Result<u8, CommandFailure> {
    match action {
        LabAction::Up {
            file,
            hops,
            link,
            name,
            json,
        } => {
            let topology = match (file, hops) {
                (Some(file), _) => {
                    let text = std::fs::read_to_string(&file).map_err(|error| {
                        CommandFailure::usage(ErrorReport::new(
                            format!("cannot be read ({error})"),
                            file.display().to_string(),
                            "name a lab file, or give --hops N",
                        ))
                    })?;
                    Topology::from_toml(&text)?
                }
                (None, hops) => {
                    if hops.is_some_and(|hops| hops > MAX_SWITCHES) {
                        return Err(CommandFailure::usage(ErrorReport::new(
                            "too many switches",
                            format!("--hops {}", hops.unwrap_or_default()),
                            format!("give 0 to {MAX_SWITCHES}"),
                        )));
                    }
                    let mut topology = Topology::hops(hops.unwrap_or(0));
                    if let Some(last) = topology.links.last_mut() {
                        *last = LinkSpec {
                            between: last.between.clone(),
                            mtu: link.mtu,
                            rate: link.rate,
                            queue: link.queue,
                            delay: link.delay,
                            jitter: link.jitter,
                            loss: link.loss,
                            reorder: link.reorder,
                            ..LinkSpec::default()
                        };
                    }
                    topology.validate()?;
                    topology
                }
            };
            let lab = linerate_lab::up(&topology, name.as_deref())?;
            if json {
                print_json(&[lab]);
            } else {
                print_stdout(describe(&lab).trim_end());
            }
            Ok(exit_codes::OK)
        }
        LabAction::Exec {
            host,
            name,
            command,
        } => {
            let (lab, host) = match host.rsplit_once('/') {
                Some((lab, host)) => (Some(lab), host),
                None => (name.as_deref(), host.as_str()),
            };
            let outcome = linerate_lab::exec(lab, host, &command)?;
            let Some(failure) = outcome.link_failure.map(CommandFailure::from) else {
                return Ok(outcome.exit_code);
            };
            print_stderr(&text::render_error(&failure.problem, &stderr_style()));
            Ok(match outcome.exit_code {
                exit_codes::OK => failure.code,
                code => code,
            })
        }
        LabAction::List { json } => {
            let labs = linerate_lab::list()?;
            if json {
                print_json(&labs);
            } else if labs.is_empty() {
                print_stdout("no lab is up; start one with `linerate lab up --hops 1`");
            } else {
                let all: Vec<_> = labs.iter().map(describe).collect();
                print_stdout(all.join("\n").trim_end());
            }
            Ok(exit_codes::OK)
        }
        LabAction::Down { lab, name } => {
            let lab = linerate_lab::down(lab.or(name).as_deref())?;
            print_stdout(&format!("lab {} is down", lab.name));
            Ok(exit_codes::OK)
        }
    }
}

/// Returns a lab as text: holder, hosts, links.
fn describe(lab: &LabInfo) -> String {
    let mut out = String::new();
    let rootless = if lab.rootless { ", without root" } else { "" };
    let _ = writeln!(
        out,
        "lab {} is up (held by process {}{rootless})",
        lab.name, lab.holder_pid
    );
    let width = |names: &mut dyn Iterator<Item = usize>| names.max().unwrap_or(0);
    let names = width(&mut lab.hosts.iter().map(|host| host.name.len()));
    for host in &lab.hosts {
        let v6 = (host.address_v6).map_or(String::new(), |address| format!("  {address}"));
        let _ = writeln!(out, "  host {:names$}  {}{v6}", host.name, host.address);
    }
    for link in &lab.links {
        let mut properties = vec![format!("mtu {}", link.mtu)];
        properties.extend(link.rate_bps.map(|rate| format_bit_rate(rate as f64)));
        let time = |ns: u64| format_nanos(ns as f64);
        properties.extend(link.delay_ns.map(|delay| format!("delay {}", time(delay))));
        properties.extend(
            link.jitter_ns
                .map(|jitter| format!("jitter {}", time(jitter))),
        );
        properties.extend(link.loss.map(|loss| format!("loss {}", format_share(loss))));
        properties.extend(
            link.reorder
                .map(|share| format!("reorder {}", format_share(share))),
        );
        properties.extend(
            link.gso_bytes
                .map(|gso| format!("gso {}", format_bytes(u64::from(gso)))),
        );
        properties.extend(
            (link.failure.as_ref())
                .map(|why| format!("ENDED: its forwarder process has exited ({why})")),
        );
        let _ = writeln!(
            out,
            "  link {} - {}  {}",
            link.between[0],
            link.between[1],
            properties.join(", ")
        );
    }
    if let Some(host) = lab.hosts.first() {
        let _ = writeln!(
            out,
            "  try  linerate lab exec {}/{} -- ip address",
            lab.name, host.name
        );
    }
    out
}
