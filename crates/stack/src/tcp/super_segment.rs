//! Super-segments: smoltcp makes several segments as one, and they are split here (as GSO does).
//!
//! smoltcp's work for a segment (headers, timers, windows) takes the same time for many bytes as
//! for few. So if the port's other side does not segment, several segments are made as one and
//! split on their way out ([`super::smoltcp_device`]). On the wire only timeouts differ, as smoltcp
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

use super::connection::TcpConnection;
use super::smoltcp_device::SmoltcpDevice;
use crate::segmentation::{MAX_SEGMENTS_PER_VISIT, SegmentSplit};

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

    /// Sends super-segments while the ring has space for all of one and `sendable` allows it.
    /// Returns the number of single segments that may follow, and the result of the last poll.
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
