//! Anti-amplification limit, in simulated time.

use std::net::{IpAddr, Ipv4Addr};

use linerate_protocol::amplification_guard::{
    AmplificationGuard, CREDIT_LIFETIME_NS, CREDIT_LIMIT_BYTES, GuardRules, IpNetwork,
    RATE_DEPTH_NS, RETURNED_REPLY_LIMIT, RETURNED_REPLY_PAUSE_NS, ReturnedReply, SendCredit,
    SendRejection, VALIDATION_LIFETIME_NS,
};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rules() -> GuardRules {
    GuardRules {
        neighbours: vec!["10.1.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()],
        ..GuardRules::default()
    }
}

#[test]
fn networks_contain_the_addresses_of_their_prefix() {
    for (network, address, has) in [
        ("10.1.0.0/24", "10.1.0.255", true),
        ("10.1.0.0/24", "10.1.1.0", false),
        ("10.1.0.77/24", "10.1.0.1", true),
        ("10.1.0.1", "10.1.0.1", true),
        ("10.1.0.1", "10.1.0.2", false),
        ("0.0.0.0/0", "203.0.113.9", true),
        ("0.0.0.0/0", "::1", false),
        ("::/0", "10.1.0.1", false),
        ("::/0", "2001:db8::1", true),
        ("2001:db8::/32", "2001:db8:ffff::1", true),
        ("2001:db8::/32", "2001:db9::1", false),
        ("::1", "::1", true),
        ("10.1.0.0/24", "::ffff:10.1.0.9", true),
        ("10.1.0.0/31", "10.1.0.1", true),
    ] {
        let parsed: IpNetwork = network.parse().unwrap();
        assert_eq!(parsed.contains(ip(address)), has, "{network} {address}");
    }
    let parsed: IpNetwork = "10.1.0.1".parse().unwrap();
    assert_eq!(parsed.to_string(), "10.1.0.1/32");
    for text in [
        "",
        "ten",
        "10.1.0.0/33",
        "::/129",
        "10.1.0.0/",
        "/8",
        "10.1.0.0/-1",
    ] {
        let error = text.parse::<IpNetwork>().unwrap_err();
        assert!(!error.to_string().is_empty(), "{text}");
    }
}

#[test]
fn flows_are_for_validated_or_named_addresses() {
    let allowed = ["203.0.113.0/24", "198.51.100.7", "2001:db8::7/128"];
    let mut guard = AmplificationGuard::new(GuardRules {
        allowed: allowed.map(|text| text.parse().unwrap()).to_vec(),
        ..rules()
    });
    for (address, may) in [
        ("198.51.100.7", true),
        ("::ffff:198.51.100.7", true),
        ("2001:db8::7", true),
        ("198.51.100.8", false),
        // In an allowed network, and a neighbour: only replies.
        ("203.0.113.9", false),
        ("10.1.0.5", false),
    ] {
        assert_eq!(guard.may_receive_flow(0, ip(address)), may, "{address}");
    }
    guard.validate(0, ip("10.1.0.5"));
    assert!(guard.may_receive_flow(0, ip("10.1.0.5")));
    assert!(!guard.may_receive_flow(VALIDATION_LIFETIME_NS + 1, ip("10.1.0.5")));
    let address = ip("203.0.113.9");
    assert_eq!(
        SendRejection::Unvalidated { address }.option(),
        Some("--allow")
    );
    // A named address gets replies under the same limits.
    guard.add_received(0, ip("198.51.100.7"), 100);
    assert!(guard.authorize_send(0, ip("198.51.100.7"), 101).is_err());
}

#[test]
fn no_address_receives_more_than_it_sent() {
    let mut guard = AmplificationGuard::new(rules());
    let peer = ip("10.1.0.5");
    assert_eq!(
        guard.authorize_send(0, peer, 1),
        Err(SendRejection::MoreThanReceived {
            address: peer,
            response_bytes: 1,
            credit_bytes: 0
        })
    );
    guard.add_received(0, peer, 1_470);
    assert_eq!(guard.authorize_send(0, peer, 1_470), Ok(()));
    let rejection = guard.authorize_send(0, peer, 128).unwrap_err();
    assert_eq!(rejection.option(), None, "only validation lifts it");
    // Empty replies to empty requests.
    assert_eq!(guard.authorize_send(0, peer, 0), Ok(()));
    // Credit cannot be saved for a later flood.
    guard.add_received(0, peer, 1 << 40);
    let mut sent = 0;
    while guard.authorize_send(3_600 * SECOND, peer, 65_000).is_ok() {
        sent += 65_000;
    }
    assert!(sent <= CREDIT_LIMIT_BYTES);
}

#[test]
fn beyond_a_router_only_allowed_addresses_get_replies() {
    let mut guard = AmplificationGuard::new(rules());
    let remote = ip("203.0.113.7");
    guard.add_received(0, remote, 100);
    let rejection = guard.authorize_send(0, remote, 100).unwrap_err();
    assert_eq!(rejection, SendRejection::NotNeighbour { address: remote });
    assert_eq!(rejection.option(), Some("--allow"));
    assert!(
        rejection.to_string().contains("--allow 203.0.113.7"),
        "{rejection}"
    );

    let mut guard = AmplificationGuard::new(GuardRules {
        allowed: vec!["203.0.113.0/24".parse().unwrap()],
        ..rules()
    });
    guard.add_received(0, remote, 100);
    assert_eq!(guard.authorize_send(0, remote, 100), Ok(()));
    // By default only this host is a neighbour.
    let mut guard = AmplificationGuard::new(GuardRules::default());
    for (address, answered) in [("127.0.0.9", true), ("::1", true), ("10.1.0.5", false)] {
        guard.add_received(0, ip(address), 10);
        assert_eq!(
            guard.authorize_send(0, ip(address), 10).is_ok(),
            answered,
            "{address}"
        );
    }
}

#[test]
fn validation_lifts_all_rules_until_it_expires() {
    let mut guard = AmplificationGuard::new(GuardRules {
        address_bytes_per_second: 1,
        total_bytes_per_second: 1,
        ..rules()
    });
    let remote = ip("203.0.113.7");
    guard.validate(5 * SECOND, remote);
    for at in [5 * SECOND, 5 * SECOND + VALIDATION_LIFETIME_NS] {
        assert_eq!(guard.authorize_send(at, remote, 1 << 30), Ok(()), "{at}");
    }
    // Datagrams may be forged: they do not extend the validation.
    guard.add_received(5 * SECOND + VALIDATION_LIFETIME_NS, remote, 1 << 30);
    assert!(
        guard
            .authorize_send(5 * SECOND + VALIDATION_LIFETIME_NS + 1, remote, 1)
            .is_err()
    );
    assert!(!guard.is_validated(0, remote));
    // An IPv4-mapped address is the same host.
    guard.validate(0, ip("::ffff:203.0.113.8"));
    assert_eq!(guard.authorize_send(0, ip("203.0.113.8"), 1), Ok(()));
}

#[test]
fn rates_apply_per_address_and_in_total() {
    let mut guard = AmplificationGuard::new(GuardRules {
        address_bytes_per_second: 1_000_000,
        total_bytes_per_second: 2_500_000,
        ..rules()
    });
    let peers: Vec<_> = (1..=4).map(|last| ip(&format!("10.1.0.{last}"))).collect();
    let mut sent = [0u64; 4];
    let mut rejected = [0u64; 2];
    // Ten seconds of 4 × 2 MB/s in steps of a millisecond.
    for step in 0..10_000u64 {
        let now = step * 1_000_000;
        for (peer, sent) in peers.iter().zip(&mut sent) {
            guard.add_received(now, *peer, 2_000);
            match guard.authorize_send(now, *peer, 2_000) {
                Ok(()) => *sent += 2_000,
                Err(rejection) => {
                    assert_eq!(rejection.option(), Some("--max-rate"));
                    match rejection {
                        SendRejection::AddressRate { .. } => rejected[0] += 1,
                        SendRejection::TotalRate { .. } => rejected[1] += 1,
                        other => panic!("{other}"),
                    }
                }
            }
        }
    }
    let depth = 250_000 + 65_536;
    assert!(
        sent.iter().all(|&sent| sent <= 10_000_000 + depth),
        "{sent:?}"
    );
    let total: u64 = sent.iter().sum();
    assert!(
        (24_900_000..=25_000_000 + depth).contains(&total),
        "{total}"
    );
    assert!(rejected.iter().all(|&refused| refused > 0), "{rejected:?}");
    const { assert!(RATE_DEPTH_NS == 100_000_000) };
}

/// Calls the guard only if the flow's credit is exhausted.
fn send_with_credit(
    guard: &mut AmplificationGuard,
    credit: &mut SendCredit,
    now: u64,
    to: IpAddr,
    bytes: u64,
) -> (bool, bool) {
    if credit.try_consume(now, bytes, bytes) {
        return (true, false);
    }
    let received_bytes = credit.take_unreported();
    match guard.grant_credit(now, to, received_bytes, bytes) {
        Ok(more) => {
            *credit = more;
            (true, true)
        }
        Err(_) => (false, true),
    }
}

#[test]
fn credit_obeys_the_rates_and_saves_calls() {
    let mut guard = AmplificationGuard::new(GuardRules {
        address_bytes_per_second: 1_000_000,
        total_bytes_per_second: 2_500_000,
        ..rules()
    });
    let mut credits = [SendCredit::default(); 4];
    let mut sent = [0u64; 4];
    for step in 0..10_000u64 {
        for (last, (credit, sent)) in credits.iter_mut().zip(&mut sent).enumerate() {
            let peer = ip(&format!("10.1.0.{last}"));
            for _ in 0..20 {
                let (may, _) = send_with_credit(&mut guard, credit, step * 1_000_000, peer, 100);
                *sent += u64::from(may) * 100;
            }
        }
    }
    let depth = 250_000 + 65_536;
    assert!(
        sent.iter().all(|&sent| sent <= 10_000_000 + depth),
        "{sent:?}"
    );
    let total: u64 = sent.iter().sum();
    assert!(
        (24_000_000..=25_000_000 + depth).contains(&total),
        "{total}"
    );

    // Below the rates: 100,000 requests per second cause few calls of the guard.
    let mut guard = AmplificationGuard::new(rules());
    let (peer, mut credit, mut calls) = (ip("10.1.0.1"), SendCredit::default(), 0);
    for at in 0..200_000u64 {
        let (may, called_guard) = send_with_credit(&mut guard, &mut credit, at * 10_000, peer, 64);
        assert!(may, "{at}");
        calls += u64::from(called_guard);
    }
    assert_eq!(calls, 2 * SECOND / CREDIT_LIFETIME_NS);

    // Credit expires, and with it the decision behind it.
    guard.set_neighbours(Vec::new());
    let (may, _) = send_with_credit(&mut guard, &mut credit, 3 * SECOND, peer, 64);
    assert!(!may);
}

#[test]
fn a_rate_of_nothing_lets_nothing_pass() {
    let mut guard = AmplificationGuard::new(GuardRules {
        address_bytes_per_second: 0,
        ..rules()
    });
    let peer = ip("10.1.0.1");
    guard.add_received(0, peer, 10);
    assert_eq!(
        guard.authorize_send(0, peer, 1),
        Err(SendRejection::AddressRate { address: peer })
    );
}

#[test]
fn forged_addresses_do_not_evict_validated_ones() {
    let mut guard = AmplificationGuard::with_addresses(rules(), 100);
    let validated = ip("10.1.0.9");
    guard.validate(0, validated);
    for number in 0..1_000_000u32 {
        guard.add_received(
            u64::from(number),
            IpAddr::V4(Ipv4Addr::from_bits(number)),
            1,
        );
    }
    assert_eq!(guard.address_counts(), (100, 1));
    assert_eq!(guard.authorize_send(SECOND, validated, 1 << 20), Ok(()));
    // An evicted address has no credit.
    let first = ip("10.1.0.0");
    guard.add_received(0, first, 500);
    for number in 0..100 {
        guard.add_received(0, IpAddr::V4(Ipv4Addr::from_bits(number)), 1);
    }
    assert!(matches!(
        guard.authorize_send(0, first, 1),
        Err(SendRejection::MoreThanReceived {
            credit_bytes: 0,
            ..
        })
    ));
}

proptest! {
    /// An address that was never validated receives at most the bytes that it sent, for any order
    /// of events.
    #[test]
    fn never_more_than_received(
        does in prop::collection::vec((0u8..4, 0u8..6, 0u64..3_000, 0u64..50_000_000), 0..300),
        addresses in 1usize..8,
    ) {
        let mut guard = AmplificationGuard::with_addresses(rules(), addresses);
        let mut now = 0;
        let mut came = [0u64; 6];
        let mut left = [0u64; 6];
        for (what, who, bytes, passed) in does {
            now += passed;
            let address = ip(&format!("10.1.0.{who}"));
            let who = usize::from(who);
            if what == 0 {
                guard.add_received(now, address, bytes);
                came[who] += bytes;
            } else if guard.authorize_send(now, address, bytes).is_ok() {
                left[who] += bytes;
            }
            prop_assert!(left[who] <= came[who], "{left:?} {came:?}");
            prop_assert!(guard.address_counts().0 <= addresses);
        }
    }

    /// The same rule holds for several flows of one address with credit.
    #[test]
    fn never_more_than_received_with_leave(
        does in prop::collection::vec((0usize..6, 0u64..3_000, 0u64..3_000, 0u64..8_000_000), 0..300),
    ) {
        let mut guard = AmplificationGuard::new(rules());
        let mut leaves = [SendCredit::default(); 6];
        let (mut now, mut came, mut left) = (0, [0u64; 3], [0u64; 3]);
        for (flow, bytes, answer, passed) in does {
            now += passed;
            let who = flow / 2;
            let address = ip(&format!("10.1.0.{who}"));
            came[who] += bytes;
            let leave = &mut leaves[flow];
            let may = leave.try_consume(now, bytes, answer) || {
                let unreported = leave.take_unreported();
                let granted = guard.grant_credit(now, address, unreported, answer);
                granted.map(|more| *leave = more).is_ok()
            };
            left[who] += if may { answer } else { 0 };
            prop_assert!(left[who] <= came[who], "{left:?} {came:?}");
        }
    }
}

/// A service that returns every reply is checked after a number of them, on whichever ports, and
/// whether or not its address is validated. It gets no reply until it has paused.
#[test]
fn a_service_that_returns_replies_is_found() {
    let mut guard = AmplificationGuard::new(GuardRules::default());
    let (looping, other) = (ip("10.0.0.1"), ip("10.0.0.2"));
    for number in 1..RETURNED_REPLY_LIMIT {
        let now = u64::from(number);
        assert_eq!(guard.count_returned(now, looping), ReturnedReply::Send);
        if number == 500 {
            guard.validate(now, looping);
        }
    }
    let check = guard.count_returned(1_000, looping);
    assert_eq!(check, ReturnedReply::SendAndCheck);
    assert_eq!(guard.count_returned(1_001, looping), ReturnedReply::Send);
    guard.mark_service(1_002, looping);
    // However slow the loop is.
    for pause in 0..100 {
        let now = 1_003 + pause * RETURNED_REPLY_PAUSE_NS;
        assert_eq!(guard.count_returned(now, looping), ReturnedReply::Reject);
    }
    assert_eq!(guard.count_returned(0, other), ReturnedReply::Send);
    let later = 1_004 + 100 * RETURNED_REPLY_PAUSE_NS;
    let mapped = ip("::ffff:10.0.0.1");
    assert_eq!(guard.count_returned(later, mapped), ReturnedReply::Send);
}

/// A client that sends the same datagram each time gets every reply, and is checked ever more rarely.
#[test]
fn a_client_that_repeats_itself_gets_every_reply() {
    let mut guard = AmplificationGuard::new(GuardRules::default());
    let mut checks = Vec::new();
    for number in 1..=60_000_u64 {
        let now = number * 100_000;
        match guard.count_returned(now, ip("10.0.0.1")) {
            ReturnedReply::Send => {}
            ReturnedReply::SendAndCheck => checks.push(number),
            ReturnedReply::Reject => panic!("{number}"),
        }
    }
    assert_eq!(
        checks,
        [1_000, 13_000, 27_000, 45_000],
        "10,000 in each second of a check"
    );
}

/// Two services on any ports, set on each other by one forged datagram: both are checked, also if
/// each of them returns something else than it receives.
#[test]
fn a_loop_of_two_services_is_found() {
    use linerate_protocol::amplification_guard::RecentReplies;
    use linerate_protocol::chargen;

    for (one, two) in [(false, false), (true, false), (true, true)] {
        let is_chargen = [one, two];
        let mut recent = [0, 1].map(|_| RecentReplies::new(None));
        let mut guards = [0, 1].map(|_| AmplificationGuard::new(GuardRules::default()));
        let mut datagram = vec![b'x'; 500];
        let peer: std::net::SocketAddr = "10.0.0.1:7777".parse().unwrap();
        let mut checks = 0;
        for lap in 0..3_000_u64 {
            let (at, line) = ((lap % 2) as usize, lap / 2);
            if recent[at].contains(recent[at].digest(peer, &datagram)) {
                let action = guards[at].count_returned(lap, peer.ip());
                checks += u32::from(action == ReturnedReply::SendAndCheck);
            }
            if is_chargen[at] {
                chargen::reply(datagram.len(), line, &mut datagram);
            }
            let digest = recent[at].digest(peer, &datagram);
            recent[at].insert(digest);
        }
        assert!(checks > 0, "chargen: {one} and {two}");
    }
}
