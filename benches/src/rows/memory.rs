//! Memory growth of long runs.

use std::fs;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use linerate_metric::histogram::Histogram;
use linerate_metric::record::Interval;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::bench_env::{Control, Ground};
use crate::error::Trouble;
use crate::peer::linerate;
use crate::process::Program;
use crate::row::{Mark, Peer, Row};

/// First argument that makes this program the process under test.
const SUBJECT: &str = "record-samples";

/// Number of pairs; memory is not noisy, it changes by pages.
const PAIRS: usize = 3;

/// Histogram alone: 10^8 samples compared with 10^3.
pub const HISTOGRAM: Row = Row {
    name: "memory/histogram",
    against: "10^3 samples instead of 10^8, peak RSS",
    unit: "KiB",
    mark: Mark::AtMost(1.02),
    speed: false,
    near: false,
    held: false,
    control: Control::Cubic,
    long: false,
    most_pairs: Some(PAIRS),
    slices: 1,
    needs: |_| Ok(()),
    ours: |_| histogram(100_000_000),
    theirs: &[Peer::only(|_| histogram(1_000))],
};

/// Complete client: 2 million round trips compared with a thousand.
pub const ROUND_TRIPS: Row = Row {
    name: "memory/round_trips",
    against: "1000 round trips instead of 2 million, peak RSS",
    mark: Mark::AtMost(1.05),
    ours: |ground| round_trips(ground, 2_000_000),
    theirs: &[Peer::only(|ground| round_trips(ground, 1_000))],
    ..HISTOGRAM
};

/// Client after ten minutes of throughput, compared with one minute and the series recorded since.
pub const TEN_MINUTES_CLIENT: Row = Row {
    name: "memory/10min/client",
    against: "RSS at 1 min + 2x series since (-i 0.1)",
    long: true,
    most_pairs: Some(1),
    ours: |ground| Ok(ten_minutes(ground)?.client.late),
    theirs: &[Peer::only(|ground| {
        Ok(ten_minutes(ground)?.client.allowed())
    })],
    ..HISTOGRAM
};

/// [`TEN_MINUTES_CLIENT`] for the server.
pub const TEN_MINUTES_SERVER: Row = Row {
    name: "memory/10min/server",
    ours: |ground| Ok(ten_minutes(ground)?.server.late),
    theirs: &[Peer::only(|ground| {
        Ok(ten_minutes(ground)?.server.allowed())
    })],
    ..TEN_MINUTES_CLIENT
};

/// Runs as the process under test if the command line requests it.
pub fn as_subject(words: &[String]) -> Option<ExitCode> {
    let [SUBJECT, count] = [words.first()?.as_str(), words.get(1)?.as_str()] else {
        return None;
    };
    let count = count.parse().ok()?;
    let mut histogram = Histogram::new();
    for time in samples(count) {
        histogram.record(time);
    }
    // The printed count prevents the loop from being optimized away, and is checked.
    println!("{} {}", histogram.count(), status_kib("self", "VmHWM")?);
    Some(ExitCode::SUCCESS)
}

/// Times from 1 µs to 10 s, equally many per octave.
///
/// Few samples touch the same pages of a histogram as many, so that only their number differs.
fn samples(count: u64) -> impl Iterator<Item = u64> {
    const LOWEST_NS: f64 = 1e3;
    const OCTAVES: f64 = 23.25;
    // One sample in each of 1000 strata, repeatedly, at a random position within.
    const STRATA: u64 = 1_000;
    // A precomputed table keeps the exponential out of the loop: 10^8 samples take a second.
    let places: Vec<f64> = (0..=STRATA)
        .map(|place| LOWEST_NS * (OCTAVES * place as f64 / STRATA as f64).exp2())
        .collect();
    let mut random = fastrand::Rng::with_seed(1);
    (0..count).map(move |number| {
        let place = (number % STRATA) as usize;
        let (low, high) = (places[place], places[place + 1]);
        (low + (high - low) * random.f64()) as u64
    })
}

