//! Probes of kernel features: each is used once and released; nothing outside this process changes.

use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Opens and closes an AF_XDP socket (needs CAP_NET_RAW).
///
/// # Errors
/// `EAFNOSUPPORT` without kernel support, `EPERM` without the capability.
pub fn probe_af_xdp() -> io::Result<()> {
    socket2::Socket::new(
        socket2::Domain::from(libc::AF_XDP),
        socket2::Type::RAW,
        None,
    )
    .map(drop)
}

/// Creates and drops an io_uring of one entry.
///
/// # Errors
/// `ENOSYS` without kernel support (or when a container's filter blocks it), `EPERM` where
/// kernel.io_uring_disabled forbids it.
pub fn probe_io_uring() -> io::Result<()> {
    // struct io_uring_params: 120 bytes, all zeros for the defaults.
    let mut parameters = [0_u32; 30];
    // SAFETY: the kernel reads and writes 120 bytes at the pointer.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    take_fd(fd).map(drop)
}

/// Event opened by [`probe_perf_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfEventKind {
    /// Task clock (software), user space only.
    TaskClockUser,
    /// Task clock with kernel time, as needed for profiles of the network stack.
    TaskClockKernel,
    /// Processor cycles in user space, from the performance-monitoring unit.
    Cycles,
}

/// Opens and closes a counter on the calling thread.
///
/// # Errors
/// `EACCES` or `EPERM` where kernel.perf_event_paranoid forbids it, `ENOENT` or `EOPNOTSUPP`
/// without such a unit (many virtual machines), `ENOSYS` in a kernel without perf.
pub fn probe_perf_event(event: PerfEventKind) -> io::Result<()> {
    const HARDWARE: u32 = 0;
    const SOFTWARE: u32 = 1;
    const CPU_CYCLES: u64 = 0;
    const TASK_CLOCK: u64 = 1;
    // Bit numbers in the flag word of perf_event_attr. C bit fields start at the least significant
    // bit on little-endian machines and at the most significant one on big-endian machines.
    const DISABLED: u32 = 0;
    const EXCLUDE_KERNEL: u32 = 5;
    const EXCLUDE_HV: u32 = 6;
    let flag = |number: u32| {
        if cfg!(target_endian = "little") {
            1_u64 << number
        } else {
            1_u64 << (63 - number)
        }
    };
    let (kind, config) = match event {
        PerfEventKind::Cycles => (HARDWARE, CPU_CYCLES),
        PerfEventKind::TaskClockUser | PerfEventKind::TaskClockKernel => (SOFTWARE, TASK_CLOCK),
    };
    let mut flags = flag(DISABLED) | flag(EXCLUDE_HV);
    if event != PerfEventKind::TaskClockKernel {
        flags |= flag(EXCLUDE_KERNEL);
    }
    // The first published layout of perf_event_attr, 64 bytes: type and size, config, period,
    // sample type, read format, flags, wake-up and breakpoint type, breakpoint address.
    const ATTRIBUTE_BYTES: usize = 64;
    #[repr(C)]
    struct PerfEventAttr {
        kind: u32,
        bytes: u32,
        config: u64,
        rest: [u64; 3],
        flags: u64,
        more: [u64; 2],
    }
    const _: () = assert!(mem::size_of::<PerfEventAttr>() == ATTRIBUTE_BYTES);
    let attribute = PerfEventAttr {
        kind,
        bytes: ATTRIBUTE_BYTES as u32,
        config,
        rest: [0; 3],
        flags,
        more: [0; 2],
    };
    const CALLING_THREAD: libc::pid_t = 0;
    const ANY_CPU: libc::c_int = -1;
    const NO_GROUP: libc::c_int = -1;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    // SAFETY: the kernel reads as many bytes at the pointer as the attribute's size field states.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attribute,
            CALLING_THREAD,
            ANY_CPU,
            NO_GROUP,
            CLOSE_ON_EXEC,
        )
    };
    take_fd(fd).map(drop)
}

/// Result of creating namespaces in a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserNamespaceSupport {
    /// The child created a user namespace and a network namespace, and configured the network.
    Full,
    /// Creating a user namespace failed, with this error number.
    Unavailable(i32),
    /// The user namespace grants no capabilities over a network namespace (error number):
    /// restricted by a security module.
    Restricted(i32),
}

