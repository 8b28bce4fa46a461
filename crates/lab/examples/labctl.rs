//! Small version of `linerate lab`: drives labs by hand and in tests.
//!
//! ```text
//! labctl up FILE|--hops N [--name LAB]    labctl exec [LAB/]HOST [-- CMD...]
//! labctl list                             labctl down [LAB]
//! labctl rootless CMD...                  (a command in a user namespace that may build labs)
//! labctl here                             (a lab inside this process, until it is killed)
//! ```

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use linerate_lab::{HOLDER_COMMAND, Lab, LabError, Topology};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {}", error.full_text());
            let missing = if error.is_missing_privilege() { 4 } else { 1 };
            ExitCode::from(error.command_exit_code().unwrap_or(missing))
        }
    }
}

fn run(arguments: &[OsString]) -> Result<u8, LabError> {
    let args: Vec<&str> = arguments.iter().filter_map(|arg| arg.to_str()).collect();
    match args.as_slice() {
        [HOLDER_COMMAND, ..] => linerate_lab::hold(arguments[1..].iter().cloned()).map(|()| 0),
        ["up", "--hops", count, name @ ..] => up(&Topology::hops(count.parse().unwrap_or(0)), name),
        ["up", file, name @ ..] => {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            up(&Topology::from_toml(&text)?, name)
        }
        ["exec", target, rest @ ..] => {
            let (lab, host) = match target.split_once('/') {
                Some((lab, host)) => (Some(lab), host),
                None => (None, *target),
            };
            let skip = 2 + usize::from(rest.first() == Some(&"--"));
            let ran = linerate_lab::exec(lab, host, &arguments[skip.min(arguments.len())..])?;
            ran.link_failure.map_or(Ok(ran.exit_code), Err)
        }
        ["list"] => {
            let labs = linerate_lab::list()?;
            println!(
                "{}",
                serde_json::to_string_pretty(&labs).unwrap_or_default()
            );
            Ok(0)
        }
        ["down", name @ ..] => {
            let lab = linerate_lab::down(name.first().copied())?;
            println!("{} is down", lab.name);
            Ok(0)
        }
        ["rootless", program, rest @ ..] => {
            linerate_lab::enter_user_namespace()?;
            let error = std::process::Command::new(program).args(rest).exec();
            eprintln!("{program}: {error}");
            Ok(1)
        }
        ["here"] => {
            let lab = Lab::up(&Topology::hops(1))?;
            let namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
            println!("{}", lab.host("client")?.run(namespace)?.display());
            loop {
                std::thread::park();
            }
        }
        _ => {
            eprintln!("usage: labctl up FILE|--hops N [--name LAB] | exec | list | down");
            Ok(2)
        }
    }
}

fn up(topology: &Topology, name: &[&str]) -> Result<u8, LabError> {
    let name = match name {
        ["--name", name] => Some(*name),
        _ => None,
    };
    let lab = linerate_lab::up(topology, name)?;
    println!("{}", serde_json::to_string(&lab).unwrap_or_default());
    Ok(0)
}
