//! Program under test, and the labs that it builds.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Error that prevented a measurement, as text.
#[derive(Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `linerate` with its own data and state directories.
pub struct Program {
    path: PathBuf,
    folder: PathBuf,
    /// Temporary directory, unless the bench is resumable.
    _fresh: Option<TempDir>,
    /// Time at which a running command is interrupted.
    until: Option<Instant>,
}

/// Directory of the results of a resumable bench.
const KEPT: &str = "target/bench/tune";

/// Poll interval for the end of a command.
const LOOK: Duration = Duration::from_millis(20);

impl Program {
    /// Finds `linerate` in the directory of this program, where cargo puts both.
    ///
    /// With `resumes` results are kept for the next run; with `within` the bench ends after that
    /// time.
    pub fn beside_this_one(resumes: bool, within: Option<Duration>) -> Result<Self, Trouble> {
        let own = std::env::current_exe().map_err(|error| Trouble(error.to_string()))?;
        let path = own.with_file_name("linerate");
        if !path.is_file() {
            let path = path.display();
            return Err(Trouble(format!(
                "{path} does not exist: build it with `cargo build --release`"
            )));
        }
        let failed = |error: std::io::Error| Trouble(error.to_string());
        let fresh = (!resumes).then(TempDir::new).transpose().map_err(failed)?;
        let folder = match &fresh {
            Some(fresh) => fresh.path().to_owned(),
            None => {
                fs::create_dir_all(KEPT).map_err(failed)?;
                fs::canonicalize(KEPT).map_err(failed)?
            }
        };
        Ok(Self {
            path,
            folder,
            _fresh: fresh,
            until: within.map(|within| Instant::now() + within),
        })
    }

    /// Result of a step, measured now, or read from an earlier interrupted bench.
    pub fn once(
        &self,
        name: &str,
        measure: impl FnOnce() -> Result<Value, Trouble>,
    ) -> Result<Value, Trouble> {
        let file = self.folder.join(format!("{name}.json"));
        let before = fs::read_to_string(&file).ok();
        if let Some(known) = before.and_then(|text| serde_json::from_str(&text).ok()) {
            return Ok(known);
        }
        let document = measure()?;
        fs::write(&file, document.to_string()).map_err(|error| Trouble(error.to_string()))?;
        Ok(document)
    }

    /// Journal of an interrupted sweep of a lab.
    pub fn journal(&self, lab: &str) -> Option<PathBuf> {
        let folder = self.state_of(lab).join("linerate/sweep");
        let mut journals = fs::read_dir(folder).ok()?;
        journals.find_map(|entry| Some(entry.ok()?.path()))
    }

    fn state_of(&self, lab: &str) -> PathBuf {
        self.folder.join("state").join(lab)
    }

