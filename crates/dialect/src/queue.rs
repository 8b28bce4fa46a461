//! Bytes that wait for the peer, in the order in which they came.

/// Room that is kept when a long message has gone.
const KEPT_BYTES: usize = 64 << 10;

/// A queue of bytes: put in at the end, taken from the front.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    buffer: Vec<u8>,
    taken: usize,
}

impl Queue {
    /// What is in it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// How much is in it.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts bytes at its end.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.tail().extend_from_slice(bytes);
    }

    /// The buffer, to be appended to.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        // Moving the rest costs less than what was taken did in being put in.
        if self.taken > self.buffer.len() / 2 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        &mut self.buffer
    }

    /// Takes bytes from its front.
    ///
    /// # Panics
    /// When fewer are in it.
    pub(crate) fn pop(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "more was taken than was there");
        self.taken += bytes;
        if self.is_empty() {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            self.taken = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_queue_is_a_queue(steps in prop::collection::vec((0usize..300, 0usize..300), 1..60)) {
            let (mut queue, mut model) = (Queue::default(), std::collections::VecDeque::new());
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
                // Never more than twice what is in it and what was pushed last.
                prop_assert!(queue.buffer.len() <= 2 * model.len() + popped + 300);
            }
        }
    }
}
