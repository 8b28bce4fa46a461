//! Faults injected into labs on this machine: the real binary must report each of them first.
//!
//! `make bank` injects all of `bank/faults.rs`; with LINERATE_UPDATE=1 the records of this machine
//! replace those in `bank/recorded`.

mod common;
#[path = "bank/confusion_matrix.rs"]
mod confusion_matrix;
#[path = "bank/faults.rs"]
mod faults;
#[path = "bank/setting_faults.rs"]
mod setting_faults;

use std::fs;
use std::time::Instant;

use common::{Finished, Lab, Room, finish, is_root, is_wanted, skip};
use confusion_matrix::{Confusion, folder};
use faults::{PLANTS, Plant};
use linerate_metric::finding::Finding;
use serde_json::{Value, json};

/// Iterates over all faults.
fn plants() -> impl Iterator<Item = &'static Plant> {
    PLANTS.iter().chain(setting_faults::PLANTS)
}

/// Raises the autogroup priority of this session: on a busy machine a nice value counts only within
/// one session (sched_autogroup). Needs root.
fn go_before_others() {
    let _ = fs::write("/proc/self/autogroup", "-20");
}

/// Injects one fault and measures: the record, or the output of a failed command. `Err`: reason why
/// the fault cannot be injected here.
fn run(plant: &Plant) -> Result<Result<Value, String>, String> {
    if plant.links.is_empty() {
        let words = format!("{} --json", plant.run);
        return Ok(record(&Room::new().run(&words)));
    }
    let lab = Lab::pair(&format!("bank-{}", plant.name), plant.links)?;
    for (host, line) in plant.before {
        lab.shell(host, line)?;
    }
    let calm = plant.calm && is_root();
    let _server = lab.server("-q --grant sched,idle,buffers");
    let mut beside = Vec::new();
    for (host, line) in plant.beside {
        beside.push(Beside(
            lab.on(host, ["sh", "-c", line]).spawn().expect("a shell"),
        ));
    }
    let mut words = format!("{} --json", plant.run.replace("HOST", "10.77.0.2"));
    if calm {
        words.push_str(" --sched nice:-20");
    }
    let ran = finish(&mut lab.linerate("client", &words));
    match ran.status.code() {
        Some(4) => Err(ran.json()["error"].to_string()),
        _ => Ok(record(&ran)),
    }
}

/// Returns the record of a command. A failed command counts as one wrong case; the others still
/// run.
fn record(ran: &Finished) -> Result<Value, String> {
    match ran.status.code() {
        Some(0) => Ok(ran.json()),
        _ => Err(format!(
            "{}: {}{}",
            ran.status,
            ran.stdout.trim(),
            ran.stderr.trim()
        )),
    }
}

struct Beside(std::process::Child);

impl Drop for Beside {
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
        command.remove("through");
    }
    for host in record["hosts"].as_array_mut().into_iter().flatten() {
        host["cpu"]["mitigations"] = json!({});
        host["hostname"] = Value::Null;
    }
}

/// Attempts for each fault: a busy machine adds causes of its own.
const TRIES: u32 = 8;

fn plant_live(plants: &mut dyn Iterator<Item = &Plant>, keep: bool) -> Option<Confusion> {
    go_before_others();
    let mut confusion = Confusion::default();
    for plant in plants {
        let (mut last, mut failed) = (None, false);
        let begun = Instant::now();
        for number in 1..=TRIES {
            match run(plant) {
                Err(why) => {
                    println!("skipped: {}: {why}", plant.name);
                    break;
                }
                Ok(Err(why)) => {
                    println!("  {}: {why}", plant.name);
                    failed = true;
                }
                Ok(Ok(record)) => {
                    let findings: Vec<Finding> =
                        serde_json::from_value(record["findings"].clone()).expect("findings");
                    let right = Confusion::default().add(plant.name, plant.planted, &findings);
                    last = Some((record, findings));
                    if right {
                        let took = begun.elapsed().as_secs_f64();
                        println!("found: {} by try {number}, {took:.1} s", plant.name);
                        break;
                    }
                }
            }
        }
        let Some((mut record, findings)) = last else {
            if failed {
                let cell = (plant.planted.to_owned(), "failed".to_owned());
                let cell = confusion.0.entry(cell).or_default();
                cell.push(plant.name.to_owned());
            }
            continue;
        };
        let right = confusion.add(plant.name, plant.planted, &findings);
        if !right {
            for finding in &findings {
                println!(
                    "  {}: {:?} {} {}: {}",
                    plant.name, finding.kind, finding.cause, finding.cost, finding.what
                );
            }
        }
        if keep {
            compact(&mut record);
            let document = json!({ "planted": plant.planted, "run": plant.run, "links": plant.links, "before": plant.before, "beside": plant.beside, "record": record });
            let file = match right {
                true => folder("recorded").join(format!("{}.json", plant.name)),
                false => std::env::temp_dir().join(format!("bank-{}.json", plant.name)),
            };
            fs::write(file, format!("{document}\n")).expect("the bank is writable");
        }
    }
    (!confusion.0.is_empty()).then_some(confusion)
}

#[test]
fn a_live_sample_finds_what_is_planted() {
    // Faults whose cause is clear however busy the machine is.
    let sample = [
        "receive-window-4k",
        "shaped-link-tcp",
        "mtu-black-hole-udp",
        "slow-sender-asked-tcp",
        "burst-size-one",
    ];
    let mut plants = plants().filter(|plant| sample.contains(&plant.name));
    let Some(confusion) = plant_live(&mut plants, false) else {
        skip!("no lab can be built here");
    };
    confusion.print("live sample");
    assert!(confusion.wrong().is_empty(), "{:?}", confusion.wrong());
}

/// Run by `make bank`; ONLY=name,… selects faults by the beginning of their names.
#[test]
#[ignore = "injects every fault, for minutes, and needs a quiet machine: `make bank`"]
fn the_whole_bank_live() {
    let keep = std::env::var_os("LINERATE_UPDATE").is_some();
    let mut plants = plants().filter(|plant| is_wanted(plant.name));
    let Some(confusion) = plant_live(&mut plants, keep) else {
        skip!("no lab can be built here");
    };
    confusion.print("live bank");
    assert!(confusion.wrong().is_empty(), "{:?}", confusion.wrong());
}
