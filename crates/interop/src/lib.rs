//! Clients for other tools' servers.
//!
//! Start at [`run_client`]. A protocol is one file and one line in [`CLIENT_PROTOCOLS`]: it opens
//! the flows, runs the control channel, and returns the server's report at the end.
//!
//! Payload moves on the same threads as in our own tests. The bytes of a protocol are encoded and
//! decoded in `linerate_protocol`, never here.
#![forbid(unsafe_code)]

mod run;
mod setup_context;

mod echo;
mod iperf2;
mod iperf3;
mod nuttcp;
mod plain;
mod sockperf;

mod ack_watch;
mod control_adapter;
mod control_socket;
mod detect;
mod flow_socket;
mod other_sender;
mod probe_sockets;
mod report_command;
mod round_trips;
mod ttcp_receiver;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

use linerate_protocol::control::{EndResults, FlowTotal};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::plan::{Direction, Plan, ReceiveCopy, RunKind, SendCopy, TransportProtocol};
use linerate_session::error::{SessionError, split_situation};
use linerate_session::third_party_record::AckedPayload;
use linerate_sys::clock::Nanos;
use linerate_workload::framing::Framing;
use linerate_workload::worker::FlowOpening;
pub use report_command::{ReportCommand, ReportCommandError};
pub use run::run_client;
use setup_context::SetupContext;

/// Value of `--peer` that detects the protocol.
pub const AUTO: &str = "auto";

/// Client side of one protocol.
pub struct ClientProtocolSpec {
    /// Name on the command line and in records.
    pub name: &'static str,
    /// Summary for the help text.
    pub about: &'static str,
    /// Kinds of measurement that it supports.
    pub kinds: &'static [RunKind],
    /// Default port of its servers.
    pub port: u16,
    /// Default UDP payload, as the tool has it; less where a packet of the path holds less.
    datagram_bytes: u64,
    /// Checks a plan for options that the protocol cannot carry.
    reject: fn(&Plan) -> Option<PlanRejection>,
    /// Starts a test.
    open: fn(&SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError>,
}

/// Protocols that the client supports, in the order of the help text.
pub const CLIENT_PROTOCOLS: &[ClientProtocolSpec] = &[
    iperf3::SPEC,
    iperf2::SPEC,
    iperf2::LEGACY_SPEC,
    nuttcp::SPEC,
    plain::TTCP_SPEC,
    plain::DISCARD_SPEC,
    plain::CHARGEN_SPEC,
    sockperf::SPEC,
    echo::SPEC,
];

/// Returns the protocol of a name.
#[must_use]
pub fn client_protocol(name: &str) -> Option<&'static ClientProtocolSpec> {
    CLIENT_PROTOCOLS.iter().find(|spec| spec.name == name)
}

/// Option that a protocol cannot carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRejection {
    /// Option as written; empty if a missing one is the reason.
    pub option: String,
    /// Reason, with an alternative after a colon where that is not to leave the option out.
    pub reason: String,
}

impl PlanRejection {
    /// Converts the rejection into the error of a run with that protocol.
    fn to_error(&self, protocol: &str) -> SessionError {
        let (reason, next_step) = split_situation(&self.reason);
        SessionError::Unsupported {
            option: match self.option.as_str() {
                "" => format!("--peer {protocol}"),
                option => format!("{option} with --peer {protocol}"),
            },
            why: reason.to_owned(),
            next_step: next_step
                .unwrap_or("leave it out, or use another protocol")
                .to_owned(),
        }
    }
}

/// Connected flow of a test.
pub struct ConnectedFlow {
    /// Flow number, from 1, ascending.
    pub id: u32,
    /// Direction of the payload.
    pub direction: Direction,
    /// Source of its socket.
    pub opening: FlowOpening,
    /// Header in front of its payload.
    pub framing: Framing,
}

/// Driver of one test with another tool's server.
trait ClientProtocol {
    /// Returns the flows; called once.
    fn flows(&mut self) -> Vec<ConnectedFlow>;

    /// Starts the test: payload moves as soon as this returns, which is soon once `stop` is set.
    fn start(&mut self, _now: Nanos, _stop: &AtomicBool) -> Result<(), SessionError> {
        Ok(())
    }

    /// Processes received control messages and expired timers.
    fn poll(&mut self, now: Nanos) -> Result<(), SessionError>;

