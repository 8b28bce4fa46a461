//! Client: requests a test from a server and runs its end.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_protocol::control::clock_offset::{ClockSample, OffsetEstimate};
use linerate_protocol::control::{
    Accept, Bye, ClockRequest, ControlCodec, Frame, PresharedKey, Propose, Reject, StartRun,
};
use linerate_record::event::EventKind;
use linerate_record::facts::Role;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, PerEnd, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, Record};
use linerate_record::stack::ControlPath;
use linerate_sys::{clock, fd_table};
use linerate_transport::flow_role::FlowRole;
use linerate_workload::timestamps::ClockOffsets;

use crate::client_agreement::{apply_reply, granted_flows};
use crate::client_caveats::warnings_before;
use crate::client_stack::{ClientStack, try_in_order};
use crate::control_connection::{ControlConnection, SERVER_SILENCE_TIMEOUT};
use crate::coordinator::Coordinator;
use crate::cpu_load::CpuLoad;
use crate::dial::{AddressFamily, RETRY_INTERVAL, SourceBinding, connect, resolve_host};
use crate::error::SessionError;
use crate::flow_memory::FlowMemory;
use crate::loss::{LabNetwork, PathCounters, read_local_counters};
use crate::path_timeouts::resolve_response_timeout;
use crate::record_assembly::{RecordInputs, assemble_record};
use crate::thread_plan::{ThreadPlan, usable_cpus};
use crate::{boot_id, descriptor_limit, hello, pacing, random, setup};

