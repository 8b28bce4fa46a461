//! Server session: one control connection, from the hello to the farewell.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use linerate_host::settings::idle_hold::IdleHold;
use linerate_host::snapshot::is_local_address;
use linerate_protocol::control;
use linerate_protocol::control::{
    Accept, ClockReply, ControlCodec, ControlError, FlowGrant, FlowToken, FlowsAttached, Frame,
    PresharedKey, Propose, Reject, StartRun,
};
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::plan::{
    Direction, PerEnd, Plan, SchedPolicy, TimestampLevel, TransportProtocol,
};
use linerate_record::record::ServedClient;
use linerate_session::control_connection::{ControlConnection, ControlStream, deadline_after};
use linerate_session::coordinator::Coordinator;
use linerate_session::cpu_load::CpuLoad;
use linerate_session::error::SessionError;
use linerate_session::flow_handle::flow_role;
use linerate_session::flow_memory::FlowMemory;
use linerate_session::loss::{CounterSnapshot, LabNetwork, PathCounters, read_local_counters};
use linerate_session::record_assembly::{RecordInputs, assemble_record};
use linerate_session::setup::{AgreedFlow, ReadyWorkers};
use linerate_session::thread_plan::{ThreadPlan, count_usable_cpus};
use linerate_session::{boot_id, descriptor_limit, hello, pacing, random, remote_settings, setup};
use linerate_sys::clock;
use linerate_transport::flow_options::flow_options;
use linerate_workload::framing::Framing;
use linerate_workload::timestamps::scheduler_tracer;
use linerate_workload::worker::FlowOpening;

use crate::flow_open_responder::FlowOpenResponder;
use crate::flow_socket;
use crate::limits::{
    PROPOSE_LIMIT_BYTES, check_traced_threads, max_frame_bytes, memory_bytes, reject_plan,
};
use crate::options::Grant;
use crate::server_stack::ServerStack;
use crate::server_state::{
    AcceptedSocket, AnnouncedFlow, ServerState, SessionPermit, TestReservation,
};
use crate::timeouts::Timeouts;

/// Longest wait for a client to close the control connection.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest wait for it when the server is stopping.
const STOP_FAREWELL_TIMEOUT: Duration = Duration::from_millis(200);

/// Interval of control connection polls while flows arrive.
const CONTROL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Serves one control connection over the kernel's stack.
pub fn serve_kernel(
    server: &Arc<ServerState>,
    stream: TcpStream,
    first: &[u8],
    permit: SessionPermit,
) {
    if let Ok(control_stream) = ControlStream::from_tcp(stream) {
        serve_session(server, ServerStack::Kernel, control_stream, first, permit);
    }
}

/// Serves one control connection of a test over either stack.
pub fn serve_session(
    server: &Arc<ServerState>,
    stack: ServerStack<'_>,
    stream: ControlStream,
    first: &[u8],
    permit: SessionPermit,
) {
    let Ok(mut control) = open_connection(
        stream,
        first,
        server.key.as_ref(),
        server.interop.timeouts(),
    ) else {
        return;
    };
    let mut session = ServerSession {
        server,
        stack,
        reservation: None,
        permit: Some(permit),
        local: control.local(),
        peer: control.peer(),
    };
    // A panic is a bug of ours: it ends this client's test and no other.
    let result = catch_unwind(AssertUnwindSafe(|| session.run(&mut control)));
    let result = result.unwrap_or_else(|_| {
        let bug = std::io::Error::other("a bug: it panicked, see the server's standard error");
        Err(SessionError::system("the session", bug))
    });
    // The session completed, so the client's address is valid.
    server.interop.mark_validated(session.peer.ip());
    let started = session
        .reservation
        .as_ref()
        .is_some_and(|reservation| reservation.started);
    if let Some(reservation) = &mut session.reservation {
        // A flow that still opens would get a socket that the stack has just closed.
        reservation.withdraw_flows();
        stack.close_sockets();
    }
    // A session without a test keeps its permit until the farewell ends: its thread still runs.
    let _permit = session.permit.take();
    let Err(error) = result else {
        drop(session);
        control.close(FAREWELL_TIMEOUT);
        return;
    };
    let stopped = matches!(error, SessionError::Interrupted);
    if !started {
        // Best effort: the client may have disconnected, or use another protocol.
        let _ = control.send(match &error {
            SessionError::Interrupted => Reject {
                problem: ErrorReport::new(
                    "the server is stopping",
                    format!("server port {}", server.port),
                    "start it again, or wait for it with --retry 30s",
                ),
                exit_code: exit_codes::PEER,
                retryable: true,
            },
            error => Reject {
                problem: error.to_report(),
                exit_code: error.exit_code(),
                // Other clients of that stack release their sockets.
                retryable: matches!(error, SessionError::FewSockets { .. }),
            },
        });
    }
    if session.reservation.is_none() {
        log_no_test_started(server, &control, &error);
    }
    // A client that connects and disconnects is no failure.
    if let Some(reservation) = &session.reservation {
        (server.emit)(Event {
            test: reservation.number,
            kind: EventKind::Failed {
                problem: error.to_report(),
            },
        });
        if started {
            *server.failure.lock().expect("no holder panics") = Some(error);
        }
    }
    drop(session);
    // With another version, the client learns it from our hello, which may still be queued.
    control.close(if stopped {
        STOP_FAREWELL_TIMEOUT
    } else {
        FAREWELL_TIMEOUT
    });
}

