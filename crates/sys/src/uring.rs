//! io_uring for sockets: sends that wait for their completion, and multishot receives into buffers
//! of a registered buffer ring (Linux 6.0).
//!
//! These calls do not go through libc, which has no functions for them. So a preloaded stack is not
//! measured by them.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::clock;

/// Id of the only buffer group of a ring.
const BUFFER_GROUP: u16 = 1;

/// Submission queue entries; a full queue is submitted.
const QUEUE_ENTRIES: u32 = 64;

/// Buffer for the control messages of a receive, alignment included.
const CONTROL_BYTES: usize = 64;

/// Bytes before the payload of a receive with control messages: header of four u32, then the
/// control buffer.
const MESSAGE_HEADER_BYTES: usize = 16 + CONTROL_BYTES;

/// Kind of a completion in the upper half of its user data; the socket number is in the lower half.
const RECEIVE_TAG: u64 = 0;
const SEND_TAG: u64 = 1 << 32;
const WRITABLE_TAG: u64 = 2 << 32;
const CANCEL_TAG: u64 = 3 << 32;
const TAG_MASK: u64 = !0 << 32;

/// Longest wait for pending requests when a ring is dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Kind of data that a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveKind {
    /// Bytes of a stream; zero bytes at its end.
    Stream,
    /// One datagram at a time.
    Datagrams,
    /// Datagrams of one size merged by the kernel, with that size (UDP GRO).
    Coalesced,
}

/// Received data in one of the ring's buffers, until it is recycled.
#[derive(Debug)]
pub struct ReceivedBuffer {
    buffer_id: u16,
    bytes: usize,
    kind: ReceiveKind,
}

/// Result of a receive.
#[derive(Debug)]
pub enum ReceiveResult {
    Buffer(ReceivedBuffer),
    End,
}

/// Receive buffers, and the ring of free buffers shared with the kernel, in one mapping.
struct BufferRing {
    base: NonNull<u8>,
    mapped_bytes: usize,
    count: u16,
    buffer_bytes: usize,
    /// Offset of the first buffer in the mapping.
    buffers_offset: usize,
    tail: u16,
}

impl BufferRing {
    fn new(count: u16, bytes: usize) -> io::Result<Self> {
        const PAGE: usize = 4096;
        assert!(count.is_power_of_two(), "the kernel takes powers of two");
        let list = usize::from(count) * mem::size_of::<BufRingEntry>();
        let offset = list.next_multiple_of(PAGE);
        let mapped = bytes
            .checked_mul(usize::from(count))
            .and_then(|all| all.checked_add(offset))
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: requests new memory at any address; existing mappings are not changed.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("a mapping that succeeded is not null");
        Ok(Self {
            base,
            mapped_bytes: mapped,
            count,
            buffer_bytes: bytes,
            buffers_offset: offset,
            tail: 0,
        })
    }

    /// Unmaps the memory; it must not be in use any more, by the kernel neither.
    fn unmap(&mut self) {
        // SAFETY: the mapping has this length and belongs to this value; callers ensure that it is
        // not in use.
        unsafe { libc::munmap(self.base.as_ptr().cast(), mem::take(&mut self.mapped_bytes)) };
    }

    fn entries(&self) -> *mut BufRingEntry {
        self.base.as_ptr().cast()
    }

