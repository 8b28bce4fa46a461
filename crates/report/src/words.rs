//! Plans and records in words, the same on every surface. Texts here are not cleaned or escaped: the
//! surface that shows them does that.

use linerate_metric::pace::Pacing;
use linerate_metric::plan::{
    BUSY_POLL_NS, Copies, Cpus, Direction, Ends, Kind, Plan, Protocol, ReceiveCopy, Sched,
    SendCopy, Wait,
};
use linerate_metric::record::{Doubt, Quantiles, Record, Stream, Summary};
use linerate_metric::set::SetResult;
use linerate_metric::statistics::median;
use linerate_metric::units::{
    format_bit_rate, format_bytes, format_count, format_exact_bytes, format_nanos,
    format_per_second, format_share,
};

/// The sign for what is not known.
pub(crate) const UNKNOWN: &str = "-";

/// A value, or the sign for one that is not known.
pub(crate) fn or_unknown<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), format)
}

/// `10.77.0.2:5201`, `[fd00::1]:5201`.
pub(crate) fn address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// What was not copied: such figures do not compare with others, so they never stand without it.
pub(crate) fn skipped(copies: Copies) -> Option<String> {
    let send = match copies.send {
        SendCopy::Copied => None,
        SendCopy::ZeroCopy => Some("MSG_ZEROCOPY sends"),
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

/// `TCP send to 10.77.0.2:5201`.
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
            Ways::Both => format!("{} both ways with {far}", plan.protocol),
        },
        Kind::Forward => crate::forward::title(plan),
        Kind::Stack => stack_title(plan),
    }
}

/// `TCP from 10.77.0.1:40000`: as a server has it, since both ends are somebody's near one.
pub(crate) fn served_title(plan: &Plan, peer: &str) -> String {
    let protocol = plan.protocol;
    match (plan.kind, directions(plan)) {
        (Kind::Latency, _) => format!("{protocol} round trips asked by {peer}"),
        (_, Ways::Send) => format!("{protocol} from {peer}"),
        (_, Ways::Receive) => format!("{protocol} to {peer}"),
        (_, Ways::Both) => format!("{protocol} both ways with {peer}"),
    }
}

/// Which way payload went: as the client sees it, or as a server says it of what it served.
pub(crate) fn way(direction: Direction, serving: bool) -> &'static str {
    match (direction, serving) {
        (Direction::Send, false) => "send",
        (Direction::Receive, false) => "receive",
        (Direction::Send, true) => "in",
        (Direction::Receive, true) => "out",
    }
}

/// `our stack on tap:t0 as 10.0.0.2/24`.
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

