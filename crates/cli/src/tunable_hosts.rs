//! Hosts whose settings may be changed: this host, or all hosts of the lab that runs this program.

mod location;

use std::fs::{self, File};
use std::io;
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use linerate_host::network_namespaces::networks;
use linerate_host::output_reader::Reader;
use linerate_host::settings::addresses::{addresses, set_addresses};
use linerate_host::settings::flow_rule::{flow, set_flow};
use linerate_host::settings::packet_steering::{Steering, set_steering, steering};
use linerate_host::settings::rss::{rss, set_rss};
use linerate_host::settings::{
    channels, coalescing, interface, rings, set_channels, set_coalescing, set_rings,
};
use linerate_host::snapshot::netlink::link;
use linerate_host::sys::namespace::{self, Space};
use linerate_host::sys::process::{deaf_to_terminal, ended};
use linerate_lab::{segment_sizes, set_segment_sizes};
use linerate_tune::guard::{Device, Guard, Key, Kind, Machine, Owner, Place};
use linerate_tune::knob::TURNING_S;

pub struct Hosts {
    hosts: Vec<Host>,
    /// Interfaces of lab links that may be changed: index of the host, name.
    links: Vec<(usize, String)>,
    /// Inode of this process's network namespace.
    own: u64,
    /// Other network namespaces of this machine that can be entered. Found on first use, because
    /// the search reads all processes.
    others: OnceLock<Vec<Host>>,
}

struct Host {
    name: String,
    inode: u64,
    /// Cookie of the network namespace; `None` if the kernel does not report it.
    cookie: Option<u64>,
    namespace: OwnedFd,
    /// The host is the namespace of the switches, which has settings of links only.
    is_switch: bool,
}

impl Hosts {
    /// Returns all hosts of the lab that runs this program; `None` outside a lab.
    pub fn of_lab() -> Option<Self> {
        let inside = linerate_lab::inside()?;
        let mut hosts = Vec::new();
        let all = inside
            .hosts
            .into_iter()
            .map(|(name, space)| (name, space, false));
        let switches = inside
            .switches
            .map(|space| ("switches".to_owned(), space, true));
        for (name, namespace, is_switch) in all.chain(switches) {
            let inode = File::from(namespace.try_clone().ok()?)
                .metadata()
                .ok()?
                .ino();
            hosts.push(Host {
                name,
                inode,
                cookie: cookie(&namespace),
                namespace,
                is_switch,
            });
        }
        let place = |name: &str| {
            let position = hosts.iter().position(|host| host.name == name);
            position.or_else(|| hosts.iter().position(|host| host.is_switch))
        };
        let mut links = Vec::new();
        for link in &inside.info.links {
            for (host, interface) in link.between.iter().zip(&link.interfaces) {
                links.extend(place(host).map(|place| (place, interface.clone())));
            }
        }
        let own = File::open("/proc/thread-self/ns/net").ok()?;
        let own = own.metadata().ok()?.ino();
        Some(Self {
            hosts,
            links,
            own,
            others: OnceLock::new(),
        })
    }

    /// Returns this host, with those of its interfaces that may be changed.
    pub fn own(interfaces: &[String]) -> Option<Self> {
        let file = File::open("/proc/thread-self/ns/net").ok()?;
        let inode = file.metadata().ok()?.ino();
        Some(Self {
            hosts: vec![Host {
                name: "this host".to_owned(),
                inode,
                cookie: namespace::network_cookie().ok(),
                namespace: file.into(),
                is_switch: false,
            }],
            links: interfaces.iter().map(|name| (0, name.clone())).collect(),
            own: inode,
            others: OnceLock::new(),
        })
    }

    /// Returns whether there are interfaces whose settings may be changed.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Returns the keys of a setting on all hosts or interfaces.
    pub fn keys(&self, kind: Kind, name: &str) -> Vec<Key> {
        let key = |host: &Host, name: &str| Key {
            host: host.name.clone(),
            namespace: host.inode,
            cookie: host.cookie,
            kind,
            name: name.to_owned(),
        };
        match kind {
            Kind::Sysctl => (self.hosts.iter())
                .filter(|host| !host.is_switch)
                .map(|host| key(host, name))
                .collect(),
            // Both ends of each link, because the smaller value limits the packets.
            Kind::SegmentSizes | Kind::Mtu | Kind::State | Kind::Addresses => (self.links.iter())
                .map(|(place, interface)| key(&self.hosts[*place], interface))
                .collect(),
            Kind::Rings
            | Kind::Channels
            | Kind::Rss
            | Kind::Flow
            | Kind::Coalescing
            | Kind::Offloads
            | Kind::Rps
            | Kind::Xps => (self.links.iter())
                .filter(|(place, _)| !self.hosts[*place].is_switch)
                .map(|(place, interface)| key(&self.hosts[*place], interface))
                .collect(),
            Kind::Command => vec![Key::of_command(name)],
        }
    }

