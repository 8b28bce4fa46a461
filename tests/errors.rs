//! Every way in which a command can fail: exit code, and a text that names the situation, the object
//! and the next step; the same as one JSON document under `--json`.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use common::{
    DeafPort, LINERATE, LONG, Room, Running, Server, free_port, is_record, is_root, skip, unshared,
    without_user_namespaces,
};
use linerate_dialect::control::{Connection, Hello};
use rustix::process::Signal;
use serde_json::Value;

/// What a failure has to say: a part of each.
struct Told<'a> {
    code: i32,
    situation: &'a str,
    object: &'a str,
    next_step: &'a str,
}

fn told<'a>(code: i32, situation: &'a str, object: &'a str, next_step: &'a str) -> Told<'a> {
    Told {
        code,
        situation,
        object,
        next_step,
    }
}

/// Lines are wrapped for people.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a command as it is and with `--json`, both at once, and checks what they say.
#[track_caller]
fn tells(mut plain: Command, mut json: Command, want: &Told) {
    json.arg("--json");
    let (plain, json) = (Running::start(&mut plain), Running::start(&mut json));
    let plain = plain.wait().expect(want.code);
    let said = in_one_line(&plain.stderr);
    for part in [want.situation, want.object, want.next_step] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    let json = json.wait().expect(want.code);
    let document = json.json();
    assert_eq!(document["exit_code"], want.code, "{document}");
    let part = |name: &str| {
        let text = document["error"][name].as_str();
        text.unwrap_or_else(|| panic!("no {name} in {document}"))
            .to_owned()
    };
    for (name, want) in [("situation", want.situation), ("object", want.object)] {
        assert!(part(name).contains(want), "no `{want}` in {document}");
    }
    // Text for a usage error is clap's, which ends with a step of its own.
    assert!(!part("next_step").is_empty(), "{document}");
    if want.code != 2 {
        let step = part("next_step");
        assert!(step.contains(want.next_step), "{document}");
    }
}

#[track_caller]
fn words_tell(room: &Room, words: &str, want: &Told) {
    println!("{words}");
    tells(room.linerate(words), room.linerate(words), want);
}

/// A load at the far end that it does not allow costs no idle run first.
#[test]
fn a_load_that_is_not_granted() {
    let (near, far) = (Room::new(), Room::new());
    let server = far.server("-q");
    words_tell(
        &near,
        &format!("latency 127.0.0.1 -p {} --load cpu:1/1 -t 0.2", server.port),
        &told(
            4,
            "does not let clients keep its processors busy",
            "--load",
            "server --grant load",
        ),
    );
    assert!(near.stored().is_empty(), "nothing was measured");
    server.end().expect(0);
}

