//! Faults injected into labs on this machine: the real binary must report each of them first.
//!
//! `make bank` injects all of `bank/faults.rs`; with LINERATE_UPDATE=1 the records of this machine
//! replace those in `bank/recorded`.

use std::fs;
use std::time::Instant;

use crate::common::{FinishedCommand, TestDir, TestLab, finish, is_root, is_selected, skip};
use crate::confusion_matrix::ConfusionMatrix;
use crate::faults::{FAULTS, InjectedFault};
use crate::records::bank_dir;
use linerate_record::finding::Finding;
use serde_json::{Value, json};

/// Iterates over all faults.
fn all_faults() -> impl Iterator<Item = &'static InjectedFault> {
    FAULTS.iter().chain(crate::setting_faults::SETTING_FAULTS)
}

/// Raises the autogroup priority of this session: on a busy machine a nice value counts only within
/// one session (sched_autogroup). Needs root.
fn raise_session_priority() {
    let _ = fs::write("/proc/self/autogroup", "-20");
}

/// Injects one fault and measures: the record, or the output of a failed command. `Err`: reason why
/// the fault cannot be injected here.
fn run(fault: &InjectedFault) -> Result<Result<Value, String>, String> {
    if fault.links.is_empty() {
        let args = format!("{} --json", fault.run);
        return Ok(record_or_failure(&TestDir::new().run(&args)));
    }
    let lab = TestLab::pair(&format!("bank-{}", fault.name), fault.links)?;
    for (host, line) in fault.setup {
        lab.shell(host, line)?;
    }
    let calm = fault.has_priority && is_root();
    let _server = lab.server("-q --grant sched,idle,buffers,socket");
    let mut background = Vec::new();
    for (host, line) in fault.background {
        background.push(BackgroundCommand(
            lab.command_on(host, ["sh", "-c", line])
                .spawn()
                .expect("a shell"),
        ));
    }
    let mut args = format!("{} --json", fault.run.replace("HOST", "10.77.0.2"));
    if calm {
        args.push_str(" --sched nice:-20");
    }
    let output = finish(&mut lab.linerate("client", &args));
    match output.status.code() {
        Some(4) => Err(output.json()["error"].to_string()),
        _ => Ok(record_or_failure(&output)),
    }
}

/// Returns the record of a command. A failed command counts as one wrong case; the others still
/// run.
fn record_or_failure(output: &FinishedCommand) -> Result<Value, String> {
    match output.status.code() {
        Some(0) => Ok(output.json()),
        _ => Err(format!(
            "{}: {}{}",
            output.status,
            output.stdout.trim(),
            output.stderr.trim()
        )),
    }
}

struct BackgroundCommand(std::process::Child);

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes from a record all parts that no rule reads.
fn compact(record: &mut Value) {
    record["findings"] = json!([]);
    record["histograms"] = json!({});
    // The command line depends on the machine.
    if let Some(command) = record["command"].as_object_mut() {
        command.remove("program");
        command.remove("wrapper");
    }
    for host in record["hosts"].as_array_mut().into_iter().flatten() {
        host["cpu"]["mitigations"] = json!({});
        host["hostname"] = Value::Null;
    }
}

/// Attempts for each fault: a busy machine adds causes of its own.
const TRIES: u32 = 8;

fn inject_and_judge(
    faults: &mut dyn Iterator<Item = &InjectedFault>,
    is_recording: bool,
) -> Option<ConfusionMatrix> {
    raise_session_priority();
    let mut matrix = ConfusionMatrix::default();
    for fault in faults {
        let (mut last, mut failed) = (None, false);
        let start = Instant::now();
        for number in 1..=TRIES {
            match run(fault) {
                Err(reason) => {
                    println!("skipped: {}: {reason}", fault.name);
                    break;
                }
                Ok(Err(reason)) => {
                    println!("  {}: {reason}", fault.name);
                    failed = true;
                }
                Ok(Ok(record)) => {
                    let findings: Vec<Finding> =
                        serde_json::from_value(record["findings"].clone()).expect("findings");
                    let right =
                        ConfusionMatrix::default().add(fault.name, fault.expected, &findings);
                    last = Some((record, findings));
                    if right {
                        let seconds = start.elapsed().as_secs_f64();
                        println!("found: {} by try {number}, {seconds:.1} s", fault.name);
                        break;
                    }
                }
            }
        }
        let Some((mut record, findings)) = last else {
            if failed {
                let cell = (fault.expected.to_owned(), "failed".to_owned());
                let cell = matrix.0.entry(cell).or_default();
                cell.push(fault.name.to_owned());
            }
            continue;
        };
        let right = matrix.add(fault.name, fault.expected, &findings);
        if !right {
            for finding in &findings {
                println!(
                    "  {}: {:?} {} {}: {}",
                    fault.name, finding.kind, finding.cause, finding.cost, finding.summary
                );
            }
        }
        if is_recording {
            compact(&mut record);
            let document = json!({ "planted": fault.expected, "run": fault.run, "links": fault.links, "before": fault.setup, "beside": fault.background, "record": record });
            let file = match right {
                true => bank_dir("recorded").join(format!("{}.json", fault.name)),
                false => std::env::temp_dir().join(format!("bank-{}.json", fault.name)),
            };
            fs::write(file, format!("{document}\n")).expect("the bank is writable");
        }
    }
    (!matrix.0.is_empty()).then_some(matrix)
}

#[test]
fn a_live_sample_finds_the_injected_faults() {
    // Faults whose cause is clear however busy the machine is.
    let sample = [
        "receive-window-4k",
        "shaped-link-tcp",
        "mtu-black-hole-udp",
        "slow-sender-asked-tcp",
        "burst-size-one",
    ];
    let mut sampled = all_faults().filter(|fault| sample.contains(&fault.name));
    let Some(matrix) = inject_and_judge(&mut sampled, false) else {
        skip!("no lab can be built here");
    };
    matrix.print("live sample");
    assert!(
        matrix.wrong_cases().is_empty(),
        "{:?}",
        matrix.wrong_cases()
    );
}

/// Run by `make bank`; ONLY=name,… selects faults by the beginning of their names.
#[test]
#[ignore = "injects every fault, for minutes, and needs a quiet machine: `make bank`"]
fn the_full_bank_live() {
    let is_recording = std::env::var_os("LINERATE_UPDATE").is_some();
    let mut selected = all_faults().filter(|fault| is_selected(fault.name));
    let Some(matrix) = inject_and_judge(&mut selected, is_recording) else {
        skip!("no lab can be built here");
    };
    matrix.print("live bank");
    assert!(
        matrix.wrong_cases().is_empty(),
        "{:?}",
        matrix.wrong_cases()
    );
}
