//! Client: requests a test from a server and runs its end.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_dialect::control::clock::{Offset, Sample};
use linerate_dialect::control::{
    Accept, Bye, ClockQuestion, Connection, Frame, Key, Propose, Refuse, Start,
};
use linerate_host::sys::{clock, fd_table};
use linerate_metric::event::What;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Ends, Kind, Plan};
use linerate_metric::record::{Doubt, Record};
use linerate_metric::stack::Control;

use super::agreement::{agreed, take_over};
use super::client_doubts::doubts_before;
use super::control_connection::{FAR_PATIENCE, Wire};
use super::cpu_load::Burn;
use super::descriptor_limit;
use super::dial::{Family, Local, open};
use super::local_stack::{Ground, first_of};
use super::pace;
use super::random;
use super::setup::{self, Ready};
use super::thread_plan::{Manner, may_run};
use super::{boot_id, hello};
use crate::coordinator::End;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_memory::Memory;
use crate::interop::client;
use crate::loss::{Network, Region, own_ledger};
use crate::record_assembly::{Report, assemble};
use crate::timestamps::Clocks;

/// Pause between attempts with `--retry`, and the delay until Ctrl-C is noticed.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Test to request from a server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Requested plan; open values are resolved during the negotiation.
    pub plan: Plan,
    pub family: Family,
    /// Time during which failed attempts are repeated.
    pub retry: Duration,
    /// Shared secret that both ends prove to each other.
    pub key: Option<Key>,
}

impl Client {
    /// Runs the test and returns its record.
    ///
    /// A test that the server aborted returns its record too, together with the failure.
    ///
    /// # Errors
    /// The reason why the test did not start.
    pub fn run(
        &self,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(What),
    ) -> Result<(Record, Option<MeasureError>), MeasureError> {
        self.run_within(None, stop, emit)
    }

