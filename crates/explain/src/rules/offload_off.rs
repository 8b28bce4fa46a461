//! An offload of the interface is disabled.

use linerate_record::facts::{InterfaceFacts, Role};
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::format_share;

use super::schedstat_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Cost of a byte without segmentation offload over the cost with it: 88 Gb/s against 9.7 on veth
/// of the 2-core VM.
const SEGMENTATION_FACTOR: f64 = 9.0;

/// Cost factors of receive coalescing and of checksums.
const COALESCING_FACTOR: f64 = 3.0;
const CHECKSUM_FACTOR: f64 = 1.3;

/// Smallest share of its time that the busier end must work.
const MIN_WORKING_SHARE: f64 = 0.5;

/// Share of its time that an end must work for its waiting for a core to count as work.
const MIN_ANY_WORK_SHARE: f64 = 0.2;

/// Largest share of idle time of an end that is a limit.
const MAX_FREE_SHARE: f64 = 0.3;

/// See docs/CAUSES.md#offload-off.
pub struct OffloadOff;

impl Rule for OffloadOff {
    fn id(&self) -> CauseId {
        CauseId::OffloadOff
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The interface could segment, coalesce or compute checksums, and does not.",
            shown_when: vec![detection(
                "TCP and UDP",
                [
                    "an offload is off (`ethtool -k`)".into(),
                    format!(
                        "the busier end works for {} of its time or more; waiting for a CPU counts \
                         from {} of work on",
                        percent(MIN_WORKING_SHARE),
                        percent(MIN_ANY_WORK_SHARE)
                    ),
                    format!("an end has less than {} idle time", percent(MAX_FREE_SHARE)),
                ],
            )],
            limit_when: vec![
                "every disabled offload is `[fixed]`, or requires one that is: the driver does not \
                 permit it"
                    .into(),
            ],
            not_when: vec![
                "a rate was requested".into(),
                "the path is full".into(),
                "the user-space stack receives: it accepts no unsegmented packets".into(),
                "loss limits the stream".into(),
                "the stream is limited by its path, and no end is saturated".into(),
            ],
            evidence: &[
                ("tcp-segmentation-offload", ""),
                ("generic-segmentation-offload", ""),
                ("tx-udp-segmentation", ""),
                ("tx-checksumming", ""),
                ("generic-receive-offload", ""),
                ("rx-checksumming", ""),
                ("working time of the sending threads", "share"),
                ("driver", ""),
            ],
            cost: vec![
                "Share of a byte's cost that the offload saves, for the busier end's time.".into(),
                format!(
                    "A byte costs {SEGMENTATION_FACTOR} times as much without segmentation, \
                     {COALESCING_FACTOR} without coalescing, {CHECKSUM_FACTOR} without checksums."
                ),
            ],
            notes: vec![
                "Segmentation of UDP counts if GSO is in use, receive offloads of hardware only."
                    .into(),
            ],
            remedy: vec![
                "Enable it: `ethtool -K IF tso on gso on gro on tx on rx on`.".into(),
                "Segmentation requires checksums and scatter-gather first (`tx on sg on`).".into(),
            ],
            wrong_when: vec!["it is off because the device's implementation is broken".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if super::is_paced(run) {
            return Vec::new();
        }
        let tcp = run.throughput_directions(TransportProtocol::Tcp);
        let udp = run.throughput_directions(TransportProtocol::Udp);
        tcp.chain(udp)
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

/// A disabled offload that would save work.
#[derive(Clone, Copy)]
struct DisabledOffload {
    role: Role,
    /// Name in `ethtool -k`; `option` is the name in `ethtool -K`.
    name: &'static str,
    option: &'static str,
    /// Cost of a byte without the offload over the cost with it.
    factor: f64,
    /// True if the driver does not permit changing it, or an offload that it requires.
    is_fixed: bool,
}

impl OffloadOff {
    /// Returns the disabled offloads that affect this direction, the largest saving first.
    fn disabled_offloads(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
        sends: &InterfaceFacts,
    ) -> Vec<DisabledOffload> {
        let off = |name: &str| sends.offloads.get(name) == Some(&false);
        let receives = run.device(direction.receiver);
        let joins = |name: &str| {
            receives.is_some_and(|interface| interface.offloads.get(name) == Some(&false))
        };
        let is_tcp = run.plan.protocol == TransportProtocol::Tcp;
        let segments = run.plan.udp_offload.gso == Some(true);
        let (from, to) = (direction.sender, direction.receiver);
        [
            (
                is_tcp
                    && (off(direction.segmentation_offload()) || off("tcp-segmentation-offload")),
                from,
                "tcp-segmentation-offload",
                "tso",
                SEGMENTATION_FACTOR,
            ),
            (
                (is_tcp || segments) && off("generic-segmentation-offload"),
                from,
                "generic-segmentation-offload",
                "gso",
                SEGMENTATION_FACTOR,
            ),
            (
                !is_tcp && off("tx-udp-segmentation") && segments,
                from,
                "tx-udp-segmentation",
                "tx-udp-segmentation",
                COALESCING_FACTOR,
            ),
            (
                off("tx-checksumming") && sends.name != "lo",
                from,
                "tx-checksumming",
                "tx",
                CHECKSUM_FACTOR,
            ),
            (
                is_tcp && joins("generic-receive-offload"),
                to,
                "generic-receive-offload",
                "gro",
                COALESCING_FACTOR,
            ),
            (
                joins("rx-checksumming"),
                to,
                "rx-checksumming",
                "rx",
                CHECKSUM_FACTOR,
            ),
        ]
        .into_iter()
        .filter(|(is_off, ..)| *is_off)
        .filter_map(|(_, role, name, short, factor)| {
            let interface = run.interface(role)?;
            // GRO computes checksums itself if the device does not.
            let lacks = short != "gro"
                && required_offloads(short)
                    .iter()
                    .any(|(requirement, _)| is_fixed_off(interface, requirement));
            let is_segmentation_fixed =
                short == "tso" && is_fixed(interface, direction.segmentation_offload());
            let is_fixed = is_fixed(interface, name) || is_segmentation_fixed || lacks;
            Some(DisabledOffload {
                role,
                name,
                option: short,
                factor,
                is_fixed,
            })
        })
        .collect()
    }

    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        // Our stack accepts packets up to its MTU only, no unsegmented ones.
        if direction.fills_path() || direction.uses_netstack(direction.receiver) {
            return None;
        }
        let sends = direction.sender_interface()?;
        let off = self.disabled_offloads(run, direction, sends);
        // An offload that cannot be changed is a limit of the device.
        let changeable = off.iter().find(|feature| !feature.is_fixed);
        let feature = changeable.or(off.first())?;
        let DisabledOffload {
            role,
            name: feature,
            option: short,
            factor,
            is_fixed,
        } = *feature;
        // Waiting for a core counts only for an end that works: one that polls without data waits
        // as long.
        let works = [FlowEnd::Sender, FlowEnd::Receiver]
            .into_iter()
            .filter_map(|part| direction.thread_time(part))
            .map(|time| match time.working >= MIN_ANY_WORK_SHARE {
                true => time.working + time.core_wait,
                false => time.working,
            })
            .fold(0.0, f64::max);
        // The number of packets does not matter if both ends have idle time, or if loss keeps only
        // a few packets in flight.
        let lacks_time = |part| {
            direction
                .thread_time(part)
                .is_some_and(|time| time.free_share() < MAX_FREE_SHARE)
        };
        let busy = lacks_time(FlowEnd::Sender) || lacks_time(FlowEnd::Receiver);
        if works < MIN_WORKING_SHARE
            || !busy
            || direction.is_loss_limited()
            || direction.is_cwnd_limited() && !super::is_saturated(direction)
        {
            return None;
        }
        let cost = (1.0 - 1.0 / factor) * works.min(1.0);
        let interface = &run.interface(role)?.name;
        let time = direction.thread_time(FlowEnd::Sender)?;
        let builder = FindingBuilder::limit_if(is_fixed, self.id(), role)
            .direction(direction.direction)
            .cost(cost)
            .summary(format!(
                "{feature} of {interface} is off at the {}{}: each packet is processed \
                 separately, and the busier end works for {} of the time",
                role.as_str(),
                if is_fixed {
                    ", and its driver does not support it"
                } else {
                    ""
                },
                format_share(works)
            ))
            .evidence(
                feature,
                if is_fixed { "off [fixed]" } else { "off" },
                "",
                format!("{} {interface} ethtool -k", role.as_str()),
            )
            .evidence(
                "working time of the sending threads",
                time.working,
                "share",
                schedstat_source(direction.sender),
            )
            .evidence_if(
                "driver",
                run.interface(role)?.driver.as_deref(),
                "",
                "ethtool -i",
            );
        if is_fixed {
            return builder
                .remedy(
                    "use another adapter or driver; a larger MTU on the full path, if supported, \
                     reduces the number of packets",
                )
                .build();
        }
        builder
            .remedy("enable the offload")
            .command(run.command_at(
                role,
                &format!(
                    "ethtool -K {interface} {}{short} on",
                    required_options(run.interface(role)?, short)
                ),
            ))
            .estimated_gain(
                Some(1.0 / (1.0 - cost)),
                "earlier tests, not this run: cost of a packet with the offload on veth (1/9 \
                 segmentation, 1/3 GRO, 1/1.3 checksums), Amdahl on the busier end's time",
            )
            .build()
    }
}

/// Returns true if the driver does not permit changing an offload.
fn is_fixed(interface: &InterfaceFacts, name: &str) -> bool {
    interface.fixed_offloads.iter().any(|fixed| fixed == name)
}

fn is_fixed_off(interface: &InterfaceFacts, name: &str) -> bool {
    interface.offloads.get(name) == Some(&false) && is_fixed(interface, name)
}

/// Returns the offloads that an offload requires, by their `ethtool -k` and `-K` names.
fn required_offloads(short: &str) -> &'static [(&'static str, &'static str)] {
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
fn required_options(interface: &InterfaceFacts, short: &str) -> String {
    let off =
        |name: &str| interface.offloads.get(name) == Some(&false) && !is_fixed(interface, name);
    let off = required_offloads(short)
        .iter()
        .filter(|(name, _)| off(name));
    off.map(|(_, short)| format!("{short} on ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn required_offloads_are_enabled_first() {
        let of = |offloads: BTreeMap<String, bool>, fixed: &[&str]| InterfaceFacts {
            offloads,
            fixed_offloads: fixed.iter().map(|&name| name.to_owned()).collect(),
            ..InterfaceFacts::default()
        };
        let set = |tx, sg| {
            BTreeMap::from([
                ("tx-checksumming".to_owned(), tx),
                ("scatter-gather".to_owned(), sg),
            ])
        };
        for (offloads, fixed, short, expected) in [
            (set(false, false), &[][..], "tso", "tx on sg on "),
            (set(true, false), &[], "gso", "sg on "),
            (set(true, true), &[], "tso", ""),
            (set(false, false), &[], "tx", ""),
            (BTreeMap::new(), &[], "tso", ""),
            // Offloads that cannot be changed are not in the command.
            (set(false, false), &["tx-checksumming"], "gso", "sg on "),
        ] {
            assert_eq!(
                required_options(&of(offloads.clone(), fixed), short),
                expected,
                "{offloads:?} {short}"
            );
        }
    }
}
