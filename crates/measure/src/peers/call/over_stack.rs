//! Calling a far end of another kind over our own stack: dialects whose flows need nothing but payload.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use linerate_dialect::control::FlowTotal;
use linerate_dialect::far::FarReport;
use linerate_dialect::iperf2::{Due, TcpClient, UdpClient};
use linerate_dialect::{sockperf, ttcp};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Kind, Protocol};

use super::context::{Context, foreign};
use super::{CalledFlow, Speech, iperf2, listen, plain};
use crate::error::MeasureError;
use crate::lane::Opening;
use crate::peers::framing::Framing;
use crate::peers::record::Acknowledged;
use crate::stack::StackThread;

/// How long the last acknowledgement is waited for.
const PATIENCE_NS: Nanos = 5_000_000_000;

/// How often it is looked.
const LOOK_NS: Nanos = 5_000_000;

/// How long the last datagrams may be on their way before their end is marked.
const ARRIVAL_NS: Nanos = 50_000_000;

/// What is said over UDP when all was sent.
enum Ending {
    /// Nothing.
    None,
    /// Markers of classic ttcp, from then on.
    Marks(Option<Nanos>),
    /// The end of each flow, until its report is there.
    Reports(Vec<Reported>),
}

/// A flow of iperf2 over UDP.
struct Reported {
    id: u32,
    machine: UdpClient,
    datagram: Vec<u8>,
    over: bool,
}

/// One test.
struct Test<'a> {
    name: &'static str,
    peer: SocketAddr,
    from: Option<SocketAddr>,
    ending: Ending,
    called: Vec<CalledFlow>,
    stack: &'a StackThread,
    /// TCP, sending: nobody says what arrived but the far end's stack.
    acknowledges: bool,
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
    if listen::is_wanted(context.plan) {
        return waiting(context, name, stack);
    }
    let plan = context.plan;
    let direction = plan.directions[0];
    let tcp = plan.protocol == Protocol::Tcp;
    let asks = plan.kind == Kind::Latency;
    let (talks, legacy) = (name.starts_with("iperf2"), name == "iperf2-legacy");
    let mut reported = Vec::new();
    if talks && !tcp {
        let settings = iperf2::settings(plan, legacy);
        let bytes = usize::try_from(plan.payload_bytes).unwrap_or(usize::MAX);
        for id in 1..=plan.streams {
            let machine = UdpClient::new(settings.clone(), bytes);
            let machine = machine.map_err(|error| context.foreign(error))?;
            reported.push(Reported {
                id,
                datagram: machine.template(),
                machine,
                over: false,
            });
        }
    }
    let framing = match name {
        "sockperf" => Framing::Sockperf,
        "ttcp" if !tcp => Framing::Ttcp,
        _ if talks && tcp => {
            let machine = TcpClient::new(iperf2::settings(plan, legacy));
            let machine = machine.map_err(|error| context.foreign(error))?;
            match machine.header() {
                [] => plain::stream(name),
                header => Framing::Begun(header.into()),
            }
        }
        _ if talks => iperf2::framing(&reported[0].datagram),
        "echo" => Framing::Own,
        _ if tcp => plain::stream(name),
        _ => Framing::Bare,
    };
    let probe = match name {
        "sockperf" => {
            let question = sockperf::Header::question(1, sockperf::HEADER_BYTES as u32);
            question.bytes().to_vec()
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
            first: match (name, tcp) {
                ("ttcp", false) => ttcp::MARKER.to_vec(),
                _ => Vec::new(),
            },
        },
        framing: framing.clone(),
    });
    Ok(Box::new(Test {
        name,
        peer: context.far,
        from: None,
        ending: match (name, tcp) {
            ("ttcp", false) => Ending::Marks(None),
            _ if !reported.is_empty() => Ending::Reports(reported),
            _ => Ending::None,
        },
        called: called.collect(),
        stack,
        acknowledges: tcp && !asks && direction == Direction::Send,
        sent: None,
        found: BTreeMap::new(),
        over: false,
    }))
}

/// Waits for a sender of classic ttcp.
fn waiting<'a>(
    context: &Context<'_>,
    name: &'static str,
    stack: &'a StackThread,
) -> Result<Box<dyn Speech + 'a>, MeasureError> {
    let tcp = context.plan.protocol == Protocol::Tcp;
    let local = context.far;
    let gone = || MeasureError::system("the stack's thread", std::io::Error::other("it ended"));
    let listener = stack.look(move |stack, _| match tcp {
        true => stack.tcp_listen(local, 1),
        false => stack.udp_bind(local),
    });
    let listener = listener.ok_or_else(gone)??;
    let (socket, from) = loop {
        if context.stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        if let Some(failure) = stack.failure() {
            return Err(failure.into());
        }
        let came = stack.look(move |stack, _| {
            if tcp {
                let Poll::Ready(Ok(socket)) = stack.tcp_accept(listener) else {
                    return None;
                };
                // One sender is what it waits for.
                let _ = stack.close(listener);
                return Some((socket, stack.remote(socket).ok()??));
            }
            let from = stack.udp_peek(listener, |_, from| from).ok()??;
            // From now on nobody else's datagrams come in; the first one stays where it is.
            stack.udp_connect(listener, from).ok()?;
            Some((listener, from))
        });
        if let Some(came) = came.ok_or_else(gone)? {
            break came;
        }
        std::thread::sleep(Duration::from_nanos(LOOK_NS));
    };
    Ok(Box::new(Test {
        name,
        peer: from,
        from: Some(from),
        ending: Ending::None,
        called: vec![CalledFlow {
            id: 1,
            direction: Direction::Receive,
            opening: Opening::Take(socket),
            framing: if tcp { Framing::Bare } else { Framing::Ttcp },
        }],
        stack,
        acknowledges: false,
        sent: None,
        found: BTreeMap::new(),
        over: false,
    }))
}

