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
pub struct TuneBenchError(pub String);

impl fmt::Display for TuneBenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `linerate` with its own data and state directories.
pub struct LinerateProgram {
    path: PathBuf,
    work_dir: PathBuf,
    /// Temporary directory, unless the bench is resumable.
    _temp_dir: Option<TempDir>,
    /// Time at which a running command is interrupted.
    deadline: Option<Instant>,
}

/// Directory of the results of a resumable bench.
const RESUMABLE_DIR: &str = "target/bench/tune";

/// Poll interval for the end of a command.
const CHILD_POLL_INTERVAL: Duration = Duration::from_millis(20);

impl LinerateProgram {
    /// Finds `linerate` in the directory of this program, where cargo puts both.
    ///
    /// With `keep_results` results are kept for the next run; with `time_limit` the bench ends
    /// after that time.
    pub fn find(keep_results: bool, time_limit: Option<Duration>) -> Result<Self, TuneBenchError> {
        let own_path =
            std::env::current_exe().map_err(|error| TuneBenchError(error.to_string()))?;
        let path = own_path.with_file_name("linerate");
        if !path.is_file() {
            let path = path.display();
            return Err(TuneBenchError(format!(
                "{path} does not exist: build it with `cargo build --release`"
            )));
        }
        let failed = |error: std::io::Error| TuneBenchError(error.to_string());
        let temp_dir = (!keep_results)
            .then(TempDir::new)
            .transpose()
            .map_err(failed)?;
        let dir = match &temp_dir {
            Some(temp_dir) => temp_dir.path().to_owned(),
            None => {
                fs::create_dir_all(RESUMABLE_DIR).map_err(failed)?;
                fs::canonicalize(RESUMABLE_DIR).map_err(failed)?
            }
        };
        Ok(Self {
            path,
            work_dir: dir,
            _temp_dir: temp_dir,
            deadline: time_limit.map(|time_limit| Instant::now() + time_limit),
        })
    }

    /// Result of a step, measured now, or read from an earlier interrupted bench.
    pub fn cached(
        &self,
        name: &str,
        measure: impl FnOnce() -> Result<Value, TuneBenchError>,
    ) -> Result<Value, TuneBenchError> {
        let file = self.work_dir.join(format!("{name}.json"));
        let before = fs::read_to_string(&file).ok();
        if let Some(cached_value) = before.and_then(|text| serde_json::from_str(&text).ok()) {
            return Ok(cached_value);
        }
        let document = measure()?;
        fs::write(&file, document.to_string())
            .map_err(|error| TuneBenchError(error.to_string()))?;
        Ok(document)
    }

    /// Journal of an interrupted sweep of a lab.
    pub fn sweep_journal(&self, lab: &str) -> Option<PathBuf> {
        let dir = self.state_dir(lab).join("linerate/sweep");
        let mut journals = fs::read_dir(dir).ok()?;
        journals.find_map(|entry| Some(entry.ok()?.path()))
    }

    fn state_dir(&self, lab: &str) -> PathBuf {
        self.work_dir.join("state").join(lab)
    }

    /// Checks that at least this much time is left; for steps that cannot be resumed.
    ///
    /// # Errors
    /// Less time is left.
    pub fn check_time_left(&self, time: Duration) -> Result<(), TuneBenchError> {
        let time_left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        match self.deadline.map(time_left) {
            Some(time_left) if time_left < time => Err(TuneBenchError(OUT_OF_TIME.to_owned())),
            _ => Ok(()),
        }
    }

    /// Waits for a command; interrupts it at the time limit.
    fn wait_for_child(
        &self,
        mut child: Child,
    ) -> Result<(ExitStatus, String, String), TuneBenchError> {
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
        let mut interrupted = false;
        let status = loop {
            match child
                .try_wait()
                .map_err(|error| TuneBenchError(error.to_string()))?
            {
                Some(status) => break status,
                None if !interrupted
                    && self
                        .deadline
                        .is_some_and(|deadline| Instant::now() >= deadline) =>
                {
                    interrupted = true;
                    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                    // The process may have ended meanwhile.
                    let _ = pid.map(|pid| kill_process(pid, Signal::INT));
                }
                None => thread::sleep(CHILD_POLL_INTERVAL),
            }
        };
        if interrupted {
            return Err(TuneBenchError(OUT_OF_TIME.to_owned()));
        }
        let text = |thread: thread::JoinHandle<String>| thread.join().unwrap_or_default();
        Ok((status, text(stdout), text(stderr)))
    }

