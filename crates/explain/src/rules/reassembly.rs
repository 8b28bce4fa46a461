//! The receiving host drops fragments because its reassembly memory is full.

use linerate_record::finding::Finding;
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::run_view::{DirectionView, RunView, role_name};

/// Fewest dropped fragments; fewer are noise.
const MIN_REJECTED_FRAGMENTS: u64 = 10;

/// See docs/CAUSES.md#reassembly.
pub struct Reassembly;

impl Rule for Reassembly {
    fn id(&self) -> &'static str {
        "reassembly"
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
    let host = role_name(direction.receiver);
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
        let lost = direction.lost_at("reassembly");
        let share = direction.lost_share("reassembly");
        if direction.fragments() < 2.0
            || rejected < MIN_REJECTED_FRAGMENTS
            || rejected * 4 <= lost
            || share < 0.001
        {
            return None;
        }
        if direction.uses_netstack(direction.receiver) {
            return self.evaluate_netstack(run, direction, (rejected, lost, share));
        }
        let host = role_name(direction.receiver);
        let of = |counter| run.counter_increase(counter, |at, _| at == host);
        let memory = run.sysctl(direction.receiver, "net.ipv4.ipfrag_high_thresh");
        let timeout = run.sysctl(direction.receiver, "net.ipv4.ipfrag_time");
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
                format!("{host} /proc/net/snmp ReasmFails"),
            )
            .evidence_if(
                "reassembly_timeouts",
                of("reassembly_timeouts"),
                "datagrams",
                format!("{host} /proc/net/snmp ReasmTimeout"),
            )
            .evidence_if(
                "net.ipv4.ipfrag_high_thresh",
                memory,
                "B",
                format!("{host} sysctl"),
            )
            .evidence_if(
                "net.ipv4.ipfrag_time",
                timeout,
                "s",
                format!("{host} sysctl"),
            )
            .evidence("losses[reassembly]", lost, "datagrams", "losses")
            .remedy(
                "raise the memory for incomplete datagrams and lower their timeout, or send \
                 datagrams that fit into one packet",
            )
            .command(run.command_at(
                direction.receiver,
                &super::sysctl_command(
                    "net.ipv4.ipfrag_high_thresh",
                    memory.unwrap_or(4 << 20) * 8,
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
        const COUNT: &str = "ip.reassembly_buffers.count";
        const BYTES: &str = "ip.reassembly_buffers.bytes";
        /// Longest IP datagram.
        const LONGEST: u64 = 65_535;
        let role = direction.receiver;
        let stack = run.host(role)?.stack.as_ref()?;
        let source = format!("{} stack", role_name(role));
        let ip = |counter| stack.counter("ip", counter);
        let builder = FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(share);
        let (key, has, more, why, builder) = if ip("reassembly_too_long") > rejected / 2 {
            let bytes: u64 = stack.config_value(BYTES).parse().ok()?;
            let builder = builder
                .evidence(
                    "ip.reassembly_too_long",
                    ip("reassembly_too_long"),
                    "fragments",
                    source.clone(),
                )
                .evidence(BYTES, bytes, "B", source)
                .remedy(
                    "enlarge its reassembly buffers, or send datagrams that fit into one packet",
                );
            let why = format!("of datagrams longer than its buffers of {bytes} B");
            (BYTES, bytes, LONGEST, why, builder)
        } else {
            let buffers: u64 = stack.config_value(COUNT).parse().ok()?;
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
                .evidence(COUNT, buffers, "", source)
                .remedy(
                    "use more reassembly buffers, which complete datagrams occupy until they are \
                     read, or send datagrams that fit into one packet",
                );
            let why = format!("because its {buffers} reassembly buffers were in use");
            (COUNT, buffers, buffers.saturating_mul(4), why, builder)
        };
        builder
            .summary(format!(
                "our stack at the {} dropped {} fragments {why}: {} datagrams ({}) were lost",
                role_name(role),
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
