//! Path diagram of a run: hosts, switches, ports, queues, threads.

use linerate_record::facts::{HostFacts, Role};
use linerate_record::forward::ForwardFigures;
use linerate_record::generate::GeneratePlan;
use linerate_record::plan::{CpuList, Direction, Plan, RunKind, SchedPolicy, WaitMode};
use linerate_record::record::{CpuCost, Record};
use linerate_record::stack::STACK_NAME;
use linerate_stats::units::format_bit_rate;

use super::with_micro_sign;
use crate::model;
use crate::svg::{
    ForwardDiagram, HostColumn, NARROW_SIZE, PathBox, PathDiagram, WIDE_SIZE, escape_markup,
};
use crate::{facts, phrases};

/// Largest number of boxes in a row; more threads are shown as a number.
const MAX_BOXES_PER_ROW: usize = 3;

/// Largest number of ports and of threads in a forwarding diagram.
const MAX_DRAWN: usize = 16;

/// Renders the diagram of a run; empty if there is none for its kind.
pub(super) fn path_section(run: &Record) -> String {
    path_via(run, &facts::switches(run))
}

/// Renders the diagram with given devices between the hosts.
pub(super) fn path_via(run: &Record, between: &[String]) -> String {
    let (title, drawings) = match run.kind {
        RunKind::Throughput | RunKind::Latency => {
            let diagram = host_path(run, between);
            (
                "Packet path",
                [WIDE_SIZE, NARROW_SIZE]
                    .map(|size| diagram.draw(size))
                    .concat(),
            )
        }
        RunKind::Forward => match run.forward.as_deref().and_then(forwarder_diagram) {
            Some(crossing) => (
                "Ports, queues and threads",
                [WIDE_SIZE, NARROW_SIZE]
                    .map(|size| crossing.draw(size))
                    .concat(),
            ),
            None => return String::new(),
        },
        RunKind::Generate => match run.plan.generate.as_deref() {
            Some(plan) => {
                let diagram = generator_path(plan);
                (
                    "Frame path",
                    [WIDE_SIZE, NARROW_SIZE]
                        .map(|size| diagram.draw(size))
                        .concat(),
                )
            }
            None => return String::new(),
        },
        RunKind::Stack => return String::new(),
    };
    format!(
        "<figure class=\"path\">\n<figcaption><h4>{}</h4></figcaption>\n<div class=\"canvas\">{drawings}</div>\n</figure>\n",
        escape_markup(title)
    )
}

fn host_path(run: &Record, between: &[String]) -> PathDiagram {
    let plan = &run.plan;
    let host = |role| run.hosts.iter().find(|host| host.role == Some(role));
    let latency = run.kind == RunKind::Latency;
    PathDiagram {
        title: format!("Packet path: {}", phrases::run_title(run)),
        client: host_column(run, host(Role::Client), Role::Client),
        server: host_column(run, host(Role::Server), Role::Server),
        between: between.to_vec(),
        to_server: latency || plan.has_direction(Direction::Send),
        to_client: latency || plan.has_direction(Direction::Receive),
    }
}

/// Builds the column of one host, from the program to the port.
fn host_column(run: &Record, host: Option<&HostFacts>, role: Role) -> HostColumn {
    let plan = &run.plan;
    let is_client = role == Role::Client;
    let title = host.map_or_else(
        || {
            let name = role.as_str();
            match is_client {
                true => name.to_owned(),
                false => format!("{name} {}", model::format_address(&plan.host, plan.port)),
            }
        },
        facts::host_heading,
    );
    let stack = match is_client {
        true => &plan.stack.client,
        false => &plan.stack.server,
    };
    let mut rows = vec![
        thread_boxes(run, role),
        vec![stack_box(plan, host, stack, is_client)],
    ];
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
                rows.push(vec![PathBox::new("queues", queues.join(", "))]);
            }
            let mut details: Vec<String> = interface.driver.clone().into_iter().collect();
            details.extend(interface.mtu.map(|mtu| format!("MTU {mtu}")));
            details.extend(
                interface
                    .speed_bps
                    .or(interface.qdisc_rate_bps)
                    .map(|speed| format_bit_rate(speed as f64)),
            );
            rows.push(vec![PathBox::new(
                interface.name.clone(),
                details.join(", "),
            )]);
        }
        None => {
            let device = plan.client_stack.as_ref().filter(|_| is_client);
            rows.push(vec![match device {
                Some(stack) => PathBox::new(
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
                None => PathBox::new("port", "unknown"),
            }]);
        }
    }
    HostColumn { title, rows }
}

