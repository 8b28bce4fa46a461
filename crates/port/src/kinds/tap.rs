//! `tap:` creates a kernel interface whose frames are exchanged with this port.
//!
//! Frames that the kernel sends on the interface are received here, and frames sent here arrive
//! there: the kernel's network stack is the host at the other end. The interface is created in the
//! network namespace of the thread that opens it, and removed when the process ends. A persistent
//! tap (`ip tuntap add`) remains and its settings are restored, except for addresses beyond the
//! first one: those are restored by the code that opens the port ([`FoundTap`]), and after a kill
//! all settings are. With `vnet`, every frame has a [`VnetHeader`](crate::vnet::VnetHeader) in
//! front, and TCP segments have up to 64 KiB, in both directions.
//!
//! One system call moves one frame; the kernel has no call for several.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::capabilities::{Capabilities, Copies};
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::interface_use::refused;
use crate::kinds::{Kind, Name, queue_name};
use crate::port_url::{Key, PortUrl, Value};
use crate::queue::{AnyPort, Pair, Receive, Transmit};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frame::Frame;
use crate::sys::frame_memory::{Memory, MemoryPlan};
use crate::sys::interface_ioctl::{self, Settings};
use crate::sys::tap::{self, Found, TapOptions};
use crate::vnet::VNET_HEADER_BYTES;

