//! Capture files: reads pcap and pcapng, writes pcapng.
//!
//! No allocation after opening. Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.

mod reader;
mod writer;

pub use reader::{CaptureError, CaptureReader, CaptureRecord, open_capture};
pub use writer::CaptureWriter;

/// `LINKTYPE_ETHERNET`.
const LINK_ETHERNET: u16 = 1;

/// Block type of a section header, the same in both byte orders.
const SECTION_BLOCK: u32 = 0x0a0d_0d0a;
/// Byte-order magic of a section.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_BLOCK: u32 = 1;
const SIMPLE_PACKET_BLOCK: u32 = 3;
const ENHANCED_PACKET_BLOCK: u32 = 6;

const OPTION_RESOLUTION: u16 = 9;
const OPTION_TIME_OFFSET: u16 = 14;
