//! Latency as a function of load, and the latency that a background load adds.

use std::fmt;
use std::str::FromStr;

use linerate_stats::histogram::Quantiles;
use linerate_stats::units::BitRate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{AddedDelay, StoredId};
use crate::record::Record;

/// A background load during a measurement. Written as on the command line: `tcp`, `udp:100M`,
/// `cpu:2/2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundLoad {
    /// TCP to the server, at a payload rate in bits per second or as fast as possible.
    Tcp(Option<u64>),
    /// UDP to the server, at a payload rate in bits per second or as fast as possible.
    Udp(Option<u64>),
    /// Threads that use processor time at each end; absent: one per processor at the client, none
    /// at the server.
    Cpu {
        /// Threads at the client.
        client_threads: Option<u32>,
        /// Threads at the server.
        server_threads: Option<u32>,
    },
}

impl FromStr for BackgroundLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let syntax_error = || {
            format!(
                "`{text}` is not a load: use tcp[:RATE], udp[:RATE] or cpu[:THREADS][/SERVER_THREADS]"
            )
        };
        let rate = |rest: &str| match rest.strip_prefix(':') {
            None if rest.is_empty() => Ok(None),
            None => Err(syntax_error()),
            Some(rate) => match rate.parse::<BitRate>() {
                Ok(rate) if rate.0 > 0 => Ok(Some(rate.0)),
                _ => Err(syntax_error()),
            },
        };
        let threads = |text: &str| text.parse::<u32>().map(Some).map_err(|_| syntax_error());
        if let Some(rest) = text.strip_prefix("tcp") {
            return rate(rest).map(Self::Tcp);
        }
        if let Some(rest) = text.strip_prefix("udp") {
            return rate(rest).map(Self::Udp);
        }
        let rest = text.strip_prefix("cpu").ok_or_else(syntax_error)?;
        let (client_threads, server_threads) = match rest.split_once('/') {
            Some((client_threads, server_threads)) => (client_threads, threads(server_threads)?),
            None => (rest, None),
        };
        let client_threads = match client_threads.strip_prefix(':') {
            Some(client_threads) => threads(client_threads)?,
            None if client_threads.is_empty() => None,
            None => return Err(syntax_error()),
        };
        if client_threads == Some(0) && server_threads.unwrap_or(0) == 0 {
            return Err(format!(
                "`{text}` starts no thread: use cpu:1 or more, or cpu without a number"
            ));
        }
        Ok(Self::Cpu {
            client_threads,
            server_threads,
        })
    }
}

impl fmt::Display for BackgroundLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, rate) = match self {
            Self::Tcp(rate) => ("TCP", rate),
            Self::Udp(rate) => ("UDP", rate),
            Self::Cpu {
                client_threads,
                server_threads,
            } => {
                f.write_str("CPU load threads, ")?;
                match client_threads {
                    Some(client_threads) => write!(f, "client {client_threads}")?,
                    None => f.write_str("client one per processor")?,
                }
                return write!(f, ", server {}", server_threads.unwrap_or(0));
            }
        };
        match rate {
            Some(rate) => write!(f, "{name} at {}", BitRate(*rate)),
            None => write!(f, "{name} as fast as possible"),
        }
    }
}

/// Shares of the capacity at which a load curve is measured.
pub const CURVE_SHARES: &[f64] = &[0.10, 0.20, 0.30, 0.40, 0.50, 0.60, 0.70, 0.80, 0.90, 0.95];

/// Factor over the unloaded latency at which a load is beyond the knee.
pub const KNEE_RATIO: f64 = 2.0;

/// Point of a load curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadPoint {
    /// Intended load as a share of the capacity, 0 to 1.
    pub share: f64,
    /// Intended requests per second, sum of all flows.
    pub intended_per_second: f64,
    /// Completed round trips per second.
    pub achieved_per_second: f64,
    /// Requests without a response before the timeout.
    #[serde(default)]
    pub lost: u64,
    /// Requests that were scheduled and never sent.
    #[serde(default)]
    pub unsent: u64,
    /// Time from the scheduled send time to the response.
    pub rtt_intended_ns: Quantiles,
    /// Time from the actual send time to the response.
    pub rtt_ns: Quantiles,
}

/// Latency as a function of load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadCurve {
    /// Capacity: round trips per second in a closed loop, with each request sent as soon as one may
    /// be outstanding.
    pub capacity_per_second: f64,
    /// Points of the curve, ascending in load.
    pub points: Vec<LoadPoint>,
    /// Highest load up to which p90 from the scheduled send time is at most twice that of the
    /// lowest load, and at least [`KNEE_RESPONSE_SHARE`] of the requests get a response. Absent if
    /// the second point already exceeds that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<LoadPoint>,
}

/// Share of the requests that must get a response for a load to count as carried.
pub const KNEE_RESPONSE_SHARE: f64 = 0.95;

