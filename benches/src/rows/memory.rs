//! Memory growth of long runs.

use std::fs;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use linerate_record::record::Interval;
use linerate_stats::histogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::bench_env::{BenchEnv, DefaultCongestion};
use crate::error::BenchError;
use crate::peer::linerate;
use crate::process::HostProgram;
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// First argument that makes this program the process under test.
const SUBJECT_ARG: &str = "record-samples";

/// Number of pairs; memory is not noisy, it changes by pages.
const MAX_PAIRS: usize = 3;

/// Histogram alone: 10^8 samples compared with 10^3.
pub const HISTOGRAM_ROW: BenchRow = BenchRow {
    name: "memory/histogram",
    against: "10^3 samples instead of 10^8, peak RSS",
    unit: "KiB",
    mark: RatioMark::AtMost(1.02),
    is_speed: false,
    needs_near_state: false,
    holds_idle_states: false,
    default_congestion: DefaultCongestion::Cubic,
    is_long: false,
    max_pairs: Some(MAX_PAIRS),
    slices_per_pair: 1,
    check_requirements: |_| Ok(()),
    measure: |_| measure_histogram(100_000_000),
    peers: &[BenchPeer::single(|_| measure_histogram(1_000))],
};

/// Complete client: 2 million round trips compared with a thousand.
pub const ROUND_TRIPS_ROW: BenchRow = BenchRow {
    name: "memory/round_trips",
    against: "1000 round trips instead of 2 million, peak RSS",
    mark: RatioMark::AtMost(1.05),
    measure: |env| measure_round_trips(env, 2_000_000),
    peers: &[BenchPeer::single(|env| measure_round_trips(env, 1_000))],
    ..HISTOGRAM_ROW
};

/// Client after ten minutes of throughput, compared with one minute and the series recorded since.
pub const TEN_MINUTES_CLIENT: BenchRow = BenchRow {
    name: "memory/10min/client",
    against: "RSS at 1 min + 2x series since (-i 0.1)",
    is_long: true,
    max_pairs: Some(1),
    measure: |env| Ok(measure_ten_minutes(env)?.client.late_kib),
    peers: &[BenchPeer::single(|env| {
        Ok(measure_ten_minutes(env)?.client.limit_kib())
    })],
    ..HISTOGRAM_ROW
};

/// [`TEN_MINUTES_CLIENT`] for the server.
pub const TEN_MINUTES_SERVER: BenchRow = BenchRow {
    name: "memory/10min/server",
    measure: |env| Ok(measure_ten_minutes(env)?.server.late_kib),
    peers: &[BenchPeer::single(|env| {
        Ok(measure_ten_minutes(env)?.server.limit_kib())
    })],
    ..TEN_MINUTES_CLIENT
};

/// Runs as the process under test if the command line requests it.
pub fn run_as_subject(args: &[String]) -> Option<ExitCode> {
    let [SUBJECT_ARG, count] = [args.first()?.as_str(), args.get(1)?.as_str()] else {
        return None;
    };
    let count = count.parse().ok()?;
    let mut histogram = Histogram::new();
    for time in sample_times(count) {
        histogram.record(time);
    }
    // The printed count prevents the loop from being optimized away, and is checked.
    println!("{} {}", histogram.count(), status_kib("self", "VmHWM")?);
    Some(ExitCode::SUCCESS)
}

/// Times from 1 µs to 10 s, equally many per octave.
///
/// Few samples touch the same pages of a histogram as many, so that only their number differs.
fn sample_times(count: u64) -> impl Iterator<Item = u64> {
    const LOWEST_NS: f64 = 1e3;
    const OCTAVES: f64 = 23.25;
    // One sample in each of 1000 strata, repeatedly, at a random position within.
    const STRATA: u64 = 1_000;
    // A precomputed table keeps the exponential out of the loop: 10^8 samples take a second.
    let bounds: Vec<f64> = (0..=STRATA)
        .map(|stratum| LOWEST_NS * (OCTAVES * stratum as f64 / STRATA as f64).exp2())
        .collect();
    let mut random = fastrand::Rng::with_seed(1);
    (0..count).map(move |number| {
        let stratum = (number % STRATA) as usize;
        let (low, high) = (bounds[stratum], bounds[stratum + 1]);
        (low + (high - low) * random.f64()) as u64
    })
}

