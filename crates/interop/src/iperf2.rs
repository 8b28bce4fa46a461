//! iperf2, current and legacy layout: a header in front of the payload, a report after UDP, round
//! trips by its bounceback.

mod udp;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use linerate_protocol::control::FlowTotal;
use linerate_protocol::iperf2::{
    Iperf2Direction, Iperf2Settings, Iperf2TcpClient, TestAmount, bounceback,
};
use linerate_record::plan::{Direction, Plan, RunKind, SendCopy, TransportProtocol};
use linerate_session::error::SessionError;
use linerate_session::third_party_record::AckedPayload;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_workload::framing::Framing;
use udp::open_udp;

use super::ack_watch::{ACK_POLL_INTERVAL_NS, AckWatch};
use super::flow_socket::FlowSocket;
use super::setup_context::{SetupContext, flow_open_error};
use super::{
    ClientProtocol, ClientProtocolSpec, ConnectedFlow, PlanRejection, first_rejection, plain,
    reject_omit, round_trips,
};

/// Client of iperf 2.1 and later.
pub const SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "iperf2",
    about: "TCP all directions, UDP one direction with its report; round trips over TCP (bounceback)",
    kinds: &[RunKind::Throughput, RunKind::Latency],
    port: 5001,
    datagram_bytes: 1_470,
    reject: reject_plan,
    open,
};

/// Client of iperf 2.0 and of boards with its layout.
pub const LEGACY_SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "iperf2-legacy",
    about: "TCP and UDP, sending, in the layout of iperf 2.0 and most boards; UDP with its report",
    kinds: &[RunKind::Throughput],
    port: 5001,
    datagram_bytes: 1_470,
    reject: reject_legacy_plan,
    open: open_legacy,
};

/// Largest buffer size announced to a server.
const BUFFER_LIMIT_BYTES: u64 = 128 << 10;

fn reject_plan(plan: &Plan) -> Option<PlanRejection> {
    if plan.kind == RunKind::Latency {
        return first_rejection(&[
            (
                plan.protocol == TransportProtocol::Udp,
                "-u",
                "iperf2 sends its bouncebacks over TCP",
            ),
            (
                !(bounceback::MESSAGE_MIN_BYTES as u64..=u64::from(bounceback::SIZE_LIMIT))
                    .contains(&plan.payload_bytes),
                "-l",
                "a bounceback has 20 B to 1 MiB",
            ),
        ])
        .or_else(|| round_trips::reject_plan(plan, false));
    }
    let bidirectional = plan.directions.len() > 1;
    let receives = plan.has_direction(Direction::Receive);
    let udp = plan.protocol == TransportProtocol::Udp;
    let amount = plan
        .amount_bytes
        .map(|bytes| bytes / u64::from(plan.streams.max(1)));
    first_rejection(&[
        (
            udp && bidirectional,
            "--bidir",
            "over UDP its two directions share one flow, whose ends cannot be distinguished",
        ),
        (
            receives && amount.is_some_and(|bytes| bytes >= 1 << 31),
            "-n",
            "iperf2's server takes less than 2 GiB a flow; use -t",
        ),
        (
            receives && plan.rate_bps.is_some() && !udp,
            "-b",
            "iperf2's server keeps no rate over TCP",
        ),
        (
            !udp && matches!(
                plan.copies.send,
                SendCopy::SendFile | SendCopy::Splice | SendCopy::ZeroCopy
            ),
            "--offload",
            "its header has to be written in front of the payload",
        ),
        (
            udp && plan.payload_bytes != 0 && plan.payload_bytes < 76,
            "-l",
            "iperf2's header takes 76 B of each datagram; --peer iperf2-legacy has 12",
        ),
    ])
    .or_else(|| reject_omit(plan))
}

fn reject_legacy_plan(plan: &Plan) -> Option<PlanRejection> {
    let udp = plan.protocol == TransportProtocol::Udp;
    first_rejection(&[
        (
            plan.has_direction(Direction::Receive),
            "-R or --bidir",
            "the old layout has a second connection from the server for that; use --peer iperf2",
        ),
        (
            udp && plan.payload_bytes != 0 && plan.payload_bytes < 24,
            "-l",
            "its header and the data behind it take 24 B of each datagram",
        ),
    ])
    .or_else(|| reject_omit(plan))
}

/// Returns whether the first bytes from a server can be its acknowledgement: type 2, in 28 B or
/// more.
fn is_ack(prefix: &[u8]) -> bool {
    const BEGINNING: [u8; 7] = [0, 0, 0, 2, 0, 0, 0];
    let compared = prefix.len().min(BEGINNING.len());
    prefix[..compared] == BEGINNING[..compared]
}

fn settings(plan: &Plan, legacy: bool) -> Iperf2Settings {
    let base = match legacy {
        true => Iperf2Settings::legacy(plan.port),
        false => Iperf2Settings::client(plan.port),
    };
    let streams = u64::from(plan.streams.max(1));
    Iperf2Settings {
        direction: match (
            plan.has_direction(Direction::Send),
            plan.has_direction(Direction::Receive),
        ) {
            (true, true) => Iperf2Direction::Both,
            (false, true) => Iperf2Direction::Reverse,
            _ => Iperf2Direction::Forward,
        },
        flows: plan.streams,
        // Reference servers use the buffer that they have: 128 KiB without an option of theirs.
        buffer_bytes: u32::try_from(plan.payload_bytes.min(BUFFER_LIMIT_BYTES)).ok(),
        window: plan
            .window_bytes
            .and_then(|bytes| u32::try_from(bytes).ok()),
        amount: match (plan.duration_ns, plan.amount_bytes) {
            (Some(time), _) => Some(TestAmount::Time(time)),
            (None, Some(bytes)) => Some(TestAmount::Bytes(bytes.div_ceil(streams))),
            (None, None) => None,
        },
        rate: plan.rate_bps,
        tos: plan.socket.tos,
        ..base
    }
}

