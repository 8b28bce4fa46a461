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
    let peer_segment = Arc::new(ShmSegment::adopt(file).unwrap().unwrap());
    assert_eq!(peer_segment.layout, LAYOUT);
    for ring_index in 0..2 {
        let mut sender = SlotSender::resume(Arc::clone(&local_segment), ring_index).unwrap();
        let mut receiver = SlotReceiver::resume(Arc::clone(&peer_segment), ring_index).unwrap();
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
    let duplicate = || plain.try_clone().unwrap();
    assert!(
        ShmSegment::adopt(duplicate()).unwrap().is_none(),
        "not sealed"
    );
    rustix::fs::fcntl_add_seals(&plain, SealFlags::SHRINK).unwrap();
    assert!(
        ShmSegment::adopt(duplicate()).unwrap().is_none(),
        "no header"
    );
    for (capacity, slot_bytes) in [
        (0, 64),
        (u32::MAX, 64),
        (8, 63),
        (8, u32::MAX),
        (1 << 16, 1 << 16),
    ] {
        let header = [
            &MAGIC[..],
            &u32::to_ne_bytes(capacity),
            &u32::to_ne_bytes(slot_bytes),
        ]
        .concat();
        rustix::io::pwrite(&plain, &header, 0).unwrap();
        assert!(
            ShmSegment::adopt(duplicate()).unwrap().is_none(),
            "{capacity} {slot_bytes}"
        );
    }
}

proptest! {
    /// Compares with a queue as the model; either side may end and be replaced at any time.
    #[test]
    fn a_ring_outlives_its_ends(
        steps in prop::collection::vec((0u8..4, 0u32..8, 0u8..193), 0..100),
    ) {
        let region = Arc::new(ShmSegment::create(LAYOUT).unwrap());
        let mut sender = SlotSender::resume(Arc::clone(&region), 0).unwrap();
        let mut receiver = SlotReceiver::resume(Arc::clone(&region), 0).unwrap();
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
                1 => {
                    let want: Vec<_> = model.drain(..model.len().min(count as usize)).collect();
                    prop_assert_eq!(take(&mut receiver, count), want);
                }
                // Each end is lost while it handles a burst.
                2 => {
                    if sender.free_slots(1) == 1 {
                        sender.write(0, b"never published");
                    }
                    sender = SlotSender::resume(Arc::clone(&region), 0).unwrap();
                }
                _ => {
                    receiver.filled_slots(count);
                    receiver = SlotReceiver::resume(Arc::clone(&region), 0).unwrap();
                }
            }
        }
    }
}
