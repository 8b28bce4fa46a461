//! The largest frames within the limits use no more memory than documented.
//!
//! In a test binary of its own: the kernel reports the peak of the whole process.

use linerate_protocol::control::{
    ControlCodec, ControlError, FRAME_LIMIT_BYTES, Frame, Hello, MAP_LIMIT, READ_AHEAD_BYTES,
    VALUE_LIMIT,
};

/// Peak of the resident memory in bytes; `None` if the kernel does not report it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Encodes `{"role": "client", "duration_ns": 1, NAME: [ELEMENT; count]}` with `fill` bytes of
/// text.
fn encode_results(name: &str, count: usize, element: &[u8], fill: usize) -> Vec<u8> {
    let text = |text: &str| [&[0xa0 | text.len() as u8], text.as_bytes()].concat();
    let mut body = vec![0x84];
    body.extend(text("role"));
    body.extend(text("client"));
    body.extend(text("duration_ns"));
    body.push(1);
    body.extend(text("fill"));
    body.push(0xdb);
    body.extend((fill as u32).to_be_bytes());
    body.resize(body.len() + fill, b'0');
    body.extend(text(name));
    body.push(0xdd);
    body.extend((count as u32).to_be_bytes());
    for _ in 0..count {
        body.extend(element);
    }
    body
}

fn read(body: &[u8]) -> Result<Option<Frame>, ControlError> {
    let mut client = ControlCodec::client(Hello::new("client")).unwrap();
    let mut server = ControlCodec::server(Hello::new("server")).unwrap();
    server.receive(client.outgoing()).unwrap();
    client.mark_sent(client.outgoing().len());
    server.next_frame().unwrap();
    let length = u32::try_from(body.len() + 2).unwrap();
    let frame = [&length.to_be_bytes()[..], &10u16.to_be_bytes(), body].concat();
    for piece in frame.chunks(READ_AHEAD_BYTES) {
        server.receive(piece).unwrap();
        if let Some(frame) = server.next_frame()? {
            return Ok(Some(frame));
        }
    }
    Ok(None)
}

#[test]
fn the_worst_frames_stay_within_bounds() {
    let Some(before) = peak_bytes() else {
        eprintln!("skipped: /proc/self/status does not report the peak of the memory");
        return;
    };
    // A flow in as few bytes as possible: {"direction": "send", "stream": {}}.
    let flow = b"\x82\xa9direction\xa4send\xa6stream\x80";
    let fits = (MAP_LIMIT - 1) / 2;
    let fill = FRAME_LIMIT_BYTES - 1000 - fits * flow.len();
    let Ok(Some(Frame::Results(most))) = read(&encode_results("streams", fits, flow, fill)) else {
        panic!("within the limits")
    };
    assert_eq!(most.streams.len(), fits);
    drop(most);
    assert!(read(&encode_results("streams", fits + 1, flow, 0)).is_err());

    // As many plain values as allowed, where flattened structures buffer them.
    let count = VALUE_LIMIT - 100;
    let mut wide = b"\x82\xa9direction\xa4send\xa6stream\x81\xa1x\xdd".to_vec();
    wide.extend((count as u32).to_be_bytes());
    wide.resize(wide.len() + count, 0xa0);
    assert!(
        read(&encode_results("streams", 1, &wide, 0))
            .unwrap()
            .is_some()
    );

    // 16 million structures in 16 MiB.
    assert!(
        read(&encode_results(
            "streams",
            FRAME_LIMIT_BYTES - 1000,
            b"\x80",
            0
        ))
        .is_err()
    );
    assert!(
        read(&encode_results(
            "unknown",
            FRAME_LIMIT_BYTES - 1000,
            b"\xc0",
            0
        ))
        .is_err()
    );

    let grown = peak_bytes().unwrap() - before;
    // Includes this test's copies of a frame (the body, the frame, and the vectors that grew to
    // them).
    assert!(grown < 256 << 20, "{} MiB", grown >> 20);
    println!("the worst frame took {} MiB", grown >> 20);
}
