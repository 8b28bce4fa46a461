//! The receiving host drops fragments because its reassembly memory is full.

use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Fewest dropped fragments; fewer are noise.
const FEW: u64 = 10;

/// See docs/CAUSES.md#reassembly.
pub struct Reassembly;

impl Rule for Reassembly {
    fn id(&self) -> &'static str {
        "reassembly"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Udp);
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

/// Returns the fragments that the receiving host dropped, without those that timed out.
pub(super) fn refused(case: &Case<'_>, way: &Way<'_>) -> u64 {
    let host = name(way.receiver);
    let of = |counter| case.added(counter, |at, _| at == host).unwrap_or(0);
    of("reassembly_failures").saturating_sub(of("reassembly_timeouts"))
}

impl Reassembly {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let refused = refused(case, way);
        let lost = way.lost_at("reassembly");
        let share = way.lost_share("reassembly");
        if way.fragments() < 2.0 || refused < FEW || refused * 4 <= lost || share < 0.001 {
            return None;
        }
        if way.is_own_stack(way.receiver) {
            return self.of_own_stack(case, way, (refused, lost, share));
        }
        let host = name(way.receiver);
        let of = |counter| case.added(counter, |at, _| at == host);
        let memory = case.sysctl(way.receiver, "net.ipv4.ipfrag_high_thresh");
        let timeout = case.sysctl(way.receiver, "net.ipv4.ipfrag_time");
        Draft::cause(self.id(), way.receiver)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "the {host} dropped {} fragments because the memory for incomplete datagrams was \
                 full: {} datagrams ({}) were lost",
                format_count(refused),
                format_count(lost),
                format_share(share)
            ))
            .seen_if(
                "reassembly_failures",
                of("reassembly_failures"),
                "fragments",
                format!("{host} /proc/net/snmp ReasmFails"),
            )
            .seen_if(
                "reassembly_timeouts",
                of("reassembly_timeouts"),
                "datagrams",
                format!("{host} /proc/net/snmp ReasmTimeout"),
            )
            .seen_if(
                "net.ipv4.ipfrag_high_thresh",
                memory,
                "B",
                format!("{host} sysctl"),
            )
            .seen_if(
                "net.ipv4.ipfrag_time",
                timeout,
                "s",
                format!("{host} sysctl"),
            )
            .seen("losses[reassembly]", lost, "datagrams", "losses")
            .remedy(
                "raise the memory for incomplete datagrams and lower their timeout, or send \
                 datagrams that fit into one packet",
            )
            .command(case.at(
                way.receiver,
                &super::sysctl("net.ipv4.ipfrag_high_thresh", memory.unwrap_or(4 << 20) * 8),
            ))
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }

    /// Our stack has a configured number and size of reassembly buffers.
    fn of_own_stack(
        &self,
        case: &Case<'_>,
        way: &Way<'_>,
        (refused, lost, share): (u64, u64, f64),
    ) -> Option<Finding> {
        const COUNT: &str = "ip.reassembly_buffers.count";
        const BYTES: &str = "ip.reassembly_buffers.bytes";
        /// Longest IP datagram.
        const LONGEST: u64 = 65_535;
        let role = way.receiver;
        let stack = case.host(role)?.stack.as_ref()?;
        let source = format!("{} stack", name(role));
        let ip = |counter| stack.counter("ip", counter);
        let draft = Draft::cause(self.id(), role).way(way.direction).cost(share);
        let (key, has, more, why, draft) = if ip("reassembly_too_long") > refused / 2 {
            let bytes: u64 = stack.key(BYTES).parse().ok()?;
            let draft = draft
                .seen(
                    "ip.reassembly_too_long",
                    ip("reassembly_too_long"),
                    "fragments",
                    source.clone(),
                )
                .seen(BYTES, bytes, "B", source)
                .remedy(
                    "enlarge its reassembly buffers, or send datagrams that fit into one packet",
                );
            let why = format!("of datagrams longer than its buffers of {bytes} B");
            (BYTES, bytes, LONGEST, why, draft)
        } else {
            let buffers: u64 = stack.key(COUNT).parse().ok()?;
            let draft = draft
                .seen(
                    "ip.reassembly_no_buffer",
                    ip("reassembly_no_buffer"),
                    "fragments",
                    source.clone(),
                )
                .seen(
                    "ip.reassembly_evicted",
                    ip("reassembly_evicted"),
                    "datagrams",
                    source.clone(),
                )
                .seen(COUNT, buffers, "", source)
                .remedy(
                    "use more reassembly buffers, which complete datagrams occupy until they are \
                     read, or send datagrams that fit into one packet",
                );
            let why = format!("because its {buffers} reassembly buffers were in use");
            (COUNT, buffers, buffers.saturating_mul(4), why, draft)
        };
        draft
            .says(format!(
                "our stack at the {} dropped {} fragments {why}: {} datagrams ({}) were lost",
                name(role),
                format_count(refused),
                format_count(lost),
                format_share(share)
            ))
            .seen("losses[reassembly]", lost, "datagrams", "losses")
            .command(case.again_with_key(role, key, &more.to_string()))
            .tried(Some(format!("{key}={has}")))
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }
}
