use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const LAYOUT: ShmLayout = ShmLayout {
    capacity: 5,
    slot_bytes: 192,
};

fn take(receiver: &mut SlotReceiver, max_frames: u32) -> Vec<Vec<u8>> {
    let count = receiver.filled_slots(max_frames);
    let frames = (0..count).map(|ahead| {
        let mut frame = vec![0; receiver.length(ahead)];
        receiver.read(ahead, &mut frame);
        frame
    });
    let frames = frames.collect();
    receiver.release_slots(count);
    frames
}

#[test]
fn slots_hold_what_the_shape_says() {
    assert_eq!(ShmLayout::new(1024, 1518).slot_bytes, 1600);
    assert_eq!(ShmLayout::new(1024, 60).slot_bytes, 64);
    let segment = ShmSegment::create(LAYOUT).unwrap();
    assert!(segment.mapped_bytes >= LAYOUT.segment_bytes());
    assert_eq!(LAYOUT.slots(), 8);
}

#[test]
fn another_process_sees_the_same_frames() {
    let local_segment = Arc::new(ShmSegment::create(LAYOUT).unwrap());
    let file = local_segment.as_fd().try_clone_to_owned().unwrap();
    let peer_segment = Arc::new(ShmSegment::adopt(file, 192, 5).unwrap().unwrap());
    assert_eq!(peer_segment.layout, LAYOUT);
    for ring_index in 0..2 {
        let mut sender = SlotSender::new(Arc::clone(&local_segment), ring_index);
        let mut receiver = SlotReceiver::new(Arc::clone(&peer_segment), ring_index);
        assert_eq!(sender.free_slots(9), 5);
        sender.write(0, b"one");
        sender.write(1, &[7; 192]);
        assert!(take(&mut receiver, 9).is_empty());
        sender.publish(2);
        assert_eq!(take(&mut receiver, 9), [b"one".to_vec(), vec![7; 192]]);
    }
}

#[test]
fn memory_that_is_something_else_is_not_taken() {
    let plain = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&plain, 1 << 20).unwrap();
    let mismatch = || {
        let adopted = ShmSegment::adopt(plain.try_clone().unwrap(), 64, 1 << 16);
        adopted.unwrap().err()
    };
    assert_eq!(mismatch(), Some(ShmMismatch::Unknown), "not sealed");
    rustix::fs::fcntl_add_seals(&plain, SealFlags::SHRINK).unwrap();
    assert_eq!(mismatch(), Some(ShmMismatch::Unknown), "no header");
    for (capacity, slot_bytes, expected) in [
        (0, 64, ShmMismatch::Capacity(0)),
        (u32::MAX, 64, ShmMismatch::Capacity(u32::MAX)),
        ((1 << 16) + 1, 64, ShmMismatch::Capacity((1 << 16) + 1)),
        (8, 63, ShmMismatch::SlotBytes(63)),
        (8, u32::MAX, ShmMismatch::SlotBytes(u32::MAX)),
        // More than the file has.
        (1 << 16, 64, ShmMismatch::Unknown),
    ] {
        let header = [
            &MAGIC[..],
            &u32::to_ne_bytes(capacity),
            &u32::to_ne_bytes(slot_bytes),
        ]
        .concat();
        rustix::io::pwrite(&plain, &header, 0).unwrap();
        assert_eq!(mismatch(), Some(expected), "{capacity} {slot_bytes}");
    }
    // Nothing was mapped and touched: only the page of the header exists.
    assert!(rustix::fs::fstat(&plain).unwrap().st_blocks <= 8);
}

/// Their pages can be removed and used up by others: the next access would end this process.
#[test]
fn memory_in_reserved_huge_pages_is_not_taken() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let Ok(huge) = rustix::fs::memfd_create("x", flags) else {
        return println!("skipped: this kernel has no reserved huge pages");
    };
    rustix::fs::ftruncate(&huge, 4 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
    let adopted = ShmSegment::adopt(huge, 64, 1).unwrap();
    assert_eq!(adopted.err(), Some(ShmMismatch::Unknown));
    let created = ShmSegment::create(ShmLayout::new(1 << 12, 1518)).unwrap();
    let kind = rustix::fs::fstatfs(&created.file).unwrap().f_type as i64;
    assert_ne!(kind, HUGETLBFS_MAGIC);
}

