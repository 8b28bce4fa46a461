//! Registry of running labs. Labs are found by the abstract Unix sockets that their holders bind,
//! so no file can be left behind: such a socket is gone the moment its process is.
//!
//! Traps: abstract sockets belong to a *network namespace*, so labs are visible from where they
//! were started and not from inside a lab. Any process may bind any name, so a socket counts only
//! when its process belongs to the user in its name. The registration of a holder is read through
//! `/proc/PID/fd`, which the kernel opens only to the same user and root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_sys::namespace;
use linerate_sys::readiness::{Readiness, poll};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::info::LabInfo;
use crate::link_emulator::REPLY_TIMEOUT;

/// Prefix of every socket name; the uid, `-` and the lab's name follow.
const SOCKET_PREFIX: &str = "linerate-lab-";
/// Name of the memory file with a holder's registration.
const MEMFD_NAME: &str = "linerate-lab";
/// Largest registration that is read, in bytes: thousands of hosts.
const MAX_REGISTRATION_BYTES: u64 = 16 << 20;
/// Number of times a registration is searched again when it disappeared while it was read.
const READ_RETRIES: u32 = 3;
/// Time a holder has to check its links: longer than the slowest reply of an emulator.
const LINK_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
const _: () = assert!(LINK_CHECK_TIMEOUT.as_secs() > REPLY_TIMEOUT.as_secs());
/// Time a holder has to exit after SIGTERM before it is killed.
const TERM_TIMEOUT: Duration = Duration::from_secs(3);

/// Registration that a holder publishes.
#[derive(Serialize, Deserialize)]
pub(crate) struct LabRegistration {
    pub info: LabInfo,
    /// Descriptors of the holder for the hosts' network namespaces, by host.
    pub namespaces: BTreeMap<String, i32>,
    /// Descriptor for the network namespace of the switches, where there are any.
    #[serde(default)]
    pub switches: Option<i32>,
}

/// Running lab.
pub(crate) struct RunningLab {
    pub registration: LabRegistration,
    pub pid: Pid,
    handle: OwnedFd,
}

/// Checks a lab name.
pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    // `/` separates the lab from the host; a socket name has at most 108 bytes.
    let is_valid = (1..=48).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if is_valid {
        Ok(())
    } else {
        Err(LabError::BadLabName {
            name: name.to_owned(),
        })
    }
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

fn address(uid: u32, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(
        format!("{SOCKET_PREFIX}{uid}-{name}").as_bytes(),
    )?)
}

/// Binds a lab's socket name; the lab can be found once the socket listens. `None` when the name is
/// in use.
pub(crate) fn bind_name(uid: u32, name: &str) -> Result<Option<OwnedFd>, LabError> {
    let failed = |error: io::Error| LabError::system(format!("take the name {name}"), error);
    let socket = socket(SocketFlags::empty()).map_err(failed)?;
    let address = address(uid, name).map_err(failed)?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(failed(error.into())),
    }
}

/// Publishes a registration to processes that may read this one's `/proc`, while the file is open.
pub(crate) fn publish(registration: &LabRegistration) -> Result<OwnedFd, LabError> {
    let write = || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(MEMFD_NAME, flags)?;
        let mut file = File::from(file);
        file.write_all(&serde_json::to_vec(registration)?)?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file.into())
    };
    write().map_err(|error: io::Error| LabError::system("write the lab's registration", error))
}

/// Returns every lab that this user may enter: the user's own; all labs for root.
pub(crate) fn running_labs() -> Result<Vec<RunningLab>, LabError> {
    let current_uid = rustix::process::geteuid().as_raw();
    let table = fs::read_to_string("/proc/net/unix")
        .map_err(|error| LabError::system("read /proc/net/unix (is /proc mounted?)", error))?;
    let mut labs: Vec<RunningLab> = parse_names(&table)
        .into_iter()
        .filter(|(uid, _)| current_uid == 0 || *uid == current_uid)
        // Skips a lab that ends meanwhile.
        .filter_map(|(uid, name)| inspect_socket(uid, name).ok().flatten())
        .collect();
    labs.sort_by(|one, other| one.info().name.cmp(&other.info().name));
    Ok(labs)
}

