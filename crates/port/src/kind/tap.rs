//! `tap:` makes an interface of the kernel whose wire is this port.
//!
//! What the kernel sends on it is received here, and what is sent here arrives there: the kernel's own
//! stack is the host at the other end. It is made in the network namespace of the thread that opens it
//! and is gone with the process; one that was there before (`ip tuntap add`) stays, as it was, but for addresses beyond
//! its first one: whoever opens it sets those back ([`FoundTap`]), and all of it after a kill. With `vnet`, every frame has a [`VnetHeader`](crate::vnet::VnetHeader)
//! in front, and TCP segments travel up to 64 KiB long, both ways.
//!
//! One call moves one frame; there is no call for more.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::capabilities::{Capabilities, Copies};
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::interface::refused;
use crate::kind::{Kind, Name, queue_name};
use crate::pool::Pool;
use crate::port::{AnyPort, Pair, Receive, Transmit};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frame::Frame;
use crate::sys::interface::{self, Settings};
use crate::sys::memory::{Memory, MemoryPlan};
use crate::sys::tap::{self, Found, TapOptions};
use crate::url::{Key, PortUrl, Value};
use crate::vnet::VNET_HEADER_BYTES;

/// This kind's line.
pub const KIND: Kind = Kind {
    scheme: "tap",
    about: "an interface of the kernel that is made for this port",
    name: Name::Needed("interface"),
    example: "tap:tap0,address=10.0.0.1/24",
    keys: &[
        Key {
            name: "address",
            value: Value::Text("10.0.0.1/24"),
            about: "IPv4 address of the kernel's end",
        },
        Key {
            name: "vnet",
            value: Value::Flag,
            about: "a vnet header in front of each frame: checksums and segmentation may be left open",
        },
    ],
    // The kernel's queue of a tap has as many places (TUN_READQ_SIZE of drivers/net/tun.c).
    descriptors: 500,
    check: |url| {
        // The kernel says the same of others as of a device that is something else.
        if !may_be_called(url.name()) {
            return Err(url.bad_value("name", url.name(), NAME_WANTED, "tap0"));
        }
        match url.text("address") {
            Some(text) if address(text).is_none() => {
                let wanted = "an IPv4 address with its prefix";
                Err(url.bad_value("address", text, wanted, "10.0.0.1/24"))
            }
            _ => Ok(()),
        }
    },
    memory: plan,
    open,
};

/// What an interface may be called.
const NAME_WANTED: &str = "an interface name of at most 15 bytes, without `/`, `:`, `%` and spaces";

/// As dev_valid_name of net/core/dev.c has it; for `%d` the kernel would put a number that nobody here knows.
fn may_be_called(name: &str) -> bool {
    let known = |c: char| !c.is_whitespace() && c != '\u{b}' && !"/:%".contains(c);
    name.len() < libc::IFNAMSIZ && !matches!(name, "." | "..") && name.chars().all(known)
}

/// Frames of 64 KiB are few at a time: so many a queue.
const LONG_FRAMES: u32 = 256;

/// With so many bytes a poll ends, which are two frames of 64 KiB: whoever takes them finds them in the cache, and their
/// buffers are there for the next ones.
const POLL_BYTES: u64 = 120 << 10;

/// How many frames the next poll reads at most: one call reads one frame, and the call that finds nothing more costs as
/// much as another frame. After silence a frame is handed on at once, instead of after a call for the next
/// one, which would keep its answer waiting; while polls find all that they may take, they may take twice as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach(usize);

impl Reach {
    const SHORTEST: Self = Self(1);

    /// Whether a poll that has read so many frames, and bytes, and has room for `room` frames, reads another one.
    #[inline]
    fn goes_on(self, read: usize, room: usize, bytes: u64) -> bool {
        read < self.0.min(room) && bytes < POLL_BYTES
    }

    /// What comes after a poll that ended so.
    #[inline]
    fn after(self, read: usize, room: usize, bytes: u64) -> Self {
        match self.goes_on(read, room, bytes) {
            true => Self::SHORTEST,
            false => Self((self.0 * 2).min(BURST_FRAMES)),
        }
    }
}

/// An Ethernet header.
const HEADER_BYTES: usize = 14;

fn address(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
    Some((address.parse().ok()?, prefix))
}

fn plan(url: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    if !url.flag("vnet") {
        return plan;
    }
    MemoryPlan {
        frames: LONG_FRAMES * url.common().queues.unwrap_or(1),
        frame_bytes: u16::MAX,
        ..plan
    }
}

/// What opening a tap changes of an interface that is there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTap {
    /// The interface.
    pub interface: String,
    /// Its MTU, its addresses, or that it is down.
    pub settings: bool,
    /// What the kernel leaves to whoever reads from it.
    pub offloads: bool,
}

