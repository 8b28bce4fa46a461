//! The receive queue of a UDP socket is full.

use linerate_record::finding::Finding;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bytes, format_count, format_share};

use super::is_paced;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Smallest loss share that matters.
const MIN_RELEVANT_SHARE: f64 = 0.001;

/// Fewest drops; fewer are noise.
const MIN_DROPS: u64 = 10;

/// Share of the datagrams from which a loss at the maximum rate is no longer the receiver's limit.
const MAX_LIMIT_SHARE: f64 = 0.5;

/// Buffer size that is sufficient for a receiver that is fast enough.
const LARGE_BUFFER_BYTES: u64 = 1 << 20;

/// Configuration keys of our stack: datagrams queued per socket, and in total.
const QUEUE_KEY: &str = "udp.receive_queue";
const BUFFERS_KEY: &str = "udp.buffers";

/// Largest values of these keys.
const MAX_QUEUE: u64 = 65_536;
const MAX_BUFFERS: u64 = 1_048_576;

/// UDP queue configuration of our stack, and the drops by its two limits.
struct NetstackQueues {
    queue: Option<u64>,
    buffers: Option<u64>,
    queue_full: u64,
    no_buffer: u64,
}

impl NetstackQueues {
    /// Returns the key whose limit was reached, and new values that keep the other limit above it.
    fn larger_keys(&self) -> (&'static str, Vec<(&'static str, String)>) {
        let eightfold = |now: Option<u64>, most: u64| {
            now.map_or(1024, |now| now.saturating_mul(8).max(64))
                .min(most)
        };
        // A queue limit above the total can never be reached.
        let is_queue_never_full = self
            .queue
            .zip(self.buffers)
            .is_some_and(|(queue, buffers)| buffers < queue);
        if self.no_buffer > self.queue_full
            || self.no_buffer + self.queue_full == 0 && is_queue_never_full
        {
            let buffers = eightfold(self.buffers, MAX_BUFFERS);
            return (BUFFERS_KEY, vec![(BUFFERS_KEY, buffers.to_string())]);
        }
        let queue = eightfold(self.queue, MAX_QUEUE);
        let mut keys = vec![(QUEUE_KEY, queue.to_string())];
        if self.buffers.is_some_and(|buffers| buffers < queue) {
            keys.push((BUFFERS_KEY, queue.to_string()));
        }
        (QUEUE_KEY, keys)
    }
}

/// See docs/CAUSES.md#udp-receive-queue.
pub struct UdpReceiveQueue;

