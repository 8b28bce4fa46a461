//! Packets are lost on the path without a trace in any counter.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_count, format_nanos, format_share};

use super::congestion_loss::{FEW, QUEUED, dropped_in_view, held_by_congestion, mathis, selective};
use super::{of_ways, sent_again, tcp_info, within_headroom};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, STANDING_NS, Way, name, rate_word};

/// Smallest share of lost datagrams or segments that matters.
const MATTERS: f64 = 0.0005;

/// Smallest share of our stack's retransmits that matters: the stack also retransmits after late
/// acknowledgements.
const OFTEN: f64 = 0.005;

/// Smallest excess of the mean round trip over the median at which retransmits matter, and smallest
/// share of the time spent waiting for missing responses.
const WAITS: f64 = 0.1;

/// Fewest retransmitted segments of requests and responses; fewer are noise.
const TIMED_OUT: u64 = 2;

/// Share of the time that a polling stack waits for a core from which its ring overflows.
pub(super) const IN_LINE: f64 = 0.3;

/// See docs/CAUSES.md#path-loss.
pub struct PathLoss;

impl Rule for PathLoss {
    fn id(&self) -> &'static str {
        "path-loss"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let mut found = of_ways(
            case,
            |way| {
                self.of_tcp(case, way)
                    .or_else(|| self.of_own_stack(case, way))
            },
            |way| self.of_udp(case, way),
        );
        found.extend(
            self.of_questions(case)
                .or_else(|| self.of_asking_streams(case)),
        );
        found
    }
}

