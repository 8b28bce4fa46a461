//! A queue in which each index is once at most.

use std::collections::VecDeque;

use crate::pages;

/// Indices that wait for their turn; one that waits already is not added again.
pub(crate) struct IndexQueue {
    order: VecDeque<u32>,
    waiting: Vec<bool>,
}

impl IndexQueue {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            order: pages::room(count).into(),
            waiting: pages::filled(count),
        }
    }

    /// Most of a burst are for one that waits already: only what is new is worth a call.
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

    /// Adds it in front of all others.
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
