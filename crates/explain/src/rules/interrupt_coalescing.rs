//! A device holds its interrupts back.

use linerate_metric::facts::{Coalescing, Role};
use linerate_metric::finding::Finding;
use linerate_metric::units::format_nanos;

use crate::Rule;
use crate::case::{Case, name};
use crate::draft::Draft;

/// Share of a median round trip from which it matters.
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
        // One frame is enough for an interrupt: then nothing is held back.
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
                "{} of the {end} holds the interrupt of a received frame back for up to {}: that is part of each round trip",
                interface.name,
                format_nanos(held)
            ))
            .seen("rx-usecs", coalescing.rx_us, "us", at.clone())
            .seen("rx-frames", coalescing.rx_frames, "frames", at.clone())
            .seen("adaptive-rx", if coalescing.adaptive_rx { "on" } else { "off" }, "", at)
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen_if("settings that the driver knows", known, "", format!("{end} {} ethtool -c", interface.name));
        let Some(words) = command else {
            return draft.remedy("its driver lets nobody change that: another adapter, or another driver of it").found();
        };
        draft
            .remedy("let it interrupt at once where round trips matter; throughput costs more interrupts then")
            .command(case.at(role, &format!("ethtool -C {}{words}", interface.name)))
            .gain(Some(1.0 / (1.0 - share)), "p50 / (p50 - rx-usecs)")
            .found()
    }
}

/// What `ethtool -C` is to be told, as far as the driver knows it: the kernel refuses all of it for one word too many.
/// Where nobody told what it knows, what it has a value of.
fn at_once(now: Coalescing, settings: &[String]) -> Option<String> {
    let knows = |name: &str, has: bool| match settings.is_empty() {
        true => has,
        false => settings.iter().any(|known| known == name),
    };
    // A driver that changes the time by itself has to be stopped first, and one that knows no number of frames counts
    // by time alone.
    let words = [
        (now.adaptive_rx && knows("adaptive-rx", true), " adaptive-rx off"),
        (knows("rx-usecs", true), " rx-usecs 0"),
        (knows("rx-frames", now.rx_frames > 0), " rx-frames 1"),
    ];
    let words: String = words.into_iter().filter(|(asked, _)| *asked).map(|(_, words)| words).collect();
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
            (false, 0, &["rx-usecs", "rx-frames"], Some(" rx-usecs 0 rx-frames 1")),
            (true, 0, &["rx-usecs", "tx-usecs", "adaptive-rx"], Some(" adaptive-rx off rx-usecs 0")),
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
            assert_eq!(at_once(now, &settings).as_deref(), want, "{adaptive_rx} {rx_frames} {settings:?}");
        }
    }
}
