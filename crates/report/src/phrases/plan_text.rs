//! Plans as text: titles, names and details.

use linerate_metric::pace::Pacing;
use linerate_metric::plan::{
    BUSY_POLL_NS, Copies, Cpus, Direction, Ends, Kind, Plan, Protocol, ReceiveCopy, Sched,
    SendCopy, Wait,
};
use linerate_metric::record::{Record, Stream};
use linerate_metric::units::{format_bit_rate, format_bytes, format_count, format_exact_bytes};

use super::{address, duration};

/// Names the copies that were skipped. Such figures are not comparable with others, so they are
/// always marked.
pub(crate) fn skipped(copies: Copies) -> Option<String> {
    let send = match copies.send {
        SendCopy::Copied => None,
        SendCopy::ZeroCopy => Some("zero-copy sends"),
        SendCopy::SendFile => Some("send copy skipped by sendfile"),
        SendCopy::Splice => Some("send copy skipped by splice"),
    };
    let receive = match copies.receive {
        ReceiveCopy::Copied => None,
        ReceiveCopy::Discarded => Some("receive copy skipped"),
    };
    let words: Vec<_> = send.into_iter().chain(receive).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Returns the title of a run from the view of the program that recorded it.
pub(crate) fn run_title(record: &Record) -> String {
    match &record.served {
        None => title(&record.plan),
        Some(served) => with_dialect(served_title(&record.plan, &served.client), &record.plan),
    }
}

/// Appends the protocol of another program: `TCP from 10.77.0.1:40000 (iperf3)`.
fn with_dialect(title: String, plan: &Plan) -> String {
    match &plan.dialect {
        None => title,
        Some(dialect) => format!("{title} ({dialect})"),
    }
}

/// Returns the direction of the payload from the view of the program that recorded it.
pub(crate) fn way_of(record: &Record, direction: Direction) -> &'static str {
    way(direction, record.served.is_some())
}

/// Returns the title of a run: `TCP send to 10.77.0.2:5201`.
pub(crate) fn title(plan: &Plan) -> String {
    let mut far = address(&plan.host, plan.port);
    if let Some(dialect) = &plan.dialect {
        far.push_str(&format!(" ({dialect})"));
    }
    if let Some(skipped) = skipped(plan.copies) {
        let mut honest = plan.clone();
        honest.copies = Copies::default();
        return format!("{} ({skipped})", title(&honest));
    }
    match plan.kind {
        Kind::Latency if plan.round_trip.connections => {
            format!("{} connections with {far}", plan.protocol)
        }
        Kind::Latency => format!("{} round trips with {far}", plan.protocol),
        Kind::Generate => crate::generate::title(plan),
        Kind::Throughput => match directions(plan) {
            Ways::Send => format!("{} send to {far}", plan.protocol),
            Ways::Receive => format!("{} receive from {far}", plan.protocol),
            Ways::Both => format!("{} {} with {far}", plan.protocol, both_ways(plan)),
        },
        Kind::Forward => crate::forward::title(plan),
        Kind::Stack => stack_title(plan),
    }
}

/// Returns the title of a run from the server's view: `TCP from 10.77.0.1:40000`.
pub(crate) fn served_title(plan: &Plan, peer: &str) -> String {
    let protocol = plan.protocol;
    match (plan.kind, directions(plan)) {
        (Kind::Latency, _) => format!("{protocol} round trips requested by {peer}"),
        (_, Ways::Send) => format!("{protocol} from {peer}"),
        (_, Ways::Receive) => format!("{protocol} to {peer}"),
        (_, Ways::Both) => format!("{protocol} {} with {peer}", both_ways(plan)),
    }
}

/// Names two directions: concurrent or one after the other.
fn both_ways(plan: &Plan) -> &'static str {
    match plan.in_turn {
        false => "bidirectional",
        true => "one direction after the other",
    }
}

/// Names the direction of the payload from the view of the client or of the server.
pub(crate) fn way(direction: Direction, serving: bool) -> &'static str {
    match (direction, serving) {
        (Direction::Send, false) => "send",
        (Direction::Receive, false) => "receive",
        (Direction::Send, true) => "in",
        (Direction::Receive, true) => "out",
    }
}

/// Describes a host on the user-space stack: `our stack on tap:t0 as 10.0.0.2/24`.
fn stack_title(plan: &Plan) -> String {
    let stack = plan.near_stack.as_ref();
    stack.map_or_else(
        || "our stack".to_owned(),
        |stack| {
            format!(
                "our stack on {} as {}",
                stack.device,
                stack.addresses.join(" and ")
            )
        },
    )
}

