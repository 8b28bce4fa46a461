//! Client side of a control connection.

use super::error::NuttcpError;
use super::line_reader::Lines;
use super::parameters::{Test, Version, Way};
use super::report::{Interval, Report, far_report, whole_buffers};
use super::{HELLO, VERSION};
use crate::byte_queue::Queue;
use crate::remote_report::FarReport;

/// Event from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server sent its HELO. Listen on the data ports if the server connects (not
    /// [`Test::client_connects`]), then call [`Client::ready`].
    Prepare(Test),
    /// The server accepted the test. Transfer the data: connect
    /// [`CONNECT_DELAY_NS`](super::CONNECT_DELAY_NS) from now, or wait for the server's connection.
    /// When everything was sent, shut down the sending side: over UDP that of the control
    /// connection, over TCP that of the data connections.
    Start(Test),
    /// Data that the server received in an interval, as it reports it.
    Interval(Interval),
    /// The server reads no more data: stop sending.
    Done,
    /// The server closed the connection: its report is complete.
    Ended,
}

/// Maximum number of stored interval events; more are dropped.
const EVENTS_LIMIT: usize = 4_096;

/// Client side of a control connection.
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
    /// KO has arrived; the reasons follow.
    Refused,
    Running,
    Ended,
    Failed,
}

impl Client {
    /// Requests a test: queues the HELO.
    ///
    /// # Errors
    /// [`NuttcpError::Impossible`] if nuttcp cannot run it.
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

    /// Reads received bytes.
    ///
    /// # Errors
    /// [`NuttcpError`]: close the connection.
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

    /// Records that the server closed the connection.
    ///
    /// # Errors
    /// [`NuttcpError::Vanished`] or [`NuttcpError::Refused`] if no test was accepted.
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

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Requests the test, after the listening data sockets were opened. Has no effect unless a
    /// server waits for the request.
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

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.waiting.bytes()
    }

    /// Removes bytes of [`Client::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.waiting.pop(bytes);
    }

    /// Returns the server's version, once it has arrived.
    #[must_use]
    pub fn server_version(&self) -> Option<Version> {
        self.server
    }

    /// Returns the server's report so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the server's figures: what it received from this client, or what it sent.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        far_report(&self.test, &self.report)
    }

    /// Returns the direction of the payload.
    #[must_use]
    pub fn way(&self) -> Way {
        self.test.way
    }
}
