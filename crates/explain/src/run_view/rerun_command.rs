//! Commands that repeat a run with changed options.

use linerate_record::command_line::CommandLine;
use linerate_record::facts::Role;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::round_trip::SocketMode;
use linerate_record::stack::{OPTION_CONFIG_KEYS, STACK_NAME};

use super::RunView;

/// Options that rules write in their short form.
const SHORT_OPTIONS: &[(&str, &str)] = &[
    ("-b", "bitrate"),
    ("-C", "congestion"),
    ("-l", "length"),
    ("-N", "no-delay"),
    ("-O", "omit"),
    ("-P", "parallel"),
    ("-R", "reverse"),
    ("-t", "time"),
    ("-u", "udp"),
    ("-w", "window"),
];

/// Mutually exclusive options: an option, and those that must be removed for it.
const EXCLUSIVE_OPTIONS: &[(&str, &[&str])] = &[
    ("bitrate", &["pps"]),
    ("time", &["bytes", "count"]),
    ("omit", &["bytes", "count"]),
    ("bidir", &["reverse"]),
    ("reverse", &["bidir"]),
    ("offload", &["batch"]),
    ("window", &["sndbuf", "rcvbuf"]),
    ("calls", &["trace", "trace-on"]),
];

/// Options that a rate search does not support.
const RATE_SEARCH_EXCLUDED: &[&str] = &[
    "bidir", "bytes", "repeat", "batch", "verify", "pacing", "pps", "trace", "trace-on",
];

/// Options that protocols of other tools do not support: a command with one of these needs our
/// server. Lists only options that rules use; a test of the command line checks it against the
/// protocols.
const UNSUPPORTED_OPTIONS: &[(&str, &[&str])] = &[
    // It accepts one connection, and exits with it.
    ("ttcp", &["reverse", "bidir", "omit", "parallel"]),
    ("discard", &["reverse", "bidir", "omit"]),
    ("chargen", &["bidir", "omit", "bitrate", "udp"]),
    ("iperf2", &["omit", "outstanding", "rate"]),
    ("sockperf", &["outstanding", "rate"]),
    ("iperf2-legacy", &["reverse", "bidir", "omit"]),
    ("nuttcp", &["bidir", "parallel", "congestion", "omit"]),
];

/// Options with a value per end, of which the server's cannot be sent to another tool.
const PER_END_OPTIONS: &[&str] = &["cpu", "sched", "threads", "wait"];

/// Options used by rules that `linerate ttcp` also has.
const TTCP_OPTIONS: &[&str] = &["buffer", "calls", "length", "udp", "wait"];

/// Options that `ttcp` replaces with `--buffer`.
const BUFFER_OPTIONS: &[&str] = &["rcvbuf", "sndbuf", "window"];

