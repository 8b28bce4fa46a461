//! Datagrams returned in the frames in which they arrived.

use std::net::SocketAddr;
use std::task::Poll;

use super::UdpLayer;
use super::receive_queue::DatagramBody;
use crate::error::StackError;
use crate::link::LinkLayer;
use crate::socket::{DatagramMeta, EchoResult, SocketId};
use crate::wire::UDP_BYTES;
use crate::wire::ip;

impl UdpLayer {
    /// Sends the first datagram of the queue back to `to` or the connected peer, if that sent it.
    /// `reply` may write into it and returns the length of the reply.
    #[inline]
    pub(crate) fn echo(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
        to: Option<SocketAddr>,
        reply: impl FnOnce(&mut [u8], DatagramMeta) -> Option<usize>,
    ) -> Poll<Result<EchoResult, StackError>> {
        let has_several_addresses = self.has_several_addresses;
        let can_send = self.can_send(link);
        let socket = match self.socket(id, "udp_echo") {
            Ok(socket) => socket,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(packet) = socket.queue.front_mut() else {
            return socket.pending_or_error();
        };
        let (from, meta) = (packet.from, packet.meta(socket.drops));
        let headers = link.header_bytes() + ip::header_bytes(from.ip()) + UDP_BYTES;
        let is_expected_sender = to.or(socket.peer).is_none_or(|to| to == from);
        let DatagramBody::Frame(frame) = &mut packet.body else {
            return Poll::Ready(Ok(EchoResult::StillQueued));
        };
        let bytes = usize::from(frame.len());
        let frame_start = usize::from(frame.offset()).checked_sub(headers);
        let addresses = (packet.to, from);
        let longest = headers - link.header_bytes() + bytes;
        let headers_match = (socket.template).matches(addresses, link.neighbors.epoch(), longest);
        let Some(frame_start) = frame_start.filter(|_| {
            can_send && is_expected_sender && headers_match && packet.segment_bytes == 0
        }) else {
            return Poll::Ready(Ok(EchoResult::StillQueued));
        };
        socket.request_arrived = socket.stamps_replies.then_some(packet.arrived_at);
        // Received at the local address for which the headers were made.
        if has_several_addresses {
            socket.last_request = Some((from, meta.to));
        }
        let reply_bytes = reply(link.memory.bytes_mut(frame), meta);
        let body = socket.queue.pop();
        self.queued_frames -= 1;
        let Some(DatagramBody::Frame(mut frame)) = body else {
            unreachable!("it was a frame in front");
        };
        let Some(reply_bytes) = reply_bytes else {
            link.pool.free(frame);
            return Poll::Ready(Ok(EchoResult::Ignored));
        };
        let reply_bytes = reply_bytes.min(bytes);
        frame.set_offset(frame_start as u16);
        frame.set_len((headers + reply_bytes) as u16);
        self.send_frame(link, id, from, frame, |_| ());
        Poll::Ready(Ok(EchoResult::Sent(reply_bytes)))
    }
}