fn measure_histogram(count: u64) -> Result<f64, BenchError> {
    let own_path = std::env::current_exe().map_err(BenchError::system_call("find this program"))?;
    let output = Command::new(own_path)
        .args([SUBJECT_ARG, &count.to_string()])
        .output()
        .map_err(BenchError::system_call("start this program again"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut args = text.split_whitespace().map(str::parse::<f64>);
    match (args.next(), args.next()) {
        (Some(Ok(counted)), Some(Ok(kib))) if counted == count as f64 => Ok(kib),
        _ => Err(BenchError::program_failed(
            SUBJECT_ARG,
            format!("it printed {text:?}"),
        )),
    }
}

/// Peak RSS of a client that has made `count` round trips and its record.
fn measure_round_trips(env: &BenchEnv, count: u64) -> Result<f64, BenchError> {
    let (server, port) = linerate::start_server(env)?;
    let args = format!("latency -u -n {count} -i 0 --wait spin");
    let mut command = linerate::client_command(env, &port, &args)?;
    // A pipe too small for the record: the client blocks with its data in memory until the pipe is
    // read, so that its peak RSS can be read at any time.
    let system = |error: rustix::io::Errno| BenchError::system_call("create a pipe")(error.into());
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    fcntl_setpipe_size(&writer, 4096).map_err(system)?;
    command.stdout(Stdio::from(writer));
    let client = HostProgram::start_with_output(env.client()?, None, &mut command)?;
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
        .map_err(BenchError::system_call("read the record"))?;
    client.wait_for_end(Duration::from_secs(10))?;
    server.wait_for_end(Duration::from_secs(10))?;
    let record = serde_json::from_str(&record).map_err(|error| {
        BenchError::program_failed("linerate", format!("its record is not JSON: {error}"))
    })?;
    let completed = linerate::read_figure(&record, "/summary/round_trips")?;
    if completed < count as f64 * 0.99 {
        return Err(BenchError::program_failed(
            "linerate latency",
            format!("completed {completed} of {count} round trips"),
        ));
    }
    peak.ok_or_else(|| {
        BenchError::program_failed("linerate latency", "it ended before its memory was read")
    })
}

/// RSS of one end, KiB.
#[derive(Clone, Copy)]
pub struct MemoryGrowth {
    /// RSS after one minute.
    early_kib: f64,
    /// RSS after ten minutes.
    late_kib: f64,
    /// Size of the intervals that ended in between.
    series_kib: f64,
}

impl MemoryGrowth {
    /// Limit for `late_kib`: the series counts twice, since a growing vector leaves its old
    /// allocation behind.
    fn limit_kib(self) -> f64 {
        self.early_kib + 2.0 * self.series_kib
    }
}

/// Both ends of a run of ten minutes.
#[derive(Clone, Copy)]
pub struct TenMinuteRun {
    client: MemoryGrowth,
    server: MemoryGrowth,
}

fn measure_ten_minutes(env: &BenchEnv) -> Result<TenMinuteRun, BenchError> {
    if let Some(run) = env.ten_minutes.get() {
        return Ok(*run);
    }
    const EARLY_AFTER: Duration = Duration::from_secs(60);
    const LATE_AFTER: Duration = Duration::from_secs(600);
    const PER_SECOND: u64 = 10;
    let (server, port) = linerate::start_server(env)?;
    let control = env.congestion_control;
    let args = format!("throughput -t 603 -i 0.1 -C {control}");
    let mut command = linerate::client_command(env, &port, &args)?;
    let began = Instant::now();
    let client = HostProgram::start(env.client()?, None, &mut command)?;
    let rss_after = |time: Duration| -> Result<[f64; 2], BenchError> {
        thread::sleep(time.saturating_sub(began.elapsed()));
        let kib = |program: &HostProgram| {
            status_kib(&program.pid().to_string(), "VmRSS").ok_or_else(|| {
                BenchError::program_failed("linerate", "it ended before its memory was read")
            })
        };
        Ok([kib(&client)?, kib(&server)?])
    };
    let (early_kib, late_kib) = (rss_after(EARLY_AFTER)?, rss_after(LATE_AFTER)?);
    client.wait_for_end(Duration::from_secs(30))?;
    server.wait_for_end(Duration::from_secs(30))?;
    let intervals = (LATE_AFTER - EARLY_AFTER).as_secs() * PER_SECOND;
    let series_kib = (intervals * size_of::<Interval>() as u64) as f64 / 1024.0;
    let growth = |end: usize, role: &str| {
        let (early_kib, late_kib) = (early_kib[end], late_kib[end]);
        env.add_note(format!(
            "{role}: {early_kib} KiB after 1 min, {late_kib} KiB after 10 min with an interval each 0.1 s: \
             {:.0} B an interval ({} B each in memory); at the default of 1 s a tenth of that",
            (late_kib - early_kib) * 1024.0 / intervals as f64,
            size_of::<Interval>(),
        ));
        MemoryGrowth {
            early_kib,
            late_kib,
            series_kib,
        }
    };
    let run = TenMinuteRun {
        client: growth(0, "client"),
        server: growth(1, "server"),
    };
    Ok(*env.ten_minutes.get_or_init(|| run))
}

/// Size in /proc/PID/status, KiB.
fn status_kib(pid: &str, name: &str) -> Option<f64> {
    parse_kib(
        &fs::read_to_string(format!("/proc/{pid}/status")).ok()?,
        name,
    )
}

fn parse_kib(status: &str, name: &str) -> Option<f64> {
    let rest = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        let status = "Name:\tx\nVmHWM:\t    5120 kB\nVmRSS:\t 4096 kB\n";
        assert_eq!(parse_kib(status, "VmHWM"), Some(5120.0));
        assert_eq!(parse_kib(status, "VmRSS"), Some(4096.0));
        assert_eq!(parse_kib(status, "Vm"), None);
        assert_eq!(parse_kib("VmHWM:\tmany kB\n", "VmHWM"), None);
    }

    #[test]
    fn samples_reach_from_a_microsecond_to_ten_seconds() {
        let all: Vec<u64> = sample_times(1_000).collect();
        assert!(
            all.iter()
                .all(|time| (1_000..=10_100_000_000).contains(time))
        );
        assert!(all[0] < 1_020 && all[999] > 9_000_000_000);
    }
}
