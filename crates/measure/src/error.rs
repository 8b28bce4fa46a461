//! What can go wrong with a run, told apart as far as a user can do something about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use linerate_dialect::control::ControlError;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use rustix::io::Errno;

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
    /// Nothing came back.
    #[error("{address}: no answer within {patience:?}")]
    Silent {
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
        problem: Problem,
        /// The exit code that it says fits.
        exit_code: u8,
    },
    /// The other end said no for now: it has no room.
    #[error("{peer}: {problem}")]
    PeerBusy {
        /// The other end.
        peer: SocketAddr,
        /// What it said.
        problem: Problem,
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
            Self::PortTaken { .. } | Self::LocalAddress { .. } | Self::System { .. } => {
                exit::FAILED
            }
            Self::UnknownName { .. }
            | Self::NoAddress { .. }
            | Self::Refused { .. }
            | Self::NoRoute { .. }
            | Self::Silent { .. }
            | Self::UdpBlocked { .. }
            | Self::Protocol { .. }
            | Self::PeerBusy { .. }
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
                | Self::Silent { .. }
                | Self::PeerBusy { .. }
        )
    }

    /// The situation, the object and the next step.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::UnknownName { host, source } => Problem::new(
                format!("no such host name ({source})"),
                host,
                "check the spelling, or give the address",
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
                    "start `linerate server -p {}` on that host, or wait for it with --retry 5s",
                    address.port()
                ),
            ),
            Self::NoRoute { address, source } => Problem::new(
                format!("no route to the host ({source})"),
                address.to_string(),
                format!("see `ip route get {}`", address.ip()),
            ),
            Self::Silent { address, patience } => Problem::new(
                format!("no answer within {} s", patience.as_secs()),
                address.to_string(),
                format!(
                    "check that the host is up and that TCP port {} is open on the way",
                    address.port()
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
            Self::Protocol { peer, source } => match source {
                ControlError::Version { .. } => Problem::new(
                    source.to_string(),
                    peer.to_string(),
                    "run the same version of linerate on both hosts",
                ),
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
            Self::Vanished { peer, how } => Problem::new(
                format!("the far end vanished: {how}"),
                peer.to_string(),
                "look at its process and at the network between, then run it again",
            ),
            Self::OptionRefused {
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

#[cfg(test)]
mod tests {
    use super::*;

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
                problem: Problem::new("no", "it", "wait"),
                exit_code: said,
            };
            assert_eq!(error.exit_code(), want, "{said}");
        }
    }
}
