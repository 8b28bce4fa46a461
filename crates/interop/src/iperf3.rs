//! iperf3: a control connection, separate flows, results of both ends.

mod finish;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_protocol::control::{EndResults, FlowTotal};
use linerate_protocol::iperf3::{
    Cookie, CounterWidth, Iperf3Client, Iperf3ClientEvent, Iperf3Direction, Iperf3Flow,
    Iperf3Params, Iperf3Results, Iperf3Transport, PARALLEL_LIMIT, remote_report, udp,
};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::plan;
use linerate_record::plan::{Direction, Plan, RunKind, SendCopy};
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::{Readiness, poll_any};
use linerate_workload::framing::Framing;

use self::finish::ServerPauses;
use super::control_socket::ControlSocket;
use super::flow_socket::FlowSocket;
use super::other_sender::OtherSenderWatch;
use super::setup_context::{SETUP_TIMEOUT_NS, SetupContext, protocol_error};
use super::{ClientProtocol, ClientProtocolSpec, ConnectedFlow, PlanRejection, first_rejection};

/// Client of iperf3.
pub const SPEC: ClientProtocolSpec = ClientProtocolSpec {
    name: "iperf3",
    about: "TCP and UDP, all directions; both ends' counts, loss, IPDV, retransmits, the server's report",
    kinds: &[RunKind::Throughput],
    port: 5201,
    datagram_bytes: 1_460,
    reject: reject_plan,
    open,
};

/// Time for the last payload to arrive before the end message: a reference server closes its flows
/// when it receives that.
const ARRIVAL_TIMEOUT_NS: Nanos = 3_000_000_000;

/// Block sizes that reference servers accept.
const TCP_BLOCK_LIMIT: u64 = 1 << 20;
const UDP_BLOCK_RANGE: std::ops::RangeInclusive<u64> = 16..=65_507;

fn reject_plan(plan: &Plan) -> Option<PlanRejection> {
    let udp = plan.protocol == plan::TransportProtocol::Udp;
    first_rejection(&[
        (
            plan.streams > PARALLEL_LIMIT,
            "-P",
            "iperf3 takes 128 flows at most",
        ),
        (
            !udp && plan.payload_bytes > TCP_BLOCK_LIMIT,
            "-l",
            "iperf3 takes blocks of 1 MiB at most",
        ),
        (
            udp && plan.payload_bytes != 0 && !UDP_BLOCK_RANGE.contains(&plan.payload_bytes),
            "-l",
            "iperf3's datagrams have 16 to 65507 B",
        ),
        (
            !plan.omit_ns.is_multiple_of(1_000_000_000),
            "-O",
            "iperf3 takes whole seconds",
        ),
        (
            plan.pace.burst.is_some() && plan.has_direction(Direction::Receive),
            "-b RATE/BURST with -R",
            "iperf3's bursts are counted in blocks; a size in bytes cannot be sent to it",
        ),
    ])
}

fn build_params(plan: &Plan) -> Iperf3Params {
    let sends = plan.has_direction(Direction::Send);
    let receives = plan.has_direction(Direction::Receive);
    Iperf3Params {
        protocol: match plan.protocol {
            plan::TransportProtocol::Tcp => Iperf3Transport::Tcp,
            plan::TransportProtocol::Udp => Iperf3Transport::Udp,
        },
        direction: match (sends, receives) {
            (true, true) => Iperf3Direction::Both,
            (false, true) => Iperf3Direction::Reverse,
            _ => Iperf3Direction::Forward,
        },
        parallel: plan.streams,
        duration_ns: plan.duration_ns,
        amount_bytes: plan.amount_bytes,
        omit_ns: plan.omit_ns,
        // Checked before.
        block_bytes: u32::try_from(plan.payload_bytes).unwrap_or(u32::MAX),
        rate_bps: plan.rate_bps,
        window_bytes: plan.window_bytes,
        mss_bytes: plan.socket.mss_bytes,
        no_delay: plan.socket.no_delay,
        tos: plan.socket.tos,
        congestion: plan
            .congestion_control
            .clone()
            .filter(|_| plan.congestion_control_requested),
        counter_width: counter_width(plan),
        zero_copy: plan.copies.send == SendCopy::SendFile,
        server_output: true,
        client_version: Some("3.12".to_owned()),
        ..Iperf3Params::default()
    }
}

/// Datagrams of a flow per second without a requested rate: more than any host sends.
const MAX_DATAGRAMS_PER_SECOND: u128 = 10_000_000;

