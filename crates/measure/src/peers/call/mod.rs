//! Calling a program of another kind: our end of a test whose far end speaks another dialect.
//!
//! A dialect is one file and one line in [`CALLERS`]. It opens the flows, talks about them, and says
//! at the end what the far end told; payload moves on the same threads as in our own tests.

mod acks;
mod asker;
mod auto;
mod context;
mod control;
mod echo;
mod far_report;
mod iperf2;
mod iperf3;
mod listen;
mod nuttcp;
mod plain;
mod questions;
mod run;
mod socket;
mod sockperf;
mod talk;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

use linerate_dialect::control::{FlowTotal, Outcome};
use linerate_dialect::far::FarReport;
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, ReceiveCopy, SendCopy};

use super::framing::Framing;
use super::record::Acknowledged;
use crate::error::{MeasureError, two_parts};
use crate::lane::Opening;

pub use far_report::{FarCommand, FarReportError};
pub(crate) use run::run;

use context::Context;

/// The name that stands for finding out.
pub const AUTO: &str = "auto";

/// A dialect that this end can speak to a server of its.
pub struct Caller {
    /// Its name on the command line and in records.
    pub name: &'static str,
    /// What it can tell, for people.
    pub about: &'static str,
    /// What can be measured with it.
    pub kinds: &'static [Kind],
    /// The port that its servers have.
    pub port: u16,
    /// UDP payload without another wish, as the program has it by default.
    datagram_bytes: u64,
    /// What of a plan it cannot carry.
    refuse: fn(&Plan) -> Option<Refusal>,
    /// Opens a test.
    open: fn(&Context<'_>) -> Result<Box<dyn Speech>, MeasureError>,
}

/// Every dialect that can be called, in the order help lists them.
pub const CALLERS: &[Caller] = &[
    iperf3::CALLER,
    iperf2::CALLER,
    iperf2::LEGACY,
    nuttcp::CALLER,
    plain::TTCP,
    plain::DISCARD,
    plain::CHARGEN,
    sockperf::CALLER,
    echo::CALLER,
];

/// The dialect of that name.
#[must_use]
pub fn caller(name: &str) -> Option<&'static Caller> {
    CALLERS.iter().find(|caller| caller.name == name)
}

/// An option that a dialect cannot carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// As it is written; empty where one is missing.
    pub option: String,
    /// Why not, and behind a colon what to do instead, where that is not to leave it out.
    pub why: String,
}

impl Refusal {
    /// The same as an error of a run with the dialect of that name.
    fn error(&self, dialect: &str) -> MeasureError {
        let (why, next_step) = two_parts(&self.why);
        MeasureError::Unsupported {
            option: match self.option.as_str() {
                "" => format!("--peer {dialect}"),
                option => format!("{option} with --peer {dialect}"),
            },
            why: why.to_owned(),
            next_step: next_step
                .unwrap_or("leave it out, or use another dialect")
                .to_owned(),
        }
    }
}

/// A flow that stands.
pub struct CalledFlow {
    /// Its number, from 1, ascending.
    pub id: u32,
    /// Which way payload goes.
    pub direction: Direction,
    /// How it comes to its socket.
    pub opening: Opening,
    /// What stands in front of its payload.
    pub framing: Framing,
}

/// One test in a dialect, from its opening to the far end's last word.
trait Speech {
    /// The flows; asked for once.
    fn flows(&mut self) -> Vec<CalledFlow>;

    /// Everything here is ready: payload moves as soon as this returns, which is soon once `stop` is set.
    fn started(&mut self, _now: Nanos, _stop: &AtomicBool) -> Result<(), MeasureError> {
        Ok(())
    }

    /// Takes what came and does what is due.
    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError>;

    /// All that this end sends was sent.
    fn sent(&mut self, _now: Nanos, _flows: &[FlowTotal]) {}

    /// The far end is to stop sending; with `early` before its time.
    fn stop(&mut self, now: Nanos, early: bool);

    /// All flows of this end are over.
    fn ended(&mut self, _now: Nanos, _own: &Outcome) {}

    /// The far end sends nothing more: how much it sent, where it said so. Asked for until it says so.
    fn far_sent(&mut self) -> Option<Vec<FlowTotal>> {
        None
    }

