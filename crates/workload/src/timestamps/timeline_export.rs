//! Timeline of timestamped round trips.

use linerate_record::facts::Role;
use linerate_record::timeline::{
    DriverActivity, Timeline, TimelineSlice, TimelineTrack, TraceTrigger, TriggerEvent,
};
use linerate_stats::histogram::Histogram;

use super::ring::{EndTimestamps, ReceiveWork, WARM_UP_ROUND_TRIPS};
use super::{TimestampLog, TimestampPass};

/// Returns the events of both ends on the client's clock, from the start of the run; and whether
/// anything took longer than `trigger_above_ns`.
#[must_use]
pub fn build_timeline(
    pass: &TimestampPass,
    clock_error_ns: Option<u64>,
    trigger_above_ns: Option<u64>,
) -> Timeline {
    let mut slices = Vec::new();
    let mut driver = Vec::new();
    for (role, log) in [(Role::Client, &pass.client), (Role::Server, &pass.server)] {
        let mut busy_until = 0;
        for entry in &log.entries {
            push_thread_slices(role, entry, busy_until, &mut slices);
            push_kernel_slices(role, entry, &mut slices);
            busy_until = entry.send_returned_ns;
        }
        let work_slices = log.receive_work.iter().map(|work| TimelineSlice {
            role,
            track: TimelineTrack::Driver,
            name: "net-rx".to_owned(),
            start_ns: work.from_ns,
            end_ns: work.to_ns,
            round_trip: None,
            cpu: Some(work.cpu),
            thread: None,
        });
        slices.extend(work_slices);
        let calls = log.calls.iter().filter_map(|call| {
            Some(TimelineSlice {
                role,
                track: TimelineTrack::Thread,
                name: call.name()?,
                start_ns: call.from_ns,
                end_ns: call.to_ns,
                round_trip: None,
                cpu: None,
                thread: Some(call.thread),
            })
        });
        slices.extend(calls);
        driver.extend(summarise_driver_work(role, &log.receive_work));
    }
    for slice in &mut slices {
        slice.start_ns = slice.start_ns.saturating_sub(pass.start_ns);
        slice.end_ns = slice.end_ns.saturating_sub(pass.start_ns);
    }
    slices.sort_by_key(|slice| (slice.start_ns, slice.end_ns));
    Timeline {
        slices,
        driver,
        clock_error_ns,
        notes: collect_warnings([&pass.client, &pass.server]),
        trigger: trigger_above_ns.map(|above_ns| find_trigger(pass, above_ns)),
        file: None,
    }
}

/// Finds the first round trip, or call where calls were recorded, that took longer. It is among
/// those kept, because few are recorded after it.
fn find_trigger(pass: &TimestampPass, above_ns: u64) -> TraceTrigger {
    let logs = [(Role::Client, &pass.client), (Role::Server, &pass.server)];
    let is_calls = logs.iter().any(|(_, log)| !log.calls.is_empty());
    let since = |at: u64| at.saturating_sub(pass.start_ns);
    let call = logs
        .iter()
        .flat_map(|(role, log)| log.calls.iter().map(move |call| (*role, call)))
        // The limit was rounded to ticks, so equal times count.
        .filter(|(_, call)| call.to_ns.saturating_sub(call.from_ns) >= above_ns)
        .min_by_key(|(_, call)| call.from_ns)
        .map(|(role, call)| TriggerEvent {
            role,
            at_ns: since(call.from_ns),
            duration_ns: call.to_ns.saturating_sub(call.from_ns),
            round_trip: None,
            call: call.name(),
            lost: false,
        });
    let duration_of = |entry: &EndTimestamps| entry.received_ns.saturating_sub(entry.send_call_ns);
    let round_trip = (pass.client.entries.iter())
        .filter(|entry| {
            entry.number >= WARM_UP_ROUND_TRIPS
                && entry.send_call_ns > 0
                && duration_of(entry) > above_ns
        })
        .min_by_key(|entry| entry.number)
        .map(|entry| (entry.number, entry.send_call_ns, duration_of(entry)));
    // A lost response took longer than the limit, and has no receive timestamp.
    let lost = (pass.client.lost_request).map(|lost| {
        let waited_ns = lost.given_up_ns.saturating_sub(lost.send_call_ns);
        (lost.number, lost.send_call_ns, waited_ns)
    });
    let is_lost = |number| (pass.client.lost_request).is_some_and(|lost| lost.number == number);
    let round_trip = (round_trip.into_iter().chain(lost))
        .min_by_key(|(number, ..)| *number)
        .map(|(number, handed_ns, duration_ns)| TriggerEvent {
            role: Role::Client,
            at_ns: since(handed_ns),
            duration_ns,
            round_trip: Some(number),
            call: None,
            lost: is_lost(number),
        });
    TraceTrigger {
        quantity: if is_calls { "call" } else { "rtt" }.to_owned(),
        threshold_ns: above_ns,
        fired: call.or(round_trip),
    }
}

