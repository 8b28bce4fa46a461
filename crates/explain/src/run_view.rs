//! View of a record for the rules: by direction and by end.

mod direction_view;
mod host_command;
mod rerun_command;
mod shaper;
mod thread_time;
mod unaccounted_loss;

pub(crate) use direction_view::{FULL, PLATEAU, STANDING_NS};
pub use direction_view::{Tcp, Way};
pub(crate) use rerun_command::rate_word;
pub use shaper::Shape;
pub use thread_time::Time;
pub use unaccounted_loss::Unseen;
pub(crate) use unaccounted_loss::{DROPS, MATHIS};

use linerate_metric::facts::{Host, Interface, Role};
use linerate_metric::plan::{Cpus, Direction, Kind, Plan, Protocol, Sched, Wait};
use linerate_metric::record::{CountedAt, CpuCost, Record};

/// Drivers of virtual interfaces, whose frames use no wire: device settings do not affect them.
const VIRTUAL: &[&str] = &["veth", "tun", "bridge", "dummy", "ifb"];

/// Read-only view of a record, with the queries that rules need.
pub struct Case<'a> {
    /// Record.
    pub record: &'a Record,
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Directions of a throughput or latency run.
    pub ways: Vec<Way<'a>>,
    /// Names of the client's and the server's host in their lab.
    pub(crate) places: [String; 2],
}

impl<'a> Case<'a> {
    /// Creates the view of a record.
    #[must_use]
    pub fn new(record: &'a Record) -> Self {
        let ways = record.directions.iter();
        Self {
            record,
            plan: &record.plan,
            ways: ways.map(|figures| Way::new(record, figures)).collect(),
            places: crate::host_names::places(record),
        }
    }

