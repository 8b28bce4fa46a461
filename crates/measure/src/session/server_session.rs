//! Server session: one control connection, from the hello to the farewell.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use linerate_dialect::control::{
    self, Accept, Attached, ClockAnswer, Connection, ControlError, FlowGrant, Frame, Key, Propose,
    Refuse, Start, Token,
};
use linerate_host::settings::idle_hold::IdleHold;
use linerate_host::snapshot::is_own_address;
use linerate_host::sys::{clock, cpu};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Direction, Ends, Plan, Protocol, Sched, Stamping};
use linerate_metric::record::Served;

use super::control_connection::{Line, PEER_PATIENCE, STATE_PATIENCE, Wire, deadline};
use super::cpu_load::Burn;
use super::descriptor_limit;
use super::flow_open_responder::Greeter;
use super::limits::{
    ATTACH_PATIENCE, PROPOSE_LIMIT_BYTES, attach_limit, frame_limit, memory_of, too_many_traced,
    unfit,
};
use super::pace;
use super::random;
use super::server::Grant;
use super::server_stack::Footing;
use super::server_state::{Arrival, Claim, House, Seat, Waiting};
use super::service;
use super::settings;
use super::setup::{self, AgreedFlow, Ready, flow_options, part};
use super::thread_plan::Manner;
use super::{boot_id, hello};
use crate::coordinator::End;
use crate::error::MeasureError;
use crate::flow_memory::Memory;
use crate::interop::framing::Framing;
use crate::loss::{Ledger, Network, Region, own_ledger};
use crate::record_assembly::{Report, assemble};
use crate::timestamps::scheduler_tracer;
use crate::worker::Opening;

/// Longest wait for a client to close the control connection.
const FAREWELL: Duration = Duration::from_secs(1);

/// Longest wait for it when the server is stopping.
const SHORT_FAREWELL: Duration = Duration::from_millis(200);

/// Interval of control connection polls while flows arrive.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Serves one control connection over the kernel's stack.
pub fn serve(house: &Arc<House>, stream: TcpStream, first: &[u8], seat: Seat) {
    if let Ok(line) = Line::of(stream) {
        serve_on(house, Footing::Kernel, line, first, seat);
    }
}

/// Serves one control connection of a test over either stack.
pub fn serve_on(house: &Arc<House>, footing: Footing<'_>, line: Line, first: &[u8], seat: Seat) {
    let Ok(mut wire) = open(line, first, house.key.as_ref()) else {
        return;
    };
    let mut session = Session {
        house,
        footing,
        claim: None,
        seat: Some(seat),
        local: wire.local(),
        peer: wire.peer(),
    };
    // A panic is a bug of ours: it ends this client's test and no other.
    let result = catch_unwind(AssertUnwindSafe(|| session.run(&mut wire)));
    let result = result.unwrap_or_else(|_| {
        let bug = std::io::Error::other("a bug: it panicked, see the server's standard error");
        Err(MeasureError::system("the session", bug))
    });
    // The session completed, so the client's address is valid.
    house.hall.prove(session.peer.ip());
    let began = session.claim.as_ref().is_some_and(|claim| claim.began);
    if let Some(claim) = &mut session.claim {
        // A flow that still opens would get a socket that the stack has just closed.
        claim.withdraw();
        footing.part();
    }
    // A session without a test keeps its permit until the farewell ends: its thread still runs.
    let _seat = session.seat.take();
    let Err(error) = result else {
        drop(session);
        wire.close(FAREWELL);
        return;
    };
    let stopped = matches!(error, MeasureError::Interrupted);
    if !began {
        // Best effort: the client may have disconnected, or use another protocol.
        let _ = wire.say(match &error {
            MeasureError::Interrupted => Refuse {
                problem: Problem::new(
                    "the server is stopping",
                    format!("server port {}", house.port),
                    "start it again, or wait for it with --retry 30s",
                ),
                exit_code: exit::PEER,
                may_pass: true,
            },
            error => Refuse {
                problem: error.problem(),
                exit_code: error.exit_code(),
                // Other clients of that stack release their sockets.
                may_pass: matches!(error, MeasureError::FewSockets { .. }),
            },
        });
    }
    if session.claim.is_none() {
        tell_fruitless(house, &wire, &error);
    }
    // A client that connects and disconnects is no failure.
    if let Some(claim) = &session.claim {
        (house.emit)(Event {
            test: claim.test,
            what: What::Failed {
                problem: error.problem(),
            },
        });
        if began {
            *house.failure.lock().expect("no holder panics") = Some(error);
        }
    }
    drop(session);
    // With another version, the client learns it from our hello, which may still be queued.
    wire.close(if stopped { SHORT_FAREWELL } else { FAREWELL });
}

