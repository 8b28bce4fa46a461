//! `linerate demo`: all measurements on this machine, and a report.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use linerate_host::stop_flag::Stop;
use linerate_lab::{Lab, Topology};
use linerate_measure::{Client, Family, MeasureError, Server, ServerOptions};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Wait};
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_report::html;
use linerate_report::store::write_file;

use super::measure::stop_on_signals;
use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::lab_network::network_of;
use crate::output::{Output, check_writable, complain};
use crate::printer::{Teller, while_printing};

struct Step {
    label: &'static str,
    kind: Kind,
    protocol: Protocol,
    direction: Direction,
    wait: Option<Wait>,
}

const fn step(
    label: &'static str,
    kind: Kind,
    protocol: Protocol,
    direction: Direction,
    wait: Option<Wait>,
) -> Step {
    Step {
        label,
        kind,
        protocol,
        direction,
        wait,
    }
}

/// Measurements in their order.
const STEPS: &[Step] = &[
    step(
        "TCP, sending",
        Kind::Throughput,
        Protocol::Tcp,
        Direction::Send,
        None,
    ),
    step(
        "TCP, receiving",
        Kind::Throughput,
        Protocol::Tcp,
        Direction::Receive,
        None,
    ),
    step(
        "UDP, sending",
        Kind::Throughput,
        Protocol::Udp,
        Direction::Send,
        None,
    ),
    step(
        "UDP round trip, blocking",
        Kind::Latency,
        Protocol::Udp,
        Direction::Send,
        Some(Wait::Block),
    ),
    step(
        "UDP round trip, spinning",
        Kind::Latency,
        Protocol::Udp,
        Direction::Send,
        Some(Wait::Spin),
    ),
    step(
        "TCP round trip, blocking",
        Kind::Latency,
        Protocol::Tcp,
        Direction::Send,
        Some(Wait::Block),
    ),
    step(
        "TCP round trip, spinning",
        Kind::Latency,
        Protocol::Tcp,
        Direction::Send,
        Some(Wait::Spin),
    ),
];

/// Runs the command and returns the exit code.
pub fn run(args: DemoArgs) -> u8 {
    let mut output = Output::new(&args.output);
    let code = demo(&args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.fail_on_finding)
}

