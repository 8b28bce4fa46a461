//! UDP flows of iperf2.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use linerate_dialect::amplification_guard::{Leave, PROOF_NS, Refusal};
use linerate_dialect::iperf2::datagram::{
    HEADER_BYTES, UNANSWERED_ENDS, read_header, write_end, write_number,
};
use linerate_dialect::iperf2::{Dual, Heard, QUIET_NS, Settings, UdpServer, Way, fill};
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::Protocol;
use linerate_metric::record::Doubt;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::limits::Limits;
use super::super::short_flow::goes_on;
use super::super::test_run::{FLOW_SILENCE, Test};
use super::super::worker::{
    Broke, Context, Datagrams, Delays, Moved, Numbers, Sending, Take, receive_datagrams,
    send_datagrams,
};
use super::super::{Caller, Hall, at_port};
use super::{BACK, OTHERWISE, agent, plan, sending};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::session::server_state::Claim;
use crate::session::udp_demux::Arrived;

/// Silence that ends a flow without an end marker: its client was killed, or never sends one. A
/// client that is stopped for ten seconds goes on with its flow.
const SILENCE_NS: Nanos = FLOW_SILENCE.as_nanos() as Nanos;

/// Time for the second datagram of an unvalidated client, whose first one may be forged. Datagrams
/// of the usual size arrive within it from 6 kb/s on.
const SECOND_NS: Nanos = 2_000_000_000;

/// Time a client may repeat its end marker: it has its report by then, or never receives it (iperf
/// 2.0 repeats for 2.5 s).
const ENDS_NS: Nanos = 4_000_000_000;

/// Limit of the time that a client is sent datagrams. It has no connection that would show that it
/// is still there, and a forger of its address could request any time. So the limit is the time for
/// which an address stays validated.
const SENDING_NS: Nanos = PROOF_NS;

/// Bytes of a datagram where the client announces none: the default of reference servers.
const DATAGRAM_BYTES: usize = 1470;

/// Rate where the client announces none.
const RATE_BPS: u64 = 1 << 20;

/// Bytes at the start of a datagram in which a client's own server looks for settings.
pub const SETTINGS_BYTES: usize = 128;

/// Handles a flow.
pub fn serve(dialect: &'static str, mut caller: Caller, claim: Claim, mut arrived: Arrived) {
    let Some((first_ns, first)) = arrived.early.first() else {
        return;
    };
    let first_ns = *first_ns;
    let wall = clock::real().wrapping_sub(clock::now());
    // The end marker of an earlier flow opens none.
    let Some(server) = UdpServer::open(first, first_ns.wrapping_add(wall)) else {
        return;
    };
    let settings = server.settings().cloned();
    let way = server.way();
    // A client that requests a reverse flow may send a single datagram.
    let patience = match (way, &caller.stranger) {
        (_, Some(_)) => Some(SECOND_NS),
        (Way::Forward, None) => Some(SILENCE_NS),
        (Way::Reverse | Way::Both, None) => None,
    };
    if patience.is_some_and(|patience| !goes_on(&caller, &arrived, patience)) {
        return;
    }
    let mut plan = plan(&caller, Protocol::Udp, settings.as_ref());
    if plan.payload_bytes == 0 {
        plan.payload_bytes = arrived.largest();
    }
    let agent = settings.as_ref().map_or("iperf 2.0".to_owned(), agent);
    let test = Test::begin(&mut caller, claim, dialect, &agent, plan);
    let mut test = test.ending_by_silence();
    test.with_numbers(true);
    if way != Way::Reverse {
        test.takes_size_from_payload();
    }
    if way == Way::Forward {
        test.start_at(first_ns);
    }
    test.keep(arrived.key.take(), way == Way::Reverse);
    let (tell, told) = mpsc::channel();
    let asked = (server, settings);
    let spawned = run(dialect, &caller, &mut test, arrived, asked, tell, wall);
    test.conclude(spawned, || told.try_recv().unwrap_or_default());
}

/// Returns whether no flow starts with this datagram: it has no iperf2 header, or requests a flow
/// that its sender may not have. The end marker of an earlier flow opens none and is not logged.
pub fn turns_away(dialect: &'static str, hall: &Hall, from: SocketAddr, datagram: &[u8]) -> bool {
    let Some(server) = UdpServer::open(datagram, 0) else {
        if read_header(datagram, false).is_none_or(|header| header.sequence >= 0) {
            let what = format!(
                "a datagram of {} B without a {dialect} header",
                datagram.len()
            );
            hall.refuse_crumbs(from, &what);
        }
        return true;
    };
    server.way() != Way::Forward && !is_known(dialect, hall, from)
}

