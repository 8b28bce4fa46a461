//! Our stack: port, addresses and configuration, from its options.

use linerate_measure::netstack::{open_stack, rejections, stack_facts};
use linerate_metric::event::Problem;
use linerate_metric::plan::{Kind, Plan, Protocol, Sched, Wait};
use linerate_metric::stack::{STACK_NAME, StackPlan};
use linerate_metric::units::written_duration;
use linerate_stack::config::Thread;
use linerate_stack::{Config, StackError};

use crate::args::{NearStackArgs, StackArgs};
use crate::failure::Failure;

/// Configuration key that an option of kernel sockets also sets.
struct Wish {
    key: &'static str,
    value: String,
    /// `None` for a default of the run.
    option: Option<&'static str>,
}

/// Names of a command's options for the send and the receive buffer.
pub type BufferOptions = [&'static str; 2];

/// Keys that options of the run set.
struct Asked(Vec<Wish>);

impl Asked {
    fn new(plan: &Plan, [send, receive]: BufferOptions) -> Self {
        let mut asked = Vec::new();
        let mut ask = |option, key, value| asked.push(Wish { key, value, option });
        let tcp = plan.protocol == Protocol::Tcp;
        let buffers = [
            (send, "tcp.send_buffer", plan.socket.send_buffer_bytes),
            (
                receive,
                "tcp.receive_window",
                plan.socket.receive_buffer_bytes,
            ),
        ];
        for (option, key, bytes) in buffers.into_iter().filter(|_| tcp) {
            match (bytes, plan.window_bytes) {
                (Some(bytes), _) => ask(Some(option), key, bytes.to_string()),
                (None, Some(bytes)) => ask(Some("-w"), key, bytes.to_string()),
                (None, None) => {}
            }
        }
        if tcp && (plan.socket.no_delay || plan.kind == Kind::Latency) {
            let asked_for = plan.socket.no_delay.then_some("-N");
            ask(asked_for, "tcp.nagle", "off".to_owned());
        }
        if let (Some(bytes), true) = (plan.socket.mss_bytes, tcp) {
            ask(Some("-M"), "tcp.mss", bytes.to_string());
        }
        if let Some(tos) = plan.socket.tos {
            ask(Some("-S"), "ip.tos", tos.to_string());
        }
        if let (Some(name), true) = (&plan.congestion_control, plan.congestion_control_asked) {
            ask(Some("-C"), "tcp.congestion_control", name.clone());
        }
        match plan.wait.as_ref().map(|wait| wait.near) {
            Some(Wait::Spin) => ask(Some("--wait"), "poll.interval", "spin".to_owned()),
            Some(Wait::Interval { time_ns }) => {
                ask(Some("--wait"), "poll.interval", written_duration(time_ns));
            }
            _ => {}
        }
        // With a separate driver thread, that thread keeps the placement of its own keys.
        if !plan.cpu.near.0.is_empty() {
            let cpus = plan.cpu.near.to_string();
            ask(Some("--cpu"), "threads.application.cpus", cpus);
        }
        if plan.sched.near != Sched::Inherited {
            let sched = plan.sched.near.to_string();
            ask(Some("--sched"), "threads.application.sched", sched);
        }
        Self(asked)
    }
}

fn refused(error: StackError) -> Failure {
    linerate_measure::MeasureError::from(error).into()
}

/// Key that the user set by name; later ones override earlier ones.
struct Written {
    key: String,
    /// Source and value, for messages.
    words: String,
}

/// Returns the configuration: the profile, overridden by options of the run, then the file, then
/// single keys.
fn config(args: &StackArgs, asked: &Asked) -> Result<(String, Config), Failure> {
    let profile = args.profile.clone().unwrap_or_else(|| "default".to_owned());
    let mut config = Config::profile(&profile).map_err(refused)?;
    for wish in &asked.0 {
        config.set(wish.key, &wish.value).map_err(refused)?;
    }
    let wished = config.clone();
    let mut written = Vec::new();
    if let Some(file) = &args.config {
        let of_file = |error| {
            let mut failure = refused(error);
            failure.problem.object = format!("--config {}", file.display());
            failure
        };
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::usage(Problem::new(
                format!("cannot be read ({error})"),
                format!("--config {}", file.display()),
                "name a file with the keys that `linerate stack --help` lists",
            ))
        })?;
        for (key, value) in Config::settings(&text).map_err(of_file)? {
            config.set(&key, &value).map_err(of_file)?;
            let words = format!("{key}={value} of --config {}", file.display());
            written.push(Written { key, words });
        }
    }
    for setting in &args.set {
        config.apply(setting).map_err(refused)?;
        let key = setting.split('=').next().unwrap_or_default().trim();
        written.push(Written {
            key: key.to_owned(),
            words: format!("--set {setting}"),
        });
    }
    refuse_without_effect(&written, &config)?;
    refuse_contradictions(asked, &written, &wished, &config)?;
    Ok((profile, config))
}

