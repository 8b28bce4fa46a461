//! Network stack of a server's end of a test: the kernel's, or our user-space stack.

use std::net::{IpAddr, SocketAddr};

use linerate_dialect::control::Token;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Direction, Plan, Protocol, Stamping, Wait};
use linerate_metric::record::Doubt;
use linerate_metric::stack::STACK_NAME;
use linerate_stack::StackError;

use super::checks;
use super::pace;
use super::server_state::Arrival;
use super::service;
use super::setup;
use super::thread_plan::Manner;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::netstack::{StackThread, rejections};

/// Backlog of a flow's own listening port.
const BACKLOG: u32 = 128;

/// Ports for flows that have one of their own on our stack.
const OWN_PORTS: std::ops::Range<u16> = 40_000..48_000;

/// Network stack of a server's end of a test.
#[derive(Clone, Copy)]
pub enum Footing<'a> {
    Kernel,
    /// User-space stack; its thread moves all payload.
    Stack(&'a StackThread),
}

impl<'a> Footing<'a> {
    /// Returns the user-space stack, if the test runs on it.
    pub fn stack(self) -> Option<&'a StackThread> {
        match self {
            Self::Kernel => None,
            Self::Stack(stack) => Some(stack),
        }
    }

    /// Returns the facts of this host for the record.
    pub fn host_facts(self, peer: IpAddr) -> Host {
        let Self::Stack(stack) = self else {
            return setup::host_facts(Role::Server, peer);
        };
        let mut host = linerate_host::snapshot::host();
        host.role = Some(Role::Server);
        host.stack = Some(Box::new(stack.facts().clone()));
        host
    }

    /// Checks the plan against this end's sockets, and resolves what this end may choose.
    ///
    /// # Errors
    /// The first option that this end does not support.
    pub fn settle(self, plan: &mut Plan, may_force: bool) -> Result<Option<Doubt>, MeasureError> {
        let Self::Stack(stack) = self else {
            checks::check_congestion_control(plan, Role::Server)?;
            plan.forced_buffers.far = checks::check_socket_options(plan, Role::Server, may_force)?;
            checks::check_wait(plan, Role::Server)?;
            checks::check_copies(plan, Role::Server)?;
            return checks::settle_udp_offload(plan, Role::Server);
        };
        rejections::check_far(plan, stack.config())?;
        // Datagrams are sent and received one by one.
        let offload = &mut plan.udp_offload;
        if plan.directions.contains(&Direction::Receive) && offload.gso == Some(true) {
            offload.gso = Some(false);
        }
        if plan.directions.contains(&Direction::Send) && offload.gro == Some(true) {
            offload.gro = Some(false);
        }
        plan.stack.far = STACK_NAME.to_owned();
        Ok(None)
    }

    /// Returns the timestamping of the user-space stack, and the reasons where it is less than
    /// requested: a polling stack has no wake-up to trace. `None` for the kernel.
    pub fn stamps(self, asked: Stamping) -> Option<(Stamping, Vec<String>)> {
        self.stack()?;
        Some(match asked {
            Stamping::None | Stamping::Packets => (asked, Vec::new()),
            _ => (
                Stamping::Packets,
                vec!["server: its stack polls, so there is no wake-up to trace".to_owned()],
            ),
        })
    }

    /// Returns a warning when the requested rate cannot be kept.
    ///
    /// # Errors
    /// The pacing option that is not supported.
    pub fn check_pace(self, plan: &Plan, host: &Host) -> Result<Option<Doubt>, MeasureError> {
        match self {
            Self::Kernel => pace::check(plan, Part::Source, host),
            Self::Stack(_) => Ok(None),
        }
    }

    /// Returns the default congestion control of this end.
    pub fn congestion_control(self) -> Option<String> {
        match self {
            Self::Kernel => checks::default_congestion_control(),
            Self::Stack(stack) => stack.config().get("tcp.congestion_control"),
        }
    }

    /// Chooses the wait mode, CPUs and number of threads of this end.
    ///
    /// # Errors
    /// The option that this end does not support.
    pub fn manner(
        self,
        plan: &Plan,
        asked: Option<Wait>,
        shares_cores: bool,
        others: usize,
    ) -> Result<Manner, MeasureError> {
        match self {
            Self::Kernel => Manner::settle(plan, Role::Server, asked, shares_cores, others),
            Self::Stack(stack) => Ok(Manner {
                wait: stack.waits(),
                asked: true,
                cpus: Default::default(),
                because: Some("its stack polls its port".to_owned()),
                threads: 1,
                shared: plan.streams > 1,
            }),
        }
    }

    /// Opens a socket for one flow alone, reached at `local` by the client at `peer`; returns its
    /// port too.
    ///
    /// # Errors
    /// Errors of the stack.
    pub fn service(
        self,
        plan: &Plan,
        local: SocketAddr,
        peer: IpAddr,
        interface: Option<&str>,
        token: Token,
    ) -> Result<(Arrival, u16), MeasureError> {
        let Self::Stack(stack) = self else {
            let opened = service::open(plan, local, peer, interface);
            let (socket, port) = opened.map_err(|source| match &plan.round_trip.group {
                Some(group) => MeasureError::OptionRefused {
                    option: format!("--multicast {group}"),
                    why: format!("the server's interface cannot join the group ({source})"),
                    next_step:
                        "see `ip maddress` there, and use a group of the address family of the \
                                 host's name"
                            .to_owned(),
                },
                None => MeasureError::system("opening a flow's socket", source),
            })?;
            return Ok((Arrival::Kernel(socket), port));
        };
        let (protocol, ip) = (plan.protocol, local.ip());
        let opened = stack.handle().look(move |stack, services| {
            let opened = match protocol {
                Protocol::Udp => stack.udp_bind(SocketAddr::new(ip, 0)).and_then(|socket| {
                    stack.udp_leave_unstamped(socket)?;
                    let port = stack.local(socket)?.port();
                    Ok((socket, port))
                }),
                Protocol::Tcp => OWN_PORTS
                    .map(|port| {
                        let at = SocketAddr::new(ip, port);
                        stack.tcp_listen(at, BACKLOG).map(|socket| (socket, port))
                    })
                    .find(|found| !matches!(found, Err(StackError::PortTaken { .. })))
                    .unwrap_or(Err(StackError::PortTaken { port: 0 })),
            };
            if let (Ok((socket, _)), Some(services)) = (&opened, services)
                && let Some(reception) = services.reception()
            {
                reception.keep(*socket, token, peer);
            }
            opened
        });
        let gone = || MeasureError::system("the stack's thread", std::io::Error::other("it ended"));
        let (socket, port) = opened.ok_or_else(gone)??;
        Ok((Arrival::Stack(socket), port))
    }

    /// Closes the sockets of the test on the user-space stack.
    pub fn part(self) {
        if let Self::Stack(stack) = self {
            // A stack thread that has ended has no open sockets.
            let _ = stack.lend(Box::new(|stack| stack.close()));
        }
    }
}
