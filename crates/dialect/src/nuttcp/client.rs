//! The client's end of a control connection.

use super::error::NuttcpError;
use super::line::Lines;
use super::report::{Interval, Report, far_report, whole_buffers};
use super::test::{Test, Version, Way};
use super::{HELLO, VERSION};
use crate::far::FarReport;
use crate::queue::Queue;

/// What the server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// It is a server. Listen on the ports of the data if the server connects
    /// (not [`Test::client_connects`]), then say [`Client::ready`].
    Prepare(Test),
    /// It agreed. Move the data: connect [`CONNECT_DELAY_NS`](super::CONNECT_DELAY_NS) from now, or
    /// wait for the server to. When everything was sent over UDP, close the writing half of the control
    /// connection; over TCP that of the data.
    Start(Test),
    /// What it received in an interval, as it says.
    Interval(Interval),
    /// It has everything that it will take: stop sending.
    Done,
    /// It closed: its report is complete.
    Ended,
}

/// Intervals that are kept for a caller that does not ask; more are dropped.
const EVENTS_LIMIT: usize = 4_096;

/// The client's end of a control connection.
#[derive(Clone, Debug)]
pub struct Client {
    test: Test,
    place: Place,
    lines: Lines,
    waiting: Queue,
    events: std::collections::VecDeque<ClientEvent>,
    server: Option<Version>,
    report: Report,
    reasons: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Hello,
    Preparing,
    Agreement,
    /// KO was said; its reasons follow.
    Refused,
    Running,
    Ended,
    Failed,
}

impl Client {
    /// Asks for this test: its HELO waits to be sent.
    ///
    /// # Errors
    /// [`NuttcpError::Impossible`] when nuttcp cannot do it.
    pub fn new(test: Test) -> Result<Self, NuttcpError> {
        if let Some(reason) = test.fault() {
            return Err(NuttcpError::Impossible { reason });
        }
        let mut client = Self {
            test,
            place: Place::Hello,
            lines: Lines::default(),
            waiting: Queue::default(),
            events: std::collections::VecDeque::new(),
            server: None,
            report: Report::default(),
            reasons: Vec::new(),
        };
        client.say(&format!("{HELLO}{VERSION}\n"));
        Ok(client)
    }

    /// Takes what arrived.
    ///
    /// # Errors
    /// [`NuttcpError`]: the connection is to be closed.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), NuttcpError> {
        let taken = self.take(bytes);
        if taken.is_err() {
            self.place = Place::Failed;
        }
        taken
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), NuttcpError> {
        loop {
            if self.place == Place::Failed {
                return Err(NuttcpError::Failed);
            }
            let Some(line) = self.lines.next(&mut bytes)? else {
                return Ok(());
            };
            self.line(line)?;
        }
    }

    fn line(&mut self, line: String) -> Result<(), NuttcpError> {
        match self.place {
            Place::Hello => {
                let version = line.strip_prefix(HELLO).and_then(|text| text.parse().ok());
                let Some(version) = version else {
                    return Err(NuttcpError::NotNuttcp { line });
                };
                if version < Version::new(5, 4, 1) {
                    return Err(NuttcpError::TooOld { version });
                }
                self.server = Some(version);
                self.place = Place::Preparing;
                self.event(ClientEvent::Prepare(self.test.clone()));
            }
            Place::Preparing => return Err(NuttcpError::NotNuttcp { line }),
            Place::Agreement if line.starts_with("OK") => {
                self.place = Place::Running;
                self.event(ClientEvent::Start(self.test.clone()));
            }
            Place::Agreement => {
                if line != "KO" {
                    self.reasons.push(line);
                }
                self.place = Place::Refused;
            }
            Place::Refused if line == "KO" => {
                return Err(NuttcpError::Refused {
                    reason: self.reasons.join("; "),
                });
            }
            Place::Refused if self.reasons.len() < 8 => self.reasons.push(line),
            Place::Running if line == "DONE" => self.event(ClientEvent::Done),
            Place::Running => {
                if let Some(mut interval) = self.report.take(&line) {
                    interval.bytes = whole_buffers(&self.test, interval.bytes);
                    self.event(ClientEvent::Interval(interval));
                }
            }
            Place::Refused | Place::Ended | Place::Failed => {}
        }
        Ok(())
    }

    /// The server closed the connection.
    ///
    /// # Errors
    /// When no test was agreed on: [`NuttcpError::Vanished`] or [`NuttcpError::Refused`].
    pub fn closed(&mut self) -> Result<(), NuttcpError> {
        let result = match self.place {
            Place::Running => {
                self.place = Place::Ended;
                self.event(ClientEvent::Ended);
                return Ok(());
            }
            Place::Ended => return Ok(()),
            Place::Failed => Err(NuttcpError::Failed),
            Place::Refused => Err(NuttcpError::Refused {
                reason: self.reasons.join("; "),
            }),
            Place::Hello | Place::Preparing | Place::Agreement => Err(NuttcpError::Vanished),
        };
        self.place = Place::Failed;
        result
    }

    fn event(&mut self, event: ClientEvent) {
        let optional = matches!(event, ClientEvent::Interval(_));
        if !optional || self.events.len() < EVENTS_LIMIT {
            self.events.push_back(event);
        }
    }

    /// What happened, one after the other.
    pub fn poll(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// The data's listening sockets stand: the test is asked for. Without a server that waits for
    /// it (because it failed meanwhile, say) nothing happens.
    pub fn ready(&mut self) {
        if let (Place::Preparing, Some(server)) = (self.place, self.server) {
            let line = self.test.line(server);
            self.say(&format!("{line}\n"));
            self.place = Place::Agreement;
        }
    }

    fn say(&mut self, text: &str) {
        self.waiting.push(text.as_bytes());
    }

    /// What is to be written next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.waiting.bytes()
    }

    /// So many bytes of [`Client::outgoing`] were written.
    ///
    /// # Panics
    /// When there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.waiting.pop(bytes);
    }

    /// The server's version, once it said it.
    #[must_use]
    pub fn server_version(&self) -> Option<Version> {
        self.server
    }

    /// The server's report, as far as it has come.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What the server said of the test: what it received of ours, or what it sent.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        far_report(&self.test, &self.report)
    }

    /// Which way payload goes.
    #[must_use]
    pub fn way(&self) -> Way {
        self.test.way
    }
}
