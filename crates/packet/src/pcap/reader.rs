//! Reader of captures.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET_BLOCK, INTERFACE_BLOCK, LINK_ETHERNET, OPTION_RESOLUTION,
    OPTION_TIME_OFFSET, SECTION_BLOCK, SIMPLE_PACKET_BLOCK,
};

/// Bytes of the read buffer. The largest record must fit.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum bytes of a record: tcpdump's limit (`MAXIMUM_SNAPLEN`).
const MAX_RECORD_BYTES: usize = 262_144;
/// Maximum number of interfaces per section; a file with more is rejected.
const MAX_INTERFACES: usize = 4096;

/// Error of reading a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file could not be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// The first word is that of neither format.
    #[error("it is not a capture file: neither pcap nor pcapng")]
    NotACapture,
    /// The frames are not Ethernet.
    #[error("its link type is {link}, not Ethernet (1)")]
    LinkType {
        /// `LINKTYPE_…` of the file.
        link: u32,
    },
    /// Part of the file violates the format.
    #[error("it is damaged at byte {offset}: {reason}")]
    Damaged {
        /// Offset of the part in the file.
        offset: u64,
        /// Violation of the format.
        reason: &'static str,
    },
}

/// Opens a capture.
///
/// # Errors
/// [`CaptureError::Io`]; also for a pipe, because opening one would block until there is a writer.
pub fn open_capture(path: &Path) -> Result<File, CaptureError> {
    if fs::metadata(path)?.file_type().is_fifo() {
        let why = "it is a pipe, which cannot be read twice";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
    }
    Ok(File::open(path)?)
}

/// Captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRecord<'a> {
    /// Capture time in nanoseconds since 1970; absent if the file does not have it.
    pub time_ns: Option<u64>,
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Original length of the frame in bytes.
    pub length: u32,
}

/// Reads frames from a capture of either format, in either byte order.
#[derive(Debug)]
pub struct CaptureReader<R> {
    input: R,
    buffer: Box<[u8]>,
    /// Part of the buffer that is filled and not used yet.
    unread: Range<usize>,
    /// Bytes of the input before `unread`.
    offset: u64,
    format: CaptureFormat,
    swapped: bool,
    interfaces: Vec<CaptureInterface>,
}

#[derive(Debug, Clone, Copy)]
enum CaptureFormat {
    Pcap { nanoseconds: bool },
    PcapNg,
}

#[derive(Debug, Clone, Copy)]
struct CaptureInterface {
    is_ethernet: bool,
    snap_bytes: u32,
    /// Time units per second are 10^n, or 2^n with `binary`.
    exponent: u32,
    binary: bool,
    offset_s: i64,
}

impl CaptureInterface {
    fn nanoseconds(&self, units: u64) -> Option<u64> {
        let per_second = if self.binary {
            1u128.checked_shl(self.exponent)?
        } else {
            10u128.checked_pow(self.exponent)?
        };
        let ns = u128::from(units).checked_mul(1_000_000_000)? / per_second;
        let ns = i128::try_from(ns).ok()? + i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(ns).ok()
    }
}

