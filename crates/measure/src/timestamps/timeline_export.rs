//! Timeline of timestamped round trips.

use linerate_metric::facts::Role;
use linerate_metric::histogram::Histogram;
use linerate_metric::timeline::{DriverWork, Fired, Lane, Slice, Timeline, Trigger};

use super::ring::{COLD_TRIPS, Half, Work};
use super::{Noted, Stamped};

/// Returns the events of both ends on the client's clock, from the start of the run; and whether
/// anything took longer than `waited_for_ns`.
#[must_use]
pub fn timeline(
    stamped: &Stamped,
    clock_error_ns: Option<u64>,
    waited_for_ns: Option<u64>,
) -> Timeline {
    let mut slices = Vec::new();
    let mut driver = Vec::new();
    for (role, noted) in [(Role::Client, &stamped.near), (Role::Server, &stamped.far)] {
        let mut busy_until = 0;
        for half in &noted.halves {
            thread(role, half, busy_until, &mut slices);
            kernel(role, half, &mut slices);
            busy_until = half.returned_ns;
        }
        let own = noted.work.iter().map(|work| Slice {
            role,
            lane: Lane::Driver,
            name: "net-rx".to_owned(),
            start_ns: work.from_ns,
            end_ns: work.to_ns,
            trip: None,
            cpu: Some(work.cpu),
            thread: None,
        });
        slices.extend(own);
        let calls = noted.calls.iter().filter_map(|call| {
            Some(Slice {
                role,
                lane: Lane::Thread,
                name: call.name()?,
                start_ns: call.from_ns,
                end_ns: call.to_ns,
                trip: None,
                cpu: None,
                thread: Some(call.thread),
            })
        });
        slices.extend(calls);
        driver.extend(driver_work(role, &noted.work));
    }
    for slice in &mut slices {
        slice.start_ns = slice.start_ns.saturating_sub(stamped.start_ns);
        slice.end_ns = slice.end_ns.saturating_sub(stamped.start_ns);
    }
    slices.sort_by_key(|slice| (slice.start_ns, slice.end_ns));
    Timeline {
        slices,
        driver,
        clock_error_ns,
        notes: notes([&stamped.near, &stamped.far]),
        trigger: waited_for_ns.map(|above_ns| trigger(stamped, above_ns)),
        file: None,
    }
}

/// Finds the first round trip, or call where calls were recorded, that took longer. It is among
/// those
/// kept, because few are recorded after it.
fn trigger(stamped: &Stamped, above_ns: u64) -> Trigger {
    let ends = [(Role::Client, &stamped.near), (Role::Server, &stamped.far)];
    let is_calls = ends.iter().any(|(_, noted)| !noted.calls.is_empty());
    let since = |at: u64| at.saturating_sub(stamped.start_ns);
    let call = ends
        .iter()
        .flat_map(|(role, noted)| noted.calls.iter().map(move |call| (*role, call)))
        // The limit was rounded to ticks, so equal times count.
        .filter(|(_, call)| call.to_ns.saturating_sub(call.from_ns) >= above_ns)
        .min_by_key(|(_, call)| call.from_ns)
        .map(|(role, call)| Fired {
            role,
            at_ns: since(call.from_ns),
            took_ns: call.to_ns.saturating_sub(call.from_ns),
            trip: None,
            call: call.name(),
            lost: false,
        });
    let took = |half: &Half| half.received_ns.saturating_sub(half.handed_ns);
    let trip = (stamped.near.halves.iter())
        .filter(|half| half.number >= COLD_TRIPS && half.handed_ns > 0 && took(half) > above_ns)
        .min_by_key(|half| half.number)
        .map(|half| (half.number, half.handed_ns, took(half)));
    // A lost response took longer than the limit, and has no receive timestamp.
    let lost = (stamped.near.given_up).map(|lost| {
        let waited_ns = lost.at_ns.saturating_sub(lost.handed_ns);
        (lost.number, lost.handed_ns, waited_ns)
    });
    let is_lost = |number| (stamped.near.given_up).is_some_and(|lost| lost.number == number);
    let trip = (trip.into_iter().chain(lost))
        .min_by_key(|(number, ..)| *number)
        .map(|(number, handed_ns, took_ns)| Fired {
            role: Role::Client,
            at_ns: since(handed_ns),
            took_ns,
            trip: Some(number),
            call: None,
            lost: is_lost(number),
        });
    Trigger {
        of: if is_calls { "call" } else { "rtt" }.to_owned(),
        above_ns,
        fired: call.or(trip),
    }
}

fn notes(ends: [&Noted; 2]) -> Vec<String> {
    let all = ends.iter().flat_map(|noted| noted.notes.iter().cloned());
    all.collect()
}

/// Adds a slice, if both its start and its end are known.
fn slice(
    role: Role,
    lane: Lane,
    name: &str,
    trip: u64,
    (from, to): (u64, u64),
    out: &mut Vec<Slice>,
) {
    if from == 0 || to < from {
        return;
    }
    out.push(Slice {
        role,
        lane,
        name: name.to_owned(),
        start_ns: from,
        end_ns: to,
        trip: Some(trip),
        cpu: None,
        thread: None,
    });
}

