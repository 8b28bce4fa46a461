//! Several runs that belong together and what follows from them: made in turn, told as a set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::stop::Stop;
use linerate_measure::{Client, MeasureError, Network};
use linerate_metric::event::{Event, What};
use linerate_metric::exit;
use linerate_metric::record::{Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};

use super::measure::{ended_by_far_end, stop_on_signals};
use crate::args::MeasureArgs;
use crate::failure::Failure;
use crate::nic::Nics;
use crate::output::Output;
use crate::printer::Teller;
use crate::scene::{Part, Scene};
use crate::{live, network};

/// Makes runs, keeps their records, and remembers what ended them.
pub struct Runner<'a> {
    stop: &'a Stop,
    teller: &'a Teller,
    /// The lab around this program: the way of the packets is the same for each run.
    network: Option<Arc<Network>>,
    test: u32,
    /// What was measured so far.
    pub runs: Vec<Record>,
    /// What could not be done.
    pub notes: Vec<String>,
}

/// What a run that failed before its record leaves open.
pub enum Ended {
    /// Nothing more can be measured.
    Over(Failure),
    /// Somebody pressed Ctrl-C; what was measured is kept.
    Stopped,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Over(failure)
    }
}

impl Runner<'_> {
    /// Makes a run under a name; its record is the last one then.
    ///
    /// # Errors
    /// What ended it, or that somebody stopped it.
    pub fn run(&mut self, label: &str, client: &Client) -> Result<&Record, Ended> {
        let record = self.try_run(label, client)?;
        record.map_err(|error| Ended::Over(error.into()))?;
        Ok(self
            .runs
            .last()
            .expect("a run that went well left its record"))
    }

    /// The same; what kept the run from starting is the caller's to judge.
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

    /// Asks the far end for a run that is not to be told, to learn whether it would be refused.
    ///
    /// # Errors
    /// What it was refused for, or that somebody stopped it.
    pub fn check(&self, client: &Client) -> Result<(), Ended> {
        match client.run(&self.stop.as_flag(), &mut |_| {}) {
            _ if self.stop.is_set() => Err(Ended::Stopped),
            Ok(_) => Ok(()),
            Err(error) => Err(Ended::Over(error.into())),
        }
    }

    /// Makes a run beside another one, which it waits for until it has moved payload for a while.
    ///
    /// # Errors
    /// What ended either of them.
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
                // Its windows and queues fill first.
                std::thread::sleep(RAMP);
            }
            let result = match beside.is_finished() {
                // Its failure is told below.
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
                // It was to end with the run that it loads.
                record.interrupted = failure.is_some();
                record.plan.duration_ns = record.summary.duration_ns;
                let failure = failure.map(Failure::from);
                if left_alone && failure.is_none() {
                    let end = "the load ended before the run beside it: a part of that had none";
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

/// How long a load runs before what it loads: slow start is over within it.
const RAMP: Duration = Duration::from_millis(500);

/// Runs a series and prints its set; gives the exit code.
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
            network: network::around(),
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
            ["the load ended before the run beside it: a part of that had none"]
        );
        assert!(notes(Duration::from_secs(60), &mut output).is_empty());
        stop.store(true, Relaxed);
        far.join()
            .expect("a server does not panic")
            .expect("it served");
    }
}
