//! An offload of the interface is disabled.

use linerate_metric::facts::{Interface, Role};
use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::format_share;

use super::schedstat;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Cost of a byte without segmentation offload over the cost with it: 88 Gb/s against 9.7 on veth
/// of the 2-core VM.
const SEGMENTATION: f64 = 9.0;

/// Cost factors of receive coalescing and of checksums.
const JOINING: f64 = 3.0;
const CHECKSUMS: f64 = 1.3;

/// Smallest share of its time that the busier end must work.
const WORKS: f64 = 0.5;

/// Share of its time that an end must work for its waiting for a core to count as work.
const WORKS_AT_ALL: f64 = 0.2;

/// Largest share of idle time of an end that is a limit.
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
        tcp.chain(udp)
            .filter_map(|way| self.of(case, way))
            .collect()
    }
}

/// A disabled offload that would save work.
#[derive(Clone, Copy)]
struct Off {
    role: Role,
    /// Name in `ethtool -k`; `short` is the name in `ethtool -K`.
    name: &'static str,
    short: &'static str,
    /// Cost of a byte without the offload over the cost with it.
    factor: f64,
    /// True if the driver does not permit changing it, or an offload that it requires.
    is_fixed: bool,
}

impl OffloadOff {
    /// Returns the disabled offloads that affect this direction, the largest saving first.
    fn off(&self, case: &Case<'_>, way: &Way<'_>, sends: &Interface) -> Vec<Off> {
        let off = |name: &str| sends.offloads.get(name) == Some(&false);
        let receives = case.device(way.receiver);
        let joins = |name: &str| {
            receives.is_some_and(|interface| interface.offloads.get(name) == Some(&false))
        };
        let is_tcp = case.plan.protocol == Protocol::Tcp;
        let segments = case.plan.udp_offload.gso == Some(true);
        let (from, to) = (way.sender, way.receiver);
        [
            (
                is_tcp && (off("tx-tcp-segmentation") || off("tcp-segmentation-offload")),
                from,
                "tcp-segmentation-offload",
                "tso",
                SEGMENTATION,
            ),
            (
                (is_tcp || segments) && off("generic-segmentation-offload"),
                from,
                "generic-segmentation-offload",
                "gso",
                SEGMENTATION,
            ),
            (
                !is_tcp && off("tx-udp-segmentation") && segments,
                from,
                "tx-udp-segmentation",
                "tx-udp-segmentation",
                JOINING,
            ),
            (
                off("tx-checksumming") && sends.name != "lo",
                from,
                "tx-checksumming",
                "tx",
                CHECKSUMS,
            ),
            (
                is_tcp && joins("generic-receive-offload"),
                to,
                "generic-receive-offload",
                "gro",
                JOINING,
            ),
            (
                joins("rx-checksumming"),
                to,
                "rx-checksumming",
                "rx",
                CHECKSUMS,
            ),
        ]
        .into_iter()
        .filter(|(is_off, ..)| *is_off)
        .filter_map(|(_, role, name, short, factor)| {
            let interface = case.interface(role)?;
            // GRO computes checksums itself if the device does not.
            let lacks = short != "gro"
                && needs(short)
                    .iter()
                    .any(|(need, _)| is_fixed_off(interface, need));
            let is_fixed = is_fixed(interface, name) || lacks;
            Some(Off {
                role,
                name,
                short,
                factor,
                is_fixed,
            })
        })
        .collect()
    }

    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        // Our stack accepts packets up to its MTU only, no unsegmented ones.
        if way.fills_path() || way.is_own_stack(way.receiver) {
            return None;
        }
        let sends = way.sends_by()?;
        let off = self.off(case, way, sends);
        // An offload that cannot be changed is a limit of the device.
        let changeable = off.iter().find(|feature| !feature.is_fixed);
        let feature = changeable.or(off.first())?;
        let Off {
            role,
            name: feature,
            short,
            factor,
            is_fixed,
        } = *feature;
        // Waiting for a core counts only for an end that works: one that polls without data waits
        // as long.
        let works = [CountedAt::Sender, CountedAt::Receiver]
            .into_iter()
            .filter_map(|part| way.time(part))
            .map(|time| match time.working >= WORKS_AT_ALL {
                true => time.working + time.runnable,
                false => time.working,
            })
            .fold(0.0, f64::max);
        // The number of packets does not matter if both ends have idle time, or if loss keeps only
        // a few packets in flight.
        let lacks_time = |part| way.time(part).is_some_and(|time| time.free() < SPARE);
        let busy = lacks_time(CountedAt::Sender) || lacks_time(CountedAt::Receiver);
        if works < WORKS
            || !busy
            || way.is_held_by_loss()
            || way.waits_for_path() && !super::is_saturated(way)
        {
            return None;
        }
        let cost = (1.0 - 1.0 / factor) * works.min(1.0);
        let interface = &case.interface(role)?.name;
        let time = way.time(CountedAt::Sender)?;
        let draft = Draft::limit_if(is_fixed, self.id(), role)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "{feature} of {interface} is off at the {}{}: each packet is processed \
                 separately, and the busier end works for {} of the time",
                name(role),
                if is_fixed {
                    ", and its driver does not support it"
                } else {
                    ""
                },
                format_share(works)
            ))
            .seen(
                feature,
                if is_fixed { "off [fixed]" } else { "off" },
                "",
                format!("{} {interface} ethtool -k", name(role)),
            )
            .seen(
                "working time of the sending threads",
                time.working,
                "share",
                schedstat(way.sender),
            )
            .seen_if(
                "driver",
                case.interface(role)?.driver.as_deref(),
                "",
                "ethtool -i",
            );
        if is_fixed {
            return draft
                .remedy(
                    "use another adapter or driver; a larger MTU on the full path, if supported, \
                     reduces the number of packets",
                )
                .found();
        }
        draft
            .remedy("enable the offload")
            .command(case.at(
                role,
                &format!(
                    "ethtool -K {interface} {}{short} on",
                    before(case.interface(role)?, short)
                ),
            ))
            .gain(
                Some(1.0 / (1.0 - cost)),
                "Amdahl on the busier end's time: cost of a packet with the offload, measured on \
                 veth (1/9 segmentation, 1/3 GRO, 1/1.3 checksums)",
            )
            .found()
    }
}

