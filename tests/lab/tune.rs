//! `linerate tune`: changes with an effect are found and proved, and every setting is restored.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::common::{
    FinishedCommand, LinerateServer, RunningCommand, TestDir, TestLab, finish, is_root, join_lines,
    lab,
};
use rustix::process::Signal;
use serde_json::Value;

fn tuning(set: &Value) -> &Value {
    assert_eq!(set["schema"], "linerate/set/1", "{set:#}");
    assert_eq!(set["kind"], "tune");
    &set["result"]["tuning"]
}

/// Checks that a search found and proved the rate alone, which has the only effect. By chance the
/// other knob is sometimes found too, and runs that a busy machine starved may hide the best rate.
#[track_caller]
fn assert_rate_is_found(result: &Value) {
    let changes = result["changes"].as_array().expect("changes");
    assert_eq!(changes.len(), 1, "{result:#}");
    let change = (&changes[0]["knob"], &changes[0]["to"]);
    assert_eq!(change, (&"rate".into(), &"2M".into()), "{result:#}");
    assert_eq!(result["proof"]["verdict"], "faster", "{result:#}");
}

/// Checks what holds for each result, whatever was found: the tuned command has each change, and the
/// runs of all phases are counted.
#[track_caller]
fn assert_consistent(result: &Value, argument: impl Fn(&str, &str) -> Option<String>) {
    let tuned = result["tuned_command"].as_str();
    for change in result["changes"].as_array().into_iter().flatten() {
        let text = |key: &str| change[key].as_str().expect("a text").to_owned();
        if let Some(argument) = argument(&text("knob"), &text("to")) {
            assert!(
                tuned.is_some_and(|tuned| tuned.contains(&argument)),
                "{result:#}"
            );
        }
    }
    let verdict = &result["proof"]["verdict"];
    let permitted = ["faster", "slower", "no-difference", "undecided"];
    assert!(
        verdict.is_null() || permitted.iter().any(|name| verdict == name),
        "{result:#}"
    );
    let counts = &result["run_counts"];
    let sum: u64 = ["check", "search", "minimal_set", "proof"]
        .iter()
        .filter_map(|phase| counts[phase].as_u64())
        .sum();
    assert_eq!(result["runs"].as_u64(), Some(sum), "{result:#}");
}

/// Searches knobs with a known effect, which are set by a command: the rate of the measurement
/// itself, and nothing. Returns the result and the arguments.
fn search_known_change(dir: &TestDir, server: &LinerateServer, pairs: u32) -> (Value, String) {
    fs::write(
        dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"rate\"\nvalues = [\"1M\", \"1500k\", \"2M\"]\noption = \"bitrate\"\n\
         [[knob]]\nname = \"nothing\"\nvalues = [1, 2]\nset = \"echo {} >> turned\"\n",
    )
    .expect("a file");
    // The start value of an option's knob is its first value.
    let args = format!(
        "tune 127.0.0.1 --json --seed 1 --goal goodput -u -t 100ms --max-pairs {pairs} -p {} --knob-file knobs.toml \
         --knobs rate,nothing -- -l 1000",
        server.port
    );
    let result = tuning(&dir.run(&args).expect(0).json()).clone();
    assert_consistent(&result, |knob, value| {
        (knob == "rate").then(|| format!("--bitrate={value}"))
    });
    (result, args)
}

#[test]
fn a_known_change_is_found_and_confirmed() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let (result, _) = search_known_change(&dir, &server, 24);
    assert_rate_is_found(&result);
    let snippet = &result["snippets"][0];
    assert_eq!(snippet["text"], "[tuned]\nbitrate = \"2M\"", "{result:#}");
}

#[test]
fn a_search_restores_its_knobs() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let (_, args) = search_known_change(&dir, &server, 8);
    let changed = fs::read_to_string(dir.path().join("turned")).expect("it was set");
    assert_eq!(
        changed.lines().last(),
        Some("1"),
        "back at its start: {changed}"
    );
    // Runs for the start only: no setting was rejected.
    let short = args.replace("--json", "--runs 2 --keep");
    let done = dir.run(&short).expect(0).stdout;
    assert!(!done.contains("Rejected settings"), "{done}");
    let before = "runs: at most 2 for the search, then at most 16 for each change that it finds";
    assert!(done.contains(before), "{done}");
    assert!(
        done.contains("not tried: rate=1500k, 2M; nothing=2"),
        "{done}"
    );
    assert!(done.contains("--keep kept nothing"), "{done}");
}

