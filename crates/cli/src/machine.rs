//! The hosts whose settings may be changed: this one, or all of the lab around this program.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use linerate_host::knob::addresses::{addresses, set_addresses};
use linerate_host::knob::flow::{flow, set_flow};
use linerate_host::knob::queues::{Steering, set_steering, steering};
use linerate_host::knob::rss::{rss, set_rss};
use linerate_host::knob::{
    channels, coalescing, interface, rings, set_channels, set_coalescing, set_rings,
};
use linerate_host::networks::{Network, network};
use linerate_host::reader::Reader;
use linerate_host::sys::namespace::{self, Space};
use linerate_host::sys::process::{deaf_to_terminal, ended};
use linerate_lab::{segment_sizes, set_segment_sizes};
use linerate_tune::guard::{Key, Kind, Machine, Owner};

/// Hosts with their network namespaces.
pub struct Hosts {
    hosts: Vec<Host>,
    /// Interfaces that may be changed, those of the lab's links: the place of their host, and their name.
    links: Vec<(usize, String)>,
    /// The network that this process is in.
    own: u64,
}

struct Host {
    name: String,
    inode: u64,
    /// The kernel's own number of the network; of some networks it cannot be asked.
    cookie: Option<u64>,
    namespace: OwnedFd,
    /// Switches have settings of links alone.
    is_switch: bool,
}

impl Hosts {
    /// All hosts of the lab around this program; `None` outside of a lab.
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
            let own = hosts.iter().position(|host| host.name == name);
            own.or_else(|| hosts.iter().position(|host| host.is_switch))
        };
        let mut links = Vec::new();
        for link in &inside.info.links {
            for (host, interface) in link.between.iter().zip(&link.interfaces) {
                links.extend(place(host).map(|place| (place, interface.clone())));
            }
        }
        let own = File::open("/proc/thread-self/ns/net").ok()?;
        let own = own.metadata().ok()?.ino();
        Some(Self { hosts, links, own })
    }

    /// This host alone, with the interfaces of it that may be changed.
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
        })
    }

    /// Whether there are interfaces whose settings may be changed.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Every place of a setting.
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
            // Both ends of each link, where a packet is as long as the shorter of them takes.
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

    /// Runs something in the network of a setting.
    fn within<R: Send>(
        &self,
        key: &Key,
        run: impl FnOnce() -> Result<R, String> + Send,
    ) -> Result<R, String> {
        let mut hosts = self.hosts.iter();
        let host = hosts.find(|host| key.is_of(host.inode, host.cookie));
        let host =
            host.ok_or("its network is not to be seen from here: run it where it was run before")?;
        if host.inode == self.own {
            // Entering it again takes a privilege that setting something in it does not.
            return run();
        }
        std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                namespace::enter(host.namespace.as_fd(), Space::Net)
                    .map_err(|error| format!("its network cannot be entered ({error})"))?;
                run()
            });
            running
                .join()
                .expect("a thread that sets a value does not panic")
        })
    }
}

/// The kernel's number of a network, asked within it.
fn cookie(network: &OwnedFd) -> Option<u64> {
    thread::scope(|scope| {
        let asked = scope.spawn(|| {
            namespace::enter(network.as_fd(), Space::Net).ok()?;
            namespace::network_cookie().ok()
        });
        asked.join().ok()?
    })
}

fn file_of(sysctl: &str) -> String {
    format!("/proc/sys/{}", sysctl.replace('.', "/"))
}

/// The interface whose setting has this name, and which of several it is.
fn interface_of(name: &str) -> (&str, &str) {
    name.split_once(' ').unwrap_or((name, ""))
}

fn words<T>(result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
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
                let (interface, rule) = interface_of(name);
                words(flow(interface, rule))
            }
            Kind::Coalescing => words(coalescing(name)),
            Kind::Offloads => words(interface::offloads(name)),
            Kind::Rps => words(steering(name, Steering::Rps)),
            Kind::Xps => words(steering(name, Steering::Xps)),
            Kind::Command => Err("a command does not tell what was before".to_owned()),
        })
    }

    fn write(&self, key: &Key, value: &str) -> Result<(), String> {
        if key.kind == Kind::Command {
            // It goes back without a network of ours.
            return shell(value);
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
                    _ => return Err(format!("`{value}` is no size")),
                };
                set_segment_sizes(name, sizes).map_err(|error| error.to_string())
            }
            Kind::Mtu => match value.parse() {
                Ok(bytes) => words(interface::set_mtu(name, bytes)),
                Err(_) => Err(format!("`{value}` is no size")),
            },
            Kind::State => words(interface::set_state(name, value)),
            Kind::Addresses => words(set_addresses(name, value)),
            Kind::Rings => words(set_rings(name, value)),
            Kind::Channels => words(set_channels(name, value)),
            Kind::Rss => words(set_rss(name, value)),
            Kind::Flow => {
                let (interface, rule) = interface_of(name);
                words(set_flow(interface, rule, value))
            }
            Kind::Coalescing => words(set_coalescing(name, value)),
            Kind::Offloads => words(interface::set_offloads(name, value)),
            Kind::Rps => words(set_steering(name, Steering::Rps, value)),
            Kind::Xps => words(set_steering(name, Steering::Xps, value)),
            Kind::Command => shell(value),
        })
    }

    fn is_gone(&self, key: &Key) -> bool {
        let is_of = |host: &Host| key.is_of(host.inode, host.cookie);
        if key.kind == Kind::Command {
            return false;
        }
        if self.hosts.iter().any(is_of) {
            let is_there = || Ok(interface::is_there(interface_of(&key.name).0));
            return key.kind != Kind::Sysctl && self.within(key, is_there) == Ok(false);
        }
        // Another one has its inode number by now.
        let is_other = |cookie: Option<u64>| !key.is_of(key.namespace, cookie);
        if (self.hosts.iter()).any(|host| host.inode == key.namespace && is_other(host.cookie)) {
            return true;
        }
        match network(key.namespace) {
            Network::Lives(file) => is_other(cookie(&file.into())),
            Network::Gone => true,
            Network::Unknown => false,
        }
    }
}

