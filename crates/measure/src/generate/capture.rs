//! Frames of a capture file, in memory, so that no file is read while they are sent.

use std::fs::File;
use std::path::{Path, PathBuf};

use linerate_metric::generate::FCS_BYTES;
use linerate_metric::units::format_count;
use linerate_port::kind::pcap::hold_to_read;
use linerate_port::pcap::{self, CaptureError, CaptureReader};

use crate::MeasureError;

/// Most bytes of a capture that are kept.
const MOST_BYTES: usize = 1 << 30;

/// A capture's frames.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    /// Held open, so that no port that is opened later empties the file to write it.
    _file: File,
    bytes: Box<[u8]>,
    /// Where each frame ends, and when it was captured, from the first one on.
    frames: Box<[(usize, u64)]>,
    recorded: bool,
    /// From the first frame to the first one of the next round.
    span_ns: u64,
}

impl Capture {
    /// Reads a file; `recorded` keeps the times between its frames.
    ///
    /// # Errors
    /// [`MeasureError::Generator`] when it cannot be read, is none, has no frame, or frames that were captured in part; [`MeasureError::Port`] when
    /// a port writes it.
    pub fn read(path: &Path, recorded: bool) -> Result<Self, MeasureError> {
        let refused = |situation: String| MeasureError::Generator {
            object: path.display().to_string(),
            situation,
            next_step: "give a pcap or pcapng file of Ethernet frames".to_owned(),
        };
        let file = pcap::open(path).map_err(|error| match error {
            CaptureError::Io(why) => refused(format!("cannot be opened ({why})")),
            other => refused(other.to_string()),
        })?;
        hold_to_read(&file, path)?;
        let held = file
            .try_clone()
            .map_err(|source| MeasureError::system("keeping a capture open", source))?;
        let mut reader = CaptureReader::new(file).map_err(|error| refused(error.to_string()))?;
        let (mut bytes, mut frames) = (Vec::new(), Vec::new());
        let mut first = None;
        let (mut cut, mut all) = (0_u64, 0_u64);
        while let Some(record) = reader.read().map_err(|error| refused(error.to_string()))? {
            all += 1;
            if (record.length as usize) > record.bytes.len() {
                cut += 1;
                continue;
            }
            if u16::try_from(record.bytes.len()).is_err() || record.bytes.len() < 14 {
                return Err(refused("it has a frame that no port can send".to_owned()));
            }
            bytes.extend(record.bytes);
            if bytes.len() > MOST_BYTES {
                return Err(refused("it has more than 1 GiB of frames".to_owned()));
            }
            let time = match (recorded, record.time_ns) {
                (true, None) => return Err(refused("it does not say when frames came".to_owned())),
                (_, time) => time.unwrap_or(0),
            };
            // A clock that was set back while capturing must not hold frames for ever.
            let before = frames.last().map_or(0, |&(_, before)| before);
            let since = time.saturating_sub(*first.get_or_insert(time)).max(before);
            frames.push((bytes.len(), since));
        }
        if cut > 0 {
            return Err(MeasureError::Generator {
                object: path.display().to_string(),
                situation: format!(
                    "of its {} frames {} were captured in part, and what is missing cannot be sent",
                    format_count(all),
                    format_count(cut)
                ),
                next_step: "capture whole frames (`tcpdump -s 0`)".to_owned(),
            });
        }
        let Some(&(_, last)) = frames.last() else {
            return Err(refused("it has no frames".to_owned()));
        };
        // The next round begins after the mean gap of this one.
        let gap = last / (frames.len() as u64 - 1).max(1);
        Ok(Self {
            path: path.to_owned(),
            _file: held,
            span_ns: last + gap.max(1),
            bytes: bytes.into(),
            frames: frames.into(),
            recorded,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Never: a capture without a frame is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether frames leave at their recorded times.
    #[must_use]
    pub fn recorded_times(&self) -> bool {
        self.recorded
    }

    /// The bytes of a frame, without check sequence.
    #[inline]
    #[must_use]
    pub fn frame(&self, number: usize) -> &[u8] {
        let from = number
            .checked_sub(1)
            .map_or(0, |before| self.frames[before].0);
        &self.bytes[from..self.frames[number].0]
    }

    /// When a frame of a round is due after the first one of all.
    #[must_use]
    pub fn due_ns(&self, number: usize, round: u64) -> u64 {
        round
            .saturating_mul(self.span_ns)
            .saturating_add(self.frames[number].1)
    }

    /// Bytes of the largest frame, without check sequence.
    #[must_use]
    pub fn largest(&self) -> u16 {
        let sizes = (0..self.len()).map(|number| self.frame(number).len());
        sizes
            .max()
            .and_then(|size| u16::try_from(size).ok())
            .unwrap_or(0)
    }

    /// Mean size with check sequence.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.bytes.len() as f64 / self.len() as f64 + f64::from(FCS_BYTES)
    }
}
