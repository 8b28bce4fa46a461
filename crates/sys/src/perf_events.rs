//! Event rings of perf_event_open: context switches of a thread, and tracepoints.
//!
//! All times are of CLOCK_MONOTONIC. Reading a ring is a memory access, without a system call.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::clock::Nanos;

/// Used fields of `struct perf_event_attr`; the kernel appends fields and never moves them.
#[derive(Clone, Copy, Default)]
struct PerfAttributes {
    kind: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    flags: u64,
}

const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
/// `PERF_COUNT_SW_DUMMY`: counts nothing; used for its side-band records.
const PERF_COUNT_SW_DUMMY: u64 = 9;

const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CPU: u64 = 1 << 7;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;

const FLAG_DISABLED: u64 = 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
const FLAG_USE_CLOCK: u64 = 1 << 25;
const FLAG_CONTEXT_SWITCH: u64 = 1 << 26;

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH: u32 = 14;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPTED: u16 = 1 << 14;

// _IO('$', n) and related numbers of linux/perf_event.h.
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const IOC_SET_FILTER: libc::c_ulong = ioc(1, 6, size_of::<*const libc::c_char>());
const IOC_ID: libc::c_ulong = ioc(2, 7, size_of::<*const u64>());

/// Computes an ioctl number with an argument, in the generic layout.
const fn ioc(direction: libc::c_ulong, number: libc::c_ulong, bytes: usize) -> libc::c_ulong {
    (direction << 30) | ((bytes as libc::c_ulong) << 16) | (0x24 << 8) | number
}

fn open_event(
    attributes: PerfAttributes,
    pid: libc::pid_t,
    cpu: libc::c_int,
) -> io::Result<OwnedFd> {
    /// Size of the structure's third version (Linux 3.19), which has all fields used here.
    const BYTES: usize = 112;
    let mut raw = [0u8; BYTES];
    let mut put_bytes = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
    put_bytes(0, &attributes.kind.to_ne_bytes());
    put_bytes(4, &(BYTES as u32).to_ne_bytes());
    put_bytes(8, &attributes.config.to_ne_bytes());
    put_bytes(16, &attributes.sample_period.to_ne_bytes());
    put_bytes(24, &attributes.sample_type.to_ne_bytes());
    put_bytes(
        40,
        &to_bit_field(attributes.flags | FLAG_USE_CLOCK | FLAG_DISABLED).to_ne_bytes(),
    );
    put_bytes(92, &libc::CLOCK_MONOTONIC.to_ne_bytes());
    const CLOEXEC: libc::c_ulong = 8;
    // SAFETY: the attributes are readable for the size that they state.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            raw.as_ptr(),
            pid,
            cpu,
            -1 as libc::c_int,
            CLOEXEC,
        )
    };
    let fd = libc::c_int::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Converts to the order of C bit fields, which start at the other end on big-endian machines.
fn to_bit_field(flags: u64) -> u64 {
    if cfg!(target_endian = "big") {
        flags.reverse_bits()
    } else {
        flags
    }
}

