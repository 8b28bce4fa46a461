//! State of a port, shared between the thread that polls it and threads that wait for its peer.

use std::sync::{Mutex, MutexGuard};

use linerate_port::PeerState;
use linerate_stack::StackError;
use linerate_sys::clock::Nanos;

/// Time for which a peer process may be absent: its last frames are still read, and it may restart.
const PEER_RETURN_NS: Nanos = 400_000_000;

/// Failure of a port, and presence of its peer.
#[derive(Default)]
pub struct PortState {
    status: Mutex<PortStatus>,
}

#[derive(Default)]
struct PortStatus {
    failure: Option<StackError>,
    has_failed: bool,
    peer: Option<PeerState>,
    /// Time since which the peer is absent.
    lost_since_ns: Option<Nanos>,
}

impl PortState {
    fn lock_status(&self) -> MutexGuard<'_, PortStatus> {
        self.status.lock().expect("no holder panics")
    }

    /// Records that the port failed; only the first reason is kept.
    pub fn fail(&self, reason: StackError) {
        let mut status = self.lock_status();
        status.has_failed = true;
        status.failure.get_or_insert(reason);
    }

    /// Takes the reason of the failure: returned once.
    pub fn take_failure(&self) -> Option<StackError> {
        self.lock_status().failure.take()
    }

    /// Records the state of the port's peer, where it has one.
    pub fn record_peer(&self, peer: Option<PeerState>, now: Nanos) {
        let Some(peer) = peer else { return };
        let mut status = self.lock_status();
        status.peer = Some(peer);
        status.lost_since_ns = match peer {
            PeerState::Disconnected => status.lost_since_ns.or(Some(now)),
            PeerState::NeverConnected | PeerState::Connected => None,
        };
    }

    /// Returns whether no peer has ever attached.
    pub fn never_had_peer(&self) -> bool {
        self.lock_status().peer == Some(PeerState::NeverConnected)
    }

    /// Returns whether the peer process has been absent for a while.
    pub fn is_peer_lost(&self, now: Nanos) -> bool {
        let lost_since_ns = self.lock_status().lost_since_ns;
        lost_since_ns.is_some_and(|since| now >= since.saturating_add(PEER_RETURN_NS))
    }

    /// Returns whether the port is unusable, even if the reason was taken.
    pub fn is_unusable(&self, now: Nanos) -> bool {
        self.lock_status().has_failed || self.is_peer_lost(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_returns_soon_is_not_lost() {
        const MS: Nanos = 1_000_000;
        let state = PortState::default();
        assert!(!state.never_had_peer() && !state.is_unusable(0));
        // Times of the reports, and whether the peer counts as lost then.
        for (at, peer, is_lost) in [
            (0, Some(PeerState::NeverConnected), false),
            (900, Some(PeerState::NeverConnected), false),
            (1_000, Some(PeerState::Connected), false),
            (1_100, Some(PeerState::Disconnected), false),
            (1_101, Some(PeerState::Disconnected), false),
            (1_300, Some(PeerState::Connected), false),
            (1_600, Some(PeerState::Disconnected), false),
            // A ring between two threads has no peer state.
            (1_900, None, false),
            (2_000, Some(PeerState::Disconnected), true),
            (2_100, None, true),
            (2_200, Some(PeerState::Connected), false),
        ] {
            state.record_peer(peer, at * MS);
            assert_eq!(state.is_peer_lost(at * MS), is_lost, "{at}");
            assert_eq!(state.is_unusable(at * MS), is_lost, "{at}");
            assert_eq!(state.never_had_peer(), at < 1_000, "{at}");
        }
    }

    #[test]
    fn a_failed_port_stays_unusable() {
        let state = PortState::default();
        state.fail(StackError::SocketClosed);
        state.fail(StackError::NotConnected);
        assert!(matches!(
            state.take_failure(),
            Some(StackError::SocketClosed)
        ));
        assert!(state.take_failure().is_none() && state.is_unusable(0));
    }
}
