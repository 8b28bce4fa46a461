//! Network stack of the client's end of a test: the kernel's, or our user-space stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate_metric::event::Problem;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{
    Direction, Kind, LARGEST_DATAGRAM_BYTES, Plan, Protocol, Sched, UdpOffload, Wait,
};
use linerate_metric::record::{Doubt, Record};
use linerate_metric::stack::{Control, StackPlan};
use linerate_port::PortError;

use super::agreement::settle;
use super::client::Client;
use super::control_connection::Line;
use super::dial::Local;
use super::pace;
use super::setup;
use super::thread_plan::{Manner, may_run};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::netstack::services::Front;
use crate::netstack::{StackThread, gone, rejections};
use crate::record_assembly::{PEER_VANISHED, peer_vanished};

/// Network stack of the client's end.
pub enum Ground {
    Kernel,
    /// User-space stack with its options.
    Stack(Box<(StackThread, StackPlan)>),
}

/// Longest wait for a neighbour's link-layer address; the stack repeats its request once a second.
const NEIGHBOR_PATIENCE: Duration = Duration::from_secs(5);

/// Poll interval of that wait.
const LOOK_UP: Duration = Duration::from_millis(1);

/// Header bytes of IP and UDP.
const V4_HEADERS: u64 = 20 + 8;
const V6_HEADERS: u64 = 40 + 8;

impl Ground {
    /// Returns the stack of a plan; starts the user-space stack.
    ///
    /// # Errors
    /// Options that the stack does not support, and errors of its start.
    pub fn of(plan: &Plan) -> Result<Self, MeasureError> {
        let Some(near) = plan.near_stack.as_deref() else {
            return Ok(Self::Kernel);
        };
        rejections::check(plan, near)?;
        let bound = Local::parse(plan.bind.as_deref())?.address;
        let thread = StackThread::start(near, Vec::new(), Front::default())
            .map_err(|error| in_words_of(plan, error))?;
        if let Some(address) = bound.filter(|address| !thread.is_own(*address)) {
            return Err(MeasureError::OptionRefused {
                option: format!("-B {address} with --dev"),
                why: "the user-space stack has no such address".to_owned(),
                next_step: "use one of the addresses of --ip, or leave it out".to_owned(),
            });
        }
        Ok(Self::Stack(Box::new((thread, near.clone()))))
    }

    /// Returns the user-space stack, if there is one.
    pub fn stack(&self) -> Option<&StackThread> {
        match self {
            Self::Kernel => None,
            Self::Stack(stack) => Some(&stack.0),
        }
    }

    /// Returns the cause of an error where it is a failed port, or a port whose peer has left.
    pub fn explain(&self, error: MeasureError) -> MeasureError {
        let Some(stack) = self.stack() else {
            return error;
        };
        match stack.take_failure() {
            Some(failure) => failure.into(),
            None if is_silence(&error) && stack.is_left() => partner_gone(stack),
            None => error,
        }
    }

    /// Replaces the error that ended a run by its cause: over the user-space stack, a failed port
    /// looks as if the remote end had closed the connection.
    #[must_use]
    pub fn explain_end(
        &self,
        (mut record, failure): (Record, Option<MeasureError>),
    ) -> (Record, Option<MeasureError>) {
        let Some(error) = failure else {
            return (record, None);
        };
        let why = self.explain(error);
        if let MeasureError::Port(port) = &why {
            let mut doubts = record.validity.iter_mut();
            if let Some(doubt) = doubts.find(|doubt| doubt.doubt == PEER_VANISHED) {
                let Problem {
                    object, situation, ..
                } = port.problem();
                *doubt = peer_vanished(format!("{object}: {situation}"));
            }
        }
        (record, Some(why))
    }

    /// Opens the control connection.
    ///
    /// # Errors
    /// The reason why no address of the server accepts it.
    pub fn connect(
        &self,
        client: &Client,
        local: &Local,
        stop: &AtomicBool,
    ) -> Result<Line, MeasureError> {
        let (stack, near) = match self {
            Self::Stack(stack) if stack.1.control == Control::Stack => (&stack.0, &stack.1),
            _ => {
                let line = Line::of(client.connect(local, stop)?)?;
                let far = line.peer;
                if let Some(stack) = self.stack() {
                    may_go(stack, far)?;
                    self.find(far, stop)?;
                }
                return Ok(line);
            }
        };
        debug_assert!(!near.addresses.is_empty(), "--dev requires --ip");
        self.over_stack(stack, ways(stack, client.addresses(local)?), stop)
    }