impl RunView<'_> {
    /// Returns the command that repeats the run with these options added or replaced; no text if
    /// the command has no such option.
    #[must_use]
    pub fn rerun_command(&self, options: &str) -> String {
        self.command_with(options)
            .map_or_else(String::new, |command| command.to_string())
    }

    /// Returns the command with these options, and without some options given by their long names.
    #[must_use]
    pub fn rerun_without(&self, excluded: &[&str], options: &str) -> String {
        let Some(mut command) = self.command_with(options) else {
            return String::new();
        };
        for option in excluded {
            command.remove_option(option);
        }
        command.to_string()
    }

    /// Returns the command that keeps the sockets open between requests.
    #[must_use]
    pub fn keep_open_command(&self) -> String {
        let mut command = self.run_command("");
        command.remove_option("reopen");
        if command.has_option("connect") {
            // Only `throughput` counts connections; without `--connect` it would send a stream.
            // `latency` has no option for the threads that share the flows.
            command.remove_option("connect");
            command.remove_option("threads");
            command.command = RunKind::Latency.to_string();
        }
        command.to_string()
    }

    /// Returns the command with one configuration key of our stack set at an end; for the server
    /// its own `linerate stack` command.
    #[must_use]
    pub fn rerun_with_key(&self, role: Role, key: &str, value: &str) -> String {
        self.rerun_with_keys(role, &[(key, value.to_owned())])
    }

    /// Returns the command with several configuration keys of our stack set at an end.
    #[must_use]
    pub fn rerun_with_keys(&self, role: Role, keys: &[(&str, String)]) -> String {
        let host_stack = self.host(role).and_then(|host| host.stack.as_ref());
        let mut command = match (role, host_stack) {
            (Role::Server, Some(stack)) => {
                let mut command = CommandLine::new("stack");
                command.add_option("dev", &["--dev", &stack.device]);
                for address in &stack.addresses {
                    command.add_option("ip", &["--ip", address]);
                }
                if self.plan.peer_protocol.is_none() {
                    command.add_option("serve", &["--serve", STACK_NAME]);
                }
                command
            }
            _ => self.run_command(""),
        };
        for (key, value) in keys {
            // An option that sets the same key differently would be rejected; its other effects
            // stay.
            for (_, option) in OPTION_CONFIG_KEYS
                .iter()
                .filter(|(config_key, _)| config_key == key)
            {
                let old_value = option_value(&command, option);
                command.remove_option(option);
                let remaining = old_value
                    .and_then(|old_value| remaining_option(option, &old_value, key, value));
                if let Some((option, tokens)) =
                    remaining.filter(|(option, _)| !command.has_option(option))
                {
                    command.set_option(option, &[&format!("--{option}"), &tokens]);
                }
            }
            command.set_key("set", key, value);
        }
        self.with_supported_peer(command).to_string()
    }

    /// Returns the command with a rate: a search for the highest one if the server permits repeated
    /// runs, else this rate.
    #[must_use]
    pub fn rerun_slower(&self, rate_bps: f64) -> String {
        match self.plan.protocol == TransportProtocol::Udp && !self.has_third_party_server() {
            true => self.rerun_command("-b max"),
            false => self.rerun_command(&format!("-b {}", format_rate_option(rate_bps))),
        }
    }

    /// Returns the command with call timing; unchanged for our stack, which makes no system calls.
    #[must_use]
    pub fn rerun_with_calls(&self) -> String {
        match self.uses_netstack(Role::Client) {
            true => self.rerun_command(""),
            false => self.rerun_command("--calls"),
        }
    }

    /// Returns the command for our server in place of the third-party one.
    #[must_use]
    pub fn linerate_server_command(&self) -> String {
        let mut plan = self.plan.clone();
        plan.peer_protocol = None;
        plan.port = Plan::new(plan.kind, plan.protocol, "").port;
        self.wrapped_plan_command(&plan).to_string()
    }

    /// Returns the command of a plan, with the wrapper and program of the recorded command.
    fn wrapped_plan_command(&self, plan: &Plan) -> CommandLine {
        let mut command = plan_command(plan);
        if let Some(typed) = &self.record.command {
            command.wrapper.clone_from(&typed.wrapper);
            command.program.clone_from(&typed.program);
        }
        command
    }

    /// Returns a throughput command over the same path, in place of round trips.
    #[must_use]
    pub fn throughput_command(&self, options: &str) -> String {
        let mut plan = self.plan.clone();
        plan.kind = RunKind::Throughput;
        let default_plan = Plan::new(plan.kind, plan.protocol, "");
        plan.payload_bytes = default_plan.payload_bytes;
        let mut command = self.wrapped_plan_command(&plan);
        // Protocols of round trips carry no stream.
        command.remove_option("peer");
        apply_options(&mut command, options);
        command.to_string()
    }

    /// Returns the recorded command if it accepts these options.
    fn typed_command(&self, options: &str) -> Option<CommandLine> {
        let typed = self.record.command.as_ref()?;
        let fits = match (self.plan.kind, typed.command.as_str()) {
            (RunKind::Throughput | RunKind::Latency, "throughput" | "latency") => true,
            (RunKind::Throughput, "ttcp") => parse_options(options).all(|(_, name, value)| {
                TTCP_OPTIONS.contains(&name) && !value.is_some_and(|value| value.contains('/'))
            }),
            (RunKind::Forward, "forward") => true,
            (RunKind::Generate, "generate" | "capacity") => true,
            (RunKind::Stack, "stack") => true,
            _ => false,
        };
        fits.then(|| typed.clone())
    }

    /// Returns true if our stack carries the payload at an end.
    #[must_use]
    pub fn uses_netstack(&self, role: Role) -> bool {
        let stack = &self.plan.stack;
        match role {
            Role::Client => stack.client == STACK_NAME,
            Role::Server => stack.server == STACK_NAME,
        }
    }

    /// Translates options for `linerate ttcp`, which has one option for both socket buffers.
    fn ttcp_options(&self, options: &str) -> Option<String> {
        let typed = self.record.command.as_ref()?;
        if typed.command != "ttcp" {
            return None;
        }
        let tokens = parse_options(options).flat_map(|(token, name, value)| {
            let token = if BUFFER_OPTIONS.contains(&name) {
                "--buffer"
            } else {
                token
            };
            std::iter::once(token).chain(value)
        });
        let ttcp_options = tokens.collect::<Vec<_>>().join(" ");
        self.typed_command(&ttcp_options).map(|_| ttcp_options)
    }

    /// Returns the command with these options; `None` for options that `linerate ttcp` lacks.
    fn command_with(&self, options: &str) -> Option<CommandLine> {
        let ttcp_options = self.ttcp_options(options);
        let typed = self.record.command.as_ref();
        if ttcp_options.is_none() && typed.is_some_and(|typed| typed.command == "ttcp") {
            return None;
        }
        let options = ttcp_options.as_deref().unwrap_or(options);
        let mut command = self.run_command(options);
        apply_options(&mut command, options);
        Some(self.with_supported_peer(command))
    }

    /// Removes the options of the third-party server if its protocol does not support the command:
    /// then our server is used.
    fn with_supported_peer(&self, mut command: CommandLine) -> CommandLine {
        if let Some(protocol) = self.plan.peer_protocol.as_deref()
            && command.has_option("peer")
            && !supports_options(protocol, &command)
        {
            // A warm-up that the server cannot omit is no reason for another server.
            let mut without_omit = command.clone();
            without_omit.remove_option("omit");
            if supports_options(protocol, &without_omit) {
                return without_omit;
            }
            // Our server has another port.
            for option in ["peer", "port", "far-report"] {
                command.remove_option(option);
            }
        }
        command
    }

    /// Returns the command of the run: the recorded one, or one that gives the same plan.
    fn run_command(&self, options: &str) -> CommandLine {
        self.typed_command(options).unwrap_or_else(|| {
            let mut plan = self.plan.clone();
            if self.is_third_party_client() {
                // The options of the other tool's client are unknown; our client can use this
                // server.
                plan.peer_protocol = None;
            }
            self.wrapped_plan_command(&plan)
        })
    }
}

