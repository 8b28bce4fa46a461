//! Sink of frames: identifies each received frame by its tag and counts it by flow.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linerate_host::sys::clock::Nanos;
use linerate_metric::generate::GeneratedFlow;
use linerate_metric::histogram::Histogram;
use linerate_port::checksum;

use super::arrival_window::Span;
use super::queue_growth::{Course, Filling};
use super::template::{self, Found, Layout, MAC_BYTES, Tag};
use crate::sequence_tracker::Sequence;

/// Maximum number of flow groups counted separately; with more flows, several share a group. One
/// group takes 38 KiB: order over 65,536 frames, and a delay histogram of two digits.
pub const ACCOUNTS: u16 = 256;

/// Criterion that identifies the frames of the run.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// By the tag.
    Tag {
        /// Offset of the tag, and its layout.
        place: (usize, Layout),
        /// Mark of the run.
        mark: u16,
        /// Bytes after the tag in the largest frame.
        content: Box<[u8]>,
        /// Expected headers before the tag.
        headers: Expected,
    },
    /// By length alone: the frames are too short for a tag, or captured. Indexed by length.
    Length(Box<[bool]>),
}

/// Expected headers of received frames. Devices rewrite some fields: routers the Ethernet addresses
/// and the TTL, NATs addresses and ports. A device that does so leaves valid checksums.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// IP version (true: 6) and transport protocol of the packet sent; `None` if the frames carry
    /// no packet.
    pub(super) packet: Option<(bool, u8)>,
    /// True if all frames of a flow group have the same Ethernet addresses.
    pub(super) steady: bool,
}

impl Expected {
    /// Returns whether the headers are unchanged, except for changes that a device makes on
    /// purpose.
    #[inline]
    fn holds(&self, frame: &[u8], moved: bool) -> bool {
        let Some(packet) = self.packet else {
            return true;
        };
        match checksum::verify(frame) {
            Some(found) => {
                let same = (found.version_6, found.protocol) == packet;
                found.holds() && (same || moved)
            }
            // The packet is behind headers that a device inserted.
            None => moved,
        }
    }
}

/// Ethernet addresses of a flow as received, possibly rewritten by a device.
///
/// The first pair is the reference. Another pair becomes the reference when it arrives twice in a
/// row: the path changed. A pair that arrives once is a corrupted frame.
#[derive(Default)]
struct Addresses {
    usual: Option<[u8; 2 * MAC_BYTES]>,
    other: [u8; 2 * MAC_BYTES],
}

enum Came {
    Usual,
    /// Another pair, for the first time.
    Strange,
    /// That pair again: the earlier frame with it was not corrupted.
    Changed,
}

impl Addresses {
    #[inline]
    fn take(&mut self, frame: &[u8]) -> Came {
        let Some(pair) = frame.first_chunk() else {
            return Came::Strange;
        };
        if self.usual.as_ref() == Some(pair) {
            return Came::Usual;
        }
        self.came(*pair)
    }

    #[cold]
    fn came(&mut self, pair: [u8; 2 * MAC_BYTES]) -> Came {
        if self.usual.is_none() {
            self.usual = Some(pair);
            return Came::Usual;
        }
        if self.other == pair {
            self.usual = Some(pair);
            return Came::Changed;
        }
        self.other = pair;
        Came::Strange
    }
}

struct Account {
    sequence: Sequence,
    addresses: Addresses,
    /// Frames with a valid tag that are corrupted elsewhere.
    corrupted: u64,
    /// Frames with a damaged tag that names this flow group.
    damaged: u64,
    delay: Histogram,
}

/// Receives and counts the frames of a run.
pub(super) struct Sink {
    known: Known,
    epoch: Nanos,
    accounts: Box<[Account]>,
    delay: Histogram,
    received: u64,
    missing: u64,
    repeated: u64,
    /// Frames of the run that were corrupted on the path, and those of them with a damaged tag.
    corrupted: u64,
    nameless: u64,
    foreign: u64,
    /// Detector of a growing queue, if the duration of sending is known.
    course: Option<Course>,
    /// Time window in which frames of the run arrived.
    span: Span,
}

