//! Text report of a test, for clients that request the server's output.

use std::fmt::Write;

use linerate_record::plan::Direction;
use linerate_record::record::Interval;
use linerate_stats::units::{format_bit_rate, format_bytes};

use super::test_run::TestRun;

/// Limit of lines in a report.
const LINE_LIMIT: usize = 20_000;

/// Formats the plan, a line for each interval, and the totals.
#[must_use]
pub fn format_report(test: &TestRun) -> String {
    let plan = test.plan();
    let streams = match plan.streams {
        1 => "1 flow".to_owned(),
        n => format!("{n} flows"),
    };
    let title = format!(
        "linerate {}: {}, {streams}, blocks of {}",
        env!("CARGO_PKG_VERSION"),
        plan.protocol,
        format_bytes(plan.payload_bytes),
    );
    format_intervals(&title, &plan.directions, test.intervals())
}

fn format_intervals(title: &str, directions: &[Direction], intervals: &[Interval]) -> String {
    let mut text = format!("{title}\n");
    for interval in intervals.iter().take(LINE_LIMIT) {
        let mark = if interval.omitted { "omitted" } else { "" };
        append_line(&mut text, interval, mark);
    }
    for &direction in directions {
        let counted = intervals
            .iter()
            .filter(|interval| interval.direction == direction && !interval.omitted);
        let total = counted.cloned().reduce(|mut total, more| {
            let add = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
            total.start_ns = total.start_ns.min(more.start_ns);
            total.end_ns = total.end_ns.max(more.end_ns);
            total.bytes = total.bytes.saturating_add(more.bytes);
            total.packets = add(total.packets, more.packets);
            total.lost = add(total.lost, more.lost);
            total
        });
        if let Some(total) = total {
            append_line(&mut text, &total, "total");
        }
    }
    text
}

fn append_line(text: &mut String, interval: &Interval, mark: &str) {
    let seconds = interval.end_ns.saturating_sub(interval.start_ns) as f64 / 1e9;
    let rate = interval.bytes as f64 * 8.0 / seconds.max(1e-9);
    let action = match interval.direction {
        Direction::Send => "received",
        Direction::Receive => "sent",
    };
    let lost = match (interval.lost, interval.packets) {
        (Some(lost), Some(packets)) => format!("lost {lost} of {}", lost.saturating_add(packets)),
        _ => String::new(),
    };
    let line = format!(
        "{:>8.2}-{:<8.2} {action:<8} {:>10} {:>12}  {lost:<22} {mark}",
        interval.start_ns as f64 / 1e9,
        interval.end_ns as f64 / 1e9,
        format_bytes(interval.bytes),
        format_bit_rate(rate),
    );
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_numbers_do_not_overflow() {
        let largest_interval = |number: u64| -> Interval {
            serde_json::from_value(serde_json::json!({
                "number": number, "start_ns": 0, "end_ns": 1_000_000_000, "direction": "send",
                "omitted": false, "counted_at": "receiver", "bytes": u64::MAX, "packets": 1,
                "lost": u64::MAX,
            }))
            .unwrap()
        };
        let text = format_intervals(
            "title",
            &[Direction::Send],
            &[largest_interval(0), largest_interval(1)],
        );
        assert!(
            text.contains(&format!("lost {0} of {0}", u64::MAX)),
            "{text}"
        );
    }

    #[test]
    fn intervals_add_up_to_the_last_line() {
        let interval = |number: u64, omitted: bool| -> Interval {
            serde_json::from_value(serde_json::json!({
                "number": number, "start_ns": number * 1_000_000_000,
                "end_ns": (number + 1) * 1_000_000_000, "direction": "send", "omitted": omitted,
                "counted_at": "receiver", "bytes": 1_000_000, "packets": 900, "lost": 100,
            }))
            .unwrap()
        };
        let text = format_intervals(
            "title",
            &[Direction::Send, Direction::Receive],
            &[interval(0, true), interval(1, false), interval(2, false)],
        );
        let rows: Vec<_> = text.lines().collect();
        assert_eq!(rows.len(), 5, "{text}");
        assert!(rows[1].ends_with("omitted"), "{text}");
        assert!(
            rows[4].contains("8.00 Mb/s") && rows[4].contains("lost 200 of 2000"),
            "{text}"
        );
        assert!(rows[4].ends_with("total"), "{text}");
    }
}
