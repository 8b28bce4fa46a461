//! Frame memory: slots, handles, pools and rings.
//!
//! Invariant that makes `&mut [u8]` for a frame sound: a [`frame::Frame`] is neither `Copy` nor
//! `Clone`, each slot of a memory has at most one of them, and only code in this module creates
//! them.

use std::io;

pub mod burst;
pub mod chunked_copy;
pub mod frame;
pub mod frame_memory;
pub mod frame_pool;
pub mod frame_ring;
pub mod prefetch;
pub mod ring_cursor;

/// Frame memory that cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum FrameRegionError {
    #[error("the memory plan is invalid: {reason}; change the number or size of frames")]
    BadPlan { reason: &'static str },
    #[error("the kernel cannot provide {bytes} bytes of memory for frames: use fewer frames")]
    NoMemory {
        bytes: usize,
        #[source]
        source: io::Error,
    },
}
