//! `linerate forward` as people and scripts run it: at once and from its shell, over rings and shared
//! memory. Interfaces are in `devices.rs`.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Finished, LONG, Room, Running, finish, is_record, number, one_of, skip, soon};
use rustix::process::Signal;
use serde_json::Value;

/// Runs with these words and gives the record.
#[track_caller]
fn record(room: &Room, words: &str) -> Value {
    println!("{words}");
    let ran = room.run(&format!("{words} --json")).expect(0);
    let record = ran.json();
    is_record(&record);
    assert_eq!(record["kind"], "forward");
    record
}

#[test]
fn frames_circulate_over_rings() {
    let room = Room::new();
    let words = "forward --dev ring:0 --dev ring:1 --cores 2 --tx-first 2 -t 0.3 --idle yield";
    let found = record(&room, words);
    assert_eq!(found["plan"]["forward"]["mode"], "io");
    assert_eq!(found["plan"]["forward"]["tx_first"], 2);
    assert_eq!(number(&found, "/forward/primed"), 128.0);
    assert!(number(&found, "/summary/packets_per_second") > 0.0);
    assert_eq!(number(&found, "/summary/lost"), 0.0);
    let (received, sent) = ("/summary/packets_received", "/summary/packets_sent");
    assert_eq!(number(&found, sent), number(&found, received) + 128.0);
    assert_eq!(
        found["forward"]["streams"].as_array().map(Vec::len),
        Some(2)
    );
    // It is kept as the records of other commands are.
    let stored = room.stored();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0]["id"], found["id"]);
}

#[test]
fn every_mode_runs_from_the_command_line() {
    let room = Room::new();
    for mode in [
        "mac",
        "macswap",
        "5tswap",
        "rxonly",
        "txonly",
        "flowgen",
        "icmpecho",
        "csum",
        "noisy:reads=1,memory=4K",
        "link:rate=1G,delay=50us,jitter=5us,loss=0.1%,reorder=1%,duplicate=1%,corrupt=1%",
    ] {
        let found = record(
            &room,
            &format!("forward --dev null:size=100 --mode {mode} -t 0.1 --no-store --idle yield"),
        );
        let mode = mode.split(':').next().unwrap();
        let ran = found["plan"]["forward"]["mode"].as_str().unwrap();
        assert!(ran.starts_with(mode), "{ran}");
    }
}

#[test]
fn an_emulated_link_loses_what_it_is_told_to() {
    let room = Room::new();
    let words = "forward --dev null: --mode link:loss=50%,limit=100000 -t 0.2 --no-store --seed 3";
    // On a crowded machine a run may see a burst or two, which say nothing of a share.
    let mut counted = (0.0, 0.0);
    soon("enough frames", || {
        let found = record(&room, words);
        counted = (
            number(&found, "/forward/ports/0/receive/packets"),
            number(&found, "/forward/streams/0/counts/lost"),
        );
        counted.0 > 10_000.0
    });
    let (received, lost) = counted;
    let share = lost / received;
    assert!((0.45..0.55).contains(&share), "{share} of {received}");
}

#[test]
fn statistics_are_printed_as_known() {
    let room = Room::new();
    let words = "forward --dev ring:0 --tx-first -t 3 --stats-period 0.2 --record-burst-stats \
                 --record-core-cycles --idle yield";
    let printed = room.run(words).expect(0).stdout;
    for wanted in [
        "io packet forwarding - ports=1 - cores=1 - streams=1",
        "RX P=0/Q=0 -> TX P=0/Q=0 peer=02:00:00:00:00:00",
        "NIC statistics for port 0",
        "Rx-pps:",
        "Forward Stats for RX Port= 0/Queue= 0 -> TX Port= 0/Queue= 0",
        "CPU cycles/packet=",
        "RX-bursts :",
        "Forward statistics for port 0",
        "Accumulated forward statistics for all ports",
        "TX-total:",
        "packets/s",
    ] {
        assert!(printed.contains(wanted), "no `{wanted}` in {printed}");
    }
    // What a port received grows from one block to the next, as in testpmd.
    let received = printed.lines().filter(|line| line.contains("RX-missed"));
    let received = received.filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
    let received: Vec<u64> = received.collect();
    assert!(received.len() > 1 && received.is_sorted(), "{received:?}");
    assert!(received.last() > received.first(), "{received:?}");
}

