//! Server side of a control connection.

use super::error::NuttcpError;
use super::line_reader::Lines;
use super::parameters::{Test, Version, Way};
use super::report::{Counts, Interval, interval_line, report_lines};
use super::{HELLO, VERSION};
use crate::byte_queue::Queue;
use crate::remote_report::FarReport;

/// Bytes that may wait for a client before interval lines are dropped.
const UNREAD_BYTES: usize = 64 << 10;

/// Event from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// The client requests this test. Listen on its ports if the client connects
    /// ([`Test::client_connects`]), then call [`Server::ready`] or [`Server::refuse`].
    Prepare(Test),
    /// OK is queued. Transfer the data, then call [`Server::finish`]. If this end connects, do so
    /// [`CONNECT_DELAY_NS`](super::CONNECT_DELAY_NS) from now.
    Run(Test),
    /// The client closed its side: over UDP everything was sent, over TCP it has given up.
    ClientClosed,
    /// The exchange is complete: send the queued bytes and close the connection.
    Close,
}

/// Server side of a control connection.
///
/// ```
/// use linerate_dialect::nuttcp::{Client, ClientEvent, Counts, Server, ServerEvent, Test, Way};
/// use linerate_dialect::sniff::Carrier;
///
/// # fn main() -> Result<(), linerate_dialect::nuttcp::NuttcpError> {
/// let test = Test::new(Way::ToServer, Carrier::Stream, 5001);
/// let mut client = Client::new(test)?;
/// let mut server = Server::default();
/// let mut counts = Counts { bytes: 1 << 20, duration_ns: 1_000_000_000, ..Counts::default() };
/// loop {
///     server.receive(client.outgoing())?;
///     client.sent(client.outgoing().len());
///     match server.poll() {
///         Some(ServerEvent::Prepare(_)) => server.ready(),
///         Some(ServerEvent::Run(_)) => server.finish(&counts),
///         Some(ServerEvent::Close) => break,
///         _ => {}
///     }
///     client.receive(server.outgoing())?;
///     server.sent(server.outgoing().len());
///     if let Some(ClientEvent::Prepare(_)) = client.poll() {
///         client.ready();
///     }
/// }
/// client.receive(server.outgoing())?;
/// client.closed()?;
/// assert_eq!(client.far_report().flows[0].figures.bytes, Some(1 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Server {
    place: Place,
    lines: Lines,
    waiting: Queue,
    events: Vec<ServerEvent>,
    version: Option<Version>,
    misread: Option<String>,
    client_closed: bool,
}

#[derive(Clone, Debug)]
enum Place {
    Hello,
    Parameters,
    Preparing(Test),
    Running(Test),
    Closing,
    Failed,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            place: Place::Hello,
            lines: Lines::default(),
            waiting: Queue::default(),
            events: Vec::new(),
            version: None,
            misread: None,
            client_closed: false,
        }
    }
}

