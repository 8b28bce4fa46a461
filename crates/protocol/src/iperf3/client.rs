//! Client side of a control connection.

use super::control_buffers::ControlBuffers;
use super::cookie::Cookie;
use super::error::{Iperf3Error, Iperf3Phase};
use super::error_code::Iperf3ErrorCode;
use super::params::Iperf3Params;
use super::results::Iperf3Results;
use super::state::Iperf3State;
use super::{PARAMS_LIMIT_BYTES, RESULTS_LIMIT_BYTES};

/// Timeout of each step of a server, in nanoseconds. Upstream servers reply at once, but one that
/// ends a run closes its flows first.
const STEP_TIMEOUT_NS: u64 = 10_000_000_000;

/// Event from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Iperf3ClientEvent {
    /// Open the flows, in the order of [`Iperf3Params::flows`].
    OpenFlows,
    /// The run has started: payload flows in all directions.
    Started,
    /// The flows from the server have ended: send the local results with
    /// [`Iperf3Client::send_results`].
    SendResults,
    /// Results of the server.
    Results(Box<Iperf3Results>),
    /// The exchange is complete; close the connection when everything is written.
    Finished,
    /// The server terminated the test and sends no results.
    Terminated,
}

/// Control connection of one test, client side. The module documentation has the order of messages.
#[derive(Debug)]
pub struct Iperf3Client {
    buffers: ControlBuffers,
    params: Iperf3Params,
    step: Iperf3ClientStep,
    step_start_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Iperf3ClientStep {
    CookieSent,
    ParamsSent,
    Flows,
    Starting,
    Running,
    Ending,
    LocalResults,
    RemoteResults,
    Display,
    Over,
    Failed,
}

impl Iperf3ClientStep {
    fn phase(self) -> Iperf3Phase {
        match self {
            Self::CookieSent => Iperf3Phase::CookieExchange,
            Self::ParamsSent => Iperf3Phase::Acceptance,
            Self::Flows | Self::Starting => Iperf3Phase::Flows,
            Self::Running => Iperf3Phase::Running,
            Self::Ending | Self::LocalResults | Self::RemoteResults | Self::Display => {
                Iperf3Phase::Results
            }
            Self::Over | Self::Failed => Iperf3Phase::Over,
        }
    }
}

impl Iperf3Client {
    /// Creates the state for a new connection. Times are nanoseconds of any monotonic clock.
    #[must_use]
    pub fn new(cookie: Cookie, params: Iperf3Params, now_ns: u64) -> Self {
        let mut buffers = ControlBuffers::default();
        buffers.send(&cookie.to_wire());
        Self {
            buffers,
            params,
            step: Iperf3ClientStep::CookieSent,
            step_start_ns: now_ns,
        }
    }

    /// Returns the parameters that this client requests.
    #[must_use]
    pub fn params(&self) -> &Iperf3Params {
        &self.params
    }

    /// Appends bytes received on the control connection, at most
    /// [`READ_AHEAD_BYTES`](super::READ_AHEAD_BYTES) at a time.
    ///
    /// # Errors
    /// [`Iperf3Error::ReadAhead`] if events were not taken out, [`Iperf3Error::AlreadyFailed`]
    /// after any error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Iperf3Error> {
        let limit = match self.step {
            Iperf3ClientStep::Failed => return Err(Iperf3Error::AlreadyFailed),
            Iperf3ClientStep::Over => return Ok(()),
            Iperf3ClientStep::RemoteResults => RESULTS_LIMIT_BYTES,
            _ => 0,
        };
        self.buffers
            .push_incoming(bytes, limit)
            .map_err(|error| self.fail(error))
    }

    /// Returns the next event; `None` until more has arrived.
    ///
    /// # Errors
    /// Any protocol error of the server, and its rejections; nothing can be read after it.
    pub fn next_event(&mut self, now_ns: u64) -> Result<Option<Iperf3ClientEvent>, Iperf3Error> {
        self.read(now_ns).map_err(|error| self.fail(error))
    }

    fn read(&mut self, now_ns: u64) -> Result<Option<Iperf3ClientEvent>, Iperf3Error> {
        loop {
            match self.step {
                Iperf3ClientStep::Failed => return Err(Iperf3Error::AlreadyFailed),
                Iperf3ClientStep::Over => return Ok(None),
                // The first byte is that of a length, and no text is so long that this byte is not
                // 0.
                Iperf3ClientStep::RemoteResults
                    if matches!(self.buffers.incoming(), [0, ..] | []) =>
                {
                    let results = self
                        .buffers
                        .take_text(RESULTS_LIMIT_BYTES, Iperf3Results::read)?;
                    return Ok(results.map(|results| {
                        self.enter_step(Iperf3ClientStep::Display, now_ns);
                        Iperf3ClientEvent::Results(Box::new(results))
                    }));
                }
                _ => {}
            }
            let Some(&byte) = self.buffers.incoming().first() else {
                return Ok(None);
            };
            let state = Iperf3State::from_byte(byte);
            if state == Some(Iperf3State::ServerError) {
                return self.read_server_error();
            }
            self.buffers.take_byte();
            if let Some(event) = self.handle_state(byte, state, now_ns)? {
                return Ok(Some(event));
            }
        }
    }

    /// Reads the two numbers of a server error; `None` until they have arrived.
    fn read_server_error(&mut self) -> Result<Option<Iperf3ClientEvent>, Iperf3Error> {
        let Some([_, code @ .., a, b, c, d]) = self.buffers.take_chunk::<9>() else {
            return Ok(None);
        };
        let code = i32::from_be_bytes(code);
        Err(Iperf3Error::Rejected {
            code: Iperf3ErrorCode(code),
            errno: i32::from_be_bytes([a, b, c, d]),
        })
    }

