//! What a port can do, as data.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::sys::packet::Promiscuous;
use crate::sys::{interface, xsk_offload};

/// The network interface behind a port, and a way to ask for its state whichever namespace the asking thread
/// is in.
#[derive(Clone)]
pub struct Interface {
    name: String,
    socket: Arc<OwnedFd>,
}

impl Interface {
    /// The one of this name in the calling thread's namespace; none where nothing can be asked.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(Self {
            name: name.to_owned(),
            socket: Arc::new(interface::asking_socket().ok()?),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether something is at the other end of its wire; none where the driver does not say, or the
    /// interface is gone.
    #[must_use]
    pub fn has_carrier(&self) -> Option<bool> {
        xsk_offload::has_carrier(&self.socket, &self.name).ok()
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interface").field(&self.name).finish()
    }
}

impl PartialEq for Interface {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Interface {}

/// How frames get from the port into the memory and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Handles move; no byte does.
    None,
    /// Each frame is copied once on its way in and once on its way out.
    EachWay,
    /// The kernel copies, between its buffers and the memory that it shares with us.
    InKernel,
}

/// How an AF_XDP socket is bound, as the kernel granted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpBinding {
    /// Whether the program meets frames in the driver; else behind it, in the generic hook.
    pub native: bool,
    /// Whether the device itself reads and writes the frames' memory.
    pub zero_copy: bool,
    /// Whether the kernel says when it wants to be woken.
    pub need_wakeup: bool,
    /// Busy polling, where it was asked for.
    pub busy_poll: Option<BusyPoll>,
}

/// Busy polling of a socket, granted whether or not there is anything to poll.
#[derive(Clone, Debug)]
pub struct BusyPoll {
    /// Frames that a call may take from the driver.
    pub budget: u32,
    napi: Arc<AtomicU32>,
}

impl BusyPoll {
    /// With the driver's poll context as far as it is known.
    pub(crate) fn new(budget: u32, napi: Arc<AtomicU32>) -> Self {
        Self { budget, napi }
    }

    /// The driver's poll context that feeds the socket; 0 while the kernel knows of none. Some kernels tell when
    /// the socket is bound, others with the first frame.
    #[must_use]
    pub fn napi_id(&self) -> u32 {
        self.napi.load(Relaxed)
    }
}

impl PartialEq for BusyPoll {
    fn eq(&self, other: &Self) -> bool {
        (self.budget, self.napi_id()) == (other.budget, other.napi_id())
    }
}

impl Eq for BusyPoll {}

/// What a port is and can do; read once before the loop, so that no loop asks which kind it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The port as its URL names it, with the queue where there are several: `packet:eth0 queue 1`.
    pub name: String,
    /// The largest frame it sends and receives, in bytes from the Ethernet header on, without check
    /// sequence (and with the vnet header where there is one).
    pub frame_bytes: u16,
    /// The interface's own address, where it has one.
    pub address: Option<[u8; 6]>,
    /// The interface behind it, where it is one.
    pub interface: Option<Interface>,
    /// Whether its interface receives frames for any address, and the switch for that; none where it has
    /// no interface that could leave frames out.
    pub promiscuous: Option<Promiscuous>,
    /// Descriptors of the receive ring; none where there is no ring.
    pub receive_descriptors: Option<u32>,
    /// Descriptors of the transmit ring.
    pub transmit_descriptors: Option<u32>,
    /// How bytes travel.
    pub copies: Copies,
    /// Bytes of the `virtio_net_hdr` in front of every frame, both ways; 0 where there is none. With it,
    /// checksums and segmentation may be left to the other side.
    pub vnet_header: u8,
    /// Frames that arrive may come from a sender on this machine that left checksums to a device; the
    /// port completes them, so that they can be forwarded.
    pub completes_checksums: bool,
    /// The same, but neither the port nor the frame tells which are open: their checksums are the pseudo
    /// header's sum alone.
    pub leaves_checksums: bool,
    /// The interface at the other end of its wire, where it is one that can be seen: a veth's.
    pub far_interface: Option<String>,
    /// What it gives comes from a file: nothing of an earlier run waits in it.
    pub replays: bool,
    /// What is sent is thrown away, because there is no file for it: nobody waits for it.
    pub discards: bool,
    /// How its AF_XDP socket is bound, as the kernel granted it; none on other ports.
    pub xdp: Option<XdpBinding>,
    /// What was obtained where there was a choice, and what a reader of the figures should know: a way
    /// of access, a fallback, a trap. For the record and the user.
    pub notes: Vec<String>,
}

impl Capabilities {
    /// A port with nothing special, for frames of this size.
    #[must_use]
    pub fn plain(name: impl Into<String>, frame_bytes: u16) -> Self {
        Self {
            name: name.into(),
            frame_bytes,
            address: None,
            interface: None,
            promiscuous: None,
            receive_descriptors: None,
            transmit_descriptors: None,
            copies: Copies::None,
            vnet_header: 0,
            completes_checksums: false,
            leaves_checksums: false,
            far_interface: None,
            replays: false,
            discards: false,
            xdp: None,
            notes: Vec::new(),
        }
    }

    /// The notes, and what shows only while frames come.
    #[must_use]
    pub fn notes_so_far(&self) -> Vec<String> {
        let polling = self.xdp.as_ref().and_then(|xdp| xdp.busy_poll.as_ref());
        let idle = polling.filter(|polling| polling.napi_id() == 0).map(|_| {
            "busy polling has no effect: the kernel does not know which driver queue feeds this socket (SO_INCOMING_NAPI_ID is 0)"
                .to_owned()
        });
        self.notes.iter().cloned().chain(idle).collect()
    }

    /// Whether its interface has a carrier at this moment; none where it has no interface, or that is not
    /// known.
    #[must_use]
    pub fn has_carrier(&self) -> Option<bool> {
        self.interface.as_ref()?.has_carrier()
    }
}
