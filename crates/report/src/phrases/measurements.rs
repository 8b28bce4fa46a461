//! Measurements as table rows: name, main figure, meaning.

use linerate_metric::plan::{Ends, Kind, Protocol, Wait};
use linerate_metric::record::{Record, Summary};
use linerate_metric::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_per_second, format_share,
};

use super::headline::faster;
use super::or_unknown;
use super::plan_text::{many_in_one_call, name};

/// Measurement as a table row.
pub(crate) struct Measurement<'a> {
    pub(crate) run: &'a Record,
    pub(crate) name: String,
    pub(crate) figure: String,
    pub(crate) meaning: String,
}

/// Returns one row per run; two for a run with two directions.
pub(crate) fn measurements(runs: &[Record]) -> Vec<Measurement<'_>> {
    runs.iter().flat_map(|run| rows(run, runs)).collect()
}

fn rows<'a>(run: &'a Record, runs: &[Record]) -> Vec<Measurement<'a>> {
    let name = name(run);
    match run.kind {
        Kind::Latency => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.rtt_ns, |rtt| format_nanos(rtt.p50 as f64)),
            meaning: round_trip_meaning(run, runs),
        }],
        Kind::Generate => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.packets_per_second, format_per_second),
            meaning: crate::generate::meaning(run),
        }],
        Kind::Throughput if run.directions.len() > 1 => run
            .directions
            .iter()
            .map(|way| Measurement {
                run,
                name: format!("{name}: {}", way.direction),
                figure: or_unknown(way.summary.goodput_bps, format_bit_rate),
                meaning: goodput_meaning(run, &way.summary),
            })
            .collect(),
        Kind::Throughput => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.goodput_bps, format_bit_rate),
            meaning: goodput_meaning(run, &run.summary),
        }],
        Kind::Stack => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.bytes_received, format_bytes),
            meaning: "payload received by its services".to_owned(),
        }],
        Kind::Forward => vec![Measurement {
            run,
            name,
            figure: or_unknown(run.summary.packets_per_second, format_per_second),
            meaning: crate::forward::meaning(run),
        }],
    }
}

fn goodput_meaning(run: &Record, summary: &Summary) -> String {
    if summary.goodput_bps.is_none() {
        return match summary.offered_bps {
            Some(rate) => format!("received amount unknown; sent at {}", format_bit_rate(rate)),
            None => "received amount unknown".to_owned(),
        };
    }
    let mut text = format!("{} goodput: payload received per second", run.plan.protocol);
    match run.plan.protocol {
        Protocol::Tcp => {
            if let Some(count) = summary.retransmits {
                text.push_str(&match count {
                    0 => "; no retransmits".to_owned(),
                    1 => "; 1 retransmit".to_owned(),
                    n => format!("; {} retransmits", format_count(n)),
                });
            }
        }
        Protocol::Udp => {
            if let Some(rate) = summary.packets_per_second {
                text.push_str(&format!(
                    ", as {} datagrams of {}",
                    format_per_second(rate),
                    format_bytes(run.plan.payload_bytes)
                ));
            }
            if let Some(many) = many_in_one_call(&run.plan) {
                text.push_str(&format!(", batched by {many}"));
            }
            if let Some(loss) = summary.loss_fraction {
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

fn round_trip_meaning(run: &Record, runs: &[Record]) -> String {
    let Some(rtt) = run.summary.rtt_ns else {
        return "no response received".to_owned();
    };
    let mut text = format!("p50 (p99 {})", format_nanos(rtt.p99 as f64));
    let wait = run.plan.wait.as_ref();
    if wait == Some(&Ends::both(Wait::Block)) {
        text.push_str(", blocking at both ends");
    }
    if wait == Some(&Ends::both(Wait::Spin)) {
        text.push_str(", spinning at both ends");
        let blocking = runs.iter().find(|other| {
            other.kind == Kind::Latency
                && other.plan.protocol == run.plan.protocol
                && other.plan.payload_bytes == run.plan.payload_bytes
                && other.plan.wait == Some(Ends::both(Wait::Block))
        });
        if let Some(slow) = blocking.and_then(|other| other.summary.rtt_ns) {
            let faster = faster(slow.p50 as f64, rtt.p50 as f64);
            if !faster.is_empty() {
                text.push_str(&faster);
                text.push_str(" than blocking");
            }
        }
    }
    text
}
