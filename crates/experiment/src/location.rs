//! Location of an experiment (a lab or a real host) and its requirements.

use std::collections::BTreeSet;

use linerate_record::experiment::KnobValues;

use crate::ExperimentError;
use crate::file::Experiment;
use crate::point::selected_settings;
use crate::remote_host::RemoteHost;

/// Location at which an experiment runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunLocation {
    /// Lab networks on this machine.
    Lab,
    /// From this machine to a host that runs `linerate server`.
    Host(RemoteHost),
}

impl Experiment {
    /// Checks whether the experiment can run at `location`, before anything starts.
    ///
    /// # Errors
    /// [`ExperimentError::RunsOnOneMachine`], [`ExperimentError::UnknownPoint`], and
    /// [`ExperimentError::NeedsManualSetup`] if the network has several variants to set up manually
    /// and no terminal is attached.
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
