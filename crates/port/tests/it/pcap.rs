//! `pcap:` ports on real files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{memory, numbered, receive, send};
use linerate_packet::pcap::{CaptureReader, CaptureWriter};
use linerate_port::{DropCause, Port, PortError, PortUrl, RxQueue, TxQueue};

fn capture(path: &Path, frames: &[(u64, Vec<u8>)]) {
    let mut writer = CaptureWriter::new(fs::File::create(path).unwrap()).unwrap();
    for (time_ns, frame) in frames {
        writer.write(*time_ns, frame).unwrap();
    }
    writer.flush().unwrap();
}

#[test]
fn frames_pass_from_file_to_file() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("in.pcapng"), dir.path().join("out.pcapng"));
    let frames: Vec<Vec<u8>> = (0..1000)
        .map(|number| numbered(number, 60 + number as usize))
        .collect();
    let timed: Vec<(u64, Vec<u8>)> = frames.iter().map(|frame| (5, frame.clone())).collect();
    capture(&from, &timed);
    let memory = memory(128);
    let mut pool = memory.pool();
    let url = format!("pcap:rx={},tx={}", from.display(), to.display());
    let mut port = crate::common::open(&url, &memory);
    assert!(!port.receive.is_exhausted());
    let arrived = receive(&mut port, &mut pool, frames.len());
    assert_eq!(arrived, frames);
    send(&mut port, &mut pool, &arrived);
    port.refresh().unwrap();
    let mut reader = CaptureReader::new(fs::File::open(&to).unwrap()).unwrap();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    for frame in &frames {
        let record = reader.read().unwrap().unwrap();
        assert_eq!(record.bytes, frame);
        let age = now.as_nanos().abs_diff(u128::from(record.time_ns.unwrap()));
        assert!(age < 60_000_000_000);
    }
    assert!(reader.read().unwrap().is_none());
    assert_eq!(
        port.receive(&mut pool, &mut linerate_sys::frames::burst::Burst::new()),
        0
    );
    assert!(port.receive.is_exhausted());
    let (received, sent) = port.counters();
    assert_eq!(received.read(), sent.read());
    assert_eq!(
        std::iter::from_fn(|| pool.allocate()).count(),
        128,
        "no slot is lost"
    );
    third_party_tools_read(&to, frames.len());
}

/// Checks that tcpdump and capinfos read our file, if they are installed.
fn third_party_tools_read(path: &Path, frames: usize) {
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-n", "-r"]).arg(path);
    if linerate_lab::privileged() {
        // Otherwise it changes to another user, who may not read this directory.
        tcpdump.args(["-Z", "root"]);
    }
    match tcpdump.output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            let lines = String::from_utf8_lossy(&output.stdout)
                .lines()
                .filter(|line| line.contains("length"))
                .count();
            assert_eq!(lines, frames);
        }
        Err(_) => println!("tcpdump is not installed"),
    }
    match Command::new("capinfos")
        .arg("-c")
        .arg("-M")
        .arg(path)
        .output()
    {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains(&frames.to_string()), "{text}");
        }
        Err(_) => println!("capinfos is not installed"),
    }
}

#[test]
fn recorded_times_are_respected() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("in.pcapng");
    let ms = 1_000_000;
    let start = 1_700_000_000_000 * ms;
    let frames = [
        (start, numbered(0, 60)),
        (start + 150 * ms, numbered(1, 60)),
        (start, numbered(2, 60)),
    ];
    capture(&from, &frames);
    let memory = memory(64);
    let mut pool = memory.pool();
    let mut port = crate::common::open(
        &format!("pcap:rx={},timing=recorded", from.display()),
        &memory,
    );
    let started = Instant::now();
    assert_eq!(receive(&mut port, &mut pool, 1), [numbered(0, 60)]);
    // A frame with an earlier time than its predecessor follows at once.
    assert_eq!(
        receive(&mut port, &mut pool, 2),
        [numbered(1, 60), numbered(2, 60)]
    );
    assert!(
        started.elapsed() >= Duration::from_millis(150),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn a_loop_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (from, empty) = (
        dir.path().join("in.pcapng"),
        dir.path().join("empty.pcapng"),
    );
    capture(&from, &[(0, numbered(0, 60)), (0, numbered(1, 60))]);
    capture(&empty, &[]);
    let memory = memory(64);
    let mut pool = memory.pool();
    let mut port = crate::common::open(&format!("pcap:rx={},loop", from.display()), &memory);
    let arrived = receive(&mut port, &mut pool, 100);
    assert!(arrived.len() >= 100 && arrived[99] == numbered(1, 60));
    let mut port = crate::common::open(&format!("pcap:rx={},loop", empty.display()), &memory);
    assert_eq!(
        port.receive(&mut pool, &mut linerate_sys::frames::burst::Burst::new()),
        0
    );
    assert!(port.receive.is_exhausted(), "nothing repeated is nothing");
}

