//! Threads wait for a core.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::units::format_share;

use super::{at_end, schedstat};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Smallest share of the time that matters for round trips, and for streams, whose buffers bridge
/// short waits.
const MATTERS: f64 = 0.1;
const MATTERS_TO_STREAMS: f64 = 0.2;

/// A real-time priority above common ones, and the highest one (sched(7)).
const HIGH: u8 = 90;
const HIGHEST: u8 = 99;

/// Smallest share of the round-trip time spent waiting for a core, for infrequent requests.
const MATTERS_SELDOM: f64 = 0.25;

/// Time of a context switch, ns.
const SWITCH_NS: f64 = 5_000.0;

/// See docs/CAUSES.md#scheduling-delay.
pub struct SchedulingDelay;

impl Rule for SchedulingDelay {
    fn id(&self) -> &'static str {
        "scheduling-delay"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        super::of_ends(case, |role| self.of(case, role))
    }
}

/// Returns the waiting for a core per round trip in ns and as a share, for runs whose round trips
/// take less than half of the time (a schedule with pauses) and are mostly late: one long stall
/// does not affect each of them.
fn of_round_trips(case: &Case<'_>, waited_ns: f64) -> Option<(f64, f64)> {
    let rtt = case.record.summary.rtt_ns.filter(|_| case.is_latency())?;
    let trips = case.record.summary.round_trips.filter(|&trips| trips > 0)? as f64;
    let whole = case.time(Role::Client)?.wall_ns as f64;
    let each = waited_ns / trips;
    let late = rtt.p50.saturating_sub(rtt.min) as f64;
    (trips * rtt.mean < whole / 2.0 && late >= each / 2.0)
        .then(|| (each, (each / rtt.mean.max(1.0)).min(1.0)))
}

impl SchedulingDelay {
    /// Returns true if the round-trip times are those of the path despite the waiting.
    fn is_hidden(&self, case: &Case<'_>, matters: f64) -> bool {
        let rtt = case.record.summary.rtt_ns.filter(|_| case.is_latency());
        rtt.is_some_and(|rtt| rtt.min as f64 > (1.0 - matters) * rtt.mean)
    }

