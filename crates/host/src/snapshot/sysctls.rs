//! Kernel settings that affect network measurements.

use std::collections::BTreeMap;

use super::SystemFiles;

/// Settings kept in a record, by sysctl name.
pub const RECORDED_SYSCTLS: &[&str] = &[
    "kernel.sched_rt_period_us",
    "kernel.sched_rt_runtime_us",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.gro_normal_batch",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.netdev_tstamp_prequeue",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ipfrag_high_thresh",
    "net.ipv4.ipfrag_time",
    "net.ipv4.neigh.default.unres_qlen_bytes",
    "net.ipv4.tcp_allowed_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.ipv4.udp_mem",
    "net.ipv4.udp_rmem_min",
    "net.ipv6.ip6frag_high_thresh",
    "net.ipv6.ip6frag_time",
    "net.ipv6.neigh.default.unres_qlen_bytes",
];

/// Reads the settings of [`RECORDED_SYSCTLS`] that exist.
///
/// Most of net.* is per network namespace: values are those of the calling thread's. A namespace
/// other than the initial one lacks some of net.core.
pub(super) fn read_sysctls(files: &SystemFiles) -> BTreeMap<String, String> {
    RECORDED_SYSCTLS
        .iter()
        .filter_map(|&name| Some((name.to_owned(), read_sysctl(files, name)?)))
        .collect()
}

/// Reads one setting, its values separated by one space.
pub(crate) fn read_sysctl(files: &SystemFiles, name: &str) -> Option<String> {
    let text = files.read_text(&format!("/proc/sys/{}", name.replace('.', "/")))?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::system_files::tree;
    use super::*;

    #[test]
    fn only_existing_settings_are_read() {
        let (_directory, files) = tree(&[
            ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("/proc/sys/net/core/busy_poll", "0\n"),
            ("/proc/sys/net/core/unasked", "1\n"),
        ]);
        let expected = BTreeMap::from([
            ("net.core.busy_poll".to_owned(), "0".to_owned()),
            (
                "net.ipv4.tcp_rmem".to_owned(),
                "4096 131072 6291456".to_owned(),
            ),
        ]);
        assert_eq!(read_sysctls(&files), expected);
    }

    #[test]
    fn the_table_is_sorted_and_free_of_doubles() {
        assert!(RECORDED_SYSCTLS.is_sorted_by(|left, right| left < right));
    }
}
