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

use linerate_dialect::control::{Bye, Connection, Frame, Key, Settings, SettingsAnswer};

use super::control_connection::{Line, Wire};
use super::dial::{Local, open};
use super::{boot_id, hello, random};
use crate::error::MeasureError;

/// Interval of heartbeats.
const LOOK: Duration = Duration::from_millis(200);

/// Longest wait until the server has restored everything.
const FAREWELL: Duration = Duration::from_secs(5);

/// Settings applied for one client; restored on drop.
pub trait Held: Send {
    /// Applies one setting and returns its effective value; `default` restores it.
    ///
    /// # Errors
    /// The reason, as text for the user.
    fn set(&mut self, name: &str, value: &str) -> Result<String, String>;
}

/// Creates [`Held`] settings of this host, for a server that grants `tune`.
#[derive(Clone)]
pub struct Maker(pub Arc<dyn Fn() -> Result<Box<dyn Held>, String> + Send + Sync>);

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maker")
    }
}

/// Applies requested settings; without a backend all are rejected.
pub(super) fn settle(
    maker: Option<&Maker>,
    held: &mut Option<Box<dyn Held>>,
    wanted: BTreeMap<String, String>,
) -> SettingsAnswer {
    let mut answer = SettingsAnswer::default();
    for (name, value) in wanted {
        match one(maker, held, &name, &value) {
            Ok(real) => answer.granted.insert(name, real),
            Err(why) => answer.refused.insert(name, why),
        };
    }
    answer
}

fn one(
    maker: Option<&Maker>,
    held: &mut Option<Box<dyn Held>>,
    name: &str,
    value: &str,
) -> Result<String, String> {
    let maker = maker.ok_or("the server was not started with --grant tune")?;
    let made = match held.take() {
        Some(made) => made,
        None => (maker.0)()?,
    };
    held.insert(made).set(name, value)
}

type Asked = (
    BTreeMap<String, String>,
    mpsc::Sender<Result<SettingsAnswer, MeasureError>>,
);

/// Settings of a remote host, as the client that requests them has them.
pub struct FarSettings {
    questions: Option<mpsc::Sender<Asked>>,
    thread: Option<JoinHandle<()>>,
}

impl FarSettings {
    /// Opens a session with a server; changes no setting yet.
    ///
    /// # Errors
    /// The reason why the server cannot be reached.
    pub fn open(far: SocketAddr, key: Option<&Key>) -> Result<Self, MeasureError> {
        let never = AtomicBool::new(false);
        let stream = open(far, &Local::default(), &never)?;
        let greeting = hello(boot_id());
        let codec = match key {
            None => Connection::client(greeting),
            Some(key) => Connection::proving_client(greeting, random::proof(key)?),
        };
        let codec = codec.map_err(|source| MeasureError::Protocol { peer: far, source })?;
        let mut wire = Wire::on(Line::of(stream)?, codec)?;
        match wire.expect(&never)? {
            Frame::Hello(_) => {}
            _ => return Err(confused(far, "it sent no hello")),
        }
        let (questions, asked) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("remote-settings".to_owned())
            .spawn(move || talk(wire, &asked))
            .map_err(|error| MeasureError::system("new thread", error))?;
        Ok(Self {
            questions: Some(questions),
            thread: Some(thread),
        })
    }

    /// Requests a value; returns the effective value, or the server's reason to reject it.
    ///
    /// # Errors
    /// The server is lost.
    pub fn set(&self, name: &str, value: &str) -> Result<Result<String, String>, MeasureError> {
        let gone = || {
            let closed = std::io::ErrorKind::ConnectionReset;
            MeasureError::system("the settings session", closed.into())
        };
        let wanted = [(name.to_owned(), value.to_owned())].into();
        let (sender, answer) = mpsc::channel();
        let questions = self.questions.as_ref().ok_or_else(gone)?;
        questions.send((wanted, sender)).map_err(|_| gone())?;
        let mut answer = answer.recv().map_err(|_| gone())??;
        Ok(match answer.granted.remove(name) {
            Some(real) => Ok(real),
            None => Err((answer.refused.remove(name))
                .unwrap_or_else(|| "the server sent no result for it".to_owned())),
        })
    }
}

impl Drop for FarSettings {
    /// Waits until the server has restored everything.
    fn drop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn talk(mut wire: Wire, asked: &mpsc::Receiver<Asked>) {
    let never = AtomicBool::new(false);
    loop {
        let lives = match asked.recv_timeout(LOOK) {
            Ok((wanted, answer)) => {
                let told = ask(&mut wire, wanted, &never);
                let lives = told.is_ok();
                // The requester may have ended meanwhile.
                let _ = answer.send(told);
                lives
            }
            // Frames without a request are heartbeats.
            Err(RecvTimeoutError::Timeout) => {
                let heard = wire.hear().and_then(|_| wire.beat());
                heard.and_then(|()| wire.flush()).is_ok()
            }
            Err(RecvTimeoutError::Disconnected) => {
                let _ = wire.say(Bye {});
                wire.close(FAREWELL);
                return;
            }
        };
        if !lives {
            return;
        }
    }
}

fn ask(
    wire: &mut Wire,
    wanted: BTreeMap<String, String>,
    never: &AtomicBool,
) -> Result<SettingsAnswer, MeasureError> {
    let far = wire.peer();
    wire.say(Settings { wanted })?;
    match wire.expect(never)? {
        Frame::SettingsAnswer(answer) => Ok(answer),
        _ => Err(confused(far, "it sent no settings reply")),
    }
}

fn confused(far: SocketAddr, what: &'static str) -> MeasureError {
    super::client::confused(far, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Noted(Arc<Mutex<Vec<String>>>);

    impl Held for Noted {
        fn set(&mut self, name: &str, value: &str) -> Result<String, String> {
            if name == "bad" {
                return Err("not this one".to_owned());
            }
            self.0.lock().unwrap().push(format!("{name}={value}"));
            Ok(format!("{value}!"))
        }
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("back".to_owned());
        }
    }

    #[test]
    fn without_a_grant_each_setting_is_refused_with_the_reason() {
        let wanted = [("a".to_owned(), "1".to_owned())].into();
        let answer = settle(None, &mut None, wanted);
        assert!(answer.granted.is_empty());
        assert!(answer.refused["a"].contains("--grant tune"), "{answer:?}");
    }

    #[test]
    fn one_maker_holds_all_settings_of_a_client() {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&notes);
        let maker = Maker(Arc::new(move || Ok(Box::new(Noted(Arc::clone(&kept))))));
        let mut held = None;
        let wanted = |name: &str| [(name.to_owned(), "1".to_owned())].into();
        assert_eq!(
            settle(Some(&maker), &mut held, wanted("a")).granted["a"],
            "1!"
        );
        let refused = settle(Some(&maker), &mut held, wanted("bad")).refused;
        assert_eq!(refused["bad"], "not this one");
        settle(Some(&maker), &mut held, wanted("b"));
        assert_eq!(*notes.lock().unwrap(), ["a=1", "b=1"]);
        drop(held);
        assert_eq!(notes.lock().unwrap().last().unwrap(), "back");
    }
}
