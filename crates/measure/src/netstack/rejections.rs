//! Options that the user-space stack does not support, and their alternatives.

use linerate_metric::pace::Pacing;
use linerate_metric::plan::{Direction, Ends, Plan, Protocol, Sched, SendCopy, Wait};
use linerate_metric::stack::{Control, StackPlan};
use linerate_stack::Config;

use crate::error::MeasureError;

/// A rejection: its condition, the option, the reason, and the alternative.
struct Row {
    holds: fn(&Plan, &StackPlan) -> bool,
    option: &'static str,
    why: &'static str,
    next: &'static str,
}

/// Returns the wait mode requested for the client.
fn waits(plan: &Plan) -> Option<Wait> {
    plan.wait.as_ref().map(|wait| wait.near).or(plan.near_wait)
}

/// Returns whether payload is sent by a call of kernel sockets; other copy modes work in place
/// here.
fn is_by_file(way: SendCopy) -> bool {
    matches!(way, SendCopy::SendFile | SendCopy::Splice)
}

/// Options that are rejected before any traffic when the client runs on the user-space stack.
const ROWS: &[Row] = &[
    Row {
        holds: |plan, _| {
            waits(plan).is_some_and(|wait| !matches!(wait, Wait::Spin | Wait::Interval { .. }))
        },
        option: "--wait",
        why: "the user-space stack polls its port: none of its calls blocks",
        next: "use spin, or interval:TIME (same as --set poll.interval=TIME)",
    },
    Row {
        holds: |plan, _| plan.flows(Direction::Send) && is_by_file(plan.copies.send),
        option: "--offload sendfile or splice",
        why: "sendfile and splice need kernel sockets",
        next: "use zerocopy: payload is then written into the stack's buffers",
    },
    Row {
        holds: |plan, _| {
            let offload = &plan.udp_offload;
            let joins = offload.gso == Some(true) || offload.gro == Some(true);
            offload.asked && joins && plan.batch.is_none()
        },
        option: "--offload gso or gro",
        why: "GSO and GRO are kernel features; the user-space stack sends each datagram by itself, in bursts",
        next: "leave it out",
    },
    Row {
        holds: |plan, _| plan.socket.priority.is_some(),
        option: "--socket-priority",
        why: "packets of the user-space stack pass no queueing discipline of the kernel",
        next: "leave it out",
    },
    Row {
        holds: |plan, _| plan.socket.receive_low_water_bytes.is_some(),
        option: "--rcvlowat",
        why: "the user-space stack polls: no receiver sleeps until data arrives",
        next: "leave it out",
    },
    Row {
        holds: |plan, _| {
            plan.protocol == Protocol::Udp
                && (plan.window_bytes.is_some()
                    || plan.socket.send_buffer_bytes.is_some()
                    || plan.socket.receive_buffer_bytes.is_some())
        },
        option: "-w, --sndbuf or --rcvbuf (ttcp: -b) with -u",
        why: "the receive queue of the user-space stack is counted in packets",
        next: "use --set udp.receive_queue=PACKETS",
    },
    Row {
        holds: |plan, _| {
            let name = plan.congestion_control.as_deref();
            plan.congestion_control_asked
                && !name.is_some_and(|name| ["none", "reno", "cubic"].contains(&name))
        },
        option: "-C",
        why: "the user-space stack has the congestion controls none, reno and cubic",
        next: "use one of them",
    },
    Row {
        holds: |plan, _| plan.pace.by != Pacing::User,
        option: "--pacing socket or txtime",
        why: "only the kernel can pace this way",
        next: "leave it out: the program paces",
    },
    Row {
        holds: |plan, _| {
            plan.threads
                .as_ref()
                .is_some_and(|threads| threads.near > 1)
        },
        option: "--threads above 1 at this end",
        why: "one thread owns the user-space stack",
        next: "use 1/N for several threads at the server alone",
    },
    Row {
        holds: |plan, _| plan.cpu.near.0.len() > 1,
        option: "--cpu with several processors at this end",
        why: "one thread owns the user-space stack",
        next: "name one processor",
    },
    Row {
        holds: |plan, _| {
            let group = plan.round_trip.group.as_ref();
            group.is_some_and(|group| group.interface.is_some())
        },
        option: "--multicast GROUP%IF",
        why: "the user-space stack has one port, which --dev names",
        next: "leave the interface out",
    },
    Row {
        holds: |plan, _| plan.bind.as_deref().is_some_and(|bind| bind.contains('%')),
        option: "-B %IF",
        why: "the user-space stack has one port, which --dev names",
        next: "leave the interface out",
    },
    Row {
        holds: |plan, near| near.control == Control::Kernel && plan.protocol == Protocol::Udp,
        option: "--control kernel with -u",
        why: "a server sends datagrams only to the address of its control connection",
        next: "leave --control out, or use TCP",
    },
    Row {
        holds: |plan, near| near.control == Control::Kernel && plan.dialect.is_some(),
        option: "--control kernel with --peer",
        why: "other tools expect all connections of a test from one address",
        next: "leave --control out",
    },
];

