//! iperf2 over UDP: flows with an end marker and a report each.

use std::net::SocketAddr;

use linerate_dialect::control::FlowTotal;
use linerate_dialect::iperf2::{Due, UdpClient, Way, datagram};
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::Direction;

use super::super::flow_socket::FlowSocket;
use super::super::setup_context::{Context, failed, foreign};
use super::super::{CalledFlow, Speech};
use super::{copy_of, name, settings, wall_ahead_ns};
use crate::error::MeasureError;
use crate::interop::framing::Framing;

/// Buffer for a report.
const ROOM: usize = 2048;

/// Limit of the header bytes, from the sequence number on.
const HEADER_ROOM: usize = 128;

/// Flows with an end marker and a report each.
struct Datagrams {
    name: &'static str,
    peer: SocketAddr,
    called: Vec<CalledFlow>,
    flows: Vec<Flow>,
    way: Way,
    ending: bool,
    over: bool,
}

struct Flow {
    id: u32,
    socket: FlowSocket,
    machine: UdpClient,
    datagram: Vec<u8>,
    due_ns: Option<Nanos>,
    over: bool,
}

pub fn open_udp(context: &Context<'_>, legacy: bool) -> Result<Box<dyn Speech>, MeasureError> {
    let settings = settings(context.plan, legacy);
    let way = settings.way;
    let bytes = usize::try_from(context.plan.payload_bytes).unwrap_or(usize::MAX);
    let mut datagrams = Datagrams {
        name: name(legacy),
        peer: context.far,
        called: Vec::new(),
        flows: Vec::new(),
        way,
        ending: false,
        over: false,
    };
    let direction = match way {
        Way::Reverse => Direction::Receive,
        Way::Forward | Way::Both => Direction::Send,
    };
    for id in 1..=context.plan.streams {
        let machine =
            UdpClient::new(settings.clone(), bytes).map_err(|error| context.foreign(error))?;
        let socket = context.flow(id, direction, context.far.port())?;
        let template = machine.template();
        datagrams.called.push(CalledFlow {
            id,
            direction,
            opening: copy_of(&socket)?.opening(),
            framing: framing(&template),
        });
        let mut flow = Flow {
            id,
            socket,
            machine,
            datagram: template,
            due_ns: None,
            over: false,
        };
        if way == Way::Reverse {
            flow.request(context)?;
        }
        datagrams.flows.push(flow);
    }
    Ok(Box::new(datagrams))
}

/// Error text for a server that does not reply to the end marker.
const UNANSWERED: &str = "the server did not acknowledge the end of the test, so its count is not known: see \
                          whether an iperf2 server listens on that UDP port, and whether UDP gets through";

/// Returns the framing of a datagram template.
fn framing(template: &[u8]) -> Framing {
    let header = template.get(datagram::HEADER_BYTES..).unwrap_or(&[]);
    Framing::Iperf2 {
        header: header[..header.len().min(HEADER_ROOM)].into(),
        wall_ahead_ns: wall_ahead_ns(),
        wide: true,
    }
}

impl Flow {
    /// Requests payload until some has arrived.
    fn request(&mut self, context: &Context<'_>) -> Result<(), MeasureError> {
        loop {
            let now = clock::now();
            match self.machine.due(now) {
                Due::Request => {
                    self.machine
                        .write_request(&mut self.datagram, clock::real(), now);
                    self.socket
                        .send(&self.datagram)
                        .map_err(|error| failed(context.far, error))?;
                }
                Due::At(at_ns) => {
                    if context.readable(&self.socket, at_ns)? {
                        // The datagram stays in the queue: it is payload.
                        return Ok(());
                    }
                }
                Due::End | Due::Nothing => return Err(context.silent(2_000_000_000)),
            }
        }
    }

    /// Sends the end marker until the report arrives or the attempts are used up.
    fn end(&mut self, now: Nanos) {
        let mut room = [0; ROOM];
        loop {
            match self.socket.receive(&mut room) {
                Ok(bytes) => {
                    if self.machine.receive(&room[..bytes]) {
                        break;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.due_ns = None;
        match self.machine.due(now) {
            Due::End => {
                self.machine
                    .write_end(&mut self.datagram, clock::real(), now);
                // The marker is repeated, so a full queue does no harm.
                let _ = self.socket.offer(&self.datagram);
                self.due_ns = Some(now + 1_000_000);
            }
            Due::At(at_ns) => self.due_ns = Some(at_ns.min(now + 5_000_000)),
            Due::Request | Due::Nothing => self.over = true,
        }
    }
}

impl Speech for Datagrams {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn turn(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if !self.ending || self.over {
            return Ok(());
        }
        for flow in self.flows.iter_mut().filter(|flow| !flow.over) {
            flow.end(now);
        }
        self.over = self.flows.iter().all(|flow| flow.over);
        let unheard = |flow: &Flow| flow.machine.wants_report() && flow.machine.report().is_none();
        if self.over && self.flows.iter().all(unheard) {
            return Err(foreign(self.peer, UNANSWERED));
        }
        Ok(())
    }

    fn sent(&mut self, now: Nanos, totals: &[FlowTotal]) {
        if self.way != Way::Forward || self.ending {
            return;
        }
        self.ending = true;
        for flow in &mut self.flows {
            let total = totals.iter().find(|total| total.id == flow.id);
            let sent = total.and_then(|total| total.packets).unwrap_or(0);
            flow.machine.count(sent);
            flow.machine.finish(now);
        }
    }

    fn stop(&mut self, _: Nanos, early: bool) {
        // At the end of the time, the server ends by itself.
        if early && self.way == Way::Reverse {
            for flow in &self.flows {
                flow.socket.deafen();
            }
        }
    }

    fn is_over(&self) -> bool {
        self.way != Way::Forward || self.over
    }

    fn due_ns(&self, now: Nanos) -> Nanos {
        let due = self.flows.iter().filter_map(|flow| flow.due_ns).min();
        due.unwrap_or(now + 250_000_000)
    }

    fn far_report(&self) -> FarReport {
        let mut all = FarReport::default();
        for flow in &self.flows {
            let said = flow.machine.far_report();
            all.flows.extend(said.flows.into_iter().map(|mut said| {
                said.id = Some(flow.id);
                said
            }));
        }
        all
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
