use super::*;

/// Renders a layout as text, for golden tests.
fn render(text: &str) -> String {
    let topology = Topology::from_toml(text).unwrap();
    let layout = Layout::from_topology(&topology).unwrap();
    let mut out = String::new();
    for ((name, _), host) in topology.hosts.iter().zip(&layout.hosts) {
        let forwards = if host.forwards { " (forwards)" } else { "" };
        out.push_str(&format!("{name}{forwards}\n"));
        for interface in &host.interfaces {
            let v6 = interface
                .address_v6
                .map_or("-".to_owned(), |v6| v6.to_string());
            out.push_str(&format!(
                "  {} on {} segment {}: {} {v6}\n",
                interface.name,
                topology.links[interface.link].label(),
                interface.segment,
                interface.address
            ));
        }
        for route in &host.routes {
            let v6 = route.v6.map_or(String::new(), |(network, gateway)| {
                format!(", {network}/64 via {gateway}")
            });
            out.push_str(&format!("  {} via {}{v6}\n", route.network, route.gateway));
        }
    }
    for (link, interfaces) in topology.links.iter().zip(&layout.links) {
        let [one, other] = interfaces;
        out.push_str(&format!(
            "{}: {} {}\n",
            link.label(),
            one.interface,
            other.interface
        ));
    }
    out
}

#[test]
fn two_hosts_and_a_switch() {
    insta::assert_snapshot!(render(
        "[hosts.client]\n[hosts.server]\naddress='10.77.0.2/24'\n[switches.s1]\n\
         [[links]]\nbetween=['client','s1']\n[[links]]\nbetween=['s1','server']"
    ));
}

#[test]
fn asked_addresses_are_left_out_of_those_given() {
    insta::assert_snapshot!(render(
        "[hosts.a]\n[hosts.b]\naddress='192.168.5.1/24'\n[hosts.c]\n[hosts.d]\naddress='192.168.5.3/24'\n\
         [switches.s]\n[[links]]\nbetween=['a','s']\n[[links]]\nbetween=['b','s']\n\
         [[links]]\nbetween=['c','s']\n[[links]]\nbetween=['d','s']"
    ));
}

#[test]
fn two_pairs_back_to_back() {
    insta::assert_snapshot!(render(
        "[hosts.a]\n[hosts.b]\n[[links]]\nbetween=['a','b']\n[[links]]\nbetween=['a','b']\nmtu=1000"
    ));
}

#[test]
fn a_row_of_routers_gets_routes_both_ways() {
    insta::assert_snapshot!(render(
        "[hosts.a]\n[hosts.r1]\n[hosts.r2]\n[hosts.b]\naddress='10.77.0.9/24'\n\
         [[links]]\nbetween=['a','r1']\n[[links]]\nbetween=['r1','r2']\n[[links]]\nbetween=['r2','b']"
    ));
}
