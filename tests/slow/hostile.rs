//! What honest clients and the server's host notice of attacks: `make hostile`.
//!
//! Writes the table in `docs/SECURITY.md`. A lab has three hosts at a switch with links of 1 Gb/s:
//! the server, an honest client, and the attacker, whose program is [`attacker`] below.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{RunningCommand, TestDir, TestLab, finish, is_selected, lab, number_at};

/// Address of the server, and its port for echo.
const SERVER: &str = "10.77.0.2";
const ECHO_PORT: u16 = 7777;

/// Variable with the attack of the attacker's process.
const ATTACK: &str = "LINERATE_TEST_ATTACK";

/// Opening of a control connection with a key, and the length of a first message.
const OPENING: &[u8] = b"\x01lr\xC0\xFFctl\x01";

/// Attack: a name, its description, and whether the server has a key.
struct Attack {
    name: &'static str,
    text: &'static str,
    has_key: bool,
    run: fn(),
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "none",
        text: "no attack",
        has_key: false,
        run: || std::thread::sleep(Duration::from_secs(3_600)),
    },
    Attack {
        name: "connects",
        text: "connections that are closed at once, as fast as possible",
        has_key: false,
        run: || loop {
            drop(connect());
        },
    },
    Attack {
        name: "silent",
        text: "connections that send nothing, as many as possible",
        has_key: false,
        run: || hold(10_000, |_| {}),
    },
    Attack {
        name: "beginnings",
        text: "connections with the first 9 bytes of the handshake, 1,000 a second, without the key",
        has_key: true,
        run: || hold(1_000, |stream| drop(stream.write_all(OPENING))),
    },
    Attack {
        name: "worthless-proofs",
        text: "connections with a first message that proves nothing, 1,000 a second",
        has_key: true,
        run: || {
            let first = [OPENING, &[0, 48], &[7; 48]].concat();
            hold(1_000, |stream| drop(stream.write_all(&first)));
        },
    },
    Attack {
        name: "few-bytes",
        text: "tests with 64 B each, of every protocol that needs no handshake, 1,000 a second",
        has_key: false,
        run: || {
            let firsts: [&[u8]; 3] = [&[b'x'; 64], &[0; 64], b"\0\0\0\0\0\0\0\x01\0\x03\0\0\0\x40"];
            let mut number = 0;
            hold(1_000, |stream| {
                number += 1;
                let _ = stream.write_all(firsts[number % firsts.len()]);
            });
        },
    },
    Attack {
        name: "garbage",
        text: "random bytes over TCP, 1,000 connections a second",
        has_key: false,
        run: || {
            let mut state = 1_u64;
            hold(1_000, |stream| {
                let mut bytes = [0; 512];
                for byte in &mut bytes {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    *byte = (state >> 56) as u8;
                }
                let _ = stream.write_all(&bytes);
            });
        },
    },
    Attack {
        name: "datagrams",
        text: "datagrams of 64 B from changing ports, 20,000 a second",
        has_key: false,
        run: || {
            let start = Instant::now();
            for number in 1_u32.. {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                let _ = socket.send_to(&[7; 64], (SERVER, 5201));
                let due = Duration::from_micros(50) * number;
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
        },
    },
    Attack {
        name: "echo-loop",
        text: "a service that returns every datagram, set on the server's echo by one datagram a second",
        has_key: false,
        run: || {
            let socket = UdpSocket::bind("0.0.0.0:8888").expect("a socket");
            socket
                .set_read_timeout(Some(Duration::from_secs(1)))
                .expect("a time");
            let mut buffer = [b'x'; 1_400];
            let to = SocketAddr::new(SERVER.parse().expect("an address"), ECHO_PORT);
            let _ = socket.send_to(&buffer, to);
            loop {
                match socket.recv_from(&mut buffer) {
                    Ok((bytes, from)) => drop(socket.send_to(&buffer[..bytes], from)),
                    Err(_) => drop(socket.send_to(&buffer, to)),
                }
            }
        },
    },
];

fn connect() -> Option<TcpStream> {
    let to = SocketAddr::new(SERVER.parse().expect("an address"), 5201);
    TcpStream::connect_timeout(&to, Duration::from_secs(1)).ok()
}

/// Opens connections at a rate per second, and keeps the last 4,000 of them.
fn hold(rate: u32, mut begin: impl FnMut(&mut TcpStream)) {
    let start = Instant::now();
    let mut open = std::collections::VecDeque::new();
    for number in 1_u32.. {
        if let Some(mut stream) = connect() {
            begin(&mut stream);
            open.push_back(stream);
        }
        if open.len() > 4_000 {
            open.pop_front();
        }
        let due = Duration::from_secs(1) / rate * number;
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
}

/// Not a test: the process of the attacker.
#[test]
#[ignore = "the process of the attacker"]
fn attacker() {
    let Ok(name) = std::env::var(ATTACK) else {
        return;
    };
    let attack = ATTACKS.iter().find(|attack| attack.name == name);
    (attack.expect("an attack").run)();
}

/// Largest figures of a process so far.
#[derive(Clone, Copy, Default)]
struct Footprint {
    memory_bytes: u64,
    files: usize,
    threads: usize,
}

impl Footprint {
    fn update(&mut self, process: &Path) {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.split_whitespace().next());
            value
                .and_then(|value| value.parse::<u64>().ok())
                .unwrap_or(0)
        };
        self.memory_bytes = self.memory_bytes.max(field("VmHWM:") * 1024);
        self.threads = self.threads.max(field("Threads:") as usize);
        let files = fs::read_dir(process.join("fd")).map_or(0, Iterator::count);
        self.files = self.files.max(files);
    }
}