/// Returns the knee of a curve whose points ascend in load.
///
/// Rule: the last point before the load is no longer carried. A point is carried if p90 (from the
/// scheduled time) is at most [`KNEE_RATIO`] times that of the first one, and at least
/// [`KNEE_RESPONSE_SHARE`] of the requests get a response: missing responses are in no percentile.
/// One point that is not carried, followed by a better one, is noise; two are not. The rule uses
/// p90 because p50 hardly changes before the queue is full, and p99 depends on other work of the
/// machine.
#[must_use]
pub fn find_knee(points: &[LoadPoint]) -> Option<LoadPoint> {
    let first = points.first()?;
    let base = first.rtt_intended_ns.p90 as f64;
    let carried = |point: &LoadPoint| {
        point.rtt_intended_ns.p90 as f64 <= base * KNEE_RATIO
            && point.achieved_per_second >= point.intended_per_second * KNEE_RESPONSE_SHARE
    };
    if !carried(first) {
        return None;
    }
    let mut last = first;
    let mut bad = 0;
    for point in points {
        if carried(point) {
            last = point;
        } else {
            bad += 1;
            if bad > 1 {
                break;
            }
        }
    }
    (last.share > first.share).then_some(*last)
}

/// Latency with and without a background load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyUnderLoad {
    /// Background load: `tcp`, `udp:100M`, `cpu:2/2`.
    pub load: String,
    /// Latency without the load.
    pub idle_ns: Quantiles,
    /// Latency with the load.
    pub loaded_ns: Quantiles,
    /// Latency added to the median; for traffic, by the queues on the path (bufferbloat).
    pub added_p50_ns: f64,
    /// Latency added to p99.
    pub added_p99_ns: f64,
    /// Requests per second and flow in both runs, on a fixed schedule; times then count from the
    /// scheduled send time. Absent for a closed loop, which hides queues, because most requests are
    /// sent while they are empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u64>,
    /// Payload bits per second of the load; absent for a CPU load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_goodput_bps: Option<f64>,
    /// Time per round trip that threads of both ends waited for a CPU, more than without the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_wait_ns: Option<f64>,
    /// Origin of the added time: `processor-wait` (half of it or more), `kernel-work` (no link
    /// between the ends has a queue: loopback), or `path-queue` (bufferbloat, and kernel time of
    /// both hosts); absent if the load adds none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_by: Option<StoredId<AddedDelay>>,
}

/// Share of the added time from which it counts as the wait for a CPU.
const PROCESSOR_WAIT_SHARE: f64 = 0.5;

/// Interface whose packets never leave the kernel.
const LOOPBACK_INTERFACE: &str = "lo";

impl LatencyUnderLoad {
    /// Creates the comparison from both distributions.
    #[must_use]
    pub fn compare(load: String, idle: Quantiles, loaded: Quantiles, goodput: Option<f64>) -> Self {
        Self {
            load,
            added_p50_ns: loaded.p50 as f64 - idle.p50 as f64,
            added_p99_ns: loaded.p99 as f64 - idle.p99 as f64,
            idle_ns: idle,
            loaded_ns: loaded,
            rate_per_second: None,
            load_goodput_bps: goodput,
            processor_wait_ns: None,
            added_by: None,
        }
    }

    /// Attributes the added time, from the runs without and with the load.
    #[must_use]
    pub fn attribute(self, idle: &Record, loaded: &Record) -> Self {
        let wait = processor_wait_ns(loaded).zip(processor_wait_ns(idle));
        let wait = wait.map(|(loaded, idle)| (loaded - idle).max(0.0));
        // A rare delay without the load may exceed all that the load adds to the mean.
        let added = (self.loaded_ns.mean - self.idle_ns.mean).max(self.added_p50_ns);
        let is_waiting = wait.is_some_and(|wait| wait >= PROCESSOR_WAIT_SHARE * added);
        let is_loopback = loaded.hosts.iter().any(|host| {
            let interface = host.interface.as_ref();
            interface.is_some_and(|interface| interface.name == LOOPBACK_INTERFACE)
        });
        let origin = match self.load_goodput_bps {
            None => AddedDelay::ProcessorWait,
            Some(_) if is_waiting => AddedDelay::ProcessorWait,
            Some(_) if is_loopback => AddedDelay::KernelWork,
            Some(_) => AddedDelay::PathQueue,
        };
        Self {
            processor_wait_ns: wait,
            added_by: (self.added_p50_ns > 0.0).then(|| origin.into()),
            ..self
        }
    }
}

