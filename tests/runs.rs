//! History of results: stored runs are found, tagged, followed, moved and shown again.

mod common;

use common::Room;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Measures over loopback into the store of this directory.
fn measure(room: &Room, words: &str) -> String {
    let server = room.server("-q --no-store");
    let port = server.port;
    let run = room
        .run(&format!(
            "latency 127.0.0.1 -u -p {port} -n 200 --json {words}"
        ))
        .expect(0);
    let record = json(&run.stdout);
    record["id"].as_str().expect("an id").to_owned()
}

#[test]
fn what_was_measured_is_found_again() {
    let room = Room::new();
    let empty = room.run("runs list").expect(0).stdout;
    assert!(
        empty.contains("nothing was measured yet") && empty.contains("linerate demo"),
        "{empty}"
    );
    let first = measure(&room, "");
    let second = measure(&room, "--wait spin");
    let listed = json(&room.run("runs list --json").expect(0).stdout);
    assert_eq!(listed["schema"], "linerate/runs/1");
    let ids: Vec<_> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["id"].clone())
        .collect();
    assert_eq!(ids, [first.as_str(), second.as_str()]);
    assert_eq!(listed["entries"][0]["figures"]["round_trips"], 200.0);

    room.run(&format!("runs tag {first} baseline")).expect(0);
    room.run("runs note last spinning").expect(0);
    let text = room.run("runs list --kind latency").expect(0).stdout;
    assert!(
        text.contains("#baseline") && text.contains("\"spinning\""),
        "{text}"
    );
    let tagged = json(&room.run("runs list --tag baseline --json").expect(0).stdout);
    assert_eq!(tagged["entries"].as_array().unwrap().len(), 1);
    let like = json(
        &room
            .run(&format!("runs list --like {second} --json"))
            .expect(0)
            .stdout,
    );
    assert_eq!(like["entries"].as_array().unwrap().len(), 1);
    let none = room
        .run("runs list --where p50<1ns --json")
        .expect(0)
        .stdout;
    assert!(json(&none)["entries"].as_array().unwrap().is_empty());

    let shown = room.run("runs show last").expect(0).stdout;
    assert!(
        shown.contains("spinning") && shown.contains("stored as"),
        "{shown}"
    );
    let shown = json(&room.run("runs show last --json").expect(0).stdout);
    assert_eq!(shown["document"]["id"], second.as_str());
    let trend = json(&room.run("runs trend p50 --json").expect(0).stdout);
    assert_eq!(trend["points"].as_array().unwrap().len(), 2);
    assert_eq!(trend["plans"], 2);
    // An empty trend is a result without an error, except as a gate.
    let nothing = "runs trend p50 --tag nowhere";
    room.run(nothing).expect(0);
    room.run(&format!("{nothing} --fail-on-change")).expect(1);

    room.run(&format!("runs rm {first} --dry-run")).expect(0);
    assert_eq!(room.stored().len(), 2);
    room.run(&format!("runs rm {first}")).expect(0);
    assert_eq!(room.stored().len(), 1);
    let gone = room
        .run(&format!("runs show {first} --json"))
        .expect(1)
        .stdout;
    assert!(
        json(&gone)["error"]["next_step"]
            .as_str()
            .unwrap()
            .contains("runs list"),
        "{gone}"
    );
    room.run("runs trend nothing").expect(2);
    room.run("runs rm").expect(2);
}

#[test]
fn what_stays_of_a_set_is_told() {
    let room = Room::new();
    let set = measure(&room, "--repeat 2");
    let stored = room.stored().len();
    let told = room.run(&format!("runs rm {set} --dry-run")).expect(0);
    assert!(told.stdout.contains("2 runs stay"), "{}", told.stdout);
    let told = room.run(&format!("runs rm {set}")).expect(0).stdout;
    assert!(told.contains("; its 2 runs stay in the history"), "{told}");
    assert_eq!(room.stored().len(), stored - 1);
    let told = room.run("runs rm last").expect(0).stdout;
    assert!(!told.contains("stay"), "{told}");
}

