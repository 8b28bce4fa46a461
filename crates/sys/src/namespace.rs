//! Namespaces (unshare, setns, mounts inside them), credentials of a local socket's peer, and
//! waiting for signals with their origin.
//!
//! A network namespace belongs to a thread, not to a process. This has two consequences.
//! `/proc/net` means `/proc/self/net`, the namespace of the *main* thread, so a thread in another
//! namespace has to read `/proc/thread-self/net`. And `/sys/class/net` shows the namespace in which
//! sysfs was *mounted*, so it needs [`remount_sys`] in a mount namespace of its own. Only
//! `/proc/sys/net` follows the thread that opens it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, fsconfig_create, fsconfig_set_flag, fsmount, fsopen, mount, mount_change,
    move_mount, open_tree,
};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags};

/// `SO_NETNS_COOKIE` of asm-generic/socket.h (Linux 5.14).
const NETNS_COOKIE: libc::c_int = 71;

/// Reads the cookie of the calling thread's network namespace, unique until the machine reboots.
/// Inode numbers of namespaces are reused.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14; else errors of `socket(2)`.
pub fn read_network_cookie() -> io::Result<u64> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the cookie is writable for `length` bytes, and both live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match result {
        0 if length as usize == size_of::<u64>() => Ok(cookie),
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kind of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Users and capabilities. Only a single-threaded process may enter or leave one.
    User,
    /// Process ids: takes effect for children started later.
    Pid,
    /// Mounted file systems of the calling thread.
    Mount,
    /// Network interfaces, routes and sockets opened from then on, of the calling thread.
    Net,
}

/// Moves the calling thread into a new namespace of this kind.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` (or where user namespaces are forbidden), `ENOSPC` at the limit
/// of `user.max_*_namespaces`, `EINVAL` for [`NamespaceKind::User`] in a multi-threaded process.
pub fn unshare(kind: NamespaceKind) -> io::Result<()> {
    let flags = match kind {
        NamespaceKind::User => UnshareFlags::NEWUSER,
        NamespaceKind::Pid => UnshareFlags::NEWPID,
        NamespaceKind::Mount => UnshareFlags::NEWNS,
        NamespaceKind::Net => UnshareFlags::NEWNET,
    };
    // SAFETY: only CLONE_FILES endangers memory or descriptors that threads share, and none of the
    // four flags above is or implies it.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    Ok(())
}

/// Moves the calling thread into the namespace of a `/proc/PID/ns/` file.
///
/// # Errors
/// `EPERM` without the capability in the user namespace that owns it, `EINVAL` for a file of
/// another kind, and for [`NamespaceKind::User`] in a multi-threaded process or when already
/// inside.
pub fn enter(namespace: BorrowedFd<'_>, kind: NamespaceKind) -> io::Result<()> {
    let link_type = match kind {
        NamespaceKind::User => LinkNameSpaceType::User,
        NamespaceKind::Pid => LinkNameSpaceType::ProcessID,
        NamespaceKind::Mount => LinkNameSpaceType::Mount,
        NamespaceKind::Net => LinkNameSpaceType::Network,
    };
    rustix::thread::move_into_link_name_space(namespace, Some(link_type))?;
    Ok(())
}

/// Returns whether the calling thread may create network namespaces: it needs `CAP_SYS_ADMIN` and
/// `CAP_NET_ADMIN`. User id 0 is no proof: root of a container may have neither.
#[must_use]
pub fn can_create_networks() -> bool {
    let required = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(required))
}

