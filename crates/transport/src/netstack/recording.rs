//! The user-space stack with recorded calls: those of the workload, and the polls of the stack.
//!
//! None of them is a system call, but a program over such a stack spends its time in the same three
//! things: sending, receiving and polling.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::task::Poll;
use std::time::Duration;

use linerate_record::plan::TransportProtocol;
use linerate_record::record::SocketFacts;
use linerate_record::stack::StackFacts;
use linerate_stack::{SocketId, SocketKind};
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::Readiness;

use super::NetstackTransport;
use super::socket_table::SocketSlot;
use crate::call_times::{CallOutcome, CallRecorder, CallStats, TransportCall};
use crate::kernel::SocketWatch;
use crate::{
    CallAttempts, EchoOutcome, FlowOptions, RecvMeta, RunClock, Transport, TransportCapabilities,
    TransportSetup, TxTimestamp, WorkerTransport,
};

/// Calls that a workload makes.
const RECORDED_CALLS: [TransportCall; 10] = [
    TransportCall::StackPoll,
    TransportCall::Flush,
    TransportCall::Sleep,
    TransportCall::UdpSend,
    TransportCall::UdpSendBurst,
    TransportCall::UdpReceive,
    TransportCall::UdpReceiveBurst,
    TransportCall::UdpEcho,
    TransportCall::TcpSend,
    TransportCall::TcpReceive,
];

/// A stack with a call recorder. Without a recorder, workloads run on the stack itself.
pub struct RecordingNetstack<'a, R> {
    stack: &'a mut NetstackTransport,
    recorder: R,
}

impl<'a, R: CallRecorder> RecordingNetstack<'a, R> {
    /// Borrows the stack for a workload.
    pub fn with_stack(stack: &'a mut NetstackTransport) -> Self {
        Self {
            stack,
            recorder: R::new(&RECORDED_CALLS),
        }
    }

    /// Records the end of a receive call.
    #[inline]
    fn finish_receive<T>(
        &mut self,
        call: TransportCall,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let outcome = match &result {
            Poll::Ready(_) => CallOutcome::Ready,
            Poll::Pending => CallOutcome::Empty,
        };
        self.recorder.end(call, outcome);
        result
    }

    /// Records the end of a send call of `offered` bytes or datagrams.
    #[inline]
    fn finish_send(
        &mut self,
        call: TransportCall,
        offered: usize,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let outcome = match &result {
            Poll::Ready(Ok(accepted)) if *accepted < offered => CallOutcome::Waited,
            Poll::Ready(_) => CallOutcome::Ready,
            Poll::Pending => CallOutcome::Empty,
        };
        self.recorder.end(call, outcome);
        result
    }
}

