//! Server's count from the output of a command (`--far-report`): the console of a board, for
//! example.

use std::io;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_protocol::control::EndResults;
use linerate_protocol::remote_report::{RemoteFigures, RemoteFlow, RemoteReport};
use linerate_record::event::ErrorReport;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::MAX_SERVER_TEXT_BYTES;
use linerate_session::error::SessionError;
use regex_lite::Regex;
use rustix::process::{Pid, Signal};

/// Default expression: a number and its unit.
const DEFAULT_EXPRESSION: &str = r"(?i)(?:(?P<bytes>\d+)\s*(?:bytes|octets|B)\b)|(?:(?P<packets>\d+)\s*(?:packets|datagrams|pkts)\b)";

/// Named groups of an expression.
const GROUP_NAMES: [&str; 3] = ["bytes", "packets", "seconds"];

/// Substrings of expressions that commands do not have: after a comma they show that an expression
/// is meant.
const EXPRESSION_MARKS: [&str; 8] = ["(?", "\\d", "\\s", "\\w", "[0-9", "(.", "([", "(\\"];

/// Timeout of the command, long enough for a slow serial line.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout once the run is stopped.
const STOPPED_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which the wait is reported to the user.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Poll interval during the command.
const COMMAND_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Limit of what is read from each output.
const OUTPUT_LIMIT_BYTES: u64 = 1 << 20;

/// Tolerance for rounding between two counts of the same bytes.
const COUNT_TOLERANCE_BYTES: u64 = 1024;

/// Command that prints the server's count.
#[derive(Clone, Debug)]
pub struct ReportCommand {
    command: String,
    pattern: Regex,
}

/// Reads an output to its end; bytes above the limit are dropped.
fn spawn_reader(output: Box<dyn Read + Send>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut limited = output.take(OUTPUT_LIMIT_BYTES);
        // Output before a read error counts.
        let _ = limited.read_to_end(&mut bytes);
        let _ = io::copy(&mut limited.into_inner(), &mut io::sink());
        bytes
    })
}

/// Count from the command's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandCount {
    pub bytes: Option<u64>,
    pub packets: Option<u64>,
    /// Duration of the count.
    pub seconds: Option<f64>,
    /// Complete output.
    pub text: String,
    /// Reason to doubt the count.
    pub warning: Option<String>,
}

/// Reason for a command without a usable count.
#[derive(Debug, thiserror::Error)]
pub enum ReportCommandError {
    /// The command cannot be run.
    #[error("`{command}` cannot be run ({source})")]
    NotRun {
        /// Command as written.
        command: String,
        source: std::io::Error,
    },
    /// The command did not end.
    #[error("`{command}` did not end {}", if *.interrupted { "before the run was stopped" } else { "in 10 s" })]
    TimedOut {
        /// Command as written.
        command: String,
        /// True if the run was stopped in the meantime.
        interrupted: bool,
    },
    /// The output has no match of the expression.
    #[error("`{command}` printed no count that matches the expression (it ended with {status})")]
    NoCount {
        /// Command as written.
        command: String,
        status: std::process::ExitStatus,
    },
    /// The count is larger than what was sent.
    #[error(
        "`{command}` reports that {reported} arrived, but {sent} were sent: it counts something else"
    )]
    TooMuch {
        /// Command as written.
        command: String,
        /// Count, with its unit.
        reported: String,
        sent: u64,
    },
}

impl ReportCommandError {
    /// Returns the situation, the object and the next step.
    #[must_use]
    pub fn to_report(&self) -> ErrorReport {
        let next = match self {
            Self::NotRun { .. } => "run the command by hand first",
            Self::TimedOut { .. } => "give a command that prints the count and ends",
            Self::NoCount { .. } => {
                "run the command by hand, and give an expression that matches the number: \
                 CMD,(?P<bytes>\\d+)"
            }
            Self::TooMuch { .. } => {
                "reset the server's counter before each run, or give an expression that matches the \
                 count of this run"
            }
        };
        let note = "the figures of this end are valid, without the server's count";
        ErrorReport::new(format!("{self}; {note}"), "--far-report", next)
    }
}

