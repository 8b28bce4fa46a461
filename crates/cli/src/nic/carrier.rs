//! Waiting for a link whose device was set up anew: many drivers stop it for that, and what is sent meanwhile goes nowhere.

use std::thread;
use std::time::Duration;

use linerate_host::stop::Stop;
use linerate_port::has_carrier;

/// How long it may take: two ends that agree on 10 Gb/s over copper take several seconds.
const MOST: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// All links carry, or their drivers do not tell.
    Back,
    /// One does not yet.
    Late,
    /// Somebody asked to stop meanwhile.
    Stopped,
}

/// Waits until these interfaces have their carriers again, and says so.
pub fn wait(interfaces: &[String], stop: &Stop, say: impl Fn(&str)) -> Waited {
    let lacks = || {
        let mut all = interfaces.iter();
        all.find(|name| has_carrier(name) == Some(false))
    };
    let Some(first) = lacks() else {
        return Waited::Back;
    };
    say(&format!(
        "note: {first} has no carrier since its settings were changed: it is waited for, {} s at most (Ctrl-C ends that)",
        MOST.as_secs()
    ));
    // Who asked before that a run ends has not asked that nobody waits: where it is asked again this program ends.
    let was_asked = stop.is_set();
    let is_over = || stop.is_set() && !was_asked;
    let waited = until(|| lacks().is_none(), is_over, thread::sleep);
    if let (Waited::Late, Some(name)) = (waited, lacks()) {
        say(&format!(
            "warning: {name} has not had its carrier back within {} s of the change: see `ethtool {name}`, and whether \
             its far end is up",
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

    /// A link that is back after so many looks, and somebody who presses Ctrl-C during one of them: how it ended, and
    /// how often it was waited.
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
            // At once, and not when it is over.
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
