//! `linerate forward` on interfaces: lab links, existing taps and devices that are restored, and
//! packets that circulate on a wire.

mod common;

use std::fs;
use std::time::Instant;

use common::{LONG, Lab, Room, Running, finish, is_root, lab, number, skip, soon};
use rustix::process::Signal;

/// Two hosts and a link between them.
const WIRE: &str = "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\n\
                    offloads = { tso = false, gso = false, gro = false }\n";

/// One end swaps addresses; the other sends packets and receives them back.
fn round_a_wire(lab: &Lab, kind: &str) -> Result<(), String> {
    let url = match kind.split_once(' ') {
        Some((kind, _)) => format!("{kind}:eth0,busy=64"),
        None => format!("{kind}:eth0"),
    };
    let words = format!("forward --dev {url} --mode macswap --idle yield --stats-period 0.1");
    let mut far = Running::start(&mut lab.linerate("b", &words));
    let near = || {
        let words =
            format!("forward --dev {url} --tx-first 1 -t 0.5 --json --idle yield --no-store");
        finish(&mut lab.linerate("a", &words))
    };
    let until = Instant::now() + LONG;
    loop {
        if far.has_ended() {
            return Err(far.wait().stderr);
        }
        let ran = near();
        if ran.code() == 4 {
            return Err(ran.json()["error"].to_string());
        }
        let found = ran.expect(0).json();
        // The remote end may not have opened its port yet.
        if number(&found, "/forward/ports/0/receive/packets") > 64.0 {
            let xdp = &found["forward"]["ports"][0]["xdp"];
            let asked = kind.starts_with("xdp").then_some(true);
            assert_eq!(xdp["need_wakeup"].as_bool(), asked, "{xdp}");
            // The kernel accepts the budget even when it cannot poll the queue.
            let budget = kind.ends_with("busy").then_some(64);
            assert_eq!(xdp["busy_poll"]["budget"].as_u64(), budget, "{xdp}");
            break;
        }
        assert!(
            Instant::now() < until,
            "nothing was received back: {found:#}"
        );
    }
    far.interrupt();
    let out = far.wait().expect(0).stdout;
    assert!(out.contains("Accumulated"), "{out}");
    Ok(())
}

/// Returns the ids of link emulator processes with this jitter.
fn emulators(jitter_ns: u32) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("a /proc").flatten();
    let is_one = |entry: &fs::DirEntry| {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        words.contains("lab-holder link") && words.contains(&format!("jitter={jitter_ns}ns"))
    };
    let found = all.filter(is_one);
    let numbers = found.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

/// Returns a lab of two hosts whose link has a unique jitter: other checkouts run emulators too.
fn delayed(test: &str, delay: &str, jitter_ns: u32) -> Result<Lab, String> {
    let text = format!(
        "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\ndelay = '{delay}'\njitter = '{jitter_ns}ns'\n"
    );
    Lab::of(test, &text)
}

/// When the process that emulates a link exits, the link is taken down: both ends see it, the list
/// of labs shows it, and measurements over it fail.
#[test]
fn a_link_whose_process_ended_is_no_network_that_loses_everything() {
    let jitter = 200_000 + std::process::id() % 100_000;
    let lab = lab!(delayed("fwdcut", "1ms", jitter));
    let found = emulators(jitter);
    let [emulator] = found[..] else {
        skip!("the kernel has netem: {found:?}");
    };
    let go_on = lab.room.path().join("go-on");
    let line = format!(
        "cat /sys/class/net/eth0/carrier; while ! test -e {0}; do sleep 0.05; done; cat /sys/class/net/eth0/carrier",
        go_on.display()
    );
    let mut meanwhile = Running::start(&mut lab.on("a", ["sh", "-c", &line]));
    meanwhile.line(|line| line == "1");
    let emulator = rustix::process::Pid::from_raw(emulator).expect("a process");
    rustix::process::kill_process(emulator, Signal::KILL).expect("it may be killed");
    let link = || {
        let listed = lab.room.run("lab list --json").expect(0).json();
        let labs = listed["labs"].as_array().expect("labs").iter();
        let mut own = labs.filter(|one| one["name"] == lab.name.as_str());
        own.next().expect("it is up")["links"][0].clone()
    };
    soon("the lab reports it", || link()["ended"] == "it was killed");
    let listed = lab.room.run("lab list").expect(0).stdout;
    assert!(listed.contains("ENDED"), "{listed}");

    let again = format!("linerate lab down {}", lab.name);
    let refused = finish(&mut lab.on("a", ["true"])).expect(1).stderr;
    assert!(refused.contains("link a - b of lab"), "{refused}");
    assert!(refused.contains(&again), "{refused}");

    // A command that ran meanwhile fails too, whatever it measured.
    fs::write(&go_on, "").expect("a file");
    let ran = meanwhile.wait().expect(1);
    assert!(ran.stdout.trim_end().ends_with('0'), "{ran:?}");
    assert!(ran.stderr.contains(&again), "{ran:?}");
}

