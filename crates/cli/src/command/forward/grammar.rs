//! Parsing of shell lines: the command, similar commands, completions.

use linerate_measure::forward::{KINDS, MODES};

use super::commands::{Command, SECTIONS};
use super::testpmd_commands;

/// Returns whether a word of the table is a placeholder.
fn is_free(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

/// Matches a line against a command; returns the values of choices and placeholders.
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

/// Returns the command of a line with its values.
pub fn find<'a>(line: &[&'a str]) -> Option<(&'static Command, Vec<&'a str>)> {
    let mut all = SECTIONS.iter().flat_map(|section| section.commands);
    all.find_map(|command| Some((command, matched(command, line)?)))
}

/// Returns the error message for a line that is not a command.
pub fn unknown(line: &[&str]) -> String {
    let said = line.join(" ");
    if let Some((command, beyond)) = too_long(line) {
        let many = match beyond.len() {
            1 => "one word too many",
            _ => "too many words",
        };
        let longer = going_on(command);
        let longer = match longer.is_empty() {
            true => String::new(),
            false => format!(", or continues as:\n  {}", longer.join("\n  ")),
        };
        let beyond = beyond.join(" ");
        return format!("{many}: {beyond}: `{}` ends before{longer}", command.words);
    }
    let similar = similar(line);
    match (testpmd_commands::instead_of(line), &similar[..]) {
        (Some(instead), _) => format!("not available: {said}: {instead}"),
        (None, []) => format!("no such command: {said}: `help` lists the commands"),
        // One per line, because there may be twenty.
        (None, known) => format!(
            "no such command: {said}: there is:\n  {}",
            known.join("\n  ")
        ),
    }
}

/// Returns the longest command that a line starts with, and the extra words.
fn too_long<'a>(line: &'a [&'a str]) -> Option<(&'static Command, &'a [&'a str])> {
    (1..line.len()).rev().find_map(|end| {
        let (said, beyond) = line.split_at(end);
        find(said).map(|(command, _)| (command, beyond))
    })
}

/// Returns longer commands that start with this one.
fn going_on(command: &Command) -> Vec<&'static str> {
    let all = SECTIONS.iter().flat_map(|section| section.commands);
    let rest = |words: &&str| {
        words
            .strip_prefix(command.words)
            .map(|it| it.starts_with(' '))
    };
    all.map(|other| other.words)
        .filter(|words| rest(words) == Some(true))
        .collect()
}

/// Returns commands that start like a mistyped line.
fn similar(line: &[&str]) -> Vec<&'static str> {
    let all = SECTIONS.iter().flat_map(|section| section.commands);
    let first = line.first().copied().unwrap_or("");
    let mut found: Vec<_> = all
        .map(|command| command.words)
        .filter(|words| words.split(' ').next() == Some(first))
        .collect();
    // If some match the second word too, only those are returned.
    let second = |words: &&str| words.split(' ').nth(1) == line.get(1).copied();
    if line.len() > 1 && found.iter().any(second) {
        found.retain(second);
    }
    found
}

