//! Fraction of right verdicts of comparisons in a lab: `make bench-compare`.
//!
//! Results go to `target/bench/compare.jsonl`, one line a comparison: with RESUME=1 those count,
//! and the rest is measured.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{TestDir, TestLab, finish, is_selected, lab};
use serde::{Deserialize, Serialize};

/// Comparisons of one kind: the sides, the measurement and the expected verdict.
struct ComparisonKind {
    name: &'static str,
    sides: &'static [&'static str],
    command: &'static str,
    verdict: &'static str,
}

const SHAPED: &str = "throughput 10.77.0.2 -C cubic -t 200ms";

const KINDS: &[ComparisonKind] = &[
    ComparisonKind {
        name: "stream/itself",
        sides: &[],
        command: "throughput 10.77.0.2 -C cubic -t 100ms",
        verdict: "no-difference",
    },
    ComparisonKind {
        name: "round-trip/itself",
        sides: &[],
        command: "latency 10.77.0.2 -u -t 100ms",
        verdict: "no-difference",
    },
    ComparisonKind {
        name: "shaped/itself",
        sides: &["--prepare-a=RATE 100mbit", "--prepare-b=RATE 100mbit"],
        command: SHAPED,
        verdict: "no-difference",
    },
    ComparisonKind {
        name: "shaped/5-percent",
        sides: &["--prepare-a=RATE 100mbit", "--prepare-b=RATE 95mbit"],
        command: SHAPED,
        verdict: "slower",
    },
    ComparisonKind {
        name: "datagrams/5-percent",
        sides: &["--b=-b19M"],
        command: "throughput 10.77.0.2 -u -l 1000 -b 20M -t 100ms",
        verdict: "slower",
    },
];

/// Result of one comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ComparisonResult {
    kind: String,
    verdict: String,
    ratio: Option<f64>,
    pairs: usize,
    seconds: f64,
}

impl ComparisonResult {
    fn is_of(&self, kind: &ComparisonKind) -> bool {
        self.kind == kind.name
    }

    fn is_right(&self, kind: &ComparisonKind) -> bool {
        self.verdict == kind.verdict
    }

    /// Describes a wrong verdict.
    fn describe(&self) -> String {
        match self.ratio {
            Some(ratio) => format!("{} ({ratio:.3})", self.verdict),
            None => self.verdict.clone(),
        }
    }
}

/// Results and their file.
struct StoredResults {
    file: PathBuf,
    results: Vec<ComparisonResult>,
}

impl StoredResults {
    /// Reads the file's results when resuming; a line that a crash truncated does not count.
    fn of(file: &Path, resumes: bool) -> Self {
        let before = fs::read_to_string(file).unwrap_or_default();
        let lines = before.lines().filter(|_| resumes);
        let results: Vec<ComparisonResult> = lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        let text = results.iter().map(line).collect::<String>();
        fs::write(file, text).expect("a file");
        Self {
            file: file.to_owned(),
            results,
        }
    }

    fn add(&mut self, result: ComparisonResult) {
        let mut file = OpenOptions::new().append(true).open(&self.file);
        let file = file.as_mut().expect("the results file");
        file.write_all(line(&result).as_bytes()).expect("space");
        self.results.push(result);
    }

    /// Returns the results of a kind, at most `most` of them.
    fn of_kind(&self, kind: &ComparisonKind, most: usize) -> Vec<&ComparisonResult> {
        let finished = self.results.iter().filter(|result| result.is_of(kind));
        finished.take(most).collect()
    }
}

fn line(result: &ComparisonResult) -> String {
    serde_json::to_string(result).expect("it is JSON") + "\n"
}

/// Returns the probability of `wrong` or more wrong verdicts of `of`, each with probability
/// 5 %.
fn by_chance(wrong: u32, of: u32) -> f64 {
    let mut exactly = 0.95_f64.powi(of.cast_signed());
    let mut fewer = 0.0;
    for k in 0..wrong {
        fewer += exactly;
        exactly *= f64::from(of - k) / f64::from(k + 1) * 0.05 / 0.95;
    }
    1.0 - fewer
}

#[test]
fn more_are_wrong_than_chance_makes_from_twelve_of_a_hundred_on() {
    for (wrong, of, judged) in [(0, 100, false), (11, 100, false), (12, 100, true)] {
        assert_eq!(by_chance(wrong, of) < 0.01, judged, "{wrong} of {of}");
    }
    assert!((by_chance(1, 1) - 0.05).abs() < 1e-9);
}