/// Returns the width of the sequence numbers. Servers before 3.1 ignore a request for 64 bits, so
/// that is for flows that may have more datagrams than 32 bits count, with a factor of two for a
/// rate that is exceeded.
fn counter_width(plan: &Plan) -> CounterWidth {
    let size = u128::from(plan.payload_bytes.max(1));
    let per_second = plan
        .rate_bps
        .map_or(MAX_DATAGRAMS_PER_SECOND, |rate| u128::from(rate) / 8 / size);
    let run_ns = plan
        .duration_ns
        .map(|time| u128::from(time.saturating_add(plan.omit_ns)));
    let datagrams = match (run_ns, plan.amount_bytes) {
        (Some(run_ns), _) => per_second * run_ns / 1_000_000_000,
        (None, Some(bytes)) => u128::from(bytes) / size,
        (None, None) => u128::MAX,
    };
    match plan.protocol {
        plan::TransportProtocol::Udp if datagrams > 1 << 31 => CounterWidth::Bits64,
        _ => CounterWidth::Bits32,
    }
}

/// Driver of one test.
struct Iperf3Driver {
    peer: SocketAddr,
    control: ControlSocket,
    machine: Iperf3Client,
    params: Iperf3Params,
    new_flows: Vec<ConnectedFlow>,
    /// Last flow, which is announced once everything here is ready: the server's clock starts then.
    last_flow: Option<FlowSocket>,
    cookie: Cookie,
    /// Sockets of TCP flows that this end sends.
    tcp_senders: Vec<FlowSocket>,
    /// Latest time of the end message, which is sent earlier once everything has arrived.
    finish_by_ns: Option<Nanos>,
    /// Unacknowledged bytes, and since when they are that many.
    unacknowledged: (u64, Nanos),
    /// Time at which everything was acknowledged, and the likely time of its arrival.
    arrival_ns: Option<(Nanos, Nanos)>,
    /// Round-trip time of the path before the payload; 0 if unknown.
    rtt_ns: Nanos,
    /// Time from the arrival of the last payload, as far as that was observed, to the end message.
    end_pause_ns: Nanos,
    /// Time for which this end sent.
    send_duration_ns: Option<Nanos>,
    finished: bool,
    results_requested: bool,
    remote_ended: bool,
    local_results: Option<Iperf3Results>,
    remote_results: Option<Iperf3Results>,
    done: bool,
    running: bool,
}

fn open(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let system = |error| SessionError::system("control connection", error);
    let stream = context.connect_control()?;
    let mut random = [0; 36];
    random.fill_with(|| fastrand::u8(..));
    let cookie = Cookie::new(random);
    let params = build_params(context.plan);
    let machine = Iperf3Client::new(cookie, params.clone(), clock::now());
    let mut driver = Iperf3Driver {
        peer: context.remote,
        control: ControlSocket::new(stream).map_err(system)?,
        machine,
        params,
        new_flows: Vec::new(),
        last_flow: None,
        cookie,
        tcp_senders: Vec::new(),
        finish_by_ns: None,
        unacknowledged: (u64::MAX, 0),
        arrival_ns: None,
        rtt_ns: 0,
        end_pause_ns: 0,
        send_duration_ns: None,
        finished: false,
        results_requested: false,
        remote_ended: false,
        local_results: None,
        remote_results: None,
        done: false,
        running: false,
    };
    while driver.new_flows.is_empty() {
        driver.check_stop(context.stop)?;
        if driver.poll_control(clock::now())? {
            for (number, flow) in (1..).zip(driver.params.flows()) {
                driver.check_stop(context.stop)?;
                let new_flows = driver.open_flow(context, number, flow)?;
                driver.new_flows.push(new_flows);
            }
        } else {
            driver.wait_control(20)?;
        }
    }
    Ok(Box::new(driver))
}

impl Iperf3Driver {
    /// Checks for Ctrl-C while flows are opened, and terminates the test on it.
    fn check_stop(&mut self, stop: &AtomicBool) -> Result<(), SessionError> {
        if !stop.load(Relaxed) {
            return Ok(());
        }
        self.machine.terminate();
        let _ = self.flush_control();
        Err(SessionError::Interrupted)
    }

    /// Opens and announces a flow.
    fn open_flow(
        &mut self,
        context: &SetupContext<'_>,
        number: u32,
        flow: Iperf3Flow,
    ) -> Result<ConnectedFlow, SessionError> {
        let direction = flow.direction_at_client();
        let socket = context.connect_flow(number, direction, context.remote.port())?;
        let broken = |error| SessionError::system("opening an iperf3 flow", error);
        let is_last = number as usize == self.params.flows().len();
        if is_last {
            self.last_flow = Some(socket.duplicate().map_err(broken)?);
        } else {
            self.announce(&socket, context.stop)?;
        }
        let framing = match self.params.protocol {
            Iperf3Transport::Udp => Framing::Iperf3(self.params.counter_width),
            _ => {
                if flow.from_client {
                    self.tcp_senders.push(socket.duplicate().map_err(broken)?);
                }
                Framing::NoHeader
            }
        };
        Ok(ConnectedFlow {
            id: number,
            direction,
            opening: socket.into_opening(),
            framing,
        })
    }