    /// Returns the host of a setting: one of these hosts, or any namespace that can be entered.
    fn host_of(&self, key: &Key) -> Option<&Host> {
        let is_it = |host: &&Host| key.is_of(host.inode, host.cookie);
        let mut hosts = self.hosts.iter();
        hosts
            .find(is_it)
            .or_else(|| self.others().iter().find(is_it))
    }

    fn others(&self) -> &[Host] {
        let other = |(inode, file): (u64, File)| {
            if self.hosts.iter().any(|host| host.inode == inode) {
                return None;
            }
            let namespace = OwnedFd::from(file);
            let cookie = within(&namespace, || namespace::network_cookie().ok()).ok()?;
            Some(Host {
                name: format!("network {inode}"),
                inode,
                cookie,
                namespace,
                is_switch: false,
            })
        };
        self.others
            .get_or_init(|| networks().into_iter().filter_map(other).collect())
    }

    /// Runs a closure in the network namespace of a setting.
    fn within<R: Send>(
        &self,
        key: &Key,
        run: impl FnOnce() -> Result<R, String> + Send,
    ) -> Result<R, String> {
        let host = self.host_of(key);
        let host = host.ok_or(
            "its network namespace is not visible from here: run the command where it ran before",
        )?;
        self.inside(host, run)
    }

    fn inside<R: Send>(
        &self,
        host: &Host,
        run: impl FnOnce() -> Result<R, String> + Send,
    ) -> Result<R, String> {
        if host.inode == self.own {
            // Entering our own namespace would need a privilege that the setting itself does not
            // need.
            return run();
        }
        within(&host.namespace, run)
            .map_err(|error| format!("its network namespace cannot be entered ({error})"))?
    }
}

/// Runs a closure on a new thread in a network namespace.
fn within<R: Send>(network: &OwnedFd, run: impl FnOnce() -> R + Send) -> io::Result<R> {
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            namespace::enter(network.as_fd(), Space::Net)?;
            Ok(run())
        });
        running
            .join()
            .expect("a thread that sets a value does not panic")
    })
}

/// Returns the cookie of a network namespace, read from inside it.
fn cookie(network: &OwnedFd) -> Option<u64> {
    within(network, || namespace::network_cookie().ok()).ok()?
}

fn file_of(sysctl: &str) -> String {
    format!("/proc/sys/{}", sysctl.replace('.', "/"))
}

fn words<T>(result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!("{error}: needs root"),
        _ => error.to_string(),
    })
}