fn collect_warnings(logs: [&TimestampLog; 2]) -> Vec<String> {
    let all = logs.iter().flat_map(|log| log.warnings.iter().cloned());
    all.collect()
}

/// Adds a slice, if both its start and its end are known.
fn push_slice(
    role: Role,
    track: TimelineTrack,
    name: &str,
    round_trip: u64,
    (from, to): (u64, u64),
    out: &mut Vec<TimelineSlice>,
) {
    if from == 0 || to < from {
        return;
    }
    out.push(TimelineSlice {
        role,
        track,
        name: name.to_owned(),
        start_ns: from,
        end_ns: to,
        round_trip: Some(round_trip),
        cpu: None,
        thread: None,
    });
}

/// Adds the calls of the thread. At the client a receive call begins after the send call. At the
/// server it begins at the switch-in, or at the request's arrival, but not before the previous
/// response was sent (`busy_until`).
fn push_thread_slices(
    role: Role,
    entry: &EndTimestamps,
    busy_until: u64,
    out: &mut Vec<TimelineSlice>,
) {
    let round_trip = entry.number;
    let track = TimelineTrack::Thread;
    push_slice(
        role,
        track,
        "send",
        round_trip,
        (entry.send_call_ns, entry.send_returned_ns),
        out,
    );
    if role == Role::Client {
        push_slice(
            role,
            track,
            "receive",
            round_trip,
            (entry.send_returned_ns, entry.received_ns),
            out,
        );
    } else {
        let start = match entry.switched_in_ns {
            0 => entry.arrived_ns,
            running => running,
        };
        if start != 0 {
            let start = start.max(busy_until);
            push_slice(
                role,
                track,
                "receive",
                round_trip,
                (start, entry.received_ns),
                out,
            );
        }
    }
}

/// Adds the passage of the messages through the kernel.
fn push_kernel_slices(role: Role, entry: &EndTimestamps, out: &mut Vec<TimelineSlice>) {
    let round_trip = entry.number;
    let track = TimelineTrack::Kernel;
    push_slice(
        role,
        track,
        "stack-out",
        round_trip,
        (entry.send_call_ns, entry.queued_ns),
        out,
    );
    push_slice(
        role,
        track,
        match entry.is_netstack() {
            true => "driver-out",
            false => "qdisc",
        },
        round_trip,
        (entry.queued_ns, entry.driver_ns),
        out,
    );
    let delivered_ns = match (entry.woken_ns, entry.switched_in_ns) {
        (0, 0) => entry.received_ns,
        (0, running) => running,
        (woken, _) => woken,
    };
    push_slice(
        role,
        track,
        "stack-in",
        round_trip,
        (entry.arrived_ns, delivered_ns),
        out,
    );
    if entry.woken_ns != 0 {
        push_slice(
            role,
            track,
            "wake-up",
            round_trip,
            (entry.woken_ns, entry.switched_in_ns),
            out,
        );
    }
}

/// Summarises periods and durations of the processors' receive work.
fn summarise_driver_work(role: Role, work: &[ReceiveWork]) -> Option<DriverActivity> {
    let (mut periods, mut durations) = (Histogram::new(), Histogram::new());
    let mut last = std::collections::BTreeMap::new();
    let mut sorted = work.to_vec();
    sorted.sort_by_key(|work| work.from_ns);
    for work in sorted {
        durations.record(work.to_ns.saturating_sub(work.from_ns));
        if let Some(before) = last.insert(work.cpu, work.from_ns) {
            periods.record(work.from_ns - before);
        }
    }
    Some(DriverActivity {
        role,
        period_ns: periods.summary()?,
        duration_ns: durations.summary()?,
    })
}

#[cfg(test)]
mod tests {
    use linerate_transport::call_times::TimedCall;

