//! Measurements as table rows: name, main figure, meaning.

use linerate_record::plan::{PerEnd, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::{Record, Summary};
use linerate_stats::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_per_second, format_share,
};

use super::headline::speed_change;
use super::plan_text::{run_name, udp_offloads};
use crate::figures;
use crate::model::or_unknown;

/// Measurement as a table row.
pub(crate) struct MeasurementRow<'a> {
    pub(crate) run: &'a Record,
    pub(crate) name: String,
    pub(crate) figure: String,
    pub(crate) meaning: String,
}

/// Returns one row per run; two for a run with two directions.
pub(crate) fn measurements(runs: &[Record]) -> Vec<MeasurementRow<'_>> {
    runs.iter().flat_map(|run| rows_of_run(run, runs)).collect()
}

fn rows_of_run<'a>(run: &'a Record, runs: &[Record]) -> Vec<MeasurementRow<'a>> {
    let name = run_name(run);
    match run.kind {
        RunKind::Latency => vec![MeasurementRow {
            run,
            name,
            figure: or_unknown(run.summary.rtt_ns, |rtt| format_nanos(rtt.p50 as f64)),
            meaning: explain_round_trips(run, runs),
        }],
        RunKind::Generate => vec![MeasurementRow {
            run,
            name,
            figure: or_unknown(run.summary.packets_per_second, format_per_second),
            meaning: crate::generate::explain_headline(run),
        }],
        RunKind::Throughput if run.directions.len() > 1 => run
            .directions
            .iter()
            .map(|figures| MeasurementRow {
                run,
                name: format!("{name}: {}", figures.direction),
                figure: or_unknown(figures.summary.goodput_bps, format_bit_rate),
                meaning: explain_goodput(run, &figures.summary),
            })
            .collect(),
        RunKind::Throughput => vec![MeasurementRow {
            run,
            name,
            figure: or_unknown(run.summary.goodput_bps, format_bit_rate),
            meaning: explain_goodput(run, &run.summary),
        }],
        RunKind::Stack => vec![MeasurementRow {
            run,
            name,
            figure: or_unknown(run.summary.bytes_received, format_bytes),
            meaning: "payload received by its services".to_owned(),
        }],
        RunKind::Forward => vec![MeasurementRow {
            run,
            name,
            figure: or_unknown(run.summary.packets_per_second, format_per_second),
            meaning: crate::forward::explain_headline(run),
        }],
    }
}

fn explain_goodput(run: &Record, summary: &Summary) -> String {
    if summary.goodput_bps.is_none() {
        return match summary.offered_bps {
            Some(rate) => format!("received amount unknown; sent at {}", format_bit_rate(rate)),
            None => "received amount unknown".to_owned(),
        };
    }
    let mut text = format!("{} goodput: payload received per second", run.plan.protocol);
    match run.plan.protocol {
        TransportProtocol::Tcp => {
            if let Some(count) = summary.retransmits {
                text.push_str(&match count {
                    0 => "; no retransmits".to_owned(),
                    1 => "; 1 retransmit".to_owned(),
                    n => format!("; {} retransmits", format_count(n)),
                });
            }
        }
        TransportProtocol::Udp => {
            if let Some(rate) = summary.packets_per_second {
                text.push_str(&format!(
                    ", as {} datagrams of {}",
                    format_per_second(rate),
                    format_bytes(run.plan.payload_bytes)
                ));
            }
            if let Some(offloads) = udp_offloads(&run.plan) {
                text.push_str(&format!(", batched by {offloads}"));
            }
            if let Some(unsent) = figures::describe_unsent(summary) {
                text.push_str(&format!("; {unsent}"));
            }
            if let Some(loss) = figures::path_loss(summary) {
                text.push_str(&if loss > 0.0 {
                    format!("; {} lost", format_share(loss))
                } else {
                    "; no loss".to_owned()
                });
            }
        }
    }
    text
}

fn explain_round_trips(run: &Record, runs: &[Record]) -> String {
    let Some(rtt) = run.summary.rtt_ns else {
        return "no response received".to_owned();
    };
    // A schedule gives two medians.
    let from = match run.summary.rtt_intended_ns {
        Some(_) => ", sent",
        None => "",
    };
    let mut text = format!("p50{from} (p99 {})", format_nanos(rtt.p99 as f64));
    let wait = run.plan.wait.as_ref();
    if wait == Some(&PerEnd::same(WaitMode::Block)) {
        text.push_str(", blocking at both ends");
    }
    if wait == Some(&PerEnd::same(WaitMode::Spin)) {
        text.push_str(", spinning at both ends");
        let blocking = runs.iter().find(|candidate| {
            candidate.kind == RunKind::Latency
                && candidate.plan.protocol == run.plan.protocol
                && candidate.plan.payload_bytes == run.plan.payload_bytes
                && candidate.plan.wait == Some(PerEnd::same(WaitMode::Block))
        });
        if let Some(blocking_rtt) = blocking.and_then(|candidate| candidate.summary.rtt_ns) {
            let faster = speed_change(blocking_rtt.p50 as f64, rtt.p50 as f64);
            if !faster.is_empty() {
                text.push_str(&faster);
                text.push_str(" than blocking");
            }
        }
    }
    text
}
