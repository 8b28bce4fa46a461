//! Clients for other tools' servers.
//!
//! A protocol is one file and one line in [`CALLERS`]. It opens the flows, runs the control
//! channel, and returns the server's report at the end. Payload moves on the same threads as in our
//! own tests.

mod ack_watch;
mod control_adapter;
mod control_socket;
mod detect;
mod echo;
mod flow_socket;
mod iperf2;
mod iperf3;
mod nuttcp;
mod plain;
mod probe_sockets;
mod report_command;
mod round_trips;
mod run;
mod setup_context;
mod sockperf;
mod ttcp_receiver;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

use linerate_dialect::control::{FlowTotal, Outcome};
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, ReceiveCopy, SendCopy};

use super::framing::Framing;
use super::record::Acknowledged;
use crate::error::{MeasureError, two_parts};
use crate::worker::Opening;

pub use report_command::{FarCommand, FarReportError};
pub(crate) use run::run;

use setup_context::Context;

/// Value of `--peer` that detects the protocol.
pub const AUTO: &str = "auto";

/// Client side of one protocol.
pub struct Caller {
    /// Name on the command line and in records.
    pub name: &'static str,
    /// Summary for the help text.
    pub about: &'static str,
    /// Kinds of measurement that it supports.
    pub kinds: &'static [Kind],
    /// Default port of its servers.
    pub port: u16,
    /// Default UDP payload, as the tool has it.
    datagram_bytes: u64,
    /// Checks a plan for options that the protocol cannot carry.
    refuse: fn(&Plan) -> Option<Refusal>,
    /// Starts a test.
    open: fn(&Context<'_>) -> Result<Box<dyn Speech>, MeasureError>,
}

/// Protocols that the client supports, in the order of the help text.
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

/// Returns the protocol of a name.
#[must_use]
pub fn caller(name: &str) -> Option<&'static Caller> {
    CALLERS.iter().find(|caller| caller.name == name)
}

/// Option that a protocol cannot carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Option as written; empty if a missing one is the reason.
    pub option: String,
    /// Reason, with an alternative after a colon where that is not to leave the option out.
    pub why: String,
}

impl Refusal {
    /// Converts the rejection into the error of a run with that protocol.
    fn error(&self, dialect: &str) -> MeasureError {
        let (why, next_step) = two_parts(&self.why);
        MeasureError::Unsupported {
            option: match self.option.as_str() {
                "" => format!("--peer {dialect}"),
                option => format!("{option} with --peer {dialect}"),
            },
            why: why.to_owned(),
            next_step: next_step
                .unwrap_or("leave it out, or use another protocol")
                .to_owned(),
        }
    }
}

/// Connected flow of a test.
pub struct CalledFlow {
    /// Flow number, from 1, ascending.
    pub id: u32,
    /// Direction of the payload.
    pub direction: Direction,
    /// Source of its socket.
    pub opening: Opening,
    /// Header in front of its payload.
    pub framing: Framing,
}

/// Driver of one test with another tool's server.
trait Speech {
    /// Returns the flows; called once.
    fn flows(&mut self) -> Vec<CalledFlow>;

    /// Starts the test: payload moves as soon as this returns, which is soon once `stop` is set.
    fn started(&mut self, _now: Nanos, _stop: &AtomicBool) -> Result<(), MeasureError> {
        Ok(())
    }

    /// Processes received control messages and expired timers.
    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError>;

    /// Notes that this end has sent all its payload.
    fn sent(&mut self, _now: Nanos, _flows: &[FlowTotal]) {}

    /// Stops the server's payload; `early` if before its time.
    fn stop(&mut self, now: Nanos, early: bool);

    /// Notes that all flows of this end have ended.
    fn ended(&mut self, _now: Nanos, _own: &Outcome) {}

    /// Returns the totals that the server has sent, once it has reported that it sends no more.
    /// Polled until then.
    fn far_sent(&mut self) -> Option<Vec<FlowTotal>> {
        None
    }

    /// Returns whether the server has finished the test.
    fn is_over(&self) -> bool;

    /// Returns the latest time of the next [`Self::turn`].
    fn due_ns(&self, now: Nanos) -> Nanos {
        now.saturating_add(250_000_000)
    }

