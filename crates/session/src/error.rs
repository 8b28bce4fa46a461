//! Errors of a run: one variant per situation that a user can act on.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use linerate_port::PortError;
use linerate_protocol::control::ControlError;
use linerate_record::event::{ErrorReport, RETRY_HINT, Retryable};
use linerate_record::exit_codes;
use linerate_record::round_trip::MulticastGroup;
use linerate_stack::StackError;
use linerate_sys::error_report;
use linerate_sys::frames::FrameRegionError;
use linerate_transport::TransportError;

/// Error of a run, with situation, object and next step (see [`SessionError::to_report`]).
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The host name has no address.
    #[error("{host}: no such host name ({source})")]
    UnknownName {
        host: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// The name has addresses, but none of the requested family.
    #[error("{host}: no {family} address")]
    NoAddress {
        host: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// The address belongs to one family, and an option requests the other.
    #[error("{host}: an {family} address, but {option} requests the other family")]
    FamilyMismatch {
        host: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The option that requests the other family.
        option: String,
    },
    /// A link-local address without its interface (scope id).
    #[error("{host}: a link-local address without its interface")]
    NoInterface { host: String },
    /// Connection refused: no listener on the port.
    #[error("{address}: connection refused")]
    ConnectionRefused { address: SocketAddr },
    /// The kernel has no route.
    #[error("{address}: no route ({source})")]
    NoRoute {
        address: SocketAddr,
        source: io::Error,
    },
    /// The user-space stack has no address of that network, and no gateway.
    #[error("{address}: the user-space stack has no address in that network and no gateway")]
    NoNetstackRoute { address: SocketAddr },
    /// No ARP or neighbour discovery reply on the user-space stack's link.
    #[error("{address}: no ARP or ND reply for {hop} on the stack's link")]
    NoNeighbor {
        address: SocketAddr,
        /// Next hop: the host itself, or the gateway.
        hop: IpAddr,
        /// Time waited.
        timeout: Duration,
    },
    /// No reply to the connection attempt.
    #[error("{address}: no reply within {timeout:?}")]
    NoReply {
        address: SocketAddr,
        /// Time waited.
        timeout: Duration,
    },
    /// No datagram came back from a server that is reached over UDP alone.
    #[error("{address}: no datagram came back within {timeout:?}")]
    NoDatagram {
        address: SocketAddr,
        /// Time waited.
        timeout: Duration,
    },
    /// TCP reaches the server, UDP does not.
    #[error("{address}: UDP does not get through, while TCP does")]
    UdpBlocked { address: SocketAddr },
    /// Replies come from an address that was not requested.
    #[error("{address}: its replies come from {from}")]
    OtherSender { address: SocketAddr, from: IpAddr },
    /// No response to requests to a multicast group.
    #[error("{group}: no response to requests to the group, while the control connection works")]
    NoGroupResponse {
        /// Group, with its interface where one was named.
        group: MulticastGroup,
        /// The server is reached over this host's loopback interface.
        loopback: bool,
    },
    /// Another program uses the port, or the versions differ.
    #[error("{peer}: {source}")]
    Protocol {
        peer: SocketAddr,
        source: ControlError,
    },
    /// The remote end rejected the test.
    #[error("{peer}: {problem}")]
    PeerRejected {
        peer: SocketAddr,
        /// Reason of the remote end.
        problem: Box<ErrorReport>,
        /// Exit code that it suggests.
        exit_code: u8,
    },
    /// The remote end rejected the test for now: a limit is reached.
    #[error("{peer}: {problem}")]
    PeerBusy {
        peer: SocketAddr,
        /// Reason of the remote end.
        problem: Box<ErrorReport>,
    },
    /// A host on the user-space stack has too few sockets for the flows of a test.
    #[error(
        "all {limit} UDP sockets of the host's stack are in use, and the test needs {missing} more"
    )]
    FewSockets {
        /// Sockets of the stack.
        limit: u32,
        /// Flows without a socket.
        missing: u32,
    },
    /// The user stopped the run before its start.
    #[error("stopped before the start")]
    Interrupted,
    /// The remote end is lost.
    #[error("{peer}: {reason}")]
    PeerLost {
        peer: SocketAddr,
        /// Closed, reset, or silent for some time.
        reason: String,
    },
    /// A server of another tool aborted, rejected the test, or sent invalid data.
    #[error("{peer}: {situation}")]
    PeerFailed {
        peer: SocketAddr,
        situation: String,
        next_step: String,
    },
    /// The `--far-report` command returned no usable count; the run itself took place.
    #[error("{}", .0.situation)]
    ReportCommand(ErrorReport),
    /// A requested option that this host does not support or permit.
    #[error("{option}: {why}")]
    OptionRejected {
        /// The option as it was written.
        option: String,
        why: String,
        next_step: String,
    },
    /// Options that contradict each other, or that a protocol cannot express.
    #[error("{option}: {why}")]
    Unsupported {
        /// The option as it was written, and the option that it conflicts with.
        option: String,
        why: String,
        next_step: String,
    },
    /// A packet port cannot be opened, or failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The user-space stack cannot be started, or one of its sockets failed.
    #[error(transparent)]
    Stack(Box<StackError>),
    /// Another process uses the port.
    #[error("port {port} is in use ({source})")]
    PortInUse { port: u16, source: io::Error },
    /// A local address or port cannot be used.
    #[error("{address}: cannot be used here ({source})")]
    LocalAddress { address: String, source: io::Error },
    /// A thread cannot be started.
    #[error("{thread} cannot be started ({source})")]
    Thread {
        /// Number of the thread, and of how many.
        thread: String,
        source: io::Error,
    },
    /// A system call failed unexpectedly.
    #[error("{action}: {source}")]
    System {
        /// The operation.
        action: String,
        source: io::Error,
    },
}

