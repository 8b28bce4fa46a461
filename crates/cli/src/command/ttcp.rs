//! `linerate ttcp`: the classic tool, with call times.

use std::time::Duration;

use linerate_interop::run_client;
use linerate_record::event::{ErrorReport, Event};
use linerate_record::exit_codes;
use linerate_record::plan::{
    Direction, MAX_CALL_BYTES, MAX_DATAGRAM_BYTES, PerEnd, Plan, RunKind, TransportProtocol,
    WaitMode,
};
use linerate_record::record::Record;
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;

use super::measure::stop_on_signals;
use super::stage_passes;
use crate::args::TtcpArgs;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::port_devices::PortDevices;
use crate::standard_streams::print_stdout;
use crate::{lab_network, live, output};

/// Interval of the full-screen display: the 16 MiB of a classic run take seconds at most.
const SCREEN_INTERVAL_NS: u64 = 250_000_000;

/// Runs the command and returns the exit code.
pub fn run(args: TtcpArgs) -> u8 {
    let mut output = CommandOutput::new(&args.output).with_label(args.label.as_deref());
    let result = measure(&args, &mut output);
    let code = result.unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    });
    output.gate_exit_code(code, args.fail_on_finding)
}

/// Returns the plan of the classic options.
fn ttcp_plan(args: &TtcpArgs) -> Result<Plan, CommandFailure> {
    let reject = |option: &str, situation: String| {
        Err(CommandFailure::usage(ErrorReport::new(
            situation,
            option,
            "`linerate ttcp --help` lists what is possible",
        )))
    };
    let protocol = if args.udp {
        TransportProtocol::Udp
    } else {
        TransportProtocol::Tcp
    };
    let largest = match protocol {
        TransportProtocol::Udp => MAX_DATAGRAM_BYTES,
        TransportProtocol::Tcp => MAX_CALL_BYTES,
    };
    if !(1..=largest).contains(&args.length.0) {
        return reject("-l", format!("a {protocol} call moves 1 to {largest} B"));
    }
    if args.udp && args.length.0 <= 4 {
        return reject(
            "-l",
            "datagrams of up to 4 B mark start and end of the test".to_owned(),
        );
    }
    let Some(bytes) = args
        .length
        .0
        .checked_mul(args.buffers)
        .filter(|&bytes| bytes > 0)
    else {
        return reject("-n", "out of range".to_owned());
    };
    let server = args.host.as_ref();
    let host = server.map_or_else(String::new, |server| server.host.clone());
    let mut plan = Plan::new(RunKind::Throughput, protocol, host);
    plan.peer_protocol = Some("ttcp".to_owned());
    plan.port = server.and_then(|server| server.port).unwrap_or(args.port);
    plan.duration_ns = None;
    plan.payload_bytes = args.length.0;
    plan.window_bytes = None;
    let buffer = args.buffer.map(|size| size.0);
    plan.socket.send_buffer_bytes = buffer;
    plan.socket.receive_buffer_bytes = buffer;
    if args.receive {
        plan.directions = vec![Direction::Receive];
        plan.receive_bytes = (protocol == TransportProtocol::Tcp).then_some(args.length.0);
    } else {
        plan.amount_bytes = Some(bytes);
    }
    // One datagram per call, as classic ttcp.
    plan.udp_offload.gso = Some(false);
    plan.udp_offload.gro = Some(false);
    plan.udp_offload.requested = args.stack.stack.dev.is_none();
    // Our stack sends bursts by default.
    plan.batch = (args.udp && args.stack.stack.dev.is_some()).then_some(1);
    let default_wait = match args.receive {
        true => WaitMode::Select { timeout_ns: None },
        false => WaitMode::Block,
    };
    // Our stack polls its port unless --wait is given.
    plan.wait = match args.stack.stack.dev {
        None => Some(PerEnd::same(args.wait.unwrap_or(default_wait))),
        Some(_) => args.wait.map(PerEnd::same),
    };
    plan.trace = args.trace.is_some();
    plan.trace_on_ns = args
        .trace_on
        .map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    plan.calls = args.calls || args.trace.is_some();
    // Classic ttcp prints no intervals; only the full-screen display needs them.
    plan.interval_ns = args.screen.is_enabled().then_some(SCREEN_INTERVAL_NS);
    crate::plan::stack::set_local_stack(&mut plan, &args.stack, ["-b"; 2])?;
    Ok(plan)
}