/// Returns users and names of the labs in `/proc/net/unix`.
fn parse_names(table: &str) -> Vec<(u32, &str)> {
    let mut names: Vec<(u32, &str)> = table
        .lines()
        .filter_map(|line| {
            // Abstract names start with `@` there, and lab names contain no space.
            let path = line.split_ascii_whitespace().last()?;
            let (uid, name) = path
                .strip_prefix('@')?
                .strip_prefix(SOCKET_PREFIX)?
                .split_once('-')?;
            Some((uid.parse().ok()?, name))
        })
        .collect();
    // Connections that a holder accepted are listed under its name as well.
    names.sort_unstable();
    names.dedup();
    names
}

/// Connects to a socket, identifies its process and reads its registration. `None` for a process
/// that is no holder, or a holder that is not ready yet.
fn inspect_socket(uid: u32, name: &str) -> io::Result<Option<RunningLab>> {
    // Non-blocking: the socket of an unrelated process may have a full queue for ever.
    let socket = socket(SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &address(uid, name)?)?;
    let peer = namespace::read_peer(socket.as_fd())?;
    let (Some(pid), true) = (peer.pid, peer.uid == uid) else {
        return Ok(None);
    };
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let descriptors = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let Some(mut registration) = read_registration(Path::new(&descriptors))? else {
        return Ok(None);
    };
    registration.info.holder_pid = pid.as_raw_nonzero().get().unsigned_abs();
    Ok(Some(RunningLab {
        registration,
        pid,
        handle,
    }))
}

/// Reads the registration of the process with this `/proc/PID/fd` directory; `None` for no holder.
pub(crate) fn read_registration(descriptors: &Path) -> io::Result<Option<LabRegistration>> {
    // When a link fails, a holder publishes a new registration and closes the old one, which may be
    // the one just found.
    for _ in 0..READ_RETRIES {
        match find_registration(descriptors) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
    }
    find_registration(descriptors)
}

fn find_registration(descriptors: &Path) -> io::Result<Option<LabRegistration>> {
    let target_prefix = format!("/memfd:{MEMFD_NAME} ");
    for entry in fs::read_dir(descriptors)? {
        let path = entry?.path();
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        if !target.to_string_lossy().starts_with(&target_prefix) {
            continue;
        }
        let file = open_file(&path)?;
        // Without its seals a new registration is not complete yet; the old one stays open until
        // then.
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::WRITE) {
            continue;
        }
        let mut text = Vec::new();
        file.take(MAX_REGISTRATION_BYTES).read_to_end(&mut text)?;
        return Ok(Some(serde_json::from_slice(&text)?));
    }
    Ok(None)
}

/// Opens a file of a holder without blocking: the holder may be another user's, so the file may be
/// anything.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Returns the lab of this name (the user's own before others'), or the user's only one.
pub(crate) fn find_lab(name: Option<&str>) -> Result<RunningLab, LabError> {
    let current_uid = rustix::process::geteuid().as_raw();
    let labs = running_labs()?;
    let names = || labs.iter().map(|lab| lab.info().name.clone()).collect();
    let chosen = match name {
        Some(name) => {
            let named = |lab: &&RunningLab| lab.info().name == name;
            let own_labs = labs
                .iter()
                .filter(named)
                .find(|lab| lab.info().uid == current_uid);
            let any = own_labs.or_else(|| labs.iter().find(named));
            any.ok_or_else(|| LabError::UnknownLab {
                name: name.to_owned(),
                available: names(),
            })?
        }
        None => {
            let mut own_labs = labs.iter().filter(|lab| lab.info().uid == current_uid);
            match (own_labs.next(), own_labs.next()) {
                (Some(only), None) => only,
                (Some(_), Some(_)) => return Err(LabError::AmbiguousLab { available: names() }),
                (None, _) => return Err(LabError::NoLab),
            }
        }
    };
    let pid = chosen.pid;
    labs.into_iter()
        .find(|lab| lab.pid == pid)
        .ok_or(LabError::NoLab)
}

impl RunningLab {
    pub fn info(&self) -> &LabInfo {
        &self.registration.info
    }

    /// Returns a path below the holder's directory in `/proc`.
    pub fn path(&self, below: &str) -> PathBuf {
        format!("/proc/{}/{below}", self.pid.as_raw_nonzero()).into()
    }

