//! Segments that the engine makes long, and that are cut here.
//!
//! What the engine does for a segment, headers, timers and windows, takes as long for many bytes as for few. So where the
//! port's other side cuts nothing, it makes several segments as one, which is cut into them on its way out
//! ([`super::device`]): on the wire nothing differs, but for time-outs, which the engine takes from round trips of a long
//! segment's last byte. An engine decides once and for all how long its segments may be; so there are two, that share the
//! sockets, and this one is asked where all that it would send is whole segments. The last ones in front of a window's
//! end, those of a path that is narrower than the own link, and all that is sent again are left to the other one, whose
//! rules (RFC 896, RFC 5681) are about single segments.

use std::num::NonZeroUsize;

use smoltcp::iface::{Interface, PollResult, SocketSet};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::time::Instant;

use super::Longest;
use super::connection::Connection;
use super::device::Glance;
use super::work::SEGMENTS_AT_A_TIME;
use crate::config::Config;
use crate::wire::{TCP_BYTES, ip};

/// Segments that are made as one: with 4, 8 and 16 of them the row `stack/tcp/1500_64K` was as fast, and 8 are what a
/// connection sends at a time.
const MOST: usize = SEGMENTS_AT_A_TIME as usize;

/// Of longer packets, whose payload is copied once more for it, whether fewer pay was not measured.
const LEAST: usize = 4;

/// The engine writes into this much at most, so that it is still in the nearest cache when it is copied.
const MOST_BYTES: usize = 16 << 10;

/// What segments that are cut here hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(super) pieces: usize,
    /// Payload of each of them.
    pub(super) each: u16,
}

impl Cut {
    /// How a stack with this configuration cuts what its port does not; `None`: nothing is long enough to be cut.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let each = Longest::new(config.mtu, config.tcp.mss).v4;
        let pieces = (MOST_BYTES / usize::from(each.max(1))).min(MOST);
        // A buffer that does not hold two of them is sent in halves, whose second would wait for the first.
        let fills = config.tcp.send_buffer >= 2 * pieces * usize::from(each);
        let leaves = config.tx_descriptors as usize >= pieces;
        (pieces >= LEAST && fills && leaves).then_some(Self { pieces, each })
    }

    /// Payload of all pieces.
    fn payload(self) -> usize {
        self.pieces * usize::from(self.each)
    }

    /// The packet that is written before it is cut.
    pub(crate) fn packet_bytes(self) -> usize {
        ip::V4_BYTES + TCP_BYTES + self.payload()
    }
}

/// The engine that makes them.
pub(super) struct Long {
    engine: Interface,
    cut: Cut,
}

impl Long {
    /// What an engine is told of the device, whose own segments are of this kind.
    pub(super) fn capabilities(cut: Cut, usual: &DeviceCapabilities) -> DeviceCapabilities {
        let mut capabilities = usual.clone();
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(cut.packet_bytes());
        capabilities
    }

    pub(super) fn new(cut: Cut, engine: Interface) -> Self {
        Self { engine, cut }
    }

    /// How much a connection may send in whole segments; nothing where single ones are called for.
    #[inline]
    pub(super) fn room(&self, connection: &Connection, controls: bool) -> usize {
        connection.room_for_whole(self.cut.each, self.cut.payload() as u32, controls)
    }

    /// Has the engine send long ones while there is room for all of one, so much of it for the connection; how many
    /// single ones it may send then, and what came of the last long one.
    ///
    /// Out of the way of what sends single ones: choosing between engines for each of them cost round trips of 64 B two
    /// parts of a hundred.
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
            // Where the buffer wraps there are fewer.
            let segments = glance.link.counters.tcp.out_segments - before.1;
            left = left.saturating_sub(segments.max(1) as u32);
            if glance.sent.timed_out {
                // All is sent again.
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
        // Their memory, and what they show on purpose, stay as they are.
        for profile in ["embedded-default", "embedded-tuned"] {
            let config = Config::profile(profile).unwrap();
            assert_eq!(Cut::of(&config), None, "{profile}");
        }
    }
}
