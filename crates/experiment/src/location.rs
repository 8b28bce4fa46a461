//! Location of an experiment (a lab or a real host) and its requirements.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use linerate_metric::experiment::Setting;

use crate::ExperimentError;
use crate::file::Experiment;
use crate::point::settings;

/// Location at which an experiment runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Lab networks on this machine.
    Lab,
    /// From this machine to a host that runs `linerate server`.
    Host(FarHost),
}

/// Host that runs `linerate server`: `NAME`, `NAME:PORT`, `ADDRESS` or `[ADDRESS]:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarHost {
    /// Name or address.
    pub name: String,
    /// Port of the server; `None`: the default port.
    pub port: Option<u16>,
}

impl FromStr for FarHost {
    type Err = ExperimentError;

    fn from_str(host: &str) -> Result<Self, ExperimentError> {
        let (name, port) = parted(host);
        // The name becomes one argument of a command line.
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

/// Splits host and port; a bare IPv6 address has no port, an unclosed bracket leaves the host
/// empty.
fn parted(host: &str) -> (&str, Option<&str>) {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').unwrap_or_default();
        // Without the colon the text shown begins with the bracket.
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
    /// Checks whether the experiment can run at `place`, before anything starts.
    ///
    /// # Errors
    /// [`ExperimentError::StaysHere`], [`ExperimentError::NoSuchPoint`], and
    /// [`ExperimentError::NeedsHands`] if the
    /// network has several variants to set up manually and no terminal is attached.
    pub fn check_place(
        &self,
        place: &Place,
        quick: bool,
        only: &Setting,
    ) -> Result<(), ExperimentError> {
        self.fits(place, can_ask(), quick, only)
    }

    /// Like [`Experiment::check_place`]; `has_hands`: a user at the terminal can make manual
    /// changes.
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

    /// Values of the network's knobs at a point, which are set manually on real hosts.
    pub(crate) fn set_by_hand(&self, setting: &Setting) -> Vec<String> {
        let knobs = self.knobs_of_the_network().into_iter();
        let set = knobs.filter_map(|knob| {
            let value = setting.get(knob)?;
            Some(format!("{knob}={value}"))
        });
        set.collect()
    }
}

/// Returns whether a user at the terminal can change and start things between two points.
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
            let problem = text.parse::<FarHost>().unwrap_err().problem();
            let told = format!("{problem}; {}", problem.next_step);
            assert!(told.contains(says), "{text}: {told}");
        }
    }

    #[test]
    fn what_cannot_go_out_is_told_before_anything_is_begun() {
        let check = |name: &str, host: &str, asked: bool, only: &[(&str, &str)]| {
            let text = crate::builtin::shipped(name).unwrap();
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
