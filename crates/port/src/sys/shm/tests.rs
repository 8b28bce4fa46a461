use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const SHAPE: Shape = Shape {
    capacity: 5,
    slot_bytes: 192,
};

fn take(receiver: &mut SlotReceiver, most: u32) -> Vec<Vec<u8>> {
    let count = receiver.filled(most);
    let frames = (0..count).map(|ahead| {
        let mut frame = vec![0; receiver.length(ahead)];
        receiver.read(ahead, &mut frame);
        frame
    });
    let frames = frames.collect();
    receiver.give_back(count);
    frames
}

#[test]
fn slots_hold_what_the_shape_says() {
    assert_eq!(Shape::new(1024, 1518).slot_bytes, 1600);
    assert_eq!(Shape::new(1024, 60).slot_bytes, 64);
    let region = Region::create(SHAPE).unwrap();
    assert!(region.mapped >= SHAPE.bytes());
    assert_eq!(SHAPE.slots(), 8);
}

#[test]
fn another_process_sees_the_same_frames() {
    let ours = Arc::new(Region::create(SHAPE).unwrap());
    let file = ours.as_fd().try_clone_to_owned().unwrap();
    let theirs = Arc::new(Region::adopt(file).unwrap().unwrap());
    assert_eq!(theirs.shape, SHAPE);
    for way in 0..2 {
        let mut sender = SlotSender::resume(Arc::clone(&ours), way).unwrap();
        let mut receiver = SlotReceiver::resume(Arc::clone(&theirs), way).unwrap();
        assert_eq!(sender.room(9), 5);
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
    let again = || plain.try_clone().unwrap();
    assert!(Region::adopt(again()).unwrap().is_none(), "not sealed");
    rustix::fs::fcntl_add_seals(&plain, SealFlags::SHRINK).unwrap();
    assert!(Region::adopt(again()).unwrap().is_none(), "no header");
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
            Region::adopt(again()).unwrap().is_none(),
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
        let region = Arc::new(Region::create(SHAPE).unwrap());
        let mut sender = SlotSender::resume(Arc::clone(&region), 0).unwrap();
        let mut receiver = SlotReceiver::resume(Arc::clone(&region), 0).unwrap();
        let mut model = VecDeque::new();
        for (step, count, size) in steps {
            match step {
                0 => {
                    let room = sender.room(count);
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
                    if sender.room(1) == 1 {
                        sender.write(0, b"never published");
                    }
                    sender = SlotSender::resume(Arc::clone(&region), 0).unwrap();
                }
                _ => {
                    receiver.filled(count);
                    receiver = SlotReceiver::resume(Arc::clone(&region), 0).unwrap();
                }
            }
        }
    }
}
