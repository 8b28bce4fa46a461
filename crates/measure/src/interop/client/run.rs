//! Test with another tool's server, from its options to its record.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_dialect::control::Token;
use linerate_host::sys::fd_table;
use linerate_metric::event::What;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol};
use linerate_metric::record::{Doubt, Record};

use super::control_adapter::{self, Talk};
use super::probe_sockets::Asker;
use super::setup_context::{Context, foreign};
use super::{AUTO, Caller, caller, detect, refuse, report_command, ttcp_receiver};
use crate::coordinator::End;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_memory::Memory;
use crate::interop::record::PeerTest;
use crate::loss::{Network, Region, own_ledger};
use crate::netstack::StackThread;
use crate::session::client::Client;
use crate::session::cpu_load::Burn;
use crate::session::dial::{Family, Local};
use crate::session::local_stack::Ground;
use crate::session::setup::{self, AgreedFlow, Ready};
use crate::session::{descriptor_limit, pace};

/// Pause between attempts with `--retry`.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Name of the remote network stack in the plan, which is not known.
const UNKNOWN: &str = "unknown";

/// Runs a test; `Ok(None)` if the server turns out to be our own.
///
/// # Errors
/// Error that keeps the run from starting.
pub fn run(
    client: &Client,
    network: Option<&Arc<Network>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(What),
) -> Result<Option<(Record, Option<MeasureError>)>, MeasureError> {
    fd_table::raise_limit();
    let local = Local::parse(client.plan.bind.as_deref())?;
    let ground = Ground::of(&client.plan)?;
    let began = Instant::now();
    loop {
        let tried = converse(client, &ground, &local, network, stop, emit);
        match tried.map_err(|error| ground.explain(error)) {
            Err(error) if error.may_pass() && began.elapsed() < client.retry => {
                std::thread::sleep(RETRY_PAUSE);
                if stop.load(Relaxed) {
                    return Err(MeasureError::Interrupted);
                }
            }
            Err(MeasureError::Refused { address }) => return Err(refused(client, address)),
            done => return done.map(|done| done.map(|done| ground.explain_end(done))),
        }
    }
}

/// Returns the error for a closed port, with the server to start.
fn refused(client: &Client, address: SocketAddr) -> MeasureError {
    let dialect = client.plan.dialect.as_deref().unwrap_or(AUTO);
    foreign(
        address,
        format!(
            "connection refused, no program listens there: start the {dialect} server on that host, or name \
             its port with -p"
        ),
    )
}

/// Returns the client of the plan's protocol, and the remote address with its port.
fn whom(
    client: &Client,
    ground: &Ground,
    local: &Local,
    stop: &AtomicBool,
) -> Result<Option<(&'static Caller, SocketAddr)>, MeasureError> {
    if ttcp_receiver::is_wanted(&client.plan) {
        let ipv6 = client.family == Family::V6 || local.address.is_some_and(|ip| ip.is_ipv6());
        return Ok(Some((
            &ttcp_receiver::RECEIVER,
            ttcp_receiver::anybody(&client.plan, ipv6),
        )));
    }
    let mut far = ground.far(client, local, stop)?;
    let name = client.plan.dialect.as_deref().unwrap_or(AUTO);
    let found = if name == AUTO {
        let asker = Asker {
            local,
            stack: ground.stack().map(StackThread::handle),
            stop,
        };
        match detect::find(&client.plan, far, &asker)? {
            detect::Found::Own => return Ok(None),
            detect::Found::Foreign(caller, port) => {
                far.set_port(port);
                caller
            }
        }
    } else {
        caller(name).ok_or_else(|| MeasureError::Unsupported {
            option: format!("--peer {name}"),
            why: "no such protocol".to_owned(),
            next_step: "see `linerate throughput --help` for the list".to_owned(),
        })?
    };
    Ok(Some((found, far)))
}

