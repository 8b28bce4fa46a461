//! Location of an experiment (a lab or a real host) and its requirements.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use linerate_record::experiment::KnobValues;

use crate::ExperimentError;
use crate::file::Experiment;
use crate::point::selected_settings;

/// Location at which an experiment runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunLocation {
    /// Lab networks on this machine.
    Lab,
    /// From this machine to a host that runs `linerate server`.
    Host(RemoteHost),
}

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

impl Experiment {
    /// Checks whether the experiment can run at `location`, before anything starts.
    ///
    /// # Errors
    /// [`ExperimentError::RunsOnOneMachine`], [`ExperimentError::UnknownPoint`], and
    /// [`ExperimentError::NeedsManualSetup`] if the
    /// network has several variants to set up manually and no terminal is attached.
    pub fn check_location(
        &self,
        location: &RunLocation,
        quick: bool,
        only: &KnobValues,
    ) -> Result<(), ExperimentError> {
        self.check_location_with(location, has_terminal(), quick, only)
    }

    /// Like [`Experiment::check_location`]; `has_user`: a user at the terminal can make manual
    /// changes.
    fn check_location_with(
        &self,
        location: &RunLocation,
        has_user: bool,
        quick: bool,
        only: &KnobValues,
    ) -> Result<(), ExperimentError> {
        if *location == RunLocation::Lab {
            return Ok(());
        }
        if !self.needs_remote_host() {
            return Err(ExperimentError::RunsOnOneMachine);
        }
        let settings = selected_settings(self, quick, only)?;
        let manual_settings: BTreeSet<String> = (settings.iter())
            .map(|setting| self.manual_settings(setting).join(" "))
            .collect();
        match manual_settings.first() {
            Some(example) if manual_settings.len() > 1 && !has_user => {
                Err(ExperimentError::NeedsManualSetup {
                    knobs: self.topology_knobs().join(", "),
                    example: example.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Values of the network's knobs at a point, which are set manually on real hosts.
    pub(crate) fn manual_settings(&self, setting: &KnobValues) -> Vec<String> {
        let knobs = self.topology_knobs().into_iter();
        let settings = knobs.filter_map(|knob| {
            let value = setting.get(knob)?;
            Some(format!("{knob}={value}"))
        });
        settings.collect()
    }
}

/// Returns whether a user at the terminal can change and start things between two points.
pub(crate) fn has_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdin())
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

    #[test]
    fn unsuitable_locations_are_rejected_before_the_run() {
        let check_builtin = |name: &str, host: &str, has_user: bool, only: &[(&str, &str)]| {
            let text = crate::builtin::builtin_text(name).unwrap();
            let experiment = Experiment::from_toml(text).unwrap();
            let only = only
                .iter()
                .map(|(knob, value)| ((*knob).into(), (*value).into()));
            let message = experiment.check_location_with(
                &RunLocation::Host(host.parse().unwrap()),
                has_user,
                true,
                &only.collect(),
            );
            message.map_err(|error| {
                let problem = error.to_report();
                format!("{problem}; {}", problem.next_step)
            })
        };
        for (name, host, has_user, only, expected) in [
            (
                "pmd-threads",
                "far",
                true,
                &[][..],
                "measures within one machine",
            ),
            ("udp-hops", "far", false, &[], "cannot be set on real hosts"),
        ] {
            let message = check_builtin(name, host, has_user, only).unwrap_err();
            assert!(message.contains(expected), "{name} on {host}: {message}");
        }
        for (host, has_user, only) in [
            ("far", true, &[][..]),
            ("far", false, &[("hops", "1")]),
            ("fd77::1", false, &[("hops", "1")]),
            ("far:5302", false, &[("hops", "1")]),
        ] {
            let message = check_builtin("udp-hops", host, has_user, only);
            assert!(message.is_ok(), "{host}: {message:?}");
        }
    }
}
