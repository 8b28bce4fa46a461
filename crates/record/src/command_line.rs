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
    #[serde(alias = "through")]
    pub wrapper: Vec<String>,
    /// Name or path of this program as it was called; empty: `linerate`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Subcommand: `throughput`, `latency`, ...
    pub command: String,
    /// Arguments in order.
    pub arguments: Vec<CommandArgument>,
}

/// Argument: an option with its value, or a positional argument.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CommandArgument {
    /// Long name of the option; absent for positional arguments such as the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    /// Tokens as they were typed.
    #[serde(alias = "words")]
    pub tokens: Vec<String>,
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
    pub fn push_positional(&mut self, token: impl Into<String>) {
        self.arguments.push(CommandArgument {
            option: None,
            tokens: vec![token.into()],
        });
    }

    /// Returns true if the option is among the arguments.
    #[must_use]
    pub fn has_option(&self, option: &str) -> bool {
        (self.arguments.iter()).any(|argument| argument.option.as_deref() == Some(option))
    }

    /// Removes all uses of an option.
    pub fn remove_option(&mut self, option: &str) {
        (self.arguments).retain(|argument| argument.option.as_deref() != Some(option));
    }

    /// Appends an option, and keeps other uses of it.
    pub fn add_option(&mut self, option: &str, tokens: &[&str]) {
        self.arguments.push(CommandArgument {
            option: Some(option.to_owned()),
            tokens: tokens.iter().map(|token| (*token).to_owned()).collect(),
        });
    }

    /// Replaces an option in place, or appends it.
    pub fn set_option(&mut self, option: &str, tokens: &[&str]) {
        let is_same_option =
            |argument: &CommandArgument| argument.option.as_deref() == Some(option);
        let position = self.arguments.iter().position(is_same_option);
        self.remove_option(option);
        self.add_option(option, tokens);
        if let Some(position) = position {
            // `add_option` appended it: rotate it back to the position of the old one.
            let last = self.arguments.len() - 1;
            self.arguments[position.min(last)..].rotate_right(1);
        }
    }

    /// Sets one key of an option that is repeated per key, such as `--set KEY=VALUE`.
    pub fn set_key(&mut self, option: &str, key: &str, value: &str) {
        let key_prefix = format!("{key}=");
        let is_same_key = |argument: &CommandArgument| {
            let last = argument.tokens.last().map_or("", String::as_str);
            argument.option.as_deref() == Some(option)
                && (last.starts_with(&key_prefix)
                    || last
                        .strip_prefix(&format!("--{option}={key_prefix}"))
                        .is_some())
        };
        self.arguments.retain(|argument| !is_same_key(argument));
        let dashed = format!("--{option}");
        self.add_option(option, &[&dashed, &format!("{key}={value}")]);
    }
}

impl fmt::Display for CommandLine {
    /// Prints the command with shell quoting.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.wrapper {
            write!(f, "{} ", shell_quote(token))?;
        }
        let program = match self.program.as_str() {
            "" => "linerate",
            program => program,
        };
        write!(f, "{} {}", shell_quote(program), self.command)?;
        for token in self.arguments.iter().flat_map(|argument| &argument.tokens) {
            write!(f, " {}", shell_quote(token))?;
        }
        Ok(())
    }
}

/// Quotes a token for a POSIX shell if necessary.
#[must_use]
pub fn shell_quote(token: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,%+@".contains(c);
    match !token.is_empty() && token.chars().all(plain) {
        true => token.to_owned(),
        false => format!("'{}'", token.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> CommandLine {
        let mut command = CommandLine::new("throughput");
        command.push_positional("10.0.0.2");
        command.add_option("time", &["-t", "2"]);
        command.add_option("sndbuf", &["--sndbuf=4K"]);
        command.add_option("set", &["--set", "tcp.psh=never"]);
        command.add_option("set", &["--set=tcp.send_buffer=1K"]);
        command
    }

    #[test]
    fn an_option_keeps_its_place() {
        let mut command = line();
        command.set_option("time", &["-t", "5"]);
        command.set_option("no-delay", &["-N"]);
        assert_eq!(
            command.to_string(),
            "linerate throughput 10.0.0.2 -t 5 --sndbuf=4K --set tcp.psh=never \
             --set=tcp.send_buffer=1K -N"
        );
        command.remove_option("set");
        assert!(!command.has_option("set") && command.has_option("sndbuf"));
    }

    #[test]
    fn set_key_replaces_only_its_key() {
        let mut command = line();
        command.set_key("set", "tcp.send_buffer", "16K");
        command.set_key("set", "tcp.psh", "always");
        assert_eq!(
            command.to_string(),
            "linerate throughput 10.0.0.2 -t 2 --sndbuf=4K --set tcp.send_buffer=16K \
             --set tcp.psh=always"
        );
    }

    #[test]
    fn display_quotes_for_a_shell() {
        let mut command = CommandLine::new("latency");
        command.wrapper = vec!["linerate".into(), "lab".into(), "exec".into()];
        command.push_positional("a b");
        command.push_positional("it's");
        command.push_positional("");
        assert_eq!(
            command.to_string(),
            "linerate lab exec linerate latency 'a b' 'it'\\''s' ''"
        );
    }
}