#[test]
fn a_walk_finds_the_plateau() {
    let room = Room::new();
    let words = "forward --dev ring:0 --dev ring:1 --cores 2 --saturate --trial 0.05 --idle yield";
    let ran = room
        .run(&format!("{words} --json --html walk.html"))
        .expect(0);
    let set = ran.json();
    assert_eq!(
        (&set["schema"], &set["kind"]),
        (&"linerate/set/1".into(), &"saturation".into())
    );
    let walks = set["result"]["saturation"].as_array().unwrap();
    assert_eq!(walks.len(), 2);
    for (cores, walk) in (1..).zip(walks) {
        assert_eq!(walk["cores"], cores);
        let points = walk["points"].as_array().unwrap();
        // On a crowded machine steps may stay disturbed: then none is named.
        if points.iter().all(|point| point["disturbed"] != true) {
            assert!(number(walk, "/plateau_pps") > 0.0);
        }
        assert!(points.len() >= 3 && points[0]["tx_first"] == 1);
        assert_eq!(points[1]["in_flight"], 128);
    }
    let page = fs::read_to_string(room.path().join("walk.html")).unwrap();
    assert!(page.contains("Packets per second against packets in flight"));
    let says = |text: &str| text.contains("in flight on (") || text.contains("no plateau is named");
    assert!(says(&page) && !page.contains("No run gave a figure"));
    // More cores than streams say so.
    let text = room
        .run("forward --dev ring:0 --cores 2 --saturate --trial 0.05 --idle yield")
        .expect(0)
        .stdout;
    assert!(says(&text) && text.contains("1 stream keeps"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let room = Room::new();
    for (words, code, wanted) in [
        ("forward", 2, "--dev"),
        ("forward --dev nonsense -t 1", 2, "KIND:NAME"),
        ("forward --dev ring:0 --mode nonsense -t 1", 2, "is no mode"),
        ("forward --dev ring:0 --cores 0 -t 1", 2, "needs a thread"),
        (
            "forward --dev ring:0 --idle interrupt -t 1",
            4,
            "nothing to wait for",
        ),
        (
            "forward --dev ring:0 --dev ring:1,queues=2 -t 1",
            2,
            "queues",
        ),
        (
            "forward --dev ring:0 --corelist 1000 -t 1",
            2,
            "may not run there",
        ),
        ("forward --dev packet:none-such -t 1", 1, "no interface"),
        (
            "forward --dev ring:0 --rxq=2 --txq=1 -t 1",
            2,
            "make no pairs",
        ),
        ("forward --dev ring:0 --burst 64 -t 1", 2, "1 to 32"),
        (
            "forward --dev ring:0 --nb-ports 4 -t 1",
            2,
            "there is 1 port",
        ),
        (
            "forward --dev ring:0 --portlist 0,0 -t 1",
            2,
            "listed twice",
        ),
        (
            "forward --dev ring:0 --eth-peer 9,02:00:00:00:00:01 -t 1",
            2,
            "no such port",
        ),
        (
            "forward --dev ring:0 --cores 3 -t 1",
            2,
            "keeps no more than 1",
        ),
        (
            "forward --dev ring:0 --flowgen-flows 0 -t 1",
            2,
            "0 is not in",
        ),
        (
            "forward --dev ring:0 --total-num-mbufs 0 -t 1",
            2,
            "0 is not in",
        ),
        ("forward --dev ring:0 --saturate -t 1", 2, "--saturate"),
        ("forward --dev ring:0 --saturate --trial 0", 2, "no length"),
        (
            "forward --dev ring:0 --tx-first --txpkts 2000 -t 1",
            4,
            "mtu=",
        ),
        (
            "forward --dev ring:0,mtu=65500 --rxq 64 --rxd 65536 -t 1",
            2,
            "that are free",
        ),
        (
            "forward --dev ring:0 --commands none-such",
            2,
            "cannot be read",
        ),
    ] {
        let ran = room.run(words).expect(code);
        assert!(ran.stderr.contains(wanted), "{words}: {}", ran.stderr);
    }
    let ran = room.run("forward --dev ring:x,end=q --json -t 1").expect(2);
    assert!(ran.json()["error"]["next_step"].is_string());
}

/// The shell on a pipe: what it printed.
#[track_caller]
fn shell(room: &Room, words: &str, commands: &str) -> Finished {
    fs::write(room.path().join("typed"), commands).unwrap();
    let typed = fs::File::open(room.path().join("typed")).unwrap();
    finish(room.linerate(words).stdin(typed))
}

#[test]
fn the_shell_takes_known_words_from_a_pipe() {
    let room = Room::new();
    let ran = shell(
        &room,
        "forward --dev ring:0 --dev ring:1 --interactive --idle yield",
        "# settings first\n\
         set fwd macswap\nset burst 16\nset nbcore 1\nset txpkts 128\nset eth-peer 1 02:00:00:00:00:aa\n\
         show config fwd\nshow config rxtx\n\
         start tx_first 4\nsleep 1\nshow port stats all\nshow fwd stats all\nclear port stats all\n\
         sleep 100ms\nshow port stats 0\nshow port info all\nshow port summary all\n\
         start\nstop\nport stop 0\nshow port summary 0\nport start 0\nstart tx_first\nsleep 50ms\nstop\n\
         strat\nset burst 99\nhelp\nhelp all\nquit\nstart\n",
    )
    .expect(1);
    let printed = &ran.stdout;
    for wanted in [
        "forward> start tx_first 4",
        "macswap packet forwarding - ports=2 - cores=1 - streams=2",
        "peer=02:00:00:00:00:AA",
        "packets/burst=16",
        "NIC statistics for port 1",
        "statistics are cleared",
        "Infos for port 0",
        "error: forwarding: it is running already; say `stop` first",
        "Accumulated forward statistics for all ports",
        "stopped",
        "no such command: strat",
        "error: `99` is no burst",
        "show fwd stats all",
    ] {
        assert!(printed.contains(wanted), "no `{wanted}` in {printed}");
    }
    // Nothing after `quit` is done, and each stop is a record.
    assert!(!printed.ends_with("forward> start\n"), "{printed}");
    let stored = room.stored();
    assert_eq!(stored.len(), 2);
    assert!(stored.iter().all(|record| record["kind"] == "forward"));
    let bursts = |record: &Value| record["plan"]["forward"]["tx_first"].as_u64();
    // Ids of one second are in no order.
    let first = stored.iter().find(|record| bursts(record) == Some(4));
    let first = first.expect("the first run is stored");
    assert_eq!(first["plan"]["forward"]["burst"], 16);
    assert_eq!(number(first, "/forward/primed"), 128.0);
}

/// `--json` is one document whatever is typed: a record, or a set of as many as there were.
#[test]
fn a_shell_gives_one_document() {
    let room = Room::new();
    let words = "forward --dev ring:0 --interactive --idle yield --json";
    let run = "start tx_first 1\nsleep 20ms\nstop\n";
    for (commands, runs) in [("", 0), (run, 1), (&*run.repeat(2), 2)] {
        let document = shell(&room, words, commands).expect(0).json();
        if runs == 1 {
            assert_eq!(document["kind"], "forward");
            continue;
        }
        assert_eq!(document["schema"], "linerate/set/1");
        assert_eq!(document["kind"], "shell");
        assert_eq!(document["runs"].as_array().map(Vec::len), Some(runs));
    }
    // A stream gets each of them when it ends, and what it is when it begins.
    let stream = words.replace("--json", "--json-stream");
    let lines = shell(&room, &stream, &run.repeat(2)).expect(0).json_lines();
    let events: Vec<_> = lines.iter().map(|line| line["event"].clone()).collect();
    assert_eq!(events, ["started", "finished", "started", "finished"]);
    assert_eq!(lines[0]["plan"], lines[1]["record"]["plan"]);
}

/// Also where the commands are typed: the prompt is no part of it.
#[test]
fn a_document_has_no_prompt_in_it() {
    let room = Room::new();
    let line = format!(
        "{} forward --dev ring:0 --idle yield --interactive --json --no-store > document",
        room.binary().display()
    );
    let script = room
        .command("script", ["-q", "-e", "-c", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut script) = script else {
        skip!("script (util-linux) is not installed");
    };
    let mut keys = script.stdin.take().expect("piped");
    let mut script = Held(script);
    soon("its end", || {
        // The shell forgets what was typed before its prompt, and once it has ended nobody reads.
        let _ = keys.write_all(b"quit\r").and_then(|()| keys.flush());
        std::thread::sleep(Duration::from_millis(500));
        script.0.try_wait().expect("it can be asked").is_some()
    });
    let document = fs::read_to_string(room.path().join("document")).expect("a document");
    let document: Value = serde_json::from_str(&document).expect(&document);
    assert_eq!(document["kind"], "shell");
}

#[test]
fn a_stream_begins_with_what_is_measured() {
    let room = Room::new();
    let words = "forward --dev ring:0 --tx-first 1 --idle yield --json-stream";
    let lines = room.run(&format!("{words} -t 0.3")).expect(0).json_lines();
    assert_eq!(lines[0]["event"], "started");
    let record = &lines[lines.len() - 1]["record"];
    assert_eq!(lines[0]["plan"], record["plan"]);
    let words = "forward --dev ring:0 --saturate --trial 50ms --json-stream";
    let lines = room.run(words).expect(0).json_lines();
    let (set, events) = lines.split_last().expect("a set");
    assert_eq!(set["kind"], "saturation");
    let steps = set["runs"].as_array().expect("steps").len();
    assert_eq!(events.len(), 2 * steps);
    for (at, event) in events.iter().enumerate() {
        let want = ["started", "finished"][at % 2];
        assert_eq!(
            (&event["event"], &event["test"]),
            (&want.into(), &(at / 2 + 1).into())
        );
    }
}

/// Whoever waits hears of it when it happens, and the wait is over.
#[test]
fn a_port_that_stops_working_is_told_while_the_shell_sleeps() {
    let room = Room::new();
    // A capture of one frame of 60 bytes, of which none is there.
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]);
    fs::write(room.path().join("cut.pcap"), bytes).unwrap();
    fs::write(room.path().join("script"), "start\nsleep 4h\nhelp\n").unwrap();
    let words =
        "forward --dev pcap:rx=cut.pcap --dev null: --commands script --idle yield --no-store";
    let printed = room.run(words).expect(1).stdout;
    let (at, next) = (printed.find("damaged"), printed.find("help PART"));
    assert!(at.is_some() && at < next, "{printed}");
}

#[test]
fn commands_come_from_a_file() {
    let room = Room::new();
    fs::write(room.path().join("more"), "stop\n").unwrap();
    fs::write(
        room.path().join("script"),
        "start tx_first 1\nsleep 50ms\nload more\n",
    )
    .unwrap();
    let printed = room
        .run("forward --dev ring:0 --commands script --idle yield")
        .expect(0)
        .stdout;
    assert!(
        printed.contains("Accumulated forward statistics"),
        "{printed}"
    );
    // A script that fails says so by its exit code; what runs when it ends is stopped and told.
    fs::write(room.path().join("bad"), "start\nnonsense\n").unwrap();
    let ran = room
        .run("forward --dev ring:0 --commands bad --idle yield")
        .expect(1);
    assert!(ran.stdout.contains("Accumulated"), "{}", ran.stdout);
    // However they come: from a file, from a pipe, or from one after the other.
    let words = "forward --dev ring:0 --interactive --idle yield --no-store";
    let piped = shell(&room, words, "start\nnonsense\nstop\n").expect(1);
    assert!(piped.stdout.contains("no such command: nonsense"));
    shell(&room, words, "start\nstop\n").expect(0);
    shell(&room, &format!("{words} --commands script"), "strat\n").expect(1);
    // Words of testpmd that mean nothing here are answered, and count as failed.
    let ran = shell(&room, words, "vlan set strip on 0\nhelp absent\n").expect(1);
    assert!(
        ran.stdout
            .contains("not here: vlan set strip on 0: tags are left")
    );
}

#[test]
fn a_signal_stops_prints_and_stores() {
    let room = Room::new();
    for (words, code) in [
        (
            "forward --dev ring:0 --tx-first --stats-period 0.05 --idle yield",
            0,
        ),
        (
            "forward --dev ring:0 --tx-first -t 600 --stats-period 0.05 --idle yield",
            130,
        ),
    ] {
        let mut held = Running::start(&mut room.linerate(words));
        held.line(|line| line.contains("Rx-pps"));
        held.interrupt();
        let ran = held.wait().expect(code);
        assert!(
            ran.stdout.contains("Accumulated forward statistics"),
            "{ran:?}"
        );
    }
    let interrupted: Vec<_> = room
        .stored()
        .iter()
        .map(|r| r["interrupted"].clone())
        .collect();
    assert_eq!(interrupted.len(), 2);
    assert!(interrupted.contains(&Value::Bool(true)));
}

/// Nobody waits for the rest of a script that Ctrl-C was pressed in, wherever it comes from.
#[test]
fn a_signal_ends_a_script() {
    let room = Room::new();
    let lines = "start tx_first 1\nsleep 600\nstop\nsleep 600\nhelp\nquit\n";
    fs::write(room.path().join("script"), lines).unwrap();
    fs::write(room.path().join("loads"), "load script\nquit\n").unwrap();
    let words = "forward --dev ring:0 --idle yield --no-store";
    for (more, piped) in [
        ("--commands script", None),
        ("--interactive", Some("script")),
        ("--interactive", Some("loads")),
    ] {
        let mut command = room.linerate(&format!("{words} {more}"));
        if let Some(file) = piped {
            command.stdin(fs::File::open(room.path().join(file)).unwrap());
        }
        let mut held = Running::start(&mut command);
        held.line(|line| line.ends_with("> sleep 600"));
        held.interrupt();
        let printed = held.wait().expect(130).stdout;
        assert!(!printed.contains("help PART"), "{more}: {printed}");
        assert!(printed.contains("Accumulated"), "{more}: {printed}");
    }
}

/// Whether the folder where shared memory meets holds a socket.
fn meetings(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("linerate")).into_iter().flatten();
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// Habits of testpmd: as many queues of either kind, statistics that are off, a word after each `set`.
#[test]
fn habits_are_known() {
    let room = Room::new();
    let found = record(
        &room,
        "forward --dev ring:0 --rxq=2 --txq=2 --stats-period 0 --tx-first -t 0.2 --idle yield --no-store",
    );
    assert_eq!(number(&found, "/forward/ports/0/queues"), 2.0);
    assert!(number(&found, "/forward/ports/0/rx_descriptors") > 0.0);
    let printed = shell(
        &room,
        "forward --dev ring:0 --interactive --no-store",
        "set burst 16\nset nbcore 9\nset nbport 1\nset txpkts 2000\nset fwd link:rate=1G,delay=50us\n\
         set flush_rx off\nshow port info 0\nquit\n",
    );
    for wanted in [
        "Number of packets per burst set to 16",
        "previous number of forwarding cores 1 - changed to number of configured cores 9",
        "forwarding ports: 1 (0)",
        "larger mtu=",
        "Set link:rate=1G,delay=50us,",
        "flush_rx: off",
        "MTU: 1500",
        "Number of RXDs per queue:",
    ] {
        assert!(
            printed.stdout.contains(wanted),
            "no `{wanted}` in {}",
            printed.stdout
        );
    }
}

/// Every block and line of testpmd's forward statistics, while it runs, at the stop and afterwards.
#[test]
fn forward_statistics_are_testpmds() {
    let room = Room::new();
    let ran = shell(
        &room,
        "forward --dev ring:0 --dev ring:1 --interactive --idle yield --no-store",
        "show fwd stats all\nstart tx_first 1\nsleep 1\nshow fwd stats all\nclear fwd stats all\n\
         sleep 1\nstop\nshow fwd stats all\nclear fwd stats all\nshow fwd stats all\nquit\n",
    )
    .expect(0);
    let parts: Vec<&str> = ran.stdout.split("forward> ").collect();
    let after = |command: &str, at: usize| {
        let mut found = parts.iter().filter(|part| part.starts_with(command));
        *found
            .nth(at)
            .unwrap_or_else(|| panic!("no {command} in {}", ran.stdout))
    };
    let stream = "  ------- Forward Stats for RX Port= 0/Queue= 0 -> TX Port= 1/Queue= 0 -------\n  RX-packets: ";
    let port = "  ---------------------- Forward statistics for port 0  ----------------------\n  RX-packets: ";
    let all = "  +++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++\n  RX-packets: ";
    let received = |text: &str, block: &str| -> u64 {
        let rest = text.split(block).nth(1);
        let rest = rest.unwrap_or_else(|| panic!("no {block} in {text}"));
        rest.split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .expect("a number")
    };
    let show = "show fwd stats all";
    for block in [port, all] {
        assert_eq!(received(after(show, 0), block), 0);
        assert!(received(after(show, 1), block) > 0);
        // What was counted before is not counted twice, and stays after the stop.
        let stopped = received(after("stop", 0), block);
        assert!(stopped > 0);
        assert_eq!(received(after(show, 2), block), stopped);
        assert_eq!(received(after(show, 3), block), 0);
    }
    assert!(received(after(show, 1), stream) > 0 && received(after(show, 2), stream) > 0);
    let row = after("stop", 0)
        .lines()
        .find(|line| line.contains("TX-packets: "))
        .unwrap();
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        (words[0], words[2], words[4]),
        ("TX-packets:", "TX-dropped:", "TX-total:")
    );
}