impl From<TransportError> for SessionError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::OptionRejected {
                option,
                why,
                next_step,
            } => Self::OptionRejected {
                option,
                why,
                next_step,
            },
            TransportError::Port(error) => Self::Port(error),
            TransportError::Stack(error) => Self::Stack(error),
            TransportError::System { action, source } => Self::System { action, source },
        }
    }
}

impl From<FrameRegionError> for SessionError {
    fn from(error: FrameRegionError) -> Self {
        Self::Port(error.into())
    }
}

impl SessionError {
    /// Wraps the error of a system call that should work.
    pub fn system(action: impl Into<String>, source: io::Error) -> Self {
        Self::System {
            action: action.into(),
            source,
        }
    }

    /// Returns the process exit code of the error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            // Any other code from the remote end is replaced: the run is no success, and no Ctrl-C.
            Self::PeerRejected { exit_code, .. } => match exit_code {
                exit_codes::FAILED..=exit_codes::PEER => *exit_code,
                _ => exit_codes::PEER,
            },
            Self::Interrupted => exit_codes::INTERRUPTED,
            Self::OptionRejected { .. } => exit_codes::MISSING,
            Self::Port(error) => error.exit_code(),
            Self::ReportCommand(_) => exit_codes::FAILED,
            Self::Unsupported { .. } | Self::FamilyMismatch { .. } => exit_codes::USAGE,
            Self::Stack(error) => match &**error {
                StackError::UnknownKey { .. }
                | StackError::BadValue { .. }
                | StackError::MissingValue { .. }
                | StackError::UnknownProfile { .. }
                | StackError::BadToml { .. }
                | StackError::BadInterfaceAddress { .. }
                | StackError::NotAHostAddress { .. }
                | StackError::Contradiction { .. } => exit_codes::USAGE,
                _ => exit_codes::FAILED,
            },
            Self::PortInUse { .. }
            | Self::LocalAddress { .. }
            | Self::Thread { .. }
            | Self::System { .. } => exit_codes::FAILED,
            Self::UnknownName { .. }
            | Self::NoAddress { .. }
            | Self::NoInterface { .. }
            | Self::ConnectionRefused { .. }
            | Self::NoRoute { .. }
            | Self::NoNetstackRoute { .. }
            | Self::NoNeighbor { .. }
            | Self::NoReply { .. }
            | Self::NoDatagram { .. }
            | Self::UdpBlocked { .. }
            | Self::OtherSender { .. }
            | Self::NoGroupResponse { .. }
            | Self::Protocol { .. }
            | Self::PeerBusy { .. }
            | Self::FewSockets { .. }
            | Self::PeerFailed { .. }
            | Self::PeerLost { .. } => exit_codes::PEER,
        }
    }

    /// Returns whether a retry may succeed (`--retry`).
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::ConnectionRefused { .. }
                | Self::NoRoute { .. }
                | Self::NoNeighbor { .. }
                | Self::Port(PortError::NoPeer { .. } | PortError::PeerGone { .. })
                | Self::NoReply { .. }
                | Self::NoDatagram { .. }
                | Self::PeerBusy { .. }
        )
    }

    /// Returns whether a program at the address responded.
    #[must_use]
    pub fn is_of_a_program(&self) -> bool {
        matches!(self, Self::OtherSender { .. } | Self::PeerFailed { .. })
    }

    /// Returns whether another address of the same host may do without this error.
    #[must_use]
    pub fn depends_on_address(&self) -> bool {
        matches!(
            self,
            Self::ConnectionRefused { .. }
                | Self::NoRoute { .. }
                | Self::NoNetstackRoute { .. }
                | Self::NoNeighbor { .. }
                | Self::NoReply { .. }
                | Self::NoDatagram { .. }
                | Self::OtherSender { .. }
                | Self::PeerFailed { .. }
                // A host without IPv6 has no socket of it, and no local address.
                | Self::System { .. }
                | Self::LocalAddress { .. }
        )
    }

    /// Returns whether the error stays in a rerun, where that is certain.
    fn retryable(&self) -> Option<Retryable> {
        use ControlError as E;
        // Errors that depend on an option (family, interface) may differ between runs, and a name
        // server may be unreachable for a while.
        let is_lasting = match self {
            Self::UnknownName { source, .. } => !source.to_string().contains("Temporary failure"),
            Self::Protocol { source, .. } => matches!(
                source,
                E::NotLinerate
                    | E::Iperf3
                    | E::Security { .. }
                    | E::ServerRequiresKey
                    | E::ServerHasNoKey
                    | E::ClientHasNoKey
                    | E::UnexpectedClientKey
                    | E::KeyMismatch
                    | E::Version { .. }
            ),
            _ => false,
        };
        match (self.may_pass(), is_lasting) {
            (true, _) => Some(Retryable::Transient),
            (false, true) => Some(Retryable::Permanent),
            (false, false) => match self {
                Self::Port(error) => error.retryable(),
                _ => None,
            },
        }
    }

    /// Returns the situation, the object and the next step.
    #[must_use]
    pub fn to_report(&self) -> ErrorReport {
        self.without_retryable().with_retryable(self.retryable())
    }

    fn without_retryable(&self) -> ErrorReport {
        match self {
            Self::Port(error) => error.to_report(),
            Self::ReportCommand(report) => report.clone(),
            Self::Stack(error) => {
                let text = error.to_string();
                let (situation, next_step) = split_situation(&text);
                let next = next_step.unwrap_or("see `linerate stack --help`");
                ErrorReport::new(situation, "user-space stack", next)
            }
            Self::UnknownName { host, source } => match host.split_once('%') {
                // The resolver rejects an address whose interface it does not find.
                Some((_, interface)) => ErrorReport::new(
                    format!("this host has no interface {interface}"),
                    host,
                    "name one that `ip -6 address` lists",
                ),
                None => ErrorReport::new(
                    format!("no such host name ({source})"),
                    host,
                    "check the spelling, or give the address",
                ),
            },
            Self::FamilyMismatch {
                host,
                family,
                option,
            } => ErrorReport::new(
                format!("{host} is an {family} address"),
                option,
                format!("leave out {option}, or give an address of its family"),
            ),
            Self::NoInterface { host } => ErrorReport::new(
                "link-local address needs an interface (scope id)",
                host,
                format!("name the interface: {host}%eth0, or -B %eth0 (see `ip -6 address`)"),
            ),
            Self::NoAddress { host, family } => ErrorReport::new(
                format!("the name has no {family} address"),
                host,
                "leave out -4 or -6, or give the address",
            ),
            Self::ConnectionRefused { address } => ErrorReport::new(
                "connection refused: no server listens on this port",
                address.to_string(),
                format!(
                    "start `linerate server -p {}` on that host{RETRY_HINT}",
                    address.port()
                ),
            ),
            Self::NoRoute { address, source } => ErrorReport::new(
                format!("no route to the host ({source})"),
                address.to_string(),
                format!("see `ip route get {}`", address.ip()),
            ),
            Self::NoNetstackRoute { address } => ErrorReport::new(
                "the user-space stack has no address in that network and no gateway",
                address.to_string(),
                "add one with --ip or --gateway",
            ),
            Self::NoNeighbor {
                address,
                hop,
                timeout,
            } => {
                let protocol = match hop {
                    IpAddr::V4(_) => "ARP",
                    IpAddr::V6(_) => "neighbour discovery",
                };
                let (host, check) = match *hop == address.ip() {
                    true => (
                        "it".to_owned(),
                        "the address, and that the host is up".to_owned(),
                    ),
                    false => (
                        format!("the gateway {hop}"),
                        "--gateway, and that the gateway is up".to_owned(),
                    ),
                };
                ErrorReport::new(
                    format!(
                        "{host} does not reply on the link of the user-space stack ({protocol}, {} s)",
                        timeout.as_secs()
                    ),
                    address.to_string(),
                    format!("check {check} and on the link of the --dev port"),
                )
            }
            Self::NoReply { address, timeout } => ErrorReport::new(
                format!("no reply within {} s", timeout.as_secs()),
                address.to_string(),
                format!(
                    "check that the host is up and that TCP port {} is open on the path",
                    address.port()
                ),
            ),
            Self::NoDatagram { address, timeout } => ErrorReport::new(
                format!("no datagram came back within {} s", timeout.as_secs_f64()),
                address.to_string(),
                format!(
                    "check that the program replies on UDP port {port} there (`ss -ulpn sport = :{port}`), \
                     and that UDP port {port} is open on the path",
                    port = address.port()
                ),
            ),
            Self::UdpBlocked { address } => ErrorReport::new(
                "UDP does not get through, while TCP does",
                address.to_string(),
                format!(
                    "open UDP port {} in the firewalls on the path, or measure TCP (without -u)",
                    address.port()
                ),
            ),
            Self::OtherSender { address, from } => ErrorReport::new(
                format!("its replies over UDP come from another address, {from}"),
                address.to_string(),
                format!(
                    "measure to {from}, or let the program there reply from the address of the request (bind \
                     it to {})",
                    address.ip()
                ),
            ),
            Self::NoGroupResponse { group, loopback } => {
                // Linux gives lo no route for ff00::/8 and no membership that would deliver it.
                let by_loopback = *loopback && group.address.is_ipv6();
                let (situation, next_step) = match by_loopback {
                    true => (
                        "the loopback interface carries no IPv6 multicast",
                        "measure between two hosts or network namespaces, or with an IPv4 group \
                         (--multicast 239.1.2.3)",
                    ),
                    false => (
                        "no response to requests to the group, while the control connection works",
                        "name the interface (GROUP%IF), raise --ttl if routers lie between, and \
                         check IGMP/MLD snooping in switches and firewalls; a run without \
                         --multicast shows whether UDP gets through at all",
                    ),
                };
                ErrorReport::new(situation, format!("--multicast {group}"), next_step)
            }
            Self::Protocol { peer, source } => match source {
                ControlError::Version { .. } => ErrorReport::new(
                    source.to_string(),
                    peer.to_string(),
                    "run the same version of linerate on both hosts",
                ),
                ControlError::ServerRequiresKey
                | ControlError::ServerHasNoKey
                | ControlError::ClientHasNoKey
                | ControlError::UnexpectedClientKey
                | ControlError::KeyMismatch
                | ControlError::Tampered => {
                    let text = source.to_string();
                    let (situation, next_step) = split_situation(&text);
                    let next_step = next_step.unwrap_or("see the messages of the remote end");
                    ErrorReport::new(situation, peer.to_string(), next_step)
                }
                ControlError::Iperf3 => ErrorReport::new(
                    "is an iperf3 server, not `linerate server`",
                    peer.to_string(),
                    "measure to it with --peer iperf3, or start `linerate server` there",
                ),
                _ => ErrorReport::new(
                    format!("does not speak linerate's protocol ({source})"),
                    peer.to_string(),
                    "check the port: another program uses it",
                ),
            },
            Self::Interrupted => ErrorReport::new(
                "stopped before the start",
                "this run",
                "run it again; nothing was measured",
            ),
            Self::PeerRejected { peer, problem, .. } | Self::PeerBusy { peer, problem } => {
                ErrorReport::new(
                    format!("the remote end reports: {}", problem.situation),
                    format!("{} ({peer})", problem.object),
                    problem.next_step.clone(),
                )
            }
            Self::FewSockets { limit, missing } => ErrorReport::new(
                self.to_string(),
                "a host on the user-space stack",
                format!(
                    "start that host with --set sockets.udp={} or higher, or use fewer flows (-P)",
                    limit.saturating_add(*missing)
                ),
            ),
            Self::PeerLost { peer, reason } => ErrorReport::new(
                format!("peer lost: {reason}"),
                peer.to_string(),
                "check its process and the network between, then run it again",
            ),
            Self::PeerFailed {
                peer,
                situation,
                next_step,
            } => ErrorReport::new(situation, peer.to_string(), next_step),
            Self::OptionRejected {
                option,
                why,
                next_step,
            }
            | Self::Unsupported {
                option,
                why,
                next_step,
            } => ErrorReport::new(why, option, next_step),
            Self::PortInUse { port, source } => ErrorReport::new(
                format!("the port is in use ({source})"),
                format!("port {port}"),
                format!(
                    "find its owner with `ss -tulpn 'sport = :{port}'`, or choose another port"
                ),
            ),
            Self::LocalAddress { address, source } => ErrorReport::new(
                format!("cannot be used as a local address ({source})"),
                address,
                "choose one that `ip address` lists on this host",
            ),
            Self::Thread { thread, source } => error_report::thread(thread, source),
            Self::System { action, source } => error_report::system_call(action, source),
        }
    }
}

