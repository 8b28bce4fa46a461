//! Properties of a port, as data.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use linerate_sys::af_packet::PromiscuousMode;
use linerate_sys::{interface_ioctl, interface_offloads};

/// Network interface behind a port.
///
/// Keeps a socket of its network namespace, so that any thread can query it from any namespace.
#[derive(Clone)]
pub struct NetInterface {
    name: String,
    socket: Arc<OwnedFd>,
}

impl NetInterface {
    /// Interface of this name in the calling thread's network namespace; none if no socket can be
    /// opened.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(Self {
            name: name.to_owned(),
            socket: Arc::new(interface_ioctl::ioctl_socket().ok()?),
        })
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the link has a carrier; none if the driver does not report it or the
    /// interface is gone.
    #[must_use]
    pub fn has_carrier(&self) -> Option<bool> {
        interface_offloads::has_carrier(&self.socket, &self.name).ok()
    }
}

impl fmt::Debug for NetInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interface").field(&self.name).finish()
    }
}

impl PartialEq for NetInterface {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for NetInterface {}

/// Copies made of a frame's bytes between the port and the frame memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameCopy {
    /// No copy: only handles move.
    None,
    /// This process copies a frame once on reception and once on transmission.
    EachDirection,
    /// The kernel copies between its buffers and the memory shared with it.
    InKernel,
}

/// Binding of an AF_XDP socket, as granted by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpBinding {
    /// True if the XDP program runs in the driver (native); false for the generic hook behind it.
    pub native: bool,
    /// True if the device reads and writes the frame memory itself (zero-copy).
    pub zero_copy: bool,
    /// True if the kernel signals when it must be woken (`XDP_USE_NEED_WAKEUP`).
    pub need_wakeup: bool,
    /// Busy polling, if requested.
    pub busy_poll: Option<BusyPoll>,
}

/// Busy polling of a socket; granted by the kernel whether or not there is a queue to poll.
#[derive(Clone, Debug)]
pub struct BusyPoll {
    /// Maximum number of frames that one call takes from the driver.
    pub budget: u32,
    napi: Arc<AtomicU32>,
}

impl BusyPoll {
    /// Busy polling with a NAPI id that may be filled in later.
    pub(crate) fn new(budget: u32, napi: Arc<AtomicU32>) -> Self {
        Self { budget, napi }
    }

    /// NAPI id of the driver queue that feeds the socket (`SO_INCOMING_NAPI_ID`); 0 while it is
    /// unknown.
    ///
    /// Some kernels report it when the socket is bound, others with the first frame.
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

/// Properties of a port; read once before the loop, so that no loop depends on the kind of port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCapabilities {
    /// Name of the port as in its URL, with the queue if there are several: `packet:eth0 queue 1`.
    pub name: String,
    /// Largest frame that can be sent and received, in bytes, from the Ethernet header on, without
    /// FCS (and with the vnet header if there is one).
    pub frame_bytes: u16,
    /// MAC address of the interface, if it has one.
    pub address: Option<[u8; 6]>,
    /// Interface behind the port, if there is one.
    pub interface: Option<NetInterface>,
    /// Promiscuous mode of the interface; none for ports without an interface that filters
    /// addresses.
    pub promiscuous: Option<PromiscuousMode>,
    /// Descriptors of the receive ring; none without a ring.
    pub receive_descriptors: Option<u32>,
    /// Descriptors of the transmit ring; none without a ring.
    pub transmit_descriptors: Option<u32>,
    /// Copies made of each frame.
    pub copies: FrameCopy,
    /// Bytes of the `virtio_net_hdr` in front of every frame, in both directions; 0 if there is
    /// none. With it, checksums and segmentation may be left to the other side.
    pub vnet_header: u8,
    /// True if received frames may have partial checksums (a sender on this machine left them to a
    /// device) and the port completes them, so that the frames can be forwarded.
    pub completes_checksums: bool,
    /// True if received frames may have partial checksums that nothing marks: the checksum field
    /// then holds the sum of the pseudo header only. The port does not complete them.
    pub unmarked_partial_checksums: bool,
    /// Interface at the other end of a veth pair, if it is visible.
    pub peer_interface: Option<String>,
    /// True if received frames come from a file, so none are left over from an earlier run.
    pub replays: bool,
    /// True if sent frames are discarded because no output file is given.
    pub discards: bool,
    /// Binding of the AF_XDP socket, as granted by the kernel; none on other ports.
    pub xdp: Option<XdpBinding>,
    /// Notes for the record and the user: access method chosen, fallbacks, known driver problems.
    pub notes: Vec<String>,
}

impl PortCapabilities {
    /// Returns the names of the port and of the interface behind it.
    #[must_use]
    pub fn name_and_interface(&self) -> (String, Option<&str>) {
        let interface = self.interface.as_ref().map(NetInterface::name);
        (self.name.clone(), interface)
    }

    /// Capabilities of a port without special properties, for frames of `frame_bytes`.
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
            copies: FrameCopy::None,
            vnet_header: 0,
            completes_checksums: false,
            unmarked_partial_checksums: false,
            peer_interface: None,
            replays: false,
            discards: false,
            xdp: None,
            notes: Vec::new(),
        }
    }

    /// The notes, and one if busy polling has no effect so far.
    #[must_use]
    pub fn current_notes(&self) -> Vec<String> {
        let polling = self.xdp.as_ref().and_then(|xdp| xdp.busy_poll.as_ref());
        let idle = polling.filter(|polling| polling.napi_id() == 0).map(|_| {
            "busy polling has no effect: the kernel reports no driver queue for this socket (SO_INCOMING_NAPI_ID is 0)"
                .to_owned()
        });
        self.notes.iter().cloned().chain(idle).collect()
    }

    /// Returns true if the interface has a carrier now; none without an interface or if that is
    /// unknown.
    #[must_use]
    pub fn has_carrier(&self) -> Option<bool> {
        self.interface.as_ref()?.has_carrier()
    }
}
