//! Network stack of a server's end of a test: the kernel's, or our user-space stack.

use std::net::{IpAddr, SocketAddr};

use linerate_protocol::control::FlowToken;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::plan::{Direction, Plan, TimestampLevel, TransportProtocol, WaitMode};
use linerate_record::record::Caveat;
use linerate_record::stack::STACK_NAME;
use linerate_session::error::SessionError;
use linerate_session::thread_plan::ThreadPlan;
use linerate_session::{pacing, plan_checks, setup, stack_rejections};
use linerate_stack::StackError;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::stack_thread::StackThread;

use super::server_state::AcceptedSocket;
use crate::options::Grant;
use crate::{flow_socket, stack_services as services};

/// Backlog of a flow's own listening port.
const BACKLOG: u32 = 128;

/// Ports for flows that have one of their own on our stack.
const SERVICE_PORTS: std::ops::Range<u16> = 40_000..48_000;

/// Rejects options that the kernel reserves for privileged processes, unless they are granted.
fn check_privileged_options(plan: &Plan, grants: &[Grant]) -> Result<(), SessionError> {
    let check = || {
        plan_checks::check_congestion_control(plan, Role::Server)?;
        plan_checks::check_socket_options(plan, Role::Server)?;
        plan_checks::check_wait(plan, Role::Server)
    };
    match grants.contains(&Grant::Socket) {
        true => check(),
        false => plan_checks::without_network_privileges(check),
    }
}

/// Network stack of a server's end of a test.
#[derive(Clone, Copy)]
pub enum ServerStack<'a> {
    Kernel,
    /// User-space stack; its thread moves all payload.
    Netstack(&'a StackThread),
}

