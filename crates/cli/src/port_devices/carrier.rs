//! Wait for the carrier of a reconfigured device: many drivers take the link down, and frames sent
//! meanwhile are lost.

use std::thread;
use std::time::Duration;

use linerate_host::stop_flag::StopFlag;
use linerate_port::has_carrier;

/// Maximum time to wait: link training at 10 Gb/s over copper takes several seconds.
const MAX_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// End of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierWait {
    /// All links have a carrier, or their drivers do not report it.
    Ready,
    /// A link has no carrier yet.
    TimedOut,
    /// Interrupted by Ctrl-C.
    Stopped,
}

/// Waits until these interfaces have a carrier, and reports it.
pub fn wait_for_carrier(
    interfaces: &[String],
    stop: &StopFlag,
    report: impl Fn(&str),
) -> CarrierWait {
    let without_carrier = || {
        let mut all = interfaces.iter();
        all.find(|name| has_carrier(name) == Some(false))
    };
    let Some(first) = without_carrier() else {
        return CarrierWait::Ready;
    };
    report(&format!(
        "note: {first} has no carrier since its settings changed; waiting up to {} s (Ctrl-C ends the wait)",
        MAX_WAIT.as_secs()
    ));
    // An interrupt before the wait ended the run, not the wait; another one ends the program.
    let was_stopped = stop.is_set();
    let is_stopped = || stop.is_set() && !was_stopped;
    let waited = poll_until(|| without_carrier().is_none(), is_stopped, thread::sleep);
    if let (CarrierWait::TimedOut, Some(name)) = (waited, without_carrier()) {
        report(&format!(
            "warning: {name} had no carrier within {} s after the change: check `ethtool {name}`, and that its link \
             partner is up",
            MAX_WAIT.as_secs()
        ));
    }
    waited
}

fn poll_until(
    mut is_back: impl FnMut() -> bool,
    is_stopped: impl Fn() -> bool,
    mut sleep: impl FnMut(Duration),
) -> CarrierWait {
    let mut waited = Duration::ZERO;
    while !is_back() {
        if is_stopped() {
            return CarrierWait::Stopped;
        }
        if waited >= MAX_WAIT {
            return CarrierWait::TimedOut;
        }
        sleep(POLL_INTERVAL);
        waited += POLL_INTERVAL;
    }
    CarrierWait::Ready
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Waits for a link that returns after `back` polls, with Ctrl-C after `pressed` polls: returns
    /// the end of the wait and the number of sleeps.
    fn wait_with(back: u128, pressed: u128) -> (CarrierWait, u128) {
        let (polls, waits) = (Cell::new(0), Cell::new(0));
        let is_back = || {
            polls.set(polls.get() + 1);
            polls.get() > back
        };
        let result = poll_until(
            is_back,
            || polls.get() > pressed,
            |time| {
                assert_eq!(time, POLL_INTERVAL);
                waits.set(waits.get() + 1);
            },
        );
        (result, waits.get())
    }

    #[test]
    fn a_link_is_waited_for_as_long_as_it_may_take() {
        let max_waits = MAX_WAIT.as_millis() / POLL_INTERVAL.as_millis();
        let never = u128::MAX;
        for (back, pressed, expected) in [
            (0, never, (CarrierWait::Ready, 0)),
            (1, never, (CarrierWait::Ready, 1)),
            (150, never, (CarrierWait::Ready, 150)),
            (10_000, never, (CarrierWait::TimedOut, max_waits)),
            // Immediately, not at the end.
            (10_000, 0, (CarrierWait::Stopped, 0)),
            (10_000, 7, (CarrierWait::Stopped, 7)),
            (0, 0, (CarrierWait::Ready, 0)),
        ] {
            assert_eq!(wait_with(back, pressed), expected, "{back} {pressed}");
        }
    }

    #[test]
    fn unknown_carriers_are_not_waited_for() {
        for all in [&["none-such0".to_owned()][..], &[]] {
            let waited = wait_for_carrier(all, &StopFlag::new(), |text| panic!("{text}"));
            assert_eq!(waited, CarrierWait::Ready, "{all:?}");
        }
    }
}
