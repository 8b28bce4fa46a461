//! `pcap:` receives from one capture file and sends into another.
//!
//! Reads pcap and pcapng, at full speed or at the recorded times; writes pcapng. After its end a
//! file gives no more frames, unless `loop` restarts it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use linerate_packet::frame::ETHERNET_HEADER_BYTES;
use linerate_packet::pcap::{CaptureError, CaptureReader, CaptureWriter};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use rustix::fs::{FlockOperation, OFlags};

use crate::capabilities::{FrameCopy, PortCapabilities};
use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::kinds::{NameRule, PortKind, common_memory_plan};
use crate::port_url::{PortUrl, UrlKey, ValueKind};
use crate::queue::{AnyPort, PortQueues, RxQueue, TxQueue};

/// Description of the kind `pcap:`.
pub const KIND: PortKind = PortKind {
    scheme: "pcap",
    description: "capture files: receives from one, sends into another",
    name_rule: NameRule::None,
    example: "pcap:rx=in.pcap,tx=out.pcapng",
    extra_keys: &[
        UrlKey {
            name: "rx",
            value_kind: ValueKind::Text("in.pcap"),
            description: "file to receive from, pcap or pcapng",
        },
        UrlKey {
            name: "tx",
            value_kind: ValueKind::Text("out.pcapng"),
            description: "file to send into, pcapng; replaced",
        },
        UrlKey {
            name: "timing",
            value_kind: ValueKind::OneOf(&["full", "recorded"]),
            description: "full speed (the default), or the recorded times",
        },
        UrlKey {
            name: "loop",
            value_kind: ValueKind::Flag,
            description: "restarts the file at its end",
        },
    ],
    descriptors: 32,
    check: |url| {
        if url.text("rx").is_none() && url.text("tx").is_none() {
            return Err(PortError::NoName {
                url: url.to_string(),
                name_kind: "file",
                example: KIND.example,
            });
        }
        match url.common().queues {
            Some(queues) if queues > 1 => {
                let expected = "1, as a file has one order of frames";
                Err(url.bad_value("queues", &queues.to_string(), expected, "1"))
            }
            _ => Ok(()),
        }
    },
    adapt_memory_plan: common_memory_plan,
    open,
};

/// Receives frames from a file.
pub struct PcapReceive {
    source: Option<CaptureSource>,
    counters: Arc<QueueCounters>,
    is_exhausted: bool,
    stop_error: Option<CaptureError>,
}

struct CaptureSource {
    path: PathBuf,
    reader: CaptureReader<File>,
    repeat: bool,
    /// Frames were read since the last start: a file without any is not restarted forever.
    has_frames: bool,
    pace: Option<ReplayPace>,
    /// Frame that was read before its time, and its capture time.
    pending: Option<(Frame, u64)>,
    memory: FrameRegion,
}

impl Drop for CaptureSource {
    fn drop(&mut self) {
        self.memory
            .reclaim(self.pending.take().map(|(frame, _)| frame));
    }
}

/// Schedule of recorded times.
#[derive(Default)]
struct ReplayPace {
    /// Time of the first frame: local clock, and in the file.
    base: Option<(Instant, u64)>,
}

impl ReplayPace {
    fn time_reached(&mut self, now: Instant, time_ns: u64) -> bool {
        let (start, first) = *self.base.get_or_insert((now, time_ns));
        (now - start).as_nanos() >= u128::from(time_ns.saturating_sub(first))
    }
}

/// Sends frames into a file.
pub struct PcapTransmit {
    output: Option<(PathBuf, CaptureWriter<File>)>,
    counters: Arc<QueueCounters>,
    stop_error: Option<std::io::Error>,
    /// Frames of a burst written before an error: they are lost, and the caller does not count them
    /// as sent.
    written_of_burst: u64,
}