    /// Sends the cookie, or the UDP hello, of a flow.
    fn announce(&mut self, socket: &FlowSocket, stop: &AtomicBool) -> Result<(), SessionError> {
        let peer = self.peer;
        let failed = |error| super::setup_context::flow_open_error(peer, error);
        if self.params.protocol != Iperf3Transport::Udp {
            return socket.write_all(&self.cookie.to_wire()).map_err(failed);
        }
        let watch = OtherSenderWatch::open(socket);
        socket
            .send(&udp::UdpHello::Little.to_bytes())
            .map_err(failed)?;
        let until = clock::now() + SETUP_TIMEOUT_NS + self.control.path_delay_ns(false);
        let mut buffer = [0; 64];
        while clock::now() < until {
            self.check_stop(stop)?;
            if !socket
                .wait_readable(Duration::from_millis(50))
                .map_err(failed)?
            {
                continue;
            }
            // Payload may follow the reply directly: it stays in the queue.
            let bytes = socket.receive(&mut buffer).map_err(failed)?;
            if udp::is_reply(&buffer[..bytes]) {
                return Ok(());
            }
        }
        Err(watch.explain(peer, SessionError::UdpBlocked { address: peer }))
    }

    fn wait_control(&self, milliseconds: u64) -> Result<(), SessionError> {
        let interests: Vec<_> = (self.control.readable_fds().into_iter())
            .map(|fd| (fd, Readiness::Receive))
            .collect();
        poll_any(&interests, Duration::from_millis(milliseconds))
            .map(|_| ())
            .map_err(|error| SessionError::system("poll", error))
    }

