//! Path diagram of a run: hosts, switches, ports, queues, threads.

use linerate_metric::facts::{Host, Role};
use linerate_metric::forward::ForwardFigures;
use linerate_metric::generate::GeneratePlan;
use linerate_metric::plan::{Cpus, Direction, Kind, Plan, Sched, Wait};
use linerate_metric::record::{CpuCost, Record};
use linerate_metric::stack::STACK_NAME;
use linerate_metric::units::format_bit_rate;

use super::pretty;
use crate::svg::{Column, Crossing, NARROW, Place, WIDE, Way, escape};
use crate::{facts, phrases};

/// Largest number of boxes in a row; more threads are shown as a number.
const BESIDE: usize = 3;

/// Largest number of ports and of threads in a forwarding diagram.
const DRAWN: usize = 16;

/// Renders the diagram of a run; empty if there is none for its kind.
pub(super) fn section(run: &Record) -> String {
    through(run, &facts::switches(run))
}

/// Renders the diagram with given devices between the hosts.
pub(super) fn through(run: &Record, between: &[String]) -> String {
    let (title, drawings) = match run.kind {
        Kind::Throughput | Kind::Latency => {
            let way = between_hosts(run, between);
            (
                "Packet path",
                [WIDE, NARROW].map(|size| way.draw(size)).concat(),
            )
        }
        Kind::Forward => match run.forward.as_deref().and_then(crossing) {
            Some(crossing) => (
                "Ports, queues and threads",
                [WIDE, NARROW].map(|size| crossing.draw(size)).concat(),
            ),
            None => return String::new(),
        },
        Kind::Generate => match run.plan.generate.as_deref() {
            Some(plan) => {
                let way = through_a_device(plan);
                (
                    "Frame path",
                    [WIDE, NARROW].map(|size| way.draw(size)).concat(),
                )
            }
            None => return String::new(),
        },
        Kind::Stack => return String::new(),
    };
    format!(
        "<figure class=\"path\">\n<figcaption><h4>{}</h4></figcaption>\n<div class=\"canvas\">{drawings}</div>\n</figure>\n",
        escape(title)
    )
}

fn between_hosts(run: &Record, between: &[String]) -> Way {
    let plan = &run.plan;
    let host = |role| run.hosts.iter().find(|host| host.role == Some(role));
    let latency = run.kind == Kind::Latency;
    Way {
        title: format!("Packet path: {}", phrases::run_title(run)),
        near: end(run, host(Role::Client), Role::Client),
        far: end(run, host(Role::Server), Role::Server),
        between: between.to_vec(),
        there: latency || plan.flows(Direction::Send),
        back: latency || plan.flows(Direction::Receive),
    }
}

/// Builds the column of one host, from the program to the port.
fn end(run: &Record, host: Option<&Host>, role: Role) -> Column {
    let plan = &run.plan;
    let near = role == Role::Client;
    let title = host.map_or_else(
        || {
            let name = crate::figures::role(role);
            match near {
                true => name.to_owned(),
                false => format!("{name} {}", phrases::address(&plan.host, plan.port)),
            }
        },
        facts::heading,
    );
    let stack = match near {
        true => &plan.stack.near,
        false => &plan.stack.far,
    };
    let mut rows = vec![threads(run, role), vec![stack_of(plan, host, stack, near)]];
    match host.and_then(|host| host.interface.as_ref()) {
        Some(interface) => {
            let queue = |count: Option<u32>, name: &str, descriptors: Option<u32>| {
                let count = count?;
                Some(match descriptors {
                    Some(n) => format!("{count} {name} of {n} descriptors"),
                    None => format!("{count} {name}"),
                })
            };
            let mut queues: Vec<String> =
                queue(interface.tx_queues, "send", interface.tx_descriptors)
                    .into_iter()
                    .collect();
            queues.extend(queue(
                interface.rx_queues,
                "receive",
                interface.rx_descriptors,
            ));
            queues.extend(interface.qdisc.clone());
            if !queues.is_empty() {
                rows.push(vec![Place::new("queues", queues.join(", "))]);
            }
            let mut about: Vec<String> = interface.driver.clone().into_iter().collect();
            about.extend(interface.mtu.map(|mtu| format!("MTU {mtu}")));
            about.extend(
                interface
                    .speed_bps
                    .or(interface.qdisc_rate_bps)
                    .map(|speed| format_bit_rate(speed as f64)),
            );
            rows.push(vec![Place::new(interface.name.clone(), about.join(", "))]);
        }
        None => {
            let device = plan.near_stack.as_ref().filter(|_| near);
            rows.push(vec![match device {
                Some(stack) => Place::new(
                    stack.device.clone(),
                    [
                        ("rx_descriptors", "receive descriptors"),
                        ("tx_descriptors", "send descriptors"),
                    ]
                    .iter()
                    .filter_map(|(key, name)| {
                        Some(format!("{} {name}", stack.configuration.get(*key)?))
                    })
                    .collect::<Vec<_>>()
                    .join(", "),
                ),
                None => Place::new("port", "unknown"),
            }]);
        }
    }
    Column { title, rows }
}