/// Changes user and group to 0 of the user namespace just entered. Without this, a process that
/// joined another user's namespace has an unmapped user id there and loses every capability at the
/// next exec.
///
/// # Errors
/// `EINVAL` where user or group 0 is not mapped, `EPERM` without the capability.
pub fn become_namespace_root() -> io::Result<()> {
    let (gid, uid) = (rustix::process::Gid::ROOT, rustix::process::Uid::ROOT);
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Creates a mount namespace for the calling thread; mounts made inside stay inside.
///
/// Unmounts outside still propagate: otherwise an unmounted disk would stay busy inside.
///
/// # Errors
/// As [`unshare`].
pub fn unshare_mounts() -> io::Result<()> {
    unshare(NamespaceKind::Mount)?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    Ok(())
}

/// Mounts `/proc` for the PID namespace of the calling process.
///
/// # Errors
/// `EPERM` where parts of the current `/proc` are hidden (a container): the kernel then denies a
/// complete one to user namespaces.
pub fn remount_proc() -> io::Result<()> {
    mount_over("proc", "/proc")
}

/// Mounts a file system without a place in the directory tree and returns its root.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN, `ENOSYS` before Linux 5.2; else errors of `fsopen`, `fsconfig` and
/// `fsmount`.
pub fn mount_detached(kind: &str, options: &[&str]) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for option in options {
        fsconfig_set_flag(context.as_fd(), *option)?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

/// Mounts `/sys` for the network namespace of the calling thread. Mounts below it (control groups,
/// tracing, bpf) are moved to the new one.
///
/// # Errors
/// As [`remount_proc`].
pub fn remount_sys() -> io::Result<()> {
    const SUBMOUNTS: [&str; 6] = [
        "/sys/fs/cgroup",
        "/sys/fs/bpf",
        "/sys/kernel/debug",
        "/sys/kernel/tracing",
        "/sys/kernel/security",
        "/sys/kernel/config",
    ];
    let device = |path: &str| std::fs::metadata(path).map(|facts| facts.dev()).ok();
    let sys = device("/sys");
    let submounts: Vec<_> = SUBMOUNTS
        .into_iter()
        .filter(|path| {
            let path_device = device(path);
            path_device.is_some() && path_device != sys
        })
        .filter_map(|path| {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE;
            open_tree(CWD, path, flags).ok().map(|tree| (path, tree))
        })
        .collect();
    mount_over("sysfs", "/sys")?;
    for (path, tree) in submounts {
        // Best effort: no measurement depends on these mounts.
        let _ = move_mount(
            &tree,
            "",
            CWD,
            path,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        );
    }
    Ok(())
}

fn mount_over(kind: &str, path: &str) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // If the old mount was read-only, a user namespace can only mount read-only too.
    mount(kind, path, kind, flags, None)
        .or_else(|_| mount(kind, path, kind, flags | MountFlags::RDONLY, None))?;
    Ok(())
}

/// Sets close-on-exec on every descriptor above standard error: a background process must not keep
/// pipes, locks and terminals of its parent open.
///
/// # Errors
/// `ENOSYS` before Linux 5.11.
pub fn close_descriptors_at_exec() -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now; only a flag changes, which takes
    // effect when this program's image is replaced.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_uint,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Credentials of the peer of a local socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id, as seen in this PID namespace; `None` when invisible here.
    pub pid: Option<rustix::process::Pid>,
    /// User id, as seen in this user namespace.
    pub uid: u32,
}

/// Reads the credentials of a local socket's peer, as of its `connect` or `listen`.
///
/// # Errors
/// Errors of `getsockopt(SO_PEERCRED)`.
pub fn read_peer(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of what `credentials` holds.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `ucred` is three integers, for which zeroes and all that the kernel writes are valid.
    let credentials = unsafe { credentials.assume_init() };
    Ok(PeerCredentials {
        pid: rustix::process::Pid::from_raw(credentials.pid),
        uid: credentials.uid,
    })
}

/// Signal received by [`BlockedSignals::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Signal number.
    pub signal: i32,
    /// True if the kernel sent it (Ctrl-C on the terminal, end of a child) and not a process. The
    /// kernel signals the complete foreground group, so forwarding such a signal would deliver it
    /// twice.
    pub from_kernel: bool,
}

/// Set of signals that are blocked and then taken one by one.
///
/// The mask belongs to the calling thread, and children inherit it: call
/// [`BlockedSignals::unblock`] in a child before it executes another program.
#[derive(Debug)]
pub struct BlockedSignals {
    set: libc::sigset_t,
}

