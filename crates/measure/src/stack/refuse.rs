//! Options that our own stack does not have, or has in other words.

use linerate_metric::pace::Pacing;
use linerate_metric::plan::{Direction, Ends, Plan, Protocol, Sched, SendCopy, Wait};
use linerate_metric::stack::{Control, StackPlan};
use linerate_stack::Config;

use crate::error::MeasureError;

/// A refusal: whether it holds for a plan, the option, the reason, and what to do instead.
struct Row {
    holds: fn(&Plan, &StackPlan) -> bool,
    option: &'static str,
    why: &'static str,
    next: &'static str,
}

/// How the near end was told to wait.
fn waits(plan: &Plan) -> Option<Wait> {
    plan.wait.as_ref().map(|wait| wait.near).or(plan.near_wait)
}

/// Whether payload leaves by a call that only a kernel has; what goes without a copy otherwise is in place here.
fn is_by_file(way: SendCopy) -> bool {
    matches!(way, SendCopy::SendFile | SendCopy::Splice)
}

/// Every option that a run over our stack is refused with, before any traffic.
const ROWS: &[Row] = &[
    Row {
        holds: |plan, _| {
            waits(plan).is_some_and(|wait| !matches!(wait, Wait::Spin | Wait::Interval { .. }))
        },
        option: "--wait",
        why: "our stack polls its port: it has no call that sleeps",
        next: "use spin, or interval:TIME (--set poll.interval=TIME is the same)",
    },
    Row {
        holds: |plan, _| plan.flows(Direction::Send) && is_by_file(plan.copies.send),
        option: "--offload sendfile or splice",
        why: "these move files and pipes of the kernel",
        next: "use zerocopy: the program writes into our stack's buffers then",
    },
    Row {
        holds: |plan, _| {
            let offload = &plan.udp_offload;
            let joins = offload.gso == Some(true) || offload.gro == Some(true);
            offload.asked && joins && plan.batch.is_none()
        },
        option: "--offload gso or gro",
        why: "the kernel cuts and joins datagrams; our stack sends each by itself, in bursts",
        next: "leave it out",
    },
    Row {
        holds: |plan, _| plan.socket.priority.is_some(),
        option: "--socket-priority",
        why: "no queueing discipline of the kernel is on the way out of our stack",
        next: "leave it out",
    },
    Row {
        holds: |plan, _| plan.socket.receive_low_water_bytes.is_some(),
        option: "--rcvlowat",
        why: "no receiver sleeps that would have to be woken",
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
        why: "our stack's queue of datagrams is counted in packets",
        next: "set that: --set udp.receive_queue=PACKETS",
    },
    Row {
        holds: |plan, _| {
            let name = plan.congestion_control.as_deref();
            plan.congestion_control_asked
                && !name.is_some_and(|name| ["none", "reno", "cubic"].contains(&name))
        },
        option: "-C",
        why: "our stack has the congestion controls none, reno and cubic",
        next: "use one of them",
    },
    Row {
        holds: |plan, _| plan.pace.by != Pacing::User,
        option: "--pacing socket or txtime",
        why: "it is the kernel that paces then",
        next: "leave it out: the program paces",
    },
    Row {
        holds: |plan, _| {
            plan.threads
                .as_ref()
                .is_some_and(|threads| threads.near > 1)
        },
        option: "--threads above 1 at this end",
        why: "one thread owns our stack",
        next: "give 1/N for the far end alone",
    },
    Row {
        holds: |plan, _| plan.cpu.near.0.len() > 1,
        option: "--cpu with several processors at this end",
        why: "one thread owns our stack",
        next: "name one",
    },
    Row {
        holds: |plan, _| {
            let group = plan.round_trip.group.as_ref();
            group.is_some_and(|group| group.interface.is_some())
        },
        option: "--multicast GROUP%IF",
        why: "our stack has one port, which --dev names",
        next: "leave the interface out",
    },
    Row {
        holds: |plan, _| plan.bind.as_deref().is_some_and(|bind| bind.contains('%')),
        option: "-B %IF",
        why: "our stack has one port, which --dev names",
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
        why: "another program expects all of a test from one address",
        next: "leave --control out",
    },
];

