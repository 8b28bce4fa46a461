//! `pcap:` receives from one capture file and sends into another.
//!
//! Reads pcap and pcapng, at full speed or at the recorded times; writes pcapng. After its end a
//! file gives no more frames, unless `loop` restarts it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags};

use crate::capabilities::{Capabilities, Copies};
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::kinds::{Kind, Name, usual_memory};
use crate::pcap::{CaptureError, CaptureReader, CaptureWriter};
use crate::port_url::{Key, PortUrl, Value};
use crate::queue::{AnyPort, Pair, Receive, Transmit};
use crate::sys::burst::Burst;
use crate::sys::frame::Frame;
use crate::sys::frame_memory::Memory;

/// Description of the kind `pcap:`.
pub const KIND: Kind = Kind {
    scheme: "pcap",
    about: "capture files: receives from one, sends into another",
    name: Name::None,
    example: "pcap:rx=in.pcap,tx=out.pcapng",
    keys: &[
        Key {
            name: "rx",
            value: Value::Text("in.pcap"),
            about: "file to receive from, pcap or pcapng",
        },
        Key {
            name: "tx",
            value: Value::Text("out.pcapng"),
            about: "file to send into, pcapng; replaced",
        },
        Key {
            name: "timing",
            value: Value::OneOf(&["full", "recorded"]),
            about: "full speed (the default), or the recorded times",
        },
        Key {
            name: "loop",
            value: Value::Flag,
            about: "restarts the file at its end",
        },
    ],
    descriptors: 32,
    check: |url| {
        if url.text("rx").is_none() && url.text("tx").is_none() {
            return Err(PortError::NoName {
                url: url.to_string(),
                what: "file",
                example: KIND.example,
            });
        }
        match url.common().queues {
            Some(queues) if queues > 1 => {
                let wanted = "1, as a file has one order of frames";
                Err(url.bad_value("queues", &queues.to_string(), wanted, "1"))
            }
            _ => Ok(()),
        }
    },
    memory: usual_memory,
    open,
};

/// Bytes of an Ethernet header.
const HEADER_BYTES: usize = 14;

/// Receives frames from a file.
pub struct PcapReceive {
    source: Option<Source>,
    counters: Arc<QueueCounters>,
    ended: bool,
    stopped: Option<CaptureError>,
}

struct Source {
    path: PathBuf,
    reader: CaptureReader<File>,
    repeat: bool,
    /// Frames were read since the last start: a file without any is not restarted forever.
    fruitful: bool,
    pace: Option<Pace>,
    /// Frame that was read before its time, and its capture time.
    early: Option<(Frame, u64)>,
    memory: Memory,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.memory
            .take_back(self.early.take().map(|(frame, _)| frame));
    }
}

/// Schedule of recorded times.
#[derive(Default)]
struct Pace {
    /// Time of the first frame: local clock, and in the file.
    base: Option<(Instant, u64)>,
}

impl Pace {
    fn is_due(&mut self, now: Instant, time_ns: u64) -> bool {
        let (start, first) = *self.base.get_or_insert((now, time_ns));
        (now - start).as_nanos() >= u128::from(time_ns.saturating_sub(first))
    }
}

/// Sends frames into a file.
pub struct PcapTransmit {
    sink: Option<(PathBuf, CaptureWriter<File>)>,
    counters: Arc<QueueCounters>,
    stopped: Option<std::io::Error>,
    /// Frames of a burst written before an error: they are lost, and the caller does not count them
    /// as sent.
    uncounted: u64,
}