impl Test<'_> {
    /// Whether something is to be said when all was sent.
    fn ends(&self) -> bool {
        !matches!(self.ending, Ending::None)
    }

    /// Says something on the socket of each flow, and gives what came there meanwhile.
    fn say(&self, datagrams: Vec<Option<Vec<u8>>>) -> Vec<Vec<Vec<u8>>> {
        let (tell, told) = mpsc::channel();
        let say = move |stack: &mut crate::transport::OnStack| {
            // Whoever asked waits for it.
            let _ = tell.send(stack.say(&datagrams));
        };
        if self.stack.lend(Box::new(say)).is_err() {
            return Vec::new();
        }
        told.recv_timeout(Duration::from_secs(1))
            .unwrap_or_default()
    }

    /// Says what is to be said at the end; whether that was all.
    fn end(&mut self, now: Nanos) -> Result<bool, MeasureError> {
        let mut ending = std::mem::replace(&mut self.ending, Ending::None);
        let over = match &mut ending {
            Ending::None => true,
            Ending::Marks(at) => {
                let due = *at.get_or_insert(now + ARRIVAL_NS);
                if now >= due {
                    for _ in 0..ttcp::END_MARKERS {
                        self.say(vec![Some(ttcp::MARKER.to_vec())]);
                    }
                }
                now >= due
            }
            Ending::Reports(flows) => {
                let mut all = Vec::with_capacity(flows.len());
                for flow in flows.iter_mut() {
                    all.push(match flow.machine.due(now) {
                        Due::End => {
                            let wall = clock::real();
                            flow.machine.write_end(&mut flow.datagram, wall, now);
                            Some(flow.datagram.clone())
                        }
                        Due::At(_) => None,
                        Due::Request | Due::Nothing => {
                            flow.over = true;
                            None
                        }
                    });
                }
                let heard = self.say(all);
                for (flow, heard) in flows.iter_mut().zip(heard) {
                    for datagram in heard {
                        flow.machine.receive(&datagram);
                    }
                }
                flows.iter().all(|flow| flow.over)
            }
        };
        let unheard =
            |flow: &Reported| flow.machine.wants_report() && flow.machine.report().is_none();
        let silent = matches!(&ending, Ending::Reports(flows) if flows.iter().all(unheard));
        self.ending = ending;
        match over && silent {
            true => Err(foreign(self.peer, iperf2::UNANSWERED)),
            false => Ok(over),
        }
    }

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

    fn started(&mut self, _: Nanos, _: &AtomicBool) -> Result<(), MeasureError> {
        Ok(())
    }

    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.sent.is_none() || self.over {
            return Ok(());
        }
        if !self.acknowledges {
            self.over = self.end(now)?;
            return Ok(());
        }
        let Some((sent_ns, flows)) = &self.sent else {
            return Ok(());
        };
        let Some(left) = self.unacknowledged() else {
            self.over = true;
            return Ok(());
        };
        for (flow, &left) in flows.iter().zip(&left) {
            let found = Acknowledged {
                bytes: flow.bytes.saturating_sub(left as u64),
                behind_ns: now.saturating_sub(*sent_ns),
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
        if self.sent.is_some() || !(self.acknowledges || self.ends()) {
            return;
        }
        if let Ending::Reports(reported) = &mut self.ending {
            for flow in reported {
                let total = flows.iter().find(|total| total.id == flow.id);
                let sent = total.and_then(|total| total.packets).unwrap_or(0);
                flow.machine.count(sent);
                flow.machine.finish(now);
            }
        }
        self.sent = Some((now, flows.to_vec()));
    }

    fn stop(&mut self, _: Nanos, _early: bool) {
        // It only sends, and would not stop by itself.
        self.stack.cut();
    }

    fn is_over(&self) -> bool {
        !(self.acknowledges || self.ends()) || self.over
    }

    fn due_ns(&self, now: Nanos) -> Nanos {
        let waits = self.sent.is_some() && !self.over;
        now + if waits { LOOK_NS } else { 250_000_000 }
    }

    fn acknowledged(&self) -> BTreeMap<u32, Acknowledged> {
        self.found.clone()
    }

    fn far_report(&self) -> FarReport {
        let mut all = FarReport::default();
        if let Ending::Reports(flows) = &self.ending {
            for flow in flows {
                let said = flow.machine.far_report();
                all.flows.extend(said.flows.into_iter().map(|mut said| {
                    said.id = Some(flow.id);
                    said
                }));
            }
        }
        all
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.from
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
