//! The largest texts of an iperf3 peer within the limits use no more memory than documented.
//!
//! In a test binary of its own: the kernel reports the peak of the whole process.

use linerate_protocol::iperf3::{
    Cookie, Iperf3Client, Iperf3ClientEvent, Iperf3Params, Iperf3Results, Iperf3Server,
    Iperf3ServerEvent, PARAMS_LIMIT_BYTES, READ_AHEAD_BYTES, RESULTS_LIMIT_BYTES,
};

/// Peak of the resident memory in bytes; `None` if the kernel does not report it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Returns `before`, as many of `element` as fit, and `after`.
fn filled(before: &str, element: &str, after: &str, limit: usize) -> String {
    let count = (limit - before.len() - after.len()) / element.len();
    format!("{before}{}{after}", element.repeat(count))
}

/// Runs a client up to the server's results; returns whether it accepts them.
fn accepts_results(text: &str) -> bool {
    let mut client = Iperf3Client::new(Cookie::new([1; 36]), Iperf3Params::default(), 0);
    client.receive(&[9, 10, 1, 2]).unwrap();
    while client.next_event(0).unwrap().is_some() {}
    client.finish(0).unwrap();
    client.receive(&[13]).unwrap();
    while client.next_event(0).unwrap().is_some() {}
    client.send_results(&Iperf3Results::default(), 0).unwrap();
    client
        .receive(&u32::try_from(text.len()).unwrap().to_be_bytes())
        .unwrap();
    for piece in text.as_bytes().chunks(READ_AHEAD_BYTES) {
        client.receive(piece).unwrap();
        match client.next_event(0) {
            Ok(None) => {}
            Ok(Some(Iperf3ClientEvent::Results(_))) => return true,
            Ok(Some(other)) => panic!("{other:?}"),
            Err(_) => return false,
        }
    }
    panic!("it waits for more");
}

#[test]
fn the_worst_texts_stay_within_bounds() {
    let Some(before) = peak_bytes() else {
        eprintln!("skipped: /proc/self/status does not report the peak of the memory");
        return;
    };
    for (first, element, last, is_accepted) in [
        (r#"{"server_output_text":""#, "\\n", r#""}"#, true),
        (r#"{"server_output_json":[0"#, ",0", "]}", true),
        (r#"{"unknown":[{}"#, ",{}", "]}", true),
        (r#"{"cpu_util_total":[0"#, ",[]", "]}", true),
        (r#"{"a":0"#, r#","a":0"#, "}", true),
        (r#"{"streams":[{"id":1}"#, r#",{"id":1}"#, "]}", false),
        (r#"{"streams":[{"id":1"#, r#","id":1"#, "}]}", true),
        ("", "[", "", false),
        ("", "\"", "", false),
    ] {
        let text = filled(first, element, last, RESULTS_LIMIT_BYTES);
        assert_eq!(accepts_results(&text), is_accepted, "{first}");
    }
    let params = filled(r#"{"tcp":true"#, r#","x":1"#, "}", PARAMS_LIMIT_BYTES);
    for _ in 0..100 {
        let mut server = Iperf3Server::new(0);
        let length = u32::try_from(params.len()).unwrap();
        server.receive(&length.to_be_bytes()).unwrap();
        server.receive(params.as_bytes()).unwrap();
        assert!(server.next_event(0).unwrap().is_some());
    }
    // More flows than allowed, requested in a few bytes.
    for direction in ["tcp", "reverse", "bidirectional"] {
        let params = format!(r#"{{"{direction}":true,"parallel":{}}}"#, u32::MAX);
        let mut server = Iperf3Server::new(0);
        let length = u32::try_from(params.len()).unwrap();
        server.receive(&length.to_be_bytes()).unwrap();
        server.receive(params.as_bytes()).unwrap();
        let Some(Iperf3ServerEvent::TestRequested(requested)) = server.next_event(0).unwrap()
        else {
            panic!("{params} asks for a test");
        };
        assert!(requested.validate().is_err());
    }
    let grown = peak_bytes().unwrap() - before;
    // The received text in a vector that doubled, the parsed values, and this test's own text.
    let bound = 8 * RESULTS_LIMIT_BYTES as u64;
    assert!(grown < bound, "{} MiB", grown >> 20);
    println!("the worst text took {} MiB", grown >> 20);
}
