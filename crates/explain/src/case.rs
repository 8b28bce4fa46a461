//! A record as rules look at it: by direction and by end.

mod again;
mod loss;
mod place;
mod shape;
mod time;
mod way;

pub(crate) use again::rate_word;
pub use loss::Unseen;
pub(crate) use loss::{DROPS, MATHIS};
pub use shape::Shape;
pub use time::Time;
pub(crate) use way::{FULL, PLATEAU, STANDING_NS};
pub use way::{Tcp, Way};

use linerate_metric::facts::{Host, Interface, Role};
use linerate_metric::plan::{Cpus, Direction, Kind, Plan, Protocol, Sched, Wait};
use linerate_metric::record::{CountedAt, CpuCost, Record};

/// Drivers whose frames touch no wire: what a device does to them is none of theirs.
const VIRTUAL: &[&str] = &["veth", "tun", "bridge", "dummy", "ifb"];

/// A record, and how to ask it.
pub struct Case<'a> {
    /// All of it.
    pub record: &'a Record,
    /// Its plan.
    pub plan: &'a Plan,
    /// Its directions, of throughput and of round trips.
    pub ways: Vec<Way<'a>>,
    /// What the client's and the server's hosts are called in their lab.
    pub(crate) places: [String; 2],
}

impl<'a> Case<'a> {
    /// The case that a record makes.
    #[must_use]
    pub fn new(record: &'a Record) -> Self {
        let ways = record.directions.iter();
        Self {
            record,
            plan: &record.plan,
            ways: ways.map(|figures| Way::new(record, figures)).collect(),
            places: crate::ends::places(record),
        }
    }

