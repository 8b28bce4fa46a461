//! Device settings that the URL of a port requests (`channels=set`, `rss=set`, `steer=udp:7`):
//! applied before the port opens, restored after it closes. The same journal holds the state of a
//! tap that existed before.

mod carrier;
mod device_settings;

use std::thread;
use std::time::{Duration, Instant};

use linerate_host::netlink::find_link;
use linerate_host::settings::flow_rule::RULE_ON;
use linerate_host::stop_flag::StopFlag;
use linerate_port::{DeviceRequest, PortUrl, TapChanges, has_carrier, interface_use};
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_tune::TuneError;
use linerate_tune::guard::{RollbackGuard, SettingKey, SettingKind};
use linerate_tune::journal::state_dir;

use self::carrier::CarrierWait;
use self::device_settings::{channels_for, next_step, rss_table_for, uses_more_queues};
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::standard_streams::{print_stderr, stop_without_reader};
use crate::tunable_hosts;
use crate::tunable_hosts::TunableHosts;
use crate::unrestored_settings;

/// Time to retry a restore. The kernel keeps a queue busy for some time after its last AF_XDP
/// socket closed, and does not remove busy queues.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);
const RESTORE_INTERVAL: Duration = Duration::from_millis(20);

/// Applied device settings by port number; the latest are restored first. Create it before the
/// ports, so that the ports are closed when it drops.
pub struct PortDevices(Vec<(u32, PortDevice)>);

impl PortDevices {
    /// Reports settings that a killed command left changed, because the measurement starts from
    /// them. Then applies the requests of these ports, numbered from 0, and reports them.
    ///
    /// # Errors
    /// Fails if a setting cannot be applied or written to the journal, or on Ctrl-C; all settings
    /// are restored then.
    pub fn for_ports<'a>(
        urls: impl IntoIterator<Item = &'a PortUrl>,
        stop: &StopFlag,
        output: &CommandOutput,
    ) -> Result<Self, CommandFailure> {
        unrestored_settings::warn(output);
        let mut nics = Self(Vec::new());
        for (port, url) in (0..).zip(urls) {
            match PortDevice::for_port(url, stop, output) {
                Ok(nic) => nics.hold(port, nic),
                Err(failure) => {
                    if stop.is_set() {
                        // After Ctrl-C, do not wait for links.
                        nics.restore();
                    }
                    return Err(failure);
                }
            }
        }
        Ok(nics)
    }

    /// Applies the requests of the port of our stack, if a run has one.
    ///
    /// # Errors
    /// As [`PortDevices::for_ports`].
    pub fn for_stack(
        device: Option<&String>,
        stop: &StopFlag,
        output: &CommandOutput,
    ) -> Result<Self, CommandFailure> {
        // An invalid URL is reported when the port is opened.
        let url = device.and_then(|device| device.parse::<PortUrl>().ok());
        Self::for_ports(&url, stop, output)
    }

    /// Keeps the settings of a port until it is released.
    pub fn hold(&mut self, port: u32, nic: PortDevice) {
        self.0.push((port, nic));
    }

    /// Restores the settings of a port that was closed for good.
    pub fn release(&mut self, port: u32) {
        self.0.retain(|(number, _)| *number != port);
    }

    /// Restores all settings and returns the interfaces whose links may be down for a while.
    fn restore(&mut self) -> Vec<String> {
        let last_first = self.0.iter_mut().rev();
        last_first.filter_map(|(_, nic)| nic.restore()).collect()
    }
}

impl Drop for PortDevices {
    fn drop(&mut self) {
        let Some((_, last)) = self.0.last() else {
            return;
        };
        let stop = last.stop.clone();
        // All of them before waiting, so that their links come up at the same time.
        carrier::wait_for_carrier(&self.restore(), &stop, print_stderr);
    }
}

/// Settings of the device of one port, or of an existing tap, restored on drop.
pub struct PortDevice {
    applied: Option<AppliedDeviceSettings>,
    stop: StopFlag,
}

struct AppliedDeviceSettings {
    interface: String,
    guard: RollbackGuard<TunableHosts>,
}

impl PortDevice {
    /// Applies the requests of a port, and notes the old values.
    ///
    /// # Errors
    /// As [`PortDevices::for_ports`].
    pub fn for_port(
        url: &PortUrl,
        stop: &StopFlag,
        output: &CommandOutput,
    ) -> Result<Self, CommandFailure> {
        let mut nic = Self {
            applied: None,
            stop: stop.clone(),
        };
        if let Some(request) = url.device_request() {
            nic.apply_request(url, &request, output)?;
        }
        if let Some(tap) = url.tap_changes() {
            nic.note_tap(url, &tap, output)?;
        }
        Ok(nic)
    }