fn open(url: &PortUrl, memory: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let mut capabilities = Capabilities {
        copies: Copies::EachWay,
        replays: true,
        ..Capabilities::plain(url.to_string(), url.frame_bytes())
    };
    let source = url
        .text("rx")
        .map(|path| Source::open(path.into(), url, memory));
    let source = source.transpose()?;
    if source.is_none() {
        capabilities
            .notes
            .push("there is no rx=: no frames are received".to_owned());
    }
    let mut sink = None;
    if let Some(path) = url.text("tx").map(PathBuf::from) {
        let failed = |source| PortError::File {
            path: path.clone(),
            situation: "it cannot be written".to_owned(),
            next_step: "give tx= a file in a directory where you may write",
            source: Some(source),
        };
        let file = open_to_write(&path)?.map_err(failed)?;
        hold(&file, &path, FlockOperation::NonBlockingLockExclusive)?;
        if file.metadata().is_ok_and(|facts| facts.is_file()) {
            file.set_len(0).map_err(failed)?;
        }
        let writer = CaptureWriter::new(file).map_err(failed)?;
        sink = Some((path, writer));
    } else {
        capabilities.discards = true;
        capabilities
            .notes
            .push("there is no tx=: sent frames are discarded".to_owned());
    }
    let port = Pair {
        receive: PcapReceive {
            ended: source.is_none(),
            source,
            counters: Arc::default(),
            stopped: None,
        },
        transmit: PcapTransmit {
            sink,
            counters: Arc::default(),
            stopped: None,
            uncounted: 0,
        },
        capabilities,
    };
    Ok(vec![port.any()])
}

/// Opens a file to write, without truncating it: that happens after the check that no port reads
/// it. Rejects a pipe without a reader: opening it would block until there is one, without reacting
/// to Ctrl-C.
fn open_to_write(path: &Path) -> Result<std::io::Result<File>, PortError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.custom_flags(libc::O_NONBLOCK).open(path);
    if let Err(error) = &file
        && error.raw_os_error() == Some(libc::ENXIO)
    {
        return Err(PortError::File {
            path: path.to_owned(),
            situation: "it is a pipe without a reader".to_owned(),
            next_step: "start the reader first, as `wireshark -k -i` with its name",
            source: None,
        });
    }
    Ok(file.and_then(|file| {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(file)
    }))
}

/// Locks a file while it is open, so that no port writes a file that another one reads or writes,
/// under any name. Anything but a regular file, or on a filesystem without locks, is used without a
/// lock.
fn hold(file: &File, path: &Path, how: FlockOperation) -> Result<(), PortError> {
    let is_file = file.metadata().is_ok_and(|facts| facts.is_file());
    match is_file.then(|| rustix::fs::flock(file, how)) {
        Some(Err(rustix::io::Errno::WOULDBLOCK)) => Err(PortError::File {
            path: path.to_owned(),
            situation: "it would be read and written, or written twice, at the same time"
                .to_owned(),
            next_step: "give rx= and tx= files of their own",
            source: None,
        }),
        _ => Ok(()),
    }
}

/// Prevents all ports from writing a file while it is open.
///
/// # Errors
/// [`PortError::File`] if a port already writes it.
pub fn hold_to_read(file: &File, path: &Path) -> Result<(), PortError> {
    hold(file, path, FlockOperation::NonBlockingLockShared)
}

fn file_error(path: PathBuf, error: CaptureError) -> PortError {
    let situation = error.to_string();
    let (next_step, source) = match error {
        CaptureError::Io(source) => ("give rx= a file that you may read", Some(source)),
        CaptureError::LinkType { .. } => ("capture on an Ethernet interface", None),
        _ => ("give rx= a complete pcap or pcapng file", None),
    };
    PortError::File {
        path,
        situation,
        next_step,
        source,
    }
}

impl Source {
    fn open(path: PathBuf, url: &PortUrl, memory: &Memory) -> Result<Self, PortError> {
        let failed = |error| file_error(path.clone(), error);
        let file = crate::pcap::open(&path).map_err(failed)?;
        hold_to_read(&file, &path)?;
        let reader = CaptureReader::new(file).map_err(failed)?;
        Ok(Self {
            path,
            reader,
            repeat: url.flag("loop"),
            fruitful: false,
            pace: (url.text("timing") == Some("recorded")).then(Pace::default),
            early: None,
            memory: memory.clone(),
        })
    }

