//! Implements [`Transport`] on the user-space stack.

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use linerate_record::cost::EMPTY_CALL_NS;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::SocketFacts;
use linerate_stack as stack;
use linerate_stack::SocketKind;
use linerate_sys::clock::Nanos;
use linerate_sys::frames::chunked_copy::copy_in_chunks;
use linerate_sys::readiness::Readiness;
use linerate_sys::tick_clock;

use super::socket_table::SocketSlot;
use super::{NetstackTransport, recv_meta, to_io_error, to_socket_result};
use crate::{
    CallAttempts, EchoOutcome, FlowOptions, RecvMeta, Transport, TransportCapabilities,
    TxTimestamp, echo_through_buffer,
};

/// Returns the socket of a slot, or leaves the function with an error.
macro_rules! socket {
    ($own:ident, $place:ident) => {
        match $own.socket_id($place) {
            Ok(socket) => socket,
            Err(error) => return Poll::Ready(Err(error)),
        }
    };
}

/// Content of payload that is written directly into the stack's buffers. The buffers hold older
/// data of other flows, and a normal program writes all that it sends.
const FILL_BYTE: u8 = 0x55;

impl Transport for NetstackTransport {
    type Socket = SocketSlot;

    #[inline]
    fn poll(&mut self) {
        self.poll_stack();
        self.poll_background_if_due();
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.now
    }

    #[inline]
    fn read_clock() -> Nanos {
        tick_clock::interpolated_now()
    }

    #[inline]
    fn flush(&mut self) {
        self.flush_single_flow();
    }

