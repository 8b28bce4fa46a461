//! Computes the stages of round trips from the timestamps of both ends.
//!
//! A round trip passes the points in one order, so its stages add up to it; only their medians need
//! not add up to its median (docs/method/stages-and-timestamps.md). Round trips with a missing
//! timestamp are left out completely, so that no stage is computed as a remainder.

use linerate_record::record::{RoundTripStage, StagePass};
use linerate_stats::histogram::Histogram;

use super::TimestampLog;
use super::ring::{EndTimestamps, HardwareTimestampUse};

/// Share of an end's round trips that need a wake-up (or switch-in) time before the stage is shown;
/// round trips without one are then left out.
const MIN_TIMED_SHARE: f64 = 0.9;

/// Stages of the arrival of a message at a thread, as far as they can be distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrivalStages {
    /// User-space stack: into the socket's queue, out of it.
    Netstack,
    /// Softirq, wake-up, call.
    SoftirqAndWakeUp,
    /// Up to the switch-in, call.
    WakeUp,
    /// A single stage: the thread did not sleep, or its wake-ups could not be traced.
    Single,
}

impl ArrivalStages {
    fn detect(
        entries: &[(EndTimestamps, EndTimestamps)],
        entry: impl Fn(&(EndTimestamps, EndTimestamps)) -> EndTimestamps,
    ) -> Self {
        let share = |is_present: fn(EndTimestamps) -> bool| {
            let count = entries
                .iter()
                .filter(|pair| is_present(entry(pair)))
                .count();
            count as f64 / entries.len().max(1) as f64
        };
        if share(|entry| entry.is_netstack()) >= MIN_TIMED_SHARE {
            Self::Netstack
        } else if share(|entry| entry.woken_ns != 0) >= MIN_TIMED_SHARE {
            Self::SoftirqAndWakeUp
        } else if share(|entry| entry.switched_in_ns != 0) >= MIN_TIMED_SHARE {
            Self::WakeUp
        } else {
            Self::Single
        }
    }

    fn applies_to(self, entry: EndTimestamps) -> bool {
        match self {
            Self::Netstack => entry.is_netstack(),
            Self::SoftirqAndWakeUp => entry.woken_ns != 0,
            Self::WakeUp => entry.switched_in_ns != 0,
            Self::Single => true,
        }
    }

    /// Returns the stage that begins with the arrival.
    fn first_stage(self) -> &'static str {
        match self {
            Self::Netstack => "stack-in",
            Self::SoftirqAndWakeUp => "softirq",
            Self::WakeUp => "wake-up",
            Self::Single => "receive",
        }
    }

    /// Returns the stages of an outgoing message: up to the queueing discipline and the driver, or
    /// out of the user-space stack and into the driver.
    fn departure_stages(self) -> (&'static str, &'static str) {
        match self {
            Self::Netstack => ("stack-out", "driver-out"),
            _ => ("send-call", "qdisc"),
        }
    }

    /// Returns the points between arrival and receipt, each with the stage that ends there.
    fn points(self, entry: EndTimestamps) -> Vec<(&'static str, u64)> {
        match self {
            Self::Netstack => vec![("stack-in", entry.woken_ns), ("receive", entry.received_ns)],
            Self::SoftirqAndWakeUp => vec![
                ("softirq", entry.woken_ns),
                ("wake-up", entry.switched_in_ns),
                ("receive-call", entry.received_ns),
            ],
            // The softirq is part of the wake-up stage.
            Self::WakeUp => vec![
                ("wake-up", entry.switched_in_ns),
                ("receive-call", entry.received_ns),
            ],
            Self::Single => vec![("receive", entry.received_ns)],
        }
    }
}

