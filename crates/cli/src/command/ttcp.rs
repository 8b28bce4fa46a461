//! `linerate ttcp`: the classic tool, with call times.

use std::time::Duration;

use linerate_measure::{Client, Family};
use linerate_metric::event::{Event, Problem};
use linerate_metric::exit;
use linerate_metric::plan::{
    Direction, Ends, Kind, LARGEST_CALL_BYTES, LARGEST_DATAGRAM_BYTES, Plan, Protocol, Wait,
};
use linerate_metric::record::Record;

use super::measure::stop_on_signals;
use super::stage_passes;
use crate::args::TtcpArgs;
use crate::failure::Failure;
use crate::output::{self, Output, print};
use crate::port_devices::Nics;
use crate::{lab_network, live};

/// Interval of the full-screen display: the 16 MiB of a classic run take seconds at most.
const SHOWN_NS: u64 = 250_000_000;

/// Runs the command and returns the exit code.
pub fn run(args: TtcpArgs) -> u8 {
    let mut output = Output::new(&args.output).labelled(args.label.as_deref());
    let result = measure(&args, &mut output);
    let code = result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    output.gated(code, args.fail_on_finding)
}

/// Returns the plan of the classic options.
fn plan(args: &TtcpArgs) -> Result<Plan, Failure> {
    let refuse = |option: &str, situation: String| {
        Err(Failure::usage(Problem::new(
            situation,
            option,
            "`linerate ttcp --help` lists what is possible",
        )))
    };
    let protocol = if args.udp {
        Protocol::Udp
    } else {
        Protocol::Tcp
    };
    let largest = match protocol {
        Protocol::Udp => LARGEST_DATAGRAM_BYTES,
        Protocol::Tcp => LARGEST_CALL_BYTES,
    };
    if !(1..=largest).contains(&args.length.0) {
        return refuse("-l", format!("a {protocol} call moves 1 to {largest} B"));
    }
    if args.udp && args.length.0 <= 4 {
        return refuse(
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
        return refuse("-n", "out of range".to_owned());
    };
    let host = args.host.clone().unwrap_or_default();
    let mut plan = Plan::new(Kind::Throughput, protocol, host);
    plan.dialect = Some("ttcp".to_owned());
    plan.port = args.port;
    plan.duration_ns = None;
    plan.payload_bytes = args.length.0;
    plan.window_bytes = None;
    let buffer = args.buffer.map(|size| size.0);
    plan.socket.send_buffer_bytes = buffer;
    plan.socket.receive_buffer_bytes = buffer;
    if args.receive {
        plan.directions = vec![Direction::Receive];
        plan.receive_bytes = (protocol == Protocol::Tcp).then_some(args.length.0);
    } else {
        plan.amount_bytes = Some(bytes);
    }
    // One datagram per call, as classic ttcp.
    plan.udp_offload.gso = Some(false);
    plan.udp_offload.gro = Some(false);
    plan.udp_offload.asked = args.stack.stack.dev.is_none();
    // Our stack sends bursts by default.
    plan.batch = (args.udp && args.stack.stack.dev.is_some()).then_some(1);
    let usual = match args.receive {
        true => Wait::Select { timeout_ns: None },
        false => Wait::Block,
    };
    // Our stack polls its port unless --wait is given.
    plan.wait = match args.stack.stack.dev {
        None => Some(Ends::both(args.wait.unwrap_or(usual))),
        Some(_) => args.wait.map(Ends::both),
    };
    plan.trace = args.trace.is_some();
    plan.trace_on_ns = args
        .trace_on
        .map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    plan.calls = args.calls || args.trace.is_some();
    // Classic ttcp prints no intervals; only the full-screen display needs them.
    plan.interval_ns = args.screen.is_asked().then_some(SHOWN_NS);
    crate::plan::stack::near(&mut plan, &args.stack, ["-b"; 2])?;
    Ok(plan)
}

fn measure(args: &TtcpArgs, output: &mut Output) -> Result<u8, Failure> {
    let client = Client {
        plan: plan(args)?,
        family: Family::Any,
        retry: Duration::ZERO,
        key: None,
    };
    output.check_file()?;
    live::check(args.screen.is_asked())?;
    if let Some(file) = &args.trace {
        output::check_folder(file)?;
    }
    let stop = stop_on_signals()?;
    let _nics = Nics::for_stack(args.stack.stack.dev.as_ref(), &stop, output)?;
    let flag = stop.as_flag();
    let network = lab_network::around();
    let ran = live::while_told(args.screen.is_asked(), &stop, output, |teller| {
        client.run_within(network.as_ref(), &flag, &mut |what| {
            teller.tell(Event { test: 1, what });
        })
    })?;
    let (record, failure) = ran?;
    let mut runs = [record];
    let unwritten = match &args.trace {
        Some(file) => stage_passes::write_trace(file, &mut runs).err(),
        None => None,
    };
    let [record] = runs;
    if !output.is_json() && !output.is_stream() {
        print(&classic(&record, args.receive));
    }
    if !output.is_quiet() || output.is_json() || output.is_stream() {
        output.record(&record, &[])?;
    }
    let failure = failure.map(Failure::from).or(unwritten);
    if let Some(failure) = failure {
        if output.is_json() {
            output.remark(&format!("error: {}", failure.problem));
        } else {
            output.failure(&failure);
        }
        return Ok(failure.code);
    }
    Ok(if stop.is_set() {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Returns the classic result line: bytes, seconds, KB (1024 bytes) per second and calls of this
/// end.
fn classic(record: &Record, receives: bool) -> String {
    let (name, direction) = match receives {
        true => ("ttcp-r", Direction::Receive),
        false => ("ttcp-t", Direction::Send),
    };
    let figures = record
        .directions
        .iter()
        .find(|way| way.direction == direction);
    let figures = figures.map(|way| way.summary.clone()).unwrap_or_default();
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
    let moved = threads.filter_map(|thread| {
        let empty = thread.empty_calls.unwrap_or(0);
        thread.calls.map(|calls| calls.saturating_sub(empty))
    });
    let calls: u64 = moved.sum();
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
    use linerate_metric::record::{DirectionFigures, Summary};

    use super::*;

    fn args(words: &[&str]) -> TtcpArgs {
        let words = ["linerate", "ttcp"].iter().chain(words);
        match crate::args::Cli::try_parse_from(words).unwrap().command {
            crate::args::Command::Ttcp(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn looks_that_found_nothing_are_no_calls() {
        let plan = plan(&args(&["-r", "-u"])).unwrap();
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
        let line = classic(&record, true);
        let calls = "ttcp-r: 100 I/O calls, msec/call = 5.00, calls/sec = 200.00";
        assert!(line.ends_with(calls), "{line}");
    }

    #[test]
    fn classic_options_are_those_of_the_classic() {
        let sending = plan(&args(&["-t", "far"])).unwrap();
        assert_eq!(sending.amount_bytes, Some(16 << 20));
        assert_eq!((sending.payload_bytes, sending.port), (8_192, 5_001));
        let words = [
            "-t", "far", "-u", "-l", "1000", "-n", "5", "-b", "64K", "-p", "5010", "-s",
        ];
        let sending = plan(&args(&words)).unwrap();
        assert_eq!(sending.amount_bytes, Some(5_000));
        assert_eq!(sending.socket.send_buffer_bytes, Some(65_536));
        assert_eq!((sending.protocol, sending.port), (Protocol::Udp, 5_010));
        let receiving = plan(&args(&["-r"])).unwrap();
        assert_eq!(receiving.directions, [Direction::Receive]);
        assert!(receiving.host.is_empty() && receiving.amount_bytes.is_none());
        let words = ["-t", "far", "-u", "--dev", "tap:t0", "--ip", "10.0.0.2/24"];
        // One datagram per call here too.
        assert_eq!(plan(&args(&words)).unwrap().batch, Some(1));
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
        let problem = plan(&args(&words)).unwrap_err().problem;
        assert_eq!(problem.object, "-b with --set tcp.send_buffer=10K");
        assert!(plan(&args(&["-r", "-u", "-l", "4"])).is_err());
        assert!(plan(&args(&["-t", "far", "-n", "0"])).is_err());
        assert!(crate::args::Cli::try_parse_from(["linerate", "ttcp"]).is_err());
    }
}
