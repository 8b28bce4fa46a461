//! `linerate sweep`: a matrix of options, its Pareto front, and resuming after a crash.

use std::fs;

use crate::common::{RunningCommand, TestDir, assert_record};

#[test]
fn a_matrix_of_two_options() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!(
        "sweep --json --html page.html --repeats 2 --seed 3 --over bitrate=1M..2M:+1M --over length=500,1000 \
         throughput 127.0.0.1 -p {} -u -t 200ms",
        server.port
    );
    let set = dir.run(&args).expect(0).json();
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["kind"], "sweep");
    let runs = set["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 8);
    runs.iter().for_each(assert_record);
    let result = &set["result"]["sweep"];
    assert_eq!(result["figure"], "goodput");
    assert_eq!(result["seed"], 3);
    let points = result["points"].as_array().expect("points");
    assert_eq!(points.len(), 4, "{result:#}");
    for point in points {
        assert_eq!(
            point["records"].as_array().map(Vec::len),
            Some(2),
            "{point:#}"
        );
        assert!(point["memory_bytes"].as_f64() > Some(0.0), "{point:#}");
    }
    let best = result["best"].as_u64().expect("a best point") as usize;
    assert_eq!(points[best]["setting"]["bitrate"], "2M", "{result:#}");
    assert!(points.iter().any(|point| point["pareto"] == true));
    let page = fs::read_to_string(dir.path().join("page.html")).expect("a page");
    assert!(
        page.contains("goodput by bitrate and length"),
        "no heat map"
    );
    assert!(page.contains("All points"), "no table");
    assert!(
        page.contains("8 runs ("),
        "those on the front are shown, not all"
    );
    let quiet_output = dir.run(&args.replace("--json", "--quiet")).expect(0).stdout;
    assert!(quiet_output.contains(" with bitrate=2M"), "{quiet_output}");
    let listed = dir.run("runs list").expect(0).stdout;
    assert!(
        listed.contains("(8 runs)") && listed.contains("goodput 2"),
        "{listed}"
    );
    assert_eq!(
        fs::read_dir(dir.path().join(".local/state/linerate/sweep")).map_or(0, Iterator::count),
        0
    );
}

#[test]
fn a_knob_without_values_has_those_that_tune_would_try() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!(
        "sweep --json --repeats 1 --over no-delay throughput 127.0.0.1 -p {} -b 1M -t 100ms",
        server.port
    );
    let set = dir.run(&args).expect(0).json();
    let axis = &set["result"]["sweep"]["axes"][0];
    assert_eq!(
        axis["values"],
        serde_json::json!(["default", "on"]),
        "{axis:#}"
    );
}

#[test]
fn an_interrupt_reports_how_to_resume() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!(
        "sweep --repeats 9 --over length=100,200,300 throughput 127.0.0.1 -p {} -u -b 1M -t 300ms",
        server.port
    );
    let mut running = RunningCommand::start(&mut dir.linerate(&args));
    let first = running.wait_line(|line| line.starts_with("sweep "));
    let id = first.split([' ', ':']).nth(1).expect("an id").to_owned();
    running.wait_line(|line| line.starts_with("run 2 of 27"));
    running.send_signal(rustix::process::Signal::INT);
    running.wait_line(|line| line.contains(&format!("to resume: linerate sweep --resume {id}")));
}

#[test]
fn a_sweep_without_a_measured_point_cannot_resume() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let knobs = "[[knob]]\nname = \"board\"\nvalues = [1, 2]\nset = \"echo {}; exit 3\"\nrestore = \"true\"\n";
    fs::write(dir.path().join("knobs.toml"), knobs).expect("a file");
    let args = format!(
        "sweep --repeats 1 --over board --knob-file knobs.toml throughput 127.0.0.1 -p {} -u -b 1M -t 100ms",
        server.port
    );
    let done = dir.run(&args).expect(1);
    assert!(done.stderr.contains("ended with code 3"), "{done:#?}");
    let journal_dir = dir.path().join(".local/state/linerate/sweep");
    assert_eq!(fs::read_dir(journal_dir).map_or(0, Iterator::count), 0);
}

