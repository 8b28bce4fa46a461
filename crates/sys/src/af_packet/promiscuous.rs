//! Promiscuous mode of an interface: reception of frames for any address.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::PacketSocket;
use crate::interface_ioctl::LinkAttributes;

/// Promiscuous mode of a device, on or off. The previous mode is restored after the last clone is
/// dropped, and when the process ends in any way. Receives no frames itself.
#[derive(Clone)]
pub struct PromiscuousMode {
    inner: Arc<PromiscuousState>,
}

struct PromiscuousState {
    socket: PacketSocket,
    interface: LinkAttributes,
    is_enabled: Mutex<bool>,
}

impl PromiscuousMode {
    /// Enables it.
    pub fn enable(interface: &LinkAttributes) -> io::Result<Self> {
        let socket = PacketSocket::open()?;
        socket.set_promiscuous(interface, true)?;
        Ok(Self {
            inner: Arc::new(PromiscuousState {
                socket,
                interface: *interface,
                is_enabled: Mutex::new(true),
            }),
        })
    }

    /// Returns true if this port requests promiscuous mode. Other programs may request it too.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        *self
            .inner
            .is_enabled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Enables or disables it.
    ///
    /// # Errors
    /// The error of setsockopt(2): the interface is gone.
    pub fn set_enabled(&self, on: bool) -> io::Result<()> {
        let inner = &*self.inner;
        let mut is_enabled = inner
            .is_enabled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // The kernel counts requests: enabling twice would need disabling twice.
        if *is_enabled != on {
            inner.socket.set_promiscuous(&inner.interface, on)?;
            *is_enabled = on;
        }
        Ok(())
    }
}

impl fmt::Debug for PromiscuousMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Promiscuous")
            .field(&self.is_enabled())
            .finish()
    }
}

impl PartialEq for PromiscuousMode {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for PromiscuousMode {}
