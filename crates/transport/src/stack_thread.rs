//! The thread that owns a user-space stack.
//!
//! The thread lives as long as the stack. It opens the port, polls the stack, and between START and
//! the end of a run moves payload as a worker. Everything else runs in the [`background`] of that
//! thread: services, and the bytes of the control connection, carried by a [`bridge`] to the
//! session's thread.

pub mod stack_caveats;

pub mod background;
pub mod bridge;
pub mod open_stack;
pub mod port_driver;
pub mod port_state;
pub mod stack_facts;
pub mod stack_service;
pub mod thread_schedule;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_port::PortUrl;
use linerate_record::plan::WaitMode;
use linerate_record::stack::{StackFacts, StackPlan};
use linerate_stack::{StackAddressing, StackConfig, StackError};
use linerate_sys::{clock, thread, tick_clock};

use crate::stack_thread::background::{BackgroundWork, InspectFn, StackRequest};
use crate::stack_thread::bridge::ConnectionAddresses;
use crate::stack_thread::port_state::PortState;
use crate::stack_thread::stack_service::{OpenServices, StackService};
use crate::{NetstackTransport, TransportError};

/// Longest time for the acknowledgement of the last segments at the end.
const DRAIN_NS: u64 = 300_000_000;

/// Silence after which the stack is considered finished at the end.
const QUIET_NS: u64 = 20_000_000;

/// Longest wait for a response of the thread: a connection takes 5 s at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

/// Work that occupies the thread, such as a run.
pub type StackWork = Box<dyn FnOnce(&mut NetstackTransport) + Send>;

/// A running stack. Dropping it ends the thread.
pub struct StackThread {
    work_queue: Option<mpsc::Sender<StackWork>>,
    handle: StackHandle,
    thread: Option<JoinHandle<()>>,
    facts: StackFacts,
    config: StackConfig,
    addressing: StackAddressing,
    port_state: Arc<PortState>,
}

/// Handle for requests to a stack's thread, served even during a run. Requests fail after its end.
#[derive(Clone)]
pub struct StackHandle {
    requests: mpsc::Sender<StackRequest>,
    end_receives: Arc<AtomicBool>,
}

impl StackHandle {
    /// Ends received streams, whatever the remote end still sends.
    pub fn end_receives(&self) {
        self.end_receives.store(true, Relaxed);
    }

    /// Opens a connection over the stack; the returned socket carries its bytes.
    ///
    /// # Errors
    /// When it cannot be established; `Interrupted` when `is_cancelled` returns true.
    pub fn connect(
        &self,
        remote: SocketAddr,
        is_cancelled: &dyn Fn() -> bool,
    ) -> io::Result<(UnixStream, ConnectionAddresses)> {
        const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);
        let (session_socket, pair) = UnixStream::pair()?;
        let (reply, response) = mpsc::channel();
        (self.requests.send(StackRequest::Connect {
            remote,
            pair,
            reply,
        }))
        .map_err(|_| thread_ended())?;
        let start = std::time::Instant::now();
        loop {
            match response.recv_timeout(CANCEL_POLL_INTERVAL) {
                Ok(addresses) => return Ok((session_socket, addresses?)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(thread_ended()),
                Err(mpsc::RecvTimeoutError::Timeout) if is_cancelled() => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Err(mpsc::RecvTimeoutError::Timeout) if start.elapsed() > REQUEST_TIMEOUT => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Runs a function on the stack and its services, in their thread; `None` when that has ended.
    pub fn with_stack<R: Send + 'static>(
        &self,
        inspect: impl FnOnce(&mut linerate_stack::Stack, Option<&mut dyn StackService>) -> R
        + Send
        + 'static,
    ) -> Option<R> {
        self.request(StackRequest::Inspect, inspect)
    }

    /// Refreshes the kernel's counters of the port, then runs a function like [`Self::with_stack`].
    pub fn with_fresh_counters<R: Send + 'static>(
        &self,
        inspect: impl FnOnce(&mut linerate_stack::Stack, Option<&mut dyn StackService>) -> R
        + Send
        + 'static,
    ) -> Option<R> {
        self.request(StackRequest::InspectFresh, inspect)
    }

    fn request<R: Send + 'static>(
        &self,
        to_request: fn(InspectFn) -> StackRequest,
        inspect: impl FnOnce(&mut linerate_stack::Stack, Option<&mut dyn StackService>) -> R
        + Send
        + 'static,
    ) -> Option<R> {
        let (sender, receiver) = mpsc::channel();
        let inspect: InspectFn = Box::new(move |stack, services| {
            // The requester may have timed out.
            let _ = sender.send(inspect(stack, services));
        });
        self.requests.send(to_request(inspect)).ok()?;
        receiver.recv_timeout(REQUEST_TIMEOUT).ok()
    }
}

/// Returns the error of a request to a stack that has ended.
pub fn thread_ended() -> io::Error {
    io::Error::other("the stack's thread has ended")
}

