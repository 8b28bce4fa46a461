//! Changes as configuration files and scripts of the usual tools.

use linerate_metric::tuning::Snippet;

use crate::guard::{Key, Kind};
use crate::knob::Set;

/// Change of a knob: target, value, and the settings of hosts that it affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turned {
    pub knob: String,
    pub set: Set,
    pub value: String,
    /// Settings of hosts affected; empty for other targets.
    pub keys: Vec<Key>,
}

/// Writes changes in every format that can hold them.
///
/// Formats: a file for `sysctl --load`, a script of `ethtool` and `ip` commands, TOML for the
/// user-space stack, and TOML for options of the measuring command.
#[must_use]
pub fn snippets(changes: &[Turned]) -> Vec<Snippet> {
    let lines = |of: &dyn Fn(&Turned) -> Vec<String>| -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for line in changes.iter().flat_map(of) {
            if !all.contains(&line) {
                all.push(line);
            }
        }
        all
    };
    let sysctls = lines(&|change| match &change.set {
        Set::Host {
            kind: Kind::Sysctl,
            name,
        } => vec![format!("{name} = {}", change.value)],
        Set::Far(name) => vec![format!("# at the remote host:\n{name} = {}", change.value)],
        _ => Vec::new(),
    });
    let interfaces = lines(&|change| match &change.set {
        Set::Host { kind, .. } if *kind != Kind::Sysctl => {
            let line = |key: &Key| format!("{}  # {}", key.command(&change.value), key.host);
            change.keys.iter().map(line).collect()
        }
        _ => Vec::new(),
    });
    let stack = lines(&|change| match &change.set {
        Set::StackKey(key) => vec![format!("{key} = {}", toml_value(&change.value))],
        _ => Vec::new(),
    });
    let options = lines(&|change| match &change.set {
        Set::Option(option) => vec![pair(option, &change.value)],
        Set::Command { .. } | Set::Point => vec![pair(&change.knob, &change.value)],
        _ => Vec::new(),
    });
    let options = match options.is_empty() {
        true => Vec::new(),
        false => std::iter::once("[tuned]".to_owned())
            .chain(options)
            .collect(),
    };
    [
        ("sysctl", sysctls),
        ("ethtool", interfaces),
        ("stack.toml", stack),
        ("toml", options),
    ]
    .into_iter()
    .filter(|(_, lines)| !lines.is_empty())
    .map(|(format, lines)| Snippet {
        format: format.to_owned(),
        text: lines.join("\n"),
    })
    .collect()
}

/// Key and value of one TOML table; a name with a dot or a colon is quoted, otherwise it would
/// become another key.
fn pair(name: &str, value: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let value = toml_value(value);
    match name.chars().all(is_plain) {
        true => format!("{name} = {value}"),
        false => format!("{name:?} = {value}"),
    }
}

fn toml_value(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(number) => number.to_string(),
        Err(_) => toml::Value::String(value.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(knob: &str, set: Set, value: &str, keys: &[Kind]) -> Turned {
        let key = |kind: &Kind| Key {
            host: "client".to_owned(),
            namespace: 1,
            cookie: None,
            kind: *kind,
            name: "eth0".to_owned(),
        };
        Turned {
            knob: knob.to_owned(),
            set,
            value: value.to_owned(),
            keys: keys.iter().map(key).collect(),
        }
    }

    #[test]
    fn each_change_is_in_the_format_that_holds_it() {
        let host = |kind, name: &str| Set::Host {
            kind,
            name: name.to_owned(),
        };
        let command = Set::Command {
            within_s: None,
            line: "x {}".to_owned(),
            restore: None,
        };
        let all = snippets(&[
            turned(
                "tcp-rmem",
                host(Kind::Sysctl, "net.ipv4.tcp_rmem"),
                "1 2 3",
                &[Kind::Sysctl, Kind::Sysctl],
            ),
            turned("mtu", host(Kind::Mtu, ""), "9000", &[Kind::Mtu]),
            turned(
                "stack-sndbuf",
                Set::StackKey("tcp.send_buffer".to_owned()),
                "16K",
                &[],
            ),
            turned("wait", Set::Option("wait".to_owned()), "spin", &[]),
            turned("window", command.clone(), "4096", &[]),
            turned("snd.wnd:\"2\"", command, "1", &[]),
        ]);
        let shown: Vec<_> = all
            .iter()
            .map(|snippet| format!("{}: {}", snippet.format, snippet.text))
            .collect();
        assert_eq!(
            shown,
            [
                "sysctl: net.ipv4.tcp_rmem = 1 2 3",
                "ethtool: ip link set dev eth0 mtu 9000  # client",
                "stack.toml: tcp.send_buffer = \"16K\"",
                "toml: [tuned]\nwait = \"spin\"\nwindow = 4096\n\"snd.wnd:\\\"2\\\"\" = 1",
            ]
        );
        assert!(snippets(&[]).is_empty());
        for snippet in all.iter().filter(|snippet| snippet.format.contains("toml")) {
            toml::from_str::<toml::Table>(&snippet.text).unwrap();
        }
    }
}
