//! UDP flows of iperf2.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use linerate_protocol::amplification_guard::{SendCredit, VALIDATION_LIFETIME_NS};
use linerate_protocol::iperf2::datagram::{
    ENDS_WITHOUT_REPLY, HEADER_BYTES, read_header, write_end, write_number,
};
use linerate_protocol::iperf2::{
    DualTest, Iperf2Datagram, Iperf2Direction, Iperf2Settings, Iperf2UdpServer, QUIET_NS, fill,
};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::ids::CaveatId;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::Caveat;
use linerate_session::dial::with_port;
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::AcceptedClient;
use super::super::short_flow::has_second_datagram;
use super::super::test_run::TestRun;
use super::super::worker::{
    DatagramAction, DatagramFlow, FlowFailure, FlowWorkerContext, FlowWorkerResult, OneWayDelays,
    SendPlan, SequenceStats, receive_datagrams, send_datagrams,
};
use super::{DUAL_ALTERNATIVE, REVERSE_FLOW_ID, agent, plan, send_plan};
use crate::interop_limits::InteropLimits;
use crate::interop_state::{IncomingFlow, InteropState};
use crate::server_state::TestReservation;

/// Time for the second datagram of an unvalidated client, whose first one may be forged. Datagrams
/// of the usual size arrive within it from 6 kb/s on.
const SECOND_DATAGRAM_TIMEOUT_NS: Nanos = 2_000_000_000;

/// Time a client may repeat its end marker: it has its report by then, or never receives it (iperf
/// 2.0 repeats for 2.5 s).
const END_MARKERS_TIMEOUT_NS: Nanos = 4_000_000_000;

/// Limit of the time that a client is sent datagrams. It has no connection that would show that it
/// is still there, and a forger of its address could request any time. So the limit is the time for
/// which an address stays validated.
const SEND_TIME_LIMIT_NS: Nanos = VALIDATION_LIFETIME_NS;

/// Bytes of a datagram where the client announces none: the defaults of reference servers for IPv4
/// and IPv6, which fit an Ethernet packet.
const DATAGRAM_BYTES: (usize, usize) = (1470, 1450);

/// Rate where the client announces none.
const RATE_BPS: u64 = 1 << 20;

/// Bytes at the start of a datagram in which a client's own server looks for settings.
pub const SETTINGS_BYTES: usize = 128;

/// Handles a flow.
pub fn serve(
    protocol: &'static str,
    mut client: AcceptedClient,
    reservation: TestReservation,
    mut incoming: IncomingFlow,
) {
    let Some((first_ns, first)) = incoming.early_datagrams.first() else {
        return;
    };
    let first_ns = *first_ns;
    let wall_offset_ns = clock::wall_offset();
    // The end marker of an earlier flow opens none.
    let Some(server) = Iperf2UdpServer::open(first, first_ns.wrapping_add(wall_offset_ns)) else {
        return;
    };
    let settings = server.settings().cloned();
    let direction = server.direction();
    // A client that requests a reverse flow may send a single datagram.
    let flow_silence = client.timeouts().flow_silence;
    let timeout = match (direction, &client.unvalidated_permit) {
        (_, Some(_)) => Some(SECOND_DATAGRAM_TIMEOUT_NS),
        (Iperf2Direction::Forward, None) => Some(flow_silence.as_nanos() as Nanos),
        (Iperf2Direction::Reverse | Iperf2Direction::Both, None) => None,
    };
    if timeout.is_some_and(|timeout| !has_second_datagram(&client, &incoming, timeout)) {
        return;
    }
    let mut plan = plan(&client, TransportProtocol::Udp, settings.as_ref());
    if plan.payload_bytes == 0 {
        plan.payload_bytes = incoming.largest_datagram_bytes();
    }
    let agent = settings.as_ref().map_or("iperf 2.0".to_owned(), agent);
    let test = TestRun::begin(&mut client, reservation, protocol, &agent, plan);
    let mut test = test.ending_by_silence();
    test.set_sequence_numbers(true);
    if direction != Iperf2Direction::Reverse {
        test.use_payload_size();
    }
    if direction == Iperf2Direction::Forward {
        test.start_at(first_ns);
    }
    test.hold_open_flow(incoming.key.take(), direction == Iperf2Direction::Reverse);
    let (report_sender, report_receiver) = mpsc::channel();
    let request = (server, settings);
    let spawned = start_flows(
        protocol,
        &client,
        &mut test,
        incoming,
        request,
        report_sender,
        wall_offset_ns,
    );
    test.conclude(spawned, || report_receiver.try_recv().unwrap_or_default());
}

