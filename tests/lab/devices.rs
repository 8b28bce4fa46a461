//! `linerate forward` on interfaces: lab links, existing taps and devices that are restored, and
//! packets that circulate on a wire.

use std::fs;
use std::time::Instant;

use crate::common::{
    RunningCommand, TIME_LIMIT, TestDir, TestLab, finish, is_root, lab, number_at, skip, wait_until,
};
use rustix::process::Signal;

/// Two hosts and a link between them.
const TWO_HOSTS: &str = "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\n\
                    offloads = { tso = false, gso = false, gro = false }\n";

/// One end swaps addresses; the other sends packets and receives them back.
fn circulate_packets(lab: &TestLab, kind: &str) -> Result<(), String> {
    let url = match kind.split_once(' ') {
        Some((kind, _)) => format!("{kind}:eth0,busy=64"),
        None => format!("{kind}:eth0"),
    };
    let args = format!("forward --dev {url} --mode macswap --idle yield --stats-period 0.1");
    let mut remote = RunningCommand::start(&mut lab.linerate("b", &args));
    let run_local = || {
        let args =
            format!("forward --dev {url} --tx-first 1 -t 0.5 --json --idle yield --no-store");
        finish(&mut lab.linerate("a", &args))
    };
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        if remote.has_exited() {
            return Err(remote.wait().stderr);
        }
        let output = run_local();
        if output.exit_code() == 4 {
            return Err(output.json()["error"].to_string());
        }
        let record = output.expect(0).json();
        // The remote end may not have opened its port yet.
        if number_at(&record, "/forward/ports/0/receive/packets") > 64.0 {
            let xdp = &record["forward"]["ports"][0]["xdp"];
            let expected_wakeup = kind.starts_with("xdp").then_some(true);
            assert_eq!(xdp["need_wakeup"].as_bool(), expected_wakeup, "{xdp}");
            // The kernel accepts the budget even when it cannot poll the queue.
            let budget = kind.ends_with("busy").then_some(64);
            assert_eq!(xdp["busy_poll"]["budget"].as_u64(), budget, "{xdp}");
            break;
        }
        assert!(
            Instant::now() < deadline,
            "nothing was received back: {record:#}"
        );
    }
    remote.interrupt();
    let out = remote.wait().expect(0).stdout;
    assert!(out.contains("Accumulated"), "{out}");
    Ok(())
}

/// Returns the ids of link emulator processes with this jitter.
fn emulator_pids(jitter_ns: u32) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("a /proc").flatten();
    let is_one = |entry: &fs::DirEntry| {
        let args = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let args = String::from_utf8_lossy(&args).replace('\0', " ");
        args.contains("lab-holder link") && args.contains(&format!("jitter={jitter_ns}ns"))
    };
    let matching = all.filter(is_one);
    let numbers = matching.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

/// Returns a lab of two hosts whose link has a unique jitter: other checkouts run emulators too.
fn delayed_lab(test: &str, delay: &str, jitter_ns: u32) -> Result<TestLab, String> {
    let text = format!(
        "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\ndelay = '{delay}'\njitter = '{jitter_ns}ns'\n"
    );
    TestLab::from_text(test, &text)
}

/// When the process that emulates a link exits, the link is taken down: both ends see it, the list
/// of labs shows it, and measurements over it fail.
#[test]
fn a_link_goes_down_when_its_emulator_is_killed() {
    let jitter = 200_000 + std::process::id() % 100_000;
    let lab = lab!(delayed_lab("fwdcut", "1ms", jitter));
    let pids = emulator_pids(jitter);
    let [emulator] = pids[..] else {
        skip!("the kernel has netem: {pids:?}");
    };
    let go_on = lab.dir.path().join("go-on");
    let line = format!(
        "cat /sys/class/net/eth0/carrier; while ! test -e {0}; do sleep 0.05; done; cat /sys/class/net/eth0/carrier",
        go_on.display()
    );
    let mut meanwhile = RunningCommand::start(&mut lab.command_on("a", ["sh", "-c", &line]));
    meanwhile.wait_line(|line| line == "1");
    let emulator = rustix::process::Pid::from_raw(emulator).expect("a process");
    rustix::process::kill_process(emulator, Signal::KILL).expect("it may be killed");
    let link = || {
        let listed = lab.dir.run("lab list --json").expect(0).json();
        let labs = listed["labs"].as_array().expect("labs").iter();
        let mut matching_labs = labs.filter(|one| one["name"] == lab.name.as_str());
        matching_labs.next().expect("it is up")["links"][0].clone()
    };
    wait_until("the lab reports it", || link()["ended"] == "it was killed");
    let listed = lab.dir.run("lab list").expect(0).stdout;
    assert!(listed.contains("ENDED"), "{listed}");

    let next_step = format!("linerate lab down {}", lab.name);
    let rejected = finish(&mut lab.command_on("a", ["true"])).expect(1).stderr;
    assert!(rejected.contains("link a - b of lab"), "{rejected}");
    assert!(rejected.contains(&next_step), "{rejected}");

    // A command that ran meanwhile fails too, whatever it measured.
    fs::write(&go_on, "").expect("a file");
    let output = meanwhile.wait().expect(1);
    assert!(output.stdout.trim_end().ends_with('0'), "{output:?}");
    assert!(output.stderr.contains(&next_step), "{output:?}");
}

