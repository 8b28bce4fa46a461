//! Which labs are up: found by the abstract local sockets that their holders bind, so that there is no
//! file to be left behind. Such a socket is gone the moment its process is.
//!
//! Traps: abstract sockets belong to a *network namespace*, so labs are seen from where they were
//! started and not from inside a lab; and anyone may bind any name, so a socket counts only when
//! its process belongs to the user in its name. What a holder offers is read through
//! `/proc/PID/fd`, where the kernel lets in the same user and root, and nobody else.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_host::sys::namespace;
use linerate_host::sys::wait::{Ready, poll};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::emulate::ANSWERS;
use crate::error::LabError;
use crate::info::LabInfo;

/// Start of every socket's name; then the user's number, `-` and the lab's name.
const PREFIX: &str = "linerate-lab-";
/// Name of the memory file in which a holder says what it holds.
const MEMORY_FILE: &str = "linerate-lab";
/// Largest registration that is read: thousands of hosts.
const REGISTRATION_BYTES: u64 = 16 << 20;
/// How often a registration is looked for again that went away while it was read.
const AGAIN: u32 = 3;
/// How long a holder may look at its links: as long as the slowest of them may take to answer, and some more.
const LOOKS: Duration = Duration::from_secs(2);
const _: () = assert!(LOOKS.as_secs() > ANSWERS.as_secs());
/// How long a holder that was asked to end has before it is killed.
const END_WITHIN: Duration = Duration::from_secs(3);

/// What a holder says about itself.
#[derive(Serialize, Deserialize)]
pub(crate) struct Registration {
    pub info: LabInfo,
    /// Descriptors of the holder that stand for the hosts' network namespaces, by host.
    pub namespaces: BTreeMap<String, i32>,
    /// The same for the network namespace of the switches, where there are any.
    #[serde(default)]
    pub switches: Option<i32>,
}

/// A lab that is up.
pub(crate) struct Found {
    pub registration: Registration,
    pub pid: Pid,
    handle: OwnedFd,
}

/// Whether a lab can have this name.
pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    // `/` separates the lab from the host; 108 bytes is what a socket's name may have at most.
    let good = (1..=48).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if good {
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
        format!("{PREFIX}{uid}-{name}").as_bytes(),
    )?)
}

/// Takes a name; the lab is found under it once the socket listens. `None` when it is taken.
pub(crate) fn bind(uid: u32, name: &str) -> Result<Option<OwnedFd>, LabError> {
    let failed = |error: io::Error| LabError::system(format!("take the name {name}"), error);
    let socket = socket(SocketFlags::empty()).map_err(failed)?;
    let address = address(uid, name).map_err(failed)?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(failed(error.into())),
    }
}

/// Offers a registration to whoever may look into this process, for as long as the file is open.
pub(crate) fn offer(registration: &Registration) -> Result<OwnedFd, LabError> {
    let write = || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(MEMORY_FILE, flags)?;
        let mut file = File::from(file);
        file.write_all(&serde_json::to_vec(registration)?)?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file.into())
    };
    write().map_err(|error: io::Error| LabError::system("write down what the lab holds", error))
}

/// Every lab that this user may enter: the user's own, or everyone's for root.
pub(crate) fn all() -> Result<Vec<Found>, LabError> {
    let own = rustix::process::geteuid().as_raw();
    let table = fs::read_to_string("/proc/net/unix")
        .map_err(|error| LabError::system("read /proc/net/unix (is /proc mounted?)", error))?;
    let mut found: Vec<Found> = names(&table)
        .into_iter()
        .filter(|(uid, _)| own == 0 || *uid == own)
        // A lab that ends while it is looked at is simply not there.
        .filter_map(|(uid, name)| look(uid, name).ok().flatten())
        .collect();
    found.sort_by(|one, other| one.info().name.cmp(&other.info().name));
    Ok(found)
}

/// The labs named in `/proc/net/unix`, with their users.
fn names(table: &str) -> Vec<(u32, &str)> {
    let mut names: Vec<(u32, &str)> = table
        .lines()
        .filter_map(|line| {
            // Abstract names start with `@` there, and ours contain no blank.
            let path = line.split_ascii_whitespace().last()?;
            let (uid, name) = path
                .strip_prefix('@')?
                .strip_prefix(PREFIX)?
                .split_once('-')?;
            Some((uid.parse().ok()?, name))
        })
        .collect();
    // Connections that a holder accepted are listed under its name as well.
    names.sort_unstable();
    names.dedup();
    names
}

/// Asks a socket who is behind it and reads what is held there. `None` for what is no lab of ours
/// or not ready yet.
fn look(uid: u32, name: &str) -> io::Result<Option<Found>> {
    // Without waiting: a stranger's socket may have a full queue for ever.
    let socket = socket(SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &address(uid, name)?)?;
    let peer = namespace::peer(socket.as_fd())?;
    let (Some(pid), true) = (peer.pid, peer.uid == uid) else {
        return Ok(None);
    };
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let descriptors = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let Some(mut registration) = registration_of(Path::new(&descriptors))? else {
        return Ok(None);
    };
    registration.info.holder_pid = pid.as_raw_nonzero().get().unsigned_abs();
    Ok(Some(Found {
        registration,
        pid,
        handle,
    }))
}

/// What a process offers whose descriptors are in this folder of `/proc`; `None` for no holder.
pub(crate) fn registration_of(descriptors: &Path) -> io::Result<Option<Registration>> {
    // When a link ends, a holder offers another one and closes the first, which may be the one that was just seen.
    for _ in 0..AGAIN {
        match offered_in(descriptors) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
    }
    offered_in(descriptors)
}

