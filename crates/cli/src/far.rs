//! Settings of this host that a server makes for a far client: some sysctls, within limits, one client at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use linerate_measure::{Held, Maker};
use linerate_tune::guard::{Guard, Kind};
use linerate_tune::journal::folder;
use linerate_tune::knob::{DEFAULT, FAR};

use crate::machine::{self, Hosts};

/// What a server with `--grant tune` makes settings with.
pub fn maker() -> Maker {
    let busy = Arc::new(AtomicBool::new(false));
    Maker(Arc::new(move || {
        if busy.swap(true, SeqCst) {
            return Err("another client tunes this host now".to_owned());
        }
        let lease = Lease(Arc::clone(&busy));
        let hosts = Hosts::own(&[]).ok_or("its network cannot be seen: mount /proc")?;
        let journals =
            folder("tune").ok_or("it has no folder for a journal: set HOME or XDG_STATE_HOME")?;
        Ok(Box::new(Settings {
            guard: machine::guard(hosts, Some(journals)),
            _lease: lease,
        }))
    }))
}

/// The right to tune, which the next client gets when this one drops.
struct Lease(Arc<AtomicBool>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Dropping the guard sets everything back; only then may the next client begin.
struct Settings {
    guard: Guard<Hosts>,
    _lease: Lease,
}

impl Held for Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<String, String> {
        let known = FAR.iter().find(|(known, _)| *known == name);
        let (name, most) = known.ok_or_else(|| {
            let names: Vec<_> = FAR.iter().map(|(name, _)| *name).collect();
            format!("this server sets {} alone", names.join(", "))
        })?;
        let key = Hosts::own(&[])
            .and_then(|hosts| hosts.keys(Kind::Sysctl, name).pop())
            .ok_or("its network cannot be seen: mount /proc")?;
        if value == DEFAULT {
            self.guard.reset(&key)?;
        } else {
            check(value, *most)?;
            self.guard.set(&key, value)?;
        }
        self.guard.read(&key)
    }
}

/// Numbers, none of them above the limit.
fn check(value: &str, most: u64) -> Result<(), String> {
    let numbers: Option<Vec<u64>> = value
        .split_whitespace()
        .map(|number| number.parse().ok())
        .collect();
    match numbers {
        Some(numbers) if !numbers.is_empty() && numbers.iter().all(|&number| number <= most) => {
            Ok(())
        }
        Some(_) => Err(format!(
            "`{value}` is above {most}, the most that this server sets"
        )),
        None => Err(format!("`{value}` is no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_far_client_may_set_is_limited() {
        for (value, said) in [
            ("4096 131072 16777216", None),
            ("4096 131072 999999999999", Some("above")),
            ("", Some("above")),
            ("1; reboot", Some("no number")),
        ] {
            let error = check(value, 64 << 20).err();
            match (said, error) {
                (None, None) => {}
                (Some(said), Some(error)) => assert!(error.contains(said), "{value}: {error}"),
                (said, error) => panic!("{value}: {said:?} {error:?}"),
            }
        }
    }

    #[test]
    fn one_client_at_a_time_and_only_what_is_listed() {
        let maker = maker();
        let mut first = (maker.0)().unwrap_or_else(|why| panic!("{why}"));
        assert!((maker.0)().err().unwrap().contains("another client"));
        let refused = first.set("kernel.panic", "1").unwrap_err();
        assert!(refused.contains("tcp_rmem"), "{refused}");
        drop(first);
        assert!((maker.0)().is_ok());
    }
}
