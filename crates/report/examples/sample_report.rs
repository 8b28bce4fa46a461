//! Writes pages from made-up runs, to be looked at: `cargo run -p linerate-report --example sample_report -- FOLDER`.
#[path = "../tests/samples/mod.rs"]
mod samples;

use linerate_report::{html, store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let demo = samples::demo();
    let odd = [
        samples::far_unknown(),
        samples::interrupted(),
        samples::ten_streams(),
        samples::hostile(),
    ];
    for (name, page) in [
        (
            "demo",
            html::report("What this machine can do", &demo.runs, &demo.result.notes),
        ),
        ("odd", html::report("Runs with something odd", &odd, &[])),
        (
            "one",
            html::report("One run", &[samples::latency_blocking()], &[]),
        ),
    ] {
        let path = format!("{folder}/{name}.html");
        store::write_file(&path, &page)?;
        println!("{path}: {} bytes", page.len());
    }
    Ok(())
}
