//! XDP program on an interface that redirects frames to the sockets of its queues.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use linerate_sys::af_packet::PromiscuousMode;
use linerate_sys::af_xdp::bpf;
use linerate_sys::af_xdp::bpf::{ProgramRejection, SocketMap, XdpHook, XdpProgram};
use linerate_sys::af_xdp::bpf_program::redirect_by_queue;
use linerate_sys::af_xdp::netlink_xdp;
use linerate_sys::af_xdp::netlink_xdp::XdpLinkInfo;
use linerate_sys::interface_ioctl::LinkAttributes;

use crate::error::PortError;
use crate::interface_use;
use crate::port_url::PortUrl;

/// Value of `mode=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachMode {
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
pub(crate) struct ProgramAttachment {
    /// Detaches the program when dropped.
    _link: bpf::BpfLink,
    /// Makes the device receive frames for any address.
    promiscuous: PromiscuousMode,
    sockets: SocketMap,
    hook: XdpHook,
    /// Note for the user: the hook that was obtained, and the reason.
    note: String,
}

impl ProgramAttachment {
    /// Loads the program and attaches it.
    pub(super) fn new(
        url: &PortUrl,
        attributes: &LinkAttributes,
        link: &XdpLinkInfo,
        mode: AttachMode,
    ) -> Result<Self, PortError> {
        let port = &url.short_name();
        let promiscuous = PromiscuousMode::enable(attributes).map_err(|source| {
            let action = "receive frames for any address";
            interface_use::open_error(url, "CAP_NET_RAW", action, source)
        })?;
        let sockets = SocketMap::new(link.rx_queues).map_err(|source| load_error(port, source))?;
        let code = redirect_by_queue(sockets.as_fd().as_raw_fd());
        let program =
            XdpProgram::load_program(&code).map_err(|ProgramRejection { error, log }| {
                let source = if log.is_empty() {
                    error
                } else {
                    io::Error::other(format!("{error}: {log}"))
                };
                load_error(port, source)
            })?;
        let attach = |hook| bpf::BpfLink::attach(&program, link.index, hook);
        let (attached, hook, note) = match mode {
            AttachMode::Native => (
                attach(XdpHook::Native),
                XdpHook::Native,
                "XDP native".to_owned(),
            ),
            AttachMode::Generic => (
                attach(XdpHook::Generic),
                XdpHook::Generic,
                "XDP generic, as requested".to_owned(),
            ),
            AttachMode::Auto => match attach(XdpHook::Native) {
                Err(error) if permits_fallback(&error) => (
                    attach(XdpHook::Generic),
                    XdpHook::Generic,
                    format!(
                        "XDP generic, because {}",
                        native_failure_reason(link, &error)
                    ),
                ),
                native => (native, XdpHook::Native, "XDP native".to_owned()),
            },
        };
        let link = attached.map_err(|error| attach_error(port, link, hook, error))?;
        Ok(Self {
            _link: link,
            promiscuous,
            sockets,
            hook,
            note,
        })
    }

    /// Redirects the frames of a queue to a socket that is bound to it.
    pub(super) fn redirect_queue(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.insert(queue, socket)
    }

    /// Promiscuous mode of the interface.
    pub(super) fn promiscuous(&self) -> &PromiscuousMode {
        &self.promiscuous
    }

    /// Hook that the program runs at.
    pub(super) fn hook(&self) -> XdpHook {
        self.hook
    }

    /// Note for the user about the hook.
    pub(super) fn note(&self) -> &str {
        &self.note
    }
}

/// Returns true if the generic hook may work although the native one failed: not if another program
/// is attached, nor if the privilege is missing.
fn permits_fallback(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
    )
}