impl<R: Read> CaptureReader<R> {
    /// Reads the header of a capture.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn new(input: R) -> Result<Self, CaptureError> {
        let mut reader = Self {
            input,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            unread: 0..0,
            offset: 0,
            format: CaptureFormat::PcapNg,
            swapped: false,
            interfaces: Vec::new(),
        };
        reader.read_header()?;
        Ok(reader)
    }

    fn read_header(&mut self) -> Result<(), CaptureError> {
        if !self.fill_to(4)? {
            return Err(CaptureError::NotACapture);
        }
        let magic = self.u32_at(0);
        if magic == SECTION_BLOCK {
            self.format = CaptureFormat::PcapNg;
            return Ok(());
        }
        let (swapped, nanoseconds) = match (magic, magic.swap_bytes()) {
            (0xa1b2_c3d4, _) => (false, false),
            (0xa1b2_3c4d, _) => (false, true),
            (_, 0xa1b2_c3d4) => (true, false),
            (_, 0xa1b2_3c4d) => (true, true),
            _ => return Err(CaptureError::NotACapture),
        };
        self.format = CaptureFormat::Pcap { nanoseconds };
        self.swapped = swapped;
        if !self.fill_to(24)? {
            return Err(self.damaged("its header is cut off"));
        }
        // The upper bits describe the FCS of frames.
        let link = self.u32_at(20) & 0x0fff_ffff;
        if link != u32::from(LINK_ETHERNET) {
            return Err(CaptureError::LinkType { link });
        }
        self.consume(24);
        Ok(())
    }

    /// Reads the next Ethernet frame; `None` at the end. Frames of other link types are skipped.
    ///
    /// # Errors
    /// [`CaptureError`]; no more can be read then.
    pub fn read(&mut self) -> Result<Option<CaptureRecord<'_>>, CaptureError> {
        match self.format {
            CaptureFormat::Pcap { nanoseconds } => self.read_pcap(nanoseconds),
            CaptureFormat::PcapNg => self.read_pcapng(),
        }
    }

    /// Restarts the capture from its beginning.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn restart(&mut self) -> Result<(), CaptureError>
    where
        R: Seek,
    {
        self.input.rewind()?;
        self.unread = 0..0;
        self.offset = 0;
        self.swapped = false;
        self.interfaces.clear();
        self.read_header()
    }

    fn read_pcap(&mut self, nanoseconds: bool) -> Result<Option<CaptureRecord<'_>>, CaptureError> {
        if !self.fill_to(16)? {
            return self.end();
        }
        let (seconds, fraction) = (self.u32_at(0), self.u32_at(4));
        let (captured, length) = (self.u32_at(8) as usize, self.u32_at(12));
        if captured > MAX_RECORD_BYTES {
            return Err(self.damaged("a frame of more than 256 KiB"));
        }
        if !self.fill_to(16 + captured)? {
            return Err(self.damaged("the last frame is cut off"));
        }
        let scale = if nanoseconds { 1 } else { 1000 };
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * scale;
        let at = self.unread.start + 16;
        self.consume(16 + captured);
        Ok(Some(CaptureRecord {
            time_ns: Some(time_ns),
            bytes: &self.buffer[at..at + captured],
            length,
        }))
    }

    fn read_pcapng(&mut self) -> Result<Option<CaptureRecord<'_>>, CaptureError> {
        loop {
            if !self.fill_to(12)? {
                return self.end();
            }
            if self.u32_at(0) == SECTION_BLOCK {
                self.swapped = match self.u32_at(8) {
                    BYTE_ORDER_MAGIC => self.swapped,
                    order_magic if order_magic.swap_bytes() == BYTE_ORDER_MAGIC => !self.swapped,
                    _ => return Err(self.damaged("a section without a byte order")),
                };
                self.interfaces.clear();
            }
            let (kind, total) = (self.u32_at(0), self.u32_at(4) as usize);
            if total < 12 || !total.is_multiple_of(4) {
                return Err(self.damaged("a block of impossible length"));
            }
            let is_used =
                [INTERFACE_BLOCK, SIMPLE_PACKET_BLOCK, ENHANCED_PACKET_BLOCK].contains(&kind);
            if !is_used {
                self.skip(total)?;
                continue;
            }
            if total > BUFFER_BYTES {
                return Err(self.damaged("a block of more than 1 MiB"));
            }
            if !self.fill_to(total)? {
                return Err(self.damaged("the last block is cut off"));
            }
            let location = match kind {
                INTERFACE_BLOCK => {
                    self.add_interface(total)?;
                    None
                }
                SIMPLE_PACKET_BLOCK => self.simple_packet(total)?,
                _ => self.enhanced_packet(total)?,
            };
            let start = self.unread.start;
            self.consume(total);
            if let Some((time_ns, at, length)) = location {
                return Ok(Some(CaptureRecord {
                    time_ns,
                    bytes: &self.buffer[start + at.start..start + at.end],
                    length,
                }));
            }
        }
    }

    fn add_interface(&mut self, total: usize) -> Result<(), CaptureError> {
        if total < 20 || self.interfaces.len() == MAX_INTERFACES {
            return Err(self.damaged("an invalid interface block"));
        }
        let mut interface = CaptureInterface {
            is_ethernet: self.u16_at(8) == LINK_ETHERNET,
            snap_bytes: self.u32_at(12),
            exponent: 6,
            binary: false,
            offset_s: 0,
        };
        let mut at = 16;
        while at + 4 <= total - 4 {
            let (code, size) = (self.u16_at(at), usize::from(self.u16_at(at + 2)));
            let value = at + 4;
            if code == 0 || value + size > total - 4 {
                break;
            }
            match (code, size) {
                (OPTION_RESOLUTION, 1) => {
                    let byte = self.buffer[self.unread.start + value];
                    interface.binary = byte & 0x80 != 0;
                    interface.exponent = u32::from(byte & 0x7f);
                }
                (OPTION_TIME_OFFSET, 8) => {
                    let (one, two) = (self.u32_at(value), self.u32_at(value + 4));
                    // A 64-bit number in the section's byte order.
                    let little = cfg!(target_endian = "little") != self.swapped;
                    let (low, high) = if little { (one, two) } else { (two, one) };
                    interface.offset_s = (u64::from(high) << 32 | u64::from(low)) as i64;
                }
                _ => {}
            }
            at = value + size.next_multiple_of(4);
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn enhanced_packet(&self, total: usize) -> Result<Option<PacketLocation>, CaptureError> {
        if total < 32 {
            return Err(self.damaged("a frame's block without a frame"));
        }
        let captured = self.u32_at(20) as usize;
        if captured > MAX_RECORD_BYTES || 28 + captured > total - 4 {
            return Err(self.damaged("a frame longer than its block"));
        }
        let Some(interface) = self.interfaces.get(self.u32_at(8) as usize) else {
            return Err(self.damaged("a frame of no interface"));
        };
        let units = u64::from(self.u32_at(12)) << 32 | u64::from(self.u32_at(16));
        let location = (
            interface.nanoseconds(units),
            28..28 + captured,
            self.u32_at(24),
        );
        Ok(interface.is_ethernet.then_some(location))
    }

    fn simple_packet(&self, total: usize) -> Result<Option<PacketLocation>, CaptureError> {
        let Some(interface) = self.interfaces.first() else {
            return Err(self.damaged("a frame of no interface"));
        };
        if total < 16 {
            return Err(self.damaged("a frame's block without a frame"));
        }
        let length = self.u32_at(8);
        // The block has no captured length: all bytes, unless the interface limits them.
        let max_captured = if interface.snap_bytes == 0 {
            u32::MAX
        } else {
            interface.snap_bytes
        };
        let captured = length.min(max_captured) as usize;
        if captured > MAX_RECORD_BYTES || 12 + captured > total - 4 {
            return Err(self.damaged("a frame longer than its block"));
        }
        Ok(interface
            .is_ethernet
            .then_some((None, 12..12 + captured, length)))
    }

    /// Handles the end of the input, which must be the end of a record.
    fn end(&self) -> Result<Option<CaptureRecord<'_>>, CaptureError> {
        if self.unread.is_empty() {
            Ok(None)
        } else {
            Err(self.damaged("the last record is cut off"))
        }
    }

    /// Reads until `count` bytes are buffered. False if the input ends before.
    fn fill_to(&mut self, count: usize) -> Result<bool, CaptureError> {
        debug_assert!(count <= self.buffer.len());
        while self.unread.len() < count {
            if self.unread.start + count > self.buffer.len() || self.unread.is_empty() {
                self.buffer.copy_within(self.unread.clone(), 0);
                self.unread = 0..self.unread.len();
            }
            match self.input.read(&mut self.buffer[self.unread.end..]) {
                Ok(0) => return Ok(false),
                Ok(more) => self.unread.end += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn consume(&mut self, count: usize) {
        self.unread.start += count;
        self.offset += count as u64;
    }

    fn skip(&mut self, mut count: usize) -> Result<(), CaptureError> {
        while count > 0 {
            if !self.fill_to(1)? {
                return Err(self.damaged("the last block is cut off"));
            }
            let step = count.min(self.unread.len());
            self.consume(step);
            count -= step;
        }
        Ok(())
    }

    fn damaged(&self, why: &'static str) -> CaptureError {
        CaptureError::Damaged {
            offset: self.offset,
            reason: why,
        }
    }

    /// 32-bit word of the unread bytes, at an offset that `fill_to` has filled.
    fn u32_at(&self, at: usize) -> u32 {
        let at = self.unread.start + at;
        let bytes = self.buffer[at..at + 4].first_chunk();
        let number = u32::from_ne_bytes(*bytes.expect("four bytes were taken"));
        if self.swapped {
            number.swap_bytes()
        } else {
            number
        }
    }

    fn u16_at(&self, at: usize) -> u16 {
        let at = self.unread.start + at;
        let number = u16::from_ne_bytes([self.buffer[at], self.buffer[at + 1]]);
        if self.swapped {
            number.swap_bytes()
        } else {
            number
        }
    }
}

/// Time, range in the block, original length.
type PacketLocation = (Option<u64>, Range<usize>, u32);

#[cfg(test)]
mod tests;