/// Rejects an option whose key was also set to another value.
fn refuse_contradictions(
    asked: &Asked,
    written: &[Written],
    wished: &Config,
    config: &Config,
) -> Result<(), Failure> {
    let overruled = asked.0.iter().find_map(|wish| {
        let option = wish.option?;
        let by = written.iter().rfind(|written| written.key == wish.key)?;
        (wished.get(wish.key) != config.get(wish.key)).then_some((wish, option, by))
    });
    let Some((Wish { key, value, .. }, option, by)) = overruled else {
        return Ok(());
    };
    let set = config.get(key).unwrap_or_default();
    Err(Failure::usage(Problem::new(
        format!("they set {key} to different values: {value} and {set}"),
        format!("{option} with {}", by.words),
        "leave one of them out",
    )))
}

/// Rejects settings of the driver thread when there is none.
fn refuse_without_effect(written: &[Written], config: &Config) -> Result<(), Failure> {
    if config.threads > 1 {
        return Ok(());
    }
    // Profiles may set it, and a reset to the default has no effect anyway.
    let without = Config {
        driver: Thread::default(),
        ..config.clone()
    };
    let is_idle = |written: &&Written| config.get(&written.key) != without.get(&written.key);
    match written.iter().rfind(is_idle) {
        Some(Written { words, .. }) => Err(Failure::usage(Problem::new(
            "no effect: with threads.count=1 the application thread polls the port",
            words.clone(),
            "add --set threads.count=2, or set threads.application.* instead",
        ))),
        None => Ok(()),
    }
}

/// Returns the stack that options describe; `None` without `--dev`.
fn described(args: &StackArgs, asked: &Asked) -> Result<Option<StackPlan>, Failure> {
    let Some(device) = &args.dev else {
        return Ok(None);
    };
    let (profile, config) = config(args, asked)?;
    let plan = StackPlan {
        device: device.clone(),
        addresses: args.ip.iter().map(ToString::to_string).collect(),
        gateways: args.gateway.iter().map(ToString::to_string).collect(),
        profile,
        configuration: stack_facts::rows(&config),
        ..StackPlan::default()
    };
    // Errors of the URL or the addresses are usage errors.
    open_stack::addressing(&plan).map_err(refused)?;
    open_stack::url(&config, &plan)?;
    Ok(Some(plan))
}

/// Plans `linerate stack`.
pub fn host(args: &StackArgs) -> Result<StackPlan, Failure> {
    described(args, &Asked(Vec::new()))?.ok_or_else(|| {
        Failure::usage(Problem::new(
            "no port for the stack",
            "linerate stack",
            "name it with --dev and --ip: --dev tap:t0 --ip 10.0.0.2/24",
        ))
    })
}