/// Refuses what a run over our stack cannot have.
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

/// A refusal of a server's end that stands on our stack.
type FarRow = (
    fn(&Plan, &Config) -> bool,
    &'static str,
    &'static str,
    &'static str,
);

/// Every option of a client that our stack does not have at a server's end.
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
        "it stands on a stack of its own, which waits as it was started to",
        "leave --wait out, or start it with --set poll.interval=TIME",
    ),
    (
        |plan, _| plan.flows(Direction::Receive) && is_by_file(plan.copies.send),
        "--offload sendfile or splice",
        "these move files and pipes of a kernel, and it stands on a stack of its own",
        "use zerocopy: it writes into its stack's buffers then",
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
        "its own stack takes and sends each datagram by itself",
        "leave it out",
    ),
    (
        |plan, _| plan.socket.priority.is_some(),
        "--socket-priority",
        "no queueing discipline of a kernel is on the way out of its own stack",
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
        "its own stack has one longest segment for all connections",
        "start it with --set tcp.mss=BYTES",
    ),
    (
        |plan, config| {
            let asked = plan.socket.tos.filter(|_| plan.flows(Direction::Receive));
            asked.is_some_and(|tos| tos != config.ip.tos)
        },
        "-S",
        "its own stack marks all packets alike",
        "start it with --set ip.tos=N",
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
        "buffers of its own stack are allocated before the first packet",
        "start it with --set tcp.send_buffer=SIZE --set tcp.receive_window=SIZE",
    ),
    (
        |plan, config| {
            plan.flows(Direction::Receive)
                && plan.congestion_control_asked
                && plan.congestion_control != config.get("tcp.congestion_control")
        },
        "-C",
        "its own stack has one congestion control for all connections",
        "start it with --set tcp.congestion_control=NAME",
    ),
    (
        |plan, _| plan.flows(Direction::Receive) && plan.pace.by != Pacing::User,
        "--pacing socket or txtime",
        "it is the kernel that paces then, and it stands on a stack of its own",
        "leave it out: the program paces",
    ),
    (
        |plan, _| {
            let several = |threads: &Ends<u32>| threads.far > 1;
            plan.threads.as_ref().is_some_and(several)
        },
        "--threads",
        "one thread owns its stack",
        "give N/1",
    ),
    (
        |plan, _| !plan.cpu.far.0.is_empty() || plan.sched.far != Sched::Inherited,
        "--cpu or --sched for the far end",
        "the thread of its stack stays as it was started",
        "start this end with taskset instead of --cpu, give --sched for it alone (fifo:10/inherited), or \
         start the other one with --set threads.application.cpus=N --set threads.application.sched=CLASS",
    ),
    (
        |plan, _| plan.round_trip.group.is_some(),
        "--multicast",
        "its own stack has no groups",
        "leave it out",
    ),
    (
        |plan, config| match plan.protocol {
            // One for the control connection, and some on their way to their end.
            Protocol::Tcp => sockets(plan) + 1 > u64::from(config.tcp_sockets),
            Protocol::Udp => sockets(plan) + 1 > u64::from(config.udp_sockets),
        },
        "-P",
        "its stack has not so many sockets",
        "use fewer streams, or start it with --set sockets.tcp=N --set sockets.udp=N",
    ),
];

/// Sockets that the flows of a plan take at an end.
fn sockets(plan: &Plan) -> u64 {
    u64::from(plan.streams) * plan.directions.len() as u64
}

/// Refuses what a server's end on our stack cannot have.
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
        // Without a copy, or by the kernel's end.
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
        // "none" is what it does anyway.
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
        assert!(unmet.is_empty(), "no plan meets {unmet:?}");
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
        // What the kernel's end does is its own.
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
