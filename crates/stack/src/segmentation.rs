//! Sizes of TCP segments, and of the super-segments that are split into them.

use crate::config::StackConfig;
use crate::wire::{TCP_BYTES, ip};

/// Segments that a connection sends before the next connection.
pub(crate) const MAX_SEGMENTS_PER_VISIT: u32 = 8;

/// Maximum payload of a segment for each IP version, in bytes. It may be less than follows from the
/// MTU given to smoltcp.
#[derive(Clone, Copy)]
pub(crate) struct MaxSegmentPayload {
    v4: u16,
    v6: u16,
}

impl MaxSegmentPayload {
    /// Derives the limits from the MTU and the configured maximum segment size.
    pub(crate) fn new(mtu: u16, configured: Option<u16>) -> Self {
        let limit = |ip_header_bytes: usize| {
            let max_payload = mtu.saturating_sub((ip_header_bytes + TCP_BYTES) as u16);
            configured.map_or(max_payload, |configured| configured.min(max_payload))
        };
        Self {
            v4: limit(ip::V4_BYTES),
            v6: limit(ip::V6_BYTES),
        }
    }

    #[inline]
    pub(crate) fn for_version(&self, v4: bool) -> u16 {
        if v4 { self.v4 } else { self.v6 }
    }
}

/// Segments in a super-segment: the row `stack/tcp/1500_64K` was as fast with 4, 8 and 16 of them,
/// and 8 are what a connection sends at a time.
const MAX_SEGMENTS: usize = MAX_SEGMENTS_PER_VISIT as usize;

/// With fewer (longer) segments the additional copy of their payload counts for more; whether those
/// pay was not measured.
const MIN_SEGMENTS: usize = 4;

/// Limit of a super-segment in bytes: it is still in the L1 cache when it is copied.
const MAX_BYTES: usize = 16 << 10;

/// Split of a super-segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSplit {
    pub(crate) segments: usize,
    /// Payload of each segment, in bytes.
    pub(crate) segment_payload: u16,
}

impl SegmentSplit {
    /// Returns the split for a configuration whose port does not segment; `None` if no
    /// super-segment would be long enough.
    pub(crate) fn for_config(config: &StackConfig) -> Option<Self> {
        let segment_payload = MaxSegmentPayload::new(config.mtu, config.tcp.mss).v4;
        let segments = (MAX_BYTES / usize::from(segment_payload.max(1))).min(MAX_SEGMENTS);
        // A send buffer must hold two of them: with less, each would wait for the acknowledgement
        // of the one before.
        let fits_send_buffer =
            config.tcp.send_buffer >= 2 * segments * usize::from(segment_payload);
        let fits_ring = config.tx_descriptors as usize >= segments;
        (segments >= MIN_SEGMENTS && fits_send_buffer && fits_ring).then_some(Self {
            segments,
            segment_payload,
        })
    }

    /// Returns the payload of all segments, in bytes.
    #[inline]
    pub(crate) fn payload(self) -> usize {
        self.segments * usize::from(self.segment_payload)
    }

    /// Returns the length of the packet before the split.
    pub(crate) fn packet_bytes(self) -> usize {
        ip::V4_BYTES + TCP_BYTES + self.payload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuitable_settings_have_no_split() {
        for (settings, split) in [
            (&[][..], Some((8, 1_460))),
            (&["tcp.send_buffer=23360"], Some((8, 1_460))),
            (&["tcp.send_buffer=23359"], None),
            (&["tx_descriptors=8"], Some((8, 1_460))),
            (&["tx_descriptors=7"], None),
            (&["mtu=576"], Some((8, 536))),
            (&["tcp.mss=600"], Some((8, 600))),
            (&["mtu=3000"], Some((5, 2_960))),
            (&["mtu=4136"], Some((4, 4_096))),
            (&["mtu=4137"], None),
            (&["mtu=9000"], None),
        ] {
            let mut config = StackConfig::default();
            for setting in settings {
                config.apply(setting).unwrap();
            }
            let actual = SegmentSplit::for_config(&config)
                .map(|split| (split.segments, split.segment_payload));
            assert_eq!(actual, split, "{settings:?}");
        }
        // The memory and the intended behaviour of these profiles stay unchanged.
        for profile in ["embedded-default", "embedded-tuned"] {
            let config = StackConfig::profile(profile).unwrap();
            assert_eq!(SegmentSplit::for_config(&config), None, "{profile}");
        }
    }
}