/// How long a line that sets something back may take: to load a driver takes seconds, another kernel minutes.
const BACK: Duration = Duration::from_secs(600);

/// How soon its end is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// How long what it said last may be on its way to us.
const LAST: Duration = Duration::from_secs(1);

/// Runs a line that sets something back; what it prints is nobody's result.
fn shell(line: &str) -> Result<(), String> {
    shell_within(line, BACK)
}

fn shell_within(line: &str, limit: Duration) -> Result<(), String> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    (command.stdin(Stdio::null()).stdout(Stdio::null())).stderr(Stdio::piped());
    // What ends this program from its terminal, a second hang-up say, is not to end what sets things back; and it may
    // ask for a password there.
    deaf_to_terminal(&mut command);
    let mut child = words(command.spawn())?;
    let said = Reader::all(child.stderr.take().expect("it is piped"));
    let deadline = Instant::now() + limit;
    while ended(&child).is_none() {
        if Instant::now() > deadline {
            return Err(format!(
                "`{line}` has not ended in {} s and goes on: if it waits for somebody, end it and run it by hand",
                limit.as_secs()
            ));
        }
        thread::sleep(LOOK);
    }
    let status = words(child.wait())?;
    if status.success() {
        return Ok(());
    }
    // What it started may hold the pipe for good.
    let _ = said.ends_within(LAST);
    Err(format!(
        "`{line}` failed ({status}): {}",
        said.text().trim()
    ))
}

/// This process, as a journal names it.
pub fn owner() -> Owner {
    let pid = std::process::id();
    Owner {
        boot: boot(),
        pid,
        started_ticks: started_ticks(pid).unwrap_or_default(),
    }
}

/// Whether the process of a journal still runs.
pub fn runs(owner: &Owner) -> bool {
    started_ticks(owner.pid) == Some(owner.started_ticks)
}

/// Which boot of the machine this is.
pub fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Field 22 of `/proc/PID/stat` (proc_pid_stat(5)); the name before it may hold spaces. None of a process that has
/// ended and whose parent has not asked for it yet: some never do, and it sets nothing back.
fn started_ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let ticks = fields.nth(18)?.parse().ok();
    ticks.filter(|_| !["Z", "X"].contains(&state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_nobody_has_is_gone() {
        let hosts = Hosts::own(&[]).expect("/proc is mounted");
        let own = hosts.keys(Kind::Sysctl, "net.ipv4.tcp_rmem").remove(0);
        assert!(!hosts.is_gone(&own));
        // The inode number came again.
        let later = Key {
            cookie: own.cookie.map(|cookie| cookie + 1),
            ..own.clone()
        };
        assert_eq!(hosts.is_gone(&later), own.cookie.is_some());
        // No namespace has this number. From a container not everybody is seen who might have one.
        let none = Key {
            namespace: 1,
            ..own
        };
        let is_seen = matches!(network(1), Network::Gone);
        assert_eq!(hosts.is_gone(&none), is_seen);
        let command = Key::of_command("window");
        assert!(!hosts.is_gone(&command), "what a command wrote is there");
    }

    /// In a group of its own a command that asks for a password would be stopped by the terminal.
    #[test]
    fn what_sets_back_is_in_our_group_and_hears_no_hang_up() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let group = stat.rsplit(')').next().unwrap().split(' ').nth(3).unwrap();
        let line = format!("kill -HUP $$; test \"$(cut -d' ' -f5 /proc/self/stat)\" = {group}");
        assert_eq!(shell(&line), Ok(()));
    }

    #[test]
    fn who_has_ended_does_not_run_although_nobody_asked_for_it() {
        assert!(runs(&owner()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let its = Owner {
            pid: child.id(),
            started_ticks: started_ticks(child.id()).unwrap(),
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
        let told = shell("echo it lacks a thing >&2; sleep 20 & exit 3").unwrap_err();
        assert!(
            told.contains("(exit status: 3): it lacks a thing"),
            "{told}"
        );
        let told = shell_within("sleep 20", Duration::ZERO).unwrap_err();
        assert!(told.contains("`sleep 20` has not ended in 0 s"), "{told}");
    }
}
