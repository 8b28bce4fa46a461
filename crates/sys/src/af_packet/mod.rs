//! AF_PACKET: frames of an interface, through system calls or through mapped rings (packet(7)).

mod mmsg;
mod promiscuous;
mod ring_v2;
mod ring_v3;
mod socket;

pub use mmsg::{MmsgReceive, MmsgTransmit};
pub use promiscuous::PromiscuousMode;
pub use ring_v2::{ReceiveV2, TransmitV2};
pub use ring_v3::ReceiveV3;
pub use socket::PacketSocket;

/// Metadata of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// Original bytes of the frame, which may exceed the bytes captured.
    pub length: usize,
    /// The sender left the checksum to a device.
    pub partial_checksum: bool,
    /// VLAN tag removed by the kernel: its four bytes.
    pub vlan_tag: Option<[u8; 4]>,
}

impl PacketMeta {
    fn new(length: usize, status: u32, tci: u16, tpid: u16) -> Self {
        const ETHERTYPE_8021Q: u16 = 0x8100;
        let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
            tpid
        } else {
            ETHERTYPE_8021Q
        };
        let vlan_tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let (tpid, tci) = (tpid.to_be_bytes(), tci.to_be_bytes());
            [tpid[0], tpid[1], tci[0], tci[1]]
        });
        Self {
            length,
            partial_checksum: status & libc::TP_STATUS_CSUMNOTREADY != 0,
            vlan_tag,
        }
    }
}

/// Ring filled by the kernel.
pub trait ReceiveRing {
    /// Next frame, if there is one: its bytes as far as they were captured, and its metadata.
    fn peek(&mut self) -> Option<(&[u8], PacketMeta)>;
    /// Returns the frame last peeked at to the kernel.
    fn release(&mut self);
}