/// Computes the stages and the facts of the pass from the round trips of both ends, by number, on
/// one clock with an error bound of `clock_error_ns` between the two.
#[must_use]
pub fn compute_stages(
    client: &TimestampLog,
    server: &TimestampLog,
    clock_error_ns: Option<u64>,
) -> (Vec<RoundTripStage>, StagePass) {
    let pairs = pair_entries(&client.entries, &server.entries);
    let client_count = client.entries.len() as u64;
    let (client_device, server_device) = (client.device, server.device);
    let complete: Vec<(EndTimestamps, EndTimestamps)> = pairs
        .iter()
        .copied()
        .filter(|(client, server)| is_complete(client) && is_complete(server))
        .collect();
    let client = ArrivalStages::detect(&complete, |pair| pair.0);
    let server = ArrivalStages::detect(&complete, |pair| pair.1);
    let mut stages: Vec<(String, Histogram)> = Vec::new();
    let mut round_trip_times = Histogram::new();
    for &(client_entry, server_entry) in &complete {
        if !client.applies_to(client_entry) || !server.applies_to(server_entry) {
            continue;
        }
        round_trip_times.record(
            client_entry
                .received_ns
                .saturating_sub(client_entry.send_call_ns),
        );
        let mut last = client_entry.send_call_ns;
        for (number, (name, at)) in path_points(client, server, client_entry, server_entry)
            .into_iter()
            .enumerate()
        {
            if stages.len() == number {
                stages.push((name, Histogram::new()));
            }
            // Across hosts the clock error may exceed the path's delay.
            stages[number].1.record(at.saturating_sub(last));
            last = at;
        }
    }
    let devices = HardwareClocks {
        client: (client_device, client.first_stage()),
        server: (server_device, server.first_stage()),
        clock_error_ns,
    };
    let stages: Vec<RoundTripStage> = stages
        .into_iter()
        .map(|(name, times)| to_stage(name, &times, &devices))
        .collect();
    let pass = StagePass {
        round_trips: round_trip_times.count(),
        incomplete: client_count.saturating_sub(round_trip_times.count()),
        rtt_ns: round_trip_times.summary(),
        sum_of_medians_ns: stages.iter().map(|stage| stage.p50_ns).sum(),
        timestamp_overhead_ns: None,
        tracing_overhead_ns: None,
        notes: Vec::new(),
    };
    (stages, pass)
}

/// Pairs the entries of each round trip recorded at both ends.
fn pair_entries(
    client_entries: &[EndTimestamps],
    server_entries: &[EndTimestamps],
) -> Vec<(EndTimestamps, EndTimestamps)> {
    let mut server_entries = server_entries.iter().peekable();
    let mut pairs = Vec::new();
    for client in client_entries {
        while server_entries
            .next_if(|server| server.number < client.number)
            .is_some()
        {}
        if let Some(server) = server_entries.next_if(|server| server.number == client.number) {
            pairs.push((*client, *server));
        }
    }
    pairs
}

/// Returns whether an entry has all timestamps that every pass provides.
fn is_complete(entry: &EndTimestamps) -> bool {
    [
        entry.arrived_ns,
        entry.received_ns,
        entry.send_call_ns,
        entry.queued_ns,
        entry.driver_ns,
    ]
    .iter()
    .all(|&time| time != 0)
}

/// Returns every point of a round trip after its start, with the stage that ends there.
fn path_points(
    client_arrival: ArrivalStages,
    server_arrival: ArrivalStages,
    client_entry: EndTimestamps,
    server_entry: EndTimestamps,
) -> Vec<(String, u64)> {
    let client = |stage: &str| format!("client-{stage}");
    let server = |stage: &str| format!("server-{stage}");
    let (call_stage, driver_stage) = client_arrival.departure_stages();
    let mut path = vec![
        (client(call_stage), client_entry.queued_ns),
        (client(driver_stage), client_entry.driver_ns),
        ("path-to-server".to_owned(), server_entry.arrived_ns),
    ];
    let arrival = server_arrival.points(server_entry).into_iter();
    path.extend(arrival.map(|(stage, at)| (server(stage), at)));
    let (call_stage, driver_stage) = server_arrival.departure_stages();
    path.extend([
        (server("application"), server_entry.send_call_ns),
        (server(call_stage), server_entry.queued_ns),
        (server(driver_stage), server_entry.driver_ns),
        ("path-to-client".to_owned(), client_entry.arrived_ns),
    ]);
    let arrival = client_arrival.points(client_entry).into_iter();
    path.extend(arrival.map(|(stage, at)| (client(stage), at)));
    path
}

