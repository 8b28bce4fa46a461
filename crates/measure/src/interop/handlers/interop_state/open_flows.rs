//! Table of open UDP flows: a flow is opened only once.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use linerate_host::sys::clock::{self, Nanos};

use super::{Hall, lock};

/// Limit of flows that are open at a time.
const FLOW_LIMIT: usize = 8_192;

/// Time a finished flow stays in the table: its client may not have received the end yet.
const LINGER_NS: Nanos = 2_000_000_000;

/// Flows by server port and sender; `Some` once a flow has ended.
pub(super) type Flows = Arc<Mutex<HashMap<(u16, SocketAddr), Option<Over>>>>;

/// Flow that has ended.
#[derive(Clone, Copy)]
pub(super) struct Over {
    until: Nanos,
    /// True if the server ended it: datagrams that still arrive extend the time.
    cut: bool,
}

/// Entry of an open UDP flow; released on drop.
pub struct FlowKey {
    flows: Flows,
    key: (u16, SocketAddr),
    lingers: bool,
    cut: bool,
}

impl FlowKey {
    /// Keeps the entry for [`LINGER_NS`] after the end: late datagrams open no new flow.
    pub fn linger(&mut self) {
        self.lingers = true;
    }

    /// Keeps the entry for as long as the client sends: it did not receive the end.
    pub fn cut(&mut self) {
        (self.lingers, self.cut) = (true, true);
    }
}

impl Drop for FlowKey {
    fn drop(&mut self) {
        let mut flows = lock(&self.flows);
        if self.lingers {
            let until = clock::now() + LINGER_NS;
            let cut = self.cut;
            flows.insert(self.key, Some(Over { until, cut }));
        } else {
            flows.remove(&self.key);
        }
    }
}

impl Hall {
    /// Registers a flow; `None` if it is already open, or at the limit.
    pub fn open(&self, port: u16, from: SocketAddr) -> Option<FlowKey> {
        let mut flows = lock(&self.flows);
        let key = (port, from);
        let now = clock::now();
        if flows.len() >= FLOW_LIMIT {
            flows.retain(|_, over| over.is_none_or(|over| over.until > now));
        }
        let over = match flows.get_mut(&key) {
            None => true,
            Some(Some(over)) if over.until > now => {
                if over.cut {
                    over.until = now + LINGER_NS;
                }
                false
            }
            Some(over) => over.is_some(),
        };
        if !over || flows.len() >= FLOW_LIMIT {
            return None;
        }
        flows.insert(key, None);
        Some(FlowKey {
            flows: Arc::clone(&self.flows),
            key,
            lingers: false,
            cut: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_open_once_and_closed_for_a_while() {
        let hall = Hall::default();
        let from = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let open = |port| hall.open(5001, from(port));
        let first = open(1).expect("it is free");
        assert!(open(1).is_none());
        assert!(hall.open(5002, from(1)).is_some(), "another port of ours");
        drop(first);
        let mut again = open(1).expect("it is over");
        again.linger();
        drop(again);
        assert!(open(1).is_none(), "what still comes opens none");
        let mut cut = open(2).expect("it is free");
        cut.cut();
        drop(cut);
        let until = || {
            lock(&hall.flows)[&(5001, from(2))]
                .expect("it is over")
                .until
        };
        let before = until();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(open(2).is_none());
        assert!(until() > before, "what goes on keeps it closed");
    }
}