/// Counters that the receiving thread publishes while it runs.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Number of distinct frames of the run that arrived.
    pub unique: AtomicU64,
    /// Number of frame numbers skipped so far.
    pub missing: AtomicU64,
}

/// Results of the receiving side.
pub(super) struct Arrived {
    /// Number of intact frames, duplicates included.
    pub(super) received: u64,
    /// Number of frames sent that did not arrive, not even corrupted; `None` without frame numbers.
    pub(super) lost: Option<u64>,
    /// Number of corrupted frames; `None` without frame numbers.
    pub(super) corrupted: Option<u64>,
    pub(super) foreign: u64,
    /// Out-of-order frames and duplicates; `None` without frame numbers.
    pub(super) order: Option<(u64, u64)>,
    pub(super) delay: Option<Histogram>,
    pub(super) flows: Vec<GeneratedFlow>,
    /// Queue that was still growing when sending ended.
    pub(super) filling: Option<Filling>,
    /// Time from the first to the last frame that arrived.
    pub(super) span_ns: Nanos,
}

impl Sink {
    /// Creates an empty sink and allocates all its memory.
    pub(super) fn new(known: Known, accounts: u16, epoch: Nanos) -> Self {
        let count = match known {
            Known::Tag { .. } => accounts,
            Known::Length(_) => 0,
        };
        let account = || Account {
            sequence: Sequence::new(),
            addresses: Addresses::default(),
            corrupted: 0,
            damaged: 0,
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
            corrupted: 0,
            nameless: 0,
            foreign: 0,
            course: None,
            span: Span::default(),
        }
    }

    /// Sets the duration of sending, which the detection of growing queues requires.
    pub(super) fn sent_for(self, duration_ns: Option<Nanos>) -> Self {
        Self {
            course: duration_ns.map(Course::new),
            ..self
        }
    }

    /// Counts a frame received at `now`.
    #[inline]
    pub(super) fn take(&mut self, frame: &[u8], now: Nanos) {
        let since = now.saturating_sub(self.epoch);
        match &self.known {
            Known::Tag {
                place,
                mark,
                content,
                headers,
            } => {
                let count = self.accounts.len() as u16;
                let (tag, end) = match template::find(frame, *place, *mark, count, since) {
                    Found::Tagged(tag, end) => (tag, end),
                    Found::Damaged => {
                        self.corrupted += 1;
                        self.nameless += 1;
                        // Most likely the group is right: the flow group is one in eight of a tag's
                        // bits.
                        let named = frame
                            .get(place.0..)
                            .and_then(|tag| Tag::account_in(tag, place.1));
                        if let Some(account) =
                            named.and_then(|at| self.accounts.get_mut(usize::from(at)))
                        {
                            account.damaged += 1;
                        }
                        self.span.take(now);
                        return;
                    }
                    Found::Foreign => {
                        self.foreign += 1;
                        return;
                    }
                };
                let account = &mut self.accounts[usize::from(tag.account)];
                let (missing, repeated) =
                    (account.sequence.missing(), account.sequence.duplicates());
                let tag = tag.near(place.1, account.sequence.expected());
                account.sequence.take(tag.number);
                self.missing = self.missing + account.sequence.missing() - missing;
                self.repeated = self.repeated + account.sequence.duplicates() - repeated;
                let came = match headers.steady {
                    true => account.addresses.take(frame),
                    false => Came::Usual,
                };
                if matches!(came, Came::Changed) {
                    account.corrupted -= 1;
                    self.corrupted -= 1;
                    self.received += 1;
                }
                let moved = end != place.0 + place.1.bytes;
                if matches!(came, Came::Strange)
                    || !is_whole(&frame[end..], content, frame.len())
                    || !headers.holds(frame, moved)
                {
                    account.corrupted += 1;
                    self.corrupted += 1;
                    self.span.take(now);
                    return;
                }
                self.received += 1;
                let delay = since - tag.time_ns;
                account.delay.record(delay);
                self.delay.record(delay);
                if let Some(course) = &mut self.course {
                    course.take(tag.time_ns, delay);
                }
                self.span.take(now);
            }
            Known::Length(lengths) => {
                if lengths.get(frame.len()).copied().unwrap_or(false) {
                    self.received += 1;
                    self.span.take_unsure(now);
                } else {
                    self.foreign += 1;
                }
            }
        }
    }

