//! Checks of a plan against this host's kernel and privileges, before any traffic.

use std::io;
use std::time::Duration;

use linerate_record::facts::Role;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{
    DEFAULT_BUSY_POLL_NS, Direction, Plan, RunKind, SendCopy, TransportProtocol, UdpOffload,
    WaitMode,
};
use linerate_record::record::Caveat;
use linerate_stats::units::format_bytes;
use linerate_transport::flow_options::NETSTACK_ONLY_CONGESTION_CONTROL;
use linerate_transport::flow_role::FlowRole;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use socket2::{Domain, Socket, Type};

use crate::error::SessionError;
use crate::flow_handle::flow_role;

/// Rejects a congestion control that this thread cannot use; of a server also one that is not
/// loaded.
///
/// # Errors
/// [`SessionError::OptionRejected`] with the kernel's list.
pub fn check_congestion_control(plan: &Plan, role: Role) -> Result<(), SessionError> {
    let Some(name) = plan
        .congestion_control
        .as_deref()
        .filter(|_| plan.congestion_control_requested && plan.protocol == TransportProtocol::Tcp)
    else {
        return Ok(());
    };
    let sends = plan.kind != RunKind::Throughput
        || plan.has_direction(match role {
            Role::Client => Direction::Send,
            Role::Server => Direction::Receive,
        });
    if name == NETSTACK_ONLY_CONGESTION_CONTROL && !sends {
        return Ok(());
    }
    let rejected = |kind: io::ErrorKind, why: String| SessionError::OptionRejected {
        option: format!("-C {name}"),
        why,
        next_step: congestion_control_remedy(name, kind, role, congestion_control_list),
    };
    let tried = match role {
        Role::Client => try_congestion_control(name),
        Role::Server => try_loaded_congestion_control(name),
    };
    tried.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound if role == Role::Server => {
                "not loaded in the server's kernel".to_owned()
            }
            io::ErrorKind::NotFound => "the kernel has no such congestion control".to_owned(),
            io::ErrorKind::PermissionDenied => "not allowed for ordinary users".to_owned(),
            _ => error.to_string(),
        };
        rejected(error.kind(), why)
    })
}

/// Tries a congestion control whose name comes from a client. It must be loaded: for a privileged
/// process the kernel would load the module.
///
/// # Errors
/// `NotFound` if it is not loaded, `PermissionDenied` if it is reserved.
pub fn try_loaded_congestion_control(name: &str) -> io::Result<()> {
    if !is_listed(name, &congestion_control_list("available")) {
        return Err(Errno::NOENT.into());
    }
    try_congestion_control(name)
}

fn try_congestion_control(name: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_tcp_congestion(name.as_bytes())
}

/// Runs a check of a client's request as the kernel would judge an ordinary user: without the
/// privileges over the network that this thread may have for another grant.
pub fn without_network_privileges<T>(check: impl FnOnce() -> T) -> T {
    struct Restore(CapabilitySets);
    impl Drop for Restore {
        fn drop(&mut self) {
            // Only what is permitted becomes effective again.
            set_capabilities(None, self.0).expect("permitted capabilities");
        }
    }
    let _restore = capabilities(None).ok().map(|had| {
        let network = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
        let reduced = CapabilitySets {
            effective: had.effective - network,
            ..had
        };
        set_capabilities(None, reduced).expect("fewer capabilities");
        Restore(had)
    });
    check()
}

/// Returns the next step for a user whose congestion control was rejected.
fn congestion_control_remedy(
    name: &str,
    kind: io::ErrorKind,
    role: Role,
    list: impl Fn(&str) -> String,
) -> String {
    if name == NETSTACK_ONLY_CONGESTION_CONTROL {
        return "only the user-space stack has it: with that stack at this end, use \
                `--set tcp.congestion_control=none`"
            .to_owned();
    }
    if kind != io::ErrorKind::PermissionDenied {
        return format!(
            "choose one of {}; `sudo modprobe tcp_{name}` adds it if the kernel has the module",
            list("available").replace(' ', ", ")
        );
    }
    let root = match role {
        Role::Client => "run as root",
        Role::Server => "start the server as root with --grant socket",
    };
    format!(
        "`sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{} {name}\"` allows it, or {root}",
        list("allowed")
    )
}

