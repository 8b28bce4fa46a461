//! Writes pages of sample runs for inspection: `cargo run -p linerate-report --example
//! sample_report -- DIR`.
#[path = "../tests/samples/mod.rs"]
mod samples;

use linerate_report::{html, store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let demo = samples::demo();
    let odd = [
        samples::server_unknown(),
        samples::interrupted(),
        samples::ten_streams(),
        samples::hostile(),
    ];
    let mut long = samples::tcp_send();
    let one = long.intervals[3].clone();
    long.intervals = (0..100_000u64)
        .map(|n| {
            let mut interval = one.clone();
            interval.start_ns = n * 10_000_000;
            interval.end_ns = (n + 1) * 10_000_000;
            interval.bytes = 70_000_000 + n * 7_919 % 9_000_000 - 500 * (n / 2_000 % 7) * 2_000;
            interval.retransmits = Some(u64::from(n % 31_337 == 31_000) * 12);
            interval
        })
        .collect();
    let repeats = samples::repeats();
    for (name, page) in [
        ("long", html::render_report("A long run", &[long], &[])),
        (
            "repeats",
            html::render_report("Repeats", &repeats.runs, &[]),
        ),
        (
            "demo",
            html::render_report("What this machine can do", &demo.runs, &demo.result.notes),
        ),
        (
            "odd",
            html::render_report("Runs with something odd", &odd, &[]),
        ),
        (
            "stages",
            html::render_report("Stages", &[samples::staged()], &[]),
        ),
        (
            "one",
            html::render_report("One run", &[samples::latency_blocking()], &[]),
        ),
    ] {
        let path = format!("{dir}/{name}.html");
        store::write_file(&path, &page)?;
        println!("{path}: {} bytes", page.len());
    }
    Ok(())
}
