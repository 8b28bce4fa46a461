//! Options and subcommands of iperf, iperf3, sockperf and netperf that have another name here, with
//! their replacements.

/// Name in another tool, the tools that have it, and the replacement.
pub struct ToolOption {
    pub name: &'static str,
    pub tools: &'static str,
    pub instead: &'static str,
}

const fn option(name: &'static str, tools: &'static str, instead: &'static str) -> ToolOption {
    ToolOption {
        name,
        tools,
        instead,
    }
}

/// Options of other tools, in the order of the guide's table.
pub const TOOL_OPTIONS: &[ToolOption] = &[
    option(
        "-c",
        "iperf and iperf3",
        "the host stands alone: `linerate throughput HOST`",
    ),
    option("-s", "iperf and iperf3", "`linerate server`"),
    option(
        "-D",
        "iperf and iperf3",
        "`linerate server` in the background (`&`) or as a service",
    ),
    option("-J", "iperf3", "`--json`"),
    option(
        "-y",
        "iperf",
        "`--json`; `linerate runs export --format csv` for stored runs",
    ),
    option("-A", "iperf3", "`--cpu CLIENT/SERVER`"),
    option("-Z", "iperf3 and iperf", "`--offload sendfile`"),
    option("-V", "iperf3", "`-v`"),
    option(
        "-d",
        "iperf (both directions) and iperf3 (debugging)",
        "`--bidir` for both directions, `-v` for details",
    ),
    option("-r", "iperf", "two runs: one without and one with `-R`"),
    option("-e", "iperf", "`-v`"),
    option(
        "-m",
        "iperf and sockperf",
        "`-l` for the size of a message; the record has the MSS",
    ),
    option("-F", "iperf and iperf3", "nothing: payload is generated"),
    option(
        "-f",
        "iperf and iperf3",
        "nothing: units follow the value; `--json` has bit/s and bytes",
    ),
    option("-k", "iperf3", "`-n` with bytes"),
    option(
        "-T",
        "iperf3 and netperf",
        "`--label` for a title, `--cpu` for CPUs",
    ),
    option("-X", "iperf3", "nothing: TCP and UDP only"),
    option(
        "-I",
        "iperf3",
        "nothing: the shell has the process id (`$!`)",
    ),
    option(
        "-L",
        "iperf3",
        "nothing: flow labels are chosen by the kernel",
    ),
    option(
        "-H",
        "netperf",
        "the host stands alone: `linerate throughput HOST`",
    ),
    option(
        "--client",
        "iperf and iperf3",
        "the host stands alone: `linerate throughput HOST`",
    ),
    option("--server", "iperf and iperf3", "`linerate server`"),
    option(
        "--daemon",
        "iperf and iperf3",
        "`linerate server` in the background (`&`) or as a service",
    ),
    option("--affinity", "iperf3", "`--cpu CLIENT/SERVER`"),
    option("--zerocopy", "iperf3", "`--offload sendfile`"),
    option("--debug", "iperf3", "`-v`"),
    option("--dualtest", "iperf", "`--bidir`"),
    option("--full-duplex", "iperf", "`--bidir`"),
    option(
        "--tradeoff",
        "iperf",
        "two runs: one without and one with `-R`",
    ),
    option("--enhanced", "iperf", "`-v`"),
    option(
        "--logfile",
        "iperf3",
        "`-o FILE` for the record, `> FILE` for the text",
    ),
    option(
        "--get-server-output",
        "iperf3",
        "nothing: each record has the results of both ends",
    ),
    option(
        "--forceflush",
        "iperf3",
        "nothing: each line is written at once",
    ),
    option(
        "--timestamps",
        "iperf3",
        "`--json-stream`: each line has its time",
    ),
    option("--title", "iperf3", "`--label`"),
    option("--extra-data", "iperf3", "`--label`"),
    option("--cport", "iperf3", "`--source-port`"),
    option("--bind-dev", "iperf3", "`-B %IF`"),
    option("--set-mss", "iperf3", "`-M`"),
    option("--bandwidth", "iperf and iperf3", "`-b`"),
    option("--len", "iperf", "`-l`"),
    option("--num", "iperf", "`-n`"),
    option("--blockcount", "iperf3", "`-n` with bytes"),
    option("--nodelay", "iperf", "`-N`"),
    option("--dscp", "iperf3", "`-S`, which takes names too: `-S ef`"),
    option("--fq-rate", "iperf3", "`-b RATE --pacing socket`"),
    option(
        "--connect-timeout",
        "iperf3",
        "`--retry TIME` waits for a server that starts later",
    ),
    option(
        "--udp-counters-64bit",
        "iperf3",
        "nothing: counters have 64 bits",
    ),
    option(
        "--repeating-payload",
        "iperf3",
        "nothing: payload is generated",
    ),
    option("--skip-rx-copy", "iperf3", "`--offload trunc`"),
    option("--sctp", "iperf3", "nothing: TCP and UDP only"),
    option(
        "--pidfile",
        "iperf3",
        "nothing: the shell has the process id (`$!`)",
    ),
    option("--username", "iperf3", "`--key FILE` at both ends"),
    option(
        "--rsa-public-key-path",
        "iperf3",
        "`--key FILE` at both ends",
    ),
    option(
        "--rsa-private-key-path",
        "iperf3",
        "`--key FILE` at both ends",
    ),
    option(
        "--authorized-users-path",
        "iperf3",
        "`--key FILE` at both ends",
    ),
    option("--server-max-duration", "iperf3", "`--max-time`"),
    option("--server-bitrate-limit", "iperf3", "`--max-rate`"),
    option(
        "--idle-timeout",
        "iperf3",
        "nothing: a silent client is dropped",
    ),
    option(
        "--trip-times",
        "iperf",
        "nothing: one-way delays are measured where clocks permit",
    ),
    option(
        "--histograms",
        "iperf",
        "nothing: `--json` has the full distribution",
    ),
    option("--bounceback", "iperf", "`linerate latency HOST`"),
    option(
        "--tcp",
        "sockperf",
        "nothing: TCP is the default, `-u` is UDP",
    ),
    option("--mps", "sockperf", "`linerate latency HOST --rate N/s`"),
    option("--msg-size", "sockperf", "`-l`"),
    option(
        "--full-log",
        "sockperf",
        "`--trace FILE`; `--limit TIME` lists slow responses",
    ),
    option(
        "--full-rtt",
        "sockperf",
        "nothing: times are of the full round trip",
    ),
    option("--client_port", "sockperf", "`--source-port`"),
    option("--sender-affinity", "sockperf", "`--cpu CLIENT/SERVER`"),
    option("--receiver-affinity", "sockperf", "`--cpu CLIENT/SERVER`"),
];