    /// Whether the far end has said its last word.
    fn is_over(&self) -> bool;

    /// When [`Self::turn`] is to be called at the latest.
    fn due_ns(&self, now: Nanos) -> Nanos {
        now.saturating_add(250_000_000)
    }

    /// What becomes readable when the far end says something.
    fn listens(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// What the far end said of the test; `Direction::Send` is what this end sent.
    fn far_report(&self) -> FarReport {
        FarReport::default()
    }

    /// The far end's own word that something went wrong there.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// What the far kernel acknowledged, where the far end says nothing.
    fn acknowledged(&self) -> BTreeMap<u32, Acknowledged> {
        BTreeMap::new()
    }

    /// Who the far end is, where that was not known before.
    fn peer(&self) -> Option<SocketAddr> {
        None
    }

    /// What the far end says it is.
    fn agent(&self) -> String;
}

/// The first of several refusals whose condition holds.
fn first(rows: &[(bool, &str, &str)]) -> Option<Refusal> {
    let (_, option, why) = rows.iter().find(|(holds, _, _)| *holds)?;
    Some(Refusal {
        option: (*option).to_owned(),
        why: (*why).to_owned(),
    })
}

/// Whether the dialect of a plan, if it has one, can carry the plan.
///
/// # Errors
/// The option that it cannot, and why; a dialect that this end does not speak is no error here.
pub fn check(plan: &Plan) -> Result<(), MeasureError> {
    let caller = plan.dialect.as_deref().and_then(caller);
    let refused = caller.and_then(|caller| Some((caller.name, refuse(caller, plan)?)));
    refused.map_or(Ok(()), |(name, refusal)| Err(refusal.error(name)))
}

/// What of a plan a dialect cannot carry.
fn refuse(caller: &Caller, plan: &Plan) -> Option<Refusal> {
    if !caller.kinds.contains(&plan.kind) {
        let other = match plan.kind {
            Kind::Throughput => "latency",
            _ => "throughput",
        };
        return Some(Refusal {
            option: String::new(),
            why: format!(
                "{0} cannot measure {1}: `linerate {other} --peer {0}` does",
                caller.name, plan.kind
            ),
        });
    }
    refuse_any(plan)
        .or_else(|| refuse_far_copies(caller, plan))
        .or_else(|| (caller.refuse)(plan))
}

/// Ways around a copy that only the far end could go, which is not told of them.
fn refuse_far_copies(caller: &Caller, plan: &Plan) -> Option<Refusal> {
    let told = caller.name == "iperf3" && plan.copies.send == SendCopy::SendFile;
    first(&[
        (
            !plan.flows(Direction::Send) && plan.copies.send != SendCopy::Copied && !told,
            "--offload zerocopy, sendfile or splice with -R",
            "how another program sends cannot be told to it",
        ),
        (
            !plan.flows(Direction::Receive) && plan.copies.receive != ReceiveCopy::Copied,
            "--offload trunc",
            "how another program receives cannot be told to it",
        ),
    ])
}

/// What no far end of another kind can do.
fn refuse_any(plan: &Plan) -> Option<Refusal> {
    let far_wait = plan.wait.as_ref().is_some_and(|wait| wait.near != wait.far);
    let far_threads = plan.threads.as_ref();
    first(&[
        (
            plan.verify,
            "--verify",
            "the content of its payload is its own; only linerate's far end sends what can be checked",
        ),
        (
            far_wait,
            "--wait NEAR/FAR",
            "how another program waits cannot be told to it",
        ),
        (
            far_threads.is_some_and(|threads| threads.near != threads.far),
            "--threads N/FAR",
            "how many threads another program has cannot be told to it",
        ),
        (
            !plan.cpu.far.0.is_empty() && plan.cpu.far != plan.cpu.near,
            "--cpu NEAR/FAR",
            "where another program runs cannot be told to it: start it with taskset",
        ),
        (
            plan.sched.far != plan.sched.near
                && plan.sched.far != linerate_metric::plan::Sched::Inherited,
            "--sched NEAR/FAR",
            "another program's scheduling cannot be told to it: start it with chrt",
        ),
        (
            !plan.stamps.is_none(),
            "--stages or --trace",
            "the far half of a round trip is noted by linerate's far end only",
        ),
        (
            plan.round_trip.group.is_some(),
            "--multicast",
            "only linerate's far end joins a group",
        ),
        (
            plan.payload_bytes > 65_507 && plan.protocol == Protocol::Udp,
            "-l",
            "no datagram is that large",
        ),
    ])
}

/// What only a dialect with a place for it can do.
fn refuse_omit(plan: &Plan) -> Option<Refusal> {
    first(&[(
        plan.omit_ns > 0,
        "-O",
        "its far end counts from the first byte on",
    )])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_have_names_of_dialects() {
        for caller in CALLERS {
            let known = linerate_dialect::sniff::DIALECTS.iter();
            let known = known.filter(|dialect| dialect.name == caller.name).count();
            assert_eq!(known, 1, "{}", caller.name);
            assert!(!caller.kinds.is_empty() && !caller.about.is_empty());
        }
    }

    #[test]
    fn a_refusal_says_what_to_do_instead() {
        let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "far");
        for (name, option, next_step) in [
            ("chargen", "--peer chargen", "add -R"),
            (
                "sockperf",
                "--peer sockperf",
                "`linerate latency --peer sockperf` does",
            ),
        ] {
            let caller = caller(name).unwrap();
            let error = refuse(caller, &plan).unwrap().error(name);
            // No privilege and no kernel would change it.
            assert_eq!(error.exit_code(), linerate_metric::exit::USAGE);
            let problem = error.problem();
            assert_eq!(
                (problem.object.as_str(), problem.next_step.as_str()),
                (option, next_step)
            );
        }
    }

