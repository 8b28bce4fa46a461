//! History of results: stored runs are found, tagged, followed, moved and shown again.

use crate::common::TestDir;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Measures over loopback into the store of this directory.
fn measure(dir: &TestDir, args: &str) -> String {
    let server = dir.server("-q --no-store");
    let port = server.port;
    let run = dir
        .run(&format!(
            "latency 127.0.0.1 -u -p {port} -n 200 --json {args}"
        ))
        .expect(0);
    let record = json(&run.stdout);
    record["id"].as_str().expect("an id").to_owned()
}

#[test]
fn stored_runs_are_listed() {
    let dir = TestDir::new();
    let empty = dir.run("runs list").expect(0).stdout;
    assert!(
        empty.contains("nothing was measured yet") && empty.contains("linerate demo"),
        "{empty}"
    );
    let first = measure(&dir, "");
    let second = measure(&dir, "--wait spin");
    let listed = json(&dir.run("runs list --json").expect(0).stdout);
    assert_eq!(listed["schema"], "linerate/runs/1");
    let ids: Vec<_> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["id"].clone())
        .collect();
    assert_eq!(ids, [first.as_str(), second.as_str()]);
    assert_eq!(listed["entries"][0]["figures"]["round_trips"], 200.0);

    dir.run(&format!("runs tag {first} baseline")).expect(0);
    dir.run("runs note last spinning").expect(0);
    let text = dir.run("runs list --kind latency").expect(0).stdout;
    assert!(
        text.contains("#baseline") && text.contains("\"spinning\""),
        "{text}"
    );
    let tagged = json(&dir.run("runs list --tag baseline --json").expect(0).stdout);
    assert_eq!(tagged["entries"].as_array().unwrap().len(), 1);
    let similar = json(
        &dir.run(&format!("runs list --like {second} --json"))
            .expect(0)
            .stdout,
    );
    assert_eq!(similar["entries"].as_array().unwrap().len(), 1);
    let none = dir.run("runs list --where p50<1ns --json").expect(0).stdout;
    assert!(json(&none)["entries"].as_array().unwrap().is_empty());

    let shown = dir.run("runs show last").expect(0).stdout;
    assert!(
        shown.contains("spinning") && shown.contains("stored as"),
        "{shown}"
    );
    let shown = json(&dir.run("runs show last --json").expect(0).stdout);
    assert_eq!(shown["document"]["id"], second.as_str());
    let trend = json(&dir.run("runs trend p50 --json").expect(0).stdout);
    assert_eq!(trend["points"].as_array().unwrap().len(), 2);
    assert_eq!(trend["plans"], 2);
    // An empty trend is a result without an error, except as a gate.
    let empty_trend = "runs trend p50 --tag nowhere";
    dir.run(empty_trend).expect(0);
    dir.run(&format!("{empty_trend} --fail-on-change"))
        .expect(1);

    dir.run(&format!("runs rm {first} --dry-run")).expect(0);
    assert_eq!(dir.stored().len(), 2);
    dir.run(&format!("runs rm {first}")).expect(0);
    assert_eq!(dir.stored().len(), 1);
    let missing = dir
        .run(&format!("runs show {first} --json"))
        .expect(1)
        .stdout;
    assert!(
        json(&missing)["error"]["next_step"]
            .as_str()
            .unwrap()
            .contains("runs list"),
        "{missing}"
    );
    let restored = dir.run("runs restore").expect(0).stdout;
    assert!(restored.contains(&first), "{restored}");
    assert_eq!(dir.stored().len(), 2);
    dir.run(&format!("runs rm {first}")).expect(0);
    dir.run(&format!("runs restore {first}")).expect(0);
    dir.run(&format!("runs restore {first}")).expect(1);
    dir.run("runs trend p50 --html trend.html").expect(0);
    let page = std::fs::read_to_string(dir.path().join("trend.html")).expect("a page");
    assert!(page.contains("<svg") && page.contains(&first) && page.contains("</html>"));
    dir.run("runs trend nothing").expect(2);
    dir.run("runs rm").expect(2);
}

