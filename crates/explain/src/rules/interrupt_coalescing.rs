//! A device delays its interrupts.

use linerate_metric::facts::{Coalescing, Role};
use linerate_metric::finding::Finding;
use linerate_metric::units::format_nanos;

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, name};

/// Smallest share of a median round trip that matters.
const MATTERS: f64 = 0.1;

/// See docs/CAUSES.md#interrupt-coalescing.
pub struct InterruptCoalescing;

impl Rule for InterruptCoalescing {
    fn id(&self) -> &'static str {
        "interrupt-coalescing"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| self.of(case, role))
            .collect()
    }
}

impl InterruptCoalescing {
    fn of(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        if !case.is_latency() || case.plan.round_trip.outstanding > 8 {
            return None;
        }
        let interface = case.device(role)?;
        let coalescing = interface.coalescing?;
        // An interrupt for every frame: nothing is delayed.
        if coalescing.rx_us == 0 || coalescing.rx_frames == 1 {
            return None;
        }
        let rtt = case.record.summary.rtt_ns?;
        let held = f64::from(coalescing.rx_us) * 1e3;
        let share = (held / rtt.p50.max(1) as f64).min(0.9);
        if share < MATTERS || held > 1.1 * rtt.p50 as f64 {
            return None;
        }
        let known = Some(interface.coalescing_settings.join(" ")).filter(|known| !known.is_empty());
        let end = name(role);
        let at = format!("{end} {} ethtool -c", interface.name);
        let command = at_once(coalescing, &interface.coalescing_settings);
        let draft = Draft::limit_if(command.is_none(), self.id(), role)
            .cost(share)
            .says(format!(
                "{} of the {end} delays the interrupt of a received frame by up to {}, in each \
                 round trip",
                interface.name,
                format_nanos(held)
            ))
            .seen("rx-usecs", coalescing.rx_us, "us", at.clone())
            .seen("rx-frames", coalescing.rx_frames, "frames", at.clone())
            .seen(
                "adaptive-rx",
                if coalescing.adaptive_rx { "on" } else { "off" },
                "",
                at,
            )
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen_if(
                "supported settings",
                known,
                "",
                format!("{end} {} ethtool -c", interface.name),
            );
        let Some(words) = command else {
            return draft
                .remedy("the driver does not support changing it: use another adapter or driver")
                .found();
        };
        draft
            .remedy(
                "disable the delay if round trips matter; throughput then costs more interrupts",
            )
            .command(case.at(role, &format!("ethtool -C {}{words}", interface.name)))
            .gain(Some(1.0 / (1.0 - share)), "p50 / (p50 - rx-usecs)")
            .found()
    }
}

/// Returns the arguments of `ethtool -C` that disable the delay. Only settings that the driver
/// supports are included, because the kernel rejects the command for one unsupported setting. If
/// the supported settings are unknown, those with a value are included.
fn at_once(now: Coalescing, settings: &[String]) -> Option<String> {
    let knows = |name: &str, has: bool| match settings.is_empty() {
        true => has,
        false => settings.iter().any(|known| known == name),
    };
    // Adaptive coalescing must be disabled first. A driver without a frame count delays by time
    // only.
    let words = [
        (
            now.adaptive_rx && knows("adaptive-rx", true),
            " adaptive-rx off",
        ),
        (knows("rx-usecs", true), " rx-usecs 0"),
        (knows("rx-frames", now.rx_frames > 0), " rx-frames 1"),
    ];
    let words: String = words
        .into_iter()
        .filter(|(asked, _)| *asked)
        .map(|(_, words)| words)
        .collect();
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_told_what_it_knows() {
        for (adaptive_rx, rx_frames, settings, want) in [
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
            let now = Coalescing {
                rx_us: 50,
                rx_frames,
                adaptive_rx,
                ..Coalescing::default()
            };
            let settings: Vec<String> = settings.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(
                at_once(now, &settings).as_deref(),
                want,
                "{adaptive_rx} {rx_frames} {settings:?}"
            );
        }
    }
}
