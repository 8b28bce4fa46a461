//! Computes the stages of round trips from the timestamps of both ends.
//!
//! A round trip passes the points in one order, so its stages add up to it; only their medians need
//! not add up to its median (docs/method/stages-and-timestamps.md). Round trips with a missing
//! timestamp are left out completely, so that no stage is computed as a remainder.

use linerate_metric::histogram::Histogram;
use linerate_metric::record::{Stage, StagePass};

use super::Noted;
use super::ring::{DeviceUse, Half};

/// Share of an end's round trips that need a wake-up (or switch-in) time before the stage is shown;
/// round trips without one are then left out.
const SHARE_THAT_TELLS: f64 = 0.9;

/// Stages of the arrival of a message at a thread, as far as they can be distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// User-space stack: into the socket's queue, out of it.
    Queued,
    /// Softirq, wake-up, call.
    Woken,
    /// Up to the switch-in, call.
    Ran,
    /// A single stage: the thread did not sleep, or its wake-ups could not be traced.
    Whole,
}

impl Arrival {
    fn of(halves: &[(Half, Half)], half: impl Fn(&(Half, Half)) -> Half) -> Self {
        let share = |seen: fn(Half) -> bool| {
            let count = halves.iter().filter(|pair| seen(half(pair))).count();
            count as f64 / halves.len().max(1) as f64
        };
        if share(|half| half.is_of_stack()) >= SHARE_THAT_TELLS {
            Self::Queued
        } else if share(|half| half.woken_ns != 0) >= SHARE_THAT_TELLS {
            Self::Woken
        } else if share(|half| half.running_ns != 0) >= SHARE_THAT_TELLS {
            Self::Ran
        } else {
            Self::Whole
        }
    }

    fn fits(self, half: Half) -> bool {
        match self {
            Self::Queued => half.is_of_stack(),
            Self::Woken => half.woken_ns != 0,
            Self::Ran => half.running_ns != 0,
            Self::Whole => true,
        }
    }

    /// Returns the stage that begins with the arrival.
    fn first(self) -> &'static str {
        match self {
            Self::Queued => "stack-in",
            Self::Woken => "softirq",
            Self::Ran => "wake-up",
            Self::Whole => "receive",
        }
    }

    /// Returns the stages of an outgoing message: up to the queueing discipline and the driver, or
    /// out of the user-space stack and into the driver.
    fn departure(self) -> (&'static str, &'static str) {
        match self {
            Self::Queued => ("stack-out", "driver-out"),
            _ => ("send-call", "qdisc"),
        }
    }

    /// Returns the points between arrival and receipt, each with the stage that ends there.
    fn places(self, half: Half) -> Vec<(&'static str, u64)> {
        match self {
            Self::Queued => vec![("stack-in", half.woken_ns), ("receive", half.received_ns)],
            Self::Woken => vec![
                ("softirq", half.woken_ns),
                ("wake-up", half.running_ns),
                ("receive-call", half.received_ns),
            ],
            // The softirq is part of the wake-up stage.
            Self::Ran => vec![
                ("wake-up", half.running_ns),
                ("receive-call", half.received_ns),
            ],
            Self::Whole => vec![("receive", half.received_ns)],
        }
    }
}

