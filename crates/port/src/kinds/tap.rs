//! `tap:` creates a kernel interface whose frames are exchanged with this port.
//!
//! Frames that the kernel sends on the interface are received here, and frames sent here arrive
//! there: the kernel's network stack is the host at the other end. The interface is created in the
//! network namespace of the thread that opens it, and removed when the process ends. A persistent
//! tap (`ip tuntap add`) remains and its settings are restored, except for addresses beyond the
//! first one: those are restored by the code that opens the port ([`TapChanges`]), and after a kill
//! all settings are. With `vnet`, every frame has a
//! [`VnetHeader`](linerate_packet::vnet::VnetHeader) in front, and TCP segments have up to 64 KiB,
//! in both directions.
//!
//! One system call moves one frame; the kernel has no call for several.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use linerate_packet::frame::ETHERNET_HEADER_BYTES;
use linerate_packet::vnet::VNET_HEADER_BYTES;
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;
use linerate_sys::interface_ioctl::InterfaceConfig;
use linerate_sys::tap::{TapOptions, TapRestore};
use linerate_sys::{interface_ioctl, tap};
use rustix::io::Errno;

use crate::capabilities::{FrameCopy, PortCapabilities};
use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::interface_use::open_error;
use crate::kinds::{NameRule, PortKind, check_stopped, queue_name};
use crate::port_url::{PortUrl, UrlKey, ValueKind};
use crate::queue::{AnyPort, PortQueues, RxQueue, TxQueue};

/// Description of the kind `tap:`.
pub const KIND: PortKind = PortKind {
    scheme: "tap",
    description: "a kernel interface created for this port",
    name_rule: NameRule::Required("interface"),
    example: "tap:tap0,address=10.0.0.1/24",
    extra_keys: &[
        UrlKey {
            name: "address",
            value_kind: ValueKind::Text("10.0.0.1/24"),
            description: "IPv4 address of the interface",
        },
        UrlKey {
            name: "vnet",
            value_kind: ValueKind::Flag,
            description: "a vnet header in front of each frame: checksums and segmentation may be left to the receiver",
        },
    ],
    // Length of the kernel's tap queue (TUN_READQ_SIZE of drivers/net/tun.c).
    descriptors: 500,
    check: |url| {
        // The kernel's error for an invalid name is the same as for a device of another type.
        if !is_valid_name(url.name()) {
            return Err(url.bad_value("name", url.name(), NAME_EXPECTED, "tap0"));
        }
        match url.text("address") {
            Some(text) if parse_address(text).is_none() => {
                let wanted = "an IPv4 address with its prefix";
                Err(url.bad_value("address", text, wanted, "10.0.0.1/24"))
            }
            _ => Ok(()),
        }
    },
    adapt_memory_plan,
    open,
};

/// Description of valid interface names, for errors.
const NAME_EXPECTED: &str =
    "an interface name of at most 15 bytes, without `/`, `:`, `%` and spaces";

/// Follows dev_valid_name of net/core/dev.c, and excludes `%`: the kernel would replace `%d` by a
/// number.
fn is_valid_name(name: &str) -> bool {
    let is_permitted = |c: char| !c.is_whitespace() && c != '\u{b}' && !"/:%".contains(c);
    name.len() < libc::IFNAMSIZ && !matches!(name, "." | "..") && name.chars().all(is_permitted)
}

/// Frames per queue with `vnet`: each has 64 KiB.
const VNET_FRAMES: u32 = 256;

/// Bytes after which a poll ends: two frames of 64 KiB. They are then still in the cache when they
/// are processed, and their buffers are available for the next frames.
const POLL_BYTES: u64 = 120 << 10;

/// Maximum number of frames that the next poll reads. One call reads one frame, and the last call,
/// which finds none, costs as much as another frame. After silence a single frame is delivered at
/// once, without a further call that would delay its reply. While polls find as many frames as
/// permitted, the number doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadBudget(usize);