fn ioctl(fd: &OwnedFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: callers pass a request whose argument is a number, or the address of memory that
    // lives through the call and fits the request.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Size of a ring: more than 4096 context switches, or about 5000 events of 40 bytes.
pub const RING_BYTES: usize = 256 << 10;

/// Memory shared with the kernel: a control page and the ring.
struct PerfRing {
    /// Events that write into the ring; the mapping belongs to the first.
    events: Vec<OwnedFd>,
    map: NonNull<u8>,
    map_bytes: usize,
    page: usize,
    /// Buffer for one record, which may wrap around the end of the ring.
    record: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone, and the kernel does not depend on the reading
// thread.
unsafe impl Send for PerfRing {}

impl PerfRing {
    fn new(event: OwnedFd, bytes: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let map_bytes = page + bytes.next_power_of_two().max(page);
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            map: NonNull::new(map.cast()).expect("the kernel maps nothing at null"),
            events: vec![event],
            map_bytes,
            page,
            record: Vec::new(),
        })
    }

    /// Position counter in the control page.
    fn counter_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.page);
        // SAFETY: the offset lies within the first page of the mapping.
        let address = unsafe { self.map.as_ptr().add(offset) };
        // SAFETY: the page is mapped as long as `self` lives, the offset is a multiple of 8, and
        // the kernel changes the value with single stores only.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }

    fn enable(&self) -> io::Result<()> {
        self.events
            .iter()
            .try_for_each(|event| ioctl(event, IOC_ENABLE, 0))
    }

    /// Removes every record and passes its type, flags and body to `on_event`.
    fn drain(&mut self, mut on_event: impl FnMut(u32, u16, &[u8])) {
        /// `data_head` and `data_tail` of `struct perf_event_mmap_page`.
        const HEAD: usize = 1024;
        const TAIL: usize = 1032;
        const HEADER: usize = 8;
        let head = self.counter_at(HEAD).load(Ordering::Acquire);
        let mut tail = self.counter_at(TAIL).load(Ordering::Relaxed);
        let mut record = std::mem::take(&mut self.record);
        while head.wrapping_sub(tail) >= HEADER as u64 {
            let mut header = [0; HEADER];
            self.copy_bytes(tail, &mut header);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let misc = u16::from_ne_bytes([header[4], header[5]]);
            let bytes = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if bytes < HEADER || head.wrapping_sub(tail) < bytes as u64 {
                // Not a valid record: the rest cannot be parsed.
                tail = head;
                break;
            }
            record.resize(bytes - HEADER, 0);
            self.copy_bytes(tail.wrapping_add(HEADER as u64), &mut record);
            on_event(kind, misc, &record);
            tail = tail.wrapping_add(bytes as u64);
        }
        self.record = record;
        self.counter_at(TAIL).store(tail, Ordering::Release);
    }

    /// Copies bytes from a position of the ring, across its end if necessary.
    fn copy_bytes(&self, position: u64, out: &mut [u8]) {
        let ring = self.map_bytes - self.page;
        let mut position_in_ring = (position % ring as u64) as usize;
        let mut copied = 0;
        while copied < out.len() {
            let chunk_bytes = (out.len() - copied).min(ring - position_in_ring);
            // SAFETY: `at + part` does not exceed the ring, which follows the first page.
            let source = unsafe { self.map.as_ptr().add(self.page + position_in_ring) };
            // SAFETY: the kernel does not write between tail and head, where these bytes lie; `out`
            // is memory of this process.
            unsafe {
                std::ptr::copy_nonoverlapping(source, out[copied..].as_mut_ptr(), chunk_bytes)
            };
            copied += chunk_bytes;
            position_in_ring = 0;
        }
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping with this length, and no reference to it is left.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Context switch of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextSwitch {
    pub at_ns: Nanos,
    /// True if the thread was switched in, false if out.
    pub switched_in: bool,
    /// True if it was switched out while still runnable.
    pub preempted: bool,
}

/// Recorder of the context switches of one thread. Needs no privilege for own threads.
pub struct ContextSwitchRecorder(PerfRing);

impl ContextSwitchRecorder {
    /// Starts recording the calling thread.
    ///
    /// # Errors
    /// Fails when the kernel or `kernel.perf_event_paranoid` does not allow it.
    pub fn start() -> io::Result<Self> {
        let event = open_event(
            PerfAttributes {
                kind: TYPE_SOFTWARE,
                config: PERF_COUNT_SW_DUMMY,
                sample_type: SAMPLE_TIME,
                flags: FLAG_EXCLUDE_KERNEL
                    | FLAG_EXCLUDE_HYPERVISOR
                    | FLAG_SAMPLE_ID_ALL
                    | FLAG_CONTEXT_SWITCH,
                ..PerfAttributes::default()
            },
            0,
            -1,
        )?;
        let ring = PerfRing::new(event, RING_BYTES)?;
        ring.enable()?;
        Ok(Self(ring))
    }

    /// Passes the recorded switches to `on_event`, in order; returns the number of events lost
    /// because the ring was full.
    pub fn drain(&mut self, mut on_event: impl FnMut(ContextSwitch)) -> u64 {
        let mut lost = 0;
        self.0.drain(|kind, misc, body| match kind {
            RECORD_SWITCH => {
                if let Some(at_ns) = u64_at(body, 0) {
                    on_event(ContextSwitch {
                        at_ns,
                        switched_in: misc & MISC_SWITCH_OUT == 0,
                        preempted: misc & MISC_SWITCH_OUT_PREEMPTED != 0,
                    });
                }
            }
            RECORD_LOST => lost += u64_at(body, 8).unwrap_or(1),
            _ => {}
        });
        lost
    }
}

/// Tracepoint to record on every processor.
#[derive(Clone, Debug)]
pub struct Tracepoint {
    /// Id (file `id` in its tracefs directory).
    pub id: u64,
    /// Filter in the kernel's filter language; empty for none.
    pub filter: String,
}

/// Recorded event of a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointEvent {
    /// Index of the tracepoint in the list.
    pub tracepoint: usize,
    pub at_ns: Nanos,
    pub cpu: u32,
}

