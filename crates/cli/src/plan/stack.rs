//! Our stack: port, addresses and configuration, from its options.

use linerate_record::event::ErrorReport;
use linerate_record::plan::{Plan, RunKind, SchedPolicy, TransportProtocol, WaitMode};
use linerate_record::stack::{STACK_NAME, StackPlan};
use linerate_session::stack_rejections;
use linerate_stack::config::ThreadConfig;
use linerate_stack::{StackConfig, StackError};
use linerate_stats::units::format_exact_duration;
use linerate_transport::stack_thread::{open_stack, stack_facts};

use crate::args::{LocalStackArgs, StackArgs};
use crate::failure::CommandFailure;

/// Configuration key that an option of kernel sockets also sets.
struct KeySetting {
    key: &'static str,
    value: String,
    /// `None` for a default of the run.
    option: Option<&'static str>,
}

/// Names of a command's options for the send and the receive buffer.
pub type BufferOptions = [&'static str; 2];

/// Keys that options of the run set.
struct RequestedKeys(Vec<KeySetting>);

impl RequestedKeys {
    fn new(plan: &Plan, [send, receive]: BufferOptions) -> Self {
        let mut requested = Vec::new();
        let mut add = |option, key, value| requested.push(KeySetting { key, value, option });
        let tcp = plan.protocol == TransportProtocol::Tcp;
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
                (Some(bytes), _) => add(Some(option), key, bytes.to_string()),
                (None, Some(bytes)) => add(Some("-w"), key, bytes.to_string()),
                (None, None) => {}
            }
        }
        if tcp && (plan.socket.no_delay || plan.kind == RunKind::Latency) {
            let nagle_option = plan.socket.no_delay.then_some("-N");
            add(nagle_option, "tcp.nagle", "off".to_owned());
        }
        if let (Some(bytes), true) = (plan.socket.mss_bytes, tcp) {
            add(Some("-M"), "tcp.mss", bytes.to_string());
        }
        if let Some(tos) = plan.socket.tos {
            add(Some("-S"), "ip.tos", tos.to_string());
        }
        if let (Some(name), true) = (&plan.congestion_control, plan.congestion_control_requested) {
            add(Some("-C"), "tcp.congestion_control", name.clone());
        }
        match plan.wait.as_ref().map(|wait| wait.client) {
            Some(WaitMode::Spin) => add(Some("--wait"), "poll.interval", "spin".to_owned()),
            Some(WaitMode::Interval { time_ns }) => {
                add(
                    Some("--wait"),
                    "poll.interval",
                    format_exact_duration(time_ns),
                );
            }
            _ => {}
        }
        // With a separate driver thread, that thread keeps the placement of its own keys.
        if !plan.cpu.client.0.is_empty() {
            let cpus = plan.cpu.client.to_string();
            add(Some("--cpu"), "threads.application.cpus", cpus);
        }
        if plan.sched.client != SchedPolicy::Inherited {
            let sched = plan.sched.client.to_string();
            add(Some("--sched"), "threads.application.sched", sched);
        }
        Self(requested)
    }
}

fn stack_failure(error: StackError) -> CommandFailure {
    linerate_session::error::SessionError::from(error).into()
}

/// Key that the user set by name; later ones override earlier ones.
struct UserKey {
    key: String,
    /// Source and value, for messages.
    source: String,
}

/// Returns the configuration: the profile, overridden by options of the run, then the file, then
/// single keys.
fn stack_config(
    args: &StackArgs,
    requested: &RequestedKeys,
) -> Result<(String, StackConfig), CommandFailure> {
    let profile = args.profile.clone().unwrap_or_else(|| "default".to_owned());
    let mut config = StackConfig::profile(&profile).map_err(stack_failure)?;
    for setting in &requested.0 {
        config
            .set(setting.key, &setting.value)
            .map_err(stack_failure)?;
    }
    let before_user_keys = config.clone();
    let mut user_keys = Vec::new();
    if let Some(file) = &args.config {
        let of_file = |error| {
            let mut failure = stack_failure(error);
            failure.problem.object = format!("--config {}", file.display());
            failure
        };
        let text = std::fs::read_to_string(file).map_err(|error| {
            CommandFailure::usage(ErrorReport::new(
                format!("cannot be read ({error})"),
                format!("--config {}", file.display()),
                "name a file with the keys that `linerate stack --help` lists",
            ))
        })?;
        for (key, value) in StackConfig::parse_toml(&text).map_err(of_file)? {
            config.set(&key, &value).map_err(of_file)?;
            let source = format!("{key}={value} of --config {}", file.display());
            user_keys.push(UserKey { key, source });
        }
    }
    for setting in &args.set {
        config.apply(setting).map_err(stack_failure)?;
        let key = setting.split('=').next().unwrap_or_default().trim();
        user_keys.push(UserKey {
            key: key.to_owned(),
            source: format!("--set {setting}"),
        });
    }
    reject_without_effect(&user_keys, &config)?;
    reject_contradictions(requested, &user_keys, &before_user_keys, &config)?;
    Ok((profile, config))
}

