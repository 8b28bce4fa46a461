//! Control channel to the other end of a run, for any protocol.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use linerate_dialect::control::Frame;
use linerate_host::sys::clock::Nanos;

use crate::error::MeasureError;

/// Control channel to the other end of a run: our control connection, or the protocol of another
/// tool translated to our frames.
pub trait Correspondence {
    /// Returns the next frame; `None` when none has arrived.
    ///
    /// # Errors
    /// When the other end is lost, or violates the protocol.
    fn hear(&mut self) -> Result<Option<Frame>, MeasureError>;

    /// Sends a frame.
    ///
    /// # Errors
    /// When the other end is lost.
    fn say(&mut self, frame: Frame) -> Result<(), MeasureError>;

    /// Sends a heartbeat if nothing was sent for a while.
    ///
    /// # Errors
    /// When the other end is lost.
    fn beat(&mut self) -> Result<(), MeasureError>;

    /// Sends queued bytes.
    ///
    /// # Errors
    /// When the other end is lost.
    fn flush(&mut self) -> Result<(), MeasureError>;

    /// Waits until data arrives here or on `other`, or until `deadline`.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn wait(&self, other: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), MeasureError>;

    /// Handles rejected datagrams of one flow (ICMP port unreachable), given their number so far.
    ///
    /// # Errors
    /// When they end the run.
    fn refused(&self, datagrams: u32) -> Result<(), MeasureError> {
        // Our control connection reports the reason itself.
        let _ = datagrams;
        Ok(())
    }

    /// Returns the time of the next action.
    fn due_ns(&self) -> Nanos;

    /// Returns the address of the other end.
    fn peer(&self) -> SocketAddr;
}
