//! Server's count from the output of a command (`--far-report`): the console of a board, for
//! example.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_dialect::control::Outcome;
use linerate_dialect::remote_report::{FarFigures, FarFlow, FarReport};
use linerate_metric::event::Problem;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use linerate_metric::record::FAR_TEXT_BYTES;
use regex_lite::Regex;
use rustix::process::{Pid, Signal};

use crate::error::MeasureError;

/// Default expression: a number and its unit.
const USUAL: &str = r"(?i)(?:(?P<bytes>\d+)\s*(?:bytes|octets|B)\b)|(?:(?P<packets>\d+)\s*(?:packets|datagrams|pkts)\b)";

/// Named groups of an expression.
const GROUPS: [&str; 3] = ["bytes", "packets", "seconds"];

/// Substrings of expressions that commands do not have: after a comma they show that an expression
/// is meant.
const SIGNS: [&str; 8] = ["(?", "\\d", "\\s", "\\w", "[0-9", "(.", "([", "(\\"];

/// Timeout of the command, long enough for a slow serial line.
const PATIENCE: Duration = Duration::from_secs(10);

/// Timeout once the run is stopped.
const GRACE: Duration = Duration::from_secs(2);

/// Time after which the wait is reported to the user.
const UNTOLD: Duration = Duration::from_secs(1);

/// Poll interval during the command.
const LOOK: Duration = Duration::from_millis(10);

/// Limit of what is read from each output.
const OUTPUT_BYTES: u64 = 1 << 20;

/// Tolerance for rounding between two counts of the same bytes.
const ROUNDING_BYTES: u64 = 1024;

/// Command that prints the server's count.
#[derive(Clone, Debug)]
pub struct FarCommand {
    command: String,
    pattern: Regex,
}

/// Reads an output to its end; bytes above the limit are dropped.
fn heard(output: Box<dyn Read + Send>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut limited = output.take(OUTPUT_BYTES);
        // Output before a read error counts.
        let _ = limited.read_to_end(&mut kept);
        let _ = io::copy(&mut limited.into_inner(), &mut io::sink());
        kept
    })
}

/// Count from the command's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub bytes: Option<u64>,
    pub packets: Option<u64>,
    /// Duration of the count.
    pub seconds: Option<f64>,
    /// Complete output.
    pub text: String,
    /// Reason to doubt the count.
    pub odd: Option<String>,
}

/// Reason for a command without a usable count.
#[derive(Debug, thiserror::Error)]
pub enum FarReportError {
    /// The command cannot be run.
    #[error("`{command}` cannot be run ({source})")]
    NotRun {
        /// Command as written.
        command: String,
        source: std::io::Error,
    },
    /// The command did not end.
    #[error("`{command}` did not end {}", if *.interrupted { "before the run was stopped" } else { "in 10 s" })]
    Silent {
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

impl FarReportError {
    /// Returns the situation, the object and the next step.
    #[must_use]
    pub fn problem(&self) -> Problem {
        let next = match self {
            Self::NotRun { .. } => "run the command by hand first",
            Self::Silent { .. } => "give a command that prints the count and ends",
            Self::NoCount { .. } => {
                "run the command by hand, and give an expression that matches the number: \
                 CMD,(?P<bytes>\\d+)"
            }
            Self::TooMuch { .. } => {
                "reset the server's counter before each run, or give an expression that matches the \
                 count of this run"
            }
        };
        let measured = "the figures of this end are valid, without the server's count";
        Problem::new(format!("{self}; {measured}"), "--far-report", next)
    }
}

/// Totals that this end sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    bytes: Option<u64>,
    packets: Option<u64>,
}

impl Sent {
    /// Sums the flows of this end.
    #[must_use]
    pub fn of(own: &Outcome) -> Self {
        let flows = || own.streams.iter().map(|flow| &flow.stream.summary);
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
pub fn of(plan: &Plan) -> Result<Option<FarCommand>, MeasureError> {
    let Some(text) = &plan.far_report else {
        return Ok(None);
    };
    let refused = |why: String| MeasureError::Unsupported {
        option: format!("--far-report {text}"),
        why,
        next_step: "write CMD, or CMD,REGEX with (?P<bytes>\\d+) or (?P<packets>\\d+) in it"
            .to_owned(),
    };
    if plan.kind == Kind::Latency || plan.directions.len() > 1 {
        return Err(refused("it counts payload of one direction".to_owned()));
    }
    FarCommand::parse(text).map(Some).map_err(refused)
}

impl FarCommand {
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
                if let Some(why) = meant(text) {
                    return Err(why);
                }
                let usual = Regex::new(USUAL);
                (
                    text,
                    usual.map_err(|error| format!("our own expression: {error}"))?,
                )
            }
        };
        if command.trim().is_empty() {
            return Err("there is no command".to_owned());
        }
        let mut names = pattern.capture_names().flatten();
        if let Some(unknown) = names.find(|name| !GROUPS.contains(name)) {
            return Err(format!(
                "a group is named {unknown}, and the possible names are {}",
                GROUPS.join(", ")
            ));
        }
        Ok(Self {
            command: command.to_owned(),
            pattern,
        })
    }

