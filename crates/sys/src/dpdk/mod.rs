//! DPDK devices, through a C shim ((`shim.c`)).
//!
//! The EAL exists once per process: it is started with the first port and never stopped. It pins
//! the thread that starts it, which is undone here.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::frames::burst::BURST_FRAMES;

unsafe extern "C" {
    fn lr_dpdk_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn lr_dpdk_attach(device: *const c_char, port: *mut u16) -> c_int;
    fn lr_dpdk_start(
        port: u16,
        name: *const c_char,
        rxd: *mut u16,
        txd: *mut u16,
        mtu: u16,
        pool: *mut *mut c_void,
    ) -> c_int;
    fn lr_dpdk_stop(port: u16, pool: *mut c_void);
    fn lr_dpdk_address(port: u16, address: *mut u8) -> c_int;
    fn lr_dpdk_receive(
        port: u16,
        frames: *mut *mut c_void,
        bytes: *mut *const u8,
        lengths: *mut u32,
        most: u16,
    ) -> u16;
    fn lr_dpdk_free(frames: *mut *mut c_void, count: u16);
    fn lr_dpdk_transmit(
        port: u16,
        pool: *mut c_void,
        bytes: *const *const u8,
        lengths: *const u16,
        count: u16,
    ) -> u16;
    fn lr_dpdk_pass(
        from: u16,
        to: u16,
        most: u16,
        polls: u32,
        weigh: u32,
        passed: *mut DirectForwardCounts,
    );
    fn lr_dpdk_counts_bytes(port: u16) -> c_int;
    fn lr_dpdk_dropped(port: u16, dropped: *mut u64) -> c_int;
}

/// Result of one direct forwarding visit from a port to another.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DirectForwardCounts {
    /// Frames received.
    pub received: u32,
    /// Frames sent.
    pub sent: u32,
    /// Frames whose lengths were read.
    pub sized: u32,
    unused: u32,
    /// Bytes of these frames.
    pub received_bytes: u64,
    /// Bytes of those of these frames that were sent.
    pub sent_bytes: u64,
}

fn check_result(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.unsigned_abs() as i32)),
    }
}

/// True after the EAL was started. Locked while it is started and while devices are added or
/// removed, which DPDK does not permit from several threads at once.
static EAL_STARTED: Mutex<bool> = Mutex::new(false);

/// Number of free huge pages of 2 MB from which they are used: those that the EAL's memory needs.
const MIN_FREE_HUGE_PAGES: u64 = 128;

/// PCI address without a device: the list of devices that the EAL may use at its start. Devices are
/// added when their ports are opened; without such a list the EAL would take every device that it
/// has a driver for.
const NO_PCI_DEVICE: &str = "ffff:ff:1f.7";

fn eal_arguments(device: &str) -> Vec<String> {
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    let mut args = vec!["linerate".to_owned(), "--no-telemetry".to_owned()];
    args.extend(match free >= MIN_FREE_HUGE_PAGES {
        true => vec!["--in-memory".to_owned()],
        false => vec!["--no-huge".to_owned()],
    });
    args.extend(["-m", "256", "--log-level", "*:error"].map(str::to_owned));
    args.push(format!("--file-prefix=linerate-{}", std::process::id()));
    // PCI addresses begin with a digit (0000:01:00.0); names of virtual devices do not.
    match device.starts_with(|first: char| first.is_ascii_digit()) {
        true => args.extend(["-a", NO_PCI_DEVICE].map(str::to_owned)),
        false => args.push("--no-pci".to_owned()),
    }
    args
}

