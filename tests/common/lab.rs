//! A lab that goes down with its test, whichever way the test ends.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{Room, Server, works};

/// A lab of a test; its name has this process in it, as other checkouts run the same tests.
pub struct Lab {
    pub room: Room,
    pub name: String,
    /// What `lab up --json` said of it.
    pub info: Value,
}

impl Lab {
    /// Builds one from the words after `lab up`; `Err` says which privilege is missing.
    #[track_caller]
    pub fn up(room: Room, test: &str, words: &str) -> Result<Self, String> {
        let name = format!("{test}-{}", std::process::id());
        let ran = room.run(&format!("lab up {words} --name {name} --json"));
        if ran.code() == 4 {
            return Err(ran.json()["error"].to_string());
        }
        // Whatever went wrong from here on, it is taken down.
        let mut lab = Self {
            room,
            name,
            info: Value::Null,
        };
        lab.info = ran.expect(0).json()["labs"][0].clone();
        Ok(lab)
    }

    /// Builds the one that this text describes.
    #[track_caller]
    pub fn of(test: &str, text: &str) -> Result<Self, String> {
        let room = Room::new();
        fs::write(room.path().join("lab.toml"), text).expect("a file");
        Self::up(room, test, "lab.toml")
    }

    /// Two hosts, `client` and `server`, with these links between them.
    #[track_caller]
    pub fn pair(test: &str, links: &str) -> Result<Self, String> {
        Self::of(test, &format!("[hosts.client]\n[hosts.server]\n{links}"))
    }

    /// Any command on one of its hosts.
    pub fn on<A: AsRef<OsStr>>(&self, host: &str, words: impl IntoIterator<Item = A>) -> Command {
        let mut command = (self.room).linerate(&format!("lab exec {}/{host} --", self.name));
        command.args(words);
        command
    }

    /// `linerate` on one of its hosts.
    pub fn linerate(&self, host: &str, words: &str) -> Command {
        let mut command = self.on(host, [self.room.binary()]);
        command.args(words.split_whitespace());
        command
    }

    /// A shell line on a host; why it did not work.
    pub fn shell(&self, host: &str, line: &str) -> Result<(), String> {
        works(&mut self.on(host, ["sh", "-ec", line]))
    }

    /// A server on the host `server`, at its own port.
    #[track_caller]
    pub fn server(&self, words: &str) -> Server {
        Server::start(&mut self.linerate("server", &format!("server {words}")))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let down = format!("lab down {}", self.name);
        let _ = self.room.linerate(&down).output();
    }
}

/// The lab of a test, or the end of the test.
macro_rules! lab {
    ($up:expr) => {
        match $up {
            Ok(lab) => lab,
            Err(why) => $crate::common::skip!("no lab: {why}"),
        }
    };
}
pub(crate) use lab;
