//! Lab that goes down with its test, however the test ends.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{Room, Server, works};

/// Lab of a test; its name contains the process id, because other checkouts run the same tests.
pub struct Lab {
    pub room: Room,
    pub name: String,
    /// Output of `lab up --json`.
    pub info: Value,
}

impl Lab {
    /// Builds a lab with these arguments of `lab up`; `Err` names the missing privilege.
    #[track_caller]
    pub fn up(room: Room, test: &str, words: &str) -> Result<Self, String> {
        let name = format!("{test}-{}", std::process::id());
        let ran = room.run(&format!("lab up {words} --name {name} --json"));
        if ran.code() == 4 {
            return Err(ran.json()["error"].to_string());
        }
        // From here on any failure takes the lab down.
        let mut lab = Self {
            room,
            name,
            info: Value::Null,
        };
        lab.info = ran.expect(0).json()["labs"][0].clone();
        Ok(lab)
    }

    /// Builds a lab from the text of a lab file.
    #[track_caller]
    pub fn of(test: &str, text: &str) -> Result<Self, String> {
        let room = Room::new();
        fs::write(room.path().join("lab.toml"), text).expect("a file");
        Self::up(room, test, "lab.toml")
    }

    /// Builds hosts `client` and `server` with these links between them.
    #[track_caller]
    pub fn pair(test: &str, links: &str) -> Result<Self, String> {
        Self::of(test, &format!("[hosts.client]\n[hosts.server]\n{links}"))
    }

    /// Returns a command on one of the hosts.
    pub fn on<A: AsRef<OsStr>>(&self, host: &str, words: impl IntoIterator<Item = A>) -> Command {
        let mut command = (self.room).linerate(&format!("lab exec {}/{host} --", self.name));
        command.args(words);
        command
    }

    /// Returns `linerate` on one of the hosts.
    pub fn linerate(&self, host: &str, words: &str) -> Command {
        let mut command = self.on(host, [self.room.binary()]);
        command.args(words.split_whitespace());
        command
    }

    /// Runs a shell line on a host; `Err` has the reason of a failure.
    pub fn shell(&self, host: &str, line: &str) -> Result<(), String> {
        works(&mut self.on(host, ["sh", "-ec", line]))
    }

    /// Starts a server on the host `server`, at its default port.
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

/// Returns the lab of a test, or skips the test.
macro_rules! lab {
    ($up:expr) => {
        match $up {
            Ok(lab) => lab,
            Err(why) => $crate::common::skip!("no lab: {why}"),
        }
    };
}
pub(crate) use lab;
