//! Memory of the built-in configurations of embedded stacks: computed and measured.

use std::process::Command;

use super::BASE;
use crate::error::Trouble;
use crate::row::{Mark, Peer, Row};

/// Profile with the smallest working buffers.
pub const MEMORY_DEFAULT: Row = Row {
    name: "stack/memory/embedded-default",
    against: "heap by a counting allocator, and frames mapped; no later allocations",
    unit: "B",
    mark: Mark::Within(1.0, 1.0),
    held: false,
    most_pairs: Some(1),
    ours: |_| Ok(subject("embedded-default")?[0]),
    theirs: &[Peer::only(|_| taken("embedded-default"))],
    ..BASE
};

/// Profile with larger buffers.
pub const MEMORY_TUNED: Row = Row {
    name: "stack/memory/embedded-tuned",
    ours: |_| Ok(subject("embedded-tuned")?[0]),
    theirs: &[Peer::only(|_| taken("embedded-tuned"))],
    ..MEMORY_DEFAULT
};

/// Program in the same directory with a counting allocator.
const PROGRAM: &str = "linerate-bench-memory";

/// Bytes computed, bytes allocated, and number of later allocations.
fn subject(profile: &str) -> Result<[f64; 3], Trouble> {
    let own = std::env::current_exe().map_err(Trouble::system("find this program's directory"))?;
    let output = Command::new(own.with_file_name(PROGRAM))
        .arg(profile)
        .output()
        .map_err(Trouble::system(format!("start {PROGRAM}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<f64> = (text.split_whitespace())
        .filter_map(|word| word.parse().ok())
        .collect();
    words.try_into().map_err(|_| {
        let words = String::from_utf8_lossy(&output.stderr);
        Trouble::program(PROGRAM, format!("it printed {text:?} {words}"))
    })
}

fn taken(profile: &str) -> Result<f64, Trouble> {
    match subject(profile)? {
        [_, taken, 0.0] => Ok(taken),
        [.., later] => Err(Trouble::program(
            "linerate-stack",
            format!("it allocated {later} times during traffic"),
        )),
    }
}
