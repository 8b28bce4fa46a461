//! Settings that killed commands left changed: a note before a measurement, and their restore.

use linerate_experiment::PARENT_VARIABLE;
use linerate_record::event::ErrorReport;
use linerate_tune::guard::{RecoveryReport, count_unrestored, recover_settings};
use linerate_tune::journal::state_dir;

use crate::child_process::PART_VARIABLE;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::tunable_hosts;
use crate::tunable_hosts::TunableHosts;

/// Warns if settings of a killed command are still changed. A run that is part of a command does
/// not: the command has reported it.
pub fn warn(output: &CommandOutput) {
    if let Some(note) = unrestored_note() {
        output.warn(&note);
    }
}

fn unrestored_note() -> Option<String> {
    let is_part = |variable| std::env::var_os(variable).is_some();
    if is_part(PART_VARIABLE) || is_part(PARENT_VARIABLE) {
        return None;
    }
    let journals = state_dir("tune")?;
    // Most hosts have no journal: then nothing needs to be read.
    std::fs::read_dir(&journals).ok()?.next()?.ok()?;
    let hosts = TunableHosts::lab_hosts().or_else(|| TunableHosts::this_host(&[]))?;
    let boot = tunable_hosts::boot_id();
    let leftovers = count_unrestored(&journals, &hosts, &boot, tunable_hosts::is_running);
    let subject = match leftovers {
        0 => return None,
        1 => "1 setting is".to_owned(),
        n => format!("{n} settings are"),
    };
    Some(format!(
        "note: {subject} still changed by a killed command, and measurements start from there; \
         `linerate tune --restore` restores the old values"
    ))
}

/// Restores what killed commands left changed, if possible from here.
pub fn restore_leftovers() -> Result<RecoveryReport, CommandFailure> {
    let hosts = TunableHosts::lab_hosts().or_else(|| TunableHosts::this_host(&[]));
    let hosts = hosts.ok_or_else(|| {
        CommandFailure::failed(ErrorReport::new(
            "cannot be read",
            "the network namespace of this process",
            "mount /proc",
        ))
    })?;
    let journals = state_dir("tune").ok_or_else(|| {
        CommandFailure::failed(ErrorReport::new(
            "no directory for it",
            "the journal of changes",
            "set HOME or XDG_STATE_HOME to an absolute path",
        ))
    })?;
    let leftovers = recover_settings(
        &journals,
        &hosts,
        &tunable_hosts::boot_id(),
        tunable_hosts::is_running,
    );
    leftovers.map_err(|error| {
        CommandFailure::failed(ErrorReport::new(
            error.to_string(),
            "a journal",
            "check who may read it",
        ))
    })
}
