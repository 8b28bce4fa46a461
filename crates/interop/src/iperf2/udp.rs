//! iperf2 over UDP: flows with an end marker and a report each.

use std::net::SocketAddr;

use linerate_protocol::control::FlowTotal;
use linerate_protocol::iperf2::{Iperf2ClientAction, Iperf2Direction, Iperf2UdpClient, datagram};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::plan::Direction;
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_workload::framing::Framing;

use super::super::flow_socket::FlowSocket;
use super::super::other_sender::OtherSenderWatch;
use super::super::setup_context::{
    SETUP_TIMEOUT_NS, SetupContext, flow_open_error, protocol_error,
};
use super::super::{ClientProtocol, ConnectedFlow};
use super::{duplicate_socket, layout_name, settings};

/// Buffer for a report.
const REPORT_BUFFER_BYTES: usize = 2048;

/// Limit of the header bytes, from the sequence number on.
const HEADER_LIMIT_BYTES: usize = 128;

/// Flows with an end marker and a report each.
struct Iperf2UdpDriver {
    name: &'static str,
    peer: SocketAddr,
    new_flows: Vec<ConnectedFlow>,
    flows: Vec<Iperf2ClientFlow>,
    directions: Iperf2Direction,
    ending: bool,
    finished: bool,
}

struct Iperf2ClientFlow {
    id: u32,
    socket: FlowSocket,
    /// Watch for the request or the report of the first flow.
    watch: Option<OtherSenderWatch>,
    machine: Iperf2UdpClient,
    datagram: Vec<u8>,
    /// Offset of the wall clock from the monotonic clock.
    wall_ahead_ns: Nanos,
    deadline_ns: Option<Nanos>,
    finished: bool,
}

pub fn open_udp(
    context: &SetupContext<'_>,
    legacy: bool,
) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let settings = settings(context.plan, legacy);
    let directions = settings.direction;
    let bytes = usize::try_from(context.plan.payload_bytes).unwrap_or(usize::MAX);
    let mut driver = Iperf2UdpDriver {
        name: layout_name(legacy),
        peer: context.remote,
        new_flows: Vec::new(),
        flows: Vec::new(),
        directions,
        ending: false,
        finished: false,
    };
    let direction = match directions {
        Iperf2Direction::Reverse => Direction::Receive,
        Iperf2Direction::Forward | Iperf2Direction::Both => Direction::Send,
    };
    let wall_ahead_ns = clock::wall_offset();
    for id in 1..=context.plan.streams {
        let machine = Iperf2UdpClient::new(settings.clone(), bytes)
            .map_err(|error| context.protocol_error(error))?;
        let socket = context.connect_flow(id, direction, context.remote.port())?;
        let template = machine.template();
        driver.new_flows.push(ConnectedFlow {
            id,
            direction,
            opening: duplicate_socket(&socket)?.into_opening(),
            framing: framing(&template, wall_ahead_ns),
        });
        let mut flow = Iperf2ClientFlow {
            id,
            watch: (id == 1).then(|| OtherSenderWatch::open(&socket)),
            socket,
            machine,
            datagram: template,
            wall_ahead_ns,
            deadline_ns: None,
            finished: false,
        };
        if directions == Iperf2Direction::Reverse {
            flow.request_payload(context)?;
        }
        driver.flows.push(flow);
    }
    Ok(Box::new(driver))
}

/// Error text for a server that does not reply to the end marker.
const NO_REPORT: &str = "the server did not acknowledge the end of the test, so its count is not known: see \
                          whether an iperf2 server listens on that UDP port, and whether UDP gets through";

/// Returns the framing of a datagram template.
fn framing(template: &[u8], wall_ahead_ns: Nanos) -> Framing {
    let header = template.get(datagram::HEADER_BYTES..).unwrap_or(&[]);
    Framing::Iperf2 {
        header: header[..header.len().min(HEADER_LIMIT_BYTES)].into(),
        wall_ahead_ns,
        wide_numbers: true,
    }
}