/// Returns the name of a run among others: its label, or a short description.
pub(crate) fn name(record: &Record) -> String {
    if let Some(label) = &record.label {
        return label.clone();
    }
    let plan = &record.plan;
    if let Some(served) = &record.served {
        return with_dialect(served_title(plan, served.address()), plan);
    }
    match plan.kind {
        Kind::Latency => {
            let wait = plan.wait.as_ref().map_or(String::new(), |wait| {
                if wait.near == wait.far {
                    format!(", {}", waiting(wait.near))
                } else {
                    format!(", {} and {}", waiting(wait.near), waiting(wait.far))
                }
            });
            format!("{} round trips{wait}", plan.protocol)
        }
        Kind::Generate => crate::generate::title(plan),
        Kind::Throughput => {
            let way = match directions(plan) {
                Ways::Send => "sending",
                Ways::Receive => "receiving",
                Ways::Both => both_ways(plan),
            };
            match skipped(plan.copies) {
                None => format!("{} {way}", plan.protocol),
                Some(skipped) => format!("{} {way} ({skipped})", plan.protocol),
            }
        }
        Kind::Stack => stack_title(plan),
        Kind::Forward => crate::forward::title(plan),
    }
}

/// Returns the runs with distinct labels: runs with the same name get a number.
pub(crate) fn told_apart(runs: &[Record]) -> Vec<Record> {
    let names: Vec<String> = runs.iter().map(name).collect();
    runs.iter()
        .zip(&names)
        .enumerate()
        .map(|(position, (run, name))| {
            let mut run = run.clone();
            if names.iter().filter(|other| *other == name).count() > 1 {
                let number = names[..=position]
                    .iter()
                    .filter(|other| *other == name)
                    .count();
                run.label = Some(format!("{name}, run {number}"));
            }
            run
        })
        .collect()
}

enum Ways {
    Send,
    Receive,
    Both,
}

fn directions(plan: &Plan) -> Ways {
    match (plan.flows(Direction::Send), plan.flows(Direction::Receive)) {
        (true, true) => Ways::Both,
        (false, true) => Ways::Receive,
        _ => Ways::Send,
    }
}

/// Names a wait mode: `blocking`.
pub(crate) fn waiting(wait: Wait) -> String {
    match wait {
        Wait::Block => "blocking".to_owned(),
        Wait::Spin => "spinning".to_owned(),
        Wait::IoUring => "waiting in io_uring".to_owned(),
        Wait::BusyPoll { .. } => "busy polling".to_owned(),
        Wait::Interval { time_ns } => format!("polling every {}", duration(time_ns)),
        Wait::Poll | Wait::Select { .. } | Wait::Epoll => format!("waiting in {wait}"),
    }
}

/// Describes wait mode and CPUs of the local host only, for a remote host that runs another
/// program.
pub(crate) fn near_end(name: &str, wait: Wait, cpu: &Cpus) -> String {
    let both = ends(name, "", &Ends::both(wait), &Ends::both(cpu.clone()));
    let only = both.split_once(", ").map(|(near, _)| near.to_owned());
    only.unwrap_or(both)
}

/// Describes wait mode and CPUs of both hosts: `client blocks on any core, server spins on core 1`.
pub(crate) fn ends(near: &str, far: &str, wait: &Ends<Wait>, cpu: &Ends<Cpus>) -> String {
    let one = |name: &str, wait: Wait, cpu: &Cpus| {
        let verb = match wait {
            Wait::Block => "blocks".to_owned(),
            Wait::Spin => "spins".to_owned(),
            Wait::IoUring => "waits in io_uring".to_owned(),
            Wait::BusyPoll { time_ns } => {
                format!(
                    "busy-polls for {}",
                    duration(time_ns.unwrap_or(BUSY_POLL_NS))
                )
            }
            Wait::Interval { time_ns } => format!("polls every {}", duration(time_ns)),
            Wait::Poll | Wait::Select { .. } | Wait::Epoll => format!("waits in {wait}"),
        };
        format!("{name} {verb} on {}", cores(cpu))
    };
    format!(
        "{}, {}",
        one(near, wait.near, &cpu.near),
        one(far, wait.far, &cpu.far)
    )
}

/// Names a set of CPUs: `any core`, `core 1`, `cores 0-3`.
pub(crate) fn cores(cpus: &Cpus) -> String {
    match cpus.0.len() {
        0 => "any core".to_owned(),
        1 => format!("core {cpus}"),
        _ => format!("cores {cpus}"),
    }
}

