//! Generator over ports in memory, and through the kernel's bridge.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate_generator::{
    Capture, FrameInput, GeneratorPorts, GeneratorRun, GeneratorSettings, ReceiveSide, capacity,
    record, run,
};
use linerate_lab::{Lab, Topology, privileged};
use linerate_packet::pcap::CaptureWriter;
use linerate_port::{AnyPort, PortError, PortUrl, RxQueue, TxQueue, memory_plan, open};
use linerate_record::generate::{IntendedLoad, TemplatePlan};
use linerate_record::ids::CaveatId;
use linerate_record::plan::RunKind;
use linerate_record::record::Record;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;

fn plan(text: &str) -> FrameInput {
    FrameInput::Template(linerate_packet::template::parse_template(text).unwrap())
}

fn ran(send: &str, arrival: ReceiveSide, settings: &GeneratorSettings) -> GeneratorRun {
    let mut ports = GeneratorPorts::open(&send.parse().unwrap(), &arrival).unwrap();
    run(&mut ports, settings, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// Every frame of every flow returns once, in order, for any number of threads.
#[test]
fn a_loop_gives_every_frame_back() {
    for threads in [1, 2] {
        let settings = GeneratorSettings {
            input: plan("size = 'imix'\nflows = 5\n[udp]\nsource = 'draw:1000-2000'\n"),
            max_frames: Some(10_000),
            threads: Some(threads),
            ..GeneratorSettings::default()
        };
        let ran = ran("ring:0", ReceiveSide::SendPort, &settings);
        let figures = &ran.figures;
        assert_eq!(
            (figures.sent, figures.received),
            (10_000, Some(10_000)),
            "{figures:?}"
        );
        assert_eq!((figures.lost, figures.out_of_order), (Some(0), Some(0)));
        assert_eq!((figures.duplicates, figures.unrelated), (Some(0), 0));
        assert_eq!(figures.one_way_delay_ns.unwrap().count, 10_000);
        assert_eq!(figures.flows.len(), 5);
        for flow in &figures.flows {
            assert_eq!((flow.sent, flow.received, flow.lost), (2000, 2000, 0));
        }
        assert!(ran.facts.intended_fps.is_none() && ran.facts.tagged && ran.port_error.is_none());
        // 834 rounds of the mix minus two thirds of one: within a frame of its mean.
        let mean = figures.send.bytes as f64 / 10_000.0 + 4.0;
        assert!(
            (mean - ran.facts.frame_bytes).abs() < 1.0,
            "{mean} for {}",
            ran.facts.frame_bytes
        );
    }
}

/// A thread that panics ends the run at once, and the record reports it.
#[test]
fn a_panicked_thread_ends_the_run() {
    for threads in [1, 2] {
        let url: PortUrl = "ring:0".parse().unwrap();
        let memory = FrameRegion::new(memory_plan(std::slice::from_ref(&url))).unwrap();
        let mut port = open(&url, &memory).unwrap().remove(0);
        // An invalid frame: it reaches beyond its slot.
        let (mut pool, mut burst) = (memory.pool(), Burst::new());
        let mut frame = pool.allocate().unwrap();
        frame.set_len(u16::MAX);
        burst.push(frame).unwrap();
        assert_eq!(port.transmit.transmit(&mut pool, &mut burst), 1);
        let mut ports = GeneratorPorts::from_open(memory, vec![port], None);
        let settings = GeneratorSettings {
            load: IntendedLoad::FrameRate(1000.0),
            duration: Some(Duration::from_secs(600)),
            threads: Some(threads),
            ..GeneratorSettings::default()
        };
        let started = std::time::Instant::now();
        let ran = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert!(started.elapsed() < Duration::from_secs(300));
        assert!(
            matches!(&ran.port_error, Some(PortError::Fault { port }) if port == "ring:0"),
            "{:?}",
            ran.port_error
        );
        // The frames sent until then took some time.
        let figures = &ran.figures;
        assert!(
            figures.sent == 0 || figures.duration_ns > 1_000,
            "{figures:?}"
        );
        let record = record(("ring:0", None), &settings, ran);
        assert!(caveat_ids(&record).contains(&"port-stopped"));
    }
}

/// A lost process at the other end is reported, and its drops are attributed neither to the
/// generator nor to a stall.
#[test]
fn a_lost_remote_process_is_reported() {
    let name = format!("shm:generate-left-{}", std::process::id());
    let url: PortUrl = format!("{name},role=server,rxd=64").parse().unwrap();
    let memory = FrameRegion::new(memory_plan(std::slice::from_ref(&url))).unwrap();
    let mut remote = open(&url, &memory).unwrap().remove(0);
    let url: PortUrl = format!("{name},rxd=64").parse().unwrap();
    let mut ports = GeneratorPorts::open(&url, &ReceiveSide::SendPort).unwrap();
    let settings = GeneratorSettings {
        load: IntendedLoad::FrameRate(5000.0),
        duration: Some(Duration::from_millis(800)),
        drain: Duration::from_millis(10),
        ..GeneratorSettings::default()
    };
    // Returns received frames, and ends after some.
    let lost = std::thread::spawn(move || {
        let (mut pool, mut burst, mut received) = (memory.pool(), Burst::new(), 0);
        let until = Instant::now() + Duration::from_secs(60);
        while received < 300 && Instant::now() < until {
            received += remote.receive.receive(&mut pool, &mut burst);
            remote.transmit.transmit(&mut pool, &mut burst);
            pool.free_all(&mut burst);
            std::thread::yield_now();
        }
    });
    let ran = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap();
    lost.join().unwrap();
    assert!(ran.figures.sent < 3000, "{:?}", ran.figures);
    let record = record((&name, None), &settings, ran);
    let caveats = caveat_ids(&record);
    assert!(caveats.contains(&"peer-left"), "{caveats:?}");
    for blamed in ["tool-limit", "sender-stalled", "no-peer"] {
        assert!(!caveats.contains(&blamed), "{caveats:?}");
    }
}

/// Never sends more than requested, and reports what was not sent.
#[test]
fn a_rate_is_kept_from_above() {
    let settings = GeneratorSettings {
        load: IntendedLoad::FrameRate(5000.0),
        duration: Some(Duration::from_millis(300)),
        interval: Some(Duration::from_millis(100)),
        ..GeneratorSettings::default()
    };
    let ran = ran("ring:0", ReceiveSide::SendPort, &settings);
    let figures = &ran.figures;
    assert!(
        figures.sent > 0 && figures.sent + figures.unsent <= 1501,
        "{figures:?}"
    );
    assert_eq!(figures.lost, Some(0));
    let lateness = ran.lateness.as_ref().unwrap();
    assert!(lateness.count() >= figures.sent);
    let forwarded: u64 = ran
        .intervals
        .iter()
        .map(|reading| reading.sent.frames)
        .sum();
    assert!(forwarded <= figures.sent && !ran.intervals.is_empty());
    let record = record(("ring:0", None), &settings, ran);
    assert_eq!(record.kind, RunKind::Generate);
    assert!(record.summary.rate_error.unwrap() <= 0.01);
    assert_eq!(
        record.plan.generate.as_ref().unwrap().intended_fps,
        Some(5000.0)
    );
    let json = record.to_json();
    assert_eq!(
        linerate_record::record::Record::from_json(&json).unwrap(),
        record
    );
}

#[test]
fn frames_that_do_not_arrive_are_lost() {
    let silent: PortUrl = "null:silent".parse().unwrap();
    let settings = GeneratorSettings {
        max_frames: Some(1000),
        drain: Duration::from_millis(10),
        ..GeneratorSettings::default()
    };
    let ran = ran("null:", ReceiveSide::Port(silent), &settings);
    assert_eq!(
        (ran.figures.lost, ran.figures.loss_fraction),
        (Some(1000), Some(1.0))
    );
    // Frames of other senders are not counted.
    let noise: PortUrl = "null:size=60".parse().unwrap();
    let ran = self::ran("null:", ReceiveSide::Port(noise), &settings);
    assert_eq!(ran.figures.received, Some(0));
    assert!(ran.figures.unrelated > 0);
    let ran = self::ran("null:", ReceiveSide::Nowhere, &settings);
    assert_eq!((ran.figures.received, ran.figures.lost), (None, None));
}

#[test]
fn a_stop_ends_the_run() {
    let mut ports =
        GeneratorPorts::open(&"ring:0".parse().unwrap(), &ReceiveSide::SendPort).unwrap();
    let stop = AtomicBool::new(true);
    let ran = run(
        &mut ports,
        &GeneratorSettings::default(),
        &stop,
        &mut |_| {},
    )
    .unwrap();
    assert!(ran.interrupted);
    // Ports are reusable.
    let settings = GeneratorSettings {
        max_frames: Some(10),
        ..GeneratorSettings::default()
    };
    let again = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(again.figures.received, Some(10), "{:?}", again.figures);
}

#[test]
fn unsendable_frames_are_rejected() {
    for (settings, expected) in [
        (
            GeneratorSettings {
                load: IntendedLoad::LineShare(0.5),
                ..GeneratorSettings::default()
            },
            "the line rate is unknown",
        ),
        (
            GeneratorSettings {
                input: plan("size = '9000'"),
                ..GeneratorSettings::default()
            },
            "longer than ring:0 can send",
        ),
    ] {
        let mut ports =
            GeneratorPorts::open(&"ring:0".parse().unwrap(), &ReceiveSide::SendPort).unwrap();
        let error = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        let problem = error.to_report();
        assert!(problem.situation.contains(expected), "{problem:?}");
        assert!(!problem.next_step.is_empty());
    }
    let error = Capture::read(Path::new("/nowhere.pcap"), false).unwrap_err();
    let problem = error.to_report();
    assert!(
        problem.situation.contains("cannot be opened"),
        "{problem:?}"
    );
}

fn capture(file: &Path) {
    let mut writer = CaptureWriter::new(std::fs::File::create(file).unwrap()).unwrap();
    for number in 0..5u64 {
        writer
            .write(
                number * 10_000_000,
                &vec![number as u8; 60 + number as usize],
            )
            .unwrap();
    }
    writer.flush().unwrap();
}

fn read(file: &Path, recorded: bool) -> FrameInput {
    FrameInput::Capture(Capture::read(file, recorded).unwrap().into())
}

/// A replayed file is not truncated by a port that writes to it.
#[test]
fn a_capture_is_not_written_while_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("five.pcapng");
    capture(&file);
    let before = std::fs::read(&file).unwrap();
    let what = read(&file, false);
    let url = format!("pcap:tx={}", file.display()).parse().unwrap();
    let rejected = GeneratorPorts::open(&url, &ReceiveSide::Nowhere)
        .map(|_| ())
        .unwrap_err();
    let problem = rejected.to_report();
    assert!(
        problem.situation.contains("read and written"),
        "{problem:?}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), before);
    drop(what);
    GeneratorPorts::open(&url, &ReceiveSide::Nowhere).unwrap();
    assert_ne!(std::fs::read(&file).unwrap(), before);
}

/// A capture at full speed, and at its recorded times: 40 ms take at least 40 ms.
#[test]
fn a_capture_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("five.pcapng");
    capture(&file);
    let settings = GeneratorSettings {
        input: read(&file, false),
        max_frames: Some(12),
        ..GeneratorSettings::default()
    };
    let figures = ran("ring:0", ReceiveSide::SendPort, &settings).figures;
    assert_eq!(
        (figures.sent, figures.received, figures.lost),
        (12, Some(12), Some(0))
    );
    assert_eq!(figures.send.bytes, 2 * (60 + 61 + 62 + 63 + 64) + 60 + 61);
    assert_eq!(
        (figures.out_of_order, figures.one_way_delay_ns),
        (None, None)
    );
    let settings = GeneratorSettings {
        input: read(&file, true),
        // As the command line does without a rate: recorded times are not checked against one.
        load: IntendedLoad::FrameRate(1000.0),
        max_frames: Some(5),
        ..settings
    };
    let ran = ran("ring:0", ReceiveSide::SendPort, &settings);
    assert_eq!((ran.facts.intended_fps, ran.load_ratio()), (None, None));
    assert!(ran.figures.duration_ns >= 40_000_000, "{:?}", ran.figures);
    assert_eq!(ran.lateness.unwrap().count(), 5);
}

/// Two hosts and a kernel bridge between them: frames of one arrive at the other.
#[test]
fn through_a_bridge() {
    if !privileged() {
        println!("skipped: labs cannot be built here without root");
        return;
    }
    let file = "[hosts.a]\n[hosts.b]\n[switches.s1]\n[[links]]\nbetween = ['a', 's1']\n\
                [[links]]\nbetween = ['s1', 'b']\n";
    let lab = Lab::up(&Topology::from_toml(file).unwrap()).unwrap();
    let url: PortUrl = "packet:eth0".parse().unwrap();
    // The requirements of a port depend on its interface.
    let both = [url.clone(), url.clone()];
    let mut requested = lab.host("a").unwrap().run(|| memory_plan(&both)).unwrap();
    requested.frames += 2048;
    let memory = FrameRegion::new(requested).unwrap();
    let inside = |host: &str| {
        let host = lab.host(host).unwrap();
        host.run(|| open(&url, &memory)).unwrap().unwrap()
    };
    let (send, receive) = (inside("a"), inside("b"));
    let mut ports = GeneratorPorts::from_open(memory.clone(), send, Some(receive));
    let settings = GeneratorSettings {
        input: FrameInput::Template(TemplatePlan {
            flows: Some(3),
            ..TemplatePlan::default()
        }),
        load: IntendedLoad::FrameRate(1000.0),
        max_frames: Some(200),
        learn: true,
        ..GeneratorSettings::default()
    };
    let ran = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let figures = &ran.figures;
    assert_eq!(
        (figures.sent, figures.received, figures.lost),
        (200, Some(200), Some(0)),
        "{figures:?}"
    );
    assert_eq!(
        (figures.out_of_order, figures.duplicates),
        (Some(0), Some(0))
    );
    assert!(figures.one_way_delay_ns.unwrap().min > 0);
}

/// Records of a classic capture: captured and original length of a frame.
fn truncated_capture(file: &Path, records: &[(u32, u32)]) {
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    bytes.extend([0; 8]);
    bytes.extend([65_535_u32, 1].map(u32::to_le_bytes).concat());
    for (captured, length) in records {
        bytes.extend([1, 0, *captured, *length].map(u32::to_le_bytes).concat());
        bytes.extend(vec![7; *captured as usize]);
    }
    std::fs::write(file, bytes).unwrap();
}

/// Headers that claim missing bytes would be sent as complete frames.
#[test]
fn a_capture_of_truncated_frames_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut.pcap");
    truncated_capture(&file, &[(60, 60), (96, 1514), (60, 61)]);
    let problem = Capture::read(&file, false).unwrap_err().to_report();
    assert_eq!(problem.object, file.display().to_string());
    assert!(
        problem
            .situation
            .contains("2 of its 3 frames are truncated"),
        "{problem:?}"
    );
    assert!(problem.next_step.contains("-s 0"), "{problem:?}");
    truncated_capture(&file, &[(60, 60), (96, 96)]);
    assert_eq!(Capture::read(&file, false).unwrap().len(), 2);
}

