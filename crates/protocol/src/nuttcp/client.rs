//! Client side of a control connection.

use super::error::NuttcpError;
use super::line_reader::LineReader;
use super::parameters::{NuttcpDirection, NuttcpTest, NuttcpVersion};
use super::report::{NuttcpInterval, NuttcpReport, remote_report, round_to_buffers};
use super::{HELLO_PREFIX, VERSION};
use crate::byte_queue::ByteQueue;
use crate::remote_report::RemoteReport;

/// Event from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NuttcpClientEvent {
    /// The server sent its HELO. Listen on the data ports if the server connects (not
    /// [`NuttcpTest::client_connects`]), then call [`NuttcpClient::mark_ready`].
    Prepare(NuttcpTest),
    /// The server accepted the test. Transfer the data: connect
    /// [`CONNECT_DELAY_NS`](super::CONNECT_DELAY_NS) from now, or wait for the server's connection.
    /// When everything was sent, shut down the sending side: over UDP that of the control
    /// connection, over TCP that of the data connections.
    Start(NuttcpTest),
    /// Data that the server received in an interval, as it reports it.
    Interval(NuttcpInterval),
    /// The server reads no more data: stop sending.
    Done,
    /// The server closed the connection: its report is complete.
    ServerClosed,
}

/// Maximum number of stored interval events; more are dropped.
const EVENTS_LIMIT: usize = 4_096;

/// Client side of a control connection.
#[derive(Clone, Debug)]
pub struct NuttcpClient {
    test: NuttcpTest,
    state: NuttcpClientState,
    lines: LineReader,
    unsent: ByteQueue,
    events: std::collections::VecDeque<NuttcpClientEvent>,
    peer_version: Option<NuttcpVersion>,
    report: NuttcpReport,
    rejection_reasons: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NuttcpClientState {
    Hello,
    Preparing,
    Requested,
    /// KO has arrived; the reasons follow.
    Rejected,
    Running,
    Closed,
    Failed,
}

impl NuttcpClient {
    /// Requests a test: queues the HELO.
    ///
    /// # Errors
    /// [`NuttcpError::Unsupported`] if nuttcp cannot run it.
    pub fn new(test: NuttcpTest) -> Result<Self, NuttcpError> {
        if let Some(reason) = test.invalid_reason() {
            return Err(NuttcpError::Unsupported { reason });
        }
        let mut client = Self {
            test,
            state: NuttcpClientState::Hello,
            lines: LineReader::default(),
            unsent: ByteQueue::default(),
            events: std::collections::VecDeque::new(),
            peer_version: None,
            report: NuttcpReport::default(),
            rejection_reasons: Vec::new(),
        };
        client.queue_text(&format!("{HELLO_PREFIX}{VERSION}\n"));
        Ok(client)
    }

    /// Reads received bytes.
    ///
    /// # Errors
    /// [`NuttcpError`]: close the connection.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), NuttcpError> {
        let result = self.process(bytes);
        if result.is_err() {
            self.state = NuttcpClientState::Failed;
        }
        result
    }

    fn process(&mut self, mut bytes: &[u8]) -> Result<(), NuttcpError> {
        loop {
            if self.state == NuttcpClientState::Failed {
                return Err(NuttcpError::AlreadyFailed);
            }
            let Some(line) = self.lines.next_line(&mut bytes)? else {
                return Ok(());
            };
            self.process_line(line)?;
        }
    }

