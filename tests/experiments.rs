//! Complete experiments: the shipped ones are listed, a small one runs to its report, points are
//! added to a table.

mod common;
#[path = "common/experiment.rs"]
mod experiment;

use common::{Room, Running, finish, free_port, one_of, skip};
use experiment::{TRIP, by_size, head};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns an experiment of two sizes in a lab; its expectation always holds, or never.
fn file(rule: &str) -> String {
    let head = head("small", "A small <experiment>");
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

[[far]]
host = "server"
run = "server -q --no-store"
ready = "READY"

[[measure]]
host = "client"
run = "latency {{server}} -u -n 50 -l {{size}} -i 0"
{TRIP}
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
says = "it takes time"
rule = "{rule}"
why = "Because."
"#
    )
}

/// Removes the note that a busy machine adds to a verdict.
fn sure(text: &str) -> String {
    text.replace(", in doubt", "")
}

fn has_labs(room: &Room) -> bool {
    // Tests run in parallel, and a name can be used once.
    let folder = room.path().file_name().expect("a folder").to_string_lossy();
    let name = format!("probe-{}", folder.trim_start_matches('.'));
    let up = room.run(&format!("lab up --hops 0 --name {name}"));
    let up = up.code() == 0;
    if up {
        room.run(&format!("lab down {name}"));
    }
    up
}

#[test]
fn what_ships_is_listed_and_printed() {
    let room = Room::new();
    let list = room.run("run --list").expect(0).stdout;
    let alone = room.run("run").expect(2).stderr;
    for name in [
        "stack-tuning",
        "pmd-threads",
        "ttcp-calls",
        "udp-response",
        "udp-hops",
    ] {
        assert!(list.contains(name) && alone.contains(name), "{list}{alone}");
        let text = room.run(&format!("run {name} --print")).expect(0).stdout;
        assert!(text.contains(&format!("name = \"{name}\"")), "{text}");
    }
    let unknown = room.run("run nothing --json").expect(2).stdout;
    assert!(
        json(&unknown)["error"]["next_step"]
            .as_str()
            .unwrap()
            .contains("udp-hops")
    );
    room.run("run udp-hops --quick --point hops=77").expect(2);
    for on in ["127.0.0.1", "127.0.0.1:none --point hops=1"] {
        let refused = room.run(&format!("run udp-hops --on {on} --quick"));
        let told = refused.expect(2).stderr;
        assert!(!told.contains("--resume"), "nothing was started: {told}");
    }
    let folder = room.path().join("linerate-udp-hops");
    assert!(!folder.exists(), "nothing was started");
}

#[test]
fn an_experiment_gives_tables_a_page_and_records() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    std::fs::write(room.path().join("small.toml"), file("trip > 0")).unwrap();
    let ran = room.run("run small.toml --json").expect(0);
    let set = json(&ran.stdout);
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["runs"].as_array().unwrap().len(), 8);
    let result = &set["result"]["experiment"];
    assert_eq!(result["points"].as_array().unwrap().len(), 4);
    assert_eq!(result["points"][0]["figures"]["trip"]["runs"], 2);
    assert_eq!(result["shapes"][0]["state"], "holds");
    let around = result["points"][2]["around"].as_array().unwrap();
    assert_eq!(around[0], "linerate lab up --name small --hops 1");
    assert_eq!(
        around[1],
        "linerate lab exec small/server -- linerate server -q --no-store &"
    );
    let command = result["points"][2]["commands"][0].as_str().unwrap();
    let typed = "linerate lab exec small/client -- linerate latency 10.77.0.2 ";
    assert!(command.starts_with(typed), "{command}");
    assert_eq!(result["unread"], Value::Null);
    assert!(result["published"][0]["measured"].as_f64().unwrap() > 0.0);
    let page = std::fs::read_to_string(room.path().join("linerate-small/report.html")).unwrap();
    assert!(
        page.contains("A small &lt;experiment&gt;") && page.contains("<svg"),
        "{page}"
    );
    // Each run, and the set.
    assert_eq!(room.stored().len(), 9);

    let id = set["id"].as_str().unwrap();
    let text = room.run(&format!("report {id}")).expect(0).stdout;
    assert!(
        text.contains("added per step") && sure(&text).contains("agrees: it takes time"),
        "{text}"
    );
    let markdown = room
        .run(&format!("report {id} --markdown"))
        .expect(0)
        .stdout;
    assert!(
        markdown.contains("| hops | size=64 | size=1K |"),
        "{markdown}"
    );
}

