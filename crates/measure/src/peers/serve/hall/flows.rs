//! Flows of datagrams that are open: nobody opens the same one twice.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use linerate_host::sys::clock::{self, Nanos};

use super::{Hall, lock};

/// Flows of datagrams that are open at a time.
const FLOW_LIMIT: usize = 8_192;

/// How long a flow is remembered whose client may not have heard yet that it is over.
const LINGER_NS: Nanos = 2_000_000_000;

/// Flows by the server's port and their sender, and until when those that are over are remembered.
pub(super) type Flows = Arc<Mutex<HashMap<(u16, SocketAddr), Option<Nanos>>>>;

/// A flow of datagrams that is open.
pub struct FlowKey {
    flows: Flows,
    key: (u16, SocketAddr),
    lingers: bool,
}

impl FlowKey {
    /// What still comes of the flow after its end opens no other one.
    pub fn linger(&mut self) {
        self.lingers = true;
    }
}

impl Drop for FlowKey {
    fn drop(&mut self) {
        let mut flows = lock(&self.flows);
        if self.lingers {
            flows.insert(self.key, Some(clock::now() + LINGER_NS));
        } else {
            flows.remove(&self.key);
        }
    }
}

impl Hall {
    /// Notes that a flow from there is open; `None` when it is already, or when there are too many.
    pub fn open(&self, port: u16, from: SocketAddr) -> Option<FlowKey> {
        let mut flows = lock(&self.flows);
        let key = (port, from);
        let now = clock::now();
        if flows.len() >= FLOW_LIMIT {
            flows.retain(|_, until| until.is_none_or(|until| until > now));
        }
        let over = match flows.get(&key) {
            None => true,
            Some(until) => until.is_some_and(|until| until <= now),
        };
        if !over || flows.len() >= FLOW_LIMIT {
            return None;
        }
        flows.insert(key, None);
        Some(FlowKey {
            flows: Arc::clone(&self.flows),
            key,
            lingers: false,
        })
    }
}
