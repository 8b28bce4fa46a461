//! Cores enter idle states while threads sleep, and take time to wake up.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::{RunKind, TransportProtocol, WaitMode};
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_nanos, format_share};

use super::schedstat_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::{DirectionView, MIN_IDLE_CPU_SHARE, RunView};

/// Time of two wake-ups on cores that do not enter idle states, ns: 4.3 us on the 2-core VM with
/// /dev/cpu_dma_latency held.
const BASE_WAKEUP_NS: f64 = 5_000.0;

/// Largest exit time of an idle state over the declared one.
const COLD_CACHE_FACTOR: f64 = 2.0;

/// Smallest share of a round trip, or of a thread's time, that matters.
const MIN_RELEVANT_SHARE: f64 = 0.25;

/// See docs/CAUSES.md#idle-wakeup.
pub struct IdleWakeup;

impl Rule for IdleWakeup {
    fn id(&self) -> CauseId {
        CauseId::IdleWakeup
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Cores enter idle states while threads sleep, and waking up takes long; on \
                      virtual machines it is an exit to the hypervisor.",
            shown_when: vec![
                detection(
                    "round trips",
                    [
                        "an end sleeps".into(),
                        format!(
                            "the wake-ups take {} of the median or more, and less than all of it",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "TCP and UDP",
                    [format!(
                        "sleeps a second * time of a wake-up is {} of the time or more, within the \
                         idle time",
                        percent(MIN_RELEVANT_SHARE)
                    )],
                ),
            ],
            limit_when: vec!["round trips had `--hold-latency` already".into()],
            not_when: vec![
                "an end spins, or is another tool: its wake-ups do not count".into(),
                format!(
                    "the CPUs of an end are never idle ({} idle time at most)",
                    percent(MIN_IDLE_CPU_SHARE)
                ),
                "both ends run on one CPU, which switches between them".into(),
                "streams: an end is saturated, the path is full, a rate was requested, or \
                 `--hold-latency` is on"
                    .into(),
            ],
            evidence: &[
                ("wake_up_ns", "ns"),
                ("rtt_ns.p50", "ns"),
                ("idle states", ""),
                ("deepest idle state", ""),
                ("exit latency", "ns"),
                ("voluntary switches", ""),
                ("idle time", "share"),
            ],
            cost: vec!["Share of the median, or of the time, that the wake-ups take.".into()],
            notes: vec![
                format!(
                    "`wake_up_ns` is the time of two threads that wake each other; {} of it are \
                     the wake-ups without idle states.",
                    duration(BASE_WAKEUP_NS)
                ),
                format!(
                    "At most {COLD_CACHE_FACTOR} times the exit latency of the deepest idle state \
                     counts for each wake-up."
                ),
                "A virtual machine does not show the idle states of the processor: there that \
                 bound does not apply."
                    .into(),
            ],
            remedy: vec![
                "Keep the CPUs out of idle states (`--hold-latency`).".into(),
                "With that set, let both ends spin (`--wait spin`).".into(),
            ],
            wrong_when: vec![
                "the machine was busier or less busy during the probe than during the run".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Latency => self.evaluate_round_trips(run).into_iter().collect(),
            RunKind::Throughput => self.evaluate_streams(run),
            _ => Vec::new(),
        }
    }
}

/// Returns the deepest enabled idle state of an end's processors and its declared exit latency in
/// ns. `None` for virtual machines, whose real idle states are not visible.
fn deepest_idle_state<'a>(run: &RunView<'a>, role: Role) -> Option<(&'a str, f64)> {
    let cpu = &run.host(role)?.cpu;
    let states = cpu.idle_states.iter().filter(|state| !state.disabled);
    let latencies =
        states.filter_map(|state| Some((state.name.as_str(), state.latency_us? as f64 * 1e3)));
    latencies
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .filter(|_| cpu.hypervisor.is_none())
}

/// Returns the time that idle states add to two wake-ups at an end, ns; of two ends on one machine,
/// one measured it. Limited to twice the exit latency of the deepest state, which allows for cold
/// caches: a larger value means that the measurement was disturbed.
fn idle_exit_ns(run: &RunView<'_>, role: Role) -> Option<f64> {
    let most = deepest_idle_state(run, role).map(|(_, latency)| COLD_CACHE_FACTOR * 2.0 * latency);
    match (measured_idle_exit_ns(run, role), most) {
        (Some(probed), Some(most)) => Some(probed.min(most)),
        (probed, _) => probed,
    }
}

fn measured_idle_exit_ns(run: &RunView<'_>, role: Role) -> Option<f64> {
    let own_wakeup_ns = run.host(role)?.wake_up_ns;
    let other = match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    };
    let shared = run.is_one_machine().then(|| run.host(other)?.wake_up_ns);
    let wakeup_ns = own_wakeup_ns.or(shared.flatten())? as f64;
    Some((wakeup_ns - BASE_WAKEUP_NS).max(0.0))
}