/// Use of hardware timestamps, and the clock error between hosts.
#[derive(Clone, Copy, Debug)]
struct HardwareClocks {
    /// Per end, with the stage that begins with an arrival there.
    client: (HardwareTimestampUse, &'static str),
    server: (HardwareTimestampUse, &'static str),
    clock_error_ns: Option<u64>,
}

impl HardwareClocks {
    /// Returns the error bounds of the hardware timestamps at the ends of a stage.
    fn clock_errors(&self, stage: &str) -> Vec<u64> {
        let of = |device: HardwareTimestampUse, is_hardware: bool| {
            is_hardware.then_some(device.error_ns)
        };
        let ((client, client_first), (server, server_first)) = (self.client, self.server);
        let begins = |end: &str, first: &str| stage.strip_prefix(end) == Some(first);
        let endpoints = match stage {
            "client-qdisc" => [of(client, client.departures), None],
            "path-to-server" => [of(client, client.departures), of(server, server.arrivals)],
            _ if begins("server-", server_first) => [of(server, server.arrivals), None],
            "server-qdisc" => [of(server, server.departures), None],
            "path-to-client" => [of(server, server.departures), of(client, client.arrivals)],
            _ if begins("client-", client_first) => [of(client, client.arrivals), None],
            _ => [None, None],
        };
        endpoints.into_iter().flatten().collect()
    }
}

fn to_stage(name: String, times: &Histogram, devices: &HardwareClocks) -> RoundTripStage {
    let quantile = |share| times.quantile(share).unwrap_or(0);
    let of_devices = devices.clock_errors(&name);
    let between_hosts = (devices.clock_error_ns).filter(|_| name.starts_with("path-"));
    let errors = of_devices.iter().copied().chain(between_hosts);
    RoundTripStage {
        clock_error_ns: errors.reduce(u64::saturating_add),
        timestamp_source: match of_devices.is_empty() {
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
    fn round_trip(number: u64, stages: [u64; 13]) -> (EndTimestamps, EndTimestamps) {
        let mut at = 1_000_000 * (number + 1);
        let start = at;
        let mut next = stages.iter().map(|stage| {
            at += stage;
            at
        });
        let mut take = || next.next().unwrap();
        let (queued_ns, driver_ns) = (take(), take());
        let server = EndTimestamps {
            number,
            arrived_ns: take(),
            woken_ns: take(),
            switched_in_ns: take(),
            received_ns: take(),
            send_call_ns: take(),
            queued_ns: take(),
            driver_ns: take(),
            send_returned_ns: 0,
        };
        let client = EndTimestamps {
            number,
            send_call_ns: start,
            queued_ns,
            driver_ns,
            send_returned_ns: start + 500,
            arrived_ns: take(),
            woken_ns: take(),
            switched_in_ns: take(),
            received_ns: take(),
        };
        (client, server)
    }

    const TIMES: [u64; 13] = [20, 5, 3, 10, 100, 30, 2, 21, 6, 4, 11, 110, 31];

    fn round_trips(count: u64) -> (Vec<EndTimestamps>, Vec<EndTimestamps>) {
        (0..count).map(|number| round_trip(number, TIMES)).unzip()
    }

    fn log_of(entries: &[EndTimestamps]) -> TimestampLog {
        TimestampLog {
            entries: entries.to_vec(),
            ..TimestampLog::default()
        }
    }

    #[test]
    fn stages_with_hardware_timestamps_carry_their_error() {
        let (client_entries, server_entries) = round_trips(10);
        let device = |departures, arrivals, error_ns| HardwareTimestampUse {
            departures,
            arrivals,
            error_ns,
        };
        let stages_with_error = |client, server, clock| {
            let client = TimestampLog {
                device: client,
                ..log_of(&client_entries)
            };
            let server = TimestampLog {
                device: server,
                ..log_of(&server_entries)
            };
            let (stages, _) = compute_stages(&client, &server, clock);
            let stages_with_error = stages
                .into_iter()
                .filter(|stage| stage.clock_error_ns.is_some());
            stages_with_error
                .map(|stage| {
                    (
                        stage.stage,
                        stage.timestamp_source,
                        stage.clock_error_ns.unwrap_or(0),
                    )
                })
                .collect::<Vec<_>>()
        };
        let row = |stage: &str, stamps: &str, error| (stage.to_owned(), stamps.to_owned(), error);
        let none = device(false, false, 0);
        assert!(stages_with_error(none, none, None).is_empty());
        assert_eq!(
            stages_with_error(device(true, true, 300), device(true, true, 50), None),
            [
                row("client-qdisc", "hardware", 300),
                row("path-to-server", "hardware", 350),
                row("server-softirq", "hardware", 50),
                row("server-qdisc", "hardware", 50),
                row("path-to-client", "hardware", 350),
                row("client-softirq", "hardware", 300),
            ]
        );
        assert_eq!(
            stages_with_error(none, device(false, true, 50), Some(4_000)),
            [
                row("path-to-server", "hardware", 4_050),
                row("server-softirq", "hardware", 50),
                row("path-to-client", "software", 4_000),
            ]
        );
    }

    #[test]
    fn stages_add_up_to_the_round_trip() {
        let (client_entries, server_entries) = round_trips(100);
        let (stages, pass) =
            compute_stages(&log_of(&client_entries), &log_of(&server_entries), None);
        let names: Vec<_> = stages.iter().map(|stage| stage.stage.as_str()).collect();
        assert_eq!(
            names,
            [
                "client-send-call",
                "client-qdisc",
                "path-to-server",
                "server-softirq",
                "server-wake-up",
                "server-receive-call",
                "server-application",
                "server-send-call",
                "server-qdisc",
                "path-to-client",
                "client-softirq",
                "client-wake-up",
                "client-receive-call",
            ]
        );
        let medians: Vec<_> = stages.iter().map(|stage| stage.p50_ns).collect();
        assert_eq!(medians, TIMES);
        assert_eq!(pass.sum_of_medians_ns, TIMES.iter().sum::<u64>());
        assert_eq!(pass.rtt_ns.unwrap().p50, pass.sum_of_medians_ns);
        assert_eq!((pass.round_trips, pass.incomplete), (100, 0));
    }

    #[test]
    fn indistinguishable_stages_are_one_stage() {
        let (mut client_entries, mut server_entries) = round_trips(50);
        for entry in &mut client_entries {
            entry.woken_ns = 0;
        }
        for entry in &mut server_entries {
            (entry.woken_ns, entry.switched_in_ns) = (0, 0);
        }
        let (stages, pass) =
            compute_stages(&log_of(&client_entries), &log_of(&server_entries), None);
        let of = |name: &str| stages.iter().find(|s| s.stage == name).map(|s| s.p50_ns);
        assert_eq!(of("server-receive"), Some(140));
        assert_eq!(of("client-wake-up"), Some(121));
        assert_eq!(of("client-receive-call"), Some(31));
        assert_eq!(of("client-softirq"), None);
        assert_eq!(pass.sum_of_medians_ns, TIMES.iter().sum::<u64>());
    }

    #[test]
    fn an_end_on_the_netstack_has_its_own_stages() {
        let (client_entries, mut server_entries) = round_trips(20);
        for entry in &mut server_entries {
            entry.switched_in_ns = 0;
        }
        let (stages, pass) =
            compute_stages(&log_of(&client_entries), &log_of(&server_entries), None);
        let named: Vec<_> = stages
            .iter()
            .map(|s| (s.stage.as_str(), s.p50_ns))
            .collect();
        assert_eq!(
            named[2..8],
            [
                ("path-to-server", 3),
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
    fn an_incomplete_round_trip_is_left_out() {
        let (mut client_entries, mut server_entries) = round_trips(100);
        client_entries[3].driver_ns = 0;
        server_entries[4].arrived_ns = 0;
        // In one round trip one thread did not sleep, so its stages differ from the others'.
        (server_entries[5].woken_ns, server_entries[5].switched_in_ns) = (0, 0);
        server_entries.remove(10);
        client_entries.remove(20);
        let (_, pass) = compute_stages(&log_of(&client_entries), &log_of(&server_entries), None);
        assert_eq!(pass.round_trips, 95);
        assert_eq!(pass.incomplete, 4);
        let (stages, pass) = compute_stages(&log_of(&[]), &log_of(&[]), None);
        assert!(stages.is_empty() && pass.rtt_ns.is_none());
    }

    #[test]
    fn only_stages_between_hosts_carry_the_clock_error() {
        let (client_entries, server_entries) = round_trips(10);
        // The server's clock is ahead by more than the path takes: no stage is negative.
        let server_entries: Vec<_> = server_entries
            .iter()
            .map(|entry| entry.to_clock_behind(-1_000))
            .collect();
        let (stages, _) = compute_stages(
            &log_of(&client_entries),
            &log_of(&server_entries),
            Some(1_000),
        );
        for stage in &stages {
            let crosses = stage.stage.starts_with("path-");
            assert_eq!(stage.clock_error_ns.is_some(), crosses, "{}", stage.stage);
        }
        assert_eq!(
            stages
                .iter()
                .find(|s| s.stage == "path-to-client")
                .unwrap()
                .p50_ns,
            0
        );
    }
}
