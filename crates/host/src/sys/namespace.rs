//! Namespaces and what crosses them: unshare, setns, mounts seen from inside, who is at the other end
//! of a local socket, and waiting for signals together with where they came from.
//!
//! A network namespace belongs to a thread, not to a process. Two consequences surprise:
//! `/proc/net` means `/proc/self/net`, the namespace of the *main* thread, so a thread in another
//! namespace has to read `/proc/thread-self/net`; and `/sys/class/net` shows the namespace in which
//! sysfs was *mounted*, so it needs [`remount_sys`] in a mount namespace of its own.
//! `/proc/sys/net` alone follows the thread that opens it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags};

/// `SO_NETNS_COOKIE` of asm-generic/socket.h (Linux 5.14).
const NETNS_COOKIE: libc::c_int = 71;

/// The kernel's number of the calling thread's network, which no other one has until the machine starts again; inode
/// numbers of namespaces that are gone are given out anew.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14; else what `socket(2)` says.
pub fn network_cookie() -> io::Result<u64> {
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

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Users and capabilities. Only a process with one thread may enter or leave one.
    User,
    /// Process numbers: takes effect for children that are started later.
    Pid,
    /// Mounted file systems, of the calling thread.
    Mount,
    /// Network interfaces, routes and sockets opened from now on, of the calling thread.
    Net,
}

/// Gives the calling thread a new namespace of this kind.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` (or where user namespaces are forbidden), `ENOSPC` at the limit
/// of `user.max_*_namespaces`, `EINVAL` for [`Space::User`] in a process with several threads.
pub fn unshare(space: Space) -> io::Result<()> {
    let flags = match space {
        Space::User => UnshareFlags::NEWUSER,
        Space::Pid => UnshareFlags::NEWPID,
        Space::Mount => UnshareFlags::NEWNS,
        Space::Net => UnshareFlags::NEWNET,
    };
    // SAFETY: only CLONE_FILES endangers memory or descriptors that threads share, and none of the
    // four flags above is or implies it.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    Ok(())
}

/// Moves the calling thread into the namespace that a file of `/proc/PID/ns/` stands for.
///
/// # Errors
/// `EPERM` without the capability in the user namespace that owns it, `EINVAL` for a file of
/// another kind, and for [`Space::User`] in a process with several threads or when already there.
pub fn enter(namespace: BorrowedFd<'_>, space: Space) -> io::Result<()> {
    let kind = match space {
        Space::User => LinkNameSpaceType::User,
        Space::Pid => LinkNameSpaceType::ProcessID,
        Space::Mount => LinkNameSpaceType::Mount,
        Space::Net => LinkNameSpaceType::Network,
    };
    rustix::thread::move_into_link_name_space(namespace, Some(kind))?;
    Ok(())
}

/// Whether the calling thread may build network namespaces as it is: `CAP_SYS_ADMIN` and
/// `CAP_NET_ADMIN` are in effect. User 0 alone does not tell: a container's root may have neither.
#[must_use]
pub fn may_build_networks() -> bool {
    let wanted = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Becomes user and group 0 of the user namespace that was just entered. Whoever joins one that
/// another user made is nobody there, and would lose every capability with the next exec.
///
/// # Errors
/// `EINVAL` where user or group 0 is not mapped, `EPERM` without the capability.
pub fn become_root_inside() -> io::Result<()> {
    let (gid, uid) = (rustix::process::Gid::ROOT, rustix::process::Uid::ROOT);
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Gives the calling thread a mount namespace of its own; mounts made in it stay in it.
///
/// Unmounts outside still arrive: otherwise a disk that was unmounted would stay busy in here.
///
/// # Errors
/// As [`unshare`].
pub fn private_mounts() -> io::Result<()> {
    unshare(Space::Mount)?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    Ok(())
}

/// Mounts `/proc` for the process-number namespace of the calling process.
///
/// # Errors
/// `EPERM` where parts of the present `/proc` are hidden (a container), as the kernel then refuses
/// a full one to user namespaces.
pub fn remount_proc() -> io::Result<()> {
    mount_over("proc", "/proc")
}

/// Mounts `/sys` for the network namespace of the calling thread. What is mounted below
/// (control groups, tracing, bpf) is carried over.
///
/// # Errors
/// As [`remount_proc`].
pub fn remount_sys() -> io::Result<()> {
    const BELOW: [&str; 6] = [
        "/sys/fs/cgroup",
        "/sys/fs/bpf",
        "/sys/kernel/debug",
        "/sys/kernel/tracing",
        "/sys/kernel/security",
        "/sys/kernel/config",
    ];
    let device = |path: &str| std::fs::metadata(path).map(|facts| facts.dev()).ok();
    let sys = device("/sys");
    let carried: Vec<_> = BELOW
        .into_iter()
        .filter(|path| {
            let own = device(path);
            own.is_some() && own != sys
        })
        .filter_map(|path| {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE;
            open_tree(CWD, path, flags).ok().map(|tree| (path, tree))
        })
        .collect();
    mount_over("sysfs", "/sys")?;
    for (path, tree) in carried {
        // Best effort: nothing that is measured depends on what is below.
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
    // Where the old one was read-only, a user namespace gets a new one only read-only as well.
    mount(kind, path, kind, flags, None)
        .or_else(|_| mount(kind, path, kind, flags | MountFlags::RDONLY, None))?;
    Ok(())
}

/// Marks every descriptor above standard error to be closed at the next exec: a background process
/// must not keep its starter's pipes, locks and terminals open.
///
/// # Errors
/// `ENOSYS` before Linux 5.11.
pub fn close_descriptors_at_exec() -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now; only a flag changes, which matters
    // when this program's image is gone.
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

/// Who listens at (or connected to) the other end of a local socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process, as numbered here; `None` when it cannot be seen from this process-number
    /// namespace.
    pub pid: Option<rustix::process::Pid>,
    /// Its user, as numbered here.
    pub uid: u32,
}

/// Reads who is at the other end of a local socket, as it was at `connect` or `listen`.
///
/// # Errors
/// Those of `getsockopt(SO_PEERCRED)`.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
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
    Ok(Peer {
        pid: rustix::process::Pid::from_raw(credentials.pid),
        uid: credentials.uid,
    })
}

/// A signal that [`Signals::wait`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it (Ctrl-C on the terminal, a child's end) rather than a process: then every
    /// process of the foreground group got it already, and passing it on would double it.
    pub from_kernel: bool,
}