    /// Notes that this end has sent all its payload.
    fn payload_sent(&mut self, _now: Nanos, _flows: &[FlowTotal]) {}

    /// Stops the server's payload; `early` if before its time.
    fn stop(&mut self, now: Nanos, early: bool);

    /// Notes that all flows of this end have ended.
    fn flows_ended(&mut self, _now: Nanos, _results: &EndResults) {}

    /// Returns the totals that the server has sent, once it has reported that it sends no more.
    /// Polled until then.
    fn remote_totals(&mut self) -> Option<Vec<FlowTotal>> {
        None
    }

    /// Returns whether the server has finished the test.
    fn is_finished(&self) -> bool;

    /// Returns the latest time of the next [`Self::poll`].
    fn next_deadline_ns(&self, now: Nanos) -> Nanos {
        now.saturating_add(250_000_000)
    }

    /// Returns the descriptors that become readable on messages from the server.
    fn readable_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Returns the server's report; `Direction::Send` is what this end sent.
    fn remote_report(&self) -> RemoteReport {
        RemoteReport::default()
    }

    /// Returns the server's own message about a failure there.
    fn remote_error(&self) -> Option<String> {
        None
    }

    /// Returns the payload that the server's kernel acknowledged, where the server reports nothing.
    fn acknowledged(&self) -> BTreeMap<u32, AckedPayload> {
        BTreeMap::new()
    }

    /// Returns the address of the remote end, if that was not known before.
    fn peer(&self) -> Option<SocketAddr> {
        None
    }

    /// Returns the round-trip time of the path, where it was measured before the start.
    fn rtt_ns(&self) -> Option<Nanos> {
        None
    }

    /// Returns the time by which the server's messages may be late because of the queues of the path.
    fn path_delay_ns(&self) -> Nanos {
        0
    }

    /// Returns name and version of the remote program.
    fn agent(&self) -> String;
}

/// Returns the first rejection whose condition holds.
fn first_rejection(rows: &[(bool, &str, &str)]) -> Option<PlanRejection> {
    let (_, option, reason) = rows.iter().find(|(holds, _, _)| *holds)?;
    Some(PlanRejection {
        option: (*option).to_owned(),
        reason: (*reason).to_owned(),
    })
}

/// Checks whether the protocol of a plan can carry it.
///
/// # Errors
/// The option that it cannot carry, with the reason. A protocol that the client does not support is
/// no error here.
pub fn check_plan(plan: &Plan) -> Result<(), SessionError> {
    let spec = plan.peer_protocol.as_deref().and_then(client_protocol);
    let rejected = spec.and_then(|spec| Some((spec.name, reject_plan(spec, plan)?)));
    rejected.map_or(Ok(()), |(name, rejection)| Err(rejection.to_error(name)))
}

/// Returns the first option of a plan that a protocol cannot carry.
fn reject_plan(spec: &ClientProtocolSpec, plan: &Plan) -> Option<PlanRejection> {
    if !spec.kinds.contains(&plan.kind) {
        let alternative = match plan.kind {
            RunKind::Throughput => "latency",
            _ => "throughput",
        };
        return Some(PlanRejection {
            option: String::new(),
            reason: format!(
                "{0} cannot measure {1}: `linerate {alternative} --peer {0}` does",
                spec.name, plan.kind
            ),
        });
    }
    reject_common(plan)
        .or_else(|| reject_remote_copies(spec, plan))
        .or_else(|| (spec.reject)(plan))
}

/// Rejects copy modes of the server, which has no way to receive them.
fn reject_remote_copies(spec: &ClientProtocolSpec, plan: &Plan) -> Option<PlanRejection> {
    let is_supported = spec.name == "iperf3" && plan.copies.send == SendCopy::SendFile;
    first_rejection(&[
        (
            !plan.has_direction(Direction::Send)
                && plan.copies.send != SendCopy::Copied
                && !is_supported,
            "--offload zerocopy, sendfile or splice with -R",
            "the send calls of another program cannot be set from here",
        ),
        (
            !plan.has_direction(Direction::Receive) && plan.copies.receive != ReceiveCopy::Copied,
            "--offload trunc",
            "the receive calls of another program cannot be set from here",
        ),
    ])
}