    /// Publishes the present counters; called once per burst.
    #[inline]
    pub(super) fn publish(&self, progress: &Progress) {
        progress.unique.store(self.unique(), Relaxed);
        progress.missing.store(self.missing, Relaxed);
    }

    /// Returns the number of distinct frames that arrived. A frame with a damaged tag counts as
    /// distinct, though it may be a duplicate.
    fn unique(&self) -> u64 {
        self.received + self.corrupted - self.repeated
    }

    /// Returns the results, given the number of frames sent by flow group.
    pub(super) fn finish(self, sent: &[u64]) -> Arrived {
        let tagged = matches!(self.known, Known::Tag { .. });
        let sum = |figure: fn(&Sequence) -> u64| -> u64 {
            let accounts = self.accounts.iter();
            accounts.map(|account| figure(&account.sequence)).sum()
        };
        let mut arrived = Arrived {
            received: self.received,
            lost: None,
            corrupted: tagged.then_some(self.corrupted),
            foreign: self.foreign,
            order: tagged.then(|| (sum(Sequence::out_of_order), sum(Sequence::duplicates))),
            flows: Vec::new(),
            delay: None,
            filling: self.course.as_ref().and_then(Course::filling),
            span_ns: match tagged {
                true => self.span.sure_ns(),
                false => self.span.unsure_ns(),
            },
        };
        if !tagged {
            return arrived;
        }
        let missing = self.accounts.iter().zip(sent);
        let missing: Vec<u64> = missing
            .map(|(account, &sent)| sent.saturating_sub(account.sequence.unique()))
            .collect();
        let named = self.accounts.iter().map(|account| account.damaged);
        let damaged = place(self.nameless, &named.collect::<Vec<_>>(), &missing);
        arrived.lost = Some(missing.iter().sum::<u64>() - damaged.iter().sum::<u64>());
        let accounts = self
            .accounts
            .iter()
            .zip(sent)
            .zip(missing.iter().zip(damaged));
        let flows = accounts
            .zip(0..)
            .map(|(((account, &sent), (missing, damaged)), flow)| {
                let sequence = &account.sequence;
                GeneratedFlow {
                    flow,
                    sent,
                    received: sequence.received() - account.corrupted,
                    corrupted: account.corrupted + damaged,
                    lost: missing - damaged,
                    out_of_order: sequence.out_of_order(),
                    duplicates: sequence.duplicates(),
                    reordering_extent: sequence.reordering_extent(),
                    one_way_delay_ns: account.delay.summary(),
                }
            });
        arrived.flows = flows.collect();
        arrived.delay = Some(self.delay);
        arrived
    }
}

/// Assigns frames with damaged tags to flow groups: to the group that the tag names if it misses
/// frames, else to the groups that miss the most. A group that misses no frame gets none: such a
/// frame was a duplicate.
fn place(nameless: u64, named: &[u64], missing: &[u64]) -> Vec<u64> {
    let both = named.iter().zip(missing);
    let mut placed: Vec<u64> = both.map(|(named, missing)| *named.min(missing)).collect();
    let mut left = nameless - placed.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..missing.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(missing[at] - placed[at]));
    for at in order {
        let more = left.min(missing[at] - placed[at]);
        placed[at] += more;
        left -= more;
    }
    placed
}

/// Returns whether the bytes after a tag are the ones sent there.
#[inline]
fn is_whole(behind: &[u8], content: &[u8], frame_bytes: usize) -> bool {
    let length = behind.len().min(content.len());
    let (behind, content) = (&behind[..length], &content[..length]);
    behind == content || is_padded(behind, content, frame_bytes)
}