impl Machine for Hosts {
    fn read(&self, key: &Key) -> Result<String, String> {
        let name = key.name.as_str();
        self.within(key, || match key.kind {
            Kind::Sysctl => {
                let text = words(fs::read_to_string(file_of(name)))?;
                Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            Kind::SegmentSizes => {
                let sizes = segment_sizes(name).map_err(|error| error.to_string())?;
                Ok(sizes.map(|size| size.to_string()).join(" "))
            }
            Kind::Mtu => words(interface::mtu(name)).map(|bytes| bytes.to_string()),
            Kind::State => words(interface::state(name)),
            Kind::Addresses => words(addresses(name)),
            Kind::Rings => words(rings(name)),
            Kind::Channels => words(channels(name)),
            Kind::Rss => words(rss(name)),
            Kind::Flow => {
                let (interface, rule) = name.split_once(' ').unwrap_or((name, ""));
                words(flow(interface, rule))
            }
            Kind::Coalescing => words(coalescing(name)),
            Kind::Offloads => words(interface::offloads(name)),
            Kind::Rps => words(steering(name, Steering::Rps)),
            Kind::Xps => words(steering(name, Steering::Xps)),
            Kind::Command => Err("the old value of a command is unknown".to_owned()),
        })
    }

    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String> {
        let limit = Duration::from_secs(limit_s.unwrap_or(TURNING_S));
        if key.kind == Kind::Command {
            // Commands need no network namespace.
            return shell(value, limit);
        }
        let name = key.name.as_str();
        self.within(key, || match key.kind {
            Kind::Sysctl => words(fs::write(file_of(name), value)),
            Kind::SegmentSizes => {
                let sizes: Option<Vec<u32>> = value
                    .split_whitespace()
                    .map(|size| size.parse().ok())
                    .collect();
                let sizes = match sizes.as_deref() {
                    Some(&[one]) => [one; 4],
                    Some(&[a, b, c, d]) => [a, b, c, d],
                    _ => return Err(format!("`{value}` is not a size")),
                };
                set_segment_sizes(name, sizes).map_err(|error| error.to_string())
            }
            Kind::Mtu => match value.parse() {
                Ok(bytes) => words(interface::set_mtu(name, bytes)),
                Err(_) => Err(format!("`{value}` is not a size")),
            },
            Kind::State => words(interface::set_state(name, value)),
            Kind::Addresses => words(set_addresses(name, value)),
            Kind::Rings => words(set_rings(name, value)),
            Kind::Channels => words(set_channels(name, value)),
            Kind::Rss => words(set_rss(name, value)),
            Kind::Flow => {
                let (interface, rule) = name.split_once(' ').unwrap_or((name, ""));
                words(set_flow(interface, rule, value))
            }
            Kind::Coalescing => words(set_coalescing(name, value)),
            Kind::Offloads => words(interface::set_offloads(name, value)),
            Kind::Rps => words(set_steering(name, Steering::Rps, value)),
            Kind::Xps => words(set_steering(name, Steering::Xps, value)),
            Kind::Command => shell(value, limit),
        })
    }

    fn device(&self, key: &Key) -> Option<Device> {
        let interface = key.interface()?;
        let link = self.within(key, || words(link(interface))).ok()?;
        Some(location::device_of(&link))
    }

    fn find(&self, key: &Key, device: Option<&Device>) -> Place {
        self.place(key, device)
    }
}

/// Time between two checks for the end of a command.
const LOOK: Duration = Duration::from_millis(20);

/// Time to wait for the last output of a command.
const LAST: Duration = Duration::from_secs(1);

/// Runs a shell command that sets or restores something; its standard output is discarded.
fn shell(line: &str, limit: Duration) -> Result<(), String> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    (command.stdin(Stdio::null()).stdout(Stdio::null())).stderr(Stdio::piped());
    // Signals of the terminal that end this program, such as a second hang-up, must not end a
    // command that restores settings. It keeps the terminal, because it may prompt for a password.
    deaf_to_terminal(&mut command);
    let mut child = words(command.spawn())?;
    let said = Reader::told(child.stderr.take().expect("it is piped"));
    let began = Instant::now();
    while ended(&child).is_none() {
        if began.elapsed() > limit {
            return Err(format!(
                "`{line}` did not end within {} s and is still running: if it waits for input, end it and run it by hand",
                limit.as_secs()
            ));
        }
        thread::sleep(LOOK);
    }
    let status = words(child.wait())?;
    if status.success() {
        return Ok(());
    }
    // A child of the command may hold the pipe open forever.
    let _ = said.ends_within(LAST);
    Err(format!(
        "`{line}` failed ({status}): {}",
        said.text().trim()
    ))
}

/// Creates a guard with a journal in this directory, if there is one. It may also change settings
/// that the commands which started this process have changed.
pub fn guard<M: Machine>(machine: M, journals: Option<PathBuf>) -> Guard<M> {
    Guard::new(machine, journals, owner()).within(around())
}

/// Returns this process as a journal names it.
fn owner() -> Owner {
    let pid = std::process::id();
    owner_of(pid).map_or_else(
        || Owner {
            boot: boot(),
            pid,
            started_ticks: 0,
        },
        |(owner, _)| owner,
    )
}

/// Maximum number of ancestor processes: more would be a loop.
const MOST_AROUND: usize = 64;

/// Returns the ancestors of this process, parent first.
fn around() -> Vec<Owner> {
    let parent = |(_, parent): &(Owner, u32)| owner_of(*parent);
    let all = iter::successors(owner_of(std::process::id()), parent);
    all.skip(1)
        .take(MOST_AROUND)
        .map(|(owner, _)| owner)
        .collect()
}

/// Returns a process as a journal names it, and the number of its parent.
fn owner_of(pid: u32) -> Option<(Owner, u32)> {
    let (parent, started_ticks) = born(pid)?;
    let owner = Owner {
        boot: boot(),
        pid,
        started_ticks,
    };
    Some((owner, parent))
}

/// Returns whether the process of a journal still runs.
pub fn runs(owner: &Owner) -> bool {
    born(owner.pid).is_some_and(|(_, started_ticks)| started_ticks == owner.started_ticks)
}

