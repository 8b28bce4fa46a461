//! What a trial says of the device, and what of the machine that made it.
//!
//! Decides without I/O. Two things make the plain count of lost frames a bad judge. A queue on the way takes
//! frames that the device does not forward, until it is full: a trial that ends before loses nothing. And this
//! program is late at times, as any: what it then sends at once, or does not take from its own ring, is lost
//! and looks like the device's loss.

use super::campaign::Seen;

/// Growth of the delay that is the noise of any trial.
const NOISE_NS: f64 = 100_000.0;
/// Part of the trial over which a queue that fills is watched.
const WATCHED: f64 = 0.375;
/// A frame that is late takes as many more with it: those that then find a full queue.
const WITH_EACH: u64 = 2;

/// The smallest growth of the delay, as a share of the time, that counts as a queue that fills: half of the
/// resolution, where trials of `trial_s` can show so little.
#[must_use]
pub fn least_growth(resolution: f64, trial_s: f64) -> f64 {
    (resolution / 2.0).max(NOISE_NS / 1e9 / (trial_s * WATCHED))
}

impl Seen {
    /// Frames that a queue held back in the whole of the trial, at the rate at which it was filling at the end.
    #[must_use]
    pub fn queued(&self, resolution: f64) -> u64 {
        let least = least_growth(resolution, self.duration_ns as f64 / 1e9);
        let filling = self.filling.filter(|filling| filling.growth > least);
        filling.map_or(0, |filling| (filling.share() * self.sent as f64) as u64)
    }

    /// Lost frames for which this machine may be to blame: those that were late and those that they took with
    /// them, those that its own ring had no room for, and those of the time in which its threads stood still.
    #[must_use]
    pub fn own_frames(&self) -> u64 {
        let own = &self.own;
        let stood = own.stood_ns as f64 / 1e9 * self.offered;
        // Both tell of the same stall.
        let late = own.late.saturating_mul(WITH_EACH).max(stood as u64);
        own.dropped.saturating_add(late).min(self.lost)
    }

    /// Whether it misses a goal, and would not without what this machine may have lost.
    #[must_use]
    pub fn is_excusable(&self, goals: &[f64], resolution: f64) -> bool {
        if self.sent == 0 || !self.kept {
            return false;
        }
        let queued = self.queued(resolution);
        let loss = |lost: u64| (lost + queued) as f64 / self.sent as f64;
        let (all, excused) = (loss(self.lost), loss(self.lost - self.own_frames()));
        goals.iter().any(|&goal| all > goal && excused <= goal)
    }
}