fn histogram(count: u64) -> Result<f64, Trouble> {
    let own = std::env::current_exe().map_err(Trouble::system("find this program"))?;
    let output = Command::new(own)
        .args([SUBJECT, &count.to_string()])
        .output()
        .map_err(Trouble::system("start this program again"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace().map(str::parse::<f64>);
    match (words.next(), words.next()) {
        (Some(Ok(counted)), Some(Ok(kib))) if counted == count as f64 => Ok(kib),
        _ => Err(Trouble::program(SUBJECT, format!("it printed {text:?}"))),
    }
}

/// Peak RSS of a client that has made `count` round trips and its record.
fn round_trips(ground: &Ground, count: u64) -> Result<f64, Trouble> {
    let (server, port) = linerate::serve(ground)?;
    let words = format!("latency -u -n {count} -i 0 --wait spin");
    let mut command = linerate::client(ground, &port, &words)?;
    // A pipe too small for the record: the client blocks with its data in memory until the pipe is
    // read, so that its peak RSS can be read at any time.
    let system = |error: rustix::io::Errno| Trouble::system("create a pipe")(error.into());
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    fcntl_setpipe_size(&writer, 4096).map_err(system)?;
    command.stdout(Stdio::from(writer));
    let client = Program::start_into(ground.client()?, None, &mut command)?;
    // The command holds a copy of the pipe's write end, which would keep it open.
    drop(command);
    let limit = Timespec {
        tv_sec: 300,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&limit)).map_err(system)?;
    let peak = status_kib(&client.pid().to_string(), "VmHWM");
    let mut record = String::new();
    fs::File::from(reader)
        .read_to_string(&mut record)
        .map_err(Trouble::system("read the record"))?;
    client.finish(Duration::from_secs(10))?;
    server.finish(Duration::from_secs(10))?;
    let record = serde_json::from_str(&record).map_err(|error| {
        Trouble::program("linerate", format!("its record is not JSON: {error}"))
    })?;
    let made = linerate::figure(&record, "/summary/round_trips")?;
    if made < count as f64 * 0.99 {
        return Err(Trouble::program(
            "linerate latency",
            format!("completed {made} of {count} round trips"),
        ));
    }
    peak.ok_or_else(|| Trouble::program("linerate latency", "it ended before its memory was read"))
}

/// RSS of one end, KiB.
#[derive(Clone, Copy)]
pub struct Growth {
    /// RSS after one minute.
    early: f64,
    /// RSS after ten minutes.
    late: f64,
    /// Size of the intervals that ended in between.
    series: f64,
}

impl Growth {
    /// Limit for `late`: the series counts twice, since a growing vector leaves its old allocation
    /// behind.
    fn allowed(self) -> f64 {
        self.early + 2.0 * self.series
    }
}

/// Both ends of a run of ten minutes.
#[derive(Clone, Copy)]
pub struct TenMinutes {
    client: Growth,
    server: Growth,
}

fn ten_minutes(ground: &Ground) -> Result<TenMinutes, Trouble> {
    if let Some(known) = ground.ten_minutes.get() {
        return Ok(*known);
    }
    const EARLY: Duration = Duration::from_secs(60);
    const LATE: Duration = Duration::from_secs(600);
    const PER_SECOND: u64 = 10;
    let (server, port) = linerate::serve(ground)?;
    let control = ground.congestion_control;
    let words = format!("throughput -t 603 -i 0.1 -C {control}");
    let mut command = linerate::client(ground, &port, &words)?;
    let began = Instant::now();
    let client = Program::start(ground.client()?, None, &mut command)?;
    let at = |moment: Duration| -> Result<[f64; 2], Trouble> {
        thread::sleep(moment.saturating_sub(began.elapsed()));
        let kib = |program: &Program| {
            status_kib(&program.pid().to_string(), "VmRSS")
                .ok_or_else(|| Trouble::program("linerate", "it ended before its memory was read"))
        };
        Ok([kib(&client)?, kib(&server)?])
    };
    let (early, late) = (at(EARLY)?, at(LATE)?);
    client.finish(Duration::from_secs(30))?;
    server.finish(Duration::from_secs(30))?;
    let intervals = (LATE - EARLY).as_secs() * PER_SECOND;
    let series = (intervals * size_of::<Interval>() as u64) as f64 / 1024.0;
    let growth = |end: usize, role: &str| {
        let (early, late) = (early[end], late[end]);
        ground.note(format!(
            "{role}: {early} KiB after 1 min, {late} KiB after 10 min with an interval each 0.1 s: \
             {:.0} B an interval ({} B each in memory); at the default of 1 s a tenth of that",
            (late - early) * 1024.0 / intervals as f64,
            size_of::<Interval>(),
        ));
        Growth {
            early,
            late,
            series,
        }
    };
    let known = TenMinutes {
        client: growth(0, "client"),
        server: growth(1, "server"),
    };
    Ok(*ground.ten_minutes.get_or_init(|| known))
}

/// Size in /proc/PID/status, KiB.
fn status_kib(pid: &str, name: &str) -> Option<f64> {
    kib_of(
        &fs::read_to_string(format!("/proc/{pid}/status")).ok()?,
        name,
    )
}

fn kib_of(status: &str, name: &str) -> Option<f64> {
    let rest = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_process() {
        let status = "Name:\tx\nVmHWM:\t    5120 kB\nVmRSS:\t 4096 kB\n";
        assert_eq!(kib_of(status, "VmHWM"), Some(5120.0));
        assert_eq!(kib_of(status, "VmRSS"), Some(4096.0));
        assert_eq!(kib_of(status, "Vm"), None);
        assert_eq!(kib_of("VmHWM:\tmany kB\n", "VmHWM"), None);
    }

    #[test]
    fn samples_reach_from_a_microsecond_to_ten_seconds() {
        let all: Vec<u64> = samples(1_000).collect();
        assert!(
            all.iter()
                .all(|time| (1_000..=10_100_000_000).contains(time))
        );
        assert!(all[0] < 1_020 && all[999] > 9_000_000_000);
    }
}