/// Totals that this end sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentTotals {
    bytes: Option<u64>,
    packets: Option<u64>,
}

impl SentTotals {
    /// Sums the flows of this end.
    #[must_use]
    pub fn from_results(results: &EndResults) -> Self {
        let flows = || results.streams.iter().map(|flow| &flow.stream.summary);
        Self {
            bytes: flows().map(|flow| flow.bytes_sent).sum(),
            packets: flows().map(|flow| flow.packets_sent).sum(),
        }
    }
}

/// Returns the command of a plan.
///
/// # Errors
/// If the plan has nothing that a command could count, or the expression is invalid.
pub fn from_plan(plan: &Plan) -> Result<Option<ReportCommand>, SessionError> {
    let Some(text) = &plan.server_report_command else {
        return Ok(None);
    };
    let reject = |reason: String| SessionError::Unsupported {
        option: format!("--far-report {text}"),
        why: reason,
        next_step: "write CMD, or CMD,REGEX with (?P<bytes>\\d+) or (?P<packets>\\d+) in it"
            .to_owned(),
    };
    if plan.kind == RunKind::Latency || plan.directions.len() > 1 {
        return Err(reject("it counts payload of one direction".to_owned()));
    }
    ReportCommand::parse(text).map(Some).map_err(reject)
}

