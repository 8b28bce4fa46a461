//! Complete experiments: the shipped ones are listed, a small one runs to its report, points are
//! added to a table.

use crate::common::{RunningCommand, TestDir, finish, free_port, join_lines, skip};
use crate::experiment::{RTT_FIGURE, by_size, experiment_head};
use rustix::process::Signal;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns an experiment of two sizes in a lab; its expectation always holds, or never.
fn experiment_file(rule: &str) -> String {
    let head = experiment_head("small", "A small <experiment>");
    format!(
        r#"{head}repeats = 2

[[knobs]]
name = "hops"
values = ["0", "1"]

[[knobs]]
name = "size"
values = ["64", "1K"]
quick = ["64"]

[lab]
hops = "{{hops}}"

[[remote]]
host = "server"
run = "server -q --no-store"
ready = "READY"

[[measure]]
host = "client"
run = "latency {{server}} -u -n 50 -l {{size}} -i 0"
{RTT_FIGURE}
[[tables]]
title = "Median"
figures = ["trip"]
rows = ["hops"]
columns = ["size"]
steps = true

[[plots]]
title = "By hops"
figure = "trip"
x = "hops"
series = ["size"]

[[published]]
setting = {{ hops = "0" }}
figure = "trip"
value = "216us"
on = "something else"

[[shapes]]
description = "it takes time"
rule = "{rule}"
why = "Because."
"#
    )
}

/// Removes the note that a busy machine adds to a verdict.
fn without_caveat(text: &str) -> String {
    text.replace(", in doubt", "")
}

fn has_labs(dir: &TestDir) -> bool {
    // Tests run in parallel, and a name can be used once.
    let result_dir = dir.path().file_name().expect("a folder").to_string_lossy();
    let name = format!("probe-{}", result_dir.trim_start_matches('.'));
    let up = dir.run(&format!("lab up --hops 0 --name {name}"));
    let up = up.exit_code() == 0;
    if up {
        dir.run(&format!("lab down {name}"));
    }
    up
}

#[test]
fn shipped_experiments_are_listed_and_printed() {
    let dir = TestDir::new();
    let list = dir.run("run --list").expect(0).stdout;
    let alone = dir.run("run").expect(2).stderr;
    for name in [
        "stack-tuning",
        "pmd-threads",
        "ttcp-calls",
        "udp-response",
        "udp-hops",
    ] {
        assert!(list.contains(name) && alone.contains(name), "{list}{alone}");
        let text = dir.run(&format!("run {name} --print")).expect(0).stdout;
        assert!(text.contains(&format!("name = \"{name}\"")), "{text}");
    }
    let unknown = dir.run("run nothing --json").expect(2).stdout;
    assert!(
        json(&unknown)["error"]["next_step"]
            .as_str()
            .unwrap()
            .contains("udp-hops")
    );
    dir.run("run udp-hops --quick --point hops=77").expect(2);
    for on in ["127.0.0.1", "127.0.0.1:none --point hops=1"] {
        let rejected = dir.run(&format!("run udp-hops --on {on} --quick"));
        let message = rejected.expect(2).stderr;
        assert!(
            !message.contains("--resume"),
            "nothing was started: {message}"
        );
    }
    let result_dir = dir.path().join("linerate-udp-hops");
    assert!(!result_dir.exists(), "nothing was started");
}

#[test]
fn an_experiment_gives_tables_a_page_and_records() {
    let dir = TestDir::new();
    if !has_labs(&dir) {
        skip!("no lab can be built here");
    }
    std::fs::write(dir.path().join("small.toml"), experiment_file("trip > 0")).unwrap();
    let output = dir.run("run small.toml --json").expect(0);
    let set = json(&output.stdout);
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["runs"].as_array().unwrap().len(), 8);
    let result = &set["result"]["experiment"];
    assert_eq!(result["points"].as_array().unwrap().len(), 4);
    assert_eq!(result["points"][0]["figures"]["trip"]["runs"], 2);
    assert_eq!(result["shapes"][0]["state"], "holds");
    let around = result["points"][2]["setup_commands"].as_array().unwrap();
    assert_eq!(around[0], "linerate lab up --name small --hops 1");
    assert_eq!(
        around[1],
        "linerate lab exec small/server -- linerate server -q --no-store &"
    );
    let command = result["points"][2]["commands"][0].as_str().unwrap();
    let typed = "linerate lab exec small/client -- linerate latency 10.77.0.2 ";
    assert!(command.starts_with(typed), "{command}");
    assert_eq!(result["missing_figures"], Value::Null);
    assert!(result["published"][0]["measured"].as_f64().unwrap() > 0.0);
    let page = std::fs::read_to_string(dir.path().join("linerate-small/report.html")).unwrap();
    assert!(
        page.contains("A small &lt;experiment&gt;") && page.contains("<svg"),
        "{page}"
    );
    // Each run, and the set.
    assert_eq!(dir.stored().len(), 9);

    let id = set["id"].as_str().unwrap();
    let text = dir.run(&format!("report {id}")).expect(0).stdout;
    assert!(
        text.contains("added per step") && without_caveat(&text).contains("agrees: it takes time"),
        "{text}"
    );
    let markdown = dir.run(&format!("report {id} --markdown")).expect(0).stdout;
    assert!(
        markdown.contains("| hops | size=64 | size=1K |"),
        "{markdown}"
    );
}

