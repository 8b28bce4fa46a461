//! Kernel drops before a run, or before counters are cleared, do not count in what follows.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate_forwarder::{ForwardSettings, Forwarder, FrameMemoryRequest};
use linerate_generator::{GeneratorPorts, ReceiveSide};
use linerate_lab::{Lab, Topology, privileged};
use linerate_port::{AnyPort, PortUrl, RxQueue, TxQueue, memory_plan, open};
use linerate_record::forward::IdleStrategy;
use linerate_record::stack::StackPlan;
use linerate_server::stack_host;
use linerate_server::stack_host::{ServiceHostEvent, ServiceHostOptions};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

/// More frames than the ring of [`SMALL`] holds.
const FLOOD: u64 = 1000;
/// Port whose ring is soon full when it is not polled.
const SMALL: &str = "packet:eth0,v=2,rxd=32";

/// Two hosts with a link: one sends, the other receives all frames on a large port, next to the
/// tested one.
struct Link {
    lab: Lab,
    traffic: Traffic,
}

struct Traffic {
    pool: FramePool,
    sender: AnyPort,
    witness: AnyPort,
}

impl Link {
    fn up() -> Option<Self> {
        if !privileged() {
            println!("skipped: labs cannot be built here without root");
            return None;
        }
        let file = "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\n";
        let lab = Lab::up(&Topology::from_toml(file).unwrap()).unwrap();
        let url: PortUrl = "packet:eth0,v=2,rxd=8192".parse().unwrap();
        let host = |name: &str| lab.host(name).unwrap();
        let plan = host("a").run(|| memory_plan(&[url.clone(), url.clone()]));
        let memory = FrameRegion::new(plan.unwrap()).unwrap();
        let inside = |name: &str| host(name).run(|| open(&url, &memory).unwrap().remove(0));
        let (sender, witness) = (inside("a").unwrap(), inside("b").unwrap());
        Some(Self {
            traffic: Traffic {
                pool: memory.pool(),
                sender,
                witness,
            },
            lab,
        })
    }

    fn in_receiver<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.lab.host("b").unwrap().run(f).unwrap()
    }

    fn flood(&mut self) {
        self.traffic.flood();
    }
}

