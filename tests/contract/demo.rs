//! Demo as root and as an unprivileged user, and the files it leaves.

use super::*;

/// Checks the files of a demo: a report, a record a run, and the same in the store.
#[track_caller]
fn is_demo(room: &Room, ran: &Finished, dir: &str) -> Value {
    let set = ran.json();
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["kind"], "demo");
    let runs = set["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 7, "{ran:?}");
    runs.iter().for_each(is_valid);
    let folder = room.path().join(dir);
    for run in runs {
        let name = format!("{}.json", run["id"].as_str().expect("an id"));
        let text = fs::read_to_string(folder.join(name)).expect("a record");
        assert_eq!(
            &serde_json::from_str::<Value>(&text).expect("a record"),
            run
        );
    }
    let page = fs::read_to_string(folder.join("report.html")).expect("the report");
    assert!(
        page.contains("</html>") && page.contains("<svg"),
        "no report"
    );
    // The page loads nothing from the network.
    assert!(
        !page.contains("src=\"http") && !page.contains("<link"),
        "not self-contained"
    );
    assert_eq!(room.stored().len(), 8, "seven runs and the set");
    set
}

#[test]
fn a_demo_leaves_a_page_of_something_else_alone() {
    let room = Room::new();
    let page = room.path().join("page/report.html");
    fs::create_dir(page.parent().expect("a directory")).expect("a directory");
    fs::write(&page, "mine").expect("a page");
    let ran = room.run("demo -t 0.1 --loopback --dir page").expect(2);
    assert!(ran.stderr.contains("page/report.html"), "{ran:?}");
    assert_eq!(fs::read_to_string(&page).expect("a page"), "mine");
    fs::remove_file(&page).expect("a page");
    for _ in 0..2 {
        room.run("demo -t 0.1 --loopback --dir page").expect(0);
    }
}

#[test]
fn demo() {
    let room = Room::new();
    let ran = room.run("demo -t 0.3 --json").expect(0);
    is_demo(&room, &ran, "linerate-demo");
    assert!(ran.stderr.contains("report.html"), "{ran:?}");
}

#[test]
fn demo_as_an_ordinary_user() {
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an unprivileged user here");
    };
    let ran = room.run("demo -t 0.2 --json --dir here").expect(0);
    let set = is_demo(&room, &ran, "here");
    let notes = set["result"]["notes"].to_string();
    if notes.contains("loopback") {
        println!("skipped: a lab without root: {notes}");
    } else if is_root() {
        let owner = fs::metadata(room.path().join("here/report.html")).expect("the report");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 65534);
    }
}

#[test]
fn demo_where_user_namespaces_are_forbidden() {
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an unprivileged user here");
    };
    let mut command: Command = match without_user_namespaces(&room, "demo -t 0.2 --json") {
        Ok(command) => command,
        Err(why) => skip!("{why}"),
    };
    let ran = finish(&mut command).expect(0);
    let set = is_demo(&room, &ran, "linerate-demo");
    let notes = set["result"]["notes"].to_string();
    assert!(notes.contains("loopback"), "{notes}");
    assert!(
        notes.contains("sysctl -w user.max_user_namespaces"),
        "{notes}"
    );
    assert!(
        ran.stderr.contains("sysctl -w user.max_user_namespaces"),
        "{ran:?}"
    );
}

#[test]
fn an_interrupted_demo_reports_what_it_has() {
    let room = Room::new();
    let mut demo = Running::start(&mut room.linerate("demo -t 2 --json --loopback"));
    // The first step has its record, so there is a report of the finished steps.
    demo.error_line(|line| line.contains(" 2/7 "));
    demo.interrupt();
    let ran = demo.wait().expect(130);
    let set = ran.json();
    assert_eq!(set["interrupted"], true);
    assert!(
        room.path().join("linerate-demo/report.html").exists(),
        "{ran:?}"
    );
}
