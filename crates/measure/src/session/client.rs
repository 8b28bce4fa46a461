//! The end that asks for a run.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_dialect::control::{Accept, Bye, Connection, Frame, Propose, Refuse, Start};
use linerate_host::sys::wait::{Ready as Readiness, poll};
use linerate_metric::event::What;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Wait};
use linerate_metric::record::{Doubt, Record};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

use super::limits::raise_open_files;
use super::setup::{self, AgreedFlow, Manner, Ready, flow_options, part};
use super::wire::Wire;
use super::{boot_id, hello};
use crate::assemble::{Report, assemble};
use crate::end::End;
use crate::error::MeasureError;
use crate::lane::Opening;

/// How long a connection may take: two retransmitted SYNs (1 s + 2 s) and some.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Longest name that is taken over from the far end, in bytes.
const NAME_LIMIT: usize = 256;

/// Pause between tries with `--retry`, and how soon Ctrl-C is noticed.
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

    /// Binds a socket to it, whatever its port.
    fn bind(&self, socket: &Socket) -> Result<(), MeasureError> {
        if let Some(interface) = &self.interface {
            socket
                .bind_device(Some(interface.as_bytes()))
                .map_err(|source| MeasureError::LocalAddress {
                    address: format!("%{interface}"),
                    source,
                })?;
        }
        if let Some(ip) = self.address {
            socket
                .bind(&SockAddr::from(SocketAddr::new(ip, 0)))
                .map_err(|source| MeasureError::LocalAddress {
                    address: ip.to_string(),
                    source,
                })?;
        }
        Ok(())
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
        raise_open_files();
        let local = Local::parse(self.plan.bind.as_deref())?;
        let began = Instant::now();
        loop {
            match self.converse(&local, stop, emit) {
                Err(error) if error.may_pass() && began.elapsed() < self.retry => {
                    std::thread::sleep(RETRY_PAUSE);
                    if stop.load(Relaxed) {
                        return Err(MeasureError::Interrupted);
                    }
                }
                done => return done,
            }
        }
    }

    /// One try, from connecting to the record.
    fn converse(
        &self,
        local: &Local,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(What),
    ) -> Result<(Record, Option<MeasureError>), MeasureError> {
        let stream = self.connect(local, stop)?;
        let system = |error| MeasureError::system("control connection", error);
        let (near, far) = (
            stream.local_addr().map_err(system)?,
            stream.peer_addr().map_err(system)?,
        );
        let connection = Connection::client(hello(boot_id()))
            .map_err(|source| MeasureError::Protocol { peer: far, source })?;
        let mut wire = Wire::new(stream, connection)?;
        let Frame::Hello(greeting) = wire.expect(stop)? else {
            return Err(confused(far, "it did not greet"));
        };
        let host = setup::host_facts(Role::Client, far.ip());
        let shares_cores = greeting.boot_id.is_some() && greeting.boot_id == host.boot_id;
        let mut plan = self.plan.clone();
        let refused = settle(&mut plan, far, local)?;
        let _hold = setup::hold_idle(&plan)?;
        wire.say(Propose {
            plan: plan.clone(),
            host: host.clone(),
        })?;
        let accept = match wire.expect(stop)? {
            Frame::Accept(accept) => *accept,
            Frame::Refuse(refuse) => return Err(refused_by(far, refuse)),
            _ => return Err(confused(far, "it neither accepted nor refused")),
        };
        take_over(&mut plan, &accept).map_err(|how| confused(far, how))?;
        emit(What::Connected {
            peer: wire.peer().to_string(),
            agent: greeting.agent,
        });
        let asked = self.plan.wait.as_ref().map(|wait| wait.near);
        let manner = Manner::settle(&plan, Role::Client, asked, shares_cores, 0)?;
        plan.wait = Some(Ends {
            near: manner.wait,
            far: accept.wait,
        });
        let because = self.because(&manner, &accept);
        let plan = Arc::new(plan);
        let flows = agreed(&plan, &accept, near, far, local);
        let mut attached = false;
        let ready = setup::prepare(&plan, Role::Client, &manner, flows, &mut || {
            if stop.load(Relaxed) {
                return Err(MeasureError::Interrupted);
            }
            match wire.hear()? {
                None | Some(Frame::Heartbeat(_)) => {}
                // The far end has its last flow before we have its answer.
                Some(Frame::Attached(_)) => attached = true,
                Some(Frame::Refuse(refuse)) => return Err(refused_by(far, refuse)),
                Some(_) => return Err(confused(far, "it went ahead")),
            }
            wire.beat()?;
            wire.flush()
        });
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                let _ = wire.say(Bye {});
                return Err(error);
            }
        };
        if !attached {
            match wire.expect(stop) {
                Ok(Frame::Attached(_)) => {}
                Ok(Frame::Refuse(refuse)) => return Err(refused_by(far, refuse)),
                Ok(_) => return Err(confused(far, "it was not ready")),
                Err(error) => {
                    let _ = wire.say(Bye {});
                    return Err(error);
                }
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
        wire.say(Start {
            wait: Some(manner.wait),
            cpus: Some(manner.cpus.clone()),
        })?;
        let Ready {
            keeper,
            lanes,
            flows,
            done,
        } = ready;
        let ended = End {
            role: Role::Client,
            plan: Arc::clone(&plan),
            host,
            wire: &mut wire,
            gate: Arc::clone(keeper.gate()),
            lanes,
            flows,
            done,
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
            match open(address, local, stop) {
                Ok(stream) => return Ok(stream),
                Err(MeasureError::Interrupted) => return Err(MeasureError::Interrupted),
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

/// Waits for a connection in slices, so that Ctrl-C ends it.
fn open(address: SocketAddr, local: &Local, stop: &AtomicBool) -> Result<TcpStream, MeasureError> {
    let system = |error| MeasureError::system("new socket", error);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(system)?;
    local.bind(&socket)?;
    socket.set_nonblocking(true).map_err(system)?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused => MeasureError::Refused { address },
        io::ErrorKind::TimedOut => MeasureError::Silent {
            address,
            patience: CONNECT_PATIENCE,
        },
        _ => MeasureError::NoRoute {
            address,
            source: error,
        },
    };
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => return Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(failed(error)),
    }
    let until = Instant::now() + CONNECT_PATIENCE;
    while !poll(&socket, Readiness::Send, RETRY_PAUSE).map_err(system)? {
        if stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        if Instant::now() >= until {
            return Err(MeasureError::Silent {
                address,
                patience: CONNECT_PATIENCE,
            });
        }
    }
    match socket.take_error() {
        Ok(None) => Ok(socket.into()),
        Ok(Some(error)) | Err(error) => Err(failed(error)),
    }
}

/// Settles what this end can know before it asks.
fn settle(plan: &mut Plan, far: SocketAddr, local: &Local) -> Result<Option<Doubt>, MeasureError> {
    setup::check_socket_options(plan)?;
    match plan.protocol {
        Protocol::Tcp => {
            setup::check_congestion_control(plan, Role::Client)?;
            if plan.congestion_control.is_none() && plan.flows(Direction::Send) {
                plan.congestion_control = setup::default_congestion_control();
            }
        }
        Protocol::Udp => {
            let whole = whole_packet_payload(far, local)?;
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
fn whole_packet_payload(far: SocketAddr, local: &Local) -> Result<u64, MeasureError> {
    /// IPv4 header without options, and UDP header.
    const V4_HEADERS: u32 = 20 + 8;
    /// IPv6 header without extensions, and UDP header.
    const V6_HEADERS: u32 = 40 + 8;
    /// Largest UDP payload over IPv4 (RFC 768: a 16-bit length).
    const LARGEST: u32 = 65_507;
    let system = |error| MeasureError::system("path MTU", error);
    let socket = Socket::new(Domain::for_address(far), Type::DGRAM, None).map_err(system)?;
    local.bind(&socket)?;
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

/// Takes what the far end settled into the plan, and nothing else: a server does not decide what
/// this end does.
fn take_over(plan: &mut Plan, accept: &Accept) -> Result<(), &'static str> {
    let theirs = &accept.plan;
    let mut expected = plan.clone();
    if expected.congestion_control.is_none() {
        let name = theirs.congestion_control.clone();
        expected.congestion_control = name.filter(|name| name.len() <= NAME_LIMIT);
    }
    for (ours, theirs) in [
        (&mut expected.udp_offload.gso, theirs.udp_offload.gso),
        (&mut expected.udp_offload.gro, theirs.udp_offload.gro),
    ] {
        // It may do without, not with what was not wanted.
        if *ours == Some(true) && theirs == Some(false) {
            *ours = theirs;
        }
    }
    if expected != *theirs {
        return Err("it answered with another plan");
    }
    if plan
        .wait
        .as_ref()
        .is_some_and(|asked| asked.far != accept.wait)
    {
        return Err("it waits in another way than it was asked to");
    }
    let directions =
        (plan.directions.iter()).flat_map(|&direction| (0..plan.streams).map(move |_| direction));
    let wanted = (1u32..).zip(directions);
    let granted = accept.flows.iter().map(|grant| (grant.id, grant.direction));
    if !wanted.eq(granted) {
        return Err("it granted other flows");
    }
    *plan = expected;
    Ok(())
}

fn refused_by(peer: SocketAddr, refuse: Refuse) -> MeasureError {
    let Refuse {
        problem,
        exit_code,
        may_pass,
    } = refuse;
    if may_pass {
        MeasureError::PeerBusy { peer, problem }
    } else {
        MeasureError::PeerRefused {
            peer,
            problem,
            exit_code,
        }
    }
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
