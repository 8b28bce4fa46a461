//! The thread that owns a stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_host::sys::{clock, thread, ticks};
use linerate_metric::plan::Wait;
use linerate_metric::stack::{StackFacts, StackPlan};
use linerate_port::PortUrl;
use linerate_stack::{Addressing, Config, StackError};

use super::background::{Ask, Background, Look};
use super::bridge::Ends;
use super::port_state::PortState;
use super::services::{Front, ServiceSpec, Services};
use super::{driver, open};
use crate::error::MeasureError;
use crate::transport::OnStack;

/// How long the last segments of connections may take to be acknowledged.
const FAREWELL_NS: u64 = 300_000_000;

/// Silence after which nobody says anything more.
const QUIET_NS: u64 = 20_000_000;

/// Longest time that an answer of the thread is waited for: a connection takes 5 s at most.
const PATIENCE: Duration = Duration::from_secs(8);

/// Work that the thread does as a whole, such as a run's part.
pub type Work = Box<dyn FnOnce(&mut OnStack) + Send>;

/// A running stack. It ends when this goes.
pub struct StackThread {
    orders: Option<mpsc::Sender<Work>>,
    handle: StackHandle,
    thread: Option<JoinHandle<()>>,
    facts: StackFacts,
    config: Config,
    addressing: Addressing,
    port: Arc<PortState>,
}

/// What others can ask of the thread of a stack, whatever it does just now. With the stack it ends.
#[derive(Clone)]
pub struct StackHandle {
    asks: mpsc::Sender<Ask>,
    cut: Arc<AtomicBool>,
}

impl StackHandle {
    /// Streams that are received end here, whatever their far end still sends.
    pub fn cut(&self) {
        self.cut.store(true, Relaxed);
    }

    /// Opens a connection over the stack, whose bytes the pair that is given carries.
    ///
    /// # Errors
    /// Why it does not stand; `Interrupted` when `called_off` says so.
    pub fn connect(
        &self,
        remote: SocketAddr,
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<(UnixStream, Ends)> {
        const LOOK_UP: Duration = Duration::from_millis(50);
        let (own, pair) = UnixStream::pair()?;
        let (said, answer) = mpsc::channel();
        (self.asks.send(Ask::Connect { remote, pair, said })).map_err(|_| gone())?;
        let began = std::time::Instant::now();
        loop {
            match answer.recv_timeout(LOOK_UP) {
                Ok(ends) => return Ok((own, ends?)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(mpsc::RecvTimeoutError::Timeout) if called_off() => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Err(mpsc::RecvTimeoutError::Timeout) if began.elapsed() > PATIENCE => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Looks at the stack and its services, in the thread that owns them; `None` when it is gone.
    pub fn look<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut linerate_stack::Stack, Option<&mut Services>) -> R + Send + 'static,
    ) -> Option<R> {
        self.ask(Ask::Look, look)
    }

    /// The same once the port has said what only the kernel counts of it: counters are those of this moment.
    pub fn count<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut linerate_stack::Stack, Option<&mut Services>) -> R + Send + 'static,
    ) -> Option<R> {
        self.ask(Ask::Count, look)
    }

    fn ask<R: Send + 'static>(
        &self,
        how: fn(Look) -> Ask,
        look: impl FnOnce(&mut linerate_stack::Stack, Option<&mut Services>) -> R + Send + 'static,
    ) -> Option<R> {
        let (say, said) = mpsc::channel();
        let look: Look = Box::new(move |stack, services| {
            // Whoever asked waits for it.
            let _ = say.send(look(stack, services));
        });
        self.asks.send(how(look)).ok()?;
        said.recv_timeout(PATIENCE).ok()
    }
}

/// What is said of a stack that ended before who asks it.
pub fn gone() -> io::Error {
    io::Error::other("the stack's thread has ended")
}

