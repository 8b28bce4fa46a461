//! Options that the user-space stack does not support, and their alternatives.

use linerate_record::pace::PacingMethod;
use linerate_record::plan::{
    Direction, PerEnd, Plan, SchedPolicy, SendCopy, TransportProtocol, WaitMode,
};
use linerate_record::stack::{ControlPath, StackPlan};
use linerate_stack::StackConfig;

use crate::error::SessionError;

/// A rejection: its condition, the option, the reason, and the alternative.
struct ClientRejection {
    applies: fn(&Plan, &StackPlan) -> bool,
    option: &'static str,
    reason: &'static str,
    remedy: &'static str,
}

/// Returns the wait mode requested for the client.
fn requested_wait(plan: &Plan) -> Option<WaitMode> {
    plan.wait
        .as_ref()
        .map(|wait| wait.client)
        .or(plan.client_wait)
}

/// Returns whether payload is sent by a call of kernel sockets; other copy modes work in place
/// here.
fn needs_kernel_socket(copy: SendCopy) -> bool {
    matches!(copy, SendCopy::SendFile | SendCopy::Splice)
}

/// Options that are rejected before any traffic when the client runs on the user-space stack.
const CLIENT_REJECTIONS: &[ClientRejection] = &[
    ClientRejection {
        applies: |plan, _| {
            requested_wait(plan)
                .is_some_and(|wait| !matches!(wait, WaitMode::Spin | WaitMode::Interval { .. }))
        },
        option: "--wait",
        reason: "the user-space stack polls its port: none of its calls blocks",
        remedy: "use spin, or interval:TIME (same as --set poll.interval=TIME)",
    },
    ClientRejection {
        applies: |plan, _| {
            plan.has_direction(Direction::Send) && needs_kernel_socket(plan.copies.send)
        },
        option: "--offload sendfile or splice",
        reason: "sendfile and splice need kernel sockets",
        remedy: "use zerocopy: payload is then written into the stack's buffers",
    },
    ClientRejection {
        applies: |plan, _| {
            let offload = &plan.udp_offload;
            let merges = offload.gso == Some(true) || offload.gro == Some(true);
            offload.requested && merges && plan.batch.is_none()
        },
        option: "--offload gso or gro",
        reason: "GSO and GRO are kernel features; the user-space stack sends each datagram by itself, in bursts",
        remedy: "leave it out",
    },
    ClientRejection {
        applies: |plan, _| plan.socket.priority.is_some(),
        option: "--socket-priority",
        reason: "packets of the user-space stack pass no queueing discipline of the kernel",
        remedy: "leave it out",
    },
    ClientRejection {
        applies: |plan, _| plan.socket.receive_low_water_bytes.is_some(),
        option: "--rcvlowat",
        reason: "the user-space stack polls: no receiver sleeps until data arrives",
        remedy: "leave it out",
    },
    ClientRejection {
        applies: |plan, _| {
            plan.protocol == TransportProtocol::Udp
                && (plan.window_bytes.is_some()
                    || plan.socket.send_buffer_bytes.is_some()
                    || plan.socket.receive_buffer_bytes.is_some())
        },
        option: "-w, --sndbuf or --rcvbuf (ttcp: -b) with -u",
        reason: "the receive queue of the user-space stack is counted in packets",
        remedy: "use --set udp.receive_queue=PACKETS",
    },
    ClientRejection {
        applies: |plan, _| {
            let name = plan.congestion_control.as_deref();
            plan.congestion_control_requested
                && !name.is_some_and(|name| ["none", "reno", "cubic"].contains(&name))
        },
        option: "-C",
        reason: "the user-space stack has the congestion controls none, reno and cubic",
        remedy: "use one of them",
    },
    ClientRejection {
        applies: |plan, _| plan.pace.method != PacingMethod::User,
        option: "--pacing socket or txtime",
        reason: "only the kernel can pace this way",
        remedy: "leave it out: the program paces",
    },
    ClientRejection {
        applies: |plan, _| {
            plan.threads
                .as_ref()
                .is_some_and(|threads| threads.client > 1)
        },
        option: "--threads above 1 at this end",
        reason: "one thread owns the user-space stack",
        remedy: "use 1/N for several threads at the server alone",
    },
    ClientRejection {
        applies: |plan, _| plan.cpu.client.0.len() > 1,
        option: "--cpu with several CPUs at this end",
        reason: "one thread owns the user-space stack",
        remedy: "name one CPU",
    },
    ClientRejection {
        applies: |plan, _| {
            let group = plan.round_trip.group.as_ref();
            group.is_some_and(|group| group.interface.is_some())
        },
        option: "--multicast GROUP%IF",
        reason: "the user-space stack has one port, which --dev names",
        remedy: "leave the interface out",
    },
    ClientRejection {
        applies: |plan, _| plan.bind.as_deref().is_some_and(|bind| bind.contains('%')),
        option: "-B %IF",
        reason: "the user-space stack has one port, which --dev names",
        remedy: "leave the interface out",
    },
    ClientRejection {
        applies: |plan, client_stack| {
            client_stack.control == ControlPath::Kernel && plan.protocol == TransportProtocol::Udp
        },
        option: "--control kernel with -u",
        reason: "a server sends datagrams only to the address of its control connection",
        remedy: "leave --control out, or use TCP",
    },
    ClientRejection {
        applies: |plan, client_stack| {
            client_stack.control == ControlPath::Kernel && plan.peer_protocol.is_some()
        },
        option: "--control kernel with --peer",
        reason: "other tools expect all connections of a test from one address",
        remedy: "leave --control out",
    },
];