impl Rule for UdpReceiveQueue {
    fn id(&self) -> CauseId {
        CauseId::UdpReceiveQueue
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Datagrams arrive at a full receiving socket.",
            shown_when: vec![detection(
                "UDP",
                [format!(
                    "the socket dropped {MIN_DROPS} datagrams or more, and {} or more",
                    percent(MIN_RELEVANT_SHARE)
                )],
            )],
            limit_when: vec![format!(
                "no rate was requested, the buffer is {} or more, and less than {} was lost",
                size(LARGE_BUFFER_BYTES),
                percent(MAX_LIMIT_SHARE)
            )],
            evidence: &[
                ("losses[udp-receive-queue]", "datagrams"),
                ("SO_RCVBUF", "B"),
                ("udp.receive_queue_full", "datagrams"),
                ("udp.no_buffer", "datagrams"),
                (QUEUE_KEY, "datagrams"),
                (BUFFERS_KEY, "datagrams"),
                ("idle time of the receiving threads", "share"),
                ("waited for a core", "share"),
            ],
            cost: vec!["Share of the datagrams lost there.".into()],
            notes: vec![
                "As a limit it is what the receiver can process.".into(),
                "Kernels count drops of each socket (SO_MEMINFO), the user-space stack those of its own."
                    .into(),
            ],
            remedy: vec![
                "Enlarge the buffer (`--rcvbuf`): it must hold a burst, or a time slice of the \
                 receiver."
                    .into(),
                format!(
                    "The user-space stack: raise `{BUFFERS_KEY}` if `udp.no_buffer` is the larger counter, \
                     else `{QUEUE_KEY}`."
                ),
                format!("Keep `{BUFFERS_KEY}` above `{QUEUE_KEY}`."),
                "Receive faster: GRO, recvmmsg, a separate CPU.".into(),
                "Or send at a lower rate; `-b max` finds it.".into(),
            ],
            wrong_when: vec!["the counter includes datagrams of the omitted time".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let directions = run.throughput_directions(TransportProtocol::Udp);
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

impl UdpReceiveQueue {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let lost = direction.lost_at(LossPoint::UdpReceiveQueue);
        let share = direction.lost_share(LossPoint::UdpReceiveQueue);
        if share < MIN_RELEVANT_SHARE || lost < MIN_DROPS {
            return None;
        }
        let granted = direction.receive_buffer();
        let requested = run
            .plan
            .socket
            .receive_buffer_bytes
            .or(run.plan.window_bytes);
        let time = direction.thread_time(FlowEnd::Receiver);
        let large = granted.is_some_and(|bytes| bytes >= LARGE_BUFFER_BYTES);
        // At the maximum rate with a large buffer, the loss is what the receiver cannot process.
        let at_the_limit = !is_paced(run) && large && share < MAX_LIMIT_SHARE;
        let role = direction.receiver;
        let end = role.as_str();
        // The kernel counts drops of its sockets, our stack those of its own.
        let counted = match run.uses_netstack(role) {
            true => {
                format!(
                    "{end} counters of the user-space stack, udp.receive_queue_full and udp.no_buffer"
                )
            }
            false => format!("{end} SO_MEMINFO drops"),
        };
        let larger = (granted.unwrap_or(0) * 8).clamp(8 << 20, 64 << 20);
        // Our stack counts datagrams, not bytes, up to its configured number.
        let stack = run.host(role).and_then(|host| host.stack.as_ref());
        let config_value = |key: &str| stack?.configuration.get(key)?.parse::<u64>().ok();
        let stack_counter = |counter: &str| stack.map_or(0, |stack| stack.counter("udp", counter));
        let netstack_queues = NetstackQueues {
            queue: config_value(QUEUE_KEY),
            buffers: config_value(BUFFERS_KEY),
            queue_full: stack_counter("receive_queue_full"),
            no_buffer: stack_counter("no_buffer"),
        };
        let (remedy, command) = match large {
            _ if run.uses_netstack(role) => {
                let (binding, keys) = netstack_queues.larger_keys();
                (
                    format!(
                        "raise `{binding}` of the user-space stack: a burst does not fit into it"
                    ),
                    run.rerun_with_keys(role, &keys),
                )
            }
            false => (
                format!(
                    "enlarge the {end}'s receive buffer: it must hold a burst, or the data of one \
                     time slice"
                ),
                run.rerun_command(&format!("--rcvbuf {}M", larger >> 20)),
            ),
            true => (
                format!(
                    "let the {end} receive datagrams faster (GRO, recvmmsg, a separate CPU), or \
                     send at the rate that it can receive"
                ),
                run.rerun_slower(
                    0.9 * direction.goodput()? / direction.streams().len().max(1) as f64,
                ),
            ),
        };
        let mut builder = FindingBuilder::limit_if(at_the_limit, self.id(), role)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "{} datagrams ({}) were dropped at the {end}'s full socket",
                format_count(lost),
                format_share(share)
            ))
            .evidence("losses[udp-receive-queue]", lost, "datagrams", counted)
            .evidence_if("SO_RCVBUF", granted, "B", format!("{end} socket"));
        if run.uses_netstack(role) {
            builder = builder
                .evidence(
                    "udp.receive_queue_full",
                    netstack_queues.queue_full,
                    "datagrams",
                    format!("{end} stack"),
                )
                .evidence(
                    "udp.no_buffer",
                    netstack_queues.no_buffer,
                    "datagrams",
                    format!("{end} stack"),
                )
                .evidence_if(
                    QUEUE_KEY,
                    netstack_queues.queue,
                    "datagrams",
                    format!("{end} stack"),
                )
                .evidence_if(
                    BUFFERS_KEY,
                    netstack_queues.buffers,
                    "datagrams",
                    format!("{end} stack"),
                );
        }
        if let Some(time) = time {
            builder = builder
                .evidence(
                    "idle time of the receiving threads",
                    time.free_share(),
                    "share",
                    super::schedstat_source(role),
                )
                .evidence(
                    "waited for a core",
                    time.core_wait,
                    "share",
                    super::schedstat_source(role),
                );
        }
        builder
            .remedy(remedy)
            .command(command)
            .tried(
                requested
                    .map(|requested| format!("a receive buffer of {}", format_bytes(requested))),
            )
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }
}