/// Returns the id of the current boot.
pub fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Returns the parent and the start time, in clock ticks, of a process: fields 4 and 22 of
/// `/proc/PID/stat` (proc_pid_stat(5)); the name before them may contain spaces. `None` for a
/// zombie: some parents never collect it, and it restores nothing.
fn born(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let ticks = fields.nth(17)?.parse().ok()?;
    (!["Z", "X"].contains(&state)).then_some((parent, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_host::network_namespaces::{Network, network};

    #[test]
    fn what_a_user_may_not_set_says_what_it_takes() {
        let kept = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(
            words::<()>(Err(kept)),
            Err("permission denied: needs root".to_owned())
        );
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(words::<()>(Err(gone)), Err("entity not found".to_owned()));
    }

    #[test]
    fn a_network_that_nobody_has_is_gone() {
        let hosts = Hosts::own(&[]).expect("/proc is mounted");
        let is_gone = |key: &Key| hosts.find(key, None) == Place::Gone;
        let own = hosts.keys(Kind::Sysctl, "net.ipv4.tcp_rmem").remove(0);
        assert!(!is_gone(&own));
        // The inode number was reused.
        let later = Key {
            cookie: own.cookie.map(|cookie| cookie + 1),
            ..own.clone()
        };
        assert_eq!(is_gone(&later), own.cookie.is_some());
        // No namespace has this number. Inside a container, not all processes that might have one
        // are visible.
        let none = Key {
            namespace: 1,
            ..own
        };
        let is_seen = matches!(network(1), Network::Gone);
        assert_eq!(is_gone(&none), is_seen);
        let command = Key::of_command("window");
        assert!(!is_gone(&command), "what a command wrote is there");
    }

    #[test]
    fn an_interface_is_there_under_its_name_or_it_is_another_one() {
        let hosts = Hosts::own(&["lo".to_owned()]).expect("/proc is mounted");
        let key = hosts.keys(Kind::Mtu, "lo").remove(0);
        let own = hosts.device(&key).expect("every network has one");
        let there = Place::At(key.clone());
        assert_eq!(hosts.find(&key, Some(&own)), there);
        // A journal entry of a version that did not record the device.
        assert_eq!(hosts.find(&key, None), there);
        let other = key.of_interface("none-such0");
        assert_eq!(hosts.find(&other, None), Place::Gone);
        // The interface was renamed to `lo`.
        assert_eq!(hosts.find(&other, Some(&own)), there);
        // The interface with this name had another index.
        let gone = Device {
            index: u32::MAX,
            ..own
        };
        assert_eq!(hosts.find(&key, Some(&gone)), Place::Gone);
    }

    #[test]
    fn who_started_this_process_is_around_it() {
        let around = around();
        let parent = std::os::unix::process::parent_id();
        assert_eq!(around.first().map(|owner| owner.pid), Some(parent));
        assert!(around.iter().all(runs) && !around.contains(&owner()));
    }

    /// In a group of its own, a command that prompts for a password would be stopped by the
    /// terminal.
    #[test]
    fn what_sets_back_is_in_our_group_and_hears_no_hang_up() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let group = stat.rsplit(')').next().unwrap().split(' ').nth(3).unwrap();
        let line = format!("kill -HUP $$; test \"$(cut -d' ' -f5 /proc/self/stat)\" = {group}");
        assert_eq!(shell(&line, Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn who_has_ended_does_not_run_although_nobody_asked_for_it() {
        assert!(runs(&owner()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let its = Owner {
            pid: child.id(),
            started_ticks: born(child.id()).unwrap().1,
            ..owner()
        };
        assert!(runs(&its));
        child.kill().unwrap();
        // It stays a zombie until it is waited for.
        while ended(&child).is_none() {
            thread::sleep(LOOK);
        }
        assert!(fs::exists(format!("/proc/{}", its.pid)).unwrap());
        assert!(!runs(&its));
        child.wait().unwrap();
        assert!(!runs(&its));
    }

    #[test]
    fn what_sets_back_is_waited_for_and_not_what_it_leaves_behind() {
        let told = shell(
            "echo it lacks a thing >&2; sleep 20 & exit 3",
            Duration::from_secs(60),
        )
        .unwrap_err();
        assert!(
            told.contains("(exit status: 3): it lacks a thing"),
            "{told}"
        );
        let hosts = Hosts::own(&[]).expect("/proc is mounted");
        let told = hosts.write(&Key::of_command("window"), "sleep 20", Some(0));
        let told = told.unwrap_err();
        assert!(told.contains("`sleep 20` did not end within 0 s"), "{told}");
    }
}