/// What a run is called beside others: its label, or what it does.
pub(crate) fn name(record: &Record) -> String {
    if let Some(label) = &record.label {
        return label.clone();
    }
    let plan = &record.plan;
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
                Ways::Both => "both ways",
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

/// The same runs under names that tell them apart: of several with one name each gets its number.
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

pub(crate) enum Ways {
    Send,
    Receive,
    Both,
}

pub(crate) fn directions(plan: &Plan) -> Ways {
    match (plan.flows(Direction::Send), plan.flows(Direction::Receive)) {
        (true, true) => Ways::Both,
        (false, true) => Ways::Receive,
        _ => Ways::Send,
    }
}

/// `blocking`.
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

/// The same of the near end alone, where the far one is another program.
pub(crate) fn near_end(name: &str, wait: Wait, cpu: &Cpus) -> String {
    let both = ends(name, "", &Ends::both(wait), &Ends::both(cpu.clone()));
    let only = both.split_once(", ").map(|(near, _)| near.to_owned());
    only.unwrap_or(both)
}

/// `near blocks on any core, far spins on core 1`.
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

/// `any core`, `core 1`, `cores 0-3`.
fn cores(cpus: &Cpus) -> String {
    match cpus.0.len() {
        0 => "any core".to_owned(),
        1 => format!("core {cpus}"),
        _ => format!("cores {cpus}"),
    }
}

/// The plan beyond its title: streams, length, sizes, and what was asked for.
pub(crate) fn details(plan: &Plan) -> Vec<String> {
    if plan.kind == Kind::Generate {
        return crate::generate::details(plan);
    }
    let mut words = vec![match plan.streams {
        1 => "1 stream".to_owned(),
        n => format!("{} streams{}", format_count(n.into()), on_threads(plan)),
    }];
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
    // A UDP payload of 0 is one that the path has yet to settle.
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
        1 => "1 datagram a call".to_owned(),
        n => format!("batches of {n} datagrams"),
    }));
    words.extend(plan.congestion_control.clone());
    words.extend(pace(plan));
    words.extend(buffers(plan));
    if plan.forced_buffers.near || plan.forced_buffers.far {
        words.push("buffers forced beyond the system's limit".to_owned());
    }
    words.extend(plan.verify.then(|| "content verified".to_owned()));
    words.extend(plan.calls.then(|| "every call timed".to_owned()));
    words.extend(scheduling(plan));
    words.extend(
        plan.hold_latency
            .then(|| "cores held from halting (--hold-latency)".to_owned()),
    );
    words.extend(plan.bind.as_ref().map(|bind| format!("from {bind}")));
    words.extend(crate::round_trips::details(&plan.round_trip));
    // Of another program's stack nobody knows.
    let far_known = plan.dialect.is_none() || plan.stack.far != "unknown";
    match plan.stack.near != "kernel" || (far_known && plan.stack.far != "kernel") {
        true if far_known => words.push(format!("stack {}", plan.stack)),
        true => words.push(format!("stack {}", plan.stack.near)),
        false => {}
    }
    words
}

/// `scheduled fifo:50`, `client scheduled fifo:50`: what was asked for.
fn scheduling(plan: &Plan) -> Option<String> {
    let Ends { near, far } = plan.sched;
    // How another program is scheduled nobody knows.
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

/// `256 KiB socket buffers`, `128 KiB send buffers`: what was asked for.
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

/// What the kernel granted to the sockets, where somebody asked for a size: `client 512 KiB to send;
/// server 256 KiB to receive`. The kernel doubles what is asked for, for its own overhead.
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
        words.extend(send.map(|size| format!("{sender} {size} to send")));
        words.extend(receive.map(|size| format!("{receiver} {size} to receive")));
    }
    (!words.is_empty()).then(|| words.join(", "))
}

/// `at 100 Mb/s a stream in bursts of 16 datagrams, kept by the socket`.
fn pace(plan: &Plan) -> Option<String> {
    let rate = plan.rate_bps?;
    let mut words = match plan.pace.packets_per_second {
        Some(count) => {
            let unit = match plan.protocol {
                Protocol::Udp => "datagrams/s",
                Protocol::Tcp => "calls/s",
            };
            format!("at {} {unit} a stream", format_count(count))
        }
        None => format!("at {} a stream", format_bit_rate(rate as f64)),
    };
    let payload = plan.payload_bytes.max(1);
    if plan.payload_bytes > 0 && plan.pace.has_bursts(payload) {
        let count = plan.pace.burst_bytes(payload) / payload;
        words.push_str(&format!(" in bursts of {}", format_count(count)));
    }
    match plan.pace.by {
        Pacing::User => {}
        Pacing::Socket => words.push_str(", kept by the socket"),
        Pacing::Txtime => words.push_str(", kept by the discipline"),
    }
    Some(words)
}

/// ` on 2 threads`, where a thread moves several flows.
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

/// `GSO and GRO`: what the kernel did for many datagrams in one call.
fn many_in_one_call(plan: &Plan) -> Option<String> {
    let offload = &plan.udp_offload;
    match (offload.gso == Some(true), offload.gro == Some(true)) {
        (true, true) => Some("GSO and GRO".to_owned()),
        (true, false) => Some("GSO".to_owned()),
        (false, true) => Some("GRO".to_owned()),
        (false, false) => None,
    }
}

