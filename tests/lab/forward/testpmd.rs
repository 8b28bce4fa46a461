//! Commands, options, defaults and statistics of testpmd.

use super::*;

/// Conventions of testpmd: equal numbers of queues, statistics that are off, a reply to each `set`.
#[test]
fn conventions_are_testpmds() {
    let dir = TestDir::new();
    let result = run_for_record(
        &dir,
        "forward --dev ring:0 --rxq=2 --txq=2 --stats-period 0 --tx-first -t 0.2 --idle yield --no-store",
    );
    assert_eq!(number_at(&result, "/forward/ports/0/queues"), 2.0);
    assert!(number_at(&result, "/forward/ports/0/rx_descriptors") > 0.0);
    let printed = run_shell(
        &dir,
        "forward --dev ring:0 --interactive --no-store",
        "set burst 16\nset nbcore 9\nset nbport 1\nset txpkts 2000\nset fwd link:rate=1G,delay=50us\n\
         set flush_rx off\nshow port info 0\nquit\n",
    );
    for expected in [
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
            printed.stdout.contains(expected),
            "no `{expected}` in {}",
            printed.stdout
        );
    }
}

/// Blocks and lines of testpmd's forward statistics, while it runs, at the stop and afterwards.
#[test]
fn forward_statistics_are_testpmds() {
    let dir = TestDir::new();
    let output = run_shell(
        &dir,
        "forward --dev ring:0 --dev ring:1 --interactive --idle yield --no-store",
        "show fwd stats all\nstart tx_first 1\nsleep 1\nshow fwd stats all\nclear fwd stats all\n\
         sleep 1\nstop\nshow fwd stats all\nclear fwd stats all\nshow fwd stats all\nquit\n",
    )
    .expect(0);
    let parts: Vec<&str> = output.stdout.split("forward> ").collect();
    let after = |command: &str, at: usize| {
        let mut matching = parts.iter().filter(|part| part.starts_with(command));
        *matching
            .nth(at)
            .unwrap_or_else(|| panic!("no {command} in {}", output.stdout))
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
        // Earlier counts are not counted twice, and stay after the stop.
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
    let args: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        (args[0], args[2], args[4]),
        ("TX-packets:", "TX-dropped:", "TX-total:")
    );
}

/// Ports are attached, changed and detached; counters have testpmd's names.
#[test]
fn options_of_testpmd_set_ports_queues_and_frames() {
    let dir = TestDir::new();
    let output = run_shell(
        &dir,
        "forward --dev ring:0 --dev ring:1 --interactive --idle yield --no-store --display-xstats \
         rx_good_packets,tx_good_bytes",
        "port attach ring:7\nshow port summary all\nport detach 2\nport stop all\n\
         port config all rxq 2\nport config all txq 2\nport config all rxd 256\nport config all max-pkt-len 1518\n\
         port config mtu 0 1400\nport start all\nshow rxq info 0 1\nshow txq info 1 0\n\
         set record-latency on\nset record-bitrates on\n\
         set flowgen-clones 2\ncsum set ip sw 0\ncsum show 0\nshow config rxtx\n\
         start tx_first 1\nsleep 300ms\nshow port stats 0\nshow port xstats 1\nshow fwd stats all\nstop\n\
         set promisc all on\nquit\n",
    )
    .expect(0);
    for expected in [
        "Port 2 is attached, and started. Now total ports is 3",
        "Number of available ports: 3",
        "Port 2 is detached. Now total ports is 2",
        "2 ports: 2 queue pairs",
        "port 0: MTU 1400",
        "Infos for port 0 , RX queue 1",
        "Infos for port 1 , TX queue 0",
        "Number of RXDs: 256",
        "IP checksum offload is sw",
        "port 0: RX queue number: 2 Tx queue number: 2",
        "streams=4",
        "Rate (since last show)",
        "rx_good_packets  ",
        "###### NIC extended statistics for port 1",
        "rx_q1_packets: ",
        "Latency, poll to transmit queue: min",
        "Bit rate out: last second",
        "no address filter",
    ] {
        assert!(
            output.stdout.contains(expected),
            "no `{expected}` in {}",
            output.stdout
        );
    }
    assert!(!output.stdout.contains("error:"), "{}", output.stdout);
    // The first display has the rates since the start.
    let mut rates = output
        .stdout
        .lines()
        .filter_map(|line| line.split("Rx-pps:").nth(1));
    let first = rates.next().and_then(|rest| rest.split_whitespace().next());
    assert!(first.is_some_and(|pps| pps != "0"), "{}", output.stdout);
    // A rejected command has the reason and the next step.
    let output = run_shell(
        &dir,
        "forward --dev ring:0 --dev ring:1 --dev ring:2 --portlist 1 --eth-peer 1,02:00:00:00:00:09 --interactive \
         --idle yield --no-store",
        "port attach packet:none-such,mtu=4000\nport detach 1\nset portlist 0,1\nport detach 1\nstart tx_first\nstop\nset default\nport attach ring:9,mtu=9000\n\
         start tx_first\nstop\nquit\n",
    )
    .expect(1);
    assert!(
        output
            .stdout
            .contains("port 1 is the only one that forwards"),
        "{}",
        output.stdout
    );
    // Also when the command itself failed afterwards.
    assert!(
        output.stdout.contains("(files start over): 0, 1, 2\n"),
        "{}",
        output.stdout
    );
    assert!(
        output.stdout.contains("(files start over): 0, 2\n"),
        "{}",
        output.stdout
    );
    // Port 0 alone, before and after the defaults were restored, and port 1 has no peer any more.
    assert_eq!(
        output.stdout.matches("streams=1").count(),
        2,
        "{}",
        output.stdout
    );
    assert!(
        !output.stdout.contains("02:00:00:00:00:09"),
        "{}",
        output.stdout
    );
    for (line, expected) in [
        ("port config all rxq 2", "it is open"),
        ("port attach nonsense", "KIND:NAME"),
        ("port detach 7", "no port 7: choose from 0, or all"),
        ("port detach 0", "it is the last one"),
        ("show rxq info 0 9", "has only queue 0"),
        ("set promisc 0 off", "only kernel interfaces have one"),
        ("csum set ip hw 0", "`csum set ip sw 0`"),
        (
            "set txsplit on",
            "no such command: set txsplit on: there is:\n",
        ),
        ("set burst tx delay x retry 1", "not a valid number"),
        (
            "set corelist 1000",
            "CPU 1000: not available to this process; choose from",
        ),
        ("show nonsense", "there is:\n  show port stats PORT\n"),
        ("set nbport 9", "there is 1 port"),
        ("show port stats 9", "no port 9: choose from 0, or all"),
    ] {
        let args = "forward --dev ring:0 --interactive --no-store";
        let output = run_shell(&dir, args, &format!("{line}\n")).expect(1);
        assert!(
            output.stdout.contains(expected),
            "{line}: {}",
            output.stdout
        );
        let once = output.stdout.matches(expected).count();
        assert_eq!(once, 1, "{line}: {}", output.stdout);
    }
}

