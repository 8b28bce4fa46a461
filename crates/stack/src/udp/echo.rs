//! Datagrams returned in the frames in which they arrived.

use std::net::SocketAddr;
use std::task::Poll;

use super::Udp;
use super::receive_queue::Body;
use crate::error::StackError;
use crate::link::Link;
use crate::socket::{Echo, Meta, SocketId};
use crate::wire::UDP_BYTES;
use crate::wire::ip;

impl Udp {
    /// Sends the first datagram of the queue back to `to` or the connected peer, if that sent it.
    /// `answer` may write into it and returns the length of the reply.
    #[inline]
    pub(crate) fn echo(
        &mut self,
        link: &mut Link,
        id: SocketId,
        to: Option<SocketAddr>,
        answer: impl FnOnce(&mut [u8], Meta) -> Option<usize>,
    ) -> Poll<Result<Echo, StackError>> {
        let several = self.several;
        let may_leave = self.has_room(link);
        let socket = match self.socket(id, "udp_echo") {
            Ok(socket) => socket,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(packet) = socket.queue.front_mut() else {
            return socket.nothing_came();
        };
        let (from, meta) = (packet.from, packet.meta(socket.drops));
        let headers = link.head() + ip::header_bytes(from.ip()) + UDP_BYTES;
        let asked = to.or(socket.peer).is_none_or(|to| to == from);
        let Body::Frame(frame) = &mut packet.body else {
            return Poll::Ready(Ok(Echo::Elsewhere));
        };
        let bytes = usize::from(frame.len());
        let begins = usize::from(frame.offset()).checked_sub(headers);
        let ends = (packet.to, from);
        let longest = headers - link.head() + bytes;
        let suits = (socket.template).suits(ends, link.neighbors.epoch(), longest);
        let Some(begins) = begins.filter(|_| may_leave && asked && suits && packet.segment == 0)
        else {
            return Poll::Ready(Ok(Echo::Elsewhere));
        };
        socket.asked = socket.answers.then_some(packet.arrived);
        // Received at the local address for which the headers were made.
        if several {
            socket.heard = Some((from, meta.to));
        }
        let answered = answer(link.memory.bytes_mut(frame), meta);
        let body = socket.queue.pop();
        self.held -= 1;
        let Some(Body::Frame(mut frame)) = body else {
            unreachable!("it was a frame in front");
        };
        let Some(answered) = answered else {
            link.pool.free(frame);
            return Poll::Ready(Ok(Echo::Ignored));
        };
        let answered = answered.min(bytes);
        frame.set_offset(begins as u16);
        frame.set_len((headers + answered) as u16);
        self.send_frame(link, id, from, frame, |_| ());
        Poll::Ready(Ok(Echo::Sent(answered)))
    }
}