/// Returns the kernel's list of `available` or `allowed` (for ordinary users) names, separated by
/// blanks.
fn congestion_control_list(list: &str) -> String {
    linerate_host::snapshot::SystemFiles::of_machine()
        .read_text(&format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control"))
        .unwrap_or_default()
}

fn is_listed(name: &str, list: &str) -> bool {
    list.split_whitespace().any(|listed| listed == name)
}

/// Rejects socket options that the kernel does not let this thread set, by the option's name.
///
/// # Errors
/// [`SessionError::OptionRejected`].
pub fn check_socket_options(plan: &Plan, role: Role) -> Result<(), SessionError> {
    let requested = &plan.socket;
    let socket = probe_socket(plan.protocol)?;
    let rejected = |option: String, next_step: &'static str| {
        move |error: io::Error| SessionError::OptionRejected {
            option,
            why: format!("the kernel rejects it ({error})"),
            next_step: next_step.to_owned(),
        }
    };
    if let Some(priority) = requested.priority {
        socket.set_priority(priority).map_err(rejected(
            format!("--socket-priority {priority}"),
            match role {
                Role::Client => "priorities above 6 need CAP_NET_ADMIN: use 0 to 6, or run as root",
                Role::Server => {
                    "priorities above 6 need CAP_NET_ADMIN: use 0 to 6, or start the server as root with --grant socket"
                }
            },
        ))?;
    }
    if let Some(bytes) = requested
        .mss_bytes
        .filter(|_| plan.protocol == TransportProtocol::Tcp)
    {
        socket.set_tcp_mss(bytes).map_err(rejected(
            format!("-M {bytes}"),
            "use 88 to 32767 bytes, and no more than the path MTU allows",
        ))?;
    }
    if let Some(bytes) = requested.receive_low_water_bytes {
        linerate_sys::socket::set_receive_low_water(&socket, bytes)
            .map_err(rejected(format!("--rcvlowat {bytes}"), "leave it out"))?;
    }
    Ok(())
}

/// Rejects socket buffers that this end does not get.
///
/// Returns whether they must be forced beyond the system's limit, which is tried only with
/// `may_force`.
///
/// # Errors
/// [`SessionError::OptionRejected`].
pub fn check_buffers(plan: &Plan, role: Role, may_force: bool) -> Result<bool, SessionError> {
    let mut forced = false;
    let requested = &plan.socket;
    let socket = probe_socket(plan.protocol)?;
    for (option, bytes, limit) in [
        (
            "-w or --sndbuf",
            requested.send_buffer_bytes.or(plan.window_bytes),
            "wmem_max",
        ),
        (
            "-w or --rcvbuf",
            requested.receive_buffer_bytes.or(plan.window_bytes),
            "rmem_max",
        ),
    ] {
        let Some(bytes) = bytes else { continue };
        let granted = granted_buffer_bytes(&socket, bytes, limit == "wmem_max");
        let granted = granted.map_err(|error| SessionError::system("socket buffer", error))?;
        if granted < bytes {
            let send = limit == "wmem_max";
            if may_force && force_buffer(&socket, bytes, send).is_ok() {
                forced = true;
                continue;
            }
            let remedy = match role {
                Role::Client => "run as root",
                Role::Server => "start it as root with `linerate server --grant buffers`",
            };
            return Err(SessionError::OptionRejected {
                option: format!("{option} {}", format_bytes(bytes)),
                why: format!("the kernel grants at most {}", format_bytes(granted)),
                next_step: format!(
                    "use a smaller buffer, allow more with `sysctl -w net.core.{limit}={bytes}`, or {remedy}"
                ),
            });
        }
    }
    Ok(forced)
}

