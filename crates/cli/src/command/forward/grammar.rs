//! Parsing of shell lines: the command, similar commands, completions.

use linerate_forwarder::MODES;
use linerate_port::kinds::KINDS;

use super::commands::{SECTIONS, ShellCommand};

/// Returns whether a word of the table is a placeholder.
fn is_placeholder(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

/// Matches a line against a command; returns the values of choices and placeholders.
fn match_line<'a>(command: &ShellCommand, line: &[&'a str]) -> Option<Vec<&'a str>> {
    let pattern: Vec<_> = command.pattern.split(' ').collect();
    if pattern.len() != line.len() {
        return None;
    }
    let mut values = Vec::new();
    for (word, given) in pattern.into_iter().zip(line) {
        if is_placeholder(word) {
            values.push(*given);
        } else if word.contains('|') {
            word.split('|').find(|choice| choice == given)?;
            values.push(*given);
        } else if word != *given {
            return None;
        }
    }
    Some(values)
}

/// Returns the command of a line with its values.
pub fn find_command<'a>(line: &[&'a str]) -> Option<(&'static ShellCommand, Vec<&'a str>)> {
    let mut all = SECTIONS.iter().flat_map(|section| section.commands);
    all.find_map(|command| Some((command, match_line(command, line)?)))
}

/// Returns the error message for a line that is not a command.
pub fn unknown_command(line: &[&str]) -> String {
    let given = line.join(" ");
    if let Some((command, extra)) = too_long(line) {
        let problem = match extra.len() {
            1 => "one word too many",
            _ => "too many words",
        };
        let continuations = continuations(command);
        let continuations = match continuations.is_empty() {
            true => String::new(),
            false => format!(", or continues as:\n  {}", continuations.join("\n  ")),
        };
        let extra = extra.join(" ");
        return format!(
            "{problem}: {extra}: `{}` ends before{continuations}",
            command.pattern
        );
    }
    let similar = similar_commands(line);
    match &similar[..] {
        [] => format!("no such command: {given}: `help` lists the commands"),
        // One per line, because there may be twenty.
        suggestions => format!(
            "no such command: {given}: there is:\n  {}",
            suggestions.join("\n  ")
        ),
    }
}

/// Returns the longest command that a line starts with, and the extra words.
fn too_long<'a>(line: &'a [&'a str]) -> Option<(&'static ShellCommand, &'a [&'a str])> {
    (1..line.len()).rev().find_map(|end| {
        let (given, extra) = line.split_at(end);
        find_command(given).map(|(command, _)| (command, extra))
    })
}

/// Returns longer commands that start with this one.
fn continuations(command: &ShellCommand) -> Vec<&'static str> {
    let all = SECTIONS.iter().flat_map(|section| section.commands);
    let continues = |pattern: &&str| {
        pattern
            .strip_prefix(command.pattern)
            .map(|it| it.starts_with(' '))
    };
    all.map(|other_command| other_command.pattern)
        .filter(|pattern| continues(pattern) == Some(true))
        .collect()
}

/// Returns commands that start like a mistyped line.
fn similar_commands(line: &[&str]) -> Vec<&'static str> {
    let all = SECTIONS.iter().flat_map(|section| section.commands);
    let first = line.first().copied().unwrap_or("");
    let mut candidates: Vec<_> = all
        .map(|command| command.pattern)
        .filter(|pattern| pattern.split(' ').next() == Some(first))
        .collect();
    // If some match the second word too, only those are returned.
    let second = |pattern: &&str| pattern.split(' ').nth(1) == line.get(1).copied();
    if line.len() > 1 && candidates.iter().any(second) {
        candidates.retain(second);
    }
    candidates
}

