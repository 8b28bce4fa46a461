//! Plans as text: titles, names and details.

use linerate_record::pace::PacingMethod;
use linerate_record::plan::{
    CopyModes, CpuList, DEFAULT_BUSY_POLL_NS, Direction, PerEnd, Plan, RunKind, SchedPolicy,
    TransportProtocol, WaitMode,
};
use linerate_record::record::{Record, StreamFigures};
use linerate_stats::units::{format_bit_rate, format_bytes, format_count, format_exact_bytes};

use crate::model::{
    core_list, count_of, direction_name, format_address, format_duration, skipped_copies,
    wait_mode_name,
};

/// Returns the title of a run from the view of the program that recorded it.
pub(crate) fn run_title(record: &Record) -> String {
    match &record.served_client {
        None => plan_title(&record.plan),
        Some(served) => with_peer_protocol(
            server_view_title(&record.plan, &served.address),
            &record.plan,
        ),
    }
}

/// Appends the protocol of another program: `TCP from 10.77.0.1:40000 (iperf3)`.
fn with_peer_protocol(title: String, plan: &Plan) -> String {
    match &plan.peer_protocol {
        None => title,
        Some(peer_protocol) => format!("{title} ({peer_protocol})"),
    }
}

/// Returns the direction of the payload from the view of the program that recorded it.
pub(crate) fn recorded_direction(record: &Record, direction: Direction) -> &'static str {
    direction_name(direction, record.served_client.is_some())
}

/// Returns the title of a run: `TCP send to 10.77.0.2:5201`.
pub(crate) fn plan_title(plan: &Plan) -> String {
    let mut server = format_address(&plan.host, plan.port);
    if let Some(peer_protocol) = &plan.peer_protocol {
        server.push_str(&format!(" ({peer_protocol})"));
    }
    if let Some(skipped) = skipped_copies(plan.copies) {
        let mut copying_plan = plan.clone();
        copying_plan.copies = CopyModes::default();
        return format!("{} ({skipped})", plan_title(&copying_plan));
    }
    match plan.kind {
        RunKind::Latency if plan.round_trip.connections => {
            format!("{} connections with {server}", plan.protocol)
        }
        RunKind::Latency => format!("{} round trips with {server}", plan.protocol),
        RunKind::Generate => crate::generate::describe_load(plan),
        RunKind::Throughput => match test_directions(plan) {
            TestDirections::Send => format!("{} send to {server}", plan.protocol),
            TestDirections::Receive => format!("{} receive from {server}", plan.protocol),
            TestDirections::Bidirectional => format!(
                "{} {} with {server}",
                plan.protocol,
                bidirectional_name(plan)
            ),
        },
        RunKind::Forward => crate::forward::describe_forwarding(plan),
        RunKind::Stack => stack_host_title(plan),
    }
}

/// Returns the title of a run from the server's view: `TCP from 10.77.0.1:40000`.
pub(crate) fn server_view_title(plan: &Plan, peer: &str) -> String {
    let protocol = plan.protocol;
    match (plan.kind, test_directions(plan)) {
        (RunKind::Latency, _) => format!("{protocol} round trips requested by {peer}"),
        (_, TestDirections::Send) => format!("{protocol} from {peer}"),
        (_, TestDirections::Receive) => format!("{protocol} to {peer}"),
        (_, TestDirections::Bidirectional) => {
            format!("{protocol} {} with {peer}", bidirectional_name(plan))
        }
    }
}

/// Names two directions: concurrent or one after the other.
fn bidirectional_name(plan: &Plan) -> &'static str {
    match plan.sequential {
        false => "bidirectional",
        true => "one direction after the other",
    }
}

/// Describes a host on the user-space stack: `our stack on tap:t0 as 10.0.0.2/24`.
fn stack_host_title(plan: &Plan) -> String {
    let stack = plan.client_stack.as_ref();
    stack.map_or_else(
        || "user-space stack".to_owned(),
        |stack| {
            format!(
                "user-space stack on {} as {}",
                stack.device,
                stack.addresses.join(" and ")
            )
        },
    )
}

