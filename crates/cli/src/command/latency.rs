//! `linerate latency`: round-trip latency in one run, or in series by size, by wait mode, or by
//! load.

use linerate_record::exit_codes;
use linerate_record::load::{
    BackgroundLoad, CURVE_SHARES, LatencyUnderLoad, LoadCurve, LoadPoint, find_knee,
};
use linerate_record::plan::{PerEnd, Plan, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::Record;
use linerate_record::run_set::SetResult;
use linerate_record::waiting_costs::WaitingRuns;
use linerate_server::limits::TIME_LIMIT_NS;
use linerate_session::client::Client;
use linerate_stats::size_costs::{SizePoint, fragment_count, size_costs};
use linerate_stats::units::{format_count, format_exact_bytes};

use super::series;
use super::series::SeriesRunner;
use crate::args::LatencyArgs;
use crate::failure::SeriesEnd;
use crate::output::CommandOutput;
use crate::plan;
use crate::plan::LatencySeries;

/// Runs the command and returns the exit code.
pub fn run(args: LatencyArgs) -> u8 {
    let measure = &args.measure;
    let series = match plan::plan_latency(&args) {
        Ok(series) => series,
        Err(failure) => {
            CommandOutput::new(&measure.output).report_failure(&failure);
            return failure.code;
        }
    };
    match series {
        LatencySeries::Single(measurement) => {
            super::measure::run_measurement(Ok(measurement), &args.measure)
        }
        LatencySeries::Sizes(client, sizes) => series::run_series(
            "sizes",
            measure,
            |runner| by_size(runner, &client, &sizes),
            costs_by_size,
        ),
        LatencySeries::Waiting(client) => series::run_series(
            "compare-waiting",
            measure,
            |runner| by_waiting(runner, &client),
            costs_of_waiting,
        ),
        LatencySeries::Curve(client) => series::run_series(
            "load-curve",
            measure,
            |runner| by_load(runner, &client),
            load_curve,
        ),
        LatencySeries::Loaded(client, load, congestion) => series::run_series(
            "load",
            measure,
            |runner| under_load(runner, &client, load, congestion.as_deref()),
            |runs| compare_with_idle(runs, load),
        ),
    }
}

fn by_size(runner: &mut SeriesRunner<'_>, client: &Client, sizes: &[u64]) -> Result<(), SeriesEnd> {
    for &bytes in sizes {
        let mut client = client.clone();
        client.plan.payload_bytes = bytes;
        runner.run_series(&format_exact_bytes(bytes), &client)?;
    }
    Ok(())
}

/// Returns the medians of the full intervals of a run, or its own median if there are fewer than
/// three.
fn medians(run: &Record) -> Vec<f64> {
    let of_interval = |rtt: Option<linerate_stats::histogram::Quantiles>| Some(rtt?.p50 as f64);
    let interval_ns = run.plan.interval_ns.unwrap_or(u64::MAX);
    let parts: Vec<f64> = (run.intervals.iter())
        .filter(|part| !part.omitted && part.end_ns - part.start_ns >= interval_ns / 2)
        .filter_map(|part| of_interval(part.rtt_ns))
        .collect();
    if parts.len() >= 3 {
        return parts;
    }
    of_interval(run.summary.rtt_ns).into_iter().collect()
}

fn costs_by_size(runs: &[Record]) -> SetResult {
    let points: Vec<SizePoint> = runs
        .iter()
        .map(|run| {
            let interface = run.hosts.first().and_then(|host| host.interface.as_ref());
            let mtu = interface.and_then(|interface| interface.mtu);
            let is_udp = run.plan.protocol == TransportProtocol::Udp;
            let local = run.directions.first().and_then(|direction| {
                let sender = direction.streams.first()?.sender.as_ref()?;
                sender.local.clone()
            });
            let ipv6 = local.is_some_and(|local| local.starts_with('['));
            SizePoint {
                bytes: run.plan.payload_bytes,
                fragments: match mtu.filter(|_| is_udp) {
                    Some(mtu) => fragment_count(run.plan.payload_bytes, mtu.into(), ipv6),
                    None => 1,
                },
                medians: medians(run),
            }
        })
        .collect();
    let costs = size_costs(&points);
    let mut notes = Vec::new();
    if costs.is_none() {
        notes.push("costs need responses at two sizes at least".to_owned());
    } else if points.iter().any(|point| point.medians.len() < 3) {
        notes.push(
            "a run with fewer than three intervals does not show the error of its median, which \
             weights it in the fit; use a longer -t or a shorter -i"
                .to_owned(),
        );
    }
    SetResult {
        size_costs: costs,
        notes,
        ..SetResult::default()
    }
}

/// Rounds of a comparison of wait modes.
const ROUNDS: u32 = 5;
const BLOCKING: &str = "blocking";
const BLOCKING_AWAKE: &str = "blocking, no idle states";
const SPINNING: &str = "spinning";

fn by_waiting(runner: &mut SeriesRunner<'_>, client: &Client) -> Result<(), SeriesEnd> {
    let variant = |wait: WaitMode, hold: bool| {
        let mut client = client.clone();
        let plan = &mut client.plan;
        plan.wait = Some(PerEnd::same(wait));
        plan.hold_latency = hold;
        plan.duration_ns = plan.duration_ns.map(|time| time / u64::from(ROUNDS));
        plan.round_trips = (plan.round_trips).map(|count| count.div_ceil(u64::from(ROUNDS)));
        client
    };
    let mut modes = vec![
        (BLOCKING, variant(WaitMode::Block, false)),
        (BLOCKING_AWAKE, variant(WaitMode::Block, true)),
        (SPINNING, variant(WaitMode::Spin, false)),
    ];
    for round in 0..ROUNDS {
        // In alternating order, so that drift affects all modes equally.
        let mut order: Vec<usize> = (0..modes.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut without_hold = false;
        for mode in order {
            let (label, client) = &modes[mode];
            let Err(error) = runner.try_run(label, client)? else {
                continue;
            };
            if *label != BLOCKING_AWAKE || error.exit_code() != exit_codes::MISSING {
                return Err(SeriesEnd::Failed(error.into()));
            }
            let problem = error.to_report();
            runner.notes.push(format!(
                "the cost of idle states is left out: {} ({})",
                problem.situation, problem.next_step
            ));
            without_hold = true;
        }
        if without_hold {
            modes.retain(|(label, _)| *label != BLOCKING_AWAKE);
        }
    }
    Ok(())
}

fn costs_of_waiting(runs: &[Record]) -> SetResult {
    let medians_of = |label: &str| -> Vec<f64> {
        runs.iter()
            .filter(|run| run.label.as_deref() == Some(label))
            .filter_map(|run| Some(run.summary.rtt_ns?.p50 as f64))
            .collect()
    };
    let rounds = WaitingRuns {
        blocking: medians_of(BLOCKING),
        no_halt: medians_of(BLOCKING_AWAKE),
        spinning: medians_of(SPINNING),
    };
    SetResult {
        waiting_costs: rounds.costs(),
        ..SetResult::default()
    }
}

const CAPACITY: &str = "capacity";

fn by_load(runner: &mut SeriesRunner<'_>, client: &Client) -> Result<(), SeriesEnd> {
    let mut unpaced = client.clone();
    unpaced.plan.round_trip.rate_per_second = None;
    let capacity = runner.run_series(CAPACITY, &unpaced)?;
    let capacity = capacity.summary.round_trips_per_second.unwrap_or(0.0);
    let streams = f64::from(client.plan.streams);
    for share in CURVE_SHARES {
        let rate = (capacity * share / streams).round() as u64;
        if rate == 0 {
            runner.notes.push(format!(
                "{:.0} % of the capacity is below one request per second",
                share * 100.0
            ));
            continue;
        }
        let mut client = client.clone();
        client.plan.round_trip.rate_per_second = Some(rate);
        runner.run_series(&format!("{:.0} % load", share * 100.0), &client)?;
    }
    Ok(())
}

fn load_curve(runs: &[Record]) -> SetResult {
    let capacity = runs
        .first()
        .and_then(|run| run.summary.round_trips_per_second);
    let Some(capacity) = capacity.filter(|&capacity| capacity > 0.0) else {
        return SetResult::default();
    };
    let points: Vec<LoadPoint> = runs
        .iter()
        .skip(1)
        .filter_map(|run| {
            let per_flow = run.plan.round_trip.rate_per_second? as f64;
            let intended = per_flow * f64::from(run.plan.streams);
            Some(LoadPoint {
                share: intended / capacity,
                intended_per_second: intended,
                achieved_per_second: run.summary.round_trips_per_second?,
                lost: run.summary.lost.unwrap_or(0),
                unsent: run.summary.unsent.unwrap_or(0),
                rtt_intended_ns: run.summary.rtt_intended_ns?,
                rtt_ns: run.summary.rtt_ns?,
            })
        })
        .collect();
    SetResult {
        load_curve: Some(LoadCurve {
            capacity_per_second: capacity,
            knee: find_knee(&points),
            points,
        }),
        ..SetResult::default()
    }
}

const IDLE: &str = "idle";
const LOADED: &str = "loaded";

fn under_load(
    runner: &mut SeriesRunner<'_>,
    client: &Client,
    load: BackgroundLoad,
    congestion: Option<&str>,
) -> Result<(), SeriesEnd> {
    if let BackgroundLoad::Cpu {
        client_threads,
        server_threads: Some(server_threads),
    } = load
        && server_threads > 0
    {
        // Check that the server permits it before any measurement.
        let mut client = with_cpu_load(client, client_threads, Some(server_threads));
        client.plan.duration_ns = None;
        client.plan.omit_ns = 0;
        client.plan.interval_ns = None;
        client.plan.round_trips = Some(1);
        runner.check(&client)?;
    }
    if let Some(name) = congestion {
        // Check that both ends have the congestion control before any measurement, by one round
        // trip over TCP.
        let mut plan = load_plan(&client.plan, TransportProtocol::Tcp, None, Some(name));
        (plan.kind, plan.duration_ns, plan.round_trips) = (RunKind::Latency, None, Some(1));
        plan.payload_bytes = 64;
        runner.check(&Client {
            plan,
            ..client.clone()
        })?;
    }
    runner.run_series(IDLE, client)?;
    let traffic = |protocol, rate_bps| Client {
        plan: load_plan(&client.plan, protocol, rate_bps, congestion),
        ..client.clone()
    };
    let name = format!("load: {load}");
    match load {
        BackgroundLoad::Tcp(rate) => runner.run_under_load(
            LOADED,
            client,
            &name,
            &traffic(TransportProtocol::Tcp, rate),
        ),
        BackgroundLoad::Udp(rate) => runner.run_under_load(
            LOADED,
            client,
            &name,
            &traffic(TransportProtocol::Udp, rate),
        ),
        BackgroundLoad::Cpu {
            client_threads,
            server_threads,
        } => {
            let client = with_cpu_load(client, client_threads, server_threads);
            runner.run_series(LOADED, &client).map(|_| ())
        }
    }
}

/// Returns the run with CPU load.
fn with_cpu_load(
    client: &Client,
    client_threads: Option<u32>,
    server_threads: Option<u32>,
) -> Client {
    let mut client = client.clone();
    client.plan.round_trip.load_threads = PerEnd {
        client: client_threads.unwrap_or_else(usable_processors),
        server: server_threads.unwrap_or(0),
    };
    client
}

/// Returns the plan of a throughput run that serves as load for another run.
fn load_plan(
    measured: &Plan,
    protocol: TransportProtocol,
    rate_bps: Option<u64>,
    congestion: Option<&str>,
) -> Plan {
    let mut plan = Plan::new(RunKind::Throughput, protocol, measured.host.clone());
    plan.port = measured.port;
    plan.bind.clone_from(&measured.bind);
    plan.rate_bps = rate_bps;
    plan.congestion_control = congestion.map(str::to_owned);
    plan.congestion_control_requested = congestion.is_some();
    // The maximum: it is stopped when the measured run has ended.
    plan.duration_ns = Some(TIME_LIMIT_NS);
    plan.interval_ns = None;
    if let (Some(rate), TransportProtocol::Tcp) = (rate_bps, protocol) {
        plan.payload_bytes = (rate / 8 / 1_000).clamp(1_024, plan.payload_bytes);
    }
    // The load is not measured: it blocks like other programs.
    plan.wait = Some(PerEnd::same(WaitMode::Block));
    plan
}

/// Returns the number of processors that this process may use.
fn usable_processors() -> u32 {
    let usable = std::thread::available_parallelism();
    usable.map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

fn compare_with_idle(runs: &[Record], load: BackgroundLoad) -> SetResult {
    let labelled = |label: &str| runs.iter().find(|run| run.label.as_deref() == Some(label));
    // With a schedule, from the scheduled time: waiting to be sent counts too.
    let rtt = |label: &str| {
        let summary = &labelled(label)?.summary;
        summary.rtt_intended_ns.or(summary.rtt_ns)
    };
    let goodput = (runs.iter())
        .find(|run| run.kind == RunKind::Throughput)
        .and_then(|run| run.summary.goodput_bps);
    let plan = labelled(LOADED).map(|run| &run.plan.round_trip);
    let rate = plan.and_then(|plan| plan.rate_per_second);
    let mut notes = Vec::new();
    if rate.is_none() && !matches!(load, BackgroundLoad::Cpu { .. }) {
        notes.push(
            "without a schedule, requests are sent mostly while the queues are empty, which understates the \
             effect of the load: leave --outstanding out, or give a --rate"
                .to_owned(),
        );
    }
    let unanswered = labelled(LOADED).map_or(0, |run| {
        run.summary.lost.unwrap_or(0) + run.summary.unsent.unwrap_or(0)
    });
    if unanswered > 0 {
        notes.push(format!(
            "{} requests under load got no response in time: they are not in the \
             percentiles",
            format_count(unanswered)
        ));
    }
    let under_load = (rtt(IDLE).zip(rtt(LOADED))).map(|(idle, loaded)| LatencyUnderLoad {
        rate_per_second: rate,
        ..LatencyUnderLoad::compare(load.to_string(), idle, loaded, goodput)
    });
    let under_load = under_load.map(|found| match labelled(IDLE).zip(labelled(LOADED)) {
        Some((idle, loaded)) => found.attribute(idle, loaded),
        None => found,
    });
    SetResult {
        under_load,
        notes,
        ..SetResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_lasts_as_long_as_any_run_may() {
        let measured = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far".to_owned());
        let load = load_plan(&measured, TransportProtocol::Tcp, None, Some("reno"));
        assert_eq!(load.duration_ns, Some(TIME_LIMIT_NS));
        assert_eq!(load.congestion_control.as_deref(), Some("reno"));
        assert!(load.congestion_control_requested);
    }
}