impl PortUrl {
    /// What opening it changes of a tap that the calling thread's network has; none where it makes one, or is no tap.
    #[must_use]
    pub fn found_tap(&self) -> Option<FoundTap> {
        if self.kind().scheme != KIND.scheme {
            return None;
        }
        let socket = interface::asking_socket().ok()?;
        let found = Settings::read(&socket, self.name()).ok()?;
        Some(FoundTap {
            interface: self.name().to_owned(),
            settings: !found.up
                || found.mtu != u32::from(self.mtu())
                || self.text("address").is_some(),
            offloads: self.flag("vnet"),
        })
    }
}

/// Receives what the kernel sends on the interface.
pub struct TapReceive {
    file: File,
    /// An empty frame for the next read: most polls find nothing, and need no frame from the pool.
    waiting: Option<Frame>,
    reach: Reach,
    memory: Memory,
    shape: Shape,
    counters: Arc<QueueCounters>,
    stopped: Option<io::Error>,
    port: String,
    /// Behind the file: what was there before is set back when nobody has it open.
    _found: Option<Arc<Found>>,
}

/// Sends to the kernel as if it came in on the interface.
pub struct TapTransmit {
    file: File,
    shape: Shape,
    counters: Arc<QueueCounters>,
    stopped: Option<io::Error>,
    port: String,
    _found: Option<Arc<Found>>,
}

/// Which lengths are right.
#[derive(Clone, Copy)]
struct Shape {
    header: usize,
    largest: usize,
}

impl Shape {
    fn flaw(self, length: usize) -> Option<Cause> {
        if length > self.largest {
            Some(Cause::TooLong)
        } else if length < self.header + HEADER_BYTES {
            Some(Cause::Bad)
        } else {
            None
        }
    }
}

fn open(url: &PortUrl, memory: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let queues = url.common().queues.unwrap_or(1);
    let options = TapOptions {
        vnet: url.flag("vnet"),
        multi_queue: queues > 1,
    };
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EBUSY) => PortError::Taken {
            port: url.short(),
            remedy: "another process has it: choose another name, or end that one".to_owned(),
        },
        Some(libc::EINVAL) => PortError::Taken {
            port: url.short(),
            remedy: "an interface of that name is something else, or has one queue and not \
                     several, or the reverse: choose another name, or leave out queues="
                .to_owned(),
        },
        Some(libc::ENOENT | libc::ENXIO) => PortError::MissingFeature {
            port: url.short(),
            feature: "/dev/net/tun",
            remedy: "load it with `modprobe tun`, or give the container that device",
            source,
        },
        Some(libc::ENODEV) => url.bad_value("name", url.name(), NAME_WANTED, "tap0"),
        _ => refused(url, "CAP_NET_ADMIN", "make a tap", source),
    };
    let mut found = Found::look(url.name());
    let offloads = found.as_ref().map(Found::offloads);
    let mut taps = Vec::new();
    for _ in 0..queues {
        taps.push(tap::open(url.name(), options).map_err(failed)?);
    }
    if let (Some(found), Some(offloads), Some(tap), true) =
        (&mut found, offloads, taps.first(), options.vnet)
    {
        found.with_offloads(offloads, tap.file.try_clone().map_err(failed)?);
    }
    let found = found.map(Arc::new);
    let facts = interface::facts(url.name()).map_err(failed)?;
    if !facts.up || facts.mtu != u32::from(url.mtu()) {
        interface::set_up(url.name(), url.mtu())
            .map_err(|source| refused(url, "CAP_NET_ADMIN", "set the tap up", source))?;
    }
    if let Some((address, prefix)) = url.text("address").and_then(address) {
        tap::set_address(url.name(), address, prefix)
            .map_err(|source| refused(url, "CAP_NET_ADMIN", "give the tap an address", source))?;
    }

    let shape = if options.vnet {
        Shape {
            header: VNET_HEADER_BYTES,
            largest: u16::MAX.into(),
        }
    } else {
        Shape {
            header: 0,
            largest: url.frame_bytes().into(),
        }
    };
    let mut ports = Vec::new();
    for (queue, tap) in (0..).zip(taps) {
        let name = queue_name(url, queue, queues);
        let mut capabilities = Capabilities {
            copies: Copies::EachWay,
            vnet_header: shape.header as u8,
            ..Capabilities::plain(name.clone(), shape.largest as u16)
        };
        if options.vnet && !tap.udp_segmentation {
            let note =
                "this kernel cuts UDP datagrams itself before it hands them over (Linux 6.2)";
            capabilities.notes.push(note.to_owned());
        }
        let second = tap.file.try_clone().map_err(failed)?;
        ports.push(
            Pair {
                receive: TapReceive {
                    file: tap.file,
                    waiting: None,
                    reach: Reach::SHORTEST,
                    memory: memory.clone(),
                    shape,
                    counters: Arc::default(),
                    stopped: None,
                    port: name.clone(),
                    _found: found.clone(),
                },
                transmit: TapTransmit {
                    file: second,
                    shape,
                    counters: Arc::default(),
                    stopped: None,
                    port: name,
                    _found: found.clone(),
                },
                capabilities,
            }
            .any(),
        );
    }
    Ok(ports)
}