/// Rejects the options of a plan that the client's user-space stack does not support.
///
/// # Errors
/// [`MeasureError::OptionRefused`] with the reason.
pub fn check(plan: &Plan, near: &StackPlan) -> Result<(), MeasureError> {
    match ROWS.iter().find(|row| (row.holds)(plan, near)) {
        None => Ok(()),
        Some(row) => Err(MeasureError::OptionRefused {
            option: format!("{} with --dev", row.option),
            why: row.why.to_owned(),
            next_step: row.next.to_owned(),
        }),
    }
}

/// A rejection for a server on the user-space stack.
type FarRow = (
    fn(&Plan, &Config) -> bool,
    &'static str,
    &'static str,
    &'static str,
);

/// Options of a client that a server on the user-space stack does not support.
const FAR_ROWS: &[FarRow] = &[
    (
        |plan, config| {
            let own = match config.poll_interval {
                None => Wait::Spin,
                Some(time) => Wait::Interval {
                    time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
                },
            };
            plan.wait.as_ref().is_some_and(|wait| wait.far != own)
        },
        "--wait",
        "the server runs on a user-space stack, whose wait mode is fixed at its start",
        "leave --wait out, or start the server with --set poll.interval=TIME",
    ),
    (
        |plan, _| plan.flows(Direction::Receive) && is_by_file(plan.copies.send),
        "--offload sendfile or splice",
        "sendfile and splice need kernel sockets, and the server runs on a user-space stack",
        "use zerocopy: payload is then written into the stack's buffers",
    ),
    (
        |plan, _| {
            plan.udp_offload.asked && plan.batch.is_none() && {
                let offload = &plan.udp_offload;
                (plan.flows(Direction::Receive) && offload.gso == Some(true))
                    || (plan.flows(Direction::Send) && offload.gro == Some(true))
            }
        },
        "--offload gso or gro",
        "the server's user-space stack sends and receives each datagram by itself",
        "leave it out",
    ),
    (
        |plan, _| plan.socket.priority.is_some(),
        "--socket-priority",
        "packets of the server's user-space stack pass no queueing discipline of the kernel",
        "leave it out",
    ),
    (
        |plan, config| {
            let own = config.tcp.mss.map(u32::from);
            plan.socket
                .mss_bytes
                .is_some_and(|bytes| own != Some(bytes))
        },
        "-M",
        "the server's user-space stack has one MSS for all connections",
        "start the server with --set tcp.mss=BYTES",
    ),
    (
        |plan, config| {
            let asked = plan.socket.tos.filter(|_| plan.flows(Direction::Receive));
            asked.is_some_and(|tos| tos != config.ip.tos)
        },
        "-S",
        "the server's user-space stack has one TOS for all packets",
        "start the server with --set ip.tos=N",
    ),
    (
        |plan, _| {
            let socket = &plan.socket;
            plan.window_bytes.is_some()
                || socket.send_buffer_bytes.is_some()
                || socket.receive_buffer_bytes.is_some()
                || socket.receive_low_water_bytes.is_some()
        },
        "-w, --sndbuf, --rcvbuf or --rcvlowat",
        "the buffers of the server's user-space stack are allocated at its start",
        "start the server with --set tcp.send_buffer=SIZE --set tcp.receive_window=SIZE",
    ),
    (
        |plan, config| {
            plan.flows(Direction::Receive)
                && plan.congestion_control_asked
                && plan.congestion_control != config.get("tcp.congestion_control")
        },
        "-C",
        "the server's user-space stack has one congestion control for all connections",
        "start the server with --set tcp.congestion_control=NAME",
    ),
    (
        |plan, _| plan.flows(Direction::Receive) && plan.pace.by != Pacing::User,
        "--pacing socket or txtime",
        "only the kernel can pace this way, and the server runs on a user-space stack",
        "leave it out: the program paces",
    ),
    (
        |plan, _| {
            let several = |threads: &Ends<u32>| threads.far > 1;
            plan.threads.as_ref().is_some_and(several)
        },
        "--threads",
        "one thread owns the server's user-space stack",
        "use N/1",
    ),
    (
        |plan, _| !plan.cpu.far.0.is_empty() || plan.sched.far != Sched::Inherited,
        "--cpu or --sched for the server",
        "the thread of the server's user-space stack keeps its processors and scheduling class",
        "start the client with taskset instead of --cpu, give --sched for it alone (fifo:10/inherited), or \
         start the server with --set threads.application.cpus=N --set threads.application.sched=CLASS",
    ),
    (
        |plan, _| plan.round_trip.group.is_some(),
        "--multicast",
        "the server's user-space stack has no multicast groups",
        "leave it out",
    ),
    (
        |plan, config| match plan.protocol {
            // One for the control connection; each further flow needs a socket.
            Protocol::Tcp => sockets(plan) + 1 > u64::from(config.tcp_sockets),
            Protocol::Udp => sockets(plan) + 1 > u64::from(config.udp_sockets),
        },
        "-P",
        "the server's user-space stack has too few sockets",
        "use fewer streams, or start the server with --set sockets.tcp=N --set sockets.udp=N",
    ),
];

