//! Retry policy: whether a point that could not be measured is retried or skipped, or ends the
//! experiment.

use std::time::Duration;

use linerate_record::event::{ErrorReport, Retryable};

/// Maximum number of tries of a point whose failure may be transient.
const MAX_TRIES: u32 = 4;

/// Maximum number of tries in the rounds after one in which all tries of the point failed.
const MAX_TRIES_IN_LATER_ROUNDS: u32 = 1;

/// Pause between two tries, for example while a server starts or another run ends.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Failure of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PointFailure {
    pub(crate) problem: ErrorReport,
    /// Exit code for it.
    pub(crate) exit_code: u8,
}

/// Next action after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    Retry,
    /// Skip the point; others may succeed.
    Skip,
    /// End the experiment: every other point would fail the same way.
    End,
}

/// Failures of an experiment so far.
#[derive(Debug, Default)]
pub(crate) struct FailureHistory {
    /// True if a point was measured: a later failure does not affect all points.
    pub(crate) any_measured: bool,
    /// Error of the last point skipped in this round.
    last_skip_reason: Option<String>,
}

impl FailureHistory {
    /// Starts another round: an unreachable host may be back.
    pub(crate) fn start_round(&mut self) {
        self.last_skip_reason = None;
    }

    /// State without failures; `any_measured`: an earlier process measured a point.
    pub(crate) fn new(any_measured: bool) -> Self {
        Self {
            any_measured,
            last_skip_reason: None,
        }
    }

    /// Returns the action after `tries` tries of a point in this round; `skipped_before`: the
    /// previous round skipped it.
    pub(crate) fn next_action(
        &mut self,
        failure: &PointFailure,
        tries: u32,
        skipped_before: bool,
    ) -> NextAction {
        let problem = &failure.problem;
        let max_tries = if skipped_before {
            MAX_TRIES_IN_LATER_ROUNDS
        } else {
            MAX_TRIES
        };
        if problem.retryable == Some(Retryable::Transient) && tries < max_tries {
            return NextAction::Retry;
        }
        if self.any_measured {
            return NextAction::Skip;
        }
        // Two points in a row failed with the same error after several tries: the host is not
        // available.
        let error_text = problem.to_string();
        let is_repeated = self.last_skip_reason.as_ref() == Some(&error_text);
        self.last_skip_reason = Some(error_text);
        match problem.retryable {
            Some(Retryable::Permanent) => NextAction::End,
            Some(Retryable::Transient) if is_repeated && !skipped_before => NextAction::End,
            _ => NextAction::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(retryable: Option<Retryable>) -> PointFailure {
        PointFailure {
            problem: ErrorReport::new("no", "far", "mend it").with_retryable(retryable),
            exit_code: 5,
        }
    }

    #[test]
    fn permanent_errors_end_the_run_and_transient_ones_are_retried() {
        let permanent = failure(Some(Retryable::Permanent));
        let transient = failure(Some(Retryable::Transient));
        let unknown = failure(None);
        assert_eq!(
            FailureHistory::default().next_action(&permanent, 1, false),
            NextAction::End
        );
        // An invalid option of one point does not affect the others.
        let mut failures = FailureHistory::default();
        assert_eq!(failures.next_action(&unknown, 1, false), NextAction::Skip);
        assert_eq!(failures.next_action(&unknown, 1, false), NextAction::Skip);
        // All tries, and equally many at a second point.
        let mut failures = FailureHistory::default();
        use NextAction::{End, Retry, Skip};
        assert_eq!(
            failures.next_action(&transient, MAX_TRIES - 1, false),
            Retry
        );
        assert_eq!(failures.next_action(&transient, MAX_TRIES, false), Skip);
        assert_eq!(failures.next_action(&transient, 1, false), Retry);
        assert_eq!(failures.next_action(&transient, MAX_TRIES, false), End);
        // Other points were measured, so the error does not affect all of them.
        let mut failures = FailureHistory {
            any_measured: true,
            ..FailureHistory::default()
        };
        assert_eq!(failures.next_action(&permanent, 1, false), Skip);
        assert_eq!(failures.next_action(&transient, MAX_TRIES, false), Skip);
        assert_eq!(failures.next_action(&transient, MAX_TRIES, false), Skip);
    }

    #[test]
    fn a_skipped_point_is_tried_once_in_the_next_round() {
        let transient = failure(Some(Retryable::Transient));
        let mut failures = FailureHistory {
            any_measured: true,
            ..FailureHistory::default()
        };
        assert_eq!(
            failures.next_action(&transient, 1, false),
            NextAction::Retry
        );
        assert_eq!(failures.next_action(&transient, 1, true), NextAction::Skip);
    }

    #[test]
    fn one_failing_point_does_not_end_the_run() {
        let transient = failure(Some(Retryable::Transient));
        let mut failures = FailureHistory::default();
        assert_eq!(
            failures.next_action(&transient, MAX_TRIES, false),
            NextAction::Skip
        );
        failures.start_round();
        assert_eq!(failures.next_action(&transient, 1, true), NextAction::Skip);
        // A second point with a single try is no reason to give up either.
        assert_eq!(failures.next_action(&transient, 1, true), NextAction::Skip);
        failures.start_round();
        assert_eq!(
            failures.next_action(&transient, MAX_TRIES, false),
            NextAction::Skip
        );
        assert_eq!(
            failures.next_action(&transient, MAX_TRIES, false),
            NextAction::End
        );
    }
}