/// A record of somebody else may contain any text: it is shown, and controls nothing.
#[test]
fn records_of_others_do_not_control_the_terminal() {
    let dir = TestDir::new();
    measure(&dir, "--repeat 2");
    let poison = "x\u{1b}]0;TITLE\u{7}\u{1b}[2J\u{1b}[31m\u{9b}1m\r\u{202e}y";
    let stored = dir.stored();
    let set = stored.iter().find(|document| document["runs"].is_array());
    let mut set = set.expect("a set").clone();
    set["id"] = "20261121T151000Z-0051ff".into();
    for (run, number) in set["runs"].as_array_mut().unwrap().iter_mut().zip(0..) {
        run["id"] = format!("20261121T15100{number}Z-0051fe").into();
        run["label"] = format!("{poison}{number}").into();
        run["plan"]["host"] = poison.into();
        for host in run["hosts"].as_array_mut().unwrap() {
            host["hostname"] = poison.into();
        }
    }
    let file = dir.path().join("evil.json");
    std::fs::write(&file, set.to_string()).unwrap();
    for (command, colors) in [
        ("report evil.json", "0"),
        ("report evil.json", "1"),
        ("report evil.json --format csv", "0"),
        ("report evil.json --format markdown", "0"),
        ("runs import evil.json", "0"),
        ("runs show last", "0"),
        ("runs list", "1"),
        ("explain last", "1"),
    ] {
        let output = dir.linerate(command).env("CLICOLOR_FORCE", colors).output();
        let output = output.unwrap();
        for bytes in [output.stdout, output.stderr] {
            let text = String::from_utf8(bytes).unwrap();
            let mut rest = text.clone();
            if colors == "1" {
                for code in ["0", "1", "2", "31", "32", "33", "36"] {
                    rest = rest.replace(&format!("\u{1b}[{code}m"), "");
                }
            }
            let control = rest
                .chars()
                .find(|&c| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}');
            assert_eq!(control, None, "{command}: {text:?}");
        }
    }
}

#[test]
fn remaining_runs_of_a_set_are_reported() {
    let dir = TestDir::new();
    let set = measure(&dir, "--repeat 2");
    let stored = dir.stored().len();
    let message = dir.run(&format!("runs rm {set} --dry-run")).expect(0);
    assert!(message.stdout.contains("2 runs stay"), "{}", message.stdout);
    let message = dir.run(&format!("runs rm {set}")).expect(0).stdout;
    assert!(
        message.contains("; its 2 runs stay in the history"),
        "{message}"
    );
    assert_eq!(dir.stored().len(), stored - 1);
    let message = dir.run("runs rm last").expect(0).stdout;
    assert!(!message.contains("stay"), "{message}");
}

#[test]
fn a_run_between_two_ends_of_one_machine_is_there_once() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let port = server.port;
    for label in ["one", "two"] {
        dir.run(&format!(
            "latency 127.0.0.1 -u -p {port} -n 100 -q --label {label}"
        ))
        .expect(0);
    }
    drop(server);
    let entries = |args: &str| -> Vec<Value> {
        let listed = json(
            &dir.run(&format!("runs list --json {args}"))
                .expect(0)
                .stdout,
        );
        listed["entries"].as_array().expect("entries").clone()
    };
    let default_entries = entries("");
    let labels: Vec<_> = default_entries
        .iter()
        .map(|entry| entry["label"].clone())
        .collect();
    assert_eq!(labels, ["one", "two"]);
    let all = entries("--all");
    assert_eq!(all.len(), 4);
    let server_entries = all.iter().filter(|entry| entry["recorded_by"] == "server");
    assert_eq!(server_entries.count(), 2);
    assert_eq!(entries("--label ONE").len(), 1);
    let before = dir.run("runs show last~1 --json").expect(0).stdout;
    assert_eq!(json(&before)["label"], "one");
    let trend = json(&dir.run("runs trend p50 --json").expect(0).stdout);
    assert_eq!(trend["points"].as_array().unwrap().len(), 2);
    let csv = dir.run("runs export --format csv -o -").expect(0).stdout;
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let text = dir.run("runs list --all").expect(0).stdout;
    assert!(text.contains("recorded by the server"), "{text}");
    // The stored command has no options for the destination of its results.
    let command = json(&dir.run("runs show last --json").expect(0).stdout);
    let command = &command["document"]["command"];
    assert_eq!(command["command"], "latency");
    let options: Vec<_> = command["arguments"].as_array().unwrap().iter().collect();
    assert!(options.iter().any(|argument| argument["option"] == "udp"));
    assert!(options.iter().all(|argument| argument["option"] != "label"));

    let rejected = dir.run("runs list --kind nope").expect(2).stderr;
    assert!(rejected.contains("throughput, latency"), "{rejected}");
    dir.run("runs trend p50 --kind set:nope").expect(2);
    dir.run("runs list --kind set:sweep").expect(0);
}