/// Also when that is the last action of a command, before the failure was noticed.
#[test]
fn a_link_that_ends_with_a_command_is_told() {
    let jitter = 300_000 + std::process::id() % 100_000;
    let lab = lab!(delayed("fwdend", "1ms", jitter));
    let found = emulators(jitter);
    let [emulator] = found[..] else {
        skip!("the kernel has netem: {found:?}");
    };
    let status = fs::read_to_string(format!("/proc/{emulator}/status")).expect("it runs");
    let numbers = status.lines().find(|line| line.starts_with("NSpid:"));
    // The last one is the process id inside the lab.
    let inside = numbers.and_then(|line| line.split_whitespace().last());
    let inside = inside.expect("a number");
    let ran = finish(&mut lab.on("a", ["sh", "-c", &format!("kill -9 {inside}")])).expect(1);
    let again = format!("linerate lab down {}", lab.name);
    assert!(ran.stderr.contains(&again), "{ran:?}");
}

/// A link with delay: netem where the kernel has it, else an emulator that ends with the lab.
#[test]
fn a_lab_has_links_with_delay() {
    let jitter = 1_000_000 + std::process::id() % 100_000;
    let lab = lab!(delayed("fwddelay", "20ms", jitter));
    let emulators = || emulators(jitter).len();
    println!("{} emulators", emulators());
    let server = Running::start(&mut lab.linerate("b", "server -1 --no-store"));
    let words = "latency 10.77.0.2 -u -n 20 --retry 30s --json --no-store";
    let found = finish(&mut lab.linerate("a", words)).expect(0).json();
    let least = number(&found, "/summary/rtt_ns/min");
    // Twice 20 ms, each with 1.1 ms of jitter at most.
    assert!((37.8e6..5e9).contains(&least), "{found:#}");
    drop(server);
    drop(lab);
    soon("no emulator is left", || emulators() == 0);
}

/// An existing tap is restored after a port on it, with all of its addresses, also after a kill.
#[test]
fn a_tap_that_was_there_goes_back_after_a_kill() {
    let lab = lab!(Lab::of("fwdtap", WIRE));
    let make = "ip tuntap add dev t0 mode tap && ip link set t0 mtu 1400 up && ip addr add 10.9.9.9/16 dev t0 \
                && ip addr add 10.9.9.8/16 dev t0 && ip addr add fd09::1/64 dev t0 nodad \
                && ip addr add 10.9.9.7/16 dev t0 label t0:a metric 77 noprefixroute \
                && ip addr add 10.9.9.6/16 dev t0 valid_lft 3600 preferred_lft 1800";
    if let Err(why) = lab.shell("a", make) {
        skip!("no tap: {why}");
    }
    let state = || {
        let line = "ip -o addr show dev t0 | grep -v fe80:: | sed 's/ tentative//; s/valid_lft.*//'; \
                    ip -o link show dev t0 | grep -o 'mtu [0-9]*'; ethtool -k t0 | grep -E '^tx-checksumming|^tcp-seg'";
        finish(&mut lab.on("a", ["sh", "-c", line]))
            .expect(0)
            .stdout
    };
    let before = state();
    for said in [
        "10.9.9.8/16",
        "metric 77",
        "noprefixroute",
        "t0:a",
        "dynamic",
    ] {
        assert!(before.contains(said), "{said}: {before}");
    }
    let words = "forward --dev tap:t0,address=10.9.0.1/24,mtu=600,vnet --mode rxonly --idle sleep:1ms \
                 --stats-period 0.1 --no-store";
    for signal in [Signal::INT, Signal::KILL] {
        let mut running = Running::start(&mut lab.linerate("a", words));
        running.line(|line| line.contains("NIC statistics for port 0"));
        let during = state();
        assert!(
            during.contains("10.9.0.1/24") && during.contains("mtu 600"),
            "{during}"
        );
        running.signal(signal);
        if signal == Signal::INT {
            running.wait().expect(0);
        } else {
            drop(running);
            soon("it is gone", || {
                let restored = finish(&mut lab.linerate("a", "tune --restore"))
                    .expect(0)
                    .stdout;
                restored.contains("settings restored")
            });
        }
        assert_eq!(state(), before, "{signal:?}");
    }
}

