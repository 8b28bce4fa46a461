//! The commands of bpf(2) that an AF_XDP port needs: a map of sockets, a program, and a link that
//! keeps the program on an interface while its descriptor is open.
//!
//! Structures are those of `union bpf_attr` in linux/bpf.h, up to the last field used; the kernel
//! takes the rest as zero. Pointers are passed as 64-bit integers on every machine.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::bpf_program::{BpfInstruction, ByteOrder, encode_program};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEMENT: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

/// `BPF_MAP_TYPE_XSKMAP`.
const MAP_OF_XDP_SOCKETS: u32 = 17;
/// `BPF_PROG_TYPE_XDP`.
const PROGRAM_XDP: u32 = 6;
/// `BPF_XDP` in `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_SKB_MODE` of linux/if_link.h.
const FLAG_GENERIC: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
const FLAG_NATIVE: u32 = 1 << 2;

/// `BPF_OBJ_NAME_LEN`.
const NAME_BYTES: usize = 16;
/// Name that `bpftool` shows for our maps and programs.
const NAME: [u8; NAME_BYTES] = *b"linerate\0\0\0\0\0\0\0\0";
/// Attempts to load a program when the kernel was interrupted; the same number as in libbpf.
const LOAD_ATTEMPTS: u32 = 5;
/// Buffer for the verifier's log of a short program.
const LOG_BYTES: usize = 8192;

/// Position of an XDP program in the kernel's receive path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpHook {
    /// In the driver, before the kernel allocates a packet buffer for the frame.
    Native,
    /// After that, in the kernel's common receive path: works with every driver.
    Generic,
}

/// A map from receive queue to AF_XDP socket.
#[derive(Debug)]
pub struct SocketMap(OwnedFd);

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl SocketMap {
    /// Creates an empty map for the queues `0..queues`.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` (or `CAP_SYS_ADMIN`) in the initial user namespace, and before
    /// Linux 5.11 also if `RLIMIT_MEMLOCK` is too low; `EINVAL` if the kernel has no AF_XDP.
    pub fn new(queues: u32) -> io::Result<Self> {
        let mut attributes = MapCreate {
            map_type: MAP_OF_XDP_SOCKETS,
            key_bytes: 4,
            value_bytes: 4,
            entries: queues.max(1),
            flags: 0,
            inner_map: 0,
            numa_node: 0,
            name: NAME,
        };
        // SAFETY: a map's attributes contain no pointer.
        unsafe { call_bpf_for_descriptor(MAP_CREATE, &mut attributes) }.map(Self)
    }

    /// Redirects the frames of `queue` to `socket`. The kernel removes the entry when the socket is
    /// closed.
    ///
    /// # Errors
    /// `E2BIG` for a queue outside the map, `EOPNOTSUPP` for a socket that is not bound or not an
    /// AF_XDP socket.
    pub fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = fd_number(socket);
        let mut attributes = MapUpdate {
            map: fd_number(self.0.as_fd()),
            padding: 0,
            key: pointer_value(&raw const queue),
            value: pointer_value(&raw const value),
            flags: 0,
        };
        // SAFETY: key and value have four bytes each, as the map was created with, and outlive the
        // call.
        unsafe { call_bpf(MAP_UPDATE_ELEMENT, &mut attributes) }.map(drop)
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An XDP program loaded into the kernel.
#[derive(Debug)]
pub struct XdpProgram(OwnedFd);

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
    interface: u32,
    attach_type: u32,
}

/// Error of loading a program.
#[derive(Debug)]
pub struct ProgramRejection {
    /// Error of the system call.
    pub error: io::Error,
    /// Log of the verifier; empty if it did not run (no privilege, no memory).
    pub log: String,
}

impl XdpProgram {
    /// Loads a program; the kernel verifies and translates it.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN` in the initial user namespace; the verifier's
    /// log for a program that it rejects.
    pub fn load_program(program: &[BpfInstruction]) -> Result<Self, ProgramRejection> {
        let code = encode_program(program, ByteOrder::NATIVE);
        let plain = load_program(&code, program.len(), &mut []);
        plain.map(Self).map_err(|error| {
            // Second attempt with the log; the first one is faster without.
            let mut log = vec![0; LOG_BYTES];
            let has_log = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EINVAL));
            if has_log {
                let _ = load_program(&code, program.len(), &mut log);
            }
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            ProgramRejection {
                error,
                log: String::from_utf8_lossy(&log[..end]).trim().to_owned(),
            }
        })
    }
}