impl ReportCommand {
    /// Parses `CMD` or `CMD,REGEX`. The text after a comma is the expression if it is one with a
    /// group. In front of a named group the last comma counts, otherwise the first.
    ///
    /// Groups are named `bytes`, `packets` and `seconds`; a group without a name is bytes.
    ///
    /// # Errors
    /// If there is no command, or an apparent expression is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expression = |at: usize| {
            let pattern = Regex::new(&text[at + 1..]).ok()?;
            (pattern.captures_len() > 1).then_some((&text[..at], pattern))
        };
        let commas = || text.match_indices(',').map(|(at, _)| at);
        // Commands and expressions may both have commas: with a named group, the last comma before
        // it separates the two.
        let split = match text.find("(?P<") {
            Some(group) => commas().rev().filter(|&at| at < group).find_map(expression),
            None => commas().find_map(expression),
        };
        let (command, pattern) = match split {
            Some(split) => split,
            None => {
                if let Some(reason) = explain_invalid_expression(text) {
                    return Err(reason);
                }
                let default_expression = Regex::new(DEFAULT_EXPRESSION);
                (
                    text,
                    default_expression.map_err(|error| format!("our own expression: {error}"))?,
                )
            }
        };
        if command.trim().is_empty() {
            return Err("there is no command".to_owned());
        }
        let mut names = pattern.capture_names().flatten();
        if let Some(unknown) = names.find(|name| !GROUP_NAMES.contains(name)) {
            return Err(format!(
                "a group is named {unknown}, and the possible names are {}",
                GROUP_NAMES.join(", ")
            ));
        }
        Ok(Self {
            command: command.to_owned(),
            pattern,
        })
    }

    /// Parses the command's output. The last match counts, because consoles grow at the end.
    #[must_use]
    pub fn parse_output(&self, output: &str) -> CommandCount {
        let mut parsed = CommandCount {
            text: output.to_owned(),
            ..CommandCount::default()
        };
        for captures in self.pattern.captures_iter(output) {
            let text_of = |name: &str| captures.name(name).map(|text| text.as_str());
            let number_of = |name: &str| text_of(name)?.parse().ok();
            parsed.bytes = number_of("bytes").or(parsed.bytes);
            parsed.packets = number_of("packets").or(parsed.packets);
            parsed.seconds = text_of("seconds")
                .and_then(|text| text.parse().ok())
                .or(parsed.seconds);
            let has_names = GROUP_NAMES.iter().any(|name| captures.name(name).is_some());
            if !has_names && let Some(group) = captures.get(1) {
                parsed.bytes = group.as_str().parse().ok().or(parsed.bytes);
            }
        }
        parsed
    }

    /// Runs the command and parses both of its outputs. The command is killed after ten seconds, or
    /// when the run is stopped. `progress` receives a progress message if it takes more than a
    /// moment.
    ///
    /// # Errors
    /// If there is no usable count.
    pub fn fetch_count(
        &self,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(String),
    ) -> Result<CommandCount, ReportCommandError> {
        let (text, status) = self.run_command(stop, progress)?;
        let mut count = self.parse_output(&text);
        if count.bytes.is_none() && count.packets.is_none() {
            return Err(ReportCommandError::NoCount {
                command: self.command.clone(),
                status,
            });
        }
        if !status.success() {
            let command = &self.command;
            count.warning = Some(format!(
                "`{command}` printed a count and ended with {status}: see whether the count is complete"
            ));
        }
        Ok(count)
    }

    fn run_command(
        &self,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(String),
    ) -> Result<(String, ExitStatus), ReportCommandError> {
        let not_run = |source| ReportCommandError::NotRun {
            command: self.command.clone(),
            source,
        };
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(&self.command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Processes that it starts are killed with it.
            .process_group(0)
            .spawn()
            .map_err(not_run)?;
        let readers = [
            child.stdout.take().map(|out| spawn_reader(Box::new(out))),
            child.stderr.take().map(|out| spawn_reader(Box::new(out))),
        ];
        let started = Instant::now();
        let deadline = started + COMMAND_TIMEOUT;
        let mut is_notified = false;
        // The command has ended when all writers of its outputs are gone and it has exited itself:
        // a command may close its outputs and go on.
        let mut has_ended = || {
            let outputs_closed = readers.iter().flatten().all(JoinHandle::is_finished);
            outputs_closed && !matches!(child.try_wait(), Ok(None))
        };
        let mut until = deadline;
        let mut stop_deadline = None;
        while !has_ended() && Instant::now() < until {
            std::thread::sleep(COMMAND_POLL_INTERVAL);
            if !is_notified && started.elapsed() >= NOTICE_DELAY {
                is_notified = true;
                progress(format!(
                    "the server's count: `{}` has up to {} s",
                    self.command,
                    COMMAND_TIMEOUT.as_secs()
                ));
            }
            // A stopped run also gets a count, if it is available quickly.
            if stop.load(Relaxed) {
                until = until.min(
                    *stop_deadline.get_or_insert_with(|| Instant::now() + STOPPED_COMMAND_TIMEOUT),
                );
            }
        }
        let finished = has_ended();
        if !finished && let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            // It may have ended in the meantime.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let status = child.wait().map_err(not_run)?;
        if !finished {
            return Err(ReportCommandError::TimedOut {
                command: self.command.clone(),
                interrupted: stop.load(Relaxed),
            });
        }
        let readers = readers.into_iter().flatten().map(|thread| thread.join());
        let text: Vec<u8> = readers.flat_map(Result::unwrap_or_default).collect();
        Ok((String::from_utf8_lossy(&text).into_owned(), status))
    }

    /// Adds the count to the report of the protocol, which has none.
    ///
    /// # Errors
    /// If it cannot be the count of what was sent.
    pub fn add_to_report(
        &self,
        count: CommandCount,
        plan: &Plan,
        sent: SentTotals,
        report: &mut RemoteReport,
    ) -> Result<(), ReportCommandError> {
        let direction = plan.directions.first().copied().unwrap_or(Direction::Send);
        let udp = plan.protocol == TransportProtocol::Udp;
        // Datagrams of a test have one size.
        let size = plan.payload_bytes.max(1);
        let figures = RemoteFigures {
            bytes: (count.bytes)
                .or_else(|| Some(count.packets.filter(|_| udp)?.saturating_mul(size))),
            packets: (count.packets).or_else(|| Some(count.bytes.filter(|_| udp)? / size)),
            duration_ns: count.seconds.map(|seconds| (seconds * 1e9) as u64),
            ..RemoteFigures::default()
        };
        let excess = |count: Option<u64>, sent: Option<u64>, rounding: u64, unit: &str| {
            let (count, sent) = count.zip(sent)?;
            (count > sent.saturating_add(rounding)).then(|| ReportCommandError::TooMuch {
                command: self.command.clone(),
                reported: format!("{count} {unit}"),
                sent,
            })
        };
        if direction == Direction::Send {
            // A board may count one marker more or less.
            let rounding = if udp {
                COUNT_TOLERANCE_BYTES.max(size)
            } else {
                COUNT_TOLERANCE_BYTES
            };
            let bytes = excess(figures.bytes, sent.bytes, rounding, "B");
            let packets = excess(figures.packets, sent.packets, 1, "datagrams");
            if let Some(error) = bytes.or(packets) {
                return Err(error);
            }
        }
        report.flows = vec![RemoteFlow {
            id: None,
            direction,
            figures,
        }];
        let mut text = count.text;
        if let Some(at) = text
            .char_indices()
            .map(|(at, _)| at)
            .find(|&at| at > MAX_SERVER_TEXT_BYTES)
        {
            text.truncate(at);
        }
        report.text = Some(text);
        Ok(())
    }
}

