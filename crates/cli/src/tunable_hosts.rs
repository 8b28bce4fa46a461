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

use linerate_host::netlink::find_link;
use linerate_host::network_namespaces::list_namespaces;
use linerate_host::output_reader::OutputReader;
use linerate_host::settings::addresses::{read_addresses, set_addresses};
use linerate_host::settings::flow_rule::{read_flow_rule, set_flow_rule};
use linerate_host::settings::packet_steering::{PacketSteering, read_steering, set_steering};
use linerate_host::settings::rss::{read_rss, set_rss};
use linerate_host::settings::{
    interface, read_channels, read_coalescing, read_rings, set_channels, set_coalescing, set_rings,
};
use linerate_lab::{segment_sizes, set_segment_sizes};
use linerate_sys::namespace;
use linerate_sys::namespace::NamespaceKind;
use linerate_sys::process::{ignore_terminal_signals, poll_exit};
use linerate_tune::guard::{
    HostSettings, InterfaceIdentity, JournalOwner, RollbackGuard, SettingKey, SettingKind,
    SettingLocation,
};
use linerate_tune::knob::COMMAND_TIMEOUT_S;

pub struct TunableHosts {
    hosts: Vec<NetworkHost>,
    /// Interfaces of lab links that may be changed: index of the host, name.
    links: Vec<(usize, String)>,
    /// Inode of this process's network namespace.
    own_inode: u64,
    /// Other network namespaces of this machine that can be entered. Found on first use, because
    /// the search reads all processes.
    other_hosts: OnceLock<Vec<NetworkHost>>,
}

struct NetworkHost {
    name: String,
    inode: u64,
    /// Cookie of the network namespace; `None` if the kernel does not report it.
    cookie: Option<u64>,
    namespace: OwnedFd,
    /// The host is the namespace of the switches, which has settings of links only.
    is_switch: bool,
}

