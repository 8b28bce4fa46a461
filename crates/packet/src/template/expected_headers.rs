//! Headers that received frames should have.

use crate::checksum;

/// Maximum number of flow groups counted separately; with more flows, several share a group. One
/// group takes 38 KiB: order over 65,536 frames, and a delay histogram of two digits.
pub const MAX_FLOW_GROUPS: u16 = 256;

/// Expected headers of received frames. Devices rewrite some fields: routers the Ethernet addresses
/// and the TTL, NATs addresses and ports. A device that does so leaves valid checksums.
#[derive(Clone, Debug, Default)]
pub struct ExpectedHeaders {
    /// IP version (true: 6) and transport protocol of the packet sent; `None` if the frames carry
    /// no packet.
    pub packet: Option<(bool, u8)>,
    /// True if all frames of a flow group have the same Ethernet addresses.
    pub has_fixed_addresses: bool,
}

impl ExpectedHeaders {
    /// Returns whether the headers are unchanged, except for changes that a device makes on
    /// purpose.
    #[inline]
    pub fn is_intact(&self, frame: &[u8], is_tag_moved: bool) -> bool {
        let Some(packet) = self.packet else {
            return true;
        };
        match checksum::verify(frame) {
            Some(verified) => {
                let is_same_packet = (verified.is_ipv6, verified.protocol) == packet;
                verified.is_valid() && (is_same_packet || is_tag_moved)
            }
            // The packet is behind headers that a device inserted.
            None => is_tag_moved,
        }
    }
}