/// Rejects an option whose key was also set to another value.
fn reject_contradictions(
    requested: &RequestedKeys,
    user_keys: &[UserKey],
    before_user_keys: &StackConfig,
    config: &StackConfig,
) -> Result<(), CommandFailure> {
    let contradiction = requested.0.iter().find_map(|setting| {
        let option = setting.option?;
        let user_key = user_keys
            .iter()
            .rfind(|user_keys| user_keys.key == setting.key)?;
        (before_user_keys.get(setting.key) != config.get(setting.key))
            .then_some((setting, option, user_key))
    });
    let Some((KeySetting { key, value, .. }, option, user_key)) = contradiction else {
        return Ok(());
    };
    let set = config.get(key).unwrap_or_default();
    Err(CommandFailure::usage(ErrorReport::new(
        format!("they set {key} to different values: {value} and {set}"),
        format!("{option} with {}", user_key.source),
        "leave one of them out",
    )))
}

/// Rejects settings of the driver thread when there is none.
fn reject_without_effect(
    user_keys: &[UserKey],
    config: &StackConfig,
) -> Result<(), CommandFailure> {
    if config.threads > 1 {
        return Ok(());
    }
    // Profiles may set it, and a reset to the default has no effect anyway.
    let without = StackConfig {
        driver: ThreadConfig::default(),
        ..config.clone()
    };
    let has_no_effect =
        |user_keys: &&UserKey| config.get(&user_keys.key) != without.get(&user_keys.key);
    match user_keys.iter().rfind(has_no_effect) {
        Some(UserKey { source, .. }) => Err(CommandFailure::usage(ErrorReport::new(
            "no effect: with threads.count=1 the application thread polls the port",
            source.clone(),
            "add --set threads.count=2, or set threads.application.* instead",
        ))),
        None => Ok(()),
    }
}

/// Returns the stack that options describe; `None` without `--dev`.
fn stack_plan(
    args: &StackArgs,
    requested: &RequestedKeys,
) -> Result<Option<StackPlan>, CommandFailure> {
    let Some(device) = &args.dev else {
        return Ok(None);
    };
    let (profile, config) = stack_config(args, requested)?;
    let plan = StackPlan {
        device: device.clone(),
        addresses: args.ip.iter().map(ToString::to_string).collect(),
        gateways: args.gateway.iter().map(ToString::to_string).collect(),
        profile,
        configuration: stack_facts::configuration(&config),
        ..StackPlan::default()
    };
    // Errors of the URL or the addresses are usage errors.
    open_stack::read_addressing(&plan).map_err(stack_failure)?;
    open_stack::port_url_of(&config, &plan)?;
    Ok(Some(plan))
}

/// Plans `linerate stack`.
pub fn plan_stack_host(args: &StackArgs) -> Result<StackPlan, CommandFailure> {
    stack_plan(args, &RequestedKeys(Vec::new()))?.ok_or_else(|| {
        CommandFailure::usage(ErrorReport::new(
            "no port for the stack",
            "linerate stack",
            "name it with --dev and --ip: --dev tap:t0 --ip 10.0.0.2/24",
        ))
    })
}

