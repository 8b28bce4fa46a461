use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<PortUrl, PortError> {
    text.parse()
}

#[test]
fn names_and_keys_are_distinguished() {
    let url = parse("ring:0,rxd=18,burst=8,mtu=9000").unwrap();
    assert_eq!((url.kind().scheme, url.name()), ("ring", "0"));
    assert_eq!((url.rxd(), url.burst(), url.mtu()), (18, 8, 9000));
    assert_eq!(url.frame_bytes(), 9018);
    assert_eq!(url.to_string(), "ring:0,rxd=18,burst=8,mtu=9000");
    assert_eq!(url.short_name(), "ring:0");
    // Names that are also valid interface names.
    for (text, interface) in [
        ("packet:eth0", Some("eth0")),
        ("xdp:eth0,q=1", Some("eth0")),
        ("tap:eth0", Some("eth0")),
        ("shm:eth0", None),
        ("null:", None),
    ] {
        assert_eq!(parse(text).unwrap().interface(), interface, "{text}");
    }
    let url = parse("null:").unwrap();
    assert_eq!((url.name(), url.common()), ("", CommonOptions::default()));
    assert!(parse("null:force").unwrap().common().force);
    assert!(parse("null:queues=2").unwrap().common().queues == Some(2));
    assert!(!parse("null:force=no").unwrap().common().force);
    assert!(parse("null:").unwrap().with_force().common().force);
}

#[test]
fn errors_name_the_mistake_and_the_correct_form() {
    for (text, expected) in [
        ("eth0", "`eth0` has no kind"),
        ("ringg:0", "there is no port kind `ringg`"),
        ("ring:", "`ring:` names no"),
        ("tap:a/b", "an interface name of at most 15 bytes"),
        (
            "tap:sixteen-letters-",
            "an interface name of at most 15 bytes",
        ),
        ("null:7", "`null:` takes no name, but `null:7` gives `7`"),
        ("ring:0,rxdd=1", "`ring:` has no key `rxdd`"),
        (
            "ring:0,rxd=0",
            "`rxd=0` in `ring:0,rxd=0` is not a number from 1 to 65536",
        ),
        ("ring:0,rxd", "`rxd=` in `ring:0,rxd` is not a number"),
        (
            "ring:0,burst=33",
            "is not a number from 1 to 32: give one like `burst=32`",
        ),
        ("ring:0,mtu=1500,mtu=1500", "`mtu` is given twice"),
        ("ring:0,force=maybe", "is not a flag"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.is_usage(), "{text}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
        let problem = error.to_report();
        // The display adds a colon after the object.
        assert_eq!(problem.object, text.trim_end_matches(':'));
        assert!(!problem.next_step.is_empty() && !problem.situation.is_empty());
    }
}

#[test]
fn queues_are_a_range() {
    assert_eq!(parse_queues("0"), Some(0..=0));
    assert_eq!(parse_queues("1-3"), Some(1..=3));
    for text in ["", "3-1", "-", "1-", "x", "0-5000"] {
        assert_eq!(parse_queues(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "((null|ring|shm|packet|xdp|tap|pcap|dpdk):)?.{0,40}") {
        let _ = parse(&text);
    }

    #[test]
    fn accepted_urls_read_back(rxd in 1u32..=65_536, mtu in 68u16..=65_500) {
        let text = format!("ring:x,rxd={rxd},mtu={mtu}");
        let url = parse(&text).unwrap();
        prop_assert_eq!((url.rxd(), url.mtu()), (rxd, mtu));
        prop_assert_eq!(parse(&url.to_string()).unwrap().common(), url.common());
    }
}

#[test]
fn a_key_gets_another_value() {
    for (text, key, value, expected) in [
        ("ring:0", "rxd", "64", "ring:0,rxd=64"),
        ("ring:0,rxd=8,burst=4", "rxd", "64", "ring:0,burst=4,rxd=64"),
        ("null:", "queues", "2", "null:queues=2"),
        (
            "null:size=60,queues=4",
            "queues",
            "2",
            "null:size=60,queues=2",
        ),
        (
            "shm:mtu,role=server",
            "mtu",
            "900",
            "shm:mtu,role=server,mtu=900",
        ),
    ] {
        let changed = parse(text).unwrap().with_key(key, value).unwrap();
        assert_eq!(changed.to_string(), expected);
    }
    let changed = parse("ring:0")
        .unwrap()
        .with_force()
        .with_rx_destination(RxDestination::Port)
        .with_key("rxd", "9");
    let common = changed.unwrap().common();
    assert!(common.force && common.rx_destination == RxDestination::Port && common.rxd == Some(9));
    for (key, value) in [("rxd", "0"), ("rxd", "x"), ("nonsense", "1")] {
        assert!(
            parse("ring:0").unwrap().with_key(key, value).is_err(),
            "{key}={value}"
        );
    }
}
