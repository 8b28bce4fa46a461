//! Privileges that a server gives remote clients only with a grant.

use super::*;

/// Returns the warnings of a server about timestamps that it did not grant, for a client on the
/// same host or elsewhere.
fn notes_for(far: &Far, address: Ipv4Addr) -> Vec<String> {
    let mut plan = udp_plan(far.port);
    plan.stamps = Stamping::Driver;
    let (mut hand, answer) = Hand::propose_to(address, far.port, plan);
    let Frame::Accept(accept) = answer else {
        panic!("{answer:?}");
    };
    // The client keeps its level.
    assert_eq!(accept.plan.stamps, Stamping::Driver);
    let flow = UdpSocket::bind("0.0.0.0:0").unwrap();
    let opened = opening(accept.flows[0].token);
    flow.send_to(&opened, (address, far.port)).unwrap();
    assert!(matches!(hand.next(), Frame::Attached(_)));
    hand.say(Start::default());
    hand.say(Sent {
        flows: vec![linerate_dialect::control::FlowTotal {
            id: 1,
            bytes: 0,
            packets: Some(0),
        }],
    });
    loop {
        if let Frame::Stamps(stamps) = hand.next() {
            return stamps.notes;
        }
    }
}

fn is_not_granted(notes: &[String]) -> bool {
    (notes.iter()).any(|note| note.contains("start it with --grant trace"))
}

#[test]
fn the_machine_is_watched_for_far_clients_only_when_that_is_granted() {
    let Some(lab) = lab("the_machine_is_watched_for_far_clients") else {
        return;
    };
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    // The client sends this machine's boot id, as a real client here would: it has no effect.
    for (grants, from, want) in [
        (vec![], client, true),
        (vec![Grant::Trace], client, false),
        (vec![], server, false),
    ] {
        let address = server.address();
        let granted = grants.clone();
        let far = server.run(|| Far::granting(address, granted)).unwrap();
        let notes = from.run(|| notes_for(&far, address)).unwrap();
        assert_eq!(is_not_granted(&notes), want, "{grants:?} {notes:?}");
        let _ = far.end();
    }
}

#[test]
fn a_client_on_loopback_watches_its_own_machine() {
    let far = Far::granting(Ipv4Addr::LOCALHOST, Vec::new());
    let notes = notes_for(&far, Ipv4Addr::LOCALHOST);
    assert!(!is_not_granted(&notes), "{notes:?}");
    let _ = far.end();
}

#[test]
fn one_test_at_a_time_watches_the_machine() {
    let far = Far::start(false);
    let mut plan = udp_plan(far.port);
    plan.stamps = Stamping::Scheduler;
    let (first, _) = Hand::accepted(far.port, plan.clone());
    plan.round_trips = Some(100);
    let record = run(plan).unwrap();
    let notes = record.stage_pass.unwrap().notes;
    let busy = |note: &String| note.contains("for one test at a time");
    assert!(notes.iter().any(busy), "{notes:?}");
    drop(first);
    far.end().unwrap();
}

/// Returns the reply of a server with these grants to a client that requests a group.
fn answer_to_group(grants: &[Grant], server: Ipv4Addr, group: &str, far: &Far) -> Option<String> {
    let mut plan = udp_plan(far.port);
    plan.round_trip.group = Some(group.parse().unwrap());
    match Hand::propose_to(server, far.port, plan).1 {
        Frame::Accept(_) => None,
        Frame::Refuse(refuse) => {
            assert_eq!(refuse.exit_code, exit::MISSING, "{grants:?} {refuse:?}");
            Some(refuse.problem.next_step)
        }
        other => panic!("{server} {group} {grants:?}: {other:?}"),
    }
}

fn joins(want: Option<&str>, got: Option<String>) {
    match (want, got) {
        (None, None) => {}
        (Some(want), Some(got)) => assert!(got.contains(want), "{got}"),
        (want, got) => panic!("{got:?}, not {want:?}"),
    }
}

#[test]
fn groups_are_joined_for_far_clients_only_when_that_is_granted() {
    let (group, other) = ("239.77.3.4", "ff12::77");
    let far = Far::granting(Ipv4Addr::LOCALHOST, Vec::new());
    joins(None, answer_to_group(&[], Ipv4Addr::LOCALHOST, group, &far));
    let _ = far.end();
    let Some(lab) = lab("groups_are_joined_for_far_clients") else {
        return;
    };
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    for (from, group, grants, want) in [
        (client, group, vec![], Some("--grant multicast")),
        (client, other, vec![], Some("--grant multicast")),
        (client, group, vec![Grant::Multicast], None),
        // Past the grant; the group is of the wrong family.
        (client, other, vec![Grant::Multicast], Some("ip maddress")),
        // An address of this host.
        (server, other, vec![], Some("ip maddress")),
    ] {
        let address = server.address();
        let granted = grants.clone();
        let far = server.run(|| Far::granting(address, granted)).unwrap();
        let answer = from.run(|| answer_to_group(&grants, address, group, &far));
        joins(want, answer.unwrap());
        let _ = far.end();
    }
}