    /// Returns the directions of a throughput run over a protocol; none for other runs.
    pub fn throughput(&self, protocol: Protocol) -> impl Iterator<Item = &Way<'a>> {
        let is = self.plan.kind == Kind::Throughput && self.plan.protocol == protocol;
        self.ways.iter().filter(move |_| is)
    }

    /// Returns true if the record has one of these caveats.
    #[must_use]
    pub fn is_doubted(&self, doubts: &[&str]) -> bool {
        let mut said = self.record.validity.iter();
        said.any(|said| doubts.contains(&&*said.doubt))
    }

    /// Returns true if a port had no carrier: then the speed at which it accepted frames is
    /// meaningless.
    #[must_use]
    pub fn lacks_carrier(&self) -> bool {
        self.is_doubted(&["no-carrier"])
    }

    /// Returns true if a port had no carrier, no peer at some time, or stopped: frames were lost
    /// there, and neither the sender nor a ring is the limit.
    #[must_use]
    pub fn leads_nowhere(&self) -> bool {
        self.lacks_carrier() || self.is_doubted(&["no-peer", "peer-left", "port-stopped"])
    }

    /// Returns true if the requested rate is so low that one burst is most of the run: then the
    /// measured rate is meaningless.
    #[must_use]
    pub fn is_coarse(&self) -> bool {
        self.is_doubted(&["rate-too-coarse"])
    }

    /// Returns true if the ends had no connectivity for a while, because a link was down or a route
    /// was missing: then changes of the rate say nothing about rates and queues.
    #[must_use]
    pub fn was_cut_off(&self) -> bool {
        let mut counters = self.record.counters.iter();
        counters.any(|found| found.counter == "carrier_losses" && found.added() > 0)
            || self.ways.iter().any(|way| way.unroutable() > 0)
    }

    /// Returns true if round trips were measured and completed.
    #[must_use]
    pub fn is_latency(&self) -> bool {
        self.plan.kind == Kind::Latency && self.record.summary.rtt_ns.is_some()
    }

    /// Returns the host of an end.
    #[must_use]
    pub fn host(&self, role: Role) -> Option<&'a Host> {
        host(self.record, role)
    }

    /// Returns the interface of an end towards the other.
    #[must_use]
    pub fn interface(&self, role: Role) -> Option<&'a Interface> {
        self.host(role)?.interface.as_ref()
    }

    /// Returns the interface of an end if it is hardware, not virtual or loopback.
    #[must_use]
    pub fn device(&self, role: Role) -> Option<&'a Interface> {
        self.interface(role)
            .filter(|interface| interface.name != "lo")
            .filter(|interface| {
                let driver = interface.driver.as_deref();
                driver.is_some_and(|driver| !VIRTUAL.contains(&driver))
            })
    }

    /// Returns the address of an end from the sockets of its flows; for a server without sockets
    /// the requested host.
    #[must_use]
    pub fn address(&self, role: Role) -> String {
        let of_way = |way: &Way<'a>| {
            let (mut senders, mut receivers) = (way.senders(), way.receivers());
            let (own, other) = match way.sender == role {
                true => (senders.next(), receivers.next()),
                false => (receivers.next(), senders.next()),
            };
            let local = own.and_then(|socket| socket.local.as_deref());
            local.or_else(|| other?.remote.as_deref())
        };
        let told = self.ways.iter().find_map(of_way);
        let asked = (role == Role::Server).then_some(self.plan.host.as_str());
        let bound = self.plan.bind.as_deref().filter(|_| role == Role::Client);
        let address = told.map(bare).or(asked).or(bound).unwrap_or("ADDRESS");
        address.trim_start_matches("::ffff:").to_owned()
    }

    /// Returns true if the run used IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.address(Role::Server).contains(':')
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

    /// Returns true if both ends ran on one machine, as far as the record shows.
    #[must_use]
    pub fn one_machine(&self) -> bool {
        let boot = |role| self.host(role)?.boot_id.as_deref();
        boot(Role::Client).is_some() && boot(Role::Client) == boot(Role::Server)
    }

    /// Returns true if the server is another tool, which reports only its results.
    #[must_use]
    pub fn far_is_foreign(&self) -> bool {
        self.plan.dialect.is_some()
    }

    /// Returns true for a record of our server about another tool's client: it counts payload, and
    /// has neither processor times nor facts of the client.
    #[must_use]
    pub fn is_of_a_guest(&self) -> bool {
        self.far_is_foreign() && self.host(Role::Client).is_none()
    }

    /// Returns the wait mode of an end.
    #[must_use]
    pub fn wait(&self, role: Role) -> Option<Wait> {
        wait(self.plan, role)
    }

    /// Returns the processors assigned to an end's threads.
    #[must_use]
    pub fn cpus(&self, role: Role) -> &'a Cpus {
        match role {
            Role::Client => &self.plan.cpu.near,
            Role::Server => &self.plan.cpu.far,
        }
    }

    /// Returns the scheduling policy of an end's threads: the requested one, or that of the
    /// program's start.
    #[must_use]
    pub fn sched(&self, role: Role) -> Sched {
        let asked = self.asked_sched(role);
        let started = self.host(role).and_then(|host| host.started_as);
        match asked {
            Sched::Inherited => started.unwrap_or(asked),
            _ => asked,
        }
    }

    /// Returns the requested scheduling policy of an end's threads.
    #[must_use]
    pub fn asked_sched(&self, role: Role) -> Sched {
        match role {
            Role::Client => self.plan.sched.near,
            Role::Server => self.plan.sched.far,
        }
    }

    /// Returns the evidence source of the scheduling policy.
    #[must_use]
    pub fn sched_read(&self, role: Role) -> String {
        match self.asked_sched(role) == self.sched(role) {
            true => "plan".to_owned(),
            false => format!("{} sched_getscheduler", name(role)),
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
    pub fn added(&self, counter: &str, of: impl Fn(&str, Option<&str>) -> bool) -> Option<u64> {
        let found = self.record.counters.iter().filter(|found| {
            found.counter == counter && of(&found.host, found.interface.as_deref())
        });
        let added: Vec<u64> = found.map(|found| found.added()).collect();
        (!added.is_empty()).then(|| added.iter().sum())
    }

    /// Returns true if an end's processors had idle time, or if it is unknown: of two ends on one
    /// machine, one reads the processor times.
    #[must_use]
    pub fn rests(&self, role: Role) -> bool {
        let machine = self.cpu(role).and_then(|cost| cost.machine);
        let idle = machine.and_then(|machine| machine.share(machine.idle_ns));
        idle.is_none_or(|idle| idle > 0.15)
    }

    /// Returns the time of an end's threads, all directions.
    #[must_use]
    pub fn time(&self, role: Role) -> Option<Time> {
        let time = Time::of(self.cpu(role)?.threads.iter())?;
        Some(match self.is_own_stack(role) {
            true => time.of_polling(),
            false => time,
        })
    }
}

/// Strips the port from an address.
fn bare(address: &str) -> &str {
    match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        // An IPv6 address without brackets has no port.
        None => match address.split_once(':') {
            Some((host, port)) if !port.contains(':') => host,
            _ => address,
        },
    }
}

pub(crate) fn host(record: &Record, role: Role) -> Option<&Host> {
    let told = record.hosts.iter().find(|host| host.role == Some(role));
    // A record of a single host has no role for it.
    told.or_else(|| record.hosts.first().filter(|host| host.role.is_none()))
}

/// Returns the wait mode of an end, where it is known.
fn wait(plan: &Plan, role: Role) -> Option<Wait> {
    match (&plan.wait, role) {
        (Some(wait), Role::Client) => Some(wait.near),
        (Some(wait), Role::Server) => Some(wait.far),
        (None, Role::Client) => plan.near_wait,
        (None, Role::Server) => None,
    }
}

pub(crate) fn cpu(record: &Record, role: Role) -> Option<&CpuCost> {
    record.summary.cpu.iter().find(|cost| cost.role == role)
}

/// Returns the name of an end for sentences.
#[must_use]
pub fn name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

/// Returns the sending and the receiving role of a direction.
#[must_use]
pub(crate) fn ends(kind: Kind, direction: Direction) -> (Role, Role) {
    match (kind, direction) {
        (Kind::Throughput, Direction::Receive) => (Role::Server, Role::Client),
        _ => (Role::Client, Role::Server),
    }
}

/// Returns the name of a flow's end for sentences.
#[must_use]
pub fn part_name(part: CountedAt) -> &'static str {
    match part {
        CountedAt::Sender => "sending",
        CountedAt::Receiver => "receiving",
    }
}