/// Returns whether payload may be sent to an address that has only sent UDP; a rejection is logged.
fn is_known(dialect: &'static str, hall: &Hall, from: SocketAddr) -> bool {
    let address = from.ip();
    let known = hall.is_known(address);
    if !known {
        hall.refuse_answer(dialect, from, Refusal::Unproved { address });
    }
    known
}

fn run(
    dialect: &'static str,
    caller: &Caller,
    test: &mut Test,
    arrived: Arrived,
    (server, settings): (UdpServer, Option<Settings>),
    tell: mpsc::Sender<FarReport>,
    wall: Nanos,
) -> Result<(), MeasureError> {
    let Arrived {
        socket, mut early, ..
    } = arrived;
    let system = |error| MeasureError::system("a second handle on a socket", error);
    let way = server.way();
    if way != Way::Reverse {
        let own = socket.try_clone().map_err(system)?;
        let (house, client) = (caller.house.clone(), (dialect, caller.peer));
        // The first datagram is counted already.
        let (first_ns, first) = early.remove(0);
        let mut flow = Flow::new(server, wall, first_ns);
        flow.delays = flow.server.delay_ns().map(|first| {
            let mut delays = Delays::new();
            delays.take(first);
            delays
        });
        let first_bytes = first.len() as u64;
        let goes_back = settings
            .as_ref()
            .is_some_and(|settings| settings.dual == Some(Dual::After));
        let says_no_end = settings.as_ref().is_some_and(|settings| settings.no_fin);
        test.spawn(1, Part::Sink, own, move |context, socket| {
            // The report passes the guard as any reply does: the client has sent far more by then.
            let mut unsaid = first_bytes;
            let mut leave = Leave::default();
            let allow = |now, received, answer| {
                let came = received + std::mem::take(&mut unsaid);
                let hall = &house.hall;
                hall.may_answer(&mut leave, now, client, came, answer)
            };
            let mut moved = receive_datagrams(context, socket, early, &mut flow, allow);
            let span = moved.span.map_or(first_ns, |(_, last)| last);
            moved.span = Some((first_ns, span));
            moved.answered = None;
            moved.delays = flow.delays.take();
            moved.before = flow.server.tally().before();
            // Without an end marker, silence is the end; then the reverse direction may start.
            if flow.went_silent && !(says_no_end && goes_back) {
                // The client is gone, so nothing more is sent to it.
                context.signals.end();
            }
            if flow.went_silent && !says_no_end {
                moved.broke = Some(Broke::Silent(Duration::from_nanos(SILENCE_NS)));
            }
            let _ = tell.send(flow.server.far_report());
            moved
        })?;
    }
    let Some(settings) = settings else {
        return Ok(());
    };
    if way != Way::Forward {
        let id = if way == Way::Both { BACK } else { 1 };
        let sending = datagrams(test, &settings);
        return test.spawn(id, Part::Source, socket, move |context, socket| {
            send(
                context,
                socket,
                &sending,
                HEADER_BYTES,
                Some(&settings),
                wall,
            )
        });
    }
    let Some(dual) = settings.dual else {
        return Ok(());
    };
    if dual == Dual::After {
        test.run_lanes();
        if test.is_cut() {
            return Ok(());
        }
        test.next_part();
    }
    let to = at_port(caller.peer, settings.port);
    let hall = &caller.house.hall;
    let may = || hall.may_connect_back(dialect, caller.peer, settings.port, OTHERWISE);
    if !is_known(dialect, hall, caller.peer) || !may() {
        return Ok(());
    }
    let connect = || {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
        socket.connect(&SockAddr::from(to))?;
        Ok(socket)
    };
    let back = connect().map_err(|error| MeasureError::system("a second flow", error))?;
    let sending = datagrams(test, &settings);
    test.spawn(BACK, Part::Source, back, move |context, socket| {
        send(context, socket, &sending, SETTINGS_BYTES, None, wall)
    })
}

