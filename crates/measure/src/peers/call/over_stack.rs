//! Calling a far end of another kind over our own stack: dialects whose flows need nothing but payload.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use linerate_dialect::control::FlowTotal;
use linerate_dialect::sockperf;
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Protocol};

use super::context::Context;
use super::{CalledFlow, Speech, plain};
use crate::error::MeasureError;
use crate::lane::Opening;
use crate::peers::framing::Framing;
use crate::peers::record::Acknowledged;
use crate::stack::StackThread;

/// How long the last acknowledgement is waited for.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// How often it is looked.
const LOOK_NS: Nanos = 5_000_000;

/// One test.
struct Test<'a> {
    name: &'static str,
    called: Vec<CalledFlow>,
    stack: &'a StackThread,
    /// TCP, sending: nobody says what arrived but the far end's stack.
    acknowledges: bool,
    started_ns: Nanos,
    sent: Option<(Nanos, Vec<FlowTotal>)>,
    found: BTreeMap<u32, Acknowledged>,
    over: bool,
}

/// Opens a test; its flows are opened by the thread that owns the stack.
///
/// # Errors
/// None: what cannot be is refused before.
pub fn open<'a>(
    context: &Context<'_>,
    name: &'static str,
    stack: &'a StackThread,
) -> Result<Box<dyn Speech + 'a>, MeasureError> {
    let plan = context.plan;
    let direction = plan.directions[0];
    let tcp = plan.protocol == Protocol::Tcp;
    let asks = plan.kind == Kind::Latency;
    let framing = match name {
        "sockperf" => Framing::Sockperf,
        "echo" => Framing::Own,
        _ if tcp => plain::stream(),
        _ => Framing::Bare,
    };
    let probe = match name {
        "sockperf" => {
            let mut first = vec![0; sockperf::HEADER_BYTES];
            sockperf::Header {
                sequence: 1,
                flags: sockperf::FROM_CLIENT | sockperf::WANTS_ANSWER,
                length: sockperf::HEADER_BYTES as u32,
            }
            .write(&mut first);
            first
        }
        _ if asks => b"linerate?".to_vec(),
        _ => Vec::new(),
    };
    let called = (1..=plan.streams).map(|id| CalledFlow {
        id,
        direction,
        opening: Opening::Call {
            remote: context.far,
            probe: if id == 1 { probe.clone() } else { Vec::new() },
        },
        framing: framing.clone(),
    });
    Ok(Box::new(Test {
        name,
        called: called.collect(),
        stack,
        acknowledges: tcp && !asks && direction == Direction::Send,
        started_ns: 0,
        sent: None,
        found: BTreeMap::new(),
        over: false,
    }))
}

impl Test<'_> {
    /// Asks the stack what of each connection was not acknowledged; `None` when it does not say.
    fn unacknowledged(&self) -> Option<Vec<usize>> {
        let (say, said) = mpsc::channel();
        let ask = move |stack: &mut crate::transport::OnStack| {
            // Whoever asked waits for it.
            let _ = say.send(stack.unacknowledged());
        };
        self.stack.lend(Box::new(ask)).ok()?;
        said.recv_timeout(Duration::from_secs(1)).ok()
    }
}

impl Speech for Test<'_> {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn started(&mut self, now: Nanos) -> Result<(), MeasureError> {
        self.started_ns = now;
        Ok(())
    }

    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        let Some((sent_ns, flows)) = &self.sent else {
            return Ok(());
        };
        if self.over {
            return Ok(());
        }
        let Some(left) = self.unacknowledged() else {
            self.over = true;
            return Ok(());
        };
        for (flow, &left) in flows.iter().zip(&left) {
            let found = Acknowledged {
                bytes: flow.bytes.saturating_sub(left as u64),
                duration_ns: now.saturating_sub(self.started_ns),
            };
            let known = self.found.entry(flow.id).or_insert(found);
            if known.bytes < found.bytes {
                *known = found;
            }
        }
        let late = now.saturating_sub(*sent_ns) > PATIENCE_NS;
        self.over = late || left.iter().all(|&left| left == 0);
        Ok(())
    }

    fn sent(&mut self, now: Nanos, flows: &[FlowTotal]) {
        if self.acknowledges && self.sent.is_none() {
            self.sent = Some((now, flows.to_vec()));
        }
    }

    fn stop(&mut self, _: Nanos, _early: bool) {
        // It only sends, and would not stop by itself.
        self.stack.cut();
    }

    fn is_over(&self) -> bool {
        !self.acknowledges || self.over
    }

    fn due_ns(&self, now: Nanos) -> Nanos {
        let waits = self.sent.is_some() && !self.over;
        now + if waits { LOOK_NS } else { 250_000_000 }
    }

    fn acknowledged(&self) -> BTreeMap<u32, Acknowledged> {
        self.found.clone()
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
