//! XDP program on an interface that redirects frames to the sockets of its queues.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::error::PortError;
use crate::interface_use;
use crate::port_url::PortUrl;
use crate::sys::bpf::{self, Hook, Program, Refused, SocketMap};
use crate::sys::bpf_program::redirect_by_queue;
use crate::sys::interface_ioctl::Facts;
use crate::sys::netlink_xdp::{self, Link};
use crate::sys::packet::Promiscuous;

/// Value of `mode=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Native if the driver and the MTU permit it, otherwise generic.
    Auto,
    /// In the driver only.
    Native,
    /// In the kernel's common receive path.
    Generic,
}

/// XDP program on an interface, with the map from queues to sockets. Both are removed when this is
/// dropped, and when the process ends in any way: the kernel ties them to file descriptors.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// Detaches the program when dropped.
    _link: bpf::Link,
    /// Makes the device receive frames for any address.
    promiscuous: Promiscuous,
    sockets: SocketMap,
    hook: Hook,
    /// Note for the user: the hook that was obtained, and the reason.
    note: String,
}

impl Attachment {
    /// Loads the program and attaches it.
    pub(super) fn new(
        url: &PortUrl,
        facts: &Facts,
        link: &Link,
        mode: Mode,
    ) -> Result<Self, PortError> {
        let port = &url.short();
        let promiscuous = Promiscuous::on(facts).map_err(|source| {
            let action = "receive frames for any address";
            interface_use::refused(url, "CAP_NET_RAW", action, source)
        })?;
        let sockets =
            SocketMap::new(link.rx_queues).map_err(|source| unprivileged(port, source))?;
        let code = redirect_by_queue(sockets.as_fd().as_raw_fd());
        let program = Program::load(&code).map_err(|Refused { error, log }| {
            let source = if log.is_empty() {
                error
            } else {
                io::Error::other(format!("{error}: {log}"))
            };
            unprivileged(port, source)
        })?;
        let attach = |hook| bpf::Link::attach(&program, link.index, hook);
        let (attached, hook, note) = match mode {
            Mode::Native => (attach(Hook::Native), Hook::Native, "XDP native".to_owned()),
            Mode::Generic => (
                attach(Hook::Generic),
                Hook::Generic,
                "XDP generic, as requested".to_owned(),
            ),
            Mode::Auto => match attach(Hook::Native) {
                Err(error) if may_fall_back(&error) => (
                    attach(Hook::Generic),
                    Hook::Generic,
                    format!("XDP generic, because {}", why_not_native(link, &error)),
                ),
                native => (native, Hook::Native, "XDP native".to_owned()),
            },
        };
        let link = attached.map_err(|error| refused(port, link, hook, error))?;
        Ok(Self {
            _link: link,
            promiscuous,
            sockets,
            hook,
            note,
        })
    }

    /// Redirects the frames of a queue to a socket that is bound to it.
    pub(super) fn feed(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.insert(queue, socket)
    }

    /// Promiscuous mode of the interface.
    pub(super) fn promiscuous(&self) -> &Promiscuous {
        &self.promiscuous
    }

    /// Hook that the program runs at.
    pub(super) fn hook(&self) -> Hook {
        self.hook
    }

    /// Note for the user about the hook.
    pub(super) fn note(&self) -> &str {
        &self.note
    }
}

/// Returns true if the generic hook may work although the native one failed: not if another program
/// is attached, nor if the privilege is missing.
fn may_fall_back(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
    )
}

/// Reason why a driver rejected the program, as far as its error shows.
fn why_not_native(link: &Link, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "its driver has no native XDP".to_owned(),
        Some(libc::ERANGE) => format!(
            "its MTU of {} is too large for native XDP (a frame has to fit in a page)",
            link.mtu
        ),
        Some(libc::ENOSPC) if link.kind.as_deref() == Some("veth") => {
            "its remote end has more transmit queues than it has receive queues".to_owned()
        }
        Some(libc::ENOSPC | libc::ENOMEM) => {
            "its device has too few queues to spare some for XDP".to_owned()
        }
        _ => format!("its driver rejected native XDP ({error})"),
    }
}

fn unprivileged(port: &str, source: io::Error) -> PortError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PortError::NoBpf {
            port: port.to_owned(),
            source,
        },
        Some(libc::ENOSYS) => PortError::MissingFeature {
            port: port.to_owned(),
            feature: "bpf(2)",
            remedy: "use a kernel with CONFIG_BPF_SYSCALL, or the port `packet:`",
            source,
        },
        Some(libc::EINVAL) => PortError::MissingFeature {
            port: port.to_owned(),
            feature: "maps of AF_XDP sockets",
            remedy: "use a kernel with CONFIG_XDP_SOCKETS, or the port `packet:`",
            source,
        },
        _ => PortError::Kernel {
            port: port.to_owned(),
            action: "load the XDP program",
            source,
        },
    }
}