/// Runs one attempt, from the connection to the record.
fn converse(
    client: &Client,
    ground: &Ground,
    local: &Local,
    network: Option<&Arc<Network>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(What),
) -> Result<Option<(Record, Option<MeasureError>)>, MeasureError> {
    let Some((caller, far)) = whom(client, ground, local, stop)? else {
        return Ok(None);
    };
    let mut plan = client.plan.clone();
    plan.dialect = Some(caller.name.to_owned());
    plan.port = far.port();
    if let Some(refusal) = refuse(caller, &plan) {
        return Err(refusal.error(caller.name));
    }
    if client.key.is_some() {
        return Err(MeasureError::Unsupported {
            option: format!("--key with --peer {}", caller.name),
            why: "other programs have no proof of a shared key".to_owned(),
            next_step: "leave it out".to_owned(),
        });
    }
    let command = report_command::of(&plan)?;
    let host = ground.host_facts(far.ip());
    descriptor_limit::check(&plan, Role::Client)?;
    let asked_wait = plan.wait.take().map(|wait| wait.near);
    plan.threads = None;
    let open_length = plan.protocol == Protocol::Udp && plan.payload_bytes == 0;
    if open_length {
        // Where the path carries more, buffers of other programs often do not.
        plan.payload_bytes = caller.datagram_bytes;
    }
    let refused = ground.settle(&mut plan, far, local)?;
    let unhonoured = match plan.flows(Direction::Send) {
        true => ground.check_pace(&plan, Part::Source, &host)?,
        false => None,
    };
    let _hold = setup::hold_idle(&plan)?;
    let _memory = setup::lock_memory(&plan)?;
    let disciplines = pace::disciplines(&host);
    let memory = Memory::before_flows();
    let context = Context {
        plan: &plan,
        far,
        local,
        stop,
        disciplines: &disciplines,
        stack: ground.stack().map(StackThread::handle),
    };
    let shares_cores = far.ip().to_canonical().is_loopback();
    let manner = ground.manner(&plan, asked_wait, shares_cores)?;
    let mut speech = (caller.open)(&context)?;
    let directions: BTreeMap<u32, Direction>;
    let flows: Vec<AgreedFlow> = {
        let called = speech.flows();
        directions = called
            .iter()
            .map(|flow| (flow.id, flow.direction))
            .collect();
        let agreed = called.into_iter().map(|flow| AgreedFlow {
            id: flow.id,
            direction: flow.direction,
            opening: flow.opening,
            options: context.options(flow.direction),
            token: Token([0; 16]),
            framing: flow.framing,
        });
        agreed.collect()
    };
    let far = speech.peer().unwrap_or(far);
    if speech.peer().is_some() {
        plan.host = far.ip().to_canonical().to_string();
        plan.port = far.port();
    }
    plan.near_wait = Some(manner.wait);
    plan.stack.far = UNKNOWN.to_owned();
    emit(What::Connected {
        peer: far.to_string(),
        agent: speech.agent(),
    });
    let plan = Arc::new(plan);
    let ready = setup::prepare(
        &plan,
        Role::Client,
        &manner,
        ground.stack(),
        flows,
        &mut || {
            if stop.load(Relaxed) {
                return Err(MeasureError::Interrupted);
            }
            speech.turn(linerate_host::sys::clock::now())
        },
    )?;
    emit(What::Started {
        plan: Box::new(Plan::clone(&plan)),
        wait: Ends::both(manner.wait),
        cpu: Ends {
            near: manner.cpus.clone(),
            far: Default::default(),
        },
        because: manner.because.clone().filter(|_| asked_wait.is_none()),
    });
    let doubts: Vec<Doubt> = refused.into_iter().chain(unhonoured).collect();
    for doubt in &doubts {
        emit(What::Doubted {
            doubt: doubt.clone(),
        });
    }
    let ipv6 = far.ip().to_canonical().is_ipv6();
    let ledger = own_ledger(Role::Client, &host, ipv6);
    let near = match ground.stack() {
        Some(stack) => stack.address_towards(far.ip()),
        None => near_address(far, local),
    };
    let region = near.and_then(|near| Region::open(network, near, far.ip()));
    let Ready {
        keeper,
        lanes,
        flows,
        done,
    } = ready;
    let shared = flows.iter();
    let shared = shared.map(|flow| (directions[&flow.id], Arc::clone(&flow.shared)));
    let mut talk = Talk::new(
        &mut *speech,
        &plan,
        far,
        shared.collect(),
        ground.stack(),
        stop,
    )?;
    let _burn = Burn::start(plan.round_trip.burn.near)
        .map_err(|error| MeasureError::system("new thread", error))?;
    let started = Timestamp::now();
    let mut ended = End {
        role: Role::Client,
        plan: Arc::clone(&plan),
        host,
        wire: &mut talk,
        gate: Arc::clone(keeper.gate()),
        lanes,
        flows,
        memory,
        done,
        stop,
        emit,
        doubts,
        watches_machine: true,
        notes: Vec::new(),
        ledger,
        limit: None,
    }
    .run();
    if talk.has_stopped() {
        let doubts = &mut ended.own.doubts;
        doubts.retain(|doubt| doubt.doubt != "stream-broken");
    }
    let broken = broken(far, &ended.own.doubts).filter(|_| !ended.interrupted);
    let broken =
        broken.or_else(|| unanswered(far, &plan, &ended.own).filter(|_| !ended.interrupted));
    let broken = broken.or_else(|| {
        let silent = ["ttcp", "discard"].contains(&caller.name);
        unheard(far, &ended.own).filter(|_| silent)
    });
    let mut test = PeerTest::new(caller.name, Plan::clone(&plan), started, ended.own);
    test.own.interrupted |= ended.interrupted;
    test.intervals = ended.intervals;
    test.intervals_left_out = ended.intervals_left_out;
    test.far = speech.far_report();
    test.acknowledged = speech.acknowledged();
    test.failure = ended.failure.or(broken);
    if let Some(said) = speech.complaint().filter(|_| test.failure.is_none()) {
        test.own.doubts.push(Doubt::new(
            "far-error",
            format!(
                "the server reported a failure ({said}); its figures, and those of this \
                 end, are what was moved all the same"
            ),
        ));
    }
    test.ipv6 = ipv6;
    test.region = region.map(Region::close);
    test.stamped = ended.stamped;
    let mut unreported = None;
    if let Some(command) = command.filter(|_| test.failure.is_none()) {
        let sent = report_command::Sent::of(&test.own);
        let mut awaited = |what| emit(What::Awaited { what });
        let asked = command.ask(stop, &mut awaited).and_then(|told| {
            let odd = told.odd.clone();
            command.merge(told, &plan, sent, &mut test.far)?;
            Ok(odd)
        });
        match asked {
            Ok(odd) => {
                let odd = odd.map(|odd| Doubt::new("far-report-odd", odd));
                test.own.doubts.extend(odd);
            }
            Err(why) => {
                let doubt = Doubt::new("far-report-failed", why.to_string());
                test.own.doubts.push(doubt);
                unreported = Some(MeasureError::FarReport(Box::new(why)));
            }
        }
    }
    let (record, failure) = test.record();
    Ok(Some((record, failure.or(unreported))))
}

