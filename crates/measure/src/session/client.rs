//! The end that asks for a run.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_dialect::control::{Accept, Bye, Connection, Frame, Propose, Start};
use linerate_metric::event::What;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Wait};
use linerate_metric::record::{Doubt, Record};
use socket2::{Domain, SockAddr, Socket, Type};

use super::hello;
use super::setup::{self, AgreedFlow, Manner, flow_options, part};
use super::wire::Wire;
use crate::assemble::{Report, assemble};
use crate::end::End;
use crate::error::MeasureError;
use crate::lane::Opening;

/// How long a connection may take: two retransmitted SYNs (1 s + 2 s) and some.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between tries with `--retry`.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Address families that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Whichever the name has, in the resolver's order.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Family {
    /// Whether an address is of it.
    #[must_use]
    pub fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Any => "IPv4 or IPv6",
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// A run to be asked for.
#[derive(Clone, Debug)]
pub struct Client {
    /// What to run; what is open in it is settled on the way.
    pub plan: Plan,
    /// Address families that may be used.
    pub family: Family,
    /// How long to try again while nobody answers.
    pub retry: Duration,
}

/// A local address and interface, `ADDRESS[%IF]` or `%IF`.
#[derive(Clone, Debug, Default)]
struct Local {
    address: Option<IpAddr>,
    interface: Option<String>,
}

impl Local {
    fn parse(text: Option<&str>) -> Result<Self, MeasureError> {
        let Some(text) = text else {
            return Ok(Self::default());
        };
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface.to_owned())),
            None => (text, None),
        };
        let address = if address.is_empty() {
            None
        } else {
            let address = address.parse().map_err(|_| MeasureError::LocalAddress {
                address: text.to_owned(),
                source: io::Error::new(io::ErrorKind::InvalidInput, "not an IP address"),
            })?;
            Some(address)
        };
        Ok(Self { address, interface })
    }
}

impl Client {
    /// Runs it and gives its record.
    ///
    /// A run that the far end left half-way gives its record too, with the failure beside it.
    ///
    /// # Errors
    /// Whatever keeps the run from starting.
    pub fn run(
        &self,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(What),
    ) -> Result<(Record, Option<MeasureError>), MeasureError> {
        let local = Local::parse(self.plan.bind.as_deref())?;
        let stream = self.connect(&local, stop)?;
        let system = |error| MeasureError::system("control connection", error);
        let (near, far) = (
            stream.local_addr().map_err(system)?,
            stream.peer_addr().map_err(system)?,
        );
        let host = setup::host_facts(Role::Client, far.ip());
        let connection = Connection::client(hello(host.boot_id.clone()))
            .map_err(|source| MeasureError::Protocol { peer: far, source })?;
        let mut wire = Wire::new(stream, connection)?;
        let Frame::Hello(greeting) = wire.expect()? else {
            return Err(confused(far, "it did not greet"));
        };
        let shares_cores = greeting.boot_id.is_some() && greeting.boot_id == host.boot_id;
        emit(What::Connected {
            peer: wire.peer().to_string(),
            agent: greeting.agent,
        });

        let mut plan = self.plan.clone();
        let refused = settle(&mut plan, far)?;
        let _hold = setup::hold_idle(&plan)?;
        wire.say(Propose {
            plan: plan.clone(),
            host: host.clone(),
        })?;
        let accept = match wire.expect()? {
            Frame::Accept(accept) => *accept,
            Frame::Refuse(refuse) => {
                return Err(MeasureError::PeerRefused {
                    peer: far,
                    problem: refuse.problem,
                    exit_code: refuse.exit_code,
                });
            }
            _ => return Err(confused(far, "it neither accepted nor refused")),
        };
        let asked = self.plan.wait.as_ref().map(|wait| wait.near);
        let mut plan = accept.plan.clone();
        let manner = Manner::settle(
            &plan,
            Role::Client,
            asked,
            plan.cpu.near.clone(),
            shares_cores,
        )?;
        plan.wait = Some(Ends {
            near: manner.wait,
            far: accept.wait,
        });
        let because = self.because(&manner, &accept);
        let plan = Arc::new(plan);
        let flows = agreed(&plan, &accept, near, far, &local);
        let ready = match setup::prepare(&plan, Role::Client, &manner, flows) {
            Ok(ready) => ready,
            Err(error) => {
                let _ = wire.say(Bye {});
                return Err(error);
            }
        };
        match wire.expect() {
            Ok(Frame::Attached(_)) => {}
            Ok(Frame::Refuse(refuse)) => {
                ready.gate.cancel();
                return Err(MeasureError::PeerRefused {
                    peer: far,
                    problem: refuse.problem,
                    exit_code: refuse.exit_code,
                });
            }
            other => {
                ready.gate.cancel();
                other?;
                return Err(confused(far, "it was not ready"));
            }
        }
        emit(What::Started {
            plan: Box::new(Plan::clone(&plan)),
            wait: Ends {
                near: manner.wait,
                far: accept.wait,
            },
            cpu: Ends {
                near: manner.cpus.clone(),
                far: accept.cpus.clone(),
            },
            because,
        });
        let mut doubts = accept.doubts.clone();
        doubts.extend(refused);
        doubts.extend(doubts_before(&plan, shares_cores));
        for doubt in &doubts {
            emit(What::Doubted {
                doubt: doubt.clone(),
            });
        }
        let started = Timestamp::now();
        let began = wire.say(Start {});
        if let Err(error) = began {
            ready.gate.cancel();
            return Err(error);
        }
        let ended = End {
            role: Role::Client,
            plan: Arc::clone(&plan),
            host,
            wire: &mut wire,
            gate: ready.gate,
            lanes: ready.lanes,
            flows: ready.flows,
            done: ready.done,
            stop,
            emit,
            doubts,
            watches_machine: true,
        }
        .run();
        if ended.failure.is_none() {
            // The record is complete; whether the far end hears the farewell changes nothing.
            let _ = wire.say(Bye {});
        }
        wire.close(Duration::from_secs(1));
        Ok(assemble(Report {
            plan: Plan::clone(&plan),
            started,
            role: Role::Client,
            ended,
        }))
    }

