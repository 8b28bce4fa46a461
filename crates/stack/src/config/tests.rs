use super::*;

#[test]
fn profiles_are_those_of_the_experiment() {
    for (name, ..) in PROFILES {
        let config = StackConfig::profile(name).unwrap();
        // Every profile sets it; `StackConfig::minimal` has 1.
        assert!(config.rx_descriptors > 1, "{name}");
    }
    let small = StackConfig::profile("embedded-default").unwrap();
    let tuned = StackConfig::profile("embedded-tuned").unwrap();
    let figures = |config: &StackConfig| {
        (
            config.tcp.send_buffer,
            config.tcp.receive_window,
            config.udp.receive_queue,
            config.rx_descriptors,
            config.tcp.psh,
        )
    };
    assert_eq!(figures(&small), (1024, 1024, 1, 4, PshPolicy::Never));
    assert_eq!(figures(&tuned), (16384, 32768, 255, 18, PshPolicy::Never));
    assert!(
        tuned.driver.sched.real_time_priority() > tuned.application.sched.real_time_priority(),
        "the driver is above the application"
    );
    assert!(
        StackConfig::profile("fast")
            .unwrap_err()
            .to_string()
            .contains("embedded-tuned")
    );
}

#[test]
fn every_key_takes_what_it_gives() {
    for (name, ..) in PROFILES {
        let config = StackConfig::profile(name).unwrap();
        let mut copy = StackConfig::minimal();
        for (key, value) in config.entries() {
            copy.set(key, &value).unwrap();
        }
        assert_eq!(copy, config);
    }
}

#[test]
fn values_out_of_range_are_rejected() {
    let mut config = StackConfig::default();
    for (key, value) in [
        ("rx_descriptors", "0"),
        ("mtu", "100"),
        ("mtu", "large"),
        ("mtu", "1400.5"),
        ("ip.tos", "1.5"),
        ("tcp.send_buffer", "2G"),
        ("tcp.nagle", "maybe"),
        ("tcp.delayed_ack", "2s"),
        ("tcp.tail_probe", "2s"),
        ("poll.interval", "off"),
        ("threads.count", "3"),
        ("threads.driver.sched", "fifo:100"),
        ("threads.driver.cpus", "x"),
    ] {
        let rejected = config.set(key, value);
        assert!(
            matches!(rejected, Err(StackError::BadValue { .. })),
            "{key}={value}: {rejected:?}"
        );
    }
    assert_eq!(config, StackConfig::default());
    let unknown = config.set("tcp.window", "1").unwrap_err().to_string();
    assert!(unknown.contains("tcp.receive_window"), "{unknown}");
    assert!(config.apply("mtu").is_err());
    let unread = config
        .read_toml("mtu = 1400\n\n[tcp]\nnagle = \"x\n")
        .unwrap_err();
    assert!(unread.to_string().contains("(line 4: "), "{unread}");
}

#[test]
fn tables_and_dotted_keys_are_the_same() {
    let tables = "mtu = 1400\n[tcp]\nnagle = true\n[ip.reassembly_buffers]\ntimeout = \"2s\"\n";
    let dotted = "ip.reassembly_buffers.timeout = \"2s\"\nmtu = 1400\ntcp.nagle = true\n";
    let expected = [
        ("ip.reassembly_buffers.timeout", "2s"),
        ("mtu", "1400"),
        ("tcp.nagle", "on"),
    ];
    for text in [tables, dotted] {
        let mut settings = StackConfig::parse_toml(text).unwrap();
        settings.sort();
        let settings = settings.iter().map(|(key, value)| (&**key, &**value));
        assert_eq!(settings.collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn keywords_are_parsed() {
    let mut config = StackConfig::default();
    for (setting, expected) in [
        ("poll.interval=125us", "125us"),
        ("poll.interval=spin", "spin"),
        ("tcp.delayed_ack=off", "off"),
        ("tcp.delayed_ack=0.5ms", "500us"),
        ("tcp.tail_probe=off", "off"),
        ("tcp.tail_probe=2ms", "2ms"),
        ("tcp.tail_probe=10ms", "on"),
        ("tcp.tail_probe=on", "on"),
        ("tcp.send_buffer=16K", "16384"),
        ("ip.reassembly=no", "off"),
        ("threads.driver.cpus=0-1", "0-1"),
        ("threads.driver.cpus=any", "any"),
    ] {
        config.apply(setting).unwrap();
        let key = setting.split('=').next().unwrap();
        assert_eq!(config.get(key).unwrap(), expected, "{setting}");
    }
}