/// Rejects --rt-yield if the stack's threads do not spin, or if one spins that cannot pause.
fn refuse_pauses(plan: &Plan, stack: &StackPlan) -> Result<(), Failure> {
    if !plan.round_trip.rt_yield {
        return Ok(());
    }
    let config = open_stack::config(stack).map_err(refused)?;
    if config.poll_interval.is_some() {
        return super::refuse(
            "--rt-yield with a poll.interval",
            "the stack's threads sleep between polls and have nothing to pause",
            "leave it out, or add --set poll.interval=spin",
        );
    }
    if config.threads > 1 && config.driver.sched.is_real_time() {
        return super::refuse(
            &format!(
                "--rt-yield with threads.driver.sched={}",
                config.driver.sched
            ),
            "only the application thread pauses: the driver thread is real-time too and spins",
            "leave it out, or add --set threads.driver.sched=inherited or --set poll.interval=125us",
        );
    }
    Ok(())
}

/// Puts our stack at the client of a run, if requested.
pub fn near(plan: &mut Plan, args: &NearStackArgs, buffers: BufferOptions) -> Result<(), Failure> {
    let control = args.control.unwrap_or_default();
    if args.stack.dev.is_some() {
        // Checked before the options are tried as values of keys.
        let only = StackPlan {
            control,
            ..StackPlan::default()
        };
        rejections::check(plan, &only)?;
    }
    let Some(mut stack) = described(&args.stack, &Asked::new(plan, buffers))? else {
        return Ok(());
    };
    stack.control = control;
    refuse_pauses(plan, &stack)?;
    let interval = stack.configuration.get("poll.interval");
    let near = match interval.map(String::as_str) {
        None | Some("spin") => Wait::Spin,
        Some(time) => format!("interval:{time}").parse().unwrap_or(Wait::Spin),
    };
    // A wait mode of our stack leaves the server's wait mode at its default.
    let ours = |wait: &Wait| matches!(wait, Wait::Interval { .. });
    match &mut plan.wait {
        Some(wait) if ours(&wait.far) => plan.wait = None,
        Some(wait) => wait.near = near,
        None => {}
    }
    plan.stack.near = STACK_NAME.to_owned();
    plan.near_stack = Some(Box::new(stack));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    /// A file for `--config`.
    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    /// Returns the configuration of a command line, or the error that rejects it.
    fn planned(words: &str) -> Result<Config, Problem> {
        let all = format!("linerate throughput host --dev tap:t0 --ip 10.0.0.2/24 {words}");
        let Command::Throughput(args) =
            Cli::try_parse_from(all.split_whitespace()).unwrap().command
        else {
            panic!("another command");
        };
        let measurement = crate::plan::throughput(&args).map_err(|failure| failure.problem)?;
        let stack = measurement.client.plan.near_stack.expect("our stack");
        Ok(open_stack::config(&stack).unwrap())
    }

    #[test]
    fn an_option_and_the_key_that_it_sets_say_the_same() {
        for (option, words, key, other) in [
            ("-w", "-w 64K", "tcp.send_buffer", "10240"),
            ("--sndbuf", "--sndbuf 64K", "tcp.send_buffer", "10240"),
            ("--rcvbuf", "--rcvbuf 64K", "tcp.receive_window", "10240"),
            ("-N", "-N", "tcp.nagle", "on"),
            ("-M", "-M 1000", "tcp.mss", "900"),
            ("-S", "-S 8", "ip.tos", "4"),
            ("-C", "-C reno", "tcp.congestion_control", "none"),
            ("--wait", "--wait spin", "poll.interval", "200us"),
            ("--wait", "--wait interval:1ms", "poll.interval", "spin"),
            ("--cpu", "--cpu 0", "threads.application.cpus", "1"),
            (
                "--sched",
                "--sched nice:5",
                "threads.application.sched",
                "nice:3",
            ),
        ] {
            let alone = planned(words).unwrap().get(key).unwrap();
            assert_ne!(alone, other);
            planned(&format!("{words} --set {key}={alone}")).unwrap();
            let problem = planned(&format!("{words} --set {key}={other}")).unwrap_err();
            assert_eq!(problem.object, format!("{option} with --set {key}={other}"));
            let differ = format!("{alone} and {other}");
            assert!(
                problem.situation.ends_with(&differ),
                "{}",
                problem.situation
            );
        }
        // A key in a file conflicts in the same way.
        let file = file("[tcp]\nsend_buffer = 10240\n");
        let words = format!("-w 64K --config {}", file.path().display());
        let problem = planned(&words).unwrap_err();
        let of_file = format!(
            "tcp.send_buffer=10240 of --config {}",
            file.path().display()
        );
        assert_eq!(problem.object, format!("-w with {of_file}"));
        planned(&format!("{words} --set tcp.send_buffer=64K")).unwrap();
        let problem = planned(&format!("{words} --set tcp.send_buffer=20K")).unwrap_err();
        assert_eq!(problem.object, "-w with --set tcp.send_buffer=20K");
        // A key of a profile does not conflict.
        let config = planned("--profile embedded-tuned -w 64K --sched nice:5").unwrap();
        assert_eq!(config.get("tcp.send_buffer").unwrap(), "65536");
        assert_eq!(config.get("threads.application.sched").unwrap(), "nice:5");
    }

    #[test]
    fn a_place_for_a_thread_that_is_not_there_is_refused() {
        let file =
            file("mtu = 1400\n[threads]\ndriver.sched = \"fifo:9\"\ndriver.cpus = \"any\"\n");
        let by_file = format!("--config {}", file.path().display());
        let of_file = format!("threads.driver.sched=fifo:9 of {by_file}");
        for (words, object) in [
            ("--set threads.driver.cpus=1", "--set threads.driver.cpus=1"),
            (&by_file, &of_file),
            // The last setting of a key applies.
            (
                &format!("{by_file} --set threads.driver.sched=rr:3"),
                "--set threads.driver.sched=rr:3",
            ),
            (
                &format!("--profile embedded-tuned {by_file} --set threads.count=1"),
                &of_file,
            ),
        ] {
            let problem = planned(words).unwrap_err();
            assert_eq!(problem.object, object, "{words}");
            assert!(problem.situation.contains("no effect"), "{problem:?}");
            assert!(problem.next_step.contains("threads.count=2"), "{problem:?}");
        }
        for words in [
            &format!("{by_file} --set threads.count=2"),
            &format!("{by_file} --set threads.driver.sched=inherited"),
            &format!("--profile embedded-tuned {by_file}"),
            // Keys of a profile are accepted.
            "--profile embedded-default --set threads.count=1",
            "--profile embedded-tuned --set threads.count=1",
            "--profile embedded-tuned --set threads.count=1 --set threads.driver.cpus=any",
        ] {
            planned(words).unwrap_or_else(|problem| panic!("{words}: {problem:?}"));
        }
    }

    #[test]
    fn pauses_are_had_where_every_thread_makes_them() {
        let yields = |words: &str| planned(&format!("--rt-yield {words}")).map(drop);
        let real_time = "--sched fifo:10/inherited";
        yields(real_time).unwrap();
        yields(&format!("{real_time} --wait spin")).unwrap();
        let waits = format!("{real_time} --wait interval:1ms");
        assert!(yields(&waits).is_err());
        // A stack that sleeps between polls has nothing to pause either.
        let sleeps = yields(&format!("{real_time} --set poll.interval=1ms")).unwrap_err();
        assert!(sleeps.object.ends_with("poll.interval"), "{sleeps:?}");
        assert!(yields("").is_err());
        let tuned = format!("{real_time} --profile embedded-tuned");
        let problem = yields(&tuned).unwrap_err();
        assert!(
            problem.object.ends_with("threads.driver.sched=fifo:80"),
            "{}",
            problem.object
        );
        yields(&format!("{tuned} --set threads.driver.sched=inherited")).unwrap();
    }
}
