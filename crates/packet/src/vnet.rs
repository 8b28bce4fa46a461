//! Header in front of a frame by which a sender leaves checksums and segmentation to the receiver.
//!
//! Layout: `struct virtio_net_hdr` of linux/virtio_net.h in native byte order, as used by tap
//! devices and packet sockets. A port whose `PortCapabilities::vnet_header` is not zero has it in
//! front of every frame, in both directions.

/// Bytes of the header.
pub const VNET_HEADER_BYTES: usize = 10;

/// Kind of packet that the receiver must split into segments (`gso_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// No segmentation.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of one size (`UDP_SEGMENT`).
    Udp,
    /// Any other value of the field.
    Other(u8),
}

/// Virtio network header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// The checksum is partial: it must be computed from `checksum_start` to the end. Its field
    /// holds the sum of the pseudo header.
    pub needs_checksum: bool,
    /// The checksum was verified by an earlier receiver.
    pub checksum_valid: bool,
    /// Kind of segmentation that is left to the receiver.
    pub segmentation: Segmentation,
    /// Bytes of all headers of the frame; a hint only.
    pub header_bytes: u16,
    /// Payload bytes of each segment.
    pub segment_bytes: u16,
    /// Offset in bytes from the Ethernet header at which the checksum starts to cover the frame.
    pub checksum_start: u16,
    /// Offset in bytes of the checksum field from `checksum_start`.
    pub checksum_offset: u16,
}

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;

impl Segmentation {
    const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::TcpV4 => 1,
            Self::TcpV6 => 4,
            Self::Udp => 5,
            Self::Other(code) => code,
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::None,
            1 => Self::TcpV4,
            4 => Self::TcpV6,
            5 => Self::Udp,
            other => Self::Other(other),
        }
    }
}

impl VnetHeader {
    /// Parses the header at the start of a frame; the Ethernet frame follows it. `None` if there
    /// are too few bytes.
    #[inline]
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let bytes: &[u8; VNET_HEADER_BYTES] = frame.first_chunk()?;
        let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            needs_checksum: bytes[0] & NEEDS_CHECKSUM != 0,
            checksum_valid: bytes[0] & CHECKSUM_VALID != 0,
            segmentation: Segmentation::from_code(bytes[1]),
            header_bytes: u16_at(2),
            segment_bytes: u16_at(4),
            checksum_start: u16_at(6),
            checksum_offset: u16_at(8),
        })
    }

    /// The header in its memory layout.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; VNET_HEADER_BYTES] {
        let flags = u8::from(self.needs_checksum) * NEEDS_CHECKSUM
            + u8::from(self.checksum_valid) * CHECKSUM_VALID;
        let mut bytes = [0; VNET_HEADER_BYTES];
        bytes[0] = flags;
        bytes[1] = self.segmentation.code();
        let fields = [
            self.header_bytes,
            self.segment_bytes,
            self.checksum_start,
            self.checksum_offset,
        ];
        for (target, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            target.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_values_read_back(
            flags in 0u8..4,
            code in any::<u8>(),
            words in any::<[u16; 4]>(),
        ) {
            let header = VnetHeader {
                needs_checksum: flags & 1 != 0,
                checksum_valid: flags & 2 != 0,
                segmentation: Segmentation::from_code(code),
                header_bytes: words[0],
                segment_bytes: words[1],
                checksum_start: words[2],
                checksum_offset: words[3],
            };
            let bytes = header.to_bytes();
            prop_assert_eq!((bytes[0], bytes[1]), (flags, code));
            prop_assert_eq!(VnetHeader::parse(&bytes), Some(header));
            prop_assert_eq!(VnetHeader::parse(&bytes[1..]), None);
        }
    }
}