/// Searches the knobs of an experiment.
fn search_experiment(dir: &TestDir, server: &LinerateServer, pairs: u32) -> Value {
    let file = format!(
        "name = \"rates\"\ntitle = \"Rates\"\nquestion = \"Which?\"\nwithout_root = \"All of it.\"\n\
         [[knobs]]\nname = \"rate\"\nvalues = [\"1M\", \"1500K\", \"2M\"]\n\
         [[knobs]]\nname = \"size\"\nvalues = [\"1000\", \"1001\"]\n\
         [[measure]]\nhost = \"client\"\n\
         run = \"throughput 127.0.0.1 -p {} -u -b {{rate}} -l {{size}} -t 0.1 -i 0\"\n\
         [[figures]]\nname = \"goodput\"\nfrom = [\"/summary/goodput_bps\"]\nunit = \"bit-rate\"\nsays = \"It.\"\n",
        server.port
    );
    fs::write(dir.path().join("rates.toml"), file).expect("a file");
    let args =
        format!("tune --experiment rates.toml --goal goodput --seed 1 --max-pairs {pairs} --json");
    let result = tuning(&dir.run(&args).expect(0).json()).clone();
    assert_eq!(result["command"], "run rates.toml --repeat=1", "{result:#}");
    assert_consistent(&result, |knob, value| Some(format!("{knob}={value}")));
    result
}

#[test]
fn the_best_knobs_of_an_experiment_are_found() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let result = search_experiment(&dir, &server, 20);
    assert_rate_is_found(&result);
    let tuned = result["tuned_command"].as_str().expect("a command");
    assert!(tuned.contains("--point=rate=2M"), "{tuned}");
}

#[test]
fn the_knobs_of_an_experiment_are_searched() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    search_experiment(&dir, &server, 8);
    assert!(!dir.path().join("linerate-rates").exists());
    for (args, expected) in [
        (
            "tune --experiment none.toml",
            "neither a shipped experiment",
        ),
        ("tune --experiment rates.toml --knobs wait", "no such knob"),
        ("tune --experiment rates.toml -u", "cannot be used"),
    ] {
        let done = dir.run(args).expect(2);
        assert!(done.stderr.contains(expected), "{args}: {}", done.stderr);
    }
}

/// A setting without a reply is rejected, as long as the start value still gets replies.
#[test]
fn a_setting_without_a_server_ends_nothing() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let knobs = format!(
        "[[knob]]\nname = \"door\"\nvalues = [{}, 1]\noption = \"port\"\n",
        server.port
    );
    fs::write(dir.path().join("knobs.toml"), knobs).expect("a file");
    let args = "tune 127.0.0.1 -t 100ms --runs 6 --max-pairs 4 --knob-file knobs.toml --knobs door,no-delay --json -- -b 1M";
    let set = dir.run(args).expect(0).json();
    let result = tuning(&set);
    let rejected_settings = result["rejected"].to_string();
    assert!(rejected_settings.contains("door"), "{result:#}");
    // The knob keeps its start value, although there is nothing left to choose.
    let trials = result["trials"].as_array().into_iter().flatten();
    let measured = trials.filter(|trial| trial["value"].is_number()).count();
    assert!(measured > 2, "{result:#}");
}

#[test]
fn nonsense_is_rejected_before_anything_runs() {
    let dir = TestDir::new();
    for (args, expected) in [
        ("tune", "required"),
        ("tune 127.0.0.1 --goal pps", "no datagrams"),
        ("tune 127.0.0.1 --knobs speed", "no such knob"),
        ("tune 127.0.0.1 --under cpu=1", "only memory"),
        (
            "tune 127.0.0.1 --knobs cpu -- --cpu 0/0",
            "no knob can be set here",
        ),
        ("tune 127.0.0.1 --knob-file none", "cannot be read"),
        ("tune 127.0.0.1 --limit speed=1..2", "no such knob"),
        ("tune 127.0.0.1 --limit mtu", "LEAST..MOST"),
        (
            "tune 127.0.0.1 --knobs write-size --limit write-size=1G..",
            "excludes all values of the knob",
        ),
        ("tune 127.0.0.1 --effect 0", "out of range"),
        ("tune 127.0.0.1 --max-pairs 0", "no pair to measure"),
        ("tune 127.0.0.1 --runs 0", "no run to search with"),
        ("tune 127.0.0.1 --try-interface eth0", "--try-host"),
        (
            "tune 127.0.0.1 --try-host --try-interface none0",
            "no such interface",
        ),
        (
            "tune 127.0.0.1 --try-host --try-interface lo --knobs mtu",
            "carries the control connection",
        ),
    ] {
        let done = dir.run(args).expect(2);
        assert!(done.stderr.contains(expected), "{args}: {}", done.stderr);
    }
    let done = dir.run("tune --restore").expect(0);
    assert!(
        done.stdout.contains("nothing to restore"),
        "{}",
        done.stdout
    );
}

