//! Test with another tool's server, from its options to its record.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_protocol::control::FlowToken;
use linerate_record::event::EventKind;
use linerate_record::facts::Role;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, PerEnd, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, Record};
use linerate_session::client::Client;
use linerate_session::client_stack::{ClientStack, try_in_order};
use linerate_session::coordinator::{Coordinator, RunResults};
use linerate_session::cpu_load::CpuLoad;
use linerate_session::dial::{AddressFamily, SourceBinding, local_address_towards};
use linerate_session::error::SessionError;
use linerate_session::flow_memory::FlowMemory;
use linerate_session::loss::{LabNetwork, PathCounters, read_local_counters};
use linerate_session::path_timeouts::resolve_response_timeout;
use linerate_session::setup::AgreedFlow;
use linerate_session::third_party_record::InteropTest;
use linerate_session::thread_plan::usable_cpus;
use linerate_session::{descriptor_limit, pacing, setup};
use linerate_sys::fd_table;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::stack_thread::StackThread;

use super::control_adapter::ControlAdapter;
use super::probe_sockets::ProbeSockets;
use super::setup_context::{SetupContext, protocol_error};
use super::{
    AUTO, ClientProtocolSpec, client_protocol, control_adapter, detect, reject_plan,
    report_command, ttcp_receiver,
};

/// Pause between attempts with `--retry`.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Name of the remote network stack in the plan, which is not known.
const UNKNOWN_STACK: &str = "unknown";

/// Runs a client's test with the protocol that its plan names: ours, or that of another tool.
///
/// # Errors
/// The reason why the test did not start.
pub fn run_client(
    client: &Client,
    network: Option<&Arc<LabNetwork>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(EventKind),
) -> Result<(Record, Option<SessionError>), SessionError> {
    if client.plan.peer_protocol.is_none() {
        return client.run_in_network(network, stop, emit);
    }
    usable_cpus(&client.plan, Role::Client)?;
    if let Some(done) = run(client, network, stop, emit)? {
        return Ok(done);
    }
    // The protocol was to be detected, and is our own.
    let mut native = client.clone();
    native.plan.peer_protocol = None;
    native.run_in_network(network, stop, emit)
}

/// Runs a test; `Ok(None)` if the server turns out to be our own.
///
/// # Errors
/// Error that keeps the run from starting.
fn run(
    client: &Client,
    network: Option<&Arc<LabNetwork>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(EventKind),
) -> Result<Option<(Record, Option<SessionError>)>, SessionError> {
    fd_table::raise_open_file_limit();
    let local = SourceBinding::parse(client.plan.bind.as_deref())?;
    let local_stack = ClientStack::start(&client.plan)?;
    let started = Instant::now();
    loop {
        let addresses = remote_addresses(client, &local_stack, &local);
        let result = addresses.and_then(|addresses| {
            let last = addresses.last().copied();
            try_in_order(addresses, |remote| {
                let is_last = Some(remote) == last;
                let remote = (remote, is_last);
                run_attempt(client, &local_stack, &local, remote, network, stop, emit)
            })
        });
        match result.map_err(|error| local_stack.explain_error(error)) {
            Err(error) if error.may_pass() && started.elapsed() < client.retry_timeout => {
                std::thread::sleep(RETRY_INTERVAL);
                if stop.load(Relaxed) {
                    return Err(SessionError::Interrupted);
                }
            }
            Err(SessionError::ConnectionRefused { address }) => {
                return Err(connection_refused(client, address));
            }
            outcome => {
                return outcome
                    .map(|outcome| outcome.map(|outcome| local_stack.explain_results(outcome)));
            }
        }
    }
}

/// Returns the error for a closed port, with the server to start.
fn connection_refused(client: &Client, address: SocketAddr) -> SessionError {
    let protocol = client.plan.peer_protocol.as_deref().unwrap_or(AUTO);
    protocol_error(
        address,
        format!(
            "connection refused, no program listens there: start the {protocol} server on that host, or name \
             its port with -p"
        ),
    )
}

