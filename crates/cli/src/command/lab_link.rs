//! A link of a lab that the kernel does not make: frames between two interfaces pass through the
//! forwarder's link mode, in a process of their own.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use linerate_host::sys::wait::{Ready, poll};
use linerate_measure::forward::{Forwarder, MemoryWish, ModeSpec, PortUrl, Settings};
use linerate_metric::exit;
use linerate_metric::forward::Idle;

use crate::output::print;

/// Frames of the memory for each that may be on its way: two directions share half of it.
const SHARES: u32 = 4;

/// How often it is looked whether frames still pass.
const LOOK: Duration = Duration::from_millis(200);

/// Runs until standard input ends (the lab holds its other end), or frames pass no more.
pub fn run(words: &[OsString]) -> ExitCode {
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let passed = match words.as_deref() {
        Some([one, other, mode, mtu]) => pass([one, other], mode, mtu),
        _ => Err("it takes two interfaces, a mode and an MTU".to_owned()),
    };
    match passed {
        Ok(()) => ExitCode::from(exit::OK),
        // The lab reads it, at the start or when this has ended, and reports.
        Err(why) => {
            print(&why);
            ExitCode::from(exit::FAILED)
        }
    }
}

fn pass(interfaces: [&str; 2], mode: &str, mtu: &str) -> Result<(), String> {
    let urls = interfaces.map(|interface| format!("packet:{interface},mtu={mtu}").parse());
    let urls: Result<Vec<PortUrl>, _> = urls.into_iter().collect();
    let urls = urls.map_err(|error| error.to_string())?;
    let mode: ModeSpec = mode.parse()?;
    let wish = MemoryWish {
        frames: Some(mode.frames_held().saturating_mul(SHARES)),
        ..MemoryWish::default()
    };
    let settings = Settings {
        mode,
        // A wire sleeps while nothing is on it, wherever there is a processor.
        idle: Idle::Interrupt,
        pinned: false,
        flush: false,
        ..Settings::default()
    };
    let failed = |error: linerate_measure::MeasureError| error.problem().to_string();
    let mut forwarder = Forwarder::open(&urls, wish).map_err(failed)?;
    forwarder.start(&settings, Duration::ZERO).map_err(failed)?;
    print(linerate_lab::PASSING);
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let input = input.map_err(|error| error.to_string())?;
    attend(&mut forwarder, input.into(), || {
        print(linerate_lab::PASSING)
    })
}

/// Waits until the input ends, or the forwarder carries nothing any more: with one direction alone a link is none. Who
/// asks meanwhile gets an answer while it does.
fn attend(forwarder: &mut Forwarder, input: File, mut answer: impl FnMut()) -> Result<(), String> {
    loop {
        let heard = listen(&input);
        match heard {
            Heard::Nothing => forwarder.look(),
            // Who asks wants to know how it is by now: its threads are waited for.
            Heard::Question => forwarder.refresh(),
            Heard::End => break,
        }
        if forwarder.is_troubled() || forwarder.has_ended() {
            let outcome = forwarder.stop();
            let trouble = outcome.and_then(|outcome| outcome.trouble);
            return Err(trouble.map_or_else(
                || "its threads ended".to_owned(),
                |trouble| trouble.to_string(),
            ));
        }
        if heard == Heard::Question {
            answer();
        }
    }
    forwarder.stop();
    Ok(())
}

/// What came in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    Question,
    /// Nobody holds the other end.
    End,
}

/// Waits for it for a moment.
fn listen(mut input: &File) -> Heard {
    match poll(input, Ready::Receive, LOOK) {
        Ok(false) => Heard::Nothing,
        Ok(true) => match input.read(&mut [0]) {
            Ok(1..) => Heard::Question,
            // An error is an end as well.
            _ => Heard::End,
        },
        Err(_) => Heard::End,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A link of two ports, which passes frames on.
    fn forwarder(urls: [String; 2]) -> Forwarder {
        let urls = urls.map(|url| url.parse().expect("a URL"));
        let opened = Forwarder::open(&urls, MemoryWish::default());
        let mut forwarder = opened.expect("ports that can be opened");
        let settings = Settings {
            idle: Idle::Yield,
            pinned: false,
            ..Settings::default()
        };
        forwarder.start(&settings, Duration::ZERO).unwrap();
        forwarder
    }

    #[test]
    fn it_ends_with_its_input() {
        let mut forwarder = forwarder(["ring:0", "ring:1"].map(str::to_owned));
        let (reader, writer) = std::io::pipe().unwrap();
        let mut writer = File::from(std::os::fd::OwnedFd::from(writer));
        let (answers, answered) = std::sync::mpsc::channel();
        let attended = std::thread::scope(|scope| {
            let reader = File::from(std::os::fd::OwnedFd::from(reader));
            let answer = move || answers.send(()).expect("somebody waits");
            let attending = scope.spawn(|| attend(&mut forwarder, reader, answer));
            // Each question gets an answer, and none ends it.
            writer.write_all(b"??").unwrap();
            for _ in 0..2 {
                answered.recv_timeout(LONG).expect("an answer");
            }
            assert!(!attending.is_finished());
            drop(writer);
            attending.join().unwrap()
        });
        assert_eq!(attended, Ok(()));
        assert!(answered.recv().is_err(), "nobody asked again");
    }

    /// Its input stays open: the lab does not know yet.
    #[test]
    fn a_link_that_carries_nothing_any_more_ends() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("none.pcap");
        // A capture of no frame: microseconds, version 2.4, Ethernet.
        let head: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
        let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(&file, head).unwrap();
        let url = format!("pcap:rx={}", file.display());
        let mut forwarder = forwarder([url.clone(), url]);
        let (reader, writer) = std::io::pipe().unwrap();
        let began = Instant::now();
        let reader = std::os::fd::OwnedFd::from(reader).into();
        let attended = attend(&mut forwarder, reader, || panic!("nobody asked"));
        assert_eq!(attended, Err("its threads ended".to_owned()));
        assert!(began.elapsed() < LONG);
        drop(writer);
    }
}