/// Frames that a receiver has not taken go to the next one, whatever it wrote before it ended.
#[test]
fn frames_outlive_their_receiver() {
    for (taken, head, expected) in [
        (0, None, 0..5),
        (2, None, 2..5),
        (5, None, 5..5),
        // Impossible positions: which frames were taken is unknown.
        (2, Some(0x8000_0000), 5..5),
        (2, Some(6), 5..5),
    ] {
        let old = Arc::new(ShmSegment::create(LAYOUT).unwrap());
        let mut sender = SlotSender::new(Arc::clone(&old), 0);
        let mut receiver = SlotReceiver::new(Arc::clone(&old), 0);
        assert_eq!(sender.free_slots(5), 5);
        (0..5).for_each(|number| sender.write(number, &[number as u8; 60]));
        sender.publish(5);
        receiver.filled_slots(taken);
        receiver.release_slots(taken);
        if let Some(head) = head {
            let ring = ShmRing::new(old, 0);
            ring.indices().head.0.store(head, Relaxed);
        }
        let new = Arc::new(ShmSegment::create(LAYOUT).unwrap());
        let mut next_sender = SlotSender::new(Arc::clone(&new), 0);
        next_sender.take_over(sender);
        let mut next_receiver = SlotReceiver::new(new, 0);
        let frames: Vec<_> = expected.map(|number: u8| vec![number; 60]).collect();
        assert_eq!(take(&mut next_receiver, 9), frames, "{taken} {head:?}");
    }
}

/// The receiver of a ring writes lengths into it, and the next ring may be smaller.
#[test]
fn invalid_lengths_are_not_taken_over() {
    let old = Arc::new(ShmSegment::create(LAYOUT).unwrap());
    let mut sender = SlotSender::new(Arc::clone(&old), 0);
    assert_eq!(sender.free_slots(5), 5);
    (0..5).for_each(|number| sender.write(number, &[number as u8; 60]));
    sender.publish(5);
    let ring = ShmRing::new(old, 0);
    ring.length_of(0).store(193, Relaxed);
    ring.length_of(1).store(u32::MAX, Relaxed);
    let layout = ShmLayout {
        capacity: 2,
        ..LAYOUT
    };
    let new = Arc::new(ShmSegment::create(layout).unwrap());
    let mut next_sender = SlotSender::new(Arc::clone(&new), 0);
    next_sender.take_over(sender);
    let frames = take(&mut SlotReceiver::new(new, 0), 9);
    assert_eq!(frames, [vec![2; 60], vec![3; 60]]);
}

proptest! {
    /// Compares with a queue as the model.
    #[test]
    fn a_ring_is_a_queue(
        steps in prop::collection::vec((0u8..2, 0u32..8, 0u8..193), 0..100),
    ) {
        let region = Arc::new(ShmSegment::create(LAYOUT).unwrap());
        let mut sender = SlotSender::new(Arc::clone(&region), 0);
        let mut receiver = SlotReceiver::new(Arc::clone(&region), 0);
        let mut model = VecDeque::new();
        for (step, count, size) in steps {
            match step {
                0 => {
                    let room = sender.free_slots(count);
                    prop_assert_eq!(room, count.min(5 - model.len() as u32));
                    for ahead in 0..room {
                        let frame = vec![ahead as u8; usize::from(size)];
                        sender.write(ahead, &frame);
                        model.push_back(frame);
                    }
                    sender.publish(room);
                }
                _ => {
                    let want: Vec<_> = model.drain(..model.len().min(count as usize)).collect();
                    prop_assert_eq!(take(&mut receiver, count), want);
                }
            }
        }
    }
}