/// Arguments that cannot be meant: told before anything is connected to.
#[test]
fn nonsense_and_contradictions() {
    let room = Room::new();
    // A refused connection would end with 5.
    let nobody = DeafPort::new();
    let mut wrong = Vec::new();
    // What is wrong, and the word that the text has to name.
    for (words, named) in [
        ("throughput H -R --bidir", "--bidir"),
        ("throughput H -t 1 -n 1M", "-t"),
        ("throughput H -n 1M -O 1", "-O"),
        ("throughput H -u -C reno", "-C"),
        ("throughput H -4 -6", "--ipv6"),
        ("throughput H -P 0", "-P 0"),
        ("throughput H --threads 0", "--threads 0"),
        ("throughput H -P 2 --threads 3", "--threads 3"),
        (
            "throughput H -P 4 --threads 4/2 --wait block",
            "--wait block",
        ),
        ("throughput H -P many", "many"),
        ("throughput H -l 0", "-l 0"),
        ("throughput H -u -l 70000", "70000"),
        ("throughput H -l 1G", "1073741824"),
        ("throughput H -l much", "much"),
        ("throughput H -t 0", "-t 0"),
        ("throughput H -t soon", "soon"),
        ("throughput H -t=-1", "-1"),
        ("throughput H -b fast", "fast"),
        ("throughput H -n 0", "-n 0"),
        ("throughput H -i 1ms", "-i"),
        ("throughput H -w 0", "-w"),
        ("throughput H -w 8G", "-w"),
        ("throughput H -p 0", "-p 0"),
        ("throughput H -p 70000", "70000"),
        ("throughput H --repeat 0", "--repeat 0"),
        ("throughput H --expect p99<100us", "p99"),
        ("throughput H --expect nonsense", "nonsense"),
        ("throughput H --expect speed>1G", "speed"),
        ("throughput H --expect goodput>much", "much"),
        ("throughput H --cpu first", "first"),
        ("throughput H --cpu 3-1", "3-1"),
        ("throughput H --wait nap", "nap"),
        ("throughput H --wait busy-poll:1s", "busy-poll:1s"),
        ("latency H --load cpu:0", "cpu:0"),
        (
            "latency H --sched fifo:1 --wait spin --rt-yield --outstanding 4",
            "--rt-yield",
        ),
        (
            "latency H --sched fifo:1 --wait spin --rt-yield --stages",
            "--rt-yield",
        ),
        ("latency H -u --peer echo --stages", "--stages with --peer"),
        ("latency H --peer echo --trace f", "--trace with --peer"),
        ("latency H -u --load udp -C reno", "-C"),
        ("latency H -u --load cpu:1 -C reno", "-C"),
        ("throughput H --wait io-uring --offload trunc", "io-uring"),
        ("throughput H -u --wait block/io-uring --batch", "io-uring"),
        (
            "throughput H -u --wait io-uring -b 1M --pacing txtime",
            "io-uring",
        ),
        ("throughput H --batch", "--batch"),
        ("throughput H -u --batch=0", "--batch 0"),
        ("throughput H -u --batch=9999", "9999"),
        ("throughput H -u --batch=8 -b 1M", "-b"),
        ("throughput H -u --batch=8 --offload gso", "--offload"),
        ("throughput H --offload gso", "-u"),
        ("throughput H -u --offload trunc", "-u"),
        (
            "throughput H --dev tap:t0 --ip 10.0.0.2/24 --set threads.driver.cpus=1",
            "threads.driver.cpus=1",
        ),
        (
            "stack --dev tap:t0 --ip 10.0.0.2/24 --serve discard --stamp-payload 16",
            "--stamp-payload 16",
        ),
        ("stack --dev tap:t0 --ip 127.0.0.1/8", "127.0.0.1/8"),
        ("throughput H --offload sendfile,splice", "--offload"),
        ("throughput H --offload none,trunc", "--offload"),
        ("throughput H --verify --offload zerocopy", "--verify"),
        ("throughput H --source-port 0", "--source-port"),
        ("throughput H --source-port 65535 -P 2", "--source-port"),
        ("throughput H --color pink", "pink"),
        ("throughput H --frobnicate", "--frobnicate"),
        ("throughput H again", "again"),
        ("throughput", "<HOST>"),
        ("latency H -n 0", "-n 0"),
        ("latency H -n some", "some"),
        ("latency H -n 5 -t 1", "-t"),
        ("latency H -R", "-R"),
        ("latency H --timeout 0", "--timeout"),
        ("latency H --expect goodput>1G", "goodput"),
        ("server -4 -6", "--ipv6"),
        ("server -B not-an-address", "not-an-address"),
        ("server --time 3", "--time"),
        ("demo -t 0.01", "-t"),
        ("demo --expect goodput>1G", "--expect"),
        ("frobnicate", "frobnicate"),
        ("lab up", "<FILE>"),
        ("lab up some-file.toml --hops 1", "--hops"),
        ("lab up no-such-file.toml", "no-such-file.toml"),
        ("lab up --hops many", "many"),
    ] {
        let words = words.replace(" H", &format!(" 127.0.0.1 -p {}", nobody.port));
        // A port given twice would be the error, rather than the one that is meant.
        let words = match words.matches(" -p ").count() {
            2 => words.replace(&format!(" -p {}", nobody.port), ""),
            _ => words,
        };
        let plain = room.run(&words);
        let json = room.run(&format!("{words} --json"));
        let mut want = |holds: bool, what: &str| {
            if !holds {
                wrong.push(format!("`{words}` {what}: {plain:?} {json:?}"));
            }
        };
        want(plain.status.code() == Some(2), "does not end with 2");
        want(
            json.status.code() == Some(2),
            "does not end with 2 under --json",
        );
        let said = in_one_line(&plain.stderr);
        want(said.contains(named), "does not name what is wrong");
        want(said.contains("help"), "shows no next step");
        want(plain.stdout.is_empty(), "prints to standard output");
        let error = match serde_json::from_str::<Value>(&json.stdout) {
            Ok(document) => document["error"].clone(),
            Err(_) => Value::Null,
        };
        for part in ["situation", "object", "next_step"] {
            let text = error[part].as_str();
            want(text.is_some_and(|text| !text.is_empty()), part);
        }
        let said = format!("{} {}", error["situation"], error["object"]);
        want(said.contains(named), "does not name what is wrong in JSON");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

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
        ("latency fe80::1", "needs the interface", "fe80::1"),
    ] {
        words_tell(&room, words, &told(5, situation, object, "address"));
    }
}