/// Returns true if a protocol supports all options of a command.
fn supports_options(protocol: &str, command: &CommandLine) -> bool {
    let unsupported = UNSUPPORTED_OPTIONS
        .iter()
        .find(|(name, _)| *name == protocol);
    let unsupported = unsupported.map_or(&[][..], |(_, options)| options);
    // iperf2 has no rate limit for a reverse TCP stream.
    let rate_is_supported = protocol != "iperf2"
        || !command.has_option("bitrate")
        || !command.has_option("reverse")
        || command.has_option("udp");
    rate_is_supported
        && command.arguments.iter().all(|argument| {
            let option = argument.option.as_deref().unwrap_or_default();
            let is_pair = |token: &String| token.contains('/') && !token.ends_with("/inherited");
            let sets_both_ends =
                PER_END_OPTIONS.contains(&option) && argument.tokens.iter().any(is_pair);
            !unsupported.contains(&option) && !sets_both_ends
        })
}

/// Splits options into their written form, long name and value.
fn parse_options(options: &str) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    let mut tokens = options.split_ascii_whitespace().peekable();
    std::iter::from_fn(move || {
        let token = tokens.next()?;
        let letter = SHORT_OPTIONS.iter().find(|(letter, _)| *letter == token);
        let name = letter.map_or_else(|| token.trim_start_matches('-'), |(_, name)| name);
        let value = tokens.next_if(|next| !next.starts_with('-'));
        Some((token, name, value))
    })
}