/// Returns the local address of traffic to an address.
fn near_address(far: SocketAddr, local: &Local) -> Option<std::net::IpAddr> {
    if local.address.is_some() {
        return local.address;
    }
    let any = match far.is_ipv4() {
        true => SocketAddr::from(([0; 4], 0)),
        false => SocketAddr::from(([0_u16; 8], 0)),
    };
    // Connecting a UDP socket sends nothing.
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect(far).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns the error for a run in which no request got a response.
fn unanswered(
    far: SocketAddr,
    plan: &Plan,
    own: &linerate_dialect::control::Outcome,
) -> Option<MeasureError> {
    let mut flows = own.streams.iter();
    let none = flows.all(|flow| flow.stream.summary.round_trips.unwrap_or(0) == 0);
    (plan.kind == Kind::Latency && none).then(|| {
        foreign(
            far,
            "no response from there: start the server, name its port with -p, or its protocol with --peer",
        )
    })
}

/// Returns the error for datagrams to a closed port, reported by the remote kernel only.
fn unheard(far: SocketAddr, own: &linerate_dialect::control::Outcome) -> Option<MeasureError> {
    let senders = own
        .streams
        .iter()
        .filter_map(|flow| flow.stream.sender.as_ref());
    let refused = senders.filter_map(|sender| sender.refusals).max()?;
    (refused > 0).then(|| control_adapter::unheard(far))
}

/// Returns the error for a broken flow: the server rejected it or has gone.
fn broken(far: SocketAddr, doubts: &[Doubt]) -> Option<MeasureError> {
    let broken = doubts.iter().find(|doubt| doubt.doubt == "stream-broken")?;
    let text = &broken.why;
    Some(foreign(
        far,
        match text.contains("refused") {
            true => format!(
                "no program accepts payload there ({text}): start the server, or name its port with -p"
            ),
            false => format!("the server closed the flow ({text}): see its own messages"),
        },
    ))
}