    use super::super::ring::LostRequest;
    use super::*;
    #[test]
    fn the_first_slow_round_trip_after_warm_up_fires() {
        let entry = |number: u64, duration_ns: u64| EndTimestamps {
            number,
            send_call_ns: 1_000 + number * 1_000,
            received_ns: 1_000 + number * 1_000 + duration_ns,
            ..EndTimestamps::default()
        };
        let mut pass = TimestampPass {
            start_ns: 1_000,
            client: TimestampLog {
                lost_request: None,
                entries: vec![
                    entry(0, 900),
                    entry(WARM_UP_ROUND_TRIPS + 2, 700),
                    entry(WARM_UP_ROUND_TRIPS + 1, 600),
                    entry(WARM_UP_ROUND_TRIPS, 100),
                ],
                ..TimestampLog::default()
            },
            server: TimestampLog::default(),
        };
        let trigger = |pass: &TimestampPass, above| build_timeline(pass, None, above).trigger;
        assert_eq!(trigger(&pass, None), None);
        let not_fired = trigger(&pass, Some(700)).unwrap();
        assert_eq!(
            (not_fired.quantity.as_str(), not_fired.fired),
            ("rtt", None)
        );
        let fired = trigger(&pass, Some(500)).unwrap().fired.unwrap();
        assert_eq!(
            (fired.round_trip, fired.duration_ns),
            (Some(WARM_UP_ROUND_TRIPS + 1), 600)
        );
        assert_eq!(fired.at_ns, (WARM_UP_ROUND_TRIPS + 1) * 1_000);
        let call = |from_ns, to_ns| TimedCall {
            from_ns,
            to_ns,
            slot: 0,
            thread: 0,
        };
        // An earlier request whose response was lost.
        pass.client.lost_request = Some(LostRequest {
            number: WARM_UP_ROUND_TRIPS,
            send_call_ns: 1_500,
            given_up_ns: 9_500,
        });
        let fired = trigger(&pass, Some(500)).unwrap().fired.unwrap();
        assert_eq!(
            (fired.round_trip, fired.duration_ns),
            (Some(WARM_UP_ROUND_TRIPS), 8_000)
        );
        assert!(fired.lost);
        pass.client.entries.clear();
        pass.client.lost_request = None;
        pass.server.calls = vec![call(2_000, 2_400), call(1_500, 1_510), call(1_700, 2_600)];
        let fired = trigger(&pass, Some(300)).unwrap();
        assert_eq!(fired.quantity, "call");
        let fired = fired.fired.unwrap();
        assert_eq!(
            (fired.role, fired.at_ns, fired.duration_ns),
            (Role::Server, 700, 900)
        );
        assert!(fired.call.is_some() && fired.round_trip.is_none());
    }

    #[test]
    fn all_recorded_events_are_shown() {
        let client = EndTimestamps {
            number: 4,
            send_call_ns: 1_000,
            queued_ns: 1_200,
            driver_ns: 1_250,
            send_returned_ns: 1_900,
            arrived_ns: 3_000,
            woken_ns: 3_050,
            switched_in_ns: 3_300,
            received_ns: 3_400,
        };
        let server = EndTimestamps {
            number: 4,
            arrived_ns: 1_300,
            received_ns: 1_700,
            send_call_ns: 1_750,
            ..EndTimestamps::default()
        };
        let pass = TimestampPass {
            start_ns: 500,
            client: TimestampLog {
                lost_request: None,
                entries: vec![client],
                receive_work: (0..3)
                    .map(|n| ReceiveWork {
                        from_ns: 1_000 + n * 100,
                        to_ns: 1_010 + n * 100,
                        cpu: 1,
                    })
                    .collect(),
                calls: Vec::new(),
                warnings: vec!["what".to_owned()],
                device: Default::default(),
            },
            server: TimestampLog {
                entries: vec![server],
                ..TimestampLog::default()
            },
        };
        let timeline = build_timeline(&pass, Some(7), None);
        let lines: Vec<String> = timeline
            .slices
            .iter()
            .map(|s| {
                format!(
                    "{:?} {:?} {} {}-{}",
                    s.role, s.track, s.name, s.start_ns, s.end_ns
                )
            })
            .collect();
        assert_eq!(
            lines,
            [
                "Client Driver net-rx 500-510",
                "Client Kernel stack-out 500-700",
                "Client Thread send 500-1400",
                "Client Driver net-rx 600-610",
                "Client Driver net-rx 700-710",
                "Client Kernel qdisc 700-750",
                "Server Thread receive 800-1200",
                "Server Kernel stack-in 800-1200",
                "Client Thread receive 1400-2900",
                "Client Kernel stack-in 2500-2550",
                "Client Kernel wake-up 2550-2800",
            ]
        );
        assert_eq!(timeline.driver.len(), 1);
        assert_eq!(timeline.driver[0].period_ns.p50, 100);
        assert_eq!(timeline.notes, ["what"]);
        assert_eq!(timeline.clock_error_ns, Some(7));
    }
}
