//! Stamped trips as a timeline.

use linerate_metric::facts::Role;
use linerate_metric::histogram::Histogram;
use linerate_metric::timeline::{DriverWork, Lane, Slice, Timeline};

use super::log::{Half, Work};
use super::{Noted, Stamped};

/// Everything that both ends noted, on the asking end's clock, from the start of the run on.
#[must_use]
pub fn timeline(stamped: &Stamped, clock_error_ns: Option<u64>) -> Timeline {
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
    }
}

fn notes(ends: [&Noted; 2]) -> Vec<String> {
    let all = ends.iter().flat_map(|noted| noted.notes.iter().cloned());
    all.collect()
}

/// A slice, if both of its ends are known.
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

/// The calls of the thread. A receive call begins where the thread had nothing else to do: for the
/// asking end behind its send call, for the answering end when it was switched in, or when the
/// question arrived, and not before the answer before had left (`busy_until`).
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

/// Where the messages were.
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

/// How regularly and how long the processors worked.
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
    use super::*;

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
        let timeline = timeline(&stamped, Some(7));
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
