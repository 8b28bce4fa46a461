//! `linerate`: measures a network stack, finds what limits it, and tunes it.
#![forbid(unsafe_code)]

mod args;
mod child_process;
mod command;
mod command_line;
mod disk_space;
mod event_queue;
mod failure;
mod findings;
mod key_source;
mod knob_applier;
mod knobs;
mod lab_network;
#[cfg_attr(not(feature = "tui"), path = "live/none.rs")]
mod live;
mod load_option;
mod local_binding;
mod output;
mod plan;
mod port_devices;
mod printer;
mod privilege;
mod remote_tuning;
mod screen_output;
mod server_name;
mod shell_words;
mod standard_streams;
mod stored_results;
mod tunable_hosts;
mod ui_update;
mod unrestored_settings;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Cli, Command};
use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use failure::CommandFailure;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_report::text;
use output::{OutputFormat, print_failure};
use standard_streams::{
    exit_if_reader_closed, exit_on_broken_pipe, print_stderr, print_stdout, stderr_style,
    stdout_failed,
};

/// Text that `linerate` without arguments prints.
const WELCOME: &str = "\
linerate measures the throughput and latency of a network stack, finds what limits it, and tunes it.

Try first:
  linerate demo                      measure this machine and write a report; no root needed
  linerate doctor                    check what this machine supports and how to enable the rest

Between two hosts:
  linerate server                    on one host
  linerate throughput HOST           on the other host: payload per second
  linerate latency HOST              on the other host: round-trip time

`linerate --help` lists all commands, `linerate COMMAND --help` shows their options and examples.";

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // The holder of a lab enters namespaces. A process can do that only while it has a single
    // thread.
    if arguments
        .get(1)
        .is_some_and(|arg| arg == linerate_lab::HOLDER_COMMAND)
    {
        return command::lab::hold(&arguments[2..]);
    }
    linerate_experiment::die_with_parent();
    if arguments.len() == 1 {
        print_stdout(WELCOME);
        return exit_code(exit_codes::OK);
    }
    if arguments[1] == "help" {
        // clap's `help` has no help of its own.
        arguments.retain(|arg| arg != "--help" && arg != "-h");
    }
    shell_words::separate_inner_command(&mut arguments);
    let parsed = args::parser()
        .try_get_matches_from(&arguments)
        .inspect(|matches| command_line::store_command_line(&arguments, matches))
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return exit_code(report_usage_error(&arguments, &error)),
    };
    let code = match cli.command {
        Command::Demo(args) => command::demo::run(args),
        Command::Server(args) => command::server::run(args),
        Command::Throughput(args) => command::throughput::run(args),
        Command::Latency(args) => command::latency::run(args),
        Command::Ttcp(args) => command::ttcp::run(args),
        Command::TargetCode(args) => command::target_code::run(&args),
        Command::Forward(args) => command::forward::run(*args),
        Command::Generate(args) => command::generate::run(&args),
        Command::Capacity(args) => command::capacity::run(&args),
        Command::Compare(args) => command::compare::run(&args),
        Command::Sweep(args) => command::sweep::run(&args),
        Command::Explain(args) => command::explain::run(&args),
        Command::Tune(args) => command::tune::run(&args),
        Command::Stack(args) => command::stack::run(&args),
        Command::Lab(args) => command::lab::run(args),
        Command::Run(args) => command::run::run(&args),
        #[cfg(feature = "history")]
        Command::Runs(args) => command::runs::run(args),
        Command::Report(args) => command::report::run(&args),
        Command::Doctor(args) => command::doctor::run(args),
        Command::Completions(args) => command::completions::run(&args),
        Command::Man(args) => command::man::run(&args),
    };
    exit_code(code)
}

/// Returns the exit code of the process: a result that could not be printed is a failure.
fn exit_code(code: u8) -> ExitCode {
    exit_if_reader_closed();
    ExitCode::from(match code {
        exit_codes::OK if stdout_failed() => exit_codes::FAILED,
        code => code,
    })
}