#[test]
fn a_start_that_cannot_be_set_ends_the_run_and_unrestored_settings_are_reported() {
    let dir = TestDir::new();
    fs::write(
        dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [1, 2]\nset = \"echo {} is too much >&2; false\"\n",
    )
    .expect("a file");
    let args = "tune 127.0.0.1 -u --knob-file knobs.toml --knobs window";
    let done = dir.run(args).expect(1);
    for expected in [
        "the baseline",
        "1 is too much",
        "warning: could not be restored",
    ] {
        assert!(done.stderr.contains(expected), "{expected}: {done:#?}");
    }
    let restore_output = dir.run("tune --restore").expect(1);
    assert!(
        restore_output.stderr.contains("1 setting could not"),
        "{restore_output:#?}"
    );
}

/// Otherwise every value would be rejected, and the result would be that nothing helps.
#[test]
fn without_a_place_for_its_journal_nothing_is_searched() {
    let dir = TestDir::new();
    let mut command = dir.linerate("tune 127.0.0.1 --try-host --knobs tcp-limit-output");
    command.env("XDG_STATE_HOME", "/dev/null/state");
    let done = finish(&mut command).expect(1);
    for expected in ["the journal of changes", "XDG_STATE_HOME"] {
        assert!(done.stderr.contains(expected), "{expected}: {done:#?}");
    }
}

/// With too few pairs no found change could be proved.
#[test]
fn too_few_pairs_are_reported_before_the_search() {
    let dir = TestDir::new();
    let done = dir.run("tune 127.0.0.1 -p 1 --max-pairs 7").expect(5);
    assert!(done.stderr.contains("at least 8"), "{done:#?}");
    let done = dir.run("tune 127.0.0.1 -p 1 --max-pairs 8").expect(5);
    assert!(!done.stderr.contains("at least"), "{done:#?}");
}

/// Lab with a server, in which `linerate` is found in PATH.
struct TuneLab {
    _server: RunningCommand,
    lab: TestLab,
}

impl TuneLab {
    fn up(test: &str) -> Result<Self, String> {
        let lab = TestLab::up(TestDir::new(), &format!("tune-{test}"), "--hops 0")?;
        let server = lab.server("-q").running;
        Ok(Self {
            lab,
            _server: server,
        })
    }

    /// Returns a command on a host, with the directory of the tested binary first in PATH.
    fn command_on(&self, host: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let binary = self.lab.dir.binary();
        let binary_dir = binary.parent().expect("a folder").to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::join_paths(std::iter::once(binary_dir).chain(std::env::split_paths(&path)));
        let mut command = self.lab.command_on(host, args);
        command.env("PATH", path.expect("a path"));
        command
    }

    fn command(&self, args: &str) -> Command {
        self.command_on("client", args.split_whitespace())
    }

    fn run(&self, args: &str) -> FinishedCommand {
        finish(&mut self.command(args))
    }

    /// Returns all settings of this host's network and link that a host knob could change.
    fn snapshot(&self) -> Vec<String> {
        let sysctls = self.run("grep -rs . /proc/sys/net/ipv4 /proc/sys/net/core");
        let mut all: Vec<String> = sysctls.stdout.lines().map(str::to_owned).collect();
        // Some of them are counters, or are generated at first use.
        all.retain(|line| !line.contains("/tcp_fastopen_key:"));
        all.sort();
        assert!(all.len() > 50, "{all:?}");
        for args in ["ip -d link show eth0", "ethtool -k eth0"] {
            all.extend(self.run(args).stdout.lines().map(str::to_owned));
        }
        all
    }
}

