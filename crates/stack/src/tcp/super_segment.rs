//! Super-segments: smoltcp makes several segments as one, and they are split here (as GSO does).
//!
//! smoltcp's work for a segment (headers, timers, windows) takes the same time for many bytes as
//! for few. So if the port's other side does not segment, several segments are made as one and
//! split on their way out ([`super::device`]). On the wire only timeouts differ, as smoltcp
//! measures round trips of a super-segment's last byte.
//!
//! A smoltcp interface has one maximum segment size. So there are two interfaces that share the
//! sockets, and this one is used while everything it would send is full segments. The other one
//! sends the last segments in front of a window's edge, segments on paths with a smaller MTU, and
//! retransmissions: its rules (RFC 896, RFC 5681) apply to single segments.

use std::num::NonZeroUsize;

use smoltcp::iface::{Interface, PollResult, SocketSet};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::time::Instant;

use super::MaxSegmentPayload;
use super::connection::TcpConnection;
use super::smoltcp_device::SmoltcpDevice;
use super::smoltcp_driver::MAX_SEGMENTS_PER_VISIT;
use crate::config::StackConfig;
use crate::wire::{TCP_BYTES, ip};

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
    pub(super) segments: usize,
    /// Payload of each segment, in bytes.
    pub(super) segment_payload: u16,
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
    fn payload(self) -> usize {
        self.segments * usize::from(self.segment_payload)
    }

    /// Returns the length of the packet before the split.
    pub(crate) fn packet_bytes(self) -> usize {
        ip::V4_BYTES + TCP_BYTES + self.payload()
    }
}

/// Interface that makes super-segments.
pub(super) struct SuperSegmentSender {
    interface: Interface,
    split: SegmentSplit,
}

impl SuperSegmentSender {
    /// Returns the capabilities of a device for super-segments, derived from those of the
    /// single-segment one.
    pub(super) fn capabilities(
        split: SegmentSplit,
        single_segment: &DeviceCapabilities,
    ) -> DeviceCapabilities {
        let mut capabilities = single_segment.clone();
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(split.packet_bytes());
        capabilities
    }

    pub(super) fn new(split: SegmentSplit, interface: Interface) -> Self {
        Self { interface, split }
    }

    /// Returns the bytes that a connection may send in full segments; zero if single segments are
    /// required.
    #[inline]
    pub(super) fn sendable_bytes(
        &self,
        connection: &TcpConnection,
        has_congestion_control: bool,
    ) -> usize {
        connection.full_segment_bytes(
            self.split.segment_payload,
            self.split.payload() as u32,
            has_congestion_control,
        )
    }

    /// Sends super-segments while the ring has space for all of one and `room` allows it. Returns
    /// the number of single segments that may follow, and the result of the last poll.
    ///
    /// Not inlined, apart from the path of single segments: choosing the interface for each of them
    /// made round trips of 64 B two percent slower.
    #[inline(never)]
    pub(super) fn send(
        &mut self,
        now: Instant,
        device: &mut SmoltcpDevice,
        set: &mut SocketSet<'static>,
        mut sendable: usize,
    ) -> (u32, PollResult) {
        let SegmentSplit {
            segments: split_segments,
            ..
        } = self.split;
        let mut segments_left = MAX_SEGMENTS_PER_VISIT;
        while sendable >= self.split.payload()
            && segments_left as usize >= split_segments
            && device.link.can_send_frames(split_segments)
        {
            let before = (
                device.send_state.snd_nxt,
                device.link.counters.tcp.out_segments,
            );
            let state = self.interface.poll_egress(now, device, set);
            if state == PollResult::None {
                return (0, state);
            }
            // Fewer where the buffer wraps.
            let segments = device.link.counters.tcp.out_segments - before.1;
            segments_left = segments_left.saturating_sub(segments.max(1) as u32);
            if device.send_state.timed_out {
                // A timeout: everything is retransmitted.
                break;
            }
            sendable = sendable.saturating_sub(device.send_state.bytes_since(before.0));
        }
        match device.link.can_send() {
            true => (segments_left, PollResult::SocketStateChanged),
            false => (0, PollResult::SocketStateChanged),
        }
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
