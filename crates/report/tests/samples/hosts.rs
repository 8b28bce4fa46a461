//! Sample hosts and doctor reports.

use std::collections::BTreeMap;

use linerate_record::facts::{
    CpuFacts, DoctorCheck, DoctorReport, HostFacts, InterfaceFacts, Role, Support,
};

pub fn client() -> HostFacts {
    let text = |text: &str| Some(text.to_owned());
    let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    HostFacts {
        role: Some(Role::Client),
        hostname: text("alpha"),
        boot_id: text("5c7e1c5c-2b5e-4b1c-9b53-0a6f3a2a3d11"),
        kernel: text("6.18.5"),
        distribution: text("Debian GNU/Linux 12 (bookworm)"),
        architecture: text("x86_64"),
        cpu: CpuFacts {
            model: text("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"),
            usable: Some(2),
            quota: None,
            logical: Some(2),
            cores: Some(1),
            sockets: Some(1),
            numa_nodes: Some(1),
            hypervisor: text("KVM"),
            governor: None,
            frequency_hz: None,
            frequency_max_hz: None,
            idle: text("haltpoll: POLL, haltpoll"),
            idle_states: Vec::new(),
            mitigations: pairs(&[
                (
                    "mds",
                    "Mitigation: Clear CPU buffers; SMT Host state unknown",
                ),
                ("meltdown", "Mitigation: PTI"),
                ("retbleed", "Mitigation: Enhanced IBRS"),
                ("spec_store_bypass", "Vulnerable"),
                (
                    "spectre_v2",
                    "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; PBRSB-eIBRS: SW sequence",
                ),
            ]),
        },
        memory_bytes: Some(8_320_000_000),
        clock_source: text("tsc"),
        wake_up_ns: None,
        started_as: None,
        interface: Some(InterfaceFacts {
            name: "client-eth0".to_owned(),
            driver: text("veth"),
            driver_version: text("1.0"),
            mac: text("02:00:0a:4d:00:01"),
            speed_bps: Some(10_000_000_000),
            duplex: text("full"),
            mtu: Some(1500),
            qdisc: text("noqueue"),
            offloads: [
                ("generic-receive-offload", true),
                ("generic-segmentation-offload", true),
                ("rx-checksumming", true),
                ("rx-udp-gro-forwarding", false),
                ("tx-checksumming", true),
                ("tx-tcp-segmentation", true),
                ("tx-udp-segmentation", true),
            ]
            .into_iter()
            .map(|(name, on)| (name.to_owned(), on))
            .collect(),
            gso_max_bytes: Some(65_536),
            gso_ipv4_max_bytes: Some(65_536),
            rx_queues: Some(1),
            tx_queues: Some(1),
            ..InterfaceFacts::default()
        }),
        stack: None,
        sysctls: pairs(&[
            ("net.core.rmem_max", "212992"),
            ("net.core.wmem_max", "212992"),
            ("net.ipv4.tcp_congestion_control", "cubic"),
            ("net.ipv4.tcp_rmem", "4096\t131072\t6291456"),
            ("net.ipv4.tcp_wmem", "4096\t16384\t4194304"),
        ]),
    }
}

pub fn server() -> HostFacts {
    let mut host = client();
    host.role = Some(Role::Server);
    if let Some(interface) = &mut host.interface {
        interface.name = "server-eth0".to_owned();
        interface.mac = Some("02:00:0a:4d:00:02".to_owned());
    }
    host
}

/// Another kind of machine: physical hardware with firmware facts, and facts that could not be
/// read.
pub fn board() -> HostFacts {
    HostFacts {
        role: Some(Role::Server),
        hostname: Some("board-7".to_owned()),
        kernel: Some("5.10.0-rt17".to_owned()),
        architecture: Some("aarch64".to_owned()),
        cpu: CpuFacts {
            logical: Some(4),
            usable: Some(3),
            governor: Some("ondemand".to_owned()),
            ..CpuFacts::default()
        },
        interface: Some(InterfaceFacts {
            name: "enp3s0".to_owned(),
            driver: Some("igb".to_owned()),
            driver_version: Some("5.10.0".to_owned()),
            firmware: Some("1.63, 0x800009fa".to_owned()),
            pci_id: Some("8086:1521".to_owned()),
            pci_address: Some("0000:03:00.0".to_owned()),
            numa_node: Some(0),
            mac: Some("a0:36:9f:00:00:07".to_owned()),
            speed_bps: Some(1_000_000_000),
            duplex: Some("full".to_owned()),
            mtu: Some(9000),
            rx_queues: Some(8),
            tx_queues: Some(8),
            rx_descriptors: Some(256),
            tx_descriptors: Some(256),
            ..InterfaceFacts::default()
        }),
        ..HostFacts::default()
    }
}

/// Doctor report with all support levels.
pub fn doctor_report() -> DoctorReport {
    let check = |name: &str, support, detail: &str, enable: Option<&str>| DoctorCheck {
        name: name.to_owned(),
        support,
        detail: detail.to_owned(),
        enable: enable.map(str::to_owned),
    };
    DoctorReport {
        schema: linerate_record::facts::DOCTOR_SCHEMA.to_owned(),
        host: client(),
        checks: vec![
            check(
                "user-namespaces",
                Support::Ok,
                "can be created, so labs need no root",
                None,
            ),
            check(
                "idle-states",
                Support::Limited,
                "cores halt between packets, and waking one takes most of a round trip that blocks; /dev/cpu_dma_latency cannot be opened",
                Some(
                    "run as root, or let a group open it:\n  chgrp net /dev/cpu_dma_latency && chmod 660 /dev/cpu_dma_latency",
                ),
            ),
            check(
                "netem",
                Support::Missing,
                "links with delay, loss or reordering cannot be made",
                Some("modprobe sch_netem, or a kernel with CONFIG_NET_SCH_NETEM"),
            ),
            check(
                "steal",
                Support::Unknown,
                "/proc/stat could not be read",
                None,
            ),
        ],
    }
}