/// Returns the send plan over UDP, and adds a caveat if it is shorter than requested.
fn datagrams(test: &mut Test, settings: &Settings) -> Sending {
    let asked = asked(settings, test.limits());
    let (sending, is_cut) = bounded(asked, clock::now());
    if is_cut {
        let seconds = SENDING_NS / 1_000_000_000;
        test.doubt(Doubt::new(
            "cut-short",
            format!(
                "the server sends datagrams for at most {seconds} s to a client without a control connection, \
                 which would show that the client is still there (iperf3, nuttcp and our own client have one)"
            ),
        ));
    }
    sending
}

/// Limits a send plan to [`SENDING_NS`], and returns whether that ends it early.
pub fn bounded(asked: Sending, now: Nanos) -> (Sending, bool) {
    let latest = now.saturating_add(SENDING_NS);
    let is_cut = asked.ends_ns(now).is_none_or(|end| end > latest);
    (asked.until(latest), is_cut)
}

/// Returns the send plan of a client's request over UDP, within the limits; it always has a rate.
pub fn asked(settings: &Settings, limits: &Limits) -> Sending {
    let mut sending = sending(settings, DATAGRAM_BYTES, &Limits::default());
    sending.block_bytes = sending.block_bytes.clamp(16, 65_507);
    // Legacy clients send the rate in the window field.
    let old = settings
        .window
        .map(u64::from)
        .filter(|_| settings.version.is_none());
    sending.rate_bps = sending.rate_bps.or(old).or(Some(RATE_BPS));
    sending.within(limits, settings.flows)
}

/// Returns a datagram whose first `zeros` bytes are zero, for the number and time. For a client
/// that requests trip times, each datagram carries the start time.
pub fn payload(
    sending: &Sending,
    zeros: usize,
    asked: Option<&Settings>,
    now: Nanos,
    wall: Nanos,
) -> Vec<u8> {
    let mut payload = vec![0; sending.block_bytes];
    if let Some(rest) = payload.get_mut(zeros..) {
        fill(rest);
    }
    if let Some(asked) = asked.filter(|asked| asked.trip_times) {
        let told = Settings {
            start_ns: Some(now.wrapping_add(wall)),
            // A receiving client only reads the forward direction.
            way: match asked.way {
                Way::Reverse => Way::Forward,
                way => way,
            },
            ..asked.clone()
        };
        if let Some(room) = payload.get_mut(HEADER_BYTES..told.room_bytes(HEADER_BYTES)) {
            room.fill(0);
            // Settings that a client sent can be written.
            let _ = told.write(room, HEADER_BYTES);
        }
    }
    payload
}

/// Sends payload datagrams, and then end markers.
fn send(
    context: &Context,
    socket: &Socket,
    sending: &Sending,
    zeros: usize,
    asked: Option<&Settings>,
    wall: Nanos,
) -> Moved {
    let mut payload = payload(sending, zeros, asked, clock::now(), wall);
    let mut ends = 0;
    send_datagrams(
        context,
        socket,
        sending,
        &mut payload,
        |datagram, number, now| write_number(datagram, number, now.wrapping_add(wall)),
        |datagram, sent, now| {
            write_end(datagram, sent, now.wrapping_add(wall));
            ends += 1;
            ends <= UNANSWERED_ENDS
        },
    )
}

/// Receiver of a client's datagrams.
pub struct Flow {
    server: UdpServer,
    /// Offset from our clock to the clock of the timestamps.
    wall: Nanos,
    last_ns: Nanos,
    /// Bytes of the first end marker.
    end_bytes: Option<u64>,
    /// Arrival time of the first end marker.
    ended_ns: Option<Nanos>,
    /// One-way delays, where the client declares the clocks synchronised.
    delays: Option<Delays>,
    /// Report sent to the client at the end.
    report: Vec<u8>,
    /// True if silence ended the flow.
    went_silent: bool,
}

impl Flow {
    /// Creates a flow whose first datagram arrived at `now`; `wall_offset_ns` is the offset from
    /// our clock to the time of day.
    #[must_use]
    pub fn new(server: UdpServer, wall: Nanos, now: Nanos) -> Self {
        Self {
            server,
            wall,
            last_ns: now,
            end_bytes: None,
            ended_ns: None,
            delays: None,
            report: Vec::new(),
            went_silent: false,
        }
    }

    /// Returns whether the client is gone: silent for too long, without an end marker.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.went_silent
    }
}

