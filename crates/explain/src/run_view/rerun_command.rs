//! Commands that repeat a run with changed options.

use linerate_metric::command_line::CommandLine;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use linerate_metric::round_trip::Attachment;
use linerate_metric::stack::{KEYS_OF_OPTIONS, STACK_NAME};

use super::Case;

/// Options that rules write in their short form.
const LETTERS: &[(&str, &str)] = &[
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
const EXCLUDED: &[(&str, &[&str])] = &[
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
const NOT_SEARCHED: &[&str] = &[
    "bidir", "bytes", "repeat", "batch", "verify", "pacing", "pps", "trace", "trace-on",
];

/// Options that protocols of other tools do not support: a command with one of these needs our
/// server. Lists only options that rules use; a test of the command line checks it against the
/// protocols.
const NOT_CARRIED: &[(&str, &[&str])] = &[
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
const HALVES: &[&str] = &["cpu", "sched", "threads", "wait"];

/// Options used by rules that `linerate ttcp` also has.
const OF_TTCP: &[&str] = &["buffer", "calls", "length", "udp", "wait"];

/// Options that `ttcp` replaces with `--buffer`.
const BUFFERS: &[&str] = &["rcvbuf", "sndbuf", "window"];

impl Case<'_> {
    /// Returns the command that repeats the run with these options added or replaced.
    #[must_use]
    pub fn again(&self, options: &str) -> String {
        self.changed(options).to_string()
    }

    /// Returns the command with these options, and without some options given by their long names.
    #[must_use]
    pub fn again_without(&self, left_out: &[&str], options: &str) -> String {
        let mut line = self.changed(options);
        for option in left_out {
            line.remove(option);
        }
        line.to_string()
    }

    /// Returns the command that keeps the sockets open between requests.
    #[must_use]
    pub fn kept_open(&self) -> String {
        let mut line = self.changed("");
        line.remove("reopen");
        if line.has("connect") {
            // Only `throughput` counts connections; without `--connect` it would send a stream.
            // `latency` has no option for the threads that share the flows.
            line.remove("connect");
            line.remove("threads");
            line.command = Kind::Latency.to_string();
        }
        line.to_string()
    }

    /// Returns the command with one configuration key of our stack set at an end; for the server
    /// its own `linerate stack` command.
    #[must_use]
    pub fn again_with_key(&self, role: Role, key: &str, value: &str) -> String {
        self.again_with_keys(role, &[(key, value.to_owned())])
    }

    /// Returns the command with several configuration keys of our stack set at an end.
    #[must_use]
    pub fn again_with_keys(&self, role: Role, keys: &[(&str, String)]) -> String {
        let far = self.host(role).and_then(|host| host.stack.as_ref());
        let mut line = match (role, far) {
            (Role::Server, Some(stack)) => {
                let mut line = CommandLine::new("stack");
                line.add("dev", &["--dev", &stack.device]);
                for address in &stack.addresses {
                    line.add("ip", &["--ip", address]);
                }
                if self.plan.dialect.is_none() {
                    line.add("serve", &["--serve", STACK_NAME]);
                }
                line
            }
            _ => self.line(""),
        };
        for (key, value) in keys {
            // An option that sets the same key differently would be rejected; its other effects
            // stay.
            for (_, option) in KEYS_OF_OPTIONS.iter().filter(|(own, _)| own == key) {
                let said = value_of(&line, option);
                line.remove(option);
                let rest = said.and_then(|said| rest_of(option, &said, key, value));
                if let Some((option, words)) = rest.filter(|(option, _)| !line.has(option)) {
                    line.set(option, &[&format!("--{option}"), &words]);
                }
            }
            line.set_key("set", key, value);
        }
        self.with_far_end(line).to_string()
    }

    /// Returns the command with a rate: a search for the highest one if the server permits repeated
    /// runs, else this rate.
    #[must_use]
    pub fn again_slower(&self, rate_bps: f64) -> String {
        match self.plan.protocol == Protocol::Udp && !self.far_is_foreign() {
            true => self.again("-b max"),
            false => self.again(&format!("-b {}", rate_word(rate_bps))),
        }
    }

    /// Returns the command with call timing; unchanged for our stack, which makes no system calls.
    #[must_use]
    pub fn watched(&self) -> String {
        match self.is_own_stack(Role::Client) {
            true => self.again(""),
            false => self.again("--calls"),
        }
    }

    /// Returns the command for our server in place of the third-party one.
    #[must_use]
    pub fn of_own_server(&self) -> String {
        let mut plan = self.plan.clone();
        plan.dialect = None;
        plan.port = Plan::new(plan.kind, plan.protocol, "").port;
        self.of_plan_here(&plan).to_string()
    }

    /// Returns the command of a plan, with the wrapper and program of the recorded command.
    fn of_plan_here(&self, plan: &Plan) -> CommandLine {
        let mut line = of_plan(plan);
        if let Some(typed) = &self.record.command {
            line.through.clone_from(&typed.through);
            line.program.clone_from(&typed.program);
        }
        line
    }

    /// Returns a throughput command over the same path, in place of round trips.
    #[must_use]
    pub fn one_way(&self, options: &str) -> String {
        let mut plan = self.plan.clone();
        plan.kind = Kind::Throughput;
        let plain = Plan::new(plan.kind, plan.protocol, "");
        plan.payload_bytes = plain.payload_bytes;
        let mut line = self.of_plan_here(&plan);
        // Protocols of round trips carry no stream.
        line.remove("peer");
        change(&mut line, options);
        line.to_string()
    }

    /// Returns the recorded command if it accepts these options.
    fn typed(&self, options: &str) -> Option<CommandLine> {
        let typed = self.record.command.as_ref()?;
        let fits = match (self.plan.kind, typed.command.as_str()) {
            (Kind::Throughput | Kind::Latency, "throughput" | "latency") => true,
            (Kind::Throughput, "ttcp") => words_of(options).all(|(_, name, value)| {
                OF_TTCP.contains(&name) && !value.is_some_and(|value| value.contains('/'))
            }),
            (Kind::Forward, "forward") => true,
            (Kind::Generate, "generate" | "capacity") => true,
            (Kind::Stack, "stack") => true,
            _ => false,
        };
        fits.then(|| typed.clone())
    }

    /// Returns true if our stack carries the payload at an end.
    #[must_use]
    pub fn is_own_stack(&self, role: Role) -> bool {
        let stack = &self.plan.stack;
        match role {
            Role::Client => stack.near == STACK_NAME,
            Role::Server => stack.far == STACK_NAME,
        }
    }

    /// Translates options for `linerate ttcp`, which has one option for both socket buffers.
    fn worded(&self, options: &str) -> Option<String> {
        let typed = self.record.command.as_ref()?;
        if typed.command != "ttcp" {
            return None;
        }
        let words = words_of(options).flat_map(|(word, name, value)| {
            let word = if BUFFERS.contains(&name) {
                "--buffer"
            } else {
                word
            };
            std::iter::once(word).chain(value)
        });
        let worded = words.collect::<Vec<_>>().join(" ");
        self.typed(&worded).map(|_| worded)
    }

    fn changed(&self, options: &str) -> CommandLine {
        let worded = self.worded(options);
        let options = worded.as_deref().unwrap_or(options);
        let mut line = self.line(options);
        change(&mut line, options);
        self.with_far_end(line)
    }

    /// Removes the options of the third-party server if its protocol does not support the command:
    /// then our server is used.
    fn with_far_end(&self, mut line: CommandLine) -> CommandLine {
        if let Some(dialect) = self.plan.dialect.as_deref()
            && line.has("peer")
            && !carries(dialect, &line)
        {
            // Our server has another port.
            for option in ["peer", "port", "far-report"] {
                line.remove(option);
            }
        }
        line
    }

    /// Returns the command of the run: the recorded one, or one that gives the same plan.
    fn line(&self, options: &str) -> CommandLine {
        self.typed(options).unwrap_or_else(|| {
            let mut plan = self.plan.clone();
            if self.is_of_a_guest() {
                // The options of the other tool's client are unknown; our client can use this
                // server.
                plan.dialect = None;
            }
            self.of_plan_here(&plan)
        })
    }
}

/// Returns true if a protocol supports all options of a command.
fn carries(dialect: &str, line: &CommandLine) -> bool {
    let lacks = NOT_CARRIED.iter().find(|(name, _)| *name == dialect);
    let lacks = lacks.map_or(&[][..], |(_, options)| options);
    // iperf2 has no rate limit for a reverse TCP stream.
    let kept =
        dialect != "iperf2" || !line.has("bitrate") || !line.has("reverse") || line.has("udp");
    kept && line.arguments.iter().all(|argument| {
        let option = argument.option.as_deref().unwrap_or_default();
        let halves = |word: &String| word.contains('/') && !word.ends_with("/inherited");
        let of_both = HALVES.contains(&option) && argument.words.iter().any(halves);
        !lacks.contains(&option) && !of_both
    })
}

/// Splits options into their written form, long name and value.
fn words_of(options: &str) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    let mut words = options.split_ascii_whitespace().peekable();
    std::iter::from_fn(move || {
        let word = words.next()?;
        let letter = LETTERS.iter().find(|(letter, _)| *letter == word);
        let name = letter.map_or_else(|| word.trim_start_matches('-'), |(_, name)| name);
        let value = words.next_if(|next| !next.starts_with('-'));
        Some((word, name, value))
    })
}

/// Returns the value of an option in a command, in any notation.
fn value_of(line: &CommandLine, option: &str) -> Option<String> {
    let mut arguments = line.arguments.iter();
    let argument = arguments.find(|argument| argument.option.as_deref() == Some(option))?;
    let value = match &argument.words[..] {
        [_, value] => value,
        [word] => match word.strip_prefix("--") {
            Some(long) => long.split_once('=')?.1,
            None => word.get(2..)?.trim_start_matches('='),
        },
        _ => return None,
    };
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

/// Returns the option and value that keep the other effects of an option when a key of our stack
/// replaces one of them.
fn rest_of(option: &str, said: &str, key: &str, value: &str) -> Option<(&'static str, String)> {
    match (option, key) {
        // It sets both buffers at both ends.
        ("window", "tcp.send_buffer") => Some(("rcvbuf", said.to_owned())),
        ("window", "tcp.receive_window") => Some(("sndbuf", said.to_owned())),
        // The server's value stays, and the client's must match the key.
        ("wait", _) => {
            let (_, far) = said.split_once('/')?;
            let near = match value {
                "spin" => "spin".to_owned(),
                time => format!("interval:{time}"),
            };
            Some(("wait", format!("{near}/{far}")))
        }
        _ => None,
    }
}

/// Adds or replaces options of a command.
fn change(line: &mut CommandLine, options: &str) {
    for (word, name, value) in words_of(options) {
        let excluded = EXCLUDED.iter().filter(|(option, _)| *option == name);
        for other in excluded.flat_map(|(_, others)| *others) {
            line.remove(other);
        }
        if (name, value) == ("bitrate", Some("max")) {
            NOT_SEARCHED.iter().for_each(|other| line.remove(other));
        }
        let words: Vec<&str> = std::iter::once(word).chain(value).collect();
        line.set(name, &words);
    }
}

/// Formats a rate with three digits, rounded down: `94.3M`.
pub(crate) fn rate_word(bps: f64) -> String {
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
fn of_plan(plan: &Plan) -> CommandLine {
    let mut line = CommandLine::new(plan.kind.to_string());
    let text = |number: u64| number.to_string();
    if let Some(forward) = &plan.forward {
        for port in &forward.ports {
            line.add("dev", &["--dev", port]);
        }
        line.set("cores", &["--cores", &text(forward.cores.into())]);
        line.set("burst", &["--burst", &text(forward.burst.into())]);
        line.set("tx-first", &["--tx-first", &text(forward.tx_first)]);
        line.set(
            "port-topology",
            &["--port-topology", &forward.topology.to_string()],
        );
        return line;
    }
    if plan.generate.is_some() {
        for port in plan.host.split_ascii_whitespace() {
            line.add("dev", &["--dev", port]);
        }
        return line;
    }
    let plain = Plan::new(plan.kind, plan.protocol, "");
    let reopened = plan.kind == Kind::Latency && plan.round_trip.attachment == Attachment::Reopened;
    let connections = reopened && plan.round_trip.connections;
    if connections {
        line.command = Kind::Throughput.to_string();
    }
    line.push(plan.host.clone());
    // Each protocol has its own default port, which is not known here: with a protocol the port is
    // written.
    if plan.port != plain.port || plan.dialect.is_some() {
        line.set("port", &["-p", &text(plan.port.into())]);
    }
    if let Some(peer) = &plan.dialect {
        line.set("peer", &["--peer", peer]);
    }
    if plan.protocol == Protocol::Udp {
        line.set("udp", &["-u"]);
    }
    if connections {
        line.set("connect", &["--connect"]);
    } else if reopened {
        line.set("reopen", &["--reopen"]);
    }
    match plan.directions[..] {
        [Direction::Receive] => line.set("reverse", &["-R"]),
        // Directions one after the other are separate runs.
        [_, _, ..] if !plan.in_turn => line.set("bidir", &["--bidir"]),
        _ => {}
    }
    if plan.streams != 1 {
        line.set("parallel", &["-P", &text(plan.streams.into())]);
    }
    let size = plan.payload_bytes;
    if size != plain.payload_bytes && plain.payload_bytes != 0 && size != 0 {
        line.set("length", &["-l", &text(size)]);
    }
    for (option, value) in [
        ("window", plan.window_bytes),
        ("sndbuf", plan.socket.send_buffer_bytes),
        ("rcvbuf", plan.socket.receive_buffer_bytes),
        ("bitrate", plan.rate_bps),
    ] {
        if let Some(value) = value {
            line.set(option, &[&format!("--{option}"), &text(value)]);
        }
    }
    if let (Some(name), true) = (&plan.congestion_control, plan.congestion_control_asked) {
        line.set("congestion", &["-C", name]);
    }
    if let Some(stack) = &plan.near_stack {
        line.set("dev", &["--dev", &stack.device]);
        for address in &stack.addresses {
            line.add("ip", &["--ip", address]);
        }
        for gateway in &stack.gateways {
            line.add("gateway", &["--gateway", gateway]);
        }
        line.set("profile", &["--profile", &stack.profile]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::record::Record;
    use linerate_metric::stack::StackPlan;

    #[test]
    fn rates_are_words() {
        for (bps, word) in [
            (94_312_000.0, "94.3M"),
            (9.999e9, "9.99G"),
            (512_000_000.0, "512M"),
            (55_000.0, "55K"),
        ] {
            assert_eq!(rate_word(bps), word);
        }
    }

    /// Changes of `ttcp -r` use its options, or name the command that supports them.
    #[test]
    fn the_classic_is_changed_in_its_own_words() {
        let mut record = received();
        let mut typed = CommandLine::new("ttcp");
        typed.add("receive", &["-r"]);
        record.command = Some(typed);
        let case = Case::new(&record);
        assert_eq!(case.again("-w 4M"), "linerate ttcp -r --buffer 4M");
        assert_eq!(case.again("--calls"), "linerate ttcp -r --calls");
        // It does not support several flows.
        assert_eq!(case.again("-P 2"), "linerate throughput 10.0.0.1 -R -P 2");
        assert_eq!(case.of_own_server(), "linerate throughput 10.0.0.1 -R");
    }

    /// Returns a record of `ttcp -r` with a sender at 10.0.0.1.
    fn received() -> Record {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.kind = Kind::Throughput;
        record.plan = Plan::new(Kind::Throughput, Protocol::Tcp, "10.0.0.1");
        record.plan.dialect = Some("ttcp".to_owned());
        record.plan.port = 45_678;
        record.plan.directions = vec![Direction::Receive];
        record
    }

    /// A record without a command is the server's copy; the suggested command repeats the same run.
    #[test]
    fn sockets_that_are_opened_for_each_question_stay_in_the_command_or_are_kept_open() {
        let mut record = received();
        record.kind = Kind::Latency;
        for (connections, again, open) in [
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
            record.plan = Plan::new(Kind::Latency, Protocol::Tcp, "10.0.0.1");
            record.plan.streams = 4;
            record.plan.round_trip.attachment = Attachment::Reopened;
            record.plan.round_trip.connections = connections;
            record.command = None;
            let told = Case::new(&record).again("");
            assert_eq!(told, again);
            assert_eq!(Case::new(&record).kept_open(), open);
            // The recorded command gives the same result.
            let mut words = told.split(' ').skip(1);
            let mut typed = CommandLine::new(words.next().expect("a command"));
            typed.push(words.next().expect("a host").to_owned());
            let option = words.next().expect("an option");
            typed.add(option.trim_start_matches('-'), &[option]);
            typed.add("time", &["-t", "3"]);
            if connections {
                typed.add("threads", &["--threads", "2"]);
            }
            record.command = Some(typed);
            assert_eq!(
                Case::new(&record).kept_open(),
                "linerate latency 10.0.0.1 -t 3"
            );
        }
    }

    /// The option would be rejected together with the key.
    #[test]
    fn a_key_takes_the_place_of_the_option_that_says_it() {
        let mut record = received();
        record.plan.dialect = None;
        for (option, words, key, value, rest) in [
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
            typed.add("dev", &["--dev", "tap:t0"]);
            typed.add(option, &words.split(' ').collect::<Vec<_>>());
            record.command = Some(typed);
            let again = Case::new(&record).again_with_key(Role::Client, key, value);
            let want = format!("linerate throughput --dev tap:t0{rest} --set {key}={value}");
            assert_eq!(again, want, "{words}");
        }
        // Effects that have an option of their own stay.
        let mut typed = CommandLine::new("throughput");
        typed.add("window", &["-w", "1K"]);
        typed.add("rcvbuf", &["--rcvbuf", "2K"]);
        record.command = Some(typed);
        let again = Case::new(&record).again_with_key(Role::Client, "tcp.send_buffer", "9");
        assert_eq!(
            again,
            "linerate throughput --rcvbuf 2K --set tcp.send_buffer=9"
        );
    }

    #[test]
    fn a_plan_comes_back_as_its_command() {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "10.0.0.1");
        plan.dialect = Some("discard".to_owned());
        plan.port = 9;
        plan.directions = vec![Direction::Receive];
        plan.socket.send_buffer_bytes = Some(4096);
        plan.near_stack = Some(Box::new(StackPlan {
            device: "tap:t0".to_owned(),
            addresses: vec!["10.0.0.2/24".to_owned()],
            profile: "embedded-default".to_owned(),
            ..StackPlan::default()
        }));
        assert_eq!(
            of_plan(&plan).to_string(),
            "linerate throughput 10.0.0.1 -p 9 --peer discard -R --sndbuf 4096 --dev tap:t0 \
             --ip 10.0.0.2/24 --profile embedded-default"
        );
    }
}