    #[inline]
    fn idle(&mut self, until: Option<Nanos>) {
        let flushed = self.flush_unsent();
        if flushed || self.poll_interval_ns.is_some() {
            self.pause(flushed, until);
        } else {
            self.spin_for_frames(until);
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<SocketSlot> {
        match options.protocol {
            TransportProtocol::Udp => self.connect_udp(remote, options),
            TransportProtocol::Tcp => {
                let opened = self.connect_tcp(&[(remote, options)], &|| false)?;
                opened.into_iter().next().ok_or(io::ErrorKind::Other.into())
            }
        }
    }

    fn open(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<SocketSlot> {
        Ok(self.add_unopened(remote, options))
    }

    fn bind(&mut self, slot: SocketSlot, local: SocketAddr) -> io::Result<()> {
        self.bind_socket(slot, local)
    }

    fn poll_connect(&mut self, slot: SocketSlot, remote: SocketAddr) -> Poll<io::Result<()>> {
        let connected = self.connect_socket(slot, remote);
        if connected.is_pending() {
            self.sockets.mark_starved(slot);
        }
        connected
    }

    fn accept(&mut self, slot: SocketSlot, options: &FlowOptions) -> Poll<io::Result<SocketSlot>> {
        let accepted = self.accept_next(slot, options);
        self.count_socket_call(slot, &accepted);
        accepted
    }

    fn close(&mut self, slot: SocketSlot) {
        if let Some(socket) = self.sockets.remove(slot) {
            // It may be closed already.
            let _ = self.stack.close(socket);
            self.has_unsent = true;
        }
    }

    fn connect_to_last_sender(&mut self, slot: SocketSlot) {
        let entry = self.sockets.get(slot);
        if let (Some(from), Some(_), Some(socket)) =
            (entry.last_sender, entry.destination, entry.socket)
        {
            // There is a route to the sender of a datagram, so this does not fail.
            let _ = self.stack.udp_connect(socket, from);
        }
    }

    #[inline]
    fn udp_send(
        &mut self,
        slot: SocketSlot,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, slot);
        let entry = self.sockets.get(slot);
        let to = entry.next_destination();
        let sent = to_socket_result(self.stack.udp_send(socket, to, bytes, fill));
        if let Poll::Ready(Ok(bytes)) = &sent {
            self.payload.sent += *bytes as u64;
        }
        self.has_unsent = true;
        // A full ring has space after the next poll; no event of the socket reports that.
        self.count_call(&sent);
        sent
    }

    #[inline]
    fn udp_receive<R>(
        &mut self,
        slot: SocketSlot,
        take: impl FnOnce(&[u8], RecvMeta) -> R,
    ) -> Poll<io::Result<R>> {
        let socket = socket!(self, slot);
        self.drop_unexpected(slot, socket);
        let entry = self.sockets.get_mut(slot);
        let payload_counters = &mut self.payload;
        entry.is_read = true;
        let received = self.stack.udp_receive(socket, |payload, meta| {
            entry.queue_drops = meta.queue_drops;
            entry.last_sender = Some(meta.from);
            payload_counters.datagrams += 1;
            payload_counters.received += payload.len() as u64;
            take(payload, recv_meta(&meta))
        });
        let received = to_socket_result(received);
        self.count_socket_call(slot, &received);
        received
    }

    #[inline]
    fn udp_echo(
        &mut self,
        slot: SocketSlot,
        buffer: &mut [u8],
        is_request: impl FnOnce(&[u8]) -> bool,
    ) -> Poll<io::Result<EchoOutcome>> {
        let socket = socket!(self, slot);
        self.drop_unexpected(slot, socket);
        let entry = self.sockets.get_mut(slot);
        let to = entry.next_destination();
        let payload_counters = &mut self.payload;
        entry.is_read = true;
        let (mut is_request, max_bytes) = (Some(is_request), buffer.len());
        let echoed = self.stack.udp_echo(socket, to, |payload, meta| {
            entry.queue_drops = meta.queue_drops;
            entry.last_sender = Some(meta.from);
            payload_counters.datagrams += 1;
            payload_counters.received += payload.len() as u64;
            let shown = &payload[..payload.len().min(max_bytes)];
            let is_accepted = is_request
                .take()
                .is_some_and(|is_accepted| is_accepted(shown));
            is_accepted.then_some(shown.len())
        });
        let echoed = match to_socket_result(echoed) {
            Poll::Ready(Ok(stack::EchoResult::StillQueued)) => {
                // Without a destination the stack cannot echo in place.
                let is_accepted =
                    |payload: &[u8]| is_request.is_some_and(|is_accepted| is_accepted(payload));
                return echo_through_buffer(self, slot, buffer, is_accepted);
            }
            echoed => echoed,
        };
        if let Poll::Ready(Ok(stack::EchoResult::Sent(bytes))) = &echoed {
            self.payload.sent += *bytes as u64;
            // The last response of a batch is transmitted at once; earlier ones leave with it.
            if self.poll_interval_ns.is_none() && self.stack.udp_queues_are_empty() {
                self.stack.flush_frames();
            } else {
                self.has_unsent = true;
            }
        }
        self.count_socket_call(slot, &echoed);
        echoed.map_ok(|echoed| match echoed {
            stack::EchoResult::Sent(bytes) => EchoOutcome::Sent(bytes),
            _ => EchoOutcome::Ignored,
        })
    }

    #[inline]
    fn max_burst(&self, slot: SocketSlot, _: usize) -> usize {
        self.sockets.get(slot).batch.max(1)
    }

    fn udp_send_burst(
        &mut self,
        slot: SocketSlot,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, slot);
        let entry = self.sockets.get(slot);
        let to = entry.next_destination();
        // Payload is copied from the program's memory, as with kernel sockets, unless disabled.
        let staging = &mut self.send_buffer;
        let bypass_copy = entry.copy_bypass.send;
        let write = |number: usize, target: &mut [u8]| {
            if bypass_copy {
                target.fill(FILL_BYTE);
                fill(number, target);
                return;
            }
            let payload = staging.prefix(target.len());
            fill(number, payload);
            copy_in_chunks(&mut target[..payload.len()], payload);
        };
        let sent = self.stack.udp_send_burst(socket, to, bytes, count, write);
        self.has_unsent = true;
        let sent = to_socket_result(sent);
        if let Poll::Ready(Ok(count)) = &sent {
            self.payload.sent += (*count * bytes) as u64;
        }
        self.count_call(&sent);
        sent
    }

    fn udp_receive_burst(
        &mut self,
        slot: SocketSlot,
        mut take: impl FnMut(&[u8], RecvMeta),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, slot);
        let entry = self.sockets.get_mut(slot);
        entry.is_read = true;
        let staging = &mut self.receive_buffer;
        let max_bytes = entry.batch.max(1);
        let payload_counters = &mut self.payload;
        let received = self
            .stack
            .udp_receive_burst(socket, max_bytes, |payload, meta| {
                entry.queue_drops = meta.queue_drops;
                payload_counters.datagrams += 1;
                payload_counters.received += payload.len() as u64;
                let staging = staging.prefix(payload.len());
                copy_in_chunks(staging, &payload[..staging.len()]);
                take(staging, recv_meta(&meta));
            });
        let received = to_socket_result(received);
        self.count_socket_call(slot, &received);
        received
    }