    /// Reads the next valid frame into a slot of the pool, with its time.
    fn next(&mut self, pool: &mut Pool, counters: &QueueCounters) -> Result<Next, CaptureError> {
        loop {
            let Some(record) = self.reader.read()? else {
                if !self.repeat || !self.fruitful {
                    return Ok(Next::End);
                }
                self.reader.restart()?;
                self.fruitful = false;
                self.pace = self.pace.take().map(|_| Pace::default());
                continue;
            };
            let whole = record.length as usize <= record.bytes.len();
            if record.bytes.len() > usize::from(pool.memory().frame_bytes()) {
                counters.dropped(Cause::TooLong, 1);
            } else if !whole || record.bytes.len() < HEADER_BYTES {
                counters.dropped(Cause::Bad, 1);
            } else {
                let Some(mut frame) = pool.allocate() else {
                    counters.dropped(Cause::NoBuffer, 1);
                    return Ok(Next::NoSlot);
                };
                frame.set_len(record.bytes.len() as u16);
                let place = pool.memory().bytes_mut(&mut frame);
                place.copy_from_slice(record.bytes);
                self.fruitful = true;
                return Ok(Next::Frame(frame, record.time_ns.unwrap_or(0)));
            }
        }
    }
}

enum Next {
    Frame(Frame, u64),
    NoSlot,
    End,
}

impl PcapReceive {
    fn fill(&mut self, pool: &mut Pool, burst: &mut Burst) -> Result<bool, CaptureError> {
        let Some(source) = &mut self.source else {
            return Ok(true);
        };
        // The clock is read once a burst: one time applies to all of it.
        let now = source.pace.as_ref().map(|_| Instant::now());
        while !burst.is_full() {
            let (frame, time_ns) = match source.early.take() {
                Some(early) => early,
                None => match source.next(pool, &self.counters)? {
                    Next::Frame(frame, time_ns) => (frame, time_ns),
                    Next::NoSlot => break,
                    Next::End => return Ok(true),
                },
            };
            if let (Some(pace), Some(now)) = (&mut source.pace, now)
                && !pace.is_due(now, time_ns)
            {
                source.early = Some((frame, time_ns));
                break;
            }
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "the burst has room");
        }
        Ok(false)
    }
}

impl Receive for PcapReceive {
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        if self.ended || self.stopped.is_some() {
            return 0;
        }
        let (before, bytes_before) = (burst.len(), burst.bytes());
        match self.fill(pool, burst) {
            Ok(ended) => self.ended = ended,
            Err(error) => self.stopped = Some(error),
        }
        let count = burst.len() - before;
        if count > 0 {
            self.counters.moved(count, burst.bytes() - bytes_before);
        }
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn ended(&self) -> bool {
        self.ended
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        match (&self.source, self.stopped.take()) {
            (Some(source), Some(error)) => {
                self.ended = true;
                Err(file_error(source.path.clone(), error))
            }
            _ => Ok(()),
        }
    }
}

impl PcapTransmit {
    fn write(&mut self, pool: &Pool, burst: &Burst) -> std::io::Result<()> {
        let Some((_, writer)) = &mut self.sink else {
            return Ok(());
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time_ns = now.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(0));
        for (before, frame) in (0..).zip(burst.frames()) {
            let written = writer.write(time_ns, pool.memory().bytes(frame));
            written.inspect_err(|_| self.uncounted = before)?;
        }
        Ok(())
    }
}

impl Transmit for PcapTransmit {
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        if burst.is_empty() || self.stopped.is_some() {
            return 0;
        }
        let bytes = burst.bytes();
        if let Err(error) = self.write(pool, burst) {
            self.stopped = Some(error);
            return 0;
        }
        let count = pool.free_all(burst);
        self.counters.moved(count, bytes);
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// Also writes the buffered frames.
    fn refresh(&mut self) -> Result<(), PortError> {
        let Some((path, writer)) = &mut self.sink else {
            return Ok(());
        };
        let result = match self.stopped.take() {
            Some(error) => Err(error),
            None => writer.flush(),
        };
        result.map_err(|source| {
            // No more is written: a gap would look like frames that were never sent.
            self.stopped = Some(source.kind().into());
            let situation = match writer.unwritten().saturating_sub(self.uncounted) {
                0 => "it cannot be written".to_owned(),
                frames => format!(
                    "it cannot be written, and up to {frames} of the frames counted as sent are not in it"
                ),
            };
            PortError::File {
                path: path.clone(),
                situation,
                next_step: "free space on its disk, or give tx= another file",
                source: Some(source),
            }
        })
    }
}