#[test]
fn settings_of_a_lab_go_back_however_it_ends() {
    let lab = lab!(TuneLab::up("back"));
    let before = lab.snapshot();
    let args = "linerate tune 10.77.0.2 --goal goodput -t 150ms --runs 14 --max-pairs 8 --seed 2 \
                 --knobs gso-size,tcp-rmem,tcp-limit-output,mtu,offloads,rps,rings";
    let set = lab.run(&format!("{args} --json")).expect(0).json();
    let result = tuning(&set);
    let knobs = result["knobs"].as_array().expect("knobs");
    let trials = result["trials"].as_array().expect("trials");
    assert!(!knobs.is_empty() && trials.len() > 2, "{result:#}");
    let rejected_settings = result["rejected"].as_array().expect("rejected settings");
    assert!(
        rejected_settings
            .iter()
            .any(|setting| setting["knob"] == "rings"),
        "a veth has no rings to set: {result:#}"
    );
    assert!(
        result["run_counts"]["search"].as_u64() >= Some(3),
        "{result:#}"
    );
    let changed = trials
        .iter()
        .filter(|trial| trial["setting"].as_object().is_some_and(|s| !s.is_empty()));
    assert!(changed.count() > 0, "{result:#}");
    assert_eq!(lab.snapshot(), before);

    // Interrupted while something is changed: the end restores it.
    let args = args.replace("-t 150ms", "-t 1");
    let mut running = RunningCommand::start(&mut lab.command(&args));
    running.wait_line(|line| line.starts_with("search run 4 of 14 at most:"));
    let journals = lab.lab.dir.path().join(".local/state/linerate/tune");
    crate::common::wait_until("a journal", || {
        fs::read_dir(&journals).is_ok_and(|files| files.count() > 0)
    });
    // The running process is a child of `lab exec`, in the lab's PID namespace.
    running.interrupt();
    let done = running.wait().expect(130);
    assert!(
        done.stdout.contains("not decided") && !done.stdout.contains("No tested change"),
        "{done:#?}"
    );
    assert!(
        done.stdout.contains("all settings are restored"),
        "{done:#?}"
    );
    assert_eq!(lab.snapshot(), before, "after an interrupt");
}

/// Settings of the receive window in a lab: the window before a search, those of its knob, and all
/// other settings.
const WINDOW_FILE: &str = "/proc/sys/net/ipv4/tcp_rmem";
const WINDOW_BEFORE: &str = "4096 4096 4200";
const LARGE_WINDOW: &str = "4096 131072 6291456";