/// Splits a text into situation and next step at the first colon outside brackets (kernel messages
/// contain colons of their own).
#[must_use]
pub fn split_situation(text: &str) -> (&str, Option<&str>) {
    let mut depth = 0usize;
    for (position, character) in text.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 0 && text[position + 1..].starts_with(' ') => {
                return (&text[..position], Some(&text[position + 2..]));
            }
            _ => {}
        }
    }
    (text, None)
}

impl From<StackError> for SessionError {
    fn from(error: StackError) -> Self {
        match error {
            StackError::Port(error) => Self::Port(error),
            error => Self::Stack(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_responses_on_loopback_is_no_firewall() {
        let problem_of_error = |group: &str, loopback| {
            let group = group.parse().unwrap();
            SessionError::NoGroupResponse { group, loopback }.to_report()
        };
        assert!(
            problem_of_error("ff12::77%lo", true)
                .situation
                .contains("loopback")
        );
        for (group, loopback) in [("ff12::77%eth0", false), ("239.1.2.3", true)] {
            let problem = problem_of_error(group, loopback);
            assert!(problem.next_step.contains("--ttl") && problem.object.contains(group));
        }
    }

    #[test]
    fn a_missing_reply_names_its_protocol() {
        let address = SocketAddr::from(([192, 0, 2, 1], 7));
        let timeout = Duration::from_millis(2_500);
        let udp = SessionError::NoDatagram { address, timeout }.to_report();
        assert!(udp.next_step.contains("UDP port 7") && !udp.next_step.contains("TCP"));
        assert!(udp.situation.ends_with("within 2.5 s"), "{}", udp.situation);
        let tcp = SessionError::NoReply { address, timeout }.to_report();
        assert!(tcp.next_step.contains("TCP port 7"));
    }

    #[test]
    fn errors_that_may_pass_are_distinguished_from_lasting_ones() {
        let address = SocketAddr::from(([192, 0, 2, 1], 7));
        let refused_connection = SessionError::ConnectionRefused { address }.to_report();
        assert_eq!(refused_connection.retryable, Some(Retryable::Transient));
        let source = ControlError::KeyMismatch;
        let key = SessionError::Protocol {
            peer: address,
            source,
        };
        assert_eq!(key.to_report().retryable, Some(Retryable::Permanent));
        let tampered = SessionError::Protocol {
            peer: address,
            source: ControlError::Tampered,
        };
        assert_eq!(tampered.to_report().retryable, None);
        let name = |why: &str| SessionError::UnknownName {
            host: "there".to_owned(),
            source: io::Error::other(why.to_owned()),
        };
        let resolver = "failed to lookup address information: ";
        let problem_of = |why| name(&format!("{resolver}{why}")).to_report().retryable;
        assert_eq!(
            problem_of("Name or service not known"),
            Some(Retryable::Permanent)
        );
        assert_eq!(problem_of("Temporary failure in name resolution"), None);
        assert_eq!(SessionError::Interrupted.to_report().retryable, None);
        let interface = "eth0".to_owned();
        let port = SessionError::from(PortError::NoInterface { interface });
        assert_eq!(
            port.to_report().retryable,
            Some(Retryable::PermanentForObject)
        );
    }

    #[test]
    fn a_peer_cannot_choose_any_exit_code() {
        for (suggested, expected) in [
            (0, 5),
            (1, 1),
            (2, 2),
            (4, 4),
            (5, 5),
            (6, 5),
            (130, 5),
            (255, 5),
        ] {
            let error = SessionError::PeerRejected {
                peer: SocketAddr::from(([127, 0, 0, 1], 1)),
                problem: Box::new(ErrorReport::new("no", "it", "wait")),
                exit_code: suggested,
            };
            assert_eq!(error.exit_code(), expected, "{suggested}");
        }
    }

    #[test]
    fn a_text_is_split_outside_brackets() {
        for (text, expected) in [
            ("it broke: mend it", ("it broke", Some("mend it"))),
            (
                "it broke (flow 1: Broken pipe (os error 32)): mend it: soon",
                (
                    "it broke (flow 1: Broken pipe (os error 32))",
                    Some("mend it: soon"),
                ),
            ),
            ("::1 is silent", ("::1 is silent", None)),
            ("it broke (a: b", ("it broke (a: b", None)),
            ("", ("", None)),
        ] {
            assert_eq!(split_situation(text), expected);
        }
    }
}
