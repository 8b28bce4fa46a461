//! The two halves of a socket. The kernel shares four rings with it: fill and receive belong to the
//! receiving half, transmit and completion to the sending one, so that two threads never touch the same.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::kind::xdp::attachment::Attachment;
use crate::pool::Pool;
use crate::port::{Receive, Transmit};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::xsk::{Statistics, XdpSocket};
use crate::sys::xsk_half::{ReceiveRings, Stray, TransmitRings};
use crate::sys::xsk_lent::Lent;

/// Bytes of an Ethernet header: what is shorter is no frame, and a driver may stumble over it.
const SHORTEST_FRAME_BYTES: u16 = 14;
/// Frames that are lent together, when so many have come back: a burst at a time keeps the fill ring nearly
/// full and writes its shared word once for 32 frames.
const REFILL: u32 = BURST_FRAMES as u32;

/// What both halves keep open.
pub(crate) struct Shared {
    pub(super) port: String,
    /// None once the last half is gone.
    pub(super) socket: Option<XdpSocket>,
    /// The program that feeds this socket and those of the other queues.
    pub(super) attachment: Arc<Attachment>,
    pub(super) zero_copy: bool,
    /// Accounts of halves that are gone, for when the socket is closed.
    pub(super) left: Mutex<Vec<Lent>>,
}

impl Shared {
    /// Lets the frames of a queue come.
    pub(super) fn feed(&self, queue: u32) -> io::Result<()> {
        self.attachment.feed(queue, self.socket().as_fd())
    }

    fn socket(&self) -> &XdpSocket {
        self.socket
            .as_ref()
            .expect("the socket is open while a half lives")
    }

    /// What a failed wake-up tells.
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
                action: "tell its counters",
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
        // Where a device was given the frames themselves, those that it has are lost to this memory.
        let Some(closed) = self.socket.take().and_then(XdpSocket::close) else {
            return;
        };
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        for lent in left.drain(..) {
            lent.return_all(&closed);
        }
    }
}

/// The receiving half: lends frames to the kernel, and gets them back with what arrived.
pub struct XdpReceive {
    pub(super) shared: Arc<Shared>,
    /// None once dropped.
    pub(super) rings: Option<Box<ReceiveRings>>,
    pub(super) napi: Option<Arc<AtomicU32>>,
    pub(super) counters: Arc<QueueCounters>,
    /// The kernel's counters as last taken over.
    pub(super) seen: Statistics,
}

impl XdpReceive {
    /// Lends frames before the first poll.
    pub(super) fn refill(&mut self, pool: &mut Pool) {
        if let Some(rings) = &mut self.rings {
            refill(rings, pool);
        }
    }
}

/// Lends free frames to the kernel as far as there are any, until it has as many as the fill ring holds.
///
/// Goes by the account of what is lent, which is exact: a position of the kernel's that was read once and
/// kept would starve the ring for good.
#[inline]
fn refill(rings: &mut ReceiveRings, pool: &mut Pool) {
    if rings.wanted() < REFILL.min(rings.size() / 4) {
        return;
    }
    // Read here, so that `lend` knows of all places that the kernel has emptied.
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
                    // The core that the kernel copied it on may be another one.
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
        // With busy polling nobody else drives the device; otherwise it asks when it has gone to sleep.
        if rings.need_wakeup() || (self.napi.is_some() && taken == 0) {
            // What it says is heard again, and judged, in `refresh`.
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

/// Frames lost between two readings of the kernel's counters, by cause.
///
/// In copy mode the kernel counts a frame for which there was no buffer twice: once among the dropped
/// and once as an empty fill ring. With zero-copy an empty fill ring is counted for each look at it, not for each
/// frame, so it tells nothing here: what the device lost is in the device's own counters.
pub(super) fn lost_between(
    before: Statistics,
    now: Statistics,
    zero_copy: bool,
) -> [(Cause, u64); 4] {
    // Absent on an old kernel, and in the reading that stands for the start.
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

/// The sending half.
pub struct XdpTransmit {
    pub(super) shared: Arc<Shared>,
    /// None once dropped.
    pub(super) rings: Option<Box<TransmitRings>>,
    /// Bytes of the longest frame that the interface sends.
    pub(super) longest: u16,
    pub(super) counters: Arc<QueueCounters>,
    /// The kernel's counters as last taken over.
    pub(super) seen: Statistics,
    /// What the last wake-up said, if it failed.
    pub(super) failed: Option<io::Error>,
}

/// Takes frames that have left; returns how many.
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

/// Has the kernel send what is in the ring, when it waits to be told; keeps what the last call said.
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

/// Whether the kernel has too much to do, or left frames for the next call.
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
        // Looked at once a burst: `put` goes by it.
        rings.room();
        let (mut sent, mut bytes) = (0_usize, 0_u64);
        let taken = burst.take_front(|frame| {
            let length = frame.len();
            // The kernel drops what it cannot send without giving the frame back, so it must not get it.
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
        // Also when nothing was added: a kernel that was busy left frames in the ring.
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

/// How long frames in the ring are waited for when the port is closed.
const LAST: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_micros(50);

/// Has the kernel send what it left in the ring when it was busy: it counts as sent, and goes with the socket. A device
/// that was given the frames themselves is waited for until it says that it has sent them.
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
