//! Receive and transmit queue of an AF_XDP socket. The kernel shares four rings with it: fill and
//! receive ring belong to the receive queue, transmit and completion ring to the transmit queue, so
//! that two threads never use the same ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use linerate_packet::frame::ETHERNET_HEADER_BYTES;
use linerate_sys::af_xdp::frames_in_flight::InFlightFrames;
use linerate_sys::af_xdp::mapped_rings::{ReceiveRings, StaleFrame, TransmitRings};
use linerate_sys::af_xdp::xsk_socket::{XdpSocket, XskStatistics};
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::frame_pool::FramePool;

use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::kinds::xdp::attachment::ProgramAttachment;
use crate::queue::{RxQueue, TxQueue};

/// Frames added to the fill ring at once, when so many have come back: a burst at a time keeps the
/// ring nearly full and writes its shared index once per 32 frames.
const REFILL_FRAMES: u32 = BURST_FRAMES as u32;

/// Socket shared by both queues.
pub(crate) struct SharedSocket {
    pub(super) port: String,
    /// None after the last queue is dropped.
    pub(super) socket: Option<XdpSocket>,
    /// XDP program that redirects frames to this socket and those of the other queues.
    pub(super) attachment: Arc<ProgramAttachment>,
    pub(super) zero_copy: bool,
    /// Frames in flight of dropped queues, kept until the socket is closed.
    pub(super) in_flight: Mutex<Vec<InFlightFrames>>,
}

impl SharedSocket {
    /// Starts the redirection of a receive queue's frames to the socket.
    pub(super) fn receive_from_queue(&self, queue: u32) -> io::Result<()> {
        self.attachment.redirect_queue(queue, self.socket().as_fd())
    }

    fn socket(&self) -> &XdpSocket {
        self.socket
            .as_ref()
            .expect("the socket is open while a queue exists")
    }

    /// Converts the error of a wake-up call; transient ones are no error.
    fn check_wake_error(&self, error: io::Error) -> Result<(), PortError> {
        if is_transient(&error) {
            return Ok(());
        }
        let why = match error.raw_os_error() {
            Some(libc::ENETDOWN) => "its interface was set down".to_owned(),
            Some(libc::ENXIO | libc::ENODEV) => "its interface is gone".to_owned(),
            _ => error.to_string(),
        };
        Err(PortError::Stopped {
            port: self.port.clone(),
            reason: why,
        })
    }

    fn statistics(&self) -> Result<XskStatistics, PortError> {
        self.socket()
            .statistics()
            .map_err(|source| PortError::Kernel {
                port: self.port.clone(),
                action: "return its counters",
                source,
            })
    }

    fn keep_in_flight(&self, frames: InFlightFrames) {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(frames);
    }
}

impl Drop for SharedSocket {
    fn drop(&mut self) {
        // Frames that a zero-copy device still has are lost to this memory.
        let Some(closed) = self.socket.take().and_then(XdpSocket::close) else {
            return;
        };
        let accounts = self
            .in_flight
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for frames in accounts.drain(..) {
            frames.reclaim_all(&closed);
        }
    }
}

/// Receive queue: gives free frames to the kernel, and gets them back with received data.
pub struct XdpReceive {
    pub(super) shared: Arc<SharedSocket>,
    /// None once dropped.
    pub(super) rings: Option<Box<ReceiveRings>>,
    pub(super) napi_id: Option<Arc<AtomicU32>>,
    pub(super) counters: Arc<QueueCounters>,
    /// Kernel counters at the last `refresh`.
    pub(super) last_statistics: XskStatistics,
}

