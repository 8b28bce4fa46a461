//! `linerate demo`: all measurements on this machine, and a report.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use linerate_host::stop_flag::StopFlag;
use linerate_interop::run_client;
use linerate_lab::{Lab, Topology};
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::ids::CauseId;
use linerate_record::plan::{Direction, PerEnd, Plan, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_report::html;
use linerate_report::store::write_file;
use linerate_server::options::ServerOptions;
use linerate_server::server::Server;
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;
use linerate_session::error::SessionError;

use super::measure::stop_on_signals;
use crate::args::DemoArgs;
use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::lab_network::topology_of;
use crate::output::{CommandOutput, check_writable_dir};
use crate::printer::run_with_printer;
use crate::standard_streams::print_stderr;

struct DemoStep {
    label: &'static str,
    kind: RunKind,
    protocol: TransportProtocol,
    direction: Direction,
    wait: Option<WaitMode>,
}

const fn step(
    label: &'static str,
    kind: RunKind,
    protocol: TransportProtocol,
    direction: Direction,
    wait: Option<WaitMode>,
) -> DemoStep {
    DemoStep {
        label,
        kind,
        protocol,
        direction,
        wait,
    }
}

/// Measurements in their order.
const DEMO_STEPS: &[DemoStep] = &[
    step(
        "TCP, sending",
        RunKind::Throughput,
        TransportProtocol::Tcp,
        Direction::Send,
        None,
    ),
    step(
        "TCP, receiving",
        RunKind::Throughput,
        TransportProtocol::Tcp,
        Direction::Receive,
        None,
    ),
    step(
        "UDP, sending",
        RunKind::Throughput,
        TransportProtocol::Udp,
        Direction::Send,
        None,
    ),
    step(
        "UDP round trip, blocking",
        RunKind::Latency,
        TransportProtocol::Udp,
        Direction::Send,
        Some(WaitMode::Block),
    ),
    step(
        "UDP round trip, spinning",
        RunKind::Latency,
        TransportProtocol::Udp,
        Direction::Send,
        Some(WaitMode::Spin),
    ),
    step(
        "TCP round trip, blocking",
        RunKind::Latency,
        TransportProtocol::Tcp,
        Direction::Send,
        Some(WaitMode::Block),
    ),
    step(
        "TCP round trip, spinning",
        RunKind::Latency,
        TransportProtocol::Tcp,
        Direction::Send,
        Some(WaitMode::Spin),
    ),
];

/// Runs the command and returns the exit code.
pub fn run(args: DemoArgs) -> u8 {
    let mut output = CommandOutput::new(&args.output);
    let code = run_demo(&args, &mut output).unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.fail_on_finding)
}

fn run_demo(args: &DemoArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    if args.time < Duration::from_millis(100) {
        return Err(CommandFailure::usage(ErrorReport::new(
            "too short to measure",
            "-t",
            "give 100ms or more",
        )));
    }
    output.check_files()?;
    check_report(&args.dir)?;
    prepare_dir(&args.dir)?;
    let mut notes = Vec::new();
    // Before the first thread: only a single-threaded process can enter a user namespace.
    let hosts = if args.loopback {
        notes.push("Measured over loopback (--loopback), without a virtual link.".to_owned());
        DemoHosts::Loopback
    } else {
        DemoHosts::build(&mut notes)
    };
    let quiet = output.is_quiet();
    for note in notes.iter().filter(|_| !quiet) {
        output.warn(note);
    }
    let stop = stop_on_signals()?;
    let stream = output.is_stream();
    let measured = run_with_printer(output, |sender| {
        let watcher = EventWatcher {
            bar: DemoProgress::new(args.time * DEMO_STEPS.len() as u32, quiet),
            stream: stream.then_some(sender),
        };
        run_steps(args, &hosts, &stop, &watcher)
    })?;
    let (runs, failure) = match measured {
        Err(failure) if stop.is_set() => {
            return Err(CommandFailure {
                code: exit_codes::INTERRUPTED,
                ..failure
            });
        }
        measured => measured?,
    };
    if let Some(failure) = &failure {
        notes.push(format!("Ended early: {}.", failure.problem));
        output.warn(&format!("error: {}", failure.problem));
    }
    let mut set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(Timestamp::now()),
        kind: "demo".to_owned(),
        started: runs.first().map_or_else(Timestamp::now, |run| run.started),
        interrupted: stop.is_set(),
        result: SetResult {
            notes: notes.clone(),
            ..SetResult::default()
        },
        runs,
    };
    crate::findings::add_findings_to_set(&mut set);
    output.write_set(&set, &[])?;
    write_results(&args.dir, &set, hosts.rerun_note(&set.runs))?;
    let report = args.dir.join("report.html");
    if !quiet {
        output.warn(&format!("report: {}", report.display()));
    }
    Ok(match failure {
        _ if stop.is_set() => exit_codes::INTERRUPTED,
        Some(failure) => failure.code,
        None => exit_codes::OK,
    })
}