/// `linerate` with these words in a network namespace that `setup` (a shell script) has furnished.
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

/// A link into nowhere: whoever is on its other end does not answer.
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
        "no answer within 5 s",
        "192.0.2.9:5201",
        "TCP port 5201 is open",
    );
    network_tells(&room, NOWHERE, "latency 192.0.2.9 -u", &want);
}

/// An address that cannot be sent from.
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
    // A source port that somebody has.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let taken = taken.local_addr().expect("it is bound").port();
    let words = format!("throughput 127.0.0.1 -p {port} -t 0.2 --source-port {taken}");
    words_tell(
        &room,
        &words,
        &told(
            1,
            "port is taken",
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
    words_tell(&room, &words, &told(1, "taken", &object, "ss -tulpn"));
    // TCP is free, UDP is not.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let port = socket.local_addr().expect("it is bound").port();
    let object = format!("port {port}");
    words_tell(
        &room,
        &format!("server -4 -p {port}"),
        &told(1, "taken", &object, "ss -tulpn"),
    );
}

/// The lowest port that everybody may take.
fn first_free_port() -> u32 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

#[test]
fn ports_of_root() {
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an ordinary user here");
    };
    if first_free_port() <= 1 {
        skip!("everybody may take port 1 here (net.ipv4.ip_unprivileged_port_start)");
    }
    words_tell(
        &room,
        "server -p 1",
        &told(4, "privilege", "-p 1", "run as root"),
    );
}

#[test]
fn congestion_controls() {
    let room = Room::new();
    let server = room.server("-q");
    let words = format!("throughput 127.0.0.1 -p {} -C no-such", server.port);
    let want = told(
        4,
        "no such congestion control",
        "-C no-such",
        "modprobe tcp_no-such",
    );
    words_tell(&room, &words, &want);

    let list = |name: &str| -> Vec<String> {
        let text =
            std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{name}_congestion_control"));
        let text = text.unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let allowed = list("allowed");
    let Some(forbidden) = list("available")
        .into_iter()
        .find(|name| !allowed.contains(name))
    else {
        skip!("every congestion control that the kernel has is allowed to everybody");
    };
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an ordinary user here");
    };
    let words = format!("throughput 127.0.0.1 -p {} -C {forbidden}", server.port);
    words_tell(
        &room,
        &words,
        &told(4, "not allowed", &forbidden, "tcp_allowed"),
    );
}

/// What a server may do is what its grants say, whoever started it.
#[test]
fn reserved_socket_options_are_for_those_whom_they_are_granted() {
    if !is_root() {
        skip!("an ordinary user's server has nothing to grant");
    }
    let room = Room::new();
    let words = |server: &Server| {
        let port = server.port;
        format!("throughput 127.0.0.1 -p {port} -t 0.2 --socket-priority 7")
    };
    let granting = room.server("-q --grant socket");
    assert_eq!(room.run(&words(&granting)).code(), 0);
    let server = room.server("-q");
    words_tell(
        &room,
        &words(&server),
        &told(4, "refuses", "--socket-priority 7", "--grant socket"),
    );
}

#[test]
fn processors() {
    let room = Room::new();
    let server = room.server("-q");
    for cpus in ["8000", "8000/0", "0/8000"] {
        let words = format!("throughput 127.0.0.1 -p {} --cpu {cpus}", server.port);
        words_tell(&room, &words, &told(4, "processor", "--cpu 8000", "choose"));
    }
}

/// Takes connections on a port of loopback and does something else with them.
fn other_program(speak: impl Fn(TcpStream) + Send + Clone + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    other_program_on(listener, speak)
}

fn other_program_on(
    listener: TcpListener,
    speak: impl Fn(TcpStream) + Send + Clone + 'static,
) -> u16 {
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let speak = speak.clone();
            std::thread::spawn(move || speak(stream));
        }
    });
    port
}

