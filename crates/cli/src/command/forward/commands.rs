//! The shell's commands, as a table: words, what they do, who does it.

use super::shell::{Reply, Shell};

/// A command.
pub struct Command {
    /// Its words: lower case as they are, `a|b` one of them, upper case anything.
    pub words: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Does it, with what stands for choices and upper case.
    pub run: fn(&mut Shell<'_>, &[&str]) -> Result<Reply, String>,
}

/// A part of the help.
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// Its commands.
    pub commands: &'static [Command],
}

macro_rules! commands {
    ($($name:literal { $($words:literal $about:literal => $run:expr;)+ })+) => {
        /// Every command, in the order help lists them.
        pub const SECTIONS: &[Section] = &[$(Section {
            name: $name,
            commands: &[$(Command { words: $words, about: $about, run: $run }),+],
        }),+];
    };
}

commands! {
    "control" {
        "start" "forward frames" => |shell, _| shell.start(0);
        "start tx_first" "send one burst from each stream, then forward" => |shell, _| shell.start(1);
        "start tx_first N" "send N bursts from each stream, then forward" => |shell, words| {
            shell.start(number(words[0])?)
        };
        "stop" "stop forwarding, and print what was moved" => |shell, _| shell.stop();
        "sleep TIME" "wait: 1, 500ms" => |shell, words| shell.sleep(words[0]);
        "load FILE" "take commands from a file" => |shell, words| shell.load(words[0]);
        "help" "list the parts of the help" => |shell, _| shell.help(None);
        "help SECTION" "list the commands of a part: control, display, config, ports, all, absent" => {
            |shell, words| shell.help(Some(words[0]))
        };
        "quit" "stop forwarding, close all ports and leave" => |shell, _| shell.quit();
    }
    "display" {
        "show port stats PORT" "what a port moved, and its rates since shown last, else since the start" => {
            |shell, words| shell.port_stats(words[0])
        };
        "show port xstats PORT" "every counter of a port, and causes of drops that struck" => {
            |shell, words| shell.port_xstats(words[0])
        };
        "show port info PORT" "what a port is" => |shell, words| shell.port_info(words[0]);
        "show port summary PORT" "a line for each port" => {
            |shell, words| shell.port_summary(words[0])
        };
        "show fwd stats all" "what streams and ports moved: since the start, or in the last run" => {
            |shell, _| shell.fwd_stats()
        };
        "show rxq|txq info PORT QUEUE" "a queue: its ring, what it moved, who polls it" => {
            |shell, words| shell.queue_info(words[0], words[1], words[2])
        };
        "show config fwd|rxtx|cores|txpkts" "settings, and who polls what" => {
            |shell, words| shell.config(words[0])
        };
        "clear port stats|xstats PORT" "count a port from zero" => {
            |shell, words| shell.clear_port(words[1])
        };
        "clear fwd stats all" "count streams and ports of forwarding from zero" => |shell, _| shell.clear_fwd();
    }
    "config" {
        "set fwd MODE" "what happens to frames: io, mac, link:delay=1ms, …" => {
            |shell, words| shell.set_mode(words[0], false)
        };
        "set fwd MODE retry" "the same, and frames that find a full ring are tried again" => {
            |shell, words| shell.set_mode(words[0], true)
        };
        "set burst N" "frames moved by one poll, 1 to 32" => |shell, words| shell.set_burst(words[0]);
        "set burst tx delay US retry N" "try frames that find a full ring again" => {
            |shell, words| shell.set_retry(words[0], words[1])
        };
        "set nbcore N" "threads that forward" => |shell, words| shell.set_cores(words[0]);
        "set corelist LIST" "their processors: 0,1" => |shell, words| shell.set_corelist(words[0]);
        "set coremask MASK" "the same as a mask: 0x3" => |shell, words| shell.set_coremask(words[0]);
        "set nbport N" "the first N ports take part" => |shell, words| shell.set_nbport(words[0]);
        "set portlist LIST" "these ports take part: 0,1" => {
            |shell, words| shell.set_portlist(words[0])
        };
        "set portmask MASK" "the same as a mask: 0x3" => |shell, words| shell.set_portmask(words[0]);
        "set port-topology paired|chained|loop" "where frames of a port go" => {
            |shell, words| shell.set_topology(words[0])
        };
        "set txpkts BYTES" "length of frames made here" => |shell, words| shell.set_txpkts(words[0]);
        "set txonly-flows N" "flows that txonly sends" => |shell, words| shell.set_flows(words[0]);
        "set flowgen-flows N" "flows that flowgen sends" => |shell, words| {
            shell.set_generated(words[0])
        };
        "set flowgen-clones N" "copies that flowgen sends behind each frame" => |shell, words| {
            shell.set_clones(words[0])
        };
        "set port PORT queue QUEUE rate MBPS" "hold a transmit queue to a rate in Mbit/s; 0: as fast as it goes" => {
            |shell, words| shell.set_rate(words[0], words[1], words[2])
        };
        "set verbose LEVEL" "describe frames: 0 none, 1 received, 2 sent, 3 both" => {
            |shell, words| shell.set_verbose(words[0])
        };
        "set promisc PORT on|off" "whether an interface receives frames for any address" => {
            |shell, words| shell.set_promiscuous(words[0], words[1])
        };
        "set eth-peer PORT MAC" "the Ethernet address behind a port" => {
            |shell, words| shell.set_peer(words[0], words[1])
        };
        "set idle WAY" "when there is nothing to do: spin, yield, sleep:50us, interrupt" => {
            |shell, words| shell.set_idle(words[0])
        };
        "set flush_rx on|off" "empty receive queues before a start" => |shell, words| {
            shell.switch("flush_rx", words[0], |settings, on| settings.flush = on)
        };
        "set record-core-cycles on|off" "count cycles of polls that gave frames" => |shell, words| {
            shell.switch("record-core-cycles", words[0], |settings, on| settings.record_cycles = on)
        };
        "set record-burst-stats on|off" "count how many frames polls gave" => |shell, words| {
            shell.switch("record-burst-stats", words[0], |settings, on| settings.record_bursts = on)
        };
        "set record-latency on|off" "time frames from the poll to the transmit queue (--latencystats)" => {
            |shell, words| shell.switch("record-latency", words[0], |settings, on| {
                settings.record_residence = on;
            })
        };
        "set record-bitrates on|off" "look at bit rates each second (--bitrate-stats)" => {
            |shell, words| shell.switch("record-bitrates", words[0], |settings, on| {
                settings.record_bit_rates = on;
            })
        };
        "csum set ip|udp|tcp|sctp|outer-ip|outer-udp hw|sw PORT" "who sums checksums in mode csum" => {
            |shell, words| shell.csum_set(words[0], words[1], words[2])
        };
        "csum show PORT" "the same, as it is" => |shell, words| shell.csum_show(words[0]);
        "set default" "settings as they were when the shell began" => |shell, _| shell.reset();
    }
    "ports" {
        "port stop PORT" "close a port's queues" => |shell, words| shell.port_stop(words[0]);
        "port start PORT" "open them again" => |shell, words| shell.port_start(words[0]);
        "port close PORT" "the same as stop" => |shell, words| shell.port_stop(words[0]);
        "port reset PORT" "close and open a port" => |shell, words| shell.port_reset(words[0]);
        "port attach URL" "open one more port, under the lowest free number" => {
            |shell, words| shell.port_attach(words[0])
        };
        "port detach PORT" "close a port for good; the others keep their numbers" => {
            |shell, words| shell.port_detach(words[0])
        };
        "port config all burst N" "the same as set burst" => |shell, words| shell.set_burst(words[0]);
        "port config PORT rxq|txq|rxd|txd|mtu|max-pkt-len N" "queues, rings and frames of stopped ports" => {
            |shell, words| shell.port_config(words[0], words[1], words[2])
        };
        "port config mtu PORT N" "the same for the MTU" => |shell, words| {
            shell.port_config(words[0], "mtu", words[1])
        };
    }
}

/// Reads a number.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no number that fits here: write one like 4"))
}
