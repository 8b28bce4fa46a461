//! Series of runs that form a set: made one after the other, reported together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::stop_flag::StopFlag;
use linerate_interop::run_client;
use linerate_record::event::{Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::plan::RunKind;
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_session::client::Client;
use linerate_session::error::SessionError;
use linerate_session::loss::LabNetwork;

use super::measure::{server_ended_failure, stop_on_signals};
use crate::args::MeasureArgs;
use crate::event_queue::EventSender;
use crate::failure::{CommandFailure, SeriesEnd};
use crate::output::CommandOutput;
use crate::port_devices::PortDevices;
use crate::ui_update::{SeriesPart, UiUpdate};
use crate::{lab_network, live};

/// Makes runs and keeps their records.
pub struct SeriesRunner<'a> {
    stop: &'a StopFlag,
    events: &'a EventSender,
    /// Topology of the lab that runs this program: all runs use the same path.
    network: Option<Arc<LabNetwork>>,
    test: u32,
    /// Records so far.
    pub runs: Vec<Record>,
    /// Notes on runs that were not possible.
    pub notes: Vec<String>,
}

impl SeriesRunner<'_> {
    /// Makes a labelled run and returns its record.
    ///
    /// # Errors
    /// Returns the failure of the run, or that it was interrupted.
    pub fn run_series(&mut self, label: &str, client: &Client) -> Result<&Record, SeriesEnd> {
        let record = self.try_run(label, client)?;
        record.map_err(|error| SeriesEnd::Failed(error.into()))?;
        Ok(self.runs.last().expect("a successful run has a record"))
    }

    /// Makes a labelled run; the inner error is the reason why it could not start.
    pub fn try_run(
        &mut self,
        label: &str,
        client: &Client,
    ) -> Result<Result<(), SessionError>, SeriesEnd> {
        self.test += 1;
        let (test, events) = (self.test, self.events);
        events.show(UiUpdate::PartStarted(SeriesPart {
            name: "run",
            number: test as usize,
            settings: label.to_owned(),
            ..SeriesPart::default()
        }));
        let mut emit = |what| events.send(Event { test, kind: what });
        let outcome = run_client(
            client,
            self.network.as_ref(),
            &self.stop.atomic(),
            &mut emit,
        );
        let (mut record, failure) = match outcome {
            Ok(outcome) => outcome,
            Err(_) if self.stop.is_set() => return Err(SeriesEnd::Interrupted),
            Err(error) => return Ok(Err(error)),
        };
        record.label = Some(label.to_owned());
        emit(EventKind::Finished {
            record: Box::new(record.clone()),
        });
        events.show(UiUpdate::part_result(label, &record));
        let has_peer_ended = record.interrupted && failure.is_none() && !self.stop.is_set();
        let server_ended = has_peer_ended.then(|| server_ended_failure(&record));
        self.runs.push(record);
        if self.stop.is_set() {
            return Err(SeriesEnd::Interrupted);
        }
        match failure.map(CommandFailure::from).or(server_ended) {
            Some(failure) => Err(SeriesEnd::Failed(failure)),
            None => Ok(Ok(())),
        }
    }

    /// Makes a run without reporting it, to check that the server accepts it.
    ///
    /// # Errors
    /// Returns the server's rejection, or that it was interrupted.
    pub fn check(&self, client: &Client) -> Result<(), SeriesEnd> {
        match client.run(&self.stop.atomic(), &mut |_| {}) {
            _ if self.stop.is_set() => Err(SeriesEnd::Interrupted),
            Ok(_) => Ok(()),
            Err(error) => Err(SeriesEnd::Failed(error.into())),
        }
    }

    /// Makes a run in parallel with a load, which gets a head start.
    ///
    /// # Errors
    /// Returns the failure of either run.
    pub fn run_under_load(
        &mut self,
        label: &str,
        client: &Client,
        load_label: &str,
        load: &Client,
    ) -> Result<(), SeriesEnd> {
        let load_stop = AtomicBool::new(false);
        let started = AtomicBool::new(false);
        let mut load_ended_early = false;
        let flag = self.stop.atomic();
        let network = self.network.clone();
        let (result, loaded) = std::thread::scope(|scope| {
            let body = || {
                run_client(load, network.as_ref(), &load_stop, &mut |what| {
                    if matches!(what, EventKind::Started { .. }) {
                        started.store(true, Relaxed);
                    }
                })
            };
            let load_thread = scope.spawn(body);
            while !started.load(Relaxed) && !load_thread.is_finished() && !flag.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !load_thread.is_finished() {
                // Wait until the load has filled its windows and queues.
                std::thread::sleep(LOAD_HEAD_START);
            }
            let result = match load_thread.is_finished() {
                // The failure of the load is reported below.
                true => Ok(()),
                false => self.run_series(label, client).map(|_| ()),
            };
            load_ended_early = load_thread.is_finished();
            load_stop.store(true, Relaxed);
            (result, load_thread.join())
        });
        let loaded = loaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match loaded {
            Ok((mut record, failure)) => {
                record.label = Some(load_label.to_owned());
                // The load is always stopped at the end of the loaded run.
                record.interrupted = failure.is_some();
                record.plan.duration_ns = record.summary.duration_ns;
                let failure = failure.map(CommandFailure::from);
                if load_ended_early && failure.is_none() {
                    let end =
                        "the load ended before the measured run: its last part ran without load";
                    self.notes.push(end.to_owned());
                }
                self.runs.push(record);
                result?;
                failure.map_or(Ok(()), |failure| Err(SeriesEnd::Failed(failure)))
            }
            Err(error) => {
                result?;
                Err(match self.stop.is_set() {
                    true => SeriesEnd::Interrupted,
                    false => SeriesEnd::Failed(error.into()),
                })
            }
        }
    }
}