#[test]
fn something_else_on_the_port() {
    let room = Room::new();
    let mail = other_program(|mut stream| {
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        let _ = stream.read(&mut [0; 64]);
    });
    let web = other_program(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let iperf3 = other_program(|mut stream| {
        let _ = stream.read_exact(&mut [0; 37]);
        let _ = stream.write_all(&[9]);
        let _ = stream.read(&mut [0; 64]);
    });
    for port in [mail, web, iperf3] {
        let words = format!("throughput 127.0.0.1 -p {port} -t 1");
        let object = format!("127.0.0.1:{port}");
        let want = told(
            5,
            "does not speak linerate's protocol",
            &object,
            "check the port",
        );
        words_tell(&room, &words, &want);
    }
    let closes = other_program(|stream| {
        let _ = stream.shutdown(Shutdown::Both);
    });
    let words = format!("latency 127.0.0.1 -p {closes}");
    words_tell(
        &room,
        &words,
        &told(
            5,
            "closes the connection",
            &format!("127.0.0.1:{closes}"),
            "--peer auto",
        ),
    );
}

/// It takes the connection and says nothing: the wait is over when the text says so.
#[test]
fn somebody_silent_on_the_port() {
    let room = Room::new();
    let port = other_program(|_stream| std::thread::sleep(LONG));
    let words = format!("latency 127.0.0.1 -p {port}");
    words_tell(
        &room,
        &words,
        &told(5, "10 s", &format!("127.0.0.1:{port}"), "--peer auto"),
    );
}

#[test]
fn another_version() {
    let room = Room::new();
    let port = other_program(|mut stream| {
        let hello = Hello {
            protocol_min: 700,
            protocol_max: 900,
            ..Hello::new("linerate 99.0.0")
        };
        let mut connection = Connection::server(hello).expect("a short greeting");
        let mut bytes = [0; 4096];
        while connection.outgoing().is_empty() {
            match stream.read(&mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(count) => connection.receive(&bytes[..count]).expect("it fits"),
            }
            // That its versions do not fit is what this is about.
            let _ = connection.next_frame();
        }
        let _ = stream.write_all(connection.outgoing());
        let _ = stream.read(&mut bytes);
    });
    let words = format!("throughput 127.0.0.1 -p {port}");
    let object = format!("127.0.0.1:{port}");
    let want = told(5, "700 to 900", &object, "same version");
    words_tell(&room, &words, &want);
}

/// Passes TCP on to a server, and nothing else: as a firewall that nobody told of UDP.
fn tcp_only(server: u16) -> (u16, UdpSocket) {
    let port = free_port();
    let here = (Ipv4Addr::LOCALHOST, port);
    let listener = TcpListener::bind(here).expect("a free port");
    let hole = UdpSocket::bind(here).expect("UDP is free where TCP was");
    let port = other_program_on(listener, move |near| {
        let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        };
        let (back, forth) = (
            (
                far.try_clone().expect("a copy"),
                near.try_clone().expect("a copy"),
            ),
            (near, far),
        );
        std::thread::spawn(move || pass(back.0, back.1));
        pass(forth.0, forth.1);
    });
    (port, hole)
}

#[test]
fn udp_does_not_get_through() {
    let room = Room::new();
    let server = room.server("-q");
    let (port, _hole) = tcp_only(server.port);
    let words = format!("throughput 127.0.0.1 -u -p {port}");
    let open = format!("open UDP port {port}");
    words_tell(
        &room,
        &words,
        &told(5, "UDP does not get through", "127.0.0.1", &open),
    );
    // It was the way that was blocked: the server serves on.
    let direct = format!("throughput 127.0.0.1 -u -p {} -t 0.2", server.port);
    room.run(&direct).expect(0);
}

/// Waits until the next test has begun at a server that tells its events.
fn server_that_tells(room: &Room) -> common::Server {
    room.server("--json-stream")
}

/// Passes TCP on, and changes the byte at that offset of a flow's payload.
fn changing(server: u16, offset: usize) -> u16 {
    const OPENING: &[u8] = b"\x01lr\xC0\xFFdat";
    const OPENING_BYTES: usize = 24;
    other_program(move |near| {
        let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        let mut back = (
            far.try_clone().expect("a copy"),
            near.try_clone().expect("a copy"),
        );
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back.0, &mut back.1);
            let _ = back.1.shutdown(Shutdown::Both);
        });
        let (mut near, mut far) = (near, far);
        let (mut room, mut passed, mut is_flow) = (vec![0; 1 << 16], 0, false);
        while let Ok(bytes @ 1..) = near.read(&mut room) {
            if passed == 0 {
                is_flow = room.starts_with(OPENING);
            }
            let at = OPENING_BYTES + offset;
            if is_flow && (passed..passed + bytes).contains(&at) {
                room[at - passed] ^= 1;
            }
            passed += bytes;
            if far.write_all(&room[..bytes]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(Shutdown::Write);
    })
}