/// Lab with a window of one page that a knob enlarges: many times faster on any machine. The window
/// before is no value of the knob. The receiver is started for each run, with the current window: a
/// server's sockets have that of its start.
fn window_lab(test: &str) -> Result<TuneLab, String> {
    let lab = TuneLab::up(test)?;
    fs::write(
        lab.lab.dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [\"4096 4096 4096\", \"4096 131072 6291456\"]\n\
         sysctl = \"net.ipv4.tcp_rmem\"\n\
         [[knob]]\nname = \"nothing\"\nvalues = [1, 2]\nset = \"echo {} > nothing\"\n\
         restore = \"echo as before > nothing\"\n",
    )
    .expect("a file");
    for host in ["client", "server"] {
        lab.lab
            .shell(host, &format!("echo {WINDOW_BEFORE} > {WINDOW_FILE}"))
            .expect("it is writable");
    }
    Ok(lab)
}

/// Returns the window at both hosts.
fn windows(lab: &TuneLab) -> [String; 2] {
    ["client", "server"]
        .map(|host| join_lines(&finish(&mut lab.command_on(host, ["cat", WINDOW_FILE])).stdout))
}

/// Searches the window, and a knob without an effect.
fn search_window(lab: &TuneLab, options: &str) -> FinishedCommand {
    lab.run(&format!(
        "linerate tune 10.77.0.2 -t 100ms --runs 6 --max-pairs 8 --seed 2 --knob-file knobs.toml \
         --knobs window,nothing {options} -- -R"
    ))
    .expect(0)
}

#[test]
fn settings_stay_only_with_keep() {
    let lab = lab!(window_lab("window"));
    let done = search_window(&lab, "");
    assert!(done.stdout.contains("window"), "{done:#?}");
    assert_eq!(windows(&lab), [WINDOW_BEFORE; 2]);
}

#[test]
fn only_kept_settings_stay() {
    let lab = lab!(window_lab("keep"));
    let other_settings = |lab: &TuneLab| {
        let mut all = lab.snapshot();
        all.retain(|line| !line.contains("/tcp_rmem:"));
        all
    };
    let rest = other_settings(&lab);
    let done = search_window(&lab, "--keep --json");
    let set = done.json();
    let result = tuning(&set);
    assert_eq!(result["settings_kept"], true, "{result:#}");
    let notes = set["result"]["notes"].to_string();
    assert!(
        notes.contains("to restore it: sysctl -w net.ipv4.tcp_rmem="),
        "{notes}"
    );
    assert_eq!(windows(&lab), [LARGE_WINDOW; 2]);
    assert_eq!(other_settings(&lab), rest);
    let changes = result["changes"].as_array().into_iter().flatten();
    if !changes.clone().any(|change| change["knob"] == "nothing") {
        let nothing = fs::read_to_string(lab.lab.dir.path().join("nothing"));
        assert_eq!(nothing.expect("it was set"), "as before\n");
    }
    let restore_output = lab.run("linerate tune --restore").expect(0);
    assert!(
        restore_output.stdout.contains("nothing to restore"),
        "{restore_output:#?}"
    );
}

#[test]
fn leftovers_of_a_kill_are_restored() {
    let lab = lab!(TuneLab::up("kill"));
    let before = lab.snapshot();
    let line = "linerate tune 10.77.0.2 -t 2s --knobs tcp-limit-output & echo $! > pid; wait";
    let mut running = RunningCommand::start(&mut lab.command_on("client", ["sh", "-c", line]));
    let limit = "/proc/sys/net/ipv4/tcp_limit_output_bytes";
    let original = lab.run(&format!("cat {limit}")).expect(0).stdout;
    // The start value is measured twice, then each value once.
    running.wait_line(|line| line.starts_with("search run 3 "));
    let pid = fs::read_to_string(lab.lab.dir.path().join("pid")).expect("a process");
    let pid = pid.trim();
    // A stopped process restores nothing between the check and the kill.
    crate::common::wait_until("a stopped process with its change", || {
        lab.run(&format!("kill -STOP {pid}")).expect(0);
        let changed = lab.run(&format!("cat {limit}")).stdout != original;
        if !changed {
            lab.run(&format!("kill -CONT {pid}")).expect(0);
        }
        changed
    });
    lab.run(&format!("kill -9 {pid}")).expect(0);
    assert_ne!(
        lab.run(&format!("cat {limit}")).stdout,
        original,
        "a killed process restores nothing"
    );
    let elsewhere = lab.lab.dir.run("tune --restore");
    let done = if is_root() {
        // A user that may enter that network can restore it from anywhere.
        elsewhere.expect(0)
    } else {
        let elsewhere = elsewhere.expect(1);
        assert!(
            elsewhere
                .stderr
                .contains("if that network no longer exists"),
            "{elsewhere:#?}"
        );
        assert!(!elsewhere.stdout.contains("restored"), "{elsewhere:#?}");
        lab.run("linerate tune --restore").expect(0)
    };
    assert!(done.stdout.contains("restored"), "{done:#?}");
    assert_eq!(lab.snapshot(), before);
    let second_restore = lab.run("linerate tune --restore").expect(0);
    assert!(
        second_restore.stdout.contains("nothing to restore"),
        "{second_restore:#?}"
    );
}

#[test]
fn a_user_defined_knob_is_restored_after_a_kill() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    fs::write(dir.path().join("window"), "before\n").expect("a file");
    fs::write(
        dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [1, 2, 3]\nset = \"echo {} > window\"\n\
         restore = \"echo before > window\"\n",
    )
    .expect("a file");
    let args = format!(
        "tune 127.0.0.1 -u -t 300ms -p {} --knob-file knobs.toml --knobs window -- -b 1M -l 1000",
        server.port
    );
    let window = || fs::read_to_string(dir.path().join("window")).expect("a file");
    let mut running = RunningCommand::start(&mut dir.linerate(&args));
    running.wait_line(|line| line.starts_with("search run 3 "));
    // A stopped process restores nothing between the check and the kill.
    crate::common::wait_until("a stopped process with its change", || {
        running.send_signal(Signal::STOP);
        // Its last command may still end.
        std::thread::sleep(Duration::from_millis(200));
        let changed = window() != "before\n";
        if !changed {
            running.send_signal(Signal::CONT);
        }
        changed
    });
    running.send_signal(Signal::KILL);
    drop(running);
    assert_ne!(window(), "before\n", "a killed process restores nothing");
    let mut compare = dir.linerate("compare --pairs 1 --figure ([0-9]+)");
    compare.args(["--command-a=echo 1", "--command-b=echo 2"]);
    let comparison_output = finish(&mut compare).expect(6);
    let note = "1 setting is still changed by a killed command";
    assert!(
        comparison_output.stderr.contains(note),
        "{comparison_output:#?}"
    );
    // Also before any other measurement there, once, and not again by its subprocesses.
    for args in [
        "forward --dev ring:0 -t 0.1 --idle yield --no-store",
        "generate --dev ring:0 --pps 1000 -t 0.1 --no-store",
        "throughput 127.0.0.1 -p 1 -t 0.1 --no-store",
    ] {
        println!("{args}");
        let message = finish(&mut dir.linerate(args)).stderr;
        assert_eq!(message.matches(note).count(), 1, "{message}");
        assert!(message.contains("`linerate tune --restore`"), "{message}");
        let mut part = dir.linerate(args);
        let message = finish(part.env("LINERATE_PART", "1")).stderr;
        assert!(!message.contains(note), "{message}");
    }
    // From another directory: the command refers to the one where it was typed.
    let mut restore = dir.linerate("tune --restore");
    let done = finish(restore.current_dir("/")).expect(0);
    assert!(done.stdout.contains("1 setting restored"), "{done:#?}");
    assert_eq!(window(), "before\n");
}

