//! What can go wrong with a run, told apart as far as a user can do something about it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use linerate_dialect::control::ControlError;
use linerate_metric::event::{Again, Problem, WAIT_FOR_IT};
use linerate_metric::exit;
use linerate_metric::round_trip::Group;
use linerate_port::PortError;
use linerate_stack::StackError;
use rustix::io::Errno;

use crate::peers::call::FarReportError;

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The name has no address.
    #[error("{host}: no such host name ({source})")]
    UnknownName {
        /// As it was written.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// The name has addresses, but none of the family asked for.
    #[error("{host}: no {family} address")]
    NoAddress {
        /// As it was written.
        host: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// An address was given, and another option asks for the other family.
    #[error("{host}: an {family} address, and {option} asks for the other family")]
    OtherFamily {
        /// As it was written.
        host: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The option that contradicts it.
        option: String,
    },
    /// A link-local address, which says nothing without the link.
    #[error("{host}: a link-local address without its interface")]
    NoInterface {
        /// As it was written.
        host: String,
    },
    /// Nobody listens there.
    #[error("{address}: connection refused")]
    Refused {
        /// Whom it was sent to.
        address: SocketAddr,
    },
    /// The kernel knows no way there.
    #[error("{address}: no route ({source})")]
    NoRoute {
        /// Whom it was for.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Our own stack has no address of that network, and no gateway.
    #[error("{address}: our stack has no address of that network and no gateway")]
    NoWay {
        /// Whom it was for.
        address: SocketAddr,
    },
    /// Nobody on the link of our own stack says that an address is theirs.
    #[error("{address}: nobody on the stack's link answers for {hop}")]
    NoNeighbor {
        /// Whom it was for.
        address: SocketAddr,
        /// Who was asked for: the same host, or the gateway.
        hop: IpAddr,
        /// How long was waited.
        patience: Duration,
    },
    /// Nothing came back.
    #[error("{address}: no answer within {patience:?}")]
    Silent {
        /// Whom it was for.
        address: SocketAddr,
        /// How long was waited.
        patience: Duration,
    },
    /// No datagram came back from a far end that is reached over UDP alone.
    #[error("{address}: no datagram came back within {patience:?}")]
    SilentUdp {
        /// Whom it was for.
        address: SocketAddr,
        /// How long was waited.
        patience: Duration,
    },
    /// TCP reaches the server, UDP does not.
    #[error("{address}: UDP does not get through, while TCP does")]
    UdpBlocked {
        /// Whom it was for.
        address: SocketAddr,
    },
    /// Questions to a multicast group stay without an answer.
    #[error("{group}: no question to the group is answered, while the control connection stands")]
    GroupSilent {
        /// The group, with its interface where that was named.
        group: Group,
        /// Whether the far end is reached over this host's loopback interface.
        loopback: bool,
    },
    /// Something else answers on that port, or speaks another version.
    #[error("{peer}: {source}")]
    Protocol {
        /// The other end.
        peer: SocketAddr,
        /// What is wrong with what it says.
        source: ControlError,
    },
    /// The other end said no.
    #[error("{peer}: {problem}")]
    PeerRefused {
        /// The other end.
        peer: SocketAddr,
        /// What it said.
        problem: Box<Problem>,
        /// The exit code that it says fits.
        exit_code: u8,
    },
    /// The other end said no for now: it has no room.
    #[error("{peer}: {problem}")]
    PeerBusy {
        /// The other end.
        peer: SocketAddr,
        /// What it said.
        problem: Box<Problem>,
    },
    /// A host on our own stack has too few sockets for the flows of a test.
    #[error(
        "all {limit} UDP sockets of the host's stack are in use, and the test wants {wanted} more"
    )]
    FewSockets {
        /// How many it has.
        limit: u32,
        /// Flows without one.
        wanted: u32,
    },
    /// Somebody asked to stop before the run began.
    #[error("stopped before the run began")]
    Interrupted,
    /// The other end is gone.
    #[error("{peer}: {how}")]
    Vanished {
        /// The other end.
        peer: SocketAddr,
        /// Closed, reset, or silent for how long.
        how: String,
    },
    /// A far end that is another program broke off, refused, or makes no sense.
    #[error("{peer}: {situation}")]
    Foreign {
        /// The other end.
        peer: SocketAddr,
        /// What it did.
        situation: String,
        /// What to do now.
        next_step: String,
    },
    /// The command that was to tell the far end's count told none that can be used; the run itself took
    /// place.
    #[error(transparent)]
    FarReport(Box<FarReportError>),
    /// An option that was asked for is not to be had here.
    #[error("{option}: {why}")]
    OptionRefused {
        /// The option as it was written.
        option: String,
        /// What the kernel said.
        why: String,
        /// What would allow it.
        next_step: String,
    },
    /// Options that contradict each other, on whatever machine: what a dialect has no word for.
    #[error("{option}: {why}")]
    Unsupported {
        /// The option as it was written, and with what.
        option: String,
        /// Why not.
        why: String,
        /// What to do instead.
        next_step: String,
    },
    /// A port of frames cannot be opened, or stopped working.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Our own stack cannot be made, or one of its sockets failed.
    #[error(transparent)]
    Stack(Box<StackError>),
    /// Ports, threads and settings do not go together.
    #[error("{object}: {situation}")]
    NotForwardable {
        /// What does not fit.
        object: String,
        /// Why.
        situation: String,
        /// What would.
        next_step: String,
    },
    /// What was to be generated cannot be.
    #[error("{object}: {situation}")]
    Generator {
        /// What it is about: an option, a file, a port.
        object: String,
        /// What is wrong with it.
        situation: String,
        /// What would do.
        next_step: String,
    },
    /// Another process has the port.
    #[error("port {port} is taken ({source})")]
    PortTaken {
        /// The port.
        port: u16,
        /// What the kernel said.
        source: io::Error,
    },
    /// A local address or port cannot be used.
    #[error("{address}: cannot be used here ({source})")]
    LocalAddress {
        /// What was asked for.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A thread that a run needs cannot be started.
    #[error("{thread} cannot be started ({source})")]
    Thread {
        /// Which of how many.
        thread: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A call that should work did not.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl MeasureError {
    /// A call that should work did not.
    pub fn system(doing: impl Into<String>, source: io::Error) -> Self {
        Self::System {
            doing: doing.into(),
            source,
        }
    }

    /// The exit code that tells a script which kind of failure this is.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            // Whatever it says: a run that did not take place is no success, and no Ctrl-C.
            Self::PeerRefused { exit_code, .. } => match exit_code {
                exit::FAILED..=exit::PEER => *exit_code,
                _ => exit::PEER,
            },
            Self::Interrupted => exit::INTERRUPTED,
            Self::OptionRefused { .. } => exit::MISSING,
            Self::Port(error) => error.exit_code(),
            Self::FarReport(_) => exit::FAILED,
            Self::NotForwardable { .. } | Self::Generator { .. } | Self::Unsupported { .. } => {
                exit::USAGE
            }
            Self::Stack(error) => match &**error {
                StackError::UnknownKey { .. }
                | StackError::BadValue { .. }
                | StackError::NotASetting { .. }
                | StackError::UnknownProfile { .. }
                | StackError::BadToml { .. }
                | StackError::BadNetwork { .. }
                | StackError::NotAHost { .. }
                | StackError::Contradiction { .. } => exit::USAGE,
                _ => exit::FAILED,
            },
            Self::PortTaken { .. }
            | Self::LocalAddress { .. }
            | Self::Thread { .. }
            | Self::System { .. } => exit::FAILED,
            Self::UnknownName { .. }
            | Self::NoAddress { .. }
            | Self::OtherFamily { .. }
            | Self::NoInterface { .. }
            | Self::Refused { .. }
            | Self::NoRoute { .. }
            | Self::NoWay { .. }
            | Self::NoNeighbor { .. }
            | Self::Silent { .. }
            | Self::SilentUdp { .. }
            | Self::UdpBlocked { .. }
            | Self::GroupSilent { .. }
            | Self::Protocol { .. }
            | Self::PeerBusy { .. }
            | Self::FewSockets { .. }
            | Self::Foreign { .. }
            | Self::Vanished { .. } => exit::PEER,
        }
    }

    /// Whether trying again may help (`--retry`).
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::NoRoute { .. }
                | Self::NoNeighbor { .. }
                | Self::Port(PortError::NoPartner { .. } | PortError::PartnerGone { .. })
                | Self::Silent { .. }
                | Self::SilentUdp { .. }
                | Self::PeerBusy { .. }
        )
    }

    /// What asking again comes to, where that is known.
    fn again(&self) -> Option<Again> {
        use ControlError as E;
        // What depends on an option (a family, an interface) may differ from run to run, and a name server may
        // be out of reach for a while.
        let stays = match self {
            Self::UnknownName { source, .. } => !source.to_string().contains("Temporary failure"),
            Self::Protocol { source, .. } => matches!(
                source,
                E::NotOurs
                    | E::Security { .. }
                    | E::KeyDemanded
                    | E::KeyUnused
                    | E::KeyMissing
                    | E::KeyUnknown
                    | E::KeyDiffers
                    | E::Version { .. }
            ),
            _ => false,
        };
        let of_object = matches!(
            self,
            Self::Port(
                PortError::NoInterface { .. }
                    | PortError::InterfaceInUse { .. }
                    | PortError::NotPrivileged { .. }
                    | PortError::NoBpf { .. }
            )
        );
        match (self.may_pass(), stays) {
            (true, _) => Some(Again::MayPass),
            (false, true) => Some(Again::Stays),
            (false, false) => of_object.then_some(Again::StaysForObject),
        }
    }

    /// The situation, the object and the next step.
    #[must_use]
    pub fn problem(&self) -> Problem {
        self.told().asking_again(self.again())
    }

    fn told(&self) -> Problem {
        match self {
            Self::Port(error) => error.problem(),
            Self::FarReport(error) => error.problem(),
            Self::Stack(error) => {
                let text = error.to_string();
                let (situation, next_step) = two_parts(&text);
                let next = next_step.unwrap_or("see `linerate stack --help`");
                Problem::new(situation, "our own stack", next)
            }
            Self::NotForwardable {
                object,
                situation,
                next_step,
            }
            | Self::Generator {
                object,
                situation,
                next_step,
            } => Problem::new(situation, object, next_step),
            Self::UnknownName { host, source } => Problem::new(
                format!("no such host name ({source})"),
                host,
                match host.split_once(':') {
                    Some((name, port)) if port.parse::<u16>().is_ok() => {
                        format!("give the port with -p: {name} -p {port}; or check the address")
                    }
                    _ => "check the spelling, or give the address".to_owned(),
                },
            ),
            Self::OtherFamily {
                host,
                family,
                option,
            } => Problem::new(
                format!("is an {family} address, and {option} asks for the other family"),
                host,
                format!("leave out {option}, or give an address of its family"),
            ),
            Self::NoInterface { host } => Problem::new(
                "a link-local address is one of every link: it needs the interface",
                host,
                format!("name the interface: {host}%eth0, or -B %eth0 (see `ip -6 address`)"),
            ),
            Self::NoAddress { host, family } => Problem::new(
                format!("the name has no {family} address"),
                host,
                "leave out -4 or -6, or give the address",
            ),
            Self::Refused { address } => Problem::new(
                "connection refused: nobody listens there",
                address.to_string(),
                format!(
                    "start `linerate server -p {}` on that host{WAIT_FOR_IT}",
                    address.port()
                ),
            ),
            Self::NoRoute { address, source } => Problem::new(
                format!("no route to the host ({source})"),
                address.to_string(),
                format!("see `ip route get {}`", address.ip()),
            ),
            Self::NoWay { address } => Problem::new(
                "our stack has no address of that network and no gateway",
                address.to_string(),
                "give it one with --ip or --gateway",
            ),
            Self::NoNeighbor {
                address,
                hop,
                patience,
            } => {
                let asked = match hop {
                    IpAddr::V4(_) => "ARP",
                    IpAddr::V6(_) => "neighbour discovery",
                };
                let (who, check) = match *hop == address.ip() {
                    true => (
                        "it".to_owned(),
                        "the address, and that the host is up".to_owned(),
                    ),
                    false => (
                        format!("the gateway {hop}"),
                        "--gateway, and that the gateway is up".to_owned(),
                    ),
                };
                Problem::new(
                    format!(
                        "{who} does not answer on the link of our stack ({asked}, {} s)",
                        patience.as_secs()
                    ),
                    address.to_string(),
                    format!("check {check} and on the link of the port that --dev names"),
                )
            }
            Self::Silent { address, patience } => Problem::new(
                format!("no answer within {} s", patience.as_secs()),
                address.to_string(),
                format!(
                    "check that the host is up and that TCP port {} is open on the way",
                    address.port()
                ),
            ),
            Self::SilentUdp { address, patience } => Problem::new(
                format!("no datagram came back within {} s", patience.as_secs_f64()),
                address.to_string(),
                format!(
                    "check that the program answers on UDP port {port} there (`ss -ulpn sport = :{port}`), \
                     and that UDP port {port} is open on the way",
                    port = address.port()
                ),
            ),
            Self::UdpBlocked { address } => Problem::new(
                "UDP does not get through, while TCP does",
                address.to_string(),
                format!(
                    "open UDP port {} in the firewalls on the way, or measure TCP (without -u)",
                    address.port()
                ),
            ),
            Self::GroupSilent { group, loopback } => {
                // Linux gives lo no route for ff00::/8 and no membership that would deliver it.
                let by_loopback = *loopback && group.address.is_ipv6();
                let (situation, next_step) = match by_loopback {
                    true => (
                        "the loopback interface carries no IPv6 multicast",
                        "measure between two hosts or network namespaces, or with an IPv4 group \
                         (--multicast 239.1.2.3)",
                    ),
                    false => (
                        "no question to the group is answered, while the control connection stands",
                        "name the interface (GROUP%IF), raise --ttl if routers lie between, and \
                         look at snooping in switches and at firewalls; without --multicast it \
                         shows whether UDP gets through at all",
                    ),
                };
                Problem::new(situation, format!("--multicast {group}"), next_step)
            }
            Self::Protocol { peer, source } => match source {
                ControlError::Version { .. } => Problem::new(
                    source.to_string(),
                    peer.to_string(),
                    "run the same version of linerate on both hosts",
                ),
                ControlError::KeyDemanded
                | ControlError::KeyUnused
                | ControlError::KeyMissing
                | ControlError::KeyUnknown
                | ControlError::KeyDiffers
                | ControlError::Tampered => {
                    let text = source.to_string();
                    let (situation, next_step) = two_parts(&text);
                    let next_step = next_step.unwrap_or("look at the far end's own messages");
                    Problem::new(situation, peer.to_string(), next_step)
                }
                _ => Problem::new(
                    format!("does not speak linerate's protocol ({source})"),
                    peer.to_string(),
                    "check the port: it belongs to another program",
                ),
            },
            Self::Interrupted => Problem::new(
                "stopped before the run began",
                "this run",
                "run it again; nothing was measured",
            ),
            Self::PeerRefused { peer, problem, .. } | Self::PeerBusy { peer, problem } => {
                Problem::new(
                    format!("the far end says: {}", problem.situation),
                    format!("{} ({peer})", problem.object),
                    problem.next_step.clone(),
                )
            }
            Self::FewSockets { limit, wanted } => Problem::new(
                self.to_string(),
                "a host on our stack",
                format!(
                    "start that host with --set sockets.udp={} or higher, or use fewer streams (-P)",
                    limit.saturating_add(*wanted)
                ),
            ),
            Self::Vanished { peer, how } => Problem::new(
                format!("the far end vanished: {how}"),
                peer.to_string(),
                "look at its process and at the network between, then run it again",
            ),
            Self::Foreign {
                peer,
                situation,
                next_step,
            } => Problem::new(situation, peer.to_string(), next_step),
            Self::OptionRefused {
                option,
                why,
                next_step,
            }
            | Self::Unsupported {
                option,
                why,
                next_step,
            } => Problem::new(why, option, next_step),
            Self::PortTaken { port, source } => Problem::new(
                format!("the port is taken ({source})"),
                format!("port {port}"),
                format!(
                    "find its owner with `ss -tulpn 'sport = :{port}'`, or choose another port"
                ),
            ),
            Self::LocalAddress { address, source } => Problem::new(
                format!("cannot be used as a local address ({source})"),
                address,
                "choose one that `ip address` lists on this host",
            ),
            Self::Thread { thread, source } => Problem::new(
                format!("cannot be started ({source})"),
                thread.clone(),
                "use fewer, or allow more: `ulimit -u`, and pids.max of the control group",
            ),
            Self::System { doing, source } => Problem::new(
                format!("{doing} failed ({source})"),
                "this host",
                match source.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::MFILE | Errno::NFILE) => {
                        "raise the open-file limit: `ulimit -n 100000`"
                    }
                    Some(Errno::NOMEM) => "free some memory, or use fewer streams",
                    _ => "`linerate doctor` shows what this host can do",
                },
            ),
        }
    }
}

