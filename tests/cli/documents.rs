//! Commands of README, guide and the page of labs, run as they stand there, and links of all documents.
//!
//! The `console` blocks of a section are one shell session in namespaces of its own: nothing leaves
//! this machine. Times are shortened. Each line of output in the document must have the shape of
//! the output that the command prints now: figures count as equal, and `...` stands for the rest of
//! a line or for lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::common::{LINERATE, TestDir, finish, skip, unshare_command};
use regex_lite::Regex;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Documents whose commands are run.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/GUIDE.md", "docs/LABS.md"];

/// Reasons not to run a command, and the first words of such commands.
#[rustfmt::skip]
const NOT_RUN: &[(&str, &[&str])] = &[
    ("builds the program", &["cargo build", "install -D"]),
    ("other tools: tests/interop/peers.rs", &["iperf3 ", "iperf ", "nuttcp ", "sockperf "]),
    ("their servers: tests/interop/peers.rs", &["linerate throughput HOST --peer", "linerate latency HOST --peer", "linerate ttcp"]),
    ("boards: tests/interop/peers.rs", &["linerate throughput BOARD", "linerate latency BOARD"]),
    ("two interfaces: tests/lab/generate.rs", &["linerate generate --dev packet:", "linerate capacity --dev packet:eth1"]),
    ("two interfaces: tests/lab/forward.rs", &["linerate forward --dev packet:"]),
    ("AF_XDP: tests/lab/devices.rs", &["linerate generate --dev xdp:", "linerate forward --dev xdp:", "linerate latency HOST -u --dev"]),
    ("many trials: tests/lab/forward.rs", &["linerate forward --dev ring:0 --dev ring:1"]),
    ("one more stack: tests/lab/stack.rs", &["linerate throughput 10.0.0.2", "linerate stack --dev tap:t0 --ip 10.0.0.2/24 --"]),
    ("programs of the reader: tests/lab/compare.rs", &["linerate compare --command-a"]),
    ("minutes: make experiments", &["linerate run udp-hops --quick", "linerate run mine.toml"]),
];

/// Command of a document, and the lines that stand below it.
type Step = (String, Vec<String>);

/// Returns the steps of each section that has `console` blocks.
fn sessions(text: &str) -> Vec<Vec<Step>> {
    let heading = Regex::new("(?m)^##+ ").unwrap();
    let block = Regex::new("(?ms)^```console\n(.*?)^```").unwrap();
    let mut sessions = Vec::new();
    for section in heading.split(text) {
        let mut steps: Vec<Step> = Vec::new();
        let blocks = block.captures_iter(section);
        for line in blocks.flat_map(|found| found.get(1).unwrap().as_str().lines()) {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push((command.to_owned(), Vec::new()));
            } else {
                let (_, output) = steps.last_mut().expect("a command above its output");
                output.push(line.to_owned());
            }
        }
        sessions.push(steps);
    }
    sessions.retain(|steps| !steps.is_empty());
    sessions
}

/// Returns whether the exit codes 3 and 6 of a command are verdicts about figures.
fn has_verdict(command: &str) -> bool {
    ["linerate compare", "linerate runs trend", "linerate tune"]
        .iter()
        .any(|start| command.starts_with(start))
}

fn is_run(command: &str) -> bool {
    let mut starts = NOT_RUN.iter().flat_map(|(_, starts)| *starts);
    !starts.any(|start| command.starts_with(start))
}

/// Returns one shell script for a session; a line `@@ STEP CODE` ends the output of each step.
fn script(steps: &[Step]) -> String {
    let time = Regex::new(r"(-t|--trial) \d+m?s?\b").unwrap();
    let trials = Regex::new(r"(-b max\S*)").unwrap();
    let mut script = String::from(
        "exec 2>&1; ip link set lo up
        export LINERATE_PAIRS=1 LINERATE_MAX_PAIRS=1 LINERATE_RUNS=2 LINERATE_REPEATS=1\n",
    );
    for (index, (command, _)) in steps.iter().enumerate() {
        if !is_run(command) {
            continue;
        }
        let line = command.replace("HOST", "127.0.0.1");
        let line = time.replace_all(&line, "$1 100ms");
        let mut line = trials.replace_all(&line, "$1 --trial 50ms").into_owned();
        if line.starts_with("linerate server") && !line.ends_with('&') {
            let start = line.split(" #").next().unwrap();
            line = format!(
                "[ -z \"$server\" ] || {{ kill $server; wait $server; }}
                {start} > server.log & server=$!
                until grep -q READY server.log; do kill -0 $server || break; sleep 0.05; done"
            );
        }
        let ends = [" -t ", "--trial", "linerate stack"];
        let time = match ends.iter().any(|word| line.contains(word)) {
            true => "unset LINERATE_TIME",
            false => "export LINERATE_TIME=0.1",
        };
        script += &format!("{time}\n{line}\necho \"@@ {index} $?\"\n");
    }
    script + "kill $(jobs -p) 2> /dev/null; true\n"
}