/// Signals held back so that they are taken one by one instead of acting at once.
///
/// The mask is the calling thread's and children inherit it: call [`Signals::release`] in a child
/// before it runs another program.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Prepares a set; nothing is held back yet.
    #[must_use]
    pub fn new(numbers: &[i32]) -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigemptyset` initialises what it is given, which is as large as a set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for &number in numbers {
            // SAFETY: the set is initialised; a number that is no signal only gives EINVAL.
            unsafe { libc::sigaddset(set.as_mut_ptr(), number) };
        }
        // SAFETY: `sigemptyset` initialised it.
        let set = unsafe { set.assume_init() };
        Self { set }
    }

    fn mask(&self, how: libc::c_int) -> io::Result<()> {
        // SAFETY: the set is initialised, and a null old mask is allowed.
        let error =
            unsafe { libc::pthread_sigmask(how, &raw const self.set, std::ptr::null_mut()) };
        if error == 0 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(error))
        }
    }

    /// Holds the signals back in the calling thread and in threads and children it starts.
    ///
    /// # Errors
    /// Those of `pthread_sigmask`.
    pub fn hold(&self) -> io::Result<()> {
        self.mask(libc::SIG_BLOCK)
    }

    /// Lets them act again.
    ///
    /// # Errors
    /// Those of `pthread_sigmask`.
    pub fn release(&self) -> io::Result<()> {
        self.mask(libc::SIG_UNBLOCK)
    }

    /// Waits for the next of them.
    ///
    /// # Errors
    /// Those of `sigwaitinfo`, except `EINTR`, which waits on.
    pub fn wait(&self) -> io::Result<Arrived> {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: the set is initialised and `info` is as large as what the call writes.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.set, info.as_mut_ptr()) };
            if signal > 0 {
                // SAFETY: zeroed before and written by the call: integers and pointers only.
                let info = unsafe { info.assume_init() };
                return Ok(Arrived {
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
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_other_end_of_a_socket_pair_is_this_process() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = peer(near.as_fd()).unwrap();
        assert_eq!(peer.pid, Some(rustix::process::getpid()));
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_signal_of_our_own_does_not_come_from_the_kernel() {
        // A thread of its own: the mask must not leak into other tests.
        std::thread::spawn(|| {
            let signals = Signals::new(&[libc::SIGUSR2]);
            signals.hold().unwrap();
            // SAFETY: sends a signal to the calling thread, which holds it back.
            unsafe { libc::raise(libc::SIGUSR2) };
            let arrived = signals.wait().unwrap();
            assert_eq!(arrived.signal, libc::SIGUSR2);
            assert!(!arrived.from_kernel);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_ordinary_file_is_no_namespace() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(enter(file.as_fd(), Space::Net).is_err());
    }

    #[test]
    fn each_network_has_a_number_of_its_own() {
        let Ok(own) = network_cookie() else {
            println!("skipped: Linux 5.14");
            return;
        };
        assert_eq!(network_cookie().unwrap(), own);
        let fresh = || {
            let made = std::thread::spawn(|| unshare(Space::Net).and_then(|()| network_cookie()));
            made.join().expect("a thread that asks")
        };
        match (fresh(), fresh()) {
            // The first one is gone before the second comes: inode numbers may be the same then.
            (Ok(first), Ok(second)) => assert!(first != second && first != own && second != own),
            _ => println!("skipped: needs CAP_SYS_ADMIN"),
        }
    }

    #[test]
    fn a_thread_can_have_a_network_of_its_own() {
        if !may_build_networks() {
            println!("skipped: needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let inside = std::thread::spawn(|| {
            unshare(Space::Net).unwrap();
            private_mounts().unwrap();
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