/// Logs a session that ended before a test started. A client that disconnected after the hello is
/// not logged: it reports the reason itself.
fn log_no_test_started(server: &ServerState, control: &ControlConnection, error: &SessionError) {
    let (interop, peer, protocol) = (&server.interop, control.peer(), control::PROTOCOL.name);
    match error {
        SessionError::Interrupted => {}
        SessionError::Protocol { source, .. } => match source {
            ControlError::ClientHasNoKey
            | ControlError::UnexpectedClientKey
            | ControlError::KeyMismatch
            | ControlError::Security { .. } => {
                interop.reject_key(protocol, peer, &source.to_string());
            }
            source => interop.log_no_test_started(protocol, peer, &source.to_string()),
        },
        _ if control.is_closed_by_peer() => {}
        SessionError::PeerFailed { .. } => {
            let reason = "it sent no linerate hello: it is another program, or was ended";
            interop.log_no_test_started(protocol, peer, reason);
        }
        SessionError::PeerLost { reason, .. } => {
            interop.log_no_test_started(protocol, peer, reason)
        }
        error => interop.log_no_test_started(protocol, peer, &error.to_report().situation),
    }
}

fn open_connection(
    stream: ControlStream,
    first: &[u8],
    key: Option<&PresharedKey>,
    timeouts: &Timeouts,
) -> Result<ControlConnection, SessionError> {
    let peer = stream.peer;
    let hello_frame = hello(boot_id());
    let codec = match key {
        None => ControlCodec::server(hello_frame),
        Some(key) => ControlCodec::authenticated_server(hello_frame, random::new_proof(key)?),
    };
    let mut codec = codec.map_err(|source| SessionError::Protocol { peer, source })?;
    codec.limit_incoming(PROPOSE_LIMIT_BYTES);
    let mut control = ControlConnection::new(stream, codec)?
        .with_handshake_timeout(timeouts.handshake)
        .with_silence_timeout(timeouts.client_silence);
    control.preload(first)?;
    Ok(control)
}

/// Accepted test: the reply to the client, the thread plan, the flows that arrive, and what the
/// server holds for its duration.
struct AcceptedTest {
    accept: Accept,
    thread_plan: ThreadPlan,
    arrivals: mpsc::Receiver<(u32, AcceptedSocket)>,
    idle_hold: Option<IdleHold>,
    /// Granted timestamping, and the reasons where it is less than requested.
    timestamping: TimestampLevel,
    warnings: Vec<String>,
}

/// Reason why no test was agreed on.
enum NotAgreed {
    /// Sent to the client; not a failure of this server.
    Rejected(Reject),
    Failed(SessionError),
}

impl From<SessionError> for NotAgreed {
    fn from(error: SessionError) -> Self {
        Self::Failed(error)
    }
}

impl From<Reject> for NotAgreed {
    fn from(rejection: Reject) -> Self {
        Self::Rejected(rejection)
    }
}