fn load_program(code: &[u8], instructions: usize, log: &mut [u8]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut attempt = || {
        let mut attributes = ProgramLoad {
            program_type: PROGRAM_XDP,
            instructions: instructions as u32,
            code: pointer_value(code.as_ptr()),
            license: pointer_value(license.as_ptr()),
            log_level: u32::from(!log.is_empty()),
            log_bytes: log.len() as u32,
            log: if log.is_empty() {
                0
            } else {
                pointer_value(log.as_mut_ptr())
            },
            kernel_version: 0,
            flags: 0,
            name: NAME,
            interface: 0,
            attach_type: ATTACH_XDP,
        };
        // SAFETY: `code` holds that many instructions, the licence ends with a zero, and the kernel
        // writes at most `log_bytes` to `log`; all three outlive the call.
        unsafe { call_bpf_for_descriptor(PROGRAM_LOAD, &mut attributes) }
    };
    // The kernel aborts a load with EAGAIN when a signal arrives meanwhile.
    (1..LOAD_ATTEMPTS)
        .find_map(|_| {
            let result = attempt();
            let is_interrupted =
                matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            (!is_interrupted).then_some(result)
        })
        .unwrap_or_else(attempt)
}

/// Link that keeps a program attached to an interface. Detached on drop, and by the kernel when the
/// process ends in any way.
#[derive(Debug)]
pub struct BpfLink {
    descriptor: OwnedFd,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

impl BpfLink {
    /// Attaches a program to an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// `EBUSY` or `EEXIST` if the interface already has a program, `EOPNOTSUPP` if its driver has
    /// no native hook, `ERANGE` if its MTU is too large for the native hook, `EINVAL` before Linux
    /// 5.9, `EPERM` without `CAP_NET_ADMIN`.
    pub fn attach(program: &XdpProgram, interface: u32, hook: XdpHook) -> io::Result<Self> {
        let mut attributes = LinkCreate {
            program: fd_number(program.0.as_fd()),
            interface,
            attach_type: ATTACH_XDP,
            flags: match hook {
                XdpHook::Native => FLAG_NATIVE,
                XdpHook::Generic => FLAG_GENERIC,
            },
        };
        // SAFETY: a link's attributes contain no pointer.
        let descriptor = unsafe { call_bpf_for_descriptor(LINK_CREATE, &mut attributes) }?;
        Ok(Self { descriptor })
    }
}

impl Drop for BpfLink {
    fn drop(&mut self) {
        #[repr(C)]
        struct LinkDetach {
            link: u32,
        }
        let mut attributes = LinkDetach {
            link: fd_number(self.descriptor.as_fd()),
        };
        // Closing the descriptor would detach it too, but some time later; that remains if this
        // fails.
        // SAFETY: a link's attributes contain no pointer.
        let _ = unsafe { call_bpf(LINK_DETACH, &mut attributes) };
    }
}

/// A descriptor as in `union bpf_attr`.
fn fd_number(descriptor: BorrowedFd<'_>) -> u32 {
    u32::try_from(descriptor.as_raw_fd()).expect("an open descriptor is not negative")
}

/// A pointer as in `union bpf_attr`.
fn pointer_value<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// Calls bpf(2).
///
/// # Safety
/// Every pointer in `attributes` is valid for what the command does with it.
unsafe fn call_bpf<T>(code: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` has the given length and is exclusively borrowed; the caller guarantees
    // the memory it points to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            code,
            std::ptr::from_mut(attributes),
            size_of::<T>() as libc::c_uint,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Calls bpf(2) with a command that returns a new descriptor (close-on-exec, like all of bpf's).
///
/// # Safety
/// Like [`call_bpf`], and the command returns a descriptor.
unsafe fn call_bpf_for_descriptor<T>(
    number: libc::c_int,
    attributes: &mut T,
) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise is the same.
    let raw = unsafe { call_bpf(number, attributes) }?;
    let raw = RawFd::try_from(raw).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
