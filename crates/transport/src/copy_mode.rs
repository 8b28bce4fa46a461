//! Copy modes of sending: MSG_ZEROCOPY, `sendfile`, and `vmsplice` with `splice`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use linerate_record::record::ZeroCopyCounts;
use linerate_sys::clock::Nanos;
use linerate_sys::zerocopy::SplicePipe;
use linerate_sys::{clock, zerocopy};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::aligned_buffer::AlignedBuffer;
use crate::call_times::{CallOutcome, CallRecorder, TransportCall};

/// Send path of a flow whose payload is not copied from user memory.
pub enum CopyMode {
    /// MSG_ZEROCOPY.
    ZeroCopy(Box<ZeroCopySends>),
    /// `sendfile`, from memory that the program does not touch.
    SendFile(Arc<File>),
    /// `vmsplice` and `splice`.
    Splice(SplicePipe),
}

/// Creates a file in memory (memfd) without zero bytes: zeros would all map to one page.
pub fn create_memory_file(bytes: usize) -> io::Result<File> {
    static CHUNK: [u8; 64 << 10] = [0xa5; 64 << 10];
    let mut file = File::from(memfd_create("payload", MemfdFlags::CLOEXEC)?);
    let mut remaining = bytes;
    while remaining > 0 {
        let chunk = remaining.min(CHUNK.len());
        file.write_all(&CHUNK[..chunk])?;
        remaining -= chunk;
    }
    Ok(file)
}

/// Send buffers of a flow for MSG_ZEROCOPY, used in rotation: a buffer that the kernel still reads
/// must not be overwritten.
const SEND_BUFFERS: usize = 16;

/// Returns the memory of one flow's send buffers when a call sends up to `buffer_bytes`; `None` on
/// overflow.
pub fn zero_copy_bytes(buffer_bytes: usize) -> Option<u64> {
    /// Page alignment of a buffer.
    const PAGE_BYTES: u64 = 4096;
    (SEND_BUFFERS as u64)
        .checked_mul(buffer_bytes as u64)?
        .checked_add(PAGE_BYTES)
}

/// Number of sends between two reads of the completion queue, each of which is a system call.
const POLL_EVERY_SENDS: u32 = 32;

/// Time without any completion after which outstanding sends are given up at the end of a flow.
const COMPLETION_TIMEOUT_NS: Nanos = 300_000_000;

/// State of MSG_ZEROCOPY sends and their completions.
pub struct ZeroCopySends {
    /// Send buffers of datagrams; none for a stream.
    buffers: Option<AlignedBuffer>,
    buffer_bytes: usize,
    /// Number of the next send, counted as the kernel does.
    next: u32,
    /// Sends without a completion.
    in_flight: u64,
    /// Buffers without a completion.
    busy: [bool; SEND_BUFFERS],
    sends_since_poll: u32,
    facts: ZeroCopyCounts,
}

impl ZeroCopySends {
    /// Creates the state of a flow whose calls send up to `buffer_bytes` of datagrams. 0 is for a
    /// stream, whose content never changes, so that it needs no buffers.
    pub fn new(buffer_bytes: usize) -> Self {
        Self {
            buffers: (buffer_bytes > 0).then(|| AlignedBuffer::new(SEND_BUFFERS * buffer_bytes)),
            buffer_bytes,
            next: 0,
            in_flight: 0,
            busy: [false; SEND_BUFFERS],
            sends_since_poll: 0,
            facts: ZeroCopyCounts::default(),
        }
    }

    pub fn facts(&self) -> ZeroCopyCounts {
        ZeroCopyCounts {
            unconfirmed: self.in_flight,
            ..self.facts
        }
    }

    /// Returns whether all sends are completed.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Returns the buffer of the next datagrams, unless the kernel still reads from it.
    #[inline]
    pub fn next_buffer(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let number = self.next as usize % SEND_BUFFERS;
        if self.busy[number] {
            return None;
        }
        let start = number * self.buffer_bytes;
        let buffers = self.buffers.as_mut()?;
        Some(buffers.range(start, bytes.min(self.buffer_bytes)))
    }

    /// Counts an accepted send.
    #[inline]
    pub fn count_send(&mut self) {
        self.busy[self.next as usize % SEND_BUFFERS] = true;
        self.next = self.next.wrapping_add(1);
        self.in_flight += 1;
        self.facts.sends += 1;
        self.sends_since_poll += 1;
    }

    /// Returns whether it is time to read completions.
    #[inline]
    pub fn is_poll_due(&self) -> bool {
        self.sends_since_poll >= POLL_EVERY_SENDS
    }

    /// Reads the completions; returns whether there were any.
    pub fn poll_completions<R: CallRecorder>(
        &mut self,
        calls: &mut R,
        socket: &impl AsRawFd,
    ) -> bool {
        self.sends_since_poll = 0;
        let mut any = false;
        calls.begin();
        while let Ok(found) = zerocopy::next_completion(socket) {
            calls.end(TransportCall::RecvMsg, CallOutcome::Ready);
            any = true;
            let Some(found) = found else { continue };
            let count = u64::from(found.last.wrapping_sub(found.first)) + 1;
            // The count is the kernel's: clamped, so that it cannot underflow ours.
            let count = count.min(self.in_flight);
            self.in_flight -= count;
            if found.copied {
                self.facts.copied += count;
            }
            for number in 0..count.min(SEND_BUFFERS as u64) as u32 {
                self.busy[found.last.wrapping_sub(number) as usize % SEND_BUFFERS] = false;
            }
        }
        calls.end(TransportCall::RecvMsg, CallOutcome::Empty);
        any
    }

    /// Waits for outstanding completions at the end of a flow.
    pub fn await_completions<R: CallRecorder>(&mut self, calls: &mut R, socket: &impl AsRawFd) {
        const PAUSE_NS: Nanos = 500_000;
        let mut last_completion_ns = clock::now();
        while !self.is_idle() {
            let now = clock::now();
            if self.poll_completions(calls, socket) {
                last_completion_ns = now;
            } else if now > last_completion_ns + COMPLETION_TIMEOUT_NS {
                return;
            } else {
                clock::sleep_until(now + PAUSE_NS);
            }
        }
    }
}