    /// Parses the command's output. The last match counts, because consoles grow at the end.
    #[must_use]
    pub fn read(&self, output: &str) -> Told {
        let mut told = Told {
            text: output.to_owned(),
            ..Told::default()
        };
        for found in self.pattern.captures_iter(output) {
            let number = |name: &str| found.name(name).map(|text| text.as_str());
            let count = |name: &str| number(name)?.parse().ok();
            told.bytes = count("bytes").or(told.bytes);
            told.packets = count("packets").or(told.packets);
            told.seconds = number("seconds")
                .and_then(|text| text.parse().ok())
                .or(told.seconds);
            let named = GROUPS.iter().any(|name| found.name(name).is_some());
            if !named && let Some(first) = found.get(1) {
                told.bytes = first.as_str().parse().ok().or(told.bytes);
            }
        }
        told
    }

    /// Runs the command and parses both of its outputs. The command is killed after ten seconds, or
    /// when the run is stopped. `progress` receives a progress message if it takes more than a
    /// moment.
    ///
    /// # Errors
    /// If there is no usable count.
    pub fn ask(
        &self,
        stop: &AtomicBool,
        awaited: &mut dyn FnMut(String),
    ) -> Result<Told, FarReportError> {
        let (text, status) = self.run(stop, awaited)?;
        let mut told = self.read(&text);
        if told.bytes.is_none() && told.packets.is_none() {
            return Err(FarReportError::NoCount {
                command: self.command.clone(),
                status,
            });
        }
        if !status.success() {
            let command = &self.command;
            told.odd = Some(format!(
                "`{command}` printed a count and ended with {status}: see whether the count is complete"
            ));
        }
        Ok(told)
    }