/// Test to request from a server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Requested plan; open values are resolved during the negotiation.
    pub plan: Plan,
    pub family: AddressFamily,
    /// Time during which failed attempts are repeated.
    pub retry_timeout: Duration,
    /// Shared secret that both ends prove to each other.
    pub key: Option<PresharedKey>,
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
        emit: &mut dyn FnMut(EventKind),
    ) -> Result<(Record, Option<SessionError>), SessionError> {
        self.run_in_network(None, stop, emit)
    }

    /// Runs the test in a lab network, whose counters account for every lost datagram.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub fn run_in_network(
        &self,
        network: Option<&Arc<LabNetwork>>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(EventKind),
    ) -> Result<(Record, Option<SessionError>), SessionError> {
        // Checked first, so that an option this machine lacks is reported here and not by the
        // server.
        usable_cpus(&self.plan, Role::Client)?;
        fd_table::raise_open_file_limit();
        let local = SourceBinding::parse(self.plan.bind.as_deref())?;
        let stack = ClientStack::start(&self.plan)?;
        let started = Instant::now();
        loop {
            let attempted = self.attempt(&stack, &local, network, stop, emit);
            match attempted.map_err(|error| stack.explain_error(error)) {
                Err(error) if error.may_pass() && started.elapsed() < self.retry_timeout => {
                    std::thread::sleep(RETRY_INTERVAL);
                    if stop.load(Relaxed) {
                        return Err(SessionError::Interrupted);
                    }
                }
                done => return done.map(|done| stack.explain_results(done)),
            }
        }
    }

    /// Makes one attempt, from the connect to the record.
    fn attempt(
        &self,
        stack: &ClientStack,
        local: &SourceBinding,
        network: Option<&Arc<LabNetwork>>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(EventKind),
    ) -> Result<(Record, Option<SessionError>), SessionError> {
        let stream = stack.connect(self, local, stop)?;
        let (client_address, server) = (stream.local, stream.peer);
        let hello_frame = hello(boot_id());
        let connection = match &self.key {
            None => ControlCodec::client(hello_frame),
            Some(key) => ControlCodec::authenticated_client(hello_frame, random::new_proof(key)?),
        };
        let connection = connection.map_err(|source| SessionError::Protocol {
            peer: server,
            source,
        })?;
        let mut control = ControlConnection::new(stream, connection)?
            .with_silence_timeout(SERVER_SILENCE_TIMEOUT);
        let hello_sent_ns = clock::now();
        let Frame::Hello(hello_frame) = control.receive_next(stop)? else {
            return Err(unexpected_message(server, "it sent no hello"));
        };
        let hello_wait_ns = clock::now().saturating_sub(hello_sent_ns);
        let host = stack.host_facts(server.ip());
        let shares_cores = hello_frame.boot_id.is_some() && hello_frame.boot_id == host.boot_id;
        let mut plan = self.plan.clone();
        resolve_response_timeout(&mut plan, Some(control.rtt_ns().unwrap_or(hello_wait_ns)));
        descriptor_limit::check(&plan, Role::Client)?;
        let offload_warning = stack.resolve_plan(&mut plan, server, local)?;
        let pacing_warning = stack.check_pacing(&plan, paced_role(&plan), &host)?;
        let _idle_hold = setup::hold_idle_states(&plan)?;
        // Timestamps of one machine share a clock already.
        let needs_clock_offset = plan.is_traced() && !shares_cores;
        let first_offset = if needs_clock_offset {
            clock_offset(&mut control, stop)?
        } else {
            None
        };
        let _memory = setup::lock_memory(&plan)?;
        control.send(Propose {
            plan: plan.clone(),
            host: host.clone(),
        })?;
        let accept = match control.receive_next(stop)? {
            Frame::Accept(accept) => *accept,
            Frame::Reject(rejection) => return Err(rejected_by(server, rejection)),
            _ => {
                return Err(unexpected_message(
                    server,
                    "it neither accepted nor rejected the plan",
                ));
            }
        };
        apply_reply(&mut plan, &accept).map_err(|how| unexpected_message(server, how))?;
        emit(EventKind::Connected {
            peer: control.peer().to_string(),
            agent: hello_frame.agent,
            accepted: false,
        });
        let requested_wait = self.plan.wait.as_ref().map(|wait| wait.client);
        let thread_plan = stack.thread_plan(&plan, requested_wait, shares_cores)?;
        plan.wait = Some(PerEnd {
            client: thread_plan.wait,
            server: accept.wait,
        });
        // Unknown when the server does not send it.
        plan.threads = accept.threads.map(|server| PerEnd {
            client: thread_plan.thread_count(),
            server,
        });
        let reason = self.wait_reason(&thread_plan, &accept);
        let plan = Arc::new(plan);
        let disciplines = pacing::qdiscs(&host);
        let flows = granted_flows(&plan, &accept, client_address, server, local, &disciplines);
        let local_address = stack
            .local_address_towards(server.ip())
            .unwrap_or(client_address.ip());
        let memory = FlowMemory::before_flows();
        let mut confirmed = false;
        let ready = setup::start_workers(
            &plan,
            Role::Client,
            &thread_plan,
            stack.netstack(),
            flows,
            &mut || {
                if stop.load(Relaxed) {
                    return Err(SessionError::Interrupted);
                }
                match control.receive()? {
                    None | Some(Frame::Heartbeat(_)) => {}
                    // The server has its last flow before the client receives its confirmation.
                    Some(Frame::Attached(_)) => confirmed = true,
                    Some(Frame::Reject(rejection)) => return Err(rejected_by(server, rejection)),
                    Some(_) => return Err(unexpected_message(server, "a frame before the start")),
                }
                control.send_heartbeat()?;
                control.flush()
            },
        );
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                let _ = control.send(Bye {});
                return Err(error);
            }
        };
        if !confirmed {
            match control.receive_next(stop) {
                Ok(Frame::Attached(_)) => {}
                Ok(Frame::Reject(rejection)) => return Err(rejected_by(server, rejection)),
                Ok(_) => return Err(unexpected_message(server, "it did not confirm the flows")),
                Err(error) => {
                    let _ = control.send(Bye {});
                    return Err(error);
                }
            }
        }
        emit(EventKind::Started {
            plan: Box::new(Plan::clone(&plan)),
            wait: PerEnd {
                client: thread_plan.wait,
                server: accept.wait,
            },
            cpu: PerEnd {
                client: thread_plan.cpus.clone(),
                server: accept.cpus.clone(),
            },
            wait_reason: reason,
        });
        let mut caveats = accept.caveats.clone();
        caveats.extend(offload_warning);
        caveats.extend(pacing_warning);
        caveats.extend(warnings_before(&plan, shares_cores, host.cpu.logical));
        for caveat in &caveats {
            emit(EventKind::CaveatRaised {
                caveat: caveat.clone(),
            });
        }
        let ipv6 = server.ip().to_canonical().is_ipv6();
        let local_counters = read_local_counters(Role::Client, &host, ipv6);
        let path_counters = PathCounters::read_first(network, local_address, server.ip());
        let _load = CpuLoad::start(plan.round_trip.load_threads.client)
            .map_err(|error| SessionError::system("new thread", error))?;
        let started = Timestamp::now();
        control.send(StartRun {
            wait: Some(thread_plan.wait),
            cpus: Some(thread_plan.cpus.clone()),
            threads: Some(thread_plan.thread_count()),
        })?;
        // A server that sends needs no such allowance: its queue does not delay the client's
        // heartbeats. Requests that wait for their responses fill no queue.
        if plan.kind == RunKind::Throughput
            && plan.protocol == TransportProtocol::Udp
            && plan.has_direction(Direction::Send)
        {
            control.expect_send_queue();
        }
        let results = Coordinator {
            role: Role::Client,
            plan: Arc::clone(&plan),
            host,
            control: &mut control,
            ready,
            memory,
            stop_requested: stop,
            emit,
            caveats,
            measures_steal: true,
            timestamp_warnings: Vec::new(),
            local_counters,
            time_limit: None,
        }
        .run();
        let clocks = match first_offset.filter(|_| results.failure.is_none()) {
            Some((first_at_ns, first)) => {
                clock_offset(&mut control, stop)
                    .unwrap_or(None)
                    .map(|(last_at_ns, last)| ClockOffsets {
                        first_at_ns,
                        first,
                        last_at_ns,
                        last,
                    })
            }
            None => None,
        };
        let mut results = results;
        if needs_clock_offset && clocks.is_none() {
            // Timestamps of two clocks without a known offset cannot be compared.
            results.timestamps = None;
        }
        if results.failure.is_none() {
            // The record is complete; a lost farewell changes nothing.
            let _ = control.send(Bye {});
        }
        control.close(Duration::from_secs(1));
        let clock_unknown = needs_clock_offset && clocks.is_none() && results.failure.is_none();
        let (mut record, failure) = assemble_record(RecordInputs {
            plan: Plan::clone(&plan),
            started_at: started,
            role: Role::Client,
            results,
            path: path_counters.map(PathCounters::read_again),
            ipv6,
            clocks,
            totals: Vec::new(),
            peer_text: None,
        });
        if clock_unknown {
            record.validity.push(Caveat::new(
                CaveatId::ClockUnknown,
                "the offset of the server's clock is unknown: timestamps of both ends are not combined",
            ));
        }
        let failure = failure.or_else(|| broken_flow(&record, server));
        Ok((record, failure))
    }

    /// Returns the reason of the wait modes, unless they were requested.
    fn wait_reason(&self, thread_plan: &ThreadPlan, accept: &Accept) -> Option<String> {
        if self.plan.wait.is_some() {
            return None;
        }
        let client_receives =
            self.plan.kind == RunKind::Latency || self.plan.has_direction(Direction::Receive);
        if client_receives {
            return thread_plan.reason.clone();
        }
        accept.wait_reason.clone()
    }

    /// Returns the usable addresses of the server, as [`resolve_host`] does.
    pub fn addresses(&self, local: &SourceBinding) -> Result<Vec<SocketAddr>, SessionError> {
        // The user-space stack has one link, so a scope id of a kernel interface does not apply.
        let stack_plan = self.plan.client_stack.as_ref();
        let has_scopes =
            !stack_plan.is_some_and(|stack_plan| stack_plan.control == ControlPath::Stack);
        let plan = &self.plan;
        resolve_host(&plan.host, plan.port, self.family, local, has_scopes)
    }

    pub fn connect(
        &self,
        local: &SourceBinding,
        stop: &AtomicBool,
    ) -> Result<TcpStream, SessionError> {
        try_in_order(self.addresses(local)?, |address| {
            connect(address, local, stop)
        })
    }
}