/// `10 s`, `1.5 s`, `500 ms`: a length that somebody chose, without digits that say nothing.
pub(crate) fn duration(nanoseconds: u64) -> String {
    let (unit, name) = match nanoseconds {
        n if n >= 1_000_000_000 => (1e9, "s"),
        n if n >= 1_000_000 => (1e6, "ms"),
        n if n >= 1_000 => (1e3, "us"),
        _ => (1.0, "ns"),
    };
    format!("{} {name}", short(nanoseconds as f64 / unit))
}

/// Up to three decimals, and no zeros at the end.
pub(crate) fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

/// `7.9x`, with the digits that such a ratio can carry.
pub(crate) fn times(ratio: f64) -> String {
    if ratio >= 9.95 {
        format!("{ratio:.0}x")
    } else {
        format!("{ratio:.1}x")
    }
}

/// The main figures of some runs in sentences, one for each protocol and kind, in the runs' order.
pub(crate) fn headline(runs: &[Record]) -> Vec<String> {
    let mut sentences = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        sentences.extend(throughput_sentence(runs, protocol));
    }
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        sentences.extend(latency_sentence(runs, protocol));
    }
    sentences.extend(frames_sentences(runs));
    sentences
}

/// The main figures of runs that belong together: of a measurement of capacity and of a walk to
/// saturation what they found, of others those of the runs.
pub(crate) fn set_headline(result: &SetResult, runs: &[Record]) -> Vec<String> {
    let mut sentences: Vec<String> = (result.capacity.iter())
        .filter_map(|capacity| crate::text::capacity::headline(capacity))
        .collect();
    let walks = result.saturation.iter();
    sentences.extend(walks.map(|walk| format!("{}.", crate::forward::saturation_words(walk))));
    let proofs = [
        result.comparison.as_deref(),
        result
            .tuning
            .as_deref()
            .and_then(|tuning| tuning.proof.as_deref()),
    ];
    sentences.extend(proofs.into_iter().flatten().map(crate::text::verdict_words));
    sentences.extend(result.sweep.as_deref().and_then(crate::text::best_words));
    if let Some(tuning) = result.tuning.as_deref() {
        let changes: Vec<String> = (tuning.changes.iter())
            .map(|change| format!("{} {} instead of {}", change.knob, change.to, change.from))
            .collect();
        sentences.push(match changes.as_slice() {
            [] => "Nothing that was tried is proved to make it better.".to_owned(),
            changes => format!("What matters: {}.", changes.join(", ")),
        });
    }
    if sentences.is_empty() {
        sentences = headline(runs);
    }
    sentences
}

