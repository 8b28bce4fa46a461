use super::*;
use proptest::prelude::*;

const PLAIN: &str = r#"
[hosts.client]
[hosts.server]
address = "10.77.0.2/24"
[switches.s1]
[[links]]
between = ["client", "s1"]
mtu = 1500
[[links]]
between = ["s1", "server"]
"#;

#[test]
fn the_documented_file_reads() {
    let topology = Topology::from_toml(PLAIN).unwrap();
    assert_eq!(topology.hosts[0].0, "client");
    let address = topology.hosts[1].1.address.unwrap();
    assert_eq!(address.to_string(), "10.77.0.2/24");
    assert_eq!(topology.links[0].mtu, Some(1500));
}

#[test]
fn every_field_of_a_link_reads_with_units() {
    let topology = Topology::from_toml(
        r#"
        [hosts.a]
        [hosts.b]
        [[links]]
        between = ["a", "b"]
        mtu = 9000
        rate = "1G"
        burst = "32K"
        queue = 100000
        delay = "20ms"
        jitter = 0.001
        loss = "0.1%"
        reorder = 0.25
        gso = "64K"
        offloads = { tso = false, gro = true, tx-checksumming = false, tx-udp-segmentation = true }
        "#,
    )
    .unwrap();
    let link = &topology.links[0];
    assert_eq!(link.rate, Some(BitRate(1_000_000_000)));
    assert_eq!(link.burst, Some(ByteSize(32_768)));
    assert_eq!(link.queue, Some(ByteSize(100_000)));
    assert_eq!(link.delay, Some(Duration::from_millis(20)));
    assert_eq!(link.jitter, Some(Duration::from_millis(1)));
    assert!((link.loss.unwrap() - 0.001).abs() < 1e-12);
    assert_eq!(link.reorder, Some(0.25));
    assert_eq!(link.gso, Some(ByteSize(65_536)));
    assert_eq!(link.offloads.len(), 4);
}

#[test]
fn hosts_keep_the_order_of_the_file() {
    let text = r#"
        links = [{ between = ["zoe", "z"] }, { between = ["adam", "z"] }, { between = ["mia", "z"] }]
        [switches.z]
        [hosts.zoe]
        [hosts.adam]
        [hosts.mia]
    "#;
    let topology = Topology::from_toml(text).unwrap();
    let names: Vec<_> = topology
        .hosts
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["zoe", "adam", "mia"]);
}

#[test]
fn hops_are_a_row_of_switches() {
    for (count, links) in [
        (0, "client-server"),
        (1, "client-s1 s1-server"),
        (4, "client-s1 s1-s2 s2-s3 s3-s4 s4-server"),
    ] {
        let topology = Topology::hops(count);
        topology.validate().unwrap();
        let labels: Vec<_> = topology.links.iter().map(LinkSpec::label).collect();
        assert_eq!(labels.join(" "), links);
        assert_eq!(topology.switches.len(), count);
    }
}

