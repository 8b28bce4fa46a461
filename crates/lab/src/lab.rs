//! A lab inside this process: built, checked, and gone when dropped.

mod check;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linerate_sys::namespace;

use crate::check_result::CheckResult;
use crate::error::LabError;
use crate::info::{HostInfo, InterfaceInfo, LabInfo, LinkInfo};
use crate::layout::{HostLayout, IPV6_PREFIX, Layout, NodeIndex};
use crate::link_emulator::{self, LinkEmulator};
use crate::namespace::NetNamespace;
use crate::netlink::NetlinkSocket;
use crate::offload::{ENOENT, Offload};
use crate::privilege::privileged;
use crate::qdisc::{Netem, TokenBucket};
use crate::topology::{LinkSpec, Topology};

/// Network of hosts that exists as long as this value.
///
/// Its namespaces have no names and no files: only descriptors of this process hold them, so
/// nothing is left however the process ends. The kernel removes them a moment *after* the last
/// descriptor and the last thread inside are gone.
#[derive(Debug)]
pub struct Lab {
    topology: Topology,
    layout: Layout,
    hosts: Vec<LabHost>,
    /// Namespace of all switches; `None` without switches.
    switches: Option<NetNamespace>,
    /// Processes that emulate links, by index of the link in the topology.
    emulators: BTreeMap<usize, LinkEmulator>,
    /// Namespace of the interfaces that the emulators join. Declared after `emulators`, so that it
    /// is dropped after them.
    emulation: Option<NetNamespace>,
}

/// Host of a [`Lab`].
#[derive(Debug)]
pub struct LabHost {
    namespace: NetNamespace,
    info: HostInfo,
}

impl Lab {
    /// Builds a network and checks it; ready to use when this returns.
    ///
    /// # Errors
    /// [`LabError::Topology`] for a network that cannot be built, [`LabError::NotPrivileged`]
    /// without the capabilities (see [`crate::enter_user_namespace`]), [`LabError::MissingFeature`]
    /// for what this kernel lacks, [`LabError::CheckFailed`] with the properties that differ from
    /// the request.
    pub fn up(topology: &Topology) -> Result<Self, LabError> {
        topology.validate()?;
        let layout = Layout::from_topology(topology)?;
        if !privileged() {
            return Err(LabError::NotPrivileged);
        }
        let lab = Self::build(topology.clone(), layout)?;
        let failed: Vec<CheckResult> = lab
            .check()?
            .into_iter()
            .filter(|result| !result.holds())
            .collect();
        if failed.is_empty() {
            Ok(lab)
        } else {
            Err(LabError::CheckFailed { failed })
        }
    }

    fn build(topology: Topology, mut layout: Layout) -> Result<Self, LabError> {
        let ipv6 = AtomicBool::new(true);
        let mut spaces = Vec::with_capacity(layout.hosts.len());
        for host in &layout.hosts {
            spaces.push(NetNamespace::new(|| {
                apply_host_settings(host.forwards);
                if !ipv6_works() {
                    ipv6.store(false, Ordering::Relaxed);
                }
            })?);
        }
        if !ipv6.into_inner() {
            layout.drop_ipv6();
        }
        let switches = if topology.switches.is_empty() {
            None
        } else {
            Some(NetNamespace::new(apply_switch_settings)?)
        };
        let hosts = spaces
            .into_iter()
            .enumerate()
            .map(|(host, namespace)| LabHost {
                namespace,
                info: host_info(&topology, &layout, host),
            })
            .collect();
        let emulates =
            topology.links.iter().any(LinkSpec::needs_netem) && !link_emulator::has_netem()?;
        let mut lab = Self {
            topology,
            layout,
            hosts,
            switches,
            emulators: BTreeMap::new(),
            emulation: emulates
                .then(|| NetNamespace::new(apply_switch_settings))
                .transpose()?,
        };
        lab.connect()?;
        lab.start_emulators()?;
        Ok(lab)
    }

