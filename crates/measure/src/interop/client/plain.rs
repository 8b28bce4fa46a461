//! Payload without a control channel: classic ttcp, discard and chargen.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

use linerate_dialect::control::FlowTotal;
use linerate_dialect::{chargen, discard, ttcp};
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::ack_watch::{Acks, LOOK_NS};
use super::flow_socket::FlowSocket;
use super::setup_context::Context;
use super::{CalledFlow, Caller, Refusal, Speech, first, refuse_omit};
use crate::error::MeasureError;
use crate::interop::framing::Framing;
use crate::interop::record::Acknowledged;

/// Client of a classic ttcp receiver (`ttcp -r`).
pub const TTCP: Caller = Caller {
    name: "ttcp",
    about: "TCP and UDP, sending; no report: TCP counts what the server's kernel acknowledged",
    kinds: &[Kind::Throughput],
    port: ttcp::PORT,
    datagram_bytes: 1_472,
    refuse: refuse_receiving,
    open: open_ttcp,
};

/// Client of discard (RFC 863).
pub const DISCARD: Caller = Caller {
    name: "discard",
    about: "TCP and UDP, sending; no report: TCP counts what the server's kernel acknowledged",
    kinds: &[Kind::Throughput],
    port: discard::PORT,
    datagram_bytes: 1_472,
    refuse: refuse_receiving,
    open: open_discard,
};

/// Client of chargen (RFC 864).
pub const CHARGEN: Caller = Caller {
    name: "chargen",
    about: "TCP, receiving (-R); what arrives is counted here",
    kinds: &[Kind::Throughput],
    port: chargen::PORT,
    datagram_bytes: 1_472,
    refuse: refuse_sending,
    open: open_chargen,
};

fn refuse_receiving(plan: &Plan) -> Option<Refusal> {
    first(&[
        (
            plan.flows(Direction::Receive),
            "-R or --bidir",
            "its server sends nothing",
        ),
        (
            plan.window_bytes.is_some() && plan.protocol == Protocol::Udp,
            "-w",
            "its server has no such setting; --sndbuf sets this end's",
        ),
    ])
    .or_else(|| refuse_omit(plan))
}

fn refuse_sending(plan: &Plan) -> Option<Refusal> {
    first(&[
        (
            plan.flows(Direction::Send),
            "",
            "its server only sends: add -R",
        ),
        (
            plan.protocol == Protocol::Udp,
            "-u",
            "over UDP chargen answers each datagram with one, which is no stream",
        ),
        (
            plan.rate_bps.is_some(),
            "-b",
            "its server sends as fast as it can",
        ),
    ])
    .or_else(|| refuse_omit(plan))
}

/// Returns the framing of a stream without a header, with the first bytes of the tool. They must
/// not resemble a header: iperf2 servers, which accept plain payload too, read flags there.
pub fn stream(dialect: &str) -> Framing {
    let begin: &[u8] = match dialect {
        "iperf2-legacy" => b"012345678901234567890123",
        "ttcp" => ttcp::PATTERN,
        // Pattern of no tool.
        _ => &[b' '; ttcp::PATTERN.len()],
    };
    Framing::Begun(begin.into())
}

/// Time for the last datagrams to arrive before the end marker.
const ARRIVAL_NS: Nanos = 50_000_000;

/// Driver of one test.
struct Test {
    name: &'static str,
    called: Vec<CalledFlow>,
    acks: Acks,
    tcp: bool,
    sends: bool,
    /// UDP sockets on which markers show start and end.
    marked: Vec<FlowSocket>,
    /// Sockets that are closed to stop the server.
    sources: Vec<FlowSocket>,
    sent: bool,
    /// UDP: time of the end marker.
    settled_ns: Option<Nanos>,
    settled: bool,
}

fn open_ttcp(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    open(context, "ttcp", Framing::Ttcp, true)
}

fn open_discard(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    open(context, "discard", Framing::Bare, false)
}

fn open_chargen(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    open(context, "chargen", Framing::Bare, false)
}

fn open(
    context: &Context<'_>,
    name: &'static str,
    framing: Framing,
    marks: bool,
) -> Result<Box<dyn Speech>, MeasureError> {
    let tcp = context.plan.protocol == Protocol::Tcp;
    let direction = context.plan.directions[0];
    let sends = direction == Direction::Send;
    let mut called = Vec::new();
    let mut watched = Vec::new();
    let mut sockets = Vec::new();
    for id in 1..=context.plan.streams {
        let socket = context.flow(id, direction, context.far.port())?;
        let copy = || {
            let copy = socket.copy();
            copy.map_err(|error| MeasureError::system("a flow's socket", error))
        };
        sockets.push(copy()?);
        if tcp && sends {
            watched.push((id, copy()?));
        }
        called.push(CalledFlow {
            id,
            direction,
            opening: socket.opening(),
            framing: match tcp {
                true => stream(name),
                false => framing.clone(),
            },
        });
    }
    let peer: SocketAddr = context.far;
    let (marked, sources) = match (tcp, marks) {
        (false, true) => (sockets, Vec::new()),
        _ => (Vec::new(), sockets),
    };
    Ok(Box::new(Test {
        name,
        called,
        acks: Acks::new(peer, watched),
        tcp,
        sends,
        marked,
        sources,
        sent: false,
        settled_ns: None,
        settled: false,
    }))
}

impl Test {
    fn mark(&self, times: u32) {
        for _ in 0..times {
            for socket in &self.marked {
                // The payload detects a closed port.
                let _ = socket.send(&ttcp::MARKER);
            }
        }
    }
}

impl Speech for Test {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn started(&mut self, _: Nanos, _: &AtomicBool) -> Result<(), MeasureError> {
        self.mark(1);
        Ok(())
    }

    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.tcp && self.sends {
            self.acks.turn(now)?;
        }
        if self.settled_ns.is_some_and(|at| now >= at) && !self.settled {
            self.settled = true;
            self.mark(ttcp::END_MARKERS);
        }
        Ok(())
    }

    fn sent(&mut self, now: Nanos, flows: &[FlowTotal]) {
        if self.sends && !self.sent {
            self.sent = true;
            self.acks.sent(now, flows);
            self.settled_ns = (!self.tcp).then(|| now + ARRIVAL_NS);
        }
    }

    fn stop(&mut self, _: Nanos, _early: bool) {
        if !self.sends {
            for socket in &self.sources {
                socket.cut();
            }
        }
    }

    fn is_over(&self) -> bool {
        match (self.tcp, self.sends) {
            (_, false) => true,
            (true, true) => self.acks.is_over(),
            (false, true) => self.settled,
        }
    }

    fn due_ns(&self, now: Nanos) -> Nanos {
        now + if self.sent && !self.is_over() {
            LOOK_NS
        } else {
            250_000_000
        }
    }

    fn listens(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn acknowledged(&self) -> BTreeMap<u32, Acknowledged> {
        self.acks.found()
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