/// Returns the error text of a file with these hosts and one more link.
fn message(hosts: &str, link: &str) -> String {
    let text = format!("{hosts}\n[[links]]\n{link}\n");
    match Topology::from_toml(&text) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn errors_name_the_item() {
    const TWO: &str = "[hosts.a]\n[hosts.b]\n[switches.s]\n[switches.t]\n\
        [[links]]\nbetween=['a','s']\n[[links]]\nbetween=['t','b']\n";
    const PAIR: &str = "[hosts.a]\n[hosts.b]\n";
    let mut table = String::new();
    for (hosts, link) in [
        (TWO, "between = ['s', 't']"),
        (TWO, "between = ['s', 'c']"),
        (TWO, "between = ['s', 's']"),
        (TWO, "between = ['a', 's']"),
        (TWO, "between = ['a', 'b']"),
        (
            "[hosts.a]\n[hosts.b]\n[switches.s]\n[switches.t]\n[[links]]\nbetween=['a','s']\n\
             [[links]]\nbetween=['s','t']\n[[links]]\nbetween=['t','b']\n",
            "between = ['t', 's']",
        ),
        ("[hosts.a]\n[hosts.b]\n[hosts.c]", "between = ['a', 'b']"),
        (
            "[hosts.a]\n[hosts.b]\n[hosts.c]\n[hosts.d]\n[[links]]\nbetween=['c','d']",
            "between = ['a', 'b']",
        ),
        ("[hosts.a]\n[switches.a]", "between = ['a', 'a']"),
        ("[hosts.'a b']", "between = ['a b', 'b']"),
        ("[hosts.a-name-too-long-]", "between = ['a', 'b']"),
        ("[hosts.lo]", "between = ['a', 'b']"),
        ("[switches.s]", "between = ['s', 's']"),
        (PAIR, "between = ['a', 'b']\nmtu = 60"),
        (PAIR, "between = ['a', 'b']\nmtu = 65536"),
        (PAIR, "between = ['a', 'b']\nmtu = -5"),
        (PAIR, "between = ['a', 'b']\ngso = '512K'"),
        (PAIR, "between = ['a', 'b']\ngso = 524289"),
        (PAIR, "between = ['a', 'b']\ngso = 1000"),
        (PAIR, "between = ['a', 'b']\nrate = 0"),
        (PAIR, "between = ['a', 'b']\nrate = '1X'"),
        (PAIR, "between = ['a', 'b']\nrate = 'fast'"),
        (PAIR, "between = ['a', 'b']\nrate = 1.5"),
        (PAIR, "between = ['a', 'b']\nrate = -1"),
        (PAIR, "between = ['a', 'b']\nrate = [1]"),
        (PAIR, "between = ['a', 'b']\nrate = '1M'\nburst = 100"),
        (PAIR, "between = ['a', 'b']\nburst = '64K'"),
        (PAIR, "between = ['a', 'b']\nqueue = '64K'"),
        (PAIR, "between = ['a', 'b']\njitter = '1ms'"),
        (PAIR, "between = ['a', 'b']\ndelay = 20000"),
        (PAIR, "between = ['a', 'b']\ndelay = -0.5"),
        (PAIR, "between = ['a', 'b']\nloss = 5"),
        (PAIR, "between = ['a', 'b']\nloss = '5 percent'"),
        (PAIR, "between = ['a', 'b']\noffloads = { tsoo = false }"),
        (
            PAIR,
            "between = ['a', 'b']\noffloads = { tx = false, tx-checksumming = true }",
        ),
        (PAIR, "between = ['a', 'b']\nmtuu = 1500"),
        (PAIR, "mtu = 1500"),
        (PAIR, "between = ['a', 'b', 'c']"),
        ("[hosts.a]\naddres = '10.0.0.1/8'", "between = ['a', 'b']"),
        ("[host.a]", "between = ['a', 'b']"),
        ("[hosts.a]\n[hosts.a]", "between = ['a', 'b']"),
        (
            "[hosts.a]\naddress = '10.0.0.1'\n[hosts.b]",
            "between = ['a', 'b']",
        ),
        (
            "[hosts.a]\naddress = '10.0.0.0/8'\n[hosts.b]",
            "between = ['a', 'b']",
        ),
        (
            "[hosts.a]\naddress = '127.0.0.1/8'\n[hosts.b]",
            "between = ['a', 'b']",
        ),
        (
            "[hosts.a]\naddress = '10.0.0.1/31'\n[hosts.b]",
            "between = ['a', 'b']",
        ),
        ("[hosts.a]\naddress = 5\n[hosts.b]", "between = ['a', 'b']"),
        (
            "[hosts.a]\naddress = '10.0.0.1/8'\n[hosts.b]\naddress = '10.0.0.1/8'",
            "between = ['a', 'b']",
        ),
        (
            "[hosts.a]\naddress = '10.0.0.1/24'\n[hosts.b]\naddress = '10.0.1.2/24'",
            "between = ['a', 'b']",
        ),
        (
            "[hosts.a]\naddress = '10.0.0.1/24'\n[hosts.b]\n[hosts.c]\naddress = '10.0.0.9/16'\n\
             [[links]]\nbetween = ['a', 'b']",
            "between = ['c', 'b']",
        ),
        (
            "[switches.s]\n[hosts.a]\naddress = '10.0.0.1/30'\n[hosts.b]\n[hosts.c]\n\
             [[links]]\nbetween = ['a', 's']\n[[links]]\nbetween = ['b', 's']",
            "between = ['c', 's']",
        ),
    ] {
        let line = link.replace('\n', "; ");
        let head = hosts.lines().last().unwrap_or_default();
        table.push_str(&format!(
            "{head} | {line}\n  {}\n",
            message(hosts, link).trim_end().replace('\n', "\n  ")
        ));
    }
    insta::assert_snapshot!(table);
}

#[test]
fn an_empty_lab_says_what_to_add() {
    let error = Topology::from_toml("").unwrap_err();
    assert_eq!(error, TopologyError::NoHosts);
}

#[test]
fn two_links_between_two_hosts_are_two_segments() {
    let text = "[hosts.a]\n[hosts.b]\n[[links]]\nbetween=['a','b']\n[[links]]\nbetween=['b','a']";
    Topology::from_toml(text).unwrap();
}

fn link() -> impl Strategy<Value = LinkSpec> {
    (
        proptest::option::of(68u32..=65_535),
        proptest::option::of(8u64..1 << 40),
        proptest::option::of(0u64..3_600_000_000_000),
        proptest::option::of(0.0..=1.0f64),
        proptest::collection::btree_map("tso|gso|gro|tx-udp-segmentation", any::<bool>(), 0..4),
    )
        .prop_map(|(mtu, rate, delay, loss, offloads)| LinkSpec {
            mtu,
            rate: rate.map(BitRate),
            delay: delay.map(Duration::from_nanos),
            loss,
            offloads,
            ..LinkSpec::between("client", "server")
        })
}

proptest! {
    #[test]
    fn a_topology_survives_its_own_file(link in link(), hops in 0usize..5) {
        let mut topology = Topology::hops(hops);
        let between = topology.links[0].between.clone();
        topology.links[0] = LinkSpec { between, ..link };
        topology.validate().unwrap();
        let file = toml::to_string(&topology).unwrap();
        prop_assert_eq!(&Topology::from_toml(&file).unwrap(), &topology, "{}", file);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = Topology::from_toml(&text);
    }

    #[test]
    fn no_wiring_panics(links in prop::collection::vec((0usize..8, 0usize..8), 1..12)) {
        let names = ["a", "b", "c", "d", "s", "t", "u", "v"];
        let topology = Topology {
            hosts: names[..4].iter().map(|n| ((*n).to_owned(), HostSpec::default())).collect(),
            switches: names[4..].iter().map(|n| ((*n).to_owned(), SwitchSpec {})).collect(),
            links: links.iter().map(|&(a, b)| LinkSpec::between(names[a], names[b])).collect(),
        };
        if topology.validate().is_ok() {
            let layout = crate::layout::Layout::from_topology(&topology).unwrap();
            let mut addresses: Vec<_> = layout
                .hosts
                .iter()
                .flat_map(|host| host.interfaces.iter().map(|i| i.address.address))
                .collect();
            let count = addresses.len();
            addresses.sort_unstable();
            addresses.dedup();
            prop_assert_eq!(addresses.len(), count);
        }
    }
}