#[test]
fn the_server_host_is_changed_only_when_its_server_grants_it() {
    let lab = lab!(TuneLab::up("far"));
    let on_server = |args: &str| finish(&mut lab.command_on("server", args.split_whitespace()));
    let file = "cat /proc/sys/net/ipv4/tcp_rmem";
    let before = on_server(file).stdout;
    let args = "linerate tune 10.77.0.2 --goal goodput -t 150ms --runs 6 --max-pairs 8 --seed 2 --json \
                 --try-far --knobs server-tcp-rmem";
    let rejected = lab.run(args).expect(4).json();
    assert!(
        rejected["error"]["situation"]
            .as_str()
            .is_some_and(|why| why.contains("--grant tune")),
        "{rejected:#}"
    );
    let args = args.replace("--try-far", "-p 5299 --try-far");
    let line = "echo $$ > far-pid; exec linerate server -q -p 5299 --grant tune";
    let _server = LinerateServer::start(&mut lab.command_on("server", ["sh", "-c", line]));
    let mut command = lab.command(&args);
    let running = std::thread::scope(|scope| {
        let tuned = scope.spawn(move || finish(&mut command));
        crate::common::wait_until("a change at the far host", || {
            tuned.is_finished() || on_server(file).stdout != before
        });
        tuned.join().expect("it ends")
    });
    let set = running.expect(0).json();
    let result = tuning(&set);
    let changed = result["trials"].as_array().into_iter().flatten();
    let mut changed = changed.filter(|trial| trial["setting"]["server-tcp-rmem"].is_string());
    assert!(changed.next().is_some(), "{result:#}");
    assert_eq!(on_server(file).stdout, before);

    // Its server is killed: the client does not claim that all is restored, and a restore there
    // works.
    let pid = fs::read_to_string(lab.lab.dir.path().join("far-pid")).expect("a process");
    let pid = pid.trim();
    // Long enough at each value to be seen.
    let args = args.replace("-t 150ms", "-t 3s");
    let killed = std::thread::scope(|scope| {
        let mut command = lab.command(&args);
        let tuned = scope.spawn(move || finish(&mut command));
        // A stopped server changes nothing between the check and the kill.
        crate::common::wait_until("a stopped server with its change", || {
            on_server(&format!("kill -STOP {pid}")).expect(0);
            let changed = on_server(file).stdout != before;
            if !changed {
                on_server(&format!("kill -CONT {pid}")).expect(0);
            }
            changed
        });
        on_server(&format!("kill -9 {pid}")).expect(0);
        tuned.join().expect("it ends")
    });
    assert_eq!(killed.exit_code(), 5, "{killed:#?}");
    assert_ne!(
        on_server(file).stdout,
        before,
        "a killed process restores nothing"
    );
    assert!(
        !killed.stdout.contains("all settings are restored")
            && killed.stdout.contains("restore` there"),
        "{killed:#?}"
    );
    on_server("linerate tune --restore").expect(0);
    assert_eq!(on_server(file).stdout, before);
}
