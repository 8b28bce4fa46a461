//! Remote host of an experiment, as `--on` names it.

use std::fmt;
use std::str::FromStr;

use crate::ExperimentError;

/// Host that runs `linerate server`: `NAME`, `NAME:PORT`, `ADDRESS` or `[ADDRESS]:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteHost {
    /// Name or address.
    pub name: String,
    /// Port of the server; `None`: the default port.
    pub port: Option<u16>,
}

impl FromStr for RemoteHost {
    type Err = ExperimentError;

    fn from_str(host: &str) -> Result<Self, ExperimentError> {
        let (name, port) = split_port(host);
        // The name becomes one argument of a command line.
        let is_invalid = |c: char| c.is_whitespace() || matches!(c, '[' | ']' | ',');
        if name.is_empty() || name.contains(is_invalid) {
            return Err(ExperimentError::InvalidHost {
                host: host.to_owned(),
            });
        }
        let parse_port = |port: &str| {
            let number = port.parse().ok().filter(|&number: &u16| number > 0);
            number.ok_or_else(|| ExperimentError::InvalidPort {
                host: host.to_owned(),
                name: name.to_owned(),
                port: port.to_owned(),
            })
        };
        Ok(Self {
            name: name.to_owned(),
            port: port.map(parse_port).transpose()?,
        })
    }
}

impl fmt::Display for RemoteHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.name),
            Some(port) if self.name.contains(':') => write!(f, "[{}]:{port}", self.name),
            Some(port) => write!(f, "{}:{port}", self.name),
        }
    }
}

/// Splits host and port; a bare IPv6 address has no port, an unclosed bracket leaves the host
/// empty.
fn split_port(host: &str) -> (&str, Option<&str>) {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').unwrap_or_default();
        // Without the colon the text shown begins with the bracket.
        let text_after = || &host[host.len() - rest.len() - 1..];
        let port = || rest.strip_prefix(':').unwrap_or_else(text_after);
        return (address, (!rest.is_empty()).then(port));
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, Some(port)),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_have_a_port() {
        for (text, name, port) in [
            ("far", "far", None),
            ("far:5302", "far", Some(5302)),
            ("192.0.2.7:5302", "192.0.2.7", Some(5302)),
            ("fd77::1", "fd77::1", None),
            ("[fd77::1]:5302", "fd77::1", Some(5302)),
        ] {
            let host: RemoteHost = text.parse().unwrap();
            assert_eq!((host.name.as_str(), host.port), (name, port), "{text}");
            assert_eq!(host.to_string(), text);
        }
        assert_eq!("[fd77::1]".parse::<RemoteHost>().unwrap().name, "fd77::1");
        for (text, expected) in [
            ("far:70000", "`70000` is not a port; use --on far, or"),
            ("far:", "`` is not a port"),
            ("[fd77::1]:0", "use --on fd77::1, or"),
            ("[fd77::1]:", "`` is not a port; use --on fd77::1, or"),
            (
                "[fd77::1]5302",
                "`]5302` is not a port; use --on fd77::1, or",
            ),
            ("[far near]:5302", "names no host"),
            (":5302", "--on :5302: names no host; use --on HOST"),
            ("", "names no host"),
            ("[::1", "--on [::1: names no host"),
            ("::1]:5302", "names no host"),
            ("far near", "names no host"),
            ("192.0.2.7,192.0.2.8", "names no host"),
        ] {
            let problem = text.parse::<RemoteHost>().unwrap_err().to_report();
            let message = format!("{problem}; {}", problem.next_step);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