    #[inline]
    fn tcp_send(
        &mut self,
        slot: SocketSlot,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, slot);
        let staging = &mut self.send_buffer;
        let bypass_copy = self.sockets.get(slot).copy_bypass.send;
        let sent = self.stack.tcp_send(socket, |target| {
            if bypass_copy {
                let accepted = target.len().min(bytes);
                let payload = &mut target[..accepted];
                payload.fill(FILL_BYTE);
                fill(payload);
                return accepted;
            }
            let payload = staging.prefix(target.len().min(bytes));
            fill(payload);
            copy_in_chunks(&mut target[..payload.len()], payload);
            payload.len()
        });
        self.has_unsent = true;
        if let std::task::Poll::Ready(Ok(sent)) = &sent {
            let entry = self.sockets.get_mut(slot);
            entry.sent_stream_bytes = entry.sent_stream_bytes.wrapping_add(*sent as u32);
            self.payload.sent += *sent as u64;
        }
        let sent = to_socket_result(sent);
        self.count_socket_call(slot, &sent);
        sent
    }

    #[inline]
    fn tcp_receive<R>(
        &mut self,
        slot: SocketSlot,
        max_bytes: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        if self.receives_ended {
            return Poll::Ready(Ok(take(&[])));
        }
        let socket = socket!(self, slot);
        let staging = &mut self.receive_buffer;
        let payload_counters = &mut self.payload;
        let bypass_copy = self.sockets.get(slot).copy_bypass.receive;
        let received = self.stack.tcp_receive(socket, |payload| {
            if bypass_copy {
                let shown = &payload[..payload.len().min(max_bytes)];
                payload_counters.received += shown.len() as u64;
                return (shown.len(), take(shown));
            }
            let staging = staging.prefix(payload.len().min(max_bytes));
            payload_counters.received += staging.len() as u64;
            copy_in_chunks(staging, &payload[..staging.len()]);
            (staging.len(), take(staging))
        });
        // The opened receive window must be announced.
        self.has_unsent |= received.is_ready();
        let received = to_socket_result(received);
        self.count_socket_call(slot, &received);
        received
    }

    fn enable_timestamps(
        &mut self,
        slot: SocketSlot,
        protocol: TransportProtocol,
    ) -> io::Result<Vec<String>> {
        self.start_timestamps(slot, protocol)
    }

    fn receive_with_timestamp<R>(
        &mut self,
        slot: SocketSlot,
        max_bytes: usize,
        take: impl FnOnce(&[u8], RecvMeta) -> R,
    ) -> Poll<io::Result<R>> {
        let socket = socket!(self, slot);
        if socket.kind() == SocketKind::Udp {
            return self.udp_receive(slot, take);
        }
        let arrival = self.stack.tcp_arrival_times(socket).ok().flatten();
        let meta = RecvMeta {
            timestamp_ns: arrival.map(|(arrived, _)| arrived),
            queued_ns: arrival.map(|(_, queued)| queued),
            ..RecvMeta::default()
        };
        self.tcp_receive(slot, max_bytes, |payload| take(payload, meta))
    }

    fn take_tx_timestamps(
        &mut self,
        slot: SocketSlot,
        take: impl FnMut(TxTimestamp),
    ) -> io::Result<()> {
        self.drain_tx_timestamps(slot, take)
    }

    fn shutdown_send(&mut self, slot: SocketSlot) -> io::Result<()> {
        let socket = self.socket_id(slot)?;
        self.has_unsent = true;
        self.stack.tcp_finish(socket).map_err(to_io_error)
    }

    fn deregister(&mut self, _: SocketSlot) {}

    #[inline]
    fn register(&mut self, slot: SocketSlot, _: Readiness, key: usize) -> io::Result<bool> {
        self.sockets.register(slot, key, false);
        Ok(true)
    }

    #[inline]
    fn register_edge_triggered(&mut self, slot: SocketSlot, key: usize) -> io::Result<()> {
        self.sockets.register(slot, key, true);
        Ok(())
    }

    fn wait_ready(&mut self, keys: &mut Vec<usize>, timeout: Duration) {
        if let Some(until) = self.collect_ready(keys, timeout) {
            self.idle(Some(until));
        }
    }

    fn call_attempts(&self) -> Option<CallAttempts> {
        // Counted by time: a port poll in memory takes a tenth of a call, so the number of polls
        // would imply more time than there was.
        let empty_calls = self.idle_ns / EMPTY_CALL_NS;
        Some(CallAttempts {
            calls: self.attempts.calls + empty_calls,
            empty: self.attempts.empty + empty_calls,
        })
    }

    fn socket_facts(&self, slot: SocketSlot) -> SocketFacts {
        let entry = self.sockets.get(slot);
        let Some(socket) = entry.socket else {
            return SocketFacts::default();
        };
        let config = self.stack.config();
        let stream = socket.kind() != SocketKind::Udp;
        SocketFacts {
            local: entry.local.map(|local| local.to_string()),
            remote: (entry.remote.or(entry.destination)).map(|remote| remote.to_string()),
            send_buffer_bytes: stream.then_some(config.tcp.send_buffer as u64),
            receive_buffer_bytes: stream.then_some(config.tcp.receive_window as u64),
            congestion_control: stream
                .then(|| config.get("tcp.congestion_control"))
                .flatten(),
            port_unreachable: (entry.refused_sends > 0).then_some(entry.refused_sends),
            receive_queue_drops: (!stream).then(|| self.queue_drops(entry)),
            ..SocketFacts::default()
        }
    }

    fn retransmits(&self, slot: SocketSlot) -> Option<u64> {
        // The stack counts them for all connections together, so there must be only one.
        let is_only_connection = self.sockets.of_kind(SocketKind::Tcp).count() == 1
            && (self.socket_id(slot)).is_ok_and(|socket| socket.kind() == SocketKind::Tcp);
        let now = self.stack.counters().tcp.retransmitted_segments;
        is_only_connection
            .then(|| now.saturating_sub(self.start_counters.tcp.retransmitted_segments))
    }

    fn capabilities(&self) -> TransportCapabilities {
        TransportCapabilities {
            blocks_in_calls: false,
            timestamps_end_waits: false,
            has_edge_trigger: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, ReceiveCopy, RunKind, SendCopy};
    use linerate_sys::clock;
    use linerate_sys::cpu::ThreadUsage;

    use super::super::MAX_CALL_BYTES;
    use super::*;
    use crate::PeerAddressing;
    use crate::flow_options::flow_options;
    use crate::flow_role::FlowRole;
    use crate::payload_pattern::PayloadPattern;
    use crate::test_support::{run_on_stack, run_on_thread, start_stack};
    /// Bytes to move between stacks whose buffers are no multiple of a call's length.
    const STREAM_BYTES: usize = 1_000_003;

    fn test_pattern() -> PayloadPattern {
        PayloadPattern::from_token(linerate_protocol::control::FlowToken([7; 16]))
    }

    /// Repeats a call until it is ready.
    fn poll_until_ready<R>(
        stack: &mut NetstackTransport,
        mut call: impl FnMut(&mut NetstackTransport) -> Poll<io::Result<R>>,
    ) -> R {
        let deadline = clock::now() + 30_000_000_000;
        loop {
            if let Poll::Ready(result) = call(stack) {
                return result.expect("an open socket");
            }
            assert!(clock::now() < deadline, "the call stayed pending");
            stack.poll();
            stack.idle(None);
        }
    }

    #[test]
    fn old_buffer_content_is_never_sent() {
        let link = format!("shm:in-place-{}", std::process::id());
        let server = start_stack(&format!("{link},role=server"), "10.9.0.1/24", &[]);
        let client = start_stack(&link, "10.9.0.2/24", &[]);
        let server_address: SocketAddr = "10.9.0.1:7000".parse().expect("an address");
        let (bound_sender, bound) = std::sync::mpsc::channel();
        let received = run_on_thread(&server, move |stack| {
            let socket = stack.stack.udp_bind(server_address).expect("a free port");
            bound_sender.send(()).expect("a receiver");
            poll_until_ready(stack, |stack| {
                to_socket_result(
                    stack
                        .stack
                        .udp_receive(socket, |payload, _| payload.to_vec()),
                )
            })
        });
        bound.recv().expect("a socket");
        let sent = run_on_thread(&client, move |stack| {
            let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "10.9.0.1");
            plan.copies.send = SendCopy::ZeroCopy;
            let options = flow_options(&plan, FlowRole::Sender);
            let slot = stack.connect(server_address, &options).expect("a socket");
            let number = |_, space: &mut [u8]| space[..4].fill(7);
            poll_until_ready(stack, |stack| stack.udp_send_burst(slot, 64, 1, number));
            let end = clock::now() + 500_000_000;
            while clock::now() < end {
                stack.poll();
                stack.idle(None);
            }
        });
        let received = received
            .recv_timeout(Duration::from_secs(60))
            .expect("an answer");
        let (head, rest) = received.split_at(4);
        assert_eq!((head, rest), (&[7; 4][..], &[FILL_BYTE; 60][..]));
        sent.recv_timeout(Duration::from_secs(60)).expect("an end");
    }

    /// The first request is echoed through the buffer, because the stack has no destination yet.
    /// Later ones are echoed in place.
    #[test]
    fn requests_are_echoed_up_to_the_buffer_size() {
        // With busy polling and with a poll interval.
        for keys in [&[][..], &[("poll.interval", "100us")]] {
            let link = format!("shm:echoed-{}-{}", std::process::id(), keys.len());
            let server = start_stack(&format!("{link},role=server"), "10.9.0.1/24", keys);
            let client = start_stack(&link, "10.9.0.2/24", &[]);
            let server_address: SocketAddr = "10.9.0.1:7000".parse().expect("an address");
            let (bound_sender, bound) = std::sync::mpsc::channel();
            let echo_result = run_on_thread(&server, move |stack| {
                let socket = stack.stack.udp_bind(server_address).expect("a free port");
                let plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "10.9.0.2");
                let mut options = flow_options(&plan, FlowRole::Receiver);
                options.addressing = PeerAddressing::AnyFrom([10, 9, 0, 2].into());
                let slot = stack.add_socket(socket, &options);
                bound_sender.send(()).expect("a receiver");
                let mut buffer = [0; 40];
                let echoed = [(); 6].map(|()| {
                    poll_until_ready(stack, |stack| {
                        stack.udp_echo(slot, &mut buffer, |request| request[0] != 3)
                    })
                });
                // Until the last response has left.
                let end = clock::now() + 200_000_000;
                while clock::now() < end {
                    stack.poll();
                    stack.idle(None);
                }
                (echoed, buffer, stack.payload)
            });
            bound.recv().expect("a socket");
            let received = run_on_thread(&client, move |stack| {
                let mut options = flow_options(
                    &Plan::new(RunKind::Latency, TransportProtocol::Udp, "10.9.0.1"),
                    FlowRole::Sender,
                );
                options.addressing = PeerAddressing::Connected;
                let slot = stack.connect(server_address, &options).expect("a socket");
                let mut exchange = |number: u8, bytes: usize| {
                    poll_until_ready(stack, |stack| {
                        stack.udp_send(slot, bytes, |payload| payload.fill(number))
                    });
                    if number == 3 {
                        return Vec::new();
                    }
                    poll_until_ready(stack, |stack| {
                        stack.udp_receive(slot, |payload, _| payload.to_vec())
                    })
                };
                [(1, 30), (2, 30), (3, 30), (4, 40), (5, 41), (6, 1)]
                    .map(|(number, bytes)| exchange(number, bytes))
            });
            let minute = Duration::from_secs(60);
            let received = received.recv_timeout(minute).expect("answers");
            let replies = [(1, 30), (2, 30), (3, 0), (4, 40), (5, 40), (6, 1)];
            assert_eq!(received, replies.map(|(number, bytes)| vec![number; bytes]));
            let (echoed, buffer, payload_counters) =
                echo_result.recv_timeout(minute).expect("an end");
            let sent = replies.map(|(_, bytes)| match bytes {
                0 => EchoOutcome::Ignored,
                bytes => EchoOutcome::Sent(bytes),
            });
            assert_eq!(echoed, sent);
            // Only the first request passed through the buffer.
            assert_eq!(buffer[..31], [[1; 30].as_slice(), &[0]].concat());
            let figures = (
                payload_counters.datagrams,
                payload_counters.received,
                payload_counters.sent,
            );
            assert_eq!(figures, (6, 172, 141));
        }
    }

    #[test]
    fn a_stream_is_the_same_in_every_copy_mode() {
        let send_modes = [SendCopy::Copied, SendCopy::ZeroCopy];
        let receive_modes = [ReceiveCopy::Copied, ReceiveCopy::Discarded];
        for (send, receive) in send_modes
            .into_iter()
            .flat_map(|send_mode| receive_modes.map(|receive_mode| (send_mode, receive_mode)))
        {
            let link = format!("shm:in-place-{}-{send:?}-{receive:?}", std::process::id());
            let keys = [("tcp.send_buffer", "9999"), ("tcp.receive_window", "20001")];
            let server = start_stack(&format!("{link},role=server"), "10.9.0.1/24", &keys);
            let client = start_stack(&link, "10.9.0.2/24", &keys);
            let server_address: SocketAddr = "10.9.0.1:7000".parse().expect("an address");
            let options = move |part| {
                let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.9.0.1");
                (plan.copies.send, plan.copies.receive) = (send, receive);
                flow_options(&plan, part)
            };
            let (listening_sender, listening) = std::sync::mpsc::channel();
            let server_result = run_on_thread(&server, move |stack| {
                let listener = stack
                    .stack
                    .tcp_listen(server_address, 1)
                    .expect("a free port");
                listening_sender.send(()).expect("a receiver");
                let options = options(FlowRole::Receiver);
                let listener = stack.add_socket(listener, &options);
                let slot = poll_until_ready(stack, |stack| stack.accept(listener, &options));
                let (mut received_bytes, mut wrong, mut wrong_memory) = (0, 0, 0);
                let mut address = std::ptr::null();
                loop {
                    let bytes = poll_until_ready(stack, |stack| {
                        stack.tcp_receive(slot, 3_001, |payload| {
                            address = payload.as_ptr();
                            let mut right = vec![0; payload.len()];
                            test_pattern().fill(received_bytes as u64, &mut right);
                            wrong += usize::from(right != payload);
                            payload.len()
                        })
                    });
                    let staging = stack.receive_buffer.prefix(MAX_CALL_BYTES).as_ptr_range();
                    let copied = receive == ReceiveCopy::Copied;
                    wrong_memory += usize::from(staging.contains(&address) != copied);
                    received_bytes += bytes;
                    if bytes == 0 {
                        return (received_bytes, wrong, wrong_memory);
                    }
                }
            });
            listening.recv().expect("a listener");
            let sent = run_on_thread(&client, move |stack| {
                let options = options(FlowRole::Sender);
                let (mut wrong_memory, mut address) = (0, std::ptr::null());
                let slot = stack
                    .connect(server_address, &options)
                    .expect("a connection");
                let mut remaining = STREAM_BYTES;
                while remaining > 0 {
                    let at = (STREAM_BYTES - remaining) as u64;
                    remaining -= poll_until_ready(stack, |stack| {
                        stack.tcp_send(slot, remaining.min(4_001), |space| {
                            address = space.as_ptr();
                            test_pattern().fill(at, space);
                        })
                    });
                    let staging = stack.send_buffer.prefix(MAX_CALL_BYTES).as_ptr_range();
                    let copied = send == SendCopy::Copied;
                    wrong_memory += usize::from(staging.contains(&address) != copied);
                }
                stack.shutdown_send(slot).expect("an open connection");
                let end = clock::now() + 200_000_000;
                while clock::now() < end {
                    stack.poll();
                }
                wrong_memory
            });
            let server_result = server_result
                .recv_timeout(Duration::from_secs(60))
                .expect("an answer");
            assert_eq!(server_result, (STREAM_BYTES, 0, 0), "{send:?} {receive:?}");
            let sent = sent.recv_timeout(Duration::from_secs(60));
            assert_eq!(sent.expect("an answer"), 0, "{send:?} {receive:?}");
        }
    }

    #[test]
    fn empty_polls_are_counted_by_their_time() {
        let (used, passed, attempts) = run_on_stack("null:silent", &[], |stack| {
            let before = stack.call_attempts().unwrap();
            let (used, from) = (ThreadUsage::read(), clock::now());
            while clock::now() < from + 5_000_000 {
                stack.poll();
                stack.idle(None);
            }
            let used = ThreadUsage::read().since(&used).cpu_ns;
            let passed = clock::now() - from;
            (used, passed, stack.call_attempts().unwrap().since(&before))
        });
        let empty_calls = attempts.empty * EMPTY_CALL_NS;
        assert_eq!(attempts.calls, attempts.empty);
        // Other threads may have had the processor meanwhile.
        assert!(empty_calls <= passed, "{empty_calls} of {passed} ns");
        assert!(empty_calls > used / 2, "{empty_calls} of {used} ns");
    }
}