/// Returns the value of an option in a command, in any notation.
fn option_value(command: &CommandLine, option: &str) -> Option<String> {
    let mut arguments = command.arguments.iter();
    let argument = arguments.find(|argument| argument.option.as_deref() == Some(option))?;
    let value = match &argument.tokens[..] {
        [_, value] => value,
        [token] => match token.strip_prefix("--") {
            Some(long) => long.split_once('=')?.1,
            None => token.get(2..)?.trim_start_matches('='),
        },
        _ => return None,
    };
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

/// Returns the option and value that keep the other effects of an option when a key of our stack
/// replaces one of them.
fn remaining_option(
    option: &str,
    old_value: &str,
    key: &str,
    value: &str,
) -> Option<(&'static str, String)> {
    match (option, key) {
        // It sets both buffers at both ends.
        ("window", "tcp.send_buffer") => Some(("rcvbuf", old_value.to_owned())),
        ("window", "tcp.receive_window") => Some(("sndbuf", old_value.to_owned())),
        // The server's value stays, and the client's must match the key.
        ("wait", _) => {
            let (_, server) = old_value.split_once('/')?;
            let client = match value {
                "spin" => "spin".to_owned(),
                time => format!("interval:{time}"),
            };
            Some(("wait", format!("{client}/{server}")))
        }
        _ => None,
    }
}

/// Adds or replaces options of a command.
fn apply_options(command: &mut CommandLine, options: &str) {
    for (token, name, value) in parse_options(options) {
        let excluded = EXCLUSIVE_OPTIONS
            .iter()
            .filter(|(option, _)| *option == name);
        for excluded_option in excluded.flat_map(|(_, excluded_options)| *excluded_options) {
            command.remove_option(excluded_option);
        }
        if (name, value) == ("bitrate", Some("max")) {
            RATE_SEARCH_EXCLUDED
                .iter()
                .for_each(|excluded_option| command.remove_option(excluded_option));
        }
        let tokens: Vec<&str> = std::iter::once(token).chain(value).collect();
        command.set_option(name, &tokens);
    }
}

/// Formats a rate with three digits, rounded down: `94.3M`.
pub(crate) fn format_rate_option(bps: f64) -> String {
    let (unit, letter) = match bps {
        bps if bps >= 1e9 => (1e9, "G"),
        bps if bps >= 1e6 => (1e6, "M"),
        _ => (1e3, "K"),
    };
    let scaled = (bps / unit).max(1.0);
    let step = match scaled {
        scaled if scaled >= 100.0 => 1.0,
        scaled if scaled >= 10.0 => 10.0,
        _ => 100.0,
    };
    format!("{}{letter}", (scaled * step).floor() / step)
}

/// Builds a command from the differences of a plan to the default plan.
fn plan_command(plan: &Plan) -> CommandLine {
    let mut command = CommandLine::new(plan.kind.to_string());
    let text = |number: u64| number.to_string();
    if let Some(forward) = &plan.forward {
        for port in &forward.ports {
            command.add_option("dev", &["--dev", port]);
        }
        command.set_option("cores", &["--cores", &text(forward.cores.into())]);
        command.set_option("burst", &["--burst", &text(forward.burst.into())]);
        command.set_option("tx-first", &["--tx-first", &text(forward.tx_first)]);
        command.set_option(
            "port-topology",
            &["--port-topology", &forward.topology.to_string()],
        );
        return command;
    }
    if plan.generate.is_some() {
        for port in plan.host.split_ascii_whitespace() {
            command.add_option("dev", &["--dev", port]);
        }
        return command;
    }
    let default_plan = Plan::new(plan.kind, plan.protocol, "");
    let reopened =
        plan.kind == RunKind::Latency && plan.round_trip.socket_mode == SocketMode::Reopened;
    let connections = reopened && plan.round_trip.connections;
    if connections {
        command.command = RunKind::Throughput.to_string();
    }
    command.push_positional(plan.host.clone());
    // Each protocol has its own default port, which is not known here: with a protocol the port is
    // written.
    if plan.port != default_plan.port || plan.peer_protocol.is_some() {
        command.set_option("port", &["-p", &text(plan.port.into())]);
    }
    if let Some(peer) = &plan.peer_protocol {
        command.set_option("peer", &["--peer", peer]);
    }
    if plan.protocol == TransportProtocol::Udp {
        command.set_option("udp", &["-u"]);
    }
    if connections {
        command.set_option("connect", &["--connect"]);
    } else if reopened {
        command.set_option("reopen", &["--reopen"]);
    }
    match plan.directions[..] {
        [Direction::Receive] => command.set_option("reverse", &["-R"]),
        // Directions one after the other are separate runs.
        [_, _, ..] if !plan.sequential => command.set_option("bidir", &["--bidir"]),
        _ => {}
    }
    if plan.streams != 1 {
        command.set_option("parallel", &["-P", &text(plan.streams.into())]);
    }
    let size = plan.payload_bytes;
    if size != default_plan.payload_bytes && default_plan.payload_bytes != 0 && size != 0 {
        command.set_option("length", &["-l", &text(size)]);
    }
    for (option, value) in [
        ("window", plan.window_bytes),
        ("sndbuf", plan.socket.send_buffer_bytes),
        ("rcvbuf", plan.socket.receive_buffer_bytes),
        ("bitrate", plan.rate_bps),
    ] {
        if let Some(value) = value {
            command.set_option(option, &[&format!("--{option}"), &text(value)]);
        }
    }
    if let (Some(name), true) = (&plan.congestion_control, plan.congestion_control_requested) {
        command.set_option("congestion", &["-C", name]);
    }
    if let Some(stack) = &plan.client_stack {
        command.set_option("dev", &["--dev", &stack.device]);
        for address in &stack.addresses {
            command.add_option("ip", &["--ip", address]);
        }
        for gateway in &stack.gateways {
            command.add_option("gateway", &["--gateway", gateway]);
        }
        command.set_option("profile", &["--profile", &stack.profile]);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_record::record::Record;
    use linerate_record::stack::StackPlan;

    #[test]
    fn rates_are_formatted_as_options() {
        for (bps, token) in [
            (94_312_000.0, "94.3M"),
            (9.999e9, "9.99G"),
            (512_000_000.0, "512M"),
            (55_000.0, "55K"),
        ] {
            assert_eq!(format_rate_option(bps), token);
        }
    }

    /// Changes of `ttcp -r` use its options; others have no command.
    #[test]
    fn ttcp_commands_are_changed_with_ttcp_options() {
        let mut record = ttcp_record();
        let mut typed = CommandLine::new("ttcp");
        typed.add_option("receive", &["-r"]);
        record.command = Some(typed);
        let run = RunView::new(&record);
        assert_eq!(run.rerun_command("-w 4M"), "linerate ttcp -r --buffer 4M");
        assert_eq!(run.rerun_command("--calls"), "linerate ttcp -r --calls");
        // It does not support several flows.
        assert_eq!(run.rerun_command("-P 2"), "");
        assert_eq!(
            run.linerate_server_command(),
            "linerate throughput 10.0.0.1 -R"
        );
    }

    /// Returns a record of `ttcp -r` with a sender at 10.0.0.1.
    fn ttcp_record() -> Record {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.kind = RunKind::Throughput;
        record.plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.0.0.1");
        record.plan.peer_protocol = Some("ttcp".to_owned());
        record.plan.port = 45_678;
        record.plan.directions = vec![Direction::Receive];
        record
    }

    /// A record without a command is the server's copy; the suggested command repeats the same run.
    #[test]
    fn reopened_sockets_stay_in_the_command_or_are_kept_open() {
        let mut record = ttcp_record();
        record.kind = RunKind::Latency;
        for (connections, expected_rerun, expected_open) in [
            (
                false,
                "linerate latency 10.0.0.1 --reopen -P 4",
                "linerate latency 10.0.0.1 -P 4",
            ),
            (
                true,
                "linerate throughput 10.0.0.1 --connect -P 4",
                "linerate latency 10.0.0.1 -P 4",
            ),
        ] {
            record.plan = Plan::new(RunKind::Latency, TransportProtocol::Tcp, "10.0.0.1");
            record.plan.streams = 4;
            record.plan.round_trip.socket_mode = SocketMode::Reopened;
            record.plan.round_trip.connections = connections;
            record.command = None;
            let rerun = RunView::new(&record).rerun_command("");
            assert_eq!(rerun, expected_rerun);
            assert_eq!(RunView::new(&record).keep_open_command(), expected_open);
            // The recorded command gives the same result.
            let mut tokens = rerun.split(' ').skip(1);
            let mut typed = CommandLine::new(tokens.next().expect("a command"));
            typed.push_positional(tokens.next().expect("a host").to_owned());
            let option = tokens.next().expect("an option");
            typed.add_option(option.trim_start_matches('-'), &[option]);
            typed.add_option("time", &["-t", "3"]);
            if connections {
                typed.add_option("threads", &["--threads", "2"]);
            }
            record.command = Some(typed);
            assert_eq!(
                RunView::new(&record).keep_open_command(),
                "linerate latency 10.0.0.1 -t 3"
            );
        }
    }

    /// The option would be rejected together with the key.
    #[test]
    fn a_key_replaces_the_option_that_sets_it() {
        let mut record = ttcp_record();
        record.plan.peer_protocol = None;
        for (option, tokens, key, value, rest) in [
            ("window", "-w 1K", "tcp.send_buffer", "9", " --rcvbuf 1K"),
            ("window", "-w1K", "tcp.receive_window", "9", " --sndbuf 1K"),
            (
                "window",
                "--window=1K",
                "tcp.send_buffer",
                "9",
                " --rcvbuf 1K",
            ),
            ("rcvbuf", "--rcvbuf 1K", "tcp.receive_window", "9", ""),
            ("wait", "--wait interval:1ms", "poll.interval", "spin", ""),
            (
                "wait",
                "--wait interval:1ms/spin",
                "poll.interval",
                "spin",
                " --wait spin/spin",
            ),
            (
                "wait",
                "--wait=spin/block",
                "poll.interval",
                "1ms",
                " --wait interval:1ms/block",
            ),
            ("congestion", "-C reno", "tcp.congestion_control", "9", ""),
        ] {
            let mut typed = CommandLine::new("throughput");
            typed.add_option("dev", &["--dev", "tap:t0"]);
            typed.add_option(option, &tokens.split(' ').collect::<Vec<_>>());
            record.command = Some(typed);
            let command = RunView::new(&record).rerun_with_key(Role::Client, key, value);
            let expected = format!("linerate throughput --dev tap:t0{rest} --set {key}={value}");
            assert_eq!(command, expected, "{tokens}");
        }
        // Effects that have an option of their own stay.
        let mut typed = CommandLine::new("throughput");
        typed.add_option("window", &["-w", "1K"]);
        typed.add_option("rcvbuf", &["--rcvbuf", "2K"]);
        record.command = Some(typed);
        let command = RunView::new(&record).rerun_with_key(Role::Client, "tcp.send_buffer", "9");
        assert_eq!(
            command,
            "linerate throughput --rcvbuf 2K --set tcp.send_buffer=9"
        );
    }

    #[test]
    fn a_plan_comes_back_as_its_command() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.0.0.1");
        plan.peer_protocol = Some("discard".to_owned());
        plan.port = 9;
        plan.directions = vec![Direction::Receive];
        plan.socket.send_buffer_bytes = Some(4096);
        plan.client_stack = Some(Box::new(StackPlan {
            device: "tap:t0".to_owned(),
            addresses: vec!["10.0.0.2/24".to_owned()],
            profile: "embedded-default".to_owned(),
            ..StackPlan::default()
        }));
        assert_eq!(
            plan_command(&plan).to_string(),
            "linerate throughput 10.0.0.1 -p 9 --peer discard -R --sndbuf 4096 --dev tap:t0 \
             --ip 10.0.0.2/24 --profile embedded-default"
        );
    }
}