impl BlockedSignals {
    /// Creates the set; no signal is blocked yet.
    #[must_use]
    pub fn new(numbers: &[i32]) -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigemptyset` initialises what it is given, which is as large as a set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for &number in numbers {
            // SAFETY: the set is initialised; an invalid signal number only causes EINVAL.
            unsafe { libc::sigaddset(set.as_mut_ptr(), number) };
        }
        // SAFETY: `sigemptyset` initialised it.
        let set = unsafe { set.assume_init() };
        Self { set }
    }

    fn change_mask(&self, how: libc::c_int) -> io::Result<()> {
        // SAFETY: the set is initialised, and a null old mask is allowed.
        let error =
            unsafe { libc::pthread_sigmask(how, &raw const self.set, std::ptr::null_mut()) };
        if error == 0 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(error))
        }
    }

    /// Blocks the signals in the calling thread and in threads and children that it starts.
    ///
    /// # Errors
    /// Errors of `pthread_sigmask`.
    pub fn block(&self) -> io::Result<()> {
        self.change_mask(libc::SIG_BLOCK)
    }

    /// Unblocks the signals.
    ///
    /// # Errors
    /// Errors of `pthread_sigmask`.
    pub fn unblock(&self) -> io::Result<()> {
        self.change_mask(libc::SIG_UNBLOCK)
    }

    /// Waits for the next signal of the set.
    ///
    /// # Errors
    /// Errors of `sigwaitinfo`, except `EINTR`, after which it waits again.
    pub fn wait(&self) -> io::Result<ReceivedSignal> {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: the set is initialised and `info` is as large as what the call writes.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.set, info.as_mut_ptr()) };
            if signal > 0 {
                // SAFETY: zeroed before and written by the call: integers and pointers only.
                let info = unsafe { info.assume_init() };
                return Ok(ReceivedSignal {
                    signal,
                    from_kernel: info.si_code > 0,
                });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_other_end_of_a_socket_pair_is_this_process() {
        let (local, _remote) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = read_peer(local.as_fd()).unwrap();
        assert_eq!(peer.pid, Some(rustix::process::getpid()));
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_raised_signal_is_not_from_the_kernel() {
        // Runs in its own thread: the mask must not affect other tests.
        std::thread::spawn(|| {
            let signals = BlockedSignals::new(&[libc::SIGUSR2]);
            signals.block().unwrap();
            // SAFETY: sends a signal to the calling thread, which blocks it.
            unsafe { libc::raise(libc::SIGUSR2) };
            let received = signals.wait().unwrap();
            assert_eq!(received.signal, libc::SIGUSR2);
            assert!(!received.from_kernel);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_ordinary_file_is_rejected() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(enter(file.as_fd(), NamespaceKind::Net).is_err());
    }

    #[test]
    fn every_network_namespace_has_its_own_cookie() {
        let Ok(cookie) = read_network_cookie() else {
            println!("skipped: Linux 5.14");
            return;
        };
        assert_eq!(read_network_cookie().unwrap(), cookie);
        let fresh = || {
            let made = std::thread::spawn(|| {
                unshare(NamespaceKind::Net).and_then(|()| read_network_cookie())
            });
            made.join().expect("the thread does not panic")
        };
        match (fresh(), fresh()) {
            // The first namespace is removed before the second is created: their inode numbers may
            // be equal.
            (Ok(first), Ok(second)) => {
                assert!(first != second && first != cookie && second != cookie)
            }
            _ => println!("skipped: needs CAP_SYS_ADMIN"),
        }
    }

    #[test]
    fn a_thread_can_have_a_network_of_its_own() {
        if !can_create_networks() {
            println!("skipped: needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let inside = std::thread::spawn(|| {
            unshare(NamespaceKind::Net).unwrap();
            unshare_mounts().unwrap();
            let remounted = remount_sys();
            let names = std::fs::read_dir("/sys/class/net").map(Iterator::count);
            (remounted, names)
        })
        .join()
        .unwrap();
        match inside {
            (Ok(()), Ok(count)) => assert_eq!(count, 1, "lo alone"),
            (remounted, _) => println!("skipped: /sys cannot be mounted here: {remounted:?}"),
        }
    }
}
