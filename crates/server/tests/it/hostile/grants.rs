//! Privileges that a server gives remote clients only with a grant.

use super::*;

/// Returns the warnings of a server about timestamps that it did not grant, for a client on the
/// same host or elsewhere.
fn notes_for(test_server: &TestServer, address: Ipv4Addr) -> Vec<String> {
    let mut plan = udp_plan(test_server.port);
    plan.timestamps = TimestampLevel::Driver;
    let (mut peer, answer) = ManualPeer::propose_to(address, test_server.port, plan);
    let Frame::Accept(accept) = answer else {
        panic!("{answer:?}");
    };
    // The client keeps its level.
    assert_eq!(accept.plan.timestamps, TimestampLevel::Driver);
    let flow = UdpSocket::bind("0.0.0.0:0").unwrap();
    let opened = opening(accept.flows[0].token);
    flow.send_to(&opened, (address, test_server.port)).unwrap();
    assert!(matches!(peer.next(), Frame::Attached(_)));
    peer.send(StartRun::default());
    peer.send(SenderTotals {
        flows: vec![linerate_protocol::control::FlowTotal {
            id: 1,
            bytes: 0,
            packets: Some(0),
        }],
    });
    loop {
        if let Frame::Timestamps(stamps) = peer.next() {
            return stamps.caveats;
        }
    }
}

fn is_not_granted(notes: &[String]) -> bool {
    (notes.iter()).any(|note| note.contains("start it with --grant trace"))
}

#[test]
fn the_machine_is_traced_for_remote_clients_only_when_granted() {
    let Some(lab) = lab("the_machine_is_watched_for_far_clients") else {
        return;
    };
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    // The client sends this machine's boot id, as a real client here would: it has no effect.
    for (grants, from, expected) in [
        (vec![], client, true),
        (vec![Grant::Trace], client, false),
        (vec![], server, false),
    ] {
        let address = server.address();
        let granted = grants.clone();
        let test_server = server
            .run(|| TestServer::granting(address, granted))
            .unwrap();
        let notes = from.run(|| notes_for(&test_server, address)).unwrap();
        assert_eq!(is_not_granted(&notes), expected, "{grants:?} {notes:?}");
        let _ = test_server.end();
    }
}

#[test]
fn a_client_on_loopback_may_trace_the_machine() {
    let test_server = TestServer::granting(Ipv4Addr::LOCALHOST, Vec::new());
    let notes = notes_for(&test_server, Ipv4Addr::LOCALHOST);
    assert!(!is_not_granted(&notes), "{notes:?}");
    let _ = test_server.end();
}

#[test]
fn one_test_at_a_time_traces_the_machine() {
    let test_server = TestServer::start(false);
    let mut plan = udp_plan(test_server.port);
    plan.timestamps = TimestampLevel::Scheduler;
    let (first, _) = ManualPeer::accepted(test_server.port, plan.clone());
    plan.round_trips = Some(100);
    let record = run(plan).unwrap();
    let notes = record.stage_pass.unwrap().notes;
    let busy = |note: &String| note.contains("one test at a time");
    assert!(notes.iter().any(busy), "{notes:?}");
    drop(first);
    test_server.end().unwrap();
}

/// Returns the reply of a server with these grants to a client that requests a group.
fn reply_to_group(
    grants: &[Grant],
    server: Ipv4Addr,
    group: &str,
    test_server: &TestServer,
) -> Option<String> {
    let mut plan = udp_plan(test_server.port);
    plan.round_trip.group = Some(group.parse().unwrap());
    match ManualPeer::propose_to(server, test_server.port, plan).1 {
        Frame::Accept(_) => None,
        Frame::Reject(rejection) => {
            assert_eq!(
                rejection.exit_code,
                exit_codes::MISSING,
                "{grants:?} {rejection:?}"
            );
            Some(rejection.problem.next_step)
        }
        other => panic!("{server} {group} {grants:?}: {other:?}"),
    }
}

fn joins(expected: Option<&str>, got: Option<String>) {
    match (expected, got) {
        (None, None) => {}
        (Some(expected), Some(got)) => assert!(got.contains(expected), "{got}"),
        (expected, got) => panic!("{got:?}, not {expected:?}"),
    }
}

#[test]
fn groups_are_joined_for_remote_clients_only_when_granted() {
    let (group, other) = ("239.77.3.4", "ff12::77");
    let test_server = TestServer::granting(Ipv4Addr::LOCALHOST, Vec::new());
    joins(
        None,
        reply_to_group(&[], Ipv4Addr::LOCALHOST, group, &test_server),
    );
    let _ = test_server.end();
    let Some(lab) = lab("groups_are_joined_for_remote_clients") else {
        return;
    };
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    for (from, group, grants, expected) in [
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
        let test_server = server
            .run(|| TestServer::granting(address, granted))
            .unwrap();
        let answer = from.run(|| reply_to_group(&grants, address, group, &test_server));
        joins(expected, answer.unwrap());
        let _ = test_server.end();
    }
}
