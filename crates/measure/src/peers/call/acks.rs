//! What the far kernel acknowledged of connections on which nobody says what arrived.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use linerate_dialect::control::FlowTotal;
use linerate_host::sys::clock::Nanos;

use super::context::foreign;
use super::socket::FlowSocket;
use crate::error::MeasureError;
use crate::peers::record::Acknowledged;

/// How long the last acknowledgement is waited for while none comes.
const PATIENCE_NS: Nanos = 10_000_000_000;

/// How long the far end has to close its side once everything is acknowledged: whoever closes first
/// with bytes unread resets the connection.
const FAREWELL_NS: Nanos = 1_000_000_000;

/// Bytes of what comes first that are looked at.
const FIRST_WORDS: usize = 8;

/// What is said of somebody who answers as no server of the dialect does.
const OTHER_DIALECT: &str =
    "what answers there speaks another dialect: --peer auto finds out which";

/// How often it is looked.
pub const LOOK_NS: Nanos = 500_000;

/// Connections of which the acknowledgements are waited for.
#[derive(Default)]
pub struct Acks {
    peer: Option<SocketAddr>,
    flows: Vec<Flow>,
    /// When the last payload was sent; nothing is waited for before.
    sent_ns: Option<Nanos>,
    /// Payload that was not acknowledged, and when that last became less.
    left: (u64, Nanos),
    done_ns: Option<Nanos>,
    over: bool,
    /// What comes on them is somebody else's to read.
    shared: bool,
    /// Whether what comes first can be of the dialect.
    are_right: Option<fn(&[u8]) -> bool>,
}

struct Flow {
    id: u32,
    socket: FlowSocket,
    bytes: u64,
    acknowledged: Option<Acknowledged>,
    closed: bool,
    /// The first bytes that came, which nobody waits for.
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

    /// The same where what comes first must be of the dialect.
    pub fn hearing(self, are_right: fn(&[u8]) -> bool) -> Self {
        Self {
            are_right: Some(are_right),
            ..self
        }
    }

    /// The same where payload comes back on them.
    pub fn beside_payload(mut self) -> Self {
        self.shared = true;
        self
    }

    /// All was sent: so much on each flow.
    pub fn sent(&mut self, now: Nanos, totals: &[FlowTotal]) {
        self.sent_ns = Some(now);
        self.left = (u64::MAX, now);
        for flow in &mut self.flows {
            let total = totals.iter().find(|total| total.id == flow.id);
            flow.bytes = total.map_or(0, |total| total.bytes);
        }
    }

    /// Looks what has been acknowledged since.
    ///
    /// # Errors
    /// When nothing is for too long.
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
            // Where payload comes back, this end has not ended.
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
                    "the far end took nothing for 10 s, with {left} B on their way: look at its process \
                     and at the network between, then run it again"
                ),
            ));
        }
        Ok(())
    }

    /// Whether everything is acknowledged that will be.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// By flow number.
    pub fn found(&self) -> BTreeMap<u32, Acknowledged> {
        let found = self.flows.iter();
        found
            .filter_map(|flow| Some((flow.id, flow.acknowledged?)))
            .collect()
    }
}

impl Flow {
    /// When the last acknowledgement came. It is looked for now and then only, on a busy machine late;
    /// the kernel knows it, in its ticks. Not before the last payload left.
    fn last_heard(&self, now: Nanos, sent_ns: Nanos) -> Nanos {
        let ago = self.socket.since_acknowledgement();
        now.saturating_sub(ago).max(sent_ns)
    }

    /// Reads what nobody waits for.
    fn listen(&mut self) {
        let mut room = [0; 4096];
        while !self.closed {
            match self.socket.receive(&mut room) {
                Ok(bytes) if bytes > 0 && self.first_words.len() < FIRST_WORDS => {
                    let more = bytes.min(FIRST_WORDS - self.first_words.len());
                    self.first_words.extend_from_slice(&room[..more]);
                }
                Ok(0) => {
                    // What closes its side after ours has read everything.
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
        // Counted by the caller first, then done with.
        if self.acknowledged.is_some() {
            self.closed = true;
        }
    }
}
