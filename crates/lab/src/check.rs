//! Checks of a finished lab: every host reaches every other, and every link has its requested
//! properties, read back from the kernel.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::LabError;
use crate::lab::Lab;
use crate::netlink::{LinkState, Netlink, QdiscState};
use crate::offload::Offload;
use crate::qdisc::{Netem, TokenBucket};
use crate::topology::Link;

/// Time hosts have to reach each other, plus eight times the sum of all link delays. The kernel
/// polls carriers once a second, so a link can take that long to come up.
const REACH: Duration = Duration::from_secs(5);
/// Time after which an unanswered request is sent again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Largest number of host pairs for which every host probes every other. The kernel has one
/// neighbour table a family, of 1024 entries over *all* namespaces
/// (`net.ipv4.neigh.default.gc_thresh3`): 60 hosts that all exchange packets overflow it, and then
/// no host reaches another.
const MESH_PAIRS: usize = 400;

/// Requested and actual value of one property of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// Item checked: `link client-s1, interface eth0 of client`.
    pub subject: String,
    /// `mtu`, `rate`, `gso`, `offload tso`, `reaches server`, ...
    pub property: String,
    /// Requested value.
    pub asked: String,
    /// Actual value; `None` when the property is missing.
    pub found: Option<String>,
}

impl CheckResult {
    /// Returns whether the actual value is the requested one.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.found.as_ref() == Some(&self.asked)
    }
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            property,
            asked,
            found,
        } = self;
        match found {
            Some(found) if self.holds() => write!(f, "{subject}: {property} is {found}"),
            Some(found) => write!(f, "{subject}: {property} is {found} instead of {asked}"),
            None => write!(f, "{subject}: {property} is missing (requested: {asked})"),
        }
    }
}

/// Checks links and reachability.
pub(crate) fn check(lab: &Lab) -> Result<Vec<CheckResult>, LabError> {
    let mut results = links(lab)?;
    results.extend(reach(lab)?);
    Ok(results)
}

/// Reads the properties of both ends of every link back.
fn links(lab: &Lab) -> Result<Vec<CheckResult>, LabError> {
    let mut results = Vec::new();
    let links = lab.topology().links.iter().zip(&lab.layout().links);
    for (number, (link, ends)) in links.enumerate() {
        let emulated = lab.is_emulated(number);
        if let Some(alive) = emulated {
            results.push(CheckResult {
                subject: format!("link {}", link.label()),
                property: "delay and loss".to_owned(),
                asked: "emulated".to_owned(),
                found: alive.then(|| "emulated".to_owned()),
            });
        }
        for (name, end) in link.between.iter().zip(ends) {
            let interface = &end.interface;
            let subject = format!("link {}, interface {interface} of {name}", link.label());
            let found = lab
                .space(end.node)
                .run(|| read(link, interface, emulated.is_some()))??;
            results.extend(
                found
                    .into_iter()
                    .map(|(property, asked, found)| CheckResult {
                        subject: subject.clone(),
                        property,
                        asked,
                        found,
                    }),
            );
        }
    }
    Ok(results)
}

/// (property, asked, found)
type Line = (String, String, Option<String>);

/// Reads one interface; runs inside the interface's namespace.
fn read(link: &Link, interface: &str, emulated: bool) -> Result<Vec<Line>, LabError> {
    let mut netlink = Netlink::open()?;
    let state = netlink.link(interface)?;
    let qdiscs = netlink.qdiscs(state.index)?;
    let mut lines = vec![
        line("mtu", link.mtu(), Some(state.mtu)),
        line("state", "up", Some(if state.up { "up" } else { "down" })),
    ];
    lines.extend(sizes(link, &state));
    lines.extend(shape(link, &qdiscs, emulated));
    if !link.offloads.is_empty() {
        // The ioctl needs a socket only for its namespace.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .map_err(|error| LabError::system("open a socket", error))?;
        for (name, &on) in &link.offloads {
            let word = |on: bool| if on { "on" } else { "off" };
            let found =
                Offload::parse(name).and_then(|one| one.read(socket.as_fd(), interface, on).ok());
            lines.push(line(&format!("offload {name}"), word(on), found.map(word)));
        }
    }
    Ok(lines)
}

