//! The thread that owns a stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_host::sys::{clock, thread, tick_clock};
use linerate_metric::plan::Wait;
use linerate_metric::stack::{StackFacts, StackPlan};
use linerate_port::PortUrl;
use linerate_stack::{Addressing, Config, StackError};

use super::background::{Ask, Background, Look};
use super::bridge::Ends;
use super::port_state::PortState;
use super::services::{Front, ServiceSpec, Services};
use super::{open_stack, port_driver};
use crate::error::MeasureError;
use crate::transport::OnStack;

/// Longest time for the acknowledgement of the last segments at the end.
const FAREWELL_NS: u64 = 300_000_000;

/// Silence after which the stack is considered finished at the end.
const QUIET_NS: u64 = 20_000_000;

/// Longest wait for a response of the thread: a connection takes 5 s at most.
const PATIENCE: Duration = Duration::from_secs(8);

/// Work that occupies the thread, such as a run.
pub type Work = Box<dyn FnOnce(&mut OnStack) + Send>;

/// A running stack. Dropping it ends the thread.
pub struct StackThread {
    orders: Option<mpsc::Sender<Work>>,
    handle: StackHandle,
    thread: Option<JoinHandle<()>>,
    facts: StackFacts,
    config: Config,
    addressing: Addressing,
    port: Arc<PortState>,
}

/// Handle for requests to a stack's thread, served even during a run. Requests fail after its end.
#[derive(Clone)]
pub struct StackHandle {
    asks: mpsc::Sender<Ask>,
    cut: Arc<AtomicBool>,
}

impl StackHandle {
    /// Ends received streams, whatever the remote end still sends.
    pub fn cut(&self) {
        self.cut.store(true, Relaxed);
    }

    /// Opens a connection over the stack; the returned socket carries its bytes.
    ///
    /// # Errors
    /// When it cannot be established; `Interrupted` when `called_off` returns true.
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

    /// Runs a function on the stack and its services, in their thread; `None` when that has ended.
    pub fn look<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut linerate_stack::Stack, Option<&mut Services>) -> R + Send + 'static,
    ) -> Option<R> {
        self.ask(Ask::Look, look)
    }

    /// Refreshes the kernel's counters of the port, then runs a function like [`Self::look`].
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
            // The requester may have timed out.
            let _ = say.send(look(stack, services));
        });
        self.asks.send(how(look)).ok()?;
        said.recv_timeout(PATIENCE).ok()
    }
}

/// Returns the error of a request to a stack that has ended.
pub fn gone() -> io::Error {
    io::Error::other("the stack's thread has ended")
}

impl StackThread {
    /// Opens the port and starts the stack with these services.
    ///
    /// # Errors
    /// When the stack cannot be started.
    pub fn start(
        plan: &StackPlan,
        services: Vec<ServiceSpec>,
        front: Front,
    ) -> Result<Self, MeasureError> {
        let config = open_stack::config(plan)?;
        let addressing = open_stack::addressing(plan)?;
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
                // The port is opened here, so that its memory lies on the thread's NUMA node.
                match begin(&own, (services, front), asked, tell, cuts) {
                    Ok(mut stack) => {
                        // The starter may have given up; then the thread ends at once.
                        let _ = say.send(Ok(stack.facts_now()));
                        run(&mut stack, &work);
                    }
                    Err(error) => drop(say.send(Err(error))),
                }
            })
            .map_err(|error| MeasureError::system("new thread", error))?;
        let facts = said.recv().unwrap_or_else(|_| {
            let died = io::Error::other("it ended before the stack was ready");
            Err(MeasureError::system("the stack's thread", died))
        });
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => {
                // The thread has reported its error and ends.
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

    /// Returns the handle for requests.
    pub fn handle(&self) -> &StackHandle {
        &self.handle
    }

    /// Returns the facts for records, without counters.
    pub fn facts(&self) -> &StackFacts {
        &self.facts
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the wait mode of the stack.
    pub fn waits(&self) -> Wait {
        match self.config.poll_interval {
            None => Wait::Spin,
            Some(time) => Wait::Interval {
                time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            },
        }
    }

    /// Returns the source address for packets to an address, if there is one.
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

    /// Returns whether an address is one of the stack's.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.addressing.is_own(address)
    }

    /// Returns whether there is a route to an address.
    pub fn reaches(&self, far: IpAddr) -> bool {
        self.addressing.next_hop(far).is_some()
    }

    /// Runs work on the thread.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn lend(&self, work: Work) -> io::Result<()> {
        let sent = self.orders.as_ref().map(|orders| orders.send(work));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(gone()),
        }
    }

    /// Takes the reason why the port failed: returned once.
    pub fn take_failure(&self) -> Option<StackError> {
        self.port.take_failure()
    }

    /// Returns whether the peer process of the port has been absent for a while.
    pub fn is_left(&self) -> bool {
        self.port.is_left(clock::now())
    }

    /// Returns whether the port is unusable: failed, or without its peer.
    pub fn is_over(&self) -> bool {
        self.port.is_over(clock::now())
    }

    /// Returns whether no peer has ever attached to the port.
    pub fn is_alone(&self) -> bool {
        self.port.is_alone()
    }

    /// Returns the port's name for messages.
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
            // A panic is a bug and has been reported by its hook.
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
    let config = open_stack::config(plan)?;
    // Before this thread is bound to its processors: the driver thread has settings of its own.
    let (mut stack, facts, driver) = open_stack::open(plan, &port)?;
    port_driver::place("application", &config.application)?;
    if config.poll_interval.is_some() {
        // A period must not be extended by the timer slack of 50 us.
        thread::keep_time();
    }
    let services = match services.is_empty() {
        true => None,
        false => Some(Box::new(Services::open(&mut stack, services, front)?)),
    };
    if let Some(stamps) = plan.stamp_payload {
        stack.stamp_payload(stamps, tick_clock::now);
    }
    Ok(OnStack::of(stack, facts, Background::new(asked, services, port), cut).with_driver(driver))
}

/// Polls the stack until its owner drops it.
fn run(stack: &mut OnStack, orders: &mpsc::Receiver<Work>) {
    loop {
        // The poll comes first, so that the frame that ended the idle time is handled at once.
        let worked = stack.round();
        match orders.try_recv() {
            Ok(work) => work(stack),
            Err(mpsc::TryRecvError::Disconnected) => break,
            Err(mpsc::TryRecvError::Empty) if worked => {}
            Err(mpsc::TryRecvError::Empty) => stack.rest(),
        }
    }
    stack.close();
    // Until the last segments are acknowledged.
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
