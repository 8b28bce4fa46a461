//! View of a record for the rules: by direction and by end.

mod direction_view;
mod host_command;
mod rerun_command;
mod shaper;
mod thread_time;
mod unaccounted_loss;

pub(crate) use direction_view::{
    CWND_LIMITED_SHARE, FULL_SHARE, FULL_WINDOW_SHARE, LARGE_CHUNK_BYTES, MAX_HIDDEN_SHAPER_BPS,
    MAX_QUEUED_RATE_SPREAD, MAX_WINDOW_LIMITED_SHARE, MIN_BUSY_SHARE, MIN_IDLE_END_SHARE,
    MIN_STANDING_QUEUE_SHARE, PLATEAU_INTERVALS, PROMPT_ACK_RATIO, REORDERED_SHARE,
    STANDING_QUEUE_NS,
};
pub use direction_view::{DirectionView, TcpSummary};
pub(crate) use rerun_command::format_rate_option;
pub use shaper::QdiscShaper;
pub use thread_time::ThreadTime;
pub(crate) use thread_time::{MAX_EMPTY_SHARE, MAX_SATURATED_IDLE_SHARE, MIN_SATURATED_WORK_SHARE};
pub use unaccounted_loss::UnaccountedLoss;
pub(crate) use unaccounted_loss::{
    DROP_COUNTERS, LOSS_BOUND_RATIO, MATHIS_FACTOR, MIN_GOODPUT_BPS, MIN_LOSSY_INTERVALS,
    MIN_LOST_SEGMENTS, MIN_REPEATED_LOSSES, MIN_UNACCOUNTED_SHARE, UNACCOUNTED_PART,
    UNNECESSARY_PART,
};

use linerate_record::facts::{HostFacts, InterfaceFacts, Role};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{
    CpuList, Direction, Plan, RunKind, SchedPolicy, TransportProtocol, WaitMode,
};
use linerate_record::record::{CpuCost, FlowEnd, Record};
use linerate_record::throttling::CpuThrottling;

/// Drivers of virtual interfaces, whose frames use no wire: device settings do not affect them.
const VIRTUAL_DRIVERS: &[&str] = &["veth", "tun", "bridge", "dummy", "ifb"];

/// Smallest idle share of all processors of an end at which one of them is idle.
pub(crate) const MIN_IDLE_CPU_SHARE: f64 = 0.15;

/// Read-only view of a record, with the queries that rules need.
pub struct RunView<'a> {
    /// Record.
    pub record: &'a Record,
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Directions of a throughput or latency run.
    pub directions: Vec<DirectionView<'a>>,
    /// Names of the client's and the server's host in their lab.
    pub(crate) host_names: [String; 2],
}

impl<'a> RunView<'a> {
    /// Creates the view of a record.
    #[must_use]
    pub fn new(record: &'a Record) -> Self {
        let directions = record.directions.iter();
        Self {
            record,
            plan: &record.plan,
            directions: directions
                .map(|figures| DirectionView::new(record, figures))
                .collect(),
            host_names: crate::host_names::host_names(record),
        }
    }

