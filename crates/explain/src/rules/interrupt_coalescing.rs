//! A device delays its interrupts.

use linerate_record::facts::{CoalescingSettings, Role};
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_stats::units::format_nanos;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Smallest share of a median round trip that matters.
const MIN_RELEVANT_SHARE: f64 = 0.1;

/// Most outstanding requests at which each round trip waits for interrupts.
const MAX_DELAYED_REQUESTS: u32 = 8;

/// Delay over median round trip from which round trips did not wait for it, and largest cost.
const MAX_DELAY_RATIO: f64 = 1.1;
const MAX_COST: f64 = 0.9;

/// See docs/CAUSES.md#interrupt-coalescing.
pub struct InterruptCoalescing;

impl Rule for InterruptCoalescing {
    fn id(&self) -> CauseId {
        CauseId::InterruptCoalescing
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A device delays its interrupts.",
            shown_when: vec![detection(
                "round trips",
                [
                    format!(
                        "`rx-usecs` is {} to {} of the median",
                        percent(MIN_RELEVANT_SHARE),
                        percent(MAX_DELAY_RATIO)
                    ),
                    "an interrupt may report more than one frame (`rx-frames`)".into(),
                    format!("{MAX_DELAYED_REQUESTS} requests at most are outstanding"),
                ],
            )],
            limit_when: vec!["the driver supports none of the settings".into()],
            not_when: vec!["virtual interfaces and loopback".into()],
            evidence: &[
                ("rx-usecs", "us"),
                ("rx-frames", "frames"),
                ("adaptive-rx", ""),
                ("rtt_ns.p50", "ns"),
                ("supported settings", ""),
            ],
            cost: vec![format!(
                "`rx-usecs` as a share of the median, {} at most.",
                percent(MAX_COST)
            )],
            remedy: vec![
                "`ethtool -C IF adaptive-rx off rx-usecs 0 rx-frames 1`, as far as the driver \
                 supports these settings (`ethtool -c`)."
                    .into(),
                "The kernel rejects the whole command for one unsupported setting.".into(),
            ],
            wrong_when: vec!["an adaptive driver had it at 0 meanwhile".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| self.evaluate_end(run, role))
            .collect()
    }
}

impl InterruptCoalescing {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        if !run.is_latency() || run.plan.round_trip.outstanding > MAX_DELAYED_REQUESTS {
            return None;
        }
        let interface = run.device(role)?;
        let coalescing = interface.coalescing?;
        // An interrupt for every frame: nothing is delayed.
        if coalescing.rx_us == 0 || coalescing.rx_frames == 1 {
            return None;
        }
        let rtt = run.record.summary.rtt_ns?;
        let delay_ns = f64::from(coalescing.rx_us) * 1e3;
        let share = (delay_ns / rtt.p50.max(1) as f64).min(MAX_COST);
        if share < MIN_RELEVANT_SHARE || delay_ns > MAX_DELAY_RATIO * rtt.p50 as f64 {
            return None;
        }
        let supported =
            Some(interface.coalescing_settings.join(" ")).filter(|supported| !supported.is_empty());
        let end = role.as_str();
        let at = format!("{end} {} ethtool -c", interface.name);
        let command = disable_arguments(coalescing, &interface.coalescing_settings);
        let builder = FindingBuilder::limit_if(command.is_none(), self.id(), role)
            .cost(share)
            .summary(format!(
                "{} of the {end} delays the interrupt of a received frame by up to {}, in each \
                 round trip",
                interface.name,
                format_nanos(delay_ns)
            ))
            .evidence("rx-usecs", coalescing.rx_us, "us", at.clone())
            .evidence("rx-frames", coalescing.rx_frames, "frames", at.clone())
            .evidence(
                "adaptive-rx",
                if coalescing.adaptive_rx { "on" } else { "off" },
                "",
                at,
            )
            .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
            .evidence_if(
                "supported settings",
                supported,
                "",
                format!("{end} {} ethtool -c", interface.name),
            );
        let Some(arguments) = command else {
            return builder
                .remedy("the driver does not support changing it: use another adapter or driver")
                .build();
        };
        builder
            .remedy(
                "disable the delay if round trips matter; throughput then costs more interrupts",
            )
            .command(run.command_at(role, &format!("ethtool -C {}{arguments}", interface.name)))
            .gain(Some(1.0 / (1.0 - share)), "p50 / (p50 - rx-usecs)")
            .build()
    }
}

/// Returns the arguments of `ethtool -C` that disable the delay. Only settings that the driver
/// supports are included, because the kernel rejects the command for one unsupported setting. If
/// the supported settings are unknown, those with a value are included.
fn disable_arguments(now: CoalescingSettings, settings: &[String]) -> Option<String> {
    let is_supported = |name: &str, has: bool| match settings.is_empty() {
        true => has,
        false => settings.iter().any(|setting| setting == name),
    };
    // Adaptive coalescing must be disabled first. A driver without a frame count delays by time
    // only.
    let arguments = [
        (
            now.adaptive_rx && is_supported("adaptive-rx", true),
            " adaptive-rx off",
        ),
        (is_supported("rx-usecs", true), " rx-usecs 0"),
        (is_supported("rx-frames", now.rx_frames > 0), " rx-frames 1"),
    ];
    let arguments: String = arguments
        .into_iter()
        .filter(|(is_needed, _)| *is_needed)
        .map(|(_, arguments)| arguments)
        .collect();
    (!arguments.is_empty()).then_some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_supported_settings_are_changed() {
        for (adaptive_rx, rx_frames, settings, expected) in [
            (false, 0, &[][..], Some(" rx-usecs 0")),
            (true, 0, &[], Some(" adaptive-rx off rx-usecs 0")),
            (false, 25, &[], Some(" rx-usecs 0 rx-frames 1")),
            (
                false,
                0,
                &["rx-usecs", "rx-frames"],
                Some(" rx-usecs 0 rx-frames 1"),
            ),
            (
                true,
                0,
                &["rx-usecs", "tx-usecs", "adaptive-rx"],
                Some(" adaptive-rx off rx-usecs 0"),
            ),
            (false, 8, &["rx-frames", "tx-frames"], Some(" rx-frames 1")),
            (true, 0, &["adaptive-rx"], Some(" adaptive-rx off")),
            (false, 0, &["adaptive-rx"], None),
            (false, 0, &["tx-usecs"], None),
        ] {
            let now = CoalescingSettings {
                rx_us: 50,
                rx_frames,
                adaptive_rx,
                ..CoalescingSettings::default()
            };
            let settings: Vec<String> = settings.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(
                disable_arguments(now, &settings).as_deref(),
                expected,
                "{adaptive_rx} {rx_frames} {settings:?}"
            );
        }
    }
}
