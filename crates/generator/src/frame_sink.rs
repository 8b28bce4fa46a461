//! Sink of frames: identifies each received frame by its tag and counts it by flow.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use linerate_packet::frame::MIN_FRAME_BYTES;
use linerate_packet::template;
use linerate_packet::template::{ExpectedHeaders, FrameTag, MAC_BYTES, TagLayout, TagMatch};
use linerate_record::generate::GeneratedFlow;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_workload::sequence_tracker::SequenceTracker;

use super::arrival_window::ArrivalWindow;
use super::queue_growth::{QueueGrowth, QueueGrowthDetector};

/// Criterion that identifies the frames of the run.
#[derive(Clone, Debug)]
pub(super) enum FrameMatcher {
    /// By the tag.
    Tag {
        /// Offset of the tag, and its layout.
        location: (usize, TagLayout),
        /// Mark of the run.
        mark: u16,
        /// Bytes after the tag in the largest frame.
        content: Box<[u8]>,
        /// Expected headers before the tag.
        headers: ExpectedHeaders,
    },
    /// By length alone: the frames are too short for a tag, or captured. Indexed by length.
    Length(Box<[bool]>),
}

/// Ethernet addresses of a flow as received, possibly rewritten by a device.
///
/// The first pair is the reference. Another pair becomes the reference when it arrives twice in a
/// row: the path changed. A pair that arrives once is a corrupted frame.
#[derive(Default)]
struct AddressTracker {
    current: Option<[u8; 2 * MAC_BYTES]>,
    candidate: [u8; 2 * MAC_BYTES],
}

enum AddressVerdict {
    Current,
    /// Another pair, for the first time.
    New,
    /// That pair again: the earlier frame with it was not corrupted.
    Confirmed,
}

impl AddressTracker {
    #[inline]
    fn classify(&mut self, frame: &[u8]) -> AddressVerdict {
        let Some(pair) = frame.first_chunk() else {
            return AddressVerdict::New;
        };
        if self.current.as_ref() == Some(pair) {
            return AddressVerdict::Current;
        }
        self.classify_other(*pair)
    }

    #[cold]
    fn classify_other(&mut self, pair: [u8; 2 * MAC_BYTES]) -> AddressVerdict {
        if self.current.is_none() {
            self.current = Some(pair);
            return AddressVerdict::Current;
        }
        if self.candidate == pair {
            self.current = Some(pair);
            return AddressVerdict::Confirmed;
        }
        self.candidate = pair;
        AddressVerdict::New
    }
}

struct FlowReceiveStats {
    sequence: SequenceTracker,
    addresses: AddressTracker,
    /// Frames with a valid tag that are corrupted elsewhere.
    corrupted: u64,
    /// Frames with a damaged tag that names this flow group.
    damaged_tags: u64,
    delays: Histogram,
}

/// Receives and counts the frames of a run.
pub(super) struct FrameSink {
    matcher: FrameMatcher,
    epoch: Nanos,
    flow_stats: Box<[FlowReceiveStats]>,
    delays: Histogram,
    received: u64,
    missing: u64,
    duplicates: u64,
    /// Frames of the run that were corrupted on the path, and those of them with a damaged tag.
    corrupted: u64,
    damaged_tags: u64,
    unrelated: u64,
    /// Detector of a growing queue, if the duration of sending is known.
    growth_detector: Option<QueueGrowthDetector>,
    /// Time window in which frames of the run arrived.
    arrival_window: ArrivalWindow,
}

/// Counters that the receiving thread publishes while it runs.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(super) struct ReceiveProgress {
    /// Number of distinct frames of the run that arrived.
    pub unique: AtomicU64,
    /// Number of frame numbers skipped so far.
    pub missing: AtomicU64,
}

/// Results of the receiving side.
pub(super) struct ReceiveResults {
    /// Number of intact frames, duplicates included.
    pub(super) received: u64,
    /// Number of frames sent that did not arrive, not even corrupted; `None` without frame numbers.
    pub(super) lost: Option<u64>,
    /// Number of corrupted frames; `None` without frame numbers.
    pub(super) corrupted: Option<u64>,
    pub(super) unrelated: u64,
    /// Out-of-order frames and duplicates; `None` without frame numbers.
    pub(super) out_of_order_and_duplicates: Option<(u64, u64)>,
    pub(super) delays: Option<Histogram>,
    pub(super) flows: Vec<GeneratedFlow>,
    /// Queue that was still growing when sending ended.
    pub(super) queue_growth: Option<QueueGrowth>,
    /// Time from the first to the last frame that arrived.
    pub(super) arrival_window_ns: Nanos,
}