    /// Opens a connection over the user-space stack to the first address that accepts one.
    fn over_stack(
        &self,
        stack: &StackThread,
        addresses: Vec<SocketAddr>,
        stop: &AtomicBool,
    ) -> Result<Line, MeasureError> {
        first_of(addresses, |far| {
            may_go(stack, far)?;
            self.find(far, stop)?;
            let (pair, (own, peer)) = (stack.handle().connect(far, &|| stop.load(Relaxed)))
                .map_err(|error| failed(far, error))?;
            Ok(Line::bridged(pair, own, peer))
        })
    }

    /// Returns the server's address: with the user-space stack, the first that is reachable and
    /// whose next hop replies on the link.
    ///
    /// # Errors
    /// An unknown name, no route, or no reply of the next hop; `Interrupted` once `stop` is set.
    pub fn far(
        &self,
        client: &Client,
        local: &Local,
        stop: &AtomicBool,
    ) -> Result<SocketAddr, MeasureError> {
        let addresses = client.addresses(local)?;
        let Some(stack) = self.stack() else {
            return Ok(addresses[0]);
        };
        first_of(ways(stack, addresses), |far| {
            may_go(stack, far)?;
            self.find(far, stop).map(|()| far)
        })
    }

    /// Waits until the user-space stack has resolved the next hop's link-layer address, so that no
    /// measurement contains the resolution.
    ///
    /// # Errors
    /// No route, or no reply of the next hop; `Interrupted` once `stop` is set.
    pub fn find(&self, far: SocketAddr, stop: &AtomicBool) -> Result<(), MeasureError> {
        let Some(stack) = self.stack() else {
            return Ok(());
        };
        let far = plainly(far);
        let began = Instant::now();
        loop {
            let looked = stack.handle().look(move |stack, _| {
                let found = stack.neighbor_towards(far.ip());
                stack.flush();
                found
            });
            let (hop, known) = match looked {
                Some(Ok(found)) => found,
                Some(Err(_)) => return Err(MeasureError::NoWay { address: far }),
                None => return Err(MeasureError::system("the stack's thread", gone())),
            };
            if known {
                return Ok(());
            }
            if stop.load(Relaxed) {
                return Err(MeasureError::Interrupted);
            }
            // A failed port may be the reason for the missing reply.
            if let Some(failure) = stack.take_failure() {
                return Err(failure.into());
            }
            if stack.is_left() {
                return Err(partner_gone(stack));
            }
            if began.elapsed() >= NEIGHBOR_PATIENCE {
                // The request reached no peer at all.
                if stack.is_alone() {
                    return Err(PortError::NoPartner {
                        port: stack.port_name(),
                        patience_s: NEIGHBOR_PATIENCE.as_secs(),
                    }
                    .into());
                }
                return Err(MeasureError::NoNeighbor {
                    address: far,
                    hop,
                    patience: NEIGHBOR_PATIENCE,
                });
            }
            std::thread::sleep(LOOK_UP);
        }
    }

    /// Returns the local address that the user-space stack uses towards `far`; `None` for the
    /// kernel.
    pub fn address_towards(&self, far: IpAddr) -> Option<IpAddr> {
        self.stack()?.address_towards(far)
    }

    /// Returns the facts of this host for the record.
    pub fn host_facts(&self, far: IpAddr) -> Host {
        let Some(stack) = self.stack() else {
            return setup::host_facts(Role::Client, far);
        };
        let mut host = linerate_host::snapshot::host();
        host.role = Some(Role::Client);
        host.stack = Some(Box::new(stack.facts().clone()));
        host
    }