#[test]
fn stored_results_count_when_resuming() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("bench/compare.jsonl");
    let kind = &KINDS[0];
    let result = |verdict: &str| ComparisonResult {
        kind: kind.name.to_owned(),
        verdict: verdict.to_owned(),
        ratio: Some(1.0),
        pairs: 9,
        seconds: 2.0,
    };
    let mut stored = StoredResults::of(&file, true);
    stored.add(result("no-difference"));
    stored.add(result("undecided"));
    let text = fs::read_to_string(&file).expect("a file");
    fs::write(&file, format!("{text}{{\"kind\":\"str")).expect("a file");
    let mut reopened = StoredResults::of(&file, true);
    assert_eq!(reopened.results, stored.results);
    reopened.add(result("no-difference"));
    assert_eq!(
        StoredResults::of(&file, true).results.len(),
        3,
        "on a line of its own"
    );
    assert_eq!(reopened.of_kind(kind, 2).len(), 2);
    assert!(reopened.of_kind(&KINDS[1], 2).is_empty());
    assert!(StoredResults::of(&file, false).results.is_empty());
    assert!(
        StoredResults::of(&file, true).results.is_empty(),
        "it started again"
    );
}

/// Returns the number in an environment variable.
fn env_number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).unwrap_or_default();
    (!text.trim().is_empty()).then(|| {
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
    })
}

/// Makes one comparison.
fn compare(lab: &TestLab, kind: &ComparisonKind) -> ComparisonResult {
    let rate = "tc qdisc replace dev eth0 root tbf burst 16k latency 20ms rate";
    let sides = kind.sides.iter().map(|side| side.replace("RATE", rate));
    let mut command = lab.linerate("client", "compare --json");
    command.args(sides).args(kind.command.split(' '));
    let start = Instant::now();
    let done = finish(&mut command);
    let set = done.json();
    let comparison = &set["result"]["comparison"];
    ComparisonResult {
        kind: kind.name.to_owned(),
        // A failed comparison counts as a wrong one: the others still run.
        verdict: (comparison["verdict"].as_str())
            .map_or_else(|| format!("code {}", done.exit_code()), str::to_owned),
        ratio: comparison["ratio"]["median"].as_f64(),
        pairs: comparison["pairs"].as_array().map_or(0, Vec::len),
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// Run by `make bench-compare`. RUNS=n comparisons of each kind (default 20), ONLY=name,… selects
/// kinds by the beginning of their names, WITHIN=seconds limits the time, and RESUME=1 continues.
#[test]
#[ignore = "compares for minutes, and needs a quiet machine: `make bench-compare`"]
fn most_comparisons_in_a_lab_are_right() {
    let runs = env_number("RUNS").unwrap_or(20);
    let deadline =
        env_number("WITHIN").map(|seconds| Instant::now() + Duration::from_secs(seconds as u64));
    let resumes = env_number("RESUME").is_some_and(|number| number > 0);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench/compare.jsonl");
    let mut stored = StoredResults::of(&file, resumes);
    let mut wrong = Vec::new();
    println!("comparisons               right  of    pairs, median  seconds each  other verdicts");
    for kind in KINDS.iter().filter(|kind| is_selected(kind.name)) {
        if stored.of_kind(kind, runs).len() < runs {
            // One lab a kind: the preparation of a kind stays in its lab.
            let lab = lab!(TestLab::up(TestDir::new(), "compare-often", "--hops 0"));
            let _server = lab.server("-q");
            while stored.of_kind(kind, runs).len() < runs {
                let finished = stored.of_kind(kind, runs);
                let each = finished.iter().map(|result| result.seconds).sum::<f64>()
                    / finished.len() as f64;
                if finished.len() == 3 && runs > 3 {
                    let minutes_left = each * (runs - 3) as f64 / 60.0;
                    println!(
                        "{}: {minutes_left:.0} min for the other {}",
                        kind.name,
                        runs - 3
                    );
                }
                let longest = finished
                    .iter()
                    .map(|result| result.seconds)
                    .fold(0.0, f64::max);
                let end = Instant::now() + Duration::from_secs_f64(longest);
                assert!(
                    deadline.is_none_or(|until| end < until),
                    "no time is left after {} of {runs} of {}: RESUME=1 continues there",
                    finished.len(),
                    kind.name
                );
                stored.add(compare(&lab, kind));
            }
        }
        let finished = stored.of_kind(kind, runs);
        let others: Vec<String> = (finished.iter())
            .filter(|result| !result.is_right(kind))
            .map(|result| result.describe())
            .collect();
        let mut pairs: Vec<usize> = finished.iter().map(|result| result.pairs).collect();
        pairs.sort_unstable();
        println!(
            "{:<24} {:>6}  {runs:<4} {:>13}  {:>12.1}  {}",
            kind.name,
            runs - others.len(),
            pairs[pairs.len() / 2],
            finished.iter().map(|made| made.seconds).sum::<f64>() / finished.len() as f64,
            others.join(", ")
        );
        let count = |number: usize| u32::try_from(number).expect("few");
        if by_chance(count(others.len()), count(runs)) < 0.01 {
            wrong.push(kind.name);
        }
    }
    assert!(
        wrong.is_empty(),
        "fewer than 95 of 100 are right: {wrong:?}"
    );
}