/// Returns the details of a plan beyond its title: streams, duration, sizes, options.
pub(crate) fn details(plan: &Plan) -> Vec<String> {
    if plan.kind == Kind::Generate {
        return crate::generate::details(plan);
    }
    let streams = match plan.streams {
        1 => "1 stream".to_owned(),
        n => format!("{} streams{}", format_count(n.into()), on_threads(plan)),
    };
    // On a host with the user-space stack, the number of streams is chosen by its clients.
    let profile = plan
        .near_stack
        .as_ref()
        .filter(|_| plan.kind == Kind::Stack);
    let mut words = vec![profile.map_or(streams, |stack| format!("profile {}", stack.profile))];
    match (
        plan.kind,
        plan.round_trips,
        plan.amount_bytes,
        plan.duration_ns,
    ) {
        (Kind::Latency, Some(count), _, _) => {
            words.push(format!("{} round trips", format_count(count)));
        }
        (Kind::Throughput, _, Some(bytes), _) => words.push(format_bytes(bytes)),
        (_, _, _, Some(time)) => words.push(duration(time)),
        _ => {}
    }
    if plan.omit_ns > 0 {
        words.push(format!("first {} omitted", duration(plan.omit_ns)));
    }
    // A UDP payload of 0 is derived from the path MTU later.
    if plan.payload_bytes > 0 {
        let unit = match (plan.kind, plan.protocol) {
            (Kind::Latency, _) => "messages",
            (Kind::Generate | Kind::Stack, _) => "frames",
            (Kind::Throughput, Protocol::Tcp) => "writes",
            (Kind::Throughput, Protocol::Udp) => "datagrams",
            (Kind::Forward, _) => "frames",
        };
        words.push(format!("{} {unit}", format_exact_bytes(plan.payload_bytes)));
    }
    if let Some(many) = many_in_one_call(plan) {
        words.push(many);
    }
    words.extend(plan.batch.map(|batch| match batch {
        1 => "1 datagram per call".to_owned(),
        n => format!("batches of {n} datagrams"),
    }));
    words.extend(plan.congestion_control.clone());
    words.extend(pace(plan));
    words.extend(buffers(plan));
    if plan.forced_buffers.near || plan.forced_buffers.far {
        words.push("socket buffers forced above the system's limit".to_owned());
    }
    words.extend(plan.verify.then(|| "content verified".to_owned()));
    words.extend(plan.calls.then(|| "every call timed".to_owned()));
    words.extend(scheduling(plan));
    words.extend(
        plan.hold_latency
            .then(|| "CPU idle states disabled (--hold-latency)".to_owned()),
    );
    words.extend(plan.bind.as_ref().map(|bind| format!("from {bind}")));
    words.extend(crate::round_trips::details(&plan.round_trip));
    // The stack of another program is unknown.
    let far_known = plan.dialect.is_none() || plan.stack.far != "unknown";
    // Ports of a forwarder have no stack; for a stack host the title names it.
    let has_stack = !matches!(plan.kind, Kind::Forward | Kind::Stack);
    let others = plan.stack.near != "kernel" || (far_known && plan.stack.far != "kernel");
    match has_stack && others {
        true if far_known => words.push(format!("stack {}", plan.stack)),
        true => words.push(format!("stack {}", plan.stack.near)),
        false => {}
    }
    words
}

/// Describes the requested scheduling: `both ends scheduled fifo:50`, `client scheduled fifo:50`.
fn scheduling(plan: &Plan) -> Option<String> {
    let Ends { near, far } = plan.sched;
    // The scheduling of another program is unknown.
    let far = match plan.dialect {
        Some(_) => Sched::Inherited,
        None => far,
    };
    match (near == Sched::Inherited, far == Sched::Inherited) {
        (true, true) => None,
        (false, true) => Some(format!("client scheduled {near}")),
        (true, false) => Some(format!("server scheduled {far}")),
        _ if near == far => Some(format!("both ends scheduled {near}")),
        _ => Some(format!("client scheduled {near}, server {far}")),
    }
}