    fn of(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        let time = case.time(role)?;
        let matters = match case.plan.kind {
            Kind::Throughput => MATTERS_TO_STREAMS,
            _ => MATTERS,
        };
        let burning = match role {
            Role::Client => case.plan.round_trip.burn.near,
            Role::Server => case.plan.round_trip.burn.far,
        };
        // If load threads keep the processors busy, no core is idle: all wake-up latency but the
        // context switch is waiting for a core.
        let line =
            (time.waking - time.sleeps as f64 * SWITCH_NS / time.wall_ns.max(1) as f64).max(0.0);
        let waited = match burning > 0 && !case.rests(role) {
            true => time.runnable + line,
            false => time.runnable,
        };
        // Infrequent requests are delayed each time, for a small share of the total time.
        let of_trips = of_round_trips(case, waited * time.wall_ns as f64 * time.threads as f64);
        let of_trips = of_trips.filter(|(_, share)| *share >= MATTERS_SELDOM);
        let each = of_trips.map(|(each, _)| each);
        let waited = of_trips.map_or(waited, |(_, share)| share.max(waited));
        if waited < matters || self.is_hidden(case, matters) {
            return None;
        }
        // A saturated path, or one that limits the sender, does not get faster: a spinning thread
        // waits for its core all the time, mostly to find no data.
        let is_of_path = |way: &Way<'_>| way.fills_path() || way.waits_for_path();
        if case.plan.kind == Kind::Throughput && case.ways.iter().all(is_of_path) {
            return None;
        }
        // The requested rate was received: the delays did not matter.
        if case.plan.kind == Kind::Throughput && super::kept_its_rate(case) {
            return None;
        }
        // Waiting for the run's own threads is a limit of the machine.
        let usable = case.host(role).and_then(|host| host.cpu.usable)?;
        let own = |role| case.time(role).map_or(0, |time| time.threads);
        let threads = match case.one_machine() {
            true => own(Role::Client) + own(Role::Server),
            false => time.threads,
        };
        let crowded = threads > usable as usize;
        let real_time = case.sched(role).is_real_time();
        let machine = case.cpu(role).and_then(|cost| cost.machine);
        let idle = machine.and_then(|machine| machine.share(machine.idle_ns));
        let priority = case.sched(role).real_time_priority().unwrap_or(0);
        let other = case.sched(super::other_end(role)).to_string();
        let as_fifo = |priority: u8| {
            case.again(&format!(
                "--sched {}",
                at_end(role, &format!("fifo:{priority}"), &other)
            ))
        };
        let (remedy, command) = match (crowded, real_time) {
            // One flow needs at least one thread per end.
            (true, _) if case.plan.streams <= 1 && case.one_machine() => (
                "let the run use more processors (taskset, its cpuset), or run the ends on two \
                 machines",
                String::new(),
            ),
            // One end alone has one thread per direction.
            (true, _) if case.plan.streams <= 1 => (
                "let the run use more processors (taskset, its cpuset), or measure one direction \
                 at a time (without --bidir)",
                case.again_without(&["bidir"], ""),
            ),
            (true, _) => (
                match case.one_machine() {
                    true => {
                        "use fewer flows or threads than the machine has processors, or two \
                         machines"
                    }
                    false => "use fewer flows or threads than the machine has processors",
                },
                case.again(match case.plan.kind {
                    Kind::Throughput => "--threads 1",
                    _ => "-P 1",
                }),
            ),
            (false, true) if priority >= HIGHEST => (
                "other real-time threads, or the kernel's, run first, and its priority is already \
                 the highest: reserve a processor for it (isolcpus, cpuset)",
                case.at(role, "ps -eLo rtprio,psr,comm --sort=-rtprio"),
            ),
            (false, true) => (
                "other real-time threads run first: use a higher priority, or reserve a processor \
                 for it (isolcpus, cpuset)",
                as_fifo(HIGH.max(priority + 1)),
            ),
            (false, false) => (
                "stop other programs there, reserve a processor for the threads, or run them with \
                 a real-time policy",
                as_fifo(50),
            ),
        };
        let mut draft = Draft::limit_if(crowded, self.id(), role)
            .cost(waited)
            .says(format!(
                "the {}'s threads waited for a core for {} of the {}{}",
                name(role),
                format_share(waited),
                if each.is_some() {
                    "round-trip time"
                } else {
                    "time"
                },
                match crowded {
                    true => ": the run has more threads than its machine has processors",
                    false => "",
                }
            ))
            .seen("waited for a core", waited, "share", schedstat(role))
            .seen(
                "involuntary switches",
                time.pushed_off,
                "",
                format!("{} getrusage", name(role)),
            )
            .seen_if(
                "idle time of the machine",
                idle,
                "share",
                format!("{} /proc/stat", name(role)),
            )
            .seen(
                "scheduling",
                case.sched(role).to_string(),
                "",
                case.sched_read(role),
            )
            .seen_if(
                "waited for a core, each round trip",
                each.map(f64::round),
                "ns",
                "waiting time / round_trips",
            );
        if crowded {
            draft = draft
                .seen("threads of the run", threads as u64, "", "plan")
                .seen(
                    "usable processors",
                    usable,
                    "",
                    format!("{} sched_getaffinity", name(role)),
                );
        }
        if burning > 0 {
            draft = draft.seen("CPU load threads", burning, "", "plan");
        }
        draft
            .remedy(match role == Role::Server && !crowded {
                true => {
                    format!("{remedy}; the server permits that with `--grant sched`")
                }
                false => remedy.to_owned(),
            })
            .command(command)
            .tried((case.sched(role) != Default::default()).then(|| {
                match case.asked_sched(role) == case.sched(role) {
                    true => format!("--sched {}", case.sched(role)),
                    false => format!("started as {}", case.sched(role)),
                }
            }))
            .gain(
                Some(1.0 / (1.0 - waited).max(0.1)),
                "1 / (1 - share of the time waiting for a core)",
            )
            .found()
    }
}
