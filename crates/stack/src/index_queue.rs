//! Queue without duplicates.

use std::collections::VecDeque;

use crate::prefault;

/// Queue of indices; an index that is already in it is not added again.
pub(crate) struct IndexQueue {
    order: VecDeque<u32>,
    waiting: Vec<bool>,
}

impl IndexQueue {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            order: prefault::with_capacity(count).into(),
            waiting: prefault::filled(count),
        }
    }

    /// Adds an index at the end. Most calls of a burst are for an index that is already there: only
    /// adding is worth a call.
    #[inline(always)]
    pub(crate) fn push(&mut self, index: u32) {
        if !self.waiting[index as usize] {
            self.push_new(index);
        }
    }

    #[inline(never)]
    fn push_new(&mut self, index: u32) {
        self.waiting[index as usize] = true;
        self.order.push_back(index);
    }

    /// Adds an index at the front.
    pub(crate) fn push_front(&mut self, index: u32) {
        if !std::mem::replace(&mut self.waiting[index as usize], true) {
            self.order.push_front(index);
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
