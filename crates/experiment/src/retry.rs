//! Retry policy: whether a point that could not be measured is retried or skipped, or ends the
//! experiment.

use std::time::Duration;

use linerate_metric::event::{Again, Problem};

/// Maximum number of tries of a point whose failure may be transient.
const TRIES: u32 = 4;

/// Maximum number of tries in the rounds after one in which all tries of the point failed.
const TRIES_LATER: u32 = 1;

/// Pause between two tries, for example while a server starts or another run ends.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Failure of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) problem: Problem,
    /// Exit code for it.
    pub(crate) code: u8,
}

/// Next action after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    TryAgain,
    /// Skip the point; others may succeed.
    LeaveIt,
    /// End the experiment: every other point would fail the same way.
    End,
}

/// Failures of an experiment so far.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// True if a point was measured: a later failure does not affect all points.
    pub(crate) measured: bool,
    /// Error of the last point skipped in this round.
    left_for: Option<String>,
}

impl Failures {
    /// Starts another round: an unreachable host may be back.
    pub(crate) fn another_round(&mut self) {
        self.left_for = None;
    }

    /// State without failures; `measured`: an earlier process measured a point.
    pub(crate) fn after_measuring(measured: bool) -> Self {
        Self {
            measured,
            left_for: None,
        }
    }

    /// Returns the action after `tries` tries of a point in this round; `before`: the previous
    /// round skipped it.
    pub(crate) fn after(&mut self, failed: &Failed, tries: u32, before: bool) -> Then {
        let problem = &failed.problem;
        let most = if before { TRIES_LATER } else { TRIES };
        if problem.again == Some(Again::MayPass) && tries < most {
            return Then::TryAgain;
        }
        if self.measured {
            return Then::LeaveIt;
        }
        // Two points in a row failed with the same error after several tries: the host is not
        // available.
        let said = problem.to_string();
        let same = self.left_for.as_ref() == Some(&said);
        self.left_for = Some(said);
        match problem.again {
            Some(Again::Stays) => Then::End,
            Some(Again::MayPass) if same && !before => Then::End,
            _ => Then::LeaveIt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(again: Option<Again>) -> Failed {
        Failed {
            problem: Problem::new("no", "far", "mend it").asking_again(again),
            code: 5,
        }
    }

    #[test]
    fn a_mistake_that_stays_ends_it_and_what_may_pass_is_tried_again() {
        let stays = failed(Some(Again::Stays));
        let passes = failed(Some(Again::MayPass));
        let unknown = failed(None);
        assert_eq!(Failures::default().after(&stays, 1, false), Then::End);
        // An invalid option of one point does not affect the others.
        let mut failures = Failures::default();
        assert_eq!(failures.after(&unknown, 1, false), Then::LeaveIt);
        assert_eq!(failures.after(&unknown, 1, false), Then::LeaveIt);
        // All tries, and equally many at a second point.
        let mut failures = Failures::default();
        use Then::{End, LeaveIt, TryAgain};
        assert_eq!(failures.after(&passes, TRIES - 1, false), TryAgain);
        assert_eq!(failures.after(&passes, TRIES, false), LeaveIt);
        assert_eq!(failures.after(&passes, 1, false), TryAgain);
        assert_eq!(failures.after(&passes, TRIES, false), End);
        // Other points were measured, so the error does not affect all of them.
        let mut failures = Failures {
            measured: true,
            ..Failures::default()
        };
        assert_eq!(failures.after(&stays, 1, false), LeaveIt);
        assert_eq!(failures.after(&passes, TRIES, false), LeaveIt);
        assert_eq!(failures.after(&passes, TRIES, false), LeaveIt);
    }

    #[test]
    fn a_point_that_was_left_is_tried_once_in_the_next_round() {
        let passes = failed(Some(Again::MayPass));
        let mut failures = Failures {
            measured: true,
            ..Failures::default()
        };
        assert_eq!(failures.after(&passes, 1, false), Then::TryAgain);
        assert_eq!(failures.after(&passes, 1, true), Then::LeaveIt);
    }

    #[test]
    fn one_point_is_not_two_that_nobody_answers() {
        let passes = failed(Some(Again::MayPass));
        let mut failures = Failures::default();
        assert_eq!(failures.after(&passes, TRIES, false), Then::LeaveIt);
        failures.another_round();
        assert_eq!(failures.after(&passes, 1, true), Then::LeaveIt);
        // A second point with a single try is no reason to give up either.
        assert_eq!(failures.after(&passes, 1, true), Then::LeaveIt);
        failures.another_round();
        assert_eq!(failures.after(&passes, TRIES, false), Then::LeaveIt);
        assert_eq!(failures.after(&passes, TRIES, false), Then::End);
    }
}