/// Returns whether no flow starts with this datagram: it has no iperf2 header, or requests a flow
/// that its sender may not have. The end marker of an earlier flow opens none and is not logged.
pub fn rejects_flow(
    protocol: &'static str,
    interop: &InteropState,
    from: SocketAddr,
    datagram: &[u8],
) -> bool {
    let Some(server) = Iperf2UdpServer::open(datagram, 0) else {
        if read_header(datagram, false).is_none_or(|header| header.sequence >= 0) {
            let description = format!(
                "a datagram of {} B without a {protocol} header",
                datagram.len()
            );
            interop.log_short_flow(from, &description);
        }
        return true;
    };
    server.direction() != Iperf2Direction::Forward && !interop.check_validated(protocol, from)
}

fn start_flows(
    protocol: &'static str,
    accepted: &AcceptedClient,
    test: &mut TestRun,
    incoming: IncomingFlow,
    (server, settings): (Iperf2UdpServer, Option<Iperf2Settings>),
    report_sender: mpsc::Sender<RemoteReport>,
    wall_offset_ns: Nanos,
) -> Result<(), SessionError> {
    let IncomingFlow {
        socket,
        early_datagrams: mut early,
        ..
    } = incoming;
    let system = |error| SessionError::system("a second handle on a socket", error);
    let direction = server.direction();
    if direction != Iperf2Direction::Reverse {
        let receive_socket = socket.try_clone().map_err(system)?;
        let (state, source) = (accepted.server.clone(), (protocol, accepted.peer));
        // The first datagram is counted already.
        let (first_ns, first) = early.remove(0);
        let silence = test.timeouts().flow_silence;
        let mut flow = Iperf2Flow::new(server, wall_offset_ns, first_ns, silence);
        flow.delays = flow.server.delay_ns().map(|first| {
            let mut delays = OneWayDelays::new();
            delays.record(first);
            delays
        });
        let first_bytes = first.len() as u64;
        let has_reverse = settings
            .as_ref()
            .is_some_and(|settings| settings.dual == Some(DualTest::Sequential));
        let without_end_marker = settings.as_ref().is_some_and(|settings| settings.no_fin);
        test.spawn(
            1,
            FlowRole::Receiver,
            receive_socket,
            move |context, socket| {
                // The report passes the guard as any reply does: the client has sent far more by
                // then.
                let mut uncredited_bytes = first_bytes;
                let mut credit = SendCredit::default();
                let allow = |now, received_bytes, reply_bytes| {
                    let new_bytes = received_bytes + std::mem::take(&mut uncredited_bytes);
                    let interop = &state.interop;
                    interop.may_respond(&mut credit, now, source, new_bytes, reply_bytes)
                };
                let mut result = receive_datagrams(context, socket, early, &mut flow, allow);
                let end_ns = result.payload_times.map_or(first_ns, |(_, last)| last);
                result.payload_times = Some((first_ns, end_ns));
                result.responses = None;
                let delays = flow.delays.take();
                result.one_way_delays = delays.filter(|_| flow.server.stats().has_steady_clock());
                result.before_first = flow.server.stats().lost_before_first();
                // Without an end marker, silence is the end; then the reverse direction may start.
                if flow.timed_out && !(without_end_marker && has_reverse) {
                    // The client is gone, so nothing more is sent to it.
                    context.signals.end_sending();
                }
                if flow.timed_out && !without_end_marker {
                    result.failure = Some(FlowFailure::Idle(silence));
                }
                let _ = report_sender.send(flow.server.remote_report());
                result
            },
        )?;
    }
    let Some(settings) = settings else {
        return Ok(());
    };
    if direction != Iperf2Direction::Forward {
        let id = if direction == Iperf2Direction::Both {
            REVERSE_FLOW_ID
        } else {
            1
        };
        let send_plan = bounded_send_plan(test, &settings, accepted.peer);
        return test.spawn(id, FlowRole::Sender, socket, move |context, socket| {
            send_payload(
                context,
                socket,
                &send_plan,
                HEADER_BYTES,
                Some(&settings),
                wall_offset_ns,
            )
        });
    }
    let Some(dual) = settings.dual else {
        return Ok(());
    };
    if dual == DualTest::Sequential {
        test.wait_for_workers();
        if test.is_aborted() {
            return Ok(());
        }
        test.start_next_phase();
    }
    let to = with_port(accepted.peer, settings.port);
    let interop = &accepted.server.interop;
    let may_connect =
        || interop.may_connect_back(protocol, accepted.peer, settings.port, DUAL_ALTERNATIVE);
    if !interop.check_validated(protocol, accepted.peer) || !may_connect() {
        return Ok(());
    }
    let connect = || {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
        socket.connect(&SockAddr::from(to))?;
        Ok(socket)
    };
    let reverse_socket = connect().map_err(|error| SessionError::system("a second flow", error))?;
    let send_plan = bounded_send_plan(test, &settings, accepted.peer);
    test.spawn(
        REVERSE_FLOW_ID,
        FlowRole::Sender,
        reverse_socket,
        move |context, socket| {
            send_payload(
                context,
                socket,
                &send_plan,
                SETTINGS_BYTES,
                None,
                wall_offset_ns,
            )
        },
    )
}