/// Description of the kind `tap:`.
pub const KIND: Kind = Kind {
    scheme: "tap",
    about: "a kernel interface created for this port",
    name: Name::Needed("interface"),
    example: "tap:tap0,address=10.0.0.1/24",
    keys: &[
        Key {
            name: "address",
            value: Value::Text("10.0.0.1/24"),
            about: "IPv4 address of the interface",
        },
        Key {
            name: "vnet",
            value: Value::Flag,
            about: "a vnet header in front of each frame: checksums and segmentation may be left to the receiver",
        },
    ],
    // Length of the kernel's tap queue (TUN_READQ_SIZE of drivers/net/tun.c).
    descriptors: 500,
    check: |url| {
        // The kernel's error for an invalid name is the same as for a device of another type.
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

/// Description of valid interface names, for errors.
const NAME_WANTED: &str = "an interface name of at most 15 bytes, without `/`, `:`, `%` and spaces";

/// Follows dev_valid_name of net/core/dev.c, and excludes `%`: the kernel would replace `%d` by a
/// number.
fn may_be_called(name: &str) -> bool {
    let known = |c: char| !c.is_whitespace() && c != '\u{b}' && !"/:%".contains(c);
    name.len() < libc::IFNAMSIZ && !matches!(name, "." | "..") && name.chars().all(known)
}

/// Frames per queue with `vnet`: each has 64 KiB.
const LONG_FRAMES: u32 = 256;

/// Bytes after which a poll ends: two frames of 64 KiB. They are then still in the cache when they
/// are processed, and their buffers are available for the next frames.
const POLL_BYTES: u64 = 120 << 10;

/// Maximum number of frames that the next poll reads. One call reads one frame, and the last call,
/// which finds none, costs as much as another frame. After silence a single frame is delivered at
/// once, without a further call that would delay its reply. While polls find as many frames as
/// permitted, the number doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach(usize);

impl Reach {
    const SHORTEST: Self = Self(1);

    /// Returns true if a poll that has read `read` frames and `bytes`, with space for `room`, reads
    /// another.
    #[inline]
    fn goes_on(self, read: usize, room: usize, bytes: u64) -> bool {
        read < self.0.min(room) && bytes < POLL_BYTES
    }

    /// Budget of the next poll after one that ended like that.
    #[inline]
    fn after(self, read: usize, room: usize, bytes: u64) -> Self {
        match self.goes_on(read, room, bytes) {
            true => Self::SHORTEST,
            false => Self((self.0 * 2).min(BURST_FRAMES)),
        }
    }
}

/// Bytes of an Ethernet header.
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

/// Changes that opening a tap makes to an existing interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTap {
    /// Name of the interface.
    pub interface: String,
    /// MTU, addresses or the up state change.
    pub settings: bool,
    /// Offloads change: work that the kernel leaves to the reader.
    pub offloads: bool,
}

impl PortUrl {
    /// Changes that opening this port makes to an existing tap of the calling thread's network
    /// namespace; none if it creates one, or for other kinds of ports.
    #[must_use]
    pub fn found_tap(&self) -> Option<FoundTap> {
        if self.kind().scheme != KIND.scheme {
            return None;
        }
        let socket = interface_ioctl::asking_socket().ok()?;
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

/// Receive queue of frames that the kernel sends on the interface.
pub struct TapReceive {
    file: File,
    /// Empty frame for the next read: most polls receive nothing, and then need no frame from the
    /// pool.
    waiting: Option<Frame>,
    reach: Reach,
    memory: Memory,
    shape: Shape,
    counters: Arc<QueueCounters>,
    stopped: Option<io::Error>,
    port: String,
    /// Declared after the file: the previous state is restored when no queue has the tap open.
    _found: Option<Arc<Found>>,
}

/// Transmit queue of frames that the kernel receives on the interface.
pub struct TapTransmit {
    file: File,
    shape: Shape,
    counters: Arc<QueueCounters>,
    stopped: Option<io::Error>,
    port: String,
    _found: Option<Arc<Found>>,
}

/// Valid frame lengths.
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
            remedy: "another process has it: choose another name, or stop that process".to_owned(),
        },
        Some(libc::EINVAL) => PortError::Taken {
            port: url.short(),
            remedy:
                "an interface of that name has another type, or another number of queues (one or \
                     several): choose another name, or leave out queues="
                    .to_owned(),
        },
        Some(libc::ENOENT | libc::ENXIO) => PortError::MissingFeature {
            port: url.short(),
            feature: "/dev/net/tun",
            remedy: "load it with `modprobe tun`, or give the container that device",
            source,
        },
        Some(libc::ENODEV) => url.bad_value("name", url.name(), NAME_WANTED, "tap0"),
        _ => refused(url, "CAP_NET_ADMIN", "create a tap", source),
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
    let facts = interface_ioctl::facts(url.name()).map_err(failed)?;
    if !facts.up || facts.mtu != u32::from(url.mtu()) {
        interface_ioctl::set_up(url.name(), url.mtu())
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
                "this kernel segments UDP datagrams before delivery; Linux 6.2 or later does not";
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
            "its interface went down or was removed".to_owned()
        }
        _ => format!("the kernel rejected frames ({error})"),
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
            // The plain system call: a wrapper function can cost 0.4 us per frame
            // (docs/method/defaults.md#system-calls-without-a-wrapper).
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

    /// Number of frames that each poll reads, with this capacity, when `waiting` frames of this
    /// length wait at its start.
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

    /// A burst of such frames is larger than the caches, which hold two of them.
    #[test]
    fn long_frames_are_read_two_at_a_time() {
        assert_eq!(polls_of(65_226, 32, &[99; 4]), [1, 2, 2, 2]);
        // After a poll that found fewer, the budget is one frame again.
        assert_eq!(polls_of(65_226, 32, &[99, 99, 1, 99]), [1, 2, 1, 1]);
        assert_eq!(polls_of(9_014, 32, &[99; 6]), [1, 2, 4, 8, 14, 14]);
    }

    #[test]
    fn the_first_frame_after_silence_waits_for_no_other_and_load_is_taken_in_bursts() {
        // Request and response: no call is spent on a frame that does not arrive.
        assert_eq!(polls(32, &[1, 0, 1, 0, 1]), [1, 0, 1, 0, 1]);
        assert_eq!(polls(32, &[99; 8]), [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(polls(32, &[99, 98, 96, 3, 99, 98]), [1, 2, 4, 3, 1, 2]);
        // A short burst that is full is not silence, nor is a poll without capacity.
        assert_eq!(polls(12, &[99; 6]), [1, 2, 4, 8, 12, 12]);
        assert_eq!(Reach(8).after(0, 0, 0), Reach(16));
    }
}