/// `io forwarding between 2 ports, 1 core: 1.31 G/s of packets, none dropped.`
fn frames_sentences(runs: &[Record]) -> Vec<String> {
    let run = |run: &Record| {
        let meaning = match run.kind {
            Kind::Forward => crate::forward::meaning(run),
            Kind::Generate => crate::generate::meaning(run),
            Kind::Throughput | Kind::Latency | Kind::Stack => return None,
        };
        let rate = run.summary.packets_per_second;
        Some(match rate.filter(|&rate| rate > 0.0) {
            Some(rate) => format!("{}: {} {meaning}.", name(run), format_per_second(rate)),
            None => format!("{}: {meaning}.", name(run)),
        })
    };
    // More of them than one are told side by side.
    match runs {
        [only] => run(only).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// `TCP carried 61.2 Gb/s out and 58.9 Gb/s back.`
fn throughput_sentence(runs: &[Record], protocol: Protocol) -> Option<String> {
    let found = |direction: Direction| {
        let of = |run: &Record| {
            let way = run
                .directions
                .iter()
                .find(|way| way.direction == direction)?;
            Some((way.summary.goodput_bps?, way.summary.loss_fraction))
        };
        let first = runs.iter().find(|run| {
            run.kind == Kind::Throughput && run.plan.protocol == protocol && of(run).is_some()
        })?;
        let same: Vec<_> = repeats(runs, first).filter_map(of).collect();
        let rates: Vec<_> = same.iter().map(|way| way.0).collect();
        let losses: Vec<_> = same.iter().filter_map(|way| way.1).collect();
        Some((median(&rates)?, median(&losses), rates.len()))
    };
    let lost = |loss: Option<f64>| match loss {
        Some(loss) if loss > 0.0 => {
            format!(" with {} lost", format_share(loss))
        }
        _ => String::new(),
    };
    let way = |(rate, loss, _): (f64, Option<f64>, usize), word: &str| {
        format!("{}{word}{}", format_bit_rate(rate), lost(loss))
    };
    let (send, receive) = (found(Direction::Send), found(Direction::Receive));
    let count = send.or(receive)?.2;
    let text = match (send, receive) {
        (Some(send), Some(receive)) => {
            format!("{} and {}", way(send, " out"), way(receive, " back"))
        }
        (Some(send), None) => way(send, ""),
        (None, Some(receive)) => way(receive, " back"),
        (None, None) => return None,
    };
    Some(format!("{protocol} carried {text}{}.", of_runs(count)))
}

/// The runs that did the same as `first`.
fn repeats<'a>(runs: &'a [Record], first: &'a Record) -> impl Iterator<Item = &'a Record> {
    let alike = |run: &&Record| run.plan == first.plan && run.label == first.label;
    runs.iter().filter(alike)
}

/// ` (median of 7 runs)`; one run needs no such words.
fn of_runs(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        n => format!(" (median of {n} runs)"),
    }
}

/// `Half of all UDP round trips took 48.3 us or less blocking, 6.10 us spinning: 7.9x faster.`
fn latency_sentence(runs: &[Record], protocol: Protocol) -> Option<String> {
    let known = |run: &&Record| {
        run.kind == Kind::Latency && run.plan.protocol == protocol && run.summary.rtt_ns.is_some()
    };
    let typical = |first: &Record, read: fn(&Quantiles) -> u64| {
        let values: Vec<_> = repeats(runs, first)
            .filter_map(|run| run.summary.rtt_ns.as_ref())
            .map(|rtt| read(rtt) as f64)
            .collect();
        Some((median(&values)?, of_runs(values.len())))
    };
    let waited = |wanted: Wait| {
        runs.iter()
            .filter(known)
            .find(|run| run.plan.wait == Some(Ends::both(wanted)))
    };
    if let (Some(block), Some(spin)) = (waited(Wait::Block), waited(Wait::Spin)) {
        let (block, count) = typical(block, |rtt| rtt.p50)?;
        let (spin, _) = typical(spin, |rtt| rtt.p50)?;
        return Some(format!(
            "Half of all {protocol} round trips took {} or less when the ends sleep while they wait, {} when they never sleep{}{count}.",
            format_nanos(block),
            format_nanos(spin),
            faster(block, spin),
        ));
    }
    if let Some(sentence) = different_round_trips(runs, protocol, &typical) {
        return Some(sentence);
    }
    let first = runs.iter().find(known)?;
    // The same plan under several names: alone, and beside a load.
    let mut firsts: Vec<&Record> = Vec::new();
    for run in runs.iter().filter(known) {
        if run.plan == first.plan && firsts.iter().all(|first| first.label != run.label) {
            firsts.push(run);
        }
    }
    let sentence = |first: &&Record| {
        let (p50, count) = typical(first, |rtt| rtt.p50)?;
        let (p99, _) = typical(first, |rtt| rtt.p99)?;
        let label = first.label.as_ref().filter(|_| firsts.len() > 1);
        let half = label.map_or_else(|| "Half".to_owned(), |label| format!("{label}: half"));
        let half = capitalised(&half);
        Some(format!(
            "{half} of all {protocol} round trips took {} or less, 99 of 100 took {} or less{count}.",
            format_nanos(p50),
            format_nanos(p99),
        ))
    };
    let sentences: Option<Vec<_>> = firsts.iter().map(sentence).collect();
    Some(sentences?.join(" "))
}

/// The median over a run's repeats of one of its quantiles, with how many runs that is of.
type Typical<'a> = dyn Fn(&Record, fn(&Quantiles) -> u64) -> Option<(f64, String)> + 'a;

/// Measurements up to which a sentence names each.
const EACH: usize = 4;

/// `Half of all UDP round trips took 12.3 us or less (64 B) and 41.0 us (32 KiB).`: of runs that differ
/// in what they did, as those of a sweep do; `None` where they all did the same.
fn different_round_trips(
    runs: &[Record],
    protocol: Protocol,
    typical: &Typical<'_>,
) -> Option<String> {
    let known: Vec<&Record> = (runs.iter())
        .filter(|run| run.kind == Kind::Latency && run.plan.protocol == protocol)
        .filter(|run| run.summary.rtt_ns.is_some())
        .collect();
    // What was asked at a rate says how long an answer takes at that load; as many questions as there
    // are answers say how many there can be.
    let rated = known
        .iter()
        .any(|run| run.plan.round_trip.rate_per_second.is_some());
    let known = known
        .into_iter()
        .filter(|run| !rated || run.plan.round_trip.rate_per_second.is_some());
    let mut firsts: Vec<&Record> = Vec::new();
    for run in known {
        let is_repeat = |first: &&Record| first.plan == run.plan && first.label == run.label;
        if !firsts.iter().any(is_repeat) {
            firsts.push(run);
        }
    }
    let first = firsts.first()?;
    if firsts.iter().all(|run| run.plan == first.plan) {
        return None;
    }
    let what = |run: &Record| match &run.label {
        Some(label) => label.clone(),
        None => format!("{} messages", format_exact_bytes(run.plan.payload_bytes)),
    };
    let figure = |run: &Record| {
        let (p50, _) = typical(run, |rtt| rtt.p50)?;
        Some((format_nanos(p50), what(run)))
    };
    let (_, count) = typical(first, |rtt| rtt.p50)?;
    let half = format!("Half of all {protocol} round trips took");
    if firsts.len() > EACH {
        let (low, at_low) = figure(first)?;
        let (high, at_high) = figure(firsts.last()?)?;
        return Some(format!(
            "{half} {low} or less ({at_low}), {high} or less ({at_high}){count}."
        ));
    }
    let figures: Option<Vec<_>> = firsts
        .iter()
        .map(|run| figure(run).map(|(time, what)| format!("{time} or less ({what})")))
        .collect();
    Some(format!("{half} {}{count}.", figures?.join(", ")))
}

/// A sentence that begins with a large letter.
fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// `: 7.9x faster`, where the ratio says that.
pub(crate) fn faster(slow: f64, fast: f64) -> String {
    if fast <= 0.0 || slow <= fast {
        return String::new();
    }
    format!(": {} faster", times(slow / fast))
}

/// A measurement as one row: what it is called, its main figure, and what that means.
pub(crate) struct Measurement<'a> {
    pub(crate) run: &'a Record,
    pub(crate) name: String,
    pub(crate) figure: String,
    pub(crate) meaning: String,
}

