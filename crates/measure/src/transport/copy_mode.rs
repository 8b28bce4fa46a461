//! Copy modes of sending: MSG_ZEROCOPY, `sendfile`, and `vmsplice` with `splice`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::zerocopy::{self, Pipe};
use linerate_metric::record::ZeroCopy;
use rustix::fs::{MemfdFlags, memfd_create};

use super::call_times::{Call, Found, Recorder};
use super::kernel::Buffer;

/// Send path of a flow whose payload is not copied from user memory.
pub enum Way {
    /// MSG_ZEROCOPY.
    ZeroCopy(Box<ZeroCopySends>),
    /// `sendfile`, from memory that the program does not touch.
    File(Arc<File>),
    /// `vmsplice` and `splice`.
    Pipe(Pipe),
}

/// Creates a file in memory (memfd) without zero bytes: zeros would all map to one page.
pub fn memory_file(bytes: usize) -> io::Result<File> {
    static PIECE: [u8; 64 << 10] = [0xa5; 64 << 10];
    let mut file = File::from(memfd_create("payload", MemfdFlags::CLOEXEC)?);
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(PIECE.len());
        file.write_all(&PIECE[..piece])?;
        left -= piece;
    }
    Ok(file)
}

/// Send buffers of a flow for MSG_ZEROCOPY, used in rotation: a buffer that the kernel still reads
/// must not be overwritten.
const PLACES: usize = 16;

/// Returns the memory of one flow's send buffers when a call sends up to `place_bytes`; `None` on
/// overflow.
pub fn zero_copy_bytes(place_bytes: usize) -> Option<u64> {
    /// Page alignment of a buffer.
    const ALIGNED: u64 = 4096;
    (PLACES as u64)
        .checked_mul(place_bytes as u64)?
        .checked_add(ALIGNED)
}

/// Number of sends between two reads of the completion queue, each of which is a system call.
const LOOK_EVERY: u32 = 32;

/// Time without any completion after which outstanding sends are given up at the end of a flow.
const PATIENCE_NS: Nanos = 300_000_000;

/// State of MSG_ZEROCOPY sends and their completions.
pub struct ZeroCopySends {
    /// Send buffers of datagrams; none for a stream.
    places: Option<Buffer>,
    place_bytes: usize,
    /// Number of the next send, counted as the kernel does.
    next: u32,
    /// Sends without a completion.
    open: u64,
    /// Buffers without a completion.
    busy: [bool; PLACES],
    since_look: u32,
    facts: ZeroCopy,
}

impl ZeroCopySends {
    /// Creates the state of a flow whose calls send up to `place_bytes` of datagrams. 0 is for a
    /// stream, whose content never changes, so that it needs no buffers.
    pub fn new(place_bytes: usize) -> Self {
        Self {
            places: (place_bytes > 0).then(|| Buffer::new(PLACES * place_bytes)),
            place_bytes,
            next: 0,
            open: 0,
            busy: [false; PLACES],
            since_look: 0,
            facts: ZeroCopy::default(),
        }
    }

    pub fn facts(&self) -> ZeroCopy {
        ZeroCopy {
            untold: self.open,
            ..self.facts
        }
    }

    /// Returns whether all sends are completed.
    pub fn is_idle(&self) -> bool {
        self.open == 0
    }

    /// Returns the buffer of the next datagrams, unless the kernel still reads from it.
    pub fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let number = self.next as usize % PLACES;
        if self.busy[number] {
            return None;
        }
        let start = number * self.place_bytes;
        let places = self.places.as_mut()?;
        Some(places.part(start, bytes.min(self.place_bytes)))
    }

    /// Counts an accepted send.
    #[inline]
    pub fn left(&mut self) {
        self.busy[self.next as usize % PLACES] = true;
        self.next = self.next.wrapping_add(1);
        self.open += 1;
        self.facts.sends += 1;
        self.since_look += 1;
    }

    /// Returns whether it is time to read completions.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.since_look >= LOOK_EVERY
    }

    /// Reads the completions; returns whether there were any.
    pub fn look<R: Recorder>(&mut self, calls: &mut R, socket: &impl AsRawFd) -> bool {
        self.since_look = 0;
        let mut any = false;
        calls.begin();
        while let Ok(found) = zerocopy::completion(socket) {
            calls.end(Call::RecvMsg, Found::Ready);
            any = true;
            let Some(found) = found else { continue };
            let count = u64::from(found.last.wrapping_sub(found.first)) + 1;
            // The count is the kernel's: clamped, so that it cannot underflow ours.
            let count = count.min(self.open);
            self.open -= count;
            if found.copied {
                self.facts.copied += count;
            }
            for number in 0..count.min(PLACES as u64) as u32 {
                self.busy[found.last.wrapping_sub(number) as usize % PLACES] = false;
            }
        }
        calls.end(Call::RecvMsg, Found::Empty);
        any
    }

    /// Waits for outstanding completions at the end of a flow.
    pub fn settle<R: Recorder>(&mut self, calls: &mut R, socket: &impl AsRawFd) {
        const PAUSE_NS: Nanos = 500_000;
        let mut news = clock::now();
        while !self.is_idle() {
            let now = clock::now();
            if self.look(calls, socket) {
                news = now;
            } else if now > news + PATIENCE_NS {
                return;
            } else {
                clock::sleep_until(now + PAUSE_NS);
            }
        }
    }
}
