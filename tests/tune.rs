//! `linerate tune`: changes with an effect are found and proved, and every setting is restored.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::time::Duration;

use common::{Finished, Lab, Room, Running, Server, finish, is_root, lab, one_of};
use rustix::process::Signal;
use serde_json::Value;

fn tuning(set: &Value) -> &Value {
    assert_eq!(set["schema"], "linerate/set/1", "{set:#}");
    assert_eq!(set["kind"], "tune");
    &set["result"]["tuning"]
}

/// Repeats a search until it finds and proves the rate alone. By chance the other knob is sometimes
/// found too, and runs that a busy machine starved may hide the best rate.
#[track_caller]
fn rate_is_found(mut search: impl FnMut() -> Value) -> Value {
    one_of(4, || {
        let set = search();
        let found = tuning(&set);
        let changes = found["changes"].as_array().expect("changes");
        let is_rate = changes.len() == 1
            && (&changes[0]["knob"], &changes[0]["to"]) == (&"rate".into(), &"2M".into());
        match is_rate && found["proof"]["verdict"] == "faster" {
            true => Ok(set),
            false => Err(format!("{:#} {:#}", found["changes"], found["proof"])),
        }
    })
}

/// A knob with a known effect, set by a command: the rate of the measurement itself.
#[test]
fn a_planted_change_is_found_proved_and_set_back() {
    let room = Room::new();
    let server = room.server("-q");
    fs::write(
        room.path().join("knobs.toml"),
        "[[knob]]\nname = \"rate\"\nvalues = [\"1M\", \"1500k\", \"2M\"]\noption = \"bitrate\"\n\
         [[knob]]\nname = \"nothing\"\nvalues = [1, 2]\nset = \"echo {} >> turned\"\n",
    )
    .expect("a file");
    // The start value of an option's knob is its first value.
    let words = format!(
        "tune 127.0.0.1 --json --seed 1 --goal goodput -u -t 100ms --max-pairs 24 -p {} --knob-file knobs.toml \
         --knobs rate,nothing -- -l 1000",
        server.port
    );
    let set = rate_is_found(|| room.run(&words).expect(0).json());
    let found = tuning(&set);
    assert!(
        found["tuned_command"]
            .as_str()
            .expect("a command")
            .contains("--bitrate=2M")
    );
    let snippet = &found["snippets"][0];
    assert_eq!(snippet["text"], "[tuned]\nbitrate = \"2M\"", "{found:#}");
    let spent = &found["spent"];
    let sum: u64 = ["check", "search", "minimal_set", "proof"]
        .iter()
        .filter_map(|what| spent[what].as_u64())
        .sum();
    assert_eq!(found["runs"].as_u64(), Some(sum), "{found:#}");
    let turned = fs::read_to_string(room.path().join("turned")).expect("it was set");
    assert_eq!(
        turned.lines().last(),
        Some("1"),
        "back at its start: {turned}"
    );
    // Runs for the start only: no setting was rejected.
    let short = words.replace("--json", "--runs 2 --keep");
    let done = room.run(&short).expect(0).stdout;
    assert!(!done.contains("Rejected settings"), "{done}");
    let before = "runs: at most 2 for the search, then at most 48 for each change that it finds";
    assert!(done.contains(before), "{done}");
    assert!(
        done.contains("not tried: rate=1500k, 2M; nothing=2"),
        "{done}"
    );
    assert!(done.contains("--keep kept nothing"), "{done}");
}