    /// Returns the descriptors that become readable on messages from the server.
    fn listens(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Returns the server's report; `Direction::Send` is what this end sent.
    fn far_report(&self) -> FarReport {
        FarReport::default()
    }

    /// Returns the server's own message about a failure there.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// Returns the payload that the server's kernel acknowledged, where the server reports nothing.
    fn acknowledged(&self) -> BTreeMap<u32, Acknowledged> {
        BTreeMap::new()
    }

    /// Returns the address of the remote end, if that was not known before.
    fn peer(&self) -> Option<SocketAddr> {
        None
    }

    /// Returns name and version of the remote program.
    fn agent(&self) -> String;
}

/// Returns the first rejection whose condition holds.
fn first(rows: &[(bool, &str, &str)]) -> Option<Refusal> {
    let (_, option, why) = rows.iter().find(|(holds, _, _)| *holds)?;
    Some(Refusal {
        option: (*option).to_owned(),
        why: (*why).to_owned(),
    })
}

/// Checks whether the protocol of a plan can carry it.
///
/// # Errors
/// The option that it cannot carry, with the reason. A protocol that the client does not support is
/// no error here.
pub fn check(plan: &Plan) -> Result<(), MeasureError> {
    let caller = plan.dialect.as_deref().and_then(caller);
    let refused = caller.and_then(|caller| Some((caller.name, refuse(caller, plan)?)));
    refused.map_or(Ok(()), |(name, refusal)| Err(refusal.error(name)))
}

/// Returns the first option of a plan that a protocol cannot carry.
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

/// Rejects copy modes of the server, which has no way to receive them.
fn refuse_far_copies(caller: &Caller, plan: &Plan) -> Option<Refusal> {
    let told = caller.name == "iperf3" && plan.copies.send == SendCopy::SendFile;
    first(&[
        (
            !plan.flows(Direction::Send) && plan.copies.send != SendCopy::Copied && !told,
            "--offload zerocopy, sendfile or splice with -R",
            "the send calls of another program cannot be set from here",
        ),
        (
            !plan.flows(Direction::Receive) && plan.copies.receive != ReceiveCopy::Copied,
            "--offload trunc",
            "the receive calls of another program cannot be set from here",
        ),
    ])
}

/// Rejects options that no server of another tool supports.
fn refuse_any(plan: &Plan) -> Option<Refusal> {
    let far_wait = plan.wait.as_ref().is_some_and(|wait| wait.near != wait.far);
    let far_threads = plan.threads.as_ref();
    first(&[
        (
            plan.verify,
            "--verify",
            "its payload has content of its own; only linerate's server sends what can be checked",
        ),
        (
            far_wait,
            "--wait CLIENT/SERVER",
            "the wait mode of another program cannot be set from here",
        ),
        (
            far_threads.is_some_and(|threads| threads.near != threads.far),
            "--threads N/SERVER",
            "the number of threads of another program cannot be set from here",
        ),
        (
            !plan.cpu.far.0.is_empty() && plan.cpu.far != plan.cpu.near,
            "--cpu CLIENT/SERVER",
            "the CPUs of another program cannot be set from here: start it with taskset",
        ),
        (
            plan.sched.far != plan.sched.near
                && plan.sched.far != linerate_metric::plan::Sched::Inherited,
            "--sched CLIENT/SERVER",
            "the scheduling of another program cannot be set from here: start it with chrt",
        ),
        (
            !plan.stamps.is_none(),
            "--stages or --trace",
            "only linerate's server records its half of a round trip",
        ),
        (
            plan.round_trip.group.is_some(),
            "--multicast",
            "only linerate's server joins a group",
        ),
        (
            plan.payload_bytes > 65_507 && plan.protocol == Protocol::Udp,
            "-l",
            "no datagram is that large",
        ),
    ])
}

/// Rejects omitted time for a protocol that cannot carry it.
fn refuse_omit(plan: &Plan) -> Option<Refusal> {
    first(&[(
        plan.omit_ns > 0,
        "-O",
        "its server counts from the first byte on",
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
            // Neither a privilege nor another kernel would change it.
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