/// Replaces figures and ids, and joins lines: the width of a figure may wrap a line elsewhere.
fn shape(text: &str) -> String {
    let figure = Regex::new(
        r"\d{8}T\d{6}Z-[0-9a-f]{6}|\d[\d,.]*(?: ?(?:[kMG]?b/s|[kM]?/s|[numμ]?s|[KMG]i?B|[kMB%])\b)?(?: %)?",
    )
    .unwrap();
    let text = text.replace(['█', '▒'], " ");
    let words = figure.replace_all(&text, "#");
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a session; returns what differs from the document.
fn differences(steps: &[Step]) -> Result<Vec<String>, String> {
    let dir = TestDir::new();
    let flags = "--net --pid --fork --mount-proc --kill-child";
    let mut shell = unshare_command(&dir, flags, &["sh", "-c", &script(steps)])?;
    let programs = Path::new(LINERATE).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{programs}:{path}:/usr/sbin:/sbin");
    shell.env("PATH", path).env("LC_ALL", "C.UTF-8");
    let printed = finish(shell.env("XDG_RUNTIME_DIR", dir.path())).stdout;
    let end = Regex::new(r"(?m)^@@ (\d+) (\d+)\n").unwrap();
    let mut differences = Vec::new();
    let (mut start, mut ended) = (0, BTreeSet::new());
    for found in end.captures_iter(&printed) {
        let number = |group| found.get(group).unwrap().as_str().parse::<usize>().unwrap();
        let ((command, output), code) = (&steps[number(1)], number(2));
        let text = &printed[start..found.get(0).unwrap().start()];
        start = found.get(0).unwrap().end();
        ended.insert(number(1));
        // 127 is a program that this machine lacks.
        match code {
            0 => {}
            3 | 6 if has_verdict(command) => {}
            127 => println!("skipped: {command}: {text}"),
            _ => differences.push(format!("$ {command}\nexit code {code}: {text}")),
        }
        let has = shape(text);
        for line in output.iter().filter(|_| code != 127) {
            let line = shape(line.split("...").next().unwrap());
            if !has.contains(&line) {
                differences.push(format!("$ {command}\nprints no `{line}`:\n{text}"));
            }
        }
    }
    for (index, (command, _)) in steps.iter().enumerate() {
        if is_run(command) && !ended.contains(&index) {
            differences.push(format!("$ {command}\ndid not end:\n{}", &printed[start..]));
        }
    }
    Ok(differences)
}

#[test]
fn commands_run_and_print_what_the_documents_show() {
    let mut all = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(Path::new(REPOSITORY).join(document)).expect("a document");
        assert!(
            !text.contains("```sh"),
            "{document}: commands stand in `console` blocks"
        );
        all.extend(sessions(&text));
    }
    let commands: Vec<&String> = all.iter().flatten().map(|step| &step.0).collect();
    for start in NOT_RUN.iter().flat_map(|(_, starts)| *starts) {
        let is_used = commands.iter().any(|command| command.starts_with(start));
        assert!(is_used, "no document has `{start}`");
    }
    let (waiting, results) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(steps) = waiting.lock().unwrap().pop() else {
                        break;
                    };
                    let result = differences(&steps);
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    let results: Result<Vec<_>, String> = results.into_inner().unwrap().into_iter().collect();
    match results {
        Err(reason) => skip!("{reason}"),
        Ok(lists) => assert!(lists.concat().is_empty(), "{}", lists.concat().join("\n\n")),
    }
}

/// Returns the anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let to_anchor = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        words
            .chars()
            .filter(is_kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(to_anchor).collect()
}

#[test]
fn links_of_the_documents_lead_somewhere() {
    let link = Regex::new(r##"(?:\]\(|src=")([^)"#\s]*)(?:#([^)"\s]*))?[)"]"##).unwrap();
    let mut broken = Vec::new();
    for folder in ["", "docs", "docs/method", "benches", "fuzz"] {
        let folder = Path::new(REPOSITORY).join(folder);
        for file in fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            // SUMMARY.md names the files of the site, where those of the root and of docs/ share a
            // folder.
            if file.extension().is_none_or(|end| end != "md") || file.ends_with("SUMMARY.md") {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            // Code is no link.
            let prose: String = text.split("```").step_by(2).collect();
            for found in link.captures_iter(&prose) {
                let target = found.get(1).unwrap().as_str();
                let path = match target {
                    "" => file.clone(),
                    _ => folder.join(target),
                };
                let has_anchor = found.get(2).is_none_or(|anchor| {
                    fs::read_to_string(&path).is_ok_and(|to| anchors(&to).contains(anchor.as_str()))
                });
                if !(target.contains("://") || path.exists() && has_anchor) {
                    broken.push(format!(
                        "{}: {}",
                        file.display(),
                        found.get(0).unwrap().as_str()
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
