//! The interface leaves work to the processor that it could do.

use std::collections::BTreeMap;

use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::format_share;

use super::schedstat;
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// What a byte costs without segmentation offload over what it costs with it: 88 Gb/s against 9.7 on veth of
/// the 2-core VM.
const SEGMENTATION: f64 = 9.0;

/// The same of joining received segments, and of checksums.
const JOINING: f64 = 3.0;
const CHECKSUMS: f64 = 1.3;

/// Share of its time that the busier end must work for it to matter.
const WORKS: f64 = 0.5;

/// Share of its time that an end has to spare from which it is none that limits.
const SPARE: f64 = 0.3;

/// See docs/CAUSES.md#offload-off.
pub struct OffloadOff;

impl Rule for OffloadOff {
    fn id(&self) -> &'static str {
        "offload-off"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if super::is_paced(case) {
            return Vec::new();
        }
        let tcp = case.throughput(Protocol::Tcp);
        let udp = case.throughput(Protocol::Udp);
        tcp.chain(udp).filter_map(|way| self.of(case, way)).collect()
    }
}

impl OffloadOff {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        // Our own stack takes packets as long as its MTU, and none that are still to be cut.
        if way.fills_path() || way.is_own_stack(way.receiver) {
            return None;
        }
        let sends = way.sends_by()?;
        let off = |name: &str| sends.offloads.get(name) == Some(&false);
        let is_tcp = case.plan.protocol == Protocol::Tcp;
        let joins = |name: &str| {
            let interface = case.device(way.receiver);
            interface.is_some_and(|interface| interface.offloads.get(name) == Some(&false))
        };
        let (role, feature, short, factor) = if is_tcp
            && (off("tx-tcp-segmentation") || off("tcp-segmentation-offload"))
        {
            (way.sender, "tcp-segmentation-offload", "tso", SEGMENTATION)
        } else if (is_tcp || case.plan.udp_offload.gso == Some(true))
            && off("generic-segmentation-offload")
        {
            (way.sender, "generic-segmentation-offload", "gso", SEGMENTATION)
        } else if !is_tcp && off("tx-udp-segmentation") && case.plan.udp_offload.gso == Some(true) {
            (way.sender, "tx-udp-segmentation", "tx-udp-segmentation", JOINING)
        } else if off("tx-checksumming") && sends.name != "lo" {
            (way.sender, "tx-checksumming", "tx", CHECKSUMS)
        } else if is_tcp && joins("generic-receive-offload") {
            (way.receiver, "generic-receive-offload", "gro", JOINING)
        } else if joins("rx-checksumming") {
            (way.receiver, "rx-checksumming", "rx", CHECKSUMS)
        } else {
            return None;
        };
        let works = [CountedAt::Sender, CountedAt::Receiver]
            .into_iter()
            .filter_map(|part| way.time(part))
            .map(|time| time.working + time.runnable)
            .fold(0.0, f64::max);
        // Packets cost nothing that matters where no end lacks time, or where loss leaves no more than a few on
        // their way.
        let lacks_time = |part| way.time(part).is_some_and(|time| time.free() < SPARE);
        let busy = lacks_time(CountedAt::Sender) || lacks_time(CountedAt::Receiver);
        if works < WORKS || !busy || way.is_held_by_loss() {
            return None;
        }
        let cost = (1.0 - 1.0 / factor) * works.min(1.0);
        let interface = &case.interface(role)?.name;
        let time = way.time(CountedAt::Sender)?;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "{feature} of {interface} is off at the {}: each packet takes its own way through the protocols, and the busier end works for {} of the time",
                name(role),
                format_share(works)
            ))
            .seen(feature, "off", "", format!("{} {interface} ethtool -k", name(role)))
            .seen("working time of the sending threads", time.working, "share", schedstat(way.sender))
            .seen_if("driver", sends.driver.as_deref(), "", "ethtool -i")
            .remedy("switch it on")
            .command(case.at(role, &format!("ethtool -K {interface} {}{short} on", before(&case.interface(role)?.offloads, short))))
            .gain(Some(1.0 / (1.0 - cost)), "Amdahl on the busier end's time: a packet's cost with the offload as measured on veth (1/9 segmentation, 1/3 joining, 1/1.3 checksums)")
            .found()
    }
}

/// What has to be on before a feature can be, where it is not: the kernel takes `tso on` without them for a wish.
fn before(offloads: &BTreeMap<String, bool>, short: &str) -> String {
    let needs: &[(&str, &str)] = match short {
        "tso" | "gso" | "tx-udp-segmentation" => &[("tx-checksumming", "tx"), ("scatter-gather", "sg")],
        "gro" => &[("rx-checksumming", "rx")],
        _ => &[],
    };
    let off = needs.iter().filter(|(name, _)| offloads.get(*name) == Some(&false));
    off.map(|(_, short)| format!("{short} on ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_feature_needs_is_switched_on_before_it() {
        let of = |tx, sg| BTreeMap::from([("tx-checksumming".to_owned(), tx), ("scatter-gather".to_owned(), sg)]);
        assert_eq!(before(&of(false, false), "tso"), "tx on sg on ");
        assert_eq!(before(&of(true, false), "gso"), "sg on ");
        assert_eq!(before(&of(true, true), "tso"), "");
        assert_eq!(before(&of(false, false), "tx"), "");
        assert_eq!(before(&BTreeMap::new(), "tso"), "");
    }
}