    /// The directions of a throughput run over a protocol; none of any other run.
    pub fn throughput(&self, protocol: Protocol) -> impl Iterator<Item = &Way<'a>> {
        let is = self.plan.kind == Kind::Throughput && self.plan.protocol == protocol;
        self.ways.iter().filter(move |_| is)
    }

    /// Whether one of these was said against the record's figures.
    #[must_use]
    pub fn is_doubted(&self, doubts: &[&str]) -> bool {
        let mut said = self.record.validity.iter();
        said.any(|said| doubts.contains(&&*said.doubt))
    }

    /// Whether a port had nothing at the other end of its wire: then it is no sign of anything how fast it took
    /// frames, or how often it took none.
    #[must_use]
    pub fn lacks_carrier(&self) -> bool {
        self.is_doubted(&["no-carrier"])
    }

    /// The same, or nobody was at the other end of a port, ever or for a while, or the port itself stopped: frames
    /// went nowhere, and neither whoever sent them nor a ring is the limit.
    #[must_use]
    pub fn leads_nowhere(&self) -> bool {
        self.lacks_carrier() || self.is_doubted(&["no-peer", "peer-left", "port-stopped"])
    }

    /// Whether the rate that was asked for is so low that one burst is most of the run: what is measured tells nothing of it.
    #[must_use]
    pub fn is_coarse(&self) -> bool {
        self.is_doubted(&["rate-too-coarse"])
    }

    /// Whether there was no way between the ends for a while: a link was down, or a route was gone. Then what
    /// rises and falls over the run tells nothing of rates and queues.
    #[must_use]
    pub fn was_cut_off(&self) -> bool {
        let mut counters = self.record.counters.iter();
        counters.any(|found| found.counter == "carrier_losses" && found.added() > 0)
            || self.ways.iter().any(|way| way.unroutable() > 0)
    }

    /// Whether round trips were measured, and were completed.
    #[must_use]
    pub fn is_latency(&self) -> bool {
        self.plan.kind == Kind::Latency && self.record.summary.rtt_ns.is_some()
    }

    /// The host of an end.
    #[must_use]
    pub fn host(&self, role: Role) -> Option<&'a Host> {
        host(self.record, role)
    }

    /// The interface of an end towards the other.
    #[must_use]
    pub fn interface(&self, role: Role) -> Option<&'a Interface> {
        self.host(role)?.interface.as_ref()
    }

    /// The interface of an end where it is a device, and neither virtual nor loopback.
    #[must_use]
    pub fn device(&self, role: Role) -> Option<&'a Interface> {
        self.interface(role)
            .filter(|interface| interface.name != "lo")
            .filter(|interface| {
                let driver = interface.driver.as_deref();
                driver.is_some_and(|driver| !VIRTUAL.contains(&driver))
            })
    }

    /// The address of an end, as the sockets of its flows had it; of the far one without any, what was asked for.
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

    /// Whether the ends speak IPv6 with each other.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.address(Role::Server).contains(':')
    }

    /// Headers of a datagram: IP's and UDP's, bytes.
    #[must_use]
    pub fn datagram_headers(&self) -> u32 {
        if self.is_ipv6() { 48 } else { 28 }
    }

    /// What an end's threads cost.
    #[must_use]
    pub fn cpu(&self, role: Role) -> Option<&'a CpuCost> {
        cpu(self.record, role)
    }

    /// Whether both ends were one machine, as far as they told.
    #[must_use]
    pub fn one_machine(&self) -> bool {
        let boot = |role| self.host(role)?.boot_id.as_deref();
        boot(Role::Client).is_some() && boot(Role::Client) == boot(Role::Server)
    }

    /// Whether the far end is another program, of which nothing is known but what it says.
    #[must_use]
    pub fn far_is_foreign(&self) -> bool {
        self.plan.dialect.is_some()
    }

    /// Whether this is what a server of ours noted of another program's test: it counts what moves, and
    /// neither its processors nor anything of the client's.
    #[must_use]
    pub fn is_of_a_guest(&self) -> bool {
        self.far_is_foreign() && self.host(Role::Client).is_none()
    }

    /// How an end waits.
    #[must_use]
    pub fn wait(&self, role: Role) -> Option<Wait> {
        wait(self.plan, role)
    }

    /// The processors that an end's threads were put on.
    #[must_use]
    pub fn cpus(&self, role: Role) -> &'a Cpus {
        match role {
            Role::Client => &self.plan.cpu.near,
            Role::Server => &self.plan.cpu.far,
        }
    }

    /// How an end's threads were scheduled: as was asked for, or else as the program was started.
    #[must_use]
    pub fn sched(&self, role: Role) -> Sched {
        let asked = self.asked_sched(role);
        let started = self.host(role).and_then(|host| host.started_as);
        match asked {
            Sched::Inherited => started.unwrap_or(asked),
            _ => asked,
        }
    }

    /// How an end's threads were asked to be scheduled.
    #[must_use]
    pub fn asked_sched(&self, role: Role) -> Sched {
        match role {
            Role::Client => self.plan.sched.near,
            Role::Server => self.plan.sched.far,
        }
    }

    /// Where it is known from how an end's threads were scheduled.
    #[must_use]
    pub fn sched_read(&self, role: Role) -> String {
        match self.asked_sched(role) == self.sched(role) {
            true => "plan".to_owned(),
            false => format!("{} sched_getscheduler", name(role)),
        }
    }

    /// A setting of an end's kernel: the last of its numbers.
    #[must_use]
    pub fn sysctl(&self, role: Role, name: &str) -> Option<u64> {
        let text = self.host(role)?.sysctls.get(name)?;
        text.split_whitespace().next_back()?.parse().ok()
    }

    /// What a counter added, of all hosts and interfaces that `of` lets through; `None` where none was
    /// read.
    #[must_use]
    pub fn added(&self, counter: &str, of: impl Fn(&str, Option<&str>) -> bool) -> Option<u64> {
        let found = self.record.counters.iter().filter(|found| {
            found.counter == counter && of(&found.host, found.interface.as_deref())
        });
        let added: Vec<u64> = found.map(|found| found.added()).collect();
        (!added.is_empty()).then(|| added.iter().sum())
    }

    /// Whether an end's processors had time to halt, as far as that is known: of two ends on one machine one
    /// reads them.
    #[must_use]
    pub fn rests(&self, role: Role) -> bool {
        let machine = self.cpu(role).and_then(|cost| cost.machine);
        let idle = machine.and_then(|machine| machine.share(machine.idle_ns));
        idle.is_none_or(|idle| idle > 0.15)
    }

    /// What the threads of one part of the whole run did with their time, all directions.
    #[must_use]
    pub fn time(&self, role: Role) -> Option<Time> {
        let time = Time::of(self.cpu(role)?.threads.iter())?;
        Some(match self.is_own_stack(role) {
            true => time.of_polling(),
            false => time,
        })
    }
}

/// An address without the port behind it.
fn bare(address: &str) -> &str {
    match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        // One of IPv6 without brackets has no port.
        None => match address.split_once(':') {
            Some((host, port)) if !port.contains(':') => host,
            _ => address,
        },
    }
}

pub(crate) fn host(record: &Record, role: Role) -> Option<&Host> {
    let told = record.hosts.iter().find(|host| host.role == Some(role));
    // A record of one machine names its host without a role.
    told.or_else(|| record.hosts.first().filter(|host| host.role.is_none()))
}

/// How an end waits, where that is known.
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

/// What an end is called in sentences.
#[must_use]
pub fn name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

/// The part that an end has in a direction.
#[must_use]
pub(crate) fn ends(kind: Kind, direction: Direction) -> (Role, Role) {
    match (kind, direction) {
        (Kind::Throughput, Direction::Receive) => (Role::Server, Role::Client),
        _ => (Role::Client, Role::Server),
    }
}

/// The part of a direction as sentences have it.
#[must_use]
pub fn part_name(part: CountedAt) -> &'static str {
    match part {
        CountedAt::Sender => "sending",
        CountedAt::Receiver => "receiving",
    }
}
