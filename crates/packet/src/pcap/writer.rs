//! Writer of captures.

use std::io::{self, Write};

use super::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET_BLOCK, INTERFACE_BLOCK, LINK_ETHERNET, OPTION_RESOLUTION,
    SECTION_BLOCK,
};

/// Bytes of the write buffer: reduces the number of calls by two orders of magnitude.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of a frame's block in addition to the frame, without padding.
const BLOCK_OVERHEAD_BYTES: usize = 32;

/// Writes Ethernet frames as pcapng, in nanoseconds, little-endian on every machine.
#[derive(Debug)]
pub struct CaptureWriter<W: Write> {
    output: W,
    buffer: Vec<u8>,
    /// Number of frames in the buffer.
    buffered: u64,
    /// Number of frames in buffers that could not be written completely.
    unwritten: u64,
}

impl<W: Write> CaptureWriter<W> {
    /// Starts a capture of one interface.
    ///
    /// # Errors
    /// None at present: write errors occur when the buffer is written.
    pub fn new(output: W) -> io::Result<Self> {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        // Version 1.0, a section of unknown length.
        for field in [
            SECTION_BLOCK,
            28,
            BYTE_ORDER_MAGIC,
            1,
            u32::MAX,
            u32::MAX,
            28,
        ] {
            buffer.extend(field.to_le_bytes());
        }
        // No snap length; times in 10^-9 s; end of options.
        let resolution = u32::from(OPTION_RESOLUTION) | 1 << 16;
        for field in [
            INTERFACE_BLOCK,
            32,
            LINK_ETHERNET.into(),
            0,
            resolution,
            9,
            0,
            32,
        ] {
            buffer.extend(field.to_le_bytes());
        }
        Ok(Self {
            output,
            buffer,
            buffered: 0,
            unwritten: 0,
        })
    }

    /// Adds a frame that was sent at this time (nanoseconds since 1970).
    ///
    /// # Errors
    /// The buffer was full and could not be written; its frames are lost then.
    #[inline]
    pub fn write(&mut self, time_ns: u64, frame: &[u8]) -> io::Result<()> {
        let padded = frame.len().next_multiple_of(4);
        let total = BLOCK_OVERHEAD_BYTES + padded;
        if self.buffer.len() + total > BUFFER_BYTES {
            self.flush()?;
        }
        let length = frame.len() as u32;
        let fields = [
            ENHANCED_PACKET_BLOCK,
            total as u32,
            0,
            (time_ns >> 32) as u32,
            time_ns as u32,
            length,
            length,
        ];
        let mut header = [0; 28];
        for (target, field) in header.chunks_exact_mut(4).zip(fields) {
            target.copy_from_slice(&field.to_le_bytes());
        }
        self.buffer.extend_from_slice(&header);
        self.buffer.extend_from_slice(frame);
        self.buffer
            .extend_from_slice(&[0; 3][..padded - frame.len()]);
        self.buffer.extend_from_slice(&(total as u32).to_le_bytes());
        self.buffered += 1;
        Ok(())
    }

    /// Writes the buffered frames.
    ///
    /// # Errors
    /// The error of the output; the buffered frames are lost then.
    pub fn flush(&mut self) -> io::Result<()> {
        let result = self.output.write_all(&self.buffer);
        self.buffer.clear();
        let buffered = std::mem::take(&mut self.buffered);
        if result.is_err() {
            self.unwritten += buffered;
        }
        result
    }

    /// Number of frames accepted that are missing in the output, completely or in part.
    pub fn unwritten(&self) -> u64 {
        self.unwritten
    }
}

impl<W: Write> Drop for CaptureWriter<W> {
    fn drop(&mut self) {
        // Callers that need the error call `flush` before.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::CaptureReader;
    use proptest::prelude::*;

    fn written(frames: &[(u64, &[u8])]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = CaptureWriter::new(&mut file).unwrap();
        for (time, frame) in frames {
            writer.write(*time, frame).unwrap();
        }
        drop(writer);
        file
    }

    /// Compares word by word with the format of the draft.
    #[test]
    fn a_file_is_these_bytes() {
        let file = written(&[(0x0102_0304_0506_0708, b"\xaa\xbb\xcc\xdd\xee")]);
        let hex: Vec<String> = file
            .chunks(4)
            .map(|field| field.iter().map(|byte| format!("{byte:02x}")).collect())
            .collect();
        let section = "0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffff ffffffff 1c000000";
        let interface = "01000000 20000000 01000000 00000000 09000100 09000000 00000000 20000000";
        let packet = "06000000 28000000 00000000 04030201 08070605 05000000 05000000 \
                      aabbccdd ee000000 28000000";
        assert_eq!(hex.join(" "), format!("{section} {interface} {packet}"));
    }

    #[test]
    fn a_full_disk_is_reported() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = CaptureWriter::new(Full).unwrap();
        writer.write(0, b"x").unwrap();
        assert_eq!(writer.unwritten(), 0);
        assert!(writer.flush().is_err());
        assert_eq!(writer.unwritten(), 1);
        assert!(writer.flush().is_ok(), "nothing is left to write");
        assert_eq!(writer.unwritten(), 1);
    }

    proptest! {
        #[test]
        fn written_values_read_back(
            frames in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)), 0..20),
        ) {
            let pairs: Vec<(u64, &[u8])> = frames.iter().map(|(time, frame)| (*time, &frame[..])).collect();
            let file = written(&pairs);
            let mut reader = CaptureReader::new(&file[..]).unwrap();
            for (time, frame) in pairs {
                let record = reader.read().unwrap().unwrap();
                prop_assert_eq!((record.time_ns, record.bytes), (Some(time), frame));
                prop_assert_eq!(record.length as usize, frame.len());
            }
            prop_assert!(reader.read().unwrap().is_none());
        }
    }
}
