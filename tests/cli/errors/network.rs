//! Errors of names, routes, addresses and ports, before a server responds.

use super::*;
use crate::common::{LINERATE, unshare_command};

#[test]
fn no_server_listens() {
    let dir = TestDir::new();
    let closed_port = ClosedPort::new();
    let port = closed_port.port;
    let object = format!("127.0.0.1:{port}");
    for args in ["throughput", "throughput -u -R", "latency", "latency -u"] {
        let args = format!("{args} 127.0.0.1:{port}");
        let next = format!("linerate server -p {port}");
        check_args(
            &dir,
            &args,
            &expected_error(5, "connection refused", &object, &next),
        );
    }
}

#[test]
fn names_and_families() {
    let dir = TestDir::new();
    for (args, situation, object) in [
        (
            "throughput no-such-host.invalid",
            "no such host name",
            "no-such-host.invalid",
        ),
        ("latency fe80::1", "needs an interface", "fe80::1"),
        (
            "latency fe80::1%no-such-if",
            "this host has no interface no-such-if",
            "fe80::1%no-such-if",
        ),
    ] {
        check_args(&dir, args, &expected_error(5, situation, object, "address"));
    }
    for (args, situation) in [
        ("latency 300.1.1.1", "not an IPv4 address"),
        (
            "throughput http://example.net/x",
            "a URL (http), not a host: write example.net",
        ),
        (
            "throughput 127.0.0.1:5201 -p 5202",
            "two ports of one server",
        ),
    ] {
        let object = args.split(' ').nth(1).unwrap();
        check_args(&dir, args, &expected_error(2, situation, object, ""));
    }
    for (args, situation, object) in [
        (
            "throughput 127.0.0.1 -6",
            "127.0.0.1 is an IPv4 address",
            "-6",
        ),
        ("throughput ::1 -4", "::1 is an IPv6 address", "-4"),
        (
            "latency ::1 -B 127.0.0.1",
            "::1 is an IPv6 address",
            "-B 127.0.0.1",
        ),
    ] {
        check_args(&dir, args, &expected_error(2, situation, object, "address"));
    }
}

/// Returns `linerate` with these arguments in a network namespace that the shell script `setup`
/// configures.
fn command_in_network(dir: &TestDir, setup: &str, args: &str) -> Result<Command, String> {
    let script = format!("{setup}\nexec {LINERATE} {args} \"$@\"");
    unshare_command(dir, "--net", &["sh", "-ec", &script, "sh"])
}

#[track_caller]
fn check_network_error(dir: &TestDir, setup: &str, args: &str, expected: &ExpectedError) {
    let command = || command_in_network(dir, setup, args);
    match (command(), command()) {
        (Ok(plain), Ok(json)) => check_error(plain, json, expected),
        (Err(why), _) | (_, Err(why)) => skip!("no network namespace: {why}"),
    }
}

#[test]
fn no_route() {
    let dir = TestDir::new();
    for host in ["192.0.2.1", "2001:db8::1"] {
        let expected = expected_error(5, "no route", host, "ip route get");
        check_network_error(&dir, "", &format!("throughput {host}"), &expected);
    }
}

/// Link without a receiver: the other end does not respond.
const SILENT_LINK: &str = "
    ip link add v0 type veth peer name v1
    ip address add 192.0.2.1/24 dev v0
    ip link set v0 up
    ip link set v1 up
    ip neighbour replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev v0 nud permanent";

#[test]
fn routes_that_reject() {
    let dir = TestDir::new();
    for kind in ["unreachable", "prohibit", "blackhole"] {
        let setup = format!("ip link set lo up; ip route add {kind} 192.0.2.0/24");
        let expected = expected_error(5, "no route", "192.0.2.8:5201", "ip route get");
        check_network_error(&dir, &setup, "latency 192.0.2.8", &expected);
    }
}

#[test]
fn no_reply() {
    let dir = TestDir::new();
    let expected = expected_error(
        5,
        "no reply within 5 s",
        "192.0.2.9:5201",
        "TCP port 5201 is open",
    );
    check_network_error(&dir, SILENT_LINK, "latency 192.0.2.9 -u", &expected);
}

/// Invalid source addresses.
#[test]
fn local_addresses() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let port = server.port;
    for (option, object) in [
        ("-B 192.0.2.77", "192.0.2.77"),
        ("-B %no-such-if", "%no-such-if"),
        ("-B not-an-address", "not-an-address"),
    ] {
        let args = format!("throughput 127.0.0.1 -p {port} {option}");
        let code = if option.contains("not-an") { 2 } else { 1 };
        println!("{args}");
        let plain = dir.run(&args).expect(code);
        assert!(join_lines(&plain.stderr).contains(object), "{plain:?}");
        let json = dir.run(&format!("{args} --json")).expect(code).json();
        assert!(
            json["error"]["object"].to_string().contains(object),
            "{json}"
        );
    }
    for option in ["-B 192.0.2.77", "-B %no-such-if"] {
        check_args(
            &dir,
            &format!("server -p 0 {option}"),
            &expected_error(1, "local address", &option[3..], "ip address"),
        );
    }
    // A source port that is in use.
    let used_port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let used_port = used_port.local_addr().expect("it is bound").port();
    let args = format!("throughput 127.0.0.1 -p {port} -t 0.2 --source-port {used_port}");
    check_args(
        &dir,
        &args,
        &expected_error(
            1,
            "port is in use",
            &used_port.to_string(),
            "choose another port",
        ),
    );
}

#[test]
fn ports_of_a_server() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!("server -p {}", server.port);
    let object = format!("port {}", server.port);
    check_args(
        &dir,
        &args,
        &expected_error(1, "in use", &object, "ss -tulpn"),
    );
    // TCP is free, UDP is not.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let port = socket.local_addr().expect("it is bound").port();
    let object = format!("port {port}");
    check_args(
        &dir,
        &format!("server -4 -p {port}"),
        &expected_error(1, "in use", &object, "ss -tulpn"),
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
    let Some(dir) = TestDir::unprivileged() else {
        skip!("cannot become an unprivileged user here");
    };
    if first_free_port() <= 1 {
        skip!("all users may bind port 1 here (net.ipv4.ip_unprivileged_port_start)");
    }
    check_args(
        &dir,
        "server -p 1",
        &expected_error(4, "privilege", "-p 1", "run as root"),
    );
}