#[test]
fn a_failed_assertion_reports_why() {
    let dir = TestDir::new();
    if !has_labs(&dir) {
        skip!("no lab can be built here");
    }
    std::fs::write(dir.path().join("small.toml"), experiment_file("trip < 0")).unwrap();
    let output = dir.run("run small.toml --quick").expect(3);
    assert!(
        without_caveat(&output.stdout).contains("DOES NOT AGREE: it takes time")
            && output.stdout.contains("Because."),
        "{}",
        output.stdout
    );
}

#[test]
fn a_skipped_point_ends_with_the_code_of_its_missing_requirement() {
    let dir = TestDir::new();
    if !has_labs(&dir) {
        skip!("no lab can be built here");
    }
    let skip =
        "[[skip]]\nsetting = { size = \"64\" }\nbecause = \"64 bytes need many processors\"\n";
    for (lacks, code, expected) in [
        (
            "cores_below = 100_000\n",
            4,
            "use a machine with 100000 CPUs",
        ),
        ("", 2, "select other points (--point)"),
    ] {
        let text = format!("{}\n{skip}{lacks}", experiment_file("trip > 0"));
        std::fs::write(dir.path().join("small.toml"), text).unwrap();
        let output = dir.run("run small.toml --quick --point size=64");
        let message = join_lines(&output.expect(code).stderr);
        assert!(
            message.contains("64 bytes need many") && message.contains(expected),
            "{message}"
        );
    }
}

#[test]
fn a_failed_store_is_reported_once() {
    let dir = TestDir::new();
    if !has_labs(&dir) {
        skip!("no lab can be built here");
    }
    std::fs::write(dir.path().join("small.toml"), experiment_file("trip > 0")).unwrap();
    let mut command = dir.linerate("run small.toml --quick");
    // No directory can be made there, not even by root.
    let output = finish(command.env("XDG_DATA_HOME", "/proc/nowhere")).expect(0);
    assert_eq!(
        output.stderr.matches("cannot store").count(),
        1,
        "{}",
        output.stderr
    );
    assert!(dir.path().join("linerate-small/report.html").exists());
}

#[test]
fn points_are_added_to_a_table() {
    let dir = TestDir::new();
    if !has_labs(&dir) {
        skip!("no lab can be built here");
    }
    std::fs::write(dir.path().join("small.toml"), experiment_file("trip > 0")).unwrap();
    for (hops, points) in [(0, 1), (1, 2), (1, 2)] {
        let args = format!("run small.toml --quick --point hops={hops} --label bench --json");
        let set = json(&dir.run(&args).expect(0).stdout);
        let point_count = set["result"]["experiment"]["points"]
            .as_array()
            .unwrap()
            .len();
        assert_eq!(point_count, points, "hops={hops}");
        assert_eq!(set["runs"].as_array().unwrap().len(), points);
    }
    let result_dir = dir.path().join("linerate-small-bench");
    assert!(result_dir.join("report.html").exists());
    let files = std::fs::read_dir(&result_dir).unwrap().count();
    assert_eq!(
        files, 4,
        "the page, the table, and a record of each point; none of the one that was replaced"
    );
    assert!(!dir.path().join("linerate-small").exists());
    // Points of another duration, or of real hosts, do not belong to the table.
    let message = dir
        .run("run small.toml --point hops=1 --label bench")
        .expect(2);
    assert!(
        message.stderr.contains("measured --quick"),
        "{}",
        message.stderr
    );
    let args = "run small.toml --quick --on 127.0.0.1 --point hops=1 --label bench";
    let message = dir.run(args).expect(2);
    assert!(
        message.stderr.contains("in labs of this machine"),
        "{}",
        message.stderr
    );
}

