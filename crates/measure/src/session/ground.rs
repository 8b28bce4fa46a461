//! What the near end of a run stands on: the kernel's stack, or our own.

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
use super::manner::{Manner, may_run};
use super::pace;
use super::reach::Local;
use super::setup;
use super::wire::Line;
use crate::assemble::{PEER_VANISHED, peer_vanished};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::stack::services::Front;
use crate::stack::{StackThread, gone, refuse};

/// What the near end stands on.
pub enum Ground {
    /// The kernel.
    Kernel,
    /// Our own stack.
    Stack(Box<(StackThread, StackPlan)>),
}

/// How long a neighbour may take to say which Ethernet address it has: it is asked once a second.
const NEIGHBOR_PATIENCE: Duration = Duration::from_secs(5);

/// How often that is looked for.
const LOOK_UP: Duration = Duration::from_millis(1);

/// Headers of IP and UDP in front of a datagram.
const V4_HEADERS: u64 = 20 + 8;
const V6_HEADERS: u64 = 40 + 8;

impl Ground {
    /// The one that a plan asks for. A stack is started here.
    ///
    /// # Errors
    /// Why it cannot be, and what it does not have.
    pub fn of(plan: &Plan) -> Result<Self, MeasureError> {
        let Some(near) = plan.near_stack.as_deref() else {
            return Ok(Self::Kernel);
        };
        refuse::check(plan, near)?;
        let bound = Local::parse(plan.bind.as_deref())?.address;
        let thread = StackThread::start(near, Vec::new(), Front::default())
            .map_err(|error| in_words_of(plan, error))?;
        if let Some(address) = bound.filter(|address| !thread.is_own(*address)) {
            return Err(MeasureError::OptionRefused {
                option: format!("-B {address} with --dev"),
                why: "our stack has no such address".to_owned(),
                next_step: "name one of those that --ip gives it, or leave it out".to_owned(),
            });
        }
        Ok(Self::Stack(Box::new((thread, near.clone()))))
    }

    /// Our stack, where it is the ground.
    pub fn stack(&self) -> Option<&StackThread> {
        match self {
            Self::Kernel => None,
            Self::Stack(stack) => Some(&stack.0),
        }
    }

    /// What an error comes from, where the port broke, or nobody is at its other end any more.
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

    /// The same of what ended a run before its time: to who talks over the stack a port that broke looks as if the
    /// far end had closed.
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
    /// Why it does not stand.
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
        debug_assert!(
            !near.addresses.is_empty(),
            "an address is asked for with the port"
        );
        self.over_stack(stack, ways(stack, client.addresses(local)?), stop)
    }

    /// A connection over our stack to the first of these that takes one.
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

    /// The far end's address: with our stack the first of those that it has a way to whose neighbour on the
    /// link answers.
    ///
    /// # Errors
    /// When the name has none, there is no way, or nobody answers; `Interrupted` once `stop` is set.
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

    /// Waits until our stack knows who on its link takes what is for the far end: before anything is
    /// measured.
    ///
    /// # Errors
    /// Who does not answer; `Interrupted` once `stop` is set.
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
            // Why nothing comes may be the port.
            if let Some(failure) = stack.take_failure() {
                return Err(failure.into());
            }
            if stack.is_left() {
                return Err(partner_gone(stack));
            }
            if began.elapsed() >= NEIGHBOR_PATIENCE {
                // Nobody at all got the question.
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

    /// The local address of payload to another one, where our stack decides that.
    pub fn address_towards(&self, far: IpAddr) -> Option<IpAddr> {
        self.stack()?.address_towards(far)
    }

    /// This host as the record has it.
    pub fn host_facts(&self, far: IpAddr) -> Host {
        let Some(stack) = self.stack() else {
            return setup::host_facts(Role::Client, far);
        };
        let mut host = linerate_host::snapshot::host();
        host.role = Some(Role::Client);
        host.stack = Some(Box::new(stack.facts().clone()));
        host
    }

    /// Settles what this end can know before it asks.
    ///
    /// # Errors
    /// What it does not have.
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
                        why: format!("our stack's packets hold {whole} B of it, and it cuts none"),
                        next_step: "send no more, or leave ip.fragmentation on".to_owned(),
                    });
                }
                if plan.kind == Kind::Throughput {
                    // Each datagram is sent by itself, and in bursts.
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

    /// What keeps a rate from being kept.
    ///
    /// # Errors
    /// What is not to be had.
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

    /// How this end waits, on how many threads.
    ///
    /// # Errors
    /// What it may not.
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
            because: Some("our stack polls its port".to_owned()),
            threads: 1,
            shared: plan.streams > 1,
        })
    }
}

/// Whether it may be no more than that nobody is there: it says that nothing came, or no more.
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

/// An address of IPv4 that is written as one of IPv6 (RFC 4291, section 2.5.5.2), as what it is: such packets
/// are of IPv4 alone, and only the kernel's sockets take the long form for it.
fn plainly(far: SocketAddr) -> SocketAddr {
    match far.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, far.port()),
        IpAddr::V6(_) => far,
    }
}

/// Those of a name's addresses that our stack can send to, in their order; all of them where there is none, so
/// that one can be told of.
fn ways(stack: &StackThread, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<_> = addresses.into_iter().map(plainly).collect();
    if all.iter().any(|far| may_go(stack, *far).is_ok()) {
        all.retain(|far| may_go(stack, *far).is_ok());
    }
    all
}

/// Tries one address after the other until one does; what is wrong with the first is what is told.
///
/// # Errors
/// Why the first one did not do; what is no address's fault, at once.
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

/// Whether our stack can send there.
fn may_go(stack: &StackThread, far: SocketAddr) -> Result<(), MeasureError> {
    let address = far.ip();
    if stack.is_own(address) {
        return Err(MeasureError::OptionRefused {
            option: format!("--ip {address}"),
            why: "it is the far end's address: the stack would ask itself".to_owned(),
            next_step: "give the stack an address of its own in that network".to_owned(),
        });
    }
    match stack.reaches(address) {
        true => Ok(()),
        false => Err(MeasureError::NoWay { address: far }),
    }
}

/// What the application's thread may not have, by the option that asked for it: that sets the thread's keys.
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

/// Why a connection of the stack does not stand, in the words of the kernel's.
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
        _ => MeasureError::system("a connection over our stack", error),
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

    /// Who interrupts a run, or is refused something, is not told that somebody has left.
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

    /// These ports of the far end.
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
        // Neither a Ctrl-C nor a port that broke is an address's fault.
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

    /// As where a name has several, and nobody listens at the first.
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
        // No network of the stack's: left out, where another one is.
        written.insert(0, "10.8.0.1:7".parse().unwrap());
        // Its own.
        written.insert(0, "10.9.0.2:7".parse().unwrap());
        let line = near.over_stack(stack, ways(stack, written), &AtomicBool::new(false));
        let line = line.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(line.peer, "10.9.0.1:7".parse().unwrap());

        let refused = near.over_stack(stack, addresses(5..7), &AtomicBool::new(false));
        let Err(MeasureError::Refused { address }) = refused else {
            panic!("nobody listens there");
        };
        assert_eq!(address.port(), 5);
    }
}