impl Server {
    /// Reads received bytes. Data from the client after its parameters is ignored.
    ///
    /// # Errors
    /// [`NuttcpError`]: nothing more is queued for the client.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), NuttcpError> {
        let taken = self.take(bytes);
        if taken.is_err() {
            self.place = Place::Failed;
        }
        taken
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), NuttcpError> {
        loop {
            match self.place {
                Place::Failed => return Err(NuttcpError::Failed),
                // An upstream client sends nothing after its parameters.
                Place::Preparing(_) | Place::Running(_) | Place::Closing => return Ok(()),
                Place::Hello | Place::Parameters => {}
            }
            let Some(line) = self.lines.next(&mut bytes)? else {
                return Ok(());
            };
            if matches!(self.place, Place::Hello) {
                let version = line.strip_prefix(HELLO).and_then(|text| text.parse().ok());
                let Some(version) = version else {
                    return Err(NuttcpError::NotNuttcp { line });
                };
                self.version = Some(version);
                self.say(&format!("{HELLO}{VERSION}\n"));
                self.place = Place::Parameters;
            } else {
                match Test::read(&line) {
                    Ok(test) => {
                        self.events.push(ServerEvent::Prepare(test.clone()));
                        self.place = Place::Preparing(test);
                    }
                    Err(reason) => {
                        self.refuse(&reason);
                        self.misread = Some(one_line(&reason));
                    }
                }
            }
        }
    }

    /// Records that the client closed its side.
    ///
    /// # Errors
    /// [`NuttcpError::Vanished`] if no test was requested.
    pub fn closed(&mut self) -> Result<(), NuttcpError> {
        if self.client_closed {
            return Ok(());
        }
        self.client_closed = true;
        match self.place {
            Place::Hello | Place::Parameters => {
                self.place = Place::Failed;
                Err(NuttcpError::Vanished)
            }
            Place::Preparing(_) | Place::Running(_) => {
                self.events.push(ServerEvent::ClientClosed);
                Ok(())
            }
            Place::Closing | Place::Failed => Ok(()),
        }
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<ServerEvent> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// Accepts the test, after the data sockets were opened. Has no effect unless a test is
    /// requested.
    pub fn ready(&mut self) {
        if let Place::Preparing(test) = &self.place {
            let test = test.clone();
            self.say(&format!("OK v{VERSION}\n"));
            self.events.push(ServerEvent::Run(test.clone()));
            self.place = Place::Running(test);
        }
    }

    /// Rejects the test with a reason.
    pub fn refuse(&mut self, reason: &str) {
        let version = VERSION;
        self.say(&format!(
            "KO\nnuttcp: v{version}: {}\nKO\n",
            one_line(reason)
        ));
        self.close();
    }

    /// Reports an interval if this end receives. The line is dropped if too many bytes wait for the
    /// client.
    pub fn interval(&mut self, interval: &Interval) {
        if let Place::Running(test) = &self.place
            && self.waiting.len() < UNREAD_BYTES
            && test.interval_ns.is_some()
            && test.way == Way::ToServer
        {
            let line = interval_line(test, interval);
            self.say(&line);
        }
    }

    /// Ends the test with the counters of this end.
    pub fn finish(&mut self, counts: &Counts) {
        if let Place::Running(test) = &self.place {
            let mut text = String::new();
            if test.interval_ns.is_some() && test.way == Way::ToServer {
                text += "DONE\n";
            }
            text += &report_lines(test, counts);
            self.say(&text);
        }
        self.close();
    }

    /// Aborts the test with a reason; the client prints a report without figures.
    pub fn abort(&mut self, reason: &str) {
        if let Place::Running(test) = &self.place {
            let who = if test.way == Way::ToClient { 't' } else { 'r' };
            let done = test.interval_ns.is_some() && test.way == Way::ToServer;
            let text = format!(
                "{}nuttcp-{who}: v{VERSION}: Error: {}\n",
                if done { "DONE\n" } else { "" },
                one_line(reason)
            );
            self.say(&text);
        }
        self.close();
    }

    fn close(&mut self) {
        self.place = Place::Closing;
        self.events.push(ServerEvent::Close);
    }

    fn say(&mut self, text: &str) {
        self.waiting.push(text.as_bytes());
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.waiting.bytes()
    }

    /// Removes bytes of [`Server::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.waiting.pop(bytes);
    }

    /// Returns the client's version, once it has arrived.
    #[must_use]
    pub fn client_version(&self) -> Option<Version> {
        self.version
    }

    /// Returns the error in the client's parameters, if the test was rejected for it.
    #[must_use]
    pub fn misread(&self) -> Option<&str> {
        self.misread.as_deref()
    }

    /// Returns the empty report of a client: it never sends its counters.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        FarReport::default()
    }
}

/// Limits a reason to one line: further lines would be parsed as other messages.
fn one_line(reason: &str) -> String {
    let line = |c: char| if c.is_control() { ' ' } else { c };
    reason.chars().take(200).map(line).collect()
}
