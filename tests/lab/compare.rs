//! `linerate compare`: two interleaved sides, stored results, and the output for scripts.

use std::fs;
use std::process::Command;

use crate::common::{
    FinishedCommand, RunningCommand, TestDir, TestLab, assert_record, finish, lab,
};
use serde_json::Value;

/// Returns `linerate` pinned to one processor: which pairs count depends on the machine's state
/// between two processors, so this is the same on every machine.
fn pinned_command<'a>(dir: &TestDir, args: impl IntoIterator<Item = &'a str>) -> Command {
    let usable = rustix::thread::sched_getaffinity(None).expect("an affinity mask");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| usable.is_set(cpu));
    let first = first.expect("one").to_string();
    let mut command = dir.command("taskset", ["-c", &first]);
    command.arg(dir.binary()).args(args);
    command
}

fn comparison(set: &Value) -> &Value {
    assert_eq!(set["schema"], "linerate/set/1", "{set:#}");
    assert_eq!(set["kind"], "compare");
    &set["result"]["comparison"]
}

/// Returns a shell line that prints a number with some noise; each call takes the next value of a
/// counter in a file.
fn noisy(middle: f64) -> String {
    format!(
        "n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n > n; \
         echo $n {middle} | awk '{{ print $2 * (1 + 0.02 * (($1 * 37) % 19 - 9) / 9) }}'"
    )
}

#[test]
fn numbers_of_two_commands() {
    for (a, b, better, verdict, code) in [
        (100.0, 100.0, "higher", "no-difference", 0),
        (100.0, 120.0, "higher", "faster", 0),
        (100.0, 120.0, "lower", "slower", 3),
        (100.0, 80.0, "higher", "slower", 3),
    ] {
        let dir = TestDir::new();
        let (a, b) = (noisy(a), noisy(b));
        let args = ["compare", "--json", "--seed", "7", "--better", better];
        let sides = ["--command-a", &a, "--command-b", &b];
        let mut command = pinned_command(&dir, args.into_iter().chain(sides));
        let set = finish(&mut command).expect(code).json();
        let result = comparison(&set);
        assert_eq!(result["verdict"], verdict, "{result:#}");
        assert_eq!(result["seed"], 7);
        assert_eq!(result["better"], better);
        let pairs = result["pairs"].as_array().expect("pairs");
        let counted = pairs.iter().filter(|pair| pair.get("dropped").is_none());
        assert!(counted.count() >= 8, "{result:#}");
        let ratio = &result["ratio"];
        assert!(
            ratio["low"].as_f64() <= ratio["high"].as_f64(),
            "{result:#}"
        );
    }
}

/// A metric whose good value is zero has a difference, but no ratio.
#[test]
fn figures_at_zero_have_a_difference() {
    for (a, b, verdict, code) in [
        (0, 12, "slower", 3),
        (12, 0, "faster", 0),
        (0, 0, "no-difference", 0),
    ] {
        let dir = TestDir::new();
        let (of_a, of_b) = (format!("echo {a}"), format!("echo {b}"));
        let args = ["compare", "--json", "--better", "lower"];
        let sides = ["--command-a", &of_a, "--command-b", &of_b];
        let mut command = pinned_command(&dir, args.into_iter().chain(sides));
        let set = finish(&mut command).expect(code).json();
        let result = comparison(&set);
        assert_eq!(result["verdict"], verdict, "{result:#}");
        let difference = &result["difference"]["median"];
        assert_eq!(*difference, f64::from(b - a), "{result:#}");
        assert!(result["p_value"].is_number(), "{result:#}");
        assert!(result.get("ratio").is_none(), "{result:#}");
    }
}

#[test]
fn a_figure_is_found_in_the_output_of_a_command() {
    let dir = TestDir::new();
    let args = [
        "compare",
        "--pairs=8",
        "--figure",
        "took ([0-9.]+) s",
        "--better=lower",
        "--command-a",
        "echo it took 1.5 s",
        "--command-b",
        "echo it took 1.2 s",
    ];
    let done = finish(&mut pinned_command(&dir, args)).expect(0);
    assert!(done.stdout.contains("B is better"), "{}", done.stdout);
    assert!(done.stdout.contains("20 % lower"), "{}", done.stdout);
}

#[test]
fn too_few_pairs_are_undecided() {
    let dir = TestDir::new();
    let sides = ["--command-a=echo 1", "--command-b=echo 26"];
    let run = |pairs: &str| {
        let args = ["compare", pairs].into_iter().chain(sides);
        finish(&mut pinned_command(&dir, args))
    };
    let few = run("--pairs=3").expect(6);
    assert!(few.stderr.contains("at least 7 are needed"), "{few:#?}");
    assert!(few.stdout.contains("are needed"), "{few:#?}");
    assert!(!few.stdout.contains("difference larger than"), "{few:#?}");
    let enough = run("--pairs=7").expect(0);
    assert!(enough.stdout.contains("B is better"), "{enough:#?}");
    // When the run may stop before this number of pairs, one more is needed for the same p-value.
    let never = run("--max-pairs=7").expect(6);
    assert!(never.stderr.contains("at least 8 are needed"), "{never:#?}");
    assert!(never.stdout.contains("are needed"), "{never:#?}");
    let free = run("--max-pairs=20").expect(0);
    assert!(free.stdout.contains("B is better"), "{free:#?}");
}

