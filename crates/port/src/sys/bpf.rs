//! The few commands of bpf(2) that an AF_XDP port needs: a map of sockets, a program, and the link
//! that holds the program on an interface for as long as somebody holds the link's descriptor.
//!
//! Structures are those of `union bpf_attr` in linux/bpf.h, each as long as what is used of it; the
//! kernel takes the rest as zero. Pointers travel as 64-bit numbers on every machine.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::bpf_program::{ByteOrder, Instruction, encode};

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
/// What `bpftool` shows for our maps and programs.
const NAME: [u8; NAME_BYTES] = *b"linerate\0\0\0\0\0\0\0\0";
/// How often a load that the kernel interrupted is tried again; libbpf tries as often.
const LOAD_ATTEMPTS: u32 = 5;
/// Room for what the verifier says about a program of a few instructions.
const LOG_BYTES: usize = 8192;

/// Where in the kernel a program meets frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the driver, before the kernel makes a packet of its own out of the frame.
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
    /// Makes an empty map for the queues `0..queues`.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` (or `CAP_SYS_ADMIN`) in the machine's first user namespace, and
    /// before Linux 5.11 also when `RLIMIT_MEMLOCK` is too low; `EINVAL` where the kernel has no AF_XDP.
    pub fn new(queues: u32) -> io::Result<Self> {
        let mut wish = MapCreate {
            map_type: MAP_OF_XDP_SOCKETS,
            key_bytes: 4,
            value_bytes: 4,
            entries: queues.max(1),
            flags: 0,
            inner_map: 0,
            numa_node: 0,
            name: NAME,
        };
        // SAFETY: a map's attributes hold no pointer.
        unsafe { descriptor(MAP_CREATE, &mut wish) }.map(Self)
    }

    /// Gives the frames of `queue` to `socket`. The kernel takes the entry out when the socket closes.
    ///
    /// # Errors
    /// `E2BIG` for a queue outside the map, `EOPNOTSUPP` for a socket that is not bound or is no
    /// AF_XDP socket.
    pub fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = number(socket);
        let mut wish = MapUpdate {
            map: number(self.0.as_fd()),
            padding: 0,
            key: address(&raw const queue),
            value: address(&raw const value),
            flags: 0,
        };
        // SAFETY: key and value are four bytes each, as the map was made with, and live past the call.
        unsafe { command(MAP_UPDATE_ELEMENT, &mut wish) }.map(drop)
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An XDP program in the kernel.
#[derive(Debug)]
pub struct Program(OwnedFd);

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

/// A program that the kernel did not take.
#[derive(Debug)]
pub struct Refused {
    /// Why, in one number.
    pub error: io::Error,
    /// What the verifier said; empty when it was not asked (no privilege, no memory).
    pub log: String,
}

impl Program {
    /// Has the kernel check and translate a program.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN` in the machine's first user namespace; what the
    /// verifier found, in words, for a program that it does not let pass.
    pub fn load(program: &[Instruction]) -> Result<Self, Refused> {
        let code = encode(program, ByteOrder::NATIVE);
        let plain = load(&code, program.len(), &mut []);
        plain.map(Self).map_err(|error| {
            // A second try, now with the log: the first one is faster without.
            let mut log = vec![0; LOG_BYTES];
            let asked = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EINVAL));
            if asked {
                let _ = load(&code, program.len(), &mut log);
            }
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            Refused {
                error,
                log: String::from_utf8_lossy(&log[..end]).trim().to_owned(),
            }
        })
    }
}

fn load(code: &[u8], instructions: usize, log: &mut [u8]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut attempt = || {
        let mut wish = ProgramLoad {
            program_type: PROGRAM_XDP,
            instructions: instructions as u32,
            code: address(code.as_ptr()),
            license: address(license.as_ptr()),
            log_level: u32::from(!log.is_empty()),
            log_bytes: log.len() as u32,
            log: if log.is_empty() {
                0
            } else {
                address(log.as_mut_ptr())
            },
            kernel_version: 0,
            flags: 0,
            name: NAME,
            interface: 0,
            attach_type: ATTACH_XDP,
        };
        // SAFETY: `code` holds that many instructions, the licence ends with a zero, and the kernel
        // writes at most `log_bytes` to `log`; all three live past the call.
        unsafe { descriptor(PROGRAM_LOAD, &mut wish) }
    };
    // The kernel gives a load up with EAGAIN when a signal comes in the middle of it.
    (1..LOAD_ATTEMPTS)
        .find_map(|_| {
            let outcome = attempt();
            let again = matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            (!again).then_some(outcome)
        })
        .unwrap_or_else(attempt)
}

/// A program on an interface. It is taken off when this is dropped, and by the kernel when the
/// process ends in whatever way.
#[derive(Debug)]
pub struct Link {
    descriptor: OwnedFd,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

impl Link {
    /// Puts a program on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// `EBUSY` or `EEXIST` when the interface has a program already, `EOPNOTSUPP` when its driver has
    /// no native hook, `ERANGE` when its MTU is too large for the native hook, `EINVAL` before
    /// Linux 5.9, `EPERM` without `CAP_NET_ADMIN`.
    pub fn attach(program: &Program, interface: u32, hook: Hook) -> io::Result<Self> {
        let mut wish = LinkCreate {
            program: number(program.0.as_fd()),
            interface,
            attach_type: ATTACH_XDP,
            flags: match hook {
                Hook::Native => FLAG_NATIVE,
                Hook::Generic => FLAG_GENERIC,
            },
        };
        // SAFETY: a link's attributes hold no pointer.
        let descriptor = unsafe { descriptor(LINK_CREATE, &mut wish) }?;
        Ok(Self { descriptor })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        #[repr(C)]
        struct LinkDetach {
            link: u32,
        }
        let mut wish = LinkDetach {
            link: number(self.descriptor.as_fd()),
        };
        // Closing the descriptor would do it too, but some time later. A refusal leaves it to that.
        // SAFETY: a link's attributes hold no pointer.
        let _ = unsafe { command(LINK_DETACH, &mut wish) };
    }
}

/// A descriptor as `union bpf_attr` has it.
fn number(descriptor: BorrowedFd<'_>) -> u32 {
    u32::try_from(descriptor.as_raw_fd()).expect("an open descriptor is not negative")
}

/// A pointer as `union bpf_attr` has it.
fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// One call of bpf(2).
///
/// # Safety
/// Every pointer in `attributes` is valid for what the command does with it.
unsafe fn command<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` is as long as said and exclusively borrowed; the caller vouches for what
    // it points to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
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

/// One call of bpf(2) whose answer is a new descriptor, closed at exec as all of bpf's are.
///
/// # Safety
/// As [`command`], and the command answers with a descriptor.
unsafe fn descriptor<T>(number: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise is the same.
    let raw = unsafe { command(number, attributes) }?;
    let raw = RawFd::try_from(raw).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
