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

use super::Tcp;
use super::connection::Owner;
use super::window_edge::Bare;
use crate::link::Link;
use crate::wire::ip::Header;
use crate::wire::{ACK, RST, SYN, long, word};

const SYN_RST_ACK: u16 = SYN | RST | ACK;

/// Result of checking a SYN or reset between the addresses of a connection.
pub(super) enum Unasked {
    /// Expected by the connection: to be processed.
    Usual,
    /// Handled.
    Answered,
    /// The connection is gone; a new one may use its addresses.
    Over,
}

impl Tcp {
    /// Checks a segment with SYN or RST for this connection.
    #[cold]
    pub(super) fn challenged(
        &mut self,
        link: &mut Link,
        now: Instant,
        index: u32,
        header: &Header,
        packet: &[u8],
    ) -> Unasked {
        let segment = &packet[header.body..header.end];
        let flags = word(segment, 12);
        let asks = flags & SYN_RST_ACK == SYN;
        let connection = &mut self.connections[index as usize];
        let state = connection.socket().state();
        match (state, connection.owner) {
            (State::Listen | State::SynSent, _) => Unasked::Usual,
            // In TIME-WAIT, a SYN with a sequence number beyond all that were used starts a new
            // connection (RFC 1122, section 4.2.2.13; RFC 6191); any other may be an old duplicate.
            (State::TimeWait, Owner::Nobody) if asks && connection.is_beyond(long(segment, 4)) => {
                self.drop_connection(index);
                Unasked::Over
            }
            // Closed, and not yet freed by the stack.
            (State::Closed, Owner::Nobody) if asks => {
                self.drop_connection(index);
                Unasked::Over
            }
            // Not yet closed by the application, which may still have data to read.
            (State::Closed, _) if asks => {
                self.unname(index);
                Unasked::Over
            }
            (State::Closed, _) => Unasked::Usual,
            _ if flags & RST != 0 => {
                self.broken_off(link, now, index, header, packet);
                Unasked::Answered
            }
            (State::SynReceived, _) => Unasked::Usual,
            _ => {
                self.challenge(link, now, index);
                Unasked::Answered
            }
        }
    }

    fn broken_off(
        &mut self,
        link: &mut Link,
        now: Instant,
        index: u32,
        header: &Header,
        packet: &[u8],
    ) {
        let connection = &mut self.connections[index as usize];
        let Some(expected) = connection.next_number() else {
            return;
        };
        let socket = connection.socket();
        let room = socket.recv_capacity() - socket.recv_queue();
        let ahead = long(packet, header.body + 4).wrapping_sub(expected);
        if ahead == 0 {
            // A reset may have a reason as payload (RFC 9293, section 3.10.7.4), which must not
            // exceed the window.
            let bare = Bare::of(expected, header, packet);
            let packet = bare.as_ref().map_or(packet, Bare::packet);
            self.show(link, now, index, packet);
            self.look(link, index);
            self.dirty.push(index);
        } else if ahead as usize <= room {
            // The right edge of the window is included: a peer that has filled the window is there
            // (as in Linux).
            self.challenge(link, now, index);
        }
    }

    /// Drops a segment that acknowledges data not sent and replies with a challenge ACK (RFC 9293,
    /// section 3.10.7.4; RFC 5961, section 5). smoltcp would take it as an acknowledgement of
    /// whatever is in its buffer, which would never be sent. Returns false before the connection is
    /// established, when smoltcp replies with a reset.
    #[cold]
    pub(super) fn refused(&mut self, link: &mut Link, now: Instant, index: u32) -> bool {
        let stands = !matches!(
            self.connections[index as usize].socket().state(),
            State::Closed | State::Listen | State::SynSent | State::SynReceived
        );
        if stands {
            self.challenge(link, now, index);
        }
        stands
    }

    /// Sends the current stream positions to the peer.
    fn challenge(&mut self, link: &mut Link, now: Instant, index: u32) {
        let Some(question) = self.connections[index as usize].question() else {
            return;
        };
        let before = link.counters.tcp.out_segments;
        self.show(link, now, index, question.packet());
        link.counters.tcp.out_challenges += link.counters.tcp.out_segments - before;
        self.dirty.push(index);
    }
}