/// Adds the calls of the thread. At the client a receive call begins after the send call. At the
/// server it begins at the switch-in, or at the request's arrival, but not before the previous
/// response
/// was sent (`busy_until`).
fn thread(role: Role, half: &Half, busy_until: u64, out: &mut Vec<Slice>) {
    let trip = half.number;
    let lane = Lane::Thread;
    slice(
        role,
        lane,
        "send",
        trip,
        (half.handed_ns, half.returned_ns),
        out,
    );
    if role == Role::Client {
        slice(
            role,
            lane,
            "receive",
            trip,
            (half.returned_ns, half.received_ns),
            out,
        );
    } else {
        let began = match half.running_ns {
            0 => half.arrived_ns,
            running => running,
        };
        if began != 0 {
            let began = began.max(busy_until);
            slice(role, lane, "receive", trip, (began, half.received_ns), out);
        }
    }
}

/// Adds the passage of the messages through the kernel.
fn kernel(role: Role, half: &Half, out: &mut Vec<Slice>) {
    let trip = half.number;
    let lane = Lane::Kernel;
    slice(
        role,
        lane,
        "stack-out",
        trip,
        (half.handed_ns, half.queued_ns),
        out,
    );
    slice(
        role,
        lane,
        match half.is_of_stack() {
            true => "driver-out",
            false => "qdisc",
        },
        trip,
        (half.queued_ns, half.driver_ns),
        out,
    );
    let delivered = match (half.woken_ns, half.running_ns) {
        (0, 0) => half.received_ns,
        (0, running) => running,
        (woken, _) => woken,
    };
    slice(
        role,
        lane,
        "stack-in",
        trip,
        (half.arrived_ns, delivered),
        out,
    );
    if half.woken_ns != 0 {
        slice(
            role,
            lane,
            "wake-up",
            trip,
            (half.woken_ns, half.running_ns),
            out,
        );
    }
}

/// Summarises periods and durations of the processors' receive work.
fn driver_work(role: Role, work: &[Work]) -> Option<DriverWork> {
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
    Some(DriverWork {
        role,
        period_ns: periods.summary()?,
        duration_ns: durations.summary()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::ring::GivenUp;
    use super::*;
    use crate::transport::call_times::TimedCall;

    #[test]
    fn the_first_that_is_slower_fires_once_it_is_warm() {
        let half = |number: u64, took_ns: u64| Half {
            number,
            handed_ns: 1_000 + number * 1_000,
            received_ns: 1_000 + number * 1_000 + took_ns,
            ..Half::default()
        };
        let mut stamped = Stamped {
            start_ns: 1_000,
            near: Noted {
                given_up: None,
                halves: vec![
                    half(0, 900),
                    half(COLD_TRIPS + 2, 700),
                    half(COLD_TRIPS + 1, 600),
                    half(COLD_TRIPS, 100),
                ],
                ..Noted::default()
            },
            far: Noted::default(),
        };
        let trigger = |stamped: &Stamped, above| timeline(stamped, None, above).trigger;
        assert_eq!(trigger(&stamped, None), None);
        let never = trigger(&stamped, Some(700)).unwrap();
        assert_eq!((never.of.as_str(), never.fired), ("rtt", None));
        let fired = trigger(&stamped, Some(500)).unwrap().fired.unwrap();
        assert_eq!((fired.trip, fired.took_ns), (Some(COLD_TRIPS + 1), 600));
        assert_eq!(fired.at_ns, (COLD_TRIPS + 1) * 1_000);
        let call = |from_ns, to_ns| TimedCall {
            from_ns,
            to_ns,
            slot: 0,
            thread: 0,
        };
        // An earlier request whose response was lost.
        stamped.near.given_up = Some(GivenUp {
            number: COLD_TRIPS,
            handed_ns: 1_500,
            at_ns: 9_500,
        });
        let fired = trigger(&stamped, Some(500)).unwrap().fired.unwrap();
        assert_eq!((fired.trip, fired.took_ns), (Some(COLD_TRIPS), 8_000));
        assert!(fired.lost);
        stamped.near.halves.clear();
        stamped.near.given_up = None;
        stamped.far.calls = vec![call(2_000, 2_400), call(1_500, 1_510), call(1_700, 2_600)];
        let fired = trigger(&stamped, Some(300)).unwrap();
        assert_eq!(fired.of, "call");
        let fired = fired.fired.unwrap();
        assert_eq!(
            (fired.role, fired.at_ns, fired.took_ns),
            (Role::Server, 700, 900)
        );
        assert!(fired.call.is_some() && fired.trip.is_none());
    }

    #[test]
    fn everything_that_is_known_is_shown() {
        let near = Half {
            number: 4,
            handed_ns: 1_000,
            queued_ns: 1_200,
            driver_ns: 1_250,
            returned_ns: 1_900,
            arrived_ns: 3_000,
            woken_ns: 3_050,
            running_ns: 3_300,
            received_ns: 3_400,
        };
        let far = Half {
            number: 4,
            arrived_ns: 1_300,
            received_ns: 1_700,
            handed_ns: 1_750,
            ..Half::default()
        };
        let stamped = Stamped {
            start_ns: 500,
            near: Noted {
                given_up: None,
                halves: vec![near],
                work: (0..3)
                    .map(|n| Work {
                        from_ns: 1_000 + n * 100,
                        to_ns: 1_010 + n * 100,
                        cpu: 1,
                    })
                    .collect(),
                calls: Vec::new(),
                notes: vec!["what".to_owned()],
                device: Default::default(),
            },
            far: Noted {
                halves: vec![far],
                ..Noted::default()
            },
        };
        let timeline = timeline(&stamped, Some(7), None);
        let seen: Vec<String> = timeline
            .slices
            .iter()
            .map(|s| {
                format!(
                    "{:?} {:?} {} {}-{}",
                    s.role, s.lane, s.name, s.start_ns, s.end_ns
                )
            })
            .collect();
        assert_eq!(
            seen,
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