#[test]
fn a_shape_that_does_not_hold_fails_and_says_why() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    std::fs::write(room.path().join("small.toml"), file("trip < 0")).unwrap();
    let ran = room.run("run small.toml --quick").expect(3);
    assert!(
        sure(&ran.stdout).contains("DOES NOT AGREE: it takes time")
            && ran.stdout.contains("Because."),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_point_that_is_not_for_this_machine_ends_with_the_code_of_what_it_lacks() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    let skip = "[[skip]]\nsetting = { size = \"64\" }\nbecause = \"it is much\"\n";
    for (lacks, code, said) in [
        (
            "cores_below = 100_000\n",
            4,
            "where there are 100000 processors",
        ),
        ("", 2, "select other points (--point)"),
    ] {
        let text = format!("{}\n{skip}{lacks}", file("trip > 0"));
        std::fs::write(room.path().join("small.toml"), text).unwrap();
        let told = room
            .run("run small.toml --quick --point size=64")
            .expect(code);
        let told = told.stderr.replace("\n       ", " ");
        assert!(told.contains("it is much") && told.contains(said), "{told}");
    }
}

#[test]
fn what_cannot_be_stored_is_told_once() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    std::fs::write(room.path().join("small.toml"), file("trip > 0")).unwrap();
    let mut command = room.linerate("run small.toml --quick");
    // No directory can be made there, not even by root.
    let ran = finish(command.env("XDG_DATA_HOME", "/proc/nowhere")).expect(0);
    assert_eq!(
        ran.stderr.matches("cannot store").count(),
        1,
        "{}",
        ran.stderr
    );
    assert!(room.path().join("linerate-small/report.html").exists());
}

#[test]
fn points_are_added_to_a_table() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    std::fs::write(room.path().join("small.toml"), file("trip > 0")).unwrap();
    for (hops, points) in [(0, 1), (1, 2), (1, 2)] {
        let words = format!("run small.toml --quick --point hops={hops} --label bench --json");
        let set = json(&room.run(&words).expect(0).stdout);
        let found = set["result"]["experiment"]["points"]
            .as_array()
            .unwrap()
            .len();
        assert_eq!(found, points, "hops={hops}");
        assert_eq!(set["runs"].as_array().unwrap().len(), points);
    }
    let folder = room.path().join("linerate-small-bench");
    assert!(folder.join("report.html").exists());
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(
        files, 4,
        "the page, the table, and a record of each point; none of the one that was replaced"
    );
    assert!(!room.path().join("linerate-small").exists());
    // Points of another duration, or of real hosts, do not belong to the table.
    let told = room
        .run("run small.toml --point hops=1 --label bench")
        .expect(2);
    assert!(told.stderr.contains("measured --quick"), "{}", told.stderr);
    let words = "run small.toml --quick --on 127.0.0.1 --point hops=1 --label bench";
    let told = room.run(words).expect(2);
    assert!(
        told.stderr.contains("in labs of this machine"),
        "{}",
        told.stderr
    );
}

