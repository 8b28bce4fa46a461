use super::*;

#[test]
fn slots_spread_over_the_sets_of_a_cache() {
    for (frame_bytes, power_of_two, expected) in [
        (1518, false, 1728),
        (1518, true, 2048),
        (60, true, 2048),
        (3000, true, 4096),
        (9018, false, 9152),
    ] {
        let plan = MemoryPlan {
            frame_bytes,
            power_of_two,
            ..MemoryPlan::default()
        };
        assert_eq!(plan.slot_bytes(), expected, "{frame_bytes} {power_of_two}");
    }
}

#[test]
fn frames_have_bytes_of_their_own() {
    let memory = FrameRegion::new(MemoryPlan {
        frames: 70,
        ..MemoryPlan::default()
    })
    .unwrap();
    let mut pool = memory.pool();
    let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.allocate()).collect();
    assert_eq!(frames.len(), 70);
    for (number, frame) in frames.iter_mut().enumerate() {
        frame.set_len(memory.frame_bytes());
        memory.bytes_mut(frame).fill(number as u8);
    }
    for (number, frame) in frames.iter().enumerate() {
        assert!(memory.bytes(frame).iter().all(|&byte| byte == number as u8));
    }
    for frame in frames {
        pool.free(frame);
    }
}

#[test]
#[should_panic(expected = "a frame of another memory")]
fn a_frame_of_another_memory_is_noticed() {
    let plan = MemoryPlan {
        frames: 1,
        ..MemoryPlan::default()
    };
    let (one, other) = (
        FrameRegion::new(plan).unwrap(),
        FrameRegion::new(plan).unwrap(),
    );
    let frame = one.pool().allocate().unwrap();
    let _ = other.bytes(&frame);
}

#[test]
#[should_panic(expected = "a frame longer than its slot")]
fn a_frame_ends_with_its_slot() {
    let memory = FrameRegion::new(MemoryPlan::default()).unwrap();
    let mut frame = memory.pool().allocate().unwrap();
    frame.set_len(u16::MAX);
    let _ = memory.bytes_mut(&mut frame);
}

#[test]
fn impossible_plans_are_rejected() {
    for (frames, frame_bytes) in [(0, 1518), (1, 10)] {
        let plan = MemoryPlan {
            frames,
            frame_bytes,
            ..MemoryPlan::default()
        };
        assert!(matches!(
            FrameRegion::new(plan),
            Err(FrameRegionError::BadPlan { .. })
        ));
    }
}