/// Returns the server's addresses in the order to try them. A receiver that waits for its sender
/// has one, its own.
fn remote_addresses(
    client: &Client,
    local_stack: &ClientStack,
    local: &SourceBinding,
) -> Result<Vec<SocketAddr>, SessionError> {
    if !ttcp_receiver::waits_for_sender(&client.plan) {
        return local_stack.remote_addresses(client, local);
    }
    let ipv6 = client.family == AddressFamily::V6 || local.address.is_some_and(|ip| ip.is_ipv6());
    Ok(vec![ttcp_receiver::unspecified_address(&client.plan, ipv6)])
}

/// Returns the client of the plan's protocol, and the remote address with its port.
fn find_protocol(
    client: &Client,
    local_stack: &ClientStack,
    local: &SourceBinding,
    mut remote: SocketAddr,
    stop: &AtomicBool,
) -> Result<Option<(&'static ClientProtocolSpec, SocketAddr)>, SessionError> {
    if ttcp_receiver::waits_for_sender(&client.plan) {
        return Ok(Some((&ttcp_receiver::RECEIVER, remote)));
    }
    local_stack.prepare_path(remote, stop)?;
    let name = client.plan.peer_protocol.as_deref().unwrap_or(AUTO);
    let found = if name == AUTO {
        let sockets = ProbeSockets {
            local,
            stack: local_stack.netstack().map(StackThread::handle),
            stop,
            shortest_connect: Cell::default(),
        };
        match detect::detect(&client.plan, remote, &sockets)? {
            detect::DetectedProtocol::Linerate => return Ok(None),
            detect::DetectedProtocol::ThirdParty(spec, port) => {
                remote.set_port(port);
                spec
            }
        }
    } else {
        client_protocol(name).ok_or_else(|| SessionError::Unsupported {
            option: format!("--peer {name}"),
            why: "no such protocol".to_owned(),
            next_step: "see `linerate throughput --help` for the list".to_owned(),
        })?
    };
    Ok(Some((found, remote)))
}