/// Rejects --rt-yield if the stack's threads do not spin, or if one spins that cannot pause.
fn reject_pauses(plan: &Plan, stack: &StackPlan) -> Result<(), CommandFailure> {
    if !plan.round_trip.rt_yield {
        return Ok(());
    }
    let config = open_stack::read_config(stack).map_err(stack_failure)?;
    if config.poll_interval.is_some() {
        return super::reject(
            "--rt-yield with a poll.interval",
            "the stack's threads sleep between polls and have nothing to pause",
            "leave it out, or add --set poll.interval=spin",
        );
    }
    if config.threads > 1 && config.driver.sched.is_real_time() {
        return super::reject(
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
pub fn set_local_stack(
    plan: &mut Plan,
    args: &LocalStackArgs,
    buffers: BufferOptions,
) -> Result<(), CommandFailure> {
    let control = args.control.unwrap_or_default();
    if args.stack.dev.is_some() {
        // Checked before the options are tried as values of keys.
        let only = StackPlan {
            control,
            ..StackPlan::default()
        };
        stack_rejections::check_client(plan, &only)?;
    }
    let Some(mut stack) = stack_plan(&args.stack, &RequestedKeys::new(plan, buffers))? else {
        return Ok(());
    };
    stack.control = control;
    reject_pauses(plan, &stack)?;
    let interval = stack.configuration.get("poll.interval");
    let wait_mode = match interval.map(String::as_str) {
        None | Some("spin") => WaitMode::Spin,
        Some(time) => format!("interval:{time}").parse().unwrap_or(WaitMode::Spin),
    };
    // A wait mode of our stack leaves the server's wait mode at its default.
    let is_stack_mode = |wait: &WaitMode| matches!(wait, WaitMode::Interval { .. });
    match &mut plan.wait {
        Some(wait) if is_stack_mode(&wait.server) => plan.wait = None,
        Some(wait) => wait.client = wait_mode,
        None => {}
    }
    plan.stack.client = STACK_NAME.to_owned();
    plan.client_stack = Some(Box::new(stack));
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
    fn planned(options: &str) -> Result<StackConfig, ErrorReport> {
        let line = format!("linerate throughput host --dev tap:t0 --ip 10.0.0.2/24 {options}");
        let Command::Throughput(args) = Cli::try_parse_from(line.split_whitespace())
            .unwrap()
            .command
        else {
            panic!("another command");
        };
        let measurement = crate::plan::plan_throughput(&args).map_err(|failure| failure.problem)?;
        let stack = measurement
            .client
            .plan
            .client_stack
            .expect("the user-space stack");
        Ok(open_stack::read_config(&stack).unwrap())
    }

    #[test]
    fn an_option_and_the_key_that_it_sets_say_the_same() {
        for (option, options, key, other_value) in [
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
            let alone = planned(options).unwrap().get(key).unwrap();
            assert_ne!(alone, other_value);
            planned(&format!("{options} --set {key}={alone}")).unwrap();
            let problem = planned(&format!("{options} --set {key}={other_value}")).unwrap_err();
            assert_eq!(
                problem.object,
                format!("{option} with --set {key}={other_value}")
            );
            let differ = format!("{alone} and {other_value}");
            assert!(
                problem.situation.ends_with(&differ),
                "{}",
                problem.situation
            );
        }
        // A key in a file conflicts in the same way.
        let file = file("[tcp]\nsend_buffer = 10240\n");
        let options = format!("-w 64K --config {}", file.path().display());
        let problem = planned(&options).unwrap_err();
        let of_file = format!(
            "tcp.send_buffer=10240 of --config {}",
            file.path().display()
        );
        assert_eq!(problem.object, format!("-w with {of_file}"));
        planned(&format!("{options} --set tcp.send_buffer=64K")).unwrap();
        let problem = planned(&format!("{options} --set tcp.send_buffer=20K")).unwrap_err();
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
        for (options, object) in [
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
            let problem = planned(options).unwrap_err();
            assert_eq!(problem.object, object, "{options}");
            assert!(problem.situation.contains("no effect"), "{problem:?}");
            assert!(problem.next_step.contains("threads.count=2"), "{problem:?}");
        }
        for options in [
            &format!("{by_file} --set threads.count=2"),
            &format!("{by_file} --set threads.driver.sched=inherited"),
            &format!("--profile embedded-tuned {by_file}"),
            // Keys of a profile are accepted.
            "--profile embedded-default --set threads.count=1",
            "--profile embedded-tuned --set threads.count=1",
            "--profile embedded-tuned --set threads.count=1 --set threads.driver.cpus=any",
        ] {
            planned(options).unwrap_or_else(|problem| panic!("{options}: {problem:?}"));
        }
    }

    #[test]
    fn pauses_are_had_where_every_thread_makes_them() {
        let with_rt_yield = |options: &str| planned(&format!("--rt-yield {options}")).map(drop);
        let real_time = "--sched fifo:10/inherited";
        with_rt_yield(real_time).unwrap();
        with_rt_yield(&format!("{real_time} --wait spin")).unwrap();
        let waits = format!("{real_time} --wait interval:1ms");
        assert!(with_rt_yield(&waits).is_err());
        // A stack that sleeps between polls has nothing to pause either.
        let sleeps = with_rt_yield(&format!("{real_time} --set poll.interval=1ms")).unwrap_err();
        assert!(sleeps.object.ends_with("poll.interval"), "{sleeps:?}");
        assert!(with_rt_yield("").is_err());
        let tuned = format!("{real_time} --profile embedded-tuned");
        let problem = with_rt_yield(&tuned).unwrap_err();
        assert!(
            problem.object.ends_with("threads.driver.sched=fifo:80"),
            "{}",
            problem.object
        );
        with_rt_yield(&format!("{tuned} --set threads.driver.sched=inherited")).unwrap();
    }
}