impl<'a> ServerStack<'a> {
    /// Returns the user-space stack, if the test runs on it.
    pub fn netstack(self) -> Option<&'a StackThread> {
        match self {
            Self::Kernel => None,
            Self::Netstack(stack) => Some(stack),
        }
    }

    /// Returns the facts of this host for the record.
    pub fn host_facts(self, peer: IpAddr) -> HostFacts {
        let Self::Netstack(stack) = self else {
            return setup::host_facts(Role::Server, peer);
        };
        let mut host = linerate_host::snapshot::read_host();
        host.role = Some(Role::Server);
        host.stack = Some(Box::new(stack.facts().clone()));
        host
    }

    /// Checks the plan against this end's sockets and the server's grants, and resolves what this
    /// end may choose.
    ///
    /// # Errors
    /// The first option that this end does not support.
    pub fn resolve_plan(
        self,
        plan: &mut Plan,
        grants: &[Grant],
    ) -> Result<Option<Caveat>, SessionError> {
        let Self::Netstack(stack) = self else {
            check_privileged_options(plan, grants)?;
            let may_force = grants.contains(&Grant::Buffers);
            plan.forced_buffers.server = plan_checks::check_buffers(plan, Role::Server, may_force)?;
            plan_checks::check_copy_mode(plan, Role::Server)?;
            return plan_checks::resolve_udp_offload(plan, Role::Server);
        };
        stack_rejections::check_server(plan, stack.config())?;
        // Datagrams are sent and received one by one.
        let offload = &mut plan.udp_offload;
        if plan.directions.contains(&Direction::Receive) && offload.gso == Some(true) {
            offload.gso = Some(false);
        }
        if plan.directions.contains(&Direction::Send) && offload.gro == Some(true) {
            offload.gro = Some(false);
        }
        plan.stack.server = STACK_NAME.to_owned();
        Ok(None)
    }

    /// Returns the timestamping of the user-space stack, and the reasons where it is less than
    /// requested: a polling stack has no wake-up to trace. `None` for the kernel.
    pub fn timestamping(self, requested: TimestampLevel) -> Option<(TimestampLevel, Vec<String>)> {
        self.netstack()?;
        Some(match requested {
            TimestampLevel::None | TimestampLevel::Packets => (requested, Vec::new()),
            _ => (
                TimestampLevel::Packets,
                vec!["server: its stack polls, so there is no wake-up to trace".to_owned()],
            ),
        })
    }

    /// Returns a warning when the requested rate cannot be kept.
    ///
    /// # Errors
    /// The pacing option that is not supported.
    pub fn check_pacing(
        self,
        plan: &Plan,
        host: &HostFacts,
    ) -> Result<Option<Caveat>, SessionError> {
        match self {
            Self::Kernel => pacing::check_pacing(plan, FlowRole::Sender, host),
            Self::Netstack(_) => Ok(None),
        }
    }

    /// Returns the default congestion control of this end.
    pub fn congestion_control(self) -> Option<String> {
        match self {
            Self::Kernel => plan_checks::default_congestion_control(),
            Self::Netstack(stack) => stack.config().get("tcp.congestion_control"),
        }
    }

    /// Chooses the wait mode, CPUs and number of threads of this end.
    ///
    /// # Errors
    /// The option that this end does not support.
    pub fn thread_plan(
        self,
        plan: &Plan,
        requested: Option<WaitMode>,
        shares_cores: bool,
        busy_threads: usize,
    ) -> Result<ThreadPlan, SessionError> {
        match self {
            Self::Kernel => {
                ThreadPlan::choose(plan, Role::Server, requested, shares_cores, busy_threads)
            }
            Self::Netstack(stack) => Ok(ThreadPlan {
                wait: stack.wait_mode(),
                wait_requested: true,
                cpus: Default::default(),
                reason: Some("its stack polls its port".to_owned()),
                threads_per_direction: 1,
                shares_threads: plan.streams > 1,
            }),
        }
    }

    /// Opens a socket for one flow alone, reached at `local` by the client at `peer`; returns its
    /// port too.
    ///
    /// # Errors
    /// Errors of the stack.
    pub fn open_service_socket(
        self,
        plan: &Plan,
        local: SocketAddr,
        peer: IpAddr,
        interface: Option<&str>,
        token: FlowToken,
    ) -> Result<(AcceptedSocket, u16), SessionError> {
        let Self::Netstack(stack) = self else {
            let opened = flow_socket::open_service(plan, local, peer, interface);
            let (socket, port) = opened.map_err(|source| match &plan.round_trip.group {
                Some(group) => SessionError::OptionRejected {
                    option: format!("--multicast {group}"),
                    why: format!("the server's interface cannot join the group ({source})"),
                    next_step:
                        "see `ip maddress` there, and use a group of the address family of the \
                                 host's name"
                            .to_owned(),
                },
                None => SessionError::system("opening a flow's socket", source),
            })?;
            return Ok((AcceptedSocket::Kernel(socket), port));
        };
        let (protocol, ip) = (plan.protocol, local.ip());
        let opened = stack.handle().with_stack(move |stack, services| {
            let opened = match protocol {
                TransportProtocol::Udp => {
                    stack.udp_bind(SocketAddr::new(ip, 0)).and_then(|socket| {
                        stack.udp_disable_stamps(socket)?;
                        let port = stack.local(socket)?.port();
                        Ok((socket, port))
                    })
                }
                TransportProtocol::Tcp => SERVICE_PORTS
                    .map(|port| {
                        let at = SocketAddr::new(ip, port);
                        stack.tcp_listen(at, BACKLOG).map(|socket| (socket, port))
                    })
                    .find(|bound| !matches!(bound, Err(StackError::PortInUse { .. })))
                    .unwrap_or(Err(StackError::PortInUse { port: 0 })),
            };
            if let (Ok((socket, _)), Some(services)) = (&opened, services::downcast(services))
                && let Some(acceptor) = services.acceptor()
            {
                acceptor.add_flow(*socket, token, peer);
            }
            opened
        });
        let thread_ended =
            || SessionError::system("the stack's thread", std::io::Error::other("it ended"));
        let (socket, port) = opened.ok_or_else(thread_ended)??;
        Ok((AcceptedSocket::Netstack(socket), port))
    }

    /// Closes the sockets of the test on the user-space stack.
    pub fn close_sockets(self) {
        if let Self::Netstack(stack) = self {
            // A stack thread that has ended has no open sockets.
            let _ = stack.run_work(Box::new(|stack| stack.close_sockets()));
        }
    }
}
