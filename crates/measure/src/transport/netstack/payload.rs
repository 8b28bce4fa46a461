//! Implements [`Transport`] on the user-space stack.

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;
use linerate_host::sys::tick_clock;
use linerate_metric::cost::EMPTY_CALL_NS;
use linerate_metric::plan::Protocol;
use linerate_metric::record::Socket as SocketFacts;
use linerate_port::copy;
use linerate_stack::{self as stack, SocketKind};

use super::socket_table::Place;
use super::{OnStack, meta_of, outcome, system};
use crate::transport::{
    Attempts, Capabilities, Departure, Echoed, FlowOptions, Meta, Ready, Transport, echo_through,
};

/// Returns the socket of a slot, or leaves the function with an error.
macro_rules! socket {
    ($own:ident, $place:ident) => {
        match $own.id($place) {
            Ok(socket) => socket,
            Err(error) => return Poll::Ready(Err(error)),
        }
    };
}

/// Content of payload that is written directly into the stack's buffers. The buffers hold older
/// data
/// of other flows, and a normal program writes all that it sends.
const FILLER: u8 = 0x55;

impl Transport for OnStack {
    type Socket = Place;

    #[inline]
    fn turn(&mut self) {
        self.work();
        self.look();
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.now
    }

    #[inline]
    fn clock() -> Nanos {
        tick_clock::now()
    }

    #[inline]
    fn flush(&mut self) {
        self.flush_alone();
    }

