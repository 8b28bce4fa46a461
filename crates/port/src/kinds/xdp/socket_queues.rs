//! Receive and transmit queue of an AF_XDP socket. The kernel shares four rings with it: fill and
//! receive ring belong to the receive queue, transmit and completion ring to the transmit queue, so
//! that two threads never use the same ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::kinds::xdp::attachment::Attachment;
use crate::queue::{Receive, Transmit};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frames_in_flight::Lent;
use crate::sys::xsk_rings::{ReceiveRings, Stray, TransmitRings};
use crate::sys::xsk_socket::{Statistics, XdpSocket};

/// Bytes of an Ethernet header: a shorter frame is invalid, and may cause errors in a driver.
const SHORTEST_FRAME_BYTES: u16 = 14;
/// Frames added to the fill ring at once, when so many have come back: a burst at a time keeps the
/// ring nearly full and writes its shared index once per 32 frames.
const REFILL: u32 = BURST_FRAMES as u32;

/// Socket shared by both queues.
pub(crate) struct Shared {
    pub(super) port: String,
    /// None after the last queue is dropped.
    pub(super) socket: Option<XdpSocket>,
    /// XDP program that redirects frames to this socket and those of the other queues.
    pub(super) attachment: Arc<Attachment>,
    pub(super) zero_copy: bool,
    /// Frames in flight of dropped queues, kept until the socket is closed.
    pub(super) left: Mutex<Vec<Lent>>,
}

impl Shared {
    /// Starts the redirection of a receive queue's frames to the socket.
    pub(super) fn feed(&self, queue: u32) -> io::Result<()> {
        self.attachment.feed(queue, self.socket().as_fd())
    }

    fn socket(&self) -> &XdpSocket {
        self.socket
            .as_ref()
            .expect("the socket is open while a queue exists")
    }

    /// Converts the error of a wake-up call; transient ones are no error.
    fn judge(&self, error: io::Error) -> Result<(), PortError> {
        if is_later(&error) {
            return Ok(());
        }
        let why = match error.raw_os_error() {
            Some(libc::ENETDOWN) => "its interface was set down".to_owned(),
            Some(libc::ENXIO | libc::ENODEV) => "its interface is gone".to_owned(),
            _ => error.to_string(),
        };
        Err(PortError::Stopped {
            port: self.port.clone(),
            why,
        })
    }

    fn statistics(&self) -> Result<Statistics, PortError> {
        self.socket()
            .statistics()
            .map_err(|source| PortError::Kernel {
                port: self.port.clone(),
                action: "return its counters",
                source,
            })
    }

    fn leave(&self, lent: Lent) {
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(lent);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Frames that a zero-copy device still has are lost to this memory.
        let Some(closed) = self.socket.take().and_then(XdpSocket::close) else {
            return;
        };
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        for lent in left.drain(..) {
            lent.return_all(&closed);
        }
    }
}

/// Receive queue: gives free frames to the kernel, and gets them back with received data.
pub struct XdpReceive {
    pub(super) shared: Arc<Shared>,
    /// None once dropped.
    pub(super) rings: Option<Box<ReceiveRings>>,
    pub(super) napi: Option<Arc<AtomicU32>>,
    pub(super) counters: Arc<QueueCounters>,
    /// Kernel counters at the last `refresh`.
    pub(super) seen: Statistics,
}

impl XdpReceive {
    /// Fills the fill ring before the first poll.
    pub(super) fn refill(&mut self, pool: &mut Pool) {
        if let Some(rings) = &mut self.rings {
            refill(rings, pool);
        }
    }
}