    /// Creates bridges, links, addresses and routes.
    fn connect(&self) -> Result<(), LabError> {
        if let Some(space) = &self.switches {
            let mut netlink = space.run(NetlinkSocket::open)??;
            for (name, _) in &self.topology.switches {
                netlink.add_bridge(name)?;
                let bridge = netlink.link(name)?;
                netlink.set_up(bridge.index)?;
            }
        }
        for (number, (link, ends)) in
            (self.topology.links.iter().zip(&self.layout.links)).enumerate()
        {
            let [first, second] = ends;
            let emulation = self.emulation.as_ref().filter(|_| link.needs_netem());
            if let Some(emulation) = emulation {
                for (end, interface) in ends.iter().zip(emulator_interfaces(number)) {
                    let mut netlink = self.namespace_of(end.node).run(NetlinkSocket::open)??;
                    netlink.add_veth(&end.interface, &interface, emulation.as_fd(), link.mtu())?;
                    emulation.run(|| {
                        let mut netlink = NetlinkSocket::open()?;
                        let index = netlink.link(&interface)?.index;
                        netlink.set_up(index)
                    })??;
                }
            } else {
                let mut netlink = self.namespace_of(first.node).run(NetlinkSocket::open)??;
                netlink.add_veth(
                    &first.interface,
                    &second.interface,
                    self.namespace_of(second.node).as_fd(),
                    link.mtu(),
                )?;
            }
            for end in ends {
                let bridge = match end.node {
                    NodeIndex::Switch(switch) => Some(self.topology.switches[switch].0.as_str()),
                    NodeIndex::Host(_) => None,
                };
                let emulated = emulation.is_some();
                self.namespace_of(end.node)
                    .run(|| configure_interface(link, &end.interface, bridge, emulated))??;
            }
        }
        for (layout, host) in self.layout.hosts.iter().zip(&self.hosts) {
            host.namespace.run(|| add_addresses(layout))??;
        }
        // A route needs its gateway's network, so routes come after all addresses.
        for (layout, host) in self.layout.hosts.iter().zip(&self.hosts) {
            host.namespace.run(|| add_routes(layout))??;
        }
        Ok(())
    }

    /// Starts the emulators of links that the kernel cannot make.
    fn start_emulators(&mut self) -> Result<(), LabError> {
        let Some(emulation) = &self.emulation else {
            return Ok(());
        };
        for (number, link) in self.topology.links.iter().enumerate() {
            if link.needs_netem() {
                let [one, other] = &emulator_interfaces(number);
                let emulator = LinkEmulator::start(emulation, link, [one, other])?;
                self.emulators.insert(number, emulator);
            }
        }
        Ok(())
    }

    /// Returns whether the emulator of a link is running; `None` where the kernel makes the link.
    fn emulator_is_running(&self, link: usize) -> Option<bool> {
        let emulator = self.emulators.get(&link)?;
        Some(emulator.exit_reason().is_none())
    }

    /// Returns the reason why a link is down: its emulator has exited.
    fn link_failure(&self, link: usize) -> Option<&str> {
        self.emulators.get(&link)?.exit_reason()
    }

    /// Takes down the interfaces of links whose emulator has exited, so that both ends lose their
    /// carrier instead of all packets. Returns the number of such links. With a non-zero time every
    /// emulator gets a status request first: one that forwards no more may not have noticed yet.
    pub(crate) fn disconnect_failed_links(&self, time: Duration) -> usize {
        if !time.is_zero() {
            self.emulators
                .values()
                .for_each(LinkEmulator::request_status);
        }
        let deadline = Instant::now() + time;
        let failed = self.emulators.iter();
        let failed: Vec<_> = failed
            .filter(|(_, it)| it.wait_exit_reason(deadline).is_some())
            .collect();
        for (link, _) in failed.iter().filter(|(_, it)| it.mark_disconnected()) {
            self.disconnect(**link);
        }
        failed.len()
    }

    fn disconnect(&self, link: usize) {
        let Some(emulation) = &self.emulation else {
            return;
        };
        for interface in emulator_interfaces(link) {
            // The interface may be gone already: its removal also ends the emulator.
            let _ = emulation.run(|| {
                let mut netlink = NetlinkSocket::open()?;
                let index = netlink.link(&interface)?.index;
                netlink.set_down(index)
            });
        }
    }

    /// Checks that all links work: an emulated link fails when its emulator exits.
    ///
    /// # Errors
    /// [`LabError::LinkFailed`]; both ends of the link have lost their carrier then.
    pub fn check_links(&self) -> Result<(), LabError> {
        if self.disconnect_failed_links(link_emulator::REPLY_TIMEOUT) == 0 {
            return Ok(());
        }
        self.info("", 0, 0).check_links()
    }

