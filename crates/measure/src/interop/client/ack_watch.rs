//! Payload that the remote kernel acknowledged, for connections without a report.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use linerate_dialect::control::FlowTotal;
use linerate_host::sys::clock::Nanos;

use super::flow_socket::FlowSocket;
use super::setup_context::foreign;
use crate::error::MeasureError;
use crate::interop::record::Acknowledged;

/// Timeout of the last acknowledgement while none arrives.
const PATIENCE_NS: Nanos = 10_000_000_000;

/// Time for the server to close its side after everything is acknowledged: the first end to close
/// with unread bytes resets the connection.
const FAREWELL_NS: Nanos = 1_000_000_000;

/// Limit of the first bytes that are checked.
const FIRST_WORDS: usize = 8;

/// Error text for a server whose first bytes do not fit the protocol.
const OTHER_DIALECT: &str =
    "the server there speaks another protocol: --peer auto detects the protocol";

/// Poll interval.
pub const LOOK_NS: Nanos = 500_000;

/// Connections whose acknowledgements are watched.
#[derive(Default)]
pub struct Acks {
    peer: Option<SocketAddr>,
    flows: Vec<Flow>,
    /// Time of the last send; nothing is watched before.
    sent_ns: Option<Nanos>,
    /// Unacknowledged payload, and the time at which it last decreased.
    left: (u64, Nanos),
    done_ns: Option<Nanos>,
    over: bool,
    /// True if another thread reads from the connections.
    shared: bool,
    /// Checks whether the first bytes can be of the protocol.
    are_right: Option<fn(&[u8]) -> bool>,
}

struct Flow {
    id: u32,
    socket: FlowSocket,
    bytes: u64,
    acknowledged: Option<Acknowledged>,
    closed: bool,
    /// First received bytes, which are not payload.
    first_words: Vec<u8>,
}

impl Acks {
    /// Watches these connections, by flow number.
    pub fn new(peer: SocketAddr, sockets: Vec<(u32, FlowSocket)>) -> Self {
        let flow = |(id, socket)| Flow {
            id,
            socket,
            bytes: 0,
            acknowledged: None,
            closed: false,
            first_words: Vec::new(),
        };
        Self {
            peer: Some(peer),
            flows: sockets.into_iter().map(flow).collect(),
            ..Self::default()
        }
    }

    /// Checks the first received bytes with `is_valid_prefix`.
    pub fn hearing(self, are_right: fn(&[u8]) -> bool) -> Self {
        Self {
            are_right: Some(are_right),
            ..self
        }
    }

    /// Leaves received bytes to another thread, where payload comes back.
    pub fn beside_payload(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Notes the totals that were sent on each flow.
    pub fn sent(&mut self, now: Nanos, totals: &[FlowTotal]) {
        self.sent_ns = Some(now);
        self.left = (u64::MAX, now);
        for flow in &mut self.flows {
            let total = totals.iter().find(|total| total.id == flow.id);
            flow.bytes = total.map_or(0, |total| total.bytes);
        }
    }

    /// Checks for new acknowledgements.
    ///
    /// # Errors
    /// If none arrives for too long, or the first bytes are of another protocol.
    pub fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.over {
            return Ok(());
        }
        if let (Some(are_right), false) = (self.are_right, self.shared) {
            for flow in &mut self.flows {
                flow.listen();
                if !are_right(&flow.first_words) {
                    let peer = self.peer.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
                    return Err(foreign(peer, OTHER_DIALECT));
                }
            }
        }
        if self.sent_ns.is_none() {
            return Ok(());
        }
        let mut left = 0;
        for flow in &mut self.flows {
            if !self.shared {
                flow.listen();
            }
            if flow.acknowledged.is_some() || flow.closed {
                continue;
            }
            // With payload coming back, this end has sent no FIN.
            match flow.socket.unacknowledged(!self.shared) {
                Ok(0) => {
                    let sent_ns = self.sent_ns.unwrap_or(now);
                    flow.acknowledged = Some(Acknowledged {
                        bytes: flow.bytes,
                        behind_ns: flow.last_heard(now, sent_ns).saturating_sub(sent_ns),
                    });
                }
                // Reset: nothing more will be acknowledged.
                Ok(_) if !flow.socket.stands() => flow.closed = true,
                Ok(bytes) => left += bytes,
                Err(_) => flow.closed = true,
            }
        }
        if left < self.left.0 {
            self.left = (left, now);
        }
        if left == 0 {
            let done = *self.done_ns.get_or_insert(now);
            let all = self.flows.iter().all(|flow| flow.closed);
            self.over = all || self.shared || now >= done + FAREWELL_NS;
        } else if now >= self.left.1 + PATIENCE_NS {
            self.over = true;
            let peer = self.peer.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
            return Err(foreign(
                peer,
                format!(
                    "the server accepted nothing for 10 s, with {left} B in flight: look at its process \
                     and at the network between, then run it again"
                ),
            ));
        }
        Ok(())
    }

    /// Returns whether no more acknowledgements are expected.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Returns the acknowledged payload by flow number.
    pub fn found(&self) -> BTreeMap<u32, Acknowledged> {
        let found = self.flows.iter();
        found
            .filter_map(|flow| Some((flow.id, flow.acknowledged?)))
            .collect()
    }
}

impl Flow {
    /// Returns the time of the last acknowledgement, by the kernel's own time stamp: polls are
    /// rare, and late on a busy machine. It is not before the last payload was sent.
    fn last_heard(&self, now: Nanos, sent_ns: Nanos) -> Nanos {
        let ago = self.socket.since_acknowledgement();
        now.saturating_sub(ago).max(sent_ns)
    }

    /// Drains received bytes, of which only the first are of interest.
    fn listen(&mut self) {
        let mut room = [0; 4096];
        while !self.closed {
            match self.socket.receive(&mut room) {
                Ok(bytes) if bytes > 0 && self.first_words.len() < FIRST_WORDS => {
                    let more = bytes.min(FIRST_WORDS - self.first_words.len());
                    self.first_words.extend_from_slice(&room[..more]);
                }
                Ok(0) => {
                    // A server that closes after this end has read everything.
                    if self
                        .socket
                        .unacknowledged(false)
                        .is_ok_and(|left| left == 0)
                    {
                        return self.see_end();
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

    fn see_end(&mut self) {
        // The acknowledgement is recorded first.
        if self.acknowledged.is_some() {
            self.closed = true;
        }
    }
}