impl FrameSink {
    /// Creates an empty sink and allocates all its memory.
    pub(super) fn new(matcher: FrameMatcher, flow_groups: u16, epoch: Nanos) -> Self {
        let count = match matcher {
            FrameMatcher::Tag { .. } => flow_groups,
            FrameMatcher::Length(_) => 0,
        };
        let flow_stats = || FlowReceiveStats {
            sequence: SequenceTracker::new(),
            addresses: AddressTracker::default(),
            corrupted: 0,
            damaged_tags: 0,
            delays: Histogram::coarse(),
        };
        Self {
            matcher,
            epoch,
            flow_stats: (0..count).map(|_| flow_stats()).collect(),
            delays: Histogram::new(),
            received: 0,
            missing: 0,
            duplicates: 0,
            corrupted: 0,
            damaged_tags: 0,
            unrelated: 0,
            growth_detector: None,
            arrival_window: ArrivalWindow::default(),
        }
    }

    /// Sets the duration of sending, which the detection of growing queues requires.
    pub(super) fn with_duration(self, duration_ns: Option<Nanos>) -> Self {
        Self {
            growth_detector: duration_ns.map(QueueGrowthDetector::new),
            ..self
        }
    }

    /// Counts a frame received at `now`.
    #[inline]
    pub(super) fn record(&mut self, frame: &[u8], now: Nanos) {
        let received_ns = now.saturating_sub(self.epoch);
        match &self.matcher {
            FrameMatcher::Tag {
                location,
                mark,
                content,
                headers,
            } => {
                let flow_groups = self.flow_stats.len() as u16;
                let (tag, tag_end) =
                    match template::find_tag(frame, *location, *mark, flow_groups, received_ns) {
                        TagMatch::Tagged(tag, tag_end) => (tag, tag_end),
                        TagMatch::Damaged => {
                            self.corrupted += 1;
                            self.damaged_tags += 1;
                            // Most likely the group is right: the flow group is one in eight of a
                            // tag's bits.
                            let named_group = frame
                                .get(location.0..)
                                .and_then(|tag| FrameTag::flow_group_of(tag, location.1));
                            if let Some(stats) = named_group
                                .and_then(|group| self.flow_stats.get_mut(usize::from(group)))
                            {
                                stats.damaged_tags += 1;
                            }
                            self.arrival_window.add(now);
                            return;
                        }
                        TagMatch::Unrelated => {
                            self.unrelated += 1;
                            return;
                        }
                    };
                let stats = &mut self.flow_stats[usize::from(tag.flow_group)];
                let (missing_before, duplicates_before) =
                    (stats.sequence.missing(), stats.sequence.duplicates());
                let tag = tag.with_number_near(location.1, stats.sequence.expected());
                stats.sequence.record(tag.number);
                self.missing = self.missing + stats.sequence.missing() - missing_before;
                self.duplicates = self.duplicates + stats.sequence.duplicates() - duplicates_before;
                let verdict = match headers.has_fixed_addresses {
                    true => stats.addresses.classify(frame),
                    false => AddressVerdict::Current,
                };
                if matches!(verdict, AddressVerdict::Confirmed) {
                    stats.corrupted -= 1;
                    self.corrupted -= 1;
                    self.received += 1;
                }
                let is_tag_moved = tag_end != location.0 + location.1.bytes;
                if matches!(verdict, AddressVerdict::New)
                    || !is_content_intact(&frame[tag_end..], content, frame.len())
                    || !headers.is_intact(frame, is_tag_moved)
                {
                    stats.corrupted += 1;
                    self.corrupted += 1;
                    self.arrival_window.add(now);
                    return;
                }
                self.received += 1;
                let delay = received_ns - tag.time_ns;
                stats.delays.record(delay);
                self.delays.record(delay);
                if let Some(detector) = &mut self.growth_detector {
                    detector.record(tag.time_ns, delay);
                }
                self.arrival_window.add(now);
            }
            FrameMatcher::Length(lengths) => {
                if lengths.get(frame.len()).copied().unwrap_or(false) {
                    self.received += 1;
                    self.arrival_window.add_unidentified(now);
                } else {
                    self.unrelated += 1;
                }
            }
        }
    }

    /// Publishes the present counters; called once per burst.
    #[inline]
    pub(super) fn publish(&self, progress: &ReceiveProgress) {
        progress.unique.store(self.unique(), Relaxed);
        progress.missing.store(self.missing, Relaxed);
    }

