//! Client side of a control connection.

use super::control_buffers::Wire;
use super::cookie::Cookie;
use super::error::{Iperf3Error, Phase};
use super::error_code::Refusal;
use super::params::Params;
use super::results::Results;
use super::state::State;
use super::{PARAMS_LIMIT_BYTES, RESULTS_LIMIT_BYTES};

/// Timeout of each step of a server, in nanoseconds. Upstream servers reply at once, but one that
/// ends a run closes its flows first.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Event from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent {
    /// Open the flows, in the order of [`Params::flows`].
    OpenFlows,
    /// The run has started: payload flows in all directions.
    Started,
    /// The flows from the server have ended: send the local results with [`Client::results`].
    WantsResults,
    /// Results of the server.
    Results(Box<Results>),
    /// The exchange is complete; close the connection when everything is written.
    Finished,
    /// The server terminated the test and sends no results.
    Terminated,
}

/// Control connection of one test, client side. The module documentation has the order of messages.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    params: Params,
    step: Step,
    since_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Greeting,
    Agreement,
    Flows,
    Starting,
    Running,
    Ending,
    OurResults,
    TheirResults,
    Display,
    Over,
    Failed,
}

impl Step {
    fn phase(self) -> Phase {
        match self {
            Self::Greeting => Phase::Greeting,
            Self::Agreement => Phase::Agreement,
            Self::Flows | Self::Starting => Phase::Flows,
            Self::Running => Phase::Running,
            Self::Ending | Self::OurResults | Self::TheirResults | Self::Display => Phase::Results,
            Self::Over | Self::Failed => Phase::Over,
        }
    }
}

impl Client {
    /// Creates the state for a new connection. Times are nanoseconds of any monotonic clock.
    #[must_use]
    pub fn new(cookie: Cookie, params: Params, now_ns: u64) -> Self {
        let mut wire = Wire::default();
        wire.send(&cookie.to_wire());
        Self {
            wire,
            params,
            step: Step::Greeting,
            since_ns: now_ns,
        }
    }