    /// Why the ends wait as they do, when nobody said how.
    fn because(&self, manner: &Manner, accept: &Accept) -> Option<String> {
        if self.plan.wait.is_some() {
            return None;
        }
        let near_chose = self.plan.kind == Kind::Latency || self.plan.flows(Direction::Receive);
        if near_chose {
            return manner.because.clone();
        }
        accept.because.clone()
    }

    fn connect(&self, local: &Local, stop: &AtomicBool) -> Result<TcpStream, MeasureError> {
        let began = Instant::now();
        loop {
            match self.connect_once(local) {
                Err(error) if error.may_pass() && began.elapsed() < self.retry => {
                    if stop.load(Relaxed) {
                        return Err(error);
                    }
                    std::thread::sleep(RETRY_PAUSE);
                }
                done => return done,
            }
        }
    }

    fn connect_once(&self, local: &Local) -> Result<TcpStream, MeasureError> {
        let host = self.plan.host.as_str();
        // Brackets as in URLs are taken off: [::1] is how people write it beside a port.
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let all: Vec<SocketAddr> = (name, self.plan.port)
            .to_socket_addrs()
            .map_err(|source| MeasureError::UnknownName {
                host: host.to_owned(),
                source,
            })?
            .collect();
        let fits = |address: &SocketAddr| {
            self.family.allows(address.ip())
                && local
                    .address
                    .is_none_or(|local| local.is_ipv4() == address.is_ipv4())
        };
        let mut first_error = None;
        for address in all.into_iter().filter(fits) {
            match open(address, local) {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| MeasureError::NoAddress {
            host: host.to_owned(),
            family: match local.address {
                Some(address) if address.is_ipv4() => Family::V4.name(),
                Some(_) => Family::V6.name(),
                None => self.family.name(),
            },
        }))
    }
}

fn open(address: SocketAddr, local: &Local) -> Result<TcpStream, MeasureError> {
    let system = |error| MeasureError::system("new socket", error);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(system)?;
    if let Some(interface) = &local.interface {
        socket
            .bind_device(Some(interface.as_bytes()))
            .map_err(|source| MeasureError::LocalAddress {
                address: format!("%{interface}"),
                source,
            })?;
    }
    if let Some(ip) = local.address {
        socket
            .bind(&SockAddr::from(SocketAddr::new(ip, 0)))
            .map_err(|source| MeasureError::LocalAddress {
                address: ip.to_string(),
                source,
            })?;
    }
    match socket.connect_timeout(&SockAddr::from(address), CONNECT_PATIENCE) {
        Ok(()) => Ok(socket.into()),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused => MeasureError::Refused { address },
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => MeasureError::Silent {
                address,
                patience: CONNECT_PATIENCE,
            },
            _ => MeasureError::NoRoute {
                address,
                source: error,
            },
        }),
    }
}

