//! What arrives: told by its tag, and accounted for by flow.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linerate_host::sys::clock::Nanos;
use linerate_metric::generate::GeneratedFlow;
use linerate_metric::histogram::Histogram;

use super::template::{self, Layout};
use crate::sequence::Sequence;

/// Flows that are accounted for one by one; more share accounts by their number. An account takes 38
/// KiB (order over 65,536 frames, a distribution of two digits).
pub const ACCOUNTS: u16 = 256;

/// How frames of the run are known.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// By their tag, at this place.
    Tag {
        /// Where it is, and how it is laid out.
        place: (usize, Layout),
        /// The run's.
        mark: u16,
    },
    /// By their length alone: they are too short for a tag, or captured.
    Length(Box<[bool]>),
}

struct Account {
    sequence: Sequence,
    delay: Histogram,
}

/// Takes frames that arrived.
pub(super) struct Sink {
    known: Known,
    epoch: Nanos,
    accounts: Box<[Account]>,
    delay: Histogram,
    received: u64,
    missing: u64,
    repeated: u64,
    foreign: u64,
}

/// What the receiving thread tells while it runs.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Different frames of the run that arrived.
    pub unique: AtomicU64,
    /// Numbers skipped so far.
    pub missing: AtomicU64,
}

/// What arrived, in the end.
pub(super) struct Arrived {
    pub(super) received: u64,
    pub(super) unique: u64,
    pub(super) foreign: u64,
    /// Out of order and repeated; none where frames carry no number.
    pub(super) order: Option<(u64, u64)>,
    pub(super) delay: Option<Histogram>,
    pub(super) flows: Vec<GeneratedFlow>,
}

impl Sink {
    /// Nothing has arrived. All memory is taken here.
    pub(super) fn new(known: Known, accounts: u16, epoch: Nanos) -> Self {
        let count = match known {
            Known::Tag { .. } => accounts,
            Known::Length(_) => 0,
        };
        let account = || Account {
            sequence: Sequence::new(),
            delay: Histogram::coarse(),
        };
        Self {
            known,
            epoch,
            accounts: (0..count).map(|_| account()).collect(),
            delay: Histogram::new(),
            received: 0,
            missing: 0,
            repeated: 0,
            foreign: 0,
        }
    }

    /// Takes a frame that was there at `now`.
    #[inline]
    pub(super) fn take(&mut self, frame: &[u8], now: Nanos) {
        let since = now.saturating_sub(self.epoch);
        match &self.known {
            Known::Tag { place, mark } => {
                let count = self.accounts.len() as u16;
                let Some(tag) = template::find(frame, *place, *mark, count, since) else {
                    self.foreign += 1;
                    return;
                };
                self.received += 1;
                let account = &mut self.accounts[usize::from(tag.account)];
                let (missing, repeated) =
                    (account.sequence.missing(), account.sequence.duplicates());
                let tag = tag.near(place.1, account.sequence.expected());
                account.sequence.take(tag.number);
                self.missing = self.missing + account.sequence.missing() - missing;
                self.repeated = self.repeated + account.sequence.duplicates() - repeated;
                let delay = since - tag.time_ns;
                account.delay.record(delay);
                self.delay.record(delay);
            }
            Known::Length(lengths) => {
                if lengths.get(frame.len()).copied().unwrap_or(false) {
                    self.received += 1;
                } else {
                    self.foreign += 1;
                }
            }
        }
    }

    /// Tells how far it is; once a burst.
    #[inline]
    pub(super) fn publish(&self, progress: &Progress) {
        progress.unique.store(self.unique(), Relaxed);
        progress.missing.store(self.missing, Relaxed);
    }

    fn unique(&self) -> u64 {
        self.received - self.repeated
    }

    /// What it comes to, with the frames sent by account.
    pub(super) fn finish(self, sent: &[u64]) -> Arrived {
        let tagged = matches!(self.known, Known::Tag { .. });
        let sum = |figure: fn(&Sequence) -> u64| -> u64 {
            let accounts = self.accounts.iter();
            accounts.map(|account| figure(&account.sequence)).sum()
        };
        let flows = self
            .accounts
            .iter()
            .zip(sent)
            .zip(0..)
            .map(|((account, &sent), flow)| {
                let sequence = &account.sequence;
                GeneratedFlow {
                    flow,
                    sent,
                    received: sequence.received(),
                    lost: sent.saturating_sub(sequence.unique()),
                    out_of_order: sequence.out_of_order(),
                    duplicates: sequence.duplicates(),
                    reordering_extent: sequence.reordering_extent(),
                    one_way_delay_ns: account.delay.summary(),
                }
            });
        Arrived {
            received: self.received,
            unique: self.unique(),
            foreign: self.foreign,
            order: tagged.then(|| (sum(Sequence::out_of_order), sum(Sequence::duplicates))),
            flows: flows.collect(),
            delay: tagged.then_some(self.delay),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::template::{LAYOUTS, Tag};

    fn tagged(number: u64, account: u16, time_ns: u64) -> Vec<u8> {
        let mark = 0xbeef;
        let tag = Tag {
            mark,
            number,
            account,
            time_ns,
        };
        [&[0; 42][..], &tag.bytes(LAYOUTS[0]), &[0; 2]].concat()
    }

    #[test]
    fn every_frame_has_its_account() {
        let known = Known::Tag {
            place: (42, LAYOUTS[0]),
            mark: 0xbeef,
        };
        let mut sink = Sink::new(known, 2, 1000);
        for (number, account) in [(0, 0), (0, 1), (2, 0), (1, 0), (1, 0), (3, 1)] {
            sink.take(&tagged(number, account, 100), 2000);
        }
        sink.take(&[0; 60], 2000);
        // A time that has not been is no time of this run.
        sink.take(&tagged(9, 0, 5000), 2000);
        let progress = Progress::default();
        sink.publish(&progress);
        assert_eq!(progress.missing.load(Relaxed), 2);
        let arrived = sink.finish(&[4, 4]);
        assert_eq!(
            (arrived.received, arrived.unique, arrived.foreign),
            (6, 5, 2)
        );
        assert_eq!(arrived.order, Some((1, 1)));
        let lost: Vec<u64> = arrived.flows.iter().map(|flow| flow.lost).collect();
        assert_eq!(lost, [1, 2]);
        let delay = arrived.delay.unwrap().summary().unwrap();
        assert_eq!((delay.min, delay.max, delay.count), (900, 900, 6));
    }

    #[test]
    fn without_tags_lengths_count() {
        let mut lengths = vec![false; 100];
        lengths[60] = true;
        let mut sink = Sink::new(Known::Length(lengths.into()), 1, 0);
        for length in [60, 60, 61, 1500] {
            sink.take(&vec![0; length], 1);
        }
        let arrived = sink.finish(&[3]);
        assert_eq!((arrived.received, arrived.foreign), (2, 2));
        assert!(arrived.order.is_none() && arrived.delay.is_none() && arrived.flows.is_empty());
    }
}
