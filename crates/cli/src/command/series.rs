//! Series of runs that form a set: made one after the other, reported together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::stop_flag::Stop;
use linerate_measure::{Client, MeasureError, Network};
use linerate_metric::event::{Event, What};
use linerate_metric::exit;
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};

use super::measure::{ended_by_far_end, stop_on_signals};
use crate::args::MeasureArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::port_devices::Nics;
use crate::printer::Teller;
use crate::ui_update::{Part, Scene};
use crate::{lab_network, live};

/// Makes runs and keeps their records.
pub struct Runner<'a> {
    stop: &'a Stop,
    teller: &'a Teller,
    /// Topology of the lab that runs this program: all runs use the same path.
    network: Option<Arc<Network>>,
    test: u32,
    /// Records so far.
    pub runs: Vec<Record>,
    /// Notes on runs that were not possible.
    pub notes: Vec<String>,
}

/// End of a series at a run without a record.
pub enum Ended {
    /// No further run is possible.
    Over(Failure),
    /// Interrupted by Ctrl-C; the records so far are kept.
    Stopped,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Over(failure)
    }
}

impl Runner<'_> {
    /// Makes a labelled run and returns its record.
    ///
    /// # Errors
    /// Returns the failure of the run, or that it was interrupted.
    pub fn run(&mut self, label: &str, client: &Client) -> Result<&Record, Ended> {
        let record = self.try_run(label, client)?;
        record.map_err(|error| Ended::Over(error.into()))?;
        Ok(self
            .runs
            .last()
            .expect("a run that went well left its record"))
    }

    /// Makes a labelled run; the inner error is the reason why it could not start.
    pub fn try_run(
        &mut self,
        label: &str,
        client: &Client,
    ) -> Result<Result<(), MeasureError>, Ended> {
        self.test += 1;
        let (test, teller) = (self.test, self.teller);
        teller.show(Scene::Part(Part {
            name: "run",
            number: test as usize,
            words: label.to_owned(),
            ..Part::default()
        }));
        let mut tell = |what| teller.tell(Event { test, what });
        let made = client.run_within(self.network.as_ref(), &self.stop.as_flag(), &mut tell);
        let (mut record, failure) = match made {
            Ok(made) => made,
            Err(_) if self.stop.is_set() => return Err(Ended::Stopped),
            Err(error) => return Ok(Err(error)),
        };
        record.label = Some(label.to_owned());
        tell(What::Finished {
            record: Box::new(record.clone()),
        });
        teller.show(Scene::came_to(label, &record));
        let left = record.interrupted && failure.is_none() && !self.stop.is_set();
        let ended = left.then(|| ended_by_far_end(&record));
        self.runs.push(record);
        if self.stop.is_set() {
            return Err(Ended::Stopped);
        }
        match failure.map(Failure::from).or(ended) {
            Some(failure) => Err(Ended::Over(failure)),
            None => Ok(Ok(())),
        }
    }

    /// Makes a run without reporting it, to check that the server accepts it.
    ///
    /// # Errors
    /// Returns the server's rejection, or that it was interrupted.
    pub fn check(&self, client: &Client) -> Result<(), Ended> {
        match client.run(&self.stop.as_flag(), &mut |_| {}) {
            _ if self.stop.is_set() => Err(Ended::Stopped),
            Ok(_) => Ok(()),
            Err(error) => Err(Ended::Over(error.into())),
        }
    }

    /// Makes a run in parallel with a load, which gets a head start.
    ///
    /// # Errors
    /// Returns the failure of either run.
    pub fn run_beside(
        &mut self,
        label: &str,
        client: &Client,
        load_label: &str,
        load: &Client,
    ) -> Result<(), Ended> {
        let load_stop = AtomicBool::new(false);
        let started = AtomicBool::new(false);
        let mut left_alone = false;
        let flag = self.stop.as_flag();
        let network = self.network.clone();
        let (result, loaded) = std::thread::scope(|scope| {
            let body = || {
                load.run_within(network.as_ref(), &load_stop, &mut |what| {
                    if matches!(what, What::Started { .. }) {
                        started.store(true, Relaxed);
                    }
                })
            };
            let beside = scope.spawn(body);
            while !started.load(Relaxed) && !beside.is_finished() && !flag.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !beside.is_finished() {
                // Wait until the load has filled its windows and queues.
                std::thread::sleep(RAMP);
            }
            let result = match beside.is_finished() {
                // The failure of the load is reported below.
                true => Ok(()),
                false => self.run(label, client).map(|_| ()),
            };
            left_alone = beside.is_finished();
            load_stop.store(true, Relaxed);
            (result, beside.join())
        });
        let loaded = loaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match loaded {
            Ok((mut record, failure)) => {
                record.label = Some(load_label.to_owned());
                // The load is always stopped at the end of the loaded run.
                record.interrupted = failure.is_some();
                record.plan.duration_ns = record.summary.duration_ns;
                let failure = failure.map(Failure::from);
                if left_alone && failure.is_none() {
                    let end =
                        "the load ended before the measured run: its last part ran without load";
                    self.notes.push(end.to_owned());
                }
                self.runs.push(record);
                result?;
                failure.map_or(Ok(()), |failure| Err(Ended::Over(failure)))
            }
            Err(error) => {
                result?;
                Err(match self.stop.is_set() {
                    true => Ended::Stopped,
                    false => Ended::Over(error.into()),
                })
            }
        }
    }
}