#[test]
fn a_run_between_two_ends_of_one_machine_is_there_once() {
    let room = Room::new();
    let server = room.server("-q");
    let port = server.port;
    for label in ["one", "two"] {
        room.run(&format!(
            "latency 127.0.0.1 -u -p {port} -n 100 -q --label {label}"
        ))
        .expect(0);
    }
    drop(server);
    let entries = |words: &str| -> Vec<Value> {
        let listed = json(
            &room
                .run(&format!("runs list --json {words}"))
                .expect(0)
                .stdout,
        );
        listed["entries"].as_array().expect("entries").clone()
    };
    let own = entries("");
    let labels: Vec<_> = own.iter().map(|entry| entry["label"].clone()).collect();
    assert_eq!(labels, ["one", "two"]);
    let all = entries("--all");
    assert_eq!(all.len(), 4);
    let kept = all.iter().filter(|entry| entry["kept_by"] == "server");
    assert_eq!(kept.count(), 2);
    assert_eq!(entries("--label ONE").len(), 1);
    let before = room.run("runs show last~1 --json").expect(0).stdout;
    assert_eq!(json(&before)["label"], "one");
    let trend = json(&room.run("runs trend p50 --json").expect(0).stdout);
    assert_eq!(trend["points"].as_array().unwrap().len(), 2);
    let csv = room.run("runs export --format csv -o -").expect(0).stdout;
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let text = room.run("runs list --all").expect(0).stdout;
    assert!(text.contains("recorded by the server"), "{text}");
    // The stored command has no options for the destination of its results.
    let command = json(&room.run("runs show last --json").expect(0).stdout);
    let command = &command["document"]["command"];
    assert_eq!(command["command"], "latency");
    let options: Vec<_> = command["arguments"].as_array().unwrap().iter().collect();
    assert!(options.iter().any(|argument| argument["option"] == "udp"));
    assert!(options.iter().all(|argument| argument["option"] != "label"));

    let refused = room.run("runs list --kind nope").expect(2).stderr;
    assert!(refused.contains("throughput, latency"), "{refused}");
    room.run("runs trend p50 --kind set:nope").expect(2);
    room.run("runs list --kind set:sweep").expect(0);
}

#[test]
fn records_move_between_machines() {
    let (here, there) = (Room::new(), Room::new());
    let id = measure(&here, "--repeat 3");
    here.run("runs tag last lab-a").expect(0);
    let file = there.path().join("export.json");
    here.run(&format!("runs export -o {}", file.display()))
        .expect(0);
    let taken = there
        .run("runs import export.json --tag imported --json")
        .expect(0)
        .stdout;
    let taken = json(&taken);
    assert_eq!(taken["records"].as_object().unwrap().len(), 4, "{taken}");
    assert!(
        taken["records"]
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
    let again = there.run("runs import export.json").expect(0).stdout;
    assert!(
        again.contains("0 records imported, 4 were present already"),
        "{again}"
    );

    let csv = here.run("runs export --format csv -o -").expect(0).stdout;
    assert_eq!(csv.lines().count(), 5, "{csv}");
    here.run("runs export --format parquet -o runs.parquet")
        .expect(0);
    let bytes = std::fs::read(here.path().join("runs.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    std::fs::write(there.path().join("foreign.json"), "{}").unwrap();
    let foreign = there.run("runs import foreign.json").expect(1).stderr;
    assert!(foreign.contains("name a file that --json"), "{foreign}");
}

#[test]
fn stored_records_are_shown_again_in_every_form() {
    let room = Room::new();
    let one = measure(&room, "--trace t.pftrace");
    let many = measure(&room, "--repeat 3");
    let text = room.run(&format!("report {one}")).expect(0).stdout;
    assert!(text.contains("UDP round trips with 127.0.0.1"), "{text}");
    assert_eq!(
        json(&room.run(&format!("report {one} --json")).expect(0).stdout)["id"],
        one.as_str()
    );
    let sides = room.run(&format!("report {one} {many}")).expect(0).stdout;
    assert!(
        sides.contains("second/first") && sides.contains(" to "),
        "{sides}"
    );
    let sides = room
        .run(&format!("report {one} {many} --markdown"))
        .expect(0)
        .stdout;
    assert!(
        sides.contains("| figure | ") && sides.contains("| p50 | "),
        "{sides}"
    );
    let sides = json(
        &room
            .run(&format!("report {one} {many} --json"))
            .expect(0)
            .stdout,
    );
    assert_eq!(sides["schema"], "linerate/side-by-side/1");
    assert_eq!(sides["sides"][1]["figures"]["p50"]["runs"], 3);
    // A directory of results is read by path and by name.
    std::fs::create_dir(room.path().join("results")).unwrap();
    room.run(&format!("report {many} --json -o results/result.json"))
        .expect(0);
    for folder in ["results", "./results/"] {
        let table = room.run(&format!("report {folder} --json")).expect(0);
        assert_eq!(json(&table.stdout)["id"], many.as_str());
    }
    let csv = room
        .run(&format!("report {one} {many} --format csv"))
        .expect(0)
        .stdout;
    assert!(csv.starts_with("figure,id,name,median,low,high,runs\n") && csv.contains("p50_ns,"));
    let quiet = room
        .run(&format!("report {one} --html one.html --trace again.json"))
        .expect(0);
    assert_eq!(quiet.stdout, "");
    let page = std::fs::read_to_string(room.path().join("one.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains(&one));
    json(&std::fs::read_to_string(room.path().join("again.json")).unwrap());
    room.run(&format!("report {many} --trace none.pftrace"))
        .expect(1);

    // A file needs no store.
    let file = room.path().join(format!("data/linerate/runs/{one}.json"));
    std::fs::rename(&file, room.path().join("moved.json")).unwrap();
    room.run("report moved.json").expect(0);
    room.run("report missing.json").expect(1);
}
