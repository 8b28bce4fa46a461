//! Packets are lost on the way, and no queue of ours had them.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_count, format_nanos, format_share};

use super::congestion_loss::{FEW, QUEUED, dropped_in_view, held_by_congestion, mathis, selective};
use super::{of_ways, sent_again, tcp_info, within_headroom};
use crate::Rule;
use crate::case::{Case, STANDING_NS, Way, name, rate_word};
use crate::draft::Draft;

/// Share of the datagrams, or segments, from which loss matters.
const MATTERS: f64 = 0.0005;

/// Share of our own stack's segments from which it matters: it takes late acknowledgements for loss as well.
const OFTEN: f64 = 0.005;

/// Share of the mean round trip above the median from which segments sent again matter, and share of the time spent
/// waiting for answers that did not come.
const WAITS: f64 = 0.1;

/// Segments of questions and answers sent again from which it is no accident.
const TIMED_OUT: u64 = 2;

/// Share of the time that a polling stack waits for a processor from which its ring runs over.
pub(super) const IN_LINE: f64 = 0.3;

/// See docs/CAUSES.md#path-loss.
pub struct PathLoss;

impl Rule for PathLoss {
    fn id(&self) -> &'static str {
        "path-loss"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let mut found = of_ways(case, |way| self.of_tcp(case, way).or_else(|| self.of_own_stack(case, way)), |way| self.of_udp(case, way));
        found.extend(self.of_questions(case).or_else(|| self.of_asking_streams(case)));
        found
    }
}