    /// Runs the test in a lab network, whose counters account for every lost datagram.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub fn run_within(
        &self,
        network: Option<&Arc<Network>>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(What),
    ) -> Result<(Record, Option<MeasureError>), MeasureError> {
        // Checked first, so that an option this machine lacks is reported here and not by the
        // server.
        may_run(&self.plan, Role::Client)?;
        if self.plan.dialect.is_some() {
            if let Some(done) = client::run(self, network, stop, emit)? {
                return Ok(done);
            }
            // The protocol was to be detected, and is our own.
            let mut own = self.clone();
            own.plan.dialect = None;
            return own.run_within(network, stop, emit);
        }
        fd_table::raise_limit();
        let local = Local::parse(self.plan.bind.as_deref())?;
        let ground = Ground::of(&self.plan)?;
        let began = Instant::now();
        loop {
            let tried = self.converse(&ground, &local, network, stop, emit);
            match tried.map_err(|error| ground.explain(error)) {
                Err(error) if error.may_pass() && began.elapsed() < self.retry => {
                    std::thread::sleep(RETRY_PAUSE);
                    if stop.load(Relaxed) {
                        return Err(MeasureError::Interrupted);
                    }
                }
                done => return done.map(|done| ground.explain_end(done)),
            }
        }
    }

    /// Makes one attempt, from the connect to the record.
    fn converse(
        &self,
        ground: &Ground,
        local: &Local,
        network: Option<&Arc<Network>>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(What),
    ) -> Result<(Record, Option<MeasureError>), MeasureError> {
        let line = ground.connect(self, local, stop)?;
        let (near, far) = (line.local, line.peer);
        let greeting = hello(boot_id());
        let connection = match &self.key {
            None => Connection::client(greeting),
            Some(key) => Connection::proving_client(greeting, random::proof(key)?),
        };
        let connection =
            connection.map_err(|source| MeasureError::Protocol { peer: far, source })?;
        let mut wire = Wire::on(line, connection)?.patient(FAR_PATIENCE);
        let Frame::Hello(greeting) = wire.expect(stop)? else {
            return Err(confused(far, "it sent no hello"));
        };
        let host = ground.host_facts(far.ip());
        let shares_cores = greeting.boot_id.is_some() && greeting.boot_id == host.boot_id;
        let mut plan = self.plan.clone();
        descriptor_limit::check(&plan, Role::Client)?;
        let refused = ground.settle(&mut plan, far, local)?;
        let unhonoured = ground.check_pace(&plan, sending(&plan), &host)?;
        let _hold = setup::hold_idle(&plan)?;
        // Timestamps of one machine share a clock already.
        let asks_time = plan.is_traced() && !shares_cores;
        let before = if asks_time {
            clock_offset(&mut wire, stop)?
        } else {
            None
        };
        let _memory = setup::lock_memory(&plan)?;
        wire.say(Propose {
            plan: plan.clone(),
            host: host.clone(),
        })?;
        let accept = match wire.expect(stop)? {
            Frame::Accept(accept) => *accept,
            Frame::Refuse(refuse) => return Err(refused_by(far, refuse)),
            _ => return Err(confused(far, "it neither accepted nor rejected the plan")),
        };
        take_over(&mut plan, &accept).map_err(|how| confused(far, how))?;
        emit(What::Connected {
            peer: wire.peer().to_string(),
            agent: greeting.agent,
        });
        let asked = self.plan.wait.as_ref().map(|wait| wait.near);
        let manner = ground.manner(&plan, asked, shares_cores)?;
        plan.wait = Some(Ends {
            near: manner.wait,
            far: accept.wait,
        });
        // Unknown when the server does not send it.
        plan.threads = accept.threads.map(|far| Ends {
            near: manner.thread_count(),
            far,
        });
        let because = self.because(&manner, &accept);
        let plan = Arc::new(plan);
        let disciplines = pace::disciplines(&host);
        let flows = agreed(&plan, &accept, near, far, local, &disciplines);
        let near_address = ground.address_towards(far.ip()).unwrap_or(near.ip());
        let memory = Memory::before_flows();
        let mut attached = false;
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
                match wire.hear()? {
                    None | Some(Frame::Heartbeat(_)) => {}
                    // The server has its last flow before the client receives its confirmation.
                    Some(Frame::Attached(_)) => attached = true,
                    Some(Frame::Refuse(refuse)) => return Err(refused_by(far, refuse)),
                    Some(_) => return Err(confused(far, "a frame before the start")),
                }
                wire.beat()?;
                wire.flush()
            },
        );
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
                Ok(_) => return Err(confused(far, "it did not confirm the flows")),
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
        doubts.extend(unhonoured);
        doubts.extend(doubts_before(&plan, shares_cores, host.cpu.logical));
        for doubt in &doubts {
            emit(What::Doubted {
                doubt: doubt.clone(),
            });
        }
        let ipv6 = far.ip().to_canonical().is_ipv6();
        let ledger = own_ledger(Role::Client, &host, ipv6);
        let region = Region::open(network, near_address, far.ip());
        let _burn = Burn::start(plan.round_trip.burn.near)
            .map_err(|error| MeasureError::system("new thread", error))?;
        let started = Timestamp::now();
        wire.say(Start {
            wait: Some(manner.wait),
            cpus: Some(manner.cpus.clone()),
            threads: Some(manner.thread_count()),
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
        let clocks = match before.filter(|_| ended.failure.is_none()) {
            Some((first_at_ns, first)) => {
                clock_offset(&mut wire, stop)
                    .unwrap_or(None)
                    .map(|(last_at_ns, last)| Clocks {
                        first_at_ns,
                        first,
                        last_at_ns,
                        last,
                    })
            }
            None => None,
        };
        let mut ended = ended;
        if asks_time && clocks.is_none() {
            // Timestamps of two clocks without a known offset cannot be compared.
            ended.stamped = None;
        }
        if ended.failure.is_none() {
            // The record is complete; a lost farewell changes nothing.
            let _ = wire.say(Bye {});
        }
        wire.close(Duration::from_secs(1));
        let unknown_clock = asks_time && clocks.is_none() && ended.failure.is_none();
        let (mut record, failure) = assemble(Report {
            plan: Plan::clone(&plan),
            started,
            role: Role::Client,
            ended,
            region: region.map(Region::close),
            ipv6,
            clocks,
            totals: Vec::new(),
            far_text: None,
        });
        if unknown_clock {
            record.validity.push(Doubt::new(
                "clock-unknown",
                "the offset of the server's clock is unknown: timestamps of both ends are not combined",
            ));
        }
        let failure = failure.or_else(|| broken(&record, far));
        Ok((record, failure))
    }

    /// Returns the reason of the wait modes, unless they were requested.
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

    /// Returns the usable addresses of the server, in the resolver's order; never empty.
    pub(crate) fn addresses(&self, local: &Local) -> Result<Vec<SocketAddr>, MeasureError> {
        let host = self.plan.host.as_str();
        // Brackets as in URLs are removed: [::1] is written next to a port.
        let name = host.trim_start_matches('[').trim_end_matches(']');
        // The user-space stack has one link, so a scope id of a kernel interface does not apply.
        let near = self.plan.near_stack.as_ref();
        let own = near.is_some_and(|near| near.control == Control::Stack);
        let name = match name.split_once('%') {
            Some((address, _)) if own => address,
            _ => name,
        };
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
        let written = name.parse::<IpAddr>().ok();
        let fitting: Vec<_> = all.into_iter().filter(fits).collect();
        if fitting.is_empty() {
            let wanted = match local.address {
                Some(address) if address.is_ipv4() => Family::V4,
                Some(_) => Family::V6,
                None => self.family,
            };
            let option = match (local.address, wanted) {
                (Some(address), _) => format!("-B {address}"),
                (None, Family::V4) => "-4".to_owned(),
                (None, _) => "-6".to_owned(),
            };
            let host = host.to_owned();
            return Err(match written {
                Some(address) => MeasureError::OtherFamily {
                    host,
                    family: match address.is_ipv4() {
                        true => Family::V4.name(),
                        false => Family::V6.name(),
                    },
                    option,
                },
                None => MeasureError::NoAddress {
                    host,
                    family: wanted.name(),
                },
            });
        }
        let nowhere = |address: &SocketAddr| match address {
            SocketAddr::V6(address) => {
                address.ip().is_unicast_link_local() && address.scope_id() == 0
            }
            SocketAddr::V4(_) => false,
        };
        if !own && local.interface.is_none() && fitting.iter().all(nowhere) {
            return Err(MeasureError::NoInterface {
                host: name.to_owned(),
            });
        }
        Ok(fitting)
    }

    pub(crate) fn connect(
        &self,
        local: &Local,
        stop: &AtomicBool,
    ) -> Result<TcpStream, MeasureError> {
        first_of(self.addresses(local)?, |address| open(address, local, stop))
    }
}