/// Rejects options that no server of another tool supports.
fn reject_common(plan: &Plan) -> Option<PlanRejection> {
    let remote_wait = plan
        .wait
        .as_ref()
        .is_some_and(|wait| wait.client != wait.server);
    let remote_threads = plan.threads.as_ref();
    first_rejection(&[
        (
            plan.verify,
            "--verify",
            "its payload has content of its own; only linerate's server sends what can be checked",
        ),
        (
            remote_wait,
            "--wait CLIENT/SERVER",
            "the wait mode of another program cannot be set from here",
        ),
        (
            remote_threads.is_some_and(|threads| threads.client != threads.server),
            "--threads N/SERVER",
            "the number of threads of another program cannot be set from here",
        ),
        (
            !plan.cpu.server.0.is_empty() && plan.cpu.server != plan.cpu.client,
            "--cpu CLIENT/SERVER",
            "the CPUs of another program cannot be set from here: start it with taskset",
        ),
        (
            plan.sched.server != plan.sched.client
                && plan.sched.server != linerate_record::plan::SchedPolicy::Inherited,
            "--sched CLIENT/SERVER",
            "the scheduling of another program cannot be set from here: start it with chrt",
        ),
        (
            !plan.timestamps.is_none(),
            "--stages or --trace",
            "only linerate's server records its half of a round trip",
        ),
        (
            plan.round_trip.group.is_some(),
            "--multicast",
            "only linerate's server joins a group",
        ),
        (
            plan.payload_bytes > 65_507 && plan.protocol == TransportProtocol::Udp,
            "-l",
            "no datagram is that large",
        ),
    ])
}

/// Rejects omitted time for a protocol that cannot carry it.
fn reject_omit(plan: &Plan) -> Option<PlanRejection> {
    first_rejection(&[(
        plan.omit_ns > 0,
        "-O",
        "its server counts from the first byte on",
    )])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_protocols_have_known_names() {
        for spec in CLIENT_PROTOCOLS {
            let count = linerate_protocol::sniff::PROTOCOLS.iter();
            let count = count.filter(|protocol| protocol.name == spec.name).count();
            assert_eq!(count, 1, "{}", spec.name);
            assert!(!spec.kinds.is_empty() && !spec.about.is_empty());
        }
    }

    #[test]
    fn a_rejection_names_an_alternative() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "far");
        for (name, option, next_step) in [
            ("chargen", "--peer chargen", "add -R"),
            (
                "sockperf",
                "--peer sockperf",
                "`linerate latency --peer sockperf` does",
            ),
        ] {
            let spec = client_protocol(name).unwrap();
            let error = reject_plan(spec, &plan).unwrap().to_error(name);
            // Neither a privilege nor another kernel would change it.
            assert_eq!(error.exit_code(), linerate_record::exit_codes::USAGE);
            let problem = error.to_report();
            assert_eq!(
                (problem.object.as_str(), problem.next_step.as_str()),
                (option, next_step)
            );
        }
    }

    #[test]
    fn unsupported_options_are_rejected_with_a_reason() {
        let tcp = || Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "far");
        let udp = || Plan::new(RunKind::Throughput, TransportProtocol::Udp, "far");
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
        let with_copies = |mut plan: Plan, send, take| {
            (plan.copies.send, plan.copies.receive) = (send, take);
            plan
        };
        let (copied, received) = (SendCopy::Copied, ReceiveCopy::Copied);
        let (zero, file) = (SendCopy::ZeroCopy, SendCopy::SendFile);
        let trunc = ReceiveCopy::Discarded;
        let remote_sends = Some("--offload zerocopy, sendfile or splice with -R");
        for (name, plan, expected) in [
            ("iperf3", with_copies(tcp(), zero, received), None),
            (
                "iperf3",
                with_copies(tcp(), copied, trunc),
                Some("--offload trunc"),
            ),
            (
                "iperf3",
                with_copies(receive(tcp()), zero, trunc),
                remote_sends,
            ),
            ("iperf3", with_copies(receive(tcp()), file, trunc), None),
            (
                "nuttcp",
                with_copies(receive(tcp()), file, received),
                remote_sends,
            ),
            ("discard", with_copies(tcp(), zero, received), None),
            ("chargen", with_copies(receive(tcp()), copied, trunc), None),
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
            let spec = client_protocol(name).unwrap();
            let rejection = reject_plan(spec, &plan);
            let option = rejection
                .as_ref()
                .map(|rejection| rejection.option.as_str());
            assert_eq!(option, expected, "{name}: {rejection:?}");
        }
    }
}