    /// Checks and resolves what this end can decide before it contacts the server.
    ///
    /// # Errors
    /// The first option that this end does not support.
    pub fn settle(
        &self,
        plan: &mut Plan,
        far: SocketAddr,
        local: &Local,
    ) -> Result<Option<Doubt>, MeasureError> {
        let Some(stack) = self.stack() else {
            return settle(plan, far, local);
        };
        match plan.protocol {
            Protocol::Tcp => {
                if plan.congestion_control.is_none() && plan.flows(Direction::Send) {
                    plan.congestion_control = stack.config().get("tcp.congestion_control");
                }
            }
            Protocol::Udp => {
                let headers = match far.is_ipv4() {
                    true => V4_HEADERS,
                    false => V6_HEADERS,
                };
                let whole = u64::from(stack.config().mtu).saturating_sub(headers);
                if plan.payload_bytes == 0 {
                    plan.payload_bytes = whole.clamp(64, LARGEST_DATAGRAM_BYTES);
                }
                let sends = plan.kind != Kind::Throughput || plan.flows(Direction::Send);
                let cuts = stack.config().get("ip.fragmentation").as_deref() != Some("off");
                if sends && !cuts && plan.payload_bytes > whole {
                    return Err(MeasureError::OptionRefused {
                        option: format!(
                            "-l {} with --set ip.fragmentation=off",
                            plan.payload_bytes
                        ),
                        why: format!(
                            "packets of the stack hold {whole} B of it, and fragmentation is off"
                        ),
                        next_step: "send smaller datagrams, or leave ip.fragmentation on"
                            .to_owned(),
                    });
                }
                if plan.kind == Kind::Throughput {
                    // Datagrams are sent one by one, in bursts of calls.
                    plan.udp_offload = UdpOffload {
                        gso: Some(false),
                        gro: Some(false),
                        asked: true,
                    };
                }
            }
        }
        if let Some(count) = plan.pace.packets_per_second {
            plan.rate_bps = Some(count.saturating_mul(plan.payload_bytes).saturating_mul(8));
        }
        Ok(None)
    }

    /// Returns a warning when the requested rate cannot be kept.
    ///
    /// # Errors
    /// The pacing option that is not supported.
    pub fn check_pace(
        &self,
        plan: &Plan,
        part: Part,
        host: &Host,
    ) -> Result<Option<Doubt>, MeasureError> {
        match self {
            Self::Kernel => pace::check(plan, part, host),
            Self::Stack(_) => Ok(None),
        }
    }

    /// Chooses the wait mode, CPUs and number of threads of this end.
    ///
    /// # Errors
    /// The option that this end does not support.
    pub fn manner(
        &self,
        plan: &Plan,
        asked: Option<Wait>,
        shares_cores: bool,
    ) -> Result<Manner, MeasureError> {
        let Some(stack) = self.stack() else {
            return Manner::settle(plan, Role::Client, asked, shares_cores, 0);
        };
        may_run(plan, Role::Client)?;
        Ok(Manner {
            wait: stack.waits(),
            asked: true,
            cpus: plan.cpu.near.clone(),
            because: Some("the user-space stack polls its port".to_owned()),
            threads: 1,
            shared: plan.streams > 1,
        })
    }
}

/// Returns whether a lost peer of the port could cause the error: it reports only missing replies.
fn is_silence(error: &MeasureError) -> bool {
    matches!(
        error,
        MeasureError::Vanished { .. }
            | MeasureError::Silent { .. }
            | MeasureError::SilentUdp { .. }
            | MeasureError::UdpBlocked { .. }
            | MeasureError::NoNeighbor { .. }
    )
}

fn partner_gone(stack: &StackThread) -> MeasureError {
    let port = stack.port_name();
    PortError::PartnerGone { port }.into()
}

/// Converts an IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2) to IPv4: the packets are IPv4,
/// and only kernel sockets accept the mapped form.
fn plainly(far: SocketAddr) -> SocketAddr {
    match far.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, far.port()),
        IpAddr::V6(_) => far,
    }
}

/// Returns the addresses that the user-space stack has a route to, in their order; all of them when
/// it has none, so that the error can name one.
fn ways(stack: &StackThread, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<_> = addresses.into_iter().map(plainly).collect();
    if all.iter().any(|far| may_go(stack, *far).is_ok()) {
        all.retain(|far| may_go(stack, *far).is_ok());
    }
    all
}

