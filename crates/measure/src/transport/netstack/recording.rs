//! The user-space stack with recorded calls: those of the workload, and the polls of the stack.
//!
//! None of them is a system call, but a program over such a stack spends its time in the same three
//! things: sending, receiving and polling.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Protocol;
use linerate_metric::record::Socket as SocketFacts;
use linerate_metric::stack::StackFacts;
use linerate_stack::{SocketId, SocketKind};

use super::OnStack;
use super::socket_table::Place;
use crate::flow::Timeline;
use crate::transport::call_times::{Call, CallTally, Found, Recorder};
use crate::transport::kernel::Watch;
use crate::transport::{
    Adapter, Attempts, Capabilities, Departure, Echoed, FlowOptions, Meta, Ready, Setup, Transport,
};

/// Calls that a workload makes.
const CALLS: [Call; 10] = [
    Call::Turn,
    Call::Flush,
    Call::Sleep,
    Call::UdpSend,
    Call::UdpSendBurst,
    Call::UdpReceive,
    Call::UdpReceiveBurst,
    Call::UdpEcho,
    Call::TcpSend,
    Call::TcpReceive,
];

/// A stack with a call recorder. Without a recorder, workloads run on the stack itself.
pub struct Recorded<'a, R> {
    stack: &'a mut OnStack,
    calls: R,
}

impl<'a, R: Recorder> Recorded<'a, R> {
    /// Borrows the stack for a workload.
    pub fn of(stack: &'a mut OnStack) -> Self {
        Self {
            stack,
            calls: R::new(&CALLS),
        }
    }

    /// Records the end of a receive call.
    #[inline]
    fn received<T>(&mut self, call: Call, found: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let what = match &found {
            Poll::Ready(_) => Found::Ready,
            Poll::Pending => Found::Empty,
        };
        self.calls.end(call, what);
        found
    }

    /// Records the end of a send call of `offered` bytes or datagrams.
    #[inline]
    fn sent(
        &mut self,
        call: Call,
        offered: usize,
        found: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let what = match &found {
            Poll::Ready(Ok(taken)) if *taken < offered => Found::Waited,
            Poll::Ready(_) => Found::Ready,
            Poll::Pending => Found::Empty,
        };
        self.calls.end(call, what);
        found
    }
}

