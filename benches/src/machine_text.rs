//! Description of the machine above the table.

use std::fs;

use jiff::Zoned;
use linerate_host::snapshot;

use crate::bench_env::{BenchEnv, program_version};

/// Description as lines of text.
pub fn describe_machine(env: &BenchEnv) -> String {
    let host = snapshot::read_host();
    let unknown = || "unknown".to_owned();
    let [client_cpu, server_cpu] = env.cpus;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    let lines = [
        ("date", Zoned::now().strftime("%F %T %Z").to_string()),
        ("kernel", host.kernel.unwrap_or_else(unknown)),
        (
            "processor",
            format!(
                "{}, {} usable{}; client on {client_cpu}, server on {server_cpu}",
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
                env.congestion_control, env.machine_congestion_control
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
                env.iperf3.as_deref().unwrap_or("no iperf3"),
                program_version("iperf").as_deref().unwrap_or("no iperf"),
                crate::peer::nuttcp::version().unwrap_or_else(|| "no nuttcp".to_owned()),
                program_version("sockperf").as_deref().unwrap_or("no sockperf"),
                crate::peer::testpmd::version().unwrap_or_else(|| "no dpdk-testpmd".to_owned()),
                program_version("cc").as_deref().unwrap_or("no C compiler"),
            ),
        ),
    ];
    let lines = lines.map(|(name, value)| format!("{name:<12}{value}\n"));
    lines.concat()
}