/// For example a container without a home.
#[test]
fn a_comparison_without_knobs_needs_no_journal() {
    let dir = TestDir::new();
    let sides = ["--command-a=echo 1", "--command-b=echo 26"];
    let args = ["compare", "--pairs=7", "--no-store"];
    let mut command = pinned_command(&dir, args.into_iter().chain(sides));
    command.env("HOME", "nowhere").env_remove("XDG_STATE_HOME");
    let done = finish(&mut command).expect(0);
    assert!(done.stdout.contains("B is better"), "{done:#?}");
}

#[test]
fn a_user_defined_knob_is_set_for_each_half() {
    let dir = TestDir::new();
    fs::write(
        dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"window\"\nvalues = [1, 2]\nset = \"echo {} > window\"\nrestore = \"echo 0 > window\"\n",
    )
    .expect("a file");
    let args = [
        "compare",
        "--json",
        "--pairs=7",
        "--knob-file=knobs.toml",
        "--knob-b=window=4",
        "--command-a=cat window",
        "--command-b=cat window",
    ];
    let set = finish(&mut pinned_command(&dir, args)).expect(0).json();
    let result = comparison(&set);
    assert_eq!(result["verdict"], "faster", "{result:#}");
    // Side A has the knob's start value.
    assert_eq!(
        result["ratio"]["median"].as_f64().map(f64::round),
        Some(4.0),
        "{result:#}"
    );
    let window = fs::read_to_string(dir.path().join("window")).expect("it was set");
    assert_eq!(window, "0\n");
}

#[test]
fn prepare_commands_run_before_each_half() {
    let dir = TestDir::new();
    let args = [
        "compare",
        "--pairs=3",
        "--prepare-a=echo a >> log",
        "--prepare-b=echo b >> log",
        "--command-a=echo 1 >> log; echo 1",
        "--command-b=echo 2 >> log; echo 2",
    ];
    finish(&mut dir.command(dir.binary(), args)).expect(6);
    let log = fs::read_to_string(dir.path().join("log")).expect("a log");
    let lines: Vec<_> = log.lines().collect();
    // A pair during which the machine's state changed is measured again, up to three times in all.
    assert!((12..=36).contains(&lines.len()), "{log}");
    assert_eq!(lines.len() % 4, 0, "{log}");
    for half in lines.chunks(2) {
        assert!(matches!(half, ["a", "1"] | ["b", "2"]), "{log}");
    }
}

/// Returns the verdict of a comparison, whose exit code is that of the verdict.
#[track_caller]
fn verdict(done: &FinishedCommand) -> String {
    let verdict = comparison(&done.json())["verdict"]
        .as_str()
        .expect("one")
        .to_owned();
    let code = match verdict.as_str() {
        "slower" => 3,
        "undecided" => 6,
        "faster" | "no-difference" => 0,
        other => panic!("{other}: {done:#?}"),
    };
    assert_eq!(done.exit_code(), code, "{done:#?}");
    verdict
}

#[test]
fn a_slower_side_of_a_measurement_is_found() {
    let dir = TestDir::new();
    let result = compare_rates(&dir);
    assert_eq!(result["verdict"], "slower", "{result:#}");
    let ratio = result["ratio"]["median"].as_f64().expect("a ratio");
    assert!((0.86..0.94).contains(&ratio), "{result:#}");
}

