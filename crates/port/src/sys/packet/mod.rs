//! AF_PACKET: frames of an interface, through calls or through rings that the kernel maps (packet(7)).

mod mmsg;
mod promiscuous;
mod ring_v2;
mod ring_v3;
mod socket;

pub(crate) use mmsg::{MmsgReceive, MmsgSend};
pub use promiscuous::Promiscuous;
pub(crate) use ring_v2::{ReceiveV2, SendV2};
pub(crate) use ring_v3::ReceiveV3;
pub(crate) use socket::PacketSocket;

/// What the kernel says of a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Bytes it had, which may be more than were given.
    pub length: usize,
    /// Its sender left the checksum to a device.
    pub checksum_open: bool,
    /// The VLAN tag that the kernel took out: its four bytes.
    pub vlan: Option<[u8; 4]>,
}

impl Meta {
    fn new(length: usize, status: u32, tci: u16, tpid: u16) -> Self {
        const ETHERTYPE_8021Q: u16 = 0x8100;
        let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
            tpid
        } else {
            ETHERTYPE_8021Q
        };
        let vlan = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let (tpid, tci) = (tpid.to_be_bytes(), tci.to_be_bytes());
            [tpid[0], tpid[1], tci[0], tci[1]]
        });
        Self {
            length,
            checksum_open: status & libc::TP_STATUS_CSUMNOTREADY != 0,
            vlan,
        }
    }
}

/// A ring that the kernel fills.
pub(crate) trait ReceiveRing {
    /// The next frame, if it is there: its bytes as far as they fit, and what the kernel says of it.
    fn peek(&mut self) -> Option<(&[u8], Meta)>;
    /// Gives the frame last peeked at back.
    fn release(&mut self);
}