/// Returns the send plan over UDP, and adds a caveat if it is shorter than requested.
fn bounded_send_plan(test: &mut TestRun, settings: &Iperf2Settings, peer: SocketAddr) -> SendPlan {
    let requested = requested_send_plan(settings, peer, test.limits());
    let (send_plan, is_time_limited) = limit_send_time(requested, clock::now());
    if is_time_limited {
        let seconds = send_time_limit_s();
        test.add_caveat(Caveat::new(
            CaveatId::CutShort,
            format!(
                "the server sends datagrams for at most {seconds} s to a client without a control connection, \
                 which would show that the client is still there (iperf3, nuttcp and our own client have one)"
            ),
        ));
    }
    send_plan
}

/// Returns the limit of the time that a client is sent datagrams, in seconds.
pub fn send_time_limit_s() -> u64 {
    SEND_TIME_LIMIT_NS / 1_000_000_000
}

/// Limits a send plan to [`SEND_TIME_LIMIT_NS`], and returns whether that ends it early.
pub fn limit_send_time(send_plan: SendPlan, now: Nanos) -> (SendPlan, bool) {
    let latest = now.saturating_add(SEND_TIME_LIMIT_NS);
    let is_time_limited = send_plan.planned_end_ns(now).is_none_or(|end| end > latest);
    (send_plan.end_by(latest), is_time_limited)
}

/// Returns the send plan of a client's request over UDP, within the limits; it always has a rate.
pub fn requested_send_plan(
    settings: &Iperf2Settings,
    peer: SocketAddr,
    limits: &InteropLimits,
) -> SendPlan {
    // A receiver that is silent does not hold up datagrams.
    let idle = Duration::MAX;
    let block = match peer.ip().to_canonical() {
        IpAddr::V4(_) => DATAGRAM_BYTES.0,
        IpAddr::V6(_) => DATAGRAM_BYTES.1,
    };
    let mut send_plan = send_plan(settings, block, idle, &InteropLimits::default());
    send_plan.block_bytes = send_plan.block_bytes.clamp(16, 65_507);
    // Legacy clients send the rate in the window field.
    let legacy_rate = settings
        .window
        .map(u64::from)
        .filter(|_| settings.version.is_none());
    send_plan.rate_bps = send_plan.rate_bps.or(legacy_rate).or(Some(RATE_BPS));
    send_plan.within_limits(limits, settings.flows)
}

/// Returns a datagram whose first `zeros` bytes are zero, for the number and time. For a client
/// that requests trip times, each datagram carries the start time.
pub fn build_payload(
    send_plan: &SendPlan,
    zeros: usize,
    settings: Option<&Iperf2Settings>,
    now: Nanos,
    wall_offset_ns: Nanos,
) -> Vec<u8> {
    let mut payload = vec![0; send_plan.block_bytes];
    if let Some(rest) = payload.get_mut(zeros..) {
        fill(rest);
    }
    if let Some(settings) = settings.filter(|settings| settings.trip_times) {
        let announced = Iperf2Settings {
            start_ns: Some(now.wrapping_add(wall_offset_ns)),
            // A receiving client only reads the forward direction.
            direction: match settings.direction {
                Iperf2Direction::Reverse => Iperf2Direction::Forward,
                direction => direction,
            },
            ..settings.clone()
        };
        if let Some(header) = payload.get_mut(HEADER_BYTES..announced.required_bytes(HEADER_BYTES))
        {
            header.fill(0);
            // Settings that a client sent can be written.
            let _ = announced.write(header, HEADER_BYTES);
        }
    }
    payload
}

/// Sends payload datagrams, and then end markers.
fn send_payload(
    context: &FlowWorkerContext,
    socket: &Socket,
    send_plan: &SendPlan,
    zeros: usize,
    settings: Option<&Iperf2Settings>,
    wall_offset_ns: Nanos,
) -> FlowWorkerResult {
    let mut payload = build_payload(send_plan, zeros, settings, clock::now(), wall_offset_ns);
    let mut end_markers = 0;
    send_datagrams(
        context,
        socket,
        send_plan,
        &mut payload,
        |datagram, number, now| write_number(datagram, number, now.wrapping_add(wall_offset_ns)),
        |datagram, sent, now| {
            write_end(datagram, sent, now.wrapping_add(wall_offset_ns));
            end_markers += 1;
            end_markers <= ENDS_WITHOUT_REPLY
        },
    )
}