#[test]
fn changed_content_is_a_failed_run() {
    let room = Room::new();
    let server = common::Server::start(&mut room.linerate("server -p 0 -q"));
    let port = changing(server.port, 4_321);
    let words = format!("throughput 127.0.0.1 -p {port} -n 1M --verify -q");
    let plain = room.run(&words).expect(1);
    let said = in_one_line(&format!("{} {}", plain.stdout, plain.stderr));
    for part in ["offset 4321", "content-mismatch", "error: content", "help:"] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    let json = room.run(&format!("{words} --json")).expect(1).json();
    is_record(&json);
    assert_eq!(json["summary"]["mismatched"], 1, "{json}");
    let first = &json["directions"][0]["streams"][0]["mismatch"];
    assert_eq!(first["offset"], 4_321, "{json}");
    // Straight to the server nothing is changed.
    let words = words.replace(&port.to_string(), &server.port.to_string());
    room.run(&words).expect(0);
}

#[test]
fn busy_polling_may_be_the_superusers() {
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an ordinary user here");
    };
    let server = common::Server::start(&mut room.linerate("server -p 0 -q"));
    let words = |port| format!("throughput 127.0.0.1 -p {port} --wait busy-poll");
    let tried = room.run(&format!("{} -t 0.1 -q", words(server.port)));
    if tried.status.success() {
        // Nothing on loopback could be polled, and it says so.
        assert!(tried.stdout.contains("nothing-to-poll"), "{tried:?}");
        skip!("this kernel lets everybody busy-poll");
    }
    let want = told(
        4,
        "Operation not permitted",
        "busy-poll",
        "net.core.busy_read",
    );
    words_tell(&room, &words(server.port), &want);
}

#[test]
fn a_killed_server_ends_the_test_with_what_there_is() {
    let room = Room::new();
    for form in ["", "--json", "--json-stream"] {
        let mut server = server_that_tells(&room);
        let words = format!(
            "throughput 127.0.0.1 -p {} -t 60 -b 50M -i 0.1 {form}",
            server.port
        );
        let client = Running::start(&mut room.linerate(&words));
        server.running.started();
        // Some intervals, so that there is something to keep.
        std::thread::sleep(Duration::from_secs(1));
        server.running.signal(Signal::KILL);
        let client = client.wait().expect(5);
        match form {
            "" => {
                assert!(client.stderr.contains("vanished"), "{client:?}");
                assert!(client.stderr.contains("help:"), "{client:?}");
                assert!(client.stdout.contains("interrupted"), "{client:?}");
            }
            "--json" => {
                assert!(client.stderr.contains("vanished"), "{client:?}");
                vanished(&client.json());
            }
            _ => {
                let last = client
                    .json_lines()
                    .into_iter()
                    .rfind(|line| line["event"] == "finished");
                vanished(&last.expect("a last event")["record"]);
            }
        }
    }
    for record in room.stored() {
        is_record(&record);
    }
}

/// A flow that breaks in the middle of a write keeps the time and the cost that it had until then.
#[test]
fn a_broken_stream_keeps_its_time() {
    let room = Room::new();
    for (way, moved) in [("", "bytes_sent"), ("-R", "bytes_received")] {
        let mut server = server_that_tells(&room);
        let words = format!(
            "throughput 127.0.0.1 -p {} -t 600 --json {way}",
            server.port
        );
        let client = Running::start(&mut room.linerate(&words));
        server.running.started();
        std::thread::sleep(Duration::from_millis(1_500));
        server.running.signal(Signal::KILL);
        let record = client.wait().expect(5).json();
        vanished(&record);
        let summary = &record["summary"];
        let lasted = summary["duration_ns"].as_u64().unwrap_or_default();
        // Not over the time that it was to take: a receiver would divide by that.
        assert!(
            (200_000_001..500_000_000_000).contains(&lasted),
            "{summary:#}"
        );
        assert!(summary[moved].as_u64() > Some(0), "{summary:#}");
        let share = summary["cpu"][0]["share"].as_f64();
        assert!(
            share.is_none_or(|share| share < 4.0),
            "one thread: {summary:#}"
        );
    }
}

