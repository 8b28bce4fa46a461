//! Our own stack: where it stands and how it is configured, from its options.

use linerate_measure::stack::{facts, open, refuse};
use linerate_metric::event::Problem;
use linerate_metric::plan::{Kind, Plan, Protocol, Wait};
use linerate_metric::stack::{STACK_NAME, StackPlan};
use linerate_metric::units::written_duration;
use linerate_stack::config::Thread;
use linerate_stack::{Config, StackError};

use crate::args::{NearStackArgs, StackArgs};
use crate::failure::Failure;

/// Keys that a run may set by options that the kernel's sockets have, too.
struct Asked(Vec<(&'static str, String)>);

impl Asked {
    fn new(plan: &Plan) -> Self {
        let mut asked = Vec::new();
        let tcp = plan.protocol == Protocol::Tcp;
        let buffers = [
            ("tcp.send_buffer", plan.socket.send_buffer_bytes),
            ("tcp.receive_window", plan.socket.receive_buffer_bytes),
        ];
        for (key, bytes) in buffers.into_iter().filter(|_| tcp) {
            asked.extend(
                bytes
                    .or(plan.window_bytes)
                    .map(|bytes| (key, bytes.to_string())),
            );
        }
        if tcp && (plan.socket.no_delay || plan.kind == Kind::Latency) {
            asked.push(("tcp.nagle", "off".to_owned()));
        }
        if let (Some(bytes), true) = (plan.socket.mss_bytes, tcp) {
            asked.push(("tcp.mss", bytes.to_string()));
        }
        asked.extend(plan.socket.tos.map(|tos| ("ip.tos", tos.to_string())));
        if plan.congestion_control_asked {
            let name = plan.congestion_control.clone();
            asked.extend(name.map(|name| ("tcp.congestion_control", name)));
        }
        match plan.wait.as_ref().map(|wait| wait.near) {
            Some(Wait::Spin) => asked.push(("poll.interval", "spin".to_owned())),
            Some(Wait::Interval { time_ns }) => {
                asked.push(("poll.interval", written_duration(time_ns)));
            }
            _ => {}
        }
        Self(asked)
    }
}

fn refused(error: StackError) -> Failure {
    linerate_measure::MeasureError::from(error).into()
}

/// The configuration that options make: the profile, then what `asked` says, then the file, then the
/// keys that were set one by one, which have the last word.
fn config(args: &StackArgs, asked: &Asked) -> Result<(String, Config), Failure> {
    let profile = args.profile.clone().unwrap_or_else(|| "default".to_owned());
    let mut config = Config::profile(&profile).map_err(refused)?;
    for (key, value) in &asked.0 {
        config.set(key, value).map_err(refused)?;
    }
    if let Some(file) = &args.config {
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::usage(Problem::new(
                format!("cannot be read ({error})"),
                format!("--config {}", file.display()),
                "name a file with the keys that `linerate stack --help` lists",
            ))
        })?;
        config.read_toml(&text).map_err(|error| {
            let mut failure = refused(error);
            failure.problem.object = format!("--config {}", file.display());
            failure
        })?;
    }
    for setting in &args.set {
        config.apply(setting).map_err(refused)?;
    }
    refuse_without_effect(args, &config)?;
    Ok((profile, config))
}

/// Refuses a place of the driver's thread where the driver has none.
fn refuse_without_effect(args: &StackArgs, config: &Config) -> Result<(), Failure> {
    if config.threads > 1 || config.driver == Thread::default() {
        return Ok(());
    }
    let driver = |setting: &&String| setting.trim_start().starts_with("threads.driver.");
    // What a profile says of it is its own affair.
    match args.set.iter().rfind(driver) {
        Some(setting) => Err(Failure::usage(Problem::new(
            "it has no effect: with threads.count=1 the application's thread polls the port, too",
            format!("--set {setting}"),
            "add --set threads.count=2, or set threads.application.* instead",
        ))),
        None => Ok(()),
    }
}

/// The stack that options describe; `None` without `--dev`.
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
        configuration: facts::rows(&config),
        ..StackPlan::default()
    };
    // What the URL or the addresses say wrong is a matter of the command line.
    open::addressing(&plan).map_err(refused)?;
    open::url(&config, &plan)?;
    Ok(Some(plan))
}

/// A host that serves others.
pub fn host(args: &StackArgs) -> Result<StackPlan, Failure> {
    described(args, &Asked(Vec::new()))?.ok_or_else(|| {
        Failure::usage(Problem::new(
            "there is no port for the stack to stand on",
            "linerate stack",
            "name it with --dev and --ip: --dev tap:t0 --ip 10.0.0.2/24",
        ))
    })
}

/// Puts our stack at the near end of a run, if that is asked for.
pub fn near(plan: &mut Plan, args: &NearStackArgs) -> Result<(), Failure> {
    let control = args.control.unwrap_or_default();
    if args.stack.dev.is_some() {
        // Before its values are tried as those of keys.
        let only = StackPlan {
            control,
            ..StackPlan::default()
        };
        refuse::check(plan, &only)?;
    }
    let Some(mut stack) = described(&args.stack, &Asked::new(plan))? else {
        return Ok(());
    };
    stack.control = control;
    let interval = stack.configuration.get("poll.interval");
    let near = match interval.map(String::as_str) {
        None | Some("spin") => Wait::Spin,
        Some(time) => format!("interval:{time}").parse().unwrap_or(Wait::Spin),
    };
    // What was said of this end alone leaves the far one its choice.
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