/// Receiver of a client's datagrams.
pub struct Iperf2Flow {
    server: Iperf2UdpServer,
    /// Offset from our clock to the clock of the timestamps.
    wall_offset_ns: Nanos,
    last_ns: Nanos,
    /// Bytes of the first end marker.
    end_bytes: Option<u64>,
    /// Arrival time of the first end marker.
    first_end_ns: Option<Nanos>,
    /// One-way delays, where the client declares the clocks synchronised.
    delays: Option<OneWayDelays>,
    /// Report sent to the client at the end.
    report: Vec<u8>,
    /// Silence that ends a flow without an end marker: its client was killed, or never sends one.
    silence_ns: Nanos,
    /// True if silence ended the flow.
    timed_out: bool,
}

impl Iperf2Flow {
    /// Creates a flow whose first datagram arrived at `now`; `wall_offset_ns` is the offset from
    /// our clock to the time of day, and `silence` ends a flow without an end marker.
    #[must_use]
    pub fn new(
        server: Iperf2UdpServer,
        wall_offset_ns: Nanos,
        now: Nanos,
        silence: Duration,
    ) -> Self {
        Self {
            server,
            wall_offset_ns,
            last_ns: now,
            end_bytes: None,
            first_end_ns: None,
            delays: None,
            report: Vec::new(),
            silence_ns: silence.as_nanos() as Nanos,
            timed_out: false,
        }
    }

    /// Returns whether the client is gone: silent for too long, without an end marker.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.timed_out
    }
}

impl DatagramFlow for Iperf2Flow {
    #[inline]
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction {
        match self
            .server
            .receive(datagram, now.wrapping_add(self.wall_offset_ns))
        {
            Iperf2Datagram::Payload => {
                self.last_ns = now;
                if let (Some(delays), Some(delay)) = (&mut self.delays, self.server.delay_ns()) {
                    delays.record(delay);
                }
                DatagramAction::Payload
            }
            Iperf2Datagram::End => {
                let counted = self.server.direction() != Iperf2Direction::Reverse;
                let bytes = if counted { datagram.len() as u64 } else { 0 };
                self.end_bytes.get_or_insert(bytes);
                self.first_end_ns.get_or_insert(now);
                self.last_ns = now;
                // The report may be larger than this datagram, but not than the flow.
                let received_bytes =
                    usize::try_from(self.server.stats().bytes()).unwrap_or(usize::MAX);
                match self.server.reply(received_bytes) {
                    Some(report) => {
                        self.report.clear();
                        self.report.extend_from_slice(report);
                        DatagramAction::Reply
                    }
                    None => DatagramAction::Ignore,
                }
            }
            // Datagrams after the end marker are late.
            Iperf2Datagram::Unrelated
                if self.server.is_over() || self.server.direction() == Iperf2Direction::Reverse =>
            {
                DatagramAction::Ignore
            }
            _ => DatagramAction::Unparsed,
        }
    }

    fn reply(&self) -> &[u8] {
        &self.report
    }

    fn is_finished(&mut self, now: Nanos) -> bool {
        let silent = now.saturating_sub(self.last_ns);
        if self.server.is_over() {
            let since_end_ns = self
                .first_end_ns
                .map_or(0, |since_end_ns| now.saturating_sub(since_end_ns));
            return silent > QUIET_NS || since_end_ns > END_MARKERS_TIMEOUT_NS;
        }
        let is_gone = silent > self.silence_ns;
        if is_gone {
            self.server.give_up();
            self.timed_out = true;
        }
        is_gone
    }

    fn totals(&self) -> PayloadTotals {
        let tally = self.server.stats();
        // The end marker is not part of the payload.
        PayloadTotals {
            bytes: tally.bytes().saturating_sub(self.end_bytes.unwrap_or(0)),
            packets: tally
                .received()
                .saturating_sub(u64::from(self.end_bytes.is_some())),
            calls: 0,
            missing: tally.lost_since_first(),
            ..PayloadTotals::default()
        }
    }

    fn end_ns(&self) -> Option<Nanos> {
        self.first_end_ns
    }