fn line(property: &str, asked: impl ToString, found: Option<impl ToString>) -> Line {
    (
        property.to_owned(),
        asked.to_string(),
        found.map(|found| found.to_string()),
    )
}

fn sizes(link: &Link, state: &LinkState) -> Vec<Line> {
    let Some(gso) = link.gso_bytes() else {
        return Vec::new();
    };
    vec![
        line("gso", gso, state.gso),
        line("gro", gso, state.gro),
        line("gso for IPv4", gso, state.gso_ipv4),
        line("gro for IPv4", gso, state.gro_ipv4),
    ]
}

fn shape(link: &Link, qdiscs: &[QdiscState], emulated: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(asked) = TokenBucket::of(link) {
        let found = qdiscs
            .iter()
            .find(|qdisc| qdisc.kind == "tbf")
            .and_then(|qdisc| TokenBucket::decode(&qdisc.options));
        let bits = |bucket: TokenBucket| format!("{} bit/s", bucket.rate * 8);
        let bytes = |bucket: TokenBucket| format!("{} bytes", bucket.limit);
        lines.push(line("rate", bits(asked), found.map(bits)));
        lines.push(line("queue", bytes(asked), found.map(bytes)));
    }
    if Netem::of(link).is_some() && !emulated {
        let found = qdiscs.iter().find(|qdisc| qdisc.kind == "netem");
        lines.push(line("delay and loss", "netem", found.map(|one| &one.kind)));
    }
    lines
}

/// A host's UDP socket that sends requests and replies to those of others.
struct Speaker {
    host: usize,
    v6: bool,
    port: u16,
    socket: UdpSocket,
}

/// Request from one host to an address of another.
struct Question {
    from: usize,
    to: usize,
    address: IpAddr,
    answered: bool,
}

const ASKED: u8 = 1;
const ANSWERED: u8 = 2;

/// Sends a request from every host to every address of every other (in a large lab, of some
/// others), all at once, until all replies have arrived or the deadline passes.
///
/// UDP rather than ICMP: ping needs a privilege where `ping_group_range` is empty.
fn reach(lab: &Lab) -> Result<Vec<CheckResult>, LabError> {
    let mut speakers = Vec::new();
    for (host, one) in lab.hosts().iter().enumerate() {
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let families = if one.address_v6().is_some() { 2 } else { 1 };
        for any in any.into_iter().take(families) {
            let (socket, port) = one
                .namespace()
                .run(|| {
                    let socket = UdpSocket::bind((any, 0))?;
                    socket.set_nonblocking(true)?;
                    let port = socket.local_addr()?.port();
                    Ok((socket, port))
                })?
                .map_err(|error: io::Error| {
                    LabError::system(format!("open a socket in host {}", one.name()), error)
                })?;
            speakers.push(Speaker {
                host,
                v6: any.is_ipv6(),
                port,
                socket,
            });
        }
    }
    let mut questions = questions(lab);
    let delays: Duration = lab.topology().links.iter().filter_map(|l| l.delay).sum();
    let deadline = Instant::now() + REACH + delays * 8;
    converse(&speakers, &mut questions, deadline)
        .map_err(|error| LabError::system("let the hosts reach each other", error))?;
    Ok(questions
        .iter()
        .map(|question| CheckResult {
            subject: format!("host {}", lab.hosts()[question.from].name()),
            property: format!(
                "reaching {} ({})",
                lab.hosts()[question.to].name(),
                question.address
            ),
            asked: "possible".to_owned(),
            found: Some(
                if question.answered {
                    "possible"
                } else {
                    "impossible"
                }
                .to_owned(),
            ),
        })
        .collect())
}

/// Returns whether host `from` probes host `to`. In a large lab every host exchanges requests with
/// the first and the next one only, which still covers every host, port and switch.
fn asks(hosts: usize, from: usize, to: usize) -> bool {
    let next = |host: usize| (host + 1) % hosts;
    let mesh = hosts * (hosts - 1) <= MESH_PAIRS;
    from != to && (mesh || from == 0 || to == 0 || to == next(from) || from == next(to))
}