impl ReadBudget {
    const MIN: Self = Self(1);

    /// Returns true if a poll that has read `read` frames and `bytes`, with space for `capacity`,
    /// reads another.
    #[inline]
    fn permits_another(self, read: usize, capacity: usize, bytes: u64) -> bool {
        read < self.0.min(capacity) && bytes < POLL_BYTES
    }

    /// Budget of the next poll after one that ended like that.
    #[inline]
    fn next(self, read: usize, capacity: usize, bytes: u64) -> Self {
        match self.permits_another(read, capacity, bytes) {
            true => Self::MIN,
            false => Self((self.0 * 2).min(BURST_FRAMES)),
        }
    }
}

fn parse_address(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
    Some((address.parse().ok()?, prefix))
}

fn adapt_memory_plan(url: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    if !url.parse_flag("vnet") {
        return plan;
    }
    MemoryPlan {
        frames: VNET_FRAMES * url.common().queues.unwrap_or(1),
        frame_bytes: u16::MAX,
        ..plan
    }
}

/// Changes that opening a tap makes to an existing interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapChanges {
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
    pub fn tap_changes(&self) -> Option<TapChanges> {
        if self.kind().scheme != KIND.scheme {
            return None;
        }
        let socket = interface_ioctl::ioctl_socket().ok()?;
        let config = InterfaceConfig::read(&socket, self.name()).ok()?;
        Some(TapChanges {
            interface: self.name().to_owned(),
            settings: !config.up
                || config.mtu != u32::from(self.mtu())
                || self.text("address").is_some(),
            offloads: self.parse_flag("vnet"),
        })
    }
}

/// Receive queue of frames that the kernel sends on the interface.
pub struct TapReceive {
    file: File,
    /// Empty frame for the next read: most polls receive nothing, and then need no frame from the
    /// pool.
    spare: Option<Frame>,
    read_budget: ReadBudget,
    memory: FrameRegion,
    limits: FrameLimits,
    counters: Arc<QueueCounters>,
    stop_error: Option<io::Error>,
    port: String,
    /// Declared after the file: the previous state is restored when no queue has the tap open.
    _restore: Option<Arc<TapRestore>>,
}

/// Transmit queue of frames that the kernel receives on the interface.
pub struct TapTransmit {
    file: File,
    limits: FrameLimits,
    counters: Arc<QueueCounters>,
    stop_error: Option<io::Error>,
    port: String,
    _restore: Option<Arc<TapRestore>>,
}

/// Valid frame lengths.
#[derive(Clone, Copy)]
struct FrameLimits {
    header_bytes: usize,
    max_bytes: usize,
}

impl FrameLimits {
    fn length_error(self, length: usize) -> Option<DropCause> {
        if length > self.max_bytes {
            Some(DropCause::TooLong)
        } else if length < self.header_bytes + ETHERNET_HEADER_BYTES {
            Some(DropCause::Invalid)
        } else {
            None
        }
    }
}

