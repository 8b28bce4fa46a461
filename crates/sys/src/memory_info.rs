//! Free memory of the host.

/// Returns `MemAvailable` of `/proc/meminfo` in bytes: memory for new programs without swapping.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    parse_available_bytes(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available_bytes(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}