/// Rejects a wait mode that this end does not have.
///
/// # Errors
/// [`SessionError::OptionRejected`].
pub fn check_wait(plan: &Plan, role: Role) -> Result<(), SessionError> {
    let Some(wait) = plan.wait.as_ref().map(|wait| match role {
        Role::Client => wait.client,
        Role::Server => wait.server,
    }) else {
        return Ok(());
    };
    let rejected = |why: String, next_step: &str| SessionError::OptionRejected {
        option: format!("--wait {wait}"),
        why,
        next_step: next_step.to_owned(),
    };
    match wait {
        WaitMode::IoUring => linerate_sys::uring::probe().map_err(|error| {
            let (why, next_step) = match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::PERM | Errno::ACCESS) => (
                    "this process may not use io_uring",
                    "see `sysctl kernel.io_uring_disabled` and the filter of the container",
                ),
                Some(Errno::NOSYS) => (
                    "the kernel has no io_uring, or a seccomp filter blocks it",
                    "see the seccomp profile of the container, or choose another --wait",
                ),
                Some(Errno::NOMEM) => (
                    "the locked-memory limit is too low for it",
                    "raise `ulimit -l`, or choose another --wait",
                ),
                _ => (
                    "the kernel's io_uring lacks a required operation",
                    "it needs Linux 6.0: choose another --wait",
                ),
            };
            rejected(format!("{why} ({error})"), next_step)
        }),
        WaitMode::Interval { .. } => Err(rejected(
            "only the user-space stack polls at intervals".to_owned(),
            match role {
                Role::Client => "add --dev and --ip, or choose another --wait",
                Role::Server => "choose another --wait for the server",
            },
        )),
        WaitMode::BusyPoll { time_ns } => {
            let time = Duration::from_nanos(time_ns.unwrap_or(DEFAULT_BUSY_POLL_NS));
            let socket = probe_socket(plan.protocol)?;
            linerate_sys::socket::set_busy_poll(&socket, time).map_err(|error| {
                rejected(
                    format!("the kernel rejects it ({error})"),
                    match role {
                        Role::Client => {
                            "run as root, or allow it for all users with `sysctl -w net.core.busy_read=50`"
                        }
                        Role::Server => {
                            "start the server as root with --grant socket, or allow it for all users with `sysctl -w net.core.busy_read=50`"
                        }
                    },
                )
            })
        }
        _ => Ok(()),
    }
}