    fn sequence_stats(&mut self) -> Option<SequenceStats> {
        let report = self.server.report();
        Some(SequenceStats {
            // Without those before the first one received; the report to the client includes them,
            // as reference servers do.
            lost: Some(self.server.stats().lost_since_first()),
            out_of_order: Some(report.out_of_order),
            duplicates: None,
            ipdv_ns: self.server.stats().ipdv_ns(),
        })
    }

    fn sends_replies(&self) -> bool {
        // Only to the end marker, whose arrival time does not matter.
        false
    }
}

#[cfg(test)]
mod tests {
    use linerate_protocol::iperf2::TestAmount;

    use super::*;
    use crate::timeouts::Timeouts;

    #[test]
    fn an_endlessly_repeated_end_still_ends_the_flow() {
        let ms = 1_000_000;
        let mut datagram = vec![0; 60];
        write_number(&mut datagram, 1, 1);
        let server = Iperf2UdpServer::open(&datagram, 0).unwrap();
        let mut flow = Iperf2Flow::new(server, 0, ms, Timeouts::DEFAULT.flow_silence);
        write_end(&mut datagram, 1, 1);
        let mut now = ms;
        let mut send_end = |flow: &mut Iperf2Flow| {
            flow.receive(now, &mut datagram.clone());
            now += 300 * ms;
            (flow.is_finished(now), now)
        };
        let over = loop {
            let (is_over, now) = send_end(&mut flow);
            if is_over {
                break now;
            }
            assert!(now < 10_000 * ms, "it never ends");
        };
        // Reference clients have their full time.
        assert!(over > END_MARKERS_TIMEOUT_NS && !flow.timed_out, "{over}");
    }

    #[test]
    fn the_end_marker_ends_the_time() {
        let ms = 1_000_000;
        let mut datagram = vec![0; 60];
        write_number(&mut datagram, 1, 1);
        let server = Iperf2UdpServer::open(&datagram, ms).unwrap();
        let mut flow = Iperf2Flow::new(server, 0, ms, Timeouts::DEFAULT.flow_silence);
        assert_eq!(flow.end_ns(), None);
        for at in [800, 810, 1_050] {
            write_end(&mut datagram, 100, 1);
            flow.receive(at * ms, &mut datagram);
        }
        assert_eq!(flow.end_ns(), Some(800 * ms));
        assert_eq!(flow.server.report().duration_ns, 799 * ms);
        assert_eq!(flow.totals().missing, 99);
        // The client's times never moved.
        assert_eq!(flow.sequence_stats().unwrap().ipdv_ns, None);
    }

    #[test]
    fn datagrams_of_an_unannounced_size_fit_a_packet() {
        for (peer, announced, bytes) in [
            ("10.0.0.1:5001", None, 1_470),
            ("[::ffff:10.0.0.1]:5001", None, 1_470),
            ("[fd00::1]:5001", None, 1_450),
            ("[fd00::1]:5001", Some(1_470), 1_470),
        ] {
            let settings = Iperf2Settings {
                buffer_bytes: announced,
                ..Iperf2Settings::default()
            };
            let limits = InteropLimits::default();
            let send_plan = requested_send_plan(&settings, peer.parse().unwrap(), &limits);
            assert_eq!(send_plan.block_bytes, bytes, "{peer} {announced:?}");
        }
    }

    #[test]
    fn datagrams_are_sent_no_longer_than_an_address_stays_validated() {
        let second = 1_000_000_000;
        for (amount, rate, is_time_limited) in [
            (None, None, true),
            (Some(TestAmount::Time(30 * second)), Some(u64::MAX), false),
            (Some(TestAmount::Time(61 * second)), None, true),
            // 248 days, the longest time in a header.
            (
                Some(TestAmount::Time(i32::MAX as u64 * 10_000_000)),
                None,
                true,
            ),
            (Some(TestAmount::Bytes(1_000_000)), Some(1_000_000), false),
            (Some(TestAmount::Bytes(u64::MAX)), Some(u64::MAX), false),
            (Some(TestAmount::Bytes(u64::MAX)), None, true),
        ] {
            let settings = Iperf2Settings {
                direction: Iperf2Direction::Reverse,
                amount,
                rate,
                ..Iperf2Settings::default()
            };
            let now = clock::now();
            let peer = SocketAddr::from(([10, 0, 0, 1], 5001));
            let (send_plan, limited) = limit_send_time(
                requested_send_plan(&settings, peer, &InteropLimits::default()),
                now,
            );
            assert_eq!(limited, is_time_limited, "{amount:?} at {rate:?}");
            assert!(
                send_plan.until_ns <= Some(now + SEND_TIME_LIMIT_NS),
                "{amount:?}"
            );
        }
    }
}