/// Runs one attempt with an address, from the connection to the record. Unless the address `is_last`,
/// an attempt that reached no program there is an error.
fn run_attempt(
    client: &Client,
    local_stack: &ClientStack,
    local: &SourceBinding,
    (remote, is_last): (SocketAddr, bool),
    network: Option<&Arc<LabNetwork>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(EventKind),
) -> Result<Option<(Record, Option<SessionError>)>, SessionError> {
    let Some((spec, remote)) = find_protocol(client, local_stack, local, remote, stop)? else {
        return Ok(None);
    };
    let mut plan = client.plan.clone();
    plan.peer_protocol = Some(spec.name.to_owned());
    plan.port = remote.port();
    if let Some(rejection) = reject_plan(spec, &plan) {
        return Err(rejection.to_error(spec.name));
    }
    if client.key.is_some() {
        return Err(SessionError::Unsupported {
            option: format!("--key with --peer {}", spec.name),
            why: "other programs have no proof of a shared key".to_owned(),
            next_step: "leave it out".to_owned(),
        });
    }
    let command = report_command::from_plan(&plan)?;
    let host = local_stack.host_facts(remote.ip());
    descriptor_limit::check(&plan, Role::Client)?;
    let requested_wait = plan.wait.take().map(|wait| wait.client);
    plan.threads = None;
    let is_default_length = plan.protocol == TransportProtocol::Udp && plan.payload_bytes == 0;
    if is_default_length {
        // Where the path carries more, buffers of other programs often do not.
        let max_payload = local_stack.max_packet_payload(remote, local)?;
        plan.payload_bytes = spec.datagram_bytes.min(max_payload);
    }
    let setting_caveat = local_stack.resolve_plan(&mut plan, remote, local)?;
    let pacing_caveat = match plan.has_direction(Direction::Send) {
        true => local_stack.check_pacing(&plan, FlowRole::Sender, &host)?,
        false => None,
    };
    let _hold = setup::hold_idle_states(&plan)?;
    let _memory = setup::lock_memory(&plan)?;
    let disciplines = pacing::qdiscs(&host);
    let memory = FlowMemory::before_flows();
    let context = SetupContext {
        plan: &plan,
        remote,
        local,
        stop,
        disciplines: &disciplines,
        stack: local_stack.netstack().map(StackThread::handle),
    };
    let shares_cores = remote.ip().to_canonical().is_loopback();
    let thread_plan = local_stack.thread_plan(&plan, requested_wait, shares_cores)?;
    let mut driver = (spec.open)(&context)?;
    let rtt_ns = driver.rtt_ns();
    let mut plan = plan.clone();
    resolve_response_timeout(&mut plan, rtt_ns);
    let context = SetupContext {
        plan: &plan,
        ..context
    };
    let directions: BTreeMap<u32, Direction>;
    let flows: Vec<AgreedFlow> = {
        let new_flows = driver.flows();
        directions = new_flows
            .iter()
            .map(|flow| (flow.id, flow.direction))
            .collect();
        let agreed = new_flows.into_iter().map(|flow| AgreedFlow {
            id: flow.id,
            direction: flow.direction,
            opening: flow.opening,
            options: context.flow_options(flow.direction),
            token: FlowToken([0; 16]),
            framing: flow.framing,
        });
        agreed.collect()
    };
    let remote = driver.peer().unwrap_or(remote);
    if driver.peer().is_some() {
        plan.host = remote.ip().to_canonical().to_string();
        plan.port = remote.port();
    }
    plan.client_wait = Some(thread_plan.wait);
    plan.stack.server = UNKNOWN_STACK.to_owned();
    emit(EventKind::Connected {
        peer: remote.to_string(),
        agent: driver.agent(),
        accepted: driver.peer().is_some(),
    });
    let plan = Arc::new(plan);
    let ready = setup::start_workers(
        &plan,
        Role::Client,
        &thread_plan,
        local_stack.netstack(),
        flows,
        &mut || {
            if stop.load(Relaxed) {
                return Err(SessionError::Interrupted);
            }
            driver.poll(linerate_sys::clock::now())
        },
    )?;
    emit(EventKind::Started {
        plan: Box::new(Plan::clone(&plan)),
        wait: PerEnd::same(thread_plan.wait),
        cpu: PerEnd {
            client: thread_plan.cpus.clone(),
            server: Default::default(),
        },
        wait_reason: thread_plan
            .reason
            .clone()
            .filter(|_| requested_wait.is_none()),
    });
    let caveats: Vec<Caveat> = setting_caveat.into_iter().chain(pacing_caveat).collect();
    for caveat in &caveats {
        emit(EventKind::CaveatRaised {
            caveat: caveat.clone(),
        });
    }
    let ipv6 = remote.ip().to_canonical().is_ipv6();
    let counters = read_local_counters(Role::Client, &host, ipv6);
    let local_ip = match local_stack.netstack() {
        Some(netstack) => netstack.source_address_for(remote.ip()),
        None => local.address.or_else(|| local_address_towards(remote)),
    };
    let path_counters =
        local_ip.and_then(|local_ip| PathCounters::read_first(network, local_ip, remote.ip()));
    let shared = ready.flows.iter();
    let shared = shared.map(|flow| (directions[&flow.id], Arc::clone(&flow.shared)));
    let mut control = ControlAdapter::new(
        &mut *driver,
        &plan,
        remote,
        shared.collect(),
        local_stack.netstack(),
        stop,
    )?;
    let _cpu_load = CpuLoad::start(plan.round_trip.load_threads.client)
        .map_err(|error| SessionError::system("new thread", error))?;
    let started = Timestamp::now();
    let mut results = Coordinator {
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
        local_counters: counters,
        time_limit: None,
    }
    .run();
    if control.has_stopped() {
        let caveats = &mut results.local.caveats;
        caveats.retain(|caveat| caveat.id != CaveatId::StreamBroken);
    }
    let broken = broken_flow_error(remote, &results).filter(|_| !results.interrupted);
    let broken = broken.or_else(|| {
        no_response_error(remote, &plan, &results.local).filter(|_| !results.interrupted)
    });
    let broken = broken.or_else(|| {
        let has_no_report = ["ttcp", "discard"].contains(&spec.name);
        rejected_datagrams_error(remote, &results.local).filter(|_| has_no_report)
    });
    let tries_next = !is_last && rejected_datagrams_error(remote, &results.local).is_some();
    // Only such an error lets `try_in_order` continue: any other would lose the record of the run.
    if let Some(failure) =
        (results.failure).take_if(|failure| tries_next && failure.depends_on_address())
    {
        emit(EventKind::Waiting {
            activity: format!(
                "{failure}; the next address of {} follows",
                client.plan.host
            ),
        });
        return Err(failure);
    }
    let mut test = InteropTest::new(spec.name, Plan::clone(&plan), started, results.local);
    test.local_results.interrupted |= results.interrupted;
    test.intervals = results.intervals;
    test.dropped_intervals = results.intervals_omitted;
    test.remote_report = driver.remote_report();
    test.acknowledged = driver.acknowledged();
    test.counted_from_ns = results.counted_from_ns;
    test.failure = results.failure.or(broken);
    if let Some(remote_message) = driver.remote_error().filter(|_| test.failure.is_none()) {
        test.local_results.caveats.push(Caveat::new(
            CaveatId::RemoteError,
            format!(
                "the server reported a failure ({remote_message}); its figures, and those of this \
                 end, are what was moved all the same"
            ),
        ));
    }
    test.ipv6 = ipv6;
    test.path_counters = path_counters.map(PathCounters::read_again);
    test.timestamps = results.timestamps;
    let mut report_failure = None;
    if let Some(command) = command.filter(|_| test.failure.is_none()) {
        let sent = report_command::SentTotals::from_results(&test.local_results);
        let mut progress = |message| emit(EventKind::Waiting { activity: message });
        let fetched = command.fetch_count(stop, &mut progress).and_then(|count| {
            let warning = count.warning.clone();
            command.add_to_report(count, &plan, sent, &mut test.remote_report)?;
            Ok(warning)
        });
        match fetched {
            Ok(warning) => {
                let warning =
                    warning.map(|warning| Caveat::new(CaveatId::RemoteReportInconsistent, warning));
                test.local_results.caveats.extend(warning);
            }
            Err(cause) => {
                let caveat = Caveat::new(CaveatId::RemoteReportFailed, cause.to_string());
                test.local_results.caveats.push(caveat);
                report_failure = Some(SessionError::ReportCommand(cause.to_report()));
            }
        }
    }
    let (record, failure) = test.into_record();
    Ok(Some((record, failure.or(report_failure))))
}