/// A frame of the maximum size, including its check sequence, is rejected with this reason.
#[test]
fn the_longest_captured_frame_is_rejected_with_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("long.pcap");
    truncated_capture(&file, &[(65_535, 65_535)]);
    let settings = GeneratorSettings {
        input: read(&file, false),
        max_frames: Some(1),
        ..GeneratorSettings::default()
    };
    let mut ports =
        GeneratorPorts::open(&"ring:0".parse().unwrap(), &ReceiveSide::SendPort).unwrap();
    let error = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    let situation = error.to_report().situation;
    assert!(situation.contains("65539 bytes"), "{situation}");
}

/// Incomplete frames of other senders are no measure of this program's speed.
#[test]
fn frames_that_do_not_fit_are_no_limit_of_the_generator() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut.pcap");
    truncated_capture(&file, &[(60, 60), (60, 61), (60, 900)]);
    let settings = GeneratorSettings {
        max_frames: Some(100),
        drain: Duration::from_millis(10),
        ..GeneratorSettings::default()
    };
    let url: PortUrl = format!("pcap:rx={}", file.display()).parse().unwrap();
    let ran = ran("null:", ReceiveSide::Port(url), &settings);
    let drops = ran.figures.receive.as_ref().unwrap().drops.clone();
    assert_eq!(
        drops.into_iter().collect::<Vec<_>>(),
        [("bad".to_owned(), 2)]
    );
    assert_eq!(ran.disturbance.ring_drops, 0);
    let caveats = record(("null:", Some("pcap:")), &settings, ran).validity;
    let of = |id: CaveatId| caveats.iter().find(|caveat| caveat.id == id);
    assert!(of(CaveatId::ToolLimit).is_none(), "{caveats:?}");
    let reported = &of(CaveatId::UnfitFrames).expect("they are told").reason;
    assert!(
        reported.starts_with("2 frames that arrived at pcap"),
        "{reported}"
    );
}