/// Reason why a driver rejected the program, as far as its error shows.
fn native_failure_reason(link: &XdpLinkInfo, error: &io::Error) -> String {
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

fn load_error(port: &str, source: io::Error) -> PortError {
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

fn attach_error(port: &str, link: &XdpLinkInfo, hook: XdpHook, source: io::Error) -> PortError {
    let port = port.to_owned();
    match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => PortError::InUse {
            port,
            remedy: conflict_remedy(link),
        },
        Some(libc::EPERM | libc::EACCES) => load_error(&port, source),
        Some(libc::ENODEV) => PortError::NoInterface {
            interface: link.name.clone(),
        },
        // Both hooks return this if the kernel has no XDP links.
        Some(libc::EINVAL) if hook == XdpHook::Generic => PortError::MissingFeature {
            port,
            feature: "links that hold an XDP program (Linux 5.9)",
            remedy: "use a newer kernel, or the port `packet:`",
            source,
        },
        _ if hook == XdpHook::Native => PortError::MissingFeature {
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
fn conflict_remedy(link: &XdpLinkInfo) -> String {
    let Some(program) = netlink_xdp::link_by_name(&link.name)
        .ok()
        .and_then(|link| link.program)
    else {
        return "another XDP program was attached for a moment; try again".to_owned();
    };
    let hook = program.attach_point.name();
    let id = program.id;
    match program_holder(id) {
        Some((pid, name)) if pid == std::process::id() => format!(
            "this process has it open (`{name}`, XDP program {id}); name all queues in one URL, as in `q=0-1`"
        ),
        Some((pid, name)) => format!(
            "process {pid} (`{name}`) holds XDP program {id} on it ({hook}); stop that process"
        ),
        None => format!(
            "XDP program {id} ({hook}) is attached and no visible process holds it; remove it with `ip link set {} {} off`",
            link.name,
            if hook == "generic" {
                "xdpgeneric"
            } else {
                "xdp"
            },
        ),
    }
}

/// Process that holds a link of this program, as far as /proc shows it.
fn program_holder(program: u32) -> Option<(u32, String)> {
    let id_line = format!("prog_id:\t{program}\n");
    let entries = |path: String| fs::read_dir(path).into_iter().flatten().flatten();
    entries("/proc".to_owned()).find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        entries(format!("/proc/{pid}/fdinfo"))
            .any(|file| {
                fs::read_to_string(file.path())
                    .is_ok_and(|fdinfo| fdinfo.contains("link_type:") && fdinfo.contains(&id_line))
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
    fn only_driver_errors_permit_a_fallback() {
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
            assert_eq!(permits_fallback(&error), falls_back, "{error}");
        }
    }

    #[test]
    fn errors_name_what_to_do() {
        let link = XdpLinkInfo {
            name: "va".to_owned(),
            mtu: 9000,
            kind: Some("veth".to_owned()),
            ..XdpLinkInfo::default()
        };
        let error = |code| io::Error::from_raw_os_error(code);
        for (code, hook, missing, text) in [
            (
                libc::EPERM,
                XdpHook::Native,
                true,
                "needs CAP_BPF and CAP_NET_ADMIN",
            ),
            (
                libc::EOPNOTSUPP,
                XdpHook::Native,
                true,
                "`mode=auto` or `mode=generic`",
            ),
            (libc::ERANGE, XdpHook::Native, true, "set a smaller MTU"),
            (libc::EINVAL, XdpHook::Generic, true, "Linux 5.9"),
            (libc::ENODEV, XdpHook::Native, false, "no interface `va`"),
            (libc::ENOMEM, XdpHook::Generic, false, "did not attach"),
        ] {
            let failure = attach_error("xdp:va", &link, hook, error(code));
            assert_eq!(failure.is_missing_privilege(), missing, "{failure}");
            assert!(failure.to_string().contains(text), "{failure}");
            assert!(!failure.to_report().next_step.is_empty(), "{failure}");
        }
        assert!(native_failure_reason(&link, &error(libc::ERANGE)).contains("MTU of 9000"));
        assert!(native_failure_reason(&link, &error(libc::ENOSPC)).contains("transmit queues"));
    }
}