fn open(url: &PortUrl, memory: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let queues = url.common().queues.unwrap_or(1);
    let options = TapOptions {
        vnet: url.parse_flag("vnet"),
        multi_queue: queues > 1,
    };
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EBUSY) => PortError::InUse {
            port: url.short_name(),
            remedy: "another process has it: choose another name, or stop that process".to_owned(),
        },
        Some(libc::EINVAL) => PortError::InUse {
            port: url.short_name(),
            remedy:
                "an interface of that name has another type, or another number of queues (one or \
                     several): choose another name, or leave out queues="
                    .to_owned(),
        },
        Some(libc::ENOENT | libc::ENXIO) => PortError::MissingFeature {
            port: url.short_name(),
            feature: "/dev/net/tun",
            remedy: "load it with `modprobe tun`, or give the container that device",
            source,
        },
        Some(libc::ENODEV) => url.bad_value("name", url.name(), NAME_EXPECTED, "tap0"),
        _ => open_error(url, "CAP_NET_ADMIN", "create a tap", source),
    };
    let mut restore = TapRestore::capture(url.name());
    let offloads = restore.as_ref().map(TapRestore::read_offloads);
    let mut taps = Vec::new();
    for _ in 0..queues {
        taps.push(tap::open(url.name(), options).map_err(failed)?);
    }
    if let (Some(restore), Some(offloads), Some(tap), true) =
        (&mut restore, offloads, taps.first(), options.vnet)
    {
        restore.restore_offloads(offloads, tap.file.try_clone().map_err(failed)?);
    }
    let restore = restore.map(Arc::new);
    let attributes = interface_ioctl::read_attributes(url.name()).map_err(failed)?;
    if !attributes.up || attributes.mtu != u32::from(url.mtu()) {
        interface_ioctl::set_up(url.name(), url.mtu())
            .map_err(|source| open_error(url, "CAP_NET_ADMIN", "set the tap up", source))?;
    }
    if let Some((address, prefix)) = url.text("address").and_then(parse_address) {
        tap::set_address(url.name(), address, prefix).map_err(|source| {
            open_error(url, "CAP_NET_ADMIN", "give the tap an address", source)
        })?;
    }

    let limits = if options.vnet {
        FrameLimits {
            header_bytes: VNET_HEADER_BYTES,
            max_bytes: u16::MAX.into(),
        }
    } else {
        FrameLimits {
            header_bytes: 0,
            max_bytes: url.frame_bytes().into(),
        }
    };
    let mut ports = Vec::new();
    for (queue, tap) in (0..).zip(taps) {
        let name = queue_name(url, queue, queues);
        let mut capabilities = PortCapabilities {
            copies: FrameCopy::EachDirection,
            vnet_header: limits.header_bytes as u8,
            ..PortCapabilities::plain(name.clone(), limits.max_bytes as u16)
        };
        if options.vnet && !tap.udp_segmentation {
            let note =
                "this kernel segments UDP datagrams before delivery; Linux 6.2 or later does not";
            capabilities.notes.push(note.to_owned());
        }
        let second = tap.file.try_clone().map_err(failed)?;
        ports.push(
            PortQueues {
                receive: TapReceive {
                    file: tap.file,
                    spare: None,
                    read_budget: ReadBudget::MIN,
                    memory: memory.clone(),
                    limits,
                    counters: Arc::default(),
                    stop_error: None,
                    port: name.clone(),
                    _restore: restore.clone(),
                },
                transmit: TapTransmit {
                    file: second,
                    limits,
                    counters: Arc::default(),
                    stop_error: None,
                    port: name,
                    _restore: restore.clone(),
                },
                capabilities,
            }
            .into_any(),
        );
    }
    Ok(ports)
}

/// Errors of an interface that is down (EIO) or was removed.
const INTERFACE_GONE: [i32; 3] = [libc::EIO, libc::EBADFD, libc::ENODEV];

impl Drop for TapReceive {
    fn drop(&mut self) {
        self.memory.reclaim(self.spare.take());
    }
}

