//! Capture files: reads pcap and pcapng, writes pcapng.
//!
//! No allocation after opening. Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.

mod reader;
mod writer;

pub use reader::{CaptureError, CaptureReader, Record, open};
pub use writer::CaptureWriter;

/// `LINKTYPE_ETHERNET`.
const LINK_ETHERNET: u16 = 1;

/// Block type of a section header, the same in both byte orders.
const SECTION: u32 = 0x0a0d_0d0a;
/// Byte-order magic of a section.
const ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;