fn refused(port: &str, link: &Link, hook: Hook, source: io::Error) -> PortError {
    let port = port.to_owned();
    match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => PortError::Taken {
            port,
            remedy: in_the_way(link),
        },
        Some(libc::EPERM | libc::EACCES) => unprivileged(&port, source),
        Some(libc::ENODEV) => PortError::NoInterface {
            interface: link.name.clone(),
        },
        // Both hooks return this if the kernel has no XDP links.
        Some(libc::EINVAL) if hook == Hook::Generic => PortError::MissingFeature {
            port,
            feature: "links that hold an XDP program (Linux 5.9)",
            remedy: "use a newer kernel, or the port `packet:`",
            source,
        },
        _ if hook == Hook::Native => PortError::MissingFeature {
            feature: "native XDP for it",
            remedy: match source.raw_os_error() {
                Some(libc::ERANGE) => {
                    "set a smaller MTU (`ip link set IF mtu 1500`, on a veth at both ends), or use `mode=auto`"
                }
                Some(libc::ENOSPC) => {
                    "give the remote end at most as many transmit queues as this end has receive queues, or use `mode=auto`"
                }
                _ => "use `mode=auto` or `mode=generic`",
            },
            port,
            source,
        },
        _ => PortError::Kernel {
            port,
            action: "attach the XDP program",
            source,
        },
    }
}

/// Remedy if an interface already has a program.
fn in_the_way(link: &Link) -> String {
    let Some(program) = netlink_xdp::link(&link.name)
        .ok()
        .and_then(|link| link.program)
    else {
        return "another XDP program was attached for a moment; try again".to_owned();
    };
    let place = program.place.name();
    let id = program.id;
    match holder(id) {
        Some((pid, name)) if pid == std::process::id() => format!(
            "this process has it open (`{name}`, XDP program {id}); name all queues in one URL, as in `q=0-1`"
        ),
        Some((pid, name)) => format!(
            "process {pid} (`{name}`) holds XDP program {id} on it ({place}); stop that process"
        ),
        None => format!(
            "XDP program {id} ({place}) is attached and no visible process holds it; remove it with `ip link set {} {} off`",
            link.name,
            if place == "generic" {
                "xdpgeneric"
            } else {
                "xdp"
            },
        ),
    }
}

/// Process that holds a link of this program, as far as /proc shows it.
fn holder(program: u32) -> Option<(u32, String)> {
    let wanted = format!("prog_id:\t{program}\n");
    let entries = |path: String| fs::read_dir(path).into_iter().flatten().flatten();
    entries("/proc".to_owned()).find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        entries(format!("/proc/{pid}/fdinfo"))
            .any(|file| {
                fs::read_to_string(file.path())
                    .is_ok_and(|facts| facts.contains("link_type:") && facts.contains(&wanted))
            })
            .then(|| {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                (pid, name.trim().to_owned())
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_is_for_drivers_and_not_for_rights_or_rivals() {
        for (code, falls_back) in [
            (libc::EOPNOTSUPP, true),
            (libc::ERANGE, true),
            (libc::ENOSPC, true),
            (libc::EINVAL, true),
            (libc::EBUSY, false),
            (libc::EEXIST, false),
            (libc::EPERM, false),
            (libc::ENODEV, false),
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(may_fall_back(&error), falls_back, "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let link = Link {
            name: "va".to_owned(),
            mtu: 9000,
            kind: Some("veth".to_owned()),
            ..Link::default()
        };
        let error = |code| io::Error::from_raw_os_error(code);
        for (code, hook, missing, text) in [
            (
                libc::EPERM,
                Hook::Native,
                true,
                "needs CAP_BPF and CAP_NET_ADMIN",
            ),
            (
                libc::EOPNOTSUPP,
                Hook::Native,
                true,
                "`mode=auto` or `mode=generic`",
            ),
            (libc::ERANGE, Hook::Native, true, "set a smaller MTU"),
            (libc::EINVAL, Hook::Generic, true, "Linux 5.9"),
            (libc::ENODEV, Hook::Native, false, "no interface `va`"),
            (libc::ENOMEM, Hook::Generic, false, "did not attach"),
        ] {
            let refused = refused("xdp:va", &link, hook, error(code));
            assert_eq!(refused.is_missing_privilege(), missing, "{refused}");
            assert!(refused.to_string().contains(text), "{refused}");
            assert!(!refused.problem().next_step.is_empty(), "{refused}");
        }
        assert!(why_not_native(&link, &error(libc::ERANGE)).contains("MTU of 9000"));
        assert!(why_not_native(&link, &error(libc::ENOSPC)).contains("transmit queues"));
    }
}
