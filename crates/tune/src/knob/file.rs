//! User-defined knobs, read from a TOML file.

use std::path::Path;

use linerate_metric::units::{ByteSize, parse_seconds};
use serde::Deserialize;

use super::{DEFAULT, Knob, Limit, Set};
use crate::TuneError;
use crate::guard::Kind;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    knob: Vec<Own>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
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
/// [`TuneError::Knobs`] with the reason.
pub fn from_toml(path: &Path, text: &str) -> Result<Vec<Knob>, TuneError> {
    let shape = |why: String| TuneError::Knobs {
        path: path.to_owned(),
        why,
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map(|before| before.matches('\n').count() + 1);
        shape(match line {
            Some(line) => format!("line {line}: {}", error.message()),
            None => error.message().to_owned(),
        })
    })?;
    let mut seen = std::collections::BTreeSet::new();
    file.knob
        .into_iter()
        .map(|own| {
            if !seen.insert(own.name.clone()) {
                return Err(shape(format!("knob `{}` is defined twice", own.name)));
            }
            own.knob().map_err(shape)
        })
        .collect()
}

impl Own {
    fn knob(self) -> Result<Knob, String> {
        let Self { name, restore, .. } = self;
        let within_s = self.within.as_deref().map(parse_seconds);
        if within_s == Some(None) {
            return Err(format!(
                "`{name}` has an invalid within (a time of at least a second): write \"30m\""
            ));
        }
        let within_s = within_s.flatten();
        let wrong = |why: &str| Err(format!("`{name}` {why}"));
        let parts = |c: char| c.is_whitespace() || "=,;".contains(c);
        if name.is_empty() || name.contains(parts) {
            return wrong("is not a valid name on the command line: use no blanks and no = , ;");
        }
        let set = match (self.set, self.option, self.stack, self.sysctl) {
            (Some(line), None, None, None) => {
                if !line.contains("{}") {
                    return wrong("has no {} for the value in its command");
                }
                Set::Command {
                    line,
                    restore: restore.clone(),
                    within_s,
                }
            }
            (None, Some(option), None, None) => Set::Option(option),
            (None, None, Some(key), None) => Set::StackKey(key),
            (None, None, None, Some(sysctl)) => Set::Host {
                kind: Kind::Sysctl,
                name: sysctl,
            },
            _ => return wrong("needs one of set, option, stack and sysctl"),
        };
        if restore.is_some() && !matches!(set, Set::Command { .. }) {
            return wrong("has restore, which only set may have: other targets restore themselves");
        }
        if within_s.is_some() && !matches!(set, Set::Command { .. }) {
            return wrong("has within, which only set may have: other targets need no timeout");
        }
        let memory = match self.memory {
            None => None,
            Some(toml::Value::Float(bytes)) if bytes.is_finite() && bytes >= 0.0 => Some(bytes),
            Some(toml::Value::Integer(bytes @ 0..)) => Some(bytes as f64),
            Some(_) => {
                return wrong(
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
                    return wrong(&format!(
                        "has {value} among its values: write strings or numbers"
                    ));
                }
                other => other.to_string(),
            };
            if values.contains(&value) {
                return wrong(&format!("has the value {value} twice"));
            }
            let is_size = value == DEFAULT || value.parse::<ByteSize>().is_ok();
            if memory.is_some() && !is_size {
                return wrong(&format!(
                    "has memory (bytes per unit of the value), but its value {value} is not a number"
                ));
            }
            values.push(value);
        }
        let uncertain = !matches!(set, Set::Command { .. });
        let mut knob = Knob {
            values,
            set,
            ordered: self.ordered,
            uncertain,
            memory,
            name: name.clone(),
        };
        if self
            .least
            .zip(self.most)
            .is_some_and(|(least, most)| least > most)
        {
            return wrong("has a least above its most");
        }
        if self.least.is_some() || self.most.is_some() {
            Limit::new(&name, self.least, self.most).apply(&mut knob);
        }
        if knob.values.len() < 2 {
            return wrong("needs at least two values");
        }
        Ok(knob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_of_the_users_own() {
        let path = Path::new("knobs.toml");
        let text = "[[knob]]\nname = \"window\"\nvalues = [1024, 4096, 65536]\nset = \"make flash WND={}\"\n\
                    memory = 2\nordered = true\nmost = 8192\n";
        let knobs = from_toml(path, text).unwrap();
        assert_eq!(knobs[0].values, ["1024", "4096"]);
        let lines = knobs[0].lines("4096").unwrap();
        assert_eq!(lines.0, "make flash WND=4096");
        assert_eq!(
            lines.1, "make flash WND=1024",
            "the first value is what was"
        );
        let text = "[[knob]]\nname = \"w\"\nvalues = [1, 2]\nset = \"x {}\"\nrestore = \"y\"\n";
        let lines = from_toml(path, text).unwrap()[0].lines("2").unwrap();
        assert_eq!(lines, ("x 2".to_owned(), "y".to_owned()));
    }

    #[test]
    fn a_command_may_take_its_time() {
        let path = Path::new("knobs.toml");
        let of = |rest: &str| {
            let text = format!("[[knob]]\nname = \"w\"\nvalues = [1, 2]\n{rest}\n");
            from_toml(path, &text).map(|knobs| knobs[0].set.clone())
        };
        for (rest, want) in [
            ("set = \"x {}\"", None),
            ("set = \"x {}\"\nwithin = \"30m\"", Some(1_800)),
            ("set = \"x {}\"\nwithin = \"5\"", Some(5)),
        ] {
            let set = of(rest).unwrap();
            assert!(
                matches!(set, Set::Command { within_s, .. } if within_s == want),
                "{rest}: {set:?}"
            );
        }
        for rest in [
            "set = \"x {}\"\nwithin = \"long\"",
            "set = \"x {}\"\nwithin = \"1ms\"",
            "option = \"x\"\nwithin = \"1m\"",
        ] {
            assert!(
                of(rest).unwrap_err().to_string().contains("within"),
                "{rest}"
            );
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (text, said) in [
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
            assert!(error.contains(said), "{error}");
        }
    }
}
