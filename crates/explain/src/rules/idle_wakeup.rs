//! Cores enter idle states while threads sleep, and take time to wake up.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Kind, Protocol, Wait};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_nanos, format_share};

use super::schedstat;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Time of two wake-ups on cores that do not enter idle states, ns: 4.3 us on the 2-core VM with
/// /dev/cpu_dma_latency held.
const AWAKE_NS: f64 = 5_000.0;

/// Largest exit time of an idle state over the declared one.
const COLD: f64 = 2.0;

/// Smallest share of a round trip, or of a thread's time, that matters.
const MATTERS: f64 = 0.25;

/// See docs/CAUSES.md#idle-wakeup.
pub struct IdleWakeup;

impl Rule for IdleWakeup {
    fn id(&self) -> &'static str {
        "idle-wakeup"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Latency => self.of_round_trips(case).into_iter().collect(),
            Kind::Throughput => self.of_streams(case),
            _ => Vec::new(),
        }
    }
}

/// Returns the deepest enabled idle state of an end's processors and its declared exit latency in
/// ns. `None` for virtual machines, whose real idle states are not visible.
fn deepest<'a>(case: &Case<'a>, role: Role) -> Option<(&'a str, f64)> {
    let cpu = &case.host(role)?.cpu;
    let states = cpu.idle_states.iter().filter(|state| !state.disabled);
    let known =
        states.filter_map(|state| Some((state.name.as_str(), state.latency_us? as f64 * 1e3)));
    known
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .filter(|_| cpu.hypervisor.is_none())
}

/// Returns the time that idle states add to two wake-ups at an end, ns; of two ends on one machine,
/// one measured it. Limited to twice the exit latency of the deepest state, which allows for cold
/// caches: a larger value means that the measurement was disturbed.
fn halting(case: &Case<'_>, role: Role) -> Option<f64> {
    let most = deepest(case, role).map(|(_, latency)| COLD * 2.0 * latency);
    match (probed(case, role), most) {
        (Some(probed), Some(most)) => Some(probed.min(most)),
        (probed, _) => probed,
    }
}

fn probed(case: &Case<'_>, role: Role) -> Option<f64> {
    let own = case.host(role)?.wake_up_ns;
    let other = match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    };
    let shared = case.one_machine().then(|| case.host(other)?.wake_up_ns);
    let both = own.or(shared.flatten())? as f64;
    Some((both - AWAKE_NS).max(0.0))
}

