//! Commands that findings advise, run where they are pasted.

use std::collections::{BTreeMap, BTreeSet};

use linerate_record::plan::RunKind;
use linerate_record::record::Record;
use serde_json::{Value, json};

use crate::common::{TestLab, finish, is_root, lab};
use crate::records::{made_record, put_at_pointer, read_documents};

/// Commands that no host of a lab can run, with the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    ("arping ", "another package"),
    ("cpupower ", "another package, and a setting of the machine"),
    ("dmesg ", "the kernel has one log"),
    ("/sys/fs/cgroup/", "a control group of the record's machine"),
    ("net.core.netdev_max_backlog", "a setting of the machine"),
    ("ethtool --set-eee", "virtual links have none"),
    ("ethtool -C", "virtual links have none"),
    ("ethtool -G", "virtual links have none"),
    ("gso_ipv4_max_size", "`ip` supports it since 6.3"),
    ("/rps_cpus", "processors of the record's machine"),
    ("port2", "an interface of a switch"),
    ("--ip 10.77.0.1/", "the address of another lab"),
];

/// Options that make a measurement short; the time replaces that of a command.
const TIMES: [(&str, &str); 3] = [("-t", "0.1"), ("-O", "0.1"), ("-i", "0.1")];

/// Returns the records of the bank.
fn bank_records() -> Vec<Value> {
    let recorded: BTreeMap<String, Value> = read_documents("recorded")
        .into_iter()
        .map(|(name, document)| (name, document["record"].clone()))
        .collect();
    let made = read_documents("made").into_iter();
    let made: Vec<Value> = made
        .map(|(name, case)| made_record(&name, &case, &recorded))
        .collect();
    recorded.into_values().chain(made).collect()
}

/// Returns a command with short times.
fn shorten(command: &str) -> String {
    let measures = ["throughput", "latency", "forward", "generate"]
        .iter()
        .any(|name| command.contains(&format!("linerate {name} ")));
    if !measures {
        return command.to_owned();
    }
    let mut tokens: Vec<String> = command.split(' ').map(str::to_owned).collect();
    for at in 1..tokens.len() {
        if let Some((_, time)) = TIMES.iter().find(|(option, _)| tokens[at - 1] == *option) {
            tokens[at] = (*time).to_owned();
        }
    }
    let is_limited = tokens.iter().any(|token| token == "-t" || token == "-n");
    tokens.push("-q --no-store".to_owned());
    tokens.extend((!is_limited).then(|| "-t 0.1".to_owned()));
    tokens.join(" ")
}

/// Returns the command without its numbers: one of each kind is run.
fn shape(command: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let tokens = command
        .split(' ')
        .map(|token| token.trim_matches(is_number));
    tokens.collect::<Vec<_>>().join(" ")
}

/// Returns the commands of the findings of all records, with the hosts of this lab. With a prefix
/// they are for the terminal outside, else for a host.
fn advised_commands(host: &str, prefix: &[String]) -> Vec<String> {
    let mut shapes = BTreeSet::new();
    let mut commands = Vec::new();
    for mut record in bank_records() {
        for end in 0..2 {
            if !record["hosts"][end]["interface"].is_null() {
                put_at_pointer(
                    &mut record,
                    &format!("/hosts/{end}/interface/name"),
                    json!("eth0"),
                );
            }
        }
        let mut record: Record = serde_json::from_value(record).expect("a record");
        if matches!(record.kind, RunKind::Throughput | RunKind::Latency) {
            record.plan.host = host.to_owned();
        }
        match (&mut record.command, prefix) {
            // The command is made from the plan.
            (command, []) => *command = None,
            (Some(typed), prefix) => {
                (typed.wrapper, typed.program) = (prefix.to_vec(), String::new());
            }
            (None, _) => continue,
        }
        let findings = linerate_explain::explain(&record);
        for command in findings.into_iter().filter_map(|finding| finding.command) {
            if shapes.insert(shape(&command)) {
                commands.push(command);
            }
        }
    }
    commands
}

/// Builds a lab and runs the commands of the bank: `outside` from the terminal that the lab was made
/// in, else on its client.
fn run_commands(test: &str, host: &str, outside: bool) -> Result<(), String> {
    let lab = TestLab::pair(test, "[[links]]\nbetween = [\"client\", \"server\"]\n")?;
    let _server = lab.server("-q --no-store --grant sched,idle,buffers,socket");
    let client = format!("{}/client", lab.name);
    let prefix: Vec<String> = match outside {
        true => ["linerate", "lab", "exec", &client, "--"]
            .map(str::to_owned)
            .into(),
        false => Vec::new(),
    };
    let directory = lab.dir.binary();
    let directory = directory.parent().expect("a directory").display();
    let mut failures = Vec::new();
    let mut runs = 0;
    for command in advised_commands(host, &prefix) {
        // A stack's own address is of the family of the record.
        let other_family = host.contains(':') && command.contains(" --ip ");
        let is_elsewhere = ELSEWHERE.iter().any(|(part, _)| command.contains(part));
        if other_family || is_elsewhere {
            continue;
        }
        let line = format!("PATH=\"{directory}:$PATH\"; {}", shorten(&command));
        // Only commands for a host of the lab run outside of it: the others would change this machine.
        let result = match command.starts_with(&format!("linerate lab exec {}/", lab.name)) {
            true => finish(&mut lab.dir.command("sh", ["-c", &line])),
            false => finish(&mut lab.command_on("client", ["sh", "-c", &line])),
        };
        runs += 1;
        let code = result.exit_code();
        // `grep` that finds nothing; a feature that takes root.
        let is_fine =
            code == 0 || code == 1 && command.contains("| grep") || code == 4 && !is_root();
        if !is_fine {
            failures.push(format!("{line}: {code}: {}", result.stderr));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(runs > 50, "{runs} commands were run");
    Ok(())
}

#[test]
fn commands_of_findings_run_outside_a_lab() {
    lab!(run_commands("outside", "10.77.0.2", true));
}

#[test]
fn commands_of_findings_run_on_a_host_over_ipv6() {
    lab!(run_commands("inside", "fd77::2", false));
}