/// Ports come, change and go; queues are held to rates; frames are described; counters have testpmd's names.
#[test]
fn ports_queues_and_frames_by_testpmds_words() {
    let room = Room::new();
    let ran = shell(
        &room,
        "forward --dev ring:0 --dev ring:1 --interactive --idle yield --no-store --display-xstats \
         rx_good_packets,tx_good_bytes",
        "port attach ring:7\nshow port summary all\nport detach 2\nport stop all\n\
         port config all rxq 2\nport config all txq 2\nport config all rxd 256\nport config all max-pkt-len 1518\n\
         port config mtu 0 1400\nport start all\nshow rxq info 0 1\nshow txq info 1 0\n\
         set port 0 queue 1 rate 10\nset verbose 1\nset record-latency on\nset record-bitrates on\n\
         set flowgen-clones 2\ncsum set ip sw 0\ncsum show 0\nshow config rxtx\n\
         start tx_first 1\nsleep 300ms\nshow port stats 0\nshow port xstats 1\nshow fwd stats all\nstop\nset verbose 0\n\
         set promisc all on\nquit\n",
    )
    .expect(0);
    for wanted in [
        "Port 2 is attached, and started. Now total ports is 3",
        "Number of available ports: 3",
        "Port 2 is detached. Now total ports is 2",
        "2 ports: 2 queue pairs",
        "port 0: MTU 1400",
        "Infos for port 0 , RX queue 1",
        "Infos for port 1 , TX queue 0",
        "Number of RXDs: 256",
        "port 0 queue 1: 10 Mbit/s",
        "Change verbose level from 0 to 1",
        "IP checksum offload is sw",
        "port 0: RX queue number: 2 Tx queue number: 2",
        "port 0 queue 1: 10 Mbit/s at most",
        "streams=4",
        "received 32 packets",
        "sw ptype: L2_ETHER L3_IPV4 L4_UDP",
        "Rate (since last show)",
        "rx_good_packets  ",
        "###### NIC extended statistics for port 1",
        "rx_q1_packets: ",
        "Latency, poll to transmit queue: min",
        "Bit rate out: last second",
        "nothing filters by address there",
    ] {
        assert!(
            ran.stdout.contains(wanted),
            "no `{wanted}` in {}",
            ran.stdout
        );
    }
    assert!(!ran.stdout.contains("error:"), "{}", ran.stdout);
    // Who looks for the first time sees the rates since the start.
    let mut rates = ran
        .stdout
        .lines()
        .filter_map(|line| line.split("Rx-pps:").nth(1));
    let first = rates.next().and_then(|rest| rest.split_whitespace().next());
    assert!(first.is_some_and(|pps| pps != "0"), "{}", ran.stdout);
    // What cannot be says why, and what to do.
    let ran = shell(
        &room,
        "forward --dev ring:0 --dev ring:1 --dev ring:2 --portlist 1 --eth-peer 1,02:00:00:00:00:09 --interactive \
         --idle yield --no-store",
        "port attach packet:none-such,mtu=4000\nport detach 1\nset portlist 0,1\nport detach 1\nstart tx_first\nstop\nset default\nport attach ring:9,mtu=9000\n\
         start tx_first\nstop\nquit\n",
    )
    .expect(1);
    assert!(
        ran.stdout
            .contains("port 1 is the only one that takes part"),
        "{}",
        ran.stdout
    );
    // Also where what it was for failed.
    assert!(
        ran.stdout.contains("(files begin anew): 0, 1, 2\n"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout.contains("(files begin anew): 0, 2\n"),
        "{}",
        ran.stdout
    );
    // Port 0 alone, before and after the defaults came back, and nobody is behind port 1 any more.
    assert_eq!(ran.stdout.matches("streams=1").count(), 2, "{}", ran.stdout);
    assert!(!ran.stdout.contains("02:00:00:00:00:09"), "{}", ran.stdout);
    for (line, wanted) in [
        ("port config all rxq 2", "it is open"),
        ("port attach nonsense", "KIND:NAME"),
        ("port detach 7", "there is no port 7: there is 0, or all"),
        ("port detach 0", "it is the last one"),
        ("show rxq info 0 9", "has queue 0 alone"),
        ("set port 0 queue 3 rate 1", "has queue 0 alone"),
        ("set promisc 0 off", "kernel interfaces do that"),
        ("csum set ip hw 0", "`csum set ip sw 0`"),
        ("set txsplit on", "a frame is one piece"),
        ("set verbose x", "no number"),
        (
            "set corelist 1000",
            "processor 1000: this process may not run there; choose among",
        ),
        ("show nonsense", "there is:\n  show port stats PORT\n"),
        ("set nbport 9", "there is 1 port"),
        (
            "show port stats 9",
            "there is no port 9: there is 0, or all",
        ),
    ] {
        let words = "forward --dev ring:0 --interactive --no-store";
        let ran = shell(&room, words, &format!("{line}\n")).expect(1);
        assert!(ran.stdout.contains(wanted), "{line}: {}", ran.stdout);
        let once = ran.stdout.matches(wanted).count();
        assert_eq!(once, 1, "{line}: {}", ran.stdout);
    }
}

/// Options of testpmd's command line are found in what runs.
#[test]
fn options_are_testpmds() {
    let room = Room::new();
    let found = record(
        &room,
        "forward --dev ring:0 --tx-first 1 -t 1 --idle yield --no-store --mbuf-size 4096 --mbcache 64 \
         --max-pkt-len 1018 --latencystats=1 --bitrate-stats=1",
    );
    assert!(number(&found, "/forward/memory/slot_bytes") >= 4096.0);
    assert_eq!(number(&found, "/forward/ports/0/frame_bytes"), 1018.0);
    assert!(number(&found, "/forward/streams/0/residence/min_ns") > 0.0);
    assert!(number(&found, "/forward/ports/0/bit_rates/transmit/peak_l2_bps") > 0.0);
    // Each frame is written down, so the time is short, and on a crowded machine nothing may come of it.
    one_of(10, || {
        let found = record(
            &room,
            "forward --dev pcap:tx=flows.pcap --mode flowgen --flowgen-flows 4 --flowgen-clones 1 -t 0.05 \
             --no-store --idle yield",
        );
        let sent = number(&found, "/summary/packets_sent");
        if sent > 8.0 {
            Ok(())
        } else {
            Err(format!("{sent} packets"))
        }
    });
    let capture = fs::read(room.path().join("flows.pcap")).unwrap();
    // 198.18.0.2 of the first flow twice, then 198.18.0.3.
    let last = capture
        .windows(8)
        .filter(|bytes| bytes[..7] == [198, 18, 0, 1, 198, 18, 0]);
    let last: Vec<u8> = last.map(|bytes| bytes[7]).take(6).collect();
    assert_eq!(last, [2, 2, 3, 3, 4, 4]);
    let printed = room
        .run("forward --dev ring:0 --tx-first 100000 -t 2 --stats-period 0.1 --idle yield --no-store \
              --display-xstats tx_good_packets")
        .expect(0)
        .stdout;
    for wanted in [
        "tx_first 100000: ",
        "of 3,200,000 packets are in flight",
        "  tx_good_packets  ",
    ] {
        assert!(printed.contains(wanted), "no `{wanted}` in {printed}");
    }
    let found = record(
        &room,
        "forward --dev ring:0 --mode noisy --noisy-lkup-memory=1 --noisy-lkup-num-reads=2 \
         --noisy-lkup-num-reads-writes=1 --tx-first 1 -t 0.1 --idle yield --no-store",
    );
    assert_eq!(
        found["plan"]["forward"]["mode"],
        "noisy:delay=0s,memory=1048576,reads=3,writes=1"
    );
    for (words, wanted) in [
        ("--noisy-lkup-num-reads 2", "in mode io"),
        ("--numa", "numactl"),
        ("--noisy-tx-sw-buffer-size=32", "noisy:delay=1ms"),
        ("--nonsense", "unexpected argument"),
        ("--mbuf-size 1000", "1646 or more"),
        ("--mbcache 8", "32..=512"),
        ("--max-pkt-len 20", "no length of a frame"),
        ("--display-xstats nonsense", "rx_good_packets"),
        ("--latencystats --mode rxonly", "straight through"),
        ("--tx-first x", "no number of bursts"),
    ] {
        let ran = room
            .run(&format!("forward --dev ring:0 -t 1 {words}"))
            .expect(2);
        assert!(ran.stderr.contains(wanted), "{words}: {}", ran.stderr);
    }
}

/// What idling costs is stated for each way of it.
#[test]
fn idle_latency_is_stated() {
    let room = Room::new();
    for (idle, wanted) in [
        ("sleep:100us", "/forward/cores/0/idle_gap_ns"),
        ("yield", "/forward/cores/0/idle_gap_max_ns"),
    ] {
        let words = format!("forward --dev ring:0 -t 1 --idle {idle} --no-store");
        let found = record(&room, &words);
        assert!(number(&found, wanted) > 0.0);
        let text = room.run(&words).expect(0).stdout;
        assert!(text.contains("a frame that finds it idle waits"), "{text}");
    }
}

/// A million bursts do not eat the run: no room comes before anybody forwards.
#[test]
fn first_bursts_end_with_a_full_ring() {
    let room = Room::new();
    let words = "forward --dev ring:0 --tx-first 1000000 -t 2 --idle yield --no-store";
    let found = record(&room, words);
    let primed = number(&found, "/forward/primed");
    assert!((32.0..100_000.0).contains(&primed), "{primed}");
    assert!(number(&found, "/summary/packets_per_second") > 0.0);
}

/// Frames of a capture are no leftovers of an earlier run.
#[test]
fn captured_frames_are_not_flushed() {
    let room = Room::new();
    room.run("generate --dev pcap:tx=some.pcap --no-receive --count 50 --rate max --no-store")
        .expect(0);
    let words = "forward --dev pcap:rx=some.pcap,tx=out.pcap --port-topology loop -t 20 --no-store";
    let found = record(&room, words);
    assert_eq!(number(&found, "/forward/flushed"), 0.0);
    assert_eq!(number(&found, "/summary/packets_received"), 50.0);
}

/// Nobody at the other end is told, before and after.
#[test]
fn a_missing_peer_is_told() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let words = "forward --dev shm:alone -t 0.3 --idle yield --no-store";
    let done = finish(room.linerate(words).env("XDG_RUNTIME_DIR", &run)).expect(0);
    assert!(
        done.stdout.contains("nobody is at the other end yet"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("[no-peer]"), "{}", done.stdout);
}

/// Who comes second is told so, and not of what only follows from it.
#[test]
fn a_second_client_is_refused_and_no_ring_is_blamed() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let start = |words: &str| Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
    let far = start("forward --dev shm:x,role=server --idle yield --stats-period 0.1");
    soon("the port waits", || !meetings(&run).is_empty());
    let mut near = start("forward --dev shm:x --tx-first 1 --idle yield --stats-period 0.1");
    // Whoever is first gets the place: what comes back to it tells that it has come.
    near.line(|line| {
        let count = line
            .split_once("RX-packets:")
            .map(|(_, count)| count.split_whitespace());
        let count = count.and_then(|mut words| words.next()?.parse().ok());
        count > Some(0_u64)
    });
    let words = "forward --dev shm:x --tx-first 40 -t 0.5 --idle yield --no-store";
    let mut told = None;
    soon("a refusal", || {
        let done = finish(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
        let refused = done.stderr.contains("has a client already");
        told = refused.then_some(done);
        refused
    });
    let done = told.expect("it was refused").expect(1);
    for wrong in ["[no-peer]", "too-few-descriptors"] {
        assert!(!done.stdout.contains(wrong), "{}", done.stdout);
    }
    for held in [near, far] {
        held.interrupt();
        held.wait();
    }
}

/// Two hosts back to back, the second one starts the packets.
#[test]
fn two_processes_pass_packets_round() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let words = "forward --dev shm:x,role=server --dev shm:y,role=server --no-flush-rx --idle yield --stats-period 0.1";
    let far = Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
    soon("both ports wait", || meetings(&run).len() >= 2);
    let mut near = room.linerate(
        "forward --dev shm:x --dev shm:y --tx-first 4 -t 4 --json --idle yield --no-store",
    );
    let found = finish(near.env("XDG_RUNTIME_DIR", &run)).expect(0).json();
    assert_eq!(number(&found, "/forward/primed"), 256.0);
    for port in 0..2 {
        let received = number(&found, &format!("/forward/ports/{port}/receive/packets"));
        assert!(received > 256.0, "packets went round: {received}");
    }
    far.interrupt();
    let out = far.wait().expect(0).stdout;
    assert!(out.contains("Forward statistics for port 1"), "{out}");
}