/// Logs a session that ended before a test started. A client that disconnected after the hello is
/// not logged: it reports the reason itself.
fn tell_fruitless(house: &House, wire: &Wire, error: &MeasureError) {
    let (hall, peer, dialect) = (&house.hall, wire.peer(), control::DIALECT.name);
    match error {
        MeasureError::Interrupted => {}
        MeasureError::Protocol { source, .. } => match source {
            ControlError::KeyMissing
            | ControlError::KeyUnknown
            | ControlError::KeyDiffers
            | ControlError::Security { .. } => {
                hall.refuse_key(dialect, peer, &source.to_string());
            }
            source => hall.refuse_fruitless(dialect, peer, &source.to_string()),
        },
        _ if wire.was_left() => {}
        MeasureError::Foreign { .. } => {
            let how = "it sent no linerate hello: it is another program, or was ended";
            hall.refuse_fruitless(dialect, peer, how);
        }
        MeasureError::Vanished { how, .. } => hall.refuse_fruitless(dialect, peer, how),
        error => hall.refuse_fruitless(dialect, peer, &error.problem().situation),
    }
}

fn open(line: Line, first: &[u8], key: Option<&Key>) -> Result<Wire, MeasureError> {
    let peer = line.peer;
    let greeting = hello(boot_id());
    let codec = match key {
        None => Connection::server(greeting),
        Some(key) => Connection::proving_server(greeting, random::proof(key)?),
    };
    let mut codec = codec.map_err(|source| MeasureError::Protocol { peer, source })?;
    codec.take_at_most(PROPOSE_LIMIT_BYTES);
    let mut wire = Wire::on(line, codec)?.patient(PEER_PATIENCE);
    wire.preload(first)?;
    Ok(wire)
}

/// Accepted test: the reply to the client, the thread plan, the flows that arrive, and what the
/// server holds for its duration.
struct Agreed {
    accept: Accept,
    manner: Manner,
    arrivals: mpsc::Receiver<(u32, Arrival)>,
    hold: Option<IdleHold>,
    /// Granted timestamping, and the reasons where it is less than requested.
    stamps: Stamping,
    notes: Vec<String>,
}

/// Reason why no test was agreed on.
enum No {
    /// Sent to the client; not a failure of this server.
    Refused(Refuse),
    Failed(MeasureError),
}

impl From<MeasureError> for No {
    fn from(error: MeasureError) -> Self {
        Self::Failed(error)
    }
}

impl From<Refuse> for No {
    fn from(refuse: Refuse) -> Self {
        Self::Refused(refuse)
    }
}