/// Returns the completions of a line: the start of the last word, and its candidates.
pub fn complete(line: &str, ports: &[u32]) -> (usize, Vec<String>) {
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
            "PORT" => {
                let numbers = ports.iter().map(u32::to_string);
                numbers.chain(["all".to_owned()]).collect()
            }
            "LEVEL" => ["0", "1", "2", "3"].map(str::to_owned).to_vec(),
            "URL" => KINDS
                .iter()
                .map(|kind| format!("{}:", kind.scheme))
                .collect(),
            "ACTION" => ["spin", "yield", "sleep:", "interrupt"]
                .map(str::to_owned)
                .to_vec(),
            "SECTION" => {
                let names = SECTIONS.iter().map(|section| section.name.to_owned());
                names.chain(["all", "absent"].map(str::to_owned)).collect()
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
            (
                "port config all rxq 2",
                "port config PORT rxq|txq|rxd|txd|mtu|max-pkt-len N",
                vec!["all", "rxq", "2"],
            ),
            (
                "port config all burst 4",
                "port config all burst N",
                vec!["4"],
            ),
            (
                "port config mtu 1 900",
                "port config mtu PORT N",
                vec!["1", "900"],
            ),
            (
                "set port 0 queue 1 rate 10",
                "set port PORT queue QUEUE rate MBPS",
                vec!["0", "1", "10"],
            ),
            (
                "show txq info 0 1",
                "show rxq|txq info PORT QUEUE",
                vec!["txq", "0", "1"],
            ),
            (
                "csum set udp sw 0",
                "csum set ip|udp|tcp|sctp|outer-ip|outer-udp hw|sw PORT",
                vec!["udp", "sw", "0"],
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
    fn what_is_wrong_with_a_line_is_said() {
        for (line, want) in [
            (
                "show port stats all EXTRA",
                "one word too many: EXTRA: `show port stats PORT` ends before",
            ),
            (
                "start tx_first 4 5 6",
                "too many words: 5 6: `start tx_first N` ends before",
            ),
            (
                "set fwd mac rety",
                "one word too many: rety: `set fwd MODE` ends before, or continues as:\n  set fwd MODE retry",
            ),
            ("strat", "no such command: strat: `help` lists the commands"),
            (
                "show fwd",
                "no such command: show fwd: there is:\n  show fwd stats all",
            ),
            (
                "show port 0",
                "not available: show port 0: ports have info, summary, stats and xstats",
            ),
        ] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(unknown(&words), want, "{line}");
        }
    }

    #[test]
    fn every_word_completes() {
        for (line, want) in [
            ("st", vec!["start", "stop"]),
            ("start ", vec!["tx_first"]),
            ("show port st", vec!["stats"]),
            ("set fwd mac", vec!["mac", "macswap"]),
            ("set flush_rx ", vec!["off", "on"]),
            ("show rxq info ", vec!["0", "1", "all"]),
            ("port attach sh", vec!["shm:"]),
            ("port config 1 rx", vec!["rxd", "rxq"]),
            ("set port 0 queue 0 ", vec!["rate"]),
            ("csum set ip ", vec!["hw", "sw"]),
            ("nonsense ", vec![]),
        ] {
            let (start, found) = complete(line, &[0, 1]);
            assert_eq!(found, want, "{line}");
            assert_eq!(start, line.rfind(' ').map_or(0, |at| at + 1));
        }
    }

    /// Commands that users of testpmd expect.
    #[test]
    fn known_words_are_understood() {
        for line in [
            "start",
            "start tx_first",
            "start tx_first 4",
            "stop",
            "quit",
            "help",
            "help display",
            "show port info 0",
            "show port info all",
            "show port summary all",
            "show port stats all",
            "show port xstats 0",
            "show fwd stats all",
            "clear fwd stats all",
            "clear port stats all",
            "clear port xstats 0",
            "show config rxtx",
            "show config cores",
            "show config fwd",
            "show config txpkts",
            "set fwd io",
            "set fwd mac retry",
            "set burst 16",
            "set burst tx delay 1 retry 64",
            "set nbcore 2",
            "set corelist 0,1",
            "set coremask 0x3",
            "set nbport 2",
            "set portlist 0,1",
            "set portmask 0x3",
            "set txpkts 64,64",
            "set txonly-flows 4",
            "set record-core-cycles on",
            "set record-burst-stats on",
            "set eth-peer 0 02:00:00:00:00:01",
            "set verbose 1",
            "set promisc all on",
            "set flush_rx on",
            "set default",
            "port start all",
            "port stop 0",
            "port close 0",
            "port reset all",
            "port attach null:",
            "port detach 1",
            "port config all rxq 2",
            "port config all txq 2",
            "port config all rxd 512",
            "port config all txd 512",
            "port config all burst 16",
            "port config all max-pkt-len 1518",
            "port config mtu 0 1500",
            "show rxq info 0 0",
            "show txq info 0 0",
            "csum set ip sw 0",
            "csum show 0",
            "set port 0 queue 0 rate 100",
            "load script",
        ] {
            let words: Vec<_> = line.split(' ').collect();
            assert!(find(&words).is_some(), "{line}");
        }
    }

    /// The table in the guide has all commands, as help prints them.
    #[test]
    fn the_guide_knows_every_command() {
        const GUIDE: &str = include_str!("../../../../../docs/GUIDE.md");
        let guide = GUIDE.replace("\\|", "|");
        for command in SECTIONS.iter().flat_map(|section| section.commands) {
            let words = format!("`{}`", command.words);
            assert!(guide.contains(&words), "{words} is not in docs/GUIDE.md");
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