/// The first packets that ever come to a process are answered as all later ones are.
#[test]
fn the_first_step_through_another_process_counts() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    let words =
        "forward --dev shm:x,role=server --dev shm:y,role=server --idle yield --stats-period 0.1";
    let far = Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
    soon("both ports wait", || meetings(&run).len() >= 2);
    let mut near = room.linerate(
        "forward --dev shm:x --dev shm:y --saturate --trial 1 --json --idle yield --no-store",
    );
    let set = finish(near.env("XDG_RUNTIME_DIR", &run)).expect(0).json();
    let first = &set["result"]["saturation"][0]["points"][0];
    assert_eq!(number(first, "/in_flight"), 64.0);
    assert!(number(first, "/packets_per_second") > 0.0, "{set:#}");
    far.interrupt();
    far.wait();
}

/// What is left of a forwarder that is killed: nothing that the next one trips over.
#[test]
fn a_killed_process_leaves_no_memory() {
    let room = Room::new();
    let run = room.path().join("run");
    fs::create_dir(&run).unwrap();
    for _ in 0..2 {
        let words = "forward --dev shm:k,role=server --idle yield --stats-period 0.1";
        let held = Running::start(room.linerate(words).env("XDG_RUNTIME_DIR", &run));
        soon("the port waits", || !meetings(&run).is_empty());
        held.signal(Signal::KILL);
        held.wait();
        // The memory had no name: it went with the process. A socket's name may stay, and is taken over.
        let shared = fs::read_dir("/dev/shm").into_iter().flatten();
        let named = shared.filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name();
            name.to_string_lossy().contains("linerate")
        });
        assert_eq!(named.count(), 0);
    }
}

