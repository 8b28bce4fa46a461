//! Wait for the carrier of a reconfigured device: many drivers take the link down, and frames sent
//! meanwhile are lost.

use std::thread;
use std::time::Duration;

use linerate_host::stop_flag::Stop;
use linerate_port::has_carrier;

/// Maximum time to wait: link training at 10 Gb/s over copper takes several seconds.
const MOST: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// End of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// All links have a carrier, or their drivers do not report it.
    Back,
    /// A link has no carrier yet.
    Late,
    /// Interrupted by Ctrl-C.
    Stopped,
}

/// Waits until these interfaces have a carrier, and reports it.
pub fn wait(interfaces: &[String], stop: &Stop, say: impl Fn(&str)) -> Waited {
    let lacks = || {
        let mut all = interfaces.iter();
        all.find(|name| has_carrier(name) == Some(false))
    };
    let Some(first) = lacks() else {
        return Waited::Back;
    };
    say(&format!(
        "note: {first} has no carrier since its settings changed; waiting up to {} s (Ctrl-C ends the wait)",
        MOST.as_secs()
    ));
    // An interrupt before the wait ended the run, not the wait; another one ends the program.
    let was_asked = stop.is_set();
    let is_over = || stop.is_set() && !was_asked;
    let waited = until(|| lacks().is_none(), is_over, thread::sleep);
    if let (Waited::Late, Some(name)) = (waited, lacks()) {
        say(&format!(
            "warning: {name} had no carrier within {} s after the change: check `ethtool {name}`, and that its link \
             partner is up",
            MOST.as_secs()
        ));
    }
    waited
}

fn until(
    mut is_back: impl FnMut() -> bool,
    is_over: impl Fn() -> bool,
    mut sleep: impl FnMut(Duration),
) -> Waited {
    let mut waited = Duration::ZERO;
    while !is_back() {
        if is_over() {
            return Waited::Stopped;
        }
        if waited >= MOST {
            return Waited::Late;
        }
        sleep(LOOK);
        waited += LOOK;
    }
    Waited::Back
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Waits for a link that returns after `back` polls, with Ctrl-C after `pressed` polls: returns
    /// the end of the wait and the number of sleeps.
    fn waited(back: u128, pressed: u128) -> (Waited, u128) {
        let (looks, waits) = (Cell::new(0), Cell::new(0));
        let is_back = || {
            looks.set(looks.get() + 1);
            looks.get() > back
        };
        let ended = until(
            is_back,
            || looks.get() > pressed,
            |time| {
                assert_eq!(time, LOOK);
                waits.set(waits.get() + 1);
            },
        );
        (ended, waits.get())
    }

    #[test]
    fn a_link_is_waited_for_as_long_as_it_may_take() {
        let most = MOST.as_millis() / LOOK.as_millis();
        let never = u128::MAX;
        for (back, pressed, want) in [
            (0, never, (Waited::Back, 0)),
            (1, never, (Waited::Back, 1)),
            (150, never, (Waited::Back, 150)),
            (10_000, never, (Waited::Late, most)),
            // Immediately, not at the end.
            (10_000, 0, (Waited::Stopped, 0)),
            (10_000, 7, (Waited::Stopped, 7)),
            (0, 0, (Waited::Back, 0)),
        ] {
            assert_eq!(waited(back, pressed), want, "{back} {pressed}");
        }
    }

    #[test]
    fn who_does_not_tell_is_not_waited_for() {
        for all in [&["none-such0".to_owned()][..], &[]] {
            let waited = wait(all, &Stop::new(), |text| panic!("{text}"));
            assert_eq!(waited, Waited::Back, "{all:?}");
        }
    }
}