/// Rejects the options of a plan that the client's user-space stack does not support.
///
/// # Errors
/// [`SessionError::OptionRejected`] with the reason.
pub fn check_client(plan: &Plan, client_stack: &StackPlan) -> Result<(), SessionError> {
    match CLIENT_REJECTIONS
        .iter()
        .find(|row| (row.applies)(plan, client_stack))
    {
        None => Ok(()),
        Some(row) => Err(SessionError::OptionRejected {
            option: format!("{} with --dev", row.option),
            why: row.reason.to_owned(),
            next_step: row.remedy.to_owned(),
        }),
    }
}

/// A rejection for a server on the user-space stack.
type ServerRejection = (
    fn(&Plan, &StackConfig) -> bool,
    &'static str,
    &'static str,
    &'static str,
);

/// Options of a client that a server on the user-space stack does not support.
const SERVER_REJECTIONS: &[ServerRejection] = &[
    (
        |plan, config| {
            let stack_value = match config.poll_interval {
                None => WaitMode::Spin,
                Some(time) => WaitMode::Interval {
                    time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
                },
            };
            plan.wait
                .as_ref()
                .is_some_and(|wait| wait.server != stack_value)
        },
        "--wait",
        "the server runs on a user-space stack, whose wait mode is fixed at its start",
        "leave --wait out, or start the server with --set poll.interval=TIME",
    ),
    (
        |plan, _| plan.has_direction(Direction::Receive) && needs_kernel_socket(plan.copies.send),
        "--offload sendfile or splice",
        "sendfile and splice need kernel sockets, and the server runs on a user-space stack",
        "use zerocopy: payload is then written into the stack's buffers",
    ),
    (
        |plan, _| {
            plan.udp_offload.requested && plan.batch.is_none() && {
                let offload = &plan.udp_offload;
                (plan.has_direction(Direction::Receive) && offload.gso == Some(true))
                    || (plan.has_direction(Direction::Send) && offload.gro == Some(true))
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
            let stack_value = config.tcp.mss.map(u32::from);
            plan.socket
                .mss_bytes
                .is_some_and(|bytes| stack_value != Some(bytes))
        },
        "-M",
        "the server's user-space stack has one MSS for all connections",
        "start the server with --set tcp.mss=BYTES",
    ),
    (
        |plan, config| {
            let requested_tos = plan
                .socket
                .tos
                .filter(|_| plan.has_direction(Direction::Receive));
            requested_tos.is_some_and(|tos| tos != config.ip.tos)
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
            plan.has_direction(Direction::Receive)
                && plan.congestion_control_requested
                && plan.congestion_control != config.get("tcp.congestion_control")
        },
        "-C",
        "the server's user-space stack has one congestion control for all connections",
        "start the server with --set tcp.congestion_control=NAME",
    ),
    (
        |plan, _| plan.has_direction(Direction::Receive) && plan.pace.method != PacingMethod::User,
        "--pacing socket or txtime",
        "only the kernel can pace this way, and the server runs on a user-space stack",
        "leave it out: the program paces",
    ),
    (
        |plan, _| {
            let several = |threads: &PerEnd<u32>| threads.server > 1;
            plan.threads.as_ref().is_some_and(several)
        },
        "--threads",
        "one thread owns the server's user-space stack",
        "use N/1",
    ),
    (
        |plan, _| !plan.cpu.server.0.is_empty() || plan.sched.server != SchedPolicy::Inherited,
        "--cpu or --sched for the server",
        "the thread of the server's user-space stack keeps its CPUs and scheduling class",
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
            TransportProtocol::Tcp => socket_count(plan) + 1 > u64::from(config.tcp_sockets),
            TransportProtocol::Udp => socket_count(plan) + 1 > u64::from(config.udp_sockets),
        },
        "-P",
        "the server's user-space stack has too few sockets",
        "use fewer flows, or start the server with --set sockets.tcp=N --set sockets.udp=N",
    ),
];

