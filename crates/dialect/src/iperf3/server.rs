//! Server side of a control connection.

use super::control_buffers::Wire;
use super::cookie::{COOKIE_BYTES, Cookie};
use super::error::{Iperf3Error, Phase};
use super::error_code::{BUSY, Refusal};
use super::flow::Flow;
use super::params::Params;
use super::results::Results;
use super::state::State;
use super::{CLIENT_RESULTS_LIMIT_BYTES, PARAMS_LIMIT_BYTES, RESULTS_LIMIT_BYTES};

/// Timeout of each step of a client, in nanoseconds: an upstream client does each of them at once.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Event from the client.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// The client requests this test: call [`Server::accept`] or [`Server::refuse`].
    Asked(Box<Params>),
    /// The client's time, bytes or blocks are used up: stop the flows that this end sends; data
    /// that is still on its way to it may be read. The client's results were requested.
    Ended,
    /// Results of the client; it waits for those of the server: call [`Server::results`].
    Results(Box<Results>),
    /// The client terminated the test and reads no results.
    Terminated,
    /// The client has the results; close the connection.
    Done,
}

/// Control connection of one test, server side. The module documentation has the order of messages.
#[derive(Debug)]
pub struct Server {
    wire: Wire,
    step: Step,
    since_ns: u64,
    /// Maximum duration of the run; `None` if no time was agreed.
    run_ns: Option<u64>,
    /// Flows that have not arrived, the next one last.
    missing: Vec<Flow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Parameters,
    Asked,
    Flows,
    Running,
    TheirResults,
    OurResults,
    Farewell,
    Over,
    Failed,
}

impl Step {
    fn phase(self) -> Phase {
        match self {
            Self::Parameters => Phase::Parameters,
            Self::Asked => Phase::Agreement,
            Self::Flows => Phase::Flows,
            Self::Running => Phase::Running,
            Self::TheirResults | Self::OurResults => Phase::Results,
            Self::Farewell => Phase::Farewell,
            Self::Over | Self::Failed => Phase::Over,
        }
    }
}

impl Server {
    /// Creates the state for a connection whose first [`COOKIE_BYTES`] were a [`Cookie`] that no
    /// running test has. Pass the bytes after them to [`Server::receive`]. Times are nanoseconds of
    /// any monotonic clock.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        let mut wire = Wire::default();
        wire.send(&[State::ParamExchange.to_byte()]);
        Self {
            wire,
            step: Step::Parameters,
            since_ns: now_ns,
            run_ns: None,
            missing: Vec::new(),
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
    /// [`Iperf3Error::ReadAhead`] if events were not taken out, [`Iperf3Error::Failed`] after any
    /// error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Iperf3Error> {
        let limit = match self.step {
            Step::Failed => return Err(Iperf3Error::Failed),
            // Later bytes are ignored.
            Step::Over => return Ok(()),
            Step::Parameters => PARAMS_LIMIT_BYTES,
            Step::TheirResults => CLIENT_RESULTS_LIMIT_BYTES,
            _ => 0,
        };
        self.wire
            .push(bytes, limit)
            .map_err(|error| self.fail(error))
    }

    /// Returns the next event; `None` until more has arrived.
    ///
    /// # Errors
    /// Any protocol error of the client; nothing can be read after it. An error code is queued
    /// where upstream's client reads one.
    pub fn next_event(&mut self, now_ns: u64) -> Result<Option<ServerEvent>, Iperf3Error> {
        self.read(now_ns).map_err(|error| self.fail(error))
    }

    fn read(&mut self, now_ns: u64) -> Result<Option<ServerEvent>, Iperf3Error> {
        match self.step {
            Step::Failed => Err(Iperf3Error::Failed),
            Step::Over => Ok(None),
            Step::Parameters => {
                let params = self.wire.text(PARAMS_LIMIT_BYTES, Params::read);
                if params.is_err() {
                    self.say_refusal(Refusal::PARAMETERS, 0);
                }
                Ok(params?.map(|params| {
                    self.enter(Step::Asked, now_ns);
                    self.missing = params.flows();
                    self.missing.reverse();
                    self.run_ns = params
                        .duration_ns
                        .map(|ns| ns.saturating_add(params.omit_ns));
                    ServerEvent::Asked(Box::new(params))
                }))
            }
            // The first byte is that of a length, and no text is so long that this byte is not 0.
            Step::TheirResults if matches!(self.wire.incoming(), [0, ..] | []) => {
                let results = self.wire.text(CLIENT_RESULTS_LIMIT_BYTES, Results::read);
                if results.is_err() {
                    self.say_refusal(Refusal::RESULTS, 0);
                }
                Ok(results?.map(|results| {
                    self.enter(Step::OurResults, now_ns);
                    ServerEvent::Results(Box::new(results))
                }))
            }
            _ => {
                let Some(byte) = self.wire.byte() else {
                    return Ok(None);
                };
                self.hear(byte, now_ns).map(Some)
            }
        }
    }