/// Head start of a load: TCP slow start ends within it.
const LOAD_HEAD_START: Duration = Duration::from_millis(500);

/// Runs a series, prints its set and returns the exit code.
pub fn run_series(
    kind: &str,
    args: &MeasureArgs,
    body: impl FnOnce(&mut SeriesRunner<'_>) -> Result<(), SeriesEnd>,
    conclude: impl FnOnce(&[Record]) -> SetResult,
) -> u8 {
    let mut output = CommandOutput::new(&args.output)
        .with_label(args.label.as_deref())
        .with_report(args.html.as_deref(), &args.report_title(RunKind::Latency));
    let result = measure_series(kind, args, &mut output, body, conclude);
    let code = result.unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.fail_on_finding)
}

fn measure_series(
    kind: &str,
    args: &MeasureArgs,
    output: &mut CommandOutput,
    body: impl FnOnce(&mut SeriesRunner<'_>) -> Result<(), SeriesEnd>,
    conclude: impl FnOnce(&[Record]) -> SetResult,
) -> Result<u8, CommandFailure> {
    output.check_files()?;
    let screen = args.screen.is_enabled();
    live::check_terminal(screen)?;
    let stop = stop_on_signals()?;
    let _devices = PortDevices::for_stack(args.local_stack.stack.dev.as_ref(), &stop, output)?;
    let (end, runs, notes) = live::run_with_output(screen, &stop, output, |events| {
        let mut runner = SeriesRunner {
            stop: &stop,
            events,
            network: lab_network::lab_network(),
            test: 0,
            runs: Vec::new(),
            notes: Vec::new(),
        };
        let end = body(&mut runner);
        (end, runner.runs, runner.notes)
    })?;
    let interrupted = stop.is_set();
    if runs.is_empty() {
        return Err(match end {
            Err(SeriesEnd::Failed(failure)) => failure,
            _ => CommandFailure::interrupted(),
        });
    }
    let started = runs.first().map_or_else(Timestamp::now, |run| run.started);
    let mut result = conclude(&runs);
    result.notes.extend(notes);
    let set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: kind.to_owned(),
        started,
        interrupted: interrupted || end.is_err(),
        runs,
        result,
    };
    output.write_set(&set, &[])?;
    match end {
        Err(SeriesEnd::Failed(failure)) if !interrupted => {
            if output.is_json() {
                output.warn(&format!("error: {}", failure.problem));
            } else {
                output.report_failure(&failure);
            }
            Ok(failure.code)
        }
        _ if interrupted => Ok(exit_codes::INTERRUPTED),
        _ => Ok(exit_codes::OK),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use clap::Parser;
    use linerate_record::plan::{Plan, TransportProtocol};
    use linerate_server::options::ServerOptions;
    use linerate_server::server::Server;
    use linerate_session::dial::AddressFamily;

    use super::*;
    use crate::printer::run_with_printer;

    #[derive(Parser)]
    struct QuietArgs {
        #[command(flatten)]
        output: crate::args::OutputArgs,
    }

    fn client(kind: RunKind, port: u16, time: Duration) -> Client {
        let mut plan = Plan::new(kind, TransportProtocol::Tcp, "127.0.0.1");
        plan.port = port;
        plan.duration_ns = Some(time.as_nanos() as u64);
        plan.interval_ns = None;
        Client {
            plan,
            family: AddressFamily::Any,
            retry_timeout: Duration::ZERO,
            key: None,
        }
    }

    #[test]
    fn a_load_that_ends_early_is_noted() {
        let server = Server::bind(&ServerOptions {
            port: 0,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: AddressFamily::Any,
            single_test: false,
            grants: Vec::new(),
            ..ServerOptions::default()
        })
        .expect("a server on loopback");
        let port = server.port();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let server_thread = std::thread::spawn(move || server.run(flag, Arc::new(|_| {})));
        let quiet = QuietArgs::parse_from(["test", "--json", "--no-store"]);
        let mut output = CommandOutput::new(&quiet.output);
        let notes = |load: Duration, output: &mut CommandOutput| {
            let run = client(RunKind::Latency, port, Duration::from_millis(700));
            let load = client(RunKind::Throughput, port, load);
            let outcome = run_with_printer(output, |events| {
                let stop = StopFlag::new();
                let mut runner = SeriesRunner {
                    stop: &stop,
                    events,
                    network: None,
                    test: 0,
                    runs: Vec::new(),
                    notes: Vec::new(),
                };
                let end = runner.run_under_load("loaded", &run, "load", &load);
                assert!(end.is_ok(), "both came to their ends");
                let labels: Vec<_> = runner.runs.iter().map(|run| run.label.clone()).collect();
                assert_eq!(labels, [Some("loaded".to_owned()), Some("load".to_owned())]);
                runner.notes
            });
            outcome.unwrap_or_else(|failure| panic!("{}", failure.problem))
        };
        let notes_of_short_load = notes(LOAD_HEAD_START + Duration::from_millis(200), &mut output);
        assert_eq!(
            notes_of_short_load,
            ["the load ended before the measured run: its last part ran without load"]
        );
        assert!(notes(Duration::from_secs(60), &mut output).is_empty());
        stop.store(true, Relaxed);
        server_thread
            .join()
            .expect("a server does not panic")
            .expect("it served");
    }
}