/// Returns the number of sockets of a plan's flows at one end.
fn socket_count(plan: &Plan) -> u64 {
    u64::from(plan.streams) * plan.directions.len() as u64
}

/// Rejects the options of a plan that a server on the user-space stack does not support.
///
/// # Errors
/// [`SessionError::OptionRejected`] with the reason.
pub fn check_server(plan: &Plan, config: &StackConfig) -> Result<(), SessionError> {
    match SERVER_REJECTIONS
        .iter()
        .find(|(applies, ..)| applies(plan, config))
    {
        None => Ok(()),
        Some((_, option, reason, remedy)) => Err(SessionError::OptionRejected {
            option: (*option).to_owned(),
            why: (*reason).to_owned(),
            next_step: (*remedy).to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{CpuList, ReceiveCopy, RunKind};

    use super::*;

    #[test]
    fn every_client_rejection_has_a_plan_that_triggers_it() {
        let tcp = || Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.0.0.1");
        let udp = || Plan::new(RunKind::Throughput, TransportProtocol::Udp, "10.0.0.1");
        let with = |mut plan: Plan, change: &dyn Fn(&mut Plan)| {
            change(&mut plan);
            plan
        };
        let client_stack = StackPlan::default();
        check_client(&udp(), &client_stack).unwrap();
        // Copy modes of the in-place stack, or of the server's kernel sockets.
        let receiving = |change: &dyn Fn(&mut Plan)| {
            let mut plan = with(tcp(), change);
            plan.directions = vec![Direction::Receive];
            plan
        };
        for supported in [
            tcp(),
            with(tcp(), &|p| p.copies.send = SendCopy::ZeroCopy),
            with(tcp(), &|p| p.copies.receive = ReceiveCopy::Discarded),
            receiving(&|p| p.copies.receive = ReceiveCopy::Discarded),
            receiving(&|p| p.copies.send = SendCopy::Splice),
        ] {
            check_client(&supported, &client_stack).unwrap();
        }
        // "none" is the stack's normal behaviour.
        let none = with(udp(), &|p| {
            p.udp_offload.requested = true;
            (p.udp_offload.gso, p.udp_offload.gro) = (Some(false), Some(false));
        });
        check_client(&none, &client_stack).unwrap();
        let unsupported: Vec<(Plan, &str)> = vec![
            (
                with(tcp(), &|p| p.wait = Some(PerEnd::same(WaitMode::Block))),
                "--wait",
            ),
            (
                with(tcp(), &|p| p.wait = Some(PerEnd::same(WaitMode::IoUring))),
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
                    p.udp_offload.requested = true;
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
                    p.congestion_control_requested = true;
                }),
                "-C",
            ),
            (
                with(udp(), &|p| p.pace.method = PacingMethod::Txtime),
                "--pacing",
            ),
            (
                with(tcp(), &|p| {
                    p.threads = Some(PerEnd {
                        client: 2,
                        server: 1,
                    })
                }),
                "--threads",
            ),
            (
                with(tcp(), &|p| p.cpu.client = CpuList(vec![0, 1])),
                "--cpu",
            ),
            (
                with(udp(), &|p| {
                    p.round_trip.group = "239.1.2.3%eth0".parse().ok();
                }),
                "--multicast",
            ),
            (with(udp(), &|p| p.bind = Some("%eth0".to_owned())), "-B"),
        ];
        let kernel = StackPlan {
            control: ControlPath::Kernel,
            ..StackPlan::default()
        };
        let mut triggered = Vec::new();
        for plan in [
            udp(),
            with(tcp(), &|p| p.peer_protocol = Some("discard".to_owned())),
        ] {
            assert!(check_client(&plan, &kernel).is_err());
            triggered.push(
                CLIENT_REJECTIONS
                    .iter()
                    .position(|row| (row.applies)(&plan, &kernel)),
            );
        }
        for (plan, option) in unsupported {
            let error = check_client(&plan, &client_stack).unwrap_err();
            assert_eq!(error.exit_code(), linerate_record::exit_codes::MISSING);
            let text = error.to_string();
            assert!(text.starts_with(option), "{option}: {text}");
            triggered.push(
                CLIENT_REJECTIONS
                    .iter()
                    .position(|row| (row.applies)(&plan, &client_stack)),
            );
        }
        let missing: Vec<_> = (0..CLIENT_REJECTIONS.len())
            .filter(|row| !triggered.contains(&Some(*row)))
            .map(|row| CLIENT_REJECTIONS[row].option)
            .collect();
        assert!(missing.is_empty(), "no plan triggers {missing:?}");
    }

    #[test]
    fn every_server_rejection_has_a_plan_that_triggers_it() {
        let config = StackConfig::profile("default").unwrap();
        let tcp = || Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.0.0.1");
        let receiving = || {
            let mut plan = tcp();
            plan.directions = vec![Direction::Receive];
            plan
        };
        let with = |mut plan: Plan, change: &dyn Fn(&mut Plan)| {
            change(&mut plan);
            plan
        };
        // The client's kernel sockets do not concern the server.
        for supported in [
            tcp(),
            receiving(),
            with(tcp(), &|p| p.copies.receive = ReceiveCopy::Discarded),
            with(tcp(), &|p| p.copies.send = SendCopy::SendFile),
            with(receiving(), &|p| p.copies.send = SendCopy::ZeroCopy),
        ] {
            check_server(&supported, &config).unwrap();
        }
        let plans = [
            with(tcp(), &|p| p.wait = Some(PerEnd::same(WaitMode::Block))),
            with(receiving(), &|p| p.copies.send = SendCopy::Splice),
            with(tcp(), &|p| {
                p.udp_offload.requested = true;
                p.udp_offload.gro = Some(true);
            }),
            with(tcp(), &|p| p.socket.priority = Some(1)),
            with(tcp(), &|p| p.socket.mss_bytes = Some(536)),
            with(receiving(), &|p| p.socket.tos = Some(16)),
            with(tcp(), &|p| p.window_bytes = Some(1 << 20)),
            with(receiving(), &|p| {
                p.congestion_control = Some("bbr".to_owned());
                p.congestion_control_requested = true;
            }),
            with(receiving(), &|p| p.pace.method = PacingMethod::Txtime),
            with(tcp(), &|p| {
                p.threads = Some(PerEnd {
                    client: 1,
                    server: 2,
                })
            }),
            with(tcp(), &|p| p.sched.server = SchedPolicy::Fifo(1)),
            with(tcp(), &|p| p.round_trip.group = "239.1.2.3".parse().ok()),
            with(tcp(), &|p| p.streams = 1_000),
        ];
        let unsupported: Vec<_> = (plans.iter())
            .map(|plan| {
                SERVER_REJECTIONS
                    .iter()
                    .position(|(applies, ..)| applies(plan, &config))
            })
            .collect();
        let all: Vec<_> = (0..SERVER_REJECTIONS.len()).map(Some).collect();
        assert_eq!(unsupported, all);
        for plan in &plans {
            let error = check_server(plan, &config).unwrap_err();
            assert_eq!(error.exit_code(), linerate_record::exit_codes::MISSING);
        }
    }
}