    fn handle_state(
        &mut self,
        byte: u8,
        state: Option<Iperf3State>,
        now_ns: u64,
    ) -> Result<Option<Iperf3ClientEvent>, Iperf3Error> {
        let (next, event) = match (state, self.step) {
            (Some(Iperf3State::AccessDenied), _) => return Err(Iperf3Error::Busy),
            (Some(Iperf3State::ServerTerminate), _) => {
                (Iperf3ClientStep::Over, Some(Iperf3ClientEvent::Terminated))
            }
            (Some(Iperf3State::ParamExchange), Iperf3ClientStep::CookieSent) => {
                self.buffers
                    .send_text(&self.params.write(), PARAMS_LIMIT_BYTES)?;
                (Iperf3ClientStep::ParamsSent, None)
            }
            (Some(Iperf3State::CreateStreams), Iperf3ClientStep::ParamsSent) => {
                (Iperf3ClientStep::Flows, Some(Iperf3ClientEvent::OpenFlows))
            }
            (Some(Iperf3State::TestStart), Iperf3ClientStep::Flows) => {
                (Iperf3ClientStep::Starting, None)
            }
            // The first of the two bytes only announces that flows are being set up.
            (
                Some(Iperf3State::TestRunning),
                Iperf3ClientStep::Flows | Iperf3ClientStep::Starting,
            ) => (Iperf3ClientStep::Running, Some(Iperf3ClientEvent::Started)),
            (Some(Iperf3State::ExchangeResults), Iperf3ClientStep::Ending) => (
                Iperf3ClientStep::LocalResults,
                Some(Iperf3ClientEvent::SendResults),
            ),
            (Some(Iperf3State::DisplayResults), Iperf3ClientStep::Display) => {
                self.buffers.send(&[Iperf3State::Done.to_byte()]);
                (Iperf3ClientStep::Over, Some(Iperf3ClientEvent::Finished))
            }
            _ => {
                return Err(Iperf3Error::Unexpected {
                    byte,
                    phase: self.step.phase(),
                });
            }
        };
        self.enter_step(next, now_ns);
        Ok(event)
    }

    /// Ends the run: its time, bytes or blocks are used up. Flows to the server have ended; those
    /// from it continue until [`Iperf3ClientEvent::SendResults`] and must be read.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfOrder`].
    pub fn finish(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        self.expect_step("ending", Iperf3ClientStep::Running)?;
        self.buffers.send(&[Iperf3State::TestEnd.to_byte()]);
        self.enter_step(Iperf3ClientStep::Ending, now_ns);
        Ok(())
    }

    /// Sends the local results. An upstream server requires the numbers of all its flows.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfOrder`].
    pub fn send_results(&mut self, ours: &Iperf3Results, now_ns: u64) -> Result<(), Iperf3Error> {
        self.expect_step("sending results", Iperf3ClientStep::LocalResults)?;
        self.buffers
            .send_text(&ours.write()?, RESULTS_LIMIT_BYTES)?;
        self.enter_step(Iperf3ClientStep::RemoteResults, now_ns);
        Ok(())
    }

    /// Terminates the test early, without results. Close the connection after the bytes were
    /// written.
    pub fn terminate(&mut self) {
        if !matches!(self.step, Iperf3ClientStep::Over | Iperf3ClientStep::Failed) {
            self.buffers.send(&[Iperf3State::ClientTerminate.to_byte()]);
            self.step = Iperf3ClientStep::Over;
        }
    }

    /// Records that the server closed the connection, or that it broke.
    ///
    /// # Errors
    /// [`Iperf3Error::PeerClosed`] unless the exchange was complete.
    pub fn mark_closed(&mut self) -> Result<(), Iperf3Error> {
        match self.step {
            Iperf3ClientStep::Over => Ok(()),
            Iperf3ClientStep::Failed => Err(Iperf3Error::AlreadyFailed),
            step => Err(self.fail(Iperf3Error::PeerClosed {
                phase: step.phase(),
            })),
        }
    }

    /// Returns the deadline of the server's next step; `None` if none is awaited.
    fn deadline_ns(&self) -> Option<u64> {
        match self.step {
            Iperf3ClientStep::Running
            | Iperf3ClientStep::LocalResults
            | Iperf3ClientStep::Over
            | Iperf3ClientStep::Failed => None,
            _ => Some(self.step_start_ns.saturating_add(STEP_TIMEOUT_NS)),
        }
    }

    /// Checks the deadline of the server's next step.
    ///
    /// # Errors
    /// [`Iperf3Error::TimedOut`]; the termination for the server is queued.
    pub fn check_deadline(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        match self.deadline_ns() {
            Some(deadline) if now_ns >= deadline => {
                let phase = self.step.phase();
                self.terminate();
                Err(self.fail(Iperf3Error::TimedOut { phase }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.buffers.outgoing()
    }

    /// Removes bytes of [`Iperf3Client::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.buffers.mark_sent(bytes);
    }

    fn expect_step(
        &self,
        step: &'static str,
        expected: Iperf3ClientStep,
    ) -> Result<(), Iperf3Error> {
        if self.step == expected {
            return Ok(());
        }
        Err(Iperf3Error::OutOfOrder {
            step,
            phase: self.step.phase(),
        })
    }

    fn enter_step(&mut self, step: Iperf3ClientStep, now_ns: u64) {
        self.step = step;
        self.step_start_ns = now_ns;
    }

    fn fail(&mut self, error: Iperf3Error) -> Iperf3Error {
        self.step = Iperf3ClientStep::Failed;
        self.buffers.discard_incoming();
        error
    }
}
