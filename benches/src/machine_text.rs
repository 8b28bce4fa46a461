//! Description of the machine above the table.

use std::fs;

use jiff::Zoned;
use linerate_host::snapshot;

use crate::bench_env::{Ground, version_of};

/// Description as lines of text.
pub fn text(ground: &Ground) -> String {
    let host = snapshot::host();
    let unknown = || "unknown".to_owned();
    let [near, far] = ground.cpus;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    let lines = [
        ("date", Zoned::now().strftime("%F %T %Z").to_string()),
        ("kernel", host.kernel.unwrap_or_else(unknown)),
        (
            "processor",
            format!(
                "{}, {} usable{}; client on {near}, server on {far}",
                host.cpu.model.unwrap_or_else(unknown),
                host.cpu
                    .usable
                    .map_or_else(unknown, |usable| usable.to_string()),
                (host.cpu.hypervisor).map_or(String::new(), |name| format!(" under {name}")),
            ),
        ),
        ("load before", load.to_owned()),
        (
            "link",
            "two network namespaces, one veth pair, MTU 1500".to_owned(),
        ),
        (
            "TCP",
            format!(
                "{} for both sides; the machine's default is {}",
                ground.congestion_control, ground.found_control
            ),
        ),
        (
            "idle states",
            "disabled through /dev/cpu_dma_latency for both sides, except for rows `found` and `as_it_comes`"
                .to_owned(),
        ),
        (
            "peers",
            format!(
                "{}; {}; {}; {}; {}; {}",
                ground.iperf3.as_deref().unwrap_or("no iperf3"),
                version_of("iperf").as_deref().unwrap_or("no iperf"),
                crate::peer::nuttcp::version().unwrap_or_else(|| "no nuttcp".to_owned()),
                version_of("sockperf").as_deref().unwrap_or("no sockperf"),
                crate::peer::testpmd::version().unwrap_or_else(|| "no dpdk-testpmd".to_owned()),
                version_of("cc").as_deref().unwrap_or("no C compiler"),
            ),
        ),
    ];
    let lines = lines.map(|(name, value)| format!("{name:<12}{value}\n"));
    lines.concat()
}