/// A file with the name of another point's file is kept; results of finished points are replaced.
#[test]
fn files_of_points_that_a_table_has_not_are_their_owners() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    let text = file("trip > 0").replace("-i 0\"", "-i 0 --html {dir}/{point}.html\"");
    std::fs::write(room.path().join("small.toml"), text).unwrap();
    let folder = room.path().join("linerate-small-bench");
    let measure = |hops: &str| {
        let words = format!("run small.toml --quick --point hops={hops} --label bench");
        room.run(&words)
    };
    measure("0").expect(0);
    assert!(folder.join("0-64.html").exists());
    let other = folder.join("1-64.html");
    std::fs::write(&other, "mine").unwrap();
    measure("0").expect(0);
    let told = measure("1").expect(2).stderr;
    assert!(told.contains("1-64.html: exists"), "{told}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
    std::fs::remove_file(&other).unwrap();
    for _ in 0..2 {
        measure("1").expect(0);
    }
    assert!(other.exists() && !folder.join(".unfinished").exists());
}

#[test]
fn two_processes_add_to_one_table() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    std::fs::write(room.path().join("small.toml"), file("trip > 0")).unwrap();
    let add = |hops: &str| {
        let words = format!("run small.toml --quick --point hops={hops} --label both");
        Running::start(&mut room.linerate(&words))
    };
    let both = [add("0"), add("1")];
    for running in both {
        running.wait().expect(0);
    }
    let table = room.path().join("linerate-small-both/result.json");
    let table = json(&std::fs::read_to_string(table).unwrap());
    let points = &table["result"]["experiment"]["points"];
    assert_eq!(points.as_array().unwrap().len(), 2, "{points}");
}

#[test]
fn what_is_wrong_with_a_file_is_told_before_anything_is_measured() {
    let room = Room::new();
    for (from, to, said) in [
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
        let text = file("trip > 0");
        assert!(text.contains(from), "{from}");
        std::fs::write(room.path().join("small.toml"), text.replacen(from, to, 1)).unwrap();
        let told = room.run("run small.toml --quick").expect(2);
        assert!(
            told.stderr.replace('\n', " ").contains(said),
            "{to}: {}",
            told.stderr
        );
    }
    let told = room.run("run pmd-threads --on 127.0.0.1").expect(2);
    assert!(
        told.stderr.contains("within one machine"),
        "{}",
        told.stderr
    );
}

#[test]
fn a_figure_that_no_record_has_is_told() {
    let room = Room::new();
    if !has_labs(&room) {
        skip!("no lab can be built here");
    }
    // Some records have this figure: those of sockets opened for each round trip.
    let text = file("trip > 0").replacen("rtt_ns/p50", "whole_ns/p50", 1);
    std::fs::write(room.path().join("small.toml"), text).unwrap();
    // Missing from all points: it may belong to points that were not requested.
    let ran = room.run("run small.toml --quick").expect(0);
    assert!(
        ran.stdout.contains("figure missing from all records"),
        "{}",
        ran.stdout
    );
}

#[test]
fn it_runs_against_a_host_that_serves() {
    let room = Room::new();
    let server = room.server("-q");
    std::fs::write(room.path().join("small.toml"), file("trip > 0")).unwrap();
    let on = format!("127.0.0.1:{}", server.port);
    let words = format!("run small.toml --quick --on {on} --point hops=1 --json");
    let ran = room.run(&words).expect(0);
    let set = json(&ran.stdout);
    assert_eq!(set["result"]["experiment"]["place"], on);
    assert_eq!(set["runs"].as_array().unwrap().len(), 1);
    let port = format!("-p {}", server.port);
    let serve = format!("the remote host runs `linerate server {port}`");
    assert!(ran.stderr.contains(&serve), "{}", ran.stderr);
    let point = &set["result"]["experiment"]["points"][0];
    let around = format!("on 127.0.0.1: linerate server {port} -q --no-store");
    assert_eq!(point["around"][0], around);
    let command = format!("linerate latency 127.0.0.1 {port} -u -n 50 -l 64 -i 0");
    assert_eq!(point["commands"][0], command);
    // A point that needs another program there is skipped when it cannot be started.
    let text = file("trip > 0")
        .replace("{server}", &format!("{{server}} -p {}", server.port))
        .replace(
            "ready = \"READY\"\n",
            "ready = \"READY\"\nwhen = { size = \"64\" }\n\n[[far]]\nhost = \"server\"\nrun = \"stack --dev xdp:eth0 --ip 10.0.0.9/24\"\nwhen = { size = \"1K\" }\n",
        );
    std::fs::write(room.path().join("small.toml"), text).unwrap();
    let words = "run small.toml --repeat 1 --on 127.0.0.1 --point hops=1";
    let ran = room.run(words).expect(0);
    let told = ran.stdout.replace("\n      ", " ");
    assert!(
        told.contains("127.0.0.1 must run `linerate stack --dev xdp:eth0 --ip 10.0.0.9/24`"),
        "{told}"
    );
    assert!(
        ran.stderr
            .contains("the remote host runs `linerate server`"),
        "{}",
        ran.stderr
    );
}