    fn flush_control(&mut self) -> Result<(), SessionError> {
        while !self.machine.outgoing().is_empty() {
            match self.control.write(self.machine.outgoing()) {
                Ok(0) => break,
                Ok(bytes) => self.machine.mark_sent(bytes),
                // Pending messages of the server may explain the error.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Returns whether the end message follows datagrams of this end.
    fn has_sent_datagrams(&self) -> bool {
        self.finished && self.params.protocol == Iperf3Transport::Udp
    }

    /// Receives and sends control messages; returns true when flows are to be opened.
    fn poll_control(&mut self, now: Nanos) -> Result<bool, SessionError> {
        if self.done {
            return Ok(false);
        }
        let peer = self.peer;
        self.flush_control()?;
        let mut opens_flows = false;
        let machine = &mut self.machine;
        let mut received = Vec::new();
        let open = self
            .control
            .read(|bytes| {
                received.extend_from_slice(bytes);
                Ok::<(), std::io::Error>(())
            })
            .map_err(|error| {
                protocol_error(
                    peer,
                    format!("the iperf3 server broke the control connection ({error})"),
                )
            })?;
        let mut rest = received.as_slice();
        loop {
            let some = rest.len().min(linerate_protocol::iperf3::READ_AHEAD_BYTES);
            machine
                .receive(&rest[..some])
                .map_err(|error| protocol_error(peer, error))?;
            rest = &rest[some..];
            while let Some(event) = machine
                .next_event(now)
                .map_err(|error| protocol_error(peer, error))?
            {
                match event {
                    Iperf3ClientEvent::OpenFlows => opens_flows = true,
                    Iperf3ClientEvent::Started => self.running = true,
                    Iperf3ClientEvent::SendResults => {
                        self.results_requested = true;
                        self.remote_ended = true;
                    }
                    Iperf3ClientEvent::Results(remote_results) => {
                        self.remote_results = Some(*remote_results)
                    }
                    Iperf3ClientEvent::Finished => self.done = true,
                    Iperf3ClientEvent::Terminated => {
                        return Err(protocol_error(
                            peer,
                            "the iperf3 server stopped the test before its end: see why it was stopped",
                        ));
                    }
                }
            }
            if rest.is_empty() {
                break;
            }
        }
        if let (true, Some(local_results)) = (self.results_requested, &self.local_results) {
            self.results_requested = false;
            machine
                .send_results(local_results, now)
                .map_err(|error| protocol_error(peer, error))?;
        }
        // A message and its reply wait in the queues of the path.
        let path_ns = self.control.path_delay_ns(self.has_sent_datagrams());
        self.machine
            .check_deadline(now.saturating_sub(path_ns))
            .map_err(|error| protocol_error(peer, error))?;
        self.flush_control()?;
        if !open && !self.done {
            self.machine
                .mark_closed()
                .map_err(|error| protocol_error(peer, error))?;
        }
        Ok(opens_flows)
    }
}

impl ClientProtocol for Iperf3Driver {
    fn flows(&mut self) -> Vec<ConnectedFlow> {
        std::mem::take(&mut self.new_flows)
    }

    fn start(&mut self, now: Nanos, stop: &AtomicBool) -> Result<(), SessionError> {
        if let Some(last) = self.last_flow.take() {
            self.announce(&last, stop)?;
        }
        let until = now + 2 * SETUP_TIMEOUT_NS + self.control.path_delay_ns(false);
        while !self.running && clock::now() < until {
            self.check_stop(stop)?;
            self.poll_control(clock::now())?;
            if !self.running {
                self.wait_control(20)?;
            }
        }
        self.rtt_ns = self.control.min_rtt_ns().unwrap_or(0);
        Ok(())
    }

    fn poll(&mut self, now: Nanos) -> Result<(), SessionError> {
        self.finish_when_arrived(now)?;
        self.poll_control(now).map(|_| ())
    }

    fn payload_sent(&mut self, now: Nanos, _: &[FlowTotal]) {
        // Without anything to send that is not the end.
        if self.params.direction != Iperf3Direction::Reverse {
            self.finish_by_ns.get_or_insert(now + ARRIVAL_TIMEOUT_NS);
            self.unacknowledged.1 = now;
        }
    }

    fn stop(&mut self, now: Nanos, _early: bool) {
        if self.params.direction == Iperf3Direction::Reverse {
            self.finish_by_ns.get_or_insert(now);
        }
    }

    fn flows_ended(&mut self, _: Nanos, local_results: &EndResults) {
        self.store_results(local_results);
    }

    fn remote_totals(&mut self) -> Option<Vec<FlowTotal>> {
        self.remote_ended.then(Vec::new)
    }

    fn is_finished(&self) -> bool {
        self.done
    }

    fn next_deadline_ns(&self, now: Nanos) -> Nanos {
        match self.finish_by_ns {
            Some(_) if !self.finished => now + 1_000_000,
            _ => now + 100_000_000,
        }
    }

    fn readable_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.control.readable_fds()
    }

    fn path_delay_ns(&self) -> Nanos {
        self.control.path_delay_ns(self.has_sent_datagrams())
    }

    fn remote_report(&self) -> RemoteReport {
        let Some(remote_results) = &self.remote_results else {
            return RemoteReport::default();
        };
        let mut report = remote_report(&self.params, true, remote_results);
        let numbers: Vec<_> = (1_u32..).zip(self.params.flows()).collect();
        for flow in &mut report.flows {
            if flow.direction == Direction::Send {
                let time = flow.figures.duration_ns;
                let pauses = ServerPauses {
                    omit_ns: self.params.omit_ns,
                    end_ns: self.end_pause_ns,
                    rtt_ns: self.rtt_ns,
                    sent_ns: self.send_duration_ns,
                };
                flow.figures.duration_ns = time.map(|time| pauses.subtract_from(time));
            }
            // Our flows are numbered consecutively, those of iperf3 are not.
            flow.id = flow.id.and_then(|id| {
                let matching = numbers.iter().find(|(_, flow)| flow.id == id);
                matching.map(|(number, _)| *number)
            });
        }
        report
    }

    fn agent(&self) -> String {
        "iperf3".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers of iperf3 3.0 (2014) know 32 bits only.
    #[test]
    fn numbers_have_64_bits_only_where_32_may_not_do() {
        let second = 1_000_000_000;
        for (rate_bps, duration_s, amount_bytes, width) in [
            (Some(5_000_000), Some(10), None, CounterWidth::Bits32),
            (None, Some(10), None, CounterWidth::Bits32),
            (None, Some(3_600), None, CounterWidth::Bits64),
            (Some(1_000_000), Some(1_000_000), None, CounterWidth::Bits32),
            (
                Some(100_000_000_000),
                Some(3_600),
                None,
                CounterWidth::Bits64,
            ),
            (None, None, Some(1 << 40), CounterWidth::Bits32),
            (None, None, Some(1 << 50), CounterWidth::Bits64),
            (None, None, None, CounterWidth::Bits64),
        ] {
            let mut plan = Plan::new(RunKind::Throughput, plan::TransportProtocol::Udp, "host");
            plan.payload_bytes = 1_460;
            (plan.rate_bps, plan.amount_bytes) = (rate_bps, amount_bytes);
            plan.duration_ns = duration_s.map(|seconds: u64| seconds * second);
            let case = format!("{rate_bps:?} {duration_s:?} {amount_bytes:?}");
            assert_eq!(build_params(&plan).counter_width, width, "{case}");
        }
    }
}
