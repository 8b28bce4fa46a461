//! Limits of the server for one test.

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan};
use linerate_metric::record::Doubt;
use linerate_metric::units::{format_bit_rate, format_nanos};

use crate::error::MeasureError;

/// Extra time for a client whose requested time is within the limit, so that it ends the test
/// itself: its clock starts later, and it sends the end after its payload.
const GRACE_NS: Nanos = 1_000_000_000;

/// Limits of one test with another tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Payload bits per second that the server sends in one test; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// Duration of a test; `None` for no limit.
    pub time_ns: Option<Nanos>,
}

impl Limits {
    /// Returns the rate of one of `flows` flows to a client that requested `requested_bps` for it.
    #[must_use]
    pub fn rate(&self, asked_bps: Option<u64>, flows: u32) -> Option<u64> {
        let share = |most: u64| (most / u64::from(flows.max(1))).max(1);
        match (asked_bps, self.rate_bps.map(share)) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        }
    }

    /// Returns the duration of a test for which `requested_ns` was requested.
    #[must_use]
    pub fn time(&self, asked_ns: Option<Nanos>) -> Option<Nanos> {
        match (asked_ns, self.time_ns) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        }
    }

    /// Returns the error for a plan of our own protocol that exceeds the limits; the client can
    /// request less before payload moves.
    #[must_use]
    pub fn refusal(&self, plan: &Plan) -> Option<MeasureError> {
        let refused = |option: String, why: String, next_step: String| {
            Some(MeasureError::OptionRefused {
                option,
                why,
                next_step,
            })
        };
        if let (Some(most), Some(asked)) = (self.time_ns, asked_ns(plan))
            && asked > most
        {
            return refused(
                format!("-t {}", format_nanos(asked as f64)),
                format!("the server ends tests after {}", format_nanos(most as f64)),
                format!(
                    "use -t {}, or start the server with a higher --max-time",
                    most as f64 / 1e9
                ),
            );
        }
        let sends = plan.kind == Kind::Throughput && plan.flows(Direction::Receive);
        let streams = u64::from(plan.streams.max(1));
        let asked = plan.rate_bps.map(|rate| rate.saturating_mul(streams));
        match self.rate_bps {
            Some(most) if sends && asked.is_none_or(|asked| asked > most) => refused(
                match asked {
                    Some(asked) => format!("-R at {}", format_bit_rate(asked as f64)),
                    None => "-R at any rate".to_owned(),
                },
                format!(
                    "the server sends no more than {} in one test",
                    format_bit_rate(most as f64)
                ),
                format!(
                    "use -b {}, or start the server with a higher --max-rate",
                    rate_word((most / streams).max(1))
                ),
            ),
            _ => None,
        }
    }

    /// Returns the time limit of a test of our own protocol with this plan, and the caveat for a
    /// test that reaches it.
    #[must_use]
    pub fn most(&self, plan: &Plan) -> Option<(Nanos, Doubt)> {
        let most = self.time_ns?;
        let grace = if asked_ns(plan).is_some() {
            GRACE_NS
        } else {
            0
        };
        Some((most.saturating_add(grace), cut_short(most)))
    }

    /// Returns the time at which the server ends a test with this plan that started at `start_ns`,
    /// omitted time included; `None` for never.
    #[must_use]
    pub fn end_ns(&self, plan: &Plan, start_ns: Nanos) -> Option<Nanos> {
        let most = self.time_ns?;
        let ends_itself = asked_ns(plan).is_some_and(|asked| asked <= most);
        let grace = if ends_itself { GRACE_NS } else { 0 };
        Some(start_ns.saturating_add(most).saturating_add(grace))
    }

    /// Returns a caveat for each value of a plan that the limits reduce.
    #[must_use]
    pub fn held_back(&self, plan: &Plan) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        let rate = plan
            .rate_bps
            .map(|rate| rate.saturating_mul(u64::from(plan.streams)));
        if let Some(most) = self.rate_bps
            && plan.flows(Direction::Receive)
            && rate.is_none_or(|rate| rate > most)
        {
            doubts.push(Doubt::new(
                "held-to-max-rate",
                format!(
                    "the server sends no more than {} in one test (its --max-rate)",
                    format_bit_rate(most as f64)
                ),
            ));
        }
        if let (Some(most), Some(asked)) = (self.time_ns, asked_ns(plan))
            && asked > most
        {
            doubts.push(cut_short(most));
        }
        doubts
    }
}

/// Returns the caveat of a test that reached the time limit.
pub fn cut_short(most_ns: Nanos) -> Doubt {
    let after = format_nanos(most_ns as f64);
    let why = format!("the server ends tests after {after} (its --max-time)");
    Doubt::new("cut-short", why)
}

