//! Errors of names, routes, addresses and ports, before a server responds.

use super::common::{LINERATE, unshared};
use super::*;

#[test]
fn nobody_listens() {
    let room = Room::new();
    let nobody = DeafPort::new();
    let port = nobody.port;
    let object = format!("127.0.0.1:{port}");
    for words in ["throughput", "throughput -u -R", "latency", "latency -u"] {
        let words = format!("{words} 127.0.0.1 -p {port}");
        let next = format!("linerate server -p {port}");
        words_tell(
            &room,
            &words,
            &told(5, "connection refused", &object, &next),
        );
    }
}

#[test]
fn names_and_families() {
    let room = Room::new();
    for (words, situation, object) in [
        (
            "throughput no-such-host.invalid",
            "no such host name",
            "no-such-host.invalid",
        ),
        (
            "latency 127.0.0.1:5201",
            "no such host name",
            "127.0.0.1:5201",
        ),
        ("latency 300.1.1.1", "no such host name", "300.1.1.1"),
        (
            "throughput 127.0.0.1 -6",
            "is an IPv4 address, and -6",
            "127.0.0.1",
        ),
        ("throughput ::1 -4", "is an IPv6 address, and -4", "::1"),
        (
            "latency ::1 -B 127.0.0.1",
            "is an IPv6 address, and -B 127.0.0.1",
            "::1",
        ),
        ("latency fe80::1", "needs an interface", "fe80::1"),
    ] {
        words_tell(&room, words, &told(5, situation, object, "address"));
    }
}

/// Returns `linerate` with these arguments in a network namespace that the shell script `setup`
/// configures.
fn in_network(room: &Room, setup: &str, words: &str) -> Result<Command, String> {
    let script = format!("{setup}\nexec {LINERATE} {words} \"$@\"");
    unshared(room, "--net", &["sh", "-ec", &script, "sh"])
}

#[track_caller]
fn network_tells(room: &Room, setup: &str, words: &str, want: &Told) {
    let command = || in_network(room, setup, words);
    match (command(), command()) {
        (Ok(plain), Ok(json)) => tells(plain, json, want),
        (Err(why), _) | (_, Err(why)) => skip!("no network namespace: {why}"),
    }
}

#[test]
fn no_route() {
    let room = Room::new();
    for host in ["192.0.2.1", "2001:db8::1"] {
        let want = told(5, "no route", host, "ip route get");
        network_tells(&room, "", &format!("throughput {host}"), &want);
    }
}

/// Link without a receiver: the other end does not respond.
const NOWHERE: &str = "
    ip link add v0 type veth peer name v1
    ip address add 192.0.2.1/24 dev v0
    ip link set v0 up
    ip link set v1 up
    ip neighbour replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev v0 nud permanent";

#[test]
fn routes_that_refuse() {
    let room = Room::new();
    for kind in ["unreachable", "prohibit", "blackhole"] {
        let setup = format!("ip link set lo up; ip route add {kind} 192.0.2.0/24");
        let want = told(5, "no route", "192.0.2.8:5201", "ip route get");
        network_tells(&room, &setup, "latency 192.0.2.8", &want);
    }
}

#[test]
fn no_answer() {
    let room = Room::new();
    let want = told(
        5,
        "no reply within 5 s",
        "192.0.2.9:5201",
        "TCP port 5201 is open",
    );
    network_tells(&room, NOWHERE, "latency 192.0.2.9 -u", &want);
}

/// Invalid source addresses.
#[test]
fn local_addresses() {
    let room = Room::new();
    let server = room.server("-q");
    let port = server.port;
    for (option, object) in [
        ("-B 192.0.2.77", "192.0.2.77"),
        ("-B %no-such-if", "%no-such-if"),
        ("-B not-an-address", "not-an-address"),
    ] {
        let words = format!("throughput 127.0.0.1 -p {port} {option}");
        let code = if option.contains("not-an") { 2 } else { 1 };
        println!("{words}");
        let plain = room.run(&words).expect(code);
        assert!(in_one_line(&plain.stderr).contains(object), "{plain:?}");
        let json = room.run(&format!("{words} --json")).expect(code).json();
        assert!(
            json["error"]["object"].to_string().contains(object),
            "{json}"
        );
    }
    for option in ["-B 192.0.2.77", "-B %no-such-if"] {
        words_tell(
            &room,
            &format!("server -p 0 {option}"),
            &told(1, "local address", &option[3..], "ip address"),
        );
    }
    // A source port that is in use.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let taken = taken.local_addr().expect("it is bound").port();
    let words = format!("throughput 127.0.0.1 -p {port} -t 0.2 --source-port {taken}");
    words_tell(
        &room,
        &words,
        &told(
            1,
            "port is in use",
            &taken.to_string(),
            "choose another port",
        ),
    );
}

#[test]
fn ports_of_a_server() {
    let room = Room::new();
    let other = room.server("-q");
    let words = format!("server -p {}", other.port);
    let object = format!("port {}", other.port);
    words_tell(&room, &words, &told(1, "in use", &object, "ss -tulpn"));
    // TCP is free, UDP is not.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let port = socket.local_addr().expect("it is bound").port();
    let object = format!("port {port}");
    words_tell(
        &room,
        &format!("server -4 -p {port}"),
        &told(1, "in use", &object, "ss -tulpn"),
    );
}

/// Returns the lowest port that needs no privilege.
fn first_free_port() -> u32 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

#[test]
fn ports_of_root() {
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an unprivileged user here");
    };
    if first_free_port() <= 1 {
        skip!("all users may bind port 1 here (net.ipv4.ip_unprivileged_port_start)");
    }
    words_tell(
        &room,
        "server -p 1",
        &told(4, "privilege", "-p 1", "run as root"),
    );
}
