//! `linerate forward`: poll-mode forwarding between ports, directly or from a shell.

pub mod args;

mod command_input;
mod commands;
mod grammar;
mod saturation;
mod screen;
mod shell;
mod testpmd_commands;
pub mod testpmd_options;

use std::io::IsTerminal;
use std::time::Duration;

use jiff::Timestamp;
use linerate_measure::MeasureError;
use linerate_measure::carrier;
use linerate_measure::forward::frame::FrameSpec;
use linerate_measure::forward::{Cause, PortError, PortTotals, QueueTotals, Verbose};
use linerate_measure::forward::{
    Forwarder, MemoryWish, Onward, PortUrl, Primed, Reading, Retry, Settings, Times, Told, plan,
    record, run as forward,
};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::forward::{ForwardPort, QueueFigures};
use linerate_metric::plan::{Cpus, Ends, Plan, Wait};
use linerate_metric::units::format_count;
use linerate_report::forward::{
    PortRates, displayed, extended_statistics, forward_statistics, port_statistics, stream_map,
};

use super::measure::stop_on_signals;
use crate::failure::Failure;
use crate::output::Output;
use crate::port_devices::Nics;
use args::ForwardArgs;

/// Time without frames after which receive queues within our own process are empty.
const QUIET: Duration = Duration::from_micros(100);

/// Default interval of the record's series.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs the command and returns the exit code.
pub fn run(args: ForwardArgs) -> u8 {
    let mut output = Output::new(&args.output)
        .labelled(args.label.as_deref())
        .with_page(args.html.as_deref(), "linerate forward");
    let result = go(&args, &mut output);
    let code = result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.fail_on_finding)
}

fn go(args: &ForwardArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    crate::live::check(args.is_shown())?;
    let urls = urls(args)?;
    let settings = settings(args, urls.len())?;
    let shell = has_shell(args, output);
    let onward = onward(&settings, shell);
    let urls: Vec<PortUrl> = urls.into_iter().map(|url| url.taken(onward)).collect();
    // Before ports open, so that they are closed on any signal.
    let stop = stop_on_signals()?;
    let wish = MemoryWish {
        frames: Forwarder::frames_for(&urls, &settings.mode).max(args.total_num_mbufs),
        slot_bytes: args.mbuf_size,
        cached_frames: args.mbcache,
    };
    // Dropped after the ports in each case.
    let nics = Nics::for_ports(&urls, &stop, output)?;
    let mut forwarder = Forwarder::open(&urls, wish)?;
    check_displayed(args, &forwarder)?;
    let streams = forwarder.streams_of(&settings)?;
    if args.cores as usize > streams && !args.saturate {
        return Err(Failure::usage(Problem::new(
            match streams {
                1 => "1 stream keeps only 1 thread busy".to_owned(),
                _ => format!("{streams} streams keep only {streams} threads busy"),
            },
            format!("--cores {}", args.cores),
            "give ports more queues (--rxq), or use fewer threads",
        )));
    }
    if args.saturate {
        return saturation::run(args, &urls, &settings, &mut forwarder, &stop, output);
    }
    if shell {
        return shell::run(args, settings, (forwarder, nics), &stop, output);
    }
    at_once_until_stopped(args, &urls, &settings, &mut forwarder, &stop, output)
}

fn has_shell(args: &ForwardArgs, output: &Output) -> bool {
    let terminal = is_in_front() && std::io::stdout().is_terminal();
    let at_once = args.is_shown()
        || args.time.is_some()
        || period(args).is_some()
        || output.is_json()
        || output.is_stream();
    args.interactive || args.commands.is_some() || (terminal && !at_once)
}

/// Returns the destination of the ports' frames: a shell may change to a mode that reads them.
fn onward(settings: &Settings, shell: bool) -> Onward {
    match settings.mode.onward() {
        Onward::Counter if shell => Onward::Reader,
        onward => onward,
    }
}

/// Returns whether standard input is a terminal in whose foreground we run: a read from the
/// background would stop the program (SIGTTIN).
fn is_in_front() -> bool {
    std::io::stdin().is_terminal()
        && std::fs::read_to_string("/proc/self/stat").map_or(true, |stat| leads(&stat))
}

/// Returns whether the process group of `/proc/PID/stat` is the foreground group of its terminal.
/// In another PID namespace, as inside a lab, both are 0 and count as equal.
fn leads(stat: &str) -> bool {
    // After the name in parentheses, which may contain anything: state, parent, group, session,
    // terminal, foreground group of the terminal.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    match (words.get(2), words.get(5)) {
        (Some(own), Some(front)) => own == front,
        _ => true,
    }
}