    fn build_command(&self, args: &[String]) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(args)
            .current_dir(&self.work_dir)
            .env("XDG_DATA_HOME", self.work_dir.join("data"))
            .env("XDG_STATE_HOME", self.work_dir.join("state"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[String]) -> Result<String, TuneBenchError> {
        self.run_command(self.build_command(args), args)
    }

    fn run_command(&self, mut command: Command, args: &[String]) -> Result<String, TuneBenchError> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|error| TuneBenchError(error.to_string()))?;
        let (status, stdout, stderr) = self.wait_for_child(child)?;
        // Exit codes of a comparison: 3, B is slower; 6, undecided. Both give the ratio that is
        // needed here.
        if matches!(status.code(), Some(0 | 3 | 6)) {
            return Ok(stdout);
        }
        Err(TuneBenchError(format!(
            "linerate {} ended with {status}: {} {}",
            args.join(" "),
            stdout.chars().take(400).collect::<String>(),
            stderr.trim()
        )))
    }
}

const OUT_OF_TIME: &str = "out of time: RESUME=1 continues from here";

/// Running lab with a server on its server host; removed on drop.
pub struct BenchLab<'a> {
    program: &'a LinerateProgram,
    name: String,
    lab_case: String,
    server: Option<Child>,
}

impl<'a> BenchLab<'a> {
    /// Builds the lab and starts `linerate SERVES` on the server host.
    pub fn up(
        program: &'a LinerateProgram,
        name: &str,
        topology: &str,
        server_args: &str,
    ) -> Result<Self, TuneBenchError> {
        let file = program.work_dir.join(format!("{name}.toml"));
        fs::write(&file, topology).map_err(|error| TuneBenchError(error.to_string()))?;
        let mut lab = Self {
            name: format!("tune-{name}-{}", std::process::id()),
            lab_case: name.to_owned(),
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
        let own_path = program.path.display().to_string();
        let mut args = lab.exec_args("server", &own_path);
        args.extend(server_args.split(' ').map(str::to_owned));
        let server = (program.build_command(&args))
            .stdout(Stdio::piped())
            .spawn();
        let mut server = server.map_err(|error| TuneBenchError(error.to_string()))?;
        let stdout = server.stdout.take();
        lab.server = Some(server);
        let mut lines = stdout
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines());
        if !lines.any(|line| line.is_ok_and(|line| line.starts_with("READY"))) {
            return Err(TuneBenchError(
                "the server in the lab did not start".to_owned(),
            ));
        }
        // The output is drained: a server whose output is not read would end.
        thread::spawn(move || lines.for_each(drop));
        Ok(lab)
    }

    fn exec_args(&self, host: &str, program: &str) -> Vec<String> {
        let host = format!("{}/{host}", self.name);
        ["lab", "exec", &host, "--", program]
            .map(str::to_owned)
            .to_vec()
    }

    /// Writes a file to the working directory of the lab's commands.
    pub fn write_file(&self, name: &str, text: &str) -> Result<(), TuneBenchError> {
        let file = self.program.work_dir.join(name);
        fs::write(file, text).map_err(|error| TuneBenchError(error.to_string()))
    }

    /// Runs `linerate` with these arguments on the client host and returns its document.
    pub fn run_linerate(&self, args: &[String]) -> Result<Value, TuneBenchError> {
        let own_path = self.program.path.display().to_string();
        let text = self.run_program("client", &own_path, args)?;
        serde_json::from_str(&text)
            .map_err(|error| TuneBenchError(format!("invalid document: {error}")))
    }

    /// Runs any program on a host and returns its output.
    pub fn run_program(
        &self,
        host: &str,
        program: &str,
        args: &[String],
    ) -> Result<String, TuneBenchError> {
        let mut args_with_lab = self.exec_args(host, program);
        args_with_lab.extend_from_slice(args);
        let mut command = self.program.build_command(&args_with_lab);
        command.env("XDG_STATE_HOME", self.program.state_dir(&self.lab_case));
        self.program.run_command(command, &args_with_lab)
    }

    /// Starts any program on a host; it ends with the lab.
    pub fn start_program(
        &self,
        host: &str,
        program: &str,
        args: &[&str],
    ) -> Result<Child, TuneBenchError> {
        let mut args_with_lab = self.exec_args(host, program);
        args_with_lab.extend(args.iter().map(|arg| (*arg).to_owned()));
        let mut command = self.program.build_command(&args_with_lab);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
            .spawn()
            .map_err(|error| TuneBenchError(error.to_string()))
    }
}

impl Drop for BenchLab<'_> {
    fn drop(&mut self) {
        let down = ["lab", "down", &self.name].map(str::to_owned);
        // Without a time limit, so that the lab is always removed.
        match self.program.build_command(&down).output() {
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