/// Recorder of tracepoints on all processors. Needs CAP_PERFMON, or `kernel.perf_event_paranoid` at
/// -1.
pub struct TracepointRecorder {
    rings: Vec<PerfRing>,
    /// Kernel ids of the opened events, with the index of their tracepoint.
    ids: Vec<(u64, usize)>,
}

impl TracepointRecorder {
    /// Starts recording `tracepoints` on `cpus`.
    ///
    /// # Errors
    /// Fails when the kernel does not allow it, or lacks a tracepoint or a field of its filter.
    pub fn start(tracepoints: &[Tracepoint], cpus: &[u32]) -> io::Result<Self> {
        let (mut rings, mut ids) = (Vec::new(), Vec::new());
        for &cpu in cpus {
            let mut ring: Option<PerfRing> = None;
            for (number, tracepoint) in tracepoints.iter().enumerate() {
                let event = open_event(
                    PerfAttributes {
                        kind: TYPE_TRACEPOINT,
                        config: tracepoint.id,
                        sample_period: 1,
                        sample_type: SAMPLE_IDENTIFIER | SAMPLE_TIME | SAMPLE_CPU,
                        flags: 0,
                    },
                    -1,
                    libc::c_int::try_from(cpu).unwrap_or(-1),
                )?;
                if !tracepoint.filter.is_empty() {
                    let filter = std::ffi::CString::new(tracepoint.filter.as_str())?;
                    ioctl(&event, IOC_SET_FILTER, filter.as_ptr() as libc::c_ulong)?;
                }
                let mut id = 0u64;
                ioctl(&event, IOC_ID, (&raw mut id) as libc::c_ulong)?;
                ids.push((id, number));
                match &mut ring {
                    None => ring = Some(PerfRing::new(event, RING_BYTES)?),
                    Some(ring) => {
                        let output_fd = ring.events[0].as_raw_fd();
                        ioctl(&event, IOC_SET_OUTPUT, output_fd as libc::c_ulong)?;
                        ring.events.push(event);
                    }
                }
            }
            rings.extend(ring);
        }
        for ring in &rings {
            ring.enable()?;
        }
        Ok(Self { rings, ids })
    }

    /// Passes the recorded events to `on_event`, in order per processor; returns the number of
    /// events lost because a ring was full.
    pub fn drain(&mut self, mut on_event: impl FnMut(TracepointEvent)) -> u64 {
        let mut lost = 0;
        for ring in &mut self.rings {
            ring.drain(|kind, _, body| match kind {
                RECORD_SAMPLE => {
                    let (Some(id), Some(at_ns), Some(cpu)) =
                        (u64_at(body, 0), u64_at(body, 8), u64_at(body, 16))
                    else {
                        return;
                    };
                    // The processor is the first u32 of its 64-bit word in either byte order.
                    let cpu = cpu.to_ne_bytes();
                    let cpu = u32::from_ne_bytes([cpu[0], cpu[1], cpu[2], cpu[3]]);
                    if let Some(&(_, tracepoint)) =
                        self.ids.iter().find(|(event_id, _)| *event_id == id)
                    {
                        on_event(TracepointEvent {
                            tracepoint,
                            at_ns,
                            cpu,
                        });
                    }
                }
                RECORD_LOST => lost += u64_at(body, 8).unwrap_or(1),
                _ => {}
            });
        }
        lost
    }
}

/// Reads the ids of tracepoints named like `sched/sched_waking`.
///
/// If tracefs is not mounted, it is mounted temporarily in the mount namespace of a separate
/// thread, which leaves nothing behind. Ids are cached, so later callers without the privilege get
/// them too.
///
/// # Errors
/// Fails when tracefs cannot be read: it belongs to root, and the kernel may lack it.
pub fn find_tracepoint_ids(names: &[&str]) -> io::Result<Vec<u64>> {
    static ID_CACHE: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
    let cache = || ID_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let all = names.iter().map(|&name| cache().get(name).copied());
    if let Some(ids) = all.collect() {
        return Ok(ids);
    }
    let ids = read_tracepoint_ids(names)?;
    let names = names.iter().map(|&name| name.to_owned());
    cache().extend(names.zip(ids.iter().copied()));
    Ok(ids)
}

fn read_tracepoint_ids(names: &[&str]) -> io::Result<Vec<u64>> {
    for tracefs_dir in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        match read_ids(tracefs_dir, names) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
    }
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let reader = std::thread::spawn(move || {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        with_temporary_tracefs(|tracefs_dir| read_ids(tracefs_dir, &names))
    });
    let ids = reader.join();
    ids.unwrap_or_else(|_| Err(io::Error::other("the thread that reads tracefs panicked")))
}

