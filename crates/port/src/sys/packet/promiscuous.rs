//! Whether an interface receives frames for any address.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::PacketSocket;
use crate::sys::interface::Facts;

/// Has a device receive frames for any address, or for its own alone; the device is as it was before once
/// every copy is gone, and when the process ends in whatever way. Receives nothing itself.
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
    /// Switches it on.
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

    /// Whether this port asks for frames of any address. Somebody else may do so as well.
    #[must_use]
    pub fn is_on(&self) -> bool {
        *self
            .inner
            .is_on
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches it on or off.
    ///
    /// # Errors
    /// What the kernel says: the interface is gone.
    pub fn set(&self, on: bool) -> io::Result<()> {
        let inner = &*self.inner;
        let mut is_on = inner.is_on.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel counts those who ask: twice on would need twice off.
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
