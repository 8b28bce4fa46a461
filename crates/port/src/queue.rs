//! Traits of a port's two queues, and the pair that makes a port.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_pool::FramePool;

use crate::capabilities::PortCapabilities;
use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::kinds::{AnyReceive, AnyTransmit};

/// Time without a process at the other end of a port, as it was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutageInterval {
    /// Time at which the peer was found to be gone.
    pub from: Instant,
    /// Time at which a peer connected again; none if there is none yet.
    pub until: Option<Instant>,
}

/// State of the process at the other end of a port that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// No peer has connected yet.
    NeverConnected,
    /// A peer is connected.
    Connected,
    /// The peer has gone, and no other has connected since.
    Disconnected,
}

/// A receive queue, polled by one thread. No call but `refresh` may block, allocate or lock.
pub trait RxQueue: Send {
    /// Appends waiting frames to `burst` until it is full; returns their number (0: none waiting).
    ///
    /// `pool` provides the frames that bytes are copied into, or that the kernel fills later.
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize;

    /// Counters of the queue; readers may share them.
    fn counters(&self) -> &Arc<QueueCounters>;

    /// Updates the counters from those that only the kernel keeps, and checks that the queue still
    /// works.
    ///
    /// Meant to be called once per interval and at the end, by the queue's owner.
    ///
    /// # Errors
    /// The reason why no more frames will arrive: the interface is gone or down.
    fn refresh(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Returns true if no more frames will arrive although there is no error: a file was read to
    /// its end.
    fn is_exhausted(&self) -> bool {
        false
    }

    /// File descriptor to wait on (readable) instead of spinning; none if the kernel offers none.
    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// State of the peer, at most as old as the last `refresh`; none if the port cannot detect it.
    ///
    /// Not for the data path: takes a lock.
    fn peer_state(&self) -> Option<PeerState> {
        None
    }

    /// Times during which a peer that had connected was gone, the earliest first.
    ///
    /// Not for the data path: allocates and takes a lock.
    fn peer_outages(&self) -> Vec<OutageInterval> {
        Vec::new()
    }

    /// Moves received frames to `connect` without reading them; none if the two ports have no
    /// direct path.
    ///
    /// Runs one poll, or a few while polls return full bursts, of at most `max_frames` frames each.
    /// Returns the number of frames received. Frames that `connect` does not accept are dropped and
    /// counted.
    #[inline(always)]
    fn forward_direct<T: TxQueue>(&mut self, to: &mut T, max_frames: usize) -> Option<usize> {
        let _ = (to, max_frames);
        None
    }
}

/// A transmit queue, polled by one thread. No call but `refresh` may block, allocate or lock.
pub trait TxQueue: Send {
    /// Takes frames from the front of `burst` until the ring is full; returns their number.
    ///
    /// The other frames stay in `burst`, to be sent later or dropped with
    /// [`drop_unsent`](TxQueue::drop_unsent). Frames whose transmission is complete, of this call
    /// or earlier ones, go to `pool`.
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize;

    /// Returns frames whose transmission is complete to `pool`, and starts pending transmissions;
    /// returns the number of frames returned.
    ///
    /// For loops that have nothing to send for some time.
    fn reclaim(&mut self, pool: &mut FramePool) -> usize {
        let _ = pool;
        0
    }

    /// Counters of the queue; readers may share them.
    fn counters(&self) -> &Arc<QueueCounters>;

    /// Like [`RxQueue::refresh`].
    ///
    /// # Errors
    /// The reason why no more frames will be sent.
    fn refresh(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// The queue as a DPDK transmit queue; none for other kinds.
    #[cfg(feature = "dpdk")]
    fn as_dpdk(&mut self) -> Option<&mut crate::kinds::dpdk::DpdkTransmit> {
        None
    }

    /// Drops the remaining frames of a burst: they go to `pool` and are counted as `RingFull`.
    #[inline]
    fn drop_unsent(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        let count = pool.free_all(burst);
        self.counters().add_drops(DropCause::RingFull, count as u64);
        count
    }
}

/// A poll-mode port: one receive and one transmit queue, for a loop that owns both.
///
/// A loop that receives from one port and sends to another takes the queues apart
/// ([`PortQueues::receive`], [`PortQueues::transmit`]); each can move to a thread of its own.
pub trait Port {
    /// Like [`RxQueue::receive`].
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize;
    /// Like [`TxQueue::transmit`].
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize;
    /// Like [`TxQueue::reclaim`].
    fn reclaim(&mut self, pool: &mut FramePool) -> usize;
    /// Properties of the port; read once before the loop.
    fn capabilities(&self) -> &PortCapabilities;
    /// Counters of the receive queue and of the transmit queue.
    fn counters(&self) -> (&Arc<QueueCounters>, &Arc<QueueCounters>);
    /// Like [`RxQueue::refresh`], for both queues.
    ///
    /// # Errors
    /// The reason why the port no longer works.
    fn refresh(&mut self) -> Result<(), PortError>;
    /// Like [`RxQueue::wait_handle`].
    fn wait_handle(&self) -> Option<BorrowedFd<'_>>;
}

/// Receive and transmit queue of one port. They may move to different threads.
#[derive(Debug)]
pub struct PortQueues<R, T> {
    /// Queue that frames are received from.
    pub receive: R,
    /// Queue that frames are sent to.
    pub transmit: T,
    /// Properties of both queues.
    pub capabilities: PortCapabilities,
}

/// A port of any kind.
///
/// The kind is selected once a burst by a `match`, which costs about 0.1 ns; a virtual call costs 2
/// ns.
pub type AnyPort = PortQueues<AnyReceive, AnyTransmit>;

impl<R: RxQueue, T: TxQueue> Port for PortQueues<R, T> {
    #[inline]
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        self.receive.receive(pool, burst)
    }

    #[inline]
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        self.transmit.transmit(pool, burst)
    }

    #[inline]
    fn reclaim(&mut self, pool: &mut FramePool) -> usize {
        self.transmit.reclaim(pool)
    }

    fn capabilities(&self) -> &PortCapabilities {
        &self.capabilities
    }

    fn counters(&self) -> (&Arc<QueueCounters>, &Arc<QueueCounters>) {
        (self.receive.counters(), self.transmit.counters())
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.receive.refresh()?;
        self.transmit.refresh()
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.receive.wait_handle()
    }
}

impl<R, T> PortQueues<R, T> {
    /// Converts the port to one of any kind.
    #[must_use]
    pub fn into_any(self) -> AnyPort
    where
        R: Into<AnyReceive>,
        T: Into<AnyTransmit>,
    {
        PortQueues {
            receive: self.receive.into(),
            transmit: self.transmit.into(),
            capabilities: self.capabilities,
        }
    }
}
