//! Changes as configuration files and scripts of the usual tools.

use linerate_record::tuning::ConfigSnippet;

use crate::guard::{SettingKey, SettingKind};
use crate::knob::KnobTarget;

/// Change of a knob: target, value, and the settings of hosts that it affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnobChange {
    pub knob: String,
    pub target: KnobTarget,
    pub value: String,
    /// Settings of hosts affected; empty for other targets.
    pub keys: Vec<SettingKey>,
}

/// Writes changes in every format that can hold them.
///
/// Formats: a file for `sysctl --load`, a script of `ethtool` and `ip` commands, TOML for the
/// user-space stack, and TOML for options of the measuring command.
#[must_use]
pub fn render_snippets(changes: &[KnobChange]) -> Vec<ConfigSnippet> {
    let lines = |lines_of: &dyn Fn(&KnobChange) -> Vec<String>| -> Vec<String> {
        let mut distinct_lines: Vec<String> = Vec::new();
        for line in changes.iter().flat_map(lines_of) {
            if !distinct_lines.contains(&line) {
                distinct_lines.push(line);
            }
        }
        distinct_lines
    };
    let sysctls = lines(&|change| match &change.target {
        KnobTarget::HostSetting {
            kind: SettingKind::Sysctl,
            name,
        } => vec![format!("{name} = {}", change.value)],
        KnobTarget::RemoteSysctl(name) => {
            vec![format!("# at the remote host:\n{name} = {}", change.value)]
        }
        _ => Vec::new(),
    });
    let interfaces = lines(&|change| match &change.target {
        KnobTarget::HostSetting { kind, .. } if *kind != SettingKind::Sysctl => {
            let line =
                |key: &SettingKey| format!("{}  # {}", key.shell_command(&change.value), key.host);
            change.keys.iter().map(line).collect()
        }
        _ => Vec::new(),
    });
    let stack = lines(&|change| match &change.target {
        KnobTarget::StackKey(key) => vec![format!("{key} = {}", toml_value(&change.value))],
        _ => Vec::new(),
    });
    let options = lines(&|change| match &change.target {
        KnobTarget::Option(option) => vec![toml_pair(option, &change.value)],
        KnobTarget::Command { .. } | KnobTarget::Point => {
            vec![toml_pair(&change.knob, &change.value)]
        }
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
    .map(|(format, lines)| ConfigSnippet {
        format: format.to_owned(),
        text: lines.join("\n"),
    })
    .collect()
}

/// Key and value of one TOML table; a name with a dot or a colon is quoted, otherwise it would
/// become another key.
fn toml_pair(name: &str, value: &str) -> String {
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

    fn knob_change(
        knob: &str,
        target: KnobTarget,
        value: &str,
        keys: &[SettingKind],
    ) -> KnobChange {
        let key = |kind: &SettingKind| SettingKey {
            host: "client".to_owned(),
            namespace_inode: 1,
            namespace_cookie: None,
            kind: *kind,
            name: "eth0".to_owned(),
        };
        KnobChange {
            knob: knob.to_owned(),
            target,
            value: value.to_owned(),
            keys: keys.iter().map(key).collect(),
        }
    }

    #[test]
    fn each_change_is_in_the_format_that_holds_it() {
        let host = |kind, name: &str| KnobTarget::HostSetting {
            kind,
            name: name.to_owned(),
        };
        let command = KnobTarget::Command {
            timeout_s: None,
            command: "x {}".to_owned(),
            restore: None,
        };
        let rendered = render_snippets(&[
            knob_change(
                "tcp-rmem",
                host(SettingKind::Sysctl, "net.ipv4.tcp_rmem"),
                "1 2 3",
                &[SettingKind::Sysctl, SettingKind::Sysctl],
            ),
            knob_change(
                "mtu",
                host(SettingKind::Mtu, ""),
                "9000",
                &[SettingKind::Mtu],
            ),
            knob_change(
                "stack-sndbuf",
                KnobTarget::StackKey("tcp.send_buffer".to_owned()),
                "16K",
                &[],
            ),
            knob_change("wait", KnobTarget::Option("wait".to_owned()), "spin", &[]),
            knob_change("window", command.clone(), "4096", &[]),
            knob_change("snd.wnd:\"2\"", command, "1", &[]),
        ]);
        let shown: Vec<_> = rendered
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
        assert!(render_snippets(&[]).is_empty());
        for snippet in rendered
            .iter()
            .filter(|snippet| snippet.format.contains("toml"))
        {
            toml::from_str::<toml::Table>(&snippet.text).unwrap();
        }
    }
}
