//! Services that a stack's thread runs beside the measured payload. They live in crates above.

use std::any::Any;

use linerate_stack::{SocketId, Stack};
use linerate_sys::clock::Nanos;

use super::bridge::ConnectionBridge;
use crate::TransportError;

/// Opens the services of a stack, on its thread.
pub type OpenServices =
    Box<dyn FnOnce(&mut Stack) -> Result<Box<dyn StackService>, TransportError> + Send>;

/// Payload that was received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadCounters {
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Datagrams received.
    pub datagrams: u64,
}

/// Services of a host on a stack, driven by its thread.
pub trait StackService: Any {
    /// Handles a change of a socket that is not a workload's.
    fn on_socket_change(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos);
    /// Returns whether a socket continues without new frames.
    fn has_ready_work(&self) -> bool;
    /// Continues sockets that one round was not enough for, and transmits the output.
    fn run_ready(&mut self, stack: &mut Stack, now: Nanos);
    /// Handles everything that tolerates a delay, such as idle timeouts.
    fn poll_timers(&mut self, stack: &mut Stack, now: Nanos);
    /// Sets the payload that workloads on this stack have moved in all.
    fn set_test_payload(&mut self, payload: PayloadCounters);
    /// Takes the bridges of new control connections.
    fn take_bridges(&mut self) -> Vec<ConnectionBridge>;
    /// Removes a socket that a workload has adopted and will close.
    fn hand_over_socket(&mut self, socket: SocketId);
    /// Called when a test starts: data on its flows is payload from here on.
    fn stop_openings(&mut self);
    /// Called when a test is over: closes its unused sockets.
    fn end_test(&mut self, stack: &mut Stack);
}
