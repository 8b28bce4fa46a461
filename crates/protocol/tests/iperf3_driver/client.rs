//! A client of one test.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_protocol::iperf3::udp::{UdpHello, is_reply};
use linerate_protocol::iperf3::{
    Cookie, CpuPercent, Iperf3Client, Iperf3ClientEvent, Iperf3Error, Iperf3Flow, Iperf3Params,
    Iperf3Results, Iperf3Transport,
};

use super::flows::{self, Running, Signals};
use super::{Clock, NAP, flush, listen};

/// What came of a test.
#[derive(Debug)]
pub struct Measured {
    pub ours: Option<Iperf3Results>,
    pub theirs: Option<Iperf3Results>,
    pub terminated: bool,
}

/// Runs one test; `early` ends it as soon as it runs.
pub fn run(server: SocketAddr, params: Iperf3Params, early: bool) -> Result<Measured, Iperf3Error> {
    let clock = Clock::start();
    let mut random = [0; 36];
    random.fill_with(|| fastrand::u8(..));
    let cookie = Cookie::new(random);
    let control = connect(server);
    let machine = Iperf3Client::new(cookie, params, clock.now_ns());
    let mut test = Test {
        server,
        clock,
        cookie,
        control,
        machine,
        signals: Arc::default(),
        flows: Vec::new(),
        sinks: Vec::new(),
        started_ns: 0,
        ended_ns: 0,
        measured: Measured {
            ours: None,
            theirs: None,
            terminated: false,
        },
        early,
    };
    let done = test.run();
    test.say();
    test.signals.closed.store(true, SeqCst);
    let threads = test.flows.iter_mut().filter_map(|flow| flow.thread.take());
    for thread in threads.chain(test.sinks.drain(..)) {
        thread.join().unwrap();
    }
    done.map(|()| test.measured)
}

/// A server that was started a moment ago may not listen yet.
fn connect(server: SocketAddr) -> TcpStream {
    for _ in 0..200 {
        if let Ok(stream) = TcpStream::connect(server) {
            return stream;
        }
        std::thread::sleep(NAP * 5);
    }
    panic!("nobody listens on {server}");
}

struct Test {
    server: SocketAddr,
    clock: Clock,
    cookie: Cookie,
    control: TcpStream,
    machine: Iperf3Client,
    signals: Arc<Signals>,
    flows: Vec<Running>,
    sinks: Vec<JoinHandle<()>>,
    started_ns: u64,
    ended_ns: u64,
    measured: Measured,
    early: bool,
}

impl Test {
    fn run(&mut self) -> Result<(), Iperf3Error> {
        loop {
            self.say();
            match listen(&self.control) {
                None => {}
                Some(end) if end.is_empty() => return self.machine.mark_closed(),
                Some(bytes) => self.machine.receive(&bytes)?,
            }
            self.machine.check_deadline(self.clock.now_ns())?;
            while let Some(event) = self.machine.next_event(self.clock.now_ns())? {
                match event {
                    Iperf3ClientEvent::OpenFlows => {
                        for flow in self.machine.params().flows() {
                            self.open(flow);
                        }
                    }
                    Iperf3ClientEvent::Started => {
                        self.started_ns = self.clock.now_ns();
                        self.signals.started.store(true, SeqCst);
                        if self.early {
                            self.machine.terminate();
                            self.measured.terminated = true;
                            return Ok(());
                        }
                    }
                    Iperf3ClientEvent::SendResults => {
                        let ours = self.results();
                        self.machine.send_results(&ours, self.clock.now_ns())?;
                        self.measured.ours = Some(ours);
                    }
                    Iperf3ClientEvent::Results(theirs) => self.measured.theirs = Some(*theirs),
                    Iperf3ClientEvent::Finished => return Ok(()),
                    Iperf3ClientEvent::Terminated => {
                        self.measured.terminated = true;
                        return Ok(());
                    }
                }
            }
            self.end_in_time()?;
        }
    }

    fn say(&mut self) {
        let bytes = flush(&self.control, self.machine.outgoing());
        self.machine.mark_sent(bytes);
    }

    fn open(&mut self, flow: Iperf3Flow) {
        let params = self.machine.params();
        if params.protocol == Iperf3Transport::Tcp {
            let stream = TcpStream::connect(self.server).unwrap();
            flush(&stream, &self.cookie.to_wire());
            let flow = flows::tcp(flow.id, flow.from_client, stream, params, &self.signals);
            self.flows.push(flow);
            return;
        }
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.server).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        socket.send(&UdpHello::Little.to_bytes()).unwrap();
        let mut room = vec![0; 1 << 16];
        let bytes = socket.recv(&mut room).unwrap();
        assert!(is_reply(&room[..bytes]), "{:02x?}", &room[..bytes]);
        if flow.from_client {
            let flow = flows::udp_source(flow.id, socket, self.server, params, &self.signals);
            self.flows.push(flow);
            return;
        }
        let sink = flows::udp_sink(flow.id);
        let (tally, counters) = (Arc::clone(&sink.tally), params.counter_width);
        let signals = Arc::clone(&self.signals);
        socket.set_read_timeout(Some(NAP)).unwrap();
        self.sinks.push(std::thread::spawn(move || {
            let clock = Clock::start();
            while !signals.closed.load(SeqCst) {
                if let Ok(bytes) = socket.recv(&mut room) {
                    tally.take(&room[..bytes], counters, clock.now_ns());
                }
            }
        }));
        self.flows.push(sink);
    }

    fn end_in_time(&mut self) -> Result<(), Iperf3Error> {
        if !self.signals.started.load(SeqCst) || self.signals.ended.load(SeqCst) {
            return Ok(());
        }
        let params = self.machine.params();
        let ran_ns = self.clock.now_ns() - self.started_ns;
        let moved: u64 = self.flows.iter().map(Running::bytes).sum();
        let over = match (params.duration_ns, params.amount_bytes, params.blocks) {
            (Some(time), ..) => ran_ns >= time,
            (None, Some(amount), _) => moved >= amount,
            (None, None, Some(blocks)) => moved >= blocks * u64::from(params.block_bytes),
            (None, None, None) => panic!("no end"),
        };
        if over {
            self.signals.ended.store(true, SeqCst);
            // A source may be inside its last write; what it writes still counts.
            std::thread::sleep(NAP * 4);
            self.ended_ns = self.clock.now_ns();
            self.machine.finish(self.ended_ns)?;
        }
        Ok(())
    }

    fn results(&self) -> Iperf3Results {
        let udp = self.machine.params().protocol == Iperf3Transport::Udp;
        let ran_ns = self.ended_ns - self.started_ns;
        let flows = self.flows.iter().map(|flow| flow.result(udp, ran_ns));
        Iperf3Results {
            cpu: Some(CpuPercent::default()),
            flows: flows.collect(),
            ..Iperf3Results::default()
        }
    }
}