/// Gives free frames to the kernel, as far as available, until it has as many as the fill ring
/// holds.
///
/// Decides by the exact number of frames in flight: a cached position of the kernel would starve
/// the ring for good.
#[inline]
fn refill(rings: &mut ReceiveRings, pool: &mut Pool) {
    if rings.wanted() < REFILL.min(rings.size() / 4) {
        return;
    }
    // Read here, so that `lend` uses all slots that the kernel has emptied.
    rings.room();
    let mut given = 0;
    while rings.wanted() > 0 {
        let Some(frame) = pool.allocate() else { break };
        if let Err(frame) = rings.lend(frame) {
            pool.free(frame);
            break;
        }
        given += 1;
    }
    if given > 0 {
        rings.show();
    }
}

impl Receive for XdpReceive {
    #[inline]
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        let wanted = burst.room().min(rings.waiting() as usize);
        let (mut taken, mut bytes) = (0, 0);
        for _ in 0..wanted {
            match rings.take() {
                Some(Ok(frame)) => {
                    bytes += u64::from(frame.len());
                    taken += 1;
                    // The kernel may have copied it on another core.
                    pool.memory().fetch_head(&frame);
                    if let Err(frame) = burst.push(frame) {
                        pool.free(frame);
                    }
                }
                Some(Err(Stray)) => self.counters.dropped(Cause::Bad, 1),
                None => break,
            }
        }
        if wanted > 0 {
            rings.release();
            self.counters.moved(taken, bytes);
        }
        refill(rings, pool);
        // With busy polling only this process drives the device; otherwise the kernel requests a
        // wake-up.
        if rings.need_wakeup() || (self.napi.is_some() && taken == 0) {
            // The error is returned again, and handled, in `refresh`.
            let _ = self.shared.socket().wake_receive();
        }
        taken
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let now = self.shared.statistics()?;
        for (cause, frames) in lost_between(self.seen, now, self.shared.zero_copy) {
            if frames > 0 {
                self.counters.dropped(cause, frames);
            }
        }
        self.seen = now;
        if let Some(napi) = self.napi.as_ref().filter(|napi| napi.load(Relaxed) == 0)
            && let Ok(id) = self.shared.socket().napi()
        {
            napi.store(id, Relaxed);
        }
        match self.shared.socket().wake_receive() {
            Ok(()) => Ok(()),
            Err(error) => self.shared.judge(error),
        }
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.socket().as_fd())
    }
}

impl Drop for XdpReceive {
    fn drop(&mut self) {
        if let Some(rings) = self.rings.take() {
            self.shared.leave(rings.into_lent());
        }
    }
}

/// Returns the frames lost between two readings of the kernel's counters, by cause.
///
/// In copy mode the kernel counts a frame without a buffer twice: as dropped and as an empty fill
/// ring. With zero-copy an empty fill ring is counted once per check, not per frame, so it is not
/// used here: the device's own counters have the frames that it lost.
pub(super) fn lost_between(
    before: Statistics,
    now: Statistics,
    zero_copy: bool,
) -> [(Cause, u64); 4] {
    // Absent on an old kernel, and in the initial reading.
    let late = |field: fn(&Statistics) -> Option<u64>| {
        let (now, before) = (field(&now).unwrap_or(0), field(&before).unwrap_or(0));
        now.saturating_sub(before)
    };
    let dropped = now.rx_dropped.saturating_sub(before.rx_dropped);
    let no_buffer = if zero_copy {
        0
    } else {
        late(|statistics| statistics.fill_ring_empty).min(dropped)
    };
    [
        (Cause::RingFull, late(|statistics| statistics.rx_ring_full)),
        (Cause::NoBuffer, no_buffer),
        (Cause::TooLong, dropped - no_buffer),
        (Cause::Bad, now.rx_invalid.saturating_sub(before.rx_invalid)),
    ]
}

/// Transmit queue of an AF_XDP socket.
pub struct XdpTransmit {
    pub(super) shared: Arc<Shared>,
    /// None after it is dropped.
    pub(super) rings: Option<Box<TransmitRings>>,
    /// Longest frame that the interface sends, in bytes.
    pub(super) longest: u16,
    pub(super) counters: Arc<QueueCounters>,
    /// Kernel counters at the last `refresh`.
    pub(super) seen: Statistics,
    /// Error of the last wake-up call, if it failed.
    pub(super) failed: Option<io::Error>,
}

