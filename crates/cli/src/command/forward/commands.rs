//! The shell's commands, as a table: words, what they do, who does it.

use linerate_measure::forward::MODES;

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
        "help SECTION" "list the commands of a part: control, display, config, ports, all" => {
            |shell, words| shell.help(Some(words[0]))
        };
        "quit" "stop forwarding, close all ports and leave" => |shell, _| shell.quit();
    }
    "display" {
        "show port stats PORT" "what a port moved, and its rates since shown last" => {
            |shell, words| shell.port_stats(words[0])
        };
        "show port xstats PORT" "every counter of a port that is not zero" => {
            |shell, words| shell.port_xstats(words[0])
        };
        "show port info PORT" "what a port is" => |shell, words| shell.port_info(words[0]);
        "show port summary PORT" "a line for each port" => {
            |shell, words| shell.port_summary(words[0])
        };
        "show fwd stats all" "what streams moved since the start" => |shell, _| shell.fwd_stats();
        "show config fwd|rxtx|cores|txpkts" "settings, and who polls what" => {
            |shell, words| shell.config(words[0])
        };
        "clear port stats|xstats PORT" "count a port from zero" => {
            |shell, words| shell.clear_port(words[1])
        };
        "clear fwd stats all" "count streams from zero" => |shell, _| shell.clear_fwd();
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
        "set default" "settings as they were when the shell began" => |shell, _| shell.reset();
    }
    "ports" {
        "port stop PORT" "close a port's queues" => |shell, words| shell.port_stop(words[0]);
        "port start PORT" "open them again" => |shell, words| shell.port_start(words[0]);
        "port close PORT" "the same as stop" => |shell, words| shell.port_stop(words[0]);
        "port reset PORT" "close and open a port" => |shell, words| shell.port_reset(words[0]);
        "port config all burst N" "the same as set burst" => |shell, words| shell.set_burst(words[0]);
    }
}

/// Reads a number.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no number that fits here"))
}

/// Whether a word of the table is one that may be anything.
fn is_free(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

/// What a command's words say against a line: what stands for choices and upper case.
fn matched<'a>(command: &Command, line: &[&'a str]) -> Option<Vec<&'a str>> {
    let words: Vec<_> = command.words.split(' ').collect();
    if words.len() != line.len() {
        return None;
    }
    let mut free = Vec::new();
    for (word, said) in words.into_iter().zip(line) {
        if is_free(word) {
            free.push(*said);
        } else if word.contains('|') {
            word.split('|').find(|choice| choice == said)?;
            free.push(*said);
        } else if word != *said {
            return None;
        }
    }
    Some(free)
}

/// The command that a line is, with its words.
pub fn find<'a>(line: &[&'a str]) -> Option<(&'static Command, Vec<&'a str>)> {
    let mut all = SECTIONS.iter().flat_map(|section| section.commands);
    all.find_map(|command| Some((command, matched(command, line)?)))
}

/// Commands that begin as a line does, for who mistyped the rest.
pub fn similar(line: &[&str]) -> Vec<&'static str> {
    let all = SECTIONS.iter().flat_map(|section| section.commands);
    let first = line.first().copied().unwrap_or("");
    let mut found: Vec<_> = all
        .map(|command| command.words)
        .filter(|words| words.split(' ').next() == Some(first))
        .collect();
    // Those that agree in the second word as well tell more.
    let second = |words: &&str| words.split(' ').nth(1) == line.get(1).copied();
    if line.len() > 1 && found.iter().any(second) {
        found.retain(second);
    }
    found
}

/// What may follow a line: where the last word begins, and what it may be.
pub fn complete(line: &str) -> (usize, Vec<String>) {
    let start = line.rfind(' ').map_or(0, |at| at + 1);
    let (before, begun) = (&line[..start], &line[start..]);
    let said: Vec<_> = before.split_whitespace().collect();
    let mut found: Vec<String> = Vec::new();
    for command in SECTIONS.iter().flat_map(|section| section.commands) {
        let words: Vec<_> = command.words.split(' ').collect();
        let agrees = |(word, said): (&&str, &&str)| {
            is_free(word) || word.split('|').any(|choice| choice == *said)
        };
        let Some(next) = words.get(said.len()) else {
            continue;
        };
        if !words.iter().zip(&said).all(agrees) {
            continue;
        }
        let choices: Vec<String> = match *next {
            "MODE" => MODES.iter().map(|mode| mode.name.to_owned()).collect(),
            "PORT" => vec!["all".to_owned(), "0".to_owned()],
            "WAY" => ["spin", "yield", "sleep:", "interrupt"]
                .map(str::to_owned)
                .to_vec(),
            "SECTION" => {
                let names = SECTIONS.iter().map(|section| section.name.to_owned());
                names.chain(["all".to_owned()]).collect()
            }
            word if is_free(word) => Vec::new(),
            word => word.split('|').map(str::to_owned).collect(),
        };
        found.extend(
            choices
                .into_iter()
                .filter(|choice| choice.starts_with(begun)),
        );
    }
    found.sort();
    found.dedup();
    (start, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart() {
        for (line, words, free) in [
            ("start", "start", vec![]),
            ("start tx_first 8", "start tx_first N", vec!["8"]),
            ("show port stats all", "show port stats PORT", vec!["all"]),
            (
                "show config fwd",
                "show config fwd|rxtx|cores|txpkts",
                vec!["fwd"],
            ),
            ("set burst 16", "set burst N", vec!["16"]),
            (
                "set burst tx delay 1 retry 64",
                "set burst tx delay US retry N",
                vec!["1", "64"],
            ),
            (
                "clear port stats 0",
                "clear port stats|xstats PORT",
                vec!["stats", "0"],
            ),
        ] {
            let line: Vec<_> = line.split(' ').collect();
            let (command, said) = find(&line).unwrap();
            assert_eq!((command.words, said), (words, free));
        }
        assert!(find(&["strat"]).is_none() && find(&["show", "config", "x"]).is_none());
        assert_eq!(similar(&["show", "fwd"]), ["show fwd stats all"]);
    }

    #[test]
    fn every_word_completes() {
        for (line, want) in [
            ("st", vec!["start", "stop"]),
            ("start ", vec!["tx_first"]),
            ("show port st", vec!["stats"]),
            ("set fwd mac", vec!["mac", "macswap"]),
            ("set flush_rx ", vec!["off", "on"]),
            ("nonsense ", vec![]),
        ] {
            let (start, found) = complete(line);
            assert_eq!(found, want, "{line}");
            assert_eq!(start, line.rfind(' ').map_or(0, |at| at + 1));
        }
    }

    #[test]
    fn no_two_commands_are_one() {
        let all: Vec<_> = SECTIONS
            .iter()
            .flat_map(|section| section.commands)
            .collect();
        for (at, command) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.words != command.words));
            assert!(!command.about.is_empty() && command.words.split(' ').all(|w| !w.is_empty()));
        }
    }
}
