//! What follows from a point that could not be measured: try it again, leave it, or end.

use std::time::Duration;

use linerate_metric::event::{Again, Problem};

/// Tries of a point whose failure may pass.
const TRIES: u32 = 4;

/// The same in rounds after one in which all of those failed: whoever was away for so long is asked once
/// whether it is back.
const TRIES_LATER: u32 = 1;

/// Between two of them: a server that is being started, or a run that has to end, has that long.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Why a point could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) problem: Problem,
    /// The exit code that fits.
    pub(crate) code: u8,
}

/// What to do then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    TryAgain,
    /// The others may well be measured.
    LeaveIt,
    /// Every other point would fail alike.
    End,
}

/// Failures of an experiment so far.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Whether a point was measured: what fails then is no matter of all of them.
    pub(crate) measured: bool,
    /// What the last point of this round was left for.
    left_for: Option<String>,
}

impl Failures {
    /// Another round begins: who was asked in the one before may be back, or is asked once more.
    pub(crate) fn another_round(&mut self) {
        self.left_for = None;
    }

    /// With nothing failed yet; `measured`: a point was measured by an earlier process.
    pub(crate) fn after_measuring(measured: bool) -> Self {
        Self {
            measured,
            left_for: None,
        }
    }

    /// What to do after `tries` tries of a point in this round; `before`: it was left in the round before.
    pub(crate) fn after(&mut self, failed: &Failed, tries: u32, before: bool) -> Then {
        let problem = &failed.problem;
        let most = if before { TRIES_LATER } else { TRIES };
        if problem.again == Some(Again::MayPass) && tries < most {
            return Then::TryAgain;
        }
        if self.measured {
            return Then::LeaveIt;
        }
        // Who refuses two points in a row, each several times, is not there.
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
        // An option that one point has is none of the others.
        let mut failures = Failures::default();
        assert_eq!(failures.after(&unknown, 1, false), Then::LeaveIt);
        assert_eq!(failures.after(&unknown, 1, false), Then::LeaveIt);
        // All tries, and at a second point as many.
        let mut failures = Failures::default();
        use Then::{End, LeaveIt, TryAgain};
        assert_eq!(failures.after(&passes, TRIES - 1, false), TryAgain);
        assert_eq!(failures.after(&passes, TRIES, false), LeaveIt);
        assert_eq!(failures.after(&passes, 1, false), TryAgain);
        assert_eq!(failures.after(&passes, TRIES, false), End);
        // What was measured elsewhere is no mistake of all points.
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
        // Another one that is asked once is as little a reason to give up.
        assert_eq!(failures.after(&passes, 1, true), Then::LeaveIt);
        failures.another_round();
        assert_eq!(failures.after(&passes, TRIES, false), Then::LeaveIt);
        assert_eq!(failures.after(&passes, TRIES, false), Then::End);
    }
}