/// Returns the name of a run among others: its label, or a short description.
pub(crate) fn run_name(record: &Record) -> String {
    if let Some(label) = &record.label {
        return label.clone();
    }
    let plan = &record.plan;
    if let Some(served) = &record.served_client {
        return with_peer_protocol(server_view_title(plan, served.ip()), plan);
    }
    match plan.kind {
        RunKind::Latency => {
            let wait = plan.wait.as_ref().map_or(String::new(), |wait| {
                if wait.client == wait.server {
                    format!(", {}", wait_mode_name(wait.client))
                } else {
                    format!(
                        ", {} and {}",
                        wait_mode_name(wait.client),
                        wait_mode_name(wait.server)
                    )
                }
            });
            format!("{} round trips{wait}", plan.protocol)
        }
        RunKind::Generate => crate::generate::describe_load(plan),
        RunKind::Throughput => {
            let direction = match test_directions(plan) {
                TestDirections::Send => "sending",
                TestDirections::Receive => "receiving",
                TestDirections::Bidirectional => bidirectional_name(plan),
            };
            match skipped_copies(plan.copies) {
                None => format!("{} {direction}", plan.protocol),
                Some(skipped) => format!("{} {direction} ({skipped})", plan.protocol),
            }
        }
        RunKind::Stack => stack_host_title(plan),
        RunKind::Forward => crate::forward::describe_forwarding(plan),
    }
}

/// Returns the runs with distinct labels: runs with the same name get a number.
pub(crate) fn with_distinct_labels(runs: &[Record]) -> Vec<Record> {
    let names: Vec<String> = runs.iter().map(run_name).collect();
    runs.iter()
        .zip(&names)
        .enumerate()
        .map(|(position, (run, name))| {
            let mut run = run.clone();
            if names
                .iter()
                .filter(|other_name| *other_name == name)
                .count()
                > 1
            {
                let number = names[..=position]
                    .iter()
                    .filter(|other_name| *other_name == name)
                    .count();
                run.label = Some(format!("{name}, run {number}"));
            }
            run
        })
        .collect()
}

enum TestDirections {
    Send,
    Receive,
    Bidirectional,
}

fn test_directions(plan: &Plan) -> TestDirections {
    match (
        plan.has_direction(Direction::Send),
        plan.has_direction(Direction::Receive),
    ) {
        (true, true) => TestDirections::Bidirectional,
        (false, true) => TestDirections::Receive,
        _ => TestDirections::Send,
    }
}

/// Describes wait mode and CPUs of the local host only, for a remote host that runs another
/// program.
pub(crate) fn describe_local_wait(name: &str, wait: WaitMode, cpu: &CpuList) -> String {
    let both = describe_wait(name, "", &PerEnd::same(wait), &PerEnd::same(cpu.clone()));
    let local_part = both.split_once(", ").map(|(local, _)| local.to_owned());
    local_part.unwrap_or(both)
}

/// Describes wait mode and CPUs of both hosts: `client blocks on any core, server spins on core 1`.
pub(crate) fn describe_wait(
    client: &str,
    server: &str,
    wait: &PerEnd<WaitMode>,
    cpu: &PerEnd<CpuList>,
) -> String {
    let describe = |name: &str, wait: WaitMode, cpu: &CpuList| {
        let verb = match wait {
            WaitMode::Block => "blocks".to_owned(),
            WaitMode::Spin => "spins".to_owned(),
            WaitMode::IoUring => "waits in io_uring".to_owned(),
            WaitMode::BusyPoll { time_ns } => {
                format!(
                    "busy-polls for {}",
                    format_duration(time_ns.unwrap_or(DEFAULT_BUSY_POLL_NS))
                )
            }
            WaitMode::Interval { time_ns } => format!("polls every {}", format_duration(time_ns)),
            WaitMode::Poll | WaitMode::Select { .. } | WaitMode::Epoll => {
                format!("waits in {wait}")
            }
        };
        format!("{name} {verb} on {}", core_list(cpu))
    };
    format!(
        "{}, {}",
        describe(client, wait.client, &cpu.client),
        describe(server, wait.server, &cpu.server)
    )
}

