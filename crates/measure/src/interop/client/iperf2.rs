//! iperf2, current and legacy layout: a header in front of the payload, a report after UDP, round
//! trips by its bounceback.

mod udp;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use linerate_dialect::control::FlowTotal;
use linerate_dialect::iperf2::{Amount, Settings, TcpClient, Way, bounceback};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, SendCopy};

use super::ack_watch::{Acks, LOOK_NS};
use super::flow_socket::FlowSocket;
use super::setup_context::{Context, failed};
use super::{CalledFlow, Caller, Refusal, Speech, first, plain, refuse_omit, round_trips};
use crate::error::MeasureError;
use crate::interop::framing::Framing;
use crate::interop::record::Acknowledged;
use udp::open_udp;

/// Client of iperf 2.1 and later.
pub const CALLER: Caller = Caller {
    name: "iperf2",
    about: "TCP all directions, UDP one direction with its report; round trips over TCP (bounceback)",
    kinds: &[Kind::Throughput, Kind::Latency],
    port: 5001,
    datagram_bytes: 1_470,
    refuse,
    open,
};

/// Client of iperf 2.0 and of boards with its layout.
pub const LEGACY: Caller = Caller {
    name: "iperf2-legacy",
    about: "TCP and UDP, sending, in the layout of iperf 2.0 and most boards; UDP with its report",
    kinds: &[Kind::Throughput],
    port: 5001,
    datagram_bytes: 1_470,
    refuse: refuse_legacy,
    open: open_legacy,
};

/// Largest buffer size announced to a server.
const BUFFER_LIMIT_BYTES: u64 = 128 << 10;

