//! The interface leaves work to the processor that it could do.

use linerate_metric::facts::{Interface, Role};
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

/// Share of its time that an end works from which waiting for a core is part of it.
const WORKS_AT_ALL: f64 = 0.2;

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

/// A feature that is off where it would spare work.
#[derive(Clone, Copy)]
struct Off {
    role: Role,
    /// By the name of `ethtool -k`, and of `ethtool -K`.
    name: &'static str,
    short: &'static str,
    /// What a byte costs without it over what it costs with it.
    factor: f64,
    /// It, or what it needs, cannot be switched on.
    is_fixed: bool,
}

impl OffloadOff {
    /// Those that are off and matter to this direction, what spares most first.
    fn off(&self, case: &Case<'_>, way: &Way<'_>, sends: &Interface) -> Vec<Off> {
        let off = |name: &str| sends.offloads.get(name) == Some(&false);
        let receives = case.device(way.receiver);
        let joins = |name: &str| receives.is_some_and(|interface| interface.offloads.get(name) == Some(&false));
        let is_tcp = case.plan.protocol == Protocol::Tcp;
        let segments = case.plan.udp_offload.gso == Some(true);
        let (from, to) = (way.sender, way.receiver);
        [
            (is_tcp && (off("tx-tcp-segmentation") || off("tcp-segmentation-offload")), from, "tcp-segmentation-offload", "tso", SEGMENTATION),
            ((is_tcp || segments) && off("generic-segmentation-offload"), from, "generic-segmentation-offload", "gso", SEGMENTATION),
            (!is_tcp && off("tx-udp-segmentation") && segments, from, "tx-udp-segmentation", "tx-udp-segmentation", JOINING),
            (off("tx-checksumming") && sends.name != "lo", from, "tx-checksumming", "tx", CHECKSUMS),
            (is_tcp && joins("generic-receive-offload"), to, "generic-receive-offload", "gro", JOINING),
            (joins("rx-checksumming"), to, "rx-checksumming", "rx", CHECKSUMS),
        ]
        .into_iter()
        .filter(|(is_off, ..)| *is_off)
        .filter_map(|(_, role, name, short, factor)| {
            let interface = case.interface(role)?;
            // What joins segments sums them itself, where the device does not.
            let lacks = short != "gro" && needs(short).iter().any(|(need, _)| is_fixed_off(interface, need));
            let is_fixed = is_fixed(interface, name) || lacks;
            Some(Off { role, name, short, factor, is_fixed })
        })
        .collect()
    }

    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        // Our own stack takes packets as long as its MTU, and none that are still to be cut.
        if way.fills_path() || way.is_own_stack(way.receiver) {
            return None;
        }
        let sends = way.sends_by()?;
        let off = self.off(case, way, sends);
        // What cannot be switched is the device's limit, and nothing to be tried.
        let changeable = off.iter().find(|feature| !feature.is_fixed);
        let feature = changeable.or(off.first())?;
        let Off { role, name: feature, short, factor, is_fixed } = *feature;
        // Waiting for a core is part of the work only where there is work: one that looks in vain waits as long.
        let works = [CountedAt::Sender, CountedAt::Receiver]
            .into_iter()
            .filter_map(|part| way.time(part))
            .map(|time| match time.working >= WORKS_AT_ALL {
                true => time.working + time.runnable,
                false => time.working,
            })
            .fold(0.0, f64::max);
        // Packets cost nothing that matters where no end lacks time, or where loss leaves no more than a few on
        // their way.
        let lacks_time = |part| way.time(part).is_some_and(|time| time.free() < SPARE);
        let busy = lacks_time(CountedAt::Sender) || lacks_time(CountedAt::Receiver);
        if works < WORKS || !busy || way.is_held_by_loss() || way.waits_for_path() && !super::is_saturated(way) {
            return None;
        }
        let cost = (1.0 - 1.0 / factor) * works.min(1.0);
        let interface = &case.interface(role)?.name;
        let time = way.time(CountedAt::Sender)?;
        let draft = Draft::limit_if(is_fixed, self.id(), role)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "{feature} of {interface} is off at the {}{}: each packet takes its own way through the protocols, and the busier end works for {} of the time",
                name(role),
                if is_fixed { ", and its driver lets nobody switch it on" } else { "" },
                format_share(works)
            ))
            .seen(feature, if is_fixed { "off [fixed]" } else { "off" }, "", format!("{} {interface} ethtool -k", name(role)))
            .seen("working time of the sending threads", time.working, "share", schedstat(way.sender))
            .seen_if("driver", case.interface(role)?.driver.as_deref(), "", "ethtool -i");
        if is_fixed {
            return draft
                .remedy("another adapter or driver; larger packets on the link (MTU of both ends and of what is between), where it takes them, are fewer")
                .found();
        }
        draft
            .remedy("switch it on")
            .command(case.at(role, &format!("ethtool -K {interface} {}{short} on", before(case.interface(role)?, short))))
            .gain(Some(1.0 / (1.0 - cost)), "Amdahl on the busier end's time: a packet's cost with the offload as measured on veth (1/9 segmentation, 1/3 joining, 1/1.3 checksums)")
            .found()
    }
}

/// Whether nobody can switch a feature; TCP's segmentation is that of IPv4.
fn is_fixed(interface: &Interface, name: &str) -> bool {
    let fixed = |name: &str| interface.fixed_offloads.iter().any(|fixed| fixed == name);
    fixed(name) || name == "tcp-segmentation-offload" && fixed("tx-tcp-segmentation")
}

fn is_fixed_off(interface: &Interface, name: &str) -> bool {
    interface.offloads.get(name) == Some(&false) && is_fixed(interface, name)
}

/// What a feature needs, by the names of `ethtool -k` and `-K`.
fn needs(short: &str) -> &'static [(&'static str, &'static str)] {
    match short {
        "tso" | "gso" | "tx-udp-segmentation" => &[("tx-checksumming", "tx"), ("scatter-gather", "sg")],
        "gro" => &[("rx-checksumming", "rx")],
        _ => &[],
    }
}

/// What has to be on before a feature can be, where it is not: the kernel takes `tso on` without them for a wish.
fn before(interface: &Interface, short: &str) -> String {
    let off = |name: &str| interface.offloads.get(name) == Some(&false) && !is_fixed(interface, name);
    let off = needs(short).iter().filter(|(name, _)| off(name));
    off.map(|(_, short)| format!("{short} on ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_a_feature_needs_is_switched_on_before_it() {
        let of = |offloads: BTreeMap<String, bool>, fixed: &[&str]| Interface {
            offloads,
            fixed_offloads: fixed.iter().map(|&name| name.to_owned()).collect(),
            ..Interface::default()
        };
        let set = |tx, sg| BTreeMap::from([("tx-checksumming".to_owned(), tx), ("scatter-gather".to_owned(), sg)]);
        for (offloads, fixed, short, want) in [
            (set(false, false), &[][..], "tso", "tx on sg on "),
            (set(true, false), &[], "gso", "sg on "),
            (set(true, true), &[], "tso", ""),
            (set(false, false), &[], "tx", ""),
            (BTreeMap::new(), &[], "tso", ""),
            // What nobody can switch is not asked for.
            (set(false, false), &["tx-checksumming"], "gso", "sg on "),
        ] {
            assert_eq!(before(&of(offloads.clone(), fixed), short), want, "{offloads:?} {short}");
        }
    }
}