/// A record of a run whose far end went away.
#[track_caller]
fn vanished(record: &Value) {
    is_record(record);
    assert_eq!(record["interrupted"], true);
    let doubts = record["validity"].as_array().expect("a list");
    assert!(
        doubts.iter().any(|doubt| doubt["doubt"] == "peer-vanished"),
        "{doubts:?}"
    );
}

/// Neither end waits for the other longer than it says; a server serves on.
#[test]
fn silence_is_not_waited_for() {
    let room = Room::new();
    let mut server = server_that_tells(&room);
    let words = format!("latency 127.0.0.1 -p {} -t 600", server.port);
    let near = Running::start(&mut room.linerate(&words));
    server.running.started();
    // The client stops answering; it is the server that has to notice.
    near.signal(Signal::STOP);
    let mut frozen = room.server("--json-stream");
    let words = format!("latency 127.0.0.1 -p {} -t 600", frozen.port);
    let far = Running::start(&mut room.linerate(&words));
    frozen.running.started();
    frozen.running.signal(Signal::STOP);
    let far = far.wait().expect(5);
    assert!(far.stderr.contains("14 s"), "{far:?}");
    server.running.line(|line| {
        line.contains(r#""event":"finished""#) || line.contains(r#""event":"failed""#)
    });
    room.run(&format!("latency 127.0.0.1 -p {} -n 10", server.port))
        .expect(0);
}

/// Files that cannot be written.
#[test]
fn files() {
    let room = Room::new();
    let server = room.server("-q");
    let words = format!(
        "latency 127.0.0.1 -p {} -n 10 -o no-such-folder/x.json",
        server.port
    );
    words_tell(
        &room,
        &words,
        &told(
            1,
            "cannot be written",
            "no-such-folder/x.json",
            "create no-such-folder",
        ),
    );
    words_tell(
        &room,
        "demo --dir /proc/no-such",
        &told(1, "folder", "/proc/no-such", "--dir"),
    );
}

/// Lab files that make no sense; what is wrong with each is tested in `lab`.
#[test]
fn lab_files() {
    let room = Room::new();
    for (name, text, named) in [
        ("no.toml", "what is this?", "line 1"),
        ("unknown.toml", "[hosts.a]\ncolour = \"red\"\n", "colour"),
        (
            "nobody.toml",
            "[hosts.a]\n[[links]]\nbetween = [\"a\", \"b\"]\n",
            "b",
        ),
        (
            "rate.toml",
            "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = [\"a\", \"b\"]\nrate = \"fast\"\n",
            "fast",
        ),
        (
            "mtu.toml",
            "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = [\"a\", \"b\"]\nmtu = 3\n",
            "mtu",
        ),
        ("empty.toml", "", "host"),
    ] {
        std::fs::write(room.path().join(name), text).expect("a file");
        let words = format!("lab up {name}");
        println!("{words}");
        let plain = room.run(&words).expect(2);
        let said = in_one_line(&plain.stderr);
        assert!(
            said.contains(named) && said.contains("help"),
            "{name}: {said}"
        );
        let error = room.run(&format!("{words} --json")).expect(2).json();
        let error = error["error"].to_string();
        assert!(error.contains(named), "{name}: {error}");
    }
}

#[test]
fn labs_that_are_not_there() {
    let room = Room::new();
    for words in [
        "lab exec no-such-lab/client -- true",
        "lab down no-such-lab",
    ] {
        let ended = room.run(words).expect(1);
        assert!(ended.stderr.contains("no-such-lab"), "{ended:?}");
        assert!(ended.stderr.contains("help"), "{ended:?}");
    }
    let name = format!("t{}/x", std::process::id());
    let ended = room.run(&format!("lab up --hops 0 --name {name}"));
    assert!(matches!(ended.code(), 1 | 2), "{ended:?}");
    assert!(ended.stderr.contains(&name), "{ended:?}");
}

/// A lab needs a privilege or a user namespace, and says which.
#[test]
fn a_lab_where_user_namespaces_are_forbidden() {
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an ordinary user here");
    };
    let words = "lab up --hops 0";
    match (
        without_user_namespaces(&room, words),
        without_user_namespaces(&room, words),
    ) {
        (Ok(plain), Ok(json)) => {
            let want = told(
                4,
                "user namespaces",
                "lab",
                "sysctl -w user.max_user_namespaces",
            );
            tells(plain, json, &want);
        }
        (Err(why), _) | (_, Err(why)) => skip!("{why}"),
    }
}
