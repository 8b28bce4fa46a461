//! Link of a lab that the kernel cannot emulate: the forwarder's link mode, in a process of its
//! own, passes frames between two interfaces.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use linerate_host::sys::readiness::{Ready, poll};
use linerate_measure::forward::{Forwarder, MemoryWish, ModeSpec, PortUrl, Settings};
use linerate_metric::exit;
use linerate_metric::forward::Idle;

use crate::output::print;

/// Frames of memory per frame in flight: two directions share half of the memory.
const SHARES: u32 = 4;

/// Time between two checks that frames still pass.
const LOOK: Duration = Duration::from_millis(200);

/// Runs until standard input closes (the lab holds its other end), or until forwarding fails.
pub fn run(words: &[OsString]) -> ExitCode {
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let passed = match words.as_deref() {
        Some([one, other, mode, mtu]) => pass([one, other], mode, mtu),
        _ => Err("needs two interfaces, a mode and an MTU".to_owned()),
    };
    match passed {
        Ok(()) => ExitCode::from(exit::OK),
        // The lab reads this line and reports it.
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
        // An idle link sleeps, and its threads are not pinned.
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

/// Waits until the input closes or forwarding fails: a link with one direction is broken. Each byte
/// of input is a health request, which gets a reply while frames pass.
fn attend(forwarder: &mut Forwarder, input: File, mut answer: impl FnMut()) -> Result<(), String> {
    loop {
        let heard = listen(&input);
        match heard {
            Heard::Nothing => forwarder.look(),
            // A request needs the current state, so it waits for the threads.
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

/// Input event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    Question,
    /// The other end is closed.
    End,
}

/// Waits for input for a moment.
fn listen(mut input: &File) -> Heard {
    match poll(input, Ready::Receive, LOOK) {
        Ok(false) => Heard::Nothing,
        Ok(true) => match input.read(&mut [0]) {
            Ok(1..) => Heard::Question,
            // An error counts as the end too.
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

    /// A link between two ports that passes frames.
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
            // Each request gets a reply, and none ends the link.
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

    /// The input stays open: the lab does not know of the failure yet.
    #[test]
    fn a_link_that_carries_nothing_any_more_ends() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("none.pcap");
        // A capture without frames: microseconds, version 2.4, Ethernet.
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