fn demo(args: &DemoArgs, output: &mut Output) -> Result<u8, Failure> {
    if args.time < Duration::from_millis(100) {
        return Err(Failure::usage(Problem::new(
            "too short to measure",
            "-t",
            "give 100ms or more",
        )));
    }
    output.check_file()?;
    check_page(&args.dir)?;
    prepare_folder(&args.dir)?;
    let mut notes = Vec::new();
    // Before the first thread: only a single-threaded process can enter a user namespace.
    let place = if args.loopback {
        notes.push("Measured over loopback (--loopback), without a virtual link.".to_owned());
        Place::Loopback
    } else {
        Place::build(&mut notes)
    };
    let quiet = output.is_quiet();
    for note in notes.iter().filter(|_| !quiet) {
        output.remark(note);
    }
    let stop = stop_on_signals()?;
    let stream = output.is_stream();
    let measured = while_printing(output, |teller| {
        let watcher = Watcher {
            bar: Bar::new(args.time * STEPS.len() as u32, quiet),
            teller: stream.then_some(teller),
        };
        measure(args, &place, &stop, &watcher)
    })?;
    let (runs, failure) = match measured {
        Err(failure) if stop.is_set() => {
            return Err(Failure {
                code: exit::INTERRUPTED,
                ..failure
            });
        }
        measured => measured?,
    };
    if let Some(failure) = &failure {
        notes.push(format!("Ended early: {}.", failure.problem));
        output.remark(&format!("error: {}", failure.problem));
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
    linerate_explain::complete_set(&mut set);
    output.set(&set, &[])?;
    write_folder(&args.dir, &set, place.again(&set.runs))?;
    let report = args.dir.join("report.html");
    if !quiet {
        output.remark(&format!("report: {}", report.display()));
    }
    Ok(match failure {
        _ if stop.is_set() => exit::INTERRUPTED,
        Some(failure) => failure.code,
        None => exit::OK,
    })
}

/// Title of the report.
const TITLE: &str = "linerate demo";

/// Checks that the report overwrites at most an earlier one.
fn check_page(dir: &Path) -> Result<(), Failure> {
    let page = dir.join("report.html");
    let is_own = |bytes: &[u8]| {
        let title = format!("<title>{TITLE}</title>");
        bytes
            .windows(title.len())
            .any(|part| part == title.as_bytes())
    };
    // A file that cannot be read is reported when the report is written.
    match std::fs::read(&page) {
        Ok(bytes) if !is_own(&bytes) => Err(Failure::usage(Problem::new(
            "exists and is not a report of the demo, which would overwrite it",
            page.display().to_string(),
            "name another directory with --dir, or move the file",
        ))),
        _ => Ok(()),
    }
}

/// Creates the directory of the report before the measurements, so that errors appear early.
pub(super) fn prepare_folder(dir: &Path) -> Result<(), Failure> {
    let refused = |what: &str, error: std::io::Error| {
        Failure::failed(Problem::new(
            format!("{what} ({error})"),
            dir.display().to_string(),
            "run it where this user may write, or name another directory with --dir",
        ))
    };
    std::fs::create_dir_all(dir).map_err(|error| refused("cannot create the directory", error))?;
    // The directory may exist and belong to another user.
    check_writable(dir).map_err(|error| refused("cannot write to the directory", error))
}

/// Writes the report and the records. `again` is a note for the report only, because the text has
/// no findings.
fn write_folder(dir: &Path, set: &RunSet, again: Option<String>) -> Result<(), Failure> {
    for run in &set.runs {
        write_file(dir.join(format!("{}.json", run.id)), &run.to_json())?;
    }
    let notes: Vec<_> = set.result.notes.iter().cloned().chain(again).collect();
    let page = html::report(TITLE, &set.runs, &notes);
    write_file(dir.join("report.html"), &page)?;
    Ok(())
}

/// Location of the demo's client and server.
enum Place {
    /// Two hosts with a virtual link.
    Lab(Box<Lab>),
    /// Loopback of this machine.
    Loopback,
}

impl Place {
    /// Builds the lab; if that is not possible, uses loopback, with a note on how to enable the
    /// lab.
    fn build(notes: &mut Vec<String>) -> Self {
        let entered = if linerate_lab::privileged() {
            Ok(())
        } else {
            linerate_lab::enter_user_namespace()
        };
        match entered.and_then(|()| Lab::up(&Topology::hops(0))) {
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

    fn far(&self) -> Result<String, Failure> {
        match self {
            Self::Lab(lab) => Ok(lab.host("server")?.address().to_string()),
            Self::Loopback => Ok("127.0.0.1".to_owned()),
        }
    }

    /// Returns how to repeat the commands of findings, whose server and hosts ended with the demo.
    fn again(&self, runs: &[Record]) -> Option<String> {
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
    fn serve(&self, stop: &Arc<AtomicBool>) -> Result<(JoinHandle<()>, u16), Failure> {
        let (told, port) = std::sync::mpsc::channel();
        let flag = Arc::clone(stop);
        let loopback = matches!(self, Self::Loopback);
        let body = move || {
            let server = Server::bind(&ServerOptions {
                port: 0,
                address: loopback.then_some(std::net::Ipv4Addr::LOCALHOST.into()),
                interface: None,
                family: Family::V4,
                once: false,
                grants: Vec::new(),
                ..ServerOptions::default()
            });
            match server {
                Ok(server) => {
                    let _ = told.send(Ok(server.port()));
                    // The client reports failures of tests.
                    let _ = server.run(flag, Arc::new(|_| {}));
                }
                Err(error) => {
                    let _ = told.send(Err(error));
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
            Err(_) => Err(Failure::failed(Problem::new(
                "the server did not start",
                "demo",
                "see what `linerate doctor` reports",
            ))),
        }
    }

    /// Runs a client on the client's host.
    fn ask(
        &self,
        client: &Client,
        stop: &AtomicBool,
        emit: &mut (dyn FnMut(What) + Send),
    ) -> Result<(Record, Option<MeasureError>), Failure> {
        let ran = match self {
            Self::Lab(lab) => {
                // Without it, loss points are less exact.
                let network = lab.inside().ok().map(network_of).map(Arc::new);
                lab.host("client")?
                    .run(|| client.run_within(network.as_ref(), stop, emit))?
            }
            Self::Loopback => client.run(stop, emit),
        };
        Ok(ran?)
    }
}

fn plan(step: &Step, host: &str, port: u16, time: Duration) -> Plan {
    let mut plan = Plan::new(step.kind, step.protocol, host);
    plan.port = port;
    plan.directions = vec![step.direction];
    plan.duration_ns = u64::try_from(time.as_nanos()).ok();
    plan.interval_ns = plan.duration_ns.map(|time| (time / 20).max(50_000_000));
    plan.wait = step.wait.map(Ends::both);
    plan
}

/// Measures step by step until a failure; returns the records and the failure.
fn measure(
    args: &DemoArgs,
    place: &Place,
    stop: &Stop,
    watcher: &Watcher,
) -> Result<(Vec<Record>, Option<Failure>), Failure> {
    let far = place.far()?;
    let over = Arc::new(AtomicBool::new(false));
    let (server, port) = place.serve(&over)?;
    let mut runs = Vec::new();
    let mut failure = None;
    for (number, step) in STEPS.iter().enumerate() {
        watcher.bar.step(number, step.label);
        let client = Client {
            plan: plan(step, &far, port, args.time),
            family: Family::V4,
            retry: Duration::ZERO,
            key: None,
        };
        let flag = stop.as_flag();
        match place.ask(&client, &flag, &mut |what| watcher.tell(number, what)) {
            Ok((mut record, failed)) => {
                record.label = Some(step.label.to_owned());
                let record_told = Box::new(record.clone());
                watcher.tell(
                    number,
                    What::Finished {
                        record: record_told,
                    },
                );
                runs.push(record);
                failure = failed.map(Failure::from);
            }
            // Earlier records are kept.
            Err(error) => failure = Some(error),
        }
        if stop.is_set() || failure.is_some() {
            break;
        }
    }
    watcher.bar.finish();
    over.store(true, Relaxed);
    let _ = server.join();
    match failure {
        Some(failure) if runs.is_empty() => Err(failure),
        failure => Ok((runs, failure)),
    }
}

/// Receivers of the events: progress bar and event stream.
struct Watcher<'a> {
    bar: Bar,
    /// Set with `--json-stream`.
    teller: Option<&'a Teller>,
}

impl Watcher<'_> {
    fn tell(&self, step: usize, what: What) {
        self.bar.event(&what);
        if let Some(teller) = self.teller {
            let test = step as u32 + 1;
            teller.tell(Event { test, what });
        }
    }
}

/// Progress bar on standard error, drawn only when an interval ends: a thread of its own would take
/// processor time from the measurement.
struct Bar {
    bar: ProgressBar,
    began: Instant,
    total: Duration,
    quiet: bool,
}

impl Bar {
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
            began: Instant::now(),
            total,
            quiet,
        }
    }

    fn step(&self, number: usize, label: &str) {
        let done = self.total.as_millis() as u64 * number as u64 / STEPS.len() as u64;
        self.bar.set_position(done);
        self.bar
            .set_message(format!("{}/{} {label}", number + 1, STEPS.len()));
        if self.bar.is_hidden() && !self.quiet {
            complain(&format!(
                "[{:>5.1} s] {}/{} {label}",
                self.began.elapsed().as_secs_f64(),
                number + 1,
                STEPS.len()
            ));
        }
    }

    fn event(&self, what: &What) {
        if let What::Interval { interval } = what {
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
    fn what_findings_say_to_try_is_told_with_the_far_end_that_it_takes() {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).expect("a record");
        run.plan.port = 4_321;
        run.findings = Vec::new();
        let none = Place::Loopback.again(std::slice::from_ref(&run));
        assert_eq!(none, None);
        run.findings = vec![serde_json::from_str(FINDING).expect("a finding")];
        let told = Place::Loopback.again(&[run]).expect("there is a command");
        assert!(told.ends_with("`linerate server -p 4321`."), "{told}");
    }

    const FINDING: &str = r#"{
        "kind": "cause", "cause": "congestion-control", "end": "client", "cost": 0.6, "what": "", "evidence": [],
        "remedy": "", "command": "linerate throughput 127.0.0.1 -p 4321 -C cubic"
    }"#;
}