struct Session<'a> {
    house: &'a Arc<House>,
    footing: Footing<'a>,
    /// The granted test.
    claim: Option<Claim>,
    /// Held until a test is granted.
    seat: Option<Seat>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Session<'_> {
    fn emit(&self, what: What) {
        let test = self.claim.as_ref().map_or(0, |claim| claim.test);
        (self.house.emit)(Event { test, what });
    }

    fn run(&mut self, wire: &mut Wire) -> Result<(), MeasureError> {
        let Frame::Hello(greeting) = wire.expect(&self.house.stop)? else {
            return Err(self.confused("it sent no hello"));
        };
        let Some(propose) = self.listen(wire)? else {
            return Ok(());
        };
        let (house, dialect) = (self.house, control::DIALECT.name);
        if let Some(problem) = unfit(&propose.plan) {
            house.hall.refuse_wish(dialect, self.peer, &problem);
            return wire.say(Refuse {
                problem,
                exit_code: exit::USAGE,
                may_pass: false,
            });
        }
        match self.house.claim_soon() {
            Ok(claim) => self.claim = Some(claim),
            Err(denied) => {
                house.hall.refuse_test(dialect, self.peer, &denied);
                return wire.say(denied.refuse);
            }
        }
        self.seat = None;
        self.emit(What::Connected {
            peer: self.peer.to_string(),
            agent: greeting.agent.clone(),
        });
        let host = self.footing.host_facts(self.peer.ip());
        let shares_cores = greeting.boot_id.is_some() && greeting.boot_id == host.boot_id;
        let agreed = match self.agree(propose.plan, &host, shares_cores) {
            Ok(agreed) => agreed,
            Err(No::Failed(error)) => return Err(error),
            Err(No::Refused(refuse)) => {
                self.emit(What::Failed {
                    problem: refuse.problem.clone(),
                });
                return wire.say(refuse);
            }
        };
        let Agreed {
            accept,
            manner,
            arrivals,
            // Held until this function returns, so until the test ends.
            hold: _hold,
            stamps,
            notes,
        } = agreed;
        wire.take_at_most(frame_limit(&accept.plan));
        wire.say(accept.clone())?;
        let plan = Arc::new(Plan {
            stamps,
            ..accept.plan.clone()
        });
        let memory = Memory::before_flows();
        let disciplines = pace::disciplines(&host);
        let (flows, greeter) = self.attach(&accept, wire, &arrivals, &disciplines)?;
        let stack = self.footing.stack();
        let ready = setup::prepare(&plan, Role::Server, &manner, stack, flows, &mut || {
            greeter.answer();
            self.look_after(wire)
        })?;
        // Read before the client may start: everything counted from here on belongs to the test.
        let ipv6 = self.peer.ip().to_canonical().is_ipv6();
        let ledger = own_ledger(Role::Server, &host, ipv6);
        let network = self.house.network.as_ref();
        let region = Region::open(network, self.peer.ip(), self.local.ip());
        wire.say(Attached {})?;
        let start = wire.expect_until(deadline(STATE_PATIENCE), &self.house.stop, &mut || {
            greeter.answer();
        })?;
        drop(greeter);
        let start = match start {
            Frame::Start(start) => start,
            Frame::Bye(_) => return Err(self.gave_up()),
            _ => return Err(self.confused("it sent no start")),
        };
        if let Some(claim) = &mut self.claim {
            claim.began = true;
        }
        let books = (ledger, region);
        // Stops when this function returns, too.
        let _burn = Burn::start(plan.round_trip.burn.far)
            .map_err(|error| MeasureError::system("new thread", error))?;
        self.measure(
            wire,
            greeting.agent,
            &plan,
            host,
            (ready, memory),
            &accept,
            start,
            shares_cores,
            books,
            notes,
        )
    }

    /// Replies to clock requests and applies settings until the client proposes a test; `None` when
    /// it disconnects first. The settings are restored on return; they are independent of those of
    /// tests.
    fn listen(&self, wire: &mut Wire) -> Result<Option<Propose>, MeasureError> {
        let mut until = deadline(STATE_PATIENCE);
        let mut held = None;
        loop {
            match wire.expect_until(until, &self.house.stop, &mut || {})? {
                Frame::Propose(propose) => return Ok(Some(*propose)),
                Frame::ClockQuestion(question) => {
                    let t2_ns = clock::now();
                    wire.say(ClockAnswer {
                        t1_ns: question.t1_ns,
                        t2_ns,
                        t3_ns: clock::now(),
                    })?;
                }
                Frame::Settings(changes) => {
                    let maker = self.house.settings.as_ref();
                    wire.say(settings::settle(maker, &mut held, changes.wanted))?;
                    if held.is_some() {
                        // The settings stay for as long as heartbeats arrive.
                        until = u64::MAX;
                    }
                }
                Frame::Bye(_) => return Ok(None),
                _ => return Err(self.confused("it sent no proposal")),
            }
        }
    }

    /// Resolves this end's part of the plan, reserves resources and announces the flows.
    fn agree(&mut self, mut plan: Plan, host: &Host, shares_cores: bool) -> Result<Agreed, No> {
        let own = is_own(
            self.peer.ip(),
            self.local.ip(),
            self.house.network.as_deref(),
        );
        let (stamps, notes) = self.watch(plan.stamps, own);
        let with_stamps = |plan: &Plan| Plan {
            stamps,
            ..plan.clone()
        };
        descriptor_limit::check(&with_stamps(&plan), Role::Server)?;
        if let Some(refusal) = self.house.hall.limits().refusal(&plan) {
            return Err(No::Refused(Refuse {
                problem: refusal.problem(),
                exit_code: exit::PEER,
                may_pass: false,
            }));
        }
        self.check_group(&plan, own)?;
        let may_force = self.house.grants.contains(&Grant::Buffers);
        let refused = self.footing.settle(&mut plan, may_force)?;
        self.check_sched(&plan)?;
        let unhonoured = match plan.flows(Direction::Receive) {
            true => self.footing.check_pace(&plan, host)?,
            false => None,
        };
        // On the same machine, the hold of the client is enough.
        let hold = if plan.hold_latency && !shares_cores {
            if !self.house.grants.contains(&Grant::Idle) {
                return Err(No::Failed(MeasureError::OptionRefused {
                    option: "--hold-latency".to_owned(),
                    why: "the server does not let clients keep its CPUs from idling".to_owned(),
                    next_step: "start it as root with `linerate server --grant idle`".to_owned(),
                }));
            }
            setup::hold_idle(&plan)?
        } else {
            None
        };
        self.check_burn(&plan)?;
        if plan.protocol == Protocol::Tcp && plan.flows(Direction::Receive) {
            // With both directions, the client's choice applies to both; a default may differ.
            plan.congestion_control = plan
                .congestion_control
                .or_else(|| self.footing.congestion_control());
        }
        let asked = plan.wait.as_ref().map(|wait| wait.far);
        let others = self.house.busy_threads();
        let manner = self.footing.manner(&plan, asked, shares_cores, others)?;
        let threads = manner.threads(&plan, Role::Server);
        let arrivals;
        let mut flows = Vec::new();
        {
            let claim = self.claim.as_mut().expect("agreed after the claim");
            let busy = threads.iter().map(|&(_, count)| count).sum();
            if let Some(problem) = too_many_traced(&plan, busy) {
                return Err(No::Refused(Refuse {
                    problem,
                    exit_code: exit::USAGE,
                    may_pass: false,
                }));
            }
            let processors = match stamps.is_none() {
                true => 0,
                false => scheduler_tracer::processors(),
            };
            let bytes = memory_of(&with_stamps(&plan), &threads, processors);
            claim.reserve(bytes, busy)?;
            claim.burn(plan.round_trip.burn.far as usize, usable_processors())?;
            if plan.round_trip.needs_service() {
                claim.take_ports(plan.streams as usize * plan.directions.len())?;
            }
            let (arrived, receiver) = mpsc::channel();
            arrivals = receiver;
            let all = (plan.directions.iter())
                .flat_map(|&direction| (0..plan.streams).map(move |_| direction));
            for (id, direction) in (1..).zip(all) {
                let token = new_token()?;
                let mut port = None;
                if plan.round_trip.needs_service() {
                    let interface = self.house.interface.as_deref();
                    let (local, peer) = (self.local, self.peer.ip());
                    let (socket, service_port) =
                        self.footing.service(&plan, local, peer, interface, token)?;
                    port = Some(service_port);
                    // The receiver is in scope, so the send cannot fail.
                    let _ = arrived.send((id, socket));
                } else {
                    let waiting = Waiting {
                        id,
                        protocol: plan.protocol,
                        local: self.local,
                        peer: self.peer.ip(),
                        arrived: arrived.clone(),
                    };
                    let claim = self.claim.as_mut().expect("agreed after the claim");
                    claim.announce(token, waiting);
                }
                flows.push(FlowGrant {
                    id,
                    direction,
                    token,
                    port,
                });
            }
        }
        let accept = Accept {
            plan,
            wait: manner.wait,
            cpus: manner.cpus.clone(),
            flows,
            doubts: refused.into_iter().chain(unhonoured).collect(),
            because: manner.because.clone(),
            threads: Some(manner.thread_count()),
        };
        Ok(Agreed {
            accept,
            manner,
            arrivals,
            hold,
            stamps,
            notes,
        })
    }

    /// Returns the timestamping that this end grants of what the client requests, and the reasons
    /// where it is less. The client keeps its own level.
    fn watch(&mut self, asked: Stamping, own: bool) -> (Stamping, Vec<String>) {
        if let Some(stamps) = self.footing.stamps(asked) {
            return stamps;
        }
        let granted = own || self.house.grants.contains(&Grant::Trace);
        let claim = self.claim.as_mut().expect("agreed after the claim");
        let reason = match asked {
            Stamping::None | Stamping::Packets => return (asked, Vec::new()),
            _ if !granted => {
                "server: no scheduler tracing for remote clients: start it with --grant trace"
            }
            _ if claim.watch() => return (asked, Vec::new()),
            _ => {
                "server: one test at a time may trace the scheduler, and another does: try again \
                 later"
            }
        };
        (Stamping::Packets, vec![reason.to_owned()])
    }

    /// Checks the grant for multicast: a group membership brings traffic of any sender to this
    /// host.
    fn check_group(&self, plan: &Plan, own: bool) -> Result<(), MeasureError> {
        match &plan.round_trip.group {
            Some(group) if !own && !self.house.grants.contains(&Grant::Multicast) => {
                Err(MeasureError::OptionRefused {
                    option: format!("--multicast {group}"),
                    why: "the server joins no multicast groups for remote clients".to_owned(),
                    next_step: "start it with `linerate server --grant multicast`".to_owned(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Checks the grant for CPU load threads.
    fn check_burn(&self, plan: &Plan) -> Result<(), MeasureError> {
        let threads = plan.round_trip.burn.far;
        if threads > 0 && !self.house.grants.contains(&Grant::Load) {
            return Err(MeasureError::OptionRefused {
                option: format!("--load cpu:{}/{threads}", plan.round_trip.burn.near),
                why: "the server does not let clients keep its CPUs busy".to_owned(),
                next_step: "start it with `linerate server --grant load`, or load the client \
                            alone: --load cpu"
                    .to_owned(),
            });
        }
        Ok(())
    }

    fn check_sched(&self, plan: &Plan) -> Result<(), MeasureError> {
        // A positive nice value takes no CPU time from others.
        let takes = !matches!(plan.sched.far, Sched::Inherited | Sched::Nice(0..));
        if takes && !self.house.grants.contains(&Grant::Sched) {
            return Err(MeasureError::OptionRefused {
                option: format!("--sched {}", plan.sched),
                why: "the server does not let clients choose how its threads are scheduled"
                    .to_owned(),
                next_step: "start it as root with `linerate server --grant sched`, or set it for \
                            the client alone: --sched CLASS/inherited"
                    .to_owned(),
            });
        }
        Ok(())
    }

    /// Waits until every announced flow has arrived.
    fn attach(
        &self,
        accept: &Accept,
        wire: &mut Wire,
        arrivals: &mpsc::Receiver<(u32, Arrival)>,
        disciplines: &[String],
    ) -> Result<(Vec<AgreedFlow>, Greeter), MeasureError> {
        let wanted = accept.flows.len();
        let began = Instant::now();
        // Thousands of flows open one after the other: the timeout restarts with each arrival.
        let (mut last, mut looked) = (began, began);
        let mut flows: Vec<AgreedFlow> = Vec::with_capacity(wanted);
        let mut greeter = Greeter::default();
        while flows.len() < wanted {
            let arrival = arrivals.recv_timeout(LOOK_UP);
            if let Ok((id, arrival)) = arrival {
                last = Instant::now();
                let opening = match arrival {
                    Arrival::NoneLeft(limit) => {
                        let wanted = (wanted - flows.len()) as u32;
                        return Err(MeasureError::FewSockets { limit, wanted });
                    }
                    Arrival::Kernel(fd) => Opening::Adopt(fd),
                    Arrival::Stack(socket) => Opening::Take(socket),
                };
                if let Some(grant) = (id as usize)
                    .checked_sub(1)
                    .and_then(|place| accept.flows.get(place))
                {
                    // The user-space stack confirms openings itself.
                    if let (Protocol::Udp, Opening::Adopt(fd)) = (accept.plan.protocol, &opening) {
                        let asker = (grant.port.is_some()).then(|| self.peer.ip());
                        (greeter.add(fd, grant.token, asker))
                            .map_err(|error| MeasureError::system("a flow's socket", error))?;
                    }
                    let part = part(Role::Server, grant.direction);
                    let mut options = flow_options(&accept.plan, part);
                    options.correspondent = service::correspondent(&accept.plan, self.peer.ip());
                    let far = self.peer.ip();
                    pace::apply(&mut options, &accept.plan, part, disciplines, far);
                    if let Some(most) = self.house.hall.limits().rate_bps {
                        pace::hold(&mut options, &accept.plan, part, most);
                    }
                    options.force_buffers = accept.plan.forced_buffers.far;
                    flows.push(AgreedFlow {
                        id,
                        direction: grant.direction,
                        opening,
                        options,
                        token: grant.token,
                        framing: Framing::Own,
                    });
                }
            }
            if looked.elapsed() < LOOK_UP {
                continue;
            }
            looked = Instant::now();
            greeter.answer();
            self.look_after(wire)?;
            if last.elapsed() > ATTACH_PATIENCE || began.elapsed() > attach_limit(wanted) {
                return Err(MeasureError::Vanished {
                    peer: self.peer,
                    how: format!(
                        "only {} of {wanted} flows arrived within {} s",
                        flows.len(),
                        began.elapsed().as_secs()
                    ),
                });
            }
        }
        flows.sort_by_key(|flow| flow.id);
        Ok((flows, greeter))
    }

    /// Services the control connection while the session waits for something else.
    fn look_after(&self, wire: &mut Wire) -> Result<(), MeasureError> {
        if self.house.stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        if let Some(Frame::Bye(_) | Frame::Refuse(_)) = wire.hear()? {
            return Err(self.gave_up());
        }
        wire.beat()?;
        wire.flush()
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "results of the handshake, used once"
    )]
    fn measure(
        &self,
        wire: &mut Wire,
        agent: String,
        plan: &Plan,
        host: Host,
        (ready, memory): (Ready, Memory),
        accept: &Accept,
        start: Start,
        shares_cores: bool,
        books: (Ledger, Option<Region>),
        notes: Vec<String>,
    ) -> Result<(), MeasureError> {
        let (ledger, region) = books;
        let ipv6 = self.peer.ip().to_canonical().is_ipv6();
        let started = jiff::Timestamp::now();
        // Clients that do not send their wait mode use the requested one, or the same as the
        // server.
        let asked = plan.wait.as_ref().map_or(accept.wait, |wait| wait.near);
        let wait = Ends {
            near: start.wait.unwrap_or(asked),
            far: accept.wait,
        };
        let cpu = Ends {
            near: start.cpus.unwrap_or_else(|| plan.cpu.near.clone()),
            far: accept.cpus.clone(),
        };
        let mut plan = plan.clone();
        plan.wait = Some(wait.clone());
        plan.threads = (start.threads.zip(accept.threads)).map(|(near, far)| Ends { near, far });
        self.emit(What::Started {
            plan: Box::new(plan.clone()),
            wait,
            cpu,
            because: accept.because.clone(),
        });
        let Ready {
            keeper,
            lanes,
            flows,
            done,
        } = ready;
        let ended = End {
            role: Role::Server,
            plan: Arc::new(plan.clone()),
            host,
            wire,
            gate: Arc::clone(keeper.gate()),
            lanes,
            flows,
            memory,
            done,
            stop: &self.house.stop,
            emit: &mut |what| self.emit(what),
            doubts: accept.doubts.clone(),
            watches_machine: !shares_cores,
            notes,
            ledger,
            limit: self.house.hall.limits().most(&plan),
        }
        .run();
        let (mut record, failure) = assemble(Report {
            plan,
            started,
            role: Role::Server,
            ended,
            region: region.map(Region::close),
            ipv6,
            clocks: None,
            totals: Vec::new(),
            far_text: None,
        });
        // The client stores the same run.
        record.kept_by = Some(Role::Server);
        record.served = Some(Served {
            client: self.peer.to_string(),
            agent,
        });
        self.emit(What::Finished {
            record: Box::new(record),
        });
        failure.map_or(Ok(()), Err)
    }

    fn confused(&self, how: &str) -> MeasureError {
        MeasureError::Vanished {
            peer: self.peer,
            how: format!("unexpected message: {how}"),
        }
    }

    fn gave_up(&self) -> MeasureError {
        MeasureError::Vanished {
            peer: self.peer,
            how: "it cancelled the test before the start".to_owned(),
        }
    }
}

/// Returns whether the client runs on this machine, and so already has the privileges that it
/// requests. Its address is one of this host, or both are in the lab that the server was started
/// in. What the client claims does not count.
fn is_own(peer: IpAddr, local: IpAddr, lab: Option<&Network>) -> bool {
    is_own_address(peer) || lab.is_some_and(|lab| lab.way(peer, local).is_some())
}

fn usable_processors() -> usize {
    cpu::usable().map_or(1, |cpus| cpus.len())
}

fn new_token() -> Result<Token, MeasureError> {
    random::bytes().map(Token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_own_by_its_address_alone() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut lab = Network::default();
        let eth = |text| vec![("eth0".to_owned(), address(text))];
        let client = lab.add_node("client", None, eth("198.51.100.1"));
        let server = lab.add_node("server", None, eth("198.51.100.2"));
        lab.add_link([(client, "eth0".into()), (server, "eth0".into())]);
        let local = address("198.51.100.2");
        for (peer, inside, want) in [
            ("127.0.0.1", false, true),
            ("::ffff:127.0.0.1", false, true),
            ("198.51.100.1", false, false),
            ("198.51.100.1", true, true),
            ("::ffff:198.51.100.1", true, true),
            ("203.0.113.1", true, false),
        ] {
            let lab = inside.then_some(&lab);
            assert_eq!(is_own(address(peer), local, lab), want, "{peer} {inside}");
        }
    }
}