impl PathLoss {
    fn of_tcp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let unseen = way.unseen_loss()?;
        let loss = unseen.share;
        // A queue out of view may have dropped them: one that stands, and is longer than those of the ends.
        let queue = tcp.queueing() >= QUEUED && tcp.rtt_ns - tcp.min_rtt_ns > STANDING_NS;
        if queue && !way.is_in_view() || way.fills_path() || super::is_paced(case) && super::kept_its_rate(case) {
            return None;
        }
        let heeds = way.heeds_loss();
        // Few losses that came together cut a window once, and it has grown far beyond what they would leave.
        if heeds && !way.is_cut_by(&tcp, loss) {
            return None;
        }
        let flows = way.streams().len().max(1);
        // One that does not heed loss still makes good for each, and nothing behind it is handed on meanwhile.
        let repairs = unseen.segments as f64 * tcp.rtt_ns / flows as f64 / (way.seconds() * 1e9).max(1.0);
        let cost = match heeds {
            true => held_by_congestion(&tcp),
            false => repairs.max(loss),
        };
        let allowed = mathis(&tcp, loss, flows);
        let control = way.congestion_control();
        let mut draft = Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(cost.min(0.95))
            .says(match heeds {
                true => format!(
                    "{} of the segments were lost on the way, and no counter in view has them: a congestion control that takes loss for congestion gets about {} out of such a path",
                    format_share(loss),
                    format_bit_rate(allowed)
                ),
                false => format!(
                    "{} of the segments were lost on the way, and no counter in view has them; {} does not take that for congestion, and what comes behind each waits for a round trip",
                    format_share(loss),
                    control.unwrap_or("the sender")
                ),
            });
        draft = sent_again(draft, way.sender, &tcp)
            .seen("tcpi_snd_cwnd", tcp.cwnd_bytes.round(), "B", tcp_info(way.sender))
            .seen("drops on the way", dropped_in_view(case), "packets", "counters of both ends")
            .tried(control.map(|name| format!("congestion control {name}")));
        let draft = match (heeds, case.is_own_stack(way.sender)) {
            (true, own) => draft
                .seen("Mathis", allowed, "bit/s", "from MSS, RTT and loss")
                .remedy("find who loses them: cables, a full device on the way, radio; until then a congestion control that does not take loss for congestion")
                .command(match (own, case.is_own_stack(way.receiver)) {
                    (true, _) => ignoring_loss(case, way),
                    // The client asks for both ends with one word, which our stack must know too.
                    (false, true) => datagrams(case, way),
                    (false, false) => case.again("-C bbr"),
                })
                .gain(
                    within_headroom(way, 1.0 / (1.0 - cost).max(0.01)),
                    "Mathis: MSS / RTT * 1.22 / sqrt(loss) is the limit now; without loss it is the next one",
                ),
            (false, _) => draft
                .remedy("find who loses them: cables, a full device on the way, radio; datagrams of a rate tell whether it is load")
                .command(datagrams(case, way)),
        };
        selective(draft, case, way, &tcp).found()
    }

    /// Our own stack sends, and counts what it sent again.
    fn of_own_stack(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let (sent, again) = way.sent_by_own_stack()?;
        let share = again as f64 / sent.max(1) as f64;
        // Where our own stack receives as well its ring is in view.
        let dropped = dropped_in_view(case) + way.ring_was_full() + way.too_long_at_port();
        if share < OFTEN || again < FEW || dropped >= again / 2 || way.fills_path() {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost((share.sqrt() * 3.0).min(0.95))
            .says(format!(
                "our stack sent {} of {} segments again, and no counter in view dropped them",
                format_count(again),
                format_count(sent)
            ))
            .seen("retransmitted_segments", again, "segments", format!("{} stack", name(way.sender)))
            .seen("out_segments", sent, "segments", format!("{} stack", name(way.sender)))
            .seen("drops on the way", dropped, "packets", "counters of both ends")
            .remedy("find who loses them: cables, a full device on the way, radio; until then a congestion control that does not take loss for congestion")
            .command(match way.heeds_loss() {
                true => ignoring_loss(case, way),
                false => datagrams(case, way),
            })
            .tried(way.congestion_control().map(|name| format!("congestion control {name}")))
            .found()
    }

    fn of_udp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let lost = way.lost_at("path");
        let share = way.lost_share("path");
        // What our own stack's ring had no room for has a counter, which is read before and after, and not at once: a few of
        // them are on the path (in records of older versions all of them are).
        let (full, at_port) = (way.ring_was_full(), way.lost_at("interface-rx"));
        let in_ring = full >= FEW && full >= (lost + at_port) / 2;
        if share < MATTERS || lost < 3 || in_ring || way.fills_path() || way.goodput()? <= 0.0 {
            return None;
        }
        // Whoever polls a port and waits for a processor lets its ring run over: that is no path.
        let late = way.time(CountedAt::Receiver).is_some_and(|time| time.runnable > IN_LINE);
        if way.is_own_stack(way.receiver) && late {
            return None;
        }
        let summary = way.summary();
        if summary.loss_fraction.is_some_and(|loss| loss > 0.99) {
            return None;
        }
        // What another program's socket had no room for nobody tells.
        let guest = case.is_of_a_guest();
        let other = if guest { Role::Client } else { Role::Server };
        if case.far_is_foreign() && way.receiver == other {
            let (whose, ours, command) = match guest {
                true => ("its own report", "measure with `linerate` there, which tells", case.again("")),
                false => ("the far program's report", "run `linerate server` there, which tells", "linerate server".to_owned()),
            };
            return Draft::unknown(self.id(), End::Path)
                .way(way.direction)
                .says(format!(
                    "whether {} datagrams ({}) were lost on the way, or in the {} program's socket, is not known",
                    format_count(lost),
                    format_share(share),
                    if guest { "client's" } else { "far" }
                ))
                .seen("lost", lost, "datagrams", whose)
                .missing(
                    "drops of the far socket",
                    &format!("{} SO_MEMINFO", name(other)),
                    "that end is another program, which does not tell",
                )
                .remedy(ours)
                .command(command)
                .found();
        }
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{} datagrams ({}) left the {} and reached no counter of the {}",
                format_count(lost),
                format_share(share),
                name(way.sender),
                name(way.receiver)
            ))
            .seen("losses[path]", lost, "datagrams", "numbers missing at the receiver, less what counters have")
            .seen_if("loss_fraction", summary.loss_fraction, "share", "receiver")
            .remedy("find who loses them: cables, a full device on the way, radio; a lower rate tells whether it is load")
            // What is lost at random is lost at every rate: a search for one without loss finds none.
            .command(case.again_without(
                &["pps"],
                &format!("-b {}", rate_word(0.5 * way.goodput()? / way.streams().len().max(1) as f64)),
            ))
            .gain(Some(1.0 / (1.0 - share).max(0.01)), "1 / (1 - loss)")
            .found()
    }

    fn of_questions(&self, case: &Case<'_>) -> Option<Finding> {
        let summary = &case.record.summary;
        if !case.is_latency() || case.plan.protocol != Protocol::Udp {
            return None;
        }
        let (missed, done) = (summary.lost?, summary.round_trips?);
        // What came after its time was not lost. With several questions open at a time it is not told
        // from what came in another order.
        let late = match case.plan.round_trip.is_open() {
            true => 0,
            false => summary.out_of_order.unwrap_or(0).min(missed),
        };
        let lost = missed - late;
        let share = lost as f64 / (lost + done).max(1) as f64;
        // Who asks one at a time waits for each until it is given up.
        let flows = case.plan.streams.max(1) as f64;
        let waited = match case.plan.round_trip.is_open() {
            true => 0.0,
            false => lost as f64 * case.plan.answer_timeout_ns.unwrap_or(1_000_000_000) as f64 / flows / summary.duration_ns.unwrap_or(u64::MAX) as f64,
        };
        if lost == 0 || waited < WAITS && (share < MATTERS || lost < 3) {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .cost(share.max(waited.min(0.95)))
            .says(match waited >= WAITS {
                true => format!(
                    "{} questions stayed without an answer, and were waited for during {} of the time",
                    format_count(lost),
                    format_share(waited.min(1.0))
                ),
                false => format!("{} questions stayed without an answer", format_count(lost)),
            })
            .seen("lost", missed, "round trips", "client")
            .seen_if("out_of_order", (late > 0).then_some(late), "answers after their time", "client")
            .seen("round_trips", done, "round trips", "client")
            .remedy("send datagrams one way to see where they are lost")
            .command(case.one_way("-b 10M"))
            .found()
    }

    /// Questions over TCP: what is lost is sent again, and the answer waits for it.
    fn of_asking_streams(&self, case: &Case<'_>) -> Option<Finding> {
        let summary = &case.record.summary;
        if !case.is_latency() || case.plan.protocol != Protocol::Tcp {
            return None;
        }
        let (again, done, rtt) = (summary.retransmits?, summary.round_trips?, summary.rtt_ns?);
        // Where all had arrived already, at either end, answers were late and nothing was lost. Some had where it was the
        // answer that got lost. An end that tells nothing may have sent the rest.
        let streams = case.ways.iter().flat_map(Way::streams);
        let sockets = streams.flat_map(|stream| [stream.sender.as_ref(), stream.receiver.as_ref()]);
        let told = sockets.map(|socket| {
            let tcp = socket?.tcp.as_ref()?;
            Some((tcp.retransmits, tcp.spurious_retransmits?))
        });
        let told: Option<Vec<(u64, u64)>> = told.collect();
        let all_came = |told: Vec<(u64, u64)>| {
            let mut again = told.into_iter().filter(|(again, _)| *again > 0).peekable();
            again.peek().is_some() && again.all(|(again, spurious)| spurious >= again)
        };
        if told.is_some_and(all_came) {
            return None;
        }
        // A question and its answer are a segment each, and more where they are long.
        let share = again as f64 / (2 * done).max(1) as f64;
        // What waits for segments stands far above the median, and so in the mean.
        let cost = 1.0 - rtt.p50 as f64 / rtt.mean.max(1.0);
        // A time-out takes 200 ms at least: few of them are much of a run.
        if again < TIMED_OUT || share < MATTERS || cost < WAITS {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .cost(cost.min(0.95))
            .says(format!(
                "{} segments of questions and answers were sent again, and these round trips waited for that: {} on average, where half take {} or less",
                format_count(again),
                format_nanos(rtt.mean),
                format_nanos(rtt.p50 as f64)
            ))
            .seen("retransmits", again, "segments", "TCP_INFO of both ends")
            .seen("round_trips", done, "round trips", "client")
            .seen("rtt_ns.mean", rtt.mean.round(), "ns", "client")
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen("drops on the way", dropped_in_view(case), "packets", "counters of both ends")
            .remedy("find who loses them: cables, a full device on the way, radio; `--limit` lists the round trips that waited")
            .command(case.one_way("-u -b 10M"))
            .gain(Some(1.0 / (1.0 - cost).max(0.01)), "mean over p50: no round trip waits for a segment")
            .found()
    }
}

/// Our own stack without a congestion control. By its key: `-C` asks for that of both ends, and a kernel has none.
fn ignoring_loss(case: &Case<'_>, way: &Way<'_>) -> String {
    case.again_with_key(way.sender, "tcp.congestion_control", "none")
}

/// The same path with datagrams, at half of the rate: whether it loses as much of them.
fn datagrams(case: &Case<'_>, way: &Way<'_>) -> String {
    match case.far_is_foreign() {
        true => case.again(""),
        false => {
            let rate = rate_word(0.5 * way.goodput().unwrap_or(2e7));
            case.again_without(&["congestion", "no-delay", "mss", "rcvlowat", "pacing"], &format!("-u -b {rate}"))
        }
    }
}