/// Also when that is the last action of a command, before the failure was noticed.
#[test]
fn a_link_that_ends_with_a_command_is_reported() {
    let jitter = 300_000 + std::process::id() % 100_000;
    let lab = lab!(delayed_lab("fwdend", "1ms", jitter));
    let pids = emulator_pids(jitter);
    let [emulator] = pids[..] else {
        skip!("the kernel has netem: {pids:?}");
    };
    let status = fs::read_to_string(format!("/proc/{emulator}/status")).expect("it runs");
    let numbers = status.lines().find(|line| line.starts_with("NSpid:"));
    // The last one is the process id inside the lab.
    let inside = numbers.and_then(|line| line.split_whitespace().last());
    let inside = inside.expect("a number");
    let output =
        finish(&mut lab.command_on("a", ["sh", "-c", &format!("kill -9 {inside}")])).expect(1);
    let next_step = format!("linerate lab down {}", lab.name);
    assert!(output.stderr.contains(&next_step), "{output:?}");
}

/// A link with delay: netem where the kernel has it, else an emulator that ends with the lab.
#[test]
fn a_lab_has_links_with_delay() {
    let jitter = 1_000_000 + std::process::id() % 100_000;
    let lab = lab!(delayed_lab("fwddelay", "20ms", jitter));
    let emulator_count = || emulator_pids(jitter).len();
    println!("{} emulators", emulator_count());
    let server = RunningCommand::start(&mut lab.linerate("b", "server -1 --no-store"));
    let args = "latency 10.77.0.2 -u -n 20 --retry 30s --json --no-store";
    let record = finish(&mut lab.linerate("a", args)).expect(0).json();
    let least = number_at(&record, "/summary/rtt_ns/min");
    // Twice 20 ms, each with 1.1 ms of jitter at most.
    assert!((37.8e6..5e9).contains(&least), "{record:#}");
    drop(server);
    drop(lab);
    wait_until("no emulator is left", || emulator_count() == 0);
}