#[test]
fn the_knobs_of_an_experiment_are_searched() {
    let room = Room::new();
    let server = room.server("-q");
    let file = format!(
        "name = \"rates\"\ntitle = \"Rates\"\nquestion = \"Which?\"\nwithout_root = \"All of it.\"\n\
         [[knobs]]\nname = \"rate\"\nvalues = [\"1M\", \"1500K\", \"2M\"]\n\
         [[knobs]]\nname = \"size\"\nvalues = [\"1000\", \"1001\"]\n\
         [[measure]]\nhost = \"client\"\n\
         run = \"throughput 127.0.0.1 -p {} -u -b {{rate}} -l {{size}} -t 0.1 -i 0\"\n\
         [[figures]]\nname = \"goodput\"\nfrom = [\"/summary/goodput_bps\"]\nunit = \"bit-rate\"\nsays = \"It.\"\n",
        server.port
    );
    fs::write(room.path().join("rates.toml"), file).expect("a file");
    let words = "tune --experiment rates.toml --goal goodput --seed 1 --max-pairs 20 --json";
    let set = rate_is_found(|| room.run(words).expect(0).json());
    let found = tuning(&set);
    assert_eq!(found["command"], "run rates.toml --repeat=1", "{found:#}");
    let tuned = found["tuned_command"].as_str().expect("a command");
    assert!(tuned.contains("--point=rate=2M"), "{tuned}");
    assert!(!room.path().join("linerate-rates").exists());
    for (words, said) in [
        ("tune --experiment none.toml", "no experiment"),
        ("tune --experiment rates.toml --knobs wait", "no such knob"),
        ("tune --experiment rates.toml -u", "cannot be used"),
    ] {
        let done = room.run(words).expect(2);
        assert!(done.stderr.contains(said), "{words}: {}", done.stderr);
    }
}

/// A setting without a reply is rejected, as long as the start value still gets replies.
#[test]
fn a_far_end_that_is_gone_for_one_setting_ends_nothing() {
    let room = Room::new();
    let server = room.server("-q");
    let knobs = format!(
        "[[knob]]\nname = \"door\"\nvalues = [{}, 1]\noption = \"port\"\n",
        server.port
    );
    fs::write(room.path().join("knobs.toml"), knobs).expect("a file");
    let words = "tune 127.0.0.1 -t 100ms --runs 6 --max-pairs 4 --knob-file knobs.toml --knobs door,no-delay --json -- -b 1M";
    let set = room.run(words).expect(0).json();
    let found = tuning(&set);
    let vain = found["vain"].to_string();
    assert!(vain.contains("door"), "{found:#}");
    // The knob keeps its start value, although there is nothing left to choose.
    let trials = found["trials"].as_array().into_iter().flatten();
    let measured = trials.filter(|trial| trial["value"].is_number()).count();
    assert!(measured > 2, "{found:#}");
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    let room = Room::new();
    for (words, said) in [
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
        let done = room.run(words).expect(2);
        assert!(done.stderr.contains(said), "{words}: {}", done.stderr);
    }
    let done = room.run("tune --restore").expect(0);
    assert!(
        done.stdout.contains("nothing to restore"),
        "{}",
        done.stdout
    );
}

#[test]
fn a_start_that_cannot_be_set_ends_it_and_what_did_not_go_back_is_told() {
    let room = Room::new();
    fs::write(
        room.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [1, 2]\nset = \"echo {} is too much >&2; false\"\n",
    )
    .expect("a file");
    let words = "tune 127.0.0.1 -u --knob-file knobs.toml --knobs window";
    let done = room.run(words).expect(1);
    for said in [
        "the start",
        "1 is too much",
        "warning: could not be restored",
    ] {
        assert!(done.stderr.contains(said), "{said}: {done:#?}");
    }
    let left = room.run("tune --restore").expect(1);
    assert!(left.stderr.contains("1 setting could not"), "{left:#?}");
}

/// Otherwise every value would be rejected, and the result would be that nothing helps.
#[test]
fn without_a_place_for_its_journal_nothing_is_searched() {
    let room = Room::new();
    let mut command = room.linerate("tune 127.0.0.1 --try-host --knobs tcp-limit-output");
    command.env("XDG_STATE_HOME", "/dev/null/state");
    let done = finish(&mut command).expect(1);
    for said in ["the journal of changes", "XDG_STATE_HOME"] {
        assert!(done.stderr.contains(said), "{said}: {done:#?}");
    }
}

/// With too few pairs no found change could be proved.
#[test]
fn pairs_that_can_prove_nothing_are_told_before_the_search() {
    let room = Room::new();
    let done = room.run("tune 127.0.0.1 -p 1 --max-pairs 7").expect(5);
    assert!(done.stderr.contains("at least 8"), "{done:#?}");
    let done = room.run("tune 127.0.0.1 -p 1 --max-pairs 8").expect(5);
    assert!(!done.stderr.contains("at least"), "{done:#?}");
}