/// Returns whether the content ends in padding: a frame that lost a VLAN tag is padded to the
/// minimum length.
#[cold]
fn is_padded(behind: &[u8], content: &[u8], frame_bytes: usize) -> bool {
    /// Minimum frame length without FCS (IEEE 802.3).
    const SHORTEST: usize = 60;
    /// Length of two VLAN tags.
    const MOST: usize = 8;
    let same = behind
        .iter()
        .zip(content)
        .take_while(|(one, other)| one == other);
    let rest = &behind[same.count()..];
    frame_bytes <= SHORTEST && rest.len() <= MOST && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::template::LAYOUTS;

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
            content: Box::new([0; 2]),
            headers: Expected::default(),
        };
        let mut sink = Sink::new(known, 2, 1000);
        for (number, account) in [(0, 0), (0, 1), (2, 0), (1, 0), (1, 0), (3, 1)] {
            sink.take(&tagged(number, account, 100), 2000);
        }
        sink.take(&[0; 60], 2000);
        // A send time in the future belongs to another run.
        sink.take(&tagged(9, 0, 5000), 2000);
        let progress = Progress::default();
        sink.publish(&progress);
        assert_eq!(progress.missing.load(Relaxed), 2);
        let arrived = sink.finish(&[4, 4]);
        assert_eq!(
            (arrived.received, arrived.lost, arrived.foreign),
            (6, Some(3), 2)
        );
        assert_eq!(arrived.order, Some((1, 1)));
        let lost: Vec<u64> = arrived.flows.iter().map(|flow| flow.lost).collect();
        assert_eq!(lost, [1, 2]);
        let delay = arrived.delay.unwrap().summary().unwrap();
        assert_eq!((delay.min, delay.max, delay.count), (900, 900, 6));
    }

    /// A flipped bit is no loss, and no high frame number that makes all others late.
    #[test]
    fn corrupted_frames_are_counted_apart() {
        let known = || Known::Tag {
            place: (42, LAYOUTS[0]),
            mark: 0xbeef,
            content: Box::new([0; 2]),
            headers: Expected::default(),
        };
        let sent: Vec<_> = (0..1000).map(|number| tagged(number, 0, 100)).collect();
        for byte in 42..60 {
            let mut sink = Sink::new(known(), 1, 1000);
            for (number, frame) in sent.iter().enumerate() {
                let mut frame = frame.clone();
                // Every tenth frame is lost, another tenth is duplicated, and a third tenth is
                // damaged.
                match number % 10 {
                    0 => continue,
                    1 => sink.take(&frame, 2000),
                    2 => frame[byte] ^= 1 << (number / 10 % 8),
                    _ => {}
                }
                sink.take(&frame, 2000);
            }
            let arrived = sink.finish(&[1000]);
            assert_eq!((arrived.received, arrived.lost), (900, Some(100)), "{byte}");
            let flow = &arrived.flows[0];
            assert_eq!((flow.lost, flow.corrupted), (100, 100), "{byte}");
            assert_eq!(
                (arrived.corrupted, arrived.foreign),
                (Some(100), 0),
                "{byte}"
            );
            assert_eq!(arrived.order, Some((0, 100)), "{byte}");
        }
    }

    /// The sums over the flows equal the totals, whichever bits of the frames are wrong.
    #[test]
    fn flows_add_up_under_corruption() {
        for byte in 42..60 {
            let known = Known::Tag {
                place: (42, LAYOUTS[0]),
                mark: 0xbeef,
                content: Box::new([0; 2]),
                headers: Expected::default(),
            };
            let mut sink = Sink::new(known, 3, 1000);
            for number in 0..300u64 {
                for account in 0..3 {
                    let mut frame = tagged(number, account, 100);
                    match (number + u64::from(account)) % 10 {
                        0 if account < 2 => continue,
                        1 => frame[byte] ^= 1 << (number / 10 % 8),
                        2 if account == 2 => {
                            // A duplicate with a damaged tag, of a flow that misses no frame.
                            sink.take(&frame, 2000);
                            frame[50] ^= 1;
                        }
                        _ => {}
                    }
                    sink.take(&frame, 2000);
                }
            }
            let arrived = sink.finish(&[300, 300, 300]);
            let sum = |figure: fn(&GeneratedFlow) -> u64| -> u64 {
                arrived.flows.iter().map(figure).sum()
            };
            let lost = arrived.lost.unwrap();
            assert_eq!(sum(|flow| flow.lost), lost, "{byte}");
            assert_eq!(sum(|flow| flow.received), arrived.received, "{byte}");
            // Duplicates with damaged tags may hide lost frames, but never more.
            assert!((30..=60).contains(&lost), "{byte}: {lost}");
        }
    }

    #[test]
    fn damaged_frames_have_a_place() {
        for (nameless, named, missing, want) in [
            (3, [1, 2], [1, 2], [1, 2]),
            // The flow group itself was damaged: the frames belong to groups that miss some.
            (3, [0, 3], [2, 1], [2, 1]),
            (2, [0, 0], [5, 9], [0, 2]),
            // Duplicates.
            (4, [2, 2], [0, 1], [0, 1]),
            (0, [0, 0], [7, 0], [0, 0]),
        ] {
            assert_eq!(
                place(nameless, &named, &missing),
                want,
                "{nameless} {named:?}"
            );
        }
    }

    /// A full frame: a bit flip anywhere is detected, and fields rewritten by devices are no
    /// damage.
    #[test]
    fn flipped_header_bits_are_corruption_and_new_addresses_are_not() {
        let plan = template::read_file("size = 70\n[ipv4]\n[udp]\n").unwrap();
        let template = template::Template::new(&plan, [2; 6], [4; 6]).unwrap();
        let frames = |count: u64| -> Vec<Vec<u8>> {
            (0..count)
                .map(|number| {
                    let mut frame = vec![0; 66];
                    let tag = Tag {
                        mark: 0xbeef,
                        number,
                        account: 0,
                        time_ns: 100,
                    };
                    template.write(&mut frame, 0, tag);
                    frame
                })
                .collect()
        };
        let arrived = |frames: &[Vec<u8>]| {
            let known = Known::Tag {
                place: template.tag_place().unwrap(),
                mark: 0xbeef,
                content: template.content().into(),
                headers: template.expected(),
            };
            let mut sink = Sink::new(known, 1, 1000);
            frames.iter().for_each(|frame| sink.take(frame, 2000));
            let arrived = sink.finish(&[frames.len() as u64]);
            assert_eq!(arrived.lost, Some(0));
            assert_eq!(arrived.flows[0].received, arrived.received);
            (arrived.received, arrived.corrupted, arrived.foreign)
        };
        for bit in 0..8 * 66 {
            let mut frames = frames(5);
            frames[2][bit / 8] ^= 1 << (bit % 8);
            assert_eq!(arrived(&frames), (4, Some(1), 0), "bit {bit}");
        }
        // A router: other addresses from the third frame on, a lower TTL, and valid checksums.
        let mut routed = frames(6);
        for frame in &mut routed[2..] {
            frame[..12].copy_from_slice(&[9; 12]);
            frame[22] -= 1;
            frame[24..26].fill(0);
            let sum = checksum::sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&(!sum).to_ne_bytes());
        }
        assert_eq!(arrived(&routed), (6, Some(0), 0));
        // A switch inserted a VLAN tag.
        let tagged = frames(3).into_iter().map(|frame| {
            let (addresses, rest) = frame.split_at(12);
            [addresses, &[0x81, 0, 0, 7], rest].concat()
        });
        assert_eq!(arrived(&tagged.collect::<Vec<_>>()), (3, Some(0), 0));
    }

    #[test]
    fn padding_is_no_damage() {
        let content: Vec<u8> = (0..20).collect();
        assert!(is_whole(&content[..6], &content, 60));
        let padded = [&content[..4], &[0; 4]].concat();
        assert!(is_whole(&padded, &content, 60));
        assert!(!is_whole(&padded, &content, 100));
        assert!(!is_whole(&[0, 1, 2, 3, 9, 0], &content, 60));
        // Bytes that a device appended to the frame are ignored.
        assert!(is_whole(&[&content[..], &[7; 9]].concat(), &content, 100));
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