impl<R: CallRecorder> Transport for RecordingNetstack<'_, R> {
    type Socket = SocketSlot;

    fn poll(&mut self) {
        self.recorder.begin();
        // A poll that was not due is not recorded.
        if let Some(has_received) = self.stack.poll_stack() {
            let result = if has_received {
                CallOutcome::Ready
            } else {
                CallOutcome::Empty
            };
            self.recorder.end(TransportCall::StackPoll, result);
        }
        self.stack.poll_background_if_due();
    }

    fn now(&self) -> Nanos {
        self.stack.now()
    }

    fn read_clock() -> Nanos {
        NetstackTransport::read_clock()
    }

    #[inline]
    fn flush(&mut self) {
        self.recorder.begin();
        if self.stack.flush_single_flow() {
            self.recorder.end(TransportCall::Flush, CallOutcome::Ready);
        }
    }

    fn idle(&mut self, until: Option<Nanos>) {
        self.recorder.begin();
        let flushed = self.stack.flush_unsent();
        if flushed {
            self.recorder.end(TransportCall::Flush, CallOutcome::Ready);
        }
        if self.stack.pause(flushed, until) {
            self.recorder.end(TransportCall::Sleep, CallOutcome::Waited);
        }
    }

    fn connect(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<SocketSlot> {
        self.stack.connect(remote, options)
    }

    fn open(&mut self, remote: SocketAddr, options: &FlowOptions) -> io::Result<SocketSlot> {
        self.stack.open(remote, options)
    }

    fn bind(&mut self, slot: SocketSlot, local: SocketAddr) -> io::Result<()> {
        self.stack.bind(slot, local)
    }

    fn poll_connect(&mut self, slot: SocketSlot, remote: SocketAddr) -> Poll<io::Result<()>> {
        self.stack.poll_connect(slot, remote)
    }

    fn accept(&mut self, slot: SocketSlot, options: &FlowOptions) -> Poll<io::Result<SocketSlot>> {
        self.stack.accept(slot, options)
    }

    fn close(&mut self, slot: SocketSlot) {
        Transport::close(self.stack, slot);
    }

    fn connect_to_last_sender(&mut self, slot: SocketSlot) {
        self.stack.connect_to_last_sender(slot);
    }

    fn udp_send(
        &mut self,
        slot: SocketSlot,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.recorder.begin();
        let sent = self.stack.udp_send(slot, bytes, fill);
        self.finish_send(TransportCall::UdpSend, bytes, sent)
    }

    fn udp_receive<T>(
        &mut self,
        slot: SocketSlot,
        take: impl FnOnce(&[u8], RecvMeta) -> T,
    ) -> Poll<io::Result<T>> {
        self.recorder.begin();
        let received = self.stack.udp_receive(slot, take);
        self.finish_receive(TransportCall::UdpReceive, received)
    }

    fn udp_echo(
        &mut self,
        slot: SocketSlot,
        buffer: &mut [u8],
        is_request: impl FnOnce(&[u8]) -> bool,
    ) -> Poll<io::Result<EchoOutcome>> {
        self.recorder.begin();
        let echoed = self.stack.udp_echo(slot, buffer, is_request);
        self.finish_receive(TransportCall::UdpEcho, echoed)
    }

    fn max_burst(&self, slot: SocketSlot, bytes: usize) -> usize {
        self.stack.max_burst(slot, bytes)
    }

    fn udp_send_burst(
        &mut self,
        slot: SocketSlot,
        bytes: usize,
        count: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.recorder.begin();
        let sent = self.stack.udp_send_burst(slot, bytes, count, fill);
        self.finish_send(TransportCall::UdpSendBurst, count, sent)
    }

    fn udp_receive_burst(
        &mut self,
        slot: SocketSlot,
        take: impl FnMut(&[u8], RecvMeta),
    ) -> Poll<io::Result<usize>> {
        self.recorder.begin();
        let received = self.stack.udp_receive_burst(slot, take);
        self.finish_receive(TransportCall::UdpReceiveBurst, received)
    }

    fn tcp_send(
        &mut self,
        slot: SocketSlot,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.recorder.begin();
        let sent = self.stack.tcp_send(slot, bytes, fill);
        self.finish_send(TransportCall::TcpSend, bytes, sent)
    }

    fn tcp_receive<T>(
        &mut self,
        slot: SocketSlot,
        buffer: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        self.recorder.begin();
        let received = self.stack.tcp_receive(slot, buffer, take);
        self.finish_receive(TransportCall::TcpReceive, received)
    }

    fn enable_timestamps(
        &mut self,
        slot: SocketSlot,
        protocol: TransportProtocol,
    ) -> io::Result<Vec<String>> {
        self.stack.enable_timestamps(slot, protocol)
    }

    fn receive_with_timestamp<T>(
        &mut self,
        slot: SocketSlot,
        buffer: usize,
        take: impl FnOnce(&[u8], RecvMeta) -> T,
    ) -> Poll<io::Result<T>> {
        let call = match self.stack.socket_kind(slot) {
            Some(SocketKind::Udp) => TransportCall::UdpReceive,
            _ => TransportCall::TcpReceive,
        };
        self.recorder.begin();
        let received = self.stack.receive_with_timestamp(slot, buffer, take);
        self.finish_receive(call, received)
    }

    fn take_tx_timestamps(
        &mut self,
        slot: SocketSlot,
        take: impl FnMut(TxTimestamp),
    ) -> io::Result<()> {
        self.stack.take_tx_timestamps(slot, take)
    }

    fn shutdown_send(&mut self, slot: SocketSlot) -> io::Result<()> {
        self.stack.shutdown_send(slot)
    }

    fn deregister(&mut self, slot: SocketSlot) {
        self.stack.deregister(slot);
    }

    fn register(&mut self, slot: SocketSlot, ready: Readiness, key: usize) -> io::Result<bool> {
        self.stack.register(slot, ready, key)
    }

    fn register_edge_triggered(&mut self, slot: SocketSlot, key: usize) -> io::Result<()> {
        self.stack.register_edge_triggered(slot, key)
    }

    fn wait_ready(&mut self, keys: &mut Vec<usize>, timeout: Duration) {
        if let Some(until) = self.stack.collect_ready(keys, timeout) {
            self.idle(Some(until));
        }
    }

    fn call_attempts(&self) -> Option<CallAttempts> {
        self.stack.call_attempts()
    }

    fn socket_facts(&self, slot: SocketSlot) -> SocketFacts {
        self.stack.socket_facts(slot)
    }

    fn retransmits(&self, slot: SocketSlot) -> Option<u64> {
        self.stack.retransmits(slot)
    }

    fn capabilities(&self) -> TransportCapabilities {
        self.stack.capabilities()
    }
}

impl<R: CallRecorder> WorkerTransport for RecordingNetstack<'_, R> {
    fn new(_: &TransportSetup) -> io::Result<Self> {
        // It is created from an existing stack.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn adopt(&mut self, fd: OwnedFd, options: &FlowOptions) -> io::Result<SocketSlot> {
        self.stack.adopt(fd, options)
    }

    fn adopt_netstack(
        &mut self,
        socket: SocketId,
        options: &FlowOptions,
    ) -> io::Result<SocketSlot> {
        self.stack.adopt_netstack(socket, options)
    }

    fn watch(&self, slot: SocketSlot) -> Option<SocketWatch> {
        self.stack.watch(slot)
    }

    fn poll_background(&mut self) -> bool {
        self.stack.poll_background()
    }

    fn netstack_facts(&mut self) -> Option<Box<StackFacts>> {
        self.stack.netstack_facts()
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        self.stack.descriptors()
    }

    fn connect_many(
        &mut self,
        targets: &[(SocketAddr, &FlowOptions)],
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Vec<SocketSlot>> {
        self.stack.connect_many(targets, is_cancelled)
    }

    fn clear_receive_timeout(&mut self, slot: SocketSlot) -> io::Result<()> {
        self.stack.clear_receive_timeout(slot)
    }

    fn start(&mut self, run_clock: &RunClock) {
        self.recorder.start(run_clock);
        self.stack.start(run_clock);
    }

    fn call_stats(&self) -> Option<CallStats> {
        self.recorder.stats()
    }
}
