//! A server for one test.

use std::collections::HashMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use linerate_protocol::iperf3::udp::UdpHello;
use linerate_protocol::iperf3::{
    BUSY, COOKIE_BYTES, Cookie, CpuPercent, Iperf3Error, Iperf3Params, Iperf3Results, Iperf3Server,
    Iperf3ServerEvent, Iperf3Transport,
};

use super::flows::{self, Running, Signals, Tally};
use super::{Clock, NAP, flush, listen};

/// What came of a test.
#[derive(Debug)]
pub struct Served {
    pub params: Iperf3Params,
    pub ours: Option<Iperf3Results>,
    pub theirs: Option<Iperf3Results>,
    pub terminated: bool,
}

/// A TCP port and the UDP port of the same number.
pub struct Port {
    pub tcp: TcpListener,
    pub udp: UdpSocket,
}

impl Port {
    pub fn any() -> Self {
        loop {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
                tcp.set_nonblocking(true).unwrap();
                udp.set_read_timeout(Some(NAP)).unwrap();
                return Self { tcp, udp };
            }
        }
    }

    pub fn number(&self) -> u16 {
        self.tcp.local_addr().unwrap().port()
    }

    fn accept(&self) -> Option<TcpStream> {
        let (stream, _) = self.tcp.accept().ok()?;
        stream.set_nonblocking(false).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        Some(stream)
    }
}

fn first_bytes(mut stream: &TcpStream) -> Option<[u8; COOKIE_BYTES]> {
    let mut first = [0; COOKIE_BYTES];
    stream.read_exact(&mut first).ok().map(|()| first)
}

/// Serves one test; `early` ends it as soon as it runs.
pub fn serve_one(port: &Port, early: bool) -> Result<Served, Iperf3Error> {
    let clock = Clock::start();
    let control = loop {
        match port.accept() {
            Some(stream) => break stream,
            None => std::thread::sleep(NAP),
        }
    };
    let first = first_bytes(&control).unwrap();
    let (cookie, machine) = Iperf3Server::open(&first, clock.now_ns()).expect("a cookie");
    let mut test = Test {
        port,
        clock,
        control,
        cookie,
        machine,
        signals: Arc::default(),
        flows: Vec::new(),
        by_address: HashMap::new(),
        started_ns: 0,
        ended_ns: 0,
        served: Served {
            params: Iperf3Params::default(),
            ours: None,
            theirs: None,
            terminated: false,
        },
        early,
    };
    let done = test.run();
    test.say();
    test.signals.closed.store(true, SeqCst);
    for flow in &mut test.flows {
        if let Some(thread) = flow.thread.take() {
            thread.join().unwrap();
        }
    }
    done.map(|()| test.served)
}

struct Test<'a> {
    port: &'a Port,
    clock: Clock,
    control: TcpStream,
    cookie: Cookie,
    machine: Iperf3Server,
    signals: Arc<Signals>,
    flows: Vec<Running>,
    by_address: HashMap<SocketAddr, Arc<Tally>>,
    started_ns: u64,
    ended_ns: u64,
    served: Served,
    early: bool,
}