/// Returns true if the driver does not permit changing an offload; TCP segmentation is that of
/// IPv4.
fn is_fixed(interface: &Interface, name: &str) -> bool {
    let fixed = |name: &str| interface.fixed_offloads.iter().any(|fixed| fixed == name);
    fixed(name) || name == "tcp-segmentation-offload" && fixed("tx-tcp-segmentation")
}

fn is_fixed_off(interface: &Interface, name: &str) -> bool {
    interface.offloads.get(name) == Some(&false) && is_fixed(interface, name)
}

/// Returns the offloads that an offload requires, by their `ethtool -k` and `-K` names.
fn needs(short: &str) -> &'static [(&'static str, &'static str)] {
    match short {
        "tso" | "gso" | "tx-udp-segmentation" => {
            &[("tx-checksumming", "tx"), ("scatter-gather", "sg")]
        }
        "gro" => &[("rx-checksumming", "rx")],
        _ => &[],
    }
}

/// Returns the `ethtool -K` arguments that enable required offloads first: without them the kernel
/// only records `tso on` as wanted.
fn before(interface: &Interface, short: &str) -> String {
    let off =
        |name: &str| interface.offloads.get(name) == Some(&false) && !is_fixed(interface, name);
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
        let set = |tx, sg| {
            BTreeMap::from([
                ("tx-checksumming".to_owned(), tx),
                ("scatter-gather".to_owned(), sg),
            ])
        };
        for (offloads, fixed, short, want) in [
            (set(false, false), &[][..], "tso", "tx on sg on "),
            (set(true, false), &[], "gso", "sg on "),
            (set(true, true), &[], "tso", ""),
            (set(false, false), &[], "tx", ""),
            (BTreeMap::new(), &[], "tso", ""),
            // Offloads that cannot be changed are not in the command.
            (set(false, false), &["tx-checksumming"], "gso", "sg on "),
        ] {
            assert_eq!(
                before(&of(offloads.clone(), fixed), short),
                want,
                "{offloads:?} {short}"
            );
        }
    }
}
