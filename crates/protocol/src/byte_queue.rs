//! Byte queue between a protocol and its connection.

/// Capacity that is kept after a long message was removed.
const RETAINED_CAPACITY_BYTES: usize = 64 << 10;

/// FIFO queue of bytes in one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByteQueue {
    buffer: Vec<u8>,
    read_offset: usize,
}

impl ByteQueue {
    /// Returns the queued bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.read_offset..]
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.read_offset
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer_mut().extend_from_slice(bytes);
    }

    /// Returns the buffer for appending.
    pub(crate) fn buffer_mut(&mut self) -> &mut Vec<u8> {
        // Moves the rest only if it is at most half: amortised constant cost per byte.
        if self.read_offset > self.buffer.len() / 2 {
            self.buffer.drain(..self.read_offset);
            self.read_offset = 0;
        }
        &mut self.buffer
    }

    /// Removes bytes from the front.
    ///
    /// # Panics
    /// If fewer are queued.
    pub(crate) fn pop(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "more bytes removed than are queued");
        self.read_offset += bytes;
        if self.is_empty() {
            self.buffer.clear();
            self.buffer.shrink_to(RETAINED_CAPACITY_BYTES);
            self.read_offset = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_queue_is_a_queue(steps in prop::collection::vec((0usize..300, 0usize..300), 1..60)) {
            let (mut queue, mut model) = (ByteQueue::default(), std::collections::VecDeque::new());
            let mut next = 0u8;
            for (pushed, popped) in steps {
                let bytes: Vec<u8> = std::iter::repeat_n(next, pushed).collect();
                next = next.wrapping_add(1);
                queue.push(&bytes);
                model.extend(bytes);
                let popped = popped.min(model.len());
                queue.pop(popped);
                model.drain(..popped);
                prop_assert_eq!(queue.bytes(), model.make_contiguous());
                // Never more than twice the queued bytes and the last push.
                prop_assert!(queue.buffer.len() <= 2 * model.len() + popped + 300);
            }
        }
    }
}
