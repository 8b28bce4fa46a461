//! Device settings that the URL of a port requests (`channels=set`, `rss=set`, `steer=udp:7`):
//! applied before the port opens, restored after it closes. The same journal holds the state of a
//! tap that existed before.

mod carrier;
mod device_settings;

use std::thread;
use std::time::{Duration, Instant};

use linerate_host::settings::flow_rule::ON;
use linerate_host::snapshot::netlink::link;
use linerate_host::stop_flag::Stop;
use linerate_measure::MeasureError;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_port::{DeviceWish, FoundTap, PortUrl, has_carrier, in_use};
use linerate_tune::TuneError;
use linerate_tune::guard::{Guard, Key, Kind};
use linerate_tune::journal::folder;

use self::carrier::Waited;
use self::device_settings::{channels_of, is_more, next_step, rss_of};
use crate::failure::Failure;
use crate::knob_applier::left_note;
use crate::output::{Output, complain};
use crate::tunable_hosts::{self, Hosts};

/// Time to retry a restore. The kernel keeps a queue busy for some time after its last AF_XDP
/// socket closed, and does not remove busy queues.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// Applied device settings by port number; the latest are restored first. Create it before the
/// ports, so that the ports are closed when it drops.
pub struct Nics(Vec<(u32, Nic)>);