/// Returns the protocol name of a layout.
fn layout_name(legacy: bool) -> &'static str {
    match legacy {
        true => LEGACY_SPEC.name,
        false => SPEC.name,
    }
}

fn open(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    if context.plan.kind == RunKind::Latency {
        let framing = Framing::Bounceback {
            wall_ahead_ns: clock::wall_offset(),
        };
        return round_trips::open_flows(context, "iperf2", &framing, |_| Default::default());
    }
    match context.plan.protocol {
        TransportProtocol::Tcp => open_tcp(context, false),
        TransportProtocol::Udp => open_udp(context, false),
    }
}

fn open_legacy(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    match context.plan.protocol {
        TransportProtocol::Tcp => open_tcp(context, true),
        TransportProtocol::Udp => open_udp(context, true),
    }
}

/// Connections with a header each.
struct Iperf2TcpDriver {
    name: &'static str,
    new_flows: Vec<ConnectedFlow>,
    acks: AckWatch,
    directions: Iperf2Direction,
    sent: bool,
    sockets: Vec<FlowSocket>,
    /// Time that the server was given, and when that is over: only the end of the stream shows that
    /// the server ended in time.
    duration_ns: Option<Nanos>,
    end_ns: Option<Nanos>,
}

fn duplicate_socket(socket: &FlowSocket) -> Result<FlowSocket, SessionError> {
    let copy = socket.duplicate();
    copy.map_err(|error| SessionError::system("a flow's socket", error))
}

fn open_tcp(
    context: &SetupContext<'_>,
    legacy: bool,
) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let settings = settings(context.plan, legacy);
    let directions = settings.direction;
    let machine = Iperf2TcpClient::new(settings).map_err(|error| context.protocol_error(error))?;
    let header = machine.header();
    let streams = context.plan.streams;
    let mut new_flows = Vec::new();
    let mut return_flows = Vec::new();
    let mut watched = Vec::new();
    let mut sockets = Vec::new();
    for id in 1..=streams {
        let direction = match directions {
            Iperf2Direction::Reverse => Direction::Receive,
            Iperf2Direction::Forward | Iperf2Direction::Both => Direction::Send,
        };
        let socket = context.connect_flow(id, direction, context.remote.port())?;
        sockets.push(duplicate_socket(&socket)?);
        let framing = match directions {
            // The header that requests payload is not payload.
            Iperf2Direction::Reverse => Framing::NoHeader,
            _ if header.is_empty() => plain::stream_framing("iperf2-legacy"),
            _ => Framing::Prefix(header.into()),
        };
        if directions != Iperf2Direction::Reverse {
            watched.push((id, duplicate_socket(&socket)?));
        }
        if directions == Iperf2Direction::Both {
            return_flows.push(ConnectedFlow {
                id: streams + id,
                direction: Direction::Receive,
                opening: duplicate_socket(&socket)?.into_opening(),
                framing: Framing::NoHeader,
            });
        }
        new_flows.push(ConnectedFlow {
            id,
            direction,
            opening: socket.into_opening(),
            framing,
        });
    }
    if directions == Iperf2Direction::Reverse {
        // The server's time begins with its header: on a long path each connect takes some of it.
        for socket in &sockets {
            let requested = socket.write_all(header);
            requested.map_err(|error| flow_open_error(context.remote, error))?;
        }
    }
    new_flows.extend(return_flows);
    let acks = AckWatch::new(context.remote, watched);
    let acks = if legacy {
        acks
    } else {
        acks.with_prefix_check(is_ack)
    };
    Ok(Box::new(Iperf2TcpDriver {
        name: layout_name(legacy),
        new_flows,
        acks: match directions {
            Iperf2Direction::Forward => acks,
            Iperf2Direction::Reverse | Iperf2Direction::Both => acks.with_return_payload(),
        },
        directions,
        sent: false,
        sockets,
        duration_ns: context.plan.duration_ns,
        end_ns: None,
    }))
}

impl ClientProtocol for Iperf2TcpDriver {
    fn flows(&mut self) -> Vec<ConnectedFlow> {
        std::mem::take(&mut self.new_flows)
    }

    fn start(&mut self, now: Nanos, _: &AtomicBool) -> Result<(), SessionError> {
        self.end_ns = self.duration_ns.map(|time| now.saturating_add(time));
        Ok(())
    }

    fn poll(&mut self, now: Nanos) -> Result<(), SessionError> {
        self.acks.poll(now)
    }

    fn payload_sent(&mut self, now: Nanos, flows: &[FlowTotal]) {
        if self.directions != Iperf2Direction::Reverse && !self.sent {
            self.sent = true;
            self.acks.payload_sent(now, flows);
        }
    }

    fn stop(&mut self, _: Nanos, early: bool) {
        // At the end of the time, the server ends by itself.
        if early && self.directions != Iperf2Direction::Forward {
            for socket in &self.sockets {
                socket.shutdown_both();
            }
        }
    }

    fn remote_totals(&mut self) -> Option<Vec<FlowTotal>> {
        let is_due = self.end_ns.is_some_and(|end_ns| clock::now() >= end_ns);
        is_due.then(Vec::new)
    }

    fn is_finished(&self) -> bool {
        self.directions == Iperf2Direction::Reverse || self.acks.is_finished()
    }

    fn next_deadline_ns(&self, now: Nanos) -> Nanos {
        now + if self.sent && !self.is_finished() {
            ACK_POLL_INTERVAL_NS
        } else {
            250_000_000
        }
    }

    fn acknowledged(&self) -> BTreeMap<u32, AckedPayload> {
        self.acks.acknowledged()
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
