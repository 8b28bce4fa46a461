//! Rejection of a test, with the remedy for the log of the server.

use linerate_protocol::control::Reject;

/// Rejection of a test.
#[derive(Debug)]
pub struct TestRejection {
    /// Reply to the client.
    pub reply: Reject,
    /// Change of the server's options or limits that would allow the test.
    pub remedy: String,
}

impl TestRejection {
    pub fn new(reply: Reject, remedy: impl Into<String>) -> Self {
        let remedy = remedy.into();
        Self { reply, remedy }
    }
}

impl From<TestRejection> for Reject {
    fn from(rejection: TestRejection) -> Self {
        rejection.reply
    }
}

/// Remedy for a limit that other tests have reached.
pub const RETRY_LATER: &str = "the client can retry when other tests have ended";