fn refuse(plan: &Plan) -> Option<Refusal> {
    if plan.kind == Kind::Latency {
        return first(&[
            (
                plan.protocol == Protocol::Udp,
                "-u",
                "iperf2 sends its bouncebacks over TCP",
            ),
            (
                !(bounceback::BEGINNING_BYTES as u64..=u64::from(bounceback::SIZE_LIMIT))
                    .contains(&plan.payload_bytes),
                "-l",
                "a bounceback has 20 B to 1 MiB",
            ),
        ])
        .or_else(|| round_trips::refuse(plan, false));
    }
    let both = plan.directions.len() > 1;
    let receives = plan.flows(Direction::Receive);
    let udp = plan.protocol == Protocol::Udp;
    let amount = plan
        .amount_bytes
        .map(|bytes| bytes / u64::from(plan.streams.max(1)));
    first(&[
        (
            udp && both,
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
    .or_else(|| refuse_omit(plan))
}

fn refuse_legacy(plan: &Plan) -> Option<Refusal> {
    let udp = plan.protocol == Protocol::Udp;
    first(&[
        (
            plan.flows(Direction::Receive),
            "-R or --bidir",
            "the old layout has a second connection from the server for that; use --peer iperf2",
        ),
        (
            udp && plan.payload_bytes != 0 && plan.payload_bytes < 24,
            "-l",
            "its header and what stands behind it take 24 B of each datagram",
        ),
    ])
    .or_else(|| refuse_omit(plan))
}

/// Returns whether the first bytes from a server can be its acknowledgement: type 2, in 28 B or
/// more.
fn is_ack(words: &[u8]) -> bool {
    const BEGINNING: [u8; 7] = [0, 0, 0, 2, 0, 0, 0];
    let compared = words.len().min(BEGINNING.len());
    words[..compared] == BEGINNING[..compared]
}

/// Returns the offset of the wall clock from the monotonic clock.
fn wall_ahead_ns() -> u64 {
    clock::real().wrapping_sub(clock::now())
}

fn settings(plan: &Plan, legacy: bool) -> Settings {
    let base = match legacy {
        true => Settings::legacy(plan.port),
        false => Settings::client(plan.port),
    };
    let streams = u64::from(plan.streams.max(1));
    Settings {
        way: match (plan.flows(Direction::Send), plan.flows(Direction::Receive)) {
            (true, true) => Way::Both,
            (false, true) => Way::Reverse,
            _ => Way::Forward,
        },
        flows: plan.streams,
        // Reference servers use the buffer that they have: 128 KiB without an option of theirs.
        buffer_bytes: u32::try_from(plan.payload_bytes.min(BUFFER_LIMIT_BYTES)).ok(),
        window: plan
            .window_bytes
            .and_then(|bytes| u32::try_from(bytes).ok()),
        amount: match (plan.duration_ns, plan.amount_bytes) {
            (Some(time), _) => Some(Amount::Time(time)),
            (None, Some(bytes)) => Some(Amount::Bytes(bytes.div_ceil(streams))),
            (None, None) => None,
        },
        rate: plan.rate_bps,
        tos: plan.socket.tos,
        ..base
    }
}

/// Returns the protocol name of a layout.
fn name(legacy: bool) -> &'static str {
    match legacy {
        true => LEGACY.name,
        false => CALLER.name,
    }
}

fn open(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    if context.plan.kind == Kind::Latency {
        let framing = Framing::Bounceback {
            wall_ahead_ns: wall_ahead_ns(),
        };
        return round_trips::open(context, "iperf2", &framing, &[], &|_| true);
    }
    match context.plan.protocol {
        Protocol::Tcp => open_tcp(context, false),
        Protocol::Udp => open_udp(context, false),
    }
}

fn open_legacy(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    match context.plan.protocol {
        Protocol::Tcp => open_tcp(context, true),
        Protocol::Udp => open_udp(context, true),
    }
}

/// Connections with a header each.
struct Streams {
    name: &'static str,
    called: Vec<CalledFlow>,
    acks: Acks,
    way: Way,
    sent: bool,
    sockets: Vec<FlowSocket>,
    /// Time that the server was given, and when that is over: only the end of the stream shows that
    /// the server ended in time.
    time_ns: Option<Nanos>,
    ends_ns: Option<Nanos>,
}

fn copy_of(socket: &FlowSocket) -> Result<FlowSocket, MeasureError> {
    let copy = socket.copy();
    copy.map_err(|error| MeasureError::system("a flow's socket", error))
}

fn open_tcp(context: &Context<'_>, legacy: bool) -> Result<Box<dyn Speech>, MeasureError> {
    let settings = settings(context.plan, legacy);
    let way = settings.way;
    let machine = TcpClient::new(settings).map_err(|error| context.foreign(error))?;
    let header = machine.header();
    let streams = context.plan.streams;
    let mut called = Vec::new();
    let mut back = Vec::new();
    let mut watched = Vec::new();
    let mut sockets = Vec::new();
    for id in 1..=streams {
        let direction = match way {
            Way::Reverse => Direction::Receive,
            Way::Forward | Way::Both => Direction::Send,
        };
        let socket = context.flow(id, direction, context.far.port())?;
        sockets.push(copy_of(&socket)?);
        let framing = match way {
            // The header that requests payload is not payload.
            Way::Reverse => {
                socket
                    .write_all(header)
                    .map_err(|error| failed(context.far, error))?;
                Framing::Bare
            }
            _ if header.is_empty() => plain::stream("iperf2-legacy"),
            _ => Framing::Begun(header.into()),
        };
        if way != Way::Reverse {
            watched.push((id, copy_of(&socket)?));
        }
        if way == Way::Both {
            back.push(CalledFlow {
                id: streams + id,
                direction: Direction::Receive,
                opening: copy_of(&socket)?.opening(),
                framing: Framing::Bare,
            });
        }
        called.push(CalledFlow {
            id,
            direction,
            opening: socket.opening(),
            framing,
        });
    }
    called.extend(back);
    let acks = Acks::new(context.far, watched);
    let acks = if legacy { acks } else { acks.hearing(is_ack) };
    Ok(Box::new(Streams {
        name: name(legacy),
        called,
        acks: match way {
            Way::Forward => acks,
            Way::Reverse | Way::Both => acks.beside_payload(),
        },
        way,
        sent: false,
        sockets,
        time_ns: context.plan.duration_ns,
        ends_ns: None,
    }))
}

impl Speech for Streams {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn started(&mut self, now: Nanos, _: &AtomicBool) -> Result<(), MeasureError> {
        self.ends_ns = self.time_ns.map(|time| now.saturating_add(time));
        Ok(())
    }

    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        self.acks.turn(now)
    }

    fn sent(&mut self, now: Nanos, flows: &[FlowTotal]) {
        if self.way != Way::Reverse && !self.sent {
            self.sent = true;
            self.acks.sent(now, flows);
        }
    }

    fn stop(&mut self, _: Nanos, early: bool) {
        // At the end of the time, the server ends by itself.
        if early && self.way != Way::Forward {
            for socket in &self.sockets {
                socket.cut();
            }
        }
    }

    fn far_sent(&mut self) -> Option<Vec<FlowTotal>> {
        let is_due = self.ends_ns.is_some_and(|ends| clock::now() >= ends);
        is_due.then(Vec::new)
    }

    fn is_over(&self) -> bool {
        self.way == Way::Reverse || self.acks.is_over()
    }

    fn due_ns(&self, now: Nanos) -> Nanos {
        now + if self.sent && !self.is_over() {
            LOOK_NS
        } else {
            250_000_000
        }
    }

    fn acknowledged(&self) -> BTreeMap<u32, Acknowledged> {
        self.acks.found()
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
