//! Settings of a device that its port asks for by its URL (`channels=set`, `rss=set`, `steer=udp:7`): made before the port is opened,
//! and set back when it is closed. The same journal knows what a tap that was there before was like.

use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use linerate_host::knob::flow::ON;
use linerate_host::knob::rss::DEFAULT;
use linerate_host::snapshot::netlink::link;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_port::{DeviceWish, FoundTap, PortUrl, has_carrier, in_use};
use linerate_tune::guard::{Guard, Key, Kind};
use linerate_tune::journal::folder;

use crate::failure::Failure;
use crate::machine::{self, Hosts};
use crate::output::{Output, complain};
use crate::turn::left_note;

/// The kernel keeps a queue for some time after the last AF_XDP socket on it was closed, and takes it away from
/// nobody: as long as the port itself waits for one.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// How long a link may take to come back once its device was set up anew: two ends that agree on 10 Gb/s over copper
/// take several seconds.
const CARRIER: Duration = Duration::from_secs(10);

/// Settings of devices, and of taps that were there before, that go back when it drops: make it before the ports, so that
/// they are closed by then.
pub struct Nic {
    guard: Option<Guard<Hosts>>,
}

impl Nic {
    /// Says first where settings of a killed command still stand: what is measured now starts from there. Then sets
    /// what these ports ask for, and tells it.
    ///
    /// # Errors
    /// That it cannot be set, or written down before; all is as it was then.
    pub fn for_ports<'a>(
        urls: impl IntoIterator<Item = &'a PortUrl>,
        output: &Output,
    ) -> Result<Self, Failure> {
        left_note().iter().for_each(|note| output.remark(note));
        let mut nic = Self { guard: None };
        for url in urls {
            nic.add(url, output)?;
        }
        Ok(nic)
    }

    /// The same for one more port.
    ///
    /// # Errors
    /// As [`Nic::for_ports`], but that what other ports asked for stands.
    pub fn add(&mut self, url: &PortUrl, output: &Output) -> Result<(), Failure> {
        if let Some(wish) = url.device_wish() {
            self.grant(url, &wish, output)?;
        }
        if let Some(found) = url.found_tap() {
            self.remember(url, &found, output)?;
        }
        Ok(())
    }

    /// The same for the port of our own stack, where a run has one.
    ///
    /// # Errors
    /// As [`Nic::for_ports`].
    pub fn for_stack(device: Option<&String>, output: &Output) -> Result<Self, Failure> {
        // What is wrong with a URL is told where the port is opened.
        let url = device.and_then(|device| device.parse::<PortUrl>().ok());
        Self::for_ports(&url, output)
    }

    /// The guard of all ports; none where there is no folder for its journal.
    fn guard(&mut self, hosts: Hosts) -> Option<&mut Guard<Hosts>> {
        if self.guard.is_none() {
            let journals = folder("tune")?;
            self.guard = Some(machine::guard(hosts, Some(journals)));
        }
        self.guard.as_mut()
    }

    /// Notes what a tap is like that is there before the port opens it. The port sets back what it can while it lives;
    /// this holds for all of its addresses, and after a kill.
    fn remember(
        &mut self,
        url: &PortUrl,
        found: &FoundTap,
        output: &Output,
    ) -> Result<(), Failure> {
        let name = &found.interface;
        let kinds = changed_by(found);
        // Whatever else has this name will not be opened.
        let is_tap = link(name).is_ok_and(|link| link.kind.as_deref() == Some("tun"));
        if kinds.is_empty() || !is_tap {
            return Ok(());
        }
        let hosts = Hosts::own(std::slice::from_ref(name));
        let keys = hosts.as_ref().map(|hosts| {
            let keys = kinds.iter().map(|kind| hosts.keys(*kind, name));
            keys.flatten().collect::<Vec<Key>>()
        });
        let guard = match hosts {
            Some(hosts) => self.guard(hosts),
            None => None,
        };
        let Some((guard, keys)) = guard.zip(keys) else {
            output.remark(&format!(
                "warning: {}: there is no folder for the journal of changes (set HOME or XDG_STATE_HOME to an absolute \
                 path): after kill -9 nobody knows what {name} was like",
                url.short()
            ));
            return Ok(());
        };
        for key in &keys {
            // What the kernel does not tell cannot be set back either.
            let Ok(value) = guard.read(key) else {
                continue;
            };
            guard.note_old(key, &value).map_err(|error| {
                let next = "end that process, or make room where journals are kept";
                failed(url, &error.to_string(), next)
            })?;
        }
        Ok(())
    }

    fn grant(&mut self, url: &PortUrl, wish: &DeviceWish, output: &Output) -> Result<(), Failure> {
        let name = &wish.interface;
        if in_use(name).is_some() && !url.common().force {
            // The port will not be opened: a device that sets its queues up anew loses its link for a while.
            return Ok(());
        }
        let hosts = Hosts::own(std::slice::from_ref(name));
        let hosts =
            hosts.ok_or_else(|| failed(url, "its network cannot be seen", "mount /proc"))?;
        let key = |kind| {
            let mut keys = hosts.keys(kind, name);
            keys.pop().expect("the interface was named")
        };
        let (channels, rss) = (key(Kind::Channels), key(Kind::Rss));
        let flows = key(Kind::Flow);
        let Some(guard) = self.guard(hosts) else {
            let next = "set HOME or XDG_STATE_HOME to an absolute path";
            let situation = "there is no folder for the journal of changes";
            return Err(failed(url, situation, next));
        };
        // Queues that a table names cannot go, and a table cannot name queues that have not come.
        let fewer = guard.read(&channels).ok().zip(wish.channels);
        let carried = has_carrier(name);
        let mut is_changed = false;
        let mut kinds = [channels, rss];
        if fewer.is_some_and(|(now, count)| is_more(&now, count)) {
            kinds.reverse();
        }
        for key in &kinds {
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
            // After the queues: a rule cannot name one that has not come. It goes before they do.
            let key = Key {
                name: format!("{name} {steered}"),
                ..flows.clone()
            };
            let word = format!("steer={}:{}", steered.protocol, steered.port);
            let want = |now: &str| (now != ON).then(|| ON.to_owned());
            set(guard, &key, &word, url, want, output)?;
        }
        // Many drivers stop the device for it, and the first frames would go nowhere.
        if is_changed
            && carried == Some(true)
            && !await_carrier(|| has_carrier(name), thread::sleep)
        {
            output.remark(&format!(
                "warning: {name} has not had its carrier back within {} s of the change: see `ethtool {name}`, and \
                 whether its far end is up",
                CARRIER.as_secs()
            ));
        }
        Ok(())
    }
}

