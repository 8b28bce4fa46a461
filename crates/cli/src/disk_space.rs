//! Free space of a disk.

use std::path::Path;

/// Bytes that a server leaves free: any client that can reach it makes it store records.
const LEFT_BYTES: u64 = 1 << 30;

/// Number of files (inodes) that a server leaves free.
const LEFT_FILES: u64 = 64 << 10;

/// Divisor for small disks: a server leaves a twentieth of the disk free.
const LEFT_SHARE: u64 = 20;

/// Returns whether a directory's disk has so little space that optional files should not be
/// written. For a missing directory, the nearest existing parent counts.
pub fn is_nearly_full(folder: &Path) -> bool {
    let there = folder.ancestors().find(|folder| folder.exists());
    let Some(disk) = there.and_then(|folder| rustix::fs::statvfs(folder).ok()) else {
        return false;
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let all = disk.f_blocks.saturating_mul(disk.f_frsize);
    // Records are small: on many disks the inodes run out before the bytes do.
    is_little(free, all, LEFT_BYTES) || is_little(disk.f_favail, disk.f_files, LEFT_FILES)
}

/// Returns whether too little is free. File systems that do not report a total report 0, which is
/// never too little.
fn is_little(free: u64, all: u64, left: u64) -> bool {
    free < left.min(all / LEFT_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gigabyte_is_left_or_a_twentieth_of_a_small_disk() {
        const G: u64 = 1 << 30;
        for (free, all, little) in [
            (2 * G, 1000 * G, false),
            (G - 1, 1000 * G, true),
            (G / 2, 4 * G, false),
            (G / 10, 4 * G, true),
            (0, 0, false),
        ] {
            assert_eq!(is_little(free, all, LEFT_BYTES), little, "{free} of {all}");
        }
        const M: u64 = 1 << 20;
        for (free, all, little) in [
            (M, 16 * M, false),
            (LEFT_FILES - 1, 16 * M, true),
            (LEFT_FILES / 2, M / 4, false),
            (100, M / 4, true),
            (0, 0, false),
        ] {
            let told = is_little(free, all, LEFT_FILES);
            assert_eq!(told, little, "{free} of {all} files");
        }
    }
}