impl StackThread {
    /// Opens the port and starts the stack, which serves these on its own.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn start(
        plan: &StackPlan,
        services: Vec<ServiceSpec>,
        front: Front,
    ) -> Result<Self, MeasureError> {
        let config = open::config(plan)?;
        let addressing = open::addressing(plan)?;
        let (orders, work) = mpsc::channel::<Work>();
        let (asks, asked) = mpsc::channel();
        let (say, said) = mpsc::channel();
        let port: Arc<PortState> = Arc::default();
        let tell = Arc::clone(&port);
        let own = plan.clone();
        let cut = Arc::new(AtomicBool::new(false));
        let cuts = Arc::clone(&cut);
        let thread = std::thread::Builder::new()
            .name("stack".to_owned())
            .spawn(move || {
                // The port is opened here: its memory is to lie where the thread runs.
                match begin(&own, (services, front), asked, tell, cuts) {
                    Ok(mut stack) => {
                        // Whoever started it may have given up; then it ends at once.
                        let _ = say.send(Ok(stack.facts_now()));
                        run(&mut stack, &work);
                    }
                    Err(error) => drop(say.send(Err(error))),
                }
            })
            .map_err(|error| MeasureError::system("new thread", error))?;
        let facts = said.recv().unwrap_or_else(|_| {
            let died = io::Error::other("it ended before the stack stood");
            Err(MeasureError::system("the stack's thread", died))
        });
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => {
                // It said why; there is nothing more to be had from it.
                let _ = thread.join();
                return Err(error);
            }
        };
        Ok(Self {
            orders: Some(orders),
            handle: StackHandle { asks, cut },
            thread: Some(thread),
            facts,
            config,
            addressing,
            port,
        })
    }

    /// What others can ask of it.
    pub fn handle(&self) -> &StackHandle {
        &self.handle
    }

    /// What records say of it, counters aside.
    pub fn facts(&self) -> &StackFacts {
        &self.facts
    }

    /// How it is configured.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How it waits for frames.
    pub fn waits(&self) -> Wait {
        match self.config.poll_interval {
            None => Wait::Spin,
            Some(time) => Wait::Interval {
                time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            },
        }
    }

    /// The address that packets to another one come from, if there is a way.
    pub fn address_towards(&self, far: IpAddr) -> Option<IpAddr> {
        let networks = &self.addressing.networks;
        let near = networks.iter().find(|own| own.contains(far));
        let same = || {
            networks
                .iter()
                .find(|own| own.address.is_ipv4() == far.is_ipv4())
        };
        near.or_else(same).map(|own| own.address)
    }

    /// Whether an address is one of its own.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.addressing.is_own(address)
    }

    /// Whether packets to an address have a way at all.
    pub fn reaches(&self, far: IpAddr) -> bool {
        self.addressing.next_hop(far).is_some()
    }

    /// Has the thread do something that takes its time.
    ///
    /// # Errors
    /// When it is gone.
    pub fn lend(&self, work: Work) -> io::Result<()> {
        let sent = self.orders.as_ref().map(|orders| orders.send(work));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(gone()),
        }
    }

    /// Why the port does not work any more: told once.
    pub fn take_failure(&self) -> Option<StackError> {
        self.port.take_failure()
    }

    /// Whether the process at the port's other end went, and has not come back for a while.
    pub fn is_left(&self) -> bool {
        self.port.is_left(clock::now())
    }

    /// Whether nothing will come any more: the port is broken, or nobody is at its other end.
    pub fn is_over(&self) -> bool {
        self.port.is_over(clock::now())
    }

    /// Whether nobody ever came to the port's other end.
    pub fn is_alone(&self) -> bool {
        self.port.is_alone()
    }

    /// The port as texts name it.
    pub fn port_name(&self) -> String {
        let typed = &self.facts.device;
        let url = typed.parse::<PortUrl>();
        url.map_or_else(|_| typed.clone(), |url| url.short())
    }
}

impl Drop for StackThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic is a bug of ours and has been told.
            let _ = thread.join();
        }
    }
}

fn begin(
    plan: &StackPlan,
    (services, front): (Vec<ServiceSpec>, Front),
    asked: mpsc::Receiver<Ask>,
    port: Arc<PortState>,
    cut: Arc<AtomicBool>,
) -> Result<OnStack, MeasureError> {
    let config = open::config(plan)?;
    // The driver's thread has a place of its own, not this one's.
    let (mut stack, facts, driver) = open::open(plan, &port)?;
    driver::place("application", &config.application)?;
    if config.poll_interval.is_some() {
        // A period is to be kept, and not to be 50 us longer.
        thread::keep_time();
    }
    let services = match services.is_empty() {
        true => None,
        false => Some(Box::new(Services::open(&mut stack, services, front)?)),
    };
    if let Some(stamps) = plan.stamp_payload {
        stack.stamp_payload(stamps, ticks::now);
    }
    Ok(OnStack::of(stack, facts, Background::new(asked, services, port), cut).with_driver(driver))
}

/// Turns the stack until nobody wants it any more.
fn run(stack: &mut OnStack, orders: &mpsc::Receiver<Work>) {
    loop {
        // No look at orders stands between a rest and the answer to what ended it.
        let worked = stack.round();
        match orders.try_recv() {
            Ok(work) => work(stack),
            Err(mpsc::TryRecvError::Disconnected) => break,
            Err(mpsc::TryRecvError::Empty) if worked => {}
            Err(mpsc::TryRecvError::Empty) => stack.rest(),
        }
    }
    stack.close();
    // What was said last is to arrive.
    let began = clock::now();
    let mut last = began;
    loop {
        let now = clock::now();
        if stack.round() {
            last = now;
        }
        let busy = stack.is_busy();
        if now > began + FAREWELL_NS || (!busy && now > last + QUIET_NS) {
            return;
        }
        clock::sleep_until(now + 200_000);
    }
}
