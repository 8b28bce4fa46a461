//! Server side of a control connection.

use super::control_buffers::ControlBuffers;
use super::cookie::{COOKIE_BYTES, Cookie};
use super::error::{Iperf3Error, Iperf3Phase};
use super::error_code::{BUSY, Iperf3ErrorCode};
use super::flow::Iperf3Flow;
use super::params::Iperf3Params;
use super::results::Iperf3Results;
use super::state::Iperf3State;
use super::{CLIENT_RESULTS_LIMIT_BYTES, PARAMS_LIMIT_BYTES, RESULTS_LIMIT_BYTES};

/// Timeout of each step of a client, in nanoseconds: an upstream client does each of them at once.
const STEP_TIMEOUT_NS: u64 = 10_000_000_000;

/// Event from the client.
#[derive(Clone, Debug, PartialEq)]
pub enum Iperf3ServerEvent {
    /// The client requests this test: call [`Iperf3Server::accept`] or [`Iperf3Server::reject`].
    TestRequested(Box<Iperf3Params>),
    /// The client's time, bytes or blocks are used up: stop the flows that this end sends; data
    /// that is still on its way to it may be read. The client's results were requested.
    TestEnded,
    /// Results of the client; it waits for those of the server: call
    /// [`Iperf3Server::send_results`].
    Results(Box<Iperf3Results>),
    /// The client terminated the test and reads no results.
    Terminated,
    /// The client has the results; close the connection.
    Done,
}

/// Control connection of one test, server side. The module documentation has the order of messages.
#[derive(Debug)]
pub struct Iperf3Server {
    buffers: ControlBuffers,
    step: Iperf3ServerStep,
    step_start_ns: u64,
    /// Maximum duration of the run; `None` if no time was agreed.
    run_limit_ns: Option<u64>,
    /// Flows that have not arrived, the next one last.
    missing_flows: Vec<Iperf3Flow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Iperf3ServerStep {
    Parameters,
    Decision,
    Flows,
    Running,
    RemoteResults,
    LocalResults,
    Confirmation,
    Over,
    Failed,
}

impl Iperf3ServerStep {
    fn phase(self) -> Iperf3Phase {
        match self {
            Self::Parameters => Iperf3Phase::Parameters,
            Self::Decision => Iperf3Phase::Acceptance,
            Self::Flows => Iperf3Phase::Flows,
            Self::Running => Iperf3Phase::Running,
            Self::RemoteResults | Self::LocalResults => Iperf3Phase::Results,
            Self::Confirmation => Iperf3Phase::Confirmation,
            Self::Over | Self::Failed => Iperf3Phase::Over,
        }
    }
}

impl Iperf3Server {
    /// Creates the state for a connection whose first [`COOKIE_BYTES`] were a [`Cookie`] that no
    /// running test has. Pass the bytes after them to [`Iperf3Server::receive`]. Times are
    /// nanoseconds of any monotonic clock.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        let mut buffers = ControlBuffers::default();
        buffers.send(&[Iperf3State::ParamExchange.to_byte()]);
        Self {
            buffers,
            step: Iperf3ServerStep::Parameters,
            step_start_ns: now_ns,
            run_limit_ns: None,
            missing_flows: Vec::new(),
        }
    }

    /// Reads the first bytes of a connection and creates the state for it; `None` if they are no
    /// cookie.
    #[must_use]
    pub fn open(first: &[u8; COOKIE_BYTES], now_ns: u64) -> Option<(Cookie, Self)> {
        Cookie::read(first).map(|cookie| (cookie, Self::new(now_ns)))
    }