impl IdleWakeup {
    fn evaluate_round_trips(&self, run: &RunView<'_>) -> Option<Finding> {
        if !run.is_latency() {
            return None;
        }
        let rtt = run.record.summary.rtt_ns?;
        let round_trips = run.record.summary.round_trips? as f64;
        let p50 = rtt.p50 as f64;
        // An end that sleeps once per round trip needs one wake-up.
        let mut added = 0.0;
        let mut woken = Vec::new();
        for role in [Role::Client, Role::Server] {
            // The wait mode of another tool is unknown.
            let is_third_party = role == Role::Server && run.has_third_party_server();
            if run.wait(role) == Some(WaitMode::Spin) || is_third_party {
                continue;
            }
            let Some(exit_ns) = idle_exit_ns(run, role) else {
                continue;
            };
            let sleeps = run
                .cpu(role)
                .map_or(round_trips, |cost| cost.voluntary_switches as f64);
            added += exit_ns / 2.0 * (sleeps / round_trips.max(1.0)).min(1.0);
            woken.push(role);
        }
        // A core that both ends share switches between them and never enters an idle state.
        if woken.is_empty() || super::shared_core::is_single_core(run) {
            return None;
        }
        let (end, threads) = match woken[..] {
            [role] => (
                FindingLocation::from(role),
                format!("the {}'s sleeping thread", role.as_str()),
            ),
            _ => (FindingLocation::Both, "two sleeping threads".to_owned()),
        };
        let share = added / p50.max(1.0);
        // Responses that are faster than the wake-up did not wait for it.
        if share >= 1.0 {
            return None;
        }
        // Busy cores do not enter idle states: then wake-ups are slow for another reason.
        if share < MIN_RELEVANT_SHARE
            || !run.has_idle_cpu(Role::Client)
            || !run.has_idle_cpu(Role::Server)
        {
            return None;
        }
        // The base cost of the wake-ups remains.
        let share = share.min(1.0 - BASE_WAKEUP_NS / 2.0 * woken.len() as f64 / p50.max(1.0));
        let no_halt = run.plan.hold_latency;
        let state = woken.iter().find_map(|&role| deepest_idle_state(run, role));
        let server = run.host(Role::Server).and_then(|host| host.wake_up_ns);
        let client = run.host(Role::Client).and_then(|host| host.wake_up_ns);
        let idle = run
            .host(Role::Client)
            .and_then(|host| host.cpu.idle.as_deref());
        FindingBuilder::limit_if(no_halt, self.id(), end)
            .cost(share)
            .summary(format!(
                "waking {threads} takes about {} of the median round trip of {}, mostly for \
                 leaving idle states",
                format_nanos(added),
                format_nanos(p50)
            ))
            .evidence_if(
                "wake_up_ns",
                client,
                "ns",
                "client, two threads waking each other",
            )
            .evidence_if(
                "wake_up_ns",
                server,
                "ns",
                "server, two threads waking each other",
            )
            .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
            .evidence_if(
                "idle states",
                idle,
                "",
                "client /sys/devices/system/cpu/cpuidle",
            )
            .evidence_if(
                "deepest idle state",
                state.map(|(name, _)| name),
                "",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .evidence_if(
                "exit latency",
                state.map(|(_, latency)| latency),
                "ns",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .remedy(match no_halt {
                false => "keep the CPUs out of idle states during the run, or let both ends spin",
                true => "the CPUs are kept awake, and wake-ups still cost time: let both ends spin",
            })
            .command(match no_halt {
                false => run.rerun_command("--hold-latency"),
                true => run.rerun_command("--wait spin"),
            })
            .tried(no_halt.then(|| "--hold-latency".to_owned()))
            .estimated_gain(
                Some(1.0 / (1.0 - share)),
                "p50 / (p50 - time that idle states add to the wake-ups)",
            )
            .build()
    }

    fn evaluate_streams(&self, run: &RunView<'_>) -> Vec<Finding> {
        if super::is_paced(run) || run.plan.hold_latency {
            return Vec::new();
        }
        let tcp = run.throughput_directions(TransportProtocol::Tcp);
        let directions = tcp.chain(run.throughput_directions(TransportProtocol::Udp));
        directions
            .filter_map(|direction| self.evaluate_stream(run, direction))
            .collect()
    }

    fn evaluate_stream(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        if direction.fills_path() || super::is_saturated(direction) {
            return None;
        }
        // As for round trips: busy cores, and a core shared by both ends, do not enter idle states.
        if super::shared_core::is_single_core(run)
            || !run.has_idle_cpu(Role::Client)
            || !run.has_idle_cpu(Role::Server)
        {
            return None;
        }
        let (role, time) = [
            (direction.sender, direction.thread_time(FlowEnd::Sender)),
            (direction.receiver, direction.thread_time(FlowEnd::Receiver)),
        ]
        .into_iter()
        .filter_map(|(role, time)| Some((role, time?)))
        .max_by_key(|(_, time)| time.sleeps)?;
        let each = idle_exit_ns(run, role)? / 2.0;
        let seconds = time.wall_ns as f64 / 1e9;
        let a_second = time.sleeps as f64 / seconds.max(1e-3) / time.threads.max(1) as f64;
        let share = (a_second * each / 1e9).min(time.free_share());
        if share < MIN_RELEVANT_SHARE {
            return None;
        }
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "the {}'s threads slept {:.0} times per second, and each time the CPU entered an \
                 idle state: waking up took {} of the time",
                role.as_str(),
                a_second,
                format_share(share)
            ))
            .evidence(
                "voluntary switches",
                time.sleeps,
                "",
                format!("{} getrusage", role.as_str()),
            )
            .evidence(
                "wake_up_ns",
                each * 2.0,
                "ns",
                "two threads waking each other, less their time on CPUs without idle states",
            )
            .evidence(
                "idle time",
                time.free_share(),
                "share",
                schedstat_source(role),
            )
            .evidence_if(
                "deepest idle state",
                deepest_idle_state(run, role).map(|(name, _)| name),
                "",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .evidence_if(
                "exit latency",
                deepest_idle_state(run, role).map(|(_, latency)| latency),
                "ns",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .remedy("keep the CPUs out of idle states, or let the receiver spin")
            .command(run.rerun_command("--hold-latency"))
            .estimated_gain(
                Some(1.0 / (1.0 - share).max(0.1)),
                "Amdahl: 1 / (1 - share of the time spent waking up)",
            )
            .build()
    }
}