/// One row a run; two for a run both ways.
pub(crate) fn measurements(runs: &[Record]) -> Vec<Measurement<'_>> {
    runs.iter().flat_map(|run| rows(run, runs)).collect()
}

fn rows<'a>(run: &'a Record, runs: &[Record]) -> Vec<Measurement<'a>> {
    let name = name(run);
    match run.kind {
        Kind::Latency => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.rtt_ns, |rtt| format_nanos(rtt.p50 as f64)),
            meaning: round_trip_meaning(run, runs),
        }],
        Kind::Generate => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.packets_per_second, format_per_second),
            meaning: crate::generate::meaning(run),
        }],
        Kind::Throughput if run.directions.len() > 1 => run
            .directions
            .iter()
            .map(|way| Measurement {
                run,
                name: format!("{name}: {}", way.direction),
                figure: or_unknown(way.summary.goodput_bps, format_bit_rate),
                meaning: goodput_meaning(run, &way.summary),
            })
            .collect(),
        Kind::Throughput => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.goodput_bps, format_bit_rate),
            meaning: goodput_meaning(run, &run.summary),
        }],
        Kind::Stack => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.bytes_received, format_bytes),
            meaning: "payload that came to its services".to_owned(),
        }],
        Kind::Forward => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.packets_per_second, format_per_second),
            meaning: crate::forward::meaning(run),
        }],
    }
}

