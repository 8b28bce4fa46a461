//! Demo as root and as an unprivileged user, and the files it leaves.

use super::*;

/// Checks the files of a demo: a report, a record a run, and the same in the store.
#[track_caller]
fn assert_demo(test_dir: &TestDir, output: &FinishedCommand, dir: &str) -> Value {
    let set = output.json();
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["kind"], "demo");
    let runs = set["runs"].as_array().expect("runs");
    // With a finding about the congestion control, its remedy is measured too.
    let count = runs.len();
    assert!((7..=8).contains(&count), "{output:?}");
    let remedied = runs.iter().filter(|run| {
        let label = run["label"].as_str().unwrap_or_default();
        label.starts_with("TCP, ") && run["plan"]["congestion_control_requested"] == true
    });
    assert!(count == 7 || remedied.count() == 1, "{output:?}");
    runs.iter().for_each(assert_valid_record);
    let report_dir = test_dir.path().join(dir);
    for run in runs {
        let name = format!("{}.json", run["id"].as_str().expect("an id"));
        let text = fs::read_to_string(report_dir.join(name)).expect("a record");
        assert_eq!(
            &serde_json::from_str::<Value>(&text).expect("a record"),
            run
        );
    }
    let page = fs::read_to_string(report_dir.join("report.html")).expect("the report");
    assert!(
        page.contains("</html>") && page.contains("<svg"),
        "no report"
    );
    // The page loads nothing from the network.
    assert!(
        !page.contains("src=\"http") && !page.contains("<link"),
        "not self-contained"
    );
    assert_eq!(test_dir.stored().len(), count + 1, "the runs and the set");
    set
}

#[test]
fn a_demo_keeps_a_page_of_another_program() {
    let dir = TestDir::new();
    let page = dir.path().join("page/report.html");
    fs::create_dir(page.parent().expect("a directory")).expect("a directory");
    fs::write(&page, "mine").expect("a page");
    let output = dir.run("demo -t 0.1 --loopback --dir page").expect(2);
    assert!(output.stderr.contains("page/report.html"), "{output:?}");
    assert_eq!(fs::read_to_string(&page).expect("a page"), "mine");
    fs::remove_file(&page).expect("a page");
    for _ in 0..2 {
        dir.run("demo -t 0.1 --loopback --dir page").expect(0);
    }
}

#[test]
fn demo() {
    let dir = TestDir::new();
    let output = dir.run("demo -t 0.3 --json").expect(0);
    assert_demo(&dir, &output, "linerate-demo");
    assert!(output.stderr.contains("report.html"), "{output:?}");
}

#[test]
fn demo_as_an_ordinary_user() {
    let Some(dir) = TestDir::unprivileged() else {
        skip!("cannot become an unprivileged user here");
    };
    let output = dir.run("demo -t 0.2 --json --dir here").expect(0);
    let set = assert_demo(&dir, &output, "here");
    let notes = set["result"]["notes"].to_string();
    if notes.contains("loopback") {
        println!("skipped: a lab without root: {notes}");
    } else if is_root() {
        let owner = fs::metadata(dir.path().join("here/report.html")).expect("the report");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 65534);
    }
}

#[test]
fn demo_where_user_namespaces_are_forbidden() {
    let Some(dir) = TestDir::unprivileged() else {
        skip!("cannot become an unprivileged user here");
    };
    let mut command: Command = match without_user_namespaces(&dir, "demo -t 0.2 --json") {
        Ok(command) => command,
        Err(why) => skip!("{why}"),
    };
    let output = finish(&mut command).expect(0);
    let set = assert_demo(&dir, &output, "linerate-demo");
    let notes = set["result"]["notes"].to_string();
    assert!(notes.contains("loopback"), "{notes}");
    assert!(
        notes.contains("sysctl -w user.max_user_namespaces"),
        "{notes}"
    );
    assert!(
        output.stderr.contains("sysctl -w user.max_user_namespaces"),
        "{output:?}"
    );
}

#[test]
fn an_interrupted_demo_reports_its_results() {
    let dir = TestDir::new();
    let mut demo = RunningCommand::start(&mut dir.linerate("demo -t 2 --json --loopback"));
    // The first step has its record, so there is a report of the finished steps.
    demo.wait_error_line(|line| line.contains(" 2/7 "));
    demo.interrupt();
    let output = demo.wait().expect(130);
    let set = output.json();
    assert_eq!(set["interrupted"], true);
    assert!(
        dir.path().join("linerate-demo/report.html").exists(),
        "{output:?}"
    );
}