/// A child that is killed with its test.
struct Held(std::process::Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// On a terminal of its own: a prompt, completion, history, and an end by Ctrl-C that leaves the
/// terminal as it was.
#[test]
fn the_shell_on_a_terminal() {
    let room = Room::new();
    let Ok(mut script) = room
        .command(
            "script",
            [
                "-q",
                "-e",
                "-c",
                &format!(
                    "{} forward --dev ring:0 --idle yield",
                    room.binary().display()
                ),
                "/dev/null",
            ],
        )
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        skip!("script (util-linux) is not installed");
    };
    let keys = script.stdin.take().expect("piped");
    let mut shown = script.stdout.take().expect("piped");
    let out = Arc::new(Mutex::new(String::new()));
    let reader = std::thread::spawn({
        let out = Arc::clone(&out);
        move || {
            let mut room = [0; 4096];
            while let Ok(bytes @ 1..) = std::io::Read::read(&mut shown, &mut room) {
                let text = String::from_utf8_lossy(&room[..bytes]);
                out.lock().expect("a reader").push_str(&text);
            }
        }
    });
    // The shell forgets what was typed before its prompt: each line waits for the one behind the answer to the
    // line before. Only that the shell is ready for it may come a moment after the prompt: then it is typed again.
    let mut script = Held(script);
    let mut keys = Some(keys);
    let mut from = 0;
    for (typed, answer) in [
        ("", ""),
        ("start tx_first 1\r", "io packet forwarding"),
        // It completes `show port stats all`.
        ("show port sta\t all\r", "NIC statistics for port 0"),
        ("stop\r", "Accumulated forward statistics"),
    ] {
        let mut at = None;
        one_of(6, || {
            let keys = keys.as_mut().expect("until the end");
            keys.write_all(typed.as_bytes()).expect("it reads");
            keys.flush().expect("it reads");
            let until = Instant::now() + LONG / 6;
            while Instant::now() < until {
                let shown = &out.lock().expect("a reader")[from..];
                let begin = shown.find(answer);
                at = begin.and_then(|begin| Some(begin + shown[begin..].find("forward> ")?));
                if at.is_some() {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(format!("no prompt after `{typed}`: {:?}", out.lock()))
        });
        from += at.expect("it was found") + "forward> ".len();
    }
    soon("its end", || {
        // Once it has ended nobody reads.
        let keys = keys.as_mut().expect("until the end");
        let _ = keys.write_all(b"quit\r").and_then(|()| keys.flush());
        std::thread::sleep(Duration::from_millis(500));
        script.0.try_wait().expect("it can be asked").is_some()
    });
    drop(keys.take());
    let status = script.0.wait().expect("it ended");
    reader.join().expect("a reader");
    let out = out.lock().expect("a reader").clone();
    assert_eq!(status.code(), Some(0), "{out}");
    // A mode that a signal would leave on: what is pasted into the shell after it then has marks around it.
    assert!(!out.contains("\u{1b}[?2004"), "{out:?}");
    let history = room.path().join(".local/state/linerate/forward_history");
    let history = fs::read_to_string(history).expect("a history");
    assert!(history.contains("start tx_first 1"), "{history}");
}