fn measure(args: &TtcpArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    let client = Client {
        plan: ttcp_plan(args)?,
        family: AddressFamily::Any,
        retry_timeout: Duration::ZERO,
        key: None,
    };
    output.check_files()?;
    live::check_terminal(args.screen.is_enabled())?;
    if let Some(file) = &args.trace {
        output::check_writable_file(file)?;
    }
    let stop = stop_on_signals()?;
    let _devices = PortDevices::for_stack(args.stack.stack.dev.as_ref(), &stop, output)?;
    let flag = stop.atomic();
    let network = lab_network::lab_network();
    let outcome = live::run_with_output(args.screen.is_enabled(), &stop, output, |events| {
        run_client(&client, network.as_ref(), &flag, &mut |what| {
            events.send(Event {
                test: 1,
                kind: what,
            });
        })
    })?;
    let (record, failure) = outcome?;
    let mut runs = [record];
    let trace_failure = match &args.trace {
        Some(file) => stage_passes::write_trace(file, &mut runs).err(),
        None => None,
    };
    let [record] = runs;
    if !output.is_json() && !output.is_stream() {
        print_stdout(&classic_result(&record, args.receive));
    }
    if !output.is_quiet() || output.is_json() || output.is_stream() {
        output.write_record(&record, &[])?;
    }
    let failure = failure.map(CommandFailure::from).or(trace_failure);
    if let Some(failure) = failure {
        if output.is_json() {
            output.warn(&format!("error: {}", failure.problem));
        } else {
            output.report_failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if stop.is_set() {
        exit_codes::INTERRUPTED
    } else {
        exit_codes::OK
    })
}

/// Returns the classic result line: bytes, seconds, KB (1024 bytes) per second and calls of this
/// end.
fn classic_result(record: &Record, receives: bool) -> String {
    let (name, direction) = match receives {
        true => ("ttcp-r", Direction::Receive),
        false => ("ttcp-t", Direction::Send),
    };
    let figures = record
        .directions
        .iter()
        .find(|figures_of| figures_of.direction == direction);
    let figures = figures
        .map(|figures_of| figures_of.summary.clone())
        .unwrap_or_default();
    let bytes = match receives {
        true => figures.bytes_received,
        false => figures.bytes_sent,
    };
    let Some(bytes) = bytes else {
        return format!("{name}: number of bytes unknown +++");
    };
    // The sender's time ends with its last call.
    let seconds = match (receives, figures.offered_bps) {
        (false, Some(rate)) if rate > 0.0 => bytes as f64 * 8.0 / rate,
        _ => figures.duration_ns.unwrap_or(0) as f64 / 1e9,
    };
    // A single datagram takes no measurable time: there is no rate.
    let rate = match seconds > 0.0 {
        true => format!("{:.2}", bytes as f64 / seconds / 1024.0),
        false => "-".to_owned(),
    };
    let mut line =
        format!("{name}: {bytes} bytes in {seconds:.2} real seconds = {rate} KB/sec +++");
    let threads = record.summary.cpu.iter().flat_map(|cpu| &cpu.threads);
    // Empty polls of a spinning thread are not counted: classic ttcp would block in one call
    // instead.
    let call_counts = threads.filter_map(|thread| {
        let empty = thread.empty_calls.unwrap_or(0);
        thread.calls.map(|calls| calls.saturating_sub(empty))
    });
    let calls: u64 = call_counts.sum();
    if calls > 0 && seconds > 0.0 {
        line.push_str(&format!(
            "\n{name}: {calls} I/O calls, msec/call = {:.2}, calls/sec = {:.2}",
            seconds * 1e3 / calls as f64,
            calls as f64 / seconds
        ));
    }
    line
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use linerate_record::record::{DirectionFigures, Summary};

    use super::*;

    fn args(options: &[&str]) -> TtcpArgs {
        let options = ["linerate", "ttcp"].iter().chain(options);
        match crate::args::Cli::try_parse_from(options).unwrap().command {
            crate::args::Command::Ttcp(args) => args,
            other_command => panic!("{other_command:?}"),
        }
    }

    #[test]
    fn looks_that_found_nothing_are_no_calls() {
        let plan = ttcp_plan(&args(&["-r", "-u"])).unwrap();
        let mut record = Record::new(String::new(), jiff::Timestamp::UNIX_EPOCH, plan);
        let cpu = serde_json::json!([{
            "role": "server", "share": 1.0, "voluntary_switches": 0, "involuntary_switches": 0,
            "threads": [{
                "direction": "receive", "part": "receiver", "flows": 1, "wall_ns": 1, "cpu_ns": 1, "user_ns": 1,
                "system_ns": 0, "voluntary_switches": 0, "involuntary_switches": 0,
                "calls": 30_000_100, "empty_calls": 30_000_000
            }]
        }]);
        record.summary.cpu = serde_json::from_value(cpu).unwrap();
        record.directions = vec![DirectionFigures {
            direction: Direction::Receive,
            summary: Summary {
                bytes_received: Some(102_400),
                duration_ns: Some(500_000_000),
                ..Summary::default()
            },
            streams: Vec::new(),
        }];
        let line = classic_result(&record, true);
        let calls = "ttcp-r: 100 I/O calls, msec/call = 5.00, calls/sec = 200.00";
        assert!(line.ends_with(calls), "{line}");
    }

    #[test]
    fn classic_options_are_those_of_the_classic() {
        let sending = ttcp_plan(&args(&["-t", "far"])).unwrap();
        assert_eq!(sending.amount_bytes, Some(16 << 20));
        assert_eq!((sending.payload_bytes, sending.port), (8_192, 5_001));
        let words = [
            "-t", "far", "-u", "-l", "1000", "-n", "5", "-b", "64K", "-p", "5010", "-s",
        ];
        let sending = ttcp_plan(&args(&words)).unwrap();
        assert_eq!(sending.amount_bytes, Some(5_000));
        assert_eq!(sending.socket.send_buffer_bytes, Some(65_536));
        assert_eq!(
            (sending.protocol, sending.port),
            (TransportProtocol::Udp, 5_010)
        );
        let receiving = ttcp_plan(&args(&["-r"])).unwrap();
        assert_eq!(receiving.directions, [Direction::Receive]);
        assert!(receiving.host.is_empty() && receiving.amount_bytes.is_none());
        let words = ["-t", "far", "-u", "--dev", "tap:t0", "--ip", "10.0.0.2/24"];
        // One datagram per call here too.
        assert_eq!(ttcp_plan(&args(&words)).unwrap().batch, Some(1));
        let words = [
            "-t",
            "far",
            "-b",
            "64K",
            "--dev",
            "tap:t0",
            "--ip",
            "10.0.0.2/24",
            "--set",
            "tcp.send_buffer=10K",
        ];
        // The error names the option of ttcp, not of other commands.
        let problem = ttcp_plan(&args(&words)).unwrap_err().problem;
        assert_eq!(problem.object, "-b with --set tcp.send_buffer=10K");
        assert!(ttcp_plan(&args(&["-r", "-u", "-l", "4"])).is_err());
        assert!(ttcp_plan(&args(&["-t", "far", "-n", "0"])).is_err());
        assert!(crate::args::Cli::try_parse_from(["linerate", "ttcp"]).is_err());
    }
}