    /// Returns the number of distinct frames that arrived. A frame with a damaged tag counts as
    /// distinct, though it may be a duplicate.
    fn unique(&self) -> u64 {
        self.received + self.corrupted - self.duplicates
    }

    /// Returns the results, given the number of frames sent by flow group.
    pub(super) fn into_results(self, sent: &[u64]) -> ReceiveResults {
        let is_tagged = matches!(self.matcher, FrameMatcher::Tag { .. });
        let sum = |counter: fn(&SequenceTracker) -> u64| -> u64 {
            let groups = self.flow_stats.iter();
            groups.map(|stats| counter(&stats.sequence)).sum()
        };
        let mut results = ReceiveResults {
            received: self.received,
            lost: None,
            corrupted: is_tagged.then_some(self.corrupted),
            unrelated: self.unrelated,
            out_of_order_and_duplicates: is_tagged.then(|| {
                (
                    sum(SequenceTracker::out_of_order),
                    sum(SequenceTracker::duplicates),
                )
            }),
            flows: Vec::new(),
            delays: None,
            queue_growth: self
                .growth_detector
                .as_ref()
                .and_then(QueueGrowthDetector::queue_growth),
            arrival_window_ns: match is_tagged {
                true => self.arrival_window.identified_ns(),
                false => self.arrival_window.unidentified_ns(),
            },
        };
        if !is_tagged {
            return results;
        }
        let missing = self.flow_stats.iter().zip(sent);
        let missing: Vec<u64> = missing
            .map(|(stats, &sent)| sent.saturating_sub(stats.sequence.unique()))
            .collect();
        let damaged_by_group = self.flow_stats.iter().map(|stats| stats.damaged_tags);
        let damaged = assign_damaged_tags(
            self.damaged_tags,
            &damaged_by_group.collect::<Vec<_>>(),
            &missing,
        );
        results.lost = Some(missing.iter().sum::<u64>() - damaged.iter().sum::<u64>());
        let groups = self
            .flow_stats
            .iter()
            .zip(sent)
            .zip(missing.iter().zip(damaged));
        let flows = groups
            .zip(0..)
            .map(|(((stats, &sent), (missing, damaged)), flow)| {
                let sequence = &stats.sequence;
                GeneratedFlow {
                    flow,
                    sent,
                    received: sequence.received() - stats.corrupted,
                    corrupted: stats.corrupted + damaged,
                    lost: missing - damaged,
                    out_of_order: sequence.out_of_order(),
                    duplicates: sequence.duplicates(),
                    reordering_extent: sequence.reordering_extent(),
                    one_way_delay_ns: stats.delays.summary(),
                }
            });
        results.flows = flows.collect();
        results.delays = Some(self.delays);
        results
    }
}

/// Assigns frames with damaged tags to flow groups: to the group that the tag names if it misses
/// frames, else to the groups that miss the most. A group that misses no frame gets none: such a
/// frame was a duplicate.
fn assign_damaged_tags(damaged_tags: u64, damaged_by_group: &[u64], missing: &[u64]) -> Vec<u64> {
    let pairs = damaged_by_group.iter().zip(missing);
    let mut assigned: Vec<u64> = pairs
        .map(|(damaged_by_group, missing)| *damaged_by_group.min(missing))
        .collect();
    let mut remaining = damaged_tags - assigned.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..missing.len()).collect();
    order.sort_by_key(|&group| std::cmp::Reverse(missing[group] - assigned[group]));
    for group in order {
        let more = remaining.min(missing[group] - assigned[group]);
        assigned[group] += more;
        remaining -= more;
    }
    assigned
}

/// Returns whether the bytes after a tag are the ones sent there.
#[inline]
fn is_content_intact(after_tag: &[u8], content: &[u8], frame_bytes: usize) -> bool {
    let length = after_tag.len().min(content.len());
    let (after_tag, content) = (&after_tag[..length], &content[..length]);
    after_tag == content || is_padded(after_tag, content, frame_bytes)
}