impl TunableHosts {
    /// Returns all hosts of the lab that runs this program; `None` outside a lab.
    pub fn lab_hosts() -> Option<Self> {
        let inside = linerate_lab::current_lab()?;
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
            hosts.push(NetworkHost {
                name,
                inode,
                cookie: network_cookie(&namespace),
                namespace,
                is_switch,
            });
        }
        let index = |name: &str| {
            let position = hosts.iter().position(|host| host.name == name);
            position.or_else(|| hosts.iter().position(|host| host.is_switch))
        };
        let mut links = Vec::new();
        for link in &inside.info.links {
            for (host, interface) in link.between.iter().zip(&link.interfaces) {
                links.extend(index(host).map(|index| (index, interface.clone())));
            }
        }
        let own_namespace = File::open("/proc/thread-self/ns/net").ok()?;
        let own_namespace = own_namespace.metadata().ok()?.ino();
        Some(Self {
            hosts,
            links,
            own_inode: own_namespace,
            other_hosts: OnceLock::new(),
        })
    }

    /// Returns this host, with those of its interfaces that may be changed.
    pub fn this_host(interfaces: &[String]) -> Option<Self> {
        let file = File::open("/proc/thread-self/ns/net").ok()?;
        let inode = file.metadata().ok()?.ino();
        Some(Self {
            hosts: vec![NetworkHost {
                name: "this host".to_owned(),
                inode,
                cookie: namespace::read_network_cookie().ok(),
                namespace: file.into(),
                is_switch: false,
            }],
            links: interfaces.iter().map(|name| (0, name.clone())).collect(),
            own_inode: inode,
            other_hosts: OnceLock::new(),
        })
    }

    /// Returns whether there are interfaces whose settings may be changed.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Returns the keys of a setting on all hosts or interfaces.
    pub fn keys(&self, kind: SettingKind, name: &str) -> Vec<SettingKey> {
        let key = |host: &NetworkHost, name: &str| SettingKey {
            host: host.name.clone(),
            namespace_inode: host.inode,
            namespace_cookie: host.cookie,
            kind,
            name: name.to_owned(),
        };
        match kind {
            SettingKind::Sysctl => (self.hosts.iter())
                .filter(|host| !host.is_switch)
                .map(|host| key(host, name))
                .collect(),
            // Both ends of each link, because the smaller value limits the packets.
            SettingKind::SegmentSizes
            | SettingKind::Mtu
            | SettingKind::State
            | SettingKind::Addresses => (self.links.iter())
                .map(|(index, interface)| key(&self.hosts[*index], interface))
                .collect(),
            SettingKind::Rings
            | SettingKind::Channels
            | SettingKind::Rss
            | SettingKind::Flow
            | SettingKind::Coalescing
            | SettingKind::Offloads
            | SettingKind::Rps
            | SettingKind::Xps => (self.links.iter())
                .filter(|(index, _)| !self.hosts[*index].is_switch)
                .map(|(index, interface)| key(&self.hosts[*index], interface))
                .collect(),
            SettingKind::Command => vec![SettingKey::for_command(name)],
        }
    }

    /// Returns the host of a setting: one of these hosts, or any namespace that can be entered.
    fn host_of(&self, key: &SettingKey) -> Option<&NetworkHost> {
        let matches_key = |host: &&NetworkHost| key.is_in_namespace(host.inode, host.cookie);
        let mut hosts = self.hosts.iter();
        hosts
            .find(matches_key)
            .or_else(|| self.other_hosts().iter().find(matches_key))
    }

    fn other_hosts(&self) -> &[NetworkHost] {
        let open_host = |(inode, file): (u64, File)| {
            if self.hosts.iter().any(|host| host.inode == inode) {
                return None;
            }
            let namespace = OwnedFd::from(file);
            let cookie =
                run_in_network(&namespace, || namespace::read_network_cookie().ok()).ok()?;
            Some(NetworkHost {
                name: format!("network {inode}"),
                inode,
                cookie,
                namespace,
                is_switch: false,
            })
        };
        self.other_hosts.get_or_init(|| {
            list_namespaces()
                .into_iter()
                .filter_map(open_host)
                .collect()
        })
    }

    /// Runs a closure in the network namespace of a setting.
    fn run_for_key<R: Send>(
        &self,
        key: &SettingKey,
        run: impl FnOnce() -> Result<R, String> + Send,
    ) -> Result<R, String> {
        let host = self.host_of(key);
        let host = host.ok_or(
            "its network namespace is not visible from here: run the command where it ran before",
        )?;
        self.run_on_host(host, run)
    }

    fn run_on_host<R: Send>(
        &self,
        host: &NetworkHost,
        run: impl FnOnce() -> Result<R, String> + Send,
    ) -> Result<R, String> {
        if host.inode == self.own_inode {
            // Entering our own namespace would need a privilege that the setting itself does not
            // need.
            return run();
        }
        run_in_network(&host.namespace, run)
            .map_err(|error| format!("its network namespace cannot be entered ({error})"))?
    }
}

/// Runs a closure on a new thread in a network namespace.
fn run_in_network<R: Send>(network: &OwnedFd, run: impl FnOnce() -> R + Send) -> io::Result<R> {
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            namespace::enter(network.as_fd(), NamespaceKind::Net)?;
            Ok(run())
        });
        running
            .join()
            .expect("a thread that sets a value does not panic")
    })
}

/// Returns the cookie of a network namespace, read from inside it.
fn network_cookie(network: &OwnedFd) -> Option<u64> {
    run_in_network(network, || namespace::read_network_cookie().ok()).ok()?
}

fn sysctl_path(sysctl: &str) -> String {
    format!("/proc/sys/{}", sysctl.replace('.', "/"))
}

fn describe_error<T>(result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!("{error}: needs root"),
        _ => error.to_string(),
    })
}

