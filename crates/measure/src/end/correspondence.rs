//! The other end of a run, whatever it speaks.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use linerate_dialect::control::Frame;
use linerate_host::sys::clock::Nanos;

use crate::error::MeasureError;

/// The other end of a run, as this one talks with it: a control connection of ours, or the dialect of
/// another program put into our words.
pub trait Correspondence {
    /// What it said next; `None` when nothing has come.
    ///
    /// # Errors
    /// When it is gone, or makes no sense.
    fn hear(&mut self) -> Result<Option<Frame>, MeasureError>;

    /// Says something to it.
    ///
    /// # Errors
    /// When it is gone.
    fn say(&mut self, frame: Frame) -> Result<(), MeasureError>;

    /// Says that this end is still there, if nothing was said for a while.
    ///
    /// # Errors
    /// When it is gone.
    fn beat(&mut self) -> Result<(), MeasureError>;

    /// Sends what is waiting.
    ///
    /// # Errors
    /// When it is gone.
    fn flush(&mut self) -> Result<(), MeasureError>;

    /// Waits until something arrives from it or on `other`, or until `deadline`.
    ///
    /// # Errors
    /// What the kernel says.
    fn wait(&self, other: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), MeasureError>;

    /// Datagrams of one flow, so many by now, were refused: its host said that nobody has the far port.
    ///
    /// # Errors
    /// When that ends the run.
    fn refused(&self, datagrams: u32) -> Result<(), MeasureError> {
        // Where there is a control connection, that knows more.
        let _ = datagrams;
        Ok(())
    }

    /// When something has to be said or looked at.
    fn due_ns(&self) -> Nanos;

    /// Its address.
    fn peer(&self) -> SocketAddr;
}