#[test]
fn errors_of_files_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let memory = memory(64);
    let mut pool = memory.pool();
    let problem_of = |url: &str| {
        crate::common::try_open(url, &memory)
            .map(|_| ())
            .unwrap_err()
            .to_report()
    };
    let missing = problem_of("pcap:rx=/nowhere/x.pcap");
    assert_eq!(missing.object, "/nowhere/x.pcap");
    assert!(missing.situation.contains("No such file"), "{missing:?}");
    let text = dir.path().join("text");
    fs::write(&text, "no capture at all").unwrap();
    let problem = problem_of(&format!("pcap:rx={}", text.display()));
    assert!(
        problem.situation.contains("it is not a capture file"),
        "{problem:?}"
    );
    assert_eq!(problem.next_step, "give rx= a complete pcap or pcapng file");
    assert!(
        problem_of("pcap:tx=/nowhere/x.pcap")
            .situation
            .contains("cannot be written")
    );
    for url in ["pcap:", "pcap:loop", "pcap:rx=a,queues=2", "pcap:x.pcap"] {
        assert!(url.parse::<PortUrl>().unwrap_err().is_usage(), "{url}");
    }

    // Damage is reported after the frames before it have been received.
    let truncated = dir.path().join("cut.pcapng");
    capture(&truncated, &[(0, numbered(0, 60)), (0, numbered(1, 60))]);
    let bytes = fs::read(&truncated).unwrap();
    fs::write(&truncated, &bytes[..bytes.len() - 9]).unwrap();
    let mut port = crate::common::open(&format!("pcap:rx={}", truncated.display()), &memory);
    assert_eq!(receive(&mut port, &mut pool, 1), [numbered(0, 60)]);
    assert_eq!(
        port.receive(&mut pool, &mut linerate_sys::frames::burst::Burst::new()),
        0
    );
    let error = port.refresh().unwrap_err();
    assert!(matches!(error, PortError::File { .. }));
    assert!(
        error.to_string().contains("the last block is cut off"),
        "{error}"
    );
}

#[test]
fn frames_that_do_not_fit_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("in.pcapng");
    capture(
        &from,
        &[
            (0, numbered(0, 5000)),
            (0, vec![1; 5]),
            (0, numbered(2, 60)),
        ],
    );
    let memory = memory(64);
    let mut pool = memory.pool();
    let mut port = crate::common::open(&format!("pcap:rx={}", from.display()), &memory);
    assert_eq!(receive(&mut port, &mut pool, 1), [numbered(2, 60)]);
    let read = port.receive.counters().read();
    assert_eq!(
        (
            read.drops_by(DropCause::TooLong),
            read.drops_by(DropCause::Invalid)
        ),
        (1, 1)
    );
    // Without tx= a burst is discarded.
    send(&mut port, &mut pool, &[numbered(0, 60)]);
    assert_eq!(port.transmit.counters().read().frames, 1);
}