    /// Checks that at least this much time is left; for steps that cannot be resumed.
    ///
    /// # Errors
    /// Less time is left.
    pub fn needs(&self, time: Duration) -> Result<(), Trouble> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        match self.until.map(left) {
            Some(left) if left < time => Err(Trouble(NO_TIME.to_owned())),
            _ => Ok(()),
        }
    }

    /// Waits for a command; interrupts it at the time limit.
    fn wait(&self, mut child: Child) -> Result<(ExitStatus, String, String), Trouble> {
        let read = |from: Option<Box<dyn Read + Send>>| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut from) = from {
                    // After a read error the bytes read so far are used.
                    let _ = from.read_to_end(&mut bytes);
                }
                String::from_utf8_lossy(&bytes).into_owned()
            })
        };
        let stdout = child.stdout.take();
        let stdout = read(stdout.map(|from| Box::new(from) as Box<dyn Read + Send>));
        let stderr = child.stderr.take();
        let stderr = read(stderr.map(|from| Box::new(from) as Box<dyn Read + Send>));
        let mut told = false;
        let status = loop {
            match child
                .try_wait()
                .map_err(|error| Trouble(error.to_string()))?
            {
                Some(status) => break status,
                None if !told && self.until.is_some_and(|until| Instant::now() >= until) => {
                    told = true;
                    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                    // The process may have ended meanwhile.
                    let _ = pid.map(|pid| kill_process(pid, Signal::INT));
                }
                None => thread::sleep(LOOK),
            }
        };
        if told {
            return Err(Trouble(NO_TIME.to_owned()));
        }
        let text = |thread: thread::JoinHandle<String>| thread.join().unwrap_or_default();
        Ok((status, text(stdout), text(stderr)))
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(words)
            .current_dir(&self.folder)
            .env("XDG_DATA_HOME", self.folder.join("data"))
            .env("XDG_STATE_HOME", self.folder.join("state"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[String]) -> Result<String, Trouble> {
        self.run_as(self.command(words), words)
    }

    fn run_as(&self, mut command: Command, words: &[String]) -> Result<String, Trouble> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|error| Trouble(error.to_string()))?;
        let (status, stdout, stderr) = self.wait(child)?;
        // Exit codes of a comparison: 3, B is slower; 6, undecided. Both give the ratio that is
        // needed here.
        if matches!(status.code(), Some(0 | 3 | 6)) {
            return Ok(stdout);
        }
        Err(Trouble(format!(
            "linerate {} ended with {status}: {} {}",
            words.join(" "),
            stdout.chars().take(400).collect::<String>(),
            stderr.trim()
        )))
    }
}

const NO_TIME: &str = "out of time: RESUME=1 continues from here";

/// Running lab with a server on its server host; removed on drop.
pub struct Lab<'a> {
    program: &'a Program,
    name: String,
    case: String,
    server: Option<Child>,
}

impl<'a> Lab<'a> {
    /// Builds the lab and starts `linerate SERVES` on the server host.
    pub fn up(
        program: &'a Program,
        name: &str,
        topology: &str,
        serves: &str,
    ) -> Result<Self, Trouble> {
        let file = program.folder.join(format!("{name}.toml"));
        fs::write(&file, topology).map_err(|error| Trouble(error.to_string()))?;
        let mut lab = Self {
            name: format!("tune-{name}-{}", std::process::id()),
            case: name.to_owned(),
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
        // The output is drained: a server whose output is not read would end.
        thread::spawn(move || lines.for_each(drop));
        Ok(lab)
    }

    fn exec(&self, host: &str, program: &str) -> Vec<String> {
        let host = format!("{}/{host}", self.name);
        ["lab", "exec", &host, "--", program]
            .map(str::to_owned)
            .to_vec()
    }

    /// Writes a file to the working directory of the lab's commands.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Trouble> {
        let file = self.program.folder.join(name);
        fs::write(file, text).map_err(|error| Trouble(error.to_string()))
    }

    /// Runs `linerate` with these arguments on the client host and returns its document.
    pub fn client(&self, words: &[String]) -> Result<Value, Trouble> {
        let own = self.program.path.display().to_string();
        let text = self.other("client", &own, words)?;
        serde_json::from_str(&text).map_err(|error| Trouble(format!("invalid document: {error}")))
    }

    /// Runs any program on a host and returns its output.
    pub fn other(&self, host: &str, program: &str, words: &[String]) -> Result<String, Trouble> {
        let mut all = self.exec(host, program);
        all.extend_from_slice(words);
        let mut command = self.program.command(&all);
        command.env("XDG_STATE_HOME", self.program.state_of(&self.case));
        self.program.run_as(command, &all)
    }

    /// Starts any program on a host; it ends with the lab.
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
        // Without a time limit, so that the lab is always removed.
        match self.program.command(&down).output() {
            Ok(done) if done.status.success() => {}
            Ok(done) => eprintln!("warning: {}", String::from_utf8_lossy(&done.stderr).trim()),
            Err(error) => eprintln!("warning: {error}"),
        }
        if let Some(mut server) = self.server.take() {
            // The server ended with its lab.
            let _ = server.wait();
        }
    }
}
