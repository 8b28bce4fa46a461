//! Attribution of a trial's losses to the device under test or to this host.
//!
//! Decides without I/O. The plain number of lost frames misleads for two reasons. A queue on the
//! path hides overload until it is full: a trial that ends before that loses nothing. And this
//! program can be late, as any program can: frames that it then sends in one burst, or does not
//! take from its own receive ring in time, are lost and look like losses of the device.

use super::rfc2544_suite::Seen;

/// Growth of the delay within one trial that is noise.
const NOISE_NS: f64 = 100_000.0;
/// Fraction of a trial over which the growth of the delay is measured.
const WATCHED: f64 = 0.375;
/// Frames lost with each late frame: the frames after it find a full queue.
const WITH_EACH: u64 = 2;

/// Returns the smallest delay growth, as a fraction of the elapsed time, that counts as a filling
/// queue: half of the resolution, or the noise limit of trials of `trial_s` if that is higher.
#[must_use]
pub fn least_growth(resolution: f64, trial_s: f64) -> f64 {
    (resolution / 2.0).max(NOISE_NS / 1e9 / (trial_s * WATCHED))
}

impl Seen {
    /// Returns the frames that a queue held back in the whole trial, extrapolated from its growth
    /// at the end.
    #[must_use]
    pub fn queued(&self, resolution: f64) -> u64 {
        let least = least_growth(resolution, self.duration_ns as f64 / 1e9);
        let filling = self.filling.filter(|filling| filling.growth > least);
        filling.map_or(0, |filling| (filling.share() * self.sent as f64) as u64)
    }

    /// Returns the lost frames that this host may have caused: late frames and the frames lost with
    /// them, frames that its own full ring dropped, and frames of the time in which its threads
    /// were stalled.
    #[must_use]
    pub fn own_frames(&self) -> u64 {
        let own = &self.own;
        let stood = own.stood_ns as f64 / 1e9 * self.offered;
        // Both count the same stall, so the larger one is taken.
        let late = own.late.saturating_mul(WITH_EACH).max(stood as u64);
        own.dropped.saturating_add(late).min(self.lost)
    }

    /// Returns whether the trial misses a goal that it would meet without the losses of this host.
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
