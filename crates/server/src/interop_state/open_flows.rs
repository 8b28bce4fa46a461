//! Table of open UDP flows: a flow is opened only once.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use linerate_sys::clock;
use linerate_sys::clock::Nanos;

use super::lock;
use crate::interop_state::InteropState;

/// Limit of flows that are open at a time.
const FLOW_LIMIT: usize = 8_192;

/// Time a finished flow stays in the table: its client may not have received the end yet.
const LINGER_NS: Nanos = 2_000_000_000;

/// Flows by server port and sender; `Some` once a flow has ended.
pub(super) type FlowTable = Arc<Mutex<HashMap<(u16, SocketAddr), Option<ClosedFlow>>>>;

/// Flow that has ended.
#[derive(Clone, Copy)]
pub(super) struct ClosedFlow {
    until_ns: Nanos,
    /// True if the server ended it: datagrams that still arrive extend the time.
    aborted: bool,
}

/// Entry of an open UDP flow; released on drop.
pub struct OpenFlowEntry {
    flows: FlowTable,
    key: (u16, SocketAddr),
    lingers: bool,
    aborted: bool,
}

impl OpenFlowEntry {
    /// Keeps the entry for [`LINGER_NS`] after the end: late datagrams open no new flow.
    pub fn linger(&mut self) {
        self.lingers = true;
    }

    /// Keeps the entry for as long as the client sends: it did not receive the end.
    pub fn abort(&mut self) {
        (self.lingers, self.aborted) = (true, true);
    }
}

impl Drop for OpenFlowEntry {
    fn drop(&mut self) {
        let mut flows = lock(&self.flows);
        if self.lingers {
            let until_ns = clock::now() + LINGER_NS;
            let aborted = self.aborted;
            flows.insert(self.key, Some(ClosedFlow { until_ns, aborted }));
        } else {
            flows.remove(&self.key);
        }
    }
}

impl InteropState {
    /// Registers a flow; `None` if it is already open, or at the limit.
    pub fn open_flow(&self, port: u16, from: SocketAddr) -> Option<OpenFlowEntry> {
        let mut flows = lock(&self.open_flows);
        let key = (port, from);
        let now = clock::now();
        if flows.len() >= FLOW_LIMIT {
            flows.retain(|_, closed| closed.is_none_or(|closed| closed.until_ns > now));
        }
        let closed = match flows.get_mut(&key) {
            None => true,
            Some(Some(closed)) if closed.until_ns > now => {
                if closed.aborted {
                    closed.until_ns = now + LINGER_NS;
                }
                false
            }
            Some(closed) => closed.is_some(),
        };
        if !closed || flows.len() >= FLOW_LIMIT {
            return None;
        }
        flows.insert(key, None);
        Some(OpenFlowEntry {
            flows: Arc::clone(&self.open_flows),
            key,
            lingers: false,
            aborted: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_open_once_and_closed_for_a_while() {
        let interop = InteropState::default();
        let from = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let open = |port| interop.open_flow(5001, from(port));
        let first = open(1).expect("it is free");
        assert!(open(1).is_none());
        assert!(
            interop.open_flow(5002, from(1)).is_some(),
            "another port of ours"
        );
        drop(first);
        let mut reopened = open(1).expect("it is over");
        reopened.linger();
        drop(reopened);
        assert!(open(1).is_none(), "what still comes opens none");
        let mut aborted = open(2).expect("it is free");
        aborted.abort();
        drop(aborted);
        let until_ns = || {
            lock(&interop.open_flows)[&(5001, from(2))]
                .expect("it is over")
                .until_ns
        };
        let before = until_ns();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(open(2).is_none());
        assert!(until_ns() > before, "what goes on keeps it closed");
    }
}
