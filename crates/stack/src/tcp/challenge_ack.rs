//! Challenge ACKs: replies to SYNs and resets on existing connections, and to acknowledgements of
//! data not sent.
//!
//! A rebooted peer sends a SYN with the addresses of a connection that is still open here. smoltcp
//! drops it, so that the peer could never connect again. The reply is an acknowledgement of the
//! current stream positions (RFC 9293, section 3.10.7.4). A peer that has lost the connection
//! answers it with a reset that has exactly the expected sequence number; one that did not send the
//! SYN ignores it.
//!
//! For the same reason only a reset with that number is accepted (RFC 5961, section 3). A reset
//! elsewhere in the window may be forged or belong to an earlier connection: it gets the same
//! reply. One outside the window is dropped. smoltcp accepts any reset inside the window.

use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::TcpLayer;
use super::connection::ConnectionOwner;
use super::window_edge::HeadersOnly;
use crate::link::LinkLayer;
use crate::wire::ip::IpHeader;
use crate::wire::{ACK, RST, SYN, read_u16, read_u32};

const SYN_RST_ACK: u16 = SYN | RST | ACK;

/// Result of checking a SYN or reset between the addresses of a connection.
pub(super) enum SynRstOutcome {
    /// Expected by the connection: to be processed.
    Process,
    /// Handled.
    Handled,
    /// The connection is gone; a new one may use its addresses.
    ConnectionGone,
}

impl TcpLayer {
    /// Checks a segment with SYN or RST for this connection.
    #[cold]
    pub(super) fn check_syn_rst(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        header: &IpHeader,
        packet: &[u8],
    ) -> SynRstOutcome {
        let segment = &packet[header.transport..header.end];
        let flags = read_u16(segment, 12);
        let is_syn = flags & SYN_RST_ACK == SYN;
        let connection = &mut self.connections[index as usize];
        let state = connection.socket().state();
        match (state, connection.owner) {
            (State::Listen | State::SynSent, _) => SynRstOutcome::Process,
            // In TIME-WAIT, a SYN with a sequence number beyond all that were used starts a new
            // connection (RFC 1122, section 4.2.2.13; RFC 6191); any other may be an old duplicate.
            (State::TimeWait, ConnectionOwner::Orphaned)
                if is_syn && connection.is_beyond_received(read_u32(segment, 4)) =>
            {
                self.free_connection(index);
                SynRstOutcome::ConnectionGone
            }
            // Closed, and not yet freed by the stack.
            (State::Closed, ConnectionOwner::Orphaned) if is_syn => {
                self.free_connection(index);
                SynRstOutcome::ConnectionGone
            }
            // Not yet closed by the application, which may still have data to read.
            (State::Closed, _) if is_syn => {
                self.remove_from_table(index);
                SynRstOutcome::ConnectionGone
            }
            (State::Closed, _) => SynRstOutcome::Process,
            _ if flags & RST != 0 => {
                self.input_rst(link, now, index, header, packet);
                SynRstOutcome::Handled
            }
            (State::SynReceived, _) => SynRstOutcome::Process,
            _ => {
                self.send_challenge_ack(link, now, index);
                SynRstOutcome::Handled
            }
        }
    }

    fn input_rst(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        header: &IpHeader,
        packet: &[u8],
    ) {
        let connection = &mut self.connections[index as usize];
        let Some(expected) = connection.next_sequence() else {
            return;
        };
        let socket = connection.socket();
        let window = socket.recv_capacity() - socket.recv_queue();
        let offset = read_u32(packet, header.transport + 4).wrapping_sub(expected);
        if offset == 0 {
            // A reset may have a reason as payload (RFC 9293, section 3.10.7.4), which must not
            // exceed the window.
            let headers_only = HeadersOnly::ack_of(expected, header, packet);
            let packet = headers_only.as_ref().map_or(packet, HeadersOnly::packet);
            self.feed(link, now, index, packet);
            self.update_state(link, index);
            self.dirty.push(index);
        } else if offset as usize <= window {
            // The right edge of the window is included: a peer that has filled the window is there
            // (as in Linux).
            self.send_challenge_ack(link, now, index);
        }
    }

    /// Drops a segment that acknowledges data not sent and replies with a challenge ACK (RFC 9293,
    /// section 3.10.7.4; RFC 5961, section 5). smoltcp would take it as an acknowledgement of
    /// whatever is in its buffer, which would never be sent. Returns false before the connection is
    /// established, when smoltcp replies with a reset.
    #[cold]
    pub(super) fn challenge_unsent_ack(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
    ) -> bool {
        let is_established = !matches!(
            self.connections[index as usize].socket().state(),
            State::Closed | State::Listen | State::SynSent | State::SynReceived
        );
        if is_established {
            self.send_challenge_ack(link, now, index);
        }
        is_established
    }

    /// Sends the current stream positions to the peer.
    fn send_challenge_ack(&mut self, link: &mut LinkLayer, now: Instant, index: u32) {
        let Some(probe) = self.connections[index as usize].keepalive_probe() else {
            return;
        };
        let before = link.counters.tcp.out_segments;
        self.feed(link, now, index, probe.packet());
        link.counters.tcp.out_challenges += link.counters.tcp.out_segments - before;
        self.dirty.push(index);
    }
}
