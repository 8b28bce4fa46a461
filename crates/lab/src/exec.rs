//! Running a command on a host of a lab that is up.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use linerate_sys::namespace;
use linerate_sys::namespace::{BlockedSignals, NamespaceKind};
use rustix::process::{Pid, Signal};

use crate::error::LabError;
use crate::holder_command::{ENTER_STEP, this_program};
use crate::registry::{self, RunningLab};

/// Signals passed on to the command.
const FORWARDED_SIGNALS: [Signal; 6] = [
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::HUP,
    Signal::USR1,
    Signal::USR2,
];

/// Result of a command run in a lab.
#[derive(Debug)]
pub struct ExecResult {
    /// Exit code as a shell reports it.
    pub exit_code: u8,
    /// Link that failed while the command ran; what was measured over it is invalid.
    pub link_failure: Option<LabError>,
}

/// Runs a command on a host, with this program's standard streams, and returns its exit code as a
/// shell would: 128 plus the signal number when it was killed, 127 when it was not found.
/// Without a command it runs the user's shell; without a lab it uses the user's only one.
///
/// The command sees only the host's network and the lab's processes; it dies with this process and
/// with the lab. In a rootless lab it is root of the lab's user namespace.
///
/// Call it while the process has one thread: it changes the namespaces of this process for good.
///
/// # Errors
/// [`LabError::NoLab`], [`LabError::UnknownLab`], [`LabError::AmbiguousLab`],
/// [`LabError::UnknownHost`], [`LabError::LinkFailed`], [`LabError::ThreadsRunning`], or
/// [`LabError::System`] when the lab cannot be entered.
pub fn exec(lab: Option<&str>, host: &str, command: &[OsString]) -> Result<ExecResult, LabError> {
    let lab = registry::find_lab(lab)?;
    lab.info().check_links()?;
    let link_check = lab.prepare_link_check()?;
    enter_host(&lab, host)?;
    let shell = [std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())];
    let command = if command.is_empty() { &shell } else { command };
    let signals = handled_signals();
    let waiting = |error| LabError::system("wait for the command", error);
    // Block before the spawn: a signal that arrives in between must not end this process alone.
    signals.block().map_err(waiting)?;
    // Only children of this process are created in the PID namespace it joined.
    let child = this_program(ENTER_STEP)
        .args(command)
        .spawn()
        .map_err(|error| LabError::system("start a process inside the lab", error))?;
    let status = wait_for_command(child, &signals).map_err(waiting)?;
    Ok(ExecResult {
        exit_code: exit_code(status),
        link_failure: lab.link_failure(&link_check),
    })
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    // Both are below 256 on Linux.
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Enters the lab's user and PID namespaces and the host's network namespace.
fn enter_host(lab: &RunningLab, host: &str) -> Result<(), LabError> {
    let info = lab.info();
    let name = &info.name;
    // Switches share one network namespace, in which every port has a unique name.
    let is_switch = info.switches.iter().any(|switch| switch == host);
    let of_switches = lab.registration.switches.filter(|_| is_switch);
    let number = lab
        .registration
        .namespaces
        .get(host)
        .copied()
        .or(of_switches);
    let number = number.ok_or_else(|| {
        let hosts = info.hosts.iter().map(|host| host.name.as_str());
        let switches = info.switches.iter().map(String::as_str);
        let names: Vec<&str> = hosts.chain(switches).collect();
        LabError::UnknownHost {
            host: host.to_owned(),
            available: names.join(", "),
        }
    })?;
    let open = |below: &str| {
        registry::open_file(&lab.path(below))
            .map_err(|error| LabError::system(format!("read the lab {name}"), error))
    };
    let user = open("ns/user")?;
    let processes = open("ns/pid")?;
    let network = open(&format!("fd/{number}"))?;
    if !lab.is_running() {
        return Err(LabError::UnknownLab {
            name: name.clone(),
            available: Vec::new(),
        });
    }
    let entering = |error: io::Error| LabError::system(format!("enter the lab {name}"), error);
    // A process cannot enter the user namespace it is already in (EINVAL).
    let current_ns = fs::metadata("/proc/self/ns/user").map_err(entering)?;
    let lab_ns = user.metadata().map_err(entering)?;
    if (current_ns.dev(), current_ns.ino()) != (lab_ns.dev(), lab_ns.ino()) {
        let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(LabError::ThreadsRunning { threads });
        }
        namespace::enter(user.as_fd(), NamespaceKind::User).map_err(entering)?;
        namespace::become_namespace_root().map_err(entering)?;
    }
    namespace::enter(processes.as_fd(), NamespaceKind::Pid).map_err(entering)?;
    namespace::enter(network.as_fd(), NamespaceKind::Net).map_err(entering)
}