impl Traffic {
    /// Sends more than the small ring holds, and waits until the receiving kernel has processed it.
    fn flood(&mut self) {
        let (mut sent, mut received) = (0, 0);
        let (mut out, mut back) = (Burst::new(), Burst::new());
        let until = Instant::now() + Duration::from_secs(20);
        while received < FLOOD {
            if sent < FLOOD && out.is_empty() {
                self.pool.allocate_burst(&mut out, 16);
                for frame in out.frames_mut() {
                    frame.set_len(60);
                    let bytes = self.pool.memory().bytes_mut(frame);
                    bytes[..6].fill(0xff);
                    // An EtherType for experiments (IEEE 802).
                    bytes[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
                }
            }
            sent += self.sender.transmit.transmit(&mut self.pool, &mut out) as u64;
            self.sender.transmit.reclaim(&mut self.pool);
            self.witness.receive.receive(&mut self.pool, &mut back);
            for frame in back.frames() {
                received += u64::from(self.pool.memory().bytes(frame)[12..14] == [0x88, 0xb5]);
            }
            self.pool.free_all(&mut back);
            assert!(
                Instant::now() < until,
                "{received} of {FLOOD} frames arrived"
            );
        }
        self.pool.free_all(&mut out);
        // The kernel delivers a frame to one port after the other.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sink() -> ForwardSettings {
    ForwardSettings {
        mode: "rxonly".parse().unwrap(),
        idle: IdleStrategy::Sleep { time_ns: 2_000_000 },
        ..ForwardSettings::default()
    }
}

#[test]
fn a_run_of_the_forwarder_begins_without_drops() {
    let Some(mut link) = Link::up() else { return };
    let open = || Forwarder::open(&[SMALL.parse().unwrap()], FrameMemoryRequest::default());
    let mut forwarder = link.in_receiver(open).unwrap();
    link.flood();
    let quiet = Duration::from_millis(2);
    forwarder.start(&sink(), quiet).unwrap();
    let figures = forwarder.stop().unwrap().figures;
    assert_eq!(figures.ports[0].receive.dropped, 0, "{figures:?}");
    assert_eq!(figures.streams[0].receive.dropped, 0, "{figures:?}");
    let any_drop = forwarder.totals()[0].receive.total_drops();
    assert!(
        any_drop > 0 && figures.flushed > 0,
        "{any_drop}: {figures:?}"
    );

    // While the port waits for the next run: cleared counters stay cleared.
    link.flood();
    forwarder.clear(None);
    forwarder.refresh();
    let shown = forwarder.totals_since_clear()[0].receive;
    assert_eq!(shown.total_drops(), 0, "{shown:?}");
    let more = forwarder.totals()[0].receive.total_drops();
    assert!(more > any_drop, "{more} after {any_drop}");

    // While it runs. A thread may be delayed for longer than the wait, but not each time.
    forwarder.start(&sink(), quiet).unwrap();
    let is_clean = |_| {
        link.flood();
        forwarder.clear_streams();
        forwarder.refresh();
        let since = &forwarder.figures().ports[0].receive;
        since.dropped == 0
    };
    assert!((0..20).any(is_clean));
    let figures = forwarder.stop().unwrap().figures;
    assert!(figures.ports[0].receive.dropped > 0, "{figures:?}");
}

#[test]
fn a_run_of_the_generator_begins_without_drops() {
    let Some(mut link) = Link::up() else { return };
    let arrival = ReceiveSide::Port(SMALL.parse().unwrap());
    let open = || GeneratorPorts::open(&"null:silent".parse().unwrap(), &arrival);
    let mut ports = link.in_receiver(open).unwrap();
    link.flood();
    let settings = linerate_generator::GeneratorSettings {
        max_frames: Some(10),
        drain: Duration::from_millis(1),
        ..linerate_generator::GeneratorSettings::default()
    };
    let stop = AtomicBool::new(false);
    let ran = linerate_generator::run(&mut ports, &settings, &stop, &mut |_| {}).unwrap();
    let receive = ran.figures.receive.unwrap();
    assert_eq!(receive.dropped, 0, "{receive:?}");
    // Frames that fit into the ring.
    assert!(ran.figures.unrelated > 0, "{receive:?}");
}

/// Regression: kernel counters were read only twice a second, at the time of a display update.
#[test]
fn an_interval_of_our_stack_has_its_own_drops_and_no_others() {
    let Some(Link { lab, mut traffic }) = Link::up() else {
        return;
    };
    let options = ServiceHostOptions {
        plan: StackPlan {
            device: SMALL.to_owned(),
            addresses: vec!["10.9.0.2/24".to_owned()],
            profile: "default".to_owned(),
            // Between two updates the ring is full; each update is late enough to read the
            // counters, too.
            configuration: [("poll.interval".to_owned(), "600ms".to_owned())].into(),
            ..StackPlan::default()
        },
        services: vec!["discard".parse().unwrap()],
        allow: Vec::new(),
        duration: None,
        interval: Some(Duration::from_millis(20)),
    };
    let stop = AtomicBool::new(false);
    let mut dropped = Vec::new();
    let mut report = |reported: ServiceHostEvent<'_>| match reported {
        // Before the first update: in no interval.
        ServiceHostEvent::Ready(_) => traffic.flood(),
        ServiceHostEvent::Interval(interval) => {
            let of_link = interval.counters.get("link");
            let full = of_link.and_then(|link| link.get("port_ring_full"));
            dropped.push(full.copied().unwrap_or(0));
            match dropped.len() {
                1 => traffic.flood(),
                2 => stop.store(true, Relaxed),
                _ => {}
            }
        }
        ServiceHostEvent::Test(_) | ServiceHostEvent::Warning(_) => {}
    };
    let host = lab.host("b").unwrap();
    let ran = host
        .run(|| stack_host::run(&options, &stop, &mut report))
        .unwrap();
    let (record, failure) = ran.unwrap();
    assert!(failure.is_none(), "{failure:?}");
    assert_eq!(dropped[0], 0, "{dropped:?}");
    assert!(dropped[1] > 0, "{dropped:?}");
    let stack = record.hosts[0].stack.as_deref().unwrap();
    assert_eq!(stack.counter("link", "port_ring_full"), dropped[1]);
}
