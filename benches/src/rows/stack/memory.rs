//! Memory of the built-in configurations of embedded stacks: computed and measured.

use std::process::Command;

use super::BASE_ROW;
use crate::error::BenchError;
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Profile with the smallest working buffers.
pub const MEMORY_DEFAULT: BenchRow = BenchRow {
    name: "stack/memory/embedded-default",
    against: "heap by a counting allocator, and frames mapped; no later allocations",
    unit: "B",
    mark: RatioMark::Within(1.0, 1.0),
    holds_idle_states: false,
    max_pairs: Some(1),
    measure: |_| Ok(run_memory_program("embedded-default")?[0]),
    peers: &[BenchPeer::single(|_| measure_allocated("embedded-default"))],
    ..BASE_ROW
};

/// Profile with larger buffers.
pub const MEMORY_TUNED: BenchRow = BenchRow {
    name: "stack/memory/embedded-tuned",
    measure: |_| Ok(run_memory_program("embedded-tuned")?[0]),
    peers: &[BenchPeer::single(|_| measure_allocated("embedded-tuned"))],
    ..MEMORY_DEFAULT
};

/// Program in the same directory with a counting allocator.
const MEMORY_PROGRAM: &str = "linerate-bench-memory";

/// Bytes computed, bytes allocated, and number of later allocations.
fn run_memory_program(profile: &str) -> Result<[f64; 3], BenchError> {
    let own_path = std::env::current_exe()
        .map_err(BenchError::system_call("find this program's directory"))?;
    let output = Command::new(own_path.with_file_name(MEMORY_PROGRAM))
        .arg(profile)
        .output()
        .map_err(BenchError::system_call(format!("start {MEMORY_PROGRAM}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = (text.split_whitespace())
        .filter_map(|token| token.parse().ok())
        .collect();
    numbers.try_into().map_err(|_| {
        let numbers = String::from_utf8_lossy(&output.stderr);
        BenchError::program_failed(MEMORY_PROGRAM, format!("it printed {text:?} {numbers}"))
    })
}

fn measure_allocated(profile: &str) -> Result<f64, BenchError> {
    match run_memory_program(profile)? {
        [_, allocated, 0.0] => Ok(allocated),
        [.., later_allocations] => Err(BenchError::program_failed(
            "linerate-stack",
            format!("it allocated {later_allocations} times during traffic"),
        )),
    }
}
