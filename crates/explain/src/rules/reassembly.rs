//! The receiving host drops fragments because its reassembly memory is full.

use linerate_record::finding::Finding;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Configuration keys of our stack: number and size of its reassembly buffers.
const COUNT_KEY: &str = "ip.reassembly_buffers.count";
const BYTES_KEY: &str = "ip.reassembly_buffers.bytes";

/// Settings of the memory for incomplete datagrams and of their timeout, for IPv4 and IPv6.
const MEMORY_SETTING: [&str; 2] = [
    "net.ipv4.ipfrag_high_thresh",
    "net.ipv6.ip6frag_high_thresh",
];
const TIMEOUT_SETTING: [&str; 2] = ["net.ipv4.ipfrag_time", "net.ipv6.ip6frag_time"];

/// Default memory for incomplete datagrams in bytes (IPFRAG_HIGH_THRESH of linux/net/inet_frag.h).
const DEFAULT_MEMORY_BYTES: u64 = 4 << 20;

/// Longest IP datagram in bytes (RFC 791).
const MAX_DATAGRAM_BYTES: u64 = 65_535;

/// Fewest dropped fragments; fewer are noise.
const MIN_REJECTED_FRAGMENTS: u64 = 10;

/// Smallest loss share that matters.
const MIN_RELEVANT_SHARE: f64 = 0.001;

/// Part of the incomplete datagrams from which dropped fragments are the reason: one in four.
pub(super) const REJECTED_PART: u64 = 4;

/// Fewest fragments of a datagram that is fragmented.
pub(super) const MIN_FRAGMENTS: f64 = 2.0;

/// See docs/CAUSES.md#reassembly.
pub struct Reassembly;

impl Rule for Reassembly {
    fn id(&self) -> CauseId {
        CauseId::Reassembly
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The receiving host drops fragments, because its memory for incomplete \
                      datagrams is full.",
            shown_when: vec![detection(
                "UDP, datagrams above the MTU",
                [
                    format!(
                        "{MIN_REJECTED_FRAGMENTS} dropped fragments or more: ReasmFails less \
                         ReasmTimeout"
                    ),
                    format!("they are more than one for {REJECTED_PART} incomplete datagrams"),
                    format!(
                        "{} of the datagrams or more are lost that way",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                ],
            )],
            evidence: &[
                ("reassembly_failures", "fragments"),
                ("reassembly_timeouts", "datagrams"),
                (MEMORY_SETTING[0], "B"),
                (MEMORY_SETTING[1], "B"),
                (TIMEOUT_SETTING[0], "s"),
                (TIMEOUT_SETTING[1], "s"),
                ("losses[reassembly]", "datagrams"),
                ("ip.reassembly_too_long", "fragments"),
                (BYTES_KEY, "B"),
                ("ip.reassembly_no_buffer", "fragments"),
                ("ip.reassembly_evicted", "datagrams"),
                (COUNT_KEY, ""),
            ],
            cost: vec!["Share of the datagrams lost that way.".into()],
            notes: vec![
                "Incomplete datagrams of an earlier run hold the memory until their timeout."
                    .into(),
                "If fragments were lost before, it follows from that: the rest of their datagrams \
                 fills the memory."
                    .into(),
            ],
            remedy: vec![
                "Raise `net.ipv4.ipfrag_high_thresh`, and lower `net.ipv4.ipfrag_time`; over IPv6 \
                 `net.ipv6.ip6frag_high_thresh` and `net.ipv6.ip6frag_time`."
                    .into(),
                format!(
                    "The user-space stack: raise `{COUNT_KEY}`, or `{BYTES_KEY}` if datagrams are longer than \
                     its buffers."
                ),
                "Or send datagrams that fit into one packet (`-l`).".into(),
            ],
            wrong_when: vec!["fragments fail for another reason, such as overlaps".into()],
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

/// Returns the fragments that the receiving host dropped, without those that timed out.
pub(super) fn rejected_fragments(run: &RunView<'_>, direction: &DirectionView<'_>) -> u64 {
    let host = direction.receiver.as_str();
    let of = |counter| {
        run.counter_increase(counter, |at, _| at == host)
            .unwrap_or(0)
    };
    of("reassembly_failures").saturating_sub(of("reassembly_timeouts"))
}

impl Reassembly {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let rejected = rejected_fragments(run, direction);
        let lost = direction.lost_at(LossPoint::Reassembly);
        let share = direction.lost_share(LossPoint::Reassembly);
        if direction.fragments() < MIN_FRAGMENTS
            || rejected < MIN_REJECTED_FRAGMENTS
            || rejected * REJECTED_PART <= lost
            || share < MIN_RELEVANT_SHARE
        {
            return None;
        }
        if direction.uses_netstack(direction.receiver) {
            return self.evaluate_netstack(run, direction, (rejected, lost, share));
        }
        let host = direction.receiver.as_str();
        let of = |counter| run.counter_increase(counter, |at, _| at == host);
        let memory_setting = run.family_setting(MEMORY_SETTING);
        let timeout_setting = run.family_setting(TIMEOUT_SETTING);
        let memory = run.sysctl(direction.receiver, memory_setting);
        let timeout = run.sysctl(direction.receiver, timeout_setting);
        FindingBuilder::cause(self.id(), direction.receiver)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "the {host} dropped {} fragments because the memory for incomplete datagrams was \
                 full: {} datagrams ({}) were lost",
                format_count(rejected),
                format_count(lost),
                format_share(share)
            ))
            .evidence_if(
                "reassembly_failures",
                of("reassembly_failures"),
                "fragments",
                run.ip_counter_source(host, "ReasmFails"),
            )
            .evidence_if(
                "reassembly_timeouts",
                of("reassembly_timeouts"),
                "datagrams",
                run.ip_counter_source(host, "ReasmTimeout"),
            )
            .evidence_if(memory_setting, memory, "B", format!("{host} sysctl"))
            .evidence_if(timeout_setting, timeout, "s", format!("{host} sysctl"))
            .evidence("losses[reassembly]", lost, "datagrams", "losses")
            .remedy(
                "raise the memory for incomplete datagrams and lower their timeout, or send \
                 datagrams that fit into one packet",
            )
            .command(run.command_at(
                direction.receiver,
                &super::sysctl_command(
                    memory_setting,
                    memory.unwrap_or(0).max(DEFAULT_MEMORY_BYTES) * 8,
                ),
            ))
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }

    /// Our stack has a configured number and size of reassembly buffers.
    fn evaluate_netstack(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
        (rejected, lost, share): (u64, u64, f64),
    ) -> Option<Finding> {
        let role = direction.receiver;
        let stack = run.host(role)?.stack.as_ref()?;
        let source = format!("{} stack", role.as_str());
        let ip = |counter| stack.counter("ip", counter);
        let builder = FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(share);
        let (key, has, more, why, builder) = if ip("reassembly_too_long") > rejected / 2 {
            let bytes: u64 = stack.config_value(BYTES_KEY).parse().ok()?;
            let builder = builder
                .evidence(
                    "ip.reassembly_too_long",
                    ip("reassembly_too_long"),
                    "fragments",
                    source.clone(),
                )
                .evidence(BYTES_KEY, bytes, "B", source)
                .remedy(
                    "enlarge its reassembly buffers, or send datagrams that fit into one packet",
                );
            let why = format!("of datagrams longer than its buffers of {bytes} B");
            (BYTES_KEY, bytes, MAX_DATAGRAM_BYTES, why, builder)
        } else {
            let buffers: u64 = stack.config_value(COUNT_KEY).parse().ok()?;
            let builder = builder
                .evidence(
                    "ip.reassembly_no_buffer",
                    ip("reassembly_no_buffer"),
                    "fragments",
                    source.clone(),
                )
                .evidence(
                    "ip.reassembly_evicted",
                    ip("reassembly_evicted"),
                    "datagrams",
                    source.clone(),
                )
                .evidence(COUNT_KEY, buffers, "", source)
                .remedy(
                    "use more reassembly buffers, which complete datagrams occupy until they are \
                     read, or send datagrams that fit into one packet",
                );
            let why = format!("because its {buffers} reassembly buffers were in use");
            (COUNT_KEY, buffers, buffers.saturating_mul(4), why, builder)
        };
        builder
            .summary(format!(
                "the user-space stack at the {} dropped {} fragments {why}: {} datagrams ({}) were lost",
                role.as_str(),
                format_count(rejected),
                format_count(lost),
                format_share(share)
            ))
            .evidence("losses[reassembly]", lost, "datagrams", "losses")
            .command(run.rerun_with_key(role, key, &more.to_string()))
            .tried(Some(format!("{key}={has}")))
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }
}
