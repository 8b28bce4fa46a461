//! Promiscuous mode of an interface: reception of frames for any address.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::PacketSocket;
use crate::sys::interface_ioctl::Facts;

/// Promiscuous mode of a device, on or off. The previous mode is restored after the last clone is
/// dropped, and when the process ends in any way. Receives no frames itself.
#[derive(Clone)]
pub struct Promiscuous {
    inner: Arc<Inner>,
}

struct Inner {
    socket: PacketSocket,
    interface: Facts,
    is_on: Mutex<bool>,
}

impl Promiscuous {
    /// Enables it.
    pub(crate) fn on(interface: &Facts) -> io::Result<Self> {
        let socket = PacketSocket::open()?;
        socket.promiscuous(interface, true)?;
        Ok(Self {
            inner: Arc::new(Inner {
                socket,
                interface: *interface,
                is_on: Mutex::new(true),
            }),
        })
    }

    /// Returns true if this port requests promiscuous mode. Other programs may request it too.
    #[must_use]
    pub fn is_on(&self) -> bool {
        *self
            .inner
            .is_on
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Enables or disables it.
    ///
    /// # Errors
    /// The error of setsockopt(2): the interface is gone.
    pub fn set(&self, on: bool) -> io::Result<()> {
        let inner = &*self.inner;
        let mut is_on = inner.is_on.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel counts requests: enabling twice would need disabling twice.
        if *is_on != on {
            inner.socket.promiscuous(&inner.interface, on)?;
            *is_on = on;
        }
        Ok(())
    }
}

impl fmt::Debug for Promiscuous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Promiscuous").field(&self.is_on()).finish()
    }
}

impl PartialEq for Promiscuous {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Promiscuous {}
