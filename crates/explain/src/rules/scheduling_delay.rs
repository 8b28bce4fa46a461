//! Threads wait for a core.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::format_share;

use super::{per_end_option, schedstat_source};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Smallest share of the time that matters for round trips, and for streams, whose buffers bridge
/// short waits.
const MIN_RELEVANT_SHARE: f64 = 0.1;
const MIN_STREAM_SHARE: f64 = 0.2;

/// A real-time priority above common ones, and the highest one (sched(7)).
const HIGH_PRIORITY: u8 = 90;
const MAX_PRIORITY: u8 = 99;

/// Smallest share of the round-trip time spent waiting for a core, for infrequent requests.
const MIN_ROUND_TRIP_SHARE: f64 = 0.25;

/// Part of the time that round trips with pauses between them take, and part of the waiting by
/// which the median round trip is late.
const MAX_BUSY_PART: f64 = 2.0;
const LATE_PART: f64 = 2.0;

/// Time of a context switch, ns.
const SWITCH_NS: f64 = 5_000.0;

/// See docs/CAUSES.md#scheduling-delay.
pub struct SchedulingDelay;

impl Rule for SchedulingDelay {
    fn id(&self) -> CauseId {
        CauseId::SchedulingDelay
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Threads are runnable and wait for a CPU.",
            shown_when: vec![
                detection(
                    "TCP, UDP and round trips",
                    [format!(
                        "the threads wait for a CPU for {} of the time or more, for {} in streams",
                        percent(MIN_RELEVANT_SHARE),
                        percent(MIN_STREAM_SHARE)
                    )],
                ),
                detection(
                    "round trips with pauses",
                    [
                        format!(
                            "round trips take less than {} of the time",
                            percent(1.0 / MAX_BUSY_PART)
                        ),
                        format!(
                            "waiting is {} of the mean round trip or more",
                            percent(MIN_ROUND_TRIP_SHARE)
                        ),
                        format!(
                            "the median exceeds the minimum by {} of the waiting or more",
                            percent(1.0 / LATE_PART)
                        ),
                    ],
                ),
            ],
            limit_when: vec![
                "the threads of the run outnumber the CPUs; on one machine those of both ends \
                 count"
                    .into(),
            ],
            not_when: vec![
                format!(
                    "the minimum round trip is more than {} of the mean",
                    percent(1.0 - MIN_RELEVANT_SHARE)
                ),
                "the path is full".into(),
                "the requested rate was received".into(),
                "a stream is limited by its path: the congestion window alone limits the sender"
                    .into(),
            ],
            evidence: &[
                ("waited for a core", "share"),
                ("involuntary switches", ""),
                ("idle time of the machine", "share"),
                ("scheduling", ""),
                ("waited for a core, each round trip", "ns"),
                ("threads of the run", ""),
                ("usable processors", ""),
                ("CPU load threads", ""),
            ],
            cost: vec!["Share of the time, or of the round trip, waiting for a CPU.".into()],
            notes: vec![
                "Waiting is `run_delay` of /proc/PID/task/TID/schedstat less the wake-up of each \
                 sleep."
                    .into(),
                "With CPU load threads and no idle CPU, wake-ups count as waiting, too.".into(),
            ],
            remedy: vec![
                "Stop other programs, or reserve a CPU.".into(),
                "Use a real-time policy (`--sched fifo:50`, or above the present priority), or \
                 `nice`. The other end keeps its policy."
                    .into(),
                "A server permits that with `--grant sched`.".into(),
                "As a limit: use fewer flows and threads, or more CPUs.".into(),
            ],
            wrong_when: vec![
                "the delay is a single long stall: look at the slow round trips".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        super::evaluate_ends(run, |role| self.evaluate_end(run, role))
    }
}

/// Returns the waiting for a core per round trip in ns and as a share, for runs whose round trips
/// take less than half of the time (a schedule with pauses) and are mostly late: one long stall
/// does not affect each of them.
fn wait_per_round_trip(run: &RunView<'_>, waited_ns: f64) -> Option<(f64, f64)> {
    let rtt = run.record.summary.rtt_ns.filter(|_| run.is_latency())?;
    let round_trips = run
        .record
        .summary
        .round_trips
        .filter(|&round_trips| round_trips > 0)? as f64;
    let total_ns = run.thread_time(Role::Client)?.wall_ns as f64;
    let each = waited_ns / round_trips;
    let median_delay_ns = rtt.p50.saturating_sub(rtt.min) as f64;
    (round_trips * rtt.mean < total_ns / MAX_BUSY_PART && median_delay_ns >= each / LATE_PART)
        .then(|| (each, (each / rtt.mean.max(1.0)).min(1.0)))
}

impl SchedulingDelay {
    /// Returns true if the round-trip times are those of the path despite the waiting.
    fn is_hidden_by_path(&self, run: &RunView<'_>, matters: f64) -> bool {
        let rtt = run.record.summary.rtt_ns.filter(|_| run.is_latency());
        rtt.is_some_and(|rtt| rtt.min as f64 > (1.0 - matters) * rtt.mean)
    }

    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        let time = run.thread_time(role)?;
        let min_share = match run.plan.kind {
            RunKind::Throughput => MIN_STREAM_SHARE,
            _ => MIN_RELEVANT_SHARE,
        };
        let load_threads = match role {
            Role::Client => run.plan.round_trip.load_threads.client,
            Role::Server => run.plan.round_trip.load_threads.server,
        };
        // If load threads keep the processors busy, no core is idle: all wake-up latency but the
        // context switch is waiting for a core.
        let wakeup_wait =
            (time.wakeup - time.sleeps as f64 * SWITCH_NS / time.wall_ns.max(1) as f64).max(0.0);
        let waited = match load_threads > 0 && !run.has_idle_cpu(role) {
            true => time.core_wait + wakeup_wait,
            false => time.core_wait,
        };
        // Infrequent requests are delayed each time, for a small share of the total time.
        let round_trip_wait =
            wait_per_round_trip(run, waited * time.wall_ns as f64 * time.threads as f64);
        let round_trip_wait = round_trip_wait.filter(|(_, share)| *share >= MIN_ROUND_TRIP_SHARE);
        let each = round_trip_wait.map(|(each, _)| each);
        let waited = round_trip_wait.map_or(waited, |(_, share)| share.max(waited));
        if waited < min_share || self.is_hidden_by_path(run, min_share) {
            return None;
        }
        // A saturated path, or one that limits the sender, does not get faster: a spinning thread
        // waits for its core all the time, mostly to find no data.
        let is_of_path =
            |direction: &DirectionView<'_>| direction.fills_path() || direction.is_cwnd_limited();
        if run.plan.kind == RunKind::Throughput && run.directions.iter().all(is_of_path) {
            return None;
        }
        // The requested rate was received: the delays did not matter.
        if run.plan.kind == RunKind::Throughput && super::met_requested_rate(run) {
            return None;
        }
        // Waiting for the run's own threads is a limit of the machine.
        let usable = run.host(role).and_then(|host| host.cpu.usable)?;
        let thread_count = |role| run.thread_time(role).map_or(0, |time| time.threads);
        let threads = match run.is_one_machine() {
            true => thread_count(Role::Client) + thread_count(Role::Server),
            false => time.threads,
        };
        let crowded = threads > usable as usize;
        let real_time = run.sched(role).is_real_time();
        let machine = run.cpu(role).and_then(|cost| cost.machine);
        let idle = machine.and_then(|machine| machine.share_of_total(machine.idle_ns));
        let priority = run.sched(role).real_time_priority().unwrap_or(0);
        let other_sched = run.sched(super::other_role(role)).to_string();
        let as_fifo = |priority: u8| {
            run.rerun_command(&format!(
                "--sched {}",
                per_end_option(role, &format!("fifo:{priority}"), &other_sched)
            ))
        };
        let (remedy, command) = match (crowded, real_time) {
            // One flow needs at least one thread per end.
            (true, _) if run.plan.streams <= 1 && run.is_one_machine() => (
                "let the run use more CPUs (taskset, its cpuset), or run the ends on two \
                 machines",
                String::new(),
            ),
            // One end alone has one thread per direction.
            (true, _) if run.plan.streams <= 1 => (
                "let the run use more CPUs (taskset, its cpuset), or measure one direction \
                 at a time (without --bidir)",
                run.rerun_without(&["bidir"], ""),
            ),
            (true, _) => (
                match run.is_one_machine() {
                    true => {
                        "use fewer flows or threads than the machine has CPUs, or two \
                         machines"
                    }
                    false => "use fewer flows or threads than the machine has CPUs",
                },
                run.rerun_command(match run.plan.kind {
                    RunKind::Throughput => "--threads 1",
                    _ => "-P 1",
                }),
            ),
            (false, true) if priority >= MAX_PRIORITY => (
                "other real-time threads, or the kernel's, run first, and its priority is already \
                 the highest: reserve a CPU for it (isolcpus, cpuset)",
                run.command_at(role, "ps -eLo rtprio,psr,comm --sort=-rtprio"),
            ),
            (false, true) => (
                "other real-time threads run first: use a higher priority, or reserve a CPU \
                 for it (isolcpus, cpuset)",
                as_fifo(HIGH_PRIORITY.max(priority + 1)),
            ),
            (false, false) => (
                "stop other programs there, reserve a CPU for the threads, or run them with \
                 a real-time policy",
                as_fifo(50),
            ),
        };
        let mut builder = FindingBuilder::limit_if(crowded, self.id(), role)
            .cost(waited)
            .summary(format!(
                "the {}'s threads waited for a CPU for {} of the {}{}",
                role.as_str(),
                format_share(waited),
                if each.is_some() {
                    "round-trip time"
                } else {
                    "time"
                },
                match crowded {
                    true => ": the run has more threads than its machine has CPUs",
                    false => "",
                }
            ))
            .evidence("waited for a core", waited, "share", schedstat_source(role))
            .evidence(
                "involuntary switches",
                time.preemptions,
                "",
                format!("{} getrusage", role.as_str()),
            )
            .evidence_if(
                "idle time of the machine",
                idle,
                "share",
                format!("{} /proc/stat", role.as_str()),
            )
            .evidence(
                "scheduling",
                run.sched(role).to_string(),
                "",
                run.sched_source(role),
            )
            .evidence_if(
                "waited for a core, each round trip",
                each.map(f64::round),
                "ns",
                "waiting time / round_trips",
            );
        if crowded {
            builder = builder
                .evidence("threads of the run", threads as u64, "", "plan")
                .evidence(
                    "usable processors",
                    usable,
                    "",
                    format!("{} sched_getaffinity", role.as_str()),
                );
        }
        if load_threads > 0 {
            builder = builder.evidence("CPU load threads", load_threads, "", "plan");
        }
        builder
            .remedy(match role == Role::Server && !crowded {
                true => {
                    format!("{remedy}; the server permits that with `--grant sched`")
                }
                false => remedy.to_owned(),
            })
            .command(command)
            .tried((run.sched(role) != Default::default()).then(|| {
                match run.requested_sched(role) == run.sched(role) {
                    true => format!("--sched {}", run.sched(role)),
                    false => format!("started as {}", run.sched(role)),
                }
            }))
            .estimated_gain(
                Some(1.0 / (1.0 - waited).max(0.1)),
                "1 / (1 - share of the time waiting for a CPU)",
            )
            .build()
    }
}