/// Ends of in-memory cables, opened by the device and by the generator.
struct Cables {
    memory: FrameRegion,
    generator: Vec<Vec<AnyPort>>,
    device: Vec<Vec<AnyPort>>,
}

fn cables(names: &[&str]) -> Cables {
    let url = |name: &str, end: &str| format!("ring:{name},end={end}").parse::<PortUrl>().unwrap();
    let urls: Vec<_> = ["a", "b"]
        .iter()
        .flat_map(|end| names.iter().map(|name| url(name, end)))
        .collect();
    let mut plan = memory_plan(&urls);
    plan.frames += 4096;
    let memory = FrameRegion::new(plan).unwrap();
    let mut generator: Vec<_> = urls.iter().map(|url| open(url, &memory).unwrap()).collect();
    let remote = generator.split_off(names.len());
    Cables {
        memory,
        generator,
        device: remote,
    }
}

/// Forwards frames from one queue of a port to another.
#[test]
fn a_port_of_two_queues_receives_on_both() {
    let Cables {
        memory,
        mut generator,
        device: mut remote,
    } = cables(&["two-queues,queues=2"]);
    let over = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut pool, mut burst) = (memory.pool(), Burst::new());
            let mut queue = 0;
            while !over.load(Relaxed) {
                if remote[0][0].receive.receive(&mut pool, &mut burst) == 0 {
                    std::thread::yield_now();
                    continue;
                }
                // Each burst leaves by another queue.
                queue = 1 - queue;
                remote[0][queue].transmit.transmit(&mut pool, &mut burst);
                pool.free_all(&mut burst);
            }
        });
        let mut ports = GeneratorPorts::from_open(memory.clone(), generator.remove(0), None);
        let settings = GeneratorSettings {
            max_frames: Some(1000),
            load: IntendedLoad::FrameRate(20_000.0),
            ..GeneratorSettings::default()
        };
        let ran = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {});
        over.store(true, Relaxed);
        ran.unwrap()
    });
    let figures = &ran.figures;
    assert_eq!(
        (figures.sent, figures.received, figures.lost),
        (1000, Some(1000), Some(0)),
        "{figures:?}"
    );
    assert_eq!(figures.receive.as_ref().unwrap().frames, 1000);
}