/// Tries addresses in order until one succeeds.
///
/// # Errors
/// The error of the first address; at once for errors that do not depend on the address.
pub(super) fn first_of<R>(
    addresses: Vec<SocketAddr>,
    mut one: impl FnMut(SocketAddr) -> Result<R, MeasureError>,
) -> Result<R, MeasureError> {
    let mut first_error = None;
    for address in addresses {
        match one(address) {
            Err(
                error
                @ (MeasureError::Interrupted | MeasureError::Stack(_) | MeasureError::Port(_)),
            ) => return Err(error),
            Err(error) => drop(first_error.get_or_insert(error)),
            done => return done,
        }
    }
    Err(first_error.expect("a name without an address is an error before"))
}

/// Checks that the user-space stack can send to an address.
fn may_go(stack: &StackThread, far: SocketAddr) -> Result<(), MeasureError> {
    let address = far.ip();
    if stack.is_own(address) {
        return Err(MeasureError::OptionRefused {
            option: format!("--ip {address}"),
            why: "it is the server's address: the stack would connect to itself".to_owned(),
            next_step: "give the stack an address of its own in that network".to_owned(),
        });
    }
    match stack.reaches(address) {
        true => Ok(()),
        false => Err(MeasureError::NoWay { address: far }),
    }
}

/// Renames the option of an error: `--sched` and `--cpu` set the application thread's stack keys.
fn in_words_of(plan: &Plan, error: MeasureError) -> MeasureError {
    let MeasureError::OptionRefused {
        option,
        why,
        next_step,
    } = error
    else {
        return error;
    };
    let is_of = |key: &str| option.starts_with(&format!("--set threads.application.{key}="));
    let (option, next_step) = if is_of("sched") && plan.sched.near != Sched::Inherited {
        let next_step = "run as root, or leave it out".to_owned();
        (format!("--sched {}", plan.sched.near), next_step)
    } else if is_of("cpus") && !plan.cpu.near.0.is_empty() {
        let next_step = "name one that this process may run on, or leave it out".to_owned();
        (format!("--cpu {}", plan.cpu.near), next_step)
    } else {
        (option, next_step)
    };
    MeasureError::OptionRefused {
        option,
        why,
        next_step,
    }
}