/// Settles what this end can know before it asks.
fn settle(plan: &mut Plan, far: SocketAddr) -> Result<Option<Doubt>, MeasureError> {
    match plan.protocol {
        Protocol::Tcp => {
            setup::check_congestion_control(plan)?;
            if plan.congestion_control.is_none() && plan.flows(Direction::Send) {
                plan.congestion_control = setup::default_congestion_control();
            }
        }
        Protocol::Udp => {
            let whole = whole_packet_payload(far)?;
            if plan.payload_bytes == 0 {
                plan.payload_bytes = whole;
            }
            // Paced datagrams leave one by one; one above the MTU is cut by IP, not by GSO.
            let fits = plan.rate_bps.is_none() && plan.payload_bytes <= whole;
            let offload = &mut plan.udp_offload;
            if fits && !offload.asked {
                offload.gso.get_or_insert(true);
                offload.gro.get_or_insert(true);
            }
            if plan.payload_bytes > whole && offload.gso == Some(true) {
                return Err(MeasureError::OptionRefused {
                    option: "--offload gso".to_owned(),
                    why: format!(
                        "a datagram of {} B does not fit one packet on this path",
                        plan.payload_bytes
                    ),
                    next_step: format!("use -l {whole} or less, or leave gso out"),
                });
            }
            offload.gso.get_or_insert(false);
            offload.gro.get_or_insert(false);
        }
    }
    setup::settle_udp_offload(plan, Role::Client)
}

/// The largest UDP payload that one packet on the way to `far` holds.
fn whole_packet_payload(far: SocketAddr) -> Result<u64, MeasureError> {
    /// IPv4 header without options, and UDP header.
    const V4_HEADERS: u32 = 20 + 8;
    /// IPv6 header without extensions, and UDP header.
    const V6_HEADERS: u32 = 40 + 8;
    /// Largest UDP payload over IPv4 (RFC 768: a 16-bit length).
    const LARGEST: u32 = 65_507;
    let system = |error| MeasureError::system("path MTU", error);
    let socket = Socket::new(Domain::for_address(far), Type::DGRAM, None).map_err(system)?;
    // Connecting a UDP socket sends nothing.
    socket.connect(&SockAddr::from(far)).map_err(system)?;
    let is_v6 = far.is_ipv6();
    let mtu = linerate_host::sys::socket::path_mtu(&socket, is_v6).map_err(system)?;
    let headers = if is_v6 { V6_HEADERS } else { V4_HEADERS };
    Ok(u64::from(mtu.saturating_sub(headers).clamp(64, LARGEST)))
}

/// The flows in the order in which the far end granted them.
fn agreed(
    plan: &Plan,
    accept: &Accept,
    near: SocketAddr,
    far: SocketAddr,
    local: &Local,
) -> Vec<AgreedFlow> {
    let flow = |(number, grant): (usize, &linerate_dialect::control::FlowGrant)| {
        let mut options = flow_options(plan, part(Role::Client, grant.direction));
        options.interface.clone_from(&local.interface);
        let port = plan
            .source_port
            .map_or(0, |port| port.wrapping_add(number as u16));
        if local.address.is_some() || port != 0 {
            let address = local.address.unwrap_or(if near.is_ipv4() {
                IpAddr::from([0; 4])
            } else {
                IpAddr::from([0; 16])
            });
            options.local = Some(SocketAddr::new(address, port));
        }
        AgreedFlow {
            id: grant.id,
            direction: grant.direction,
            opening: Opening::Connect {
                remote: far,
                token: grant.token,
            },
            options,
        }
    };
    accept.flows.iter().enumerate().map(flow).collect()
}

/// What is known to speak against the figures before anything is measured.
fn doubts_before(plan: &Plan, shares_cores: bool) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let usable = linerate_host::sys::cpu::usable().map_or(1, |cpus| cpus.len());
    let busy = 2 * plan.streams as usize * plan.directions.len();
    if shares_cores && busy > usable && plan.kind == Kind::Throughput {
        doubts.push(Doubt::new(
            "shared-cores",
            format!("both ends run on this machine: {busy} busy threads on {usable} cores"),
        ));
    }
    let spins = |wait: Wait| wait == Wait::Spin;
    let throttled = plan.wait.as_ref().is_some_and(|wait| {
        (plan.sched.near.is_real_time() && spins(wait.near))
            || (plan.sched.far.is_real_time() && spins(wait.far))
    });
    if throttled {
        doubts.push(Doubt::new(
            "rt-throttle",
            "a real-time thread that spins meets the kernel's throttle (kernel.sched_rt_runtime_us): \
             holes of some 50 ms a second; use --wait block with it",
        ));
    }
    doubts
}

fn confused(peer: SocketAddr, how: &str) -> MeasureError {
    MeasureError::Vanished {
        peer,
        how: format!("the conversation made no sense: {how}"),
    }
}