/// Names that other tools have in place of a command.
pub const TOOL_COMMANDS: &[ToolOption] = &[
    option("ping-pong", "sockperf", "`linerate latency HOST -u`"),
    option(
        "under-load",
        "sockperf",
        "`linerate latency HOST -u --rate N/s`",
    ),
    option(
        "iperf",
        "the shell",
        "`linerate throughput HOST`, `linerate server`",
    ),
    option(
        "iperf3",
        "the shell",
        "`linerate throughput HOST`, `linerate server`",
    ),
    option(
        "client",
        "some tools",
        "`linerate throughput HOST` or `linerate latency HOST`",
    ),
    option("ping", "the shell", "`linerate latency HOST`"),
    option("TCP_RR", "netperf", "`linerate latency HOST`"),
    option("UDP_RR", "netperf", "`linerate latency HOST -u`"),
    option("TCP_CRR", "netperf", "`linerate throughput HOST --connect`"),
    option("TCP_STREAM", "netperf", "`linerate throughput HOST`"),
    option("TCP_MAERTS", "netperf", "`linerate throughput HOST -R`"),
    option("UDP_STREAM", "netperf", "`linerate throughput HOST -u`"),
];

/// Commands whose users know these tools. The others have options of testpmd, or of none.
const COMMANDS: [&str; 3] = ["throughput", "latency", "server"];

/// Returns the replacement of another tool's option for a command, or for `linerate` without one.
pub fn find_option(command: &str, option: &str) -> Option<&'static ToolOption> {
    let name = option.split('=').next().unwrap_or(option);
    let fits = command.starts_with('-') || COMMANDS.contains(&command);
    TOOL_OPTIONS.iter().find(|known| fits && known.name == name)
}

/// Returns the replacement of a name in place of a command.
pub fn find_command(name: &str) -> Option<&'static ToolOption> {
    TOOL_COMMANDS.iter().find(|known| known.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    /// Returns the options and commands that a replacement names.
    fn named_options(text: &str) -> Vec<String> {
        let quoted = text.split('`').skip(1).step_by(2);
        let words = quoted.flat_map(str::split_whitespace);
        words
            .filter(|word| word.starts_with('-'))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn replacements_exist_and_are_in_the_guide() {
        let guide = include_str!("../../../../docs/GUIDE.md");
        let command = args::command();
        let has = |name: &str, option: &str| {
            let command = command.find_subcommand(name).unwrap();
            command.get_arguments().any(|arg| {
                arg.get_long()
                    .is_some_and(|long| option == format!("--{long}"))
                    || arg
                        .get_short()
                        .is_some_and(|short| option == format!("-{short}"))
            })
        };
        for known in TOOL_OPTIONS.iter().chain(TOOL_COMMANDS) {
            assert!(
                guide.contains(&format!("`{}`", known.name)),
                "{} is not in the guide",
                known.name
            );
            for option in named_options(known.instead) {
                let other = ["latency", "throughput", "server"];
                let exists = other.iter().any(|name| has(name, &option)) || option == "--format";
                assert!(exists, "{}: no {option}", known.name);
            }
            assert!(!known.instead.ends_with('.'), "{}", known.name);
        }
        for known in TOOL_OPTIONS {
            assert!(!has("throughput", known.name), "{} is ours", known.name);
        }
    }
}