    /// Checks that every host reaches every address of every other, over IPv4 and IPv6, and reads
    /// every property of every link back. With more than 20 hosts each probes only the first and
    /// its neighbours in the file: all pairs would overflow the kernel's neighbour tables.
    ///
    /// # Errors
    /// Only errors of the check itself; properties that differ are in the results.
    pub fn check(&self) -> Result<Vec<CheckResult>, LabError> {
        check::check_lab(self)
    }

    /// Returns a host by name.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`] with the existing names.
    pub fn host(&self, name: &str) -> Result<&LabHost, LabError> {
        self.hosts
            .iter()
            .find(|host| host.name() == name)
            .ok_or_else(|| {
                let names: Vec<&str> = self.hosts.iter().map(LabHost::name).collect();
                LabError::UnknownHost {
                    host: name.to_owned(),
                    available: names.join(", "),
                }
            })
    }

    /// Returns all hosts, in the order of the file.
    #[must_use]
    pub fn hosts(&self) -> &[LabHost] {
        &self.hosts
    }

    /// Returns the requested topology.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns interfaces, addresses and routes.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the description for `lab list`. Held by process `holder_pid` for user `uid`.
    #[must_use]
    pub fn info(&self, name: &str, holder_pid: u32, uid: u32) -> LabInfo {
        let links = self.topology.links.iter().zip(&self.layout.links);
        let links = links.enumerate();
        LabInfo {
            name: name.to_owned(),
            holder_pid,
            uid,
            rootless: false,
            hosts: self.hosts.iter().map(|host| host.info.clone()).collect(),
            switches: self
                .topology
                .switches
                .iter()
                .map(|(name, _)| name.clone())
                .collect(),
            links: links
                .map(|(number, (link, ends))| LinkInfo {
                    failure: self.link_failure(number).map(str::to_owned),
                    between: link.between.clone(),
                    interfaces: ends.each_ref().map(|end| end.interface.clone()),
                    mtu: link.mtu(),
                    rate_bps: link.rate.map(|rate| rate.0),
                    delay_ns: link.delay.map(nanos),
                    jitter_ns: link.jitter.map(nanos),
                    loss: link.loss,
                    reorder: link.reorder,
                    gso_bytes: link.gso_bytes(),
                })
                .collect(),
        }
    }

    pub(crate) fn switches(&self) -> Option<&NetNamespace> {
        self.switches.as_ref()
    }

    fn namespace_of(&self, node: NodeIndex) -> &NetNamespace {
        match node {
            NodeIndex::Host(host) => &self.hosts[host].namespace,
            NodeIndex::Switch(_) => self
                .switches
                .as_ref()
                .expect("a lab with a switch has a namespace for switches"),
        }
    }
}

impl LabHost {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Returns the IPv4 address of the first interface.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.info.address
    }

    /// Returns the IPv6 address of the first interface; `None` where the kernel has no IPv6 or a
    /// link has an MTU below 1280 bytes.
    #[must_use]
    pub fn address_v6(&self) -> Option<Ipv6Addr> {
        self.info.address_v6
    }

    /// Returns the interfaces.
    #[must_use]
    pub fn interfaces(&self) -> &[InterfaceInfo] {
        &self.info.interfaces
    }

    /// Runs `f` on a new thread inside the host and waits for it. Sockets it opens, threads it
    /// starts and programs it runs belong to the host; sockets stay so when `f` returns them.
    ///
    /// Trap: the host's counters are in `/proc/thread-self/net`, not in `/proc/net`, which is the
    /// main thread's. `/sys/class/net` and `/proc/sys/net` are the host's (the former where mounts
    /// are possible).
    ///
    /// # Errors
    /// [`LabError::System`] when no thread can be started, or when this process gave up the
    /// capability to enter the namespace. A panic of `f` is resumed in the caller.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> Result<R, LabError> {
        self.namespace.run(|| {
            mount_host_sys();
            f()
        })
    }

    /// Runs `f` as [`LabHost::run`] does, without waiting for it. The thread may outlive the
    /// [`Lab`]: the host exists until its last thread ends, although its links do not.
    ///
    /// # Errors
    /// As [`LabHost::run`].
    pub fn spawn<R: Send + 'static>(
        &self,
        f: impl FnOnce() -> R + Send + 'static,
    ) -> Result<JoinHandle<R>, LabError> {
        // A thread is created in the namespaces of the thread that starts it.
        let started = self.run(|| {
            thread::Builder::new()
                .name(format!("lab-{}", self.info.name))
                .spawn(f)
        })?;
        started.map_err(|error| LabError::system("start a thread", error))
    }

    /// Returns the network namespace, for `setns` or `/proc/PID/fd`.
    #[must_use]
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Mounts a `/sys` of its own network namespace for the calling thread. Best effort: containers
/// often forbid mounts, and no measurement depends on it.
fn mount_host_sys() {
    let _ = namespace::unshare_mounts().and_then(|()| namespace::remount_sys());
}

