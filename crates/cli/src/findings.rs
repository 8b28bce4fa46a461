//! Findings of records; commands that need root have `sudo` in front of them for other users.

use linerate_record::command_line::shell_quote;
use linerate_record::finding::Finding;
use linerate_record::record::Record;
use linerate_record::run_set::RunSet;

/// Programs of findings that change or read a host. Users lack the privilege, or the directory of
/// the program in PATH.
const ADMIN_PROGRAMS: [&str; 7] = ["arping", "dmesg", "ethtool", "ip", "ndisc6", "sysctl", "tc"];

/// Adds the findings of a run.
pub fn add_findings(record: &mut Record) {
    linerate_explain::add_findings(record);
    adapt_commands(&mut record.findings);
}

/// Adds the findings of each run of a set.
pub fn add_findings_to_set(set: &mut RunSet) {
    linerate_explain::add_findings_to_set(set);
    for run in &mut set.runs {
        adapt_commands(&mut run.findings);
    }
}

fn adapt_commands(findings: &mut [Finding]) {
    if rustix::process::geteuid().is_root() {
        return;
    }
    for command in findings
        .iter_mut()
        .filter_map(|found| found.command.as_mut())
    {
        *command = with_sudo(command);
    }
}

/// Returns a command with `sudo` in front of it, if it needs root.
fn with_sudo(command: &str) -> String {
    let program = command.split(' ').next().unwrap_or_default();
    match (
        ADMIN_PROGRAMS.contains(&program),
        command.contains([';', '|', '&']),
    ) {
        (false, _) => command.to_owned(),
        (true, false) => format!("sudo {command}"),
        // All parts of a line need root.
        (true, true) => format!("sudo sh -c {}", shell_quote(command)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_hosts_have_sudo() {
        for (command, expected) in [
            ("linerate throughput h -P 4", "linerate throughput h -P 4"),
            (
                "linerate lab exec a/b -- ip link",
                "linerate lab exec a/b -- ip link",
            ),
            ("sysctl -w a=1", "sudo sysctl -w a=1"),
            (
                "ip link set e0 up; ethtool e0",
                "sudo sh -c 'ip link set e0 up; ethtool e0'",
            ),
            (
                "ethtool -S e0 | grep -i err",
                "sudo sh -c 'ethtool -S e0 | grep -i err'",
            ),
        ] {
            assert_eq!(with_sudo(command), expected);
        }
    }
}