impl Test<'_> {
    fn run(&mut self) -> Result<(), Iperf3Error> {
        loop {
            self.say();
            self.take_flows()?;
            if self.served.params.protocol == Iperf3Transport::Udp {
                self.take_datagrams();
            }
            match listen(&self.control) {
                None => {}
                Some(end) if end.is_empty() => return self.machine.mark_closed(),
                Some(bytes) => self.machine.receive(&bytes)?,
            }
            self.machine.check_deadline(self.clock.now_ns())?;
            while let Some(event) = self.machine.next_event(self.clock.now_ns())? {
                match event {
                    Iperf3ServerEvent::TestRequested(params) => {
                        self.served.params = *params;
                        match self.served.params.validate() {
                            Ok(()) => self.machine.accept(self.clock.now_ns())?,
                            Err(refusal) => {
                                self.machine.reject(refusal, 0);
                                return Ok(());
                            }
                        }
                    }
                    Iperf3ServerEvent::TestEnded => {
                        self.signals.ended.store(true, SeqCst);
                        self.ended_ns = self.clock.now_ns();
                    }
                    Iperf3ServerEvent::Results(theirs) => {
                        self.drain(&theirs);
                        self.served.theirs = Some(*theirs);
                        let ours = self.results();
                        self.machine.send_results(&ours, self.clock.now_ns())?;
                        self.served.ours = Some(ours);
                    }
                    Iperf3ServerEvent::Terminated => {
                        self.served.terminated = true;
                        return Ok(());
                    }
                    Iperf3ServerEvent::Done => return Ok(()),
                }
            }
        }
    }

    fn say(&mut self) {
        let bytes = flush(&self.control, self.machine.outgoing());
        self.machine.mark_sent(bytes);
    }

    fn take_flows(&mut self) -> Result<(), Iperf3Error> {
        while let Some(stream) = self.port.accept() {
            let cookie = first_bytes(&stream).and_then(|first| Cookie::read(&first));
            let ours =
                cookie == Some(self.cookie) && self.served.params.protocol == Iperf3Transport::Tcp;
            match ours.then(|| self.machine.assign_flow()).flatten() {
                Some(flow) => self.flows.push(flows::tcp(
                    flow.id,
                    !flow.from_client,
                    stream,
                    &self.served.params,
                    &self.signals,
                )),
                None => {
                    flush(&stream, &BUSY);
                }
            }
        }
        let started = self.signals.started.load(SeqCst);
        if !self.flows.is_empty() && !self.machine.waits_for_flows() && !started {
            self.machine.start(self.clock.now_ns())?;
            self.say();
            self.started_ns = self.clock.now_ns();
            self.signals.started.store(true, SeqCst);
            if self.early {
                self.machine.terminate();
            }
        }
        Ok(())
    }

    fn take_datagrams(&mut self) {
        let mut room = vec![0; 1 << 16];
        let until = self.clock.now_ns() + 2_000_000;
        while let Ok((bytes, from)) = self.port.udp.recv_from(&mut room) {
            let datagram = &room[..bytes];
            let now_ns = self.clock.now_ns();
            if let Some(tally) = self.by_address.get(&from) {
                tally.take(datagram, self.served.params.counter_width, now_ns);
            } else if let Some(hello) = UdpHello::read(datagram)
                && let Some(flow) = self.machine.assign_flow()
            {
                self.port.udp.send_to(&hello.reply(), from).unwrap();
                let flow = if flow.from_client {
                    flows::udp_sink(flow.id)
                } else {
                    let socket = self.port.udp.try_clone().unwrap();
                    let (params, signals) = (&self.served.params, &self.signals);
                    flows::udp_source(flow.id, socket, from, params, signals)
                };
                self.by_address.insert(from, Arc::clone(&flow.tally));
                self.flows.push(flow);
            }
            if now_ns > until {
                break;
            }
        }
    }

    /// Reads what is still on its way: the client has reported how much it sent.
    fn drain(&mut self, theirs: &Iperf3Results) {
        let deadline = self.clock.now_ns() + 1_000_000_000;
        let missing = |flows: &[Running]| {
            theirs.flows.iter().any(|sent| {
                let flow = flows.iter().find(|flow| flow.id == sent.id && !flow.sends);
                flow.is_some_and(|flow| flow.bytes() < sent.bytes.unwrap_or(0))
            })
        };
        while missing(&self.flows) && self.clock.now_ns() < deadline {
            self.take_datagrams();
        }
    }

    fn results(&self) -> Iperf3Results {
        let udp = self.served.params.protocol == Iperf3Transport::Udp;
        let ran_ns = self.ended_ns.saturating_sub(self.started_ns);
        let flows = self.flows.iter().map(|flow| flow.result(udp, ran_ns));
        Iperf3Results {
            cpu: Some(CpuPercent::default()),
            flows: flows.collect(),
            output_text: self
                .served
                .params
                .server_output
                .then(|| "a report of linerate\n".to_owned()),
            ..Iperf3Results::default()
        }
    }
}