/// Prints clap's help, version or error; with --json an error is JSON on standard output.
fn report_usage_error(args: &[OsString], error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return match error.print() {
                Ok(()) => exit_codes::OK,
                Err(error) => {
                    exit_on_broken_pipe(&error);
                    exit_codes::FAILED
                }
            };
        }
        _ => {}
    }
    let form = requested_format(args);
    let hints = [tool_hint, option_hint];
    if let Some(problem) = hints.iter().find_map(|hint| hint(args, error)) {
        match form {
            OutputFormat::Text => print_stderr(&text::render_error(&problem, &stderr_style())),
            form => print_failure(form, &CommandFailure::usage(problem), 0),
        }
        return exit_codes::USAGE;
    }
    let from_environment = from_environment(args, error);
    if form == OutputFormat::Text {
        let rendered = error.render();
        print_stderr(&plain_range(&match stderr_style().color {
            true => rendered.ansi().to_string(),
            false => rendered.to_string(),
        }));
        if let Some(next) = from_environment {
            print_stderr(&format!("\nhelp:  {next}"));
        }
        return exit_codes::USAGE;
    }
    let text = plain_range(&error.to_string());
    // The first paragraph describes the error. Missing arguments are on lines of their own.
    let lines = text.lines().map(str::trim);
    let first_lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let situation = first_lines
        .join(" ")
        .trim_start_matches("error: ")
        .to_owned();
    let command: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let problem = ErrorReport::new(
        situation,
        command.join(" "),
        from_environment
            .unwrap_or_else(|| "`linerate --help` lists the commands and options".to_owned()),
    );
    print_failure(form, &CommandFailure::usage(problem), 0);
    exit_codes::USAGE
}

/// Replaces clap's notation of a range, `99999 is not in 0..=65535`, with `use 0 to 65535`.
fn plain_range(text: &str) -> String {
    let replace = |line: &str| {
        let (before, range) = line.split_once(" is not in ")?;
        let (before, _) = before.rsplit_once(": ")?;
        let (low, high) = range.split_once("..=")?;
        Some(format!("{before}: use {low} to {high}"))
    };
    let lines = text.trim_end().lines();
    let lines = lines.map(|line| replace(line).unwrap_or_else(|| line.to_owned()));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a hint if clap rejects an option that the environment sets, perhaps for other commands.
fn from_environment(args: &[OsString], error: &clap::Error) -> Option<String> {
    let context_values =
        [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| error.get(kind));
    let option_names = context_values
        .into_iter()
        .flatten()
        .flat_map(|value| match value {
            ContextValue::String(one) => std::slice::from_ref(one),
            ContextValue::Strings(all) => &all[..],
            _ => &[],
        });
    let mut sources = option_names
        .filter_map(|option_names| command_line::variable_of_shown_option(args, option_names));
    let (option, variable) = sources.next()?;
    let or = match error.kind() {
        // An option that conflicts with another one does so on the command line too.
        ErrorKind::ArgumentConflict => String::new(),
        _ => format!(", or pass --{option} to this command"),
    };
    Some(format!(
        "{variable} in the environment sets --{option}: unset it{or}"
    ))
}

/// Returns an error for an option or a command of another tool, with its replacement.
fn tool_hint(args: &[OsString], error: &clap::Error) -> Option<ErrorReport> {
    let known = match (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::InvalidSubcommand),
    ) {
        (Some(ContextValue::String(option)), _) if error.kind() == ErrorKind::UnknownArgument => {
            args::tool_options::find_option(&args.get(1)?.to_string_lossy(), option)
        }
        (_, Some(ContextValue::String(name))) => args::tool_options::find_command(name),
        _ => None,
    }?;
    let next_step = match known.instead.strip_prefix("nothing: ") {
        Some(reason) => format!("leave it out: {reason}"),
        None if known.instead.starts_with('`') => format!("use {}", known.instead),
        None => known.instead.to_owned(),
    };
    Some(ErrorReport::new(
        format!("is of {}, not of linerate", known.tools),
        known.name,
        next_step,
    ))
}

/// Returns an error for an option that only other commands have.
fn option_hint(args: &[OsString], error: &clap::Error) -> Option<ErrorReport> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let command = args.get(1)?.to_string_lossy();
    let others = command_line::commands_with_option(option);
    let others: Vec<_> = (others.iter())
        .filter(|other| **other != command)
        .map(|other| format!("`{other}`"))
        .collect();
    let first = others.first()?.trim_matches('`');
    let others = others.join(", ");
    Some(match command.starts_with('-') {
        true => ErrorReport::new(
            format!("is an option of {others}, and the command is missing"),
            option,
            format!("start with a command: `linerate {first} {option} …`"),
        ),
        false => ErrorReport::new(
            format!("is an option of {others}, not of `{command}`"),
            option,
            format!("`linerate {command} --help` lists its options"),
        ),
    })
}

/// Returns the requested output format, as far as an invalid command line shows it.
fn requested_format(words: &[OsString]) -> OutputFormat {
    // Arguments after `--` belong to another program.
    let has = |option: &str| {
        let mut our_args = words.iter().take_while(|arg| *arg != "--");
        our_args.any(|arg| arg == option)
    };
    if has("--json") {
        OutputFormat::Json
    } else if has("--json-stream") {
        OutputFormat::JsonStream
    } else if args::is_variable_on("LINERATE_JSON") {
        OutputFormat::Json
    } else if args::is_variable_on("LINERATE_JSON_STREAM") {
        OutputFormat::JsonStream
    } else {
        OutputFormat::Text
    }
}