    fn process_line(&mut self, line: String) -> Result<(), NuttcpError> {
        match self.state {
            NuttcpClientState::Hello => {
                let version = line
                    .strip_prefix(HELLO_PREFIX)
                    .and_then(|text| text.parse().ok());
                let Some(version) = version else {
                    return Err(NuttcpError::NotNuttcp { line });
                };
                if version < NuttcpVersion::new(5, 4, 1) {
                    return Err(NuttcpError::TooOld { version });
                }
                self.peer_version = Some(version);
                self.state = NuttcpClientState::Preparing;
                self.push_event(NuttcpClientEvent::Prepare(self.test.clone()));
            }
            NuttcpClientState::Preparing => return Err(NuttcpError::NotNuttcp { line }),
            NuttcpClientState::Requested if line.starts_with("OK") => {
                self.state = NuttcpClientState::Running;
                self.push_event(NuttcpClientEvent::Start(self.test.clone()));
            }
            NuttcpClientState::Requested => {
                if line != "KO" {
                    self.rejection_reasons.push(line);
                }
                self.state = NuttcpClientState::Rejected;
            }
            NuttcpClientState::Rejected if line == "KO" => {
                return Err(NuttcpError::Rejected {
                    reason: self.rejection_reasons.join("; "),
                });
            }
            NuttcpClientState::Rejected if self.rejection_reasons.len() < 8 => {
                self.rejection_reasons.push(line)
            }
            NuttcpClientState::Running if line == "DONE" => {
                self.push_event(NuttcpClientEvent::Done)
            }
            NuttcpClientState::Running => {
                if let Some(mut interval) = self.report.add_line(&line) {
                    interval.bytes = round_to_buffers(&self.test, interval.bytes);
                    self.push_event(NuttcpClientEvent::Interval(interval));
                }
            }
            NuttcpClientState::Rejected | NuttcpClientState::Closed | NuttcpClientState::Failed => {
            }
        }
        Ok(())
    }

    /// Records that the server closed the connection.
    ///
    /// # Errors
    /// [`NuttcpError::PeerClosed`] or [`NuttcpError::Rejected`] if no test was accepted.
    pub fn mark_closed(&mut self) -> Result<(), NuttcpError> {
        let result = match self.state {
            NuttcpClientState::Running => {
                self.state = NuttcpClientState::Closed;
                self.push_event(NuttcpClientEvent::ServerClosed);
                return Ok(());
            }
            NuttcpClientState::Closed => return Ok(()),
            NuttcpClientState::Failed => Err(NuttcpError::AlreadyFailed),
            NuttcpClientState::Rejected => Err(NuttcpError::Rejected {
                reason: self.rejection_reasons.join("; "),
            }),
            NuttcpClientState::Hello
            | NuttcpClientState::Preparing
            | NuttcpClientState::Requested => Err(NuttcpError::PeerClosed),
        };
        self.state = NuttcpClientState::Failed;
        result
    }

    fn push_event(&mut self, event: NuttcpClientEvent) {
        let optional = matches!(event, NuttcpClientEvent::Interval(_));
        if !optional || self.events.len() < EVENTS_LIMIT {
            self.events.push_back(event);
        }
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<NuttcpClientEvent> {
        self.events.pop_front()
    }

    /// Requests the test, after the listening data sockets were opened. Has no effect unless a
    /// server waits for the request.
    pub fn mark_ready(&mut self) {
        if let (NuttcpClientState::Preparing, Some(peer_version)) = (self.state, self.peer_version)
        {
            let line = self.test.encode_line(peer_version);
            self.queue_text(&format!("{line}\n"));
            self.state = NuttcpClientState::Requested;
        }
    }

    fn queue_text(&mut self, text: &str) {
        self.unsent.push(text.as_bytes());
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.unsent.bytes()
    }

    /// Removes bytes of [`NuttcpClient::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.unsent.pop(bytes);
    }

    /// Returns the server's version, once it has arrived.
    #[must_use]
    pub fn server_version(&self) -> Option<NuttcpVersion> {
        self.peer_version
    }

    /// Returns the server's report so far.
    #[must_use]
    pub fn report(&self) -> &NuttcpReport {
        &self.report
    }

    /// Returns the server's figures: what it received from this client, or what it sent.
    #[must_use]
    pub fn remote_report(&self) -> RemoteReport {
        remote_report(&self.test, &self.report)
    }

    /// Returns the direction of the payload.
    #[must_use]
    pub fn direction(&self) -> NuttcpDirection {
        self.test.direction
    }
}