impl Iperf2ClientFlow {
    /// Requests payload until some has arrived.
    fn request_payload(&mut self, context: &SetupContext<'_>) -> Result<(), SessionError> {
        let until_ns = clock::now() + SETUP_TIMEOUT_NS;
        loop {
            let now = clock::now();
            match self.machine.next_action(now) {
                Iperf2ClientAction::Request => {
                    let wall_ns = now.wrapping_add(self.wall_ahead_ns);
                    self.machine.write_request(&mut self.datagram, wall_ns, now);
                    self.socket
                        .send(&self.datagram)
                        .map_err(|error| flow_open_error(context.remote, error))?;
                }
                Iperf2ClientAction::WaitUntil(at_ns) => {
                    if context.wait_readable(&self.socket, at_ns)? {
                        // The datagram stays in the queue: it is payload.
                        return Ok(());
                    }
                }
                Iperf2ClientAction::End | Iperf2ClientAction::Idle => {
                    // The path may be longer than all requests took.
                    return match context.wait_readable(&self.socket, until_ns)? {
                        true => Ok(()),
                        false => {
                            let timeout = context.udp_timeout(SETUP_TIMEOUT_NS);
                            Err(self.explain(context.remote, timeout))
                        }
                    };
                }
            }
        }
    }

    /// Returns the error for replies from another address, or `otherwise` if there were none.
    fn explain(&self, remote: SocketAddr, otherwise: SessionError) -> SessionError {
        match &self.watch {
            Some(watch) => watch.explain(remote, otherwise),
            None => otherwise,
        }
    }

    /// Sends the end marker until the report arrives or the attempts are used up.
    fn poll_end(&mut self, now: Nanos) {
        let mut buffer = [0; REPORT_BUFFER_BYTES];
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(bytes) => {
                    if self.machine.receive(&buffer[..bytes]) {
                        break;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.deadline_ns = None;
        match self.machine.next_action(now) {
            Iperf2ClientAction::End => {
                let wall_ns = now.wrapping_add(self.wall_ahead_ns);
                self.machine.write_end(&mut self.datagram, wall_ns, now);
                // The marker is repeated, so a full queue does no harm.
                let _ = self.socket.try_send(&self.datagram);
                self.deadline_ns = Some(now + 1_000_000);
            }
            Iperf2ClientAction::WaitUntil(at_ns) => {
                self.deadline_ns = Some(at_ns.min(now + 5_000_000))
            }
            Iperf2ClientAction::Request | Iperf2ClientAction::Idle => self.finished = true,
        }
    }
}

impl ClientProtocol for Iperf2UdpDriver {
    fn flows(&mut self) -> Vec<ConnectedFlow> {
        std::mem::take(&mut self.new_flows)
    }

    fn poll(&mut self, now: Nanos) -> Result<(), SessionError> {
        if !self.ending || self.finished {
            return Ok(());
        }
        for flow in self.flows.iter_mut().filter(|flow| !flow.finished) {
            flow.poll_end(now);
        }
        self.finished = self.flows.iter().all(|flow| flow.finished);
        let lacks_report = |flow: &Iperf2ClientFlow| {
            flow.machine.expects_report() && flow.machine.report().is_none()
        };
        if self.finished && self.flows.iter().all(lacks_report) {
            let no_report = protocol_error(self.peer, NO_REPORT);
            return Err(match self.flows.first() {
                Some(flow) => flow.explain(self.peer, no_report),
                None => no_report,
            });
        }
        Ok(())
    }

    fn payload_sent(&mut self, now: Nanos, totals: &[FlowTotal]) {
        if self.directions != Iperf2Direction::Forward || self.ending {
            return;
        }
        self.ending = true;
        for flow in &mut self.flows {
            let total = totals.iter().find(|total| total.id == flow.id);
            let sent = total.and_then(|total| total.packets).unwrap_or(0);
            flow.machine.set_sent(sent);
            flow.machine.finish(now);
        }
    }

    fn stop(&mut self, _: Nanos, early: bool) {
        // At the end of the time, the server ends by itself.
        if early && self.directions == Iperf2Direction::Reverse {
            for flow in &self.flows {
                flow.socket.reject_datagrams();
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.directions != Iperf2Direction::Forward || self.finished
    }

    fn next_deadline_ns(&self, now: Nanos) -> Nanos {
        let deadline_ns = self.flows.iter().filter_map(|flow| flow.deadline_ns).min();
        deadline_ns.unwrap_or(now + 250_000_000)
    }

    fn remote_report(&self) -> RemoteReport {
        let mut all = RemoteReport::default();
        for flow in &self.flows {
            let report = flow.machine.remote_report();
            all.flows.extend(report.flows.into_iter().map(|mut report| {
                report.id = Some(flow.id);
                report
            }));
        }
        all
    }

    fn agent(&self) -> String {
        self.name.to_owned()
    }
}
