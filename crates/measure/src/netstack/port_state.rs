//! State of a port, shared between the thread that polls it and threads that wait for its peer.

use std::sync::{Mutex, MutexGuard};

use linerate_host::sys::clock::Nanos;
use linerate_port::Partner;
use linerate_stack::StackError;

/// Time for which a peer process may be absent: its last frames are still read, and it may restart.
const AWAY_NS: Nanos = 400_000_000;

/// Failure of a port, and presence of its peer.
#[derive(Default)]
pub struct PortState {
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    failure: Option<StackError>,
    broken: bool,
    partner: Option<Partner>,
    /// Time since which the peer is absent.
    gone_ns: Option<Nanos>,
}

impl PortState {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().expect("no holder panics")
    }

    /// Records that the port failed; only the first reason is kept.
    pub fn fail(&self, why: StackError) {
        let mut found = self.found();
        found.broken = true;
        found.failure.get_or_insert(why);
    }

    /// Takes the reason of the failure: returned once.
    pub fn take_failure(&self) -> Option<StackError> {
        self.found().failure.take()
    }

    /// Records the state of the port's peer, where it has one.
    pub fn see(&self, partner: Option<Partner>, now: Nanos) {
        let Some(partner) = partner else { return };
        let mut found = self.found();
        found.partner = Some(partner);
        found.gone_ns = match partner {
            Partner::Gone => found.gone_ns.or(Some(now)),
            Partner::Awaited | Partner::There => None,
        };
    }

    /// Returns whether no peer has ever attached.
    pub fn is_alone(&self) -> bool {
        self.found().partner == Some(Partner::Awaited)
    }

    /// Returns whether the peer process has been absent for a while.
    pub fn is_left(&self, now: Nanos) -> bool {
        let gone_ns = self.found().gone_ns;
        gone_ns.is_some_and(|since| now >= since.saturating_add(AWAY_NS))
    }

    /// Returns whether the port is unusable, even if the reason was taken.
    pub fn is_over(&self, now: Nanos) -> bool {
        self.found().broken || self.is_left(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_back_soon_has_not_left() {
        const MS: Nanos = 1_000_000;
        let state = PortState::default();
        assert!(!state.is_alone() && !state.is_over(0));
        // Times of the reports, and whether the peer counts as lost then.
        for (at, partner, left) in [
            (0, Some(Partner::Awaited), false),
            (900, Some(Partner::Awaited), false),
            (1_000, Some(Partner::There), false),
            (1_100, Some(Partner::Gone), false),
            (1_101, Some(Partner::Gone), false),
            (1_300, Some(Partner::There), false),
            (1_600, Some(Partner::Gone), false),
            // A ring between two threads has no peer state.
            (1_900, None, false),
            (2_000, Some(Partner::Gone), true),
            (2_100, None, true),
            (2_200, Some(Partner::There), false),
        ] {
            state.see(partner, at * MS);
            assert_eq!(state.is_left(at * MS), left, "{at}");
            assert_eq!(state.is_over(at * MS), left, "{at}");
            assert_eq!(state.is_alone(), at < 1_000, "{at}");
        }
    }

    #[test]
    fn a_port_stays_broken_once_it_was_told() {
        let state = PortState::default();
        state.fail(StackError::Stale);
        state.fail(StackError::NotConnected);
        assert!(matches!(state.take_failure(), Some(StackError::Stale)));
        assert!(state.take_failure().is_none() && state.is_over(0));
    }
}