/// Returns the details of a plan beyond its title: streams, duration, sizes, options.
pub(crate) fn plan_details(plan: &Plan) -> Vec<String> {
    if plan.kind == RunKind::Generate {
        return crate::generate::describe_run(plan);
    }
    let streams = count_of(plan.streams.into(), "flow") + &threads_suffix(plan);
    // On a host with the user-space stack, the number of streams is chosen by its clients.
    let profile = plan
        .client_stack
        .as_ref()
        .filter(|_| plan.kind == RunKind::Stack);
    let mut parts = vec![profile.map_or(streams, |stack| format!("profile {}", stack.profile))];
    match (
        plan.kind,
        plan.round_trips,
        plan.amount_bytes,
        plan.duration_ns,
    ) {
        (RunKind::Latency, Some(count), _, _) => {
            parts.push(count_of(count, "round trip"));
        }
        (RunKind::Throughput, _, Some(bytes), _) => parts.push(format_bytes(bytes)),
        (_, _, _, Some(time)) => parts.push(format_duration(time)),
        _ => {}
    }
    if plan.omit_ns > 0 {
        parts.push(format!("first {} omitted", format_duration(plan.omit_ns)));
    }
    // A UDP payload of 0 is derived from the path MTU later.
    if plan.payload_bytes > 0 {
        let unit = match (plan.kind, plan.protocol) {
            (RunKind::Latency, _) => "messages",
            (RunKind::Generate | RunKind::Stack, _) => "frames",
            (RunKind::Throughput, TransportProtocol::Tcp) => "writes",
            (RunKind::Throughput, TransportProtocol::Udp) => "datagrams",
            (RunKind::Forward, _) => "frames",
        };
        parts.push(format!("{} {unit}", format_exact_bytes(plan.payload_bytes)));
    }
    if let Some(offloads) = udp_offloads(plan) {
        parts.push(offloads);
    }
    parts.extend(plan.batch.map(|batch| match batch {
        1 => "1 datagram per call".to_owned(),
        n => format!("batches of {n} datagrams"),
    }));
    parts.extend(plan.congestion_control.clone());
    parts.extend(describe_pacing(plan));
    parts.extend(describe_buffers(plan));
    if plan.forced_buffers.client || plan.forced_buffers.server {
        parts.push("socket buffers forced above the system's limit".to_owned());
    }
    parts.extend(plan.verify.then(|| "content verified".to_owned()));
    parts.extend(plan.calls.then(|| "every call timed".to_owned()));
    parts.extend(describe_scheduling(plan));
    parts.extend(
        plan.hold_latency
            .then(|| "CPU idle states disabled (--hold-latency)".to_owned()),
    );
    parts.extend(plan.bind.as_ref().map(|bind| format!("from {bind}")));
    parts.extend(crate::round_trips::describe_options(&plan.round_trip));
    // The stack of another program is unknown.
    let server_stack_known = plan.peer_protocol.is_none() || plan.stack.server != "unknown";
    // Ports of a forwarder have no stack; for a stack host the title names it.
    let has_stack = !matches!(plan.kind, RunKind::Forward | RunKind::Stack);
    let is_kernel = |stack: &str| stack == "kernel";
    let end = match (
        is_kernel(&plan.stack.client),
        is_kernel(&plan.stack.server) || !server_stack_known,
    ) {
        (true, true) => None,
        (false, true) => Some("the client"),
        (true, false) => Some("the server"),
        (false, false) => Some("both ends"),
    };
    let end = end.filter(|_| has_stack);
    parts.extend(end.map(|end| format!("user-space stack at {end}")));
    parts
}

/// Describes the requested scheduling: `both ends scheduled fifo:50`, `client scheduled fifo:50`.
fn describe_scheduling(plan: &Plan) -> Option<String> {
    let PerEnd { client, server } = plan.sched;
    // The scheduling of another program is unknown.
    let server = match plan.peer_protocol {
        Some(_) => SchedPolicy::Inherited,
        None => server,
    };
    match (
        client == SchedPolicy::Inherited,
        server == SchedPolicy::Inherited,
    ) {
        (true, true) => None,
        (false, true) => Some(format!("client scheduled {client}")),
        (true, false) => Some(format!("server scheduled {server}")),
        _ if client == server => Some(format!("both ends scheduled {client}")),
        _ => Some(format!("client scheduled {client}, server {server}")),
    }
}

/// Describes the requested buffer sizes: `256 KiB socket buffers`, `128 KiB send buffers`.
fn describe_buffers(plan: &Plan) -> Vec<String> {
    let send = plan.socket.send_buffer_bytes.or(plan.window_bytes);
    let receive = plan.socket.receive_buffer_bytes.or(plan.window_bytes);
    if send == receive {
        let both = send.map(|bytes| format!("{} socket buffers", format_bytes(bytes)));
        return both.into_iter().collect();
    }
    [(send, "send"), (receive, "receive")]
        .into_iter()
        .filter_map(|(size, name)| Some(format!("{} {name} buffers", format_bytes(size?))))
        .collect()
}