/// A switch forgets a port during the trials (RFC 2544 section 23 requires learning frames before
/// each).
#[test]
fn switches_learn_before_each_trial() {
    let Cables {
        memory,
        mut generator,
        device: mut remote,
    } = cables(&["learn-send", "learn-receive"]);
    let over = AtomicBool::new(false);
    let (learned, reported) = std::thread::scope(|scope| {
        let device = scope.spawn(|| {
            let (mut pool, mut burst) = (memory.pool(), Burst::new());
            let mut learned = 0;
            while !over.load(Relaxed) {
                if remote[0][0].receive.receive(&mut pool, &mut burst) > 0 {
                    remote[1][0].transmit.transmit(&mut pool, &mut burst);
                    pool.free_all(&mut burst);
                    continue;
                }
                if remote[1][0].receive.receive(&mut pool, &mut burst) > 0 {
                    let is_learning = |frame: &&_| memory.bytes(frame)[12..14] == [0x88, 0xb5];
                    learned += burst.frames().iter().filter(is_learning).count();
                    pool.free_all(&mut burst);
                    continue;
                }
                std::thread::yield_now();
            }
            learned
        });
        let receive = generator.remove(1);
        let mut ports =
            GeneratorPorts::from_open(memory.clone(), generator.remove(0), Some(receive));
        let options = capacity::SuiteOptions {
            sizes: ["64", "128"].map(|size| (size.to_owned(), 64.0)).to_vec(),
            tests: vec![capacity::SuiteTest::Throughput],
            loss_goals: vec![0.0],
            resolution: 0.5,
            trial_s: 0.01,
            first_trial_s: 0.01,
            latency_loads: Vec::new(),
            max_trials: 4,
            tries: 1,
            burst_searches: 1,
            line_bps: Some(1_000_000),
        };
        let base = GeneratorSettings {
            learn: true,
            threads: Some(1),
            drain: Duration::from_millis(10),
            ..GeneratorSettings::default()
        };
        let mut reported = 0;
        let measured = capacity::run(
            &mut ports,
            ("near", Some("far")),
            options,
            &base,
            &AtomicBool::new(false),
            &mut |_| reported += 1,
        );
        // Frames in flight are counted.
        std::thread::sleep(Duration::from_millis(20));
        over.store(true, Relaxed);
        assert!(measured.unwrap().failure.is_none());
        (device.join().unwrap(), reported)
    });
    assert!(reported > 1, "{reported} trials");
    assert_eq!(learned, reported);
}

/// Returns the ids of a record's warnings.
fn caveat_ids(record: &Record) -> Vec<&str> {
    (record.validity.iter())
        .map(|caveat| caveat.id.as_str())
        .collect()
}
