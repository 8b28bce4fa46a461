//! What the shipped configurations of embedded stacks cost: as computed, and as taken.

use std::process::Command;

use super::BASE;
use crate::row::{Mark, Peer, Row};
use crate::trouble::Trouble;

/// The smallest buffers that work.
pub const MEMORY_DEFAULT: Row = Row {
    name: "stack/memory/embedded-default",
    against: "heap by a counting allocator, and frames mapped; nothing later",
    unit: "B",
    mark: Mark::Within(1.0, 1.0),
    held: false,
    most_pairs: Some(1),
    ours: |_| Ok(subject("embedded-default")?[0]),
    theirs: &[Peer::only(|_| taken("embedded-default"))],
    ..BASE
};

/// Larger ones.
pub const MEMORY_TUNED: Row = Row {
    name: "stack/memory/embedded-tuned",
    ours: |_| Ok(subject("embedded-tuned")?[0]),
    theirs: &[Peer::only(|_| taken("embedded-tuned"))],
    ..MEMORY_DEFAULT
};

/// The program beside this one whose allocator counts.
const PROGRAM: &str = "linerate-bench-memory";

/// Bytes computed, bytes taken, and what was allocated later.
fn subject(profile: &str) -> Result<[f64; 3], Trouble> {
    let own = std::env::current_exe().map_err(Trouble::system("find this program's folder"))?;
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
