//! `linerate forward`: poll-mode forwarding between ports, directly or from a shell.

mod command_input;
mod commands;
mod grammar;
mod saturation;
mod screen;
mod shell;

use std::io::IsTerminal;
use std::time::Duration;

use jiff::Timestamp;
use linerate_forwarder::{
    ForwardEvent, ForwardInterval, ForwardSettings, Forwarder, FrameMemoryRequest, ModeSettings,
    PortTotals, PrimedFrames, RunTimes, TransmitRetry, plan, record, run as forward,
};
use linerate_packet::frame::FrameSpec;
use linerate_port::caveats::no_carrier_warning;
use linerate_port::{DropCause, FrameRunError, PortError, PortUrl, QueueTotals, RxDestination};
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::forward::{ForwardPort, PortTopology, QueueFigures};
use linerate_record::plan::{CpuList, PerEnd, Plan, WaitMode};
use linerate_report::forward::{
    PortRates, extended_statistics, format_displayed, forward_statistics, port_statistics,
    stream_map,
};
use linerate_stats::units::format_count;

use super::measure::stop_on_signals;
use crate::args::forward::{ForwardArgs, PortMask};
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::port_devices::PortDevices;
use crate::standard_streams::continue_without_reader;

/// Time without frames after which receive queues within our own process are empty.
const QUIET_TIME: Duration = Duration::from_micros(100);

/// Default interval of the record's series.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the command and returns the exit code.
pub fn run(args: ForwardArgs) -> u8 {
    let mut output = CommandOutput::new(&args.output)
        .with_label(args.label.as_deref())
        .with_report(args.html.as_deref(), "linerate forward");
    let result = run_forward(&args, &mut output);
    let code = result.unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.fail_on_finding)
}

