//! Remote settings: a client changes settings of the server's host over a session of its own.
//!
//! The server restores them when the session ends. A lost client is detected by its silence.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_protocol::control::{
    Bye, ControlCodec, Frame, PresharedKey, RequestedSettings, SettingsReply,
};

use super::control_connection::{ControlConnection, ControlStream, SERVER_SILENCE_TIMEOUT};
use super::dial::{SourceBinding, connect};
use super::{boot_id, hello, random};
use crate::error::SessionError;

/// Interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);

/// Longest wait until the server has restored everything.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings applied for one client; restored on drop.
pub trait AppliedSettings: Send {
    /// Applies one setting and returns its effective value; `default` restores it.
    ///
    /// # Errors
    /// The reason, as text for the user.
    fn set(&mut self, name: &str, value: &str) -> Result<String, String>;
}

/// Factory of [`AppliedSettings`] of this host, for a server that grants `tune`.
#[derive(Clone)]
pub struct RemoteTuning(
    pub Arc<dyn Fn() -> Result<Box<dyn AppliedSettings>, String> + Send + Sync>,
);

impl fmt::Debug for RemoteTuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteTuning")
    }
}

/// Applies requested settings; without a backend all are rejected.
pub fn apply_settings(
    backend: Option<&RemoteTuning>,
    applied: &mut Option<Box<dyn AppliedSettings>>,
    requested: BTreeMap<String, String>,
) -> SettingsReply {
    let mut reply = SettingsReply::default();
    for (name, value) in requested {
        match apply_setting(backend, applied, &name, &value) {
            Ok(effective) => reply.granted.insert(name, effective),
            Err(reason) => reply.rejected.insert(name, reason),
        };
    }
    reply
}

fn apply_setting(
    backend: Option<&RemoteTuning>,
    applied: &mut Option<Box<dyn AppliedSettings>>,
    name: &str,
    value: &str,
) -> Result<String, String> {
    let backend = backend.ok_or("the server was not started with --grant tune")?;
    let settings = match applied.take() {
        Some(settings) => settings,
        None => (backend.0)()?,
    };
    applied.insert(settings).set(name, value)
}

type SettingsRequest = (
    BTreeMap<String, String>,
    mpsc::Sender<Result<SettingsReply, SessionError>>,
);

