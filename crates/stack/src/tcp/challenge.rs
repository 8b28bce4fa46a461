//! Requests for a connection that stands, resets of it, and acknowledgements of what it has not sent.
//!
//! Whoever was switched off and on again asks anew from the ends of a connection that still stands here. The engine
//! drops such a request, so that nothing would ever come of it. It is answered by an acknowledgement of where the
//! streams are (RFC 9293, section 3.10.7.4): who knows nothing of them answers with a reset that has exactly the number
//! that is expected next, and who did not ask at all does nothing.
//!
//! For the same reason no other reset is believed (RFC 5961, section 3): one inside the window, which can be guessed or
//! come from an earlier connection, is answered alike, and one outside is dropped. The engine takes any inside it.

use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::Tcp;
use super::connection::Owner;
use super::edge::Bare;
use crate::link::Link;
use crate::wire::ip::Header;
use crate::wire::{ACK, RST, SYN, long, word};

const SYN_RST_ACK: u16 = SYN | RST | ACK;

/// What became of a request or a reset between the ends of a connection.
pub(super) enum Unasked {
    /// It is what the connection waits for.
    Usual,
    /// Nothing is left to be done about it.
    Answered,
    /// The connection is over, and another one may have its ends.
    Over,
}

impl Tcp {
    /// A segment that asks for a connection, agrees to one or breaks one off came between the ends of this one.
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
            // Between the ends of one that only waits. Numbers beyond all that it used are a new one's (RFC 1122, section
            // 4.2.2.13; RFC 6191); others may be an old request's that was long on its way.
            (State::TimeWait, Owner::Nobody) if asks && connection.is_beyond(long(segment, 4)) => {
                self.drop_connection(index);
                Unasked::Over
            }
            // Over for the stack.
            (State::Closed, Owner::Nobody) if asks => {
                self.drop_connection(index);
                Unasked::Over
            }
            // Its owner has not closed it yet, and may still have something to read.
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
            // Some say why in its payload (RFC 9293, section 3.10.7.4), which must not make it too long for the window.
            let bare = Bare::of(expected, header, packet);
            let packet = bare.as_ref().map_or(packet, Bare::packet);
            self.show(link, now, index, packet);
            self.look(link, index);
            self.dirty.push(index);
        } else if ahead as usize <= room {
            // Also right behind the window: there stands who has filled it (as Linux takes it).
            self.challenge(link, now, index);
        }
    }

    /// A segment acknowledges what was not sent: it is dropped, and answered by where the streams are (RFC 9293, section
    /// 3.10.7.4; RFC 5961, section 5). The engine takes it for whatever waits in its buffer, which nobody would ever be
    /// sent. Whether it is so; before a connection stands the engine answers with a reset.
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

    /// Tells the far end where both streams are.
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