    fn hear(&mut self, byte: u8, now_ns: u64) -> Result<ServerEvent, Iperf3Error> {
        match (State::from_byte(byte), self.step) {
            (Some(State::ClientTerminate), _) => {
                self.enter(Step::Over, now_ns);
                Ok(ServerEvent::Terminated)
            }
            (Some(State::TestEnd), Step::Running) => {
                self.wire.send(&[State::ExchangeResults.to_byte()]);
                self.enter(Step::TheirResults, now_ns);
                Ok(ServerEvent::Ended)
            }
            (Some(State::Done), Step::Farewell) => {
                self.enter(Step::Over, now_ns);
                Ok(ServerEvent::Done)
            }
            _ => {
                self.say_refusal(Refusal::MESSAGE, 0);
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
    /// [`Iperf3Error::OutOfTurn`].
    pub fn accept(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        self.turn("accepting", Step::Asked)?;
        self.wire.send(&[State::CreateStreams.to_byte()]);
        self.enter(Step::Flows, now_ns);
        Ok(())
    }

    /// Assigns a new flow of this test; `None` if none is missing or awaited: send
    /// [`BUSY`](super::BUSY) on its connection and close it.
    pub fn flow_arrived(&mut self) -> Option<Flow> {
        (self.step == Step::Flows)
            .then(|| self.missing.pop())
            .flatten()
    }

    /// Returns whether flows are missing.
    #[must_use]
    pub fn waits_for_flows(&self) -> bool {
        self.step == Step::Flows && !self.missing.is_empty()
    }

    /// Starts the run after all flows have arrived.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfTurn`].
    pub fn start(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        self.turn("starting", Step::Flows)?;
        if !self.missing.is_empty() {
            return Err(Iperf3Error::OutOfTurn {
                step: "starting",
                phase: Phase::Flows,
            });
        }
        self.wire
            .send(&[State::TestStart.to_byte(), State::TestRunning.to_byte()]);
        self.enter(Step::Running, now_ns);
        Ok(())
    }

    /// Sends the local results, after those of the client.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfTurn`]; [`Iperf3Error::Outsized`] if the report is too long, which
    /// changes nothing.
    pub fn results(&mut self, ours: &Results, now_ns: u64) -> Result<(), Iperf3Error> {
        self.turn("sending results", Step::OurResults)?;
        self.wire.send_text(&ours.write()?, RESULTS_LIMIT_BYTES)?;
        self.wire.send(&[State::DisplayResults.to_byte()]);
        self.enter(Step::Farewell, now_ns);
        Ok(())
    }

    /// Rejects or aborts the test with an error code that the client prints. Close the connection
    /// after the bytes were written.
    pub fn refuse(&mut self, refusal: Refusal, errno: i32) {
        if !matches!(self.step, Step::Over | Step::Failed) {
            self.say_refusal(refusal, errno);
            self.step = Step::Over;
        }
    }

    /// Terminates the test early: the client prints its figures so far. Close the connection after
    /// the bytes were written.
    pub fn terminate(&mut self) {
        if !matches!(self.step, Step::Over | Step::Failed) {
            self.wire.send(&[State::ServerTerminate.to_byte()]);
            self.step = Step::Over;
        }
    }

    /// Records that the client closed the connection, or that it broke.
    ///
    /// # Errors
    /// [`Iperf3Error::Vanished`] unless the exchange was complete. A client that closes instead of
    /// confirming the end has its results.
    pub fn closed(&mut self) -> Result<(), Iperf3Error> {
        match self.step {
            Step::Over | Step::Farewell => {
                self.step = Step::Over;
                Ok(())
            }
            Step::Failed => Err(Iperf3Error::Failed),
            step => Err(self.fail(Iperf3Error::Vanished {
                phase: step.phase(),
            })),
        }
    }

    /// Returns the deadline of the client's next step; `None` if none is awaited. A run without an
    /// agreed time has no deadline here: the driver detects when its flows stall.
    fn deadline_ns(&self) -> Option<u64> {
        let patience = match self.step {
            // The client waits meanwhile for another test of its address.
            Step::Asked => PATIENCE_NS,
            Step::Parameters | Step::Flows | Step::TheirResults | Step::Farewell => PATIENCE_NS,
            Step::Running => self.run_ns?.saturating_add(PATIENCE_NS),
            Step::OurResults | Step::Over | Step::Failed => return None,
        };
        Some(self.since_ns.saturating_add(patience))
    }

    /// Checks the deadline of the client's next step, and that the test was accepted in time.
    ///
    /// # Errors
    /// [`Iperf3Error::Overdue`], [`Iperf3Error::Busy`]; the message for the client is queued.
    pub fn check(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        match self.deadline_ns() {
            Some(deadline) if now_ns >= deadline => {
                let phase = self.step.phase();
                match self.step {
                    Step::Asked => self.wire.send(&BUSY),
                    Step::Flows => self.say_refusal(Refusal::ACCEPT_FLOW, 0),
                    Step::Running => self.wire.send(&[State::ServerTerminate.to_byte()]),
                    _ => {}
                }
                Err(self.fail(match phase {
                    Phase::Agreement => Iperf3Error::Busy,
                    phase => Iperf3Error::Overdue { phase },
                }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.wire.outgoing()
    }

    /// Removes bytes of [`Server::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.wire.sent(bytes);
    }

    fn turn(&self, step: &'static str, wanted: Step) -> Result<(), Iperf3Error> {
        if self.step == wanted {
            return Ok(());
        }
        Err(Iperf3Error::OutOfTurn {
            step,
            phase: self.step.phase(),
        })
    }

    fn enter(&mut self, step: Step, now_ns: u64) {
        self.step = step;
        self.since_ns = now_ns;
    }

    fn say_refusal(&mut self, refusal: Refusal, errno: i32) {
        self.wire.send(&[State::ServerError.to_byte()]);
        self.wire.send(&refusal.0.to_be_bytes());
        self.wire.send(&errno.to_be_bytes());
    }

    fn fail(&mut self, error: Iperf3Error) -> Iperf3Error {
        self.step = Step::Failed;
        self.wire.fail();
        error
    }
}