fn run_forward(args: &ForwardArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    crate::live::check_terminal(args.is_shown())?;
    let urls = port_urls(args)?;
    let settings = forward_settings(args, urls.len())?;
    let shell = has_shell(args, output);
    let destination = receive_destination(&settings, shell);
    let urls: Vec<PortUrl> = urls
        .into_iter()
        .map(|url| url.with_rx_destination(destination))
        .collect();
    // Before ports open, so that they are closed on any signal.
    let stop = stop_on_signals()?;
    let memory_request = FrameMemoryRequest {
        frames: Forwarder::frames_for(&urls, &settings.mode).max(args.total_num_mbufs),
        slot_bytes: args.mbuf_size,
        cached_frames: args.mbcache,
    };
    // Dropped after the ports in each case.
    let devices = PortDevices::for_ports(&urls, &stop, output)?;
    let mut forwarder = Forwarder::open(&urls, memory_request)?;
    check_display_xstats(args, &forwarder)?;
    let streams = forwarder.streams_of(&settings)?;
    if args.cores as usize > streams && !args.saturate {
        return Err(CommandFailure::usage(ErrorReport::new(
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
    // Frames of others pass here, also without a reader of the statistics.
    continue_without_reader();
    if shell {
        return shell::run(args, settings, (forwarder, devices), &stop, output);
    }
    forward_until_stopped(args, &urls, &settings, &mut forwarder, &stop, output)
}

fn has_shell(args: &ForwardArgs, output: &CommandOutput) -> bool {
    let terminal = stdin_is_foreground() && std::io::stdout().is_terminal();
    let is_direct = args.is_shown()
        || args.time.is_some()
        || stats_period(args).is_some()
        || output.is_json()
        || output.is_stream();
    args.interactive || args.commands.is_some() || (terminal && !is_direct)
}

/// Returns the destination of the ports' frames: a shell may change to a mode that reads them.
fn receive_destination(settings: &ForwardSettings, shell: bool) -> RxDestination {
    match settings.mode.rx_destination() {
        RxDestination::Counter if shell => RxDestination::Reader,
        destination => destination,
    }
}

/// Returns whether standard input is a terminal in whose foreground we run: a read from the
/// background would stop the program (SIGTTIN).
fn stdin_is_foreground() -> bool {
    std::io::stdin().is_terminal()
        && std::fs::read_to_string("/proc/self/stat").map_or(true, |stat| is_foreground(&stat))
}

/// Returns whether the process group of `/proc/PID/stat` is the foreground group of its terminal.
/// In another PID namespace, as inside a lab, both are 0 and count as equal.
fn is_foreground(stat: &str) -> bool {
    // After the name in parentheses, which may contain anything: state, parent, group, session,
    // terminal, foreground group of the terminal.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    match (fields.get(2), fields.get(5)) {
        (Some(group), Some(foreground)) => group == foreground,
        _ => true,
    }
}

/// Returns the period of statistics, if any are printed.
fn stats_period(args: &ForwardArgs) -> Option<Duration> {
    args.stats_period.filter(|period| !period.is_zero())
}

/// Forwards until the time ends or Ctrl-C.
fn forward_until_stopped(
    args: &ForwardArgs,
    urls: &[PortUrl],
    settings: &ForwardSettings,
    forwarder: &mut Forwarder,
    stop: &linerate_host::stop_flag::StopFlag,
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    if settings.topology == PortTopology::Paired && urls.len() > 2 && urls.len() % 2 == 1 {
        let last = urls.len() - 1;
        output.warn(&format!(
            "note: port {last} has no pair: it forwards to itself"
        ));
    }
    let times = RunTimes {
        duration: args.time,
        interval: stats_period(args).unwrap_or(DEFAULT_INTERVAL),
        flush_quiet: QUIET_TIME,
    };
    let facts = forwarder.port_facts();
    let (mode, ports) = (settings.mode.to_string(), urls.len());
    let mut sums: Vec<PortTotals> = Vec::new();
    let names = &args.display_xstats;
    let mut number = 0;
    let mut on_update = |on_update: ForwardEvent<'_>| match on_update {
        ForwardEvent::Started(streams) => {
            if output.is_stream() {
                let what = started_event(plan(urls, settings, &times, streams));
                output.print_event(
                    &Event {
                        test: 1,
                        kind: what,
                    },
                    Timestamp::now(),
                );
            }
            print_text(output, &stream_map(&mode, ports, streams));
            for port in facts.iter().filter(|port| port.peer_seen == Some(false)) {
                let text = format!("{}: not connected yet", port.name);
                print_text(output, &text);
            }
            for port in facts.iter().filter(|port| port.carrier == Some(false)) {
                output.warn(&format!("warning: {}", no_carrier_warning(&port.name)));
            }
        }
        ForwardEvent::Primed(primed) => {
            if let Some(note) = too_few_in_flight(settings.tx_first, primed) {
                print_text(output, &note);
            }
        }
        ForwardEvent::Interval(reading) => {
            if output.is_stream() {
                let interval = Box::new(reading.interval(number));
                number += 1;
                let what = EventKind::Interval { interval };
                output.print_event(
                    &Event {
                        test: 1,
                        kind: what,
                    },
                    Timestamp::now(),
                );
            } else if stats_period(args).is_some() {
                sums.resize_with(reading.ports.len(), PortTotals::default);
                for (sum, interval_totals) in sums.iter_mut().zip(&reading.ports) {
                    *sum = sum.plus(*interval_totals);
                }
                print_text(
                    output,
                    &format!("\n{}", interval_statistics(&facts, &sums, reading, names)),
                );
            }
        }
    };
    let flag = stop.atomic();
    let mut outcome = match args.is_shown() {
        true => screen::run(urls, settings, forwarder, args.time, stop, output)?,
        false => forward(forwarder, settings, &times, &flag, &mut on_update)?,
    };
    let run_failure = outcome.port_error.as_ref().map(CommandFailure::from);
    print_text(
        output,
        &format!("\n{}\n", forward_statistics(&outcome.figures)),
    );
    // Without -t, Ctrl-C is the normal end.
    outcome.interrupted &= args.time.is_some();
    let interrupted = outcome.interrupted;
    let record = record(urls, settings, &times, outcome);
    output.write_record(&record, &[])?;
    if let Some(failure) = run_failure {
        if output.is_json() {
            output.warn(&format!("error: {}", failure.problem));
        } else {
            output.report_failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if interrupted {
        exit_codes::INTERRUPTED
    } else {
        exit_codes::OK
    })
}

/// Returns the event that a run starts, for a stream or the screen.
fn started_event(plan: Plan) -> EventKind {
    let cpus = plan.forward.as_ref().map(|forward| forward.cpus.clone());
    EventKind::Started {
        wait: PerEnd::same(WaitMode::Spin),
        cpu: PerEnd::same(CpuList(cpus.unwrap_or_default())),
        plan: Box::new(plan),
        wait_reason: None,
    }
}

/// Prints to standard output, or to standard error if standard output holds JSON.
fn print_text(output: &CommandOutput, text: &str) {
    if output.is_quiet() {
        return;
    }
    if output.is_json() || output.is_stream() {
        output.warn(text);
    } else {
        crate::standard_streams::print_stdout(text);
    }
}

/// Returns port statistics since the start, with the rates of the interval, as `show port stats`
/// prints them.
fn interval_statistics(
    facts: &[ForwardPort],
    sums: &[PortTotals],
    reading: &ForwardInterval,
    names: &[String],
) -> String {
    let seconds = (reading.end_ns - reading.start_ns) as f64 / 1e9;
    let queue = queue_figures;
    let ports = facts.iter().zip(sums).zip(&reading.ports);
    let blocks = ports.map(|((port, sum), interval_totals)| {
        let with_totals = |totals: &PortTotals| ForwardPort {
            receive: queue(totals.receive),
            transmit: queue(totals.transmit),
            ..port.clone()
        };
        let (port, before) = (with_totals(sum), with_totals(&sum.since(*interval_totals)));
        let rates = rates(
            &queue(interval_totals.receive),
            &queue(interval_totals.transmit),
            seconds,
        );
        let counters = extended_statistics(&port, &[]);
        let before = extended_statistics(&before, &[]);
        let extra_counters = format_displayed(names, &counters, Some((&before, seconds)));
        port_statistics(&port, Some(rates), &extra_counters)
    });
    blocks.collect::<Vec<_>>().join("\n\n")
}

/// Converts queue totals to the figures of statistics.
fn queue_figures(totals: QueueTotals) -> QueueFigures {
    let causes = DropCause::ALL.iter();
    let drops = causes.map(|&cause| (cause.name().to_owned(), totals.drops_by(cause)));
    QueueFigures {
        packets: totals.frames,
        bytes: totals.bytes,
        dropped: totals.total_drops(),
        drops: drops.filter(|(_, count)| *count > 0).collect(),
    }
}

/// Returns a note if fewer packets circulate than requested.
fn too_few_in_flight(tx_first: u64, primed: PrimedFrames) -> Option<String> {
    (primed.sent < primed.requested).then(|| {
        format!(
            "tx_first {tx_first}: {} of {} packets are in flight: rings have no space for more (rxd=, txd=)",
            format_count(primed.sent),
            format_count(primed.requested)
        )
    })
}

/// Returns `is 1 port` or `are 2 ports`.
fn ports_available(count: usize) -> String {
    match count {
        1 => "is 1 port".to_owned(),
        _ => format!("are {count} ports"),
    }
}

/// Rejects counter names that no port has.
fn check_display_xstats(args: &ForwardArgs, forwarder: &Forwarder) -> Result<(), CommandFailure> {
    let facts = forwarder.port_facts();
    let known_names: Vec<String> = match facts.first() {
        Some(port) => extended_statistics(port, &[]),
        None => Vec::new(),
    }
    .into_iter()
    .map(|(name, _)| name)
    .collect();
    match args
        .display_xstats
        .iter()
        .find(|name| !known_names.contains(name))
    {
        None => Ok(()),
        Some(name) => Err(CommandFailure::usage(ErrorReport::new(
            "no port has such a counter",
            format!("--display-xstats {name}"),
            format!("choose from {}", known_names.join(", ")),
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
fn port_urls(args: &ForwardArgs) -> Result<Vec<PortUrl>, CommandFailure> {
    if let (Some(rxq), Some(txq)) = (args.rxq, args.txq)
        && rxq != txq
    {
        return Err(CommandFailure::usage(ErrorReport::new(
            format!("{rxq} receive queues and {txq} transmit queues do not form pairs"),
            "--txq",
            "queues are pairs: give the same number for both",
        )));
    }
    let defaults = [
        ("queues", args.rxq.or(args.txq)),
        ("rxd", args.rxd),
        ("txd", args.txd),
        ("mtu", args.max_pkt_len),
    ];
    let read = |text: &String| -> Result<PortUrl, PortError> {
        let mut url: PortUrl = text.parse()?;
        let common = url.common();
        for (key, value) in defaults {
            let is_given = match key {
                "queues" => common.queues.is_some(),
                "rxd" => common.rxd.is_some(),
                "txd" => common.txd.is_some(),
                _ => common.mtu.is_some(),
            };
            if let Some(value) = value.filter(|_| !is_given) {
                url = url.with_key(key, &value.to_string())?;
            }
        }
        Ok(if args.force { url.with_force() } else { url })
    };
    let urls: Result<Vec<_>, _> = args.dev.iter().map(read).collect();
    Ok(urls.map_err(FrameRunError::Port)?)
}

/// Rejects unknown ports and duplicates.
fn check_ports(args: &ForwardArgs, all: u32) -> Result<(), CommandFailure> {
    let usage = |situation: String, object: String| {
        let next = match all {
            1 => "the only port is 0".to_owned(),
            _ => format!("ports are numbered 0 to {}", all.saturating_sub(1)),
        };
        Err(CommandFailure::usage(ErrorReport::new(
            situation, object, next,
        )))
    };
    if let Some(count) = args.nb_ports.filter(|&count| count > all) {
        let error_text = format!("there {}", ports_available(all as usize));
        return usage(error_text, format!("--nb-ports {count}"));
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
        return Err(CommandFailure::usage(ErrorReport::new(
            "a step needs a time above 0",
            "--trial 0",
            "use 1s, or 100ms for a quick test",
        )));
    }
    Ok(())
}

fn forward_settings(args: &ForwardArgs, ports: usize) -> Result<ForwardSettings, CommandFailure> {
    if args.cores == 0 {
        return Err(CommandFailure::usage(ErrorReport::new(
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
    let listed = |mask: &Option<PortMask>| mask.as_ref().map(|mask| mask.0.clone());
    let cpus = args.corelist.as_ref().map(|cpus| cpus.0.clone());
    Ok(ForwardSettings {
        mode: args.mode.clone(),
        cores: args.cores,
        cpus: cpus.or_else(|| listed(&args.coremask)).unwrap_or_default(),
        is_pinned: true,
        topology: args.port_topology,
        ports: match (&args.portlist[..], args.nb_ports) {
            ([], Some(count)) => (0..count.min(all)).collect(),
            ([], None) => listed(&args.portmask).unwrap_or_default(),
            (list, _) => list.to_vec(),
        },
        burst: args.burst.into(),
        tx_first: args.tx_first.unwrap_or(0),
        mode_settings: ModeSettings {
            frame,
            transmit_flows: args.txonly_flows.unwrap_or(1),
            generated_flows: args.flowgen_flows,
            flow_clones: args.flowgen_clones,
            seed: args.seed,
        },
        peers: args.eth_peer.clone(),
        retry: args.tx_retry.map(|times| TransmitRetry {
            times,
            ..TransmitRetry::default()
        }),
        idle: args.idle,
        flush: !args.no_flush_rx,
        record_cycles: args.record_core_cycles,
        record_residence: args.latencystats.is_some(),
        record_bit_rates: args.bitrate_stats.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::is_foreground;

    #[test]
    fn the_foreground_group_is_detected() {
        assert!(is_foreground("70 (a) b) S 1 70 70 34816 70 4194304 1"));
        assert!(!is_foreground("70 (linerate) R 1 70 60 34816 60 4194304 1"));
        // In a lab both group numbers are 0; without a terminal there is no foreground group.
        assert!(is_foreground("7 (linerate) R 0 0 0 34816 0 4194304 1"));
        assert!(!is_foreground("7 (linerate) R 1 7 7 0 -1 4194304 1"));
        assert!(is_foreground(""));
    }
}