impl XdpReceive {
    /// Fills the fill ring before the first poll.
    pub(super) fn refill(&mut self, pool: &mut FramePool) {
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
fn refill(rings: &mut ReceiveRings, pool: &mut FramePool) {
    if rings.missing() < REFILL_FRAMES.min(rings.size() / 4) {
        return;
    }
    // Read here, so that `push` uses all slots that the kernel has emptied.
    rings.free_slots();
    let mut added = 0;
    while rings.missing() > 0 {
        let Some(frame) = pool.allocate() else { break };
        if let Err(frame) = rings.push(frame) {
            pool.free(frame);
            break;
        }
        added += 1;
    }
    if added > 0 {
        rings.publish();
    }
}

impl RxQueue for XdpReceive {
    #[inline]
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        let max_frames = burst.remaining().min(rings.available() as usize);
        let (mut received, mut bytes) = (0, 0);
        for _ in 0..max_frames {
            match rings.pop() {
                Some(Ok(frame)) => {
                    bytes += u64::from(frame.len());
                    received += 1;
                    // The kernel may have copied it on another core.
                    pool.memory().prefetch_headers(&frame);
                    if let Err(frame) = burst.push(frame) {
                        pool.free(frame);
                    }
                }
                Some(Err(StaleFrame)) => self.counters.add_drops(DropCause::Invalid, 1),
                None => break,
            }
        }
        if max_frames > 0 {
            rings.release();
            self.counters.add_frames(received, bytes);
        }
        refill(rings, pool);
        // With busy polling only this process drives the device; otherwise the kernel requests a
        // wake-up.
        if rings.need_wakeup() || (self.napi_id.is_some() && received == 0) {
            // The error is returned again, and handled, in `refresh`.
            let _ = self.shared.socket().wake_receive();
        }
        received
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let now = self.shared.statistics()?;
        for (cause, frames) in lost_between(self.last_statistics, now, self.shared.zero_copy) {
            if frames > 0 {
                self.counters.add_drops(cause, frames);
            }
        }
        self.last_statistics = now;
        if let Some(napi) = self.napi_id.as_ref().filter(|napi| napi.load(Relaxed) == 0)
            && let Ok(id) = self.shared.socket().napi_id()
        {
            napi.store(id, Relaxed);
        }
        match self.shared.socket().wake_receive() {
            Ok(()) => Ok(()),
            Err(error) => self.shared.check_wake_error(error),
        }
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.socket().as_fd())
    }
}

impl Drop for XdpReceive {
    fn drop(&mut self) {
        if let Some(rings) = self.rings.take() {
            self.shared.keep_in_flight(rings.into_in_flight());
        }
    }
}

/// Returns the frames lost between two readings of the kernel's counters, by cause.
///
/// In copy mode the kernel counts a frame without a buffer twice: as dropped and as an empty fill
/// ring. With zero-copy an empty fill ring is counted once per check, not per frame, so it is not
/// used here: the device's own counters have the frames that it lost.
pub(super) fn lost_between(
    before: XskStatistics,
    now: XskStatistics,
    zero_copy: bool,
) -> [(DropCause, u64); 4] {
    // Absent on an old kernel, and in the initial reading.
    let optional_delta = |field: fn(&XskStatistics) -> Option<u64>| {
        let (now, before) = (field(&now).unwrap_or(0), field(&before).unwrap_or(0));
        now.saturating_sub(before)
    };
    let dropped = now.rx_dropped.saturating_sub(before.rx_dropped);
    let no_buffer = if zero_copy {
        0
    } else {
        optional_delta(|statistics| statistics.fill_ring_empty).min(dropped)
    };
    [
        (
            DropCause::RingFull,
            optional_delta(|statistics| statistics.rx_ring_full),
        ),
        (DropCause::NoBuffer, no_buffer),
        (DropCause::TooLong, dropped - no_buffer),
        (
            DropCause::Invalid,
            now.rx_invalid.saturating_sub(before.rx_invalid),
        ),
    ]
}

/// Transmit queue of an AF_XDP socket.
pub struct XdpTransmit {
    pub(super) shared: Arc<SharedSocket>,
    /// None after it is dropped.
    pub(super) rings: Option<Box<TransmitRings>>,
    /// Longest frame that the interface sends, in bytes.
    pub(super) max_frame_bytes: u16,
    pub(super) counters: Arc<QueueCounters>,
    /// Kernel counters at the last `refresh`.
    pub(super) last_statistics: XskStatistics,
    /// Error of the last wake-up call, if it failed.
    pub(super) wake_error: Option<io::Error>,
}

