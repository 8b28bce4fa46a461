//! Frames of a capture file, held in memory: no file is read while they are sent.

use std::fs::File;
use std::path::{Path, PathBuf};

use linerate_packet::pcap;
use linerate_packet::pcap::{CaptureError, CaptureReader};
use linerate_port::FrameRunError;
use linerate_port::kinds::pcap::lock_for_reading;
use linerate_record::generate::FCS_BYTES;
use linerate_stats::units::format_count;

/// Maximum bytes of frames of a capture.
const MAX_FRAME_BYTES_TOTAL: usize = 1 << 30;

/// Frames of a capture file.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    /// Held open with a lock, so that a port that is opened later does not truncate the file to
    /// write it.
    _file: File,
    bytes: Box<[u8]>,
    /// End offset of each frame in `bytes`, and its time relative to the first frame.
    frames: Box<[(usize, u64)]>,
    keeps_times: bool,
    /// Time from the first frame to the first frame of the next round.
    round_ns: u64,
}

impl Capture {
    /// Reads a file; `keeps_times` keeps the times between its frames.
    ///
    /// # Errors
    /// [`FrameRunError::Setup`] if it cannot be read, is no capture, has no frame, or has
    /// truncated frames; [`FrameRunError::Port`] if a port writes it.
    pub fn read(path: &Path, keeps_times: bool) -> Result<Self, FrameRunError> {
        let rejection = |situation: String| FrameRunError::Setup {
            object: path.display().to_string(),
            situation,
            next_step: "give a pcap or pcapng file of Ethernet frames".to_owned(),
        };
        let file = pcap::open_capture(path).map_err(|error| match error {
            CaptureError::Io(why) => rejection(format!("cannot be opened ({why})")),
            capture_error => rejection(capture_error.to_string()),
        })?;
        lock_for_reading(&file, path)?;
        let lock_file = file
            .try_clone()
            .map_err(|source| FrameRunError::system("keeping a capture open", source))?;
        let mut reader = CaptureReader::new(file).map_err(|error| rejection(error.to_string()))?;
        let (mut bytes, mut frames) = (Vec::new(), Vec::new());
        let mut first = None;
        let (mut truncated, mut total) = (0_u64, 0_u64);
        while let Some(record) = reader
            .read()
            .map_err(|error| rejection(error.to_string()))?
        {
            total += 1;
            if (record.length as usize) > record.bytes.len() {
                truncated += 1;
                continue;
            }
            if u16::try_from(record.bytes.len()).is_err() || record.bytes.len() < 14 {
                return Err(rejection(
                    "it has a frame shorter than 14 or longer than 65,535 bytes".to_owned(),
                ));
            }
            bytes.extend(record.bytes);
            if bytes.len() > MAX_FRAME_BYTES_TOTAL {
                return Err(rejection("its frames exceed 1 GiB".to_owned()));
            }
            let time = match (keeps_times, record.time_ns) {
                (true, None) => return Err(rejection("it has no timestamps".to_owned())),
                (_, time) => time.unwrap_or(0),
            };
            // A clock that was set back during the capture must not delay frames forever.
            let before = frames.last().map_or(0, |&(_, before)| before);
            let offset_ns = time.saturating_sub(*first.get_or_insert(time)).max(before);
            frames.push((bytes.len(), offset_ns));
        }
        if truncated > 0 {
            return Err(FrameRunError::Setup {
                object: path.display().to_string(),
                situation: format!(
                    "{} of its {} frames are truncated and cannot be sent",
                    format_count(truncated),
                    format_count(total)
                ),
                next_step: "capture complete frames (`tcpdump -s 0`)".to_owned(),
            });
        }
        let Some(&(_, last)) = frames.last() else {
            return Err(rejection("it has no frames".to_owned()));
        };
        // The next round starts after the mean gap of this one.
        let gap = last / (frames.len() as u64 - 1).max(1);
        Ok(Self {
            path: path.to_owned(),
            _file: lock_file,
            round_ns: last + gap.max(1),
            bytes: bytes.into(),
            frames: frames.into(),
            keeps_times,
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns false always: a capture without frames is rejected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns whether frames leave at their recorded times.
    #[must_use]
    pub fn recorded_times(&self) -> bool {
        self.keeps_times
    }

    /// Returns the bytes of a frame, without FCS.
    #[inline]
    #[must_use]
    pub fn frame(&self, number: usize) -> &[u8] {
        let start = number
            .checked_sub(1)
            .map_or(0, |before| self.frames[before].0);
        &self.bytes[start..self.frames[number].0]
    }

    /// Returns the deadline of a frame in a round, relative to the first frame of the first round.
    #[must_use]
    pub fn deadline_ns(&self, number: usize, round: u64) -> u64 {
        round
            .saturating_mul(self.round_ns)
            .saturating_add(self.frames[number].1)
    }

    /// Returns the length of the longest frame in bytes, without FCS.
    #[must_use]
    pub fn largest(&self) -> u16 {
        let sizes = (0..self.len()).map(|number| self.frame(number).len());
        sizes
            .max()
            .and_then(|size| u16::try_from(size).ok())
            .unwrap_or(0)
    }

    /// Returns the mean length in bytes, with FCS.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.bytes.len() as f64 / self.len() as f64 + f64::from(FCS_BYTES)
    }
}