/// A file with the name of another point's file is kept; results of finished points are replaced.
#[test]
fn files_of_other_points_are_not_replaced() {
    let test_dir = TestDir::new();
    if !has_labs(&test_dir) {
        skip!("no lab can be built here");
    }
    let text = experiment_file("trip > 0").replace("-i 0\"", "-i 0 --html {dir}/{point}.html\"");
    std::fs::write(test_dir.path().join("small.toml"), text).unwrap();
    let result_dir = test_dir.path().join("linerate-small-bench");
    let measure = |hops: &str| {
        let args = format!("run small.toml --quick --point hops={hops} --label bench");
        test_dir.run(&args)
    };
    measure("0").expect(0);
    assert!(result_dir.join("0-64.html").exists());
    let other = result_dir.join("1-64.html");
    std::fs::write(&other, "mine").unwrap();
    measure("0").expect(0);
    let message = measure("1").expect(2).stderr;
    assert!(message.contains("1-64.html: exists"), "{message}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
    std::fs::remove_file(&other).unwrap();
    for _ in 0..2 {
        measure("1").expect(0);
    }
    assert!(other.exists() && !result_dir.join(".unfinished").exists());
}

#[test]
fn two_processes_add_to_one_table() {
    let dir = TestDir::new();
    if !has_labs(&dir) {
        skip!("no lab can be built here");
    }
    std::fs::write(dir.path().join("small.toml"), experiment_file("trip > 0")).unwrap();
    let add = |hops: &str| {
        let args = format!("run small.toml --quick --point hops={hops} --label both");
        RunningCommand::start(&mut dir.linerate(&args))
    };
    let processes = [add("0"), add("1")];
    for running in processes {
        running.wait().expect(0);
    }
    let table = dir.path().join("linerate-small-both/result.json");
    let table = json(&std::fs::read_to_string(table).unwrap());
    let points = &table["result"]["experiment"]["points"];
    assert_eq!(points.as_array().unwrap().len(), 2, "{points}");
}

#[test]
fn errors_in_a_file_are_reported_before_any_measurement() {
    let dir = TestDir::new();
    for (from, to, expected) in [
        (
            "latency {server}",
            "latenyc {server}",
            "unrecognized subcommand 'latenyc'",
        ),
        (
            "rtt_ns/p50\"]\nunit",
            "rtt_ns/p50\"]\nunits",
            "line 32: not an experiment file",
        ),
        (
            "figures = [\"trip\"]",
            "figures = [\"trap\"]",
            "line 37: table `Median`",
        ),
        ("rtt_ns/p50", "rtt_ns/p51", "line 31: figure `trip`"),
        (
            "steps = true",
            "step = true",
            "line 40: not an experiment file (unknown field `step`",
        ),
        (
            "values = [\"0\", \"1\"]",
            "values = [\"0\", \"-1\"]",
            "`-1` is not a valid number of switches",
        ),
        (
            "name = \"small\"",
            "name = \"../small\"",
            "cannot be the name of a directory",
        ),
    ] {
        let text = experiment_file("trip > 0");
        assert!(text.contains(from), "{from}");
        std::fs::write(dir.path().join("small.toml"), text.replacen(from, to, 1)).unwrap();
        let message = dir.run("run small.toml --quick").expect(2);
        assert!(
            message.stderr.replace('\n', " ").contains(expected),
            "{to}: {}",
            message.stderr
        );
    }
    let message = dir.run("run pmd-threads --on 127.0.0.1").expect(2);
    assert!(
        message.stderr.contains("within one machine"),
        "{}",
        message.stderr
    );
}

#[test]
fn a_figure_that_no_record_has_is_reported() {
    let dir = TestDir::new();
    if !has_labs(&dir) {
        skip!("no lab can be built here");
    }
    // Some records have this figure: those of sockets opened for each round trip.
    let text = experiment_file("trip > 0").replacen("rtt_ns/p50", "whole_ns/p50", 1);
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    // Missing from all points: it may belong to points that were not requested.
    let output = dir.run("run small.toml --quick").expect(0);
    assert!(
        output.stdout.contains("figure missing from all records"),
        "{}",
        output.stdout
    );
}

#[test]
fn an_experiment_runs_against_a_server() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    std::fs::write(dir.path().join("small.toml"), experiment_file("trip > 0")).unwrap();
    let on = format!("127.0.0.1:{}", server.port);
    let args = format!("run small.toml --quick --on {on} --point hops=1 --json");
    let output = dir.run(&args).expect(0);
    let set = json(&output.stdout);
    assert_eq!(set["result"]["experiment"]["location"], on);
    assert_eq!(set["runs"].as_array().unwrap().len(), 1);
    let port = format!("-p {}", server.port);
    let serve = format!("the remote host runs `linerate server {port}`");
    assert!(output.stderr.contains(&serve), "{}", output.stderr);
    let point = &set["result"]["experiment"]["points"][0];
    let around = format!("on 127.0.0.1: linerate server {port} -q --no-store");
    assert_eq!(point["setup_commands"][0], around);
    let command = format!("linerate latency 127.0.0.1 {port} -u -n 50 -l 64 -i 0");
    assert_eq!(point["commands"][0], command);
    // A point that needs another program there is skipped when it cannot be started.
    let text = experiment_file("trip > 0")
        .replace("{server}", &format!("{{server}} -p {}", server.port))
        .replace(
            "ready = \"READY\"\n",
            "ready = \"READY\"\nwhen = { size = \"64\" }\n\n[[remote]]\nhost = \"server\"\nrun = \"stack --dev xdp:eth0 --ip 10.0.0.9/24\"\nwhen = { size = \"1K\" }\n",
        );
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let args = "run small.toml --repeat 1 --on 127.0.0.1 --point hops=1";
    let output = dir.run(args).expect(0);
    let message = output.stdout.replace("\n      ", " ");
    assert!(
        message.contains("127.0.0.1 must run `linerate stack --dev xdp:eth0 --ip 10.0.0.9/24`"),
        "{message}"
    );
    assert!(
        output
            .stderr
            .contains("the remote host runs `linerate server`"),
        "{}",
        output.stderr
    );
}

