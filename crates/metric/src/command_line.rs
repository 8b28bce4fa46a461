//! Command line that started a run, in a form that can be changed and printed again.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A command of this program with its arguments as they were typed. Options that only affect output
/// and storage are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CommandLine {
    /// Wrapper command in front of this program, such as `linerate lab exec LAB/HOST --`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub through: Vec<String>,
    /// Name or path of this program as it was called; empty: `linerate`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Subcommand: `throughput`, `latency`, ...
    pub command: String,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
}

/// Argument: an option with its value, or a positional argument.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Argument {
    /// Long name of the option; absent for positional arguments such as the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    /// Tokens as they were typed.
    pub words: Vec<String>,
}

impl CommandLine {
    /// Creates a command without arguments.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            ..Self::default()
        }
    }

    /// Appends a positional argument.
    pub fn push(&mut self, word: impl Into<String>) {
        self.arguments.push(Argument {
            option: None,
            words: vec![word.into()],
        });
    }

    /// Returns true if the option is among the arguments.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        (self.arguments.iter()).any(|argument| argument.option.as_deref() == Some(option))
    }

    /// Removes all uses of an option.
    pub fn remove(&mut self, option: &str) {
        (self.arguments).retain(|argument| argument.option.as_deref() != Some(option));
    }

    /// Appends an option, and keeps other uses of it.
    pub fn add(&mut self, option: &str, words: &[&str]) {
        self.arguments.push(Argument {
            option: Some(option.to_owned()),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        });
    }

    /// Replaces an option in place, or appends it.
    pub fn set(&mut self, option: &str, words: &[&str]) {
        let own = |argument: &Argument| argument.option.as_deref() == Some(option);
        let place = self.arguments.iter().position(own);
        self.remove(option);
        self.add(option, words);
        if let Some(place) = place {
            // `add` appended it: rotate it back to the position of the old one.
            let last = self.arguments.len() - 1;
            self.arguments[place.min(last)..].rotate_right(1);
        }
    }

    /// Sets one key of an option that is repeated per key, such as `--set KEY=VALUE`.
    pub fn set_key(&mut self, option: &str, key: &str, value: &str) {
        let given = format!("{key}=");
        let own = |argument: &Argument| {
            let last = argument.words.last().map_or("", String::as_str);
            argument.option.as_deref() == Some(option)
                && (last.starts_with(&given)
                    || last.strip_prefix(&format!("--{option}={given}")).is_some())
        };
        self.arguments.retain(|argument| !own(argument));
        let dashed = format!("--{option}");
        self.add(option, &[&dashed, &format!("{key}={value}")]);
    }
}

impl fmt::Display for CommandLine {
    /// Prints the command with shell quoting.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in &self.through {
            write!(f, "{} ", quoted(word))?;
        }
        let program = match self.program.as_str() {
            "" => "linerate",
            program => program,
        };
        write!(f, "{} {}", quoted(program), self.command)?;
        for word in self.arguments.iter().flat_map(|argument| &argument.words) {
            write!(f, " {}", quoted(word))?;
        }
        Ok(())
    }
}

/// Quotes a token for a POSIX shell if necessary.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,%+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> CommandLine {
        let mut line = CommandLine::new("throughput");
        line.push("10.0.0.2");
        line.add("time", &["-t", "2"]);
        line.add("sndbuf", &["--sndbuf=4K"]);
        line.add("set", &["--set", "tcp.psh=never"]);
        line.add("set", &["--set=tcp.send_buffer=1K"]);
        line
    }

    #[test]
    fn an_option_keeps_its_place() {
        let mut line = line();
        line.set("time", &["-t", "5"]);
        line.set("no-delay", &["-N"]);
        assert_eq!(
            line.to_string(),
            "linerate throughput 10.0.0.2 -t 5 --sndbuf=4K --set tcp.psh=never \
             --set=tcp.send_buffer=1K -N"
        );
        line.remove("set");
        assert!(!line.has("set") && line.has("sndbuf"));
    }

    #[test]
    fn keys_of_one_option_are_told_apart() {
        let mut line = line();
        line.set_key("set", "tcp.send_buffer", "16K");
        line.set_key("set", "tcp.psh", "always");
        assert_eq!(
            line.to_string(),
            "linerate throughput 10.0.0.2 -t 2 --sndbuf=4K --set tcp.send_buffer=16K \
             --set tcp.psh=always"
        );
    }

    #[test]
    fn a_shell_takes_its_words_as_they_were() {
        let mut line = CommandLine::new("latency");
        line.through = vec!["linerate".into(), "lab".into(), "exec".into()];
        line.push("a b");
        line.push("it's");
        line.push("");
        assert_eq!(
            line.to_string(),
            "linerate lab exec linerate latency 'a b' 'it'\\''s' ''"
        );
    }
}
