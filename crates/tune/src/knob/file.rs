//! User-defined knobs, read from a TOML file.

use std::path::Path;

use linerate_stats::units::{ByteSize, parse_seconds};
use serde::Deserialize;

use super::{DEFAULT_VALUE, Knob, KnobLimit, KnobTarget};
use crate::TuneError;
use crate::guard::SettingKind;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnobFile {
    knob: Vec<KnobEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnobEntry {
    name: String,
    values: Vec<toml::Value>,
    set: Option<String>,
    restore: Option<String>,
    within: Option<String>,
    option: Option<String>,
    stack: Option<String>,
    sysctl: Option<String>,
    #[serde(default)]
    ordered: bool,
    memory: Option<toml::Value>,
    least: Option<u64>,
    most: Option<u64>,
}

/// Parses user-defined knobs: `[[knob]]` tables with `name`, `values` (the first is the start) and
/// one target.
///
/// The target is one of `set` (a command with `{}`), `option`, `stack` and `sysctl`. With `set`,
/// `restore` is the command that restores the original state if the first value does not, and
/// `within` replaces the timeout of ten minutes. `memory` is the number of bytes per unit of the
/// value. Values outside `least` and `most` are removed.
///
/// # Errors
/// [`TuneError::InvalidKnobFile`] with the reason.
pub fn from_toml(path: &Path, text: &str) -> Result<Vec<Knob>, TuneError> {
    let invalid = |reason: String| TuneError::InvalidKnobFile {
        path: path.to_owned(),
        reason,
    };
    let file: KnobFile = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map(|before| before.matches('\n').count() + 1);
        invalid(match line {
            Some(line) => format!("line {line}: {}", error.message()),
            None => error.message().to_owned(),
        })
    })?;
    let mut names = std::collections::BTreeSet::new();
    file.knob
        .into_iter()
        .map(|entry| {
            if !names.insert(entry.name.clone()) {
                return Err(invalid(format!("knob `{}` is defined twice", entry.name)));
            }
            entry.into_knob().map_err(invalid)
        })
        .collect()
}