impl PathLoss {
    fn of_tcp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let unseen = way.unseen_loss()?;
        let loss = unseen.share;
        // A hidden standing queue that is longer than those of the ends may have dropped them.
        let queue = tcp.queueing() >= QUEUED && tcp.rtt_ns - tcp.min_rtt_ns > STANDING_NS;
        if queue && !way.is_in_view()
            || way.fills_path()
            || super::is_paced(case) && super::kept_its_rate(case)
        {
            return None;
        }
        let heeds = way.heeds_loss();
        // A few losses at once reduce the window once, and it has grown far beyond their limit
        // since.
        if heeds && !way.is_cut_by(&tcp, loss) {
            return None;
        }
        let flows = way.streams().len().max(1);
        // A congestion control that ignores loss still repairs each one, and delivery waits for the
        // repair.
        let repairs =
            unseen.segments as f64 * tcp.rtt_ns / flows as f64 / (way.seconds() * 1e9).max(1.0);
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
                    "{} of the segments were lost on the path, in no visible counter: a \
                     loss-based congestion control reaches about {} on such a path",
                    format_share(loss),
                    format_bit_rate(allowed)
                ),
                false => format!(
                    "{} of the segments were lost on the path, in no visible counter; {} does not \
                     reduce its rate, but data after each loss waits for one round trip",
                    format_share(loss),
                    control.unwrap_or("the sender")
                ),
            });
        draft = sent_again(draft, way.sender, &tcp)
            .seen(
                "tcpi_snd_cwnd",
                tcp.cwnd_bytes.round(),
                "B",
                tcp_info(way.sender),
            )
            .seen(
                "drops on the path",
                dropped_in_view(case),
                "packets",
                "counters of both ends",
            )
            .tried(control.map(|name| format!("congestion control {name}")));
        let draft = match (heeds, case.is_own_stack(way.sender)) {
            (true, own) => draft
                .seen("Mathis", allowed, "bit/s", "from MSS, RTT and loss")
                .remedy(
                    "find the cause of the loss: cables, an overloaded device on the path, radio; \
                     until then use a congestion control that ignores loss",
                )
                .command(match (own, case.is_own_stack(way.receiver)) {
                    (true, _) => ignoring_loss(case, way),
                    // The `-C` option of the client applies to both ends, and our stack would have
                    // to support it.
                    (false, true) => datagrams(case, way),
                    (false, false) => case.again("-C bbr"),
                })
                .gain(
                    within_headroom(way, 1.0 / (1.0 - cost).max(0.01)),
                    "Mathis: MSS / RTT * 1.22 / sqrt(loss) is the current limit; without loss the \
                     next limit applies",
                ),
            (false, _) => draft
                .remedy(
                    "find the cause of the loss: cables, an overloaded device on the path, radio; \
                     UDP at a fixed rate shows whether load is the cause",
                )
                .command(datagrams(case, way)),
        };
        selective(draft, case, way, &tcp).found()
    }

    /// Our stack sends, and counts its retransmits.
    fn of_own_stack(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let (sent, again) = way.sent_by_own_stack()?;
        let share = again as f64 / sent.max(1) as f64;
        // If our stack receives as well, drops of its ring are counted.
        let dropped = dropped_in_view(case) + way.ring_was_full() + way.too_long_at_port();
        if share < OFTEN || again < FEW || dropped >= again / 2 || way.fills_path() {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost((share.sqrt() * 3.0).min(0.95))
            .says(format!(
                "our stack retransmitted {} of {} segments, and no visible counter dropped them",
                format_count(again),
                format_count(sent)
            ))
            .seen(
                "retransmitted_segments",
                again,
                "segments",
                format!("{} stack", name(way.sender)),
            )
            .seen(
                "out_segments",
                sent,
                "segments",
                format!("{} stack", name(way.sender)),
            )
            .seen(
                "drops on the path",
                dropped,
                "packets",
                "counters of both ends",
            )
            .remedy(
                "find the cause of the loss: cables, an overloaded device on the path, radio; \
                 until then use a congestion control that ignores loss",
            )
            .command(match way.heeds_loss() {
                true => ignoring_loss(case, way),
                false => datagrams(case, way),
            })
            .tried(
                way.congestion_control()
                    .map(|name| format!("congestion control {name}")),
            )
            .found()
    }

    fn of_udp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let lost = way.lost_at("path");
        let share = way.lost_share("path");
        // Drops of our stack's ring are counted, but the counter is not read at the same time as
        // the others: a few of them appear as path loss (in older records all of them).
        let (full, at_port) = (way.ring_was_full(), way.lost_at("interface-rx"));
        let in_ring = full >= FEW && full >= (lost + at_port) / 2;
        if share < MATTERS || lost < 3 || in_ring || way.fills_path() || way.goodput()? <= 0.0 {
            return None;
        }
        // A polling end that waits for a core lets its ring overflow: that is no path loss.
        let late = way
            .time(CountedAt::Receiver)
            .is_some_and(|time| time.runnable > IN_LINE);
        if way.is_own_stack(way.receiver) && late {
            return None;
        }
        let summary = way.summary();
        if summary.loss_fraction.is_some_and(|loss| loss > 0.99) {
            return None;
        }
        // Drops at the socket of another tool are unknown.
        let guest = case.is_of_a_guest();
        let other = if guest { Role::Client } else { Role::Server };
        if case.far_is_foreign() && way.receiver == other {
            let (whose, ours, command) = match guest {
                true => (
                    "report of the client's program",
                    "measure with `linerate` there, which reports it",
                    case.again(""),
                ),
                false => (
                    "report of the server's program",
                    "run `linerate server` there, which reports it",
                    "linerate server".to_owned(),
                ),
            };
            return Draft::unknown(self.id(), End::Path)
                .way(way.direction)
                .says(format!(
                    "{} datagrams ({}) were lost on the path or in the socket of the {} program: \
                     which of both is unknown",
                    format_count(lost),
                    format_share(share),
                    if guest { "client's" } else { "server's" }
                ))
                .seen("lost", lost, "datagrams", whose)
                .missing(
                    "drops of the remote socket",
                    &format!("{} SO_MEMINFO", name(other)),
                    "that end runs another program, which does not report it",
                )
                .remedy(ours)
                .command(command)
                .found();
        }
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{} datagrams ({}) were sent by the {} and appear in no counter of the {}",
                format_count(lost),
                format_share(share),
                name(way.sender),
                name(way.receiver)
            ))
            .seen(
                "losses[path]",
                lost,
                "datagrams",
                "sequence numbers missing at the receiver, less counted drops",
            )
            .seen_if("loss_fraction", summary.loss_fraction, "share", "receiver")
            .remedy(
                "find the cause of the loss: cables, an overloaded device on the path, radio; a \
                 lower rate shows whether load is the cause",
            )
            // Random loss occurs at every rate: a search for a rate without loss would find none.
            .command(case.again_without(
                &["pps"],
                &format!(
                    "-b {}",
                    rate_word(0.5 * way.goodput()? / way.streams().len().max(1) as f64)
                ),
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
        // Late responses were not lost. With several outstanding requests they cannot be separated
        // from reordered ones.
        let late = match case.plan.round_trip.is_open() {
            true => 0,
            false => summary.out_of_order.unwrap_or(0).min(missed),
        };
        let lost = missed - late;
        let share = lost as f64 / (lost + done).max(1) as f64;
        // With one outstanding request, each loss costs the full timeout.
        let flows = case.plan.streams.max(1) as f64;
        let waited = match case.plan.round_trip.is_open() {
            true => 0.0,
            false => {
                lost as f64 * case.plan.answer_timeout_ns.unwrap_or(1_000_000_000) as f64
                    / flows
                    / summary.duration_ns.unwrap_or(u64::MAX) as f64
            }
        };
        if lost == 0 || waited < WAITS && (share < MATTERS || lost < 3) {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .cost(share.max(waited.min(0.95)))
            .says(match waited >= WAITS {
                true => format!(
                    "{} requests got no response, and waiting for them took {} of the time",
                    format_count(lost),
                    format_share(waited.min(1.0))
                ),
                false => format!("{} requests got no response", format_count(lost)),
            })
            .seen("lost", missed, "round trips", "client")
            .seen_if(
                "out_of_order",
                (late > 0).then_some(late),
                "late responses",
                "client",
            )
            .seen("round_trips", done, "round trips", "client")
            .remedy("send datagrams in one direction to see where they are lost")
            .command(case.one_way("-b 10M"))
            .found()
    }

    /// Requests over TCP: lost segments are retransmitted, and the response waits for them.
    fn of_asking_streams(&self, case: &Case<'_>) -> Option<Finding> {
        let summary = &case.record.summary;
        if !case.is_latency() || case.plan.protocol != Protocol::Tcp {
            return None;
        }
        let (again, done, rtt) = (summary.retransmits?, summary.round_trips?, summary.rtt_ns?);
        // If all retransmitted segments had already arrived, acknowledgements were late and nothing
        // was lost. Some arrived if an acknowledgement was lost. An end without statistics may have
        // sent the rest.
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
        // A request and its response have at least one segment each.
        let share = again as f64 / (2 * done).max(1) as f64;
        // Round trips that wait for retransmits raise the mean above the median.
        let cost = 1.0 - rtt.p50 as f64 / rtt.mean.max(1.0);
        // A timeout takes at least 200 ms: a few of them are a large part of a run.
        if again < TIMED_OUT || share < MATTERS || cost < WAITS {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .cost(cost.min(0.95))
            .says(format!(
                "{} segments of requests and responses were retransmitted, and their round trips \
                 waited for that: {} on average, with a median of {}",
                format_count(again),
                format_nanos(rtt.mean),
                format_nanos(rtt.p50 as f64)
            ))
            .seen("retransmits", again, "segments", "TCP_INFO of both ends")
            .seen("round_trips", done, "round trips", "client")
            .seen("rtt_ns.mean", rtt.mean.round(), "ns", "client")
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen(
                "drops on the path",
                dropped_in_view(case),
                "packets",
                "counters of both ends",
            )
            .remedy(
                "find the cause of the loss: cables, an overloaded device on the path, radio; \
                 `--limit` lists the slow round trips",
            )
            .command(case.one_way("-u -b 10M"))
            .gain(
                Some(1.0 / (1.0 - cost).max(0.01)),
                "mean over p50: no round trip waits for a retransmit",
            )
            .found()
    }
}

/// Returns the command that runs our stack without congestion control. Uses its configuration key,
/// because `-C` applies to both ends, and a kernel has no such control.
fn ignoring_loss(case: &Case<'_>, way: &Way<'_>) -> String {
    case.again_with_key(way.sender, "tcp.congestion_control", "none")
}

/// Returns a UDP command at half of the rate over the same path, which shows whether the loss
/// depends on load.
fn datagrams(case: &Case<'_>, way: &Way<'_>) -> String {
    match case.far_is_foreign() {
        true => case.again(""),
        false => {
            let rate = rate_word(0.5 * way.goodput().unwrap_or(2e7));
            case.again_without(
                &["congestion", "no-delay", "mss", "rcvlowat", "pacing"],
                &format!("-u -b {rate}"),
            )
        }
    }
}