/// Measures the server's clock offset with several requests; returns it with the server's time.
/// `None` when the replies are inconsistent.
fn clock_offset(
    control: &mut ControlConnection,
    stop: &AtomicBool,
) -> Result<Option<(u64, OffsetEstimate)>, SessionError> {
    /// Number of requests; the one with the shortest round trip decides.
    const CLOCK_REQUESTS: usize = 40;
    /// Limit for long paths: the server waits at least this long after a test.
    const CLOCK_TIMEOUT_NS: u64 = 800_000_000;
    let server = control.peer();
    let mut samples = Vec::with_capacity(CLOCK_REQUESTS);
    let deadline_ns = clock::now() + CLOCK_TIMEOUT_NS;
    while samples.len() < CLOCK_REQUESTS && (samples.is_empty() || clock::now() < deadline_ns) {
        let t1_ns = clock::now();
        control.send(ClockRequest { t1_ns })?;
        let Frame::ClockReply(reply) = control.receive_next(stop)? else {
            return Err(unexpected_message(server, "it sent no clock reply"));
        };
        samples.push(ClockSample {
            t1_ns,
            t2_ns: reply.t2_ns,
            t3_ns: reply.t3_ns,
            t4_ns: clock::now(),
        });
    }
    let at_ns = samples.last().map_or(0, |sample| sample.t3_ns);
    Ok(OffsetEstimate::from_samples(&samples).map(|offset| (at_ns, offset)))
}

/// Returns the role of the client in the direction that is paced.
fn paced_role(plan: &Plan) -> FlowRole {
    match plan.has_direction(Direction::Send) {
        true => FlowRole::Sender,
        false => FlowRole::Receiver,
    }
}

fn rejected_by(peer: SocketAddr, rejection: Reject) -> SessionError {
    let Reject {
        problem,
        exit_code,
        retryable: may_pass,
    } = rejection;
    let problem = Box::new(problem);
    if may_pass {
        SessionError::PeerBusy { peer, problem }
    } else {
        SessionError::PeerRejected {
            peer,
            problem,
            exit_code,
        }
    }
}

pub(super) fn unexpected_message(peer: SocketAddr, reason: &str) -> SessionError {
    SessionError::PeerLost {
        peer,
        reason: format!("unexpected message: {reason}"),
    }
}

/// Returns the error of a run with a broken flow: its figures end at the break.
fn broken_flow(record: &Record, server: SocketAddr) -> Option<SessionError> {
    let broken = |caveat: &&Caveat| caveat.id == CaveatId::StreamBroken;
    let caveat = record.validity.iter().find(broken)?;
    (!record.interrupted).then(|| SessionError::PeerFailed {
        peer: server,
        situation: format!("the run ended early: {}", caveat.reason),
        next_step:
            "find what resets the connections (a firewall; see the messages of the server); the \
                    figures cover the time until then"
                .to_owned(),
    })
}