/// Rejects a copy mode that this end does not have.
///
/// # Errors
/// [`SessionError::OptionRejected`].
pub fn check_copy_mode(plan: &Plan, role: Role) -> Result<(), SessionError> {
    let sends =
        (plan.directions.iter()).any(|&direction| flow_role(role, direction) == FlowRole::Sender);
    if !sends || plan.copies.send != SendCopy::ZeroCopy {
        return Ok(());
    }
    let rejected = |why: String, next_step: String| SessionError::OptionRejected {
        option: "--offload zerocopy".to_owned(),
        why,
        next_step,
    };
    let socket = probe_socket(plan.protocol)?;
    linerate_sys::zerocopy::enable_zero_copy(&socket).map_err(|error| {
        rejected(
            format!("the kernel does not support it ({error})"),
            "leave it out: MSG_ZEROCOPY needs Linux 4.14 for TCP, 5.0 for UDP".to_owned(),
        )
    })?;
    // Pages in flight are locked, which only root may do without limit.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let needed = plan.payload_bytes.max(64 << 10);
    match limit {
        Some(limit) if limit < needed && !rustix::process::geteuid().is_root() => Err(rejected(
            format!(
                "this user may lock {} of memory, and a call needs {}",
                format_bytes(limit),
                format_bytes(needed)
            ),
            "raise `ulimit -l`, use a smaller -l, or run as root".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Returns the payload bytes that a socket buffer holds when `bytes` are requested. The kernel
/// doubles the request for its own overhead, and clamps it at a limit without an error (socket(7)).
fn granted_buffer_bytes(socket: &Socket, bytes: u64, send: bool) -> io::Result<u64> {
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let granted = if send {
        socket.set_send_buffer_size(size)?;
        socket.send_buffer_size()?
    } else {
        socket.set_recv_buffer_size(size)?;
        socket.recv_buffer_size()?
    };
    Ok(granted as u64 / 2)
}

/// Sets a buffer beyond the system's limit.
fn force_buffer(socket: &Socket, bytes: u64, send: bool) -> io::Result<()> {
    use linerate_sys::socket::{force_receive_buffer, force_send_buffer};
    match send {
        true => force_send_buffer(socket, bytes),
        false => force_receive_buffer(socket, bytes),
    }
}

/// Returns the congestion control that new sockets of this process get.
#[must_use]
pub fn default_congestion_control() -> Option<String> {
    let socket = probe_socket(TransportProtocol::Tcp).ok()?;
    linerate_transport::congestion_control(&socket2::SockRef::from(&socket))
}

/// Opens a socket for probes; IPv4 may be disabled.
pub fn probe_socket(protocol: TransportProtocol) -> Result<Socket, SessionError> {
    let kind = match protocol {
        TransportProtocol::Tcp => Type::STREAM,
        TransportProtocol::Udp => Type::DGRAM,
    };
    Socket::new(Domain::IPV4, kind, None)
        .or_else(|_| Socket::new(Domain::IPV6, kind, None))
        .map_err(|error| SessionError::system("new socket", error))
}

/// Resolves UDP GSO and GRO as far as this end can decide.
///
/// A requested offload is rejected where the kernel lacks it. A default is dropped, with a warning.
///
/// # Errors
/// [`SessionError::OptionRejected`].
pub fn resolve_udp_offload(plan: &mut Plan, role: Role) -> Result<Option<Caveat>, SessionError> {
    if plan.protocol != TransportProtocol::Udp || plan.kind != RunKind::Throughput {
        plan.udp_offload = UdpOffload::default();
        return Ok(None);
    }
    let roles: Vec<FlowRole> = (plan.directions.iter())
        .map(|&direction| flow_role(role, direction))
        .collect();
    let socket = probe_socket(TransportProtocol::Udp)?;
    let mut rejected = Vec::new();
    let bytes = u16::try_from(plan.payload_bytes).unwrap_or(u16::MAX);
    if roles.contains(&FlowRole::Sender)
        && plan.udp_offload.gso == Some(true)
        && let Err(error) = linerate_sys::socket::enable_udp_gso(&socket, bytes)
    {
        plan.udp_offload.gso = Some(false);
        rejected.push(("gso", error));
    }
    if roles.contains(&FlowRole::Receiver)
        && plan.udp_offload.gro == Some(true)
        && let Err(error) = linerate_sys::socket::enable_udp_gro(&socket)
    {
        plan.udp_offload.gro = Some(false);
        rejected.push(("gro", error));
    }
    let Some((name, error)) = rejected.pop() else {
        return Ok(None);
    };
    if plan.udp_offload.requested {
        return Err(SessionError::OptionRejected {
            option: format!("--offload {name}"),
            why: format!("the kernel does not support it ({error})"),
            next_step: "leave it out: UDP GSO needs Linux 4.18, GRO 5.0".to_owned(),
        });
    }
    Ok(Some(Caveat::new(
        CaveatId::OffloadRefused,
        format!("this kernel has no UDP {name} ({error}): one datagram per call"),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_congestion_control_comes_with_the_command_that_allows_it() {
        let lists = |list: &str| match list {
            "allowed" => "reno bbr".to_owned(),
            _ => "reno bbr cubic".to_owned(),
        };
        let denied = io::ErrorKind::PermissionDenied;
        let absent = io::ErrorKind::NotFound;
        for (name, kind, role, expected) in [
            (
                "cubic",
                denied,
                Role::Client,
                "`sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno bbr cubic\"` allows it, or run as root",
            ),
            (
                "cubic",
                denied,
                Role::Server,
                "`sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno bbr cubic\"` allows it, or start the server as root with --grant socket",
            ),
            (
                "dctcp",
                absent,
                Role::Client,
                "choose one of reno, bbr, cubic; `sudo modprobe tcp_dctcp` adds it if the kernel has the module",
            ),
        ] {
            assert_eq!(
                congestion_control_remedy(name, kind, role, lists),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn only_complete_names_are_listed() {
        let list = "reno cubic bbr\n";
        assert!(is_listed("bbr", list) && is_listed("reno", list));
        for name in ["bb", "", "reno cubic", "dctcp"] {
            assert!(!is_listed(name, list), "{name:?}");
        }
    }

    #[test]
    fn a_server_takes_only_what_is_loaded() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host");
        plan.congestion_control_requested = true;
        plan.congestion_control = Some("nonesuch".to_owned());
        assert!(check_congestion_control(&plan, Role::Server).is_err());
        plan.congestion_control = default_congestion_control();
        check_congestion_control(&plan, Role::Server).unwrap();
    }

    /// A privilege that the process has for another grant decides nothing.
    #[test]
    fn requests_are_checked_as_those_of_an_ordinary_user() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host");
        plan.socket.priority = Some(7);
        let had = capabilities(None).unwrap();
        assert!(without_network_privileges(|| check_socket_options(&plan, Role::Server)).is_err());
        let allowed = congestion_control_list("allowed");
        for reserved in congestion_control_list("available").split_whitespace() {
            let tried = without_network_privileges(|| try_loaded_congestion_control(reserved));
            assert_eq!(tried.is_ok(), is_listed(reserved, &allowed), "{reserved}");
        }
        assert_eq!(capabilities(None).unwrap(), had);
    }

    /// The congestion control of the user-space stack concerns the sender: a receiving kernel need
    /// not have it.
    #[test]
    fn a_receiving_kernel_is_not_checked_for_none() {
        use Direction::{Receive, Send};
        for (kind, directions, client, server) in [
            (RunKind::Throughput, &[Send][..], false, true),
            (RunKind::Throughput, &[Receive], true, false),
            (RunKind::Throughput, &[Send, Receive], false, false),
            (RunKind::Latency, &[Send], false, false),
        ] {
            let mut plan = Plan::new(kind, TransportProtocol::Tcp, "host");
            plan.directions = directions.to_vec();
            plan.congestion_control_requested = true;
            plan.congestion_control = Some("none".to_owned());
            for (role, accepted) in [(Role::Client, client), (Role::Server, server)] {
                let checked = check_congestion_control(&plan, role);
                assert_eq!(
                    checked.is_ok(),
                    accepted,
                    "{kind:?} {directions:?} {role:?}"
                );
                let flow_role = if (role == Role::Server) == (directions == [Send]) {
                    FlowRole::Receiver
                } else {
                    FlowRole::Sender
                };
                let options = linerate_transport::flow_options::flow_options(&plan, flow_role);
                let is_set = options.congestion_control.is_some();
                assert_eq!(is_set, flow_role == FlowRole::Sender, "{flow_role:?}");
            }
            let SessionError::OptionRejected { next_step, .. } =
                check_congestion_control(&plan, Role::Client)
                    .err()
                    .unwrap_or_else(|| check_congestion_control(&plan, Role::Server).unwrap_err())
            else {
                panic!("another error");
            };
            assert!(
                next_step.contains("--set tcp.congestion_control=none"),
                "{next_step}"
            );
        }
    }

    #[test]
    fn rejected_socket_options_are_named() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host");
        plan.socket.mss_bytes = Some(10);
        let error = check_socket_options(&plan, Role::Client).unwrap_err();
        assert_eq!(error.exit_code(), linerate_record::exit_codes::MISSING);
        assert!(error.to_string().starts_with("-M 10"), "{error}");
        plan.protocol = TransportProtocol::Udp;
        check_socket_options(&plan, Role::Client).unwrap();
        // More than a kernel grants without privilege.
        plan.window_bytes = Some(2_000_000_000);
        let error = check_buffers(&plan, Role::Client, false).unwrap_err();
        assert!(error.to_string().contains("grants"), "{error}");
        // With the privilege it is granted.
        plan.window_bytes = Some(64 << 20);
        match check_buffers(&plan, Role::Client, true) {
            Ok(forced) => println!("forced: {forced}"),
            Err(error) => println!("no privilege for that: {error}"),
        }
    }
}