/// Builds the boxes of a host's measuring threads.
fn thread_boxes(run: &Record, role: Role) -> Vec<PathBox> {
    let plan = &run.plan;
    let is_client = role == Role::Client;
    if !is_client && plan.peer_protocol.is_some() {
        let name = plan.peer_protocol.clone().unwrap_or_default();
        return vec![PathBox::new(name, "another program")];
    }
    let (wait, cpus, sched) = match is_client {
        true => (
            plan.wait
                .as_ref()
                .map(|wait| wait.client)
                .or(plan.client_wait),
            &plan.cpu.client,
            plan.sched.client,
        ),
        false => (
            plan.wait.as_ref().map(|wait| wait.server),
            &plan.cpu.server,
            plan.sched.server,
        ),
    };
    let cost = run.summary.cpu.iter().find(|cost| cost.role == role);
    let details_of = |observed: Option<&CpuList>| describe_thread(wait, cpus, observed, sched);
    let observed: &[_] = cost.map_or(&[], |cost: &CpuCost| &cost.threads);
    let configured = plan.threads.as_ref().map_or(plan.streams, |threads| {
        if is_client {
            threads.client
        } else {
            threads.server
        }
    });
    let count = match observed.len() {
        0 => configured.max(1) as usize,
        n => n,
    };
    match count {
        1 => vec![PathBox::new(
            "thread",
            details_of(observed.first().and_then(|thread| thread.cpus.as_ref())),
        )],
        n if n <= MAX_BOXES_PER_ROW => (0..n)
            .map(|number| {
                let thread = observed.get(number);
                PathBox::new(
                    format!("thread {}", number + 1),
                    details_of(thread.and_then(|thread| thread.cpus.as_ref())),
                )
            })
            .collect(),
        n => vec![PathBox::new(format!("{n} threads"), details_of(None))],
    }
}

/// Describes a thread: wait mode, configured CPUs, scheduling. If any CPU is allowed, the observed
/// CPUs are added.
fn describe_thread(
    wait: Option<WaitMode>,
    cpus: &CpuList,
    observed: Option<&CpuList>,
    sched: SchedPolicy,
) -> String {
    let mut details: Vec<String> = wait.map(model::wait_mode_name).into_iter().collect();
    let mut location = model::core_list(cpus);
    if let Some(observed) = observed.filter(|observed| cpus.0.is_empty() && !observed.0.is_empty())
    {
        location.push_str(&format!(" (seen on {})", model::core_list(observed)));
    }
    details.push(location);
    if sched != SchedPolicy::Inherited {
        details.push(sched.to_string());
    }
    with_micro_sign(&details.join(", "))
}

fn stack_box(plan: &Plan, host: Option<&HostFacts>, stack: &str, is_client: bool) -> PathBox {
    let facts = host.and_then(|host| host.stack.as_ref());
    let streams = match plan.streams {
        1 => String::new(),
        n => format!(", {n} flows"),
    };
    if stack == STACK_NAME || facts.is_some() {
        let profile = plan
            .client_stack
            .as_ref()
            .filter(|_| is_client)
            .map(|stack| format!(", profile {}", stack.profile));
        return PathBox::new(
            "the user-space stack",
            format!("{}{streams}{}", plan.protocol, profile.unwrap_or_default()),
        );
    }
    let name = match stack {
        "kernel" => "kernel's sockets".to_owned(),
        other_stack => other_stack.to_owned(),
    };
    let congestion_control = plan.congestion_control.as_ref();
    let congestion_control = congestion_control.map(|name| format!(", {name}"));
    PathBox::new(
        name,
        format!(
            "{}{streams}{}",
            plan.protocol,
            congestion_control.unwrap_or_default()
        ),
    )
}