#[test]
fn options_of_two_sides_of_a_measurement() {
    let dir = TestDir::new();
    let result = compare_rates(&dir);
    // Stored runs can be compared again, by file and by id.
    let id = |letter: &str| {
        result[letter]["records"][0]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let rerun = dir
        .run(&format!("compare {} {} --json", id("a"), id("b")))
        .expect(6)
        .json();
    let rerun = comparison(&rerun);
    assert_eq!(
        rerun["verdict"], "undecided",
        "one run shows nothing: {rerun:#}"
    );
    assert_eq!(rerun["test"], "mann-whitney");
}

/// Compares two rates of which one is 10 % lower, and checks what holds for each verdict.
fn compare_rates(dir: &TestDir) -> Value {
    let server = dir.server("-q");
    // A rate that both sides reach makes a change of 10 % exact, on a busy machine too.
    let args = format!(
        "compare --json --html page.html --max-pairs 40 --a=-b1M --b=-b900k \
         throughput 127.0.0.1 -p {} -u -l 1000 -t 300ms",
        server.port
    );
    let done = dir.run(&args);
    let (verdict, set) = (verdict(&done), done.json());
    let result = comparison(&set);
    assert_eq!(result["figure"], "goodput");
    assert_eq!(result["regression"], verdict == "slower", "{result:#}");
    let runs = set["runs"].as_array().expect("runs");
    // Pairs during which the machine's state changed are left out and measured again.
    assert!(
        runs.len() >= 16 && runs.len().is_multiple_of(2),
        "{} runs",
        runs.len()
    );
    runs.iter().for_each(assert_record);
    let page = fs::read_to_string(dir.path().join("page.html")).expect("a page");
    assert!(page.contains("in each pair"), "no chart of the pairs");
    result.clone()
}

/// Measures two rates, of which one is a fifth lower, into a file each.
fn measure_sets(dir: &TestDir) {
    let server = dir.server("-q");
    for (rate, file) in [("1M", "old.json"), ("800k", "new.json")] {
        let args = format!(
            "throughput 127.0.0.1 -p {} -u -l 1000 -b {rate} -t 200ms --repeat 8 -q -o {file}",
            server.port
        );
        dir.run(&args).expect(0);
    }
}

#[test]
fn sets_that_were_measured_separately() {
    let dir = TestDir::new();
    measure_sets(&dir);
    for args in ["compare old.json new.json", "compare old.json old.json"] {
        let verdict = verdict(&dir.run(&format!("{args} --json")));
        let text = match verdict.as_str() {
            "slower" => "B is slower",
            "faster" => "B is faster",
            "no-difference" => "No difference",
            _ => "Undecided",
        };
        let printed = dir.run(args).stdout;
        assert!(printed.contains(text), "{args}: {printed}");
    }
}

#[test]
fn a_slower_set_is_found() {
    let dir = TestDir::new();
    measure_sets(&dir);
    for (args, code, expected) in [
        ("compare old.json new.json", 3, "B is slower"),
        ("compare old.json old.json", 0, "No difference"),
    ] {
        let done = dir.run(args).expect(code);
        assert!(done.stdout.contains(expected), "{args}: {done:#?}");
    }
}

#[test]
fn an_interrupt_reports_the_results_so_far() {
    let dir = TestDir::new();
    let args = [
        "compare",
        "--command-a=echo 1",
        "--command-b=test -e many && sleep 60; echo x >> log; test $(wc -l < log) -ge 3 && touch many; echo 1",
    ];
    let mut running = RunningCommand::start(&mut dir.command(dir.binary(), args));
    running.wait_line(|line| line.starts_with("pair 3"));
    running.interrupt();
    let done = running.wait().expect(130);
    assert!(done.stdout.contains("interrupted"), "{done:#?}");
    assert!(done.stdout.contains("Undecided"), "{done:#?}");
}

#[test]
fn nonsense_is_rejected_before_anything_runs() {
    let dir = TestDir::new();
    for (args, expected) in [
        ("compare", "nothing to compare"),
        ("compare one", "no second result"),
        ("compare --b -lx throughput 127.0.0.1", "-lx"),
        ("compare --b=-l64,128 latency 127.0.0.1", "several runs"),
        ("compare --figure speed throughput 127.0.0.1", "no figure"),
        ("compare --effect 0 throughput 127.0.0.1", "--effect"),
        ("compare --command-a true", "--command-b"),
        ("compare one two --knob-b mtu=9000", "--knob-b with results"),
    ] {
        let done = dir.run(args).expect(2);
        assert!(done.stderr.contains(expected), "{args}: {}", done.stderr);
    }
    let done = dir.run("compare one two --json").expect(1);
    assert_eq!(done.json()["error"]["object"], "`one`");
    let done = dir
        .run("compare --command-a false --command-b false")
        .expect(1);
    assert!(done.stderr.contains("code 1"), "{}", done.stderr);
}

/// A side compared with itself in a lab, and with an injected change.
#[test]
fn in_a_lab_a_thing_is_like_itself() {
    let lab = lab!(TestLab::up(TestDir::new(), "compare", "--hops 0"));
    let _server = lab.server("-q");
    // Two hundred datagrams a run: with fewer, 5 % would round to 4 or 6 %.
    let compare = |b: &str| {
        let args = format!(
            "compare --json --effect 4% --b={b} throughput 10.77.0.2 -u -l 250 -b 2M -t 200ms"
        );
        let done = finish(&mut lab.linerate("client", &args));
        println!("{b}: {}", comparison(&done.json())["ratio"]);
        verdict(&done)
    };
    // One in twenty differs by chance (the significance level), and a busy machine may leave one
    // undecided: most must be right.
    let verdicts: Vec<_> = (0..5).map(|_| compare("-b2M")).collect();
    let equal = verdicts
        .iter()
        .filter(|verdict| *verdict == "no-difference");
    assert!(equal.count() >= 3, "{verdicts:?}");
    let verdicts: Vec<_> = (0..3).map(|_| compare("-b1900k")).collect();
    assert!(
        verdicts.iter().any(|verdict| verdict == "slower"),
        "{verdicts:?}"
    );
    assert!(
        verdicts.iter().all(|verdict| verdict != "faster"),
        "{verdicts:?}"
    );
}