/// Title of the report.
const REPORT_TITLE: &str = "linerate demo";

/// Checks that the report overwrites at most an earlier one.
fn check_report(dir: &Path) -> Result<(), CommandFailure> {
    let page = dir.join("report.html");
    let is_demo_report = |bytes: &[u8]| {
        let title = format!("<title>{REPORT_TITLE}</title>");
        bytes
            .windows(title.len())
            .any(|part| part == title.as_bytes())
    };
    // A file that cannot be read is reported when the report is written.
    match std::fs::read(&page) {
        Ok(bytes) if !is_demo_report(&bytes) => Err(CommandFailure::usage(ErrorReport::new(
            "exists and is not a report of the demo, which would overwrite it",
            page.display().to_string(),
            "name another directory with --dir, or move the file",
        ))),
        _ => Ok(()),
    }
}

/// Creates the directory of the report before the measurements, so that errors appear early.
pub(super) fn prepare_dir(dir: &Path) -> Result<(), CommandFailure> {
    let failure = |problem: &str, error: std::io::Error| {
        CommandFailure::failed(ErrorReport::new(
            format!("{problem} ({error})"),
            dir.display().to_string(),
            "run it where this user may write, or name another directory with --dir",
        ))
    };
    std::fs::create_dir_all(dir).map_err(|error| failure("cannot create the directory", error))?;
    // The directory may exist and belong to another user.
    check_writable_dir(dir).map_err(|error| failure("cannot write to the directory", error))
}

/// Writes the report and the records. `rerun_note` is a note for the report only, because the text
/// has no findings.
fn write_results(
    dir: &Path,
    set: &RunSet,
    rerun_note: Option<String>,
) -> Result<(), CommandFailure> {
    for run in &set.runs {
        write_file(dir.join(format!("{}.json", run.id)), &run.to_json())?;
    }
    let notes: Vec<_> = set.result.notes.iter().cloned().chain(rerun_note).collect();
    let page = html::render_report(REPORT_TITLE, &set.runs, &notes);
    write_file(dir.join("report.html"), &page)?;
    Ok(())
}

/// Location of the demo's client and server.
enum DemoHosts {
    /// Two hosts with a virtual link.
    Lab(Box<Lab>),
    /// Loopback of this machine.
    Loopback,
}

impl DemoHosts {
    /// Builds the lab; if that is not possible, uses loopback, with a note on how to enable the
    /// lab.
    fn build(notes: &mut Vec<String>) -> Self {
        let is_privileged = if linerate_lab::privileged() {
            Ok(())
        } else {
            linerate_lab::enter_user_namespace()
        };
        match is_privileged.and_then(|()| Lab::up(&Topology::hops(0))) {
            Ok(lab) => Self::Lab(Box::new(lab)),
            Err(error) => {
                notes.push(format!(
                    "Measured over loopback, because a lab of two hosts cannot be built here: {}.",
                    error.full_text()
                ));
                Self::Loopback
            }
        }
    }

    fn server_address(&self) -> Result<String, CommandFailure> {
        match self {
            Self::Lab(lab) => Ok(lab.host("server")?.address().to_string()),
            Self::Loopback => Ok("127.0.0.1".to_owned()),
        }
    }

