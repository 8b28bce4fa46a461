//! Limits of the server for one test.

use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, Plan, RunKind};
use linerate_record::record::Caveat;
use linerate_session::error::SessionError;
use linerate_stats::units::{format_bit_rate, format_nanos};
use linerate_sys::clock::Nanos;

/// Extra time for a client whose requested time is within the limit, so that it ends the test
/// itself: its clock starts later, and it sends the end after its payload.
const END_GRACE_NS: Nanos = 1_000_000_000;

/// Limits of one test with another tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InteropLimits {
    /// Payload bits per second that the server sends in one test; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// Duration of a test; `None` for no limit.
    pub time_ns: Option<Nanos>,
}

impl InteropLimits {
    /// Returns the rate of one of `flows` flows to a client that requested `requested_bps` for it.
    #[must_use]
    pub fn rate(&self, requested_bps: Option<u64>, flows: u32) -> Option<u64> {
        let share = |limit: u64| (limit / u64::from(flows.max(1))).max(1);
        match (requested_bps, self.rate_bps.map(share)) {
            (Some(requested), Some(limit)) => Some(requested.min(limit)),
            (requested, limit) => requested.or(limit),
        }
    }

    /// Returns the duration of a test for which `requested_ns` was requested.
    #[must_use]
    pub fn time(&self, requested_ns: Option<Nanos>) -> Option<Nanos> {
        match (requested_ns, self.time_ns) {
            (Some(requested), Some(limit)) => Some(requested.min(limit)),
            (requested, limit) => requested.or(limit),
        }
    }

    /// Returns the error for a plan of our own protocol that exceeds the limits; the client can
    /// request less before payload moves.
    #[must_use]
    pub fn reject_plan(&self, plan: &Plan) -> Option<SessionError> {
        let reject = |option: String, reason: String, next_step: String| {
            Some(SessionError::OptionRejected {
                option,
                why: reason,
                next_step,
            })
        };
        if let (Some(limit), Some(requested)) = (self.time_ns, requested_ns(plan))
            && requested > limit
        {
            return reject(
                format!("-t {}", format_nanos(requested as f64)),
                format!("the server ends tests after {}", format_nanos(limit as f64)),
                format!(
                    "use -t {}, or start the server with a higher --max-time",
                    limit as f64 / 1e9
                ),
            );
        }
        let sends = plan.kind == RunKind::Throughput && plan.has_direction(Direction::Receive);
        let streams = u64::from(plan.streams.max(1));
        let requested = plan.rate_bps.map(|rate| rate.saturating_mul(streams));
        match self.rate_bps {
            Some(limit) if sends && requested.is_none_or(|requested| requested > limit) => reject(
                match requested {
                    Some(requested) => format!("-R at {}", format_bit_rate(requested as f64)),
                    None => "-R at any rate".to_owned(),
                },
                format!(
                    "the server sends no more than {} in one test",
                    format_bit_rate(limit as f64)
                ),
                format!(
                    "use -b {}, or start the server with a higher --max-rate",
                    format_rate_argument((limit / streams).max(1))
                ),
            ),
            _ => None,
        }
    }

    /// Returns the time limit of a test of our own protocol with this plan, and the caveat for a
    /// test that reaches it.
    #[must_use]
    pub fn time_limit(&self, plan: &Plan) -> Option<(Nanos, Caveat)> {
        let limit = self.time_ns?;
        let grace = if requested_ns(plan).is_some() {
            END_GRACE_NS
        } else {
            0
        };
        Some((limit.saturating_add(grace), time_limit_caveat(limit)))
    }

    /// Returns the time at which the server ends a test with this plan that started at `start_ns`,
    /// omitted time included; `None` for never.
    #[must_use]
    pub fn end_ns(&self, plan: &Plan, start_ns: Nanos) -> Option<Nanos> {
        let limit = self.time_ns?;
        let ends_itself = requested_ns(plan).is_some_and(|requested| requested <= limit);
        let grace = if ends_itself { END_GRACE_NS } else { 0 };
        Some(start_ns.saturating_add(limit).saturating_add(grace))
    }

    /// Returns a caveat for each value of a plan that the limits reduce.
    #[must_use]
    pub fn limit_caveats(&self, plan: &Plan) -> Vec<Caveat> {
        let mut caveats = Vec::new();
        let rate = plan
            .rate_bps
            .map(|rate| rate.saturating_mul(u64::from(plan.streams)));
        if let Some(limit) = self.rate_bps
            && plan.has_direction(Direction::Receive)
            && rate.is_none_or(|rate| rate > limit)
        {
            caveats.push(Caveat::new(
                CaveatId::HeldToMaxRate,
                format!(
                    "the server sends no more than {} in one test (its --max-rate)",
                    format_bit_rate(limit as f64)
                ),
            ));
        }
        if let (Some(limit), Some(requested)) = (self.time_ns, requested_ns(plan))
            && requested > limit
        {
            caveats.push(time_limit_caveat(limit));
        }
        caveats
    }
}