/// A tap that was renamed, or moved to another host, is restored there; a deleted one is gone.
#[test]
fn a_tap_goes_back_whatever_it_is_called_and_wherever_it_is() {
    let lab = lab!(Lab::of("fwdmoved", WIRE));
    let mtu = |host: &str, name: &str| {
        let shown = finish(&mut lab.on(host, ["ip", "-o", "link", "show", "dev", name])).stdout;
        let rest = shown.split(" mtu ").nth(1).unwrap_or_default().to_owned();
        rest.split(' ')
            .next()
            .and_then(|mtu| mtu.parse::<u32>().ok())
    };
    let pid = lab.room.path().join("pid");
    let _other = Running::start(&mut lab.on("b", ["sh", "-c", "echo $$ > pid; exec sleep 600"]));
    soon("a process on the other host", || {
        fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let words =
        "forward --dev tap:t0,mtu=600 --mode rxonly --idle sleep:1ms --stats-period 0.1 --no-store";
    for (what, host, name, told) in [
        (
            "ip link set t0 down; ip link set t0 name t1",
            "a",
            "t1",
            "t0 of this host is named t1 now",
        ),
        (
            "ip link set t0 netns $(cat pid)",
            "b",
            "t0",
            "t0 of this host is t0 of b now",
        ),
        (
            "ip link del t0; ip tuntap add dev t0 mode tap",
            "a",
            "t0",
            "settings no longer exist",
        ),
    ] {
        let make = "ip link del t1 2> /dev/null || true; ip link del t0 2> /dev/null || true; \
                    ip tuntap add dev t0 mode tap; ip link set t0 mtu 1400 up";
        if let Err(why) = lab.shell("a", make) {
            skip!("no tap: {why}");
        }
        let mut running = Running::start(&mut lab.linerate("a", words));
        running.line(|line| line.contains("NIC statistics for port 0"));
        assert_eq!(mtu("a", "t0"), Some(600), "{what}");
        running.signal(Signal::KILL);
        running.wait();
        lab.shell("a", what).expect("it is changed");
        // A killed process may exist for a moment longer.
        let mut restored = String::new();
        soon("it is set back", || {
            restored = finish(&mut lab.linerate("a", "tune --restore"))
                .expect(0)
                .stdout;
            restored.contains("setting")
        });
        assert!(restored.contains(told), "{what}: {restored}");
        let is_new = told.contains("no longer");
        assert_eq!(
            mtu(host, name),
            Some(if is_new { 1500 } else { 1400 }),
            "{what}: {restored}"
        );
        assert_eq!(
            restored.contains("settings restored"),
            !is_new,
            "{what}: {restored}"
        );
    }
}

/// Without a writable journal a tap is opened and restored all the same; a warning mentions the
/// kill.
#[test]
fn a_tap_needs_no_journal() {
    let lab = lab!(Lab::of("fwdnohome", WIRE));
    let make = "ip tuntap add dev t0 mode tap && ip link set t0 mtu 1400 up && ip addr add 10.9.9.9/16 dev t0 \
                && ip addr add 10.9.9.8/16 dev t0";
    if let Err(why) = lab.shell("a", make) {
        skip!("no tap: {why}");
    }
    let state = || {
        let line = "ip -o addr show dev t0 | grep -v fe80:: | sed 's/valid_lft.*//'; ip -o link show dev t0 | grep -o 'mtu [0-9]*'";
        finish(&mut lab.on("a", ["sh", "-c", line]))
            .expect(0)
            .stdout
    };
    let before = state();
    let words = "forward --dev tap:t0,address=10.9.0.1/24,mtu=600 --mode rxonly --idle sleep:1ms -t 0.2 --no-store";
    let mut command = lab.linerate("a", words);
    command.env("XDG_STATE_HOME", "/dev/null");
    let ran = finish(&mut command).expect(0);
    for said in ["warning: tap:t0: ", "but not after kill -9"] {
        assert!(ran.stderr.contains(said), "{said}: {ran:?}");
    }
    assert_eq!(state(), before);
}

#[test]
fn packets_go_round_a_wire() {
    let lab = lab!(Lab::of("fwdpacket", WIRE));
    for kind in ["packet", "xdp", "xdp busy"] {
        if let Err(why) = round_a_wire(&lab, kind) {
            println!("skipped: {kind}: {why}");
        }
    }
}

#[test]
fn ping_is_answered_without_a_stack() {
    let lab = lab!(Lab::of("fwdping", WIRE));
    // The kernel has no address there: only the forwarder replies to ARP and ping.
    finish(&mut lab.on("b", ["ip", "addr", "flush", "dev", "eth0"])).expect(0);
    let words = "forward --dev packet:eth0 --mode icmpecho --idle interrupt --stats-period 0.1";
    let _far = Running::start(&mut lab.linerate("b", words));
    let until = Instant::now() + LONG;
    loop {
        let words = "ping -c 3 -i 0.2 -W 5 10.77.0.2".split(' ');
        let mut ping = lab.on("a", words);
        let Ok(output) = ping.output() else {
            skip!("ping is not installed");
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains(" 0% packet loss") {
            break;
        }
        assert!(Instant::now() < until, "{text}");
    }
}

#[test]
fn a_killed_forwarder_leaves_no_program() {
    let lab = lab!(Lab::of("fwdkill", WIRE));
    let attached = |lab: &Lab| {
        let shown = finish(&mut lab.on("b", ["ip", "link", "show", "eth0"]));
        shown.stdout.contains("xdp")
    };
    let words = "forward --dev xdp:eth0 --mode rxonly --idle yield --stats-period 0.1";
    let mut far = Running::start(&mut lab.linerate("b", words));
    let until = Instant::now() + LONG;
    while !attached(&lab) {
        if far.has_ended() {
            skip!("xdp: {}", far.wait().stderr);
        }
        assert!(Instant::now() < until, "it never attaches");
    }
    far.signal(Signal::KILL);
    far.wait();
    while attached(&lab) {
        assert!(Instant::now() < until, "the program outlives its process");
    }
}

/// Settings of a device outlive a process: they are restored at every end, and from the journal
/// after a kill.
#[test]
fn a_device_has_as_many_queues_as_its_port_takes() {
    let lab = lab!(Lab::of("fwdqueues", WIRE));
    let queues = "numrxqueues 4 numtxqueues 4";
    let make = format!(
        "ip link add va {queues} type veth peer name vb {queues}; ip link set va up; ip link set vb up"
    );
    if let Err(why) = lab.shell("a", &make) {
        skip!("no veth pair with queues: {why}");
    }
    let in_use = || {
        let shown = finish(&mut lab.on("a", ["ethtool", "-l", "va"])).stdout;
        let now = shown.split("Current").nth(1).unwrap_or_default().to_owned();
        let count = |name: &str| {
            let line = now.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u32>().ok()
        };
        Some((count("RX:")?, count("TX:")?))
    };
    if in_use().is_none() {
        skip!("there is no `ethtool`, or this veth does not support it");
    }
    // The peer's queues fit ours.
    (lab.shell("a", "ethtool -L vb rx 2 tx 2")).expect("its peer has two");
    let words = |key: &str| {
        format!("forward --dev xdp:va,q=0-1,{key} --mode rxonly --idle yield --stats-period 0.1")
    };
    let end = |key: &str| {
        let words = format!("{} --json --no-store -t 0.3", words(key));
        finish(&mut lab.linerate("a", &words))
    };
    let ran = end("channels=set");
    if ran.code() == 4 {
        skip!("xdp: {}", ran.json()["error"]);
    }
    let found = ran.expect(0);
    let note =
        "applied `ethtool -L va rx 2 tx 2` until the port closes; then `ethtool -L va rx 4 tx 4`";
    assert!(found.stderr.contains(note), "{}", found.stderr);
    let text = found.json()["forward"]["ports"][0].to_string();
    assert!(!text.contains("goes to the kernel's stack"), "{text}");
    assert_eq!(in_use(), Some((4, 4)), "after an end");
    // A veth has no indirection table: settings made before that error are restored as well.
    let refused = end("channels=set,rss=set").expect(4).json();
    let error = &refused["error"];
    assert_eq!(error["object"], "xdp:va", "{error}");
    assert!(
        error["situation"].to_string().contains("rss=set"),
        "{error}"
    );
    assert!(
        error["next_step"].to_string().contains("ethtool -x va"),
        "{error}"
    );
    assert_eq!(in_use(), Some((4, 4)), "after an error");
    // Nor flow rules.
    let refused = end("channels=set,steer=udp4:7").expect(4).json();
    assert_eq!(
        refused["error"],
        serde_json::json!({
            "situation": "steer=udp4:7: its driver does not report the current value (Operation not supported (os error 95))",
            "object": "xdp:va",
            "next_step": "run as root (CAP_NET_ADMIN), and switch filters on (`ethtool -K va ntuple on`); if the \
                          driver does not support it, leave out `steer=udp4:7`, and see its settings with `ethtool -n va`"
        })
    );
    assert_eq!(in_use(), Some((4, 4)), "after an error");
    // A port attached later uses the same settings as one at the start.
    let script = lab.room.path().join("attach");
    fs::write(
        &script,
        "port attach xdp:va,q=0-1,rss=set\nshow port summary all\n",
    )
    .expect("a file");
    let shell = format!(
        "forward --dev ring:0 --idle yield --commands {}",
        script.display()
    );
    let refused = finish(&mut lab.linerate("a", &shell)).expect(1).stdout;
    assert!(
        refused.contains("rss=set: ") && !refused.contains("is attached"),
        "{refused}"
    );
    // Not while ports are polled: its device keeps its settings.
    fs::write(
        &script,
        "start\nport attach xdp:va,q=0-1,channels=set\nstop\n",
    )
    .expect("a file");
    let refused = finish(&mut lab.linerate("a", &shell)).expect(1).stdout;
    assert!(
        refused.contains("use `stop` first") && !refused.contains("ethtool"),
        "{refused}"
    );
    // A detached port restores its device: the next one finds the original settings.
    fs::write(
        &script,
        "port attach xdp:va,q=0-1,channels=set\nport detach 1\nport attach xdp:va,q=0-1,channels=set\n",
    )
    .expect("a file");
    let ran = finish(&mut lab.linerate("a", &shell)).expect(0);
    assert_eq!(ran.stderr.matches(note).count(), 2, "{ran:?}");
    assert_eq!(in_use(), Some((4, 4)), "after a shell");
    for signal in [Signal::INT, Signal::KILL] {
        let mut running = Running::start(&mut lab.linerate("a", &words("channels=set")));
        soon("its queues are set", || in_use() == Some((2, 2)));
        running.line(|line| line.contains("RX-packets"));
        running.signal(signal);
        running.wait();
        if signal == Signal::KILL {
            assert_eq!(in_use(), Some((2, 2)), "a killed process restores nothing");
            let restore = || finish(&mut lab.linerate("a", "tune --restore"));
            // The kernel keeps the queues' sockets for a moment longer.
            soon("it is restored", || restore().code() == 0);
        }
        assert_eq!(in_use(), Some((4, 4)), "after {signal:?}");
    }
}

#[test]
fn the_interface_in_use_needs_force() {
    if !is_root() {
        skip!("only root may open packet sockets");
    }
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let default = routes.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        (fields.next()? == "00000000" && fields.nth(5)? == "00000000").then_some(name)
    });
    let Some(name) = default else {
        skip!("no default route here");
    };
    let room = Room::new();
    for kind in ["packet", "xdp"] {
        let ran = room
            .run(&format!("forward --dev {kind}:{name} --mode rxonly -t 0.1"))
            .expect(1);
        assert!(ran.stderr.contains("--force"), "{}", ran.stderr);
    }
}
