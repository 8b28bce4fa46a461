//! A queue in which each index is once at most.

use std::collections::VecDeque;

/// Indices that wait for their turn; one that waits already is not added again.
pub(crate) struct IndexQueue {
    order: VecDeque<u32>,
    waiting: Vec<bool>,
}

impl IndexQueue {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            order: VecDeque::with_capacity(count),
            waiting: vec![false; count],
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, index: u32) {
        let waiting = &mut self.waiting[index as usize];
        if !*waiting {
            *waiting = true;
            self.order.push_back(index);
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let index = self.order.pop_front()?;
        self.waiting[index as usize] = false;
        Some(index)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}