/// Signals that this process takes one by one while the command runs.
fn handled_signals() -> BlockedSignals {
    let mut numbers = FORWARDED_SIGNALS.map(Signal::as_raw).to_vec();
    numbers.push(Signal::CHILD.as_raw());
    BlockedSignals::new(&numbers)
}

/// Waits for the command and passes signals on to it.
fn wait_for_command(mut child: Child, signals: &BlockedSignals) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(&child);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let arrived = signals.wait()?;
        let signal = FORWARDED_SIGNALS
            .into_iter()
            .find(|signal| signal.as_raw() == arrived.signal);
        // The terminal sends Ctrl-C to the command as well: a second SIGINT would abort it.
        if let (Some(signal), false) = (signal, arrived.from_kernel) {
            // Not reaped yet, so the process id is still the child's.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Sets up `/proc` and `/sys` for the lab's PID namespace and the host's network, then executes the
/// command in place of this process.
pub(crate) fn exec_inside(command: &[OsString]) -> Result<(), LabError> {
    let (program, arguments) = command.split_first().ok_or(LabError::HolderArguments)?;
    // Killing `lab exec` with SIGKILL must end the command as well.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| LabError::system("tie the command to `lab exec`", error))?;
    // Blocked by the parent and inherited.
    handled_signals()
        .unblock()
        .map_err(|error| LabError::system("unblock signals", error))?;
    // Best effort: where a container hides parts of /proc, the kernel allows no new mount of it.
    // The command then sees processes and interfaces of the outside, but still runs inside.
    if namespace::unshare_mounts().is_ok() {
        let _ = namespace::remount_proc();
        let _ = namespace::remount_sys();
    }
    let path = search_path(std::env::var_os("PATH"));
    let source = (Command::new(program).args(arguments))
        .env("PATH", &path)
        .exec();
    let missing = match source.kind() {
        io::ErrorKind::NotFound => true,
        // exec also returns EACCES when one directory of PATH is not readable.
        io::ErrorKind::PermissionDenied => !is_in_path(program, &path),
        _ => false,
    };
    Err(match missing {
        true => LabError::CommandNotFound {
            command: program.clone(),
        },
        false => LabError::CommandFailed {
            command: program.clone(),
            source,
        },
    })
}

/// Directories of `ip`, `tc`, `ethtool` and `sysctl`, which a user's PATH may lack. In a lab every
/// user is root.
const ADMIN_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Returns a search path that contains [`ADMIN_DIRS`].
fn search_path(path: Option<OsString>) -> OsString {
    let path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let missing = (ADMIN_DIRS.iter().map(PathBuf::from)).filter(|dir| !dirs.contains(dir));
    // A directory that was split off contains no separator.
    std::env::join_paths(dirs.iter().cloned().chain(missing)).unwrap_or(path)
}

/// Returns whether a file exists for a command, in a search path or at its path.
fn is_in_path(program: &OsStr, path: &OsStr) -> bool {
    if program.as_bytes().contains(&b'/') {
        return true;
    }
    std::env::split_paths(path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_root_are_found() {
        for (path, expected) in [
            (
                None,
                "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            ),
            (Some("/bin"), "/bin:/usr/local/sbin:/usr/sbin:/sbin"),
            (
                Some("/sbin:/x:/usr/sbin:/usr/local/sbin"),
                "/sbin:/x:/usr/sbin:/usr/local/sbin",
            ),
        ] {
            assert_eq!(search_path(path.map(OsString::from)), expected, "{path:?}");
        }
    }

    #[test]
    fn exit_codes_are_shells() {
        for (raw, expected) in [(0, 0), (7 << 8, 7), (255 << 8, 255), (9, 137), (15, 143)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), expected, "{raw:#x}");
        }
    }
}
