//! Settings of this host that a server changes for a client: some sysctls, within limits, for one
//! client at a time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use linerate_session::remote_settings::{AppliedSettings, RemoteTuning};
use linerate_tune::guard::{RollbackGuard, SettingKind};
use linerate_tune::journal::state_dir;
use linerate_tune::knob::{DEFAULT_VALUE, REMOTE_SYSCTLS};

use crate::tunable_hosts;
use crate::tunable_hosts::TunableHosts;

/// Returns the settings backend of a server with `--grant tune`.
pub fn remote_tuning() -> RemoteTuning {
    let busy = Arc::new(AtomicBool::new(false));
    RemoteTuning(Arc::new(move || {
        if busy.swap(true, SeqCst) {
            return Err("another client is tuning this host".to_owned());
        }
        let lease = TuningLease(Arc::clone(&busy));
        let hosts = TunableHosts::this_host(&[])
            .ok_or("its network namespace is not readable: mount /proc")?;
        let journals = state_dir("tune")
            .ok_or("it has no directory for a journal: set HOME or XDG_STATE_HOME")?;
        Ok(Box::new(ClientSettings {
            guard: tunable_hosts::new_guard(hosts, Some(journals)),
            _lease: lease,
        }))
    }))
}

/// Exclusive permission to tune, released on drop.
struct TuningLease(Arc<AtomicBool>);

impl Drop for TuningLease {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Settings of one client. The fields drop in order: the guard restores the settings, then the next
/// client may start.
struct ClientSettings {
    guard: RollbackGuard<TunableHosts>,
    _lease: TuningLease,
}

impl AppliedSettings for ClientSettings {
    fn set(&mut self, name: &str, value: &str) -> Result<String, String> {
        let entry = REMOTE_SYSCTLS.iter().find(|(entry, _)| *entry == name);
        let (name, most) = entry.ok_or_else(|| {
            let names: Vec<_> = REMOTE_SYSCTLS.iter().map(|(name, _)| *name).collect();
            format!("this server sets only {}", names.join(", "))
        })?;
        let key = TunableHosts::this_host(&[])
            .and_then(|hosts| hosts.keys(SettingKind::Sysctl, name).pop())
            .ok_or("its network namespace is not readable: mount /proc")?;
        if value == DEFAULT_VALUE {
            self.guard.restore_one(&key)?;
        } else {
            check_value(value, *most)?;
            self.guard.set(&key, value)?;
        }
        self.guard.read(&key)
    }
}

/// Checks that a value consists of numbers, none above the limit.
fn check_value(value: &str, most: u64) -> Result<(), String> {
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
    fn settings_of_a_remote_client_are_limited() {
        for (value, expected) in [
            ("4096 131072 16777216", None),
            ("4096 131072 999999999999", Some("above")),
            ("", Some("above")),
            ("1; reboot", Some("not a number")),
        ] {
            let error = check_value(value, 64 << 20).err();
            match (expected, error) {
                (None, None) => {}
                (Some(expected), Some(error)) => {
                    assert!(error.contains(expected), "{value}: {error}")
                }
                (expected, error) => panic!("{value}: {expected:?} {error:?}"),
            }
        }
    }

    #[test]
    fn one_client_at_a_time_and_only_what_is_listed() {
        let backend = remote_tuning();
        let mut first = (backend.0)().unwrap_or_else(|why| panic!("{why}"));
        assert!((backend.0)().err().unwrap().contains("another client"));
        let error = first.set("kernel.panic", "1").unwrap_err();
        assert!(error.contains("tcp_rmem"), "{error}");
        drop(first);
        assert!((backend.0)().is_ok());
    }
}