fn open(url: &PortUrl, memory: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let mut capabilities = PortCapabilities {
        copies: FrameCopy::EachDirection,
        replays: true,
        ..PortCapabilities::plain(url.to_string(), url.frame_bytes())
    };
    let source = url
        .text("rx")
        .map(|path| CaptureSource::open(path.into(), url, memory));
    let source = source.transpose()?;
    if source.is_none() {
        capabilities
            .notes
            .push("there is no rx=: no frames are received".to_owned());
    }
    let mut output = None;
    if let Some(path) = url.text("tx").map(PathBuf::from) {
        let failed = |source| PortError::File {
            path: path.clone(),
            situation: "it cannot be written".to_owned(),
            next_step: "give tx= a file in a directory where you may write",
            source: Some(source),
        };
        let file = open_to_write(&path)?.map_err(failed)?;
        lock_file(&file, &path, FlockOperation::NonBlockingLockExclusive)?;
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            file.set_len(0).map_err(failed)?;
        }
        let writer = CaptureWriter::new(file).map_err(failed)?;
        output = Some((path, writer));
    } else {
        capabilities.discards = true;
        capabilities
            .notes
            .push("there is no tx=: sent frames are discarded".to_owned());
    }
    let port = PortQueues {
        receive: PcapReceive {
            is_exhausted: source.is_none(),
            source,
            counters: Arc::default(),
            stop_error: None,
        },
        transmit: PcapTransmit {
            output,
            counters: Arc::default(),
            stop_error: None,
            written_of_burst: 0,
        },
        capabilities,
    };
    Ok(vec![port.into_any()])
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
fn lock_file(file: &File, path: &Path, mode: FlockOperation) -> Result<(), PortError> {
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    match is_file.then(|| rustix::fs::flock(file, mode)) {
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
pub fn lock_for_reading(file: &File, path: &Path) -> Result<(), PortError> {
    lock_file(file, path, FlockOperation::NonBlockingLockShared)
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

impl CaptureSource {
    fn open(path: PathBuf, url: &PortUrl, memory: &FrameRegion) -> Result<Self, PortError> {
        let failed = |error| file_error(path.clone(), error);
        let file = linerate_packet::pcap::open_capture(&path).map_err(failed)?;
        lock_for_reading(&file, &path)?;
        let reader = CaptureReader::new(file).map_err(failed)?;
        Ok(Self {
            path,
            reader,
            repeat: url.parse_flag("loop"),
            has_frames: false,
            pace: (url.text("timing") == Some("recorded")).then(ReplayPace::default),
            pending: None,
            memory: memory.clone(),
        })
    }

    /// Reads the next valid frame into a slot of the pool, with its time.
    fn next(
        &mut self,
        pool: &mut FramePool,
        counters: &QueueCounters,
    ) -> Result<NextFrame, CaptureError> {
        loop {
            let Some(record) = self.reader.read()? else {
                if !self.repeat || !self.has_frames {
                    return Ok(NextFrame::End);
                }
                self.reader.restart()?;
                self.has_frames = false;
                self.pace = self.pace.take().map(|_| ReplayPace::default());
                continue;
            };
            let is_complete = record.length as usize <= record.bytes.len();
            if record.bytes.len() > usize::from(pool.memory().frame_bytes()) {
                counters.add_drops(DropCause::TooLong, 1);
            } else if !is_complete || record.bytes.len() < ETHERNET_HEADER_BYTES {
                counters.add_drops(DropCause::Invalid, 1);
            } else {
                let Some(mut frame) = pool.allocate() else {
                    counters.add_drops(DropCause::NoBuffer, 1);
                    return Ok(NextFrame::NoSlot);
                };
                frame.set_len(record.bytes.len() as u16);
                let target = pool.memory().bytes_mut(&mut frame);
                target.copy_from_slice(record.bytes);
                self.has_frames = true;
                return Ok(NextFrame::Frame(frame, record.time_ns.unwrap_or(0)));
            }
        }
    }
}

enum NextFrame {
    Frame(Frame, u64),
    NoSlot,
    End,
}

impl PcapReceive {
    fn fill(&mut self, pool: &mut FramePool, burst: &mut Burst) -> Result<bool, CaptureError> {
        let Some(source) = &mut self.source else {
            return Ok(true);
        };
        // The clock is read once a burst: one time applies to all of it.
        let now = source.pace.as_ref().map(|_| Instant::now());
        while !burst.is_full() {
            let (frame, time_ns) = match source.pending.take() {
                Some(pending) => pending,
                None => match source.next(pool, &self.counters)? {
                    NextFrame::Frame(frame, time_ns) => (frame, time_ns),
                    NextFrame::NoSlot => break,
                    NextFrame::End => return Ok(true),
                },
            };
            if let (Some(pace), Some(now)) = (&mut source.pace, now)
                && !pace.time_reached(now, time_ns)
            {
                source.pending = Some((frame, time_ns));
                break;
            }
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "the burst has room");
        }
        Ok(false)
    }
}

impl RxQueue for PcapReceive {
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        if self.is_exhausted || self.stop_error.is_some() {
            return 0;
        }
        let (before, bytes_before) = (burst.len(), burst.bytes());
        match self.fill(pool, burst) {
            Ok(is_exhausted) => self.is_exhausted = is_exhausted,
            Err(error) => self.stop_error = Some(error),
        }
        let count = burst.len() - before;
        if count > 0 {
            self.counters
                .add_frames(count, burst.bytes() - bytes_before);
        }
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        match (&self.source, self.stop_error.take()) {
            (Some(source), Some(error)) => {
                self.is_exhausted = true;
                Err(file_error(source.path.clone(), error))
            }
            _ => Ok(()),
        }
    }
}

impl PcapTransmit {
    fn write(&mut self, pool: &FramePool, burst: &Burst) -> std::io::Result<()> {
        let Some((_, writer)) = &mut self.output else {
            return Ok(());
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time_ns = now.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(0));
        for (before, frame) in (0..).zip(burst.frames()) {
            let written = writer.write(time_ns, pool.memory().bytes(frame));
            written.inspect_err(|_| self.written_of_burst = before)?;
        }
        Ok(())
    }
}

impl TxQueue for PcapTransmit {
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        if burst.is_empty() || self.stop_error.is_some() {
            return 0;
        }
        let bytes = burst.bytes();
        if let Err(error) = self.write(pool, burst) {
            self.stop_error = Some(error);
            return 0;
        }
        let count = pool.free_all(burst);
        self.counters.add_frames(count, bytes);
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// Also writes the buffered frames.
    fn refresh(&mut self) -> Result<(), PortError> {
        let Some((path, writer)) = &mut self.output else {
            return Ok(());
        };
        let result = match self.stop_error.take() {
            Some(error) => Err(error),
            None => writer.flush(),
        };
        result.map_err(|source| {
            // No more is written: a gap would look like frames that were never sent.
            self.stop_error = Some(source.kind().into());
            let situation = match writer.unwritten().saturating_sub(self.written_of_burst) {
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