    fn run(
        &self,
        stop: &AtomicBool,
        awaited: &mut dyn FnMut(String),
    ) -> Result<(String, ExitStatus), FarReportError> {
        let not_run = |source| FarReportError::NotRun {
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
        let said = [
            child.stdout.take().map(|out| heard(Box::new(out))),
            child.stderr.take().map(|out| heard(Box::new(out))),
        ];
        let began = Instant::now();
        let deadline = began + PATIENCE;
        let mut told = false;
        // The command has ended when all writers of its outputs are gone and it has exited itself:
        // a command may close its outputs and go on.
        let mut has_ended = || {
            let silent = said.iter().flatten().all(JoinHandle::is_finished);
            silent && !matches!(child.try_wait(), Ok(None))
        };
        let mut until = deadline;
        let mut stopped = None;
        while !has_ended() && Instant::now() < until {
            std::thread::sleep(LOOK);
            if !told && began.elapsed() >= UNTOLD {
                told = true;
                awaited(format!(
                    "the server's count: `{}` has up to {} s",
                    self.command,
                    PATIENCE.as_secs()
                ));
            }
            // A stopped run also gets a count, if it is available quickly.
            if stop.load(Relaxed) {
                until = until.min(*stopped.get_or_insert_with(|| Instant::now() + GRACE));
            }
        }
        let ended = has_ended();
        if !ended && let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            // It may have ended in the meantime.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let status = child.wait().map_err(not_run)?;
        if !ended {
            return Err(FarReportError::Silent {
                command: self.command.clone(),
                interrupted: stop.load(Relaxed),
            });
        }
        let said = said.into_iter().flatten().map(|thread| thread.join());
        let text: Vec<u8> = said.flat_map(Result::unwrap_or_default).collect();
        Ok((String::from_utf8_lossy(&text).into_owned(), status))
    }

    /// Adds the count to the report of the protocol, which has none.
    ///
    /// # Errors
    /// If it cannot be the count of what was sent.
    pub fn merge(
        &self,
        told: Told,
        plan: &Plan,
        sent: Sent,
        report: &mut FarReport,
    ) -> Result<(), FarReportError> {
        let direction = plan.directions.first().copied().unwrap_or(Direction::Send);
        let udp = plan.protocol == Protocol::Udp;
        // Datagrams of a test have one size.
        let size = plan.payload_bytes.max(1);
        let figures = FarFigures {
            bytes: (told.bytes)
                .or_else(|| Some(told.packets.filter(|_| udp)?.saturating_mul(size))),
            packets: (told.packets).or_else(|| Some(told.bytes.filter(|_| udp)? / size)),
            duration_ns: told.seconds.map(|seconds| (seconds * 1e9) as u64),
            ..FarFigures::default()
        };
        let more = |told: Option<u64>, sent: Option<u64>, rounding: u64, unit: &str| {
            let (told, sent) = told.zip(sent)?;
            (told > sent.saturating_add(rounding)).then(|| FarReportError::TooMuch {
                command: self.command.clone(),
                reported: format!("{told} {unit}"),
                sent,
            })
        };
        if direction == Direction::Send {
            // A board may count one marker more or less.
            let rounding = if udp {
                ROUNDING_BYTES.max(size)
            } else {
                ROUNDING_BYTES
            };
            let bytes = more(figures.bytes, sent.bytes, rounding, "B");
            let packets = more(figures.packets, sent.packets, 1, "datagrams");
            if let Some(error) = bytes.or(packets) {
                return Err(error);
            }
        }
        report.flows = vec![FarFlow {
            id: None,
            direction,
            figures,
        }];
        let mut text = told.text;
        if let Some(at) = text
            .char_indices()
            .map(|(at, _)| at)
            .find(|&at| at > FAR_TEXT_BYTES)
        {
            text.truncate(at);
        }
        report.text = Some(text);
        Ok(())
    }
}

/// Returns what is wrong with an apparent expression, if there is one.
fn meant(text: &str) -> Option<String> {
    let mut commas = text.match_indices(',').map(|(at, _)| &text[at + 1..]);
    let like_one = commas.find(|rest| SIGNS.iter().any(|sign| rest.contains(sign)))?;
    // The expression may have commas of its own, after the one that separates it from the command.
    Some(match Regex::new(like_one) {
        Err(error) => format!("`{like_one}` is an invalid expression ({error})"),
        Ok(_) => format!("the expression `{like_one}` has no group, so it gives no number"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn consoles_are_read() {
        type Row<'a> = (&'a str, &'a str, Option<u64>, Option<u64>, Option<f64>);
        let rows: [Row<'_>; 8] = [
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
            let command = FarCommand::parse(option).unwrap();
            let told = command.read(output);
            assert_eq!(
                (told.bytes, told.packets, told.seconds),
                (bytes, packets, seconds),
                "{option}: {output}"
            );
        }
        assert_eq!(
            FarCommand::parse("echo a,b").unwrap().command,
            "echo a,b",
            "what is no expression belongs to the command"
        );
        assert!(FarCommand::parse(r",(\d+)").is_err());
    }

    #[test]
    fn a_wrong_expression_is_found_before_the_run() {
        for (option, why) in [
            (r"cat log,(?P<bytes>\d+", "is an invalid expression"),
            (r"cat log,rx=(\d+", "is an invalid expression"),
            (r"cat log,rx=([0-9]+ b", "is an invalid expression"),
            (r"cat log,(?P<byte>\d+)", "named byte"),
            (r"cat log,rx=\d+", "has no group"),
            (r"cat log,rx=[0-9]{1,9}", "has no group"),
        ] {
            let error = FarCommand::parse(option).unwrap_err();
            assert!(error.contains(why), "{option}: {error}");
        }
        for command in [
            "awk -F, '{print substr($1,2)}' log",
            "echo $(cat a,b)",
            "ssh board 'cat /proc/net/dev,x'",
        ] {
            assert_eq!(FarCommand::parse(command).unwrap().command, command);
        }
    }

    #[test]
    fn a_count_above_what_was_sent_is_not_believed() {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "far");
        plan.payload_bytes = 1_472;
        let sent = Sent {
            bytes: Some(125_120),
            packets: Some(85),
        };
        let command = FarCommand::parse("cat log").unwrap();
        for (output, believed) in [
            ("125120 bytes", true),
            ("85 packets", true),
            ("5000000 bytes", false),
            ("86 packets", true),
            ("100 packets", false),
            ("18446744073709551615 packets", false),
        ] {
            let mut report = FarReport::default();
            let merged = command.merge(command.read(output), &plan, sent, &mut report);
            assert_eq!(merged.is_ok(), believed, "{output}: {merged:?}");
            assert_eq!(report.flows.len(), usize::from(believed), "{output}");
        }
    }

    #[test]
    fn a_command_is_run() {
        let command = FarCommand::parse("echo 5000 bytes >&2").unwrap();
        let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "far");
        plan.payload_bytes = 1_000;
        let told = command.ask(&AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(told.odd, None);
        let mut report = FarReport::default();
        let sent = Sent::default();
        command.merge(told, &plan, sent, &mut report).unwrap();
        assert_eq!(report.flows[0].figures.packets, Some(5));
        let error = FarCommand::parse("exit 3")
            .unwrap()
            .ask(&AtomicBool::new(false), &mut |_| {})
            .unwrap_err();
        assert!(error.problem().situation.contains("exit status: 3"));
        let odd = FarCommand::parse("echo 7 bytes; exit 3").unwrap();
        assert!(
            odd.ask(&AtomicBool::new(false), &mut |_| {})
                .unwrap()
                .odd
                .unwrap()
                .contains("exit status: 3")
        );
    }
    #[test]
    fn a_command_that_does_not_end_is_ended_with_the_run() {
        for line in [
            "echo 5 bytes; sleep 3600 & wait",
            // Closes its outputs and goes on.
            "echo 5 bytes; exec > /dev/null 2>&1; sleep 3600",
        ] {
            let command = FarCommand::parse(line).unwrap();
            let began = Instant::now();
            let mut awaited = Vec::new();
            let error = command
                .ask(&AtomicBool::new(true), &mut |what| awaited.push(what))
                .unwrap_err();
            assert!(
                awaited.len() == 1 && awaited[0].contains("sleep 3600"),
                "{awaited:?}"
            );
            assert!(
                error.to_string().contains("before the run was stopped"),
                "{error}"
            );
            assert!(began.elapsed() < PATIENCE / 2, "{line}");
        }
    }

    #[test]
    fn an_endless_output_takes_bounded_room() {
        let command = FarCommand::parse("head -c 5000000 /dev/zero; echo 7 bytes >&2").unwrap();
        let told = command.ask(&AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(told.bytes, Some(7));
        assert!(told.text.len() as u64 <= OUTPUT_BYTES + 100);
    }
}