/// Computes the stages and the facts of the pass from the round trips of both ends, by number, on
/// one
/// clock with an error bound of `clock_error_ns` between the two.
#[must_use]
pub fn figures(near: &Noted, far: &Noted, clock_error_ns: Option<u64>) -> (Vec<Stage>, StagePass) {
    let pairs = pairs(&near.halves, &far.halves);
    let asked_count = near.halves.len() as u64;
    let (near_device, far_device) = (near.device, far.device);
    let complete: Vec<(Half, Half)> = pairs
        .iter()
        .copied()
        .filter(|(near, far)| is_whole(near) && is_whole(far))
        .collect();
    let near = Arrival::of(&complete, |pair| pair.0);
    let far = Arrival::of(&complete, |pair| pair.1);
    let mut stages: Vec<(String, Histogram)> = Vec::new();
    let mut trips = Histogram::new();
    for &(asked, answered) in &complete {
        if !near.fits(asked) || !far.fits(answered) {
            continue;
        }
        trips.record(asked.received_ns.saturating_sub(asked.handed_ns));
        let mut last = asked.handed_ns;
        for (number, (name, at)) in path(near, far, asked, answered).into_iter().enumerate() {
            if stages.len() == number {
                stages.push((name, Histogram::new()));
            }
            // Across hosts the clock error may exceed the path's delay.
            stages[number].1.record(at.saturating_sub(last));
            last = at;
        }
    }
    let devices = Devices {
        near: (near_device, near.first()),
        far: (far_device, far.first()),
        clock_error_ns,
    };
    let stages: Vec<Stage> = stages
        .into_iter()
        .map(|(name, times)| stage(name, &times, &devices))
        .collect();
    let pass = StagePass {
        round_trips: trips.count(),
        left_out: asked_count.saturating_sub(trips.count()),
        rtt_ns: trips.summary(),
        sum_of_medians_ns: stages.iter().map(|stage| stage.p50_ns).sum(),
        asking_ns: None,
        watching_ns: None,
        notes: Vec::new(),
    };
    (stages, pass)
}

/// Pairs the entries of each round trip recorded at both ends.
fn pairs(asked: &[Half], answered: &[Half]) -> Vec<(Half, Half)> {
    let mut answered = answered.iter().peekable();
    let mut pairs = Vec::new();
    for near in asked {
        while answered.next_if(|far| far.number < near.number).is_some() {}
        if let Some(far) = answered.next_if(|far| far.number == near.number) {
            pairs.push((*near, *far));
        }
    }
    pairs
}

/// Returns whether an entry has all timestamps that every pass provides.
fn is_whole(half: &Half) -> bool {
    [
        half.arrived_ns,
        half.received_ns,
        half.handed_ns,
        half.queued_ns,
        half.driver_ns,
    ]
    .iter()
    .all(|&time| time != 0)
}

/// Returns every point of a round trip after its start, with the stage that ends there.
fn path(near: Arrival, far: Arrival, asked: Half, answered: Half) -> Vec<(String, u64)> {
    let client = |stage: &str| format!("client-{stage}");
    let server = |stage: &str| format!("server-{stage}");
    let (call, behind) = near.departure();
    let mut path = vec![
        (client(call), asked.queued_ns),
        (client(behind), asked.driver_ns),
        ("path-there".to_owned(), answered.arrived_ns),
    ];
    let arrival = far.places(answered).into_iter();
    path.extend(arrival.map(|(stage, at)| (server(stage), at)));
    let (call, behind) = far.departure();
    path.extend([
        (server("application"), answered.handed_ns),
        (server(call), answered.queued_ns),
        (server(behind), answered.driver_ns),
        ("path-back".to_owned(), asked.arrived_ns),
    ]);
    let arrival = near.places(asked).into_iter();
    path.extend(arrival.map(|(stage, at)| (client(stage), at)));
    path
}