/// What happened and what to do, of a text that has both: they part at the first colon that stands in
/// no brackets (what a kernel said has colons of its own).
#[must_use]
pub fn two_parts(text: &str) -> (&str, Option<&str>) {
    let mut depth = 0usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 0 && text[at + 1..].starts_with(' ') => {
                return (&text[..at], Some(&text[at + 2..]));
            }
            _ => {}
        }
    }
    (text, None)
}

impl From<StackError> for MeasureError {
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
    fn a_silent_group_is_no_matter_of_the_firewall_on_loopback() {
        let told = |group: &str, loopback| {
            let group = group.parse().unwrap();
            MeasureError::GroupSilent { group, loopback }.problem()
        };
        assert!(told("ff12::77%lo", true).situation.contains("loopback"));
        for (group, loopback) in [("ff12::77%eth0", false), ("239.1.2.3", true)] {
            let problem = told(group, loopback);
            assert!(problem.next_step.contains("--ttl") && problem.object.contains(group));
        }
    }

    #[test]
    fn silence_names_the_protocol_that_was_silent() {
        let address = SocketAddr::from(([192, 0, 2, 1], 7));
        let patience = Duration::from_millis(2_500);
        let udp = MeasureError::SilentUdp { address, patience }.problem();
        assert!(udp.next_step.contains("UDP port 7") && !udp.next_step.contains("TCP"));
        assert!(udp.situation.ends_with("within 2.5 s"), "{}", udp.situation);
        let tcp = MeasureError::Silent { address, patience }.problem();
        assert!(tcp.next_step.contains("TCP port 7"));
    }