/// Returns the error for a run in which no request got a response.
fn no_response_error(
    remote: SocketAddr,
    plan: &Plan,
    results: &linerate_protocol::control::EndResults,
) -> Option<SessionError> {
    let mut flows = results.streams.iter();
    let none = flows.all(|flow| flow.stream.summary.round_trips.unwrap_or(0) == 0);
    (plan.kind == RunKind::Latency && none).then(|| {
        protocol_error(
            remote,
            "no response from there: start the server, name its port with -p, or its protocol with --peer",
        )
    })
}

/// Returns the error for datagrams to a closed port, reported by the remote kernel only.
fn rejected_datagrams_error(
    remote: SocketAddr,
    results: &linerate_protocol::control::EndResults,
) -> Option<SessionError> {
    let senders = results
        .streams
        .iter()
        .filter_map(|flow| flow.stream.sender.as_ref());
    let rejected = senders.filter_map(|sender| sender.port_unreachable).max()?;
    (rejected > 0).then(|| control_adapter::closed_port_error(remote))
}

/// Returns the error for a broken flow: the server rejected it or has gone.
fn broken_flow_error(remote: SocketAddr, results: &RunResults) -> Option<SessionError> {
    let caveats = &results.local.caveats;
    let broken = caveats
        .iter()
        .find(|caveat| caveat.id == CaveatId::StreamBroken)?;
    let text = &broken.reason;
    Some(protocol_error(
        remote,
        match results.connection_refused {
            true => format!(
                "no program accepts payload there ({text}): start the server, or name its port with -p"
            ),
            false => format!("the server closed the flow ({text}): see its own messages"),
        },
    ))
}
