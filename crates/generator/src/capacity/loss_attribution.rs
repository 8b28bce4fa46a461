//! Attribution of a trial's losses to the device under test or to this host.
//!
//! Decides without I/O. The plain number of lost frames misleads for two reasons. A queue on the
//! path hides overload until it is full: a trial that ends before that loses nothing. And this
//! program can be late, as any program can: frames that it then sends in one burst, or does not
//! take from its own receive ring in time, are lost and look like losses of the device.

use super::rfc2544_suite::SuiteTrialResult;

/// Growth of the delay within one trial that is noise.
const DELAY_NOISE_NS: f64 = 100_000.0;
/// Fraction of a trial over which the growth of the delay is measured.
const OBSERVED_FRACTION: f64 = 0.375;
/// Frames lost with each late frame: the frames after it find a full queue.
const LOSSES_PER_LATE_FRAME: u64 = 2;

/// Returns the smallest delay growth, as a fraction of the elapsed time, that counts as a filling
/// queue: half of the resolution, or the noise limit of trials of `trial_s` if that is higher.
#[must_use]
pub fn min_detectable_growth(resolution: f64, trial_s: f64) -> f64 {
    (resolution / 2.0).max(DELAY_NOISE_NS / 1e9 / (trial_s * OBSERVED_FRACTION))
}

impl SuiteTrialResult {
    /// Returns the frames that a queue held back in the whole trial, extrapolated from its growth
    /// at the end.
    #[must_use]
    pub fn queued_frames(&self, resolution: f64) -> u64 {
        let min_growth = min_detectable_growth(resolution, self.duration_ns as f64 / 1e9);
        let growth = self
            .queue_growth
            .filter(|growth| growth.growth_ratio > min_growth);
        growth.map_or(0, |growth| {
            (growth.queued_fraction() * self.sent as f64) as u64
        })
    }

    /// Returns the lost frames that this host may have caused: late frames and the frames lost with
    /// them, frames that its own full ring dropped, and frames of the time in which its threads
    /// were stalled.
    #[must_use]
    pub fn host_lost_frames(&self) -> u64 {
        let disturbance = &self.disturbance;
        let stalled_frames = disturbance.stalled_ns as f64 / 1e9 * self.offered_fps;
        // Both count the same stall, so the larger one is taken.
        let late_losses = disturbance
            .late_bursts
            .saturating_mul(LOSSES_PER_LATE_FRAME)
            .max(stalled_frames as u64);
        disturbance
            .ring_drops
            .saturating_add(late_losses)
            .min(self.lost)
    }

    /// Returns whether the trial misses a goal that it would meet without the losses of this host.
    #[must_use]
    pub fn is_excusable(&self, goals: &[f64], resolution: f64) -> bool {
        if self.sent == 0 || !self.load_met {
            return false;
        }
        let queued = self.queued_frames(resolution);
        let loss_fraction = |lost: u64| (lost + queued) as f64 / self.sent as f64;
        let (total_loss, device_loss) = (
            loss_fraction(self.lost),
            loss_fraction(self.lost - self.host_lost_frames()),
        );
        goals
            .iter()
            .any(|&goal| total_loss > goal && device_loss <= goal)
    }
}
