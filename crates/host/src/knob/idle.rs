//! Keeps processors from sleeping.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Where the kernel takes the longest wake-up time that somebody can bear (PM QoS).
pub const DMA_LATENCY: &str = "/dev/cpu_dma_latency";

/// Holds all processors out of idle states that take time to leave, while it lives.
///
/// The kernel forgets the request when the file closes, so nothing is left behind by a crash.
#[derive(Debug)]
pub struct IdleHold {
    _file: File,
}

/// Asks the kernel for a wake-up time of 0 µs until the guard drops.
///
/// # Errors
/// Names the file: it is root's, and containers often lack it. [`next_step`] says what to do.
pub fn idle_hold() -> io::Result<IdleHold> {
    hold_at(Path::new(DMA_LATENCY))
}

fn hold_at(path: &Path) -> io::Result<IdleHold> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|source| explained(path, &source))?;
    // The kernel takes a 32-bit number in the machine's byte order; 0 µs leaves polling only.
    file.write_all(&0_i32.to_ne_bytes())
        .map_err(|source| explained(path, &source))?;
    Ok(IdleHold { _file: file })
}

fn explained(path: &Path, source: &io::Error) -> io::Error {
    io::Error::new(source.kind(), format!("{}: {source}", path.display()))
}

/// What gives a hold that could not be had.
#[must_use]
pub fn next_step(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "this kernel or container has no such device: start the container with \
             `--device {DMA_LATENCY}`, or leave --hold-latency out"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "run as root, let this user write it (`sudo chmod o+w {DMA_LATENCY}`), or leave --hold-latency out"
        ),
        _ => "leave --hold-latency out".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bytes_of_zero_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("latency");
        std::fs::write(&path, "").unwrap();
        let _hold = hold_at(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 4]);
    }

    #[test]
    fn an_absent_device_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let error = hold_at(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(
            next_step(&error).contains("--device"),
            "{}",
            next_step(&error)
        );
    }

    #[test]
    fn what_to_do_stands_in_the_next_step_alone() {
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = explained(Path::new(DMA_LATENCY), &refused);
        assert_eq!(error.to_string(), "/dev/cpu_dma_latency: permission denied");
        assert_eq!(
            next_step(&error),
            "run as root, let this user write it (`sudo chmod o+w /dev/cpu_dma_latency`), or leave --hold-latency out"
        );
    }

    #[test]
    fn the_real_device_is_held_or_explained() {
        match idle_hold() {
            Ok(hold) => drop(hold),
            Err(error) => println!("needs to write {DMA_LATENCY}: {error}"),
        }
    }
}