/// Returns an experiment whose knobs are set by a user's command, without a network.
fn with_commands(port: u16) -> String {
    let head = head("turned", "Turned");
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
says = "payload that arrived"
"#
    )
}

#[test]
fn a_knob_with_a_command_is_turned_and_set_back() {
    let room = Room::new();
    let server = room.server("-q");
    let file = with_commands(server.port);
    std::fs::write(room.path().join("turned.toml"), &file).unwrap();
    let turned = || std::fs::read_to_string(room.path().join("turned")).unwrap_or_default();
    room.run("run turned.toml --json").expect(0);
    assert_eq!(turned(), "1\n2\nback\n");
    // A point whose knob cannot be set is not measured and has the reason.
    let failing = file.replace("echo {} >> turned", "test {} = 1 && echo {} >> turned");
    std::fs::write(room.path().join("failing.toml"), failing).unwrap();
    let set = json(&room.run("run failing.toml --json").expect(0).stdout);
    let points = &set["result"]["experiment"]["points"];
    assert!(points[0]["skipped"].is_null(), "{points:#}");
    assert!(points[2]["skipped"].is_string(), "{points:#}");
    assert_eq!(turned(), "1\n2\nback\n1\nback\n");
    for wrong in [
        file.replace("echo {} >> turned", "echo"),
        file.replace("set = \"echo {} >> turned\"\n", ""),
    ] {
        std::fs::write(room.path().join("wrong.toml"), wrong).unwrap();
        room.run("run wrong.toml").expect(2);
    }
}

/// Returns two points against a server of this host, without a network; `far` starts the server, or
/// is empty.
fn at_home(far: &str, measure: &str) -> String {
    by_size(far, &format!("{measure} -u -n 20 -i 0"))
}

/// An error that every point would repeat ends the experiment at its first point, with the next
/// step.
#[test]
fn a_mistake_that_stays_ends_an_experiment_at_its_first_point() {
    let room = Room::new();
    for (name, secret) in [
        ("one", "a secret that is long enough to be one"),
        ("other", "another secret that is long enough too"),
    ] {
        let file = room.path().join(name);
        std::fs::write(&file, secret).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, private).unwrap();
    }
    let port = free_port();
    let far =
        |run: &str| format!("[[far]]\nhost = \"server\"\nrun = \"{run}\"\nready = \"READY\"\n");
    let measure = format!("latency {{server}} -p {port}");
    let other_key = at_home(
        &far(&format!("server -q --no-store -p {port} --key one")),
        &format!("{measure} --key other"),
    );
    let no_file = at_home(
        &far(&format!("server -q --no-store -p {port} --key none-such")),
        &measure,
    );
    let no_such_host = at_home("", "latency none-such.invalid");
    for (text, code, says, next) in [
        (&other_key, 5, "another key", "same secret"),
        (&no_file, 1, "did not start", "run it by hand"),
        (&no_such_host, 5, "no such host name", "check the spelling"),
    ] {
        std::fs::write(room.path().join("small.toml"), text).unwrap();
        let ended = room
            .run("run small.toml --repeat 9 --no-store")
            .expect(code);
        // Lines are wrapped at the terminal's width.
        let said = ended
            .stderr
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        for part in [says, next, "every point", "[1/18]"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("[2/18]"), "{said}");
        assert!(!room.path().join("linerate-small").exists(), "it is empty");
    }
}