impl RxQueue for TapReceive {
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let (mut received, mut bytes) = (0, 0);
        let file = self.file.as_fd();
        let capacity = burst.remaining();
        while self.read_budget.permits_another(received, capacity, bytes) {
            let Some(mut frame) = self.spare.take().or_else(|| pool.allocate()) else {
                break;
            };
            frame.set_len(pool.memory().frame_bytes());
            // The plain system call: a wrapper function can cost 0.4 us per frame
            // (docs/method/defaults.md#system-calls-without-a-wrapper).
            let read = rustix::io::read(file, pool.memory().bytes_mut(&mut frame));
            let length = match read {
                Ok(length) => length,
                Err(error) => {
                    self.spare = Some(frame);
                    if !matches!(error, Errno::AGAIN | Errno::INTR) {
                        self.stop_error = Some(error.into());
                    }
                    break;
                }
            };
            if let Some(cause) = self.limits.length_error(length) {
                self.counters.add_drops(cause, 1);
                self.spare = Some(frame);
                continue;
            }
            frame.set_len(length as u16);
            bytes += (length - self.limits.header_bytes) as u64;
            received += usize::from(burst.push(frame).is_ok());
        }
        self.read_budget = self.read_budget.next(received, capacity, bytes);
        if received > 0 {
            self.counters.add_frames(received, bytes);
        }
        received
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        check_stopped(&self.port, self.stop_error.take(), &INTERFACE_GONE)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

impl TxQueue for TapTransmit {
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let (mut sent, mut bytes) = (0, 0);
        let file = self.file.as_fd();
        let taken = burst.take_front(|frame| {
            let length_error = self.limits.length_error(frame.len().into());
            let cause = match length_error {
                Some(cause) => Some(cause),
                None => match rustix::io::write(file, pool.memory().bytes(&frame)) {
                    Ok(_) => None,
                    Err(error) => match error {
                        Errno::AGAIN | Errno::INTR => return Err(frame),
                        Errno::NOMEM | Errno::NOBUFS => Some(DropCause::NoBuffer),
                        Errno::INVAL | Errno::MSGSIZE => Some(DropCause::Invalid),
                        _ => {
                            self.stop_error = Some(error.into());
                            return Err(frame);
                        }
                    },
                },
            };
            match cause {
                Some(cause) => self.counters.add_drops(cause, 1),
                None => {
                    sent += 1;
                    bytes += u64::from(frame.len()) - self.limits.header_bytes as u64;
                }
            }
            pool.free(frame);
            Ok(())
        });
        if sent > 0 {
            self.counters.add_frames(sent, bytes);
        }
        taken
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        check_stopped(&self.port, self.stop_error.take(), &INTERFACE_GONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of frames that each poll reads, with this capacity, when `waiting` frames of this
    /// length wait at its start.
    fn poll_sizes_with_length(length: u64, capacity: usize, waiting: &[usize]) -> Vec<usize> {
        let mut budget = ReadBudget::MIN;
        let poll = |waiting: &usize| {
            let mut read = 0;
            while read < *waiting && budget.permits_another(read, capacity, read as u64 * length) {
                read += 1;
            }
            budget = budget.next(read, capacity, read as u64 * length);
            read
        };
        waiting.iter().map(poll).collect()
    }

    fn poll_sizes(capacity: usize, waiting: &[usize]) -> Vec<usize> {
        poll_sizes_with_length(1_514, capacity, waiting)
    }

    /// A burst of such frames is larger than the caches, which hold two of them.
    #[test]
    fn long_frames_are_read_two_at_a_time() {
        assert_eq!(poll_sizes_with_length(65_226, 32, &[99; 4]), [1, 2, 2, 2]);
        // After a poll that found fewer, the budget is one frame again.
        assert_eq!(
            poll_sizes_with_length(65_226, 32, &[99, 99, 1, 99]),
            [1, 2, 1, 1]
        );
        assert_eq!(
            poll_sizes_with_length(9_014, 32, &[99; 6]),
            [1, 2, 4, 8, 14, 14]
        );
    }

    #[test]
    fn the_first_frame_after_silence_waits_for_no_other_and_load_is_taken_in_bursts() {
        // Request and response: no call is spent on a frame that does not arrive.
        assert_eq!(poll_sizes(32, &[1, 0, 1, 0, 1]), [1, 0, 1, 0, 1]);
        assert_eq!(poll_sizes(32, &[99; 8]), [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(poll_sizes(32, &[99, 98, 96, 3, 99, 98]), [1, 2, 4, 3, 1, 2]);
        // A short burst that is full is not silence, nor is a poll without capacity.
        assert_eq!(poll_sizes(12, &[99; 6]), [1, 2, 4, 8, 12, 12]);
        assert_eq!(ReadBudget(8).next(0, 0, 0), ReadBudget(16));
    }
}