/// Describes the requested buffer sizes: `256 KiB socket buffers`, `128 KiB send buffers`.
fn buffers(plan: &Plan) -> Vec<String> {
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
pub(crate) fn granted_buffers(record: &Record) -> Option<String> {
    let plan = &record.plan;
    let asked = plan.window_bytes.is_some()
        || plan.socket.send_buffer_bytes.is_some()
        || plan.socket.receive_buffer_bytes.is_some();
    let mut words = Vec::new();
    for way in record.directions.iter().filter(|_| asked) {
        let (sender, receiver) = match way.direction {
            Direction::Send => ("client", "server"),
            Direction::Receive => ("server", "client"),
        };
        let sizes = |read: fn(&Stream) -> Option<u64>| {
            let sizes: Vec<_> = way.streams.iter().filter_map(read).collect();
            let least = sizes.iter().min().copied()?;
            let most = sizes.iter().max().copied()?;
            Some(match least == most {
                true => format_bytes(least),
                false => format!("{} to {}", format_bytes(least), format_bytes(most)),
            })
        };
        let send = sizes(|stream| stream.sender.as_ref()?.send_buffer_bytes);
        let receive = sizes(|stream| stream.receiver.as_ref()?.receive_buffer_bytes);
        words.extend(send.map(|size| format!("{sender} send {size}")));
        words.extend(receive.map(|size| format!("{receiver} receive {size}")));
    }
    (!words.is_empty()).then(|| words.join(", "))
}

/// Describes the pacing: `at 100 Mb/s per stream in bursts of 16, paced by the socket`.
fn pace(plan: &Plan) -> Option<String> {
    let rate = plan.rate_bps?;
    let mut words = match plan.pace.packets_per_second {
        Some(count) => {
            let unit = match plan.protocol {
                Protocol::Udp => "datagrams/s",
                Protocol::Tcp => "calls/s",
            };
            format!("at {} {unit} per stream", format_count(count))
        }
        None => format!("at {} per stream", format_bit_rate(rate as f64)),
    };
    let payload = plan.payload_bytes.max(1);
    if plan.payload_bytes > 0 && plan.pace.has_bursts(payload) {
        let count = plan.pace.burst_bytes(payload) / payload;
        words.push_str(&format!(" in bursts of {}", format_count(count)));
    }
    match plan.pace.by {
        Pacing::User => {}
        Pacing::Socket => words.push_str(", paced by the socket"),
        Pacing::Txtime => words.push_str(", paced by the qdisc"),
    }
    Some(words)
}

/// Describes the threads if one thread serves several streams: ` on 2 threads`.
fn on_threads(plan: &Plan) -> String {
    match &plan.threads {
        Some(threads) if threads.near < plan.streams || threads.far < plan.streams => {
            let plural = if threads.near == 1 && threads.far == 1 {
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
pub(super) fn many_in_one_call(plan: &Plan) -> Option<String> {
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
    fn scheduling_and_held_cores_are_told() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far");
        let usual = details(&plan);
        for (sched, want) in [
            ("fifo:50", "both ends scheduled fifo:50"),
            ("fifo:50/inherited", "client scheduled fifo:50"),
            ("inherited/nice:-5", "server scheduled nice:-5"),
            ("fifo:50/rr:3", "client scheduled fifo:50, server rr:3"),
        ] {
            plan.sched = sched.parse().unwrap();
            assert!(details(&plan).contains(&want.to_owned()), "{sched}");
        }
        plan.sched = Ends::default();
        assert_eq!(details(&plan), usual);
        plan.hold_latency = true;
        assert_eq!(details(&plan).len(), usual.len() + 1);
    }

    /// The stack host's details once gave a number of streams, although its clients choose that.
    #[test]
    fn a_host_on_our_stack_says_how_it_is_configured() {
        let mut plan = Plan::new(Kind::Stack, Protocol::Udp, "10.0.0.2/24");
        plan.payload_bytes = 0;
        plan.duration_ns = Some(2_000_000_000);
        plan.stack = Ends::both(linerate_metric::stack::STACK_NAME.to_owned());
        plan.near_stack = Some(Box::new(linerate_metric::stack::StackPlan {
            profile: "embedded-tuned".to_owned(),
            ..Default::default()
        }));
        assert_eq!(details(&plan), ["profile embedded-tuned", "2 s"]);
    }

    #[test]
    fn ends_say_how_they_wait_and_where() {
        let wait = "block/spin".parse().unwrap();
        for (cpu, want) in [
            (
                Ends::default(),
                "client blocks on any core, server spins on any core",
            ),
            (
                "0/1-2".parse().unwrap(),
                "client blocks on core 0, server spins on cores 1-2",
            ),
        ] {
            assert_eq!(ends("client", "server", &wait, &cpu), want);
        }
    }
}
