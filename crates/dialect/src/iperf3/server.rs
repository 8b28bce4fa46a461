//! The end that was connected to.

use super::cookie::{COOKIE_BYTES, Cookie};
use super::error::{Iperf3Error, Phase};
use super::flow::Flow;
use super::inbox::Wire;
use super::params::Params;
use super::refusal::{BUSY, Refusal};
use super::results::Results;
use super::state::State;
use super::{CLIENT_RESULTS_LIMIT_BYTES, PARAMS_LIMIT_BYTES, RESULTS_LIMIT_BYTES};

/// What each step of a client may take, in nanoseconds: a stock client does all of them at once.
const PATIENCE_NS: u64 = 10_000_000_000;

/// What a client says.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// This is wanted: [`Server::accept`] or [`Server::refuse`] it.
    Asked(Box<Params>),
    /// Its time, bytes or blocks are used up: flows from here end now, and what is still on its way
    /// to here may be read. The client has been asked for its results.
    Ended,
    /// What it counted, before it knows what was counted here: answer with [`Server::results`].
    Results(Box<Results>),
    /// It stops before the end, and will not take results.
    Terminated,
    /// It has everything; close the connection.
    Done,
}

/// Control connection of one test, at the server. See the module's head for the order of things.
#[derive(Debug)]
pub struct Server {
    wire: Wire,
    step: Step,
    since_ns: u64,
    /// How long the run may take at most; `None` where no time was agreed.
    run_ns: Option<u64>,
    /// Flows that have not come yet, the next one last.
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
    /// A connection whose first [`COOKIE_BYTES`] were a [`Cookie`] that no running test has. What
    /// came after them goes to [`Server::receive`]. Times are nanoseconds of any clock that never
    /// goes back.
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

    /// Reads the first bytes of a connection and makes the server for it; `None` when they are no
    /// cookie.
    #[must_use]
    pub fn open(first: &[u8; COOKIE_BYTES], now_ns: u64) -> Option<(Cookie, Self)> {
        Cookie::read(first).map(|cookie| (cookie, Self::new(now_ns)))
    }

    /// Takes what arrived on the control connection, at most
    /// [`READ_AHEAD_BYTES`](super::READ_AHEAD_BYTES) at a time.
    ///
    /// # Errors
    /// [`Iperf3Error::ReadAhead`] when events were not taken out, [`Iperf3Error::Failed`] after any
    /// error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Iperf3Error> {
        let limit = match self.step {
            Step::Failed => return Err(Iperf3Error::Failed),
            // Nothing is of interest any more; nothing is kept.
            Step::Over => return Ok(()),
            Step::Parameters => PARAMS_LIMIT_BYTES,
            Step::TheirResults => CLIENT_RESULTS_LIMIT_BYTES,
            _ => 0,
        };
        self.wire
            .push(bytes, limit)
            .map_err(|error| self.fail(error))
    }

    /// What the client said next; `None` until more has arrived.
    ///
    /// # Errors
    /// Whatever it did wrong; nothing can be read after that. A refusal is queued where a stock
    /// client understands one.
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
            // Its first byte is a length's, and no text is so long that this byte is not 0.
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

    /// Agrees: the client may open its flows. For UDP the socket must be open before.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfTurn`].
    pub fn accept(&mut self, now_ns: u64) -> Result<(), Iperf3Error> {
        self.turn("accepting", Step::Asked)?;
        self.wire.send(&[State::CreateStreams.to_byte()]);
        self.enter(Step::Flows, now_ns);
        Ok(())
    }

    /// A flow of this test has come: which one it is. `None` when all are there already, or none is
    /// waited for; such a connection gets [`BUSY`](super::BUSY) and is closed.
    pub fn flow_arrived(&mut self) -> Option<Flow> {
        (self.step == Step::Flows)
            .then(|| self.missing.pop())
            .flatten()
    }

    /// Whether flows are still to come.
    #[must_use]
    pub fn waits_for_flows(&self) -> bool {
        self.step == Step::Flows && !self.missing.is_empty()
    }

    /// Starts the run, when all flows are there.
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

    /// Says what was counted here, after the client's results have come.
    ///
    /// # Errors
    /// [`Iperf3Error::OutOfTurn`]; [`Iperf3Error::Outsized`] for a report that is too long, which
    /// leaves everything as it was.
    pub fn results(&mut self, ours: &Results, now_ns: u64) -> Result<(), Iperf3Error> {
        self.turn("sending results", Step::OurResults)?;
        self.wire.send_text(&ours.write()?, RESULTS_LIMIT_BYTES)?;
        self.wire.send(&[State::DisplayResults.to_byte()]);
        self.enter(Step::Farewell, now_ns);
        Ok(())
    }

    /// Refuses, or gives up, with a reason that the client prints. Close after it was written.
    pub fn refuse(&mut self, refusal: Refusal, errno: i32) {
        if !matches!(self.step, Step::Over | Step::Failed) {
            self.say_refusal(refusal, errno);
            self.step = Step::Over;
        }
    }

    /// Ends the test before its time: the client prints what it has. Close after it was written.
    pub fn terminate(&mut self) {
        if !matches!(self.step, Step::Over | Step::Failed) {
            self.wire.send(&[State::ServerTerminate.to_byte()]);
            self.step = Step::Over;
        }
    }

    /// The client closed the connection, or it broke.
    ///
    /// # Errors
    /// [`Iperf3Error::Vanished`] unless all was said. A client that goes instead of saying goodbye has
    /// all it wanted.
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

    /// When the client is late, or has waited too long; `None` when there is nothing to wait for. A run
    /// without an agreed time has no end here: whoever sees the flows knows whether it stands still.
    fn deadline_ns(&self) -> Option<u64> {
        let patience = match self.step {
            // The client waits meanwhile for a turn that another test of its address has.
            Step::Asked => PATIENCE_NS,
            Step::Parameters | Step::Flows | Step::TheirResults | Step::Farewell => PATIENCE_NS,
            Step::Running => self.run_ns?.saturating_add(PATIENCE_NS),
            Step::OurResults | Step::Over | Step::Failed => return None,
        };
        Some(self.since_ns.saturating_add(patience))
    }

    /// Whether the client is still in time, and its test was agreed to in time.
    ///
    /// # Errors
    /// [`Iperf3Error::Overdue`], [`Iperf3Error::Busy`]; what the client is to be told is queued.
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

    /// What is to be written to the client next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.wire.outgoing()
    }

    /// So many bytes of [`Server::outgoing`] were written.
    ///
    /// # Panics
    /// When there were fewer.
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