/// Lab with a server, in which `linerate` is found in PATH.
struct Host {
    _server: Running,
    lab: Lab,
}

impl Host {
    fn up(test: &str) -> Result<Self, String> {
        let lab = Lab::up(Room::new(), &format!("tune-{test}"), "--hops 0")?;
        let server = lab.server("-q").running;
        Ok(Self {
            lab,
            _server: server,
        })
    }

    /// Returns a command on a host, with the directory of the tested binary first in PATH.
    fn on(&self, host: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let binary = self.lab.room.binary();
        let own = binary.parent().expect("a folder").to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&path)));
        let mut command = self.lab.on(host, words);
        command.env("PATH", path.expect("a path"));
        command
    }

    fn command(&self, words: &str) -> Command {
        self.on("client", words.split_whitespace())
    }

    fn run(&self, words: &str) -> Finished {
        finish(&mut self.command(words))
    }

    /// Returns all settings of this host's network and link that a host knob could change.
    fn snapshot(&self) -> Vec<String> {
        let sysctls = self.run("grep -rs . /proc/sys/net/ipv4 /proc/sys/net/core");
        let mut all: Vec<String> = sysctls.stdout.lines().map(str::to_owned).collect();
        // Some of them are counters, or are generated at first use.
        all.retain(|line| !line.contains("/tcp_fastopen_key:"));
        all.sort();
        assert!(all.len() > 50, "{all:?}");
        for words in ["ip -d link show eth0", "ethtool -k eth0"] {
            all.extend(self.run(words).stdout.lines().map(str::to_owned));
        }
        all
    }
}

