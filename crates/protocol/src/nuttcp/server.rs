//! Server side of a control connection.

use super::error::NuttcpError;
use super::line_reader::LineReader;
use super::parameters::{NuttcpDirection, NuttcpTest, NuttcpVersion};
use super::report::{NuttcpCounts, NuttcpInterval, format_interval, format_report};
use super::{HELLO_PREFIX, VERSION};
use crate::byte_queue::ByteQueue;
use crate::remote_report::RemoteReport;

/// Bytes that may wait for a client before interval lines are dropped.
const BACKLOG_LIMIT_BYTES: usize = 64 << 10;

/// Event from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NuttcpServerEvent {
    /// The client requests this test. Listen on its ports if the client connects
    /// ([`NuttcpTest::client_connects`]), then call [`NuttcpServer::mark_ready`] or
    /// [`NuttcpServer::reject`].
    Prepare(NuttcpTest),
    /// OK is queued. Transfer the data, then call [`NuttcpServer::finish`]. If this end connects,
    /// do so [`CONNECT_DELAY_NS`](super::CONNECT_DELAY_NS) from now.
    Run(NuttcpTest),
    /// The client closed its side: over UDP everything was sent, over TCP it has given up.
    ClientClosed,
    /// The exchange is complete: send the queued bytes and close the connection.
    Close,
}

/// Server side of a control connection.
///
/// ```
/// use linerate_protocol::nuttcp::{NuttcpClient, NuttcpClientEvent, NuttcpCounts, NuttcpServer, NuttcpServerEvent, NuttcpTest, NuttcpDirection};
/// use linerate_protocol::sniff::TransportKind;
///
/// # fn main() -> Result<(), linerate_protocol::nuttcp::NuttcpError> {
/// let test = NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Stream, 5001);
/// let mut client = NuttcpClient::new(test)?;
/// let mut server = NuttcpServer::default();
/// let mut counts = NuttcpCounts { bytes: 1 << 20, duration_ns: 1_000_000_000, ..NuttcpCounts::default() };
/// loop {
///     server.receive(client.outgoing())?;
///     client.mark_sent(client.outgoing().len());
///     match server.poll() {
///         Some(NuttcpServerEvent::Prepare(_)) => server.mark_ready(),
///         Some(NuttcpServerEvent::Run(_)) => server.finish(&counts),
///         Some(NuttcpServerEvent::Close) => break,
///         _ => {}
///     }
///     client.receive(server.outgoing())?;
///     server.mark_sent(server.outgoing().len());
///     if let Some(NuttcpClientEvent::Prepare(_)) = client.poll() {
///         client.mark_ready();
///     }
/// }
/// client.receive(server.outgoing())?;
/// client.mark_closed()?;
/// assert_eq!(client.remote_report().flows[0].figures.bytes, Some(1 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NuttcpServer {
    state: NuttcpServerState,
    lines: LineReader,
    unsent: ByteQueue,
    events: Vec<NuttcpServerEvent>,
    peer_version: Option<NuttcpVersion>,
    invalid_parameters: Option<String>,
    client_closed: bool,
}

#[derive(Clone, Debug)]
enum NuttcpServerState {
    Hello,
    Parameters,
    Preparing(NuttcpTest),
    Running(NuttcpTest),
    Closing,
    Failed,
}

impl Default for NuttcpServer {
    fn default() -> Self {
        Self {
            state: NuttcpServerState::Hello,
            lines: LineReader::default(),
            unsent: ByteQueue::default(),
            events: Vec::new(),
            peer_version: None,
            invalid_parameters: None,
            client_closed: false,
        }
    }
}