    /// Returns the directions of a throughput run over a protocol; none for other runs.
    pub fn throughput_directions(
        &self,
        protocol: TransportProtocol,
    ) -> impl Iterator<Item = &DirectionView<'a>> {
        let is = self.plan.kind == RunKind::Throughput && self.plan.protocol == protocol;
        self.directions.iter().filter(move |_| is)
    }

    /// Returns true if the record has one of these caveats.
    #[must_use]
    pub fn has_caveat(&self, ids: &[CaveatId]) -> bool {
        let mut caveat = self.record.validity.iter();
        caveat.any(|caveat| caveat.id.is_one_of(ids))
    }

    /// Returns true if a port had no carrier: then the speed at which it accepted frames is
    /// meaningless.
    #[must_use]
    pub fn lacks_carrier(&self) -> bool {
        self.has_caveat(&[CaveatId::NoCarrier])
    }

    /// Returns true if a port had no carrier, no peer at some time, or stopped: frames were lost
    /// there, and neither the sender nor a ring is the limit.
    #[must_use]
    pub fn has_no_receiver(&self) -> bool {
        self.lacks_carrier()
            || self.has_caveat(&[CaveatId::NoPeer, CaveatId::PeerLeft, CaveatId::PortStopped])
    }

    /// Returns true if the requested rate is so low that one burst is most of the run: then the
    /// measured rate is meaningless.
    #[must_use]
    pub fn is_rate_too_coarse(&self) -> bool {
        self.has_caveat(&[CaveatId::RateTooCoarse])
    }

    /// Returns true if the ends had no connectivity for a while, because a link was down or a route
    /// was missing: then changes of the rate say nothing about rates and queues.
    #[must_use]
    pub fn lost_connectivity(&self) -> bool {
        let mut counters = self.record.counters.iter();
        counters.any(|entry| entry.counter == "carrier_losses" && entry.increase() > 0)
            || self
                .directions
                .iter()
                .any(|direction| direction.unroutable() > 0)
    }

    /// Returns true if round trips were measured and completed.
    #[must_use]
    pub fn is_latency(&self) -> bool {
        self.plan.kind == RunKind::Latency && self.record.summary.rtt_ns.is_some()
    }

    /// Returns the host of an end.
    #[must_use]
    pub fn host(&self, role: Role) -> Option<&'a HostFacts> {
        host(self.record, role)
    }

    /// Returns the interface of an end towards the other.
    #[must_use]
    pub fn interface(&self, role: Role) -> Option<&'a InterfaceFacts> {
        self.host(role)?.interface.as_ref()
    }

    /// Returns the interface of an end if it is hardware, not virtual or loopback.
    #[must_use]
    pub fn device(&self, role: Role) -> Option<&'a InterfaceFacts> {
        self.interface(role)
            .filter(|interface| interface.name != "lo")
            .filter(|interface| {
                let driver = interface.driver.as_deref();
                driver.is_some_and(|driver| !VIRTUAL_DRIVERS.contains(&driver))
            })
    }

    /// Returns the address of an end from the sockets of its flows; for a server without sockets
    /// the requested host.
    #[must_use]
    pub fn address(&self, role: Role) -> String {
        let socket_address = |direction: &DirectionView<'a>| {
            let (mut senders, mut receivers) = (direction.senders(), direction.receivers());
            let (own_socket, peer_socket) = match direction.sender == role {
                true => (senders.next(), receivers.next()),
                false => (receivers.next(), senders.next()),
            };
            let local = own_socket.and_then(|socket| socket.local.as_deref());
            local.or_else(|| peer_socket?.remote.as_deref())
        };
        let reported = self.directions.iter().find_map(socket_address);
        let requested = (role == Role::Server).then_some(self.plan.host.as_str());
        let bound = self.plan.bind.as_deref().filter(|_| role == Role::Client);
        let address = reported
            .map(strip_port)
            .or(requested)
            .or(bound)
            .unwrap_or("ADDRESS");
        address.trim_start_matches("::ffff:").to_owned()
    }

    /// Returns true if the run used IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.address(Role::Server).contains(':')
    }

    /// Returns the kernel's file and name of an IP counter of a host, for the family of the run.
    #[must_use]
    pub fn ip_counter_source(&self, host: &str, counter: &str) -> String {
        match self.is_ipv6() {
            true => format!("{host} /proc/net/snmp6 Ip6{counter}"),
            false => format!("{host} /proc/net/snmp {counter}"),
        }
    }

    /// Returns the name of a setting for the family of the run: that of IPv4, or of IPv6.
    #[must_use]
    pub fn family_setting(&self, [ipv4, ipv6]: [&'static str; 2]) -> &'static str {
        if self.is_ipv6() { ipv6 } else { ipv4 }
    }

    /// Returns the size of a datagram's IP and UDP headers in bytes.
    #[must_use]
    pub fn datagram_headers(&self) -> u32 {
        if self.is_ipv6() { 48 } else { 28 }
    }

    /// Returns the processor cost of an end's threads.
    #[must_use]
    pub fn cpu(&self, role: Role) -> Option<&'a CpuCost> {
        cpu(self.record, role)
    }

    /// Returns the stops by a CPU quota of an end; `None` without a quota.
    #[must_use]
    pub fn throttling(&self, role: Role) -> Option<CpuThrottling> {
        let record = self.record;
        let forward = || record.forward.as_ref()?.throttling;
        let generate = || record.generate.as_ref()?.throttling;
        match record.plan.kind {
            RunKind::Forward | RunKind::Generate if role == Role::Client => {
                forward().or_else(generate)
            }
            _ => self.cpu(role)?.throttling,
        }
    }

    /// Returns true if both ends ran on one machine, as far as the record shows.
    #[must_use]
    pub fn is_one_machine(&self) -> bool {
        let boot = |role| self.host(role)?.boot_id.as_deref();
        boot(Role::Client).is_some() && boot(Role::Client) == boot(Role::Server)
    }

    /// Returns true if the server is another tool, which reports only its results.
    #[must_use]
    pub fn has_third_party_server(&self) -> bool {
        self.plan.peer_protocol.is_some()
    }

    /// Returns true for a record of our server about another tool's client: it counts payload, and
    /// has neither processor times nor facts of the client.
    #[must_use]
    pub fn is_third_party_client(&self) -> bool {
        self.has_third_party_server() && self.host(Role::Client).is_none()
    }

    /// Returns the wait mode of an end.
    #[must_use]
    pub fn wait(&self, role: Role) -> Option<WaitMode> {
        wait(self.plan, role)
    }

    /// Returns the processors assigned to an end's threads.
    #[must_use]
    pub fn cpus(&self, role: Role) -> &'a CpuList {
        match role {
            Role::Client => &self.plan.cpu.client,
            Role::Server => &self.plan.cpu.server,
        }
    }

    /// Returns the scheduling policy of an end's threads: the requested one, or that of the
    /// program's start.
    #[must_use]
    pub fn sched(&self, role: Role) -> SchedPolicy {
        let requested = self.requested_sched(role);
        let started = self.host(role).and_then(|host| host.started_as);
        match requested {
            SchedPolicy::Inherited => started.unwrap_or(requested),
            _ => requested,
        }
    }

    /// Returns the requested scheduling policy of an end's threads.
    #[must_use]
    pub fn requested_sched(&self, role: Role) -> SchedPolicy {
        match role {
            Role::Client => self.plan.sched.client,
            Role::Server => self.plan.sched.server,
        }
    }

    /// Returns the evidence source of the scheduling policy.
    #[must_use]
    pub fn sched_source(&self, role: Role) -> String {
        match self.requested_sched(role) == self.sched(role) {
            true => "plan".to_owned(),
            false => format!("{} sched_getscheduler", role.as_str()),
        }
    }

    /// Returns a sysctl of an end's kernel: the last of its numbers.
    #[must_use]
    pub fn sysctl(&self, role: Role, name: &str) -> Option<u64> {
        let text = self.host(role)?.sysctls.get(name)?;
        text.split_whitespace().next_back()?.parse().ok()
    }

    /// Returns the increase of a counter, summed over the hosts and interfaces that `of` accepts;
    /// `None` if no such counter was read.
    #[must_use]
    pub fn counter_increase(
        &self,
        counter: &str,
        of: impl Fn(&str, Option<&str>) -> bool,
    ) -> Option<u64> {
        let entry = self.record.counters.iter().filter(|entry| {
            entry.counter == counter && of(&entry.host, entry.interface.as_deref())
        });
        let added: Vec<u64> = entry.map(|entry| entry.increase()).collect();
        (!added.is_empty()).then(|| added.iter().sum())
    }

    /// Returns true if an end's processors had idle time, or if it is unknown: of two ends on one
    /// machine, one reads the processor times.
    #[must_use]
    pub fn has_idle_cpu(&self, role: Role) -> bool {
        let machine = self.cpu(role).and_then(|cost| cost.machine);
        let idle = machine.and_then(|machine| machine.share_of_total(machine.idle_ns));
        idle.is_none_or(|idle| idle > MIN_IDLE_CPU_SHARE)
    }

    /// Returns the time of an end's threads, all directions.
    #[must_use]
    pub fn thread_time(&self, role: Role) -> Option<ThreadTime> {
        let time = ThreadTime::sum(self.cpu(role)?.threads.iter())?;
        Some(match self.uses_netstack(role) {
            true => time.of_polling_threads(),
            false => time,
        })
    }
}