/// Writes a sysctl of the calling thread's namespace, where the kernel has it and permits the
/// write.
fn write_setting(path: &str, value: &str) {
    let _ = fs::write(Path::new("/proc/sys/net").join(path), value);
}

fn apply_host_settings(forwards: bool) {
    // New namespaces inherit some of these from the machine, so every one is set.
    for scope in ["all", "default"] {
        write_setting(&format!("ipv6/conf/{scope}/disable_ipv6"), "0");
        // Addresses are unique by construction: duplicate address detection would only cost a
        // second.
        write_setting(&format!("ipv6/conf/{scope}/accept_dad"), "0");
        write_setting(&format!("ipv6/conf/{scope}/router_solicitations"), "0");
        // Replies may leave by another interface than the one the request arrived at.
        write_setting(&format!("ipv4/conf/{scope}/rp_filter"), "0");
    }
    if forwards {
        write_setting("ipv4/ip_forward", "1");
        write_setting("ipv6/conf/all/forwarding", "1");
    }
}

fn apply_switch_settings() {
    // A switch needs no IPv6 of its own; its router solicitations would show in the counters.
    for scope in ["all", "default"] {
        write_setting(&format!("ipv6/conf/{scope}/disable_ipv6"), "1");
    }
    // Where the kernel has br_netfilter, every bridged packet would pass the firewall's hooks.
    for table in ["iptables", "ip6tables", "arptables"] {
        write_setting(&format!("bridge/bridge-nf-call-{table}"), "0");
    }
}

/// Returns whether new interfaces of the calling thread's namespace get IPv6: the kernel has it, and
/// no setting that could not be changed disables it.
fn ipv6_works() -> bool {
    let is_enabled = |scope: &str| {
        let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        fs::read_to_string(path).is_ok_and(|disabled| disabled.trim() == "0")
    };
    is_enabled("all")
        && is_enabled("default")
        && UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok()
}

/// Configures one end of a link, inside its namespace.
fn configure_interface(
    link: &LinkSpec,
    interface: &str,
    bridge: Option<&str>,
    emulated: bool,
) -> Result<(), LabError> {
    let mut netlink = NetlinkSocket::open()?;
    let index = netlink.link(interface)?.index;
    if let Some(bytes) = link.gso_bytes() {
        netlink.set_gso(index, bytes)?;
    }
    if emulated {
        disable_segmentation_offloads(interface)?;
    }
    set_offloads(link, interface)?;
    if let Some(bridge) = bridge {
        let bridge = netlink.link(bridge)?.index;
        netlink.set_bridge(index, bridge)?;
    }
    add_qdiscs(&mut netlink, link, index, emulated)?;
    netlink.set_up(index)
}

/// Returns the names of the interfaces that a link's emulator joins.
fn emulator_interfaces(link: usize) -> [String; 2] {
    [format!("w{link}a"), format!("w{link}b")]
}

/// Switches off the offloads that would pass frames above the MTU to the emulator.
fn disable_segmentation_offloads(interface: &str) -> Result<(), LabError> {
    // The ioctl needs a socket only for its namespace.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .map_err(|error| LabError::system("open a socket", error))?;
    for name in link_emulator::SEGMENTATION_OFFLOADS {
        if let Some(offload) = Offload::parse(name) {
            // A kernel without this offload makes no such frames.
            let _ = offload.set(socket.as_fd(), interface, false);
        }
    }
    Ok(())
}