/// Returns the caveat of a test that reached the time limit.
pub fn time_limit_caveat(limit_ns: Nanos) -> Caveat {
    let after = format_nanos(limit_ns as f64);
    let why = format!("the server ends tests after {after} (its --max-time)");
    Caveat::new(CaveatId::CutShort, why)
}

/// Formats a rate as a command-line argument.
fn format_rate_argument(bps: u64) -> String {
    match bps {
        bps if bps % 1_000_000 == 0 => format!("{}M", bps / 1_000_000),
        bps if bps % 1_000 == 0 => format!("{}K", bps / 1_000),
        bps => bps.to_string(),
    }
}

/// Returns the duration that the client requested, omitted time included; `None` if it requested
/// none.
fn requested_ns(plan: &Plan) -> Option<Nanos> {
    Some(plan.duration_ns?.saturating_add(plan.omit_ns))
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::TransportProtocol;

    use super::*;

    #[test]
    fn rejected_plans_of_our_clients_name_the_limit() {
        let limits = InteropLimits {
            rate_bps: Some(20_000_000),
            time_ns: Some(2_000_000_000),
        };
        let next = |plan: &Plan| {
            let rejection = limits.reject_plan(plan)?;
            Some(rejection.to_report().next_step)
        };
        let limit =
            |limits: &InteropLimits, plan: &Plan| limits.time_limit(plan).map(|(limit, _)| limit);
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "here");
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
        assert_eq!(limit(&limits, &plan), Some(3_000_000_000));
        plan.duration_ns = None;
        plan.amount_bytes = Some(1 << 40);
        assert_eq!(next(&plan), None);
        assert_eq!(limit(&limits, &plan), Some(2_000_000_000));
        assert_eq!(limit(&InteropLimits::default(), &plan), None);
    }

    #[test]
    fn requests_are_granted_up_to_the_limit() {
        let limits = InteropLimits {
            rate_bps: Some(20_000_000),
            time_ns: Some(2_000_000_000),
        };
        for (requested, flows, granted) in [
            (None, 1, 20_000_000),
            (None, 4, 5_000_000),
            (Some(1_000_000), 4, 1_000_000),
            (Some(50_000_000), 1, 20_000_000),
            (Some(50_000_000), 0, 20_000_000),
        ] {
            assert_eq!(
                limits.rate(requested, flows),
                Some(granted),
                "{requested:?} {flows}"
            );
        }
        assert_eq!(limits.time(Some(1)), Some(1));
        assert_eq!(limits.time(None), Some(2_000_000_000));
        let none = InteropLimits::default();
        assert_eq!((none.rate(None, 3), none.time(Some(7))), (None, Some(7)));
    }

    #[test]
    fn only_clients_that_end_in_time_get_the_grace_time() {
        let limits = InteropLimits {
            time_ns: Some(2_000_000_000),
            ..InteropLimits::default()
        };
        let second = 1_000_000_000;
        for (requested, omitted, end) in [
            (Some(2 * second), 0, 8 * second),
            (Some(3 * second), 0, 7 * second),
            (Some(second), second, 8 * second),
            (Some(second), 2 * second, 7 * second),
            (None, 0, 7 * second),
        ] {
            let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "here");
            (plan.duration_ns, plan.omit_ns) = (requested, omitted);
            let granted = limits.end_ns(&plan, 5 * second);
            assert_eq!(granted, Some(end), "{requested:?} and {omitted} omitted");
        }
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "here");
        assert_eq!(InteropLimits::default().end_ns(&plan, 0), None);
    }

    #[test]
    fn only_reduced_values_are_noted() {
        let limits = InteropLimits {
            rate_bps: Some(20_000_000),
            time_ns: Some(2_000_000_000),
        };
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "here");
        plan.duration_ns = Some(2_000_000_000);
        assert_eq!(
            limits.limit_caveats(&plan),
            [],
            "what is sent to us has no rate"
        );
        plan.directions = vec![Direction::Receive];
        plan.duration_ns = Some(3_000_000_000);
        let ids = |plan: &Plan| -> Vec<_> {
            let caveats = limits.limit_caveats(plan).into_iter();
            caveats.map(|caveat| caveat.id).collect()
        };
        assert_eq!(ids(&plan), [CaveatId::HeldToMaxRate, CaveatId::CutShort]);
        plan.rate_bps = Some(10_000_000);
        assert_eq!(ids(&plan), [CaveatId::CutShort]);
        plan.streams = 3;
        assert_eq!(ids(&plan), [CaveatId::HeldToMaxRate, CaveatId::CutShort]);
    }
}