    /// Returns the guard of an interface and its keys of these kinds; `None` if the network
    /// namespace is not readable.
    fn guard(
        &mut self,
        interface: &String,
        kinds: &[SettingKind],
    ) -> Option<(&mut RollbackGuard<TunableHosts>, Vec<SettingKey>)> {
        stop_without_reader(&self.stop);
        let hosts = TunableHosts::this_host(std::slice::from_ref(interface))?;
        let keys = kinds.iter().flat_map(|kind| hosts.keys(*kind, interface));
        let keys = keys.collect();
        let applied = self.applied.insert(AppliedDeviceSettings {
            interface: interface.clone(),
            guard: tunable_hosts::new_guard(hosts, state_dir("tune")),
        });
        Some((&mut applied.guard, keys))
    }

    /// Notes the state of a tap that exists before the port opens it. The port restores what it can
    /// while it lives; this covers all addresses and, if a journal can be written, a kill.
    fn note_tap(
        &mut self,
        url: &PortUrl,
        tap: &TapChanges,
        output: &CommandOutput,
    ) -> Result<(), CommandFailure> {
        let name = &tap.interface;
        let kinds = settings_changed_by(tap);
        // Any other interface of this name will not be opened.
        let is_tap = find_link(name).is_ok_and(|link| link.kind.as_deref() == Some("tun"));
        if kinds.is_empty() || !is_tap {
            return Ok(());
        }
        let unwritten = match self.guard(name, &kinds) {
            Some((guard, keys)) => note_old_values(guard, &keys).map_err(|error| {
                let next = "end that process, or name another tap";
                failure(url, &error.to_string(), next)
            })?,
            None => Some("its network namespace is not readable (mount /proc)".to_owned()),
        };
        if let Some(why) = unwritten {
            output.warn(&format!(
                "warning: {}: {why}; {name} is restored when the port closes, but not after kill -9, because its old \
                 state is not in a journal",
                url.short_name()
            ));
        }
        Ok(())
    }

    fn apply_request(
        &mut self,
        url: &PortUrl,
        request: &DeviceRequest,
        output: &CommandOutput,
    ) -> Result<(), CommandFailure> {
        let name = &request.interface;
        if interface_use(name).is_some() && !url.common().force {
            // The port will fail to open, so the device is left alone: new queues would take its
            // link down for a while.
            return Ok(());
        }
        if state_dir("tune").is_none() {
            let next = "set HOME or XDG_STATE_HOME to an absolute path";
            let situation = "no directory for the journal of changes";
            return Err(failure(url, situation, next));
        }
        let kinds = [SettingKind::Channels, SettingKind::Rss, SettingKind::Flow];
        let (guard, keys) = (self.guard(name, &kinds))
            .ok_or_else(|| failure(url, "its network namespace is not readable", "mount /proc"))?;
        let [channels, rss, flows] = &keys[..] else {
            unreachable!("one interface has one setting of each kind");
        };
        // Queues that a table names cannot be removed, and a table cannot name queues that do not
        // exist yet.
        let current_and_requested = guard.read(channels).ok().zip(request.channels);
        let had_carrier = has_carrier(name) == Some(true);
        let mut is_changed = false;
        let mut order = [channels, rss];
        if current_and_requested.is_some_and(|(now, count)| uses_more_queues(&now, count)) {
            order.reverse();
        }
        for key in order {
            match (key.kind, request.channels, &request.rss) {
                (SettingKind::Channels, Some(count), _) => {
                    let requested_value = |now: &str| channels_for(now, count);
                    is_changed |=
                        apply_setting(guard, key, "channels=set", url, requested_value, output)?;
                }
                (SettingKind::Rss, _, Some(queues)) => {
                    let requested_value =
                        |now: &str| rss_table_for(now, request.channels, queues.clone());
                    is_changed |=
                        apply_setting(guard, key, "rss=set", url, requested_value, output)?;
                }
                _ => {}
            }
        }
        for flow in &request.steer {
            // After the queues: a rule cannot name a queue that does not exist. On restore it is
            // removed before them.
            let key = SettingKey {
                name: format!("{name} {flow}"),
                ..flows.clone()
            };
            let option = format!("steer={}:{}", flow.protocol, flow.port);
            let requested_value = |now: &str| (now != RULE_ON).then(|| RULE_ON.to_owned());
            apply_setting(guard, &key, &option, url, requested_value, output)?;
        }
        // Without a carrier, the first frames would be lost.
        let links = (is_changed && had_carrier).then(|| name.clone());
        match carrier::wait_for_carrier(links.as_slice(), &self.stop, |text| output.warn(text)) {
            CarrierWait::Stopped => Err(CommandFailure::interrupted()),
            CarrierWait::Ready | CarrierWait::TimedOut => Ok(()),
        }
    }