#[test]
fn records_move_between_machines() {
    let (here, there) = (TestDir::new(), TestDir::new());
    let id = measure(&here, "--repeat 3");
    here.run("runs tag last lab-a").expect(0);
    let file = there.path().join("export.json");
    here.run(&format!("runs export -o {}", file.display()))
        .expect(0);
    let imported = there
        .run("runs import export.json --tag imported --json")
        .expect(0)
        .stdout;
    let imported = json(&imported);
    assert_eq!(
        imported["records"].as_object().unwrap().len(),
        4,
        "{imported}"
    );
    assert!(
        imported["records"]
            .as_object()
            .unwrap()
            .values()
            .all(|state| state == "taken")
    );
    let listed = json(&there.run("runs list --json").expect(0).stdout);
    assert_eq!(listed["entries"][0]["id"], id.as_str());
    assert_eq!(
        listed["entries"][0]["tags"],
        serde_json::json!(["imported", "lab-a"])
    );
    let second_import = there.run("runs import export.json").expect(0).stdout;
    assert!(
        second_import.contains("0 records imported, 4 were present already"),
        "{second_import}"
    );

    let csv = here.run("runs export --format csv -o -").expect(0).stdout;
    assert_eq!(csv.lines().count(), 5, "{csv}");
    here.run("runs export --format parquet -o runs.parquet")
        .expect(0);
    let bytes = std::fs::read(here.path().join("runs.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    std::fs::write(there.path().join("unrelated.json"), "{}").unwrap();
    let unknown_file = there.run("runs import unrelated.json").expect(1).stderr;
    assert!(
        unknown_file.contains("name a file that --json"),
        "{unknown_file}"
    );
}

#[test]
fn stored_records_are_shown_in_every_format() {
    let dir = TestDir::new();
    let one = measure(&dir, "--trace t.pftrace");
    let many = measure(&dir, "--repeat 3");
    let text = dir.run(&format!("report {one}")).expect(0).stdout;
    assert!(text.contains("UDP round trips with 127.0.0.1"), "{text}");
    assert_eq!(
        json(&dir.run(&format!("report {one} --json")).expect(0).stdout)["id"],
        one.as_str()
    );
    let sides = dir.run(&format!("report {one} {many}")).expect(0).stdout;
    assert!(
        sides.contains("second/first") && sides.contains(" to "),
        "{sides}"
    );
    let sides = dir
        .run(&format!("report {one} {many} --markdown"))
        .expect(0)
        .stdout;
    assert!(
        sides.contains("| figure | ") && sides.contains("| p50 | "),
        "{sides}"
    );
    let sides = json(
        &dir.run(&format!("report {one} {many} --json"))
            .expect(0)
            .stdout,
    );
    assert_eq!(sides["schema"], "linerate/side-by-side/1");
    assert_eq!(sides["documents"][1]["figures"]["p50"]["runs"], 3);
    // A directory of results is read by path and by name.
    std::fs::create_dir(dir.path().join("results")).unwrap();
    dir.run(&format!("report {many} --json -o results/result.json"))
        .expect(0);
    for result_dir in ["results", "./results/"] {
        let table = dir.run(&format!("report {result_dir} --json")).expect(0);
        assert_eq!(json(&table.stdout)["id"], many.as_str());
    }
    let csv = dir
        .run(&format!("report {one} {many} --format csv"))
        .expect(0)
        .stdout;
    assert!(csv.starts_with("figure,id,name,median,low,high,runs\n") && csv.contains("p50_ns,"));
    let quiet = dir
        .run(&format!("report {one} --html one.html --trace again.json"))
        .expect(0);
    assert_eq!(quiet.stdout, "");
    let page = std::fs::read_to_string(dir.path().join("one.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains(&one));
    json(&std::fs::read_to_string(dir.path().join("again.json")).unwrap());
    dir.run(&format!("report {many} --trace none.pftrace"))
        .expect(1);

    // A file needs no store.
    let file = dir.path().join(format!("data/linerate/runs/{one}.json"));
    std::fs::rename(&file, dir.path().join("moved.json")).unwrap();
    dir.run("report moved.json").expect(0);
    dir.run("report missing.json").expect(1);
}