/// Describes the socket buffers granted by the kernel if sizes were requested: `client send 512
/// KiB, server receive 256 KiB`. The kernel doubles the requested size for its overhead
/// (socket(7)).
pub(crate) fn describe_granted_buffers(record: &Record) -> Option<String> {
    let plan = &record.plan;
    let is_requested = plan.window_bytes.is_some()
        || plan.socket.send_buffer_bytes.is_some()
        || plan.socket.receive_buffer_bytes.is_some();
    let mut parts = Vec::new();
    for direction in record.directions.iter().filter(|_| is_requested) {
        let (sender, receiver) = match direction.direction {
            Direction::Send => ("client", "server"),
            Direction::Receive => ("server", "client"),
        };
        let sizes = |read: fn(&StreamFigures) -> Option<u64>| {
            let sizes: Vec<_> = direction.streams.iter().filter_map(read).collect();
            let smallest = sizes.iter().min().copied()?;
            let largest = sizes.iter().max().copied()?;
            Some(match smallest == largest {
                true => format_bytes(smallest),
                false => format!("{} to {}", format_bytes(smallest), format_bytes(largest)),
            })
        };
        let send = sizes(|stream| stream.sender.as_ref()?.send_buffer_bytes);
        let receive = sizes(|stream| stream.receiver.as_ref()?.receive_buffer_bytes);
        parts.extend(send.map(|size| format!("{sender} send {size}")));
        parts.extend(receive.map(|size| format!("{receiver} receive {size}")));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Describes the pacing: `at 100 Mb/s per flow in bursts of 16, paced by the socket`.
fn describe_pacing(plan: &Plan) -> Option<String> {
    let rate = plan.rate_bps?;
    let mut text = match plan.pace.packets_per_second {
        Some(count) => {
            let unit = match plan.protocol {
                TransportProtocol::Udp => "datagrams/s",
                TransportProtocol::Tcp => "calls/s",
            };
            format!("at {} {unit} per flow", format_count(count))
        }
        None => format!("at {} per flow", format_bit_rate(rate as f64)),
    };
    let payload = plan.payload_bytes.max(1);
    if plan.payload_bytes > 0 && plan.pace.has_bursts(payload) {
        let count = plan.pace.burst_bytes(payload) / payload;
        text.push_str(&format!(" in bursts of {}", format_count(count)));
    }
    match plan.pace.method {
        PacingMethod::User => {}
        PacingMethod::Socket => text.push_str(", paced by the socket"),
        PacingMethod::Txtime => text.push_str(", paced by the qdisc"),
    }
    Some(text)
}

/// Describes the threads if one thread serves several streams: ` on 2 threads`.
fn threads_suffix(plan: &Plan) -> String {
    match &plan.threads {
        Some(threads) if threads.client < plan.streams || threads.server < plan.streams => {
            let plural = if threads.client == 1 && threads.server == 1 {
                ""
            } else {
                "s"
            };
            format!(" on {threads} thread{plural}")
        }
        _ => String::new(),
    }
}

/// Names the UDP offloads in use: `GSO and GRO`.
pub(super) fn udp_offloads(plan: &Plan) -> Option<String> {
    let offload = &plan.udp_offload;
    match (offload.gso == Some(true), offload.gro == Some(true)) {
        (true, true) => Some("GSO and GRO".to_owned()),
        (true, false) => Some("GSO".to_owned()),
        (false, true) => Some("GRO".to_owned()),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_include_scheduling_and_disabled_idle_states() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far");
        let usual = plan_details(&plan);
        for (sched, expected) in [
            ("fifo:50", "both ends scheduled fifo:50"),
            ("fifo:50/inherited", "client scheduled fifo:50"),
            ("inherited/nice:-5", "server scheduled nice:-5"),
            ("fifo:50/rr:3", "client scheduled fifo:50, server rr:3"),
        ] {
            plan.sched = sched.parse().unwrap();
            assert!(
                plan_details(&plan).contains(&expected.to_owned()),
                "{sched}"
            );
        }
        plan.sched = PerEnd::default();
        assert_eq!(plan_details(&plan), usual);
        plan.hold_latency = true;
        assert_eq!(plan_details(&plan).len(), usual.len() + 1);
    }

    /// The stack host's details once gave a number of streams, although its clients choose that.
    #[test]
    fn details_of_a_stack_host_include_its_profile() {
        let mut plan = Plan::new(RunKind::Stack, TransportProtocol::Udp, "10.0.0.2/24");
        plan.payload_bytes = 0;
        plan.duration_ns = Some(2_000_000_000);
        plan.stack = PerEnd::same(linerate_record::stack::STACK_NAME.to_owned());
        plan.client_stack = Some(Box::new(linerate_record::stack::StackPlan {
            profile: "embedded-tuned".to_owned(),
            ..Default::default()
        }));
        assert_eq!(plan_details(&plan), ["profile embedded-tuned", "2 s"]);
    }

    #[test]
    fn wait_modes_and_cores_of_both_hosts_are_described() {
        let wait = "block/spin".parse().unwrap();
        for (cpu, expected) in [
            (
                PerEnd::default(),
                "client blocks on any CPU, server spins on any CPU",
            ),
            (
                "0/1-2".parse().unwrap(),
                "client blocks on CPU 0, server spins on CPUs 1-2",
            ),
        ] {
            assert_eq!(describe_wait("client", "server", &wait, &cpu), expected);
        }
    }
}