/// Builds the path of a generator run: sending port, device, receiving port.
fn generator_path(plan: &GeneratePlan) -> PathDiagram {
    let cpus = CpuList(plan.cpus.clone());
    let count = plan.threads.max(1);
    let generator = PathBox::new(
        match count {
            1 => "generator".to_owned(),
            n => format!("generator, {n} threads"),
        },
        describe_thread(None, &cpus, None, SchedPolicy::Inherited),
    );
    let receiver_rows = match &plan.receive {
        Some(port) => vec![
            vec![PathBox::new("receiver", "counts, times")],
            vec![PathBox::new(port.clone(), "receive queue")],
        ],
        None => vec![vec![PathBox::new("no receiver", "not counted")]],
    };
    let is_same_port = plan.receive.as_ref() == Some(&plan.send);
    PathDiagram {
        title: "Frame path".to_owned(),
        client: HostColumn {
            title: "sent".to_owned(),
            rows: vec![
                vec![generator],
                vec![PathBox::new(
                    plan.send.clone(),
                    format!("send queue, bursts of {}", plan.burst),
                )],
            ],
        },
        server: HostColumn {
            title: "received".to_owned(),
            rows: receiver_rows,
        },
        between: match is_same_port && plan.send.starts_with("ring:") {
            true => Vec::new(),
            false => vec!["device".to_owned()],
        },
        to_server: true,
        to_client: false,
    }
}

/// Builds the diagram of a forwarder; `None` if it has too many ports or threads.
fn forwarder_diagram(figures: &ForwardFigures) -> Option<ForwardDiagram> {
    let mut from: Vec<(u32, u32)> = Vec::new();
    let mut to: Vec<(u32, u32)> = Vec::new();
    for stream in &figures.streams {
        from.push((stream.rx_port, stream.rx_queue));
        to.push((stream.tx_port, stream.tx_queue));
    }
    for queues in [&mut from, &mut to] {
        queues.sort_unstable();
        queues.dedup();
    }
    let cores: Vec<u32> = figures.cores.iter().map(|core| core.core).collect();
    if from.is_empty() || from.len() > MAX_DRAWN || cores.is_empty() || cores.len() > MAX_DRAWN {
        return None;
    }
    let queue = |&(port, queue): &(u32, u32), receives: bool| {
        let forward_port = figures
            .ports
            .iter()
            .find(|candidate| candidate.port == port);
        let name = forward_port.map_or_else(|| port.to_string(), |port| port.name.clone());
        let descriptors = forward_port.and_then(|port| match receives {
            true => port.rx_descriptors,
            false => port.tx_descriptors,
        });
        let descriptors = descriptors.map_or(String::new(), |n| format!(", {n} descriptors"));
        PathBox::new(
            format!("{port} {name}"),
            format!("queue {queue}{descriptors}"),
        )
    };
    let threads = figures.cores.iter().map(|core| {
        let cpus = CpuList(core.cpu.into_iter().collect());
        PathBox::new(
            format!("thread {}", core.core),
            describe_thread(None, &cpus, None, SchedPolicy::Inherited),
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
    Some(ForwardDiagram {
        title: "Ports, queues and threads of the forwarder".to_owned(),
        streams: streams.collect(),
        receive_queues: from.iter().map(|queue_id| queue(queue_id, true)).collect(),
        threads: threads.collect(),
        transmit_queues: to.iter().map(|queue_id| queue(queue_id, false)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observed_cpus_are_shown_only_without_configured_ones() {
        let cpus = |list: &[u32]| CpuList(list.to_vec());
        let describe = |configured: &[u32], observed: Option<&[u32]>| {
            let observed = observed.map(cpus);
            describe_thread(
                Some(WaitMode::Block),
                &cpus(configured),
                observed.as_ref(),
                SchedPolicy::Inherited,
            )
        };
        assert_eq!(
            describe(&[], Some(&[1])),
            "blocking, any CPU (seen on CPU 1)"
        );
        assert_eq!(describe(&[1], Some(&[1])), "blocking, CPU 1");
        assert_eq!(describe(&[], None), "blocking, any CPU");
    }
}
