//! What a stack needs of memory and of its port, before it is made.

use linerate_port::vnet::VNET_HEADER_BYTES;
use linerate_port::{
    BURST_FRAMES, Capabilities, Frame, Memory, MemoryPlan, Pool, PortError, PortUrl,
};

use crate::config::{Checksum, Config};
use crate::error::StackError;
use crate::link::most_pieces;
use crate::neighbors::WAITING;
use crate::wire::ETHERNET_BYTES;

/// Frames of 64 KiB, which a port with a vnet header has, are few at a time.
pub(crate) const LONG_FRAME_BYTES: usize = 16 << 10;
const LONG_FRAMES_HELD: u32 = 256;

/// Frames that wait in queues of sockets at most.
pub(crate) fn held_frames(config: &Config, frame_bytes: u16) -> u32 {
    let all = config
        .udp
        .receive_queue
        .saturating_mul(config.udp_sockets)
        .min(config.udp.buffers);
    if usize::from(frame_bytes) > LONG_FRAME_BYTES {
        all.min(LONG_FRAMES_HELD)
    } else {
        all
    }
}

/// Frames that a stack may hold beside those that its port does.
pub(crate) fn frames_of_its_own(config: &Config, frame_bytes: u16) -> u32 {
    // A burst each way, one that a pool holds back (`Pool` shares what is beyond), those that wait: for a neighbour, and
    // pieces for a full port; and one in which a segment is put together.
    let pieces = most_pieces(config.mtu) as u32;
    held_frames(config, frame_bytes) + WAITING as u32 + 2 * BURST_FRAMES as u32 + pieces + 1
}

/// The memory that a stack with this configuration and its port need; add others' with
/// [`MemoryPlan::joined`] where they share one.
#[must_use]
pub fn memory_plan(config: &Config, url: &PortUrl) -> MemoryPlan {
    let mut plan = url.memory_plan();
    plan.frames = plan
        .frames
        .saturating_add(frames_of_its_own(config, plan.frame_bytes))
        .saturating_add(frames_between_threads(config));
    plan
}

/// Frames that are on their way between the driver's thread and the application's: two rings full, a burst
/// each way, and what the pools of both may keep to themselves.
fn frames_between_threads(config: &Config) -> u32 {
    match config.threads {
        1 => 0,
        _ => 2 * (ring_slots(config) + BURST_FRAMES as u32 + POOL_FRAMES),
    }
}

/// Frames that a pool may keep.
const POOL_FRAMES: u32 = (Pool::HEAP_BYTES / size_of::<Frame>()) as u32;

fn ring_slots(config: &Config) -> u32 {
    config.rx_descriptors.max(config.tx_descriptors)
}

/// The ring between the driver's thread and the application's, as a URL: the end called `end`.
#[must_use]
pub fn ring_url(config: &Config, end: &str) -> String {
    let (slots, mtu) = (ring_slots(config), config.mtu);
    format!("ring:threads,end={end},rxd={slots},mtu={mtu}")
}

/// Reads a port's URL as the configuration completes it: descriptors and MTU where the text says nothing.
///
/// # Errors
/// What the URL says wrong.
pub fn port_url(config: &Config, text: &str) -> Result<PortUrl, PortError> {
    let plain: PortUrl = text.parse()?;
    let common = plain.common();
    let mut full = text.to_owned();
    if common.rxd.is_none() {
        full += &format!(",rxd={}", config.rx_descriptors);
    }
    if common.txd.is_none() {
        full += &format!(",txd={}", config.tx_descriptors);
    }
    if common.mtu.is_none() {
        full += &format!(",mtu={}", config.mtu);
    }
    full.parse()
}

/// How a port comes to take packets that long.
fn longer_frames(port: &str, mtu: u16) -> String {
    let interface = ["packet:", "xdp:"]
        .iter()
        .find_map(|kind| port.strip_prefix(kind));
    match interface.and_then(|rest| rest.split(',').next()) {
        // It takes what both say.
        Some(interface) => format!(
            "`ip link set {interface} mtu {mtu}` where that has less, leave a lower mtu= out of its URL, or set \
             mtu lower"
        ),
        None => format!("write mtu={mtu} in its URL, or set mtu lower"),
    }
}

/// Refuses what the port cannot do.
pub(super) fn check(
    config: &Config,
    capabilities: &Capabilities,
    memory: &Memory,
) -> Result<(), StackError> {
    let vnet = usize::from(capabilities.vnet_header);
    if vnet != 0 && vnet != VNET_HEADER_BYTES {
        return Err(StackError::Contradiction {
            why: format!(
                "{} has a header of {vnet} B that the stack does not know",
                capabilities.name
            ),
            remedy: "open the port without it".to_owned(),
        });
    }
    let needed = vnet + ETHERNET_BYTES + usize::from(config.mtu);
    let has = usize::from(capabilities.frame_bytes.min(memory.frame_bytes()));
    if has < needed {
        return Err(StackError::Contradiction {
            why: format!(
                "frames of {} hold {has} B, and an mtu of {} needs {needed}",
                capabilities.name, config.mtu
            ),
            remedy: longer_frames(&capabilities.name, config.mtu),
        });
    }
    // Where frames stay in memory nobody needs a sum; everybody else drops frames without one.
    let inside = ["ring:", "shm:", "null:"]
        .iter()
        .any(|kind| capabilities.name.starts_with(kind));
    if config.checksum == Checksum::Offload && vnet == 0 && !inside {
        return Err(StackError::Contradiction {
            why: format!(
                "{} has no way to leave checksums to its other side",
                capabilities.name
            ),
            remedy: "set checksum=software, or open the port with a vnet header (tap:NAME,vnet)"
                .to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The URL has the MTU of the configuration already: to write it there was no remedy.
    #[test]
    fn a_remedy_for_frames_that_are_too_short_is_one() {
        for (port, remedy) in [
            ("packet:eth0", "`ip link set eth0 mtu 9000`"),
            ("xdp:eth1,mode=generic", "`ip link set eth1 mtu 9000`"),
            ("tap:t0,mtu=1500", "write mtu=9000 in its URL"),
        ] {
            assert!(longer_frames(port, 9_000).starts_with(remedy), "{port}");
        }
    }
}
