//! Text report of a test, for clients that request the server's output.

use std::fmt::Write;

use linerate_metric::plan::Direction;
use linerate_metric::record::Interval;
use linerate_metric::units::{format_bit_rate, format_bytes};

use super::test_run::Test;

/// Limit of lines in a report.
const LINES: usize = 20_000;

/// Formats the plan, a line for each interval, and the totals.
#[must_use]
pub fn of(test: &Test) -> String {
    let plan = test.plan();
    let streams = match plan.streams {
        1 => "1 stream".to_owned(),
        n => format!("{n} streams"),
    };
    let title = format!(
        "linerate {}: {}, {streams}, blocks of {}",
        env!("CARGO_PKG_VERSION"),
        plan.protocol,
        format_bytes(plan.payload_bytes),
    );
    lines(&title, &plan.directions, test.intervals())
}

fn lines(title: &str, directions: &[Direction], intervals: &[Interval]) -> String {
    let mut text = format!("{title}\n");
    for interval in intervals.iter().take(LINES) {
        let mark = if interval.omitted { "omitted" } else { "" };
        line(&mut text, interval, mark);
    }
    for &direction in directions {
        let counted = intervals
            .iter()
            .filter(|interval| interval.direction == direction && !interval.omitted);
        let whole = counted.cloned().reduce(|mut whole, more| {
            let add = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
            whole.start_ns = whole.start_ns.min(more.start_ns);
            whole.end_ns = whole.end_ns.max(more.end_ns);
            whole.bytes = whole.bytes.saturating_add(more.bytes);
            whole.packets = add(whole.packets, more.packets);
            whole.lost = add(whole.lost, more.lost);
            whole
        });
        if let Some(whole) = whole {
            line(&mut text, &whole, "total");
        }
    }
    text
}

fn line(text: &mut String, interval: &Interval, mark: &str) {
    let seconds = interval.end_ns.saturating_sub(interval.start_ns) as f64 / 1e9;
    let rate = interval.bytes as f64 * 8.0 / seconds.max(1e-9);
    let way = match interval.direction {
        Direction::Send => "received",
        Direction::Receive => "sent",
    };
    let lost = match (interval.lost, interval.packets) {
        (Some(lost), Some(packets)) => format!("lost {lost} of {}", lost.saturating_add(packets)),
        _ => String::new(),
    };
    let line = format!(
        "{:>8.2}-{:<8.2} {way:<8} {:>10} {:>12}  {lost:<22} {mark}",
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
    fn numbers_of_a_client_that_lies_do_not_overflow() {
        let most = |number: u64| -> Interval {
            serde_json::from_value(serde_json::json!({
                "number": number, "start_ns": 0, "end_ns": 1_000_000_000, "direction": "send",
                "omitted": false, "counted_at": "receiver", "bytes": u64::MAX, "packets": 1,
                "lost": u64::MAX,
            }))
            .unwrap()
        };
        let text = lines("title", &[Direction::Send], &[most(0), most(1)]);
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
        let text = lines(
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
