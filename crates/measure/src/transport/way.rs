//! Ways of a flow's payload to its socket that skip the copy out of user memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::skip::{self, Pipe};
use linerate_metric::record::ZeroCopy;
use rustix::fs::{MemfdFlags, memfd_create};

use super::calls::{Call, Found, Recorder};
use super::kernel::Buffer;

/// How the payload of a flow leaves, where it is not copied.
pub enum Way {
    /// With MSG_ZEROCOPY.
    ZeroCopy(Box<ZeroCopySends>),
    /// With `sendfile`, from memory that the program does not touch.
    File(Arc<File>),
    /// With `vmsplice` and `splice`.
    Pipe(Pipe),
}

/// A file in memory of so many bytes, none of which are zero: zeros would all be one page.
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

/// Sends of datagrams that may be on their way at a time, each from a place of its own: what the
/// kernel still reads must not be written over.
const PLACES: usize = 16;

/// Memory that the datagrams of one flow take when nobody copies them, where a call sends up to
/// `place_bytes`; `None` when it is beyond counting.
pub fn zero_copy_bytes(place_bytes: usize) -> Option<u64> {
    /// A buffer begins at a page, wherever its memory does.
    const ALIGNED: u64 = 4096;
    (PLACES as u64)
        .checked_mul(place_bytes as u64)?
        .checked_add(ALIGNED)
}

/// After so many sends it is looked which of them are done with: each look is a system call.
const LOOK_EVERY: u32 = 32;

/// Without any news for so long the rest is given up at the end.
const PATIENCE_NS: Nanos = 300_000_000;

/// Sends with MSG_ZEROCOPY, and what the kernel told of them.
pub struct ZeroCopySends {
    /// Datagrams: their places.
    places: Option<Buffer>,
    place_bytes: usize,
    /// The number of the next send; the kernel counts alike.
    next: u32,
    /// Sends that the kernel has not told of.
    open: u64,
    /// The same by place.
    busy: [bool; PLACES],
    since_look: u32,
    facts: ZeroCopy,
}

impl ZeroCopySends {
    /// For a flow whose calls send up to `place_bytes` of datagrams, or 0 for a stream: its content
    /// never changes.
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

    /// What was sent so.
    pub fn facts(&self) -> ZeroCopy {
        ZeroCopy {
            untold: self.open,
            ..self.facts
        }
    }

    /// Whether nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.open == 0
    }

    /// The place of the next datagrams, unless the kernel still reads what was sent from there.
    pub fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let number = self.next as usize % PLACES;
        if self.busy[number] {
            return None;
        }
        let start = number * self.place_bytes;
        let places = self.places.as_mut()?;
        Some(places.part(start, bytes.min(self.place_bytes)))
    }

    /// Notes that a call took something.
    #[inline]
    pub fn left(&mut self) {
        self.busy[self.next as usize % PLACES] = true;
        self.next = self.next.wrapping_add(1);
        self.open += 1;
        self.facts.sends += 1;
        self.since_look += 1;
    }

    /// Whether it is time to look.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.since_look >= LOOK_EVERY
    }

    /// Takes in what the kernel has to tell; whether there was anything.
    pub fn look<R: Recorder>(&mut self, calls: &mut R, socket: &impl AsRawFd) -> bool {
        self.since_look = 0;
        let mut any = false;
        calls.begin();
        while let Ok(found) = skip::completion(socket) {
            calls.end(Call::RecvMsg, Found::Ready);
            any = true;
            let Some(found) = found else { continue };
            let count = u64::from(found.last.wrapping_sub(found.first)) + 1;
            // What the kernel says is its own business, not a reason to count below zero.
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

    /// Waits for news of what is still on its way, at the end of a flow.
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