/// Frees frames whose transmission is complete; returns their number.
#[inline]
fn reclaim_completed(rings: &mut TransmitRings, pool: &mut FramePool) -> usize {
    if rings.available() == 0 {
        return 0;
    }
    let mut reclaimed = 0;
    while let Some(completed) = rings.pop() {
        if let Ok(frame) = completed {
            pool.free(frame);
            reclaimed += 1;
        }
    }
    rings.release();
    reclaimed
}

/// Wakes the kernel to send the ring's frames, if it requests that; keeps the last error.
#[inline]
fn wake(rings: &TransmitRings, socket: &XdpSocket, wake_error: &mut Option<io::Error>) {
    if rings.need_wakeup() {
        match socket.wake_transmit() {
            Ok(()) if wake_error.is_none() => {}
            Ok(()) => *wake_error = None,
            Err(error) if is_transient(&error) => {}
            Err(error) => *wake_error = Some(error),
        }
    }
}

/// Returns true if the kernel is busy, or left frames for the next call.
fn is_transient(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(
        code,
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR)
    )
}

impl TxQueue for XdpTransmit {
    #[inline]
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        reclaim_completed(rings, pool);
        // Read once a burst: `put` uses the result.
        rings.free_slots();
        let (mut sent, mut bytes) = (0_usize, 0_u64);
        let taken = burst.take_front(|frame| {
            let length = frame.len();
            // The kernel drops an invalid frame without returning it, so it must not get one. A frame
            // without a whole header may also cause errors in a driver.
            let drop_cause = match length {
                _ if usize::from(length) < ETHERNET_HEADER_BYTES => Some(DropCause::Invalid),
                _ if length > self.max_frame_bytes => Some(DropCause::TooLong),
                _ => None,
            };
            if let Some(cause) = drop_cause {
                self.counters.add_drops(cause, 1);
                pool.free(frame);
                return Ok(());
            }
            rings.push(frame)?;
            sent += 1;
            bytes += u64::from(length);
            Ok(())
        });
        if sent > 0 {
            rings.publish();
            self.counters.add_frames(sent, bytes);
        }
        // Also if no frame was added: a busy kernel may have left frames in the ring.
        if sent > 0 || taken == 0 {
            wake(rings, self.shared.socket(), &mut self.wake_error);
        }
        taken
    }

    #[inline]
    fn reclaim(&mut self, pool: &mut FramePool) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        if rings.is_pending() {
            wake(rings, self.shared.socket(), &mut self.wake_error);
        }
        reclaim_completed(rings, pool)
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let now = self.shared.statistics()?;
        let bad = now
            .tx_invalid
            .saturating_sub(self.last_statistics.tx_invalid);
        if bad > 0 {
            self.counters.add_drops(DropCause::Invalid, bad);
        }
        self.last_statistics = now;
        match self.wake_error.take() {
            Some(error) => self.shared.check_wake_error(error),
            None => Ok(()),
        }
    }
}

/// Maximum time to wait for frames in the ring when the port is closed.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
const DRAIN_PAUSE: Duration = Duration::from_micros(50);

/// Lets the kernel send frames left in the ring: they are counted as sent, and would be lost with
/// the socket. With zero-copy, waits until the device reports that it has sent them.
fn drain(rings: &mut TransmitRings, socket: &XdpSocket, zero_copy: bool) {
    let mut pool = rings.in_flight().memory().pool();
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    while rings.is_pending() || (zero_copy && rings.in_flight().count() > 0) {
        let woken = socket.wake_transmit();
        reclaim_completed(rings, &mut pool);
        if woken.is_err_and(|error| !is_transient(&error)) || Instant::now() >= deadline {
            break;
        }
        thread::sleep(DRAIN_PAUSE);
    }
}

impl Drop for XdpTransmit {
    fn drop(&mut self) {
        if let Some(mut rings) = self.rings.take() {
            drain(&mut rings, self.shared.socket(), self.shared.zero_copy);
            self.shared.keep_in_flight(rings.into_in_flight());
        }
    }
}
