//! Payload that the remote kernel acknowledged, for connections without a report.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use linerate_protocol::control::FlowTotal;
use linerate_session::error::SessionError;
use linerate_session::third_party_record::AckedPayload;
use linerate_sys::clock::Nanos;

use super::flow_socket::FlowSocket;
use super::setup_context::protocol_error;

/// Timeout of the last acknowledgement while none arrives.
const ACK_TIMEOUT_NS: Nanos = 10_000_000_000;

/// Time for the server to close its side after everything is acknowledged: the first end to close
/// with unread bytes resets the connection.
const CLOSE_TIMEOUT_NS: Nanos = 1_000_000_000;

/// Limit of the first bytes that are checked.
const FIRST_BYTES: usize = 8;

/// Error text for a server whose first bytes do not fit the protocol.
const OTHER_PROTOCOL: &str =
    "the server there has another protocol: --peer auto detects the protocol";

/// Poll interval.
pub const ACK_POLL_INTERVAL_NS: Nanos = 500_000;

/// Connections whose acknowledgements are watched.
#[derive(Default)]
pub struct AckWatch {
    peer: Option<SocketAddr>,
    flows: Vec<WatchedFlow>,
    /// Time of the last send; nothing is watched before.
    sent_ns: Option<Nanos>,
    /// Unacknowledged payload, and the time at which it last decreased.
    unacknowledged: (u64, Nanos),
    done_ns: Option<Nanos>,
    finished: bool,
    /// True if another thread reads from the connections.
    read_elsewhere: bool,
    /// Checks whether the first bytes can be of the protocol.
    is_valid_prefix: Option<fn(&[u8]) -> bool>,
}

struct WatchedFlow {
    id: u32,
    socket: FlowSocket,
    bytes: u64,
    acknowledged: Option<AckedPayload>,
    closed: bool,
    /// First received bytes, which are not payload.
    first_bytes: Vec<u8>,
}

impl AckWatch {
    /// Watches these connections, by flow number.
    pub fn new(peer: SocketAddr, sockets: Vec<(u32, FlowSocket)>) -> Self {
        let flow = |(id, socket)| WatchedFlow {
            id,
            socket,
            bytes: 0,
            acknowledged: None,
            closed: false,
            first_bytes: Vec::new(),
        };
        Self {
            peer: Some(peer),
            flows: sockets.into_iter().map(flow).collect(),
            ..Self::default()
        }
    }

    /// Checks the first received bytes with `is_valid_prefix`.
    pub fn with_prefix_check(self, is_valid_prefix: fn(&[u8]) -> bool) -> Self {
        Self {
            is_valid_prefix: Some(is_valid_prefix),
            ..self
        }
    }

    /// Leaves received bytes to another thread, where payload comes back.
    pub fn with_return_payload(mut self) -> Self {
        self.read_elsewhere = true;
        self
    }

    /// Notes the totals that were sent on each flow.
    pub fn payload_sent(&mut self, now: Nanos, totals: &[FlowTotal]) {
        self.sent_ns = Some(now);
        self.unacknowledged = (u64::MAX, now);
        for flow in &mut self.flows {
            let total = totals.iter().find(|total| total.id == flow.id);
            flow.bytes = total.map_or(0, |total| total.bytes);
        }
    }

    /// Checks for new acknowledgements.
    ///
    /// # Errors
    /// If none arrives for too long, or the first bytes are of another protocol.
    pub fn poll(&mut self, now: Nanos) -> Result<(), SessionError> {
        if self.finished {
            return Ok(());
        }
        if let (Some(is_valid_prefix), false) = (self.is_valid_prefix, self.read_elsewhere) {
            for flow in &mut self.flows {
                flow.drain();
                if !is_valid_prefix(&flow.first_bytes) {
                    let peer = self.peer.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
                    return Err(protocol_error(peer, OTHER_PROTOCOL));
                }
            }
        }
        if self.sent_ns.is_none() {
            return Ok(());
        }
        let mut unacknowledged = 0;
        for flow in &mut self.flows {
            if !self.read_elsewhere {
                flow.drain();
            }
            if flow.acknowledged.is_some() || flow.closed {
                continue;
            }
            // With payload coming back, this end has sent no FIN.
            match flow.socket.unacknowledged(!self.read_elsewhere) {
                Ok(0) => {
                    flow.acknowledged = Some(AckedPayload {
                        bytes: flow.bytes,
                        last_ack_ns: flow.last_ack_ns(now),
                    });
                }
                // Reset: nothing more will be acknowledged.
                Ok(_) if !flow.socket.is_established() => flow.closed = true,
                Ok(bytes) => unacknowledged += bytes,
                Err(_) => flow.closed = true,
            }
        }
        if unacknowledged < self.unacknowledged.0 {
            self.unacknowledged = (unacknowledged, now);
        }
        if unacknowledged == 0 {
            let done_ns = *self.done_ns.get_or_insert(now);
            let all_closed = self.flows.iter().all(|flow| flow.closed);
            self.finished = all_closed || self.read_elsewhere || now >= done_ns + CLOSE_TIMEOUT_NS;
        } else if now >= self.unacknowledged.1 + ACK_TIMEOUT_NS {
            self.finished = true;
            let peer = self.peer.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
            return Err(protocol_error(
                peer,
                format!(
                    "the server accepted nothing for 10 s, with {unacknowledged} B in flight: look at its process \
                     and at the network between, then run it again"
                ),
            ));
        }
        Ok(())
    }

    /// Returns whether no more acknowledgements are expected.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Returns the acknowledged payload by flow number.
    pub fn acknowledged(&self) -> BTreeMap<u32, AckedPayload> {
        let flows = self.flows.iter();
        flows
            .filter_map(|flow| Some((flow.id, flow.acknowledged?)))
            .collect()
    }
}

impl WatchedFlow {
    /// Returns the time of the last acknowledgement, by the kernel's own time stamp: polls are
    /// rare, and late on a busy machine. All may be acknowledged before this end notices that its
    /// sender has finished.
    fn last_ack_ns(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.socket.since_acknowledgement())
    }

    /// Drains received bytes, of which only the first are of interest.
    fn drain(&mut self) {
        let mut buffer = [0; 4096];
        while !self.closed {
            match self.socket.receive(&mut buffer) {
                Ok(bytes) if bytes > 0 && self.first_bytes.len() < FIRST_BYTES => {
                    let more = bytes.min(FIRST_BYTES - self.first_bytes.len());
                    self.first_bytes.extend_from_slice(&buffer[..more]);
                }
                Ok(0) => {
                    // A server that closes after this end has read everything.
                    if self
                        .socket
                        .unacknowledged(false)
                        .is_ok_and(|unacknowledged| unacknowledged == 0)
                    {
                        return self.on_close();
                    }
                    return;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
        }
    }

    fn on_close(&mut self) {
        // The acknowledgement is recorded first.
        if self.acknowledged.is_some() {
            self.closed = true;
        }
    }
}
