//! Prints all texts of sample runs for inspection: `cargo run -p linerate-report --example
//! sample_texts`.
#[path = "../tests/samples/mod.rs"]
mod samples;

use linerate_metric::expect::Expectation;
use linerate_report::{Style, text};

fn main() {
    let style = Style {
        color: std::env::args().any(|argument| argument == "--color"),
        width: 100,
        unicode: true,
    };
    for record in [
        samples::tcp_send(),
        samples::udp_both(),
        samples::ten_streams(),
        samples::latency_blocking(),
        samples::interrupted(),
        samples::far_unknown(),
    ] {
        println!("{}\n\n----\n", text::summary(&record, &style));
    }
    for set in [samples::demo(), samples::repeats()] {
        println!("{}\n\n----\n", text::set(&set, &style));
    }
    let record = samples::latency_blocking();
    let verdicts: Vec<_> = ["p99<100us", "p50<10us", "loss=0"]
        .iter()
        .map(|text| {
            let expectation: Expectation = text.parse().expect("a threshold");
            expectation.judge(&record.summary)
        })
        .collect();
    println!("{}\n\n----\n", text::verdicts(&verdicts, &style));
    println!(
        "{}\n\n----\n",
        text::examination(&samples::examination(), &style)
    );
    println!(
        "{}",
        text::hosts(&[samples::client(), samples::board()], &style)
    );
}