/// A capture that is being read is not overwritten, under any name.
#[test]
fn no_file_is_read_and_written_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let memory = crate::common::memory(512);
    let write = format!("pcap:tx={}", path("a.pcapng"));
    drop(crate::common::open(&write, &memory));
    let before = std::fs::read(path("a.pcapng")).unwrap();
    assert!(!before.is_empty());
    std::os::unix::fs::symlink(path("a.pcapng"), path("symbolic")).unwrap();
    std::fs::hard_link(path("a.pcapng"), path("hard")).unwrap();
    for alias in ["a.pcapng", "symbolic", "hard"] {
        let url = format!("pcap:rx={},tx={}", path("a.pcapng"), path(alias));
        let failure = crate::common::try_open(&url, &memory)
            .map(drop)
            .unwrap_err();
        assert!(
            failure.to_string().contains("files of their own"),
            "{failure}"
        );
        assert_eq!(std::fs::read(path("a.pcapng")).unwrap(), before);
    }
    // Nor by two ports; the locks end with the first one.
    let first = crate::common::open(&write, &memory);
    let read = format!("pcap:rx={}", path("hard"));
    assert!(crate::common::try_open(&read, &memory).is_err());
    assert!(crate::common::try_open(&write, &memory).is_err());
    drop(first);
    // A program started by another test at this moment inherits the file until its exec.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while crate::common::try_open(&read, &memory).is_err() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(crate::common::open(&read, &memory));
    // A device can be used by any number of ports.
    let null = crate::common::open("pcap:tx=/dev/null", &memory);
    drop((null, crate::common::open("pcap:tx=/dev/null", &memory)));
}

/// The number of frames reported as missing equals those counted as sent, for any position in a
/// burst.
#[test]
fn frames_missing_on_a_full_disk_are_counted_as_sent() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let memory = memory(64);
    let mut pool = memory.pool();
    let mut port = crate::common::open("pcap:tx=/dev/full", &memory);
    loop {
        let mut burst = linerate_sys::frames::burst::Burst::new();
        while !burst.is_full() {
            let mut frame = pool.allocate().unwrap();
            frame.set_len(1000);
            burst.push(frame).unwrap();
        }
        let count = port.transmit.transmit(&mut pool, &mut burst);
        pool.free_all(&mut burst);
        if count == 0 {
            break;
        }
    }
    let sent = port.transmit.counters().read().frames;
    assert!(sent > 0);
    let problem = port.transmit.refresh().unwrap_err().to_report();
    let expected = format!("up to {sent} of the frames counted as sent");
    assert!(problem.situation.contains(&expected), "{problem:?}");
}

fn pipe(path: &Path) -> bool {
    let status = Command::new("mkfifo").arg(path).status();
    status.is_ok_and(|status| status.success())
}

/// The reader of a pipe gets the capture through it; a pipe without a reader is rejected at once.
#[test]
fn a_pipe_is_written_for_its_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    if !pipe(&path) {
        return;
    }
    let url = format!("pcap:tx={}", path.display());
    let memory = memory(64);
    let failure = linerate_port::open(&url.parse().unwrap(), &memory).map(|_| ());
    let problem = failure.unwrap_err().to_report();
    assert!(
        problem.situation.contains("without a reader"),
        "{problem:?}"
    );
    let reader = std::thread::spawn(move || fs::read(path).unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    let mut port = loop {
        // The reader may not have opened it yet.
        match linerate_port::open(&url.parse().unwrap(), &memory) {
            Ok(mut ports) => break ports.remove(0),
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    };
    let frames = [numbered(1, 60), numbered(2, 61)];
    send(&mut port, &mut memory.pool(), &frames);
    drop(port);
    let written = reader.join().unwrap();
    let mut capture = CaptureReader::new(&written[..]).unwrap();
    for frame in &frames {
        assert_eq!(capture.read().unwrap().unwrap().bytes, frame);
    }
}

/// Opening a pipe would block until there is a writer.
#[test]
fn a_pipe_is_no_capture() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    if !pipe(&path) {
        return;
    }
    let failure = linerate_packet::pcap::open_capture(&path).unwrap_err();
    assert!(
        std::error::Error::source(&failure)
            .unwrap()
            .to_string()
            .contains("pipe")
    );
}