fn goodput_meaning(run: &Record, summary: &Summary) -> String {
    if summary.goodput_bps.is_none() {
        return match summary.offered_bps {
            Some(rate) => format!(
                "nobody knows what arrived; {} were sent",
                format_bit_rate(rate)
            ),
            None => "nobody knows what arrived".to_owned(),
        };
    }
    let mut text = format!(
        "{} goodput: payload that arrived per second",
        run.plan.protocol
    );
    match run.plan.protocol {
        Protocol::Tcp => {
            if let Some(count) = summary.retransmits {
                text.push_str(&match count {
                    0 => "; nothing had to be sent again".to_owned(),
                    1 => "; 1 segment had to be sent again".to_owned(),
                    n => format!("; {} segments had to be sent again", format_count(n)),
                });
            }
        }
        Protocol::Udp => {
            if let Some(rate) = summary.packets_per_second {
                text.push_str(&format!(
                    ", as {} datagrams of {}",
                    format_per_second(rate),
                    format_bytes(run.plan.payload_bytes)
                ));
            }
            if let Some(many) = many_in_one_call(&run.plan) {
                text.push_str(&format!(", many in one call ({many})"));
            }
            if let Some(loss) = summary.loss_fraction {
                text.push_str(&if loss > 0.0 {
                    format!("; {} of what was sent did not arrive", format_share(loss))
                } else {
                    "; nothing was lost".to_owned()
                });
            }
        }
    }
    text
}

fn round_trip_meaning(run: &Record, runs: &[Record]) -> String {
    let Some(rtt) = run.summary.rtt_ns else {
        return "no question was answered".to_owned();
    };
    let mut text = format!(
        "half of the questions had their answer within this, 99 of 100 within {}",
        format_nanos(rtt.p99 as f64)
    );
    let wait = run.plan.wait.as_ref();
    if wait == Some(&Ends::both(Wait::Block)) {
        text.push_str("; both ends sleep while they wait");
    }
    if wait == Some(&Ends::both(Wait::Spin)) {
        text.push_str("; neither end ever sleeps");
        let blocking = runs.iter().find(|other| {
            other.kind == Kind::Latency
                && other.plan.protocol == run.plan.protocol
                && other.plan.payload_bytes == run.plan.payload_bytes
                && other.plan.wait == Some(Ends::both(Wait::Block))
        });
        if let Some(slow) = blocking.and_then(|other| other.summary.rtt_ns) {
            text.push_str(&faster(slow.p50 as f64, rtt.p50 as f64));
            if slow.p50 > rtt.p50 {
                text.push_str(" than blocking");
            }
        }
    }
    text
}

/// Every doubt of some runs once, with the names of the runs that have it.
pub(crate) fn doubts(runs: &[Record]) -> Vec<(&Doubt, Vec<String>)> {
    let mut found: Vec<(&Doubt, Vec<String>)> = Vec::new();
    for run in runs {
        for doubt in &run.validity {
            match found.iter_mut().find(|(known, _)| *known == doubt) {
                Some((_, names)) => names.push(name(run)),
                None => found.push((doubt, vec![name(run)])),
            }
        }
    }
    found
}

/// Where a finding is, in a word.
pub(crate) fn finding_end(end: linerate_metric::finding::End) -> &'static str {
    use linerate_metric::finding::End;
    match end {
        End::Client => "client",
        End::Server => "server",
        End::Both => "both ends",
        End::Path => "path",
    }
}

