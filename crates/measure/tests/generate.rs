//! Generator over ports in memory, and through the kernel's bridge.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate_lab::{Lab, Topology, privileged};
use linerate_measure::capacity;
use linerate_measure::generate::{Arrival, Capture, Ports, Ran, Settings, What, record, run};
use linerate_metric::generate::{Load, TemplatePlan};
use linerate_metric::plan::Kind;
use linerate_port::{
    AnyPort, Burst, Memory, PortError, PortUrl, Receive, Transmit, memory_plan, open,
    pcap::CaptureWriter,
};

fn plan(text: &str) -> What {
    What::Template(linerate_measure::generate::template::read_file(text).unwrap())
}

fn ran(send: &str, arrival: Arrival, settings: &Settings) -> Ran {
    let mut ports = Ports::open(&send.parse().unwrap(), &arrival).unwrap();
    run(&mut ports, settings, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// Every frame of every flow returns once, in order, for any number of threads.
#[test]
fn a_loop_gives_every_frame_back() {
    for threads in [1, 2] {
        let settings = Settings {
            what: plan("size = 'imix'\nflows = 5\n[udp]\nsource = 'draw:1000-2000'\n"),
            frames: Some(10_000),
            threads: Some(threads),
            ..Settings::default()
        };
        let ran = ran("ring:0", Arrival::Back, &settings);
        let figures = &ran.figures;
        assert_eq!(
            (figures.sent, figures.received),
            (10_000, Some(10_000)),
            "{figures:?}"
        );
        assert_eq!((figures.lost, figures.out_of_order), (Some(0), Some(0)));
        assert_eq!((figures.duplicates, figures.foreign), (Some(0), 0));
        assert_eq!(figures.one_way_delay_ns.unwrap().count, 10_000);
        assert_eq!(figures.flows.len(), 5);
        for flow in &figures.flows {
            assert_eq!((flow.sent, flow.received, flow.lost), (2000, 2000, 0));
        }
        assert!(ran.facts.intended_fps.is_none() && ran.facts.tagged && ran.trouble.is_none());
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
fn a_thread_that_dies_ends_the_run() {
    for threads in [1, 2] {
        let url: PortUrl = "ring:0".parse().unwrap();
        let memory = Memory::new(memory_plan(std::slice::from_ref(&url))).unwrap();
        let mut port = open(&url, &memory).unwrap().remove(0);
        // An invalid frame: it reaches beyond its slot.
        let (mut pool, mut burst) = (memory.pool(), Burst::new());
        let mut frame = pool.allocate().unwrap();
        frame.set_len(u16::MAX);
        burst.push(frame).unwrap();
        assert_eq!(port.transmit.transmit(&mut pool, &mut burst), 1);
        let mut ports = Ports::of(memory, vec![port], None);
        let settings = Settings {
            load: Load::Frames(1000.0),
            duration: Some(Duration::from_secs(600)),
            threads: Some(threads),
            ..Settings::default()
        };
        let began = std::time::Instant::now();
        let ran = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert!(began.elapsed() < Duration::from_secs(300));
        assert!(
            matches!(&ran.trouble, Some(PortError::Fault { port }) if port == "ring:0"),
            "{:?}",
            ran.trouble
        );
        // The frames sent until then took some time.
        let figures = &ran.figures;
        assert!(
            figures.sent == 0 || figures.duration_ns > 1_000,
            "{figures:?}"
        );
        let record = record(("ring:0", None), &settings, ran);
        assert!(common::doubts(&record).contains(&"port-stopped"));
    }
}

/// A lost process at the other end is reported, and its drops are attributed neither to the
/// generator nor to a stall.
#[test]
fn a_far_process_that_goes_away_is_told() {
    let name = format!("shm:generate-left-{}", std::process::id());
    let url: PortUrl = format!("{name},role=server,rxd=64").parse().unwrap();
    let memory = Memory::new(memory_plan(std::slice::from_ref(&url))).unwrap();
    let mut far = open(&url, &memory).unwrap().remove(0);
    let url: PortUrl = format!("{name},rxd=64").parse().unwrap();
    let mut ports = Ports::open(&url, &Arrival::Back).unwrap();
    let settings = Settings {
        load: Load::Frames(5000.0),
        duration: Some(Duration::from_millis(800)),
        drain: Duration::from_millis(10),
        ..Settings::default()
    };
    // Returns received frames, and ends after some.
    let gone = std::thread::spawn(move || {
        let (mut pool, mut burst, mut came) = (memory.pool(), Burst::new(), 0);
        let until = Instant::now() + Duration::from_secs(60);
        while came < 300 && Instant::now() < until {
            came += far.receive.receive(&mut pool, &mut burst);
            far.transmit.transmit(&mut pool, &mut burst);
            pool.free_all(&mut burst);
            std::thread::yield_now();
        }
    });
    let ran = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap();
    gone.join().unwrap();
    assert!(ran.figures.sent < 3000, "{:?}", ran.figures);
    let record = record((&name, None), &settings, ran);
    let doubts = common::doubts(&record);
    assert!(doubts.contains(&"peer-left"), "{doubts:?}");
    for blamed in ["tool-limit", "sender-stalled", "no-peer"] {
        assert!(!doubts.contains(&blamed), "{doubts:?}");
    }
}

/// Never sends more than requested, and reports what was not sent.
#[test]
fn a_rate_is_kept_from_above() {
    let settings = Settings {
        load: Load::Frames(5000.0),
        duration: Some(Duration::from_millis(300)),
        interval: Some(Duration::from_millis(100)),
        ..Settings::default()
    };
    let ran = ran("ring:0", Arrival::Back, &settings);
    let figures = &ran.figures;
    assert!(
        figures.sent > 0 && figures.sent + figures.unsent <= 1501,
        "{figures:?}"
    );
    assert_eq!(figures.lost, Some(0));
    let lateness = ran.lateness.as_ref().unwrap();
    assert!(lateness.count() >= figures.sent);
    let moved: u64 = ran.readings.iter().map(|reading| reading.sent.frames).sum();
    assert!(moved <= figures.sent && !ran.readings.is_empty());
    let record = record(("ring:0", None), &settings, ran);
    assert_eq!(record.kind, Kind::Generate);
    assert!(record.summary.rate_error.unwrap() <= 0.01);
    assert_eq!(
        record.plan.generate.as_ref().unwrap().intended_fps,
        Some(5000.0)
    );
    let json = record.to_json();
    assert_eq!(
        linerate_metric::record::Record::from_json(&json).unwrap(),
        record
    );
}

#[test]
fn what_arrives_nowhere_is_lost() {
    let silent: PortUrl = "null:silent".parse().unwrap();
    let settings = Settings {
        frames: Some(1000),
        drain: Duration::from_millis(10),
        ..Settings::default()
    };
    let ran = ran("null:", Arrival::At(silent), &settings);
    assert_eq!(
        (ran.figures.lost, ran.figures.loss_fraction),
        (Some(1000), Some(1.0))
    );
    // Frames of other senders are not counted.
    let noise: PortUrl = "null:size=60".parse().unwrap();
    let ran = self::ran("null:", Arrival::At(noise), &settings);
    assert_eq!(ran.figures.received, Some(0));
    assert!(ran.figures.foreign > 0);
    let ran = self::ran("null:", Arrival::Nowhere, &settings);
    assert_eq!((ran.figures.received, ran.figures.lost), (None, None));
}

#[test]
fn a_stop_ends_it() {
    let mut ports = Ports::open(&"ring:0".parse().unwrap(), &Arrival::Back).unwrap();
    let stop = AtomicBool::new(true);
    let ran = run(&mut ports, &Settings::default(), &stop, &mut |_| {}).unwrap();
    assert!(ran.interrupted);
    // Ports are reusable.
    let settings = Settings {
        frames: Some(10),
        ..Settings::default()
    };
    let again = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(again.figures.received, Some(10), "{:?}", again.figures);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    for (settings, want) in [
        (
            Settings {
                load: Load::Line(0.5),
                ..Settings::default()
            },
            "the line rate is unknown",
        ),
        (
            Settings {
                what: plan("size = '9000'"),
                ..Settings::default()
            },
            "longer than ring:0 sends",
        ),
    ] {
        let mut ports = Ports::open(&"ring:0".parse().unwrap(), &Arrival::Back).unwrap();
        let error = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        let problem = error.problem();
        assert!(problem.situation.contains(want), "{problem:?}");
        assert!(!problem.next_step.is_empty());
    }
    let error = Capture::read(Path::new("/nowhere.pcap"), false).unwrap_err();
    let problem = error.problem();
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

fn read(file: &Path, recorded: bool) -> What {
    What::Capture(Capture::read(file, recorded).unwrap().into())
}

/// A replayed file is not truncated by a port that writes to it.
#[test]
fn a_capture_is_not_written_while_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("five.pcapng");
    capture(&file);
    let before = std::fs::read(&file).unwrap();
    let what = read(&file, false);
    let url = format!("pcap:tx={}", file.display()).parse().unwrap();
    let refused = Ports::open(&url, &Arrival::Nowhere)
        .map(|_| ())
        .unwrap_err();
    let problem = refused.problem();
    assert!(
        problem.situation.contains("read and written"),
        "{problem:?}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), before);
    drop(what);
    Ports::open(&url, &Arrival::Nowhere).unwrap();
    assert_ne!(std::fs::read(&file).unwrap(), before);
}

/// A capture at full speed, and at its recorded times: 40 ms take at least 40 ms.
#[test]
fn a_capture_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("five.pcapng");
    capture(&file);
    let settings = Settings {
        what: read(&file, false),
        frames: Some(12),
        ..Settings::default()
    };
    let figures = ran("ring:0", Arrival::Back, &settings).figures;
    assert_eq!(
        (figures.sent, figures.received, figures.lost),
        (12, Some(12), Some(0))
    );
    assert_eq!(figures.send.bytes, 2 * (60 + 61 + 62 + 63 + 64) + 60 + 61);
    assert_eq!(
        (figures.out_of_order, figures.one_way_delay_ns),
        (None, None)
    );
    let settings = Settings {
        what: read(&file, true),
        // As the command line does without a rate: recorded times are not checked against one.
        load: Load::Frames(1000.0),
        frames: Some(5),
        ..settings
    };
    let ran = ran("ring:0", Arrival::Back, &settings);
    assert_eq!((ran.facts.intended_fps, ran.kept_share()), (None, None));
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
    let mut wanted = lab.host("a").unwrap().run(|| memory_plan(&both)).unwrap();
    wanted.frames += 2048;
    let memory = Memory::new(wanted).unwrap();
    let inside = |host: &str| {
        let host = lab.host(host).unwrap();
        host.run(|| open(&url, &memory)).unwrap().unwrap()
    };
    let (send, receive) = (inside("a"), inside("b"));
    let mut ports = Ports::of(memory.clone(), send, Some(receive));
    let settings = Settings {
        what: What::Template(TemplatePlan {
            flows: Some(3),
            ..TemplatePlan::default()
        }),
        load: Load::Frames(1000.0),
        frames: Some(200),
        learn: true,
        ..Settings::default()
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
fn cut_capture(file: &Path, records: &[(u32, u32)]) {
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
fn a_capture_of_cut_frames_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.pcap");
    cut_capture(&file, &[(60, 60), (96, 1514), (60, 61)]);
    let problem = Capture::read(&file, false).unwrap_err().problem();
    assert_eq!(problem.object, file.display().to_string());
    assert!(
        problem
            .situation
            .contains("2 of its 3 frames are truncated"),
        "{problem:?}"
    );
    assert!(problem.next_step.contains("-s 0"), "{problem:?}");
    cut_capture(&file, &[(60, 60), (96, 96)]);
    assert_eq!(Capture::read(&file, false).unwrap().len(), 2);
}

/// A frame of the maximum size, including its check sequence, is rejected with this reason.
#[test]
fn the_longest_captured_frame_is_refused_with_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.pcap");
    cut_capture(&file, &[(65_535, 65_535)]);
    let settings = Settings {
        what: read(&file, false),
        frames: Some(1),
        ..Settings::default()
    };
    let mut ports = Ports::open(&"ring:0".parse().unwrap(), &Arrival::Back).unwrap();
    let error = run(&mut ports, &settings, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    let situation = error.problem().situation;
    assert!(situation.contains("65539 bytes"), "{situation}");
}

/// Incomplete frames of other senders are no measure of this program's speed.
#[test]
fn frames_that_do_not_fit_are_no_limit_of_the_generator() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.pcap");
    cut_capture(&file, &[(60, 60), (60, 61), (60, 900)]);
    let settings = Settings {
        frames: Some(100),
        drain: Duration::from_millis(10),
        ..Settings::default()
    };
    let url: PortUrl = format!("pcap:rx={}", file.display()).parse().unwrap();
    let ran = ran("null:", Arrival::At(url), &settings);
    let drops = ran.figures.receive.as_ref().unwrap().drops.clone();
    assert_eq!(
        drops.into_iter().collect::<Vec<_>>(),
        [("bad".to_owned(), 2)]
    );
    assert_eq!(ran.own.dropped, 0);
    let doubts = record(("null:", Some("pcap:")), &settings, ran).validity;
    let of = |name: &str| doubts.iter().find(|doubt| doubt.doubt == name);
    assert!(of("tool-limit").is_none(), "{doubts:?}");
    let told = &of("unfit-frames").expect("they are told").why;
    assert!(told.starts_with("2 frames that arrived at pcap"), "{told}");
}

/// Ends of in-memory cables, opened by the device and by the generator.
struct Cables {
    memory: Memory,
    near: Vec<Vec<AnyPort>>,
    far: Vec<Vec<AnyPort>>,
}

fn cables(names: &[&str]) -> Cables {
    let url = |name: &str, end: &str| format!("ring:{name},end={end}").parse::<PortUrl>().unwrap();
    let urls: Vec<_> = ["a", "b"]
        .iter()
        .flat_map(|end| names.iter().map(|name| url(name, end)))
        .collect();
    let mut plan = memory_plan(&urls);
    plan.frames += 4096;
    let memory = Memory::new(plan).unwrap();
    let mut near: Vec<_> = urls.iter().map(|url| open(url, &memory).unwrap()).collect();
    let far = near.split_off(names.len());
    Cables { memory, near, far }
}

/// Forwards frames from one queue of a port to another.
#[test]
fn a_port_of_two_queues_receives_on_both() {
    let Cables {
        memory,
        mut near,
        mut far,
    } = cables(&["two-queues,queues=2"]);
    let over = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut pool, mut burst) = (memory.pool(), Burst::new());
            let mut queue = 0;
            while !over.load(Relaxed) {
                if far[0][0].receive.receive(&mut pool, &mut burst) == 0 {
                    std::thread::yield_now();
                    continue;
                }
                // Each burst leaves by another queue.
                queue = 1 - queue;
                far[0][queue].transmit.transmit(&mut pool, &mut burst);
                pool.free_all(&mut burst);
            }
        });
        let mut ports = Ports::of(memory.clone(), near.remove(0), None);
        let settings = Settings {
            frames: Some(1000),
            load: Load::Frames(20_000.0),
            ..Settings::default()
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
        mut near,
        mut far,
    } = cables(&["learn-send", "learn-receive"]);
    let over = AtomicBool::new(false);
    let (learned, told) = std::thread::scope(|scope| {
        let device = scope.spawn(|| {
            let (mut pool, mut burst) = (memory.pool(), Burst::new());
            let mut learned = 0;
            while !over.load(Relaxed) {
                if far[0][0].receive.receive(&mut pool, &mut burst) > 0 {
                    far[1][0].transmit.transmit(&mut pool, &mut burst);
                    pool.free_all(&mut burst);
                    continue;
                }
                if far[1][0].receive.receive(&mut pool, &mut burst) > 0 {
                    let is_learning = |frame: &&_| memory.bytes(frame)[12..14] == [0x88, 0xb5];
                    learned += burst.frames().iter().filter(is_learning).count();
                    pool.free_all(&mut burst);
                    continue;
                }
                std::thread::yield_now();
            }
            learned
        });
        let receive = near.remove(1);
        let mut ports = Ports::of(memory.clone(), near.remove(0), Some(receive));
        let options = capacity::Options {
            sizes: ["64", "128"].map(|size| (size.to_owned(), 64.0)).to_vec(),
            tests: vec![capacity::Test::Throughput],
            goals: vec![0.0],
            resolution: 0.5,
            trial_s: 0.01,
            first_s: 0.01,
            shares: Vec::new(),
            trials: 4,
            tries: 1,
            searches: 1,
            line_bps: Some(1_000_000),
        };
        let base = Settings {
            learn: true,
            threads: Some(1),
            drain: Duration::from_millis(10),
            ..Settings::default()
        };
        let mut told = 0;
        let measured = capacity::run(
            &mut ports,
            ("near", Some("far")),
            options,
            &base,
            &AtomicBool::new(false),
            &mut |_| told += 1,
        );
        // Frames in flight are counted.
        std::thread::sleep(Duration::from_millis(20));
        over.store(true, Relaxed);
        assert!(measured.unwrap().failure.is_none());
        (device.join().unwrap(), told)
    });
    assert!(told > 1, "{told} trials");
    assert_eq!(learned, told);
}