/// What opening a tap that is there may change of it, in the order opposite to that in which it goes back: an interface
/// that is set down, or has a short MTU for a while, loses addresses.
fn changed_by(found: &FoundTap) -> Vec<Kind> {
    let settings = [Kind::Addresses, Kind::State, Kind::Mtu];
    let settings = settings.into_iter().filter(|_| found.settings);
    settings
        .chain(found.offloads.then_some(Kind::Offloads))
        .collect()
}

/// Waits until a link carries again; false where it does not within [`CARRIER`]. A driver that does not tell is not
/// waited for.
fn await_carrier(mut look: impl FnMut() -> Option<bool>, mut wait: impl FnMut(Duration)) -> bool {
    let mut waited = Duration::ZERO;
    while look() == Some(false) {
        if waited >= CARRIER {
            return false;
        }
        wait(LOOK);
        waited += LOOK;
    }
    true
}

/// Sets one thing, unless it stands so already; says whether it did not.
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
    let now = guard
        .read(key)
        .map_err(|why| refused(format!("its driver does not tell what it has ({why})")))?;
    let Some(value) = want(&now) else {
        return Ok(false);
    };
    let command = key.command(&value);
    (guard.set(key, &value))
        .map_err(|why| refused(format!("`{command}` cannot be done ({why})")))?;
    output.told(&format!(
        "note: as `{command}` does, until the port is closed; then `{}`",
        key.command(&now)
    ));
    Ok(true)
}

/// What to do where something cannot be set.
fn next_step(kind: Kind, word: &str, interface: &str) -> String {
    let (first, shows) = match kind {
        Kind::Flow => {
            let root = "run as root (CAP_NET_ADMIN)";
            let filters =
                format!("{root}, and switch filters on (`ethtool -K {interface} ntuple on`)");
            // Drivers that have rules for IPv4 alone refuse the other half of `udp` and `tcp`.
            match word.split_once("6:") {
                None => (filters, "-n"),
                Some((kind, port)) => (
                    format!(
                        "{filters}; where the driver has no rules of IPv6 say `{kind}4:{port}`"
                    ),
                    "-n",
                ),
            }
        }
        Kind::Rss => ("run as root (CAP_NET_ADMIN)".to_owned(), "-x"),
        _ => ("run as root (CAP_NET_ADMIN)".to_owned(), "-l"),
    };
    format!(
        "{first}; where the driver cannot do it leave `{word}` away, and see what it has with `ethtool {shows} {interface}`"
    )
}

fn failed(url: &PortUrl, situation: &str, next: &str) -> Failure {
    Failure::failed(Problem::new(situation, url.short(), next))
}

