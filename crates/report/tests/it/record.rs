//! Records survive a round trip through JSON unchanged, and old records still load.

use crate::samples;
use linerate_record::record::{Record, Summary};
use linerate_record::run_set::RunSet;
use proptest::prelude::*;

fn every_sample() -> Vec<Record> {
    let mut all = vec![
        samples::tcp_send(),
        samples::tcp_receive(),
        samples::ten_streams(),
        samples::udp_bidirectional(),
        samples::latency_blocking(),
        samples::latency_spinning(),
        samples::interrupted(),
        samples::server_unknown(),
        samples::hostile(),
    ];
    all.extend(samples::demo().runs);
    all
}

#[test]
fn every_sample_round_trips_exactly() {
    for record in every_sample() {
        let json = record.to_json();
        let read = Record::from_json(&json).unwrap();
        assert_eq!(read, record, "{}", record.id);
        assert_eq!(read.to_json(), json, "{}", record.id);
    }
    for set in [samples::demo(), samples::repeats()] {
        let json = serde_json::to_string(&set).unwrap();
        let read: RunSet = serde_json::from_str(&json).unwrap();
        assert_eq!(read, set);
    }
}

/// A record written by the first version, with an additional field as a later version may write.
/// Never change the file.
#[test]
fn a_record_of_the_first_version_loads() {
    let record = Record::from_json(include_str!("../fixtures/run-1.json")).unwrap();
    assert_eq!(record.id, "20260901T080000Z-01d01d");
    assert_eq!(record.summary.goodput_bps, Some(941_482_331.25));
    assert_eq!(record.summary.loss_fraction, None);
    assert_eq!(record.directions[0].streams.len(), 1);
    assert_eq!(record.hosts.len(), 1);
    // Rendering does not fail on missing fields.
    let text = linerate_report::text::render_summary(&record, &linerate_report::TextStyle::PLAIN);
    assert!(text.contains("941 Mb/s"), "{text}");
    assert!(linerate_report::html::render_report("old", &[record], &[]).contains("941 Mb/s"));
}

#[test]
fn a_record_of_another_version_is_rejected_by_name() {
    let text = samples::tcp_send()
        .to_json()
        .replace("linerate/run/1", "linerate/run/2");
    let error = Record::from_json(&text).unwrap_err().to_string();
    assert!(error.contains("linerate/run/2"), "{error}");
}

fn finite() -> impl Strategy<Value = Option<f64>> {
    prop::option::of(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO)
}

prop_compose! {
    fn summary()(
        floats in prop::array::uniform10(finite()),
        counts in prop::array::uniform16(prop::option::of(any::<u64>())),
    ) -> Summary {
        let [goodput_bps, offered_bps, packets_per_second, calls_per_second, loss_fraction, ipdv_ns,
            round_trips_per_second, connections_per_second, rate_error, fairness_index] = floats;
        let [duration_ns, bytes_sent, bytes_received, packets_sent, packets_received, out_of_order,
            duplicates, retransmits, round_trips, lost, mismatched, slow, wrong_length,
            wrong_content, unsent, reordering_extent] = counts;
        Summary {
            duration_ns, goodput_bps, offered_bps, packets_per_second, calls_per_second, bytes_sent,
            bytes_received, packets_sent, packets_received, loss_fraction, out_of_order, duplicates,
            ipdv_ns, reordering_extent, rate_error, delay_variation_ns: None, one_way_delay_ns: None, lateness_ns: None,
            arrival_gap_ns: None, retransmits, rtt_ns: None, round_trips, round_trips_per_second, lost, mismatched,
            slow, wrong_length, wrong_content, rtt_intended_ns: None, unsent, whole_ns: None, device: None,
            connections_per_second, fairness_index, cpu: Vec::new(), memory: Vec::new(),
        }
    }
}

proptest! {
    #[test]
    fn any_figures_round_trip_and_can_be_shown(whole in summary(), way in summary(), flow in summary(), text in ".{0,40}") {
        for mut record in [samples::tcp_send(), samples::udp_bidirectional(), samples::latency_blocking()] {
            record.summary = whole.clone();
            record.directions[0].summary = way.clone();
            record.directions[0].streams[0].summary = flow.clone();
            record.label = Some(text.clone());
            record.plan.host.clone_from(&text);
            let read = Record::from_json(&record.to_json()).unwrap();
            prop_assert_eq!(&read, &record);
            let shown = linerate_report::text::render_summary(&record, &linerate_report::TextStyle::PLAIN);
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
