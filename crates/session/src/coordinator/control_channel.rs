//! Control channel to the other end of a run, for any protocol.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use linerate_protocol::control::Frame;
use linerate_sys::clock::Nanos;

use crate::error::SessionError;

/// Control channel to the other end of a run: our control connection, or the protocol of another
/// tool translated to our frames.
pub trait ControlChannel {
    /// Returns the next frame; `None` when none has arrived.
    ///
    /// # Errors
    /// When the other end is lost, or violates the protocol.
    fn receive(&mut self) -> Result<Option<Frame>, SessionError>;

    /// Sends a frame.
    ///
    /// # Errors
    /// When the other end is lost.
    fn send(&mut self, frame: Frame) -> Result<(), SessionError>;

    /// Sends a heartbeat if nothing was sent for a while.
    ///
    /// # Errors
    /// When the other end is lost.
    fn send_heartbeat(&mut self) -> Result<(), SessionError>;

    /// Sends queued bytes.
    ///
    /// # Errors
    /// When the other end is lost.
    fn flush(&mut self) -> Result<(), SessionError>;

    /// Waits until data arrives here or on `extra_fd`, or until `deadline`.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn wait(&self, extra_fd: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), SessionError>;

    /// Handles rejected datagrams of one flow (ICMP port unreachable), given their number so far.
    ///
    /// # Errors
    /// When they end the run.
    fn on_rejected_datagrams(&self, datagrams: u32) -> Result<(), SessionError> {
        // Our control connection reports the reason itself.
        let _ = datagrams;
        Ok(())
    }

    /// Notes that payload or a response arrived: the other end is there, whatever delays its frames.
    fn on_arrival(&mut self, now: Nanos) {
        let _ = now;
    }

    /// Notes that frames of this end wait for this time behind its own payload.
    fn on_send_delay(&mut self, now: Nanos, delay_ns: Nanos) {
        let _ = (now, delay_ns);
    }

    /// Returns the time that the path needs for a frame and its reply, queues included, as measured
    /// so far.
    fn path_delay_ns(&self) -> Nanos {
        0
    }

    /// Returns the time of the next action.
    fn next_deadline_ns(&self) -> Nanos;

    /// Returns the address of the other end.
    fn peer(&self) -> SocketAddr;
}
