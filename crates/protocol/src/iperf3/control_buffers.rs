//! Buffers of a control connection: received bytes and bytes to write.

use super::error::Iperf3Error;

/// Bytes that may be passed in beyond the awaited message: the largest read that a driver should
/// make on a control connection.
pub const READ_AHEAD_BYTES: usize = 64 << 10;

/// Receive and send buffer of a control connection.
#[derive(Debug, Default)]
pub(super) struct ControlBuffers {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    written_bytes: usize,
}

impl ControlBuffers {
    /// Appends received bytes. `limit` is the longest message of the present state.
    pub fn push_incoming(&mut self, bytes: &[u8], limit: usize) -> Result<(), Iperf3Error> {
        if self.incoming.len() + bytes.len() > limit + READ_AHEAD_BYTES {
            return Err(Iperf3Error::ReadAhead);
        }
        self.incoming.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the received bytes that were not taken.
    pub fn incoming(&self) -> &[u8] {
        &self.incoming
    }

    /// Takes the next byte.
    pub fn take_byte(&mut self) -> Option<u8> {
        let byte = *self.incoming.first()?;
        self.incoming.drain(..1);
        Some(byte)
    }

    /// Takes `N` bytes, once they have arrived.
    pub fn take_chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let chunk = *self.incoming.first_chunk()?;
        self.incoming.drain(..N);
        Some(chunk)
    }

    /// Takes a text with its length prefix, once it is complete, and parses it.
    ///
    /// A length above the limit is rejected before the text has arrived.
    pub fn take_text<T>(
        &mut self,
        limit: usize,
        read: impl FnOnce(&[u8]) -> Result<T, Iperf3Error>,
    ) -> Result<Option<T>, Iperf3Error> {
        let Some((length, rest)) = self.incoming.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length);
        let size = match usize::try_from(length) {
            Ok(size) if size <= limit => size,
            _ => return Err(Iperf3Error::TooLong { length, limit }),
        };
        let Some(text) = rest.get(..size) else {
            return Ok(None);
        };
        let value = read(text)?;
        self.incoming.drain(..size_of::<u32>() + size);
        // Releases the memory of a long text; only single bytes follow.
        self.incoming.shrink_to(READ_AHEAD_BYTES);
        Ok(Some(value))
    }

    /// Queues bytes for the peer.
    pub fn send(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
    }

    /// Queues a text with its length prefix.
    pub fn send_text(&mut self, text: &[u8], limit: usize) -> Result<(), Iperf3Error> {
        match u32::try_from(text.len()) {
            Ok(length) if text.len() <= limit => {
                self.send(&length.to_be_bytes());
                self.send(text);
                Ok(())
            }
            _ => Err(Iperf3Error::OutgoingTooLong {
                length: text.len(),
                limit,
            }),
        }
    }

    /// Returns the bytes to write next.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.written_bytes..]
    }

    /// Removes bytes of `outgoing` that were written.
    pub fn mark_sent(&mut self, bytes: usize) {
        assert!(
            bytes <= self.outgoing().len(),
            "more bytes were written than queued"
        );
        self.written_bytes += bytes;
        if self.written_bytes == self.outgoing.len() {
            self.outgoing = Vec::new();
            self.written_bytes = 0;
        }
    }

    /// Discards the received bytes: nothing can be read after an error.
    pub fn discard_incoming(&mut self) {
        self.incoming = Vec::new();
    }
}
