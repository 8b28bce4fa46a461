//! A link of a lab that the kernel does not make: frames between two interfaces pass through the
//! forwarder's link mode, in a process of their own.

use std::ffi::OsString;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use linerate_measure::forward::{Forwarder, MemoryWish, ModeSpec, PortUrl, Settings};
use linerate_metric::exit;
use linerate_metric::forward::Idle;

use crate::output::print;

/// Frames of the memory for each that may be on its way: two directions share half of it.
const SHARES: u32 = 4;

/// Runs until standard input ends: the lab holds its other end.
pub fn run(words: &[OsString]) -> ExitCode {
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let passed = match words.as_deref() {
        Some([one, other, mode, mtu]) => pass([one, other], mode, mtu),
        _ => Err("it takes two interfaces, a mode and an MTU".to_owned()),
    };
    match passed {
        Ok(()) => ExitCode::from(exit::OK),
        // The lab reads it, and reports.
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
    let mut input = std::io::stdin().lock();
    let mut bytes = [0; 64];
    // Nobody writes there; an error is an end as well.
    while input.read(&mut bytes).is_ok_and(|count| count > 0) {}
    forwarder.stop();
    Ok(())
}