/// A refused connection is retried, and measured once a server is there.
#[test]
fn what_may_pass_is_tried_again() {
    let room = Room::new();
    // On a busy machine a server may need longer to start than the retries last.
    let ended = one_of(5, || {
        let port = free_port();
        let text = at_home("", &format!("latency {{server}} -p {port}"));
        std::fs::write(room.path().join("small.toml"), text).unwrap();
        let mut command = room.linerate("run small.toml --repeat 3 --json --no-store");
        let mut running = Running::start(&mut command);
        // The first attempt was refused.
        running.error_line(|line| line.contains("retried"));
        let mut server = room.linerate(&format!("server -q --no-store -p {port}"));
        let mut server = Running::start(&mut server);
        server.line(|line| line.starts_with("READY"));
        let ended = running.wait();
        match ended.code() {
            5 => Err(format!("it started too late: {ended:#?}")),
            _ => Ok(ended.expect(0)),
        }
    });
    let points = &ended.json()["result"]["experiment"]["points"];
    let points = points.as_array().unwrap();
    assert!(
        points.len() == 2 && points.iter().all(|point| point["skipped"].is_null()),
        "{points:?}"
    );
    // Without any server it ends after the second point, not after all of them.
    let nobody = at_home("", &format!("latency {{server}} -p {}", free_port()));
    std::fs::write(room.path().join("small.toml"), nobody).unwrap();
    let ended = room.run("run small.toml --repeat 9 --no-store").expect(5);
    assert!(ended.stderr.contains("[2/18]"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("[3/18]"), "{}", ended.stderr);
}

/// However an experiment is killed, its finished measurements are in the store and are not
/// repeated.
#[test]
fn what_is_killed_half_way_is_gone_on_with() {
    let room = Room::new();
    let server = room.server("-q --no-store");
    // The remote program of the last point kills its parent, the first time.
    let script = "test -e killed || { touch killed; kill -9 $PPID; exec sleep 60; }\necho GO\nexec sleep 60\n";
    std::fs::write(room.path().join("far.sh"), script).unwrap();
    let far = "[[far]]\nhost = \"server\"\nexec = \"sh far.sh\"\nready = \"GO\"\nwhen = { size = \"1K\" }\n";
    let text = at_home(far, &format!("latency 127.0.0.1 -p {}", server.port));
    std::fs::write(room.path().join("small.toml"), &text).unwrap();
    let killed = room.run("run small.toml --repeat 1");
    assert_eq!(killed.status.code(), None, "{killed:#?}");
    let said = killed.stderr.split("after a crash: linerate ").nth(1);
    let resume = said
        .and_then(|said| said.lines().next())
        .expect("a command");
    let kept = room.stored();
    assert_eq!(kept.len(), 1, "the point that was measured");
    assert_eq!(kept[0]["label"], "size=64");
    // The resumed experiment is the one that was started.
    std::fs::write(room.path().join("small.toml"), "nonsense").unwrap();
    let unknown = room.run("run --resume 2026 --json").expect(1).json();
    let next = unknown["error"]["next_step"].as_str().unwrap();
    assert!(next.contains("(small.toml, 1 point measured)"), "{next}");
    let set = room.run(&format!("{resume} --json")).expect(0).json();
    let points = &set["result"]["experiment"]["points"];
    assert_eq!(points[0]["runs"][0], kept[0]["id"], "{points:#}");
    assert!(points[1]["skipped"].is_null(), "{points:#}");
    assert!(room.path().join("linerate-small/report.html").exists());
    // There is nothing left to resume.
    room.run(resume).expect(1);
}