fn read_ids(tracefs_dir: &str, names: &[&str]) -> io::Result<Vec<u64>> {
    let read = |name: &&str| {
        let text = std::fs::read_to_string(format!("{tracefs_dir}/events/{name}/id"))?;
        text.trim().parse().map_err(io::Error::other)
    };
    names.iter().map(read).collect()
}

/// Mounts tracefs for `read`. Runs in a thread of its own, whose mount namespace ends with it.
fn with_temporary_tracefs<R>(read: impl FnOnce(&str) -> io::Result<R>) -> io::Result<R> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    // SAFETY: only this thread's view of the file system is unshared, and the thread ends soon.
    let result = unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // The mount must not propagate to other namespaces.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    // Any directory that always exists works as mount point.
    let tracefs_dir = "/proc";
    mount("tracefs", tracefs_dir, "tracefs", MountFlags::empty(), None)?;
    read(tracefs_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn sleeping_switches_out_and_in() {
        let mut switches = match ContextSwitchRecorder::start() {
            Ok(switches) => switches,
            Err(error) => {
                println!("skipped: perf events are not allowed here ({error})");
                return;
            }
        };
        let before = clock::now();
        clock::sleep_until(before + 5_000_000);
        let after = clock::now();
        let mut events = Vec::new();
        assert_eq!(switches.drain(|switch| events.push(switch)), 0);
        let asleep = events.iter().position(|s| !s.switched_in && !s.preempted);
        let asleep = asleep.expect("it slept");
        let woke = events[asleep..]
            .iter()
            .find(|s| s.switched_in)
            .expect("it woke");
        assert!(before <= events[asleep].at_ns && events[asleep].at_ns < woke.at_ns);
        assert!(woke.at_ns <= after && woke.at_ns >= before + 5_000_000);
        let mut second_drain = 0;
        switches.drain(|_| second_drain += 1);
        assert!(
            second_drain <= events.len() + 2,
            "no event is reported twice"
        );
    }

    #[test]
    fn many_switches_go_around_the_ring() {
        let Ok(mut switches) = ContextSwitchRecorder::start() else {
            println!("skipped: perf events are not allowed here");
            return;
        };
        let (mut switched_in, mut last) = (0, 0);
        for _ in 0..40 {
            for _ in 0..300 {
                clock::sleep_until(clock::now() + 1_000);
            }
            switches.drain(|switch| {
                assert!(switch.at_ns >= last);
                last = switch.at_ns;
                switched_in += u32::from(switch.switched_in);
            });
        }
        // A deadline that has already passed does not put the thread to sleep.
        assert!(switched_in >= 6_000, "{switched_in}");
    }

    #[test]
    fn tracepoints_of_this_thread_are_seen() {
        let names = ["sched/sched_waking", "irq/softirq_entry"];
        let ids = match find_tracepoint_ids(&names) {
            Ok(ids) => ids,
            Err(error) => {
                println!("skipped: tracefs cannot be read here ({error})");
                return;
            }
        };
        let original_name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        crate::thread::set_name("lr-perf-test").unwrap();
        let specs = [
            Tracepoint {
                id: ids[0],
                filter: "comm == \"lr-perf-test\"".to_owned(),
            },
            Tracepoint {
                id: ids[1],
                filter: "vec == 1".to_owned(),
            },
        ];
        let cpus = crate::cpu::list_usable().unwrap();
        let mut tracepoints = match TracepointRecorder::start(&specs, &cpus) {
            Ok(tracepoints) => tracepoints,
            Err(error) => {
                println!("skipped: perf events of the kernel are not allowed here ({error})");
                return;
            }
        };
        let before = clock::now();
        // The thread is woken by a running thread, which waits until it sleeps: some virtual
        // machines report no wake-up by a timer on an idle processor.
        let state = rustix::thread::gettid().as_raw_nonzero();
        let state = format!("/proc/self/task/{state}/stat");
        let sleeps = || std::fs::read_to_string(&state).unwrap().contains(") S ");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..50 {
                    while !sleeps() {
                        std::thread::yield_now();
                    }
                    sender.send(()).unwrap();
                }
            });
            while receiver.recv().is_ok() {}
        });
        let after = clock::now();
        let mut wake_ups = 0;
        crate::thread::set_name(original_name.trim()).unwrap();
        tracepoints.drain(|event| {
            assert!((before..=after + 1_000_000_000).contains(&event.at_ns));
            wake_ups += u32::from(event.tracepoint == 0);
        });
        assert!(wake_ups >= 10, "{wake_ups}");
    }
}