    /// Restores all settings and returns the interface if its link may be down for a while.
    fn restore(&mut self) -> Option<String> {
        let AppliedDeviceSettings {
            interface,
            mut guard,
        } = self.applied.take()?;
        // An interface without carrier, for example without a peer, does not get one.
        let has_link = has_carrier(&interface) == Some(true);
        let give_up_at = Instant::now() + RESTORE_TIMEOUT;
        let mut failures = guard.restore_all();
        while !failures.is_empty() && Instant::now() < give_up_at {
            thread::sleep(RESTORE_INTERVAL);
            failures = guard.restore_all();
        }
        if let Some(first) = failures.first() {
            print_stderr(&format!(
                "warning: could not be restored: {first}; `linerate tune --restore` does it later"
            ));
        }
        has_link.then_some(interface)
    }
}

impl Drop for PortDevice {
    fn drop(&mut self) {
        if let Some(link) = self.restore() {
            carrier::wait_for_carrier(&[link], &self.stop, print_stderr);
        }
    }
}

/// Notes the old values; returns the reason if they cannot be written to a journal.
///
/// # Errors
/// Fails if another process changes the same settings.
fn note_old_values(
    guard: &mut RollbackGuard<TunableHosts>,
    keys: &[SettingKey],
) -> Result<Option<String>, TuneError> {
    let mut unwritten = None;
    for key in keys {
        // A value that the kernel does not report cannot be restored either.
        let Ok(value) = guard.read(key) else {
            continue;
        };
        match guard.save_old_value(key, &value) {
            Ok(()) => {}
            Err(error @ (TuneError::SettingInUse { .. } | TuneError::DuplicateSetting { .. })) => {
                return Err(error);
            }
            Err(error) => {
                guard.save_in_memory(key, &value);
                unwritten.get_or_insert(error.to_string());
            }
        }
    }
    Ok(unwritten)
}

/// Returns the settings that opening an existing tap may change, in reverse order of their restore:
/// an interface that is down, or has a short MTU for a while, loses addresses.
fn settings_changed_by(tap: &TapChanges) -> Vec<SettingKind> {
    let settings = [SettingKind::Addresses, SettingKind::State, SettingKind::Mtu];
    let settings = settings.into_iter().filter(|_| tap.settings);
    settings
        .chain(tap.offloads.then_some(SettingKind::Offloads))
        .collect()
}

/// Applies one setting unless it has the value already; returns whether it changed.
fn apply_setting(
    guard: &mut RollbackGuard<TunableHosts>,
    key: &SettingKey,
    option: &str,
    url: &PortUrl,
    requested_value: impl Fn(&str) -> Option<String>,
    output: &CommandOutput,
) -> Result<bool, CommandFailure> {
    let rejection = |why: String| CommandFailure {
        problem: ErrorReport::new(
            format!("{option}: {why}"),
            url.short_name(),
            next_step(key.kind, option, url.name()),
        ),
        code: exit_codes::MISSING,
    };
    let now = guard.read(key).map_err(|why| {
        rejection(format!(
            "its driver does not report the current value ({why})"
        ))
    })?;
    let Some(value) = requested_value(&now) else {
        return Ok(false);
    };
    let command = key.shell_command(&value);
    (guard.set(key, &value)).map_err(|why| rejection(format!("`{command}` failed ({why})")))?;
    output.report_status(&format!(
        "note: applied `{command}` until the port closes; then `{}`",
        key.shell_command(&now)
    ));
    Ok(true)
}

fn failure(url: &PortUrl, situation: &str, next: &str) -> CommandFailure {
    CommandFailure::failed(ErrorReport::new(situation, url.short_name(), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings are restored in reverse order: addresses last.
    #[test]
    fn changes_of_a_tap_by_its_port_are_noted() {
        let tap = |settings, offloads| TapChanges {
            interface: "t0".to_owned(),
            settings,
            offloads,
        };
        let settings = [SettingKind::Addresses, SettingKind::State, SettingKind::Mtu];
        assert_eq!(settings_changed_by(&tap(false, false)), []);
        assert_eq!(settings_changed_by(&tap(true, false)), settings);
        assert_eq!(
            settings_changed_by(&tap(false, true)),
            [SettingKind::Offloads]
        );
        let all = [&settings[..], &[SettingKind::Offloads]].concat();
        assert_eq!(settings_changed_by(&tap(true, true)), all);
    }
}