impl NuttcpServer {
    /// Reads received bytes. Data from the client after its parameters is ignored.
    ///
    /// # Errors
    /// [`NuttcpError`]: nothing more is queued for the client.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), NuttcpError> {
        let result = self.process(bytes);
        if result.is_err() {
            self.state = NuttcpServerState::Failed;
        }
        result
    }

    fn process(&mut self, mut bytes: &[u8]) -> Result<(), NuttcpError> {
        loop {
            match self.state {
                NuttcpServerState::Failed => return Err(NuttcpError::AlreadyFailed),
                // An upstream client sends nothing after its parameters.
                NuttcpServerState::Preparing(_)
                | NuttcpServerState::Running(_)
                | NuttcpServerState::Closing => return Ok(()),
                NuttcpServerState::Hello | NuttcpServerState::Parameters => {}
            }
            let Some(line) = self.lines.next_line(&mut bytes)? else {
                return Ok(());
            };
            if matches!(self.state, NuttcpServerState::Hello) {
                let version = line
                    .strip_prefix(HELLO_PREFIX)
                    .and_then(|text| text.parse().ok());
                let Some(version) = version else {
                    return Err(NuttcpError::NotNuttcp { line });
                };
                self.peer_version = Some(version);
                self.queue_text(&format!("{HELLO_PREFIX}{VERSION}\n"));
                self.state = NuttcpServerState::Parameters;
            } else {
                match NuttcpTest::parse_line(&line) {
                    Ok(test) => {
                        self.events.push(NuttcpServerEvent::Prepare(test.clone()));
                        self.state = NuttcpServerState::Preparing(test);
                    }
                    Err(reason) => {
                        self.reject(&reason);
                        self.invalid_parameters = Some(one_line(&reason));
                    }
                }
            }
        }
    }

    /// Records that the client closed its side.
    ///
    /// # Errors
    /// [`NuttcpError::PeerClosed`] if no test was requested.
    pub fn mark_closed(&mut self) -> Result<(), NuttcpError> {
        if self.client_closed {
            return Ok(());
        }
        self.client_closed = true;
        match self.state {
            NuttcpServerState::Hello | NuttcpServerState::Parameters => {
                self.state = NuttcpServerState::Failed;
                Err(NuttcpError::PeerClosed)
            }
            NuttcpServerState::Preparing(_) | NuttcpServerState::Running(_) => {
                self.events.push(NuttcpServerEvent::ClientClosed);
                Ok(())
            }
            NuttcpServerState::Closing | NuttcpServerState::Failed => Ok(()),
        }
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<NuttcpServerEvent> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// Accepts the test, after the data sockets were opened. Has no effect unless a test is
    /// requested.
    pub fn mark_ready(&mut self) {
        if let NuttcpServerState::Preparing(test) = &self.state {
            let test = test.clone();
            self.queue_text(&format!("OK v{VERSION}\n"));
            self.events.push(NuttcpServerEvent::Run(test.clone()));
            self.state = NuttcpServerState::Running(test);
        }
    }

    /// Rejects the test with a reason.
    pub fn reject(&mut self, reason: &str) {
        let version = VERSION;
        self.queue_text(&format!(
            "KO\nnuttcp: v{version}: {}\nKO\n",
            one_line(reason)
        ));
        self.close();
    }

    /// Reports an interval if this end receives. The line is dropped if too many bytes wait for the
    /// client.
    pub fn report_interval(&mut self, interval: &NuttcpInterval) {
        if let NuttcpServerState::Running(test) = &self.state
            && self.unsent.len() < BACKLOG_LIMIT_BYTES
            && test.interval_ns.is_some()
            && test.direction == NuttcpDirection::ToServer
        {
            let line = format_interval(test, interval);
            self.queue_text(&line);
        }
    }

    /// Ends the test with the counters of this end.
    pub fn finish(&mut self, counts: &NuttcpCounts) {
        if let NuttcpServerState::Running(test) = &self.state {
            let mut text = String::new();
            if test.interval_ns.is_some() && test.direction == NuttcpDirection::ToServer {
                text += "DONE\n";
            }
            text += &format_report(test, counts);
            self.queue_text(&text);
        }
        self.close();
    }

    /// Aborts the test with a reason; the client prints a report without figures.
    pub fn abort(&mut self, reason: &str) {
        if let NuttcpServerState::Running(test) = &self.state {
            let role = if test.direction == NuttcpDirection::ToClient {
                't'
            } else {
                'r'
            };
            let done = test.interval_ns.is_some() && test.direction == NuttcpDirection::ToServer;
            let text = format!(
                "{}nuttcp-{role}: v{VERSION}: Error: {}\n",
                if done { "DONE\n" } else { "" },
                one_line(reason)
            );
            self.queue_text(&text);
        }
        self.close();
    }

    fn close(&mut self) {
        self.state = NuttcpServerState::Closing;
        self.events.push(NuttcpServerEvent::Close);
    }

    fn queue_text(&mut self, text: &str) {
        self.unsent.push(text.as_bytes());
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.unsent.bytes()
    }

    /// Removes bytes of [`NuttcpServer::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.unsent.pop(bytes);
    }

    /// Returns the client's version, once it has arrived.
    #[must_use]
    pub fn client_version(&self) -> Option<NuttcpVersion> {
        self.peer_version
    }

    /// Returns the error in the client's parameters, if the test was rejected for it.
    #[must_use]
    pub fn invalid_parameters(&self) -> Option<&str> {
        self.invalid_parameters.as_deref()
    }

    /// Returns the empty report of a client: it never sends its counters.
    #[must_use]
    pub fn remote_report(&self) -> RemoteReport {
        RemoteReport::default()
    }
}

/// Limits a reason to one line: further lines would be parsed as other messages.
fn one_line(reason: &str) -> String {
    let line = |c: char| if c.is_control() { ' ' } else { c };
    reason.chars().take(200).map(line).collect()
}