/// Returns an experiment whose knobs are set by a user's command, without a network.
fn with_commands(port: u16) -> String {
    let head = experiment_head("turned", "Turned");
    format!(
        r#"{head}repeats = 1

[[knobs]]
name = "window"
values = ["1", "2"]
set = "echo {{}} >> turned"
restore = "echo back >> turned"

[[knobs]]
name = "rate"
values = ["1M", "2M"]

[[measure]]
host = "client"
run = "throughput 127.0.0.1 -p {port} -u -b {{rate}} -l 1000 -t 0.1 -i 0"

[[figures]]
name = "goodput"
from = ["/summary/goodput_bps"]
unit = "bit-rate"
description = "payload that arrived"
"#
    )
}

#[test]
fn a_knob_with_a_command_is_set_and_restored() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let file = with_commands(server.port);
    std::fs::write(dir.path().join("turned.toml"), &file).unwrap();
    let log = || std::fs::read_to_string(dir.path().join("turned")).unwrap_or_default();
    dir.run("run turned.toml --json").expect(0);
    assert_eq!(log(), "1\n2\nback\n");
    // A point whose knob cannot be set is not measured and has the reason.
    let failing = file.replace("echo {} >> turned", "test {} = 1 && echo {} >> turned");
    std::fs::write(dir.path().join("failing.toml"), failing).unwrap();
    let set = json(&dir.run("run failing.toml --json").expect(0).stdout);
    let points = &set["result"]["experiment"]["points"];
    assert!(points[0]["skipped"].is_null(), "{points:#}");
    assert!(points[2]["skipped"].is_string(), "{points:#}");
    assert_eq!(log(), "1\n2\nback\n1\nback\n");
    for wrong in [
        file.replace("echo {} >> turned", "echo"),
        file.replace("set = \"echo {} >> turned\"\n", ""),
    ] {
        std::fs::write(dir.path().join("wrong.toml"), wrong).unwrap();
        dir.run("run wrong.toml").expect(2);
    }
}

/// Returns two points against a server of this host, without a network; `remote` starts the server,
/// or is empty.
fn local_experiment(remote: &str, measure: &str) -> String {
    by_size(remote, &format!("{measure} -u -n 20 -i 0"))
}