    /// Returns the parameters that this client requests.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
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
            Step::Over => return Ok(()),
            Step::TheirResults => RESULTS_LIMIT_BYTES,
            _ => 0,
        };
        self.wire
            .push(bytes, limit)
            .map_err(|error| self.fail(error))
    }

    /// Returns the next event; `None` until more has arrived.
    ///
    /// # Errors
    /// Any protocol error of the server, and its rejections; nothing can be read after it.
    pub fn next_event(&mut self, now_ns: u64) -> Result<Option<ClientEvent>, Iperf3Error> {
        self.read(now_ns).map_err(|error| self.fail(error))
    }

    fn read(&mut self, now_ns: u64) -> Result<Option<ClientEvent>, Iperf3Error> {
        loop {
            match self.step {
                Step::Failed => return Err(Iperf3Error::Failed),
                Step::Over => return Ok(None),
                // The first byte is that of a length, and no text is so long that this byte is not
                // 0.
                Step::TheirResults if matches!(self.wire.incoming(), [0, ..] | []) => {
                    let results = self.wire.text(RESULTS_LIMIT_BYTES, Results::read)?;
                    return Ok(results.map(|results| {
                        self.enter(Step::Display, now_ns);
                        ClientEvent::Results(Box::new(results))
                    }));
                }
                _ => {}
            }
            let Some(&byte) = self.wire.incoming().first() else {
                return Ok(None);
            };
            let state = State::from_byte(byte);
            if state == Some(State::ServerError) {
                return self.refused();
            }
            self.wire.byte();
            if let Some(event) = self.hear(byte, state, now_ns)? {
                return Ok(Some(event));
            }
        }
    }

    /// Reads the two numbers of a server error; `None` until they have arrived.
    fn refused(&mut self) -> Result<Option<ClientEvent>, Iperf3Error> {
        let Some([_, code @ .., a, b, c, d]) = self.wire.chunk::<9>() else {
            return Ok(None);
        };
        let code = i32::from_be_bytes(code);
        Err(Iperf3Error::Refused {
            refusal: Refusal(code),
            errno: i32::from_be_bytes([a, b, c, d]),
        })
    }

    fn hear(
        &mut self,
        byte: u8,
        state: Option<State>,
        now_ns: u64,
    ) -> Result<Option<ClientEvent>, Iperf3Error> {
        let (next, event) = match (state, self.step) {
            (Some(State::AccessDenied), _) => return Err(Iperf3Error::Busy),
            (Some(State::ServerTerminate), _) => (Step::Over, Some(ClientEvent::Terminated)),
            (Some(State::ParamExchange), Step::Greeting) => {
                self.wire
                    .send_text(&self.params.write(), PARAMS_LIMIT_BYTES)?;
                (Step::Agreement, None)
            }
            (Some(State::CreateStreams), Step::Agreement) => {
                (Step::Flows, Some(ClientEvent::OpenFlows))
            }
            (Some(State::TestStart), Step::Flows) => (Step::Starting, None),
            // The first of the two bytes only announces that flows are being set up.
            (Some(State::TestRunning), Step::Flows | Step::Starting) => {
                (Step::Running, Some(ClientEvent::Started))
            }
            (Some(State::ExchangeResults), Step::Ending) => {
                (Step::OurResults, Some(ClientEvent::WantsResults))
            }
            (Some(State::DisplayResults), Step::Display) => {
                self.wire.send(&[State::Done.to_byte()]);
                (Step::Over, Some(ClientEvent::Finished))
            }
            _ => {
                return Err(Iperf3Error::Unexpected {
                    byte,
                    phase: self.step.phase(),
                });
            }
        };
        self.enter(next, now_ns);
        Ok(event)
    }

    /// Ends the run: its time, bytes or blocks are used up. Flows to the server have ended; those
    /// from it continue until [`ClientEvent::WantsResults`] and must be read.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfTurn`].
    pub fn finish(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        self.turn("ending", Step::Running)?;
        self.wire.send(&[State::TestEnd.to_byte()]);
        self.enter(Step::Ending, now_ns);
        Ok(())
    }

    /// Sends the local results. An upstream server requires the numbers of all its flows.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfTurn`].
    pub fn results(&mut self, ours: &Results, now_ns: u64) -> Result<(), Iperf3Error> {
        self.turn("sending results", Step::OurResults)?;
        self.wire.send_text(&ours.write()?, RESULTS_LIMIT_BYTES)?;
        self.enter(Step::TheirResults, now_ns);
        Ok(())
    }

    /// Terminates the test early, without results. Close the connection after the bytes were
    /// written.
    pub fn terminate(&mut self) {
        if !matches!(self.step, Step::Over | Step::Failed) {
            self.wire.send(&[State::ClientTerminate.to_byte()]);
            self.step = Step::Over;
        }
    }

    /// Records that the server closed the connection, or that it broke.
    ///
    /// # Errors
    /// [`Iperf3Error::Vanished`] unless the exchange was complete.
    pub fn closed(&mut self) -> Result<(), Iperf3Error> {
        match self.step {
            Step::Over => Ok(()),
            Step::Failed => Err(Iperf3Error::Failed),
            step => Err(self.fail(Iperf3Error::Vanished {
                phase: step.phase(),
            })),
        }
    }

    /// Returns the deadline of the server's next step; `None` if none is awaited.
    fn deadline_ns(&self) -> Option<u64> {
        match self.step {
            Step::Running | Step::OurResults | Step::Over | Step::Failed => None,
            _ => Some(self.since_ns.saturating_add(PATIENCE_NS)),
        }
    }

    /// Checks the deadline of the server's next step.
    ///
    /// # Errors
    /// [`Iperf3Error::Overdue`]; the termination for the server is queued.
    pub fn check(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        match self.deadline_ns() {
            Some(deadline) if now_ns >= deadline => {
                let phase = self.step.phase();
                self.terminate();
                Err(self.fail(Iperf3Error::Overdue { phase }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.wire.outgoing()
    }

    /// Removes bytes of [`Client::outgoing`] that were written.
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

    fn fail(&mut self, error: Iperf3Error) -> Iperf3Error {
        self.step = Step::Failed;
        self.wire.fail();
        error
    }
}