#[test]
fn a_sweep_resumes_after_a_crash() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!(
        "sweep --repeats 2 --over length=100,200,300 throughput 127.0.0.1 -p {} -u -b 1M -t 300ms",
        server.port
    );
    let mut running = RunningCommand::start(&mut dir.linerate(&args));
    let first = running.wait_line(|line| line.starts_with("sweep "));
    running.wait_line(|line| line.starts_with("run 2 of 6"));
    running.send_signal(rustix::process::Signal::KILL);
    drop(running);
    let id = first.split([' ', ':']).nth(1).expect("an id").to_owned();
    let file = dir
        .path()
        .join(format!(".local/state/linerate/sweep/{id}.jsonl"));
    let before = fs::read_to_string(&file)
        .expect("a journal")
        .lines()
        .count();
    assert!(before >= 3, "the head and two runs");
    let done = dir.run(&format!("sweep --resume {id}")).expect(0);
    assert!(!done.stdout.contains("run 1 of 6"), "{}", done.stdout);
    assert!(done.stdout.contains("run 6 of 6"), "{}", done.stdout);
    assert!(done.stdout.contains("3 of 3 points"), "{}", done.stdout);
    assert!(!file.exists(), "what is done needs no journal");
}

#[test]
fn nonsense_is_rejected_before_anything_runs() {
    let dir = TestDir::new();
    for (args, expected) in [
        ("sweep throughput 127.0.0.1", "no option to vary"),
        ("sweep --over length=1,2", "no measuring command"),
        (
            "sweep --over speed=1,2 throughput 127.0.0.1",
            "no such option",
        ),
        ("sweep --over length throughput 127.0.0.1", "no values"),
        (
            "sweep --over length=1 --over length=2 throughput 127.0.0.1",
            "given twice",
        ),
        (
            "sweep --over no-delay=1 throughput 127.0.0.1",
            "neither on nor off",
        ),
        ("sweep --over wait=nap throughput 127.0.0.1", "nap"),
        (
            "sweep --over mtu=1500,9000 throughput 127.0.0.1",
            "--try-host",
        ),
        ("sweep --resume nothing --repeats 9", "cannot be used"),
    ] {
        let done = dir.run(args).expect(2);
        assert!(done.stderr.contains(expected), "{args}: {}", done.stderr);
    }
    let done = dir.run("sweep --resume nothing").expect(1);
    assert!(done.stderr.contains("no sweep of that name"), "{done:#?}");
    let done = dir
        .run("sweep --over length=1 throughput 127.0.0.1 --speed 1")
        .expect(2);
    assert!(done.stderr.contains("options of `sweep`"), "{done:#?}");
    assert!(
        !dir.path().join(".local/state").exists(),
        "no journal is left"
    );
}

#[test]
fn user_defined_knobs_are_varied_and_restored() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    fs::write(
        dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [1024, 4096]\nset = \"echo {} >> window\"\nmemory = 1000000\n",
    )
    .expect("a file");
    let args = format!(
        "sweep --json --repeats 2 --seed 1 --knob-file knobs.toml --over window --over length=500,1000 \
         throughput 127.0.0.1 -p {} -u -b 1M -t 100ms",
        server.port
    );
    let set = dir.run(&args).expect(0).json();
    let points = set["result"]["sweep"]["points"].as_array().expect("points");
    assert_eq!(points.len(), 4, "{points:#?}");
    for point in points {
        let window: f64 = point["setting"]["window"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .expect("a window");
        // The memory that the knob declares is more than any buffer.
        assert!(
            point["memory_bytes"].as_f64() > Some(window * 1e6),
            "{point:#}"
        );
    }
    let values = fs::read_to_string(dir.path().join("window")).expect("it was set");
    assert!(values.contains("4096"), "{values}");
    assert_eq!(
        values.lines().last(),
        Some("1024"),
        "back at its start: {values}"
    );
}

#[test]
fn a_value_that_a_command_rejects_is_a_failed_point() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    fs::write(
        dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [1, 2, 3]\n\
         set = \"echo {} > window; test {} -ne 2 || { echo too much >&2; exit 7; }\"\n",
    )
    .expect("a file");
    let args = format!(
        "sweep --json --knob-file knobs.toml --over window=2,3 throughput 127.0.0.1 -p {} -u -b 1M -l 1000 -t 100ms",
        server.port
    );
    let set = dir.run(&args).expect(0).json();
    let points = set["result"]["sweep"]["points"].as_array().expect("points");
    let why = |at: usize| points[at]["failed"].as_str().unwrap_or_default();
    assert!(why(0).contains("code 7: too much"), "{points:#?}");
    assert!(points[1]["value"]["median"].is_number(), "{points:#?}");
    let window = fs::read_to_string(dir.path().join("window")).expect("it was set");
    assert_eq!(window, "1\n", "back at the start of its file");
}
