//! Bare loops: `benches/bare`, compiled by the machine's C compiler when the bench runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::ground::{Ground, version_of};
use crate::process::Program;
use crate::trouble::Trouble;

const SOURCE: &str = include_str!("../../bare/pingpong.c");

/// Any free port of the lab's server will do.
const PORT: &str = "7007";

/// How long a start or an end may take.
const MOMENT: Duration = Duration::from_secs(10);

/// The compiled loops.
pub struct Bare {
    pingpong: PathBuf,
}

/// Says how to get a compiler where there is none.
pub fn installed(_ground: &Ground) -> Result<(), Trouble> {
    match version_of("cc") {
        Some(_) => Ok(()),
        None => Err(Trouble::skip(
            "needs a C compiler: install one with `apt-get install gcc`",
        )),
    }
}

impl Bare {
    /// Compiles them into a folder.
    pub fn compile(folder: &Path) -> Result<Self, Trouble> {
        let (source, pingpong) = (folder.join("pingpong.c"), folder.join("pingpong"));
        std::fs::write(&source, SOURCE).map_err(Trouble::system("write pingpong.c"))?;
        let mut command = Command::new("cc");
        command.arg("-O2").arg(&source).arg("-o").arg(&pingpong);
        let output = command.output().map_err(Trouble::system("start cc"))?;
        if output.status.success() {
            Ok(Self { pingpong })
        } else {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(Trouble::program("cc", words))
        }
    }

    /// The median round trip of datagrams of so many bytes, in µs. `wait`: `block` or `spin`.
    pub fn pingpong(
        &self,
        ground: &Ground,
        bytes: u32,
        wait: &str,
        time: Duration,
    ) -> Result<f64, Trouble> {
        let [near, far] = ground.cpus;
        let command = |part: &str| -> Result<Command, Trouble> {
            let mut command = Command::new(&self.pingpong);
            command.args([part, &ground.far()?.to_string(), PORT]);
            command.args([&bytes.to_string(), wait]);
            Ok(command)
        };
        let mut server = Program::start(ground.server()?, Some(far), &mut command("answer")?)?;
        server.wait_for("READY", MOMENT)?;
        let mut client = command("ask")?;
        client.arg(time.as_millis().to_string());
        let client = Program::start(ground.client()?, Some(near), &mut client)?;
        let text = client.finish(time + MOMENT)?;
        let median = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix("p50_ns=")?.parse::<f64>().ok());
        median
            .map(|median| median / 1e3)
            .ok_or_else(|| Trouble::program("pingpong", "it printed no p50_ns"))
    }
}