/// Starts the EAL, unless it is running.
fn start_eal(device: &str, started: &mut bool) -> io::Result<()> {
    if *started {
        return Ok(());
    }
    let args: Result<Vec<CString>, _> = eal_arguments(device)
        .into_iter()
        .map(CString::new)
        .collect();
    let args = args.map_err(io::Error::other)?;
    let mut pointers: Vec<*mut c_char> = args.iter().map(|arg| arg.as_ptr().cast_mut()).collect();
    let count = c_int::try_from(pointers.len()).map_err(io::Error::other)?;
    pointers.push(std::ptr::null_mut());
    let before = rustix::thread::sched_getaffinity(None);
    // SAFETY: `count` strings that end with a zero, followed by a null pointer; the EAL may reorder
    // the pointers, and does not write to the strings.
    check_result(unsafe { lr_dpdk_init(count, pointers.as_mut_ptr()) })?;
    // The EAL keeps pointers to its arguments.
    std::mem::forget(args);
    if let Ok(before) = before {
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    *started = true;
    Ok(())
}

/// Port of a DPDK device with one receive and one transmit queue.
#[derive(Debug)]
pub struct DpdkDevice {
    port: u16,
    pool: NonNull<c_void>,
    /// Descriptors obtained: receive, transmit.
    pub descriptors: (u16, u16),
    pub address: Option<[u8; 6]>,
}

// SAFETY: the pool and the port may be used from any thread, and each queue by one thread at a
// time, which the two queues of a port ensure.
unsafe impl Send for DpdkDevice {}
// SAFETY: as above: one queue receives, the other sends, and DPDK's queues are independent.
unsafe impl Sync for DpdkDevice {}

impl DpdkDevice {
    /// Creates a virtual device or probes a physical one, and starts it.
    pub fn open(device: &str, descriptors: u32, mtu: u16) -> io::Result<Self> {
        let text = CString::new(device).map_err(io::Error::other)?;
        let mut started = EAL_STARTED
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        start_eal(device, &mut started)?;
        let mut port = 0;
        // SAFETY: a string that ends with a zero, and an integer to write to.
        check_result(unsafe { lr_dpdk_attach(text.as_ptr(), &raw mut port) })?;
        // The pool of an earlier port with this number may still exist, so names are unique.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = CString::new(format!("linerate-{number}")).map_err(io::Error::other)?;
        let requested = u16::try_from(descriptors).unwrap_or(u16::MAX);
        let (mut rxd, mut txd) = (requested, requested);
        let mut pool = std::ptr::null_mut();
        // SAFETY: a string, two integers and a pointer to write to; the port was attached above.
        check_result(unsafe {
            lr_dpdk_start(
                port,
                name.as_ptr(),
                &raw mut rxd,
                &raw mut txd,
                mtu,
                &raw mut pool,
            )
        })?;
        let mut address = [0; 6];
        // SAFETY: six bytes to write to.
        let has_address = unsafe { lr_dpdk_address(port, address.as_mut_ptr()) } == 0;
        Ok(Self {
            port,
            pool: NonNull::new(pool)
                .ok_or_else(|| io::Error::other("DPDK returned no memory pool"))?,
            descriptors: (rxd, txd),
            address: Some(address).filter(|address| has_address && *address != [0; 6]),
        })
    }

    /// Passes each received frame to `take`; returns their number. For the receive queue only.
    pub fn receive(&self, max_frames: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut frames = [std::ptr::null_mut(); BURST_FRAMES];
        let mut bytes = [std::ptr::null(); BURST_FRAMES];
        let mut lengths = [0; BURST_FRAMES];
        let max_frames = max_frames.min(BURST_FRAMES) as u16;
        // SAFETY: three arrays with space for that many; only the receive queue polls.
        let count = unsafe {
            lr_dpdk_receive(
                self.port,
                frames.as_mut_ptr(),
                bytes.as_mut_ptr(),
                lengths.as_mut_ptr(),
                max_frames,
            )
        };
        for (bytes, length) in bytes.iter().zip(lengths).take(count.into()) {
            // SAFETY: the frame has that many bytes, and belongs to this call until it is freed
            // below.
            take(unsafe { std::slice::from_raw_parts(*bytes, length as usize) });
        }
        // SAFETY: the received frames, each once.
        unsafe { lr_dpdk_free(frames.as_mut_ptr(), count) };
        count.into()
    }

    /// Copies frames and sends them; returns the number sent. For the transmit queue only.
    pub fn transmit(&self, frames: &[&[u8]]) -> usize {
        let mut bytes = [std::ptr::null(); BURST_FRAMES];
        let mut lengths = [0; BURST_FRAMES];
        let count = frames.len().min(BURST_FRAMES);
        for ((frame, bytes), length) in frames.iter().zip(&mut bytes).zip(&mut lengths) {
            *bytes = frame.as_ptr();
            *length = u16::try_from(frame.len()).unwrap_or(u16::MAX);
        }
        // SAFETY: `count` frames with their lengths, borrowed for the call; the pool is the port's
        // own; only the transmit queue sends.
        let sent = unsafe {
            lr_dpdk_transmit(
                self.port,
                self.pool.as_ptr(),
                bytes.as_ptr(),
                lengths.as_ptr(),
                count as u16,
            )
        };
        sent.into()
    }

    /// Forwards received frames to another port, unread, by at most `polls` polls, of which the
    /// first `sized_polls` read the lengths. For the receive queue of this port together with the
    /// transmit queue of the other.
    pub fn forward_to(
        &self,
        to: &Self,
        max_frames: usize,
        polls: u32,
        sized_polls: u32,
    ) -> DirectForwardCounts {
        let mut counts = DirectForwardCounts::default();
        let max_frames = max_frames.min(BURST_FRAMES) as u16;
        // SAFETY: a structure to write to, with the layout of the shim's; the caller owns these two
        // queues.
        unsafe {
            lr_dpdk_pass(
                self.port,
                to.port,
                max_frames,
                polls,
                sized_polls,
                &raw mut counts,
            )
        };
        counts
    }

    /// Returns true if the device counts received bytes; none if it has received none yet.
    #[cold]
    pub fn counts_bytes(&self) -> Option<bool> {
        // SAFETY: takes an integer.
        let reply = unsafe { lr_dpdk_counts_bytes(self.port) };
        (reply >= 0).then_some(reply > 0)
    }

    /// Frames dropped by the device: for lack of a descriptor, invalid ones, for lack of a buffer.
    pub fn read_drops(&self) -> [u64; 3] {
        let mut dropped = [0; 3];
        // SAFETY: three integers to write to.
        let result = unsafe { lr_dpdk_dropped(self.port, dropped.as_mut_ptr()) };
        match result {
            0 => dropped,
            // The device has no counters.
            _ => [0; 3],
        }
    }
}

impl Drop for DpdkDevice {
    fn drop(&mut self) {
        let _started = EAL_STARTED
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: both queues are dropped, so the device's queues are unused; the pool remains
        // until frames that another device holds are returned.
        unsafe { lr_dpdk_stop(self.port, self.pool.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other devices of the machine are not taken from their users.
    #[test]
    fn the_eal_takes_no_device_at_its_start() {
        let list = ["-a", NO_PCI_DEVICE];
        let args = eal_arguments("0000:01:00.0,mac=1");
        assert!(args.windows(2).any(|pair| pair == list), "{args:?}");
        let args = eal_arguments("net_ring0");
        assert!(args.contains(&"--no-pci".to_owned()), "{args:?}");
        assert!(!args.contains(&"-a".to_owned()), "{args:?}");
    }
}