/// Settings of a remote host, as the client that requests them has them.
pub struct RemoteSettings {
    server: SocketAddr,
    requests: Option<mpsc::Sender<SettingsRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl RemoteSettings {
    /// Returns the address of the server.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Opens a session with a server; changes no setting yet.
    ///
    /// # Errors
    /// The reason why the server cannot be reached.
    pub fn open(remote: SocketAddr, key: Option<&PresharedKey>) -> Result<Self, SessionError> {
        let no_stop = AtomicBool::new(false);
        let stream = connect(remote, &SourceBinding::default(), &no_stop)?;
        let hello_frame = hello(boot_id());
        let codec = match key {
            None => ControlCodec::client(hello_frame),
            Some(key) => ControlCodec::authenticated_client(hello_frame, random::new_proof(key)?),
        };
        let codec = codec.map_err(|source| SessionError::Protocol {
            peer: remote,
            source,
        })?;
        let mut control = ControlConnection::new(ControlStream::from_tcp(stream)?, codec)?
            .with_silence_timeout(SERVER_SILENCE_TIMEOUT);
        match control.receive_next(&no_stop)? {
            Frame::Hello(_) => {}
            _ => return Err(unexpected_message(remote, "it sent no hello")),
        }
        // The tests between the settings may fill the queues of the path.
        control.expect_send_queue();
        let (sender, requests) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("remote-settings".to_owned())
            .spawn(move || run_session(control, &requests))
            .map_err(|error| SessionError::system("new thread", error))?;
        Ok(Self {
            server: remote,
            requests: Some(sender),
            thread: Some(thread),
        })
    }

    /// Requests a value; returns the effective value, or the server's reason to reject it.
    ///
    /// # Errors
    /// The server is lost.
    pub fn set(&self, name: &str, value: &str) -> Result<Result<String, String>, SessionError> {
        let lost = || SessionError::PeerLost {
            peer: self.server,
            reason: "the connection with the settings has ended".to_owned(),
        };
        let requested = [(name.to_owned(), value.to_owned())].into();
        let (sender, reply) = mpsc::channel();
        let requests = self.requests.as_ref().ok_or_else(lost)?;
        requests.send((requested, sender)).map_err(|_| lost())?;
        let mut reply = reply.recv().map_err(|_| lost())??;
        Ok(match reply.granted.remove(name) {
            Some(effective) => Ok(effective),
            None => Err((reply.rejected.remove(name))
                .unwrap_or_else(|| "the server sent no result for it".to_owned())),
        })
    }
}

impl Drop for RemoteSettings {
    /// Waits until the server has restored everything.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run_session(mut control: ControlConnection, requests: &mpsc::Receiver<SettingsRequest>) {
    let no_stop = AtomicBool::new(false);
    loop {
        let alive = match requests.recv_timeout(HEARTBEAT_INTERVAL) {
            Ok((requested, reply)) => {
                let result = request_settings(&mut control, requested, &no_stop);
                let alive = result.is_ok();
                // The requester may have ended meanwhile.
                let _ = reply.send(result);
                alive
            }
            // Frames without a request are heartbeats.
            Err(RecvTimeoutError::Timeout) => {
                let received = control.receive().and_then(|_| control.send_heartbeat());
                received.and_then(|()| control.flush()).is_ok()
            }
            Err(RecvTimeoutError::Disconnected) => {
                let _ = control.send(Bye {});
                control.close(RESTORE_TIMEOUT);
                return;
            }
        };
        if !alive {
            return;
        }
    }
}

fn request_settings(
    control: &mut ControlConnection,
    requested: BTreeMap<String, String>,
    no_stop: &AtomicBool,
) -> Result<SettingsReply, SessionError> {
    let remote = control.peer();
    control.send(RequestedSettings { requested })?;
    match control.receive_next(no_stop)? {
        Frame::SettingsReply(reply) => Ok(reply),
        _ => Err(unexpected_message(remote, "it sent no settings reply")),
    }
}

fn unexpected_message(remote: SocketAddr, reason: &'static str) -> SessionError {
    super::client::unexpected_message(remote, reason)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct RecordedSettings(Arc<Mutex<Vec<String>>>);

    impl AppliedSettings for RecordedSettings {
        fn set(&mut self, name: &str, value: &str) -> Result<String, String> {
            if name == "bad" {
                return Err("not this one".to_owned());
            }
            self.0.lock().unwrap().push(format!("{name}={value}"));
            Ok(format!("{value}!"))
        }
    }

    impl Drop for RecordedSettings {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("back".to_owned());
        }
    }

    #[test]
    fn without_a_grant_each_setting_is_rejected_with_the_reason() {
        let requested = [("a".to_owned(), "1".to_owned())].into();
        let reply = apply_settings(None, &mut None, requested);
        assert!(reply.granted.is_empty());
        assert!(reply.rejected["a"].contains("--grant tune"), "{reply:?}");
    }

    #[test]
    fn one_backend_holds_all_settings_of_a_client() {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&entries);
        let backend = RemoteTuning(Arc::new(move || {
            Ok(Box::new(RecordedSettings(Arc::clone(&log))))
        }));
        let mut applied = None;
        let requested = |name: &str| [(name.to_owned(), "1".to_owned())].into();
        assert_eq!(
            apply_settings(Some(&backend), &mut applied, requested("a")).granted["a"],
            "1!"
        );
        let rejected = apply_settings(Some(&backend), &mut applied, requested("bad")).rejected;
        assert_eq!(rejected["bad"], "not this one");
        apply_settings(Some(&backend), &mut applied, requested("b"));
        assert_eq!(*entries.lock().unwrap(), ["a=1", "b=1"]);
        drop(applied);
        assert_eq!(entries.lock().unwrap().last().unwrap(), "back");
    }
}