/// Converts an error of a connect over the user-space stack to that of the kernel's.
pub fn failed(far: SocketAddr, error: io::Error) -> MeasureError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => MeasureError::Refused { address: far },
        io::ErrorKind::TimedOut => MeasureError::Silent {
            address: far,
            patience: Duration::from_secs(5),
        },
        io::ErrorKind::Interrupted => MeasureError::Interrupted,
        io::ErrorKind::NetworkUnreachable => MeasureError::NoRoute {
            address: far,
            source: error,
        },
        _ => MeasureError::system("a connection over the user-space stack", error),
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::Cpus;

    use super::*;

    #[test]
    fn what_a_thread_may_not_have_is_told_by_the_option_that_asked() {
        let key = |key: &str| MeasureError::OptionRefused {
            option: format!("--set {key}"),
            why: "not permitted".to_owned(),
            next_step: "leave it".to_owned(),
        };
        let mut plan = Plan::new(Kind::Latency, Protocol::Tcp, "10.0.0.1");
        let told = |plan: &Plan, name: &str| in_words_of(plan, key(name)).to_string();
        let by_keys = told(&plan, "threads.application.sched=fifo:9");
        assert!(
            by_keys.starts_with("--set threads.application.sched=fifo:9"),
            "{by_keys}"
        );
        plan.sched.near = Sched::Fifo(9);
        plan.cpu.near = Cpus(vec![7]);
        for (name, option) in [
            ("threads.application.sched=fifo:9", "--sched fifo:9"),
            ("threads.application.cpus=7", "--cpu 7"),
            (
                "threads.driver.sched=fifo:9",
                "--set threads.driver.sched=fifo:9",
            ),
        ] {
            let text = told(&plan, name);
            assert!(text.starts_with(option), "{text}");
        }
    }

    /// An interruption or a rejection is not replaced by a lost port peer.
    #[test]
    fn only_silence_is_told_by_who_left() {
        let address: SocketAddr = "10.0.0.2:5201".parse().unwrap();
        let patience = Duration::from_secs(1);
        let vanished = MeasureError::Vanished {
            peer: address,
            how: "silent for 14 s".to_owned(),
        };
        let refused = MeasureError::OptionRefused {
            option: "-w 1G".to_owned(),
            why: "it is too much".to_owned(),
            next_step: "ask for less".to_owned(),
        };
        for (error, silence) in [
            (vanished, true),
            (MeasureError::Silent { address, patience }, true),
            (MeasureError::SilentUdp { address, patience }, true),
            (MeasureError::Interrupted, false),
            (refused, false),
            (MeasureError::NoWay { address }, false),
        ] {
            assert_eq!(is_silence(&error), silence, "{error}");
        }
    }

    #[test]
    fn a_mapped_address_is_one_of_ipv4() {
        for (written, meant) in [
            ("[::ffff:10.9.0.1]:7", "10.9.0.1:7"),
            ("10.9.0.1:7", "10.9.0.1:7"),
            ("[fe80::1%3]:7", "[fe80::1%3]:7"),
        ] {
            let far: SocketAddr = written.parse().unwrap();
            assert_eq!(plainly(far), meant.parse().unwrap(), "{written}");
        }
    }

    /// Addresses of the server with these ports.
    fn addresses(ports: std::ops::Range<u16>) -> Vec<SocketAddr> {
        let at = |port| SocketAddr::from(([10, 9, 0, 1], port));
        ports.map(at).collect()
    }

    #[test]
    fn the_next_address_is_tried_and_the_first_one_told() {
        let refused = |address| MeasureError::Refused { address };
        for (takes, tried, told) in [(1, 1, Ok(1)), (3, 3, Ok(3)), (9, 4, Err(1))] {
            let mut asked = 0;
            let found = first_of(addresses(1..5), |far| {
                asked += 1;
                match far.port() == takes {
                    true => Ok(far.port()),
                    false => Err(refused(far)),
                }
            });
            assert_eq!(asked, tried, "{takes}");
            let found = found.map_err(|error| match error {
                MeasureError::Refused { address } => address.port(),
                other => panic!("{other}"),
            });
            assert_eq!(found, told);
        }
        // Neither Ctrl-C nor a failed port depends on the address.
        for stops in [
            || MeasureError::Interrupted,
            || linerate_stack::StackError::Stale.into(),
        ] {
            let mut asked = 0;
            let found: Result<(), _> = first_of(addresses(1..5), |_| {
                asked += 1;
                Err(stops())
            });
            assert!(found.is_err());
            assert_eq!(asked, 1);
        }
    }

    /// A name with several addresses, the first of which has no listener.
    #[test]
    fn the_control_connection_goes_to_the_address_that_takes_it() {
        let name = format!("ground-ways-{}", std::process::id());
        let start = |role: &str, host: u8, services| {
            let plan = StackPlan {
                device: format!("shm:{name},role={role}"),
                addresses: vec![format!("10.9.0.{host}/24")],
                profile: "default".to_owned(),
                ..StackPlan::default()
            };
            let thread = StackThread::start(&plan, services, Front::default());
            (thread.unwrap_or_else(|error| panic!("{error}")), plan)
        };
        let _far = start("server", 1, vec!["echo".parse().unwrap()]);
        let near = Ground::Stack(Box::new(start("client", 2, Vec::new())));
        let stack = near.stack().unwrap();
        let mut written = addresses(6..9);
        // In no network of the stack: skipped when another address is reachable.
        written.insert(0, "10.8.0.1:7".parse().unwrap());
        // Address of the stack itself.
        written.insert(0, "10.9.0.2:7".parse().unwrap());
        let line = near.over_stack(stack, ways(stack, written), &AtomicBool::new(false));
        let line = line.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(line.peer, "10.9.0.1:7".parse().unwrap());

        let refused = near.over_stack(stack, addresses(5..7), &AtomicBool::new(false));
        let Err(MeasureError::Refused { address }) = refused else {
            panic!("no listener on this port");
        };
        assert_eq!(address.port(), 5);
    }
}