/// Use of hardware timestamps, and the clock error between hosts.
#[derive(Clone, Copy, Debug)]
struct Devices {
    /// Per end, with the stage that begins with an arrival there.
    near: (DeviceUse, &'static str),
    far: (DeviceUse, &'static str),
    clock_error_ns: Option<u64>,
}

impl Devices {
    /// Returns the error bounds of the hardware timestamps at the ends of a stage.
    fn errors(&self, stage: &str) -> Vec<u64> {
        let of = |device: DeviceUse, stamped: bool| stamped.then_some(device.error_ns);
        let ((near, near_first), (far, far_first)) = (self.near, self.far);
        let begins = |end: &str, first: &str| stage.strip_prefix(end) == Some(first);
        let ends = match stage {
            "client-qdisc" => [of(near, near.departures), None],
            "path-there" => [of(near, near.departures), of(far, far.arrivals)],
            _ if begins("server-", far_first) => [of(far, far.arrivals), None],
            "server-qdisc" => [of(far, far.departures), None],
            "path-back" => [of(far, far.departures), of(near, near.arrivals)],
            _ if begins("client-", near_first) => [of(near, near.arrivals), None],
            _ => [None, None],
        };
        ends.into_iter().flatten().collect()
    }
}

fn stage(name: String, times: &Histogram, devices: &Devices) -> Stage {
    let quantile = |share| times.quantile(share).unwrap_or(0);
    let of_devices = devices.errors(&name);
    let between_hosts = (devices.clock_error_ns).filter(|_| name.starts_with("path-"));
    let errors = of_devices.iter().copied().chain(between_hosts);
    Stage {
        clock_error_ns: errors.reduce(u64::saturating_add),
        stamps: match of_devices.is_empty() {
            true => "software".to_owned(),
            false => "hardware".to_owned(),
        },
        stage: name,
        p50_ns: quantile(0.5),
        p90_ns: quantile(0.9),
        p99_ns: quantile(0.99),
        mean_ns: times.mean().unwrap_or(0.0),
        parts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a round trip whose stages take the given times, in the order of the path.
    fn trip(number: u64, stages: [u64; 13]) -> (Half, Half) {
        let mut at = 1_000_000 * (number + 1);
        let start = at;
        let mut next = stages.iter().map(|stage| {
            at += stage;
            at
        });
        let mut take = || next.next().unwrap();
        let (queued_ns, driver_ns) = (take(), take());
        let far = Half {
            number,
            arrived_ns: take(),
            woken_ns: take(),
            running_ns: take(),
            received_ns: take(),
            handed_ns: take(),
            queued_ns: take(),
            driver_ns: take(),
            returned_ns: 0,
        };
        let near = Half {
            number,
            handed_ns: start,
            queued_ns,
            driver_ns,
            returned_ns: start + 500,
            arrived_ns: take(),
            woken_ns: take(),
            running_ns: take(),
            received_ns: take(),
        };
        (near, far)
    }

    const TIMES: [u64; 13] = [20, 5, 3, 10, 100, 30, 2, 21, 6, 4, 11, 110, 31];

    fn halves(count: u64) -> (Vec<Half>, Vec<Half>) {
        (0..count).map(|number| trip(number, TIMES)).unzip()
    }

    fn of(halves: &[Half]) -> Noted {
        Noted {
            halves: halves.to_vec(),
            ..Noted::default()
        }
    }

    #[test]
    fn stages_of_devices_say_so_with_their_error() {
        let (asked, answered) = halves(10);
        let device = |departures, arrivals, error_ns| DeviceUse {
            departures,
            arrivals,
            error_ns,
        };
        let told = |near, far, clock| {
            let near = Noted {
                device: near,
                ..of(&asked)
            };
            let far = Noted {
                device: far,
                ..of(&answered)
            };
            let (stages, _) = figures(&near, &far, clock);
            let told = stages
                .into_iter()
                .filter(|stage| stage.clock_error_ns.is_some());
            told.map(|stage| (stage.stage, stage.stamps, stage.clock_error_ns.unwrap_or(0)))
                .collect::<Vec<_>>()
        };
        let line = |stage: &str, stamps: &str, error| (stage.to_owned(), stamps.to_owned(), error);
        let none = device(false, false, 0);
        assert!(told(none, none, None).is_empty());
        assert_eq!(
            told(device(true, true, 300), device(true, true, 50), None),
            [
                line("client-qdisc", "hardware", 300),
                line("path-there", "hardware", 350),
                line("server-softirq", "hardware", 50),
                line("server-qdisc", "hardware", 50),
                line("path-back", "hardware", 350),
                line("client-softirq", "hardware", 300),
            ]
        );
        assert_eq!(
            told(none, device(false, true, 50), Some(4_000)),
            [
                line("path-there", "hardware", 4_050),
                line("server-softirq", "hardware", 50),
                line("path-back", "software", 4_000),
            ]
        );
    }

    #[test]
    fn stages_add_up_to_the_trip() {
        let (asked, answered) = halves(100);
        let (stages, pass) = figures(&of(&asked), &of(&answered), None);
        let names: Vec<_> = stages.iter().map(|stage| stage.stage.as_str()).collect();
        assert_eq!(
            names,
            [
                "client-send-call",
                "client-qdisc",
                "path-there",
                "server-softirq",
                "server-wake-up",
                "server-receive-call",
                "server-application",
                "server-send-call",
                "server-qdisc",
                "path-back",
                "client-softirq",
                "client-wake-up",
                "client-receive-call",
            ]
        );
        let medians: Vec<_> = stages.iter().map(|stage| stage.p50_ns).collect();
        assert_eq!(medians, TIMES);
        assert_eq!(pass.sum_of_medians_ns, TIMES.iter().sum::<u64>());
        assert_eq!(pass.rtt_ns.unwrap().p50, pass.sum_of_medians_ns);
        assert_eq!((pass.round_trips, pass.left_out), (100, 0));
    }

    #[test]
    fn what_cannot_be_told_apart_is_one_stage() {
        let (mut asked, mut answered) = halves(50);
        for half in &mut asked {
            half.woken_ns = 0;
        }
        for half in &mut answered {
            (half.woken_ns, half.running_ns) = (0, 0);
        }
        let (stages, pass) = figures(&of(&asked), &of(&answered), None);
        let of = |name: &str| stages.iter().find(|s| s.stage == name).map(|s| s.p50_ns);
        assert_eq!(of("server-receive"), Some(140));
        assert_eq!(of("client-wake-up"), Some(121));
        assert_eq!(of("client-receive-call"), Some(31));
        assert_eq!(of("client-softirq"), None);
        assert_eq!(pass.sum_of_medians_ns, TIMES.iter().sum::<u64>());
    }

    #[test]
    fn an_end_on_our_own_stack_has_stages_of_its_own() {
        let (asked, mut answered) = halves(20);
        for half in &mut answered {
            half.running_ns = 0;
        }
        let (stages, pass) = figures(&of(&asked), &of(&answered), None);
        let named: Vec<_> = stages
            .iter()
            .map(|s| (s.stage.as_str(), s.p50_ns))
            .collect();
        assert_eq!(
            named[2..8],
            [
                ("path-there", 3),
                ("server-stack-in", 10),
                ("server-receive", 130),
                ("server-application", 2),
                ("server-stack-out", 21),
                ("server-driver-out", 6),
            ]
        );
        assert_eq!(pass.sum_of_medians_ns, TIMES.iter().sum::<u64>());
    }

    #[test]
    fn a_trip_that_lacks_a_stamp_is_left_out_whole() {
        let (mut asked, mut answered) = halves(100);
        asked[3].driver_ns = 0;
        answered[4].arrived_ns = 0;
        // In one round trip one thread did not sleep, so its stages differ from the others'.
        (answered[5].woken_ns, answered[5].running_ns) = (0, 0);
        answered.remove(10);
        asked.remove(20);
        let (_, pass) = figures(&of(&asked), &of(&answered), None);
        assert_eq!(pass.round_trips, 95);
        assert_eq!(pass.left_out, 4);
        let (stages, pass) = figures(&of(&[]), &of(&[]), None);
        assert!(stages.is_empty() && pass.rtt_ns.is_none());
    }

    #[test]
    fn only_what_crosses_hosts_has_the_clocks_error() {
        let (asked, answered) = halves(10);
        // The server's clock is ahead by more than the path takes: no stage is negative.
        let answered: Vec<_> = answered.iter().map(|half| half.carried(-1_000)).collect();
        let (stages, _) = figures(&of(&asked), &of(&answered), Some(1_000));
        for stage in &stages {
            let crosses = stage.stage.starts_with("path-");
            assert_eq!(stage.clock_error_ns.is_some(), crosses, "{}", stage.stage);
        }
        assert_eq!(
            stages
                .iter()
                .find(|s| s.stage == "path-back")
                .unwrap()
                .p50_ns,
            0
        );
    }
}