    fn buffer(&self, number: u16) -> *mut u8 {
        let offset = self.buffers_offset + usize::from(number) * self.buffer_bytes;
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Adds a buffer to the free ring; [`Self::publish`] makes it visible to the kernel.
    fn provide(&mut self, number: u16) {
        let index = usize::from(self.tail % self.count);
        let address = self.buffer(number) as u64;
        // SAFETY: `index` is within the list, which is mapped while `self` lives; the kernel reads
        // entries only below the published tail, and this one is above it.
        let entry = unsafe { &mut *self.entries().add(index) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes as u32);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the list begins at the mapping's page-aligned start and has at least one entry.
        let tail = unsafe { BufRingEntry::tail(self.entries()) };
        // SAFETY: the tail is an aligned u16 in mapped memory that the kernel only reads, and that
        // only this thread writes.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

/// Socket of a ring.
struct UringSlot {
    fd: RawFd,
    kind: ReceiveKind,
    /// A receive request is pending in the kernel.
    is_receiving: bool,
    /// A poll for writability is pending in the kernel.
    is_polling_writable: bool,
    ready: VecDeque<ReceivedBuffer>,
    is_ended: bool,
    /// Removed: received data are dropped.
    is_removed: bool,
    error: Option<i32>,
}

/// io_uring with sockets and a pool of receive buffers; for one thread.
pub struct UringSockets {
    ring: IoUring,
    pool: BufferRing,
    slots: Vec<UringSlot>,
    /// Template of receives with control messages; its address must not change.
    message: Box<libc::msghdr>,
    /// Result of the send in progress.
    send_result: Option<i32>,
    cancelled: bool,
}

impl UringSockets {
    /// Creates a ring with `buffers` buffers (a power of two) of `payload_bytes` payload each.
    ///
    /// # Errors
    /// `ENOSYS` without io_uring or when a filter blocks it, `EPERM` where kernel.io_uring_disabled
    /// forbids it, `EINVAL` before Linux 6.0.
    pub fn new(buffers: u16, payload_bytes: usize) -> io::Result<Self> {
        // Used by one thread, which polls for completions.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_clamp()
            .setup_cqsize(u32::from(buffers).max(QUEUE_ENTRIES) * 4)
            .build(QUEUE_ENTRIES)?;
        let bytes = (payload_bytes + MESSAGE_HEADER_BYTES).next_multiple_of(64);
        if u32::try_from(bytes).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut pool = BufferRing::new(buffers, bytes)?;
        // SAFETY: the address is that of a page-aligned list of `buffers` entries; it stays mapped
        // until the ring is gone (see `drop`).
        let registered = unsafe {
            ring.submitter().register_buf_ring_with_flags(
                pool.base.as_ptr() as u64,
                buffers,
                BUFFER_GROUP,
                0,
            )
        };
        if let Err(error) = registered {
            pool.unmap();
            return Err(error);
        }
        for number in 0..buffers {
            pool.provide(number);
        }
        pool.publish();
        // SAFETY: a msghdr is pointers and integers; all zeros is an empty one.
        let mut message: Box<libc::msghdr> = Box::new(unsafe { mem::zeroed() });
        message.msg_controllen = CONTROL_BYTES as _;
        Ok(Self {
            ring,
            pool,
            slots: Vec::new(),
            message,
            send_result: None,
            cancelled: false,
        })
    }

    /// Adds a socket and returns its number. The socket must stay open until the ring is dropped or
    /// the socket was [removed](Self::remove).
    pub fn add(&mut self, socket: &impl AsRawFd, kind: ReceiveKind) -> usize {
        self.slots.push(UringSlot {
            fd: socket.as_raw_fd(),
            kind,
            is_receiving: false,
            is_polling_writable: false,
            // As many as there are buffers: it never reallocates.
            ready: VecDeque::with_capacity(usize::from(self.pool.count)),
            is_ended: false,
            is_removed: false,
            error: None,
        });
        self.slots.len() - 1
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the memory that the entry refers to outlives its request: buffers of the pool
            // and the message until `drop` has seen all requests end, and payload until `send` has
            // seen its request end, before which it does not return.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Starts a receive request on a socket.
    fn start_receive(&mut self, slot: usize) -> io::Result<()> {
        let UringSlot { fd, kind, .. } = self.slots[slot];
        let entry = match kind {
            ReceiveKind::Coalesced => {
                opcode::RecvMsgMulti::new(Fd(fd), &raw const *self.message, BUFFER_GROUP).build()
            }
            ReceiveKind::Stream | ReceiveKind::Datagrams => {
                opcode::RecvMulti::new(Fd(fd), BUFFER_GROUP).build()
            }
        };
        self.push(&entry.user_data(RECEIVE_TAG | slot as u64))?;
        self.slots[slot].is_receiving = true;
        Ok(())
    }

    /// Takes received data of a socket; `None` when there are none. Makes no system call; see
    /// [`Self::wait`].
    ///
    /// # Errors
    /// Error of the receive request.
    #[inline]
    pub fn receive(&mut self, slot: usize) -> io::Result<Option<ReceiveResult>> {
        self.process_completions();
        let slot_state = &mut self.slots[slot];
        if let Some(buffer) = slot_state.ready.pop_front() {
            return Ok(Some(ReceiveResult::Buffer(buffer)));
        }
        if let Some(error) = slot_state.error.take() {
            return Err(io::Error::from_raw_os_error(error));
        }
        if slot_state.is_ended {
            return Ok(Some(ReceiveResult::End));
        }
        if !slot_state.is_receiving {
            self.start_receive(slot)?;
        }
        Ok(None)
    }

    /// Returns the payload of received data, and the bytes per datagram if the kernel merged
    /// several.
    #[inline]
    #[must_use]
    pub fn payload(&self, buffer: &ReceivedBuffer) -> (&[u8], Option<u16>) {
        let start = self.pool.buffer(buffer.buffer_id);
        let bytes = buffer.bytes.min(self.pool.buffer_bytes);
        // SAFETY: the buffer is mapped and has this length; the kernel assigned it to `buffer`
        // and does not write to it before `recycle` consumes it.
        let contents = unsafe { std::slice::from_raw_parts(start, bytes) };
        match buffer.kind {
            ReceiveKind::Coalesced => parse_message(contents),
            ReceiveKind::Stream | ReceiveKind::Datagrams => (contents, None),
        }
    }

    /// Returns a buffer to the kernel.
    #[inline]
    pub fn recycle(&mut self, buffer: ReceivedBuffer) {
        self.pool.provide(buffer.buffer_id);
        self.pool.publish();
    }

    /// Submits pending requests and waits for a completion, at most `timeout`; returns whether
    /// there is one.
    ///
    /// # Errors
    /// Errors of `io_uring_enter`, except a signal or the timeout.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.has_completions() && self.ring.submission().is_empty() {
            self.process_completions();
            return Ok(true);
        }
        self.enter(1, timeout)?;
        let any = self.has_completions();
        self.process_completions();
        Ok(any)
    }

    /// Returns whether requests are waiting for submission.
    #[inline]
    pub fn has_requests(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Submits pending requests and polls for completions once.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn poll(&mut self) -> io::Result<bool> {
        self.wait(Duration::ZERO)
    }

    /// Makes the next [`Self::wait`] return when a socket is writable.
    ///
    /// # Errors
    /// Fails when the queue cannot be submitted.
    pub fn poll_writable(&mut self, slot: usize) -> io::Result<()> {
        if mem::replace(&mut self.slots[slot].is_polling_writable, true) {
            return Ok(());
        }
        let fd = Fd(self.slots[slot].fd);
        let entry = opcode::PollAdd::new(fd, libc::POLLOUT as u32).build();
        self.push(&entry.user_data(WRITABLE_TAG | slot as u64))
    }

    /// Sends a payload and waits for its completion; returns the bytes accepted. A `timeout` of
    /// zero does not wait for buffer space; otherwise the call waits at most that long for the
    /// complete payload.
    ///
    /// # Errors
    /// Error of the send; `WouldBlock` when there was no buffer space in time.
    pub fn send(&mut self, slot: usize, payload: &[u8], timeout: Duration) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL
            | match (timeout.is_zero(), self.slots[slot].kind) {
                (true, _) => libc::MSG_DONTWAIT,
                (false, ReceiveKind::Stream) => libc::MSG_WAITALL,
                (false, _) => 0,
            };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let fd = Fd(self.slots[slot].fd);
        let entry = opcode::Send::new(fd, payload.as_ptr(), length)
            .flags(flags)
            .build();
        self.send_result = None;
        self.push(&entry.user_data(SEND_TAG | slot as u64))?;
        // The request always ends within this call: the kernel must not read the payload after its
        // borrow ends.
        let deadline = clock::now() + timeout.as_nanos() as u64;
        let mut is_late = false;
        let mut failed: Option<(io::Error, u64)> = None;
        loop {
            let remaining_ns = deadline.saturating_sub(clock::now());
            if (failed.is_some() || remaining_ns == 0 && !timeout.is_zero()) && !is_late {
                is_late = true;
                let cancel = opcode::AsyncCancel::new(SEND_TAG | slot as u64).build();
                // If the queue has no free entry for the cancel request, the loop waits for the
                // send itself.
                let _ = self.push(&cancel.user_data(CANCEL_TAG));
            }
            let pause = if is_late || timeout.is_zero() {
                SHUTDOWN_TIMEOUT
            } else {
                Duration::from_nanos(remaining_ns)
            };
            if let Err(error) = self.enter(1, pause) {
                let since = failed.get_or_insert((error, clock::now())).1;
                if clock::now() > since + SHUTDOWN_TIMEOUT.as_nanos() as u64 {
                    // The ring does not respond and holds a payload whose borrow is about to end.
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.process_completions();
            match self.send_result.take() {
                Some(accepted) if accepted >= 0 => return Ok(accepted as usize),
                Some(error) if -error == libc::ECANCELED => {
                    let failed = failed.map(|(error, _)| error);
                    return Err(failed.unwrap_or_else(|| io::ErrorKind::WouldBlock.into()));
                }
                Some(error) => return Err(io::Error::from_raw_os_error(-error)),
                None => {}
            }
        }
    }

    /// Stops receiving on a socket, which may be closed afterwards; received data are dropped.
    pub fn remove(&mut self, slot: usize) {
        if self.slots[slot].is_receiving {
            let entry = opcode::AsyncCancel::new(RECEIVE_TAG | slot as u64).build();
            // A cancel request that is not submitted now ends with the ring.
            let _ = self.push(&entry.user_data(CANCEL_TAG));
            let _ = self.enter(0, Duration::ZERO);
            self.process_completions();
        }
        let slot_state = &mut self.slots[slot];
        slot_state.is_ended = true;
        slot_state.is_removed = true;
        // Returns the buffers, so that receives of other sockets do not run out of them.
        for buffer in slot_state.ready.drain(..) {
            self.pool.provide(buffer.buffer_id);
        }
        self.pool.publish();
    }

    #[inline]
    fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn enter(&mut self, min_completions: usize, timeout: Duration) -> io::Result<()> {
        let time = Timespec::new()
            .sec(timeout.as_secs())
            .nsec(timeout.subsec_nanos());
        let arguments = SubmitArgs::new().timespec(&time);
        match self
            .ring
            .submitter()
            .submit_with_args(min_completions, &arguments)
        {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Timeout, signal, or completions have to be fetched first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Processes all completions.
    fn process_completions(&mut self) {
        let completions = self.ring.completion();
        for completion in completions {
            let slot = (completion.user_data() & !TAG_MASK) as usize;
            let result = completion.result();
            match completion.user_data() & TAG_MASK {
                SEND_TAG => self.send_result = Some(result),
                CANCEL_TAG => self.cancelled = true,
                WRITABLE_TAG => self.slots[slot].is_polling_writable = false,
                _ => {
                    let slot_state = &mut self.slots[slot];
                    slot_state.is_receiving = cqueue::more(completion.flags());
                    let buffer_id = cqueue::buffer_select(completion.flags());
                    match (result, buffer_id) {
                        (0, _) if slot_state.kind == ReceiveKind::Stream => {
                            slot_state.is_ended = true;
                            if let Some(buffer_id) = buffer_id {
                                self.pool.provide(buffer_id);
                                self.pool.publish();
                            }
                        }
                        (0.., Some(buffer_id)) if slot_state.is_removed => {
                            self.pool.provide(buffer_id);
                            self.pool.publish();
                        }
                        (0.., Some(buffer_id)) => slot_state.ready.push_back(ReceivedBuffer {
                            buffer_id,
                            bytes: result as usize,
                            kind: slot_state.kind,
                        }),
                        (0.., None) => {}
                        // No free buffer: the receive is requested again later.
                        (error, _)
                            if matches!(-error, libc::ENOBUFS | libc::ECANCELED | libc::EINTR) => {}
                        (error, _) => slot_state.error = Some(-error),
                    }
                }
            }
        }
    }
}

impl Drop for UringSockets {
    fn drop(&mut self) {
        // The kernel may write to the buffers as long as a receive request is pending.
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
        let _ = self.push(&cancel.user_data(CANCEL_TAG));
        let deadline = clock::now() + SHUTDOWN_TIMEOUT.as_nanos() as u64;
        let is_busy = |ring: &Self| {
            ring.slots
                .iter()
                .any(|slot| slot.is_receiving || slot.is_polling_writable)
        };
        while is_busy(self) && clock::now() < deadline {
            if self.enter(1, Duration::from_millis(100)).is_err() {
                break;
            }
            self.process_completions();
        }
        if is_busy(self) {
            // Leaks the memory: the kernel may still write to it.
            let replacement = Box::new(*self.message);
            mem::forget(mem::replace(&mut self.message, replacement));
            return;
        }
        let _ = self.ring.submitter().unregister_buf_ring(BUFFER_GROUP);
        // No request is pending, and no slice is left: those borrow the ring.
        self.pool.unmap();
    }
}

/// Returns the payload after the header of a received message, and the size of the datagrams in it.
fn parse_message(message: &[u8]) -> (&[u8], Option<u16>) {
    // struct io_uring_recvmsg_out: lengths of name, control and payload, and flags.
    let field = |at: usize| {
        let bytes = message.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let control_bytes = field(4).unwrap_or(0).min(CONTROL_BYTES);
    let Some(payload) = message.get(MESSAGE_HEADER_BYTES..) else {
        return (&[], None);
    };
    let control = message.get(16..16 + control_bytes).unwrap_or_default();
    (payload, parse_segment_size(control))
}

/// Returns the datagram size (UDP_GRO) if that is the first control message.
fn parse_segment_size(control: &[u8]) -> Option<u16> {
    // struct cmsghdr: a length of word size, level, type; then the data, aligned.
    const WORD_BYTES: usize = mem::size_of::<usize>();
    const DATA: usize = (WORD_BYTES + 8).next_multiple_of(WORD_BYTES);
    let integer = |at: usize| {
        let bytes = control.get(at..at + 4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let is_size =
        integer(WORD_BYTES)? == libc::SOL_UDP && integer(WORD_BYTES + 4)? == libc::UDP_GRO;
    let size = integer(DATA).filter(|_| is_size)?;
    u16::try_from(size).ok().filter(|&size| size > 0)
}

/// Probes whether this process may use io_uring as this module does, with a socket pair.
///
/// # Errors
/// As [`UringSockets::new`], and `Unsupported` without multishot receives.
pub fn probe() -> io::Result<()> {
    let (local, remote) =
        socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    let mut ring = UringSockets::new(2, 64)?;
    let remote = ring.add(&remote, ReceiveKind::Stream);
    ring.receive(remote)?;
    ring.poll()?;
    let local_slot = ring.add(&local, ReceiveKind::Stream);
    for _ in 0..2 {
        ring.send(local_slot, b"trial", Duration::from_secs(1))?;
        let received = match ring.receive(remote)? {
            Some(received) => Some(received),
            None => {
                ring.wait(Duration::from_secs(1))?;
                ring.receive(remote)?
            }
        };
        match received {
            Some(ReceiveResult::Buffer(buffer)) if ring.payload(&buffer).0 == b"trial" => {
                ring.recycle(buffer);
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::socket::enable_udp_gro;

    /// Prints the reason and returns false where io_uring is unavailable.
    fn is_available() -> bool {
        match probe() {
            Ok(()) => true,
            Err(error) => {
                println!("skipped: no io_uring here ({error})");
                false
            }
        }
    }

    fn next_payload(ring: &mut UringSockets, slot: usize) -> Option<Vec<u8>> {
        loop {
            match ring.receive(slot).unwrap() {
                Some(ReceiveResult::Buffer(buffer)) => {
                    let payload = ring.payload(&buffer).0.to_vec();
                    ring.recycle(buffer);
                    return Some(payload);
                }
                Some(ReceiveResult::End) => return None,
                None => assert!(ring.wait(Duration::from_secs(5)).unwrap(), "nothing came"),
            }
        }
    }

    #[test]
    fn streams_arrive_completely_and_end() {
        if !is_available() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (remote, _) = listener.accept().unwrap();
        let sender = std::thread::spawn(move || {
            let mut ring = UringSockets::new(2, 64).unwrap();
            let slot = ring.add(&local, ReceiveKind::Stream);
            let payload: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
            let mut sent = 0;
            while sent < payload.len() {
                match ring.send(slot, &payload[sent..], Duration::from_millis(20)) {
                    Ok(bytes) => sent += bytes,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
        });
        // Fewer buffers than payload: receiving pauses and resumes.
        let mut ring = UringSockets::new(4, 10_000).unwrap();
        let slot = ring.add(&remote, ReceiveKind::Stream);
        std::thread::sleep(Duration::from_millis(100));
        let mut received = Vec::new();
        while let Some(payload) = next_payload(&mut ring, slot) {
            received.extend(payload);
        }
        sender.join().unwrap();
        assert_eq!(received.len(), 3_000_000);
        assert!(
            received
                .iter()
                .zip(0u32..)
                .all(|(&byte, n)| byte == (n % 251) as u8)
        );
    }

    #[test]
    fn datagrams_keep_their_borders() {
        if !is_available() {
            return;
        }
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        let mut ring = UringSockets::new(4, 2_048).unwrap();
        let (out, slot) = (
            ring.add(&local, ReceiveKind::Datagrams),
            ring.add(&remote, ReceiveKind::Datagrams),
        );
        for length in [1, 700, 1_472] {
            let payload = vec![length as u8; length];
            assert_eq!(ring.send(out, &payload, Duration::ZERO).unwrap(), length);
        }
        for length in [1, 700, 1_472] {
            assert_eq!(
                next_payload(&mut ring, slot).unwrap(),
                vec![length as u8; length]
            );
        }
        assert!(!ring.wait(Duration::from_millis(5)).unwrap());
    }

    #[test]
    fn merged_datagrams_have_their_size() {
        if !is_available() {
            return;
        }
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        if let Err(error) =
            crate::socket::enable_udp_gso(&local, 100).and_then(|()| enable_udp_gro(&remote))
        {
            println!("this kernel has no UDP GSO or GRO: {error}");
            return;
        }
        let mut ring = UringSockets::new(4, 65_536).unwrap();
        let slot = ring.add(&remote, ReceiveKind::Coalesced);
        local.send(&[7; 350]).unwrap();
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() < 350 {
            match ring.receive(slot).unwrap() {
                Some(ReceiveResult::Buffer(buffer)) => {
                    let (payload, segment) = ring.payload(&buffer);
                    let size = segment.map_or(payload.len(), usize::from);
                    lengths.extend(payload.chunks(size).map(<[u8]>::len));
                    ring.recycle(buffer);
                }
                Some(ReceiveResult::End) => panic!("datagrams do not end"),
                None => assert!(ring.wait(Duration::from_secs(5)).unwrap()),
            }
        }
        assert_eq!(lengths, [100, 100, 100, 50]);
    }

    #[test]
    fn a_removed_socket_returns_its_buffers() {
        if !is_available() {
            return;
        }
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (removed, kept) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let mut ring = UringSockets::new(4, 64).unwrap();
        let (removed_slot, kept_slot) = (
            ring.add(&removed, ReceiveKind::Datagrams),
            ring.add(&kept, ReceiveKind::Datagrams),
        );
        assert!(ring.receive(removed_slot).unwrap().is_none());
        ring.poll().unwrap();
        // This socket holds all buffers but one.
        for _ in 0..3 {
            local.send_to(&[1], removed.local_addr().unwrap()).unwrap();
        }
        while ring.slots[removed_slot].ready.len() < 3 {
            assert!(ring.wait(Duration::from_secs(5)).unwrap());
        }
        ring.remove(removed_slot);
        assert!(ring.receive(kept_slot).unwrap().is_none());
        ring.poll().unwrap();
        for number in 0..3 {
            local
                .send_to(&[number], kept.local_addr().unwrap())
                .unwrap();
        }
        while ring.slots[kept_slot].ready.len() < 3 {
            assert!(ring.wait(Duration::from_secs(5)).unwrap());
            assert!(ring.slots[kept_slot].is_receiving, "it ran out of buffers");
        }
    }

    #[test]
    fn a_send_without_buffer_space_is_cancelled() {
        if !is_available() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut remote, _) = listener.accept().unwrap();
        let mut ring = UringSockets::new(2, 64).unwrap();
        let slot = ring.add(&local, ReceiveKind::Stream);
        let payload = vec![1; 1 << 20];
        let mut accepted = 0;
        // The receive window may still grow after the first cancelled send.
        for wait in [Duration::from_millis(10), Duration::ZERO] {
            let full = loop {
                match ring.send(slot, &payload, wait) {
                    Ok(bytes) => accepted += bytes,
                    Err(error) => break error,
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        }
        ring.poll_writable(slot).unwrap();
        ring.poll().unwrap();
        drop(local);
        let mut buffer = vec![0; accepted];
        remote.read_exact(&mut buffer).unwrap();
        assert!(buffer.iter().all(|&byte| byte == 1));
    }
}
