//! The receive queue of a UDP socket is full.

use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bytes, format_count, format_share};

use super::is_paced;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Smallest loss share that matters.
const MATTERS: f64 = 0.001;

/// Buffer size that is sufficient for a receiver that is fast enough.
const LARGE: u64 = 1 << 20;

/// Configuration keys of our stack: datagrams queued per socket, and in total.
const QUEUE: &str = "udp.receive_queue";
const BUFFERS: &str = "udp.buffers";

/// Largest values of these keys.
const MOST_QUEUE: u64 = 65_536;
const MOST_BUFFERS: u64 = 1_048_576;

/// UDP queue configuration of our stack, and the drops by its two limits.
struct Room {
    queue: Option<u64>,
    buffers: Option<u64>,
    queue_full: u64,
    no_buffer: u64,
}

impl Room {
    /// Returns the key whose limit was reached, and new values that keep the other limit above it.
    fn larger(&self) -> (&'static str, Vec<(&'static str, String)>) {
        let eightfold = |now: Option<u64>, most: u64| {
            now.map_or(1024, |now| now.saturating_mul(8).max(64))
                .min(most)
        };
        // A queue limit above the total can never be reached.
        let never_full = self
            .queue
            .zip(self.buffers)
            .is_some_and(|(queue, buffers)| buffers < queue);
        if self.no_buffer > self.queue_full || self.no_buffer + self.queue_full == 0 && never_full {
            let buffers = eightfold(self.buffers, MOST_BUFFERS);
            return (BUFFERS, vec![(BUFFERS, buffers.to_string())]);
        }
        let queue = eightfold(self.queue, MOST_QUEUE);
        let mut keys = vec![(QUEUE, queue.to_string())];
        if self.buffers.is_some_and(|buffers| buffers < queue) {
            keys.push((BUFFERS, queue.to_string()));
        }
        (QUEUE, keys)
    }
}

/// See docs/CAUSES.md#udp-receive-queue.
pub struct UdpReceiveQueue;

impl Rule for UdpReceiveQueue {
    fn id(&self) -> &'static str {
        "udp-receive-queue"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Udp);
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

impl UdpReceiveQueue {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let lost = way.lost_at("udp-receive-queue");
        let share = way.lost_share("udp-receive-queue");
        if share < MATTERS || lost < 10 {
            return None;
        }
        let granted = way.receive_buffer();
        let asked = case
            .plan
            .socket
            .receive_buffer_bytes
            .or(case.plan.window_bytes);
        let time = way.time(CountedAt::Receiver);
        let large = granted.is_some_and(|bytes| bytes >= LARGE);
        // At the maximum rate with a large buffer, the loss is what the receiver cannot process.
        let at_the_limit = !is_paced(case) && large && share < 0.5;
        let role = way.receiver;
        let end = name(role);
        // The kernel counts drops of its sockets, our stack those of its own.
        let counted = match case.is_own_stack(role) {
            true => {
                format!("{end} counters of our stack, udp.receive_queue_full and udp.no_buffer")
            }
            false => format!("{end} SO_MEMINFO drops"),
        };
        let larger = (granted.unwrap_or(0) * 8).clamp(8 << 20, 64 << 20);
        // Our stack counts datagrams, not bytes, up to its configured number.
        let stack = case.host(role).and_then(|host| host.stack.as_ref());
        let room = |key: &str| stack?.configuration.get(key)?.parse::<u64>().ok();
        let refused = |counter: &str| stack.map_or(0, |stack| stack.counter("udp", counter));
        let own = Room {
            queue: room(QUEUE),
            buffers: room(BUFFERS),
            queue_full: refused("receive_queue_full"),
            no_buffer: refused("no_buffer"),
        };
        let (remedy, command) = match large {
            _ if case.is_own_stack(role) => {
                let (binding, keys) = own.larger();
                (
                    format!("raise `{binding}` of our stack: a burst does not fit into it"),
                    case.again_with_keys(role, &keys),
                )
            }
            false => (
                format!(
                    "enlarge the {end}'s receive buffer: it must hold a burst, or the data of one \
                     time slice"
                ),
                case.again(&format!("--rcvbuf {}M", larger >> 20)),
            ),
            true => (
                format!(
                    "let the {end} receive datagrams faster (GRO, recvmmsg, a separate core), or \
                     send at the rate that it can receive"
                ),
                case.again_slower(0.9 * way.goodput()? / way.streams().len().max(1) as f64),
            ),
        };
        let mut draft = Draft::limit_if(at_the_limit, self.id(), role)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{} datagrams ({}) were dropped at the {end}'s full socket",
                format_count(lost),
                format_share(share)
            ))
            .seen("losses[udp-receive-queue]", lost, "datagrams", counted)
            .seen_if("SO_RCVBUF", granted, "B", format!("{end} socket"));
        if case.is_own_stack(role) {
            draft = draft
                .seen(
                    "udp.receive_queue_full",
                    own.queue_full,
                    "datagrams",
                    format!("{end} stack"),
                )
                .seen(
                    "udp.no_buffer",
                    own.no_buffer,
                    "datagrams",
                    format!("{end} stack"),
                )
                .seen_if(QUEUE, own.queue, "datagrams", format!("{end} stack"))
                .seen_if(BUFFERS, own.buffers, "datagrams", format!("{end} stack"));
        }
        if let Some(time) = time {
            draft = draft
                .seen(
                    "idle time of the receiving threads",
                    time.free(),
                    "share",
                    super::schedstat(role),
                )
                .seen(
                    "waited for a core",
                    time.runnable,
                    "share",
                    super::schedstat(role),
                );
        }
        draft
            .remedy(remedy)
            .command(command)
            .tried(asked.map(|asked| format!("a receive buffer of {}", format_bytes(asked))))
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }
}