/// Measures the server's clock offset with several requests; returns it with the server's time.
/// `None` when the replies are inconsistent.
fn clock_offset(wire: &mut Wire, stop: &AtomicBool) -> Result<Option<(u64, Offset)>, MeasureError> {
    /// Number of requests; the one with the shortest round trip decides.
    const QUESTIONS: usize = 40;
    /// Limit for long paths: the server waits at least this long after a test.
    const PATIENCE_NS: u64 = 800_000_000;
    let far = wire.peer();
    let mut samples = Vec::with_capacity(QUESTIONS);
    let until = clock::now() + PATIENCE_NS;
    while samples.len() < QUESTIONS && (samples.is_empty() || clock::now() < until) {
        let t1_ns = clock::now();
        wire.say(ClockQuestion { t1_ns })?;
        let Frame::ClockAnswer(answer) = wire.expect(stop)? else {
            return Err(confused(far, "it sent no clock reply"));
        };
        samples.push(Sample {
            t1_ns,
            t2_ns: answer.t2_ns,
            t3_ns: answer.t3_ns,
            t4_ns: clock::now(),
        });
    }
    let at_ns = samples.last().map_or(0, |sample| sample.t3_ns);
    Ok(Offset::from_samples(&samples).map(|offset| (at_ns, offset)))
}

/// Returns the role of the client in the direction that is paced.
fn sending(plan: &Plan) -> Part {
    match plan.flows(Direction::Send) {
        true => Part::Source,
        false => Part::Sink,
    }
}

fn refused_by(peer: SocketAddr, refuse: Refuse) -> MeasureError {
    let Refuse {
        problem,
        exit_code,
        may_pass,
    } = refuse;
    let problem = Box::new(problem);
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

pub(super) fn confused(peer: SocketAddr, how: &str) -> MeasureError {
    MeasureError::Vanished {
        peer,
        how: format!("unexpected message: {how}"),
    }
}

/// Returns the error of a run with a broken flow: its figures end at the break.
fn broken(record: &Record, far: SocketAddr) -> Option<MeasureError> {
    let broken = |doubt: &&Doubt| doubt.doubt == "stream-broken";
    let doubt = record.validity.iter().find(broken)?;
    (!record.interrupted).then(|| MeasureError::Foreign {
        peer: far,
        situation: format!("the run was cut short: {}", doubt.why),
        next_step:
            "find what resets the connections (a firewall; see the messages of the server); the \
                    figures cover the time until then"
                .to_owned(),
    })
}