impl KnobEntry {
    fn into_knob(self) -> Result<Knob, String> {
        let Self { name, restore, .. } = self;
        let within_s = self.within.as_deref().map(parse_seconds);
        if within_s == Some(None) {
            return Err(format!(
                "`{name}` has an invalid within (a time of at least a second): write \"30m\""
            ));
        }
        let within_s = within_s.flatten();
        let reject = |reason: &str| Err(format!("`{name}` {reason}"));
        let is_separator = |c: char| c.is_whitespace() || "=,;".contains(c);
        if name.is_empty() || name.contains(is_separator) {
            return reject("is not a valid name on the command line: use no blanks and no = , ;");
        }
        let target = match (self.set, self.option, self.stack, self.sysctl) {
            (Some(command), None, None, None) => {
                if !command.contains("{}") {
                    return reject("has no {} for the value in its command");
                }
                KnobTarget::Command {
                    command,
                    restore: restore.clone(),
                    timeout_s: within_s,
                }
            }
            (None, Some(option), None, None) => KnobTarget::Option(option),
            (None, None, Some(key), None) => KnobTarget::StackKey(key),
            (None, None, None, Some(sysctl)) => KnobTarget::HostSetting {
                kind: SettingKind::Sysctl,
                name: sysctl,
            },
            _ => return reject("needs one of set, option, stack and sysctl"),
        };
        if restore.is_some() && !matches!(target, KnobTarget::Command { .. }) {
            return reject(
                "has restore, which only set may have: other targets restore themselves",
            );
        }
        if within_s.is_some() && !matches!(target, KnobTarget::Command { .. }) {
            return reject("has within, which only set may have: other targets need no timeout");
        }
        let memory = match self.memory {
            None => None,
            Some(toml::Value::Float(bytes)) if bytes.is_finite() && bytes >= 0.0 => Some(bytes),
            Some(toml::Value::Integer(bytes @ 0..)) => Some(bytes as f64),
            Some(_) => {
                return reject(
                    "has a memory that is not a number from 0 up: give the bytes per unit of the value, memory = 1 \
                     where the value is a size",
                );
            }
        };
        let mut values: Vec<String> = Vec::new();
        for value in self.values {
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Array(_) | toml::Value::Table(_) => {
                    return reject(&format!(
                        "has {value} among its values: write strings or numbers"
                    ));
                }
                scalar => scalar.to_string(),
            };
            if values.contains(&value) {
                return reject(&format!("has the value {value} twice"));
            }
            let is_size = value == DEFAULT_VALUE || value.parse::<ByteSize>().is_ok();
            if memory.is_some() && !is_size {
                return reject(&format!(
                    "has memory (bytes per unit of the value), but its value {value} is not a number"
                ));
            }
            values.push(value);
        }
        let uncertain = !matches!(target, KnobTarget::Command { .. });
        let mut knob = Knob {
            values,
            target,
            ordered: self.ordered,
            may_be_rejected: uncertain,
            bytes_per_unit: memory,
            name: name.clone(),
        };
        if self
            .least
            .zip(self.most)
            .is_some_and(|(least, most)| least > most)
        {
            return reject("has a least above its most");
        }
        if self.least.is_some() || self.most.is_some() {
            KnobLimit::new(&name, self.least, self.most).apply(&mut knob);
        }
        if knob.values.len() < 2 {
            return reject("needs at least two values");
        }
        Ok(knob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_defined_knobs_have_commands() {
        let path = Path::new("knobs.toml");
        let text = "[[knob]]\nname = \"window\"\nvalues = [1024, 4096, 65536]\nset = \"make flash WND={}\"\n\
                    memory = 2\nordered = true\nmost = 8192\n";
        let knobs = from_toml(path, text).unwrap();
        assert_eq!(knobs[0].values, ["1024", "4096"]);
        let lines = knobs[0].commands_for("4096").unwrap();
        assert_eq!(lines.0, "make flash WND=4096");
        assert_eq!(
            lines.1, "make flash WND=1024",
            "the first value is what was"
        );
        let text = "[[knob]]\nname = \"w\"\nvalues = [1, 2]\nset = \"x {}\"\nrestore = \"y\"\n";
        let lines = from_toml(path, text).unwrap()[0].commands_for("2").unwrap();
        assert_eq!(lines, ("x 2".to_owned(), "y".to_owned()));
    }

    #[test]
    fn a_command_may_have_a_timeout() {
        let path = Path::new("knobs.toml");
        let parse_target = |rest: &str| {
            let text = format!("[[knob]]\nname = \"w\"\nvalues = [1, 2]\n{rest}\n");
            from_toml(path, &text).map(|knobs| knobs[0].target.clone())
        };
        for (rest, expected) in [
            ("set = \"x {}\"", None),
            ("set = \"x {}\"\nwithin = \"30m\"", Some(1_800)),
            ("set = \"x {}\"\nwithin = \"5\"", Some(5)),
        ] {
            let target = parse_target(rest).unwrap();
            assert!(
                matches!(target, KnobTarget::Command { timeout_s, .. } if timeout_s == expected),
                "{rest}: {target:?}"
            );
        }
        for rest in [
            "set = \"x {}\"\nwithin = \"long\"",
            "set = \"x {}\"\nwithin = \"1ms\"",
            "option = \"x\"\nwithin = \"1m\"",
        ] {
            assert!(
                parse_target(rest)
                    .unwrap_err()
                    .to_string()
                    .contains("within"),
                "{rest}"
            );
        }
    }

    #[test]
    fn invalid_knobs_are_rejected() {
        for (text, message) in [
            ("[[knob]]\nname = \"x\"\nvalues = [1, 2]\n", "one of set"),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1]\nset = \"y {}\"\n",
                "at least two values",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\nset = \"y\"\n",
                "no {}",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\noption = \"y\"\nrestore = \"z\"\n",
                "restore",
            ),
            ("[[knob]]\nname = \"x\"\nvalue = 1\n", "value"),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\nset = \"y {}\"\nmemory = \"8K\"\n",
                "bytes per unit",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\nset = \"y {}\"\nmemory = -1\n",
                "not a number from 0 up",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\nset = \"y {}\"\nmemory = nan\n",
                "not a number from 0 up",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1024, \"many\"]\nset = \"y {}\"\nmemory = 1\n",
                "many is not a number",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2, 1]\nset = \"y {}\"\n",
                "the value 1 twice",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, [2, 3]]\nset = \"y {}\"\n",
                "[2, 3] among its values",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\nset = \"y {}\"\nleast = 8\nmost = 4\n",
                "least above its most",
            ),
            (
                "[[knob]]\nname = \"a window\"\nvalues = [1, 2]\nset = \"y {}\"\n",
                "not a valid name on the command line",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\nset = \"y {}\"\n\n[[knob]]\nname = \"z\"\nset = \"y {}\"\n",
                "line 6: missing field `values`",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = []\nset = \"y {}\"\n",
                "at least two values",
            ),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1, 2]\noption = \"a\"\n[[knob]]\nname = \"x\"\nvalues = [1, 2]\noption = \"b\"\n",
                "twice",
            ),
        ] {
            let error = from_toml(Path::new("knobs.toml"), text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