/// Returns whether the content ends in padding: a frame that lost a VLAN tag is padded to the
/// minimum length.
#[cold]
fn is_padded(after_tag: &[u8], content: &[u8], frame_bytes: usize) -> bool {
    /// Length of two VLAN tags.
    const REMOVED_TAGS_BYTES: usize = 8;
    let common = after_tag
        .iter()
        .zip(content)
        .take_while(|(received, sent)| received == sent);
    let rest = &after_tag[common.count()..];
    frame_bytes <= MIN_FRAME_BYTES
        && rest.len() <= REMOVED_TAGS_BYTES
        && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use linerate_packet::checksum;
    use linerate_packet::template::TAG_LAYOUTS;

    use super::*;

    fn tagged(number: u64, flow_group: u16, time_ns: u64) -> Vec<u8> {
        let mark = 0xbeef;
        let tag = FrameTag {
            mark,
            number,
            flow_group,
            time_ns,
        };
        [&[0; 42][..], &tag.bytes(TAG_LAYOUTS[0]), &[0; 2]].concat()
    }

    #[test]
    fn every_frame_has_its_account() {
        let matcher = FrameMatcher::Tag {
            location: (42, TAG_LAYOUTS[0]),
            mark: 0xbeef,
            content: Box::new([0; 2]),
            headers: ExpectedHeaders::default(),
        };
        let mut sink = FrameSink::new(matcher, 2, 1000);
        for (number, flow_group) in [(0, 0), (0, 1), (2, 0), (1, 0), (1, 0), (3, 1)] {
            sink.record(&tagged(number, flow_group, 100), 2000);
        }
        sink.record(&[0; 60], 2000);
        // A send time in the future belongs to another run.
        sink.record(&tagged(9, 0, 5000), 2000);
        let progress = ReceiveProgress::default();
        sink.publish(&progress);
        assert_eq!(progress.missing.load(Relaxed), 2);
        let results = sink.into_results(&[4, 4]);
        assert_eq!(
            (results.received, results.lost, results.unrelated),
            (6, Some(3), 2)
        );
        assert_eq!(results.out_of_order_and_duplicates, Some((1, 1)));
        let lost: Vec<u64> = results.flows.iter().map(|flow| flow.lost).collect();
        assert_eq!(lost, [1, 2]);
        let delay = results.delays.unwrap().summary().unwrap();
        assert_eq!((delay.min, delay.max, delay.count), (900, 900, 6));
    }

    /// A flipped bit is no loss, and no high frame number that makes all others late.
    #[test]
    fn corrupted_frames_are_counted_separately() {
        let matcher = || FrameMatcher::Tag {
            location: (42, TAG_LAYOUTS[0]),
            mark: 0xbeef,
            content: Box::new([0; 2]),
            headers: ExpectedHeaders::default(),
        };
        let sent: Vec<_> = (0..1000).map(|number| tagged(number, 0, 100)).collect();
        for byte in 42..60 {
            let mut sink = FrameSink::new(matcher(), 1, 1000);
            for (number, frame) in sent.iter().enumerate() {
                let mut frame = frame.clone();
                // Every tenth frame is lost, another tenth is duplicated, and a third tenth is
                // damaged.
                match number % 10 {
                    0 => continue,
                    1 => sink.record(&frame, 2000),
                    2 => frame[byte] ^= 1 << (number / 10 % 8),
                    _ => {}
                }
                sink.record(&frame, 2000);
            }
            let results = sink.into_results(&[1000]);
            assert_eq!((results.received, results.lost), (900, Some(100)), "{byte}");
            let flow = &results.flows[0];
            assert_eq!((flow.lost, flow.corrupted), (100, 100), "{byte}");
            assert_eq!(
                (results.corrupted, results.unrelated),
                (Some(100), 0),
                "{byte}"
            );
            assert_eq!(
                results.out_of_order_and_duplicates,
                Some((0, 100)),
                "{byte}"
            );
        }
    }

    /// The sums over the flows equal the totals, whichever bits of the frames are wrong.
    #[test]
    fn flows_add_up_under_corruption() {
        for byte in 42..60 {
            let matcher = FrameMatcher::Tag {
                location: (42, TAG_LAYOUTS[0]),
                mark: 0xbeef,
                content: Box::new([0; 2]),
                headers: ExpectedHeaders::default(),
            };
            let mut sink = FrameSink::new(matcher, 3, 1000);
            for number in 0..300u64 {
                for flow_group in 0..3 {
                    let mut frame = tagged(number, flow_group, 100);
                    match (number + u64::from(flow_group)) % 10 {
                        0 if flow_group < 2 => continue,
                        1 => frame[byte] ^= 1 << (number / 10 % 8),
                        2 if flow_group == 2 => {
                            // A duplicate with a damaged tag, of a flow that misses no frame.
                            sink.record(&frame, 2000);
                            frame[50] ^= 1;
                        }
                        _ => {}
                    }
                    sink.record(&frame, 2000);
                }
            }
            let results = sink.into_results(&[300, 300, 300]);
            let sum = |counter: fn(&GeneratedFlow) -> u64| -> u64 {
                results.flows.iter().map(counter).sum()
            };
            let lost = results.lost.unwrap();
            assert_eq!(sum(|flow| flow.lost), lost, "{byte}");
            assert_eq!(sum(|flow| flow.received), results.received, "{byte}");
            // Duplicates with damaged tags may hide lost frames, but never more.
            assert!((30..=60).contains(&lost), "{byte}: {lost}");
        }
    }

    #[test]
    fn damaged_frames_are_assigned() {
        for (damaged_tags, damaged_by_group, missing, expected) in [
            (3, [1, 2], [1, 2], [1, 2]),
            // The flow group itself was damaged: the frames belong to groups that miss some.
            (3, [0, 3], [2, 1], [2, 1]),
            (2, [0, 0], [5, 9], [0, 2]),
            // Duplicates.
            (4, [2, 2], [0, 1], [0, 1]),
            (0, [0, 0], [7, 0], [0, 0]),
        ] {
            assert_eq!(
                assign_damaged_tags(damaged_tags, &damaged_by_group, &missing),
                expected,
                "{damaged_tags} {damaged_by_group:?}"
            );
        }
    }

    /// A full frame: a bit flip anywhere is detected, and fields rewritten by devices are no
    /// damage.
    #[test]
    fn flipped_header_bits_are_corruption_and_new_addresses_are_not() {
        let plan = template::parse_template("size = 70\n[ipv4]\n[udp]\n").unwrap();
        let template = template::Template::new(&plan, [2; 6], [4; 6]).unwrap();
        let frames = |count: u64| -> Vec<Vec<u8>> {
            (0..count)
                .map(|number| {
                    let mut frame = vec![0; 66];
                    let tag = FrameTag {
                        mark: 0xbeef,
                        number,
                        flow_group: 0,
                        time_ns: 100,
                    };
                    template.write(&mut frame, 0, tag);
                    frame
                })
                .collect()
        };
        let results = |frames: &[Vec<u8>]| {
            let matcher = FrameMatcher::Tag {
                location: template.tag_location().unwrap(),
                mark: 0xbeef,
                content: template.content().into(),
                headers: template.expected_headers(),
            };
            let mut sink = FrameSink::new(matcher, 1, 1000);
            frames.iter().for_each(|frame| sink.record(frame, 2000));
            let results = sink.into_results(&[frames.len() as u64]);
            assert_eq!(results.lost, Some(0));
            assert_eq!(results.flows[0].received, results.received);
            (results.received, results.corrupted, results.unrelated)
        };
        for bit in 0..8 * 66 {
            let mut frames = frames(5);
            frames[2][bit / 8] ^= 1 << (bit % 8);
            assert_eq!(results(&frames), (4, Some(1), 0), "bit {bit}");
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
        assert_eq!(results(&routed), (6, Some(0), 0));
        // A switch inserted a VLAN tag.
        let tagged = frames(3).into_iter().map(|frame| {
            let (addresses, rest) = frame.split_at(12);
            [addresses, &[0x81, 0, 0, 7], rest].concat()
        });
        assert_eq!(results(&tagged.collect::<Vec<_>>()), (3, Some(0), 0));
    }

    #[test]
    fn padding_is_no_damage() {
        let content: Vec<u8> = (0..20).collect();
        assert!(is_content_intact(&content[..6], &content, 60));
        let padded = [&content[..4], &[0; 4]].concat();
        assert!(is_content_intact(&padded, &content, 60));
        assert!(!is_content_intact(&padded, &content, 100));
        assert!(!is_content_intact(&[0, 1, 2, 3, 9, 0], &content, 60));
        // Bytes that a device appended to the frame are ignored.
        assert!(is_content_intact(
            &[&content[..], &[7; 9]].concat(),
            &content,
            100
        ));
    }

    #[test]
    fn without_tags_lengths_count() {
        let mut lengths = vec![false; 100];
        lengths[60] = true;
        let mut sink = FrameSink::new(FrameMatcher::Length(lengths.into()), 1, 0);
        for length in [60, 60, 61, 1500] {
            sink.record(&vec![0; length], 1);
        }
        let results = sink.into_results(&[3]);
        assert_eq!((results.received, results.unrelated), (2, 2));
        assert!(
            results.out_of_order_and_duplicates.is_none()
                && results.delays.is_none()
                && results.flows.is_empty()
        );
    }
}
