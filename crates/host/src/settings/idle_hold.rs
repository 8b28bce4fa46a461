//! Guard against deep idle states of the processors.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Device that takes the longest tolerable wake-up latency (PM QoS).
pub const DMA_LATENCY: &str = "/dev/cpu_dma_latency";

/// Guard that keeps all processors out of idle states with an exit latency.
///
/// The kernel drops the request when the file closes, so a crash leaves nothing behind.
#[derive(Debug)]
pub struct IdleHold {
    _file: File,
}

/// Requests a wake-up latency of 0 µs until the guard drops.
///
/// # Errors
/// Name the file: only root may write it, and containers often lack it. [`next_step`] has a remedy.
pub fn idle_hold() -> io::Result<IdleHold> {
    hold_at(Path::new(DMA_LATENCY))
}

fn hold_at(path: &Path) -> io::Result<IdleHold> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|source| explained(path, &source))?;
    // A 32-bit number in native byte order; 0 µs allows polling only.
    file.write_all(&0_i32.to_ne_bytes())
        .map_err(|source| explained(path, &source))?;
    Ok(IdleHold { _file: file })
}

fn explained(path: &Path, source: &io::Error) -> io::Error {
    io::Error::new(source.kind(), format!("{}: {source}", path.display()))
}

/// Returns the remedy for a failed [`idle_hold`].
#[must_use]
pub fn next_step(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "this kernel or container has no such device: start the container with \
             `--device {DMA_LATENCY}`, or omit --hold-latency"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "run as root, let this user write it (`sudo chmod o+w {DMA_LATENCY}`), or omit --hold-latency"
        ),
        _ => "omit --hold-latency".to_owned(),
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
            "run as root, let this user write it (`sudo chmod o+w /dev/cpu_dma_latency`), or omit --hold-latency"
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
