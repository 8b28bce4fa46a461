//! Lab that goes down with its test, however the test ends.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{LinerateServer, TestDir, check_command};

/// Lab of a test; its name contains the process id, because other checkouts run the same tests.
pub struct TestLab {
    pub dir: TestDir,
    pub name: String,
    /// Output of `lab up --json`.
    pub info: Value,
}

impl TestLab {
    /// Builds a lab with these arguments of `lab up`; `Err` names the missing privilege.
    #[track_caller]
    pub fn up(dir: TestDir, test: &str, args: &str) -> Result<Self, String> {
        let name = format!("{test}-{}", std::process::id());
        let output = dir.run(&format!("lab up {args} --name {name} --json"));
        if output.exit_code() == 4 {
            return Err(output.json()["error"].to_string());
        }
        // From here on any failure takes the lab down.
        let mut lab = Self {
            dir,
            name,
            info: Value::Null,
        };
        lab.info = output.expect(0).json()["labs"][0].clone();
        Ok(lab)
    }

    /// Builds a lab from the text of a lab file.
    #[track_caller]
    pub fn from_text(test: &str, text: &str) -> Result<Self, String> {
        let dir = TestDir::new();
        fs::write(dir.path().join("lab.toml"), text).expect("a file");
        Self::up(dir, test, "lab.toml")
    }

    /// Builds hosts `client` and `server` with these links between them.
    #[track_caller]
    pub fn pair(test: &str, links: &str) -> Result<Self, String> {
        Self::from_text(test, &format!("[hosts.client]\n[hosts.server]\n{links}"))
    }

    /// Returns a command on one of the hosts.
    pub fn command_on<A: AsRef<OsStr>>(
        &self,
        host: &str,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = (self.dir).linerate(&format!("lab exec {}/{host} --", self.name));
        command.args(args);
        command
    }

    /// Returns `linerate` on one of the hosts.
    pub fn linerate(&self, host: &str, args: &str) -> Command {
        let mut command = self.command_on(host, [self.dir.binary()]);
        command.args(args.split_whitespace());
        command
    }

    /// Runs a shell line on a host; `Err` has the reason of a failure.
    pub fn shell(&self, host: &str, line: &str) -> Result<(), String> {
        check_command(&mut self.command_on(host, ["sh", "-ec", line]))
    }

    /// Starts a server on the host `server`, at its default port.
    #[track_caller]
    pub fn server(&self, args: &str) -> LinerateServer {
        LinerateServer::start(&mut self.linerate("server", &format!("server {args}")))
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        let down = format!("lab down {}", self.name);
        let _ = self.dir.linerate(&down).output();
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
