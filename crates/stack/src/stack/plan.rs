//! Memory and port requirements of a stack before it is created.

use linerate_packet::vnet::VNET_HEADER_BYTES;
use linerate_port::{PortCapabilities, PortError, PortUrl};
use linerate_sys::frames::burst::BURST_FRAMES;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;

use crate::config::{ChecksumMode, StackConfig};
use crate::error::StackError;
use crate::link::{LONG_FRAME_BYTES, max_parts};
use crate::neighbors::MAX_WAITING_FRAMES;
use crate::wire::ETHERNET_BYTES;

const MAX_QUEUED_LONG_FRAMES: u32 = 256;

/// Returns the maximum number of frames in all receive queues.
pub(crate) fn max_queued_frames(config: &StackConfig, frame_bytes: u16) -> u32 {
    let queued_frames = config
        .udp
        .receive_queue
        .saturating_mul(config.udp_sockets)
        .min(config.udp.buffers);
    if usize::from(frame_bytes) > LONG_FRAME_BYTES {
        queued_frames.min(MAX_QUEUED_LONG_FRAMES)
    } else {
        queued_frames
    }
}

/// Returns the number of frames that a stack may hold in addition to its port's.
pub(crate) fn frames_needed(config: &StackConfig, frame_bytes: u16) -> u32 {
    // A burst for each direction, and one that a pool keeps back (`FramePool` shares what is beyond);
    // frames that wait for a neighbour, and segments that wait for a full port; and one frame in
    // which a segment is rebuilt.
    let waiting_segments = max_parts(config.mtu) as u32;
    max_queued_frames(config, frame_bytes)
        + MAX_WAITING_FRAMES as u32
        + 2 * BURST_FRAMES as u32
        + waiting_segments
        + 1
}

/// Returns the memory that a stack with this configuration and its port need. Combine several plans
/// with [`MemoryPlan::combine`] when they share one memory.
#[must_use]
pub fn memory_plan(config: &StackConfig, url: &PortUrl) -> MemoryPlan {
    let mut plan = url.memory_plan();
    plan.frames = plan
        .frames
        .saturating_add(frames_needed(config, plan.frame_bytes))
        .saturating_add(thread_ring_frames(config));
    plan
}

/// Returns the number of frames between the driver thread and the application thread: two full
/// rings, a burst each way, and what the pools of both threads may keep back.
fn thread_ring_frames(config: &StackConfig) -> u32 {
    match config.threads {
        1 => 0,
        _ => 2 * (ring_slots(config) + BURST_FRAMES as u32 + POOL_FRAMES),
    }
}

/// Frames that a pool may keep back.
const POOL_FRAMES: u32 = (FramePool::HEAP_BYTES / size_of::<Frame>()) as u32;

fn ring_slots(config: &StackConfig) -> u32 {
    config.rx_descriptors.max(config.tx_descriptors)
}

/// Returns the URL of the ring between the driver thread and the application thread; `end` names
/// the end.
#[must_use]
pub fn ring_url(config: &StackConfig, end: &str) -> String {
    let (slots, mtu) = (ring_slots(config), config.mtu);
    format!("ring:threads,end={end},rxd={slots},mtu={mtu}")
}

/// Parses a port's URL and fills in descriptors and MTU from the configuration where the text has
/// none.
///
/// # Errors
/// The parser's errors.
pub fn port_url(config: &StackConfig, text: &str) -> Result<PortUrl, PortError> {
    let parsed: PortUrl = text.parse()?;
    let common = parsed.common();
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

/// Returns the remedy for a port whose frames are too short.
fn short_frame_remedy(port: &str, mtu: u16) -> String {
    let interface = ["packet:", "xdp:"]
        .iter()
        .find_map(|kind| port.strip_prefix(kind));
    match interface.and_then(|rest| rest.split(',').next()) {
        // The port's limit is the smaller of the interface's MTU and the URL's.
        Some(interface) => format!(
            "`ip link set {interface} mtu {mtu}` if that is lower, remove a lower mtu= from its URL, or set \
             mtu lower"
        ),
        None => format!("write mtu={mtu} in its URL, or set mtu lower"),
    }
}

/// Rejects a configuration that requires what the port cannot do.
pub(super) fn check_port(
    config: &StackConfig,
    capabilities: &PortCapabilities,
    memory: &FrameRegion,
) -> Result<(), StackError> {
    let vnet = usize::from(capabilities.vnet_header);
    if vnet != 0 && vnet != VNET_HEADER_BYTES {
        return Err(StackError::Contradiction {
            reason: format!(
                "{} has a header of {vnet} B, which the stack does not support",
                capabilities.name
            ),
            remedy: "open the port without it".to_owned(),
        });
    }
    let needed = vnet + ETHERNET_BYTES + usize::from(config.mtu);
    let available = usize::from(capabilities.frame_bytes.min(memory.frame_bytes()));
    if available < needed {
        return Err(StackError::Contradiction {
            reason: format!(
                "frames of {} hold {available} B, but an mtu of {} needs {needed} B",
                capabilities.name, config.mtu
            ),
            remedy: short_frame_remedy(&capabilities.name, config.mtu),
        });
    }
    // Frames that stay in memory need no checksum; any other receiver drops frames without one.
    let is_in_memory = ["ring:", "shm:", "null:"]
        .iter()
        .any(|kind| capabilities.name.starts_with(kind));
    if config.checksum == ChecksumMode::Offload && vnet == 0 && !is_in_memory {
        return Err(StackError::Contradiction {
            reason: format!(
                "{} cannot offload checksums to its other side",
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

    /// Writing the configuration's MTU into the URL would be no remedy: the URL has it already.
    #[test]
    fn short_frames_have_a_remedy() {
        for (port, remedy) in [
            ("packet:eth0", "`ip link set eth0 mtu 9000`"),
            ("xdp:eth1,mode=generic", "`ip link set eth1 mtu 9000`"),
            ("tap:t0,mtu=1500", "write mtu=9000 in its URL"),
        ] {
            assert!(
                short_frame_remedy(port, 9_000).starts_with(remedy),
                "{port}"
            );
        }
    }
}
