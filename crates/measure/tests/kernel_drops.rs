//! What the kernel dropped before a run, or before counters were cleared, is no drop of what follows.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use linerate_lab::{Lab, Topology, privileged};
use linerate_measure::forward::{Forwarder, MemoryWish, Settings};
use linerate_measure::generate::{self, Arrival, Ports};
use linerate_metric::forward::Idle;
use linerate_port::{AnyPort, Burst, Memory, Pool, PortUrl, Receive, Transmit, memory_plan, open};

/// More frames than [`SMALL`] has room for.
const FLOOD: u64 = 1000;
/// A port whose ring is soon full while nobody polls it.
const SMALL: &str = "packet:eth0,v=2,rxd=32";

/// Two hosts with a link: one sends, the other receives all of it at a port with room, beside whatever is tested.
struct Link {
    lab: Lab,
    pool: Pool,
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
        let memory = Memory::new(plan.unwrap()).unwrap();
        let inside = |name: &str| host(name).run(|| open(&url, &memory).unwrap().remove(0));
        let (sender, witness) = (inside("a").unwrap(), inside("b").unwrap());
        Some(Self {
            pool: memory.pool(),
            sender,
            witness,
            lab,
        })
    }

    fn in_receiver<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.lab.host("b").unwrap().run(f).unwrap()
    }

    /// Sends more than the small ring holds, and waits until the receiving host's kernel has dealt with all of it.
    fn flood(&mut self) {
        let (mut sent, mut came) = (0, 0);
        let (mut out, mut back) = (Burst::new(), Burst::new());
        let until = Instant::now() + Duration::from_secs(20);
        while came < FLOOD {
            if sent < FLOOD && out.is_empty() {
                self.pool.allocate_burst(&mut out, 16);
                for frame in out.frames_mut() {
                    frame.set_len(60);
                    let bytes = self.pool.memory().bytes_mut(frame);
                    bytes[..6].fill(0xff);
                    // A type for experiments (IEEE 802).
                    bytes[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
                }
            }
            sent += self.sender.transmit.transmit(&mut self.pool, &mut out) as u64;
            self.sender.transmit.reclaim(&mut self.pool);
            self.witness.receive.receive(&mut self.pool, &mut back);
            for frame in back.frames() {
                came += u64::from(self.pool.memory().bytes(frame)[12..14] == [0x88, 0xb5]);
            }
            self.pool.free_all(&mut back);
            assert!(Instant::now() < until, "{came} of {FLOOD} frames arrived");
        }
        self.pool.free_all(&mut out);
        // A frame is given to one port after the other.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sink() -> Settings {
    Settings {
        mode: "rxonly".parse().unwrap(),
        idle: Idle::Sleep { time_ns: 2_000_000 },
        ..Settings::default()
    }
}

#[test]
fn a_run_of_the_forwarder_begins_without_drops() {
    let Some(mut link) = Link::up() else { return };
    let open = || Forwarder::open(&[SMALL.parse().unwrap()], MemoryWish::default());
    let mut forwarder = link.in_receiver(open).unwrap();
    link.flood();
    let quiet = Duration::from_millis(2);
    forwarder.start(&sink(), quiet).unwrap();
    let figures = forwarder.stop().unwrap().figures;
    assert_eq!(figures.ports[0].receive.dropped, 0, "{figures:?}");
    assert_eq!(figures.streams[0].receive.dropped, 0, "{figures:?}");
    let ever = forwarder.totals()[0].receive.all_dropped();
    assert!(ever > 0 && figures.flushed > 0, "{ever}: {figures:?}");

    // While it waits for the next: cleared is cleared.
    link.flood();
    forwarder.clear(None);
    forwarder.refresh();
    let shown = forwarder.shown()[0].receive;
    assert_eq!(shown.all_dropped(), 0, "{shown:?}");
    let more = forwarder.totals()[0].receive.all_dropped();
    assert!(more > ever, "{more} after {ever}");

    // While it runs. A thread may be kept from its processor for longer than is waited for it, but not each time.
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
    let arrival = Arrival::At(SMALL.parse().unwrap());
    let open = || Ports::open(&"null:silent".parse().unwrap(), &arrival);
    let mut ports = link.in_receiver(open).unwrap();
    link.flood();
    let settings = generate::Settings {
        frames: Some(10),
        drain: Duration::from_millis(1),
        ..generate::Settings::default()
    };
    let stop = AtomicBool::new(false);
    let ran = generate::run(&mut ports, &settings, &stop, &mut |_| {}).unwrap();
    let receive = ran.figures.receive.unwrap();
    assert_eq!(receive.dropped, 0, "{receive:?}");
    // Those that the ring had room for are nobody's.
    assert!(ran.figures.foreign > 0, "{receive:?}");
}