/// Strips the port from an address.
fn strip_port(address: &str) -> &str {
    match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        // An IPv6 address without brackets has no port.
        None => match address.split_once(':') {
            Some((host, port)) if !port.contains(':') => host,
            _ => address,
        },
    }
}

pub(crate) fn host(record: &Record, role: Role) -> Option<&HostFacts> {
    let by_role = record.hosts.iter().find(|host| host.role == Some(role));
    // A record of a single host has no role for it.
    by_role.or_else(|| record.hosts.first().filter(|host| host.role.is_none()))
}

/// Returns the wait mode of an end, where it is known.
fn wait(plan: &Plan, role: Role) -> Option<WaitMode> {
    match (&plan.wait, role) {
        (Some(wait), Role::Client) => Some(wait.client),
        (Some(wait), Role::Server) => Some(wait.server),
        (None, Role::Client) => plan.client_wait,
        (None, Role::Server) => None,
    }
}

pub(crate) fn cpu(record: &Record, role: Role) -> Option<&CpuCost> {
    record.summary.cpu.iter().find(|cost| cost.role == role)
}

/// Returns the sending and the receiving role of a direction.
#[must_use]
pub(crate) fn roles_of(kind: RunKind, direction: Direction) -> (Role, Role) {
    match (kind, direction) {
        (RunKind::Throughput, Direction::Receive) => (Role::Server, Role::Client),
        _ => (Role::Client, Role::Server),
    }
}

/// Returns the name of a flow's end for sentences.
#[must_use]
pub fn flow_end_name(part: FlowEnd) -> &'static str {
    match part {
        FlowEnd::Sender => "sending",
        FlowEnd::Receiver => "receiving",
    }
}