impl Datagrams for Flow {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        match self.server.receive(datagram, now.wrapping_add(self.wall)) {
            Heard::Payload => {
                self.last_ns = now;
                if let (Some(delays), Some(delay)) = (&mut self.delays, self.server.delay_ns()) {
                    delays.take(delay);
                }
                Take::Payload
            }
            Heard::End => {
                let counted = self.server.way() != Way::Reverse;
                let bytes = if counted { datagram.len() as u64 } else { 0 };
                self.end_bytes.get_or_insert(bytes);
                self.ended_ns.get_or_insert(now);
                self.last_ns = now;
                // The report may be larger than this datagram, but not than the flow.
                let came = usize::try_from(self.server.tally().bytes()).unwrap_or(usize::MAX);
                match self.server.answer(came) {
                    Some(report) => {
                        self.report.clear();
                        self.report.extend_from_slice(report);
                        Take::Reply
                    }
                    None => Take::Other,
                }
            }
            // Datagrams after the end marker are late.
            Heard::Stray if self.server.is_over() || self.server.way() == Way::Reverse => {
                Take::Other
            }
            _ => Take::Unread,
        }
    }

    fn reply(&self) -> &[u8] {
        &self.report
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        let silent = now.saturating_sub(self.last_ns);
        if self.server.is_over() {
            let ended = self.ended_ns.map_or(0, |ended| now.saturating_sub(ended));
            return silent > QUIET_NS || ended > ENDS_NS;
        }
        let gone = silent > SILENCE_NS;
        if gone {
            self.server.give_up();
            self.went_silent = true;
        }
        gone
    }

    fn totals(&self) -> Totals {
        let tally = self.server.tally();
        // The end marker is not part of the payload.
        Totals {
            bytes: tally.bytes().saturating_sub(self.end_bytes.unwrap_or(0)),
            packets: tally
                .arrived()
                .saturating_sub(u64::from(self.end_bytes.is_some())),
            calls: 0,
            missing: tally.lost_since_first(),
            ..Totals::default()
        }
    }

    fn numbers(&mut self) -> Option<Numbers> {
        let report = self.server.report();
        Some(Numbers {
            // Without those before the first one received; the report to the client includes them,
            // as reference servers do.
            lost: Some(self.server.tally().lost_since_first()),
            out_of_order: Some(report.out_of_order),
            duplicates: None,
            // Jitter takes two datagrams.
            ipdv_ns: (self.totals().packets > 1).then_some(report.ipdv_ns as f64),
        })
    }

    fn answers(&self) -> bool {
        // Only to the end marker, whose arrival time does not matter.
        false
    }
}

#[cfg(test)]
mod tests {
    use linerate_dialect::iperf2::Amount;

    use super::*;

    #[test]
    fn an_end_that_is_said_for_ever_is_one_all_the_same() {
        let ms = 1_000_000;
        let mut datagram = vec![0; 60];
        write_number(&mut datagram, 1, 1);
        let mut flow = Flow::new(UdpServer::open(&datagram, 0).unwrap(), 0, ms);
        write_end(&mut datagram, 1, 1);
        let mut now = ms;
        let mut says = |flow: &mut Flow| {
            flow.take(now, &mut datagram.clone());
            now += 300 * ms;
            (flow.is_over(now), now)
        };
        let over = loop {
            let (is_over, now) = says(&mut flow);
            if is_over {
                break now;
            }
            assert!(now < 10_000 * ms, "it never ends");
        };
        // Reference clients have their full time.
        assert!(over > ENDS_NS && !flow.went_silent, "{over}");
    }

    #[test]
    fn nobody_is_sent_datagrams_for_longer_than_the_proof_of_his_address_holds() {
        let second = 1_000_000_000;
        for (amount, rate, is_cut) in [
            (None, None, true),
            (Some(Amount::Time(30 * second)), Some(u64::MAX), false),
            (Some(Amount::Time(61 * second)), None, true),
            // 248 days, the longest time in a header.
            (Some(Amount::Time(i32::MAX as u64 * 10_000_000)), None, true),
            (Some(Amount::Bytes(1_000_000)), Some(1_000_000), false),
            (Some(Amount::Bytes(u64::MAX)), Some(u64::MAX), false),
            (Some(Amount::Bytes(u64::MAX)), None, true),
        ] {
            let settings = Settings {
                way: Way::Reverse,
                amount,
                rate,
                ..Settings::default()
            };
            let now = clock::now();
            let (sending, cut) = bounded(asked(&settings, &Limits::default()), now);
            assert_eq!(cut, is_cut, "{amount:?} at {rate:?}");
            assert!(sending.until_ns <= Some(now + SENDING_NS), "{amount:?}");
        }
    }
}