struct ServerSession<'a> {
    server: &'a Arc<ServerState>,
    stack: ServerStack<'a>,
    /// The granted test.
    reservation: Option<TestReservation>,
    /// Held until a test is granted.
    permit: Option<SessionPermit>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl ServerSession<'_> {
    fn emit(&self, what: EventKind) {
        let test = self
            .reservation
            .as_ref()
            .map_or(0, |reservation| reservation.number);
        (self.server.emit)(Event { test, kind: what });
    }

    fn run(&mut self, control: &mut ControlConnection) -> Result<(), SessionError> {
        let Frame::Hello(client_hello) = control.receive_next(&self.server.stop)? else {
            return Err(self.unexpected_message("it sent no hello"));
        };
        if let (Some(permit), Some(_)) = (&self.permit, &self.server.key) {
            permit.prove();
        }
        let Some(propose) = self.receive_proposal(control)? else {
            return Ok(());
        };
        let (server, protocol) = (self.server, control::PROTOCOL.name);
        if let Some(problem) = reject_plan(&propose.plan) {
            server.interop.reject_request(protocol, self.peer, &problem);
            return control.send(Reject {
                problem,
                exit_code: exit_codes::USAGE,
                retryable: false,
            });
        }
        match self.server.wait_for_test(self.peer.ip()) {
            Ok(reservation) => self.reservation = Some(reservation),
            Err(rejection) => {
                server.interop.reject_test(protocol, self.peer, &rejection);
                return control.send(rejection.reply);
            }
        }
        self.permit = None;
        self.emit(EventKind::Connected {
            peer: self.peer.to_string(),
            agent: client_hello.agent.clone(),
            accepted: true,
        });
        let host = self.stack.host_facts(self.peer.ip());
        let shares_cores = client_hello.boot_id.is_some() && client_hello.boot_id == host.boot_id;
        let accepted = match self.negotiate(propose.plan, &host, shares_cores) {
            Ok(accepted) => accepted,
            Err(NotAgreed::Failed(error)) => return Err(error),
            Err(NotAgreed::Rejected(rejection)) => {
                self.emit(EventKind::Failed {
                    problem: rejection.problem.clone(),
                });
                return control.send(rejection);
            }
        };
        let AcceptedTest {
            accept,
            thread_plan,
            arrivals,
            // Held until this function returns, so until the test ends.
            idle_hold: _idle_hold,
            timestamping,
            warnings,
        } = accepted;
        control.limit_frame_bytes(max_frame_bytes(&accept.plan));
        control.send(accept.clone())?;
        let plan = Arc::new(Plan {
            timestamps: timestamping,
            ..accept.plan.clone()
        });
        let memory = FlowMemory::before_flows();
        let disciplines = pacing::qdiscs(&host);
        let (flows, responder) = self.attach_flows(&accept, control, &arrivals, &disciplines)?;
        let netstack = self.stack.netstack();
        let ready = setup::start_workers(
            &plan,
            Role::Server,
            &thread_plan,
            netstack,
            flows,
            &mut || {
                responder.confirm_repeated();
                self.poll_control(control)
            },
        )?;
        // Read before the client may start: everything counted from here on belongs to the test.
        let ipv6 = self.peer.ip().to_canonical().is_ipv6();
        let local_counters = read_local_counters(Role::Server, &host, ipv6);
        let network = self.server.network.as_ref();
        let path_counters = PathCounters::read_first(network, self.peer.ip(), self.local.ip());
        control.send(FlowsAttached {})?;
        let start = control.receive_until(
            deadline_after(self.server.interop.timeouts().handshake),
            &self.server.stop,
            &mut || {
                responder.confirm_repeated();
            },
        )?;
        drop(responder);
        let start = match start {
            Frame::Start(start) => start,
            Frame::Bye(_) => return Err(self.client_cancelled()),
            _ => return Err(self.unexpected_message("it sent no start")),
        };
        if let Some(reservation) = &mut self.reservation {
            reservation.started = true;
        }
        let counters = (local_counters, path_counters);
        // Stops when this function returns, too.
        let _load = CpuLoad::start(plan.round_trip.load_threads.server)
            .map_err(|error| SessionError::system("new thread", error))?;
        self.run_test(
            control,
            client_hello.agent,
            &plan,
            host,
            (ready, memory),
            &accept,
            start,
            shares_cores,
            counters,
            warnings,
        )
    }

    /// Replies to clock requests and applies settings until the client proposes a test; `None` when
    /// it disconnects first. The settings are restored on return; they are independent of those of
    /// tests.
    fn receive_proposal(
        &self,
        control: &mut ControlConnection,
    ) -> Result<Option<Propose>, SessionError> {
        let mut deadline_ns = deadline_after(self.server.interop.timeouts().handshake);
        let mut applied = None;
        loop {
            match control.receive_until(deadline_ns, &self.server.stop, &mut || {})? {
                Frame::Propose(propose) => return Ok(Some(*propose)),
                Frame::ClockRequest(request) => {
                    let t2_ns = clock::now();
                    control.send(ClockReply {
                        t1_ns: request.t1_ns,
                        t2_ns,
                        t3_ns: clock::now(),
                    })?;
                }
                Frame::Settings(changes) => {
                    let backend = self.server.tuning.as_ref();
                    control.send(remote_settings::apply_settings(
                        backend,
                        &mut applied,
                        changes.requested,
                    ))?;
                    if applied.is_some() {
                        // The settings stay for as long as heartbeats arrive.
                        deadline_ns = u64::MAX;
                    }
                }
                Frame::Bye(_) => return Ok(None),
                _ => return Err(self.unexpected_message("it sent no proposal")),
            }
        }
    }

    /// Resolves this end's part of the plan, reserves resources and announces the flows.
    fn negotiate(
        &mut self,
        mut plan: Plan,
        host: &HostFacts,
        shares_cores: bool,
    ) -> Result<AcceptedTest, NotAgreed> {
        let same_machine = is_same_machine(
            self.peer.ip(),
            self.local.ip(),
            self.server.network.as_deref(),
        );
        let (timestamping, warnings) = self.grant_timestamping(plan.timestamps, same_machine);
        let with_timestamping = |plan: &Plan| Plan {
            timestamps: timestamping,
            ..plan.clone()
        };
        descriptor_limit::check(&with_timestamping(&plan), Role::Server)?;
        if let Some(rejection) = self.server.interop.limits().reject_plan(&plan) {
            return Err(NotAgreed::Rejected(Reject {
                problem: rejection.to_report(),
                exit_code: exit_codes::PEER,
                retryable: false,
            }));
        }
        self.check_group(&plan, same_machine)?;
        let offload_warning = self.stack.resolve_plan(&mut plan, &self.server.grants)?;
        self.check_sched(&plan)?;
        let pacing_warning = match plan.has_direction(Direction::Receive) {
            true => self.stack.check_pacing(&plan, host)?,
            false => None,
        };
        // On the same machine, the hold of the client is enough.
        let idle_hold = if plan.hold_latency && !shares_cores {
            if !self.server.grants.contains(&Grant::Idle) {
                return Err(NotAgreed::Failed(SessionError::OptionRejected {
                    option: "--hold-latency".to_owned(),
                    why: "the server permits no --hold-latency of clients".to_owned(),
                    next_step: "start it as root with `linerate server --grant idle`".to_owned(),
                }));
            }
            setup::hold_idle_states(&plan)?
        } else {
            None
        };
        self.check_load(&plan)?;
        if plan.protocol == TransportProtocol::Tcp && plan.has_direction(Direction::Receive) {
            // With both directions, the client's choice applies to both; a default may differ.
            plan.congestion_control = plan
                .congestion_control
                .or_else(|| self.stack.congestion_control());
        }
        let requested = plan.wait.as_ref().map(|wait| wait.server);
        let busy_threads = self.server.busy_threads();
        let thread_plan = self
            .stack
            .thread_plan(&plan, requested, shares_cores, busy_threads)?;
        let threads = thread_plan.threads_by_role(&plan, Role::Server);
        let arrivals;
        let mut flows = Vec::new();
        {
            let reservation = self
                .reservation
                .as_mut()
                .expect("no agreement without a reservation");
            let thread_count = threads.iter().map(|&(_, count)| count).sum();
            if let Some(problem) = check_traced_threads(&plan, thread_count) {
                return Err(NotAgreed::Rejected(Reject {
                    problem,
                    exit_code: exit_codes::USAGE,
                    retryable: false,
                }));
            }
            let cpus = match timestamping.is_none() {
                true => 0,
                false => scheduler_tracer::traced_processors(),
            };
            let bytes = memory_bytes(&with_timestamping(&plan), &threads, cpus);
            reservation.reserve(bytes, thread_count)?;
            reservation.reserve_load_threads(
                plan.round_trip.load_threads.server as usize,
                count_usable_cpus(),
            )?;
            if plan.round_trip.needs_flow_socket() {
                reservation.reserve_ports(plan.streams as usize * plan.directions.len())?;
            }
            let (sockets, receiver) = mpsc::channel();
            arrivals = receiver;
            let directions = (plan.directions.iter())
                .flat_map(|&direction| (0..plan.streams).map(move |_| direction));
            for (id, direction) in (1..).zip(directions) {
                let token = new_token()?;
                let mut port = None;
                if plan.round_trip.needs_flow_socket() {
                    let interface = self.server.interface.as_deref();
                    let (local, peer) = (self.local, self.peer.ip());
                    let (socket, service_port) = self
                        .stack
                        .open_service_socket(&plan, local, peer, interface, token)?;
                    port = Some(service_port);
                    // The receiver is in scope, so the send cannot fail.
                    let _ = sockets.send((id, socket));
                } else {
                    let waiting = AnnouncedFlow {
                        id,
                        protocol: plan.protocol,
                        local: self.local,
                        peer: self.peer.ip(),
                        sockets: sockets.clone(),
                    };
                    let reservation = self
                        .reservation
                        .as_mut()
                        .expect("no agreement without a reservation");
                    reservation.announce_flow(token, waiting);
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
            wait: thread_plan.wait,
            cpus: thread_plan.cpus.clone(),
            flows,
            caveats: offload_warning.into_iter().chain(pacing_warning).collect(),
            wait_reason: thread_plan.reason.clone(),
            threads: Some(thread_plan.thread_count()),
        };
        Ok(AcceptedTest {
            accept,
            thread_plan,
            arrivals,
            idle_hold,
            timestamping,
            warnings,
        })
    }

    /// Returns the timestamping that this end grants of what the client requests, and the reasons
    /// where it is less. The client keeps its own level.
    fn grant_timestamping(
        &mut self,
        requested: TimestampLevel,
        same_machine: bool,
    ) -> (TimestampLevel, Vec<String>) {
        if let Some(timestamping) = self.stack.timestamping(requested) {
            return timestamping;
        }
        let granted = same_machine || self.server.grants.contains(&Grant::Trace);
        let reservation = self
            .reservation
            .as_mut()
            .expect("no agreement without a reservation");
        let reason = match requested {
            TimestampLevel::None | TimestampLevel::Packets => return (requested, Vec::new()),
            _ if !granted => {
                "server: no scheduler tracing for remote clients: start it with --grant trace"
            }
            _ if reservation.acquire_tracing() => return (requested, Vec::new()),
            _ => {
                "server: one test at a time may trace the scheduler, and another does: try again \
                 later"
            }
        };
        (TimestampLevel::Packets, vec![reason.to_owned()])
    }

    /// Checks the grant for multicast: a group membership brings traffic of any sender to this
    /// host.
    fn check_group(&self, plan: &Plan, same_machine: bool) -> Result<(), SessionError> {
        match &plan.round_trip.group {
            Some(group) if !same_machine && !self.server.grants.contains(&Grant::Multicast) => {
                Err(SessionError::OptionRejected {
                    option: format!("--multicast {group}"),
                    why: "the server joins no multicast groups for remote clients".to_owned(),
                    next_step: "start it with `linerate server --grant multicast`".to_owned(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Checks the grant for CPU load threads.
    fn check_load(&self, plan: &Plan) -> Result<(), SessionError> {
        let threads = plan.round_trip.load_threads.server;
        if threads > 0 && !self.server.grants.contains(&Grant::Load) {
            return Err(SessionError::OptionRejected {
                option: format!(
                    "--load cpu:{}/{threads}",
                    plan.round_trip.load_threads.client
                ),
                why: "the server permits no --load of clients".to_owned(),
                next_step: "start it with `linerate server --grant load`, or load the client \
                            alone: --load cpu"
                    .to_owned(),
            });
        }
        Ok(())
    }

    fn check_sched(&self, plan: &Plan) -> Result<(), SessionError> {
        // A positive nice value takes no CPU time from others.
        let needs_grant = !matches!(
            plan.sched.server,
            SchedPolicy::Inherited | SchedPolicy::Nice(0..)
        );
        if needs_grant && !self.server.grants.contains(&Grant::Sched) {
            return Err(SessionError::OptionRejected {
                option: format!("--sched {}", plan.sched),
                why: "the server permits no --sched of clients".to_owned(),
                next_step: "start it as root with `linerate server --grant sched`, or set it for \
                            the client alone: --sched CLASS/inherited"
                    .to_owned(),
            });
        }
        Ok(())
    }

    /// Waits until every announced flow has arrived.
    fn attach_flows(
        &self,
        accept: &Accept,
        control: &mut ControlConnection,
        arrivals: &mpsc::Receiver<(u32, AcceptedSocket)>,
        disciplines: &[String],
    ) -> Result<(Vec<AgreedFlow>, FlowOpenResponder), SessionError> {
        let expected = accept.flows.len();
        let start_time = Instant::now();
        // Thousands of flows open one after the other: the timeout restarts with each arrival.
        let (mut last_arrival, mut polled_at) = (start_time, start_time);
        let mut flows: Vec<AgreedFlow> = Vec::with_capacity(expected);
        let mut responder = FlowOpenResponder::default();
        while flows.len() < expected {
            let arrival = arrivals.recv_timeout(CONTROL_POLL_INTERVAL);
            if let Ok((id, arrival)) = arrival {
                last_arrival = Instant::now();
                let opening = match arrival {
                    AcceptedSocket::Exhausted(limit) => {
                        let expected = (expected - flows.len()) as u32;
                        return Err(SessionError::FewSockets {
                            limit,
                            missing: expected,
                        });
                    }
                    AcceptedSocket::Kernel(fd) => FlowOpening::Adopt(fd),
                    AcceptedSocket::Netstack(socket) => FlowOpening::AdoptNetstack(socket),
                };
                if let Some(grant) = (id as usize)
                    .checked_sub(1)
                    .and_then(|index| accept.flows.get(index))
                {
                    // The user-space stack confirms openings itself.
                    if let (TransportProtocol::Udp, FlowOpening::Adopt(fd)) =
                        (accept.plan.protocol, &opening)
                    {
                        let client = (grant.port.is_some()).then(|| self.peer.ip());
                        (responder.add(fd, grant.token, client))
                            .map_err(|error| SessionError::system("a flow's socket", error))?;
                    }
                    let flow_role = flow_role(Role::Server, grant.direction);
                    let mut options = flow_options(&accept.plan, flow_role);
                    options.addressing = flow_socket::peer_addressing(&accept.plan, self.peer.ip());
                    let remote = self.peer.ip();
                    pacing::apply_pacing(
                        &mut options,
                        &accept.plan,
                        flow_role,
                        disciplines,
                        remote,
                    );
                    if let Some(max_bps) = self.server.interop.limits().rate_bps {
                        pacing::limit_tcp_rate(&mut options, &accept.plan, flow_role, max_bps);
                    }
                    options.force_buffers = accept.plan.forced_buffers.server;
                    flows.push(AgreedFlow {
                        id,
                        direction: grant.direction,
                        opening,
                        options,
                        token: grant.token,
                        framing: Framing::Linerate,
                    });
                }
            }
            if polled_at.elapsed() < CONTROL_POLL_INTERVAL {
                continue;
            }
            polled_at = Instant::now();
            responder.confirm_repeated();
            self.poll_control(control)?;
            let timeouts = self.server.interop.timeouts();
            if last_arrival.elapsed() > timeouts.attach
                || start_time.elapsed() > timeouts.attach_all(expected)
            {
                return Err(SessionError::PeerLost {
                    peer: self.peer,
                    reason: format!(
                        "only {} of {expected} flows arrived within {} s",
                        flows.len(),
                        start_time.elapsed().as_secs()
                    ),
                });
            }
        }
        flows.sort_by_key(|flow| flow.id);
        Ok((flows, responder))
    }

    /// Services the control connection while the session waits for something else.
    fn poll_control(&self, control: &mut ControlConnection) -> Result<(), SessionError> {
        if self.server.stop.load(Relaxed) {
            return Err(SessionError::Interrupted);
        }
        if let Some(Frame::Bye(_) | Frame::Reject(_)) = control.receive()? {
            return Err(self.client_cancelled());
        }
        control.send_heartbeat()?;
        control.flush()
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "results of the handshake, used once"
    )]
    fn run_test(
        &self,
        control: &mut ControlConnection,
        agent: String,
        plan: &Plan,
        host: HostFacts,
        (ready, memory): (ReadyWorkers, FlowMemory),
        accept: &Accept,
        start: StartRun,
        shares_cores: bool,
        counters: (CounterSnapshot, Option<PathCounters>),
        warnings: Vec<String>,
    ) -> Result<(), SessionError> {
        let (local_counters, path_counters) = counters;
        let ipv6 = self.peer.ip().to_canonical().is_ipv6();
        let started = jiff::Timestamp::now();
        // Clients that do not send their wait mode use the requested one, or the same as the
        // server.
        let requested = plan.wait.as_ref().map_or(accept.wait, |wait| wait.client);
        let wait = PerEnd {
            client: start.wait.unwrap_or(requested),
            server: accept.wait,
        };
        let cpu = PerEnd {
            client: start.cpus.unwrap_or_else(|| plan.cpu.client.clone()),
            server: accept.cpus.clone(),
        };
        let mut plan = plan.clone();
        plan.wait = Some(wait.clone());
        plan.threads = (start.threads.zip(accept.threads)).map(|(client, remote)| PerEnd {
            client,
            server: remote,
        });
        self.emit(EventKind::Started {
            plan: Box::new(plan.clone()),
            wait,
            cpu,
            wait_reason: accept.wait_reason.clone(),
        });
        let results = Coordinator {
            role: Role::Server,
            plan: Arc::new(plan.clone()),
            host,
            control,
            ready,
            memory,
            stop_requested: &self.server.stop,
            emit: &mut |what| self.emit(what),
            caveats: accept.caveats.clone(),
            measures_steal: !shares_cores,
            timestamp_warnings: warnings,
            local_counters,
            time_limit: self.server.interop.limits().time_limit(&plan),
        }
        .run();
        let (mut record, failure) = assemble_record(RecordInputs {
            plan,
            started_at: started,
            role: Role::Server,
            results,
            path: path_counters.map(PathCounters::read_again),
            ipv6,
            clocks: None,
            totals: Vec::new(),
            peer_text: None,
        });
        // The client stores the same run.
        record.recorded_by = Some(Role::Server);
        record.served_client = Some(ServedClient {
            address: self.peer.to_string(),
            agent,
        });
        self.emit(EventKind::Finished {
            record: Box::new(record),
        });
        failure.map_or(Ok(()), Err)
    }

    fn unexpected_message(&self, how: &str) -> SessionError {
        SessionError::PeerLost {
            peer: self.peer,
            reason: format!("unexpected message: {how}"),
        }
    }

    fn client_cancelled(&self) -> SessionError {
        SessionError::PeerLost {
            peer: self.peer,
            reason: "it cancelled the test before the start".to_owned(),
        }
    }
}

/// Returns whether the client runs on this machine, and so already has the privileges that it
/// requests. Its address is one of this host, or both are in the lab that the server was started
/// in. What the client claims does not count.
fn is_same_machine(peer: IpAddr, local: IpAddr, lab: Option<&LabNetwork>) -> bool {
    is_local_address(peer) || lab.is_some_and(|lab| lab.path(peer, local).is_some())
}

fn new_token() -> Result<FlowToken, SessionError> {
    random::bytes().map(FlowToken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_local_by_its_address_alone() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut lab = LabNetwork::default();
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
            assert_eq!(
                is_same_machine(address(peer), local, lab),
                want,
                "{peer} {inside}"
            );
        }
    }
}