impl Nics {
    /// Reports settings that a killed command left changed, because the measurement starts from
    /// them. Then applies the requests of these ports, numbered from 0, and reports them.
    ///
    /// # Errors
    /// Fails if a setting cannot be applied or written to the journal, or on Ctrl-C; all settings
    /// are restored then.
    pub fn for_ports<'a>(
        urls: impl IntoIterator<Item = &'a PortUrl>,
        stop: &Stop,
        output: &Output,
    ) -> Result<Self, Failure> {
        left_note().iter().for_each(|note| output.remark(note));
        let mut nics = Self(Vec::new());
        for (port, url) in (0..).zip(urls) {
            match Nic::for_port(url, stop, output) {
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
    /// As [`Nics::for_ports`].
    pub fn for_stack(
        device: Option<&String>,
        stop: &Stop,
        output: &Output,
    ) -> Result<Self, Failure> {
        // An invalid URL is reported when the port is opened.
        let url = device.and_then(|device| device.parse::<PortUrl>().ok());
        Self::for_ports(&url, stop, output)
    }

    /// Keeps the settings of a port until it is released.
    pub fn hold(&mut self, port: u32, nic: Nic) {
        self.0.push((port, nic));
    }

    /// Restores the settings of a port that was closed for good.
    pub fn release(&mut self, port: u32) {
        self.0.retain(|(held, _)| *held != port);
    }

    /// Restores all settings and returns the interfaces whose links may be down for a while.
    fn restore(&mut self) -> Vec<String> {
        let last_first = self.0.iter_mut().rev();
        last_first.filter_map(|(_, nic)| nic.restore()).collect()
    }
}

impl Drop for Nics {
    fn drop(&mut self) {
        let Some((_, last)) = self.0.last() else {
            return;
        };
        let stop = last.stop.clone();
        // All of them before waiting, so that their links come up at the same time.
        carrier::wait(&self.restore(), &stop, complain);
    }
}

/// Settings of the device of one port, or of an existing tap, restored on drop.
pub struct Nic {
    held: Option<Held>,
    stop: Stop,
}

struct Held {
    interface: String,
    guard: Guard<Hosts>,
}

impl Nic {
    /// Applies the requests of a port, and notes the old values.
    ///
    /// # Errors
    /// As [`Nics::for_ports`].
    pub fn for_port(url: &PortUrl, stop: &Stop, output: &Output) -> Result<Self, Failure> {
        let mut nic = Self {
            held: None,
            stop: stop.clone(),
        };
        if let Some(wish) = url.device_wish() {
            nic.grant(url, &wish, output)?;
        }
        if let Some(found) = url.found_tap() {
            nic.remember(url, &found, output)?;
        }
        Ok(nic)
    }

    /// Returns the guard of an interface and its keys of these kinds; `None` if the network
    /// namespace is not readable.
    fn guard(
        &mut self,
        interface: &String,
        kinds: &[Kind],
    ) -> Option<(&mut Guard<Hosts>, Vec<Key>)> {
        let hosts = Hosts::own(std::slice::from_ref(interface))?;
        let keys = kinds.iter().flat_map(|kind| hosts.keys(*kind, interface));
        let keys = keys.collect();
        let held = self.held.insert(Held {
            interface: interface.clone(),
            guard: tunable_hosts::guard(hosts, folder("tune")),
        });
        Some((&mut held.guard, keys))
    }

    /// Notes the state of a tap that exists before the port opens it. The port restores what it can
    /// while it lives; this covers all addresses and, if a journal can be written, a kill.
    fn remember(
        &mut self,
        url: &PortUrl,
        found: &FoundTap,
        output: &Output,
    ) -> Result<(), Failure> {
        let name = &found.interface;
        let kinds = changed_by(found);
        // Any other interface of this name will not be opened.
        let is_tap = link(name).is_ok_and(|link| link.kind.as_deref() == Some("tun"));
        if kinds.is_empty() || !is_tap {
            return Ok(());
        }
        let unwritten = match self.guard(name, &kinds) {
            Some((guard, keys)) => note(guard, &keys).map_err(|error| {
                let next = "end that process, or name another tap";
                failed(url, &error.to_string(), next)
            })?,
            None => Some("its network namespace is not readable (mount /proc)".to_owned()),
        };
        if let Some(why) = unwritten {
            output.remark(&format!(
                "warning: {}: {why}; {name} is restored when the port closes, but not after kill -9, because its old \
                 state is not in a journal",
                url.short()
            ));
        }
        Ok(())
    }

    fn grant(&mut self, url: &PortUrl, wish: &DeviceWish, output: &Output) -> Result<(), Failure> {
        let name = &wish.interface;
        if in_use(name).is_some() && !url.common().force {
            // The port will fail to open, so the device is left alone: new queues would take its
            // link down for a while.
            return Ok(());
        }
        if folder("tune").is_none() {
            let next = "set HOME or XDG_STATE_HOME to an absolute path";
            let situation = "no directory for the journal of changes";
            return Err(failed(url, situation, next));
        }
        let kinds = [Kind::Channels, Kind::Rss, Kind::Flow];
        let (guard, keys) = (self.guard(name, &kinds))
            .ok_or_else(|| failed(url, "its network namespace is not readable", "mount /proc"))?;
        let [channels, rss, flows] = &keys[..] else {
            unreachable!("one interface has one setting of each kind");
        };
        // Queues that a table names cannot be removed, and a table cannot name queues that do not
        // exist yet.
        let fewer = guard.read(channels).ok().zip(wish.channels);
        let carried = has_carrier(name) == Some(true);
        let mut is_changed = false;
        let mut order = [channels, rss];
        if fewer.is_some_and(|(now, count)| is_more(&now, count)) {
            order.reverse();
        }
        for key in order {
            match (key.kind, wish.channels, &wish.rss) {
                (Kind::Channels, Some(count), _) => {
                    let want = |now: &str| channels_of(now, count);
                    is_changed |= set(guard, key, "channels=set", url, want, output)?;
                }
                (Kind::Rss, _, Some(taken)) => {
                    let want = |now: &str| rss_of(now, wish.channels, taken.clone());
                    is_changed |= set(guard, key, "rss=set", url, want, output)?;
                }
                _ => {}
            }
        }
        for steered in &wish.steer {
            // After the queues: a rule cannot name a queue that does not exist. On restore it is
            // removed before them.
            let key = Key {
                name: format!("{name} {steered}"),
                ..flows.clone()
            };
            let word = format!("steer={}:{}", steered.protocol, steered.port);
            let want = |now: &str| (now != ON).then(|| ON.to_owned());
            set(guard, &key, &word, url, want, output)?;
        }
        // Without a carrier, the first frames would be lost.
        let links = (is_changed && carried).then(|| name.clone());
        match carrier::wait(links.as_slice(), &self.stop, |text| output.remark(text)) {
            Waited::Stopped => Err(MeasureError::Interrupted.into()),
            Waited::Back | Waited::Late => Ok(()),
        }
    }

    /// Restores all settings and returns the interface if its link may be down for a while.
    fn restore(&mut self) -> Option<String> {
        let Held {
            interface,
            mut guard,
        } = self.held.take()?;
        // An interface without carrier, for example without a peer, does not get one.
        let has_link = has_carrier(&interface) == Some(true);
        let until = Instant::now() + PATIENCE;
        let mut wrong = guard.restore();
        while !wrong.is_empty() && Instant::now() < until {
            thread::sleep(LOOK);
            wrong = guard.restore();
        }
        if let Some(first) = wrong.first() {
            complain(&format!(
                "warning: could not be restored: {first}; `linerate tune --restore` does it later"
            ));
        }
        has_link.then_some(interface)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        if let Some(link) = self.restore() {
            carrier::wait(&[link], &self.stop, complain);
        }
    }
}

/// Notes the old values; returns the reason if they cannot be written to a journal.
///
/// # Errors
/// Fails if another process changes the same settings.
fn note(guard: &mut Guard<Hosts>, keys: &[Key]) -> Result<Option<String>, TuneError> {
    let mut unwritten = None;
    for key in keys {
        // A value that the kernel does not report cannot be restored either.
        let Ok(value) = guard.read(key) else {
            continue;
        };
        match guard.note_old(key, &value) {
            Ok(()) => {}
            Err(error @ (TuneError::Shared { .. } | TuneError::Twice { .. })) => return Err(error),
            Err(error) => {
                guard.keep_in_mind(key, &value);
                unwritten.get_or_insert(error.to_string());
            }
        }
    }
    Ok(unwritten)
}

/// Returns the settings that opening an existing tap may change, in reverse order of their restore:
/// an interface that is down, or has a short MTU for a while, loses addresses.
fn changed_by(found: &FoundTap) -> Vec<Kind> {
    let settings = [Kind::Addresses, Kind::State, Kind::Mtu];
    let settings = settings.into_iter().filter(|_| found.settings);
    settings
        .chain(found.offloads.then_some(Kind::Offloads))
        .collect()
}

/// Applies one setting unless it has the value already; returns whether it changed.
fn set(
    guard: &mut Guard<Hosts>,
    key: &Key,
    word: &str,
    url: &PortUrl,
    want: impl Fn(&str) -> Option<String>,
    output: &Output,
) -> Result<bool, Failure> {
    let refused = |why: String| Failure {
        problem: Problem::new(
            format!("{word}: {why}"),
            url.short(),
            next_step(key.kind, word, url.name()),
        ),
        code: exit::MISSING,
    };
    let now = guard.read(key).map_err(|why| {
        refused(format!(
            "its driver does not report the current value ({why})"
        ))
    })?;
    let Some(value) = want(&now) else {
        return Ok(false);
    };
    let command = key.command(&value);
    (guard.set(key, &value)).map_err(|why| refused(format!("`{command}` failed ({why})")))?;
    output.told(&format!(
        "note: applied `{command}` until the port closes; then `{}`",
        key.command(&now)
    ));
    Ok(true)
}

fn failed(url: &PortUrl, situation: &str, next: &str) -> Failure {
    Failure::failed(Problem::new(situation, url.short(), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings are restored in reverse order: addresses last.
    #[test]
    fn what_a_port_changes_of_a_tap_is_noted() {
        let found = |settings, offloads| FoundTap {
            interface: "t0".to_owned(),
            settings,
            offloads,
        };
        let settings = [Kind::Addresses, Kind::State, Kind::Mtu];
        assert_eq!(changed_by(&found(false, false)), []);
        assert_eq!(changed_by(&found(true, false)), settings);
        assert_eq!(changed_by(&found(false, true)), [Kind::Offloads]);
        let all = [&settings[..], &[Kind::Offloads]].concat();
        assert_eq!(changed_by(&found(true, true)), all);
    }
}