/// What to set for so many queues where these are in use; none where they are so many already. Queues for both ways
/// stand beside those for one, where a driver has both.
fn channels_of(now: &str, count: u32) -> Option<String> {
    let words: Vec<(&str, &str)> = now
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect();
    let both = words
        .iter()
        .any(|(name, value)| *name == "combined" && *value != "0");
    let only = words.iter().all(|(name, _)| *name == "combined");
    let is_meant = |name: &str| (name == "combined") == (both || only);
    let wanted = |(name, value): &(&str, &str)| {
        let wanted = match is_meant(name) {
            true => count,
            false => 0,
        };
        // One that only receives or sends has none of the other kind to begin with.
        (*value != wanted.to_string()).then(|| format!("{name}={wanted}"))
    };
    let changes: Vec<String> = words.iter().filter_map(wanted).collect();
    (!changes.is_empty() || words.is_empty()).then(|| match words.is_empty() {
        true => format!("combined={count}"),
        false => changes.join(" "),
    })
}

/// Whether more queues of a kind than so many are in use.
fn is_more(now: &str, count: u32) -> bool {
    let counts = now
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    let mut counts = counts.filter_map(|(_, value)| value.parse::<u32>().ok());
    counts.any(|now| now > count)
}

/// The table over the queues that are taken; none where it is that already.
fn rss_of(now: &str, channels: Option<u32>, taken: RangeInclusive<u32>) -> Option<String> {
    let queues: Vec<String> = taken.map(|queue| queue.to_string()).collect();
    // The driver's own spreads over all queues, and these are all where their number is set.
    let all = now == DEFAULT && channels.is_some_and(|count| count as usize == queues.len());
    let want = queues.join(" ");
    (!all && now != want).then_some(want)
}

impl Drop for Nic {
    fn drop(&mut self) {
        let Some(guard) = &mut self.guard else {
            return;
        };
        let until = Instant::now() + PATIENCE;
        let mut wrong = guard.restore();
        while !wrong.is_empty() && Instant::now() < until {
            thread::sleep(LOOK);
            wrong = guard.restore();
        }
        if let Some(first) = wrong.first() {
            complain(&format!(
                "warning: could not be set back: {first}; `linerate tune --restore` does it once that is over"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_changed_where_it_names_others() {
        for (now, channels, taken, want) in [
            ("default", Some(2), 0..=1, None),
            ("default", None, 0..=1, Some("0 1")),
            ("default", Some(4), 2..=3, Some("2 3")),
            ("0 1", Some(2), 0..=1, None),
            ("0 3", Some(2), 0..=1, Some("0 1")),
        ] {
            let found = rss_of(now, channels, taken.clone());
            assert_eq!(found, want.map(str::to_owned), "{now} {taken:?}");
        }
        for (now, count, want) in [
            ("rx=4 tx=1", 2, true),
            ("combined=2", 2, false),
            ("combined=2", 4, false),
            ("", 1, false),
        ] {
            assert_eq!(is_more(now, count), want, "{now} {count}");
        }
    }

    /// Going back is the other way round: addresses last.
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

    /// A device that was set up anew has no link for a while, and frames that are sent meanwhile go nowhere.
    #[test]
    fn a_link_is_waited_for_as_long_as_it_may_take() {
        for (down, want) in [(0, Some(0)), (1, Some(1)), (150, Some(150)), (10_000, None)] {
            let (mut looks, mut waits) = (0, 0);
            let look = || {
                looks += 1;
                Some(looks > down)
            };
            let is_back = await_carrier(look, |time| {
                assert_eq!(time, LOOK);
                waits += 1;
            });
            let most = CARRIER.as_millis() / LOOK.as_millis();
            assert_eq!(is_back, want.is_some(), "{down}");
            assert_eq!(waits, want.unwrap_or(most), "{down}");
        }
        assert!(await_carrier(|| None, |_| panic!("nobody tells")));
    }

    #[test]
    fn channels_are_changed_where_they_are_others() {
        for (now, count, want) in [
            ("rx=4 tx=4", 2, Some("rx=2 tx=2")),
            ("rx=2 tx=4", 2, Some("tx=2")),
            ("rx=2 tx=2", 2, None),
            ("combined=8", 2, Some("combined=2")),
            ("combined=2", 2, None),
            // Drivers that have both kinds use one of them.
            ("rx=0 tx=0 combined=8", 4, Some("combined=4")),
            ("rx=0 tx=0 combined=4", 4, None),
            ("rx=8 tx=8 combined=0", 4, Some("rx=4 tx=4")),
            // Queues for one way beside those for both would be numbered after them.
            ("rx=2 tx=0 combined=4", 4, Some("rx=0")),
            // A driver that tells nothing is asked all the same, and says why not.
            ("", 2, Some("combined=2")),
        ] {
            assert_eq!(
                channels_of(now, count),
                want.map(str::to_owned),
                "{now} {count}"
            );
        }
    }
}
