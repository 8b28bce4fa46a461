//! Memory of the host: `/proc/meminfo`.

/// Returns `MemAvailable` in bytes: memory for new programs without swapping.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    parse_bytes(
        &std::fs::read_to_string("/proc/meminfo").ok()?,
        "MemAvailable",
    )
}

/// Returns a line of /proc/meminfo in bytes (the file prints kB and means KiB).
#[must_use]
pub fn parse_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let kib: u64 = find_value(meminfo, name)?
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()?;
    kib.checked_mul(1024)
}

/// Returns a line of /proc/meminfo that is a plain count.
#[must_use]
pub fn parse_count(meminfo: &str, name: &str) -> Option<u64> {
    find_value(meminfo, name)?.parse().ok()
}

fn find_value<'a>(meminfo: &'a str, name: &str) -> Option<&'a str> {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        let meminfo = "MemTotal:        8038720 kB\nMemFree: 1 kB\nHugePages_Total:       3\n";
        assert_eq!(parse_bytes(meminfo, "MemTotal"), Some(8_231_649_280));
        assert_eq!(parse_bytes(meminfo, "Mem"), None);
        assert_eq!(parse_bytes(meminfo, "HugePages_Total"), None);
        assert_eq!(parse_count(meminfo, "HugePages_Total"), Some(3));
        assert_eq!(parse_count(meminfo, "HugePages_Free"), None);
    }
}