#[test]
fn settings_of_a_lab_go_back_however_it_ends() {
    let lab = lab!(Host::up("back"));
    let before = lab.snapshot();
    let words = "linerate tune 10.77.0.2 --goal goodput -t 150ms --runs 14 --max-pairs 8 --seed 2 \
                 --knobs gso-size,tcp-rmem,tcp-limit-output,mtu,offloads,rps,rings";
    let set = lab.run(&format!("{words} --json")).expect(0).json();
    let found = tuning(&set);
    let knobs = found["knobs"].as_array().expect("knobs");
    let trials = found["trials"].as_array().expect("trials");
    assert!(!knobs.is_empty() && trials.len() > 2, "{found:#}");
    let vain = found["vain"].as_array().expect("rejected settings");
    assert!(
        vain.iter().any(|vain| vain["knob"] == "rings"),
        "a veth has no rings to set: {found:#}"
    );
    assert!(found["spent"]["search"].as_u64() >= Some(3), "{found:#}");
    let turned = trials
        .iter()
        .filter(|trial| trial["setting"].as_object().is_some_and(|s| !s.is_empty()));
    assert!(turned.count() > 0, "{found:#}");
    assert_eq!(lab.snapshot(), before);

    // Interrupted while something is changed: the end restores it.
    let words = words.replace("-t 150ms", "-t 1");
    let mut running = Running::start(&mut lab.command(&words));
    running.line(|line| line.starts_with("search run 4 of 14 at most:"));
    let journals = lab.lab.room.path().join(".local/state/linerate/tune");
    common::soon("a journal", || {
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

/// A window of one page that a setting enlarges: many times faster on any machine.
#[test]
fn what_is_kept_stays_and_nothing_else_does() {
    let lab = lab!(Host::up("keep"));
    fs::write(
        lab.lab.room.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [\"4096 4096 4096\", \"4096 131072 6291456\"]\n\
         sysctl = \"net.ipv4.tcp_rmem\"\n\
         [[knob]]\nname = \"nothing\"\nvalues = [1, 2]\nset = \"echo {} > nothing\"\n\
         restore = \"echo as before > nothing\"\n",
    )
    .expect("a file");
    let file = "/proc/sys/net/ipv4/tcp_rmem";
    // The value before is neither of the two. The receiver is started for each run, with the
    // current window: a server's sockets have that of its start.
    let before = "4096 4096 4200";
    for host in ["client", "server"] {
        lab.lab
            .shell(host, &format!("echo {before} > {file}"))
            .expect("it is writable");
    }
    let others = |lab: &Host| {
        let mut all = lab.snapshot();
        all.retain(|line| !line.contains("/tcp_rmem:"));
        all
    };
    let rest = others(&lab);
    let words = "linerate tune 10.77.0.2 -t 150ms --runs 12 --max-pairs 8 --seed 2 --knob-file knobs.toml \
                 --knobs window,nothing";
    let window = |host: &str| {
        let read = finish(&mut lab.on(host, ["cat", file])).stdout;
        read.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let done = lab.run(&format!("{words} -- -R")).expect(0);
    assert!(done.stdout.contains("window"), "{done:#?}");
    assert_eq!([window("client"), window("server")], [before; 2]);
    let done = lab.run(&format!("{words} --keep --json -- -R")).expect(0);
    let set = done.json();
    let found = tuning(&set);
    assert_eq!(found["kept"], true, "{found:#}");
    let notes = set["result"]["notes"].to_string();
    assert!(
        notes.contains("to restore it: sysctl -w net.ipv4.tcp_rmem="),
        "{notes}"
    );
    assert_eq!(
        [window("client"), window("server")],
        ["4096 131072 6291456"; 2]
    );
    assert_eq!(others(&lab), rest);
    let changes = found["changes"].as_array().into_iter().flatten();
    if !changes.clone().any(|change| change["knob"] == "nothing") {
        let nothing = fs::read_to_string(lab.lab.room.path().join("nothing"));
        assert_eq!(nothing.expect("it was set"), "as before\n");
    }
    let left = lab.run("linerate tune --restore").expect(0);
    assert!(left.stdout.contains("nothing to restore"), "{left:#?}");
}

#[test]
fn what_a_kill_leaves_is_restored() {
    let lab = lab!(Host::up("kill"));
    let before = lab.snapshot();
    let line = "linerate tune 10.77.0.2 -t 2s --knobs tcp-limit-output & echo $! > pid; wait";
    let mut running = Running::start(&mut lab.on("client", ["sh", "-c", line]));
    let limit = "/proc/sys/net/ipv4/tcp_limit_output_bytes";
    let original = lab.run(&format!("cat {limit}")).expect(0).stdout;
    // The start value is measured twice, then each value once.
    running.line(|line| line.starts_with("search run 3 "));
    let pid = fs::read_to_string(lab.lab.room.path().join("pid")).expect("a process");
    let pid = pid.trim();
    // A stopped process restores nothing between the check and the kill.
    common::soon("a stopped process with its change", || {
        lab.run(&format!("kill -STOP {pid}")).expect(0);
        let turned = lab.run(&format!("cat {limit}")).stdout != original;
        if !turned {
            lab.run(&format!("kill -CONT {pid}")).expect(0);
        }
        turned
    });
    lab.run(&format!("kill -9 {pid}")).expect(0);
    assert_ne!(
        lab.run(&format!("cat {limit}")).stdout,
        original,
        "a killed process restores nothing"
    );
    let elsewhere = lab.lab.room.run("tune --restore");
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
    let again = lab.run("linerate tune --restore").expect(0);
    assert!(again.stdout.contains("nothing to restore"), "{again:#?}");
}

#[test]
fn a_knob_of_the_users_own_is_restored_after_a_kill() {
    let room = Room::new();
    let server = room.server("-q");
    fs::write(room.path().join("window"), "before\n").expect("a file");
    fs::write(
        room.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [1, 2, 3]\nset = \"echo {} > window\"\n\
         restore = \"echo before > window\"\n",
    )
    .expect("a file");
    let words = format!(
        "tune 127.0.0.1 -u -t 300ms -p {} --knob-file knobs.toml --knobs window -- -b 1M -l 1000",
        server.port
    );
    let window = || fs::read_to_string(room.path().join("window")).expect("a file");
    let mut running = Running::start(&mut room.linerate(&words));
    running.line(|line| line.starts_with("search run 3 "));
    // A stopped process restores nothing between the check and the kill.
    common::soon("a stopped process with its change", || {
        running.signal(Signal::STOP);
        // Its last command may still end.
        std::thread::sleep(Duration::from_millis(200));
        let turned = window() != "before\n";
        if !turned {
            running.signal(Signal::CONT);
        }
        turned
    });
    running.signal(Signal::KILL);
    drop(running);
    assert_ne!(window(), "before\n", "a killed process restores nothing");
    let mut compare = room.linerate("compare --pairs 1 --figure ([0-9]+)");
    compare.args(["--command-a=echo 1", "--command-b=echo 2"]);
    let told = finish(&mut compare).expect(6);
    let note = "1 setting is still changed by a killed command";
    assert!(told.stderr.contains(note), "{told:#?}");
    // Also before any other measurement there, once, and not again by its subprocesses.
    for words in [
        "forward --dev ring:0 -t 0.1 --idle yield --no-store",
        "generate --dev ring:0 --pps 1000 -t 0.1 --no-store",
        "throughput 127.0.0.1 -p 1 -t 0.1 --no-store",
    ] {
        println!("{words}");
        let said = finish(&mut room.linerate(words)).stderr;
        assert_eq!(said.matches(note).count(), 1, "{said}");
        assert!(said.contains("`linerate tune --restore`"), "{said}");
        let mut part = room.linerate(words);
        let said = finish(part.env("LINERATE_PART", "1")).stderr;
        assert!(!said.contains(note), "{said}");
    }
    // From another directory: the command refers to the one where it was typed.
    let mut restore = room.linerate("tune --restore");
    let done = finish(restore.current_dir("/")).expect(0);
    assert!(done.stdout.contains("1 setting restored"), "{done:#?}");
    assert_eq!(window(), "before\n");
}

#[test]
fn the_far_host_is_turned_only_when_its_server_grants_it() {
    let lab = lab!(Host::up("far"));
    let far = |words: &str| finish(&mut lab.on("server", words.split_whitespace()));
    let file = "cat /proc/sys/net/ipv4/tcp_rmem";
    let before = far(file).stdout;
    let words = "linerate tune 10.77.0.2 --goal goodput -t 150ms --runs 6 --max-pairs 8 --seed 2 --json \
                 --try-far --knobs far-tcp-rmem";
    let refused = lab.run(words).expect(4).json();
    assert!(
        refused["error"]["situation"]
            .as_str()
            .is_some_and(|why| why.contains("--grant tune")),
        "{refused:#}"
    );
    let words = words.replace("--try-far", "-p 5299 --try-far");
    let line = "echo $$ > far-pid; exec linerate server -q -p 5299 --grant tune";
    let _server = Server::start(&mut lab.on("server", ["sh", "-c", line]));
    let mut command = lab.command(&words);
    let running = std::thread::scope(|scope| {
        let tuned = scope.spawn(move || finish(&mut command));
        common::soon("a change at the far host", || {
            tuned.is_finished() || far(file).stdout != before
        });
        tuned.join().expect("it ends")
    });
    let set = running.expect(0).json();
    let found = tuning(&set);
    let turned = found["trials"].as_array().into_iter().flatten();
    let mut turned = turned.filter(|trial| trial["setting"]["far-tcp-rmem"].is_string());
    assert!(turned.next().is_some(), "{found:#}");
    assert_eq!(far(file).stdout, before);

    // Its server is killed: the client does not claim that all is restored, and a restore there
    // works.
    let pid = fs::read_to_string(lab.lab.room.path().join("far-pid")).expect("a process");
    let pid = pid.trim();
    // Long enough at each value to be seen.
    let words = words.replace("-t 150ms", "-t 3s");
    let killed = std::thread::scope(|scope| {
        let mut command = lab.command(&words);
        let tuned = scope.spawn(move || finish(&mut command));
        // A stopped server changes nothing between the check and the kill.
        common::soon("a stopped server with its change", || {
            far(&format!("kill -STOP {pid}")).expect(0);
            let turned = far(file).stdout != before;
            if !turned {
                far(&format!("kill -CONT {pid}")).expect(0);
            }
            turned
        });
        far(&format!("kill -9 {pid}")).expect(0);
        tuned.join().expect("it ends")
    });
    assert_eq!(killed.code(), 5, "{killed:#?}");
    assert_ne!(
        far(file).stdout,
        before,
        "a killed process restores nothing"
    );
    assert!(
        !killed.stdout.contains("all settings are restored")
            && killed.stdout.contains("restore` there"),
        "{killed:#?}"
    );
    far("linerate tune --restore").expect(0);
    assert_eq!(far(file).stdout, before);
}