impl IdleWakeup {
    fn of_round_trips(&self, case: &Case<'_>) -> Option<Finding> {
        if !case.is_latency() {
            return None;
        }
        let rtt = case.record.summary.rtt_ns?;
        let trips = case.record.summary.round_trips? as f64;
        let p50 = rtt.p50 as f64;
        // An end that sleeps once per round trip needs one wake-up.
        let mut added = 0.0;
        let mut woken = Vec::new();
        for role in [Role::Client, Role::Server] {
            // The wait mode of another tool is unknown.
            let foreign = role == Role::Server && case.far_is_foreign();
            if case.wait(role) == Some(Wait::Spin) || foreign {
                continue;
            }
            let Some(halting) = halting(case, role) else {
                continue;
            };
            let sleeps = case
                .cpu(role)
                .map_or(trips, |cost| cost.voluntary_switches as f64);
            added += halting / 2.0 * (sleeps / trips.max(1.0)).min(1.0);
            woken.push(role);
        }
        // A core that both ends share switches between them and never enters an idle state.
        if woken.is_empty() || super::shared_core::is_one(case) {
            return None;
        }
        let (end, threads) = match woken[..] {
            [role] => (
                End::from(role),
                format!("the {}'s sleeping thread", name(role)),
            ),
            _ => (End::Both, "two sleeping threads".to_owned()),
        };
        let share = added / p50.max(1.0);
        // Responses that are faster than the wake-up did not wait for it.
        if share >= 1.0 {
            return None;
        }
        // Busy cores do not enter idle states: then wake-ups are slow for another reason.
        if share < MATTERS || !case.rests(Role::Client) || !case.rests(Role::Server) {
            return None;
        }
        // The base cost of the wake-ups remains.
        let share = share.min(1.0 - AWAKE_NS / 2.0 * woken.len() as f64 / p50.max(1.0));
        let held = case.plan.hold_latency;
        let state = woken.iter().find_map(|&role| deepest(case, role));
        let server = case.host(Role::Server).and_then(|host| host.wake_up_ns);
        let client = case.host(Role::Client).and_then(|host| host.wake_up_ns);
        let idle = case
            .host(Role::Client)
            .and_then(|host| host.cpu.idle.as_deref());
        Draft::limit_if(held, self.id(), end)
            .cost(share)
            .says(format!(
                "waking {threads} takes about {} of the median round trip of {}, mostly for \
                 leaving idle states",
                format_nanos(added),
                format_nanos(p50)
            ))
            .seen_if(
                "wake_up_ns",
                client,
                "ns",
                "client, two threads waking each other",
            )
            .seen_if(
                "wake_up_ns",
                server,
                "ns",
                "server, two threads waking each other",
            )
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen_if(
                "idle states",
                idle,
                "",
                "client /sys/devices/system/cpu/cpuidle",
            )
            .seen_if(
                "deepest idle state",
                state.map(|(name, _)| name),
                "",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .seen_if(
                "exit latency",
                state.map(|(_, latency)| latency),
                "ns",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .remedy(match held {
                false => "keep the cores out of idle states during the run, or let both ends spin",
                true => {
                    "the cores are kept awake, and wake-ups still cost time: let both ends spin"
                }
            })
            .command(match held {
                false => case.again("--hold-latency"),
                true => case.again("--wait spin"),
            })
            .tried(held.then(|| "--hold-latency".to_owned()))
            .gain(
                Some(1.0 / (1.0 - share)),
                "p50 / (p50 - time that idle states add to the wake-ups)",
            )
            .found()
    }

    fn of_streams(&self, case: &Case<'_>) -> Vec<Finding> {
        if super::is_paced(case) || case.plan.hold_latency {
            return Vec::new();
        }
        let tcp = case.throughput(Protocol::Tcp);
        let ways = tcp.chain(case.throughput(Protocol::Udp));
        ways.filter_map(|way| self.of_stream(case, way)).collect()
    }

    fn of_stream(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        if way.fills_path() || super::is_saturated(way) {
            return None;
        }
        // As for round trips: busy cores, and a core shared by both ends, do not enter idle states.
        if super::shared_core::is_one(case)
            || !case.rests(Role::Client)
            || !case.rests(Role::Server)
        {
            return None;
        }
        let (role, time) = [
            (way.sender, way.time(CountedAt::Sender)),
            (way.receiver, way.time(CountedAt::Receiver)),
        ]
        .into_iter()
        .filter_map(|(role, time)| Some((role, time?)))
        .max_by_key(|(_, time)| time.sleeps)?;
        let each = halting(case, role)? / 2.0;
        let seconds = time.wall_ns as f64 / 1e9;
        let a_second = time.sleeps as f64 / seconds.max(1e-3) / time.threads.max(1) as f64;
        let share = (a_second * each / 1e9).min(time.free());
        if share < MATTERS {
            return None;
        }
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "the {}'s threads slept {:.0} times per second, and each time the core entered an \
                 idle state: waking up took {} of the time",
                name(role),
                a_second,
                format_share(share)
            ))
            .seen(
                "voluntary switches",
                time.sleeps,
                "",
                format!("{} getrusage", name(role)),
            )
            .seen(
                "wake_up_ns",
                each * 2.0,
                "ns",
                "two threads waking each other, less their time on cores without idle states",
            )
            .seen("idle time", time.free(), "share", schedstat(role))
            .seen_if(
                "deepest idle state",
                deepest(case, role).map(|(name, _)| name),
                "",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .seen_if(
                "exit latency",
                deepest(case, role).map(|(_, latency)| latency),
                "ns",
                "/sys/devices/system/cpu/cpu0/cpuidle",
            )
            .remedy("keep the cores out of idle states, or let the receiver spin")
            .command(case.again("--hold-latency"))
            .gain(
                Some(1.0 / (1.0 - share).max(0.1)),
                "Amdahl: 1 / (1 - share of the time spent waking up)",
            )
            .found()
    }
}