impl HostSettings for TunableHosts {
    fn read(&self, key: &SettingKey) -> Result<String, String> {
        let name = key.name.as_str();
        self.run_for_key(key, || match key.kind {
            SettingKind::Sysctl => {
                let text = describe_error(fs::read_to_string(sysctl_path(name)))?;
                Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            SettingKind::SegmentSizes => {
                let sizes = segment_sizes(name).map_err(|error| error.to_string())?;
                Ok(sizes.map(|size| size.to_string()).join(" "))
            }
            SettingKind::Mtu => {
                describe_error(interface::read_mtu(name)).map(|bytes| bytes.to_string())
            }
            SettingKind::State => describe_error(interface::read_state(name)),
            SettingKind::Addresses => describe_error(read_addresses(name)),
            SettingKind::Rings => describe_error(read_rings(name)),
            SettingKind::Channels => describe_error(read_channels(name)),
            SettingKind::Rss => describe_error(read_rss(name)),
            SettingKind::Flow => {
                let (interface, rule) = name.split_once(' ').unwrap_or((name, ""));
                describe_error(read_flow_rule(interface, rule))
            }
            SettingKind::Coalescing => describe_error(read_coalescing(name)),
            SettingKind::Offloads => describe_error(interface::read_switches(name)),
            SettingKind::Rps => describe_error(read_steering(name, PacketSteering::Rps)),
            SettingKind::Xps => describe_error(read_steering(name, PacketSteering::Xps)),
            SettingKind::Command => Err("the old value of a command is unknown".to_owned()),
        })
    }

    fn write(&self, key: &SettingKey, value: &str, limit_s: Option<u64>) -> Result<(), String> {
        let limit = Duration::from_secs(limit_s.unwrap_or(COMMAND_TIMEOUT_S));
        if key.kind == SettingKind::Command {
            // Commands need no network namespace.
            return run_shell(value, limit);
        }
        let name = key.name.as_str();
        self.run_for_key(key, || match key.kind {
            SettingKind::Sysctl => describe_error(fs::write(sysctl_path(name), value)),
            SettingKind::SegmentSizes => {
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
            SettingKind::Mtu => match value.parse() {
                Ok(bytes) => describe_error(interface::set_mtu(name, bytes)),
                Err(_) => Err(format!("`{value}` is not a size")),
            },
            SettingKind::State => describe_error(interface::set_state(name, value)),
            SettingKind::Addresses => describe_error(set_addresses(name, value)),
            SettingKind::Rings => describe_error(set_rings(name, value)),
            SettingKind::Channels => describe_error(set_channels(name, value)),
            SettingKind::Rss => describe_error(set_rss(name, value)),
            SettingKind::Flow => {
                let (interface, rule) = name.split_once(' ').unwrap_or((name, ""));
                describe_error(set_flow_rule(interface, rule, value))
            }
            SettingKind::Coalescing => describe_error(set_coalescing(name, value)),
            SettingKind::Offloads => describe_error(interface::set_switches(name, value)),
            SettingKind::Rps => describe_error(set_steering(name, PacketSteering::Rps, value)),
            SettingKind::Xps => describe_error(set_steering(name, PacketSteering::Xps, value)),
            SettingKind::Command => run_shell(value, limit),
        })
    }

    fn interface_identity(&self, key: &SettingKey) -> Option<InterfaceIdentity> {
        let interface = key.interface()?;
        let link = self
            .run_for_key(key, || describe_error(find_link(interface)))
            .ok()?;
        Some(location::device_of(&link))
    }

    fn locate(&self, key: &SettingKey, device: Option<&InterfaceIdentity>) -> SettingLocation {
        self.locate(key, device)
    }
}

/// Time between two checks for the end of a command.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time to wait for the last output of a command.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Runs a shell command that sets or restores something; its standard output is discarded.
fn run_shell(line: &str, limit: Duration) -> Result<(), String> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    (command.stdin(Stdio::null()).stdout(Stdio::null())).stderr(Stdio::piped());
    // Signals of the terminal that end this program, such as a second hang-up, must not end a
    // command that restores settings. It keeps the terminal, because it may prompt for a password.
    ignore_terminal_signals(&mut command);
    let mut child = describe_error(command.spawn())?;
    let stderr = OutputReader::read_diagnostics(child.stderr.take().expect("it is piped"));
    let started_at = Instant::now();
    while poll_exit(&child).is_none() {
        if started_at.elapsed() > limit {
            return Err(format!(
                "`{line}` did not end within {} s and is still running: if it waits for input, end it and run it by hand",
                limit.as_secs()
            ));
        }
        thread::sleep(POLL_INTERVAL);
    }
    let status = describe_error(child.wait())?;
    if status.success() {
        return Ok(());
    }
    // A child of the command may hold the pipe open forever.
    let _ = stderr.wait_closed(OUTPUT_GRACE);
    Err(format!(
        "`{line}` failed ({status}): {}",
        stderr.text().trim()
    ))
}

/// Creates a guard with a journal in this directory, if there is one. It may also change settings
/// that the commands which started this process have changed.
pub fn new_guard<M: HostSettings>(machine: M, journals: Option<PathBuf>) -> RollbackGuard<M> {
    RollbackGuard::new(machine, journals, this_process()).with_enclosing_owners(ancestors())
}

/// Returns this process as a journal names it.
fn this_process() -> JournalOwner {
    let pid = std::process::id();
    process_of(pid).map_or_else(
        || JournalOwner {
            boot_id: boot_id(),
            pid,
            started_ticks: 0,
        },
        |(owner, _)| owner,
    )
}

/// Maximum number of ancestor processes: more would be a loop.
const MAX_ANCESTORS: usize = 64;

/// Returns the ancestors of this process, parent first.
fn ancestors() -> Vec<JournalOwner> {
    let parent = |(_, parent): &(JournalOwner, u32)| process_of(*parent);
    let all = iter::successors(process_of(std::process::id()), parent);
    all.skip(1)
        .take(MAX_ANCESTORS)
        .map(|(owner, _)| owner)
        .collect()
}

/// Returns a process as a journal names it, and the number of its parent.
fn process_of(pid: u32) -> Option<(JournalOwner, u32)> {
    let (parent, started_ticks) = parent_and_start(pid)?;
    let owner = JournalOwner {
        boot_id: boot_id(),
        pid,
        started_ticks,
    };
    Some((owner, parent))
}

/// Returns whether the process of a journal still runs.
pub fn is_running(owner: &JournalOwner) -> bool {
    parent_and_start(owner.pid)
        .is_some_and(|(_, started_ticks)| started_ticks == owner.started_ticks)
}

/// Returns the id of the current boot.
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Returns the parent and the start time, in clock ticks, of a process: fields 4 and 22 of
/// `/proc/PID/stat` (proc_pid_stat(5)); the name before them may contain spaces. `None` for a
/// zombie: some parents never collect it, and it restores nothing.
fn parent_and_start(pid: u32) -> Option<(u32, u64)> {
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
    use linerate_host::network_namespaces::{NamespaceState, find_namespace};

    use super::*;

    #[test]
    fn permission_errors_name_the_privilege() {
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(
            describe_error::<()>(Err(denied)),
            Err("permission denied: needs root".to_owned())
        );
        let not_found = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(
            describe_error::<()>(Err(not_found)),
            Err("entity not found".to_owned())
        );
    }

    #[test]
    fn an_unused_network_is_gone() {
        let hosts = TunableHosts::this_host(&[]).expect("/proc is mounted");
        let is_missing = |key: &SettingKey| hosts.locate(key, None) == SettingLocation::Removed;
        let own_key = hosts
            .keys(SettingKind::Sysctl, "net.ipv4.tcp_rmem")
            .remove(0);
        assert!(!is_missing(&own_key));
        // The inode number was reused.
        let reused = SettingKey {
            namespace_cookie: own_key.namespace_cookie.map(|cookie| cookie + 1),
            ..own_key.clone()
        };
        assert_eq!(is_missing(&reused), own_key.namespace_cookie.is_some());
        // No namespace has this number. Inside a container, not all processes that might have one
        // are visible.
        let unknown = SettingKey {
            namespace_inode: 1,
            ..own_key
        };
        let is_known_gone = matches!(find_namespace(1), NamespaceState::Removed);
        assert_eq!(is_missing(&unknown), is_known_gone);
        let command = SettingKey::for_command("window");
        assert!(!is_missing(&command), "what a command wrote is there");
    }

    #[test]
    fn an_interface_is_there_under_its_name_or_it_is_another_one() {
        let hosts = TunableHosts::this_host(&["lo".to_owned()]).expect("/proc is mounted");
        let key = hosts.keys(SettingKind::Mtu, "lo").remove(0);
        let device = hosts
            .interface_identity(&key)
            .expect("every network has one");
        let expected = SettingLocation::At(key.clone());
        assert_eq!(hosts.locate(&key, Some(&device)), expected);
        // A journal entry of a version that did not record the device.
        assert_eq!(hosts.locate(&key, None), expected);
        let renamed = key.with_interface("none-such0");
        assert_eq!(hosts.locate(&renamed, None), SettingLocation::Removed);
        // The interface was renamed to `lo`.
        assert_eq!(hosts.locate(&renamed, Some(&device)), expected);
        // The interface with this name had another index.
        let other_device = InterfaceIdentity {
            index: u32::MAX,
            ..device
        };
        assert_eq!(
            hosts.locate(&key, Some(&other_device)),
            SettingLocation::Removed
        );
    }

    #[test]
    fn the_parent_is_an_ancestor() {
        let ancestors = ancestors();
        let parent = std::os::unix::process::parent_id();
        assert_eq!(ancestors.first().map(|owner| owner.pid), Some(parent));
        assert!(ancestors.iter().all(is_running) && !ancestors.contains(&this_process()));
    }

    /// In a group of its own, a command that prompts for a password would be stopped by the
    /// terminal.
    #[test]
    fn restore_commands_stay_in_our_group_and_ignore_hang_ups() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let group = stat.rsplit(')').next().unwrap().split(' ').nth(3).unwrap();
        let line = format!("kill -HUP $$; test \"$(cut -d' ' -f5 /proc/self/stat)\" = {group}");
        assert_eq!(run_shell(&line, Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn a_zombie_does_not_run() {
        assert!(is_running(&this_process()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let child_owner = JournalOwner {
            pid: child.id(),
            started_ticks: parent_and_start(child.id()).unwrap().1,
            ..this_process()
        };
        assert!(is_running(&child_owner));
        child.kill().unwrap();
        // It stays a zombie until it is waited for.
        while poll_exit(&child).is_none() {
            thread::sleep(POLL_INTERVAL);
        }
        assert!(fs::exists(format!("/proc/{}", child_owner.pid)).unwrap());
        assert!(!is_running(&child_owner));
        child.wait().unwrap();
        assert!(!is_running(&child_owner));
    }

    #[test]
    fn restore_commands_are_waited_for_but_not_their_background_programs() {
        let error = run_shell(
            "echo it lacks a thing >&2; sleep 20 & exit 3",
            Duration::from_secs(60),
        )
        .unwrap_err();
        assert!(
            error.contains("(exit status: 3): it lacks a thing"),
            "{error}"
        );
        let hosts = TunableHosts::this_host(&[]).expect("/proc is mounted");
        let error = hosts.write(&SettingKey::for_command("window"), "sleep 20", Some(0));
        let error = error.unwrap_err();
        assert!(
            error.contains("`sleep 20` did not end within 0 s"),
            "{error}"
        );
    }
}
