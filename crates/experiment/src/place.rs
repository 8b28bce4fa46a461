//! Where an experiment is run, and what it needs there.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use linerate_metric::experiment::Setting;

use crate::ExperimentError;
use crate::file::Experiment;
use crate::point::settings;

/// Where an experiment is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In networks of its own on this machine.
    Lab,
    /// From here to a host, on which `linerate server` runs.
    Host(FarHost),
}

/// A host on which `linerate server` runs: `NAME`, `NAME:PORT`, `ADDRESS` or `[ADDRESS]:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarHost {
    /// Its name or address.
    pub name: String,
    /// The port of the server; none: the usual one.
    pub port: Option<u16>,
}

impl FromStr for FarHost {
    type Err = ExperimentError;

    fn from_str(host: &str) -> Result<Self, ExperimentError> {
        let (name, port) = parted(host);
        // It is to be a word of a command.
        let foreign = |c: char| c.is_whitespace() || matches!(c, '[' | ']' | ',');
        if name.is_empty() || name.contains(foreign) {
            return Err(ExperimentError::NoHost {
                host: host.to_owned(),
            });
        }
        let read = |port: &str| {
            let number = port.parse().ok().filter(|&number: &u16| number > 0);
            number.ok_or_else(|| ExperimentError::PortOfHost {
                host: host.to_owned(),
                name: name.to_owned(),
                port: port.to_owned(),
            })
        };
        Ok(Self {
            name: name.to_owned(),
            port: port.map(read).transpose()?,
        })
    }
}

impl fmt::Display for FarHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.name),
            Some(port) if self.name.contains(':') => write!(f, "[{}]:{port}", self.name),
            Some(port) => write!(f, "{}:{port}", self.name),
        }
    }
}

/// What stands in front of a port, and the port. A bare IPv6 address has none, and a bracket that is not closed no name.
fn parted(host: &str) -> (&str, Option<&str>) {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').unwrap_or_default();
        // Without the colon it is shown from its bracket on.
        let behind = || &host[host.len() - rest.len() - 1..];
        let port = || rest.strip_prefix(':').unwrap_or_else(behind);
        return (address, (!rest.is_empty()).then(port));
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, Some(port)),
        _ => (host, None),
    }
}

impl Experiment {
    /// Whether it can be run there: before anything is begun.
    ///
    /// # Errors
    /// [`ExperimentError::StaysHere`], [`ExperimentError::NeedsHands`] where several values are left of what the network is
    /// built from and nobody sits at the terminal, and [`ExperimentError::NoSuchPoint`].
    pub fn check_place(
        &self,
        place: &Place,
        quick: bool,
        only: &Setting,
    ) -> Result<(), ExperimentError> {
        self.fits(place, can_ask(), quick, only)
    }

    /// The same, with or without somebody who can be asked to set what hands must.
    fn fits(
        &self,
        place: &Place,
        has_hands: bool,
        quick: bool,
        only: &Setting,
    ) -> Result<(), ExperimentError> {
        if *place == Place::Lab {
            return Ok(());
        }
        if !self.goes_out() {
            return Err(ExperimentError::StaysHere);
        }
        let settings = settings(self, quick, only)?;
        let set: BTreeSet<String> = (settings.iter())
            .map(|setting| self.set_by_hand(setting).join(" "))
            .collect();
        match set.first() {
            Some(example) if set.len() > 1 && !has_hands => Err(ExperimentError::NeedsHands {
                knobs: self.knobs_of_the_network().join(", "),
                example: example.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// What the network is built from at a point: on real hosts hands set it.
    pub(crate) fn set_by_hand(&self, setting: &Setting) -> Vec<String> {
        let knobs = self.knobs_of_the_network().into_iter();
        let set = knobs.filter_map(|knob| {
            let value = setting.get(knob)?;
            Some(format!("{knob}={value}"))
        });
        set.collect()
    }
}

/// Whether somebody sits there who can set and start things between two points.
pub(crate) fn can_ask() -> bool {
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
            let host: FarHost = text.parse().unwrap();
            assert_eq!((host.name.as_str(), host.port), (name, port), "{text}");
            assert_eq!(host.to_string(), text);
        }
        assert_eq!("[fd77::1]".parse::<FarHost>().unwrap().name, "fd77::1");
        for (text, says) in [
            ("far:70000", "`70000` is no port; say --on far, or"),
            ("far:", "`` is no port"),
            ("[fd77::1]:0", "say --on fd77::1, or"),
            ("[fd77::1]:", "`` is no port; say --on fd77::1, or"),
            ("[fd77::1]5302", "`]5302` is no port; say --on fd77::1, or"),
            ("[far near]:5302", "names no host"),
            (":5302", "--on :5302: names no host; say --on HOST"),
            ("", "names no host"),
            ("[::1", "--on [::1: names no host"),
            ("::1]:5302", "names no host"),
            ("far near", "names no host"),
            ("192.0.2.7,192.0.2.8", "names no host"),
        ] {
            let problem = text.parse::<FarHost>().unwrap_err().problem();
            let told = format!("{problem}; {}", problem.next_step);
            assert!(told.contains(says), "{text}: {told}");
        }
    }

    #[test]
    fn what_cannot_go_out_is_told_before_anything_is_begun() {
        let check = |name: &str, host: &str, asked: bool, only: &[(&str, &str)]| {
            let text = crate::shipped::shipped(name).unwrap();
            let experiment = Experiment::from_toml(text).unwrap();
            let only = only
                .iter()
                .map(|(knob, value)| ((*knob).into(), (*value).into()));
            let told = experiment.fits(
                &Place::Host(host.parse().unwrap()),
                asked,
                true,
                &only.collect(),
            );
            told.map_err(|error| {
                let problem = error.problem();
                format!("{problem}; {}", problem.next_step)
            })
        };
        for (name, host, asked, only, says) in [
            (
                "pmd-threads",
                "far",
                true,
                &[][..],
                "measures within one machine",
            ),
            ("udp-hops", "far", false, &[], "cannot be set on real hosts"),
        ] {
            let told = check(name, host, asked, only).unwrap_err();
            assert!(told.contains(says), "{name} on {host}: {told}");
        }
        for (host, asked, only) in [
            ("far", true, &[][..]),
            ("far", false, &[("hops", "1")]),
            ("fd77::1", false, &[("hops", "1")]),
            ("far:5302", false, &[("hops", "1")]),
        ] {
            let told = check("udp-hops", host, asked, only);
            assert!(told.is_ok(), "{host}: {told:?}");
        }
    }
}
