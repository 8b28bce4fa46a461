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
/// Names the file and what to do: it is root's, and containers often lack it.
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
    let path = path.display();
    let next = match source.kind() {
        io::ErrorKind::NotFound => {
            "this kernel or container has no such device: start the container with \
             `--device /dev/cpu_dma_latency`, or leave idle states alone"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!("run as root, or let this user write it: `sudo chmod o+w {path}`")
        }
        _ => "idle states stay as they are".to_owned(),
    };
    io::Error::new(source.kind(), format!("{path}: {source}: {next}"))
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
        assert!(error.to_string().contains("--device"), "{error}");
    }

    #[test]
    fn the_real_device_is_held_or_explained() {
        match idle_hold() {
            Ok(hold) => drop(hold),
            Err(error) => println!("needs to write {DMA_LATENCY}: {error}"),
        }
    }
}