/// Returns the time per round trip in which the threads of both ends were ready to run and did not
/// run; `None` without such times.
fn processor_wait_ns(run: &Record) -> Option<f64> {
    let round_trips = run.summary.round_trips.filter(|&count| count > 0)?;
    let threads = run.summary.cpu.iter().flat_map(|end| &end.threads);
    let waits: Vec<u64> = threads.filter_map(|thread| thread.runnable_ns).collect();
    (!waits.is_empty()).then(|| waits.iter().sum::<u64>() as f64 / round_trips as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_read() {
        let cpu = |client_threads, server_threads| BackgroundLoad::Cpu {
            client_threads,
            server_threads,
        };
        for (text, expected) in [
            ("tcp", BackgroundLoad::Tcp(None)),
            ("udp:100M", BackgroundLoad::Udp(Some(100_000_000))),
            ("cpu", cpu(None, None)),
            ("cpu:2", cpu(Some(2), None)),
            ("cpu:2/3", cpu(Some(2), Some(3))),
            ("cpu/3", cpu(None, Some(3))),
            ("cpu:0/2", cpu(Some(0), Some(2))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "", "tcpx", "udp:0", "udp:", "cpu:", "cpux", "cpu:1/", "disk", "cpu:0", "cpu:0/0",
        ] {
            assert!(text.parse::<BackgroundLoad>().is_err(), "{text}");
        }
    }

    fn quantiles(p90: u64) -> Quantiles {
        Quantiles {
            count: 10,
            min: 1,
            mean: p90 as f64 / 2.0,
            p50: p90 / 2,
            p90,
            p99: p90,
            p99_9: p90,
            p99_99: p90,
            max: p90,
            standard_deviation: 0.0,
        }
    }

    #[test]
    fn waiting_for_a_cpu_is_no_queue_on_the_path() {
        let text = include_str!("../tests/fixtures/earlier/throughput.json");
        let run = |runnable_ns: u64, interface: &str| {
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.summary.round_trips = Some(10);
            for end in &mut run.summary.cpu {
                end.threads.truncate(1);
                end.threads[0].runnable_ns = Some(runnable_ns);
            }
            run.summary.cpu.truncate(1);
            for host in &mut run.hosts {
                host.interface.as_mut().unwrap().name = interface.to_owned();
            }
            run
        };
        let goodput = Some(1e9);
        for (goodput, waited_ns, interface, origin) in [
            // 450 ns are added to each round trip.
            (goodput, 2_000, "eth0", AddedDelay::PathQueue),
            (goodput, 2_000, "lo", AddedDelay::KernelWork),
            (goodput, 4_000, "eth0", AddedDelay::ProcessorWait),
            (goodput, 4_000, "lo", AddedDelay::ProcessorWait),
            (None, 0, "eth0", AddedDelay::ProcessorWait),
        ] {
            let found = LatencyUnderLoad::compare(
                "tcp".to_owned(),
                quantiles(100),
                quantiles(1_000),
                goodput,
            );
            let found = found.attribute(&run(1_000, interface), &run(1_000 + waited_ns, interface));
            let context = format!("{goodput:?} {waited_ns} {interface}");
            assert_eq!(found.added_by, Some(origin.into()), "{context}");
            assert_eq!(
                found.processor_wait_ns,
                Some(waited_ns as f64 / 10.0),
                "{context}"
            );
        }
        let faster =
            LatencyUnderLoad::compare("tcp".to_owned(), quantiles(1_000), quantiles(100), goodput);
        let none = faster.attribute(&run(0, "eth0"), &run(0, "eth0"));
        assert_eq!(none.added_by, None);
    }

    fn point(share: f64, p90: u64) -> LoadPoint {
        let quantiles = quantiles(p90);
        LoadPoint {
            share,
            intended_per_second: share * 1e5,
            achieved_per_second: share * 1e5,
            lost: 0,
            unsent: 0,
            rtt_intended_ns: quantiles,
            rtt_ns: quantiles,
        }
    }

    #[test]
    fn the_knee_is_the_last_load_before_the_queue() {
        for (p90, expected) in [
            (&[10, 11, 12, 15, 19, 80, 900][..], Some(0.5)),
            // One bad point in between is noise.
            (&[10, 11, 50, 12, 19, 80, 900], Some(0.5)),
            // Two bad points are not noise.
            (&[10, 11, 50, 60, 19, 80, 900], Some(0.2)),
            (&[10, 50, 12, 60, 19, 18, 17], Some(0.3)),
            (&[10, 10, 10, 10], Some(0.4)),
            (&[10, 30, 40, 50], None),
            (&[10], None),
            (&[], None),
        ] {
            let points: Vec<_> = (1..)
                .zip(p90)
                .map(|(n, &p90)| point(f64::from(n) / 10.0, p90))
                .collect();
            assert_eq!(
                find_knee(&points).map(|point| point.share),
                expected,
                "{p90:?}"
            );
        }
        // The percentiles cover only requests with a response.
        let mut points: Vec<_> = (1..10).map(|n| point(f64::from(n) / 10.0, 10)).collect();
        for point in &mut points[7..] {
            (point.achieved_per_second, point.unsent) = (74_000.0, 23_000);
            point.intended_per_second = 97_000.0;
        }
        assert_eq!(find_knee(&points).map(|point| point.share), Some(0.7));
        points[0].achieved_per_second *= 0.5;
        assert_eq!(find_knee(&points), None);
    }
}