    #[inline]
    fn idle(&mut self, until: Option<Nanos>) {
        let flushed = self.flush_unsent();
        if flushed || self.interval.is_some() {
            self.pause(flushed, until);
        } else {
            self.await_frames(until);
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Place> {
        match options.protocol {
            Protocol::Udp => self.connect_udp(remote, options),
            Protocol::Tcp => {
                let opened = self.connect_tcp(&[(remote, options)], &|| false)?;
                opened.into_iter().next().ok_or(io::ErrorKind::Other.into())
            }
        }
    }

    fn open(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Place> {
        Ok(self.open_later(remote, options))
    }

    fn bind(&mut self, place: Place, local: SocketAddr) -> io::Result<()> {
        self.bind_now(place, local)
    }

    fn begin_connect(&mut self, place: Place, remote: SocketAddr) -> Poll<io::Result<()>> {
        let connected = self.connect_now(place, remote);
        if connected.is_pending() {
            self.entries.starved(place);
        }
        connected
    }

    fn accept(&mut self, place: Place, options: &FlowOptions) -> Poll<io::Result<Place>> {
        let accepted = self.accept_next(place, options);
        self.note_at(place, &accepted);
        accepted
    }

    fn close(&mut self, place: Place) {
        if let Some(socket) = self.entries.remove(place) {
            // It may be closed already.
            let _ = self.stack.close(socket);
            self.unsent = true;
        }
    }

    fn recognise(&mut self, place: Place) {
        let entry = self.entries.get(place);
        if let (Some(from), Some(_), Some(socket)) = (entry.from, entry.addressee, entry.socket) {
            // There is a route to the sender of a datagram, so this does not fail.
            let _ = self.stack.udp_connect(socket, from);
        }
    }

    #[inline]
    fn udp_send(
        &mut self,
        place: Place,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, place);
        let entry = self.entries.get(place);
        let to = entry.to();
        let sent = outcome(self.stack.udp_send(socket, to, bytes, fill));
        if let Poll::Ready(Ok(bytes)) = &sent {
            self.payload.sent += *bytes as u64;
        }
        self.unsent = true;
        // A full ring has space after the next poll; no event of the socket reports that.
        self.note(&sent);
        sent
    }

    #[inline]
    fn udp_receive<R>(
        &mut self,
        place: Place,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>> {
        let socket = socket!(self, place);
        self.turn_away(place, socket);
        let entry = self.entries.get_mut(place);
        let moved = &mut self.payload;
        entry.reads = true;
        let received = self.stack.udp_receive(socket, |payload, meta| {
            entry.queue_drops = meta.queue_drops;
            entry.from = Some(meta.from);
            moved.datagrams += 1;
            moved.received += payload.len() as u64;
            take(payload, meta_of(&meta))
        });
        let received = outcome(received);
        self.note_at(place, &received);
        received
    }

    #[inline]
    fn udp_echo(
        &mut self,
        place: Place,
        room: &mut [u8],
        is_question: impl FnOnce(&[u8]) -> bool,
    ) -> Poll<io::Result<Echoed>> {
        let socket = socket!(self, place);
        self.turn_away(place, socket);
        let entry = self.entries.get_mut(place);
        let to = entry.to();
        let moved = &mut self.payload;
        entry.reads = true;
        let (mut is_question, most) = (Some(is_question), room.len());
        let echoed = self.stack.udp_echo(socket, to, |payload, meta| {
            entry.queue_drops = meta.queue_drops;
            entry.from = Some(meta.from);
            moved.datagrams += 1;
            moved.received += payload.len() as u64;
            let shown = &payload[..payload.len().min(most)];
            let asks = is_question.take().is_some_and(|asks| asks(shown));
            asks.then_some(shown.len())
        });
        let echoed = match outcome(echoed) {
            Poll::Ready(Ok(stack::Echo::Elsewhere)) => {
                // Without a destination the stack cannot echo in place.
                let asks = |payload: &[u8]| is_question.is_some_and(|asks| asks(payload));
                return echo_through(self, place, room, asks);
            }
            echoed => echoed,
        };
        if let Poll::Ready(Ok(stack::Echo::Sent(bytes))) = &echoed {
            self.payload.sent += *bytes as u64;
            // The last response of a batch is transmitted at once; earlier ones leave with it.
            if self.interval.is_none() && self.stack.udp_none_waits() {
                self.stack.send_made();
            } else {
                self.unsent = true;
            }
        }
        self.note_at(place, &echoed);
        echoed.map_ok(|echoed| match echoed {
            stack::Echo::Sent(bytes) => Echoed::Sent(bytes),
            _ => Echoed::Ignored,
        })
    }

    fn burst(&self, place: Place, _: usize) -> usize {
        self.entries.get(place).batch.max(1)
    }

    fn udp_send_burst(
        &mut self,
        place: Place,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, place);
        let entry = self.entries.get(place);
        let to = entry.to();
        // Payload is copied from the program's memory, as with kernel sockets, unless disabled.
        let own = &mut self.outgoing;
        let in_place = entry.in_place.sent;
        let write = |number: usize, room: &mut [u8]| {
            if in_place {
                room.fill(FILLER);
                fill(number, room);
                return;
            }
            let payload = own.front(room.len());
            fill(number, payload);
            copy(&mut room[..payload.len()], payload);
        };
        let sent = self.stack.udp_send_burst(socket, to, bytes, count, write);
        self.unsent = true;
        let sent = outcome(sent);
        if let Poll::Ready(Ok(count)) = &sent {
            self.payload.sent += (*count * bytes) as u64;
        }
        self.note(&sent);
        sent
    }

    fn udp_receive_burst(
        &mut self,
        place: Place,
        mut take: impl FnMut(&[u8], Meta),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, place);
        let entry = self.entries.get_mut(place);
        entry.reads = true;
        let own = &mut self.incoming;
        let most = entry.batch.max(1);
        let moved = &mut self.payload;
        let received = self.stack.udp_receive_burst(socket, most, |payload, meta| {
            entry.queue_drops = meta.queue_drops;
            moved.datagrams += 1;
            moved.received += payload.len() as u64;
            let own = own.front(payload.len());
            copy(own, &payload[..own.len()]);
            take(own, meta_of(&meta));
        });
        let received = outcome(received);
        self.note_at(place, &received);
        received
    }

    #[inline]
    fn tcp_send(
        &mut self,
        place: Place,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let socket = socket!(self, place);
        let own = &mut self.outgoing;
        let in_place = self.entries.get(place).in_place.sent;
        let sent = self.stack.tcp_send(socket, |room| {
            if in_place {
                let taken = room.len().min(bytes);
                let payload = &mut room[..taken];
                payload.fill(FILLER);
                fill(payload);
                return taken;
            }
            let payload = own.front(room.len().min(bytes));
            fill(payload);
            copy(&mut room[..payload.len()], payload);
            payload.len()
        });
        self.unsent = true;
        if let std::task::Poll::Ready(Ok(sent)) = &sent {
            let entry = self.entries.get_mut(place);
            entry.stream_bytes = entry.stream_bytes.wrapping_add(*sent as u32);
            self.payload.sent += *sent as u64;
        }
        let sent = outcome(sent);
        self.note_at(place, &sent);
        sent
    }

    #[inline]
    fn tcp_receive<R>(
        &mut self,
        place: Place,
        room: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        if self.is_cut {
            return Poll::Ready(Ok(take(&[])));
        }
        let socket = socket!(self, place);
        let own = &mut self.incoming;
        let moved = &mut self.payload;
        let in_place = self.entries.get(place).in_place.received;
        let received = self.stack.tcp_receive(socket, |payload| {
            if in_place {
                let shown = &payload[..payload.len().min(room)];
                moved.received += shown.len() as u64;
                return (shown.len(), take(shown));
            }
            let own = own.front(payload.len().min(room));
            moved.received += own.len() as u64;
            copy(own, &payload[..own.len()]);
            (own.len(), take(own))
        });
        // The opened receive window must be announced.
        self.unsent |= received.is_ready();
        let received = outcome(received);
        self.note_at(place, &received);
        received
    }

    fn stamp(&mut self, place: Place, protocol: Protocol) -> io::Result<Vec<String>> {
        self.begin_stamping(place, protocol)
    }

    fn receive_stamped<R>(
        &mut self,
        place: Place,
        room: usize,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>> {
        let socket = socket!(self, place);
        if socket.kind() == SocketKind::Udp {
            return self.udp_receive(place, take);
        }
        let came = self.stack.tcp_came(socket).ok().flatten();
        let meta = Meta {
            stamp_ns: came.map(|(arrived, _)| arrived),
            queued_ns: came.map(|(_, queued)| queued),
            ..Meta::default()
        };
        self.tcp_receive(place, room, |payload| take(payload, meta))
    }

    fn departures(&mut self, place: Place, take: impl FnMut(Departure)) -> io::Result<()> {
        self.show_departures(place, take)
    }

    fn finish_sending(&mut self, place: Place) -> io::Result<()> {
        let socket = self.id(place)?;
        self.unsent = true;
        self.stack.tcp_finish(socket).map_err(system)
    }

    fn release(&mut self, _: Place) {}

    fn enrol(&mut self, place: Place, _: Ready, key: usize) -> io::Result<bool> {
        self.entries.enrol(place, key, false);
        Ok(true)
    }

    fn enrol_changes(&mut self, place: Place, key: usize) -> io::Result<()> {
        self.entries.enrol(place, key, true);
        Ok(())
    }

    fn ready(&mut self, keys: &mut Vec<usize>, patience: Duration) {
        if let Some(until) = self.tell(keys, patience) {
            self.idle(Some(until));
        }
    }

    fn attempts(&self) -> Option<Attempts> {
        // Counted by time: a port poll in memory takes a tenth of a call, so the number of polls
        // would imply more time than there was.
        let in_vain = self.idle_ns / EMPTY_CALL_NS;
        Some(Attempts {
            calls: self.attempts.calls + in_vain,
            empty: self.attempts.empty + in_vain,
        })
    }

    fn facts(&self, place: Place) -> SocketFacts {
        let entry = self.entries.get(place);
        let Some(socket) = entry.socket else {
            return SocketFacts::default();
        };
        let config = self.stack.config();
        let stream = socket.kind() != SocketKind::Udp;
        SocketFacts {
            local: entry.local.map(|local| local.to_string()),
            remote: (entry.remote.or(entry.addressee)).map(|remote| remote.to_string()),
            send_buffer_bytes: stream.then_some(config.tcp.send_buffer as u64),
            receive_buffer_bytes: stream.then_some(config.tcp.receive_window as u64),
            congestion_control: stream
                .then(|| config.get("tcp.congestion_control"))
                .flatten(),
            refusals: (entry.refusals > 0).then_some(entry.refusals),
            receive_queue_drops: (!stream).then(|| self.queue_drops(entry)),
            ..SocketFacts::default()
        }
    }

    fn retransmits(&self, place: Place) -> Option<u64> {
        // The stack counts them for all connections together, so there must be only one.
        let alone = self.entries.of(SocketKind::Tcp).count() == 1
            && (self.id(place)).is_ok_and(|socket| socket.kind() == SocketKind::Tcp);
        let now = self.stack.counters().tcp.retransmitted_segments;
        alone.then(|| now.saturating_sub(self.before.tcp.retransmitted_segments))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sleeps_in_calls: false,
            stamps_end_waits: false,
            tells_changes: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_host::sys::clock;
    use linerate_host::sys::cpu::ThreadUsage;

    use super::super::CALL_BYTES;
    use super::super::test_stack::{lent, on_stack, started};
    use super::*;
    use crate::flow::Part;
    use crate::payload_pattern::Pattern;
    use crate::session::setup::flow_options;
    use crate::transport::Correspondent;
    use linerate_metric::plan::{Kind, Plan, ReceiveCopy, SendCopy};

    /// Bytes to move between stacks whose buffers are no multiple of a call's length.
    const BYTES: usize = 1_000_003;

    fn pattern() -> Pattern {
        Pattern::of(linerate_dialect::control::Token([7; 16]))
    }

    /// Repeats a call until it is ready.
    fn until<R>(
        stack: &mut OnStack,
        mut call: impl FnMut(&mut OnStack) -> Poll<io::Result<R>>,
    ) -> R {
        let give_up = clock::now() + 30_000_000_000;
        loop {
            if let Poll::Ready(result) = call(stack) {
                return result.expect("an open socket");
            }
            assert!(clock::now() < give_up, "the call stayed pending");
            stack.turn();
            stack.idle(None);
        }
    }

    #[test]
    fn nothing_leaves_of_what_lay_where_payload_is_written() {
        let link = format!("shm:in-place-{}", std::process::id());
        let far = started(&format!("{link},role=server"), "10.9.0.1/24", &[]);
        let near = started(&link, "10.9.0.2/24", &[]);
        let there: SocketAddr = "10.9.0.1:7000".parse().expect("an address");
        let (binds, bound) = std::sync::mpsc::channel();
        let came = lent(&far, move |stack| {
            let socket = stack.stack.udp_bind(there).expect("a free port");
            binds.send(()).expect("a receiver");
            until(stack, |stack| {
                outcome(
                    stack
                        .stack
                        .udp_receive(socket, |payload, _| payload.to_vec()),
                )
            })
        });
        bound.recv().expect("a socket");
        let sent = lent(&near, move |stack| {
            let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "10.9.0.1");
            plan.copies.send = SendCopy::ZeroCopy;
            let options = flow_options(&plan, Part::Source);
            let place = stack.connect(there, &options).expect("a socket");
            let number = |_, room: &mut [u8]| room[..4].fill(7);
            until(stack, |stack| stack.udp_send_burst(place, 64, 1, number));
            let end = clock::now() + 500_000_000;
            while clock::now() < end {
                stack.turn();
                stack.idle(None);
            }
        });
        let came = came
            .recv_timeout(Duration::from_secs(60))
            .expect("an answer");
        let (head, rest) = came.split_at(4);
        assert_eq!((head, rest), (&[7; 4][..], &[FILLER; 60][..]));
        sent.recv_timeout(Duration::from_secs(60)).expect("an end");
    }

    /// The first request is echoed through the buffer, because the stack has no destination yet.
    /// Later ones are echoed in place.
    #[test]
    fn questions_go_back_as_far_as_there_is_room() {
        // With busy polling and with a poll interval.
        for keys in [&[][..], &[("poll.interval", "100us")]] {
            let link = format!("shm:echoed-{}-{}", std::process::id(), keys.len());
            let far = started(&format!("{link},role=server"), "10.9.0.1/24", keys);
            let near = started(&link, "10.9.0.2/24", &[]);
            let there: SocketAddr = "10.9.0.1:7000".parse().expect("an address");
            let (binds, bound) = std::sync::mpsc::channel();
            let served = lent(&far, move |stack| {
                let socket = stack.stack.udp_bind(there).expect("a free port");
                let plan = Plan::new(Kind::Latency, Protocol::Udp, "10.9.0.2");
                let mut options = flow_options(&plan, Part::Sink);
                options.correspondent = Correspondent::Asker([10, 9, 0, 2].into());
                let place = stack.keep(socket, &options);
                binds.send(()).expect("a receiver");
                let mut room = [0; 40];
                let echoed = [(); 6].map(|()| {
                    until(stack, |stack| {
                        stack.udp_echo(place, &mut room, |question| question[0] != 3)
                    })
                });
                // Until the last response has left.
                let end = clock::now() + 200_000_000;
                while clock::now() < end {
                    stack.turn();
                    stack.idle(None);
                }
                (echoed, room, stack.payload)
            });
            bound.recv().expect("a socket");
            let came = lent(&near, move |stack| {
                let mut options = flow_options(
                    &Plan::new(Kind::Latency, Protocol::Udp, "10.9.0.1"),
                    Part::Source,
                );
                options.correspondent = Correspondent::Connected;
                let place = stack.connect(there, &options).expect("a socket");
                let mut ask = |number: u8, bytes: usize| {
                    until(stack, |stack| {
                        stack.udp_send(place, bytes, |payload| payload.fill(number))
                    });
                    if number == 3 {
                        return Vec::new();
                    }
                    until(stack, |stack| {
                        stack.udp_receive(place, |payload, _| payload.to_vec())
                    })
                };
                [(1, 30), (2, 30), (3, 30), (4, 40), (5, 41), (6, 1)]
                    .map(|(number, bytes)| ask(number, bytes))
            });
            let minute = Duration::from_secs(60);
            let came = came.recv_timeout(minute).expect("answers");
            let answers = [(1, 30), (2, 30), (3, 0), (4, 40), (5, 40), (6, 1)];
            assert_eq!(came, answers.map(|(number, bytes)| vec![number; bytes]));
            let (echoed, room, moved) = served.recv_timeout(minute).expect("an end");
            let sent = answers.map(|(_, bytes)| match bytes {
                0 => Echoed::Ignored,
                bytes => Echoed::Sent(bytes),
            });
            assert_eq!(echoed, sent);
            // Only the first request passed through the buffer.
            assert_eq!(room[..31], [[1; 30].as_slice(), &[0]].concat());
            let figures = (moved.datagrams, moved.received, moved.sent);
            assert_eq!(figures, (6, 172, 141));
        }
    }

    #[test]
    fn a_stream_is_the_same_whoever_copies_it() {
        let ways = [SendCopy::Copied, SendCopy::ZeroCopy];
        let reads = [ReceiveCopy::Copied, ReceiveCopy::Discarded];
        for (send, receive) in ways
            .into_iter()
            .flat_map(|way| reads.map(|read| (way, read)))
        {
            let link = format!("shm:in-place-{}-{send:?}-{receive:?}", std::process::id());
            let keys = [("tcp.send_buffer", "9999"), ("tcp.receive_window", "20001")];
            let far = started(&format!("{link},role=server"), "10.9.0.1/24", &keys);
            let near = started(&link, "10.9.0.2/24", &keys);
            let there: SocketAddr = "10.9.0.1:7000".parse().expect("an address");
            let options = move |part| {
                let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "10.9.0.1");
                (plan.copies.send, plan.copies.receive) = (send, receive);
                flow_options(&plan, part)
            };
            let (listens, listening) = std::sync::mpsc::channel();
            let taken = lent(&far, move |stack| {
                let listener = stack.stack.tcp_listen(there, 1).expect("a free port");
                listens.send(()).expect("a receiver");
                let options = options(Part::Sink);
                let listener = stack.keep(listener, &options);
                let place = until(stack, |stack| stack.accept(listener, &options));
                let (mut came, mut wrong, mut misplaced) = (0, 0, 0);
                let mut seen = std::ptr::null();
                loop {
                    let bytes = until(stack, |stack| {
                        stack.tcp_receive(place, 3_001, |payload| {
                            seen = payload.as_ptr();
                            let mut right = vec![0; payload.len()];
                            pattern().fill(came as u64, &mut right);
                            wrong += usize::from(right != payload);
                            payload.len()
                        })
                    });
                    let own = stack.incoming.front(CALL_BYTES).as_ptr_range();
                    let copied = receive == ReceiveCopy::Copied;
                    misplaced += usize::from(own.contains(&seen) != copied);
                    came += bytes;
                    if bytes == 0 {
                        return (came, wrong, misplaced);
                    }
                }
            });
            listening.recv().expect("a listener");
            let sent = lent(&near, move |stack| {
                let options = options(Part::Source);
                let (mut misplaced, mut seen) = (0, std::ptr::null());
                let place = stack.connect(there, &options).expect("a connection");
                let mut left = BYTES;
                while left > 0 {
                    let at = (BYTES - left) as u64;
                    left -= until(stack, |stack| {
                        stack.tcp_send(place, left.min(4_001), |room| {
                            seen = room.as_ptr();
                            pattern().fill(at, room);
                        })
                    });
                    let own = stack.outgoing.front(CALL_BYTES).as_ptr_range();
                    let copied = send == SendCopy::Copied;
                    misplaced += usize::from(own.contains(&seen) != copied);
                }
                stack.finish_sending(place).expect("an open connection");
                let end = clock::now() + 200_000_000;
                while clock::now() < end {
                    stack.turn();
                }
                misplaced
            });
            let taken = taken
                .recv_timeout(Duration::from_secs(60))
                .expect("an answer");
            assert_eq!(taken, (BYTES, 0, 0), "{send:?} {receive:?}");
            let sent = sent.recv_timeout(Duration::from_secs(60));
            assert_eq!(sent.expect("an answer"), 0, "{send:?} {receive:?}");
        }
    }

    #[test]
    fn looking_in_vain_is_told_by_the_time_that_it_takes() {
        let (used, passed, attempts) = on_stack("null:silent", &[], |stack| {
            let before = stack.attempts().unwrap();
            let (used, from) = (ThreadUsage::now(), clock::now());
            while clock::now() < from + 5_000_000 {
                stack.turn();
                stack.idle(None);
            }
            let used = ThreadUsage::now().since(&used).cpu_ns;
            let passed = clock::now() - from;
            (used, passed, stack.attempts().unwrap().since(&before))
        });
        let in_vain = attempts.empty * EMPTY_CALL_NS;
        assert_eq!(attempts.calls, attempts.empty);
        // Other threads may have had the processor meanwhile.
        assert!(in_vain <= passed, "{in_vain} of {passed} ns");
        assert!(in_vain > used / 2, "{in_vain} of {used} ns");
    }
}