    /// Prepares a check of the links. Call it before this thread enters another network namespace,
    /// where the lab's socket is not reachable.
    pub fn prepare_link_check(&self) -> Result<LinkCheckRequest, LabError> {
        let failed = |error| LabError::system("make a socket to the lab's holder", error);
        let info = self.info();
        let socket = socket(SocketFlags::NONBLOCK).map_err(failed)?;
        let address = address(info.uid, &info.name).map_err(failed)?;
        Ok(LinkCheckRequest { socket, address })
    }

    /// Has the holder check its links and returns the first failed one; `None` when the lab is
    /// gone.
    pub fn link_failure(&self, link_check: &LinkCheckRequest) -> Option<LabError> {
        link_check.send();
        let now = read_registration(&self.path("fd")).ok()??;
        self.is_running().then(|| now.info.check_links().err())?
    }

    /// Returns whether the process is still running. If so, everything opened through its process
    /// id before belongs to it, and not to another process that got the same id.
    pub fn is_running(&self) -> bool {
        !self.exits_within(Duration::ZERO)
    }

    fn exits_within(&self, time: Duration) -> bool {
        poll(&self.handle, Readiness::Receive, time).unwrap_or(false)
    }
}

/// Unconnected socket that triggers the holder's check of its links.
pub(crate) struct LinkCheckRequest {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

impl LinkCheckRequest {
    /// Connects and waits, up to a timeout, until the holder has checked: it closes the connection
    /// then.
    fn send(&self) {
        if rustix::net::connect(&self.socket, &self.address).is_ok() {
            let _ = poll(&self.socket, Readiness::Receive, LINK_CHECK_TIMEOUT);
        }
    }
}

/// Returns every running lab that this user may enter: the user's own; all labs for root.
///
/// # Errors
/// [`LabError::System`] without `/proc`.
pub fn list() -> Result<Vec<LabInfo>, LabError> {
    Ok(running_labs()?
        .into_iter()
        .map(|lab| lab.registration.info)
        .collect())
}

/// Ends a lab and everything that runs in it; without a name, the user's only lab. Returns once it
/// is gone.
///
/// # Errors
/// [`LabError::NoLab`], [`LabError::UnknownLab`], [`LabError::AmbiguousLab`], or
/// [`LabError::System`] when this user may not end the holder.
pub fn down(name: Option<&str>) -> Result<LabInfo, LabError> {
    let lab = find_lab(name)?;
    for signal in [Signal::TERM, Signal::KILL] {
        match rustix::process::pidfd_send_signal(&lab.handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                let action = format!("end the holder of lab {}", lab.info().name);
                return Err(LabError::system(action, error));
            }
        }
        if lab.exits_within(TERM_TIMEOUT) {
            break;
        }
    }
    Ok(lab.registration.info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_are_found_among_other_sockets() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 21218 /run/x.sock
0000000000000000: 00000002 00000000 00010000 0001 01 21219 @linerate-lab-1000-my-lab
0000000000000000: 00000003 00000000 00000000 0001 03 21220 @linerate-lab-1000-my-lab
0000000000000000: 00000002 00000000 00010000 0001 01 21221 @linerate-lab-x-y
0000000000000000: 00000003 00000000 00000000 0001 03 21222
0000000000000000: 00000002 00000000 00010000 0001 01 21223 @linerate-lab-0-lab1
";
        assert_eq!(parse_names(table), [(0, "lab1"), (1000, "my-lab")]);
    }

    #[test]
    fn names_fit_a_socket_and_a_command_line() {
        for (name, is_valid) in [
            ("lab1", true),
            ("my.lab_2-x", true),
            ("", false),
            ("a/b", false),
            ("a b", false),
            (&"x".repeat(49), false),
        ] {
            assert_eq!(check_name(name).is_ok(), is_valid, "{name}");
        }
    }

    #[test]
    fn a_name_is_taken_once() {
        let name = format!("test-{}", std::process::id());
        let first = bind_name(4_000_000, &name).unwrap();
        assert!(first.is_some());
        assert!(bind_name(4_000_000, &name).unwrap().is_none());
        drop(first);
        assert!(bind_name(4_000_000, &name).unwrap().is_some());
    }
}
