//! The program that is measured, and labs that it builds.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Why something was not measured.
#[derive(Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `linerate`, with folders of its own for what it keeps.
pub struct Program {
    path: PathBuf,
    folder: TempDir,
}

impl Program {
    /// Cargo puts both into the same folder.
    pub fn beside_this_one() -> Result<Self, Trouble> {
        let own = std::env::current_exe().map_err(|error| Trouble(error.to_string()))?;
        let path = own.with_file_name("linerate");
        if !path.is_file() {
            let path = path.display();
            return Err(Trouble(format!(
                "{path} is not there: build it with `cargo build --release`"
            )));
        }
        let folder = TempDir::new().map_err(|error| Trouble(error.to_string()))?;
        Ok(Self { path, folder })
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(words)
            .current_dir(self.folder.path())
            .env("XDG_DATA_HOME", self.folder.path().join("data"))
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[String]) -> Result<String, Trouble> {
        let done = self.command(words).output();
        let done = done.map_err(|error| Trouble(error.to_string()))?;
        let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
        // 3: B of a comparison is slower, which is an answer.
        if matches!(done.status.code(), Some(0 | 3)) {
            return Ok(stdout);
        }
        Err(Trouble(format!(
            "linerate {} ended with {}: {} {}",
            words.join(" "),
            done.status,
            stdout.chars().take(400).collect::<String>(),
            String::from_utf8_lossy(&done.stderr).trim()
        )))
    }
}

/// A lab that is up, with a server at its far host; gone when it drops.
pub struct Lab<'a> {
    program: &'a Program,
    name: String,
    server: Option<Child>,
}

impl<'a> Lab<'a> {
    /// Builds it, and starts `linerate SERVES` at the far host.
    pub fn up(
        program: &'a Program,
        name: &str,
        topology: &str,
        serves: &str,
    ) -> Result<Self, Trouble> {
        let file = program.folder.path().join(format!("{name}.toml"));
        fs::write(&file, topology).map_err(|error| Trouble(error.to_string()))?;
        let mut lab = Self {
            name: format!("tune-{name}-{}", std::process::id()),
            program,
            server: None,
        };
        let up = [
            "lab",
            "up",
            &file.display().to_string(),
            "--name",
            &lab.name,
        ];
        program.run(&up.map(str::to_owned))?;
        let own = program.path.display().to_string();
        let mut words = lab.exec("server", &own);
        words.extend(serves.split(' ').map(str::to_owned));
        let server = (program.command(&words)).stdout(Stdio::piped()).spawn();
        let mut server = server.map_err(|error| Trouble(error.to_string()))?;
        let stdout = server.stdout.take();
        lab.server = Some(server);
        let mut lines = stdout
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines());
        if !lines.any(|line| line.is_ok_and(|line| line.starts_with("READY"))) {
            return Err(Trouble("the server in the lab did not start".to_owned()));
        }
        // What it says later is read by nobody: it is quiet.
        Ok(lab)
    }

    fn exec(&self, host: &str, program: &str) -> Vec<String> {
        let host = format!("{}/{host}", self.name);
        ["lab", "exec", &host, "--", program]
            .map(str::to_owned)
            .to_vec()
    }

    /// Puts a file where commands of the lab find it.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Trouble> {
        let file = self.program.folder.path().join(name);
        fs::write(file, text).map_err(|error| Trouble(error.to_string()))
    }

    /// Runs `linerate WORDS` at the near host; its document.
    pub fn client(&self, words: &[String]) -> Result<Value, Trouble> {
        let own = self.program.path.display().to_string();
        let text = self.other("client", &own, words)?;
        serde_json::from_str(&text).map_err(|error| Trouble(format!("no document: {error}")))
    }

    /// Runs any program at a host; what it prints.
    pub fn other(&self, host: &str, program: &str, words: &[String]) -> Result<String, Trouble> {
        let mut all = self.exec(host, program);
        all.extend_from_slice(words);
        self.program.run(&all)
    }

    /// Starts any program at a host; it ends with the lab.
    pub fn start(&self, host: &str, program: &str, words: &[&str]) -> Result<Child, Trouble> {
        let mut all = self.exec(host, program);
        all.extend(words.iter().map(|word| (*word).to_owned()));
        let mut command = self.program.command(&all);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map_err(|error| Trouble(error.to_string()))
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        let down = ["lab", "down", &self.name].map(str::to_owned);
        if let Err(error) = self.program.run(&down) {
            eprintln!("warning: {error}");
        }
        if let Some(mut server) = self.server.take() {
            // It died with its lab.
            let _ = server.wait();
        }
    }
}