    #[test]
    fn what_may_pass_is_told_from_what_stays() {
        let address = SocketAddr::from(([192, 0, 2, 1], 7));
        let refused = MeasureError::Refused { address }.problem();
        assert_eq!(refused.again, Some(Again::MayPass));
        let source = ControlError::KeyDiffers;
        let key = MeasureError::Protocol {
            peer: address,
            source,
        };
        assert_eq!(key.problem().again, Some(Again::Stays));
        let late = MeasureError::Protocol {
            peer: address,
            source: ControlError::Tampered,
        };
        assert_eq!(late.problem().again, None);
        let name = |why: &str| MeasureError::UnknownName {
            host: "there".to_owned(),
            source: io::Error::other(why.to_owned()),
        };
        let resolver = "failed to lookup address information: ";
        let there = |why| name(&format!("{resolver}{why}")).problem().again;
        assert_eq!(there("Name or service not known"), Some(Again::Stays));
        assert_eq!(there("Temporary failure in name resolution"), None);
        assert_eq!(MeasureError::Interrupted.problem().again, None);
        let interface = "eth0".to_owned();
        let port = MeasureError::from(PortError::NoInterface { interface });
        assert_eq!(port.problem().again, Some(Again::StaysForObject));
    }

    #[test]
    fn a_peer_cannot_choose_any_exit_code() {
        for (said, want) in [
            (0, 5),
            (1, 1),
            (2, 2),
            (4, 4),
            (5, 5),
            (6, 5),
            (130, 5),
            (255, 5),
        ] {
            let error = MeasureError::PeerRefused {
                peer: SocketAddr::from(([127, 0, 0, 1], 1)),
                problem: Box::new(Problem::new("no", "it", "wait")),
                exit_code: said,
            };
            assert_eq!(error.exit_code(), want, "{said}");
        }
    }

    #[test]
    fn a_text_parts_where_no_bracket_is_open() {
        for (text, want) in [
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
            assert_eq!(two_parts(text), want);
        }
    }
}