/// Options of testpmd's command line take effect in the run.
#[test]
fn options_are_testpmds() {
    let dir = TestDir::new();
    let result = run_for_record(
        &dir,
        "forward --dev ring:0 --tx-first 1 -t 1 --idle yield --no-store --mbuf-size 4096 --mbcache 64 \
         --max-pkt-len 1018 --latencystats=1 --bitrate-stats=1",
    );
    assert!(number_at(&result, "/forward/memory/slot_bytes") >= 4096.0);
    assert_eq!(number_at(&result, "/forward/ports/0/frame_bytes"), 1018.0);
    assert!(number_at(&result, "/forward/streams/0/residence/min_ns") > 0.0);
    assert!(number_at(&result, "/forward/ports/0/bit_rates/transmit/peak_l2_bps") > 0.0);
    // Every frame is written to a file: the run ends once there are some.
    let flowgen = RunningCommand::start(&mut dir.linerate(
        "forward --dev pcap:tx=flows.pcap --mode flowgen --flowgen-flows 4 --flowgen-clones 1 --no-store \
         --idle yield",
    ));
    let file = dir.path().join("flows.pcap");
    wait_until("a thousand bytes of frames", || {
        fs::metadata(&file).is_ok_and(|file| file.len() > 1_000)
    });
    flowgen.interrupt();
    flowgen.wait().expect(0);
    let capture = fs::read(dir.path().join("flows.pcap")).unwrap();
    // 198.18.0.2 of the first flow twice, then 198.18.0.3.
    let last = capture
        .windows(8)
        .filter(|bytes| bytes[..7] == [198, 18, 0, 1, 198, 18, 0]);
    let last: Vec<u8> = last.map(|bytes| bytes[7]).take(6).collect();
    assert_eq!(last, [2, 2, 3, 3, 4, 4]);
    let printed = dir
        .run("forward --dev ring:0 --tx-first 100000 -t 2 --stats-period 0.1 --idle yield --no-store \
              --display-xstats tx_good_packets")
        .expect(0)
        .stdout;
    for expected in [
        "tx_first 100000: ",
        "of 3,200,000 packets are in flight",
        "  tx_good_packets  ",
    ] {
        assert!(printed.contains(expected), "no `{expected}` in {printed}");
    }
    for (args, expected) in [
        ("--numa", "unexpected argument"),
        ("--vdev net_ring0", "a similar argument exists: '--dev'"),
        ("--nonsense", "unexpected argument"),
        ("--mbuf-size 1000", "1646 or more"),
        ("--mbcache 8", "use 32 to 512"),
        ("--max-pkt-len 20", "not a frame length"),
        ("--display-xstats nonsense", "rx_good_packets"),
        ("--latencystats --mode rxonly", "straight through"),
        ("--tx-first x", "not a number of bursts"),
    ] {
        let output = dir
            .run(&format!("forward --dev ring:0 -t 1 {args}"))
            .expect(2);
        assert!(
            output.stderr.contains(expected),
            "{args}: {}",
            output.stderr
        );
    }
}
