//! Guard against deep idle states of the processors.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Device that takes the longest tolerable wake-up latency (PM QoS).
pub const CPU_DMA_LATENCY_PATH: &str = "/dev/cpu_dma_latency";

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
/// Name the file: only root may write it, and containers often lack it. [`remedy`] has a remedy.
pub fn hold_idle_states() -> io::Result<IdleHold> {
    hold_with(Path::new(CPU_DMA_LATENCY_PATH))
}

fn hold_with(path: &Path) -> io::Result<IdleHold> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|source| add_path(path, &source))?;
    // A 32-bit number in native byte order; 0 µs allows polling only.
    file.write_all(&0_i32.to_ne_bytes())
        .map_err(|source| add_path(path, &source))?;
    Ok(IdleHold { _file: file })
}

fn add_path(path: &Path, source: &io::Error) -> io::Error {
    io::Error::new(source.kind(), format!("{}: {source}", path.display()))
}

/// Returns the remedy for a failed [`hold_idle_states`].
#[must_use]
pub fn remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "this kernel or container has no such device: start the container with \
             `--device {CPU_DMA_LATENCY_PATH}`, or omit --hold-latency"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "run as root, let this user write it (`sudo chmod o+w {CPU_DMA_LATENCY_PATH}`), or omit --hold-latency"
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
        let _hold = hold_with(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 4]);
    }

    #[test]
    fn a_missing_device_has_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let error = hold_with(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(remedy(&error).contains("--device"), "{}", remedy(&error));
    }

    #[test]
    fn the_remedy_is_not_part_of_the_error() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = add_path(Path::new(CPU_DMA_LATENCY_PATH), &denied);
        assert_eq!(error.to_string(), "/dev/cpu_dma_latency: permission denied");
        assert_eq!(
            remedy(&error),
            "run as root, let this user write it (`sudo chmod o+w /dev/cpu_dma_latency`), or omit --hold-latency"
        );
    }

    #[test]
    fn the_real_device_is_held_or_explained() {
        match hold_idle_states() {
            Ok(hold) => drop(hold),
            Err(error) => println!("needs to write {CPU_DMA_LATENCY_PATH}: {error}"),
        }
    }
}