/// Returns the number of sockets of a plan's flows at one end.
fn sockets(plan: &Plan) -> u64 {
    u64::from(plan.streams) * plan.directions.len() as u64
}

/// Rejects the options of a plan that a server on the user-space stack does not support.
///
/// # Errors
/// [`MeasureError::OptionRefused`] with the reason.
pub fn check_far(plan: &Plan, config: &Config) -> Result<(), MeasureError> {
    match FAR_ROWS.iter().find(|(holds, ..)| holds(plan, config)) {
        None => Ok(()),
        Some((_, option, why, next)) => Err(MeasureError::OptionRefused {
            option: (*option).to_owned(),
            why: (*why).to_owned(),
            next_step: (*next).to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Cpus, Kind, ReceiveCopy};

    use super::*;

    #[test]
    fn every_refusal_has_a_plan_that_meets_it() {
        let tcp = || Plan::new(Kind::Throughput, Protocol::Tcp, "10.0.0.1");
        let udp = || Plan::new(Kind::Throughput, Protocol::Udp, "10.0.0.1");
        let with = |mut plan: Plan, change: &dyn Fn(&mut Plan)| {
            change(&mut plan);
            plan
        };
        let near = StackPlan::default();
        check(&udp(), &near).unwrap();
        // Copy modes of the in-place stack, or of the server's kernel sockets.
        let back = |change: &dyn Fn(&mut Plan)| {
            let mut plan = with(tcp(), change);
            plan.directions = vec![Direction::Receive];
            plan
        };
        for fit in [
            tcp(),
            with(tcp(), &|p| p.copies.send = SendCopy::ZeroCopy),
            with(tcp(), &|p| p.copies.receive = ReceiveCopy::Discarded),
            back(&|p| p.copies.receive = ReceiveCopy::Discarded),
            back(&|p| p.copies.send = SendCopy::Splice),
        ] {
            check(&fit, &near).unwrap();
        }
        // "none" is the stack's normal behaviour.
        let none = with(udp(), &|p| {
            p.udp_offload.asked = true;
            (p.udp_offload.gso, p.udp_offload.gro) = (Some(false), Some(false));
        });
        check(&none, &near).unwrap();
        let met: Vec<(Plan, &str)> = vec![
            (
                with(tcp(), &|p| p.wait = Some(Ends::both(Wait::Block))),
                "--wait",
            ),
            (
                with(tcp(), &|p| p.wait = Some(Ends::both(Wait::IoUring))),
                "--wait",
            ),
            (
                with(tcp(), &|p| p.copies.send = SendCopy::SendFile),
                "--offload sendfile",
            ),
            (
                with(tcp(), &|p| p.copies.send = SendCopy::Splice),
                "--offload sendfile",
            ),
            (
                with(udp(), &|p| {
                    p.udp_offload.asked = true;
                    p.udp_offload.gro = Some(true);
                }),
                "--offload gso",
            ),
            (
                with(tcp(), &|p| p.socket.priority = Some(1)),
                "--socket-priority",
            ),
            (
                with(tcp(), &|p| p.socket.receive_low_water_bytes = Some(9)),
                "--rcvlowat",
            ),
            (
                with(udp(), &|p| p.socket.send_buffer_bytes = Some(9)),
                "-w, --sndbuf",
            ),
            (
                with(tcp(), &|p| {
                    p.congestion_control = Some("bbr".to_owned());
                    p.congestion_control_asked = true;
                }),
                "-C",
            ),
            (with(udp(), &|p| p.pace.by = Pacing::Txtime), "--pacing"),
            (
                with(tcp(), &|p| p.threads = Some(Ends { near: 2, far: 1 })),
                "--threads",
            ),
            (with(tcp(), &|p| p.cpu.near = Cpus(vec![0, 1])), "--cpu"),
            (
                with(udp(), &|p| {
                    p.round_trip.group = "239.1.2.3%eth0".parse().ok();
                }),
                "--multicast",
            ),
            (with(udp(), &|p| p.bind = Some("%eth0".to_owned())), "-B"),
        ];
        let kernel = StackPlan {
            control: Control::Kernel,
            ..StackPlan::default()
        };
        let mut seen = Vec::new();
        for plan in [
            udp(),
            with(tcp(), &|p| p.dialect = Some("discard".to_owned())),
        ] {
            assert!(check(&plan, &kernel).is_err());
            seen.push(ROWS.iter().position(|row| (row.holds)(&plan, &kernel)));
        }
        for (plan, option) in met {
            let error = check(&plan, &near).unwrap_err();
            assert_eq!(error.exit_code(), linerate_metric::exit::MISSING);
            let text = error.to_string();
            assert!(text.starts_with(option), "{option}: {text}");
            seen.push(ROWS.iter().position(|row| (row.holds)(&plan, &near)));
        }
        let unmet: Vec<_> = (0..ROWS.len())
            .filter(|row| !seen.contains(&Some(*row)))
            .map(|row| ROWS[row].option)
            .collect();
        assert!(unmet.is_empty(), "no plan triggers {unmet:?}");
    }

    #[test]
    fn every_refusal_of_a_far_end_has_a_plan_that_meets_it() {
        let config = Config::profile("default").unwrap();
        let tcp = || Plan::new(Kind::Throughput, Protocol::Tcp, "10.0.0.1");
        let back = || {
            let mut plan = tcp();
            plan.directions = vec![Direction::Receive];
            plan
        };
        let with = |mut plan: Plan, change: &dyn Fn(&mut Plan)| {
            change(&mut plan);
            plan
        };
        // The client's kernel sockets do not concern the server.
        for fit in [
            tcp(),
            back(),
            with(tcp(), &|p| p.copies.receive = ReceiveCopy::Discarded),
            with(tcp(), &|p| p.copies.send = SendCopy::SendFile),
            with(back(), &|p| p.copies.send = SendCopy::ZeroCopy),
        ] {
            check_far(&fit, &config).unwrap();
        }
        let plans = [
            with(tcp(), &|p| p.wait = Some(Ends::both(Wait::Block))),
            with(back(), &|p| p.copies.send = SendCopy::Splice),
            with(tcp(), &|p| {
                p.udp_offload.asked = true;
                p.udp_offload.gro = Some(true);
            }),
            with(tcp(), &|p| p.socket.priority = Some(1)),
            with(tcp(), &|p| p.socket.mss_bytes = Some(536)),
            with(back(), &|p| p.socket.tos = Some(16)),
            with(tcp(), &|p| p.window_bytes = Some(1 << 20)),
            with(back(), &|p| {
                p.congestion_control = Some("bbr".to_owned());
                p.congestion_control_asked = true;
            }),
            with(back(), &|p| p.pace.by = Pacing::Txtime),
            with(tcp(), &|p| p.threads = Some(Ends { near: 1, far: 2 })),
            with(tcp(), &|p| p.sched.far = Sched::Fifo(1)),
            with(tcp(), &|p| p.round_trip.group = "239.1.2.3".parse().ok()),
            with(tcp(), &|p| p.streams = 1_000),
        ];
        let met: Vec<_> = (plans.iter())
            .map(|plan| FAR_ROWS.iter().position(|(holds, ..)| holds(plan, &config)))
            .collect();
        let all: Vec<_> = (0..FAR_ROWS.len()).map(Some).collect();
        assert_eq!(met, all);
        for plan in &plans {
            let error = check_far(plan, &config).unwrap_err();
            assert_eq!(error.exit_code(), linerate_metric::exit::MISSING);
        }
    }
}