    /// Appends bytes received on the control connection, at most
    /// [`READ_AHEAD_BYTES`](super::READ_AHEAD_BYTES) at a time.
    ///
    /// # Errors
    /// [`Iperf3Error::ReadAhead`] if events were not taken out, [`Iperf3Error::AlreadyFailed`]
    /// after any error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Iperf3Error> {
        let limit = match self.step {
            Iperf3ServerStep::Failed => return Err(Iperf3Error::AlreadyFailed),
            // Later bytes are ignored.
            Iperf3ServerStep::Over => return Ok(()),
            Iperf3ServerStep::Parameters => PARAMS_LIMIT_BYTES,
            Iperf3ServerStep::RemoteResults => CLIENT_RESULTS_LIMIT_BYTES,
            _ => 0,
        };
        self.buffers
            .push_incoming(bytes, limit)
            .map_err(|error| self.fail(error))
    }

    /// Returns the next event; `None` until more has arrived.
    ///
    /// # Errors
    /// Any protocol error of the client; nothing can be read after it. An error code is queued
    /// where upstream's client reads one.
    pub fn next_event(&mut self, now_ns: u64) -> Result<Option<Iperf3ServerEvent>, Iperf3Error> {
        self.read(now_ns).map_err(|error| self.fail(error))
    }

    fn read(&mut self, now_ns: u64) -> Result<Option<Iperf3ServerEvent>, Iperf3Error> {
        match self.step {
            Iperf3ServerStep::Failed => Err(Iperf3Error::AlreadyFailed),
            Iperf3ServerStep::Over => Ok(None),
            Iperf3ServerStep::Parameters => {
                let params = self
                    .buffers
                    .take_text(PARAMS_LIMIT_BYTES, Iperf3Params::read);
                if params.is_err() {
                    self.queue_error(Iperf3ErrorCode::PARAMETERS, 0);
                }
                Ok(params?.map(|params| {
                    self.enter_step(Iperf3ServerStep::Decision, now_ns);
                    self.missing_flows = params.flows();
                    self.missing_flows.reverse();
                    self.run_limit_ns = params
                        .duration_ns
                        .map(|ns| ns.saturating_add(params.omit_ns));
                    Iperf3ServerEvent::TestRequested(Box::new(params))
                }))
            }
            // The first byte is that of a length, and no text is so long that this byte is not 0.
            Iperf3ServerStep::RemoteResults if matches!(self.buffers.incoming(), [0, ..] | []) => {
                let results = self
                    .buffers
                    .take_text(CLIENT_RESULTS_LIMIT_BYTES, Iperf3Results::read);
                if results.is_err() {
                    self.queue_error(Iperf3ErrorCode::RESULTS, 0);
                }
                Ok(results?.map(|results| {
                    self.enter_step(Iperf3ServerStep::LocalResults, now_ns);
                    Iperf3ServerEvent::Results(Box::new(results))
                }))
            }
            _ => {
                let Some(byte) = self.buffers.take_byte() else {
                    return Ok(None);
                };
                self.handle_byte(byte, now_ns).map(Some)
            }
        }
    }

    fn handle_byte(&mut self, byte: u8, now_ns: u64) -> Result<Iperf3ServerEvent, Iperf3Error> {
        match (Iperf3State::from_byte(byte), self.step) {
            (Some(Iperf3State::ClientTerminate), _) => {
                self.enter_step(Iperf3ServerStep::Over, now_ns);
                Ok(Iperf3ServerEvent::Terminated)
            }
            (Some(Iperf3State::TestEnd), Iperf3ServerStep::Running) => {
                self.buffers.send(&[Iperf3State::ExchangeResults.to_byte()]);
                self.enter_step(Iperf3ServerStep::RemoteResults, now_ns);
                Ok(Iperf3ServerEvent::TestEnded)
            }
            (Some(Iperf3State::Done), Iperf3ServerStep::Confirmation) => {
                self.enter_step(Iperf3ServerStep::Over, now_ns);
                Ok(Iperf3ServerEvent::Done)
            }
            _ => {
                self.queue_error(Iperf3ErrorCode::MESSAGE, 0);
                Err(Iperf3Error::Unexpected {
                    byte,
                    phase: self.step.phase(),
                })
            }
        }
    }

    /// Accepts the test: the client may open its flows. For UDP open the socket first.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfOrder`].
    pub fn accept(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        self.expect_step("accepting", Iperf3ServerStep::Decision)?;
        self.buffers.send(&[Iperf3State::CreateStreams.to_byte()]);
        self.enter_step(Iperf3ServerStep::Flows, now_ns);
        Ok(())
    }

    /// Assigns a new flow of this test; `None` if none is missing or awaited: send
    /// [`BUSY`](super::BUSY) on its connection and close it.
    pub fn assign_flow(&mut self) -> Option<Iperf3Flow> {
        (self.step == Iperf3ServerStep::Flows)
            .then(|| self.missing_flows.pop())
            .flatten()
    }

    /// Returns whether flows are missing.
    #[must_use]
    pub fn waits_for_flows(&self) -> bool {
        self.step == Iperf3ServerStep::Flows && !self.missing_flows.is_empty()
    }

    /// Starts the run after all flows have arrived.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfOrder`].
    pub fn start(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        self.expect_step("starting", Iperf3ServerStep::Flows)?;
        if !self.missing_flows.is_empty() {
            return Err(Iperf3Error::OutOfOrder {
                step: "starting",
                phase: Iperf3Phase::Flows,
            });
        }
        self.buffers.send(&[
            Iperf3State::TestStart.to_byte(),
            Iperf3State::TestRunning.to_byte(),
        ]);
        self.enter_step(Iperf3ServerStep::Running, now_ns);
        Ok(())
    }

    /// Sends the local results, after those of the client.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfOrder`]; [`Iperf3Error::OutgoingTooLong`] if the report is too long,
    /// which changes nothing.
    pub fn send_results(&mut self, ours: &Iperf3Results, now_ns: u64) -> Result<(), Iperf3Error> {
        self.expect_step("sending results", Iperf3ServerStep::LocalResults)?;
        self.buffers
            .send_text(&ours.write()?, RESULTS_LIMIT_BYTES)?;
        self.buffers.send(&[Iperf3State::DisplayResults.to_byte()]);
        self.enter_step(Iperf3ServerStep::Confirmation, now_ns);
        Ok(())
    }

    /// Rejects or aborts the test with an error code that the client prints. Close the connection
    /// after the bytes were written.
    pub fn reject(&mut self, code: Iperf3ErrorCode, errno: i32) {
        if !matches!(self.step, Iperf3ServerStep::Over | Iperf3ServerStep::Failed) {
            self.queue_error(code, errno);
            self.step = Iperf3ServerStep::Over;
        }
    }

    /// Terminates the test early: the client prints its figures so far. Close the connection after
    /// the bytes were written.
    pub fn terminate(&mut self) {
        if !matches!(self.step, Iperf3ServerStep::Over | Iperf3ServerStep::Failed) {
            self.buffers.send(&[Iperf3State::ServerTerminate.to_byte()]);
            self.step = Iperf3ServerStep::Over;
        }
    }

    /// Records that the client closed the connection, or that it broke.
    ///
    /// # Errors
    /// [`Iperf3Error::PeerClosed`] unless the exchange was complete. A client that closes instead
    /// of confirming the end has its results.
    pub fn mark_closed(&mut self) -> Result<(), Iperf3Error> {
        match self.step {
            Iperf3ServerStep::Over | Iperf3ServerStep::Confirmation => {
                self.step = Iperf3ServerStep::Over;
                Ok(())
            }
            Iperf3ServerStep::Failed => Err(Iperf3Error::AlreadyFailed),
            step => Err(self.fail(Iperf3Error::PeerClosed {
                phase: step.phase(),
            })),
        }
    }

    /// Returns the deadline of the client's next step; `None` if none is awaited. A run without an
    /// agreed time has no deadline here: the driver detects when its flows stall.
    fn deadline_ns(&self) -> Option<u64> {
        let timeout_ns = match self.step {
            // The client waits meanwhile for another test of its address.
            Iperf3ServerStep::Decision => STEP_TIMEOUT_NS,
            Iperf3ServerStep::Parameters
            | Iperf3ServerStep::Flows
            | Iperf3ServerStep::RemoteResults
            | Iperf3ServerStep::Confirmation => STEP_TIMEOUT_NS,
            Iperf3ServerStep::Running => self.run_limit_ns?.saturating_add(STEP_TIMEOUT_NS),
            Iperf3ServerStep::LocalResults | Iperf3ServerStep::Over | Iperf3ServerStep::Failed => {
                return None;
            }
        };
        Some(self.step_start_ns.saturating_add(timeout_ns))
    }

    /// Checks the deadline of the client's next step, and that the test was accepted in time.
    ///
    /// # Errors
    /// [`Iperf3Error::TimedOut`], [`Iperf3Error::Busy`]; the message for the client is queued.
    pub fn check_deadline(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        match self.deadline_ns() {
            Some(deadline) if now_ns >= deadline => {
                let phase = self.step.phase();
                match self.step {
                    Iperf3ServerStep::Decision => self.buffers.send(&BUSY),
                    Iperf3ServerStep::Flows => self.queue_error(Iperf3ErrorCode::ACCEPT_FLOW, 0),
                    Iperf3ServerStep::Running => {
                        self.buffers.send(&[Iperf3State::ServerTerminate.to_byte()])
                    }
                    _ => {}
                }
                Err(self.fail(match phase {
                    Iperf3Phase::Acceptance => Iperf3Error::Busy,
                    phase => Iperf3Error::TimedOut { phase },
                }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.buffers.outgoing()
    }

    /// Removes bytes of [`Iperf3Server::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.buffers.mark_sent(bytes);
    }

    fn expect_step(
        &self,
        step: &'static str,
        expected: Iperf3ServerStep,
    ) -> Result<(), Iperf3Error> {
        if self.step == expected {
            return Ok(());
        }
        Err(Iperf3Error::OutOfOrder {
            step,
            phase: self.step.phase(),
        })
    }

    fn enter_step(&mut self, step: Iperf3ServerStep, now_ns: u64) {
        self.step = step;
        self.step_start_ns = now_ns;
    }

    fn queue_error(&mut self, code: Iperf3ErrorCode, errno: i32) {
        self.buffers.send(&[Iperf3State::ServerError.to_byte()]);
        self.buffers.send(&code.0.to_be_bytes());
        self.buffers.send(&errno.to_be_bytes());
    }

    fn fail(&mut self, error: Iperf3Error) -> Iperf3Error {
        self.step = Iperf3ServerStep::Failed;
        self.buffers.discard_incoming();
        error
    }
}