    /// Returns how to repeat the commands of findings, whose server and hosts ended with the demo.
    fn rerun_note(&self, runs: &[Record]) -> Option<String> {
        let mut findings = runs.iter().flat_map(|run| &run.findings);
        findings.find(|finding| finding.command.is_some())?;
        let port = runs.first()?.plan.port;
        Some(match self {
            Self::Lab(_) => format!(
                "To run the command of a finding, build such hosts again: `linerate lab up --hops 0 --name demo`, \
                 `linerate lab exec demo/server -- linerate server -q -p {port} &`, then the command after \
                 `linerate lab exec demo/client --`."
            ),
            Self::Loopback => format!(
                "To run the command of a finding, start a server again: `linerate server -p {port}`."
            ),
        })
    }

    /// Starts the server and returns its port.
    fn start_server(
        &self,
        stop: &Arc<AtomicBool>,
    ) -> Result<(JoinHandle<()>, u16), CommandFailure> {
        let (port_sender, port) = std::sync::mpsc::channel();
        let flag = Arc::clone(stop);
        let loopback = matches!(self, Self::Loopback);
        let body = move || {
            let server = Server::bind(&ServerOptions {
                port: 0,
                address: loopback.then_some(std::net::Ipv4Addr::LOCALHOST.into()),
                interface: None,
                family: AddressFamily::V4,
                single_test: false,
                grants: Vec::new(),
                ..ServerOptions::default()
            });
            match server {
                Ok(server) => {
                    let _ = port_sender.send(Ok(server.port()));
                    // The client reports failures of tests.
                    let _ = server.run(flag, Arc::new(|_| {}));
                }
                Err(error) => {
                    let _ = port_sender.send(Err(error));
                }
            }
        };
        let thread = match self {
            Self::Lab(lab) => lab.host("server")?.spawn(body)?,
            Self::Loopback => std::thread::spawn(body),
        };
        match port.recv() {
            Ok(Ok(port)) => Ok((thread, port)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(CommandFailure::failed(ErrorReport::new(
                "the server did not start",
                "demo",
                "see what `linerate doctor` reports",
            ))),
        }
    }

    /// Runs a client on the client's host.
    fn run_client(
        &self,
        client: &Client,
        stop: &AtomicBool,
        emit: &mut (dyn FnMut(EventKind) + Send),
    ) -> Result<(Record, Option<SessionError>), CommandFailure> {
        let outcome = match self {
            Self::Lab(lab) => {
                // Without it, loss points are less exact.
                let network = lab.current_lab().ok().map(topology_of).map(Arc::new);
                lab.host("client")?
                    .run(|| run_client(client, network.as_ref(), stop, emit))?
            }
            Self::Loopback => client.run(stop, emit),
        };
        Ok(outcome?)
    }
}

fn step_plan(step: &DemoStep, host: &str, port: u16, time: Duration) -> Plan {
    let mut plan = Plan::new(step.kind, step.protocol, host);
    plan.port = port;
    plan.directions = vec![step.direction];
    plan.duration_ns = u64::try_from(time.as_nanos()).ok();
    plan.interval_ns = plan.duration_ns.map(|time| (time / 20).max(50_000_000));
    plan.wait = step.wait.map(PerEnd::same);
    plan
}

/// Returns the congestion control that a finding of the first measurement proposes.
fn proposed_congestion_control(record: &Record) -> Option<String> {
    let findings = linerate_explain::explain(record);
    let finding = findings
        .iter()
        .find(|finding| finding.cause == CauseId::CongestionControl)?;
    let command = finding.command.as_deref()?;
    let (_, rest) = command.split_once(" -C ")?;
    rest.split_whitespace().next().map(str::to_owned)
}

/// Measures step by step until a failure; returns the records and the failure.
fn run_steps(
    args: &DemoArgs,
    hosts: &DemoHosts,
    stop: &StopFlag,
    watcher: &EventWatcher,
) -> Result<(Vec<Record>, Option<CommandFailure>), CommandFailure> {
    let server_address = hosts.server_address()?;
    let server_stop = Arc::new(AtomicBool::new(false));
    let (server, port) = hosts.start_server(&server_stop)?;
    let mut runs = Vec::new();
    let mut failure = None;
    let mut steps: VecDeque<(usize, String, Plan)> = (DEMO_STEPS.iter().enumerate())
        .map(|(number, step)| {
            let plan = step_plan(step, &server_address, port, args.time);
            (number, step.label.to_owned(), plan)
        })
        .collect();
    let mut has_remedy = false;
    while let Some((number, label, plan)) = steps.pop_front() {
        watcher.bar.start_step(number, &label);
        let client = Client {
            plan: plan.clone(),
            family: AddressFamily::V4,
            retry_timeout: Duration::ZERO,
            key: None,
        };
        let flag = stop.atomic();
        match hosts.run_client(&client, &flag, &mut |what| watcher.emit(number, what)) {
            Ok((mut record, failed)) => {
                record.label = Some(label.clone());
                let reported = Box::new(record.clone());
                watcher.emit(number, EventKind::Finished { record: reported });
                // The effect of the remedy stands below what it remedies.
                if let Some(name) = proposed_congestion_control(&record).filter(|_| !has_remedy) {
                    has_remedy = true;
                    let mut plan = plan.clone();
                    plan.congestion_control = Some(name.clone());
                    plan.congestion_control_requested = true;
                    steps.push_front((number, format!("{label}, {name}"), plan));
                }
                runs.push(record);
                failure = failed.map(CommandFailure::from);
            }
            // A remedy that is not permitted here is left out.
            Err(_) if plan.congestion_control_requested => {}
            // Earlier records are kept.
            Err(error) => failure = Some(error),
        }
        if stop.is_set() || failure.is_some() {
            break;
        }
    }
    watcher.bar.finish();
    server_stop.store(true, Relaxed);
    let _ = server.join();
    match failure {
        Some(failure) if runs.is_empty() => Err(failure),
        failure => Ok((runs, failure)),
    }
}

/// Receivers of the events: progress bar and event stream.
struct EventWatcher<'a> {
    bar: DemoProgress,
    /// Set with `--json-stream`.
    stream: Option<&'a EventSender>,
}

