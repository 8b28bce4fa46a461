//! Privilege to build networks without being root, through a user namespace.

use std::fs;
use std::io;

use linerate_sys::namespace;
use linerate_sys::namespace::NamespaceKind;

use crate::error::LabError;
use crate::netlink::NetlinkSocket;

/// Returns whether this process may build networks as it is.
#[must_use]
pub fn privileged() -> bool {
    namespace::can_create_networks()
}

/// Moves this process into a user namespace in which the current user is root, and into a network
/// namespace of that user namespace (with `lo` up), so that labs need no privilege.
///
/// This affects the process and all its children from then on: they no longer reach the machine's
/// network, and files of other users belong to the overflow user.
///
/// # Errors
/// [`LabError::ThreadsRunning`] once the process has a second thread (call it first thing in
/// `main`), [`LabError::UserNamespaceForbidden`] with the settings that forbid it.
pub fn enter_user_namespace() -> Result<(), LabError> {
    become_root()?;
    namespace::unshare(NamespaceKind::Net).map_err(forbidden)?;
    let mut netlink = NetlinkSocket::open()?;
    let loopback = netlink.link("lo")?;
    netlink.set_up(loopback.index)
}

/// Moves this process into a user namespace in which the current user is root.
pub(crate) fn become_root() -> Result<(), LabError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(LabError::ThreadsRunning { threads });
    }
    namespace::unshare(NamespaceKind::User).map_err(forbidden)?;
    // Without this the kernel does not let a user map groups: dropping a group could otherwise give
    // access to files that deny the group. The file does not exist before Linux 3.19, which does
    // not need it.
    match fs::write("/proc/self/setgroups", "deny") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(forbidden(error)),
        _ => {}
    }
    fs::write("/proc/self/uid_map", format!("0 {} 1\n", uid.as_raw())).map_err(forbidden)?;
    fs::write("/proc/self/gid_map", format!("0 {} 1\n", gid.as_raw())).map_err(forbidden)?;
    // Some distributions let every user make a user namespace but grant no capabilities in it.
    if privileged() {
        Ok(())
    } else {
        Err(forbidden(io::ErrorKind::PermissionDenied.into()))
    }
}

/// Names the settings that forbid it here, or all candidates when none of them is set so.
fn forbidden(source: io::Error) -> LabError {
    const SETTINGS: [(&str, &str, &str); 3] = [
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "10000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ];
    let command = |(path, _, allow): &(&str, &str, &str)| {
        format!("`sysctl -w {}={allow}`", path.replace('/', "."))
    };
    let forbidding: Vec<String> = SETTINGS
        .iter()
        .filter(|(path, forbids, _)| {
            fs::read_to_string(format!("/proc/sys/{path}"))
                .is_ok_and(|value| value.trim() == *forbids)
        })
        .map(command)
        .collect();
    let allow = if forbidding.is_empty() {
        let all: Vec<String> = SETTINGS.iter().map(command).collect();
        format!(
            "{} (those that exist; in a container also its seccomp profile)",
            all.join(", ")
        )
    } else {
        forbidding.join(" and ")
    };
    LabError::UserNamespaceForbidden { allow, source }
}