impl StackThread {
    /// Opens the port and starts the stack with these services.
    ///
    /// # Errors
    /// When the stack cannot be started.
    pub fn start(plan: &StackPlan, services: Option<OpenServices>) -> Result<Self, TransportError> {
        let config = open_stack::read_config(plan)?;
        let addressing = open_stack::read_addressing(plan)?;
        let (work_queue, work) = mpsc::channel::<StackWork>();
        let (requests, request_receiver) = mpsc::channel();
        let (sender, receiver) = mpsc::channel();
        let port: Arc<PortState> = Arc::default();
        let thread_port_state = Arc::clone(&port);
        let stack_plan = plan.clone();
        let end_receives = Arc::new(AtomicBool::new(false));
        let thread_end_receives = Arc::clone(&end_receives);
        let thread = std::thread::Builder::new()
            .name("stack".to_owned())
            .spawn(move || {
                // The port is opened here, so that its memory lies on the thread's NUMA node.
                match open_transport(
                    &stack_plan,
                    services,
                    request_receiver,
                    thread_port_state,
                    thread_end_receives,
                ) {
                    Ok(mut stack) => {
                        // The starter may have given up; then the thread ends at once.
                        let _ = sender.send(Ok(stack.current_facts()));
                        run_thread(&mut stack, &work);
                    }
                    Err(error) => drop(sender.send(Err(error))),
                }
            })
            .map_err(|error| TransportError::system("new thread", error))?;
        let facts = receiver.recv().unwrap_or_else(|_| {
            let end_error = io::Error::other("it ended before the stack was ready");
            Err(TransportError::system("the stack's thread", end_error))
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
            work_queue: Some(work_queue),
            handle: StackHandle {
                requests,
                end_receives,
            },
            thread: Some(thread),
            facts,
            config,
            addressing,
            port_state: port,
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

    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Returns the wait mode of the stack.
    pub fn wait_mode(&self) -> WaitMode {
        match self.config.poll_interval {
            None => WaitMode::Spin,
            Some(time) => WaitMode::Interval {
                time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            },
        }
    }

    /// Returns the source address for packets to an address, if there is one.
    pub fn source_address_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let networks = &self.addressing.networks;
        let on_link = networks.iter().find(|network| network.contains(remote));
        let same_family = || {
            networks
                .iter()
                .find(|network| network.address.is_ipv4() == remote.is_ipv4())
        };
        on_link.or_else(same_family).map(|network| network.address)
    }

    /// Returns whether an address is one of the stack's.
    pub fn is_local_address(&self, address: IpAddr) -> bool {
        self.addressing.is_local(address)
    }

    /// Returns whether there is a route to an address.
    pub fn has_route(&self, remote: IpAddr) -> bool {
        self.addressing.next_hop(remote).is_some()
    }

    /// Runs work on the thread.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn run_work(&self, work: StackWork) -> io::Result<()> {
        let sent = self
            .work_queue
            .as_ref()
            .map(|work_queue| work_queue.send(work));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(thread_ended()),
        }
    }

    /// Takes the reason why the port failed: returned once.
    pub fn take_failure(&self) -> Option<StackError> {
        self.port_state.take_failure()
    }

    /// Returns whether the peer process of the port has been absent for a while.
    pub fn is_peer_lost(&self) -> bool {
        self.port_state.is_peer_lost(clock::now())
    }

    /// Returns whether the port is unusable: failed, or without its peer.
    pub fn is_unusable(&self) -> bool {
        self.port_state.is_unusable(clock::now())
    }

    /// Returns whether no peer has ever attached to the port.
    pub fn never_had_peer(&self) -> bool {
        self.port_state.never_had_peer()
    }

    /// Returns the port's name for messages.
    pub fn port_name(&self) -> String {
        let device = &self.facts.device;
        let url = device.parse::<PortUrl>();
        url.map_or_else(|_| device.clone(), |url| url.short_name())
    }
}

impl Drop for StackThread {
    fn drop(&mut self) {
        self.work_queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic is a bug and has been reported by its hook.
            let _ = thread.join();
        }
    }
}

fn open_transport(
    plan: &StackPlan,
    services: Option<OpenServices>,
    request_receiver: mpsc::Receiver<StackRequest>,
    port: Arc<PortState>,
    end_receives: Arc<AtomicBool>,
) -> Result<NetstackTransport, TransportError> {
    let config = open_stack::read_config(plan)?;
    // Before this thread is bound to its processors: the driver thread has settings of its own.
    let (mut stack, facts, driver) = open_stack::open_stack(plan, &port)?;
    port_driver::apply_thread_config("application", &config.application)?;
    if config.poll_interval.is_some() {
        // A period must not be extended by the timer slack of 50 us.
        thread::disable_timer_slack();
    }
    let services = services.map(|open| open(&mut stack)).transpose()?;
    if let Some(stamps) = plan.payload_timestamps {
        stack.stamp_payload(stamps, tick_clock::interpolated_now);
    }
    Ok(NetstackTransport::with_stack(
        stack,
        facts,
        BackgroundWork::new(request_receiver, services, port),
        end_receives,
    )
    .with_driver(driver))
}

/// Polls the stack until its owner drops it.
fn run_thread(stack: &mut NetstackTransport, work_queue: &mpsc::Receiver<StackWork>) {
    loop {
        // The poll comes first, so that the frame that ended the idle time is handled at once.
        let worked = stack.poll_without_workload();
        match work_queue.try_recv() {
            Ok(work) => work(stack),
            Err(mpsc::TryRecvError::Disconnected) => break,
            Err(mpsc::TryRecvError::Empty) if worked => {}
            Err(mpsc::TryRecvError::Empty) => stack.idle_without_workload(),
        }
    }
    stack.close_sockets();
    // Until the last segments are acknowledged.
    let start = clock::now();
    let mut last_progress = start;
    loop {
        let now = clock::now();
        if stack.poll_without_workload() {
            last_progress = now;
        }
        let is_busy = stack.is_busy();
        if now > start + DRAIN_NS || (!is_busy && now > last_progress + QUIET_NS) {
            return;
        }
        clock::sleep_until(now + 200_000);
    }
}
