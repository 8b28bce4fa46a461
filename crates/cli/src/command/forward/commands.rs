//! Table of the shell's commands: words, description, function.

use super::shell::{CommandReply, ForwardShell};

pub struct ShellCommand {
    /// Words of the command: lower case is literal, `a|b` a choice, upper case a placeholder.
    pub pattern: &'static str,
    /// Description for help.
    pub about: &'static str,
    /// Runs the command with the values of choices and placeholders.
    pub run: fn(&mut ForwardShell<'_>, &[&str]) -> Result<CommandReply, String>,
}

/// Section of the help.
pub struct HelpSection {
    pub name: &'static str,
    pub commands: &'static [ShellCommand],
}

macro_rules! commands {
    ($($name:literal { $($pattern:literal $about:literal => $run:expr;)+ })+) => {
        /// Shell commands in the order of help.
        pub const SECTIONS: &[HelpSection] = &[$(HelpSection {
            name: $name,
            commands: &[$(ShellCommand { pattern: $pattern, about: $about, run: $run }),+],
        }),+];
    };
}

commands! {
    "control" {
        "start" "forward frames" => |shell, _| shell.start(0);
        "start tx_first" "send one burst from each stream, then forward" => |shell, _| shell.start(1);
        "start tx_first N" "send N bursts from each stream, then forward" => |shell, words| {
            shell.start(parse_number(words[0])?)
        };
        "stop" "stop forwarding, and print statistics" => |shell, _| shell.stop();
        "sleep TIME" "wait: 1, 500ms" => |shell, words| shell.sleep(words[0]);
        "load FILE" "read commands from a file" => |shell, words| shell.load(words[0]);
        "help" "list the sections of the help" => |shell, _| shell.help(None);
        "help SECTION" "list the commands of a section: control, display, config, ports, all" => {
            |shell, words| shell.help(Some(words[0]))
        };
        "quit" "stop forwarding, close all ports and exit" => |shell, _| shell.quit();
    }
    "display" {
        "show port stats PORT" "frames and bytes of a port, and rates since the last call or the start" => {
            |shell, words| shell.port_stats(words[0])
        };
        "show port xstats PORT" "all counters of a port, and causes of drops that are not zero" => {
            |shell, words| shell.port_xstats(words[0])
        };
        "show port info PORT" "properties of a port" => |shell, words| shell.port_info(words[0]);
        "show port summary PORT" "one line for each port" => {
            |shell, words| shell.port_summary(words[0])
        };
        "show fwd stats all" "statistics of streams and ports, of the current or the last run" => {
            |shell, _| shell.fwd_stats()
        };
        "show rxq|txq info PORT QUEUE" "a queue: its ring, its counters, the core that polls it" => {
            |shell, words| shell.queue_info(words[0], words[1], words[2])
        };
        "show config fwd|rxtx|cores|txpkts" "settings, and which core polls which queue" => {
            |shell, words| shell.show_config(words[0])
        };
        "clear port stats|xstats PORT" "reset the counters of a port" => {
            |shell, words| shell.clear_port(words[1])
        };
        "clear fwd stats all" "reset the forwarding counters of streams and ports" => |shell, _| shell.clear_fwd();
    }
    "config" {
        "set fwd MODE" "forwarding mode: io, mac, link:delay=1ms, …" => {
            |shell, words| shell.set_mode(words[0], false)
        };
        "set fwd MODE retry" "forwarding mode, and retries of frames that find a full ring" => {
            |shell, words| shell.set_mode(words[0], true)
        };
        "set burst N" "frames moved by one poll, 1 to 32" => |shell, words| shell.set_burst(words[0]);
        "set burst tx delay US retry N" "retry frames that find a full ring" => {
            |shell, words| shell.set_retry(words[0], words[1])
        };
        "set nbcore N" "number of forwarding threads" => |shell, words| shell.set_core_count(words[0]);
        "set corelist LIST" "CPUs of the threads: 0,1" => |shell, words| shell.set_corelist(words[0]);
        "set coremask MASK" "CPUs of the threads as a mask: 0x3" => |shell, words| shell.set_coremask(words[0]);
        "set nbport N" "forward on the first N ports" => |shell, words| shell.set_nbport(words[0]);
        "set portlist LIST" "forward on these ports: 0,1" => {
            |shell, words| shell.set_portlist(words[0])
        };
        "set portmask MASK" "forward on these ports, as a mask: 0x3" => |shell, words| shell.set_portmask(words[0]);
        "set port-topology paired|chained|loop" "pairs of ports" => {
            |shell, words| shell.set_topology(words[0])
        };
        "set txpkts BYTES" "length of generated frames" => |shell, words| shell.set_txpkts(words[0]);
        "set txonly-flows N" "number of flows of mode txonly" => |shell, words| shell.set_txonly_flows(words[0]);
        "set flowgen-flows N" "number of flows of mode flowgen" => |shell, words| {
            shell.set_flowgen_flows(words[0])
        };
        "set flowgen-clones N" "copies that mode flowgen sends after each frame" => |shell, words| {
            shell.set_flowgen_clones(words[0])
        };
        "set promisc PORT on|off" "promiscuous mode of an interface" => {
            |shell, words| shell.set_promiscuous(words[0], words[1])
        };
        "set eth-peer PORT MAC" "Ethernet address of the peer of a port" => {
            |shell, words| shell.set_peer(words[0], words[1])
        };
        "set idle ACTION" "action of a thread without frames: spin, yield, sleep:50us, interrupt" => {
            |shell, words| shell.set_idle(words[0])
        };
        "set flush_rx on|off" "empty receive queues before a start" => |shell, words| {
            shell.set_switch("flush_rx", words[0], |settings, on| settings.flush = on)
        };
        "set record-core-cycles on|off" "count cycles of polls that returned frames" => |shell, words| {
            shell.set_switch("record-core-cycles", words[0], |settings, on| settings.record_cycles = on)
        };
        "set record-latency on|off" "time frames from the poll to the transmit queue (--latencystats)" => {
            |shell, words| shell.set_switch("record-latency", words[0], |settings, on| {
                settings.record_residence = on;
            })
        };
        "set record-bitrates on|off" "measure bit rates each second (--bitrate-stats)" => {
            |shell, words| shell.set_switch("record-bitrates", words[0], |settings, on| {
                settings.record_bit_rates = on;
            })
        };
        "csum set ip|udp|tcp|sctp|outer-ip|outer-udp hw|sw PORT" "where mode csum computes checksums" => {
            |shell, words| shell.csum_set(words[0], words[1], words[2])
        };
        "csum show PORT" "where mode csum computes checksums, as set" => |shell, words| shell.csum_show(words[0]);
        "set default" "reset the settings to those at the start of the shell" => |shell, _| shell.reset_settings();
    }
    "ports" {
        "port stop PORT" "close the queues of a port" => |shell, words| shell.port_stop(words[0]);
        "port start PORT" "open the queues of a port" => |shell, words| shell.port_start(words[0]);
        "port close PORT" "close the queues of a port, as port stop" => |shell, words| shell.port_stop(words[0]);
        "port reset PORT" "close and open a port" => |shell, words| shell.port_reset(words[0]);
        "port attach URL" "open another port, with the lowest free number" => {
            |shell, words| shell.port_attach(words[0])
        };
        "port detach PORT" "remove a port; the others keep their numbers" => {
            |shell, words| shell.port_detach(words[0])
        };
        "port config all burst N" "frames moved by one poll, as set burst" => |shell, words| shell.set_burst(words[0]);
        "port config PORT rxq|txq|rxd|txd|mtu|max-pkt-len N" "queues, rings and frame size of stopped ports" => {
            |shell, words| shell.port_config(words[0], words[1], words[2])
        };
        "port config mtu PORT N" "MTU of a stopped port" => |shell, words| {
            shell.port_config(words[0], "mtu", words[1])
        };
    }
}

/// Parses a number.
pub fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a valid number: write one like 4"))
}
