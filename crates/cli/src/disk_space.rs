//! Free space of a disk.

use std::path::Path;

/// Bytes that a server leaves free: any client that can reach it makes it store records.
const RESERVED_BYTES: u64 = 1 << 30;

/// Number of files (inodes) that a server leaves free.
const RESERVED_FILES: u64 = 64 << 10;

/// Divisor for small disks: a server leaves a twentieth of the disk free.
const SMALL_DISK_DIVISOR: u64 = 20;

/// Returns whether a directory's disk has so little space that optional files should not be
/// written. For a missing directory, the nearest existing parent counts.
pub fn is_nearly_full(dir: &Path) -> bool {
    let existing = dir.ancestors().find(|dir| dir.exists());
    let Some(disk) = existing.and_then(|dir| rustix::fs::statvfs(dir).ok()) else {
        return false;
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let all = disk.f_blocks.saturating_mul(disk.f_frsize);
    // Records are small: on many disks the inodes run out before the bytes do.
    is_below_reserve(free, all, RESERVED_BYTES)
        || is_below_reserve(disk.f_favail, disk.f_files, RESERVED_FILES)
}

/// Returns whether too little is free. File systems that do not report a total report 0, which is
/// never too little.
fn is_below_reserve(free: u64, all: u64, reserved: u64) -> bool {
    free < reserved.min(all / SMALL_DISK_DIVISOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gigabyte_is_left_or_a_twentieth_of_a_small_disk() {
        const G: u64 = 1 << 30;
        for (free, all, expected) in [
            (2 * G, 1000 * G, false),
            (G - 1, 1000 * G, true),
            (G / 2, 4 * G, false),
            (G / 10, 4 * G, true),
            (0, 0, false),
        ] {
            assert_eq!(
                is_below_reserve(free, all, RESERVED_BYTES),
                expected,
                "{free} of {all}"
            );
        }
        const M: u64 = 1 << 20;
        for (free, all, expected) in [
            (M, 16 * M, false),
            (RESERVED_FILES - 1, 16 * M, true),
            (RESERVED_FILES / 2, M / 4, false),
            (100, M / 4, true),
            (0, 0, false),
        ] {
            let is_below = is_below_reserve(free, all, RESERVED_FILES);
            assert_eq!(is_below, expected, "{free} of {all} files");
        }
    }
}