impl<R: Recorder> Transport for Recorded<'_, R> {
    type Socket = Place;

    fn turn(&mut self) {
        self.calls.begin();
        // A poll that was not due is not recorded.
        if let Some(came) = self.stack.work() {
            let found = if came { Found::Ready } else { Found::Empty };
            self.calls.end(Call::Turn, found);
        }
        self.stack.look();
    }

    fn now(&self) -> Nanos {
        self.stack.now()
    }

    fn clock() -> Nanos {
        OnStack::clock()
    }

    #[inline]
    fn flush(&mut self) {
        self.calls.begin();
        if self.stack.flush_alone() {
            self.calls.end(Call::Flush, Found::Ready);
        }
    }

    fn idle(&mut self, until: Option<Nanos>) {
        self.calls.begin();
        let flushed = self.stack.flush_unsent();
        if flushed {
            self.calls.end(Call::Flush, Found::Ready);
        }
        if self.stack.pause(flushed, until) {
            self.calls.end(Call::Sleep, Found::Waited);
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Place> {
        self.stack.connect(remote, options)
    }

    fn open(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<Place> {
        self.stack.open(remote, options)
    }

    fn bind(&mut self, place: Place, local: SocketAddr) -> io::Result<()> {
        self.stack.bind(place, local)
    }

    fn begin_connect(&mut self, place: Place, remote: SocketAddr) -> Poll<io::Result<()>> {
        self.stack.begin_connect(place, remote)
    }

    fn accept(&mut self, place: Place, options: &FlowOptions) -> Poll<io::Result<Place>> {
        self.stack.accept(place, options)
    }

    fn close(&mut self, place: Place) {
        Transport::close(self.stack, place);
    }

    fn recognise(&mut self, place: Place) {
        self.stack.recognise(place);
    }

    fn udp_send(
        &mut self,
        place: Place,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.calls.begin();
        let sent = self.stack.udp_send(place, bytes, fill);
        self.sent(Call::UdpSend, bytes, sent)
    }

    fn udp_receive<T>(
        &mut self,
        place: Place,
        take: impl FnOnce(&[u8], Meta) -> T,
    ) -> Poll<io::Result<T>> {
        self.calls.begin();
        let received = self.stack.udp_receive(place, take);
        self.received(Call::UdpReceive, received)
    }

    fn udp_echo(
        &mut self,
        place: Place,
        room: &mut [u8],
        is_question: impl FnOnce(&[u8]) -> bool,
    ) -> Poll<io::Result<Echoed>> {
        self.calls.begin();
        let echoed = self.stack.udp_echo(place, room, is_question);
        self.received(Call::UdpEcho, echoed)
    }

    fn burst(&self, place: Place, bytes: usize) -> usize {
        self.stack.burst(place, bytes)
    }

    fn udp_send_burst(
        &mut self,
        place: Place,
        bytes: usize,
        count: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.calls.begin();
        let sent = self.stack.udp_send_burst(place, bytes, count, fill);
        self.sent(Call::UdpSendBurst, count, sent)
    }

    fn udp_receive_burst(
        &mut self,
        place: Place,
        take: impl FnMut(&[u8], Meta),
    ) -> Poll<io::Result<usize>> {
        self.calls.begin();
        let received = self.stack.udp_receive_burst(place, take);
        self.received(Call::UdpReceiveBurst, received)
    }

    fn tcp_send(
        &mut self,
        place: Place,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.calls.begin();
        let sent = self.stack.tcp_send(place, bytes, fill);
        self.sent(Call::TcpSend, bytes, sent)
    }

    fn tcp_receive<T>(
        &mut self,
        place: Place,
        room: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        self.calls.begin();
        let received = self.stack.tcp_receive(place, room, take);
        self.received(Call::TcpReceive, received)
    }

    fn stamp(&mut self, place: Place, protocol: Protocol) -> io::Result<Vec<String>> {
        self.stack.stamp(place, protocol)
    }

    fn receive_stamped<T>(
        &mut self,
        place: Place,
        room: usize,
        take: impl FnOnce(&[u8], Meta) -> T,
    ) -> Poll<io::Result<T>> {
        let call = match self.stack.kind(place) {
            Some(SocketKind::Udp) => Call::UdpReceive,
            _ => Call::TcpReceive,
        };
        self.calls.begin();
        let received = self.stack.receive_stamped(place, room, take);
        self.received(call, received)
    }

    fn departures(&mut self, place: Place, take: impl FnMut(Departure)) -> io::Result<()> {
        self.stack.departures(place, take)
    }

    fn finish_sending(&mut self, place: Place) -> io::Result<()> {
        self.stack.finish_sending(place)
    }

    fn release(&mut self, place: Place) {
        self.stack.release(place);
    }

    fn enrol(&mut self, place: Place, ready: Ready, key: usize) -> io::Result<bool> {
        self.stack.enrol(place, ready, key)
    }

    fn enrol_changes(&mut self, place: Place, key: usize) -> io::Result<()> {
        self.stack.enrol_changes(place, key)
    }

    fn ready(&mut self, keys: &mut Vec<usize>, patience: Duration) {
        if let Some(until) = self.stack.tell(keys, patience) {
            self.idle(Some(until));
        }
    }

    fn attempts(&self) -> Option<Attempts> {
        self.stack.attempts()
    }

    fn facts(&self, place: Place) -> SocketFacts {
        self.stack.facts(place)
    }

    fn retransmits(&self, place: Place) -> Option<u64> {
        self.stack.retransmits(place)
    }

    fn capabilities(&self) -> Capabilities {
        self.stack.capabilities()
    }
}

impl<R: Recorder> Adapter for Recorded<'_, R> {
    fn new(_: &Setup) -> io::Result<Self> {
        // It is created from an existing stack.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<Place> {
        self.stack.adopt(fd, options)
    }

    fn take(&mut self, socket: SocketId, options: &FlowOptions) -> io::Result<Place> {
        self.stack.take(socket, options)
    }

    fn watch(&self, place: Place) -> Option<Watch> {
        self.stack.watch(place)
    }

    fn tend(&mut self) -> bool {
        self.stack.tend()
    }

    fn stack_facts(&mut self) -> Option<Box<StackFacts>> {
        self.stack.stack_facts()
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        self.stack.descriptors()
    }

    fn connect_many(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Place>> {
        self.stack.connect_many(wanted, called_off)
    }

    fn sleep_without_limit(&mut self, place: Place) -> io::Result<()> {
        self.stack.sleep_without_limit(place)
    }

    fn start(&mut self, timeline: &Timeline) {
        self.calls.start(timeline);
        self.stack.start(timeline);
    }

    fn tally(&self) -> Option<CallTally> {
        self.calls.tally()
    }
}