/// An error that every point would repeat ends the experiment at its first point, with the next
/// step.
#[test]
fn a_mistake_that_stays_ends_an_experiment_at_its_first_point() {
    let dir = TestDir::new();
    for (name, secret) in [
        ("one", "a secret that is long enough to be one"),
        ("other", "another secret that is long enough too"),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, secret).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, private).unwrap();
    }
    let port = free_port();
    let remote =
        |run: &str| format!("[[remote]]\nhost = \"server\"\nrun = \"{run}\"\nready = \"READY\"\n");
    let measure = format!("latency {{server}} -p {port}");
    let other_key = local_experiment(
        &remote(&format!("server -q --no-store -p {port} --key one")),
        &format!("{measure} --key other"),
    );
    let no_file = local_experiment(
        &remote(&format!("server -q --no-store -p {port} --key none-such")),
        &measure,
    );
    let no_such_host = local_experiment("", "latency none-such.invalid");
    for (text, code, situation, next) in [
        (&other_key, 5, "another key", "same secret"),
        (&no_file, 1, "did not start", "run it by hand"),
        (&no_such_host, 5, "no such host name", "check the spelling"),
    ] {
        std::fs::write(dir.path().join("small.toml"), text).unwrap();
        let ended = dir.run("run small.toml --repeat 9 --no-store").expect(code);
        let message = join_lines(&ended.stderr);
        for part in [situation, next, "every point", "point 1 of 18"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(!message.contains("point 2 of 18"), "{message}");
        assert!(!dir.path().join("linerate-small").exists(), "it is empty");
    }
}

/// A refused connection is retried, and measured once a server is there.
#[test]
fn temporary_failures_are_retried() {
    let dir = TestDir::new();
    let port = free_port();
    let text = local_experiment("", &format!("latency {{server}} -p {port}"));
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let mut command = dir.linerate("run small.toml --repeat 3 --json --no-store");
    let mut running = RunningCommand::start(&mut command);
    // The first attempt was refused. The next ones wait until the server has started.
    running.wait_error_line(|line| line.contains("retried"));
    running.send_signal(Signal::STOP);
    let mut server = dir.linerate(&format!("server -q --no-store -p {port}"));
    let mut server = RunningCommand::start(&mut server);
    server.wait_line(|line| line.starts_with("READY"));
    running.send_signal(Signal::CONT);
    let ended = running.wait().expect(0);
    let points = &ended.json()["result"]["experiment"]["points"];
    let points = points.as_array().unwrap();
    assert!(
        points.len() == 2 && points.iter().all(|point| point["skipped"].is_null()),
        "{points:?}"
    );
    // Without any server it ends after the second point, not after all of them.
    let no_server = local_experiment("", &format!("latency {{server}} -p {}", free_port()));
    std::fs::write(dir.path().join("small.toml"), no_server).unwrap();
    let ended = dir.run("run small.toml --repeat 9 --no-store").expect(5);
    assert!(ended.stderr.contains("point 2 of 18"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("point 3 of 18"), "{}", ended.stderr);
}

/// However an experiment is killed, its finished measurements are in the store and are not
/// repeated.
#[test]
fn a_killed_experiment_is_resumed() {
    let dir = TestDir::new();
    let server = dir.server("-q --no-store");
    // The remote program of the last point kills its parent, the first time.
    let script = "test -e killed || { touch killed; kill -9 $PPID; exec sleep 60; }\necho GO\nexec sleep 60\n";
    std::fs::write(dir.path().join("far.sh"), script).unwrap();
    let remote = "[[remote]]\nhost = \"server\"\nexec = \"sh far.sh\"\nready = \"GO\"\nwhen = { size = \"1K\" }\n";
    let text = local_experiment(remote, &format!("latency 127.0.0.1 -p {}", server.port));
    std::fs::write(dir.path().join("small.toml"), &text).unwrap();
    let killed = dir.run("run small.toml --repeat 1");
    assert_eq!(killed.status.code(), None, "{killed:#?}");
    let resume_line = killed.stderr.split("after a crash: linerate ").nth(1);
    let resume = resume_line
        .and_then(|resume_line| resume_line.lines().next())
        .expect("a command");
    let stored = dir.stored();
    assert_eq!(stored.len(), 1, "the point that was measured");
    assert_eq!(stored[0]["label"], "size=64");
    // The resumed experiment is the one that was started.
    std::fs::write(dir.path().join("small.toml"), "nonsense").unwrap();
    let unknown = dir.run("run --resume 2026 --json").expect(1).json();
    let next = unknown["error"]["next_step"].as_str().unwrap();
    assert!(next.contains("(small.toml, 1 point measured)"), "{next}");
    let set = dir.run(&format!("{resume} --json")).expect(0).json();
    let points = &set["result"]["experiment"]["points"];
    assert_eq!(points[0]["runs"][0], stored[0]["id"], "{points:#}");
    assert!(points[1]["skipped"].is_null(), "{points:#}");
    assert!(dir.path().join("linerate-small/report.html").exists());
    // There is nothing left to resume.
    dir.run(resume).expect(1);
}
