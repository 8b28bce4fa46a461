//! Settings of this host that a server changes for a client: some sysctls, within limits, for one
//! client at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use linerate_measure::{Held, Maker};
use linerate_tune::guard::{Guard, Kind};
use linerate_tune::journal::folder;
use linerate_tune::knob::{DEFAULT, FAR};

use crate::tunable_hosts::{self, Hosts};

/// Returns the settings backend of a server with `--grant tune`.
pub fn maker() -> Maker {
    let busy = Arc::new(AtomicBool::new(false));
    Maker(Arc::new(move || {
        if busy.swap(true, SeqCst) {
            return Err("another client is tuning this host".to_owned());
        }
        let lease = Lease(Arc::clone(&busy));
        let hosts = Hosts::own(&[]).ok_or("its network namespace is not readable: mount /proc")?;
        let journals = folder("tune")
            .ok_or("it has no directory for a journal: set HOME or XDG_STATE_HOME")?;
        Ok(Box::new(Settings {
            guard: tunable_hosts::guard(hosts, Some(journals)),
            _lease: lease,
        }))
    }))
}

/// Exclusive permission to tune, released on drop.
struct Lease(Arc<AtomicBool>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Settings of one client. The fields drop in order: the guard restores the settings, then the next
/// client may start.
struct Settings {
    guard: Guard<Hosts>,
    _lease: Lease,
}

impl Held for Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<String, String> {
        let known = FAR.iter().find(|(known, _)| *known == name);
        let (name, most) = known.ok_or_else(|| {
            let names: Vec<_> = FAR.iter().map(|(name, _)| *name).collect();
            format!("this server sets only {}", names.join(", "))
        })?;
        let key = Hosts::own(&[])
            .and_then(|hosts| hosts.keys(Kind::Sysctl, name).pop())
            .ok_or("its network namespace is not readable: mount /proc")?;
        if value == DEFAULT {
            self.guard.reset(&key)?;
        } else {
            check(value, *most)?;
            self.guard.set(&key, value)?;
        }
        self.guard.read(&key)
    }
}

/// Checks that a value consists of numbers, none above the limit.
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
            "`{value}` is above {most}, the limit of this server"
        )),
        None => Err(format!("`{value}` is not a number")),
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
            ("1; reboot", Some("not a number")),
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
