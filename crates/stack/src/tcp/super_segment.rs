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

use super::Longest;
use super::connection::Connection;
use super::smoltcp_device::Glance;
use super::smoltcp_driver::SEGMENTS_AT_A_TIME;
use crate::config::Config;
use crate::wire::{TCP_BYTES, ip};

/// Segments in a super-segment: the row `stack/tcp/1500_64K` was as fast with 4, 8 and 16 of them,
/// and 8 are what a connection sends at a time.
const MOST: usize = SEGMENTS_AT_A_TIME as usize;

/// With fewer (longer) segments the additional copy of their payload counts for more; whether those
/// pay was not measured.
const LEAST: usize = 4;

/// Limit of a super-segment in bytes: it is still in the L1 cache when it is copied.
const MOST_BYTES: usize = 16 << 10;

/// Split of a super-segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(super) pieces: usize,
    /// Payload of each segment, in bytes.
    pub(super) each: u16,
}

impl Cut {
    /// Returns the split for a configuration whose port does not segment; `None` if no
    /// super-segment would be long enough.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let each = Longest::new(config.mtu, config.tcp.mss).v4;
        let pieces = (MOST_BYTES / usize::from(each.max(1))).min(MOST);
        // A send buffer must hold two of them: with less, each would wait for the acknowledgement
        // of the one before.
        let fills = config.tcp.send_buffer >= 2 * pieces * usize::from(each);
        let leaves = config.tx_descriptors as usize >= pieces;
        (pieces >= LEAST && fills && leaves).then_some(Self { pieces, each })
    }

    /// Returns the payload of all segments, in bytes.
    fn payload(self) -> usize {
        self.pieces * usize::from(self.each)
    }

    /// Returns the length of the packet before the split.
    pub(crate) fn packet_bytes(self) -> usize {
        ip::V4_BYTES + TCP_BYTES + self.payload()
    }
}

/// Interface that makes super-segments.
pub(super) struct Long {
    engine: Interface,
    cut: Cut,
}

impl Long {
    /// Returns the capabilities of a device for super-segments, derived from those of the
    /// single-segment one.
    pub(super) fn capabilities(cut: Cut, usual: &DeviceCapabilities) -> DeviceCapabilities {
        let mut capabilities = usual.clone();
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(cut.packet_bytes());
        capabilities
    }

    pub(super) fn new(cut: Cut, engine: Interface) -> Self {
        Self { engine, cut }
    }

    /// Returns the bytes that a connection may send in full segments; zero if single segments are
    /// required.
    #[inline]
    pub(super) fn room(&self, connection: &Connection, controls: bool) -> usize {
        connection.room_for_whole(self.cut.each, self.cut.payload() as u32, controls)
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
        glance: &mut Glance,
        set: &mut SocketSet<'static>,
        mut room: usize,
    ) -> (u32, PollResult) {
        let Cut { pieces, .. } = self.cut;
        let mut left = SEGMENTS_AT_A_TIME;
        while room >= self.cut.payload()
            && left as usize >= pieces
            && glance.link.has_room_for(pieces)
        {
            let before = (glance.sent.up_to, glance.link.counters.tcp.out_segments);
            let state = self.engine.poll_egress(now, glance, set);
            if state == PollResult::None {
                return (0, state);
            }
            // Fewer where the buffer wraps.
            let segments = glance.link.counters.tcp.out_segments - before.1;
            left = left.saturating_sub(segments.max(1) as u32);
            if glance.sent.timed_out {
                // A timeout: everything is retransmitted.
                break;
            }
            room = room.saturating_sub(glance.sent.beyond(before.0));
        }
        match glance.link.has_room() {
            true => (left, PollResult::SocketStateChanged),
            false => (0, PollResult::SocketStateChanged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_short_buffers_and_long_packets_are_left_alone() {
        for (settings, cut) in [
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
            let mut config = Config::default();
            for setting in settings {
                config.apply(setting).unwrap();
            }
            let is = Cut::of(&config).map(|cut| (cut.pieces, cut.each));
            assert_eq!(is, cut, "{settings:?}");
        }
        // The memory and the intended behaviour of these profiles stay unchanged.
        for profile in ["embedded-default", "embedded-tuned"] {
            let config = Config::profile(profile).unwrap();
            assert_eq!(Cut::of(&config), None, "{profile}");
        }
    }
}