    #[test]
    fn options_that_a_dialect_lacks_are_refused_with_a_reason() {
        let tcp = || Plan::new(Kind::Throughput, Protocol::Tcp, "far");
        let udp = || Plan::new(Kind::Throughput, Protocol::Udp, "far");
        let receive = |mut plan: Plan| {
            plan.directions = vec![Direction::Receive];
            plan
        };
        let both = |mut plan: Plan| {
            plan.directions = vec![Direction::Send, Direction::Receive];
            plan
        };
        let several = |mut plan: Plan| {
            plan.streams = 4;
            plan
        };
        let around = |mut plan: Plan, send, take| {
            (plan.copies.send, plan.copies.receive) = (send, take);
            plan
        };
        let (copied, seen) = (SendCopy::Copied, ReceiveCopy::Copied);
        let (zero, file) = (SendCopy::ZeroCopy, SendCopy::SendFile);
        let trunc = ReceiveCopy::Discarded;
        let far_sends = Some("--offload zerocopy, sendfile or splice with -R");
        for (name, plan, refused) in [
            ("iperf3", around(tcp(), zero, seen), None),
            (
                "iperf3",
                around(tcp(), copied, trunc),
                Some("--offload trunc"),
            ),
            ("iperf3", around(receive(tcp()), zero, trunc), far_sends),
            ("iperf3", around(receive(tcp()), file, trunc), None),
            ("nuttcp", around(receive(tcp()), file, seen), far_sends),
            ("discard", around(tcp(), zero, seen), None),
            ("chargen", around(receive(tcp()), copied, trunc), None),
            ("iperf3", tcp(), None),
            ("iperf3", both(several(udp())), None),
            ("iperf2", both(tcp()), None),
            ("iperf2", both(udp()), Some("--bidir")),
            ("iperf2-legacy", tcp(), None),
            ("iperf2-legacy", receive(tcp()), Some("-R or --bidir")),
            ("nuttcp", receive(udp()), None),
            ("nuttcp", both(tcp()), Some("--bidir")),
            ("nuttcp", several(tcp()), Some("-P")),
            ("ttcp", receive(tcp()), Some("-R or --bidir")),
            ("discard", several(udp()), None),
            ("discard", receive(udp()), Some("-R or --bidir")),
            ("chargen", receive(tcp()), None),
            ("chargen", tcp(), Some("")),
        ] {
            let caller = caller(name).unwrap();
            let found = refuse(caller, &plan);
            let option = found.as_ref().map(|refusal| refusal.option.as_str());
            assert_eq!(option, refused, "{name}: {found:?}");
        }
    }
}