/// Head start of a load: TCP slow start ends within it.
const RAMP: Duration = Duration::from_millis(500);

/// Runs a series, prints its set and returns the exit code.
pub fn run(
    kind: &str,
    args: &MeasureArgs,
    body: impl FnOnce(&mut Runner<'_>) -> Result<(), Ended>,
    conclude: impl FnOnce(&[Record]) -> SetResult,
) -> u8 {
    let mut output = Output::new(&args.output)
        .labelled(args.label.as_deref())
        .with_page(args.html.as_deref(), &format!("linerate to {}", args.host));
    let result = series(kind, args, &mut output, body, conclude);
    let code = result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.fail_on_finding)
}

fn series(
    kind: &str,
    args: &MeasureArgs,
    output: &mut Output,
    body: impl FnOnce(&mut Runner<'_>) -> Result<(), Ended>,
    conclude: impl FnOnce(&[Record]) -> SetResult,
) -> Result<u8, Failure> {
    output.check_file()?;
    let screen = args.screen.is_asked();
    live::check(screen)?;
    let stop = stop_on_signals()?;
    let _nics = Nics::for_stack(args.near.stack.dev.as_ref(), &stop, output)?;
    let (ended, runs, notes) = live::while_told(screen, &stop, output, |teller| {
        let mut runner = Runner {
            stop: &stop,
            teller,
            network: lab_network::around(),
            test: 0,
            runs: Vec::new(),
            notes: Vec::new(),
        };
        let ended = body(&mut runner);
        (ended, runner.runs, runner.notes)
    })?;
    let interrupted = stop.is_set();
    if runs.is_empty() {
        return Err(match ended {
            Err(Ended::Over(failure)) => failure,
            _ => Failure::from(MeasureError::Interrupted),
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
        interrupted: interrupted || ended.is_err(),
        runs,
        result,
    };
    output.set(&set, &[])?;
    match ended {
        Err(Ended::Over(failure)) if !interrupted => {
            if output.is_json() {
                output.remark(&format!("error: {}", failure.problem));
            } else {
                output.failure(&failure);
            }
            Ok(failure.code)
        }
        _ if interrupted => Ok(exit::INTERRUPTED),
        _ => Ok(exit::OK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::while_printing;
    use clap::Parser;
    use linerate_measure::{Family, Server, ServerOptions};
    use linerate_metric::plan::{Kind, Plan, Protocol};
    use std::net::Ipv4Addr;

    #[derive(Parser)]
    struct Quiet {
        #[command(flatten)]
        output: crate::args::OutputArgs,
    }

    fn client(kind: Kind, port: u16, time: Duration) -> Client {
        let mut plan = Plan::new(kind, Protocol::Tcp, "127.0.0.1");
        plan.port = port;
        plan.duration_ns = Some(time.as_nanos() as u64);
        plan.interval_ns = None;
        Client {
            plan,
            family: Family::Any,
            retry: Duration::ZERO,
            key: None,
        }
    }

    #[test]
    fn a_load_that_ends_before_what_it_loads_is_told() {
        let server = Server::bind(&ServerOptions {
            port: 0,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: Family::Any,
            once: false,
            grants: Vec::new(),
            ..ServerOptions::default()
        })
        .expect("a server on loopback");
        let port = server.port();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let far = std::thread::spawn(move || server.run(flag, Arc::new(|_| {})));
        let quiet = Quiet::parse_from(["test", "--json", "--no-store"]);
        let mut output = Output::new(&quiet.output);
        let notes = |load: Duration, output: &mut Output| {
            let run = client(Kind::Latency, port, Duration::from_millis(700));
            let load = client(Kind::Throughput, port, load);
            let made = while_printing(output, |teller| {
                let stop = Stop::new();
                let mut runner = Runner {
                    stop: &stop,
                    teller,
                    network: None,
                    test: 0,
                    runs: Vec::new(),
                    notes: Vec::new(),
                };
                let ended = runner.run_beside("loaded", &run, "load", &load);
                assert!(ended.is_ok(), "both came to their ends");
                let labels: Vec<_> = runner.runs.iter().map(|run| run.label.clone()).collect();
                assert_eq!(labels, [Some("loaded".to_owned()), Some("load".to_owned())]);
                runner.notes
            });
            made.unwrap_or_else(|failure| panic!("{}", failure.problem))
        };
        let early = notes(RAMP + Duration::from_millis(200), &mut output);
        assert_eq!(
            early,
            ["the load ended before the measured run: its last part ran without load"]
        );
        assert!(notes(Duration::from_secs(60), &mut output).is_empty());
        stop.store(true, Relaxed);
        far.join()
            .expect("a server does not panic")
            .expect("it served");
    }
}