fn set_offloads(link: &LinkSpec, interface: &str) -> Result<(), LabError> {
    if link.offloads.is_empty() {
        return Ok(());
    }
    // The ioctl needs a socket only for its namespace.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .map_err(|error| LabError::system("open a socket", error))?;
    for (name, &on) in &link.offloads {
        let offload = Offload::parse(name).expect("names were checked");
        offload
            .set(socket.as_fd(), interface, on)
            .map_err(|source| match source.raw_os_error() {
                Some(ENOENT) => LabError::UnknownOffload {
                    link: link.label(),
                    name: name.clone(),
                },
                _ => LabError::Kernel {
                    action: format!("switch {name} of link {}", link.label()),
                    kernel_message: None,
                    source,
                },
            })?;
    }
    Ok(())
}

/// Adds the queueing disciplines: delay first, then rate, as on a long cable into a slow port.
///
/// For an emulated link the queue comes first and the delay after it. The result is the same except
/// for the duration of a burst.
fn add_qdiscs(
    netlink: &mut NetlinkSocket,
    link: &LinkSpec,
    index: u32,
    emulated: bool,
) -> Result<(), LabError> {
    let mut parent = None;
    if let Some(netem) = Netem::from_link(link).filter(|_| !emulated) {
        netlink
            .add_qdisc(index, "netem", 1, parent, netem.encode())
            .map_err(|error| {
                missing_feature_error(
                    error,
                    "netem (CONFIG_NET_SCH_NETEM)",
                    link,
                    "delay, jitter, loss or reordering",
                    "remove them from the link, or use a kernel that has it",
                )
            })?;
        parent = Some(1);
    }
    if let Some(bucket) = TokenBucket::from_link(link) {
        netlink
            .add_qdisc(index, "tbf", 2, parent, bucket.encode())
            .map_err(|error| {
                missing_feature_error(
                    error,
                    "token bucket (CONFIG_NET_SCH_TBF)",
                    link,
                    "its rate",
                    "remove the rate, or load the module sch_tbf",
                )
            })?;
    }
    Ok(())
}

/// Maps ENOENT, the kernel's reply for an unknown discipline, to a missing feature.
fn missing_feature_error(
    error: LabError,
    feature: &'static str,
    link: &LinkSpec,
    needed_for: &str,
    remedy: &'static str,
) -> LabError {
    match error {
        LabError::Kernel { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            LabError::MissingFeature {
                feature,
                link: link.label(),
                needed_for: needed_for.to_owned(),
                remedy,
            }
        }
        other => other,
    }
}

fn add_addresses(layout: &HostLayout) -> Result<(), LabError> {
    let mut netlink = NetlinkSocket::open()?;
    for interface in &layout.interfaces {
        let index = netlink.link(&interface.name)?.index;
        netlink.add_address(index, interface.address)?;
        if let Some(address) = interface.address_v6 {
            netlink.add_address_v6(index, address, IPV6_PREFIX)?;
        }
    }
    Ok(())
}

fn add_routes(layout: &HostLayout) -> Result<(), LabError> {
    if layout.routes.is_empty() {
        return Ok(());
    }
    let mut netlink = NetlinkSocket::open()?;
    for route in &layout.routes {
        netlink.add_route(
            IpAddr::V4(route.network.address),
            route.network.length,
            IpAddr::V4(route.gateway),
        )?;
        if let Some((network, gateway)) = route.v6 {
            netlink.add_route(IpAddr::V6(network), IPV6_PREFIX, IpAddr::V6(gateway))?;
        }
    }
    Ok(())
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn host_info(topology: &Topology, layout: &Layout, host: usize) -> HostInfo {
    let name = &topology.hosts[host].0;
    let interfaces: Vec<InterfaceInfo> = layout.hosts[host]
        .interfaces
        .iter()
        .map(|interface| {
            let link = &topology.links[interface.link];
            let [one, other] = &link.between;
            InterfaceInfo {
                name: interface.name.clone(),
                peer: if one == name { other } else { one }.clone(),
                mtu: link.mtu(),
                address: interface.address.address,
                prefix: interface.address.length,
                address_v6: interface.address_v6,
            }
        })
        .collect();
    let first = interfaces.first().expect("every host has a link");
    HostInfo {
        name: name.clone(),
        address: first.address,
        address_v6: first.address_v6,
        interfaces,
    }
}