/// Returns what is wrong with an apparent expression, if there is one.
fn explain_invalid_expression(text: &str) -> Option<String> {
    let mut commas = text.match_indices(',').map(|(at, _)| &text[at + 1..]);
    let apparent = commas.find(|rest| EXPRESSION_MARKS.iter().any(|sign| rest.contains(sign)))?;
    // The expression may have commas of its own, after the one that separates it from the command.
    Some(match Regex::new(apparent) {
        Err(error) => format!("`{apparent}` is an invalid expression ({error})"),
        Ok(_) => format!("the expression `{apparent}` has no group, so it gives no number"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn counts_are_read_from_console_output() {
        type OutputCase<'a> = (&'a str, &'a str, Option<u64>, Option<u64>, Option<f64>);
        let rows: [OutputCase<'_>; 8] = [
            (
                "cat log",
                "received 1472000 bytes",
                Some(1_472_000),
                None,
                None,
            ),
            (
                "cat log",
                "rx: 1000 packets, 1472000 bytes\n",
                Some(1_472_000),
                Some(1_000),
                None,
            ),
            ("cat log", "nothing here", None, None, None),
            ("cat log", "1 bytes\n2 bytes\n", Some(2), None, None),
            (r"cat log,total=(\d+)", "x=1 total=42", Some(42), None, None),
            (
                r"cat log,n=(?P<packets>\d{1,9})",
                "n=77",
                None,
                Some(77),
                None,
            ),
            (
                r"echo a,b,(?P<bytes>\d+) in (?P<seconds>[\d.]+)",
                "640 in 2.5 s",
                Some(640),
                None,
                Some(2.5),
            ),
            ("echo a,b", "9 bytes", Some(9), None, None),
        ];
        for (option, output, bytes, packets, seconds) in rows {
            let command = ReportCommand::parse(option).unwrap();
            let count = command.parse_output(output);
            assert_eq!(
                (count.bytes, count.packets, count.seconds),
                (bytes, packets, seconds),
                "{option}: {output}"
            );
        }
        assert_eq!(
            ReportCommand::parse("echo a,b").unwrap().command,
            "echo a,b",
            "what is no expression belongs to the command"
        );
        assert!(ReportCommand::parse(r",(\d+)").is_err());
    }

    #[test]
    fn an_invalid_expression_is_rejected_before_the_run() {
        for (option, reason) in [
            (r"cat log,(?P<bytes>\d+", "is an invalid expression"),
            (r"cat log,rx=(\d+", "is an invalid expression"),
            (r"cat log,rx=([0-9]+ b", "is an invalid expression"),
            (r"cat log,(?P<byte>\d+)", "named byte"),
            (r"cat log,rx=\d+", "has no group"),
            (r"cat log,rx=[0-9]{1,9}", "has no group"),
        ] {
            let error = ReportCommand::parse(option).unwrap_err();
            assert!(error.contains(reason), "{option}: {error}");
        }
        for command in [
            "awk -F, '{print substr($1,2)}' log",
            "echo $(cat a,b)",
            "ssh board 'cat /proc/net/dev,x'",
        ] {
            assert_eq!(ReportCommand::parse(command).unwrap().command, command);
        }
    }

    #[test]
    fn a_count_above_what_was_sent_is_rejected() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "far");
        plan.payload_bytes = 1_472;
        let sent = SentTotals {
            bytes: Some(125_120),
            packets: Some(85),
        };
        let command = ReportCommand::parse("cat log").unwrap();
        for (output, accepted) in [
            ("125120 bytes", true),
            ("85 packets", true),
            ("5000000 bytes", false),
            ("86 packets", true),
            ("100 packets", false),
            ("18446744073709551615 packets", false),
        ] {
            let mut report = RemoteReport::default();
            let merged =
                command.add_to_report(command.parse_output(output), &plan, sent, &mut report);
            assert_eq!(merged.is_ok(), accepted, "{output}: {merged:?}");
            assert_eq!(report.flows.len(), usize::from(accepted), "{output}");
        }
    }

    #[test]
    fn a_command_is_run() {
        let command = ReportCommand::parse("echo 5000 bytes >&2").unwrap();
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "far");
        plan.payload_bytes = 1_000;
        let count = command
            .fetch_count(&AtomicBool::new(false), &mut |_| {})
            .unwrap();
        assert_eq!(count.warning, None);
        let mut report = RemoteReport::default();
        let sent = SentTotals::default();
        command
            .add_to_report(count, &plan, sent, &mut report)
            .unwrap();
        assert_eq!(report.flows[0].figures.packets, Some(5));
        let error = ReportCommand::parse("exit 3")
            .unwrap()
            .fetch_count(&AtomicBool::new(false), &mut |_| {})
            .unwrap_err();
        assert!(error.to_report().situation.contains("exit status: 3"));
        let warning = ReportCommand::parse("echo 7 bytes; exit 3").unwrap();
        assert!(
            warning
                .fetch_count(&AtomicBool::new(false), &mut |_| {})
                .unwrap()
                .warning
                .unwrap()
                .contains("exit status: 3")
        );
    }
    #[test]
    fn an_endless_command_is_killed_with_the_run() {
        for line in [
            "echo 5 bytes; sleep 3600 & wait",
            // Closes its outputs and goes on.
            "echo 5 bytes; exec > /dev/null 2>&1; sleep 3600",
        ] {
            let command = ReportCommand::parse(line).unwrap();
            let started = Instant::now();
            let mut notices = Vec::new();
            let error = command
                .fetch_count(&AtomicBool::new(true), &mut |notice| notices.push(notice))
                .unwrap_err();
            assert!(
                notices.len() == 1 && notices[0].contains("sleep 3600"),
                "{notices:?}"
            );
            assert!(
                error.to_string().contains("before the run was stopped"),
                "{error}"
            );
            assert!(started.elapsed() < COMMAND_TIMEOUT / 2, "{line}");
        }
    }

    #[test]
    fn an_endless_output_takes_bounded_memory() {
        let command = ReportCommand::parse("head -c 5000000 /dev/zero; echo 7 bytes >&2").unwrap();
        let count = command
            .fetch_count(&AtomicBool::new(false), &mut |_| {})
            .unwrap();
        assert_eq!(count.bytes, Some(7));
        assert!(count.text.len() as u64 <= OUTPUT_LIMIT_BYTES + 100);
    }
}