impl EventWatcher<'_> {
    fn emit(&self, step: usize, what: EventKind) {
        self.bar.on_event(&what);
        if let Some(sender) = self.stream {
            let test = step as u32 + 1;
            sender.send(Event { test, kind: what });
        }
    }
}

/// Progress bar on standard error, drawn only when an interval ends: a thread of its own would take
/// processor time from the measurement.
struct DemoProgress {
    bar: ProgressBar,
    started_at: Instant,
    total: Duration,
    quiet: bool,
}

impl DemoProgress {
    fn new(total: Duration, quiet: bool) -> Self {
        let target = if std::io::stderr().is_terminal() && !quiet {
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total.as_millis() as u64), target);
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}")
            .expect("the template is a constant")
            .progress_chars("=> ");
        bar.set_style(style);
        Self {
            bar,
            started_at: Instant::now(),
            total,
            quiet,
        }
    }

    fn start_step(&self, number: usize, label: &str) {
        let done = self.total.as_millis() as u64 * number as u64 / DEMO_STEPS.len() as u64;
        self.bar.set_position(done);
        self.bar
            .set_message(format!("{}/{} {label}", number + 1, DEMO_STEPS.len()));
        if self.bar.is_hidden() && !self.quiet {
            print_stderr(&format!(
                "[{:>5.1} s] {}/{} {label}",
                self.started_at.elapsed().as_secs_f64(),
                number + 1,
                DEMO_STEPS.len()
            ));
        }
    }

    fn on_event(&self, what: &EventKind) {
        if let EventKind::Interval { interval } = what {
            let length = interval.end_ns.saturating_sub(interval.start_ns);
            self.bar.inc(length / 1_000_000);
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_names_the_server_that_a_command_needs() {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).expect("a record");
        run.plan.port = 4_321;
        run.findings = Vec::new();
        let none = DemoHosts::Loopback.rerun_note(std::slice::from_ref(&run));
        assert_eq!(none, None);
        run.findings = vec![serde_json::from_str(FINDING).expect("a finding")];
        let note = DemoHosts::Loopback
            .rerun_note(&[run])
            .expect("there is a command");
        assert!(note.ends_with("`linerate server -p 4321`."), "{note}");
    }

    const FINDING: &str = r#"{
        "kind": "cause", "cause": "congestion-control", "end": "client", "cost": 0.6, "what": "", "evidence": [],
        "remedy": "", "command": "linerate throughput 127.0.0.1 -p 4321 -C cubic"
    }"#;
}