/// Formats a rate as a command-line argument.
fn rate_word(bps: u64) -> String {
    match bps {
        bps if bps % 1_000_000 == 0 => format!("{}M", bps / 1_000_000),
        bps if bps % 1_000 == 0 => format!("{}K", bps / 1_000),
        bps => bps.to_string(),
    }
}

/// Returns the duration that the client requested, omitted time included; `None` if it requested
/// none.
fn asked_ns(plan: &Plan) -> Option<Nanos> {
    Some(plan.duration_ns?.saturating_add(plan.omit_ns))
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::Protocol;

    use super::*;

    #[test]
    fn our_own_clients_learn_what_they_may_ask_for() {
        let limits = Limits {
            rate_bps: Some(20_000_000),
            time_ns: Some(2_000_000_000),
        };
        let next = |plan: &Plan| {
            let refusal = limits.refusal(plan)?;
            Some(refusal.problem().next_step)
        };
        let most = |limits: &Limits, plan: &Plan| limits.most(plan).map(|(most, _)| most);
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "here");
        plan.duration_ns = Some(2_000_000_000);
        assert_eq!(next(&plan), None, "what is sent to us has no rate");
        plan.omit_ns = 1;
        assert!(next(&plan).unwrap().starts_with("use -t 2,"));
        plan.omit_ns = 0;
        plan.directions = vec![Direction::Receive];
        plan.streams = 4;
        assert!(next(&plan).unwrap().starts_with("use -b 5M,"));
        plan.rate_bps = Some(5_000_001);
        assert!(next(&plan).unwrap().starts_with("use -b 5M,"));
        plan.rate_bps = Some(5_000_000);
        assert_eq!(next(&plan), None);
        // The client ends it itself, a moment later by our clock.
        assert_eq!(most(&limits, &plan), Some(3_000_000_000));
        plan.duration_ns = None;
        plan.amount_bytes = Some(1 << 40);
        assert_eq!(next(&plan), None);
        assert_eq!(most(&limits, &plan), Some(2_000_000_000));
        assert_eq!(most(&Limits::default(), &plan), None);
    }

    #[test]
    fn what_is_asked_is_given_up_to_the_limit() {
        let limits = Limits {
            rate_bps: Some(20_000_000),
            time_ns: Some(2_000_000_000),
        };
        for (asked, flows, given) in [
            (None, 1, 20_000_000),
            (None, 4, 5_000_000),
            (Some(1_000_000), 4, 1_000_000),
            (Some(50_000_000), 1, 20_000_000),
            (Some(50_000_000), 0, 20_000_000),
        ] {
            assert_eq!(limits.rate(asked, flows), Some(given), "{asked:?} {flows}");
        }
        assert_eq!(limits.time(Some(1)), Some(1));
        assert_eq!(limits.time(None), Some(2_000_000_000));
        let none = Limits::default();
        assert_eq!((none.rate(None, 3), none.time(Some(7))), (None, Some(7)));
    }

    #[test]
    fn only_who_ends_by_himself_is_waited_for() {
        let limits = Limits {
            time_ns: Some(2_000_000_000),
            ..Limits::default()
        };
        let second = 1_000_000_000;
        for (asked, omitted, end) in [
            (Some(2 * second), 0, 8 * second),
            (Some(3 * second), 0, 7 * second),
            (Some(second), second, 8 * second),
            (Some(second), 2 * second, 7 * second),
            (None, 0, 7 * second),
        ] {
            let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "here");
            (plan.duration_ns, plan.omit_ns) = (asked, omitted);
            let given = limits.end_ns(&plan, 5 * second);
            assert_eq!(given, Some(end), "{asked:?} and {omitted} omitted");
        }
        let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "here");
        assert_eq!(Limits::default().end_ns(&plan, 0), None);
    }

    #[test]
    fn only_what_is_held_back_is_told() {
        let limits = Limits {
            rate_bps: Some(20_000_000),
            time_ns: Some(2_000_000_000),
        };
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "here");
        plan.duration_ns = Some(2_000_000_000);
        assert_eq!(
            limits.held_back(&plan),
            [],
            "what is sent to us has no rate"
        );
        plan.directions = vec![Direction::Receive];
        plan.duration_ns = Some(3_000_000_000);
        let ids = |plan: &Plan| -> Vec<String> {
            let doubts = limits.held_back(plan).into_iter();
            doubts.map(|doubt| doubt.doubt).collect()
        };
        assert_eq!(ids(&plan), ["held-to-max-rate", "cut-short"]);
        plan.rate_bps = Some(10_000_000);
        assert_eq!(ids(&plan), ["cut-short"]);
        plan.streams = 3;
        assert_eq!(ids(&plan), ["held-to-max-rate", "cut-short"]);
    }
}
