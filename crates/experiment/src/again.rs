//! What follows from a point that could not be measured: try it again, leave it, or end.

use std::time::Duration;

use linerate_metric::event::{Again, Problem};

/// Tries of a point whose failure may pass.
const TRIES: u32 = 4;

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
    /// What the last point was left for.
    left_for: Option<String>,
}

impl Failures {
    /// What to do after `tries` tries of a point.
    pub(crate) fn after(&mut self, failed: &Failed, tries: u32) -> Then {
        let problem = &failed.problem;
        if problem.again == Some(Again::MayPass) && tries < TRIES {
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
            Some(Again::MayPass) if same => Then::End,
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
        assert_eq!(Failures::default().after(&stays, 1), Then::End);
        // An option that one point has is none of the others.
        let mut failures = Failures::default();
        assert_eq!(failures.after(&unknown, 1), Then::LeaveIt);
        assert_eq!(failures.after(&unknown, 1), Then::LeaveIt);
        // All tries, and at a second point as many.
        let mut failures = Failures::default();
        use Then::{End, LeaveIt, TryAgain};
        assert_eq!(failures.after(&passes, TRIES - 1), TryAgain);
        assert_eq!(failures.after(&passes, TRIES), LeaveIt);
        assert_eq!(failures.after(&passes, 1), TryAgain);
        assert_eq!(failures.after(&passes, TRIES), End);
        // What was measured elsewhere is no mistake of all points.
        let mut failures = Failures {
            measured: true,
            ..Failures::default()
        };
        assert_eq!(failures.after(&stays, 1), LeaveIt);
        assert_eq!(failures.after(&passes, TRIES), LeaveIt);
        assert_eq!(failures.after(&passes, TRIES), LeaveIt);
    }
}