/// Creates user and network namespaces in a child process; they end with it.
///
/// The namespaces of the calling process do not change.
///
/// # Errors
/// Fails when the child could not be created or its exit could not be read (in a process that
/// ignores SIGCHLD).
pub fn probe_user_namespace() -> io::Result<UserNamespaceSupport> {
    // Both steps report their error number in the exit code, which has 8 bits. Linux error numbers
    // end at 133, those of `unshare` and of SIOCSIFFLAGS well below 64.
    const POWERLESS: i32 = 0x80;
    // SAFETY: the child calls only async-signal-safe functions (system calls and errno) before
    // `_exit`, so locks held by other threads do not matter.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            let code = match unshare(libc::CLONE_NEWUSER) {
                Err(error) => error & 0x7f,
                Ok(()) => match unshare(libc::CLONE_NEWNET).and_then(|()| raise_loopback()) {
                    Err(error) => POWERLESS | (error & 0x7f),
                    Ok(()) => 0,
                },
            };
            // SAFETY: ends the child without running any exit handler of the parent.
            unsafe { libc::_exit(code) }
        }
        _ => {}
    }
    let child = Pid::from_raw(child).expect("fork returns a positive number to the parent");
    let (_, status) = loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some(reaped)) => break reaped,
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    match status.exit_status() {
        Some(0) => Ok(UserNamespaceSupport::Full),
        Some(code) if code & POWERLESS != 0 => Ok(UserNamespaceSupport::Restricted(code & 0x7f)),
        Some(code) => Ok(UserNamespaceSupport::Unavailable(code)),
        None => Err(io::Error::other("the probe process was killed")),
    }
}

/// Moves the forked child into a new namespace.
fn unshare(kind: libc::c_int) -> Result<(), i32> {
    // SAFETY: no pointers; the child has one thread.
    if unsafe { libc::unshare(kind) } == 0 {
        Ok(())
    } else {
        Err(errno())
    }
}

/// Sets the loopback interface up; for the forked child only, hence without allocation.
fn raise_loopback() -> Result<(), i32> {
    // SAFETY: no pointers. The descriptor is left to the end of the child.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(errno());
    }
    // SAFETY: ifreq is integers, arrays and a pointer; all zeros is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request is valid, and SIOCSIFFLAGS reads no more than it.
    if unsafe {
        libc::ioctl(
            socket,
            libc::SIOCSIFFLAGS as libc::Ioctl,
            &raw const request,
        )
    } == 0
    {
        Ok(())
    } else {
        Err(errno())
    }
}

/// Returns the calling thread's error number without allocation.
fn errno() -> i32 {
    // SAFETY: the C library gives every thread a valid location for it.
    unsafe { *libc::__errno_location() }
}

/// Converts the result of a system call to a descriptor.
fn take_fd(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_leave_no_namespace_behind() {
        // Other tests of this process open and close files meanwhile, so only the namespaces of the
        // calling thread are compared.
        let namespaces = || {
            ["user", "net"]
                .map(|kind| std::fs::read_link(format!("/proc/thread-self/ns/{kind}")).unwrap())
        };
        let before = namespaces();
        let support = probe_user_namespace().unwrap();
        assert_eq!(namespaces(), before, "{support:?}");
        for event in [
            PerfEventKind::TaskClockUser,
            PerfEventKind::TaskClockKernel,
            PerfEventKind::Cycles,
        ] {
            println!("{event:?}: {:?}", probe_perf_event(event));
        }
        println!("AF_XDP: {:?}", probe_af_xdp());
        println!("io_uring: {:?}", probe_io_uring());
        println!("user namespace: {support:?}");
    }

    #[test]
    fn perf_requests_are_well_formed() {
        // EINVAL or E2BIG would mean that the layout above is wrong, not that perf is forbidden.
        for event in [PerfEventKind::TaskClockUser, PerfEventKind::TaskClockKernel] {
            if let Err(error) = probe_perf_event(event) {
                assert!(
                    !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::E2BIG)),
                    "{event:?}: {error}"
                );
            }
        }
    }
}