fn questions(lab: &Lab) -> Vec<Question> {
    let count = lab.hosts().len();
    let mut questions = Vec::new();
    for from in 0..count {
        for (to, far) in lab.hosts().iter().enumerate() {
            if !asks(count, from, to) {
                continue;
            }
            for interface in far.interfaces() {
                let v6 = interface.address_v6.map(IpAddr::V6);
                let addresses = [Some(IpAddr::V4(interface.address)), v6];
                questions.extend(addresses.into_iter().flatten().map(|address| Question {
                    from,
                    to,
                    address,
                    answered: false,
                }));
            }
        }
    }
    questions
}

fn converse(speakers: &[Speaker], questions: &mut [Question], deadline: Instant) -> io::Result<()> {
    let speaker = |host: usize, v6: bool| {
        let mut all = speakers.iter();
        all.find(|speaker| speaker.host == host && speaker.v6 == v6)
    };
    while questions.iter().any(|question| !question.answered) && Instant::now() < deadline {
        for (number, question) in questions.iter().enumerate() {
            let v6 = question.address.is_ipv6();
            let ends = (speaker(question.from, v6), speaker(question.to, v6));
            if let (false, (Some(near), Some(far))) = (question.answered, ends) {
                let mut text = vec![ASKED];
                text.extend((number as u64).to_be_bytes());
                // An address that is unreachable now may become reachable; the deadline decides.
                let _ = near.socket.send_to(&text, (question.address, far.port));
            }
        }
        listen(speakers, questions, Instant::now() + ASK_AGAIN)?;
    }
    Ok(())
}

/// Replies to requests and records replies until `until` or until all replies have arrived.
fn listen(speakers: &[Speaker], questions: &mut [Question], until: Instant) -> io::Result<()> {
    while questions.iter().any(|question| !question.answered) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let mut waiting: Vec<PollFd<'_>> = speakers
            .iter()
            .map(|speaker| PollFd::new(&speaker.socket, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for speaker in speakers {
            drain(speaker, questions);
        }
    }
    Ok(())
}

fn drain(speaker: &Speaker, questions: &mut [Question]) {
    let mut text = [0; 16];
    // Errors other than "would block" report an earlier packet that was refused (ICMP). Each is
    // returned once, and the request is repeated anyway.
    while let Ok((length, from)) = speaker.socket.recv_from(&mut text) {
        let Some((&kind, number)) = text[..length].split_first() else {
            continue;
        };
        let Ok(number) = number.try_into().map(u64::from_be_bytes) else {
            continue;
        };
        let question = usize::try_from(number)
            .ok()
            .and_then(|number| questions.get_mut(number));
        match (kind, question) {
            (ASKED, Some(question)) if question.to == speaker.host => {
                answer(speaker, from, number);
            }
            (ANSWERED, Some(question)) if question.from == speaker.host => {
                question.answered = true;
            }
            _ => {}
        }
    }
}

fn answer(speaker: &Speaker, to: SocketAddr, number: u64) {
    let mut text = vec![ANSWERED];
    text.extend(number.to_be_bytes());
    let _ = speaker.socket.send_to(&text, to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn few_hosts_ask_all_and_many_ask_enough() {
        for hosts in [2, 3, 20, 21, 60, 250] {
            let asked: Vec<(usize, usize)> = (0..hosts)
                .flat_map(|from| (0..hosts).map(move |to| (from, to)))
                .filter(|&(from, to)| asks(hosts, from, to))
                .collect();
            let askers: HashSet<usize> = asked.iter().map(|&(from, _)| from).collect();
            assert_eq!(askers.len(), hosts, "every host asks");
            assert!(asked.iter().all(|&(from, to)| asked.contains(&(to, from))));
            if hosts <= 20 {
                assert_eq!(asked.len(), hosts * (hosts - 1));
            } else {
                assert!(
                    asked.len() <= 4 * hosts,
                    "{hosts} hosts, {} pairs",
                    asked.len()
                );
            }
        }
    }
}
