//! Link of a lab that the kernel cannot emulate: the forwarder's link mode, in a process of its
//! own, passes frames between two interfaces.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use linerate_forwarder::{ForwardSettings, Forwarder, FrameMemoryRequest, ModeSpec};
use linerate_port::{FrameRunError, PortUrl};
use linerate_record::exit_codes;
use linerate_record::forward::IdleStrategy;
use linerate_sys::readiness::{Readiness, poll};

use crate::standard_streams::print_stdout;

/// Frames of memory per frame in flight: two directions share half of the memory.
const MEMORY_FACTOR: u32 = 4;

/// Time between two checks that frames still pass.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs until standard input closes (the lab holds its other end), or until forwarding fails.
pub fn run(args: &[OsString]) -> ExitCode {
    let args: Option<Vec<&str>> = args.iter().map(|arg| arg.to_str()).collect();
    let result = match args.as_deref() {
        Some([first, second, mode, mtu]) => run_link([first, second], mode, mtu),
        _ => Err("needs two interfaces, a mode and an MTU".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::from(exit_codes::OK),
        // The lab reads this line and reports it.
        Err(why) => {
            print_stdout(&why);
            ExitCode::from(exit_codes::FAILED)
        }
    }
}

fn run_link(interfaces: [&str; 2], mode: &str, mtu: &str) -> Result<(), String> {
    let urls = interfaces.map(|interface| format!("packet:{interface},mtu={mtu}").parse());
    let urls: Result<Vec<PortUrl>, _> = urls.into_iter().collect();
    let urls = urls.map_err(|error| error.to_string())?;
    let mode: ModeSpec = mode.parse()?;
    let memory = FrameMemoryRequest {
        frames: Some(mode.max_held_frames().saturating_mul(MEMORY_FACTOR)),
        ..FrameMemoryRequest::default()
    };
    let settings = ForwardSettings {
        mode,
        // An idle link sleeps, and its threads are not pinned.
        idle: IdleStrategy::Interrupt,
        is_pinned: false,
        flush: false,
        ..ForwardSettings::default()
    };
    let failed = |error: FrameRunError| error.to_report().to_string();
    let mut forwarder = Forwarder::open(&urls, memory).map_err(failed)?;
    forwarder.start(&settings, Duration::ZERO).map_err(failed)?;
    print_stdout(linerate_lab::PASSING_REPLY);
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let input = input.map_err(|error| error.to_string())?;
    serve_health_requests(&mut forwarder, input.into(), || {
        print_stdout(linerate_lab::PASSING_REPLY)
    })
}

/// Waits until the input closes or forwarding fails: a link with one direction is broken. Each byte
/// of input is a health request, which gets a reply while frames pass.
fn serve_health_requests(
    forwarder: &mut Forwarder,
    input: File,
    mut reply: impl FnMut(),
) -> Result<(), String> {
    loop {
        let input_event = read_input(&input);
        match input_event {
            InputEvent::None => forwarder.poll_background(),
            // A request needs the current state, so it waits for the threads.
            InputEvent::Request => forwarder.refresh(),
            InputEvent::Closed => break,
        }
        if forwarder.has_port_error() || forwarder.has_ended() {
            let stopped = forwarder.stop();
            let error = stopped.and_then(|stopped| stopped.port_error);
            return Err(
                error.map_or_else(|| "its threads ended".to_owned(), |error| error.to_string())
            );
        }
        if input_event == InputEvent::Request {
            reply();
        }
    }
    forwarder.stop();
    Ok(())
}

/// Input event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InputEvent {
    None,
    Request,
    /// The other end is closed.
    Closed,
}

/// Waits for input for a moment.
fn read_input(mut input: &File) -> InputEvent {
    match poll(input, Readiness::Receive, POLL_INTERVAL) {
        Ok(false) => InputEvent::None,
        Ok(true) => match input.read(&mut [0]) {
            Ok(1..) => InputEvent::Request,
            // An error counts as the end too.
            _ => InputEvent::Closed,
        },
        Err(_) => InputEvent::Closed,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A link between two ports that passes frames.
    fn forwarder(urls: [String; 2]) -> Forwarder {
        let urls = urls.map(|url| url.parse().expect("a URL"));
        let opened = Forwarder::open(&urls, FrameMemoryRequest::default());
        let mut forwarder = opened.expect("ports that can be opened");
        let settings = ForwardSettings {
            idle: IdleStrategy::Yield,
            is_pinned: false,
            ..ForwardSettings::default()
        };
        forwarder.start(&settings, Duration::ZERO).unwrap();
        forwarder
    }

    #[test]
    fn the_link_ends_with_its_input() {
        let mut forwarder = forwarder(["ring:0", "ring:1"].map(str::to_owned));
        let (reader, writer) = std::io::pipe().unwrap();
        let mut writer = File::from(std::os::fd::OwnedFd::from(writer));
        let (replies, received) = std::sync::mpsc::channel();
        let result = std::thread::scope(|scope| {
            let reader = File::from(std::os::fd::OwnedFd::from(reader));
            let reply = move || replies.send(()).expect("somebody waits");
            let link_thread = scope.spawn(|| serve_health_requests(&mut forwarder, reader, reply));
            // Each request gets a reply, and none ends the link.
            writer.write_all(b"??").unwrap();
            for _ in 0..2 {
                received.recv_timeout(TIMEOUT).expect("an answer");
            }
            assert!(!link_thread.is_finished());
            drop(writer);
            link_thread.join().unwrap()
        });
        assert_eq!(result, Ok(()));
        assert!(received.recv().is_err(), "nobody asked again");
    }

    /// The input stays open: the lab does not know of the failure yet.
    #[test]
    fn a_link_that_carries_nothing_any_more_ends() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("none.pcap");
        // A capture without frames: microseconds, version 2.4, Ethernet.
        let head: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
        let head: Vec<u8> = head.iter().flat_map(|field| field.to_le_bytes()).collect();
        std::fs::write(&file, head).unwrap();
        let url = format!("pcap:rx={}", file.display());
        let mut forwarder = forwarder([url.clone(), url]);
        let (reader, writer) = std::io::pipe().unwrap();
        let started_at = Instant::now();
        let reader = std::os::fd::OwnedFd::from(reader).into();
        let result = serve_health_requests(&mut forwarder, reader, || panic!("nobody asked"));
        assert_eq!(result, Err("its threads ended".to_owned()));
        assert!(started_at.elapsed() < TIMEOUT);
        drop(writer);
    }
}