/// An existing tap is restored after a port on it, with all of its addresses, also after a kill.
#[test]
fn an_existing_tap_is_restored_after_a_kill() {
    let lab = lab!(TestLab::from_text("fwdtap", TWO_HOSTS));
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
        finish(&mut lab.command_on("a", ["sh", "-c", line]))
            .expect(0)
            .stdout
    };
    let before = state();
    for expected in [
        "10.9.9.8/16",
        "metric 77",
        "noprefixroute",
        "t0:a",
        "dynamic",
    ] {
        assert!(before.contains(expected), "{expected}: {before}");
    }
    let args = "forward --dev tap:t0,address=10.9.0.1/24,mtu=600,vnet --mode rxonly --idle sleep:1ms \
                 --stats-period 0.1 --no-store";
    for signal in [Signal::INT, Signal::KILL] {
        let mut running = RunningCommand::start(&mut lab.linerate("a", args));
        running.wait_line(|line| line.contains("NIC statistics for port 0"));
        let during = state();
        assert!(
            during.contains("10.9.0.1/24") && during.contains("mtu 600"),
            "{during}"
        );
        running.send_signal(signal);
        if signal == Signal::INT {
            running.wait().expect(0);
        } else {
            drop(running);
            wait_until("it is gone", || {
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
fn a_renamed_or_moved_tap_is_restored() {
    let lab = lab!(TestLab::from_text("fwdmoved", TWO_HOSTS));
    let mtu = |host: &str, name: &str| {
        let shown =
            finish(&mut lab.command_on(host, ["ip", "-o", "link", "show", "dev", name])).stdout;
        let rest = shown.split(" mtu ").nth(1).unwrap_or_default().to_owned();
        rest.split(' ')
            .next()
            .and_then(|mtu| mtu.parse::<u32>().ok())
    };
    let pid = lab.dir.path().join("pid");
    let _holder = RunningCommand::start(
        &mut lab.command_on("b", ["sh", "-c", "echo $$ > pid; exec sleep 600"]),
    );
    wait_until("a process on the other host", || {
        fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let args =
        "forward --dev tap:t0,mtu=600 --mode rxonly --idle sleep:1ms --stats-period 0.1 --no-store";
    for (change, host, name, expected) in [
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
        let mut running = RunningCommand::start(&mut lab.linerate("a", args));
        running.wait_line(|line| line.contains("NIC statistics for port 0"));
        assert_eq!(mtu("a", "t0"), Some(600), "{change}");
        running.send_signal(Signal::KILL);
        running.wait();
        lab.shell("a", change).expect("it is changed");
        // A killed process may exist for a moment longer.
        let mut restored = String::new();
        wait_until("it is set back", || {
            restored = finish(&mut lab.linerate("a", "tune --restore"))
                .expect(0)
                .stdout;
            restored.contains("setting")
        });
        assert!(restored.contains(expected), "{change}: {restored}");
        let is_new = expected.contains("no longer");
        assert_eq!(
            mtu(host, name),
            Some(if is_new { 1500 } else { 1400 }),
            "{change}: {restored}"
        );
        assert_eq!(
            restored.contains("settings restored"),
            !is_new,
            "{change}: {restored}"
        );
    }
}

/// Without a writable journal a tap is opened and restored all the same; a warning mentions the
/// kill.
#[test]
fn a_tap_needs_no_journal() {
    let lab = lab!(TestLab::from_text("fwdnohome", TWO_HOSTS));
    let make = "ip tuntap add dev t0 mode tap && ip link set t0 mtu 1400 up && ip addr add 10.9.9.9/16 dev t0 \
                && ip addr add 10.9.9.8/16 dev t0";
    if let Err(why) = lab.shell("a", make) {
        skip!("no tap: {why}");
    }
    let state = || {
        let line = "ip -o addr show dev t0 | grep -v fe80:: | sed 's/valid_lft.*//'; ip -o link show dev t0 | grep -o 'mtu [0-9]*'";
        finish(&mut lab.command_on("a", ["sh", "-c", line]))
            .expect(0)
            .stdout
    };
    let before = state();
    let args = "forward --dev tap:t0,address=10.9.0.1/24,mtu=600 --mode rxonly --idle sleep:1ms -t 0.2 --no-store";
    let mut command = lab.linerate("a", args);
    command.env("XDG_STATE_HOME", "/dev/null");
    let output = finish(&mut command).expect(0);
    for expected in ["warning: tap:t0: ", "but not after kill -9"] {
        assert!(output.stderr.contains(expected), "{expected}: {output:?}");
    }
    assert_eq!(state(), before);
}

#[test]
fn packets_go_round_a_wire() {
    let lab = lab!(TestLab::from_text("fwdpacket", TWO_HOSTS));
    for kind in ["packet", "xdp", "xdp busy"] {
        if let Err(why) = circulate_packets(&lab, kind) {
            println!("skipped: {kind}: {why}");
        }
    }
}

#[test]
fn ping_gets_replies_without_a_stack() {
    let lab = lab!(TestLab::from_text("fwdping", TWO_HOSTS));
    // The kernel has no address there: only the forwarder replies to ARP and ping.
    finish(&mut lab.command_on("b", ["ip", "addr", "flush", "dev", "eth0"])).expect(0);
    let args = "forward --dev packet:eth0 --mode icmpecho --idle interrupt --stats-period 0.1";
    let _remote = RunningCommand::start(&mut lab.linerate("b", args));
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        let args = "ping -c 3 -i 0.2 -W 5 10.77.0.2".split(' ');
        let mut ping = lab.command_on("a", args);
        let Ok(output) = ping.output() else {
            skip!("ping is not installed");
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains(" 0% packet loss") {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
    }
}

#[test]
fn a_killed_forwarder_leaves_no_program() {
    let lab = lab!(TestLab::from_text("fwdkill", TWO_HOSTS));
    let attached = |lab: &TestLab| {
        let shown = finish(&mut lab.command_on("b", ["ip", "link", "show", "eth0"]));
        shown.stdout.contains("xdp")
    };
    let args = "forward --dev xdp:eth0 --mode rxonly --idle yield --stats-period 0.1";
    let mut remote = RunningCommand::start(&mut lab.linerate("b", args));
    let deadline = Instant::now() + TIME_LIMIT;
    while !attached(&lab) {
        if remote.has_exited() {
            skip!("xdp: {}", remote.wait().stderr);
        }
        assert!(Instant::now() < deadline, "it never attaches");
    }
    remote.send_signal(Signal::KILL);
    remote.wait();
    while attached(&lab) {
        assert!(
            Instant::now() < deadline,
            "the program outlives its process"
        );
    }
}

/// Settings of a device outlive a process: they are restored at every end, and from the journal
/// after a kill.
#[test]
fn a_device_has_as_many_queues_as_its_port_takes() {
    let lab = lab!(TestLab::from_text("fwdqueues", TWO_HOSTS));
    let queues = "numrxqueues 4 numtxqueues 4";
    let make = format!(
        "ip link add va {queues} type veth peer name vb {queues}; ip link set va up; ip link set vb up"
    );
    if let Err(why) = lab.shell("a", &make) {
        skip!("no veth pair with queues: {why}");
    }
    let in_use = || {
        let shown = finish(&mut lab.command_on("a", ["ethtool", "-l", "va"])).stdout;
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
    let args = |key: &str| {
        format!("forward --dev xdp:va,q=0-1,{key} --mode rxonly --idle yield --stats-period 0.1")
    };
    let end = |key: &str| {
        let args = format!("{} --json --no-store -t 0.3", args(key));
        finish(&mut lab.linerate("a", &args))
    };
    let output = end("channels=set");
    if output.exit_code() == 4 {
        skip!("xdp: {}", output.json()["error"]);
    }
    let applied = output.expect(0);
    let note =
        "applied `ethtool -L va rx 2 tx 2` until the port closes; then `ethtool -L va rx 4 tx 4`";
    assert!(applied.stderr.contains(note), "{}", applied.stderr);
    let text = applied.json()["forward"]["ports"][0].to_string();
    assert!(!text.contains("goes to the kernel's stack"), "{text}");
    assert_eq!(in_use(), Some((4, 4)), "after an end");
    // A veth has no indirection table: settings made before that error are restored as well.
    let rejected = end("channels=set,rss=set").expect(4).json();
    let error = &rejected["error"];
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
    let rejected = end("channels=set,steer=udp4:7").expect(4).json();
    assert_eq!(
        rejected["error"],
        serde_json::json!({
            "situation": "steer=udp4:7: its driver does not report the current value (Operation not supported (os error 95))",
            "object": "xdp:va",
            "next_step": "run as root (CAP_NET_ADMIN), and switch filters on (`ethtool -K va ntuple on`); if the \
                          driver does not support it, leave out `steer=udp4:7`, and see its settings with `ethtool -n va`"
        })
    );
    assert_eq!(in_use(), Some((4, 4)), "after an error");
    // A port attached later uses the same settings as one at the start.
    let script = lab.dir.path().join("attach");
    fs::write(
        &script,
        "port attach xdp:va,q=0-1,rss=set\nshow port summary all\n",
    )
    .expect("a file");
    let shell = format!(
        "forward --dev ring:0 --idle yield --commands {}",
        script.display()
    );
    let rejected = finish(&mut lab.linerate("a", &shell)).expect(1).stdout;
    assert!(
        rejected.contains("rss=set: ") && !rejected.contains("is attached"),
        "{rejected}"
    );
    // Not while ports are polled: its device keeps its settings.
    fs::write(
        &script,
        "start\nport attach xdp:va,q=0-1,channels=set\nstop\n",
    )
    .expect("a file");
    let rejected = finish(&mut lab.linerate("a", &shell)).expect(1).stdout;
    assert!(
        rejected.contains("use `stop` first") && !rejected.contains("ethtool"),
        "{rejected}"
    );
    // A detached port restores its device: the next one finds the original settings.
    fs::write(
        &script,
        "port attach xdp:va,q=0-1,channels=set\nport detach 1\nport attach xdp:va,q=0-1,channels=set\n",
    )
    .expect("a file");
    let output = finish(&mut lab.linerate("a", &shell)).expect(0);
    assert_eq!(output.stderr.matches(note).count(), 2, "{output:?}");
    assert_eq!(in_use(), Some((4, 4)), "after a shell");
    for signal in [Signal::INT, Signal::KILL] {
        let mut running = RunningCommand::start(&mut lab.linerate("a", &args("channels=set")));
        wait_until("its queues are set", || in_use() == Some((2, 2)));
        running.wait_line(|line| line.contains("RX-packets"));
        running.send_signal(signal);
        running.wait();
        if signal == Signal::KILL {
            assert_eq!(in_use(), Some((2, 2)), "a killed process restores nothing");
            let restore = || finish(&mut lab.linerate("a", "tune --restore"));
            // The kernel keeps the queues' sockets for a moment longer.
            wait_until("it is restored", || restore().exit_code() == 0);
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
    let dir = TestDir::new();
    for kind in ["packet", "xdp"] {
        let output = dir
            .run(&format!("forward --dev {kind}:{name} --mode rxonly -t 0.1"))
            .expect(1);
        assert!(output.stderr.contains("--force"), "{}", output.stderr);
    }
}
