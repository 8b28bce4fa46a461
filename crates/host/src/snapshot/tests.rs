use linerate_sys::namespace::{NamespaceKind, can_create_networks, unshare};

use super::*;
use crate::netlink;

#[test]
fn this_host_has_kernel_and_processors() {
    let host = read_host();
    let uname = rustix::system::uname();
    assert_eq!(host.kernel.as_deref(), uname.release().to_str().ok());
    assert!(host.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    assert!(host.cpu.usable <= host.cpu.logical, "{:?}", host.cpu);
    assert!(host.role.is_none() && host.interface.is_none());
    assert!(
        host.sysctls
            .values()
            .all(|value| !value.contains(['\t', '\n'])),
        "{:?}",
        host.sysctls
    );
}

#[test]
fn a_thread_in_another_network_sees_that_network() {
    if !can_create_networks() {
        println!("skipped: needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
    let outside = read_host().sysctls;
    std::thread::spawn(move || {
        unshare(NamespaceKind::Net).unwrap();
        // Some kernels create tunnel devices in every new namespace, always down.
        let links = netlink::list_links().unwrap();
        assert!(
            links.iter().all(|link| !link.up) && links.iter().any(|link| link.name == "lo"),
            "{links:?}"
        );
        assert!(read_interface("lo").is_some());
        assert_eq!(egress_interface([192, 0, 2, 1].into()), None);
        if std::fs::write(PORTS, "20001 20011").is_err() {
            println!("skipped: /proc/sys is read-only");
            return;
        }
        let port_range = |sysctls: &std::collections::BTreeMap<String, String>| {
            sysctls.get("net.ipv4.ip_local_port_range").cloned()
        };
        assert_eq!(
            port_range(&read_host().sysctls).as_deref(),
            Some("20001 20011")
        );
        assert_ne!(port_range(&outside).as_deref(), Some("20001 20011"));
    })
    .join()
    .unwrap();
}
