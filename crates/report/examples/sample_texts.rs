//! Prints all texts of sample runs for inspection: `cargo run -p linerate-report --example
//! sample_texts`.
#[path = "../tests/samples/mod.rs"]
mod samples;

use linerate_record::expect::Expectation;
use linerate_report::{TextStyle, text};

fn main() {
    let style = TextStyle {
        color: std::env::args().any(|argument| argument == "--color"),
        width: 100,
        unicode: true,
        brief: std::env::args().any(|argument| argument == "--brief"),
    };
    for record in [
        samples::tcp_send(),
        samples::udp_bidirectional(),
        samples::ten_streams(),
        samples::latency_blocking(),
        samples::interrupted(),
        samples::server_unknown(),
    ] {
        println!("{}\n\n----\n", text::render_summary(&record, &style));
    }
    for set in [samples::demo(), samples::repeats()] {
        println!("{}\n\n----\n", text::render_set(&set, &style));
    }
    let record = samples::latency_blocking();
    let verdicts: Vec<_> = ["p99<100us", "p50<10us", "loss=0"]
        .iter()
        .map(|text| {
            let expectation: Expectation = text.parse().expect("a threshold");
            expectation.evaluate(&record.summary)
        })
        .collect();
    println!("{}\n\n----\n", text::render_verdicts(&verdicts, &style));
    println!(
        "{}\n\n----\n",
        text::render_doctor_report(&samples::doctor_report(), &style)
    );
    println!(
        "{}",
        text::render_hosts(&[samples::client(), samples::board()], &style)
    );
}