/// Returns the completions of a line: the start of the last word, and its candidates.
pub fn completions(line: &str, ports: &[u32]) -> (usize, Vec<String>) {
    let start = line.rfind(' ').map_or(0, |at| at + 1);
    let (before, prefix) = (&line[..start], &line[start..]);
    let given: Vec<_> = before.split_whitespace().collect();
    let mut candidates: Vec<String> = Vec::new();
    for command in SECTIONS.iter().flat_map(|section| section.commands) {
        let pattern: Vec<_> = command.pattern.split(' ').collect();
        let agrees = |(word, given): (&&str, &&str)| {
            is_placeholder(word) || word.split('|').any(|choice| choice == *given)
        };
        let Some(next) = pattern.get(given.len()) else {
            continue;
        };
        if !pattern.iter().zip(&given).all(agrees) {
            continue;
        }
        let choices: Vec<String> = match *next {
            "MODE" => MODES.iter().map(|mode| mode.name.to_owned()).collect(),
            "PORT" => {
                let numbers = ports.iter().map(u32::to_string);
                numbers.chain(["all".to_owned()]).collect()
            }
            "URL" => KINDS
                .iter()
                .map(|kind| format!("{}:", kind.scheme))
                .collect(),
            "ACTION" => ["spin", "yield", "sleep:", "interrupt"]
                .map(str::to_owned)
                .to_vec(),
            "SECTION" => {
                let names = SECTIONS.iter().map(|section| section.name.to_owned());
                names.chain(["all".to_owned()]).collect()
            }
            word if is_placeholder(word) => Vec::new(),
            word => word.split('|').map(str::to_owned).collect(),
        };
        candidates.extend(
            choices
                .into_iter()
                .filter(|choice| choice.starts_with(prefix)),
        );
    }
    candidates.sort();
    candidates.dedup();
    (start, candidates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_distinguished() {
        for (line, pattern, values) in [
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
            let (command, said) = find_command(&line).unwrap();
            assert_eq!((command.pattern, said), (pattern, values));
        }
        assert!(
            find_command(&["strat"]).is_none() && find_command(&["show", "config", "x"]).is_none()
        );
        assert_eq!(similar_commands(&["show", "fwd"]), ["show fwd stats all"]);
    }

    #[test]
    fn errors_of_a_line_are_reported() {
        for (line, expected) in [
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
                "no such command: show port 0: there is:\n  show port stats PORT\n  show port xstats PORT\n  \
                 show port info PORT\n  show port summary PORT",
            ),
            (
                "vlan set strip on 0",
                "no such command: vlan set strip on 0: `help` lists the commands",
            ),
        ] {
            let line_words: Vec<_> = line.split(' ').collect();
            assert_eq!(unknown_command(&line_words), expected, "{line}");
        }
    }

    #[test]
    fn each_word_has_completions() {
        for (line, expected) in [
            ("st", vec!["start", "stop"]),
            ("start ", vec!["tx_first"]),
            ("show port st", vec!["stats"]),
            ("set fwd mac", vec!["mac", "macswap"]),
            ("set flush_rx ", vec!["off", "on"]),
            ("show rxq info ", vec!["0", "1", "all"]),
            ("port attach sh", vec!["shm:"]),
            ("port config 1 rx", vec!["rxd", "rxq"]),
            ("csum set ip ", vec!["hw", "sw"]),
            ("nonsense ", vec![]),
        ] {
            let (start, candidates) = completions(line, &[0, 1]);
            assert_eq!(candidates, expected, "{line}");
            assert_eq!(start, line.rfind(' ').map_or(0, |at| at + 1));
        }
    }

    /// Commands that users of testpmd expect.
    #[test]
    fn commands_of_testpmd_are_accepted() {
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
            "set eth-peer 0 02:00:00:00:00:01",
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
            "load script",
        ] {
            let line_words: Vec<_> = line.split(' ').collect();
            assert!(find_command(&line_words).is_some(), "{line}");
        }
    }

    /// The table in the guide has all commands, as help prints them.
    #[test]
    fn the_guide_lists_each_command() {
        const GUIDE: &str = include_str!("../../../../../docs/GUIDE.md");
        let guide = GUIDE.replace("\\|", "|");
        for command in SECTIONS.iter().flat_map(|section| section.commands) {
            let pattern = format!("`{}`", command.pattern);
            assert!(
                guide.contains(&pattern),
                "{pattern} is not in docs/GUIDE.md"
            );
        }
    }

    #[test]
    fn commands_are_unique() {
        let all: Vec<_> = SECTIONS
            .iter()
            .flat_map(|section| section.commands)
            .collect();
        for (at, command) in all.iter().enumerate() {
            assert!(
                all[..at]
                    .iter()
                    .all(|other| other.pattern != command.pattern)
            );
            assert!(!command.about.is_empty() && command.pattern.split(' ').all(|w| !w.is_empty()));
        }
    }
}