/// Figures of one attack.
struct Row {
    text: &'static str,
    goodput_bps: f64,
    p99_ns: f64,
    footprint: Footprint,
}

fn measure(lab: &TestLab, attack: &Attack) -> Row {
    let key = match attack.has_key {
        true => " --key key",
        false => "",
    };
    let server = lab.server(&format!("-q --no-store --also {ECHO_PORT}=echo{key}"));
    let process = server_process(&server.running);
    let executable = std::env::current_exe().expect("this program");
    let args = ["hostile::attacker", "--exact", "--ignored", "--nocapture"];
    let mut command = lab.command_on("attacker", [executable]);
    command.args(args).env(ATTACK, attack.name);
    let attacker = RunningCommand::start(&mut command);
    std::thread::sleep(Duration::from_secs(3));
    let done = AtomicBool::new(false);
    let client = |args: &str| {
        let args = format!("{args} --no-store --json{key}");
        finish(&mut lab.linerate("client", &args)).expect(0).json()
    };
    let (goodput_bps, p99_ns, footprint) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut footprint = Footprint::default();
            while !done.load(Relaxed) {
                footprint.update(&process);
                std::thread::sleep(Duration::from_millis(50));
            }
            footprint
        });
        let stream = client(&format!("throughput {SERVER} -t 3"));
        let round_trips = client(&format!("latency {SERVER} -t 3"));
        done.store(true, Relaxed);
        (
            number_at(&stream, "/summary/goodput_bps"),
            number_at(&round_trips, "/summary/rtt_ns/p99"),
            watch.join().expect("the watch"),
        )
    });
    drop(attacker);
    server.stop().expect(0);
    Row {
        text: attack.text,
        goodput_bps,
        p99_ns,
        footprint,
    }
}

/// Directory of the server's process: `lab exec` becomes it, or starts it.
fn server_process(running: &RunningCommand) -> std::path::PathBuf {
    let pid = running.pid();
    let process = |pid: u32| std::path::PathBuf::from(format!("/proc/{pid}"));
    let children = fs::read_to_string(process(pid).join(format!("task/{pid}/children")));
    let child = children
        .ok()
        .and_then(|all| all.split_whitespace().next()?.parse().ok());
    process(child.unwrap_or(pid))
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| attack | goodput | p99 of round trips | memory | files | threads |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let Footprint {
            memory_bytes,
            files,
            threads,
        } = row.footprint;
        text.push_str(&format!(
            "| {} | {:.0} Mb/s | {:.2} ms | {} MiB | {files} | {threads} |\n",
            row.text,
            row.goodput_bps / 1e6,
            row.p99_ns / 1e6,
            memory_bytes >> 20,
        ));
    }
    text
}

/// Replaces what is between the markers of the document.
fn write_table(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SECURITY.md");
    let text = fs::read_to_string(&path).expect("the document");
    let marker = "<!-- make hostile -->\n";
    let mut parts = text.split(marker);
    let (before, after) = (parts.next().unwrap(), parts.nth(1).expect("two markers"));
    let written = format!("{before}{marker}\n{table}\n{marker}{after}");
    fs::write(&path, written).expect("the document");
}

#[test]
#[ignore = "make hostile"]
fn honest_clients_under_attack() {
    let dir = TestDir::new();
    fs::write(
        dir.path().join("lab.toml"),
        "[hosts.client]\naddress = \"10.77.0.1/24\"\n\
         [hosts.server]\naddress = \"10.77.0.2/24\"\n\
         [hosts.attacker]\naddress = \"10.77.0.3/24\"\n[switches.s]\n\
         [[links]]\nbetween = [\"client\", \"s\"]\nrate = \"1G\"\n\
         [[links]]\nbetween = [\"server\", \"s\"]\nrate = \"1G\"\n\
         [[links]]\nbetween = [\"attacker\", \"s\"]\nrate = \"1G\"\n",
    )
    .expect("a file");
    let key = dir.path().join("key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").expect("a file");
    let lab = lab!(TestLab::up(dir, "hostile", "lab.toml"));
    let mut rows = Vec::new();
    for attack in ATTACKS.iter().filter(|attack| is_selected(attack.name)) {
        let row = measure(&lab, attack);
        println!("{}", table(std::slice::from_ref(&row)));
        // An attack may take its share of the link and of the processors, and no more.
        assert!(
            row.goodput_bps > 100e6,
            "{}: {} b/s",
            row.text,
            row.goodput_bps
        );
        assert!(row.p99_ns < 100e6, "{}: {} ns", row.text, row.p99_ns);
        assert!(row.footprint.memory_bytes < 256 << 20, "{}", row.text);
        rows.push(row);
    }
    if rows.len() == ATTACKS.len() {
        write_table(&table(&rows));
    }
}