fn offered_in(descriptors: &Path) -> io::Result<Option<Registration>> {
    let own = format!("/memfd:{MEMORY_FILE} ");
    for entry in fs::read_dir(descriptors)? {
        let path = entry?.path();
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        if !target.to_string_lossy().starts_with(&own) {
            continue;
        }
        let file = open(&path)?;
        // A holder that offers another one has this one open before it is written to the end; the one before it is
        // there until then.
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::WRITE) {
            continue;
        }
        let mut text = Vec::new();
        file.take(REGISTRATION_BYTES).read_to_end(&mut text)?;
        return Ok(Some(serde_json::from_slice(&text)?));
    }
    Ok(None)
}

/// Opens a file of a holder. It may be another user's, so it may be anything: never wait for it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// The lab of this name (the user's own before others'), or the user's only one.
pub(crate) fn find(name: Option<&str>) -> Result<Found, LabError> {
    let own = rustix::process::geteuid().as_raw();
    let labs = all()?;
    let known = || labs.iter().map(|lab| lab.info().name.clone()).collect();
    let chosen = match name {
        Some(name) => {
            let named = |lab: &&Found| lab.info().name == name;
            let mine = labs.iter().filter(named).find(|lab| lab.info().uid == own);
            let any = mine.or_else(|| labs.iter().find(named));
            any.ok_or_else(|| LabError::UnknownLab {
                name: name.to_owned(),
                known: known(),
            })?
        }
        None => {
            let mut mine = labs.iter().filter(|lab| lab.info().uid == own);
            match (mine.next(), mine.next()) {
                (Some(only), None) => only,
                (Some(_), Some(_)) => return Err(LabError::WhichLab { known: known() }),
                (None, _) => return Err(LabError::NoLab),
            }
        }
    };
    let pid = chosen.pid;
    labs.into_iter()
        .find(|lab| lab.pid == pid)
        .ok_or(LabError::NoLab)
}

impl Found {
    pub fn info(&self) -> &LabInfo {
        &self.registration.info
    }

    /// A file of the holder in `/proc`.
    pub fn path(&self, below: &str) -> PathBuf {
        format!("/proc/{}/{below}", self.pid.as_raw_nonzero()).into()
    }

    /// Who asks later how its links are; made before this thread goes into another network, where the lab's socket
    /// is not.
    pub fn question(&self) -> Result<Question, LabError> {
        let failed = |error| LabError::system("make a socket to ask the lab through", error);
        let info = self.info();
        let socket = socket(SocketFlags::NONBLOCK).map_err(failed)?;
        let address = address(info.uid, &info.name).map_err(failed)?;
        Ok(Question { socket, address })
    }

    /// That a link carries nothing any more, as the lab is now; none where it is gone.
    pub fn ended_meanwhile(&self, question: &Question) -> Option<LabError> {
        question.ask();
        let now = registration_of(&self.path("fd")).ok()??;
        self.lives().then(|| now.info.check_links().err())?
    }

    /// Whether the process that was found is still there: then what was opened below its number
    /// is its own, and not that of another process which got the number.
    pub fn lives(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    fn ends_within(&self, time: Duration) -> bool {
        poll(&self.handle, Ready::Receive, time).unwrap_or(false)
    }
}

/// A way to have a lab's holder look after its links.
pub(crate) struct Question {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

impl Question {
    /// Returns once it has looked, or after a moment: it closes a connection when that is done.
    fn ask(&self) {
        if rustix::net::connect(&self.socket, &self.address).is_ok() {
            let _ = poll(&self.socket, Ready::Receive, LOOKS);
        }
    }
}

/// Every lab that is up and that this user may enter: the user's own, or everyone's for root.
///
/// # Errors
/// [`LabError::System`] without `/proc`.
pub fn list() -> Result<Vec<LabInfo>, LabError> {
    Ok(all()?
        .into_iter()
        .map(|lab| lab.registration.info)
        .collect())
}

/// Ends a lab and everything that runs in it; the user's only lab when not named. Returns once it
/// is gone.
///
/// # Errors
/// [`LabError::NoLab`], [`LabError::UnknownLab`], [`LabError::WhichLab`], or [`LabError::System`] when the
/// holder may not be ended.
pub fn down(name: Option<&str>) -> Result<LabInfo, LabError> {
    let lab = find(name)?;
    for signal in [Signal::TERM, Signal::KILL] {
        match rustix::process::pidfd_send_signal(&lab.handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                let action = format!("end the holder of lab {}", lab.info().name);
                return Err(LabError::system(action, error));
            }
        }
        if lab.ends_within(END_WITHIN) {
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
        assert_eq!(names(table), [(0, "lab1"), (1000, "my-lab")]);
    }

    #[test]
    fn names_fit_a_socket_and_a_command_line() {
        for (name, good) in [
            ("lab1", true),
            ("my.lab_2-x", true),
            ("", false),
            ("a/b", false),
            ("a b", false),
            (&"x".repeat(49), false),
        ] {
            assert_eq!(check_name(name).is_ok(), good, "{name}");
        }
    }

    #[test]
    fn a_name_is_taken_once() {
        let name = format!("test-{}", std::process::id());
        let first = bind(4_000_000, &name).unwrap();
        assert!(first.is_some());
        assert!(bind(4_000_000, &name).unwrap().is_none());
        drop(first);
        assert!(bind(4_000_000, &name).unwrap().is_some());
    }
}
