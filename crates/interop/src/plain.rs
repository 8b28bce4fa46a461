//! Payload without a control channel: classic ttcp, discard and chargen.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

use linerate_protocol::control::FlowTotal;
use linerate_protocol::{chargen, discard, ttcp};
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_session::error::SessionError;
use linerate_session::third_party_record::AckedPayload;
use linerate_sys::clock::Nanos;
use linerate_workload::framing::Framing;

use super::ack_watch::{ACK_POLL_INTERVAL_NS, AckWatch};
use super::flow_socket::FlowSocket;
use super::setup_context::SetupContext;
use super::{
    ClientProtocol, ClientProtocolSpec, ConnectedFlow, PlanRejection, first_rejection, reject_omit,
};

/// Client of a classic ttcp receiver (`ttcp -r`).
pub const TTCP_SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "ttcp",
    about: "TCP and UDP, sending; no report: TCP counts what the server's kernel acknowledged",
    kinds: &[RunKind::Throughput],
    port: ttcp::PORT,
    datagram_bytes: 1_472,
    reject: reject_receiving,
    open: open_ttcp,
};

/// Client of discard (RFC 863).
pub const DISCARD_SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "discard",
    about: "TCP and UDP, sending; no report: TCP counts what the server's kernel acknowledged",
    kinds: &[RunKind::Throughput],
    port: discard::PORT,
    datagram_bytes: 1_472,
    reject: reject_receiving,
    open: open_discard,
};

/// Client of chargen (RFC 864).
pub const CHARGEN_SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "chargen",
    about: "TCP, receiving (-R); what arrives is counted here",
    kinds: &[RunKind::Throughput],
    port: chargen::PORT,
    datagram_bytes: 1_472,
    reject: reject_sending,
    open: open_chargen,
};

fn reject_receiving(plan: &Plan) -> Option<PlanRejection> {
    first_rejection(&[
        (
            plan.has_direction(Direction::Receive),
            "-R or --bidir",
            "its server sends nothing",
        ),
        (
            plan.window_bytes.is_some() && plan.protocol == TransportProtocol::Udp,
            "-w",
            "its server has no such setting; --sndbuf sets this end's",
        ),
    ])
    .or_else(|| reject_omit(plan))
}

fn reject_sending(plan: &Plan) -> Option<PlanRejection> {
    first_rejection(&[
        (
            plan.has_direction(Direction::Send),
            "",
            "its server only sends: add -R",
        ),
        (
            plan.protocol == TransportProtocol::Udp,
            "-u",
            "over UDP chargen answers each datagram with one, which is no stream",
        ),
        (
            plan.rate_bps.is_some(),
            "-b",
            "its server sends as fast as it can",
        ),
    ])
    .or_else(|| reject_omit(plan))
}

/// Returns the framing of a stream without a header, with the first bytes of the tool. They must
/// not resemble a header: iperf2 servers, which accept plain payload too, read flags there.
pub fn stream_framing(protocol: &str) -> Framing {
    let prefix: &[u8] = match protocol {
        "iperf2-legacy" => b"012345678901234567890123",
        "ttcp" => ttcp::PATTERN,
        // Pattern of no tool.
        _ => &[b' '; ttcp::PATTERN.len()],
    };
    Framing::Prefix(prefix.into())
}

/// Time for the last datagrams to arrive before the end marker.
const ARRIVAL_TIME_NS: Nanos = 50_000_000;

/// Driver of one test.
struct PlainDriver {
    name: &'static str,
    new_flows: Vec<ConnectedFlow>,
    acks: AckWatch,
    tcp: bool,
    sends: bool,
    /// UDP sockets on which markers show start and end.
    marker_sockets: Vec<FlowSocket>,
    /// Sockets that are closed to stop the server.
    sources: Vec<FlowSocket>,
    sent: bool,
    /// UDP: time of the end marker.
    end_marker_ns: Option<Nanos>,
    end_marked: bool,
}

fn open_ttcp(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    open(context, "ttcp", Framing::Ttcp, true)
}

fn open_discard(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    open(context, "discard", Framing::NoHeader, false)
}

fn open_chargen(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    open(context, "chargen", Framing::NoHeader, false)
}

fn open(
    context: &SetupContext<'_>,
    name: &'static str,
    framing: Framing,
    has_markers: bool,
) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let tcp = context.plan.protocol == TransportProtocol::Tcp;
    let direction = context.plan.directions[0];
    let sends = direction == Direction::Send;
    let mut new_flows = Vec::new();
    let mut watched = Vec::new();
    let mut sockets = Vec::new();
    for id in 1..=context.plan.streams {
        let socket = context.connect_flow(id, direction, context.remote.port())?;
        let copy = || {
            let copy = socket.duplicate();
            copy.map_err(|error| SessionError::system("a flow's socket", error))
        };
        sockets.push(copy()?);
        if tcp && sends {
            watched.push((id, copy()?));
        }
        new_flows.push(ConnectedFlow {
            id,
            direction,
            opening: socket.into_opening(),
            framing: match tcp {
                true => stream_framing(name),
                false => framing.clone(),
            },
        });
    }
    let peer: SocketAddr = context.remote;
    let (marker_sockets, sources) = match (tcp, has_markers) {
        (false, true) => (sockets, Vec::new()),
        _ => (Vec::new(), sockets),
    };
    Ok(Box::new(PlainDriver {
        name,
        new_flows,
        acks: AckWatch::new(peer, watched),
        tcp,
        sends,
        marker_sockets,
        sources,
        sent: false,
        end_marker_ns: None,
        end_marked: false,
    }))
}

impl PlainDriver {
    fn send_markers(&self, times: u32) {
        for _ in 0..times {
            for socket in &self.marker_sockets {
                // The payload detects a closed port.
                let _ = socket.send(&ttcp::MARKER);
            }
        }
    }
}

impl ClientProtocol for PlainDriver {
    fn flows(&mut self) -> Vec<ConnectedFlow> {
        std::mem::take(&mut self.new_flows)
    }

    fn start(&mut self, _: Nanos, _: &AtomicBool) -> Result<(), SessionError> {
        self.send_markers(1);
        Ok(())
    }

    fn poll(&mut self, now: Nanos) -> Result<(), SessionError> {
        if self.tcp && self.sends {
            self.acks.poll(now)?;
        }
        if self.end_marker_ns.is_some_and(|at| now >= at) && !self.end_marked {
            self.end_marked = true;
            self.send_markers(ttcp::END_MARKERS);
        }
        Ok(())
    }

    fn payload_sent(&mut self, now: Nanos, flows: &[FlowTotal]) {
        if self.sends && !self.sent {
            self.sent = true;
            self.acks.payload_sent(now, flows);
            self.end_marker_ns = (!self.tcp).then(|| now + ARRIVAL_TIME_NS);
        }
    }

    fn stop(&mut self, _: Nanos, _early: bool) {
        if !self.sends {
            for socket in &self.sources {
                socket.shutdown_both();
            }
        }
    }

    fn is_finished(&self) -> bool {
        match (self.tcp, self.sends) {
            (_, false) => true,
            (true, true) => self.acks.is_finished(),
            (false, true) => self.end_marked,
        }
    }

    fn next_deadline_ns(&self, now: Nanos) -> Nanos {
        now + if self.sent && !self.is_finished() {
            ACK_POLL_INTERVAL_NS
        } else {
            250_000_000
        }
    }

    fn readable_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn acknowledged(&self) -> BTreeMap<u32, AckedPayload> {
        self.acks.acknowledged()
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