/// A reading that a finding rests on: `tcpi_rtt 120 us (client TCP_INFO)`.
pub(crate) fn evidence(reading: &linerate_metric::finding::Evidence) -> String {
    use linerate_metric::finding::Value;
    use linerate_metric::units::{
        format_bit_rate, format_bytes, format_count, format_nanos, format_share,
    };
    let number = |value: f64| match reading.unit.as_str() {
        "share" => format_share(value),
        "ns" => format_nanos(value),
        "bit/s" => format_bit_rate(value),
        "B" => format_bytes(value as u64),
        "" => format_count(value as u64),
        unit if value.fract() == 0.0 => format!("{} {unit}", format_count(value as u64)),
        unit => format!("{value:.2} {unit}"),
    };
    let value = match (&reading.value, &reading.missing) {
        (Some(Value::Count(count)), _) => number(*count as f64),
        (Some(Value::Number(value)), _) => number(*value),
        (Some(Value::Word(word)), _) => word.clone(),
        (None, Some(why)) => format!("not known ({why})"),
        (None, None) => "not known".to_owned(),
    };
    format!("{} {value} ({})", reading.counter, reading.read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::histogram::Histogram;

    #[test]
    fn chosen_lengths_print_short() {
        for (nanoseconds, want) in [
            (10_000_000_000, "10 s"),
            (1_500_000_000, "1.5 s"),
            (500_000_000, "500 ms"),
            (20_000, "20 us"),
            (0, "0 ns"),
        ] {
            assert_eq!(duration(nanoseconds), want);
        }
    }

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

    #[test]
    fn ends_say_how_they_wait_and_where() {
        let wait = "block/spin".parse().unwrap();
        for (cpu, want) in [
            (
                Ends::default(),
                "near blocks on any core, far spins on any core",
            ),
            (
                "0/1-2".parse().unwrap(),
                "near blocks on core 0, far spins on cores 1-2",
            ),
        ] {
            assert_eq!(ends("near", "far", &wait, &cpu), want);
        }
    }

    fn asked(bytes: u64, rate: Option<u64>, label: &str, p50: u64) -> Record {
        let text = include_str!("../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        let mut times = Histogram::new();
        times.record(p50);
        run.kind = Kind::Latency;
        run.plan = Plan::new(Kind::Latency, Protocol::Udp, "host");
        run.plan.payload_bytes = bytes;
        run.plan.round_trip.rate_per_second = rate;
        run.label = Some(label.to_owned());
        run.summary.rtt_ns = times.summary();
        run
    }

    #[test]
    fn round_trips_of_several_sizes_or_rates_are_told_apart() {
        let sizes: Vec<_> = [(64, "64 B", 12_000), (1_024, "1 KiB", 14_000)]
            .map(|(bytes, label, p50)| asked(bytes, None, label, p50))
            .into();
        assert_eq!(
            headline(&sizes),
            ["Half of all UDP round trips took 12.0 us or less (64 B), 14.0 us or less (1 KiB)."]
        );
        let mut curve = vec![asked(64, None, "capacity", 900_000)];
        curve.extend((1..=9).map(|n| {
            let label = format!("{n}0 % load");
            asked(64, Some(n * 1_000), &label, 10_000 + n * 1_000)
        }));
        assert_eq!(
            headline(&curve),
            [
                "Half of all UDP round trips took 11.0 us or less (10 % load), 19.0 us or less (90 % load)."
            ]
        );
        let loaded = ["idle", "loaded"].map(|label| asked(64, None, label, 12_000));
        let told = headline(&loaded);
        assert!(told[0].starts_with("Idle: half of all UDP"), "{told:?}");
    }

    #[test]
    fn addresses_of_both_families() {
        assert_eq!(address("10.0.0.1", 7), "10.0.0.1:7");
        assert_eq!(address("fd00::1", 7), "[fd00::1]:7");
        assert_eq!(address("[fd00::1]", 7), "[fd00::1]:7");
    }
}
