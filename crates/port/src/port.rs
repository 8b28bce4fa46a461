//! The seam: two queues and what they can do.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::capabilities::Capabilities;
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::kind::{AnyReceive, AnyTransmit};
use crate::pool::Pool;
use crate::sys::burst::Burst;

/// A time without the process at the other end, as it was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// When it was found gone.
    pub from: Instant,
    /// When it, or another in its place, came; none: not yet.
    pub until: Option<Instant>,
}

/// The process at the other end of a port that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partner {
    /// None has come yet.
    Awaited,
    /// It is there.
    There,
    /// It went, and none has come in its place.
    Gone,
}

/// A receive queue, polled by one thread. No call but `refresh` may block, allocate or lock.
pub trait Receive: Send {
    /// Appends waiting frames to `burst` while it has room; returns how many (0: none waiting).
    ///
    /// `pool` gives the frames that bytes are copied into, or that the kernel fills later.
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize;

    /// The queue's counters, to be shared with whoever reports.
    fn counters(&self) -> &Arc<QueueCounters>;

    /// Takes over what only the kernel counts, and says whether the queue still works.
    ///
    /// For once an interval and at the end, by the queue's owner.
    ///
    /// # Errors
    /// Why no frame will come any more: the interface is gone or down.
    fn refresh(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Whether no frame will come any more although nothing is wrong: a file is read to its end.
    fn ended(&self) -> bool {
        false
    }

    /// What to wait on (readable) instead of spinning, where the kernel offers something.
    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether somebody is at the other end, as of the last `refresh` at the latest; none where that is not known. Not
    /// for loops: it locks.
    fn partner(&self) -> Option<Partner> {
        None
    }

    /// When nobody was at the other end any more after somebody had been, the earliest first. Not for
    /// loops: it allocates and locks.
    fn absences(&self) -> Vec<Absence> {
        Vec::new()
    }

    /// A poll, or a few while they come full, of at most so many frames each that leave by `to` unread, where
    /// the two have a way of their own for that; returns how many came. What `to` does not take is dropped and counted.
    #[inline(always)]
    fn pass<T: Transmit>(&mut self, to: &mut T, most: usize) -> Option<usize> {
        let _ = (to, most);
        None
    }
}

/// A transmit queue, polled by one thread. No call but `refresh` may block, allocate or lock.
pub trait Transmit: Send {
    /// Takes frames from the front of `burst` until the ring is full; the rest stay the caller's, to
    /// send later or to [`refuse`](Transmit::refuse). Returns how many it took.
    ///
    /// Frames that have left, of this call or earlier ones, go to `pool`.
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize;

    /// Gives frames that have left to `pool`, and starts what waits to be started; returns how many came.
    ///
    /// For loops that have nothing to send for a while.
    fn reclaim(&mut self, pool: &mut Pool) -> usize {
        let _ = pool;
        0
    }

    /// The queue's counters, to be shared with whoever reports.
    fn counters(&self) -> &Arc<QueueCounters>;

    /// As [`Receive::refresh`].
    ///
    /// # Errors
    /// Why no frame will leave any more.
    fn refresh(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// The queue where it is one of DPDK's.
    #[cfg(feature = "dpdk")]
    fn as_dpdk(&mut self) -> Option<&mut crate::kind::dpdk::DpdkTransmit> {
        None
    }

    /// Gives up on what is left of a burst: the frames go to `pool` and count as dropped, ring full.
    #[inline]
    fn refuse(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        let count = pool.free_all(burst);
        self.counters().dropped(Cause::RingFull, count as u64);
        count
    }
}

/// A poll-mode port: one receive and one transmit queue, for a loop that owns both.
///
/// A loop that polls one and sends to another takes the halves apart ([`Pair::receive`],
/// [`Pair::transmit`]) and gives each to its thread.
pub trait Port {
    /// As [`Receive::receive`].
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize;
    /// As [`Transmit::transmit`].
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize;
    /// As [`Transmit::reclaim`].
    fn reclaim(&mut self, pool: &mut Pool) -> usize;
    /// What the port can do; read once before the loop.
    fn capabilities(&self) -> &Capabilities;
    /// The counters: received, sent.
    fn counters(&self) -> (&Arc<QueueCounters>, &Arc<QueueCounters>);
    /// As [`Receive::refresh`], for both queues.
    ///
    /// # Errors
    /// Why the port will not work any more.
    fn refresh(&mut self) -> Result<(), PortError>;
    /// As [`Receive::wait_handle`].
    fn wait_handle(&self) -> Option<BorrowedFd<'_>>;
}

/// Two queues that are a port. Its parts may go to different threads.
#[derive(Debug)]
pub struct Pair<R, T> {
    /// Where frames come from.
    pub receive: R,
    /// Where frames go.
    pub transmit: T,
    /// What they can do.
    pub capabilities: Capabilities,
}

/// A port of any kind: the kind is looked at once a burst, by a `match` that costs a tenth of a
/// nanosecond, where a call through a pointer costs two.
pub type AnyPort = Pair<AnyReceive, AnyTransmit>;

impl<R: Receive, T: Transmit> Port for Pair<R, T> {
    #[inline]
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        self.receive.receive(pool, burst)
    }

    #[inline]
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        self.transmit.transmit(pool, burst)
    }

    #[inline]
    fn reclaim(&mut self, pool: &mut Pool) -> usize {
        self.transmit.reclaim(pool)
    }

    fn capabilities(&self) -> &Capabilities {
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

impl<R, T> Pair<R, T> {
    /// The same port as one of any kind.
    #[must_use]
    pub fn any(self) -> AnyPort
    where
        R: Into<AnyReceive>,
        T: Into<AnyTransmit>,
    {
        Pair {
            receive: self.receive.into(),
            transmit: self.transmit.into(),
            capabilities: self.capabilities,
        }
    }
}
