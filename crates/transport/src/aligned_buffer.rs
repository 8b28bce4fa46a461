//! Buffers for payload to be sent and received.

/// A page-aligned buffer: without alignment the kernel's copy is a few percent slower.
pub struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    pub length: usize,
}

impl AlignedBuffer {
    pub fn new(length: usize) -> Self {
        const PAGE: usize = 4096;
        // Not zero: never-written pages would all map the one zero page and flatter the copy.
        let memory = vec![0xa5; length + PAGE];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Self {
            memory,
            start,
            length,
        }
    }

    #[inline]
    pub fn prefix(&mut self, bytes: usize) -> &mut [u8] {
        let bytes = bytes.min(self.length);
        &mut self.memory[self.start..self.start + bytes]
    }

    /// Returns up to `bytes` bytes from offset `start`.
    #[inline]
    pub fn range(&mut self, start: usize, bytes: usize) -> &mut [u8] {
        let end = (start + bytes).min(self.length);
        &mut self.memory[self.start + start.min(end)..self.start + end]
    }
}