/// Builds the boxes of a host's measuring threads.
fn threads(run: &Record, role: Role) -> Vec<Place> {
    let plan = &run.plan;
    let near = role == Role::Client;
    if !near && plan.dialect.is_some() {
        let name = plan.dialect.clone().unwrap_or_default();
        return vec![Place::new(name, "another program")];
    }
    let (wait, cpus, sched) = match near {
        true => (
            plan.wait.as_ref().map(|wait| wait.near).or(plan.near_wait),
            &plan.cpu.near,
            plan.sched.near,
        ),
        false => (
            plan.wait.as_ref().map(|wait| wait.far),
            &plan.cpu.far,
            plan.sched.far,
        ),
    };
    let cost = run.summary.cpu.iter().find(|cost| cost.role == role);
    let about = |seen: Option<&Cpus>| about_thread(wait, cpus, seen, sched);
    let seen: &[_] = cost.map_or(&[], |cost: &CpuCost| &cost.threads);
    let asked =
        plan.threads.as_ref().map_or(
            plan.streams,
            |threads| {
                if near { threads.near } else { threads.far }
            },
        );
    let count = match seen.len() {
        0 => asked.max(1) as usize,
        n => n,
    };
    match count {
        1 => vec![Place::new(
            "thread",
            about(seen.first().and_then(|thread| thread.cpus.as_ref())),
        )],
        n if n <= BESIDE => (0..n)
            .map(|number| {
                let thread = seen.get(number);
                Place::new(
                    format!("thread {}", number + 1),
                    about(thread.and_then(|thread| thread.cpus.as_ref())),
                )
            })
            .collect(),
        n => vec![Place::new(format!("{n} threads"), about(None))],
    }
}

/// Describes a thread: wait mode, configured CPUs, scheduling. If any CPU is allowed, the observed
/// CPUs are added.
fn about_thread(wait: Option<Wait>, cpus: &Cpus, seen: Option<&Cpus>, sched: Sched) -> String {
    let mut about: Vec<String> = wait.map(phrases::waiting).into_iter().collect();
    let mut where_to = phrases::cores(cpus);
    if let Some(seen) = seen.filter(|seen| cpus.0.is_empty() && !seen.0.is_empty()) {
        where_to.push_str(&format!(" (seen on {})", phrases::cores(seen)));
    }
    about.push(where_to);
    if sched != Sched::Inherited {
        about.push(sched.to_string());
    }
    pretty(&about.join(", "))
}

fn stack_of(plan: &Plan, host: Option<&Host>, stack: &str, near: bool) -> Place {
    let facts = host.and_then(|host| host.stack.as_ref());
    let streams = match plan.streams {
        1 => String::new(),
        n => format!(", {n} streams"),
    };
    if stack == STACK_NAME || facts.is_some() {
        let profile = plan
            .near_stack
            .as_ref()
            .filter(|_| near)
            .map(|stack| format!(", profile {}", stack.profile));
        return Place::new(
            "our stack",
            format!("{}{streams}{}", plan.protocol, profile.unwrap_or_default()),
        );
    }
    let name = match stack {
        "kernel" => "kernel's sockets".to_owned(),
        other => other.to_owned(),
    };
    let control = plan.congestion_control.as_ref();
    let control = control.map(|name| format!(", {name}"));
    Place::new(
        name,
        format!("{}{streams}{}", plan.protocol, control.unwrap_or_default()),
    )
}