/// Returns the period of statistics, if any are printed.
fn period(args: &ForwardArgs) -> Option<Duration> {
    args.stats_period.filter(|period| !period.is_zero())
}

/// Forwards until the time ends or Ctrl-C.
fn at_once_until_stopped(
    args: &ForwardArgs,
    urls: &[PortUrl],
    settings: &Settings,
    forwarder: &mut Forwarder,
    stop: &linerate_host::stop_flag::Stop,
    output: &mut Output,
) -> Result<u8, Failure> {
    let times = Times {
        duration: args.time,
        interval: period(args).unwrap_or(INTERVAL),
        quiet: QUIET,
    };
    let facts = forwarder.port_facts();
    let (mode, ports) = (settings.mode.to_string(), urls.len());
    let mut sums: Vec<PortTotals> = Vec::new();
    let names = &args.display_xstats;
    let mut number = 0;
    let mut told = |told: Told<'_>| match told {
        Told::Started(places) => {
            if output.is_stream() {
                let what = started(plan(urls, settings, &times, places));
                output.event(&Event { test: 1, what }, Timestamp::now());
            }
            say(output, &stream_map(&mode, ports, places));
            for port in facts.iter().filter(|port| port.joined == Some(false)) {
                let text = format!("{}: not connected yet", port.name);
                say(output, &text);
            }
            for port in facts.iter().filter(|port| port.carrier == Some(false)) {
                output.remark(&format!("warning: {}", carrier::warning(&port.name)));
            }
        }
        Told::Primed(primed) => {
            if let Some(words) = few_in_flight(settings.tx_first, primed) {
                say(output, &words);
            }
        }
        Told::Interval(reading) => {
            if output.is_stream() {
                let interval = Box::new(reading.interval(number));
                number += 1;
                let what = What::Interval { interval };
                output.event(&Event { test: 1, what }, Timestamp::now());
            } else if period(args).is_some() {
                sums.resize_with(reading.ports.len(), PortTotals::default);
                for (sum, moved) in sums.iter_mut().zip(&reading.ports) {
                    *sum = sum.plus(*moved);
                }
                say(
                    output,
                    &format!("\n{}", readings(&facts, &sums, reading, names)),
                );
            }
        }
    };
    let flag = stop.as_flag();
    let mut ran = match args.is_shown() {
        true => screen::run(urls, settings, forwarder, args.time, stop, output)?,
        false => forward(forwarder, settings, &times, &flag, &mut told)?,
    };
    let trouble = ran.trouble.as_ref().map(Failure::from);
    say(output, &format!("\n{}\n", forward_statistics(&ran.figures)));
    // Without -t, Ctrl-C is the normal end.
    ran.interrupted &= args.time.is_some();
    let interrupted = ran.interrupted;
    let record = record(urls, settings, &times, ran);
    output.record(&record, &[])?;
    if let Some(failure) = trouble {
        if output.is_json() {
            output.remark(&format!("error: {}", failure.problem));
        } else {
            output.failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if interrupted {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Returns the event that a run starts, for a stream or the screen.
fn started(plan: Plan) -> What {
    let cpus = plan.forward.as_ref().map(|forward| forward.cpus.clone());
    What::Started {
        wait: Ends::both(Wait::Spin),
        cpu: Ends::both(Cpus(cpus.unwrap_or_default())),
        plan: Box::new(plan),
        because: None,
    }
}

/// Prints to standard output, or to standard error if standard output holds JSON.
fn say(output: &Output, text: &str) {
    if output.is_quiet() {
        return;
    }
    if output.is_json() || output.is_stream() {
        output.remark(text);
    } else {
        crate::output::print(text);
    }
}

/// Returns port statistics since the start, with the rates of the interval, as `show port stats`
/// prints them.
fn readings(
    facts: &[ForwardPort],
    sums: &[PortTotals],
    reading: &Reading,
    names: &[String],
) -> String {
    let seconds = (reading.end_ns - reading.start_ns) as f64 / 1e9;
    let queue = queue_figures;
    let ports = facts.iter().zip(sums).zip(&reading.ports);
    let blocks = ports.map(|((port, sum), moved)| {
        let of = |totals: &PortTotals| ForwardPort {
            receive: queue(totals.receive),
            transmit: queue(totals.transmit),
            ..port.clone()
        };
        let (port, before) = (of(sum), of(&sum.since(*moved)));
        let rates = rates(&queue(moved.receive), &queue(moved.transmit), seconds);
        let counters = extended_statistics(&port, &[]);
        let before = extended_statistics(&before, &[]);
        let beside = displayed(names, &counters, Some((&before, seconds)));
        port_statistics(&port, Some(rates), &beside)
    });
    blocks.collect::<Vec<_>>().join("\n\n")
}

/// Converts queue totals to the figures of statistics.
fn queue_figures(totals: QueueTotals) -> QueueFigures {
    let causes = Cause::ALL.iter();
    let drops = causes.map(|&cause| (cause.name().to_owned(), totals.dropped(cause)));
    QueueFigures {
        packets: totals.frames,
        bytes: totals.bytes,
        dropped: totals.all_dropped(),
        drops: drops.filter(|(_, count)| *count > 0).collect(),
    }
}

/// Returns a note if fewer packets circulate than requested.
fn few_in_flight(tx_first: u64, primed: Primed) -> Option<String> {
    (primed.sent < primed.wanted).then(|| {
        format!(
            "tx_first {tx_first}: {} of {} packets are in flight: rings have no space for more (rxd=, txd=)",
            format_count(primed.sent),
            format_count(primed.wanted)
        )
    })
}

/// Returns `is 1 port` or `are 2 ports`.
fn ports_there(count: usize) -> String {
    match count {
        1 => "is 1 port".to_owned(),
        _ => format!("are {count} ports"),
    }
}

/// Returns the MTU of a maximum packet length, which includes header and FCS as in DPDK.
fn max_packet_mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse::<u32>().ok();
    let mtu = bytes.and_then(|bytes| bytes.checked_sub(MAX_PACKET_OVERHEAD));
    mtu.filter(|mtu| (68..=65_500).contains(mtu))
        .ok_or_else(|| {
            format!(
                "`{text}` is not a frame length including the FCS: give {} to {} bytes",
                68 + MAX_PACKET_OVERHEAD,
                65_500 + MAX_PACKET_OVERHEAD
            )
        })
}

/// Ethernet header and FCS: difference of maximum packet length and MTU in bytes.
const MAX_PACKET_OVERHEAD: u32 = 18;

/// Rejects counter names that no port has.
fn check_displayed(args: &ForwardArgs, forwarder: &Forwarder) -> Result<(), Failure> {
    let facts = forwarder.port_facts();
    let known: Vec<String> = match facts.first() {
        Some(port) => extended_statistics(port, &[]),
        None => Vec::new(),
    }
    .into_iter()
    .map(|(name, _)| name)
    .collect();
    match args
        .display_xstats
        .iter()
        .find(|name| !known.contains(name))
    {
        None => Ok(()),
        Some(name) => Err(Failure::usage(Problem::new(
            "no port has such a counter",
            format!("--display-xstats {name}"),
            format!("choose from {}", known.join(", ")),
        ))),
    }
}

/// Returns rates over a time in seconds.
fn rates(receive: &QueueFigures, transmit: &QueueFigures, seconds: f64) -> PortRates {
    let seconds = seconds.max(1e-9);
    PortRates {
        receive_pps: receive.packets as f64 / seconds,
        receive_bps: receive.bytes as f64 * 8.0 / seconds,
        transmit_pps: transmit.packets as f64 / seconds,
        transmit_bps: transmit.bytes as f64 * 8.0 / seconds,
    }
}

/// Returns the ports with the options that apply to all of them.
fn urls(args: &ForwardArgs) -> Result<Vec<PortUrl>, Failure> {
    if let (Some(rxq), Some(txq)) = (args.rxq, args.txq)
        && rxq != txq
    {
        return Err(Failure::usage(Problem::new(
            format!("{rxq} receive queues and {txq} transmit queues do not form pairs"),
            "--txq",
            "queues are pairs: give the same number for both",
        )));
    }
    let common = [
        ("queues", args.rxq.or(args.txq)),
        ("rxd", args.rxd),
        ("txd", args.txd),
        ("mtu", args.max_pkt_len),
    ];
    let read = |text: &String| -> Result<PortUrl, PortError> {
        let mut url: PortUrl = text.parse()?;
        let said = url.common();
        for (key, value) in common {
            let is_said = match key {
                "queues" => said.queues.is_some(),
                "rxd" => said.rxd.is_some(),
                "txd" => said.txd.is_some(),
                _ => said.mtu.is_some(),
            };
            if let Some(value) = value.filter(|_| !is_said) {
                url = url.with(key, &value.to_string())?;
            }
        }
        Ok(if args.force { url.forced() } else { url })
    };
    let urls: Result<Vec<_>, _> = args.dev.iter().map(read).collect();
    Ok(urls.map_err(MeasureError::Port)?)
}

/// Rejects unknown ports and duplicates.
fn check_ports(args: &ForwardArgs, all: u32) -> Result<(), Failure> {
    let usage = |situation: String, object: String| {
        let next = match all {
            1 => "the only port is 0".to_owned(),
            _ => format!("ports are numbered 0 to {}", all.saturating_sub(1)),
        };
        Err(Failure::usage(Problem::new(situation, object, next)))
    };
    if let Some(count) = args.nb_ports.filter(|&count| count > all) {
        let there = format!("there {}", ports_there(all as usize));
        return usage(there, format!("--nb-ports {count}"));
    }
    for (at, port) in args.portlist.iter().enumerate() {
        if args.portlist[..at].contains(port) {
            let twice = "listed twice".to_owned();
            return usage(twice, format!("port {port} of --portlist"));
        }
    }
    if let Some(peer) = args.eth_peer.iter().find(|peer| peer.port >= all) {
        let unknown = "no such port".to_owned();
        return usage(unknown, format!("port {} of --eth-peer", peer.port));
    }
    if args.saturate && args.trial.is_zero() {
        return Err(Failure::usage(Problem::new(
            "a step needs a time above 0",
            "--trial 0",
            "use 1s, or 100ms for a quick test",
        )));
    }
    Ok(())
}

fn settings(args: &ForwardArgs, ports: usize) -> Result<Settings, Failure> {
    let mode = args.noisy.applied(&args.mode)?;
    if args.cores == 0 {
        return Err(Failure::usage(Problem::new(
            "forwarding needs a thread",
            "--cores 0",
            "use 1 or more",
        )));
    }
    let mut frame = FrameSpec {
        bytes: args.txpkts,
        ..FrameSpec::default()
    };
    if let Some((source, destination)) = args.tx_ip {
        (frame.source, frame.destination) = (source, destination);
    }
    if let Some((source, destination)) = args.tx_udp {
        (frame.source_port, frame.destination_port) = (source, destination);
    }
    let all = u32::try_from(ports).unwrap_or(u32::MAX);
    check_ports(args, all)?;
    let listed = |mask: &Option<args::Mask>| mask.as_ref().map(|mask| mask.0.clone());
    let cpus = args.corelist.as_ref().map(|cpus| cpus.0.clone());
    Ok(Settings {
        mode,
        cores: args.cores,
        cpus: cpus.or_else(|| listed(&args.coremask)).unwrap_or_default(),
        pinned: true,
        topology: args.port_topology,
        ports: match (&args.portlist[..], args.nb_ports) {
            ([], Some(count)) => (0..count.min(all)).collect(),
            ([], None) => listed(&args.portmask).unwrap_or_default(),
            (list, _) => list.to_vec(),
        },
        burst: args.burst.into(),
        tx_first: args.tx_first.unwrap_or(0),
        frame,
        transmit_flows: args.txonly_flows.unwrap_or(1),
        generated_flows: args.flowgen_flows,
        flow_clones: args.flowgen_clones,
        peers: args.eth_peer.clone(),
        retry: args.tx_retry.map(|times| Retry {
            times,
            ..Retry::default()
        }),
        rates: Vec::new(),
        idle: args.idle,
        flush: !args.no_flush_rx,
        record_bursts: args.record_burst_stats,
        record_cycles: args.record_core_cycles,
        record_residence: args.latencystats.is_some(),
        record_bit_rates: args.bitrate_stats.is_some(),
        verbose: Verbose::default(),
        seed: args.seed,
    })
}

#[cfg(test)]
mod tests {
    use super::leads;

    #[test]
    fn who_is_listened_to() {
        assert!(leads("70 (a) b) S 1 70 70 34816 70 4194304 1"));
        assert!(!leads("70 (linerate) R 1 70 60 34816 60 4194304 1"));
        // In a lab both group numbers are 0; without a terminal there is no foreground group.
        assert!(leads("7 (linerate) R 0 0 0 34816 0 4194304 1"));
        assert!(!leads("7 (linerate) R 1 7 7 0 -1 4194304 1"));
        assert!(leads(""));
    }
}