fn stopped(port: &str, error: Option<io::Error>) -> Result<(), PortError> {
    let Some(error) = error else { return Ok(()) };
    let why = match error.raw_os_error() {
        // EIO: the interface is down. EBADFD: it was deleted.
        Some(libc::EIO | libc::EBADFD | libc::ENODEV) => {
            "its interface went down or away".to_owned()
        }
        _ => format!("the kernel refused frames ({error})"),
    };
    Err(PortError::Stopped {
        port: port.to_owned(),
        why,
    })
}

impl Drop for TapReceive {
    fn drop(&mut self) {
        self.memory.take_back(self.waiting.take());
    }
}

impl Receive for TapReceive {
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let (mut kept, mut bytes) = (0, 0);
        let file = self.file.as_fd();
        let room = burst.room();
        while self.reach.goes_on(kept, room, bytes) {
            let Some(mut frame) = self.waiting.take().or_else(|| pool.allocate()) else {
                break;
            };
            frame.set_len(pool.memory().frame_bytes());
            // The bare instruction: a function around it can cost 0.4 us a frame
            // (docs/METHOD.md#calls-without-a-wrapper).
            let read = rustix::io::read(file, pool.memory().bytes_mut(&mut frame));
            let length = match read {
                Ok(length) => length,
                Err(error) => {
                    self.waiting = Some(frame);
                    if !matches!(error, Errno::AGAIN | Errno::INTR) {
                        self.stopped = Some(error.into());
                    }
                    break;
                }
            };
            if let Some(cause) = self.shape.flaw(length) {
                self.counters.dropped(cause, 1);
                self.waiting = Some(frame);
                continue;
            }
            frame.set_len(length as u16);
            bytes += (length - self.shape.header) as u64;
            kept += usize::from(burst.push(frame).is_ok());
        }
        self.reach = self.reach.after(kept, room, bytes);
        if kept > 0 {
            self.counters.moved(kept, bytes);
        }
        kept
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        stopped(&self.port, self.stopped.take())
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

impl Transmit for TapTransmit {
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let (mut sent, mut bytes) = (0, 0);
        let file = self.file.as_fd();
        let taken = burst.take_front(|frame| {
            let flaw = self.shape.flaw(frame.len().into());
            let cause = match flaw {
                Some(cause) => Some(cause),
                None => match rustix::io::write(file, pool.memory().bytes(&frame)) {
                    Ok(_) => None,
                    Err(error) => match error {
                        Errno::AGAIN | Errno::INTR => return Err(frame),
                        Errno::NOMEM | Errno::NOBUFS => Some(Cause::NoBuffer),
                        Errno::INVAL | Errno::MSGSIZE => Some(Cause::Bad),
                        _ => {
                            self.stopped = Some(error.into());
                            return Err(frame);
                        }
                    },
                },
            };
            match cause {
                Some(cause) => self.counters.dropped(cause, 1),
                None => {
                    sent += 1;
                    bytes += u64::from(frame.len()) - self.shape.header as u64;
                }
            }
            pool.free(frame);
            Ok(())
        });
        if sent > 0 {
            self.counters.moved(sent, bytes);
        }
        taken
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        stopped(&self.port, self.stopped.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each poll finds that has room for so many, where so many frames of this length wait when it begins.
    fn polls_of(length: u64, room: usize, waiting: &[usize]) -> Vec<usize> {
        let mut reach = Reach::SHORTEST;
        let poll = |waiting: &usize| {
            let mut read = 0;
            while read < *waiting && reach.goes_on(read, room, read as u64 * length) {
                read += 1;
            }
            reach = reach.after(read, room, read as u64 * length);
            read
        };
        waiting.iter().map(poll).collect()
    }

    fn polls(room: usize, waiting: &[usize]) -> Vec<usize> {
        polls_of(1_514, room, waiting)
    }

    /// A burst of them is larger than the caches that two of them fit into.
    #[test]
    fn long_frames_are_read_two_at_a_time() {
        assert_eq!(polls_of(65_226, 32, &[99; 4]), [1, 2, 2, 2]);
        // After one that found fewer it is one frame again.
        assert_eq!(polls_of(65_226, 32, &[99, 99, 1, 99]), [1, 2, 1, 1]);
        assert_eq!(polls_of(9_014, 32, &[99; 6]), [1, 2, 4, 8, 14, 14]);
    }

    #[test]
    fn the_first_frame_after_silence_waits_for_no_other_and_load_is_taken_in_bursts() {
        // A question at a time: no call is spent on what does not come.
        assert_eq!(polls(32, &[1, 0, 1, 0, 1]), [1, 0, 1, 0, 1]);
        assert_eq!(polls(32, &[99; 8]), [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(polls(32, &[99, 98, 96, 3, 99, 98]), [1, 2, 4, 3, 1, 2]);
        // A short burst that is full is no silence, nor is one that had no room.
        assert_eq!(polls(12, &[99; 6]), [1, 2, 4, 8, 12, 12]);
        assert_eq!(Reach(8).after(0, 0, 0), Reach(16));
    }
}