/// Builds the path of a generator run: sending port, device, receiving port.
fn through_a_device(plan: &GeneratePlan) -> Way {
    let cpus = Cpus(plan.cpus.clone());
    let count = plan.threads.max(1);
    let generator = Place::new(
        match count {
            1 => "generator".to_owned(),
            n => format!("generator, {n} threads"),
        },
        about_thread(None, &cpus, None, Sched::Inherited),
    );
    let far = match &plan.receive {
        Some(port) => vec![
            vec![Place::new("receiver", "counts, times")],
            vec![Place::new(port.clone(), "receive queue")],
        ],
        None => vec![vec![Place::new("no receiver", "not counted")]],
    };
    let same = plan.receive.as_ref() == Some(&plan.send);
    Way {
        title: "Frame path".to_owned(),
        near: Column {
            title: "sent".to_owned(),
            rows: vec![
                vec![generator],
                vec![Place::new(
                    plan.send.clone(),
                    format!("send queue, bursts of {}", plan.burst),
                )],
            ],
        },
        far: Column {
            title: "received".to_owned(),
            rows: far,
        },
        between: match same && plan.send.starts_with("ring:") {
            true => Vec::new(),
            false => vec!["device".to_owned()],
        },
        there: true,
        back: false,
    }
}

/// Builds the diagram of a forwarder; `None` if it has too many ports or threads.
fn crossing(figures: &ForwardFigures) -> Option<Crossing> {
    let mut from: Vec<(u32, u32)> = Vec::new();
    let mut to: Vec<(u32, u32)> = Vec::new();
    for stream in &figures.streams {
        from.push((stream.rx_port, stream.rx_queue));
        to.push((stream.tx_port, stream.tx_queue));
    }
    for places in [&mut from, &mut to] {
        places.sort_unstable();
        places.dedup();
    }
    let cores: Vec<u32> = figures.cores.iter().map(|core| core.core).collect();
    if from.is_empty() || from.len() > DRAWN || cores.is_empty() || cores.len() > DRAWN {
        return None;
    }
    let queue = |&(port, queue): &(u32, u32), receives: bool| {
        let found = figures.ports.iter().find(|known| known.port == port);
        let name = found.map_or_else(|| port.to_string(), |port| port.name.clone());
        let descriptors = found.and_then(|port| match receives {
            true => port.rx_descriptors,
            false => port.tx_descriptors,
        });
        let descriptors = descriptors.map_or(String::new(), |n| format!(", {n} descriptors"));
        Place::new(
            format!("{port} {name}"),
            format!("queue {queue}{descriptors}"),
        )
    };
    let threads = figures.cores.iter().map(|core| {
        let cpus = Cpus(core.cpu.into_iter().collect());
        Place::new(
            format!("thread {}", core.core),
            about_thread(None, &cpus, None, Sched::Inherited),
        )
    });
    let streams = figures.streams.iter().filter_map(|stream| {
        let from = from
            .binary_search(&(stream.rx_port, stream.rx_queue))
            .ok()?;
        let to = to.binary_search(&(stream.tx_port, stream.tx_queue)).ok()?;
        let core = cores.iter().position(|&core| core == stream.core)?;
        Some((from, core, to))
    });
    Some(Crossing {
        title: "Ports, queues and threads of the forwarder".to_owned(),
        streams: streams.collect(),
        from: from.iter().map(|place| queue(place, true)).collect(),
        threads: threads.collect(),
        to: to.iter().map(|place| queue(place, false)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_thread_was_seen_is_not_where_it_has_to_run() {
        let cpus = |list: &[u32]| Cpus(list.to_vec());
        let about = |asked: &[u32], seen: Option<&[u32]>| {
            let seen = seen.map(cpus);
            about_thread(
                Some(Wait::Block),
                &cpus(asked),
                seen.as_ref(),
                Sched::Inherited,
            )
        };
        assert_eq!(
            about(&[], Some(&[1])),
            "blocking, any core (seen on core 1)"
        );
        assert_eq!(about(&[1], Some(&[1])), "blocking, core 1");
        assert_eq!(about(&[], None), "blocking, any core");
    }
}