/// Frees frames whose transmission is complete; returns their number.
#[inline]
fn collect(rings: &mut TransmitRings, pool: &mut Pool) -> usize {
    if rings.waiting() == 0 {
        return 0;
    }
    let mut back = 0;
    while let Some(taken) = rings.take() {
        if let Ok(frame) = taken {
            pool.free(frame);
            back += 1;
        }
    }
    rings.release();
    back
}

/// Wakes the kernel to send the ring's frames, if it requests that; keeps the last error.
#[inline]
fn wake(rings: &TransmitRings, socket: &XdpSocket, failed: &mut Option<io::Error>) {
    if rings.need_wakeup() {
        match socket.wake_transmit() {
            Ok(()) if failed.is_none() => {}
            Ok(()) => *failed = None,
            Err(error) if is_later(&error) => {}
            Err(error) => *failed = Some(error),
        }
    }
}

/// Returns true if the kernel is busy, or left frames for the next call.
fn is_later(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(
        code,
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR)
    )
}

impl Transmit for XdpTransmit {
    #[inline]
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        collect(rings, pool);
        // Read once a burst: `put` uses the result.
        rings.room();
        let (mut sent, mut bytes) = (0_usize, 0_u64);
        let taken = burst.take_front(|frame| {
            let length = frame.len();
            // The kernel drops an invalid frame without returning it, so it must not get one.
            let fault = match length {
                0..SHORTEST_FRAME_BYTES => Some(Cause::Bad),
                _ if length > self.longest => Some(Cause::TooLong),
                _ => None,
            };
            if let Some(cause) = fault {
                self.counters.dropped(cause, 1);
                pool.free(frame);
                return Ok(());
            }
            rings.put(frame)?;
            sent += 1;
            bytes += u64::from(length);
            Ok(())
        });
        if sent > 0 {
            rings.show();
            self.counters.moved(sent, bytes);
        }
        // Also if no frame was added: a busy kernel may have left frames in the ring.
        if sent > 0 || taken == 0 {
            wake(rings, self.shared.socket(), &mut self.failed);
        }
        taken
    }

    #[inline]
    fn reclaim(&mut self, pool: &mut Pool) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        if rings.is_pending() {
            wake(rings, self.shared.socket(), &mut self.failed);
        }
        collect(rings, pool)
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let now = self.shared.statistics()?;
        let bad = now.tx_invalid.saturating_sub(self.seen.tx_invalid);
        if bad > 0 {
            self.counters.dropped(Cause::Bad, bad);
        }
        self.seen = now;
        match self.failed.take() {
            Some(error) => self.shared.judge(error),
            None => Ok(()),
        }
    }
}

/// Maximum time to wait for frames in the ring when the port is closed.
const LAST: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_micros(50);

/// Lets the kernel send frames left in the ring: they are counted as sent, and would be lost with
/// the socket. With zero-copy, waits until the device reports that it has sent them.
fn send_last(rings: &mut TransmitRings, socket: &XdpSocket, zero_copy: bool) {
    let mut pool = rings.lent().memory().pool();
    let until = Instant::now() + LAST;
    while rings.is_pending() || (zero_copy && rings.lent().count() > 0) {
        let woken = socket.wake_transmit();
        collect(rings, &mut pool);
        if woken.is_err_and(|error| !is_later(&error)) || Instant::now() >= until {
            break;
        }
        thread::sleep(LAST_PAUSE);
    }
}

impl Drop for XdpTransmit {
    fn drop(&mut self) {
        if let Some(mut rings) = self.rings.take() {
            send_last(&mut rings, self.shared.socket(), self.shared.zero_copy);
            self.shared.leave(rings.into_lent());
        }
    }
}
