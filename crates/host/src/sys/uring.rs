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
const GROUP: u16 = 1;

/// Submission queue entries; a full queue is submitted.
const ENTRIES: u32 = 64;

/// Buffer for the control messages of a receive, alignment included.
const CONTROL_BYTES: usize = 64;

/// Bytes before the payload of a receive with control messages: header of four u32, then the
/// control buffer.
const MESSAGE_BYTES: usize = 16 + CONTROL_BYTES;

/// Kind of a completion in the upper half of its user data; the socket number is in the lower half.
const RECEIVE: u64 = 0;
const SEND: u64 = 1 << 32;
const WRITABLE: u64 = 2 << 32;
const CANCEL: u64 = 3 << 32;
const KIND: u64 = !0 << 32;

/// Longest wait for pending requests when a ring is dropped.
const FAREWELL: Duration = Duration::from_secs(2);

/// Kind of data that a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of a stream; zero bytes at its end.
    Stream,
    /// One datagram at a time.
    Datagrams,
    /// Datagrams of one size merged by the kernel, with that size (UDP GRO).
    Joined,
}

/// Received data in one of the ring's buffers, until it is recycled.
#[derive(Debug)]
pub struct Piece {
    buffer: u16,
    bytes: usize,
    kind: Kind,
}

/// Result of a receive.
#[derive(Debug)]
pub enum Received {
    Piece(Piece),
    End,
}

/// Receive buffers, and the ring of free buffers shared with the kernel, in one mapping.
struct Pool {
    base: NonNull<u8>,
    mapped: usize,
    count: u16,
    bytes: usize,
    /// Offset of the first buffer in the mapping.
    offset: usize,
    tail: u16,
}

impl Pool {
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
            mapped,
            count,
            bytes,
            offset,
            tail: 0,
        })
    }

    /// Unmaps the memory; it must not be in use any more, by the kernel neither.
    fn unmap(&mut self) {
        // SAFETY: the mapping has this length and belongs to this value; callers ensure that it is
        // not in use.
        unsafe { libc::munmap(self.base.as_ptr().cast(), mem::take(&mut self.mapped)) };
    }

    fn list(&self) -> *mut BufRingEntry {
        self.base.as_ptr().cast()
    }

    fn buffer(&self, number: u16) -> *mut u8 {
        let offset = self.offset + usize::from(number) * self.bytes;
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Adds a buffer to the free ring; [`Self::publish`] makes it visible to the kernel.
    fn give(&mut self, number: u16) {
        let place = usize::from(self.tail % self.count);
        let address = self.buffer(number) as u64;
        // SAFETY: `place` is within the list, which is mapped while `self` lives; the kernel reads
        // entries only below the published tail, and this one is above it.
        let entry = unsafe { &mut *self.list().add(place) };
        entry.set_addr(address);
        entry.set_len(self.bytes as u32);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the list begins at the mapping's page-aligned start and has at least one entry.
        let tail = unsafe { BufRingEntry::tail(self.list()) };
        // SAFETY: the tail is an aligned u16 in mapped memory that the kernel only reads, and that
        // only this thread writes.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

/// Socket of a ring.
struct Slot {
    fd: RawFd,
    kind: Kind,
    /// A receive request is pending in the kernel.
    armed: bool,
    /// A poll for writability is pending in the kernel.
    waits_for_room: bool,
    ready: VecDeque<Piece>,
    ended: bool,
    /// Removed: received data are dropped.
    forgotten: bool,
    error: Option<i32>,
}

/// io_uring with sockets and a pool of receive buffers; for one thread.
pub struct Ring {
    ring: IoUring,
    pool: Pool,
    slots: Vec<Slot>,
    /// Template of receives with control messages; its address must not change.
    message: Box<libc::msghdr>,
    /// Result of the send in progress.
    sent: Option<i32>,
    cancelled: bool,
}

impl Ring {
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
            .setup_cqsize(u32::from(buffers).max(ENTRIES) * 4)
            .build(ENTRIES)?;
        let bytes = (payload_bytes + MESSAGE_BYTES).next_multiple_of(64);
        if u32::try_from(bytes).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut pool = Pool::new(buffers, bytes)?;
        // SAFETY: the address is that of a page-aligned list of `buffers` entries; it stays mapped
        // until the ring is gone (see `drop`).
        let registered = unsafe {
            ring.submitter().register_buf_ring_with_flags(
                pool.base.as_ptr() as u64,
                buffers,
                GROUP,
                0,
            )
        };
        if let Err(error) = registered {
            pool.unmap();
            return Err(error);
        }
        for number in 0..buffers {
            pool.give(number);
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
            sent: None,
            cancelled: false,
        })
    }

    /// Adds a socket and returns its number. The socket must stay open until the ring is dropped or
    /// the socket was [removed](Self::forget).
    pub fn add(&mut self, socket: &impl AsRawFd, kind: Kind) -> usize {
        self.slots.push(Slot {
            fd: socket.as_raw_fd(),
            kind,
            armed: false,
            waits_for_room: false,
            // As many as there are buffers: it never reallocates.
            ready: VecDeque::with_capacity(usize::from(self.pool.count)),
            ended: false,
            forgotten: false,
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
    fn arm(&mut self, slot: usize) -> io::Result<()> {
        let Slot { fd, kind, .. } = self.slots[slot];
        let entry = match kind {
            Kind::Joined => {
                opcode::RecvMsgMulti::new(Fd(fd), &raw const *self.message, GROUP).build()
            }
            Kind::Stream | Kind::Datagrams => opcode::RecvMulti::new(Fd(fd), GROUP).build(),
        };
        self.push(&entry.user_data(RECEIVE | slot as u64))?;
        self.slots[slot].armed = true;
        Ok(())
    }

    /// Takes received data of a socket; `None` when there are none. Makes no system call; see
    /// [`Self::wait`].
    ///
    /// # Errors
    /// Error of the receive request.
    #[inline]
    pub fn receive(&mut self, slot: usize) -> io::Result<Option<Received>> {
        self.harvest();
        let own = &mut self.slots[slot];
        if let Some(piece) = own.ready.pop_front() {
            return Ok(Some(Received::Piece(piece)));
        }
        if let Some(error) = own.error.take() {
            return Err(io::Error::from_raw_os_error(error));
        }
        if own.ended {
            return Ok(Some(Received::End));
        }
        if !own.armed {
            self.arm(slot)?;
        }
        Ok(None)
    }

    /// Returns the payload of received data, and the bytes per datagram if the kernel merged
    /// several.
    #[inline]
    #[must_use]
    pub fn payload(&self, piece: &Piece) -> (&[u8], Option<u16>) {
        let start = self.pool.buffer(piece.buffer);
        let bytes = piece.bytes.min(self.pool.bytes);
        // SAFETY: the buffer is mapped and has this length; the kernel assigned it to this piece
        // and does not write to it before `recycle` consumes the piece.
        let whole = unsafe { std::slice::from_raw_parts(start, bytes) };
        match piece.kind {
            Kind::Joined => joined(whole),
            Kind::Stream | Kind::Datagrams => (whole, None),
        }
    }

    /// Returns a buffer to the kernel.
    #[inline]
    pub fn recycle(&mut self, piece: Piece) {
        self.pool.give(piece.buffer);
        self.pool.publish();
    }

    /// Submits pending requests and waits for a completion, at most `patience`; returns whether
    /// there is one.
    ///
    /// # Errors
    /// Errors of `io_uring_enter`, except a signal or the timeout.
    pub fn wait(&mut self, patience: Duration) -> io::Result<bool> {
        if self.has_completions() && self.ring.submission().is_empty() {
            self.harvest();
            return Ok(true);
        }
        self.enter(1, patience)?;
        let any = self.has_completions();
        self.harvest();
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
    pub fn look(&mut self) -> io::Result<bool> {
        self.wait(Duration::ZERO)
    }

    /// Makes the next [`Self::wait`] return when a socket is writable.
    ///
    /// # Errors
    /// Fails when the queue cannot be submitted.
    pub fn watch_room(&mut self, slot: usize) -> io::Result<()> {
        if mem::replace(&mut self.slots[slot].waits_for_room, true) {
            return Ok(());
        }
        let fd = Fd(self.slots[slot].fd);
        let entry = opcode::PollAdd::new(fd, libc::POLLOUT as u32).build();
        self.push(&entry.user_data(WRITABLE | slot as u64))
    }

    /// Sends a payload and waits for its completion; returns the bytes accepted. A `patience` of
    /// zero does not wait for buffer space; otherwise the call waits at most that long for the
    /// complete payload.
    ///
    /// # Errors
    /// Error of the send; `WouldBlock` when there was no buffer space in time.
    pub fn send(&mut self, slot: usize, payload: &[u8], patience: Duration) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL
            | match (patience.is_zero(), self.slots[slot].kind) {
                (true, _) => libc::MSG_DONTWAIT,
                (false, Kind::Stream) => libc::MSG_WAITALL,
                (false, _) => 0,
            };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let fd = Fd(self.slots[slot].fd);
        let entry = opcode::Send::new(fd, payload.as_ptr(), length)
            .flags(flags)
            .build();
        self.sent = None;
        self.push(&entry.user_data(SEND | slot as u64))?;
        // The request always ends within this call: the kernel must not read the payload after its
        // borrow ends.
        let give_up = clock::now() + patience.as_nanos() as u64;
        let mut late = false;
        let mut failed: Option<(io::Error, u64)> = None;
        loop {
            let left = give_up.saturating_sub(clock::now());
            if (failed.is_some() || left == 0 && !patience.is_zero()) && !late {
                late = true;
                let cancel = opcode::AsyncCancel::new(SEND | slot as u64).build();
                // If the queue has no free entry for the cancel request, the loop waits for the
                // send itself.
                let _ = self.push(&cancel.user_data(CANCEL));
            }
            let pause = if late || patience.is_zero() {
                FAREWELL
            } else {
                Duration::from_nanos(left)
            };
            if let Err(error) = self.enter(1, pause) {
                let since = failed.get_or_insert((error, clock::now())).1;
                if clock::now() > since + FAREWELL.as_nanos() as u64 {
                    // The ring does not respond and holds a payload whose borrow is about to end.
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.harvest();
            match self.sent.take() {
                Some(taken) if taken >= 0 => return Ok(taken as usize),
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
    pub fn forget(&mut self, slot: usize) {
        if self.slots[slot].armed {
            let entry = opcode::AsyncCancel::new(RECEIVE | slot as u64).build();
            // A cancel request that is not submitted now ends with the ring.
            let _ = self.push(&entry.user_data(CANCEL));
            let _ = self.enter(0, Duration::ZERO);
            self.harvest();
        }
        let own = &mut self.slots[slot];
        own.ended = true;
        own.forgotten = true;
        // Returns the buffers, so that receives of other sockets do not run out of them.
        for piece in own.ready.drain(..) {
            self.pool.give(piece.buffer);
        }
        self.pool.publish();
    }

    #[inline]
    fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn enter(&mut self, want: usize, patience: Duration) -> io::Result<()> {
        let time = Timespec::new()
            .sec(patience.as_secs())
            .nsec(patience.subsec_nanos());
        let arguments = SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(want, &arguments) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Timeout, signal, or completions have to be fetched first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Processes all completions.
    fn harvest(&mut self) {
        let completions = self.ring.completion();
        for completion in completions {
            let slot = (completion.user_data() & !KIND) as usize;
            let result = completion.result();
            match completion.user_data() & KIND {
                SEND => self.sent = Some(result),
                CANCEL => self.cancelled = true,
                WRITABLE => self.slots[slot].waits_for_room = false,
                _ => {
                    let own = &mut self.slots[slot];
                    own.armed = cqueue::more(completion.flags());
                    let buffer = cqueue::buffer_select(completion.flags());
                    match (result, buffer) {
                        (0, _) if own.kind == Kind::Stream => {
                            own.ended = true;
                            if let Some(buffer) = buffer {
                                self.pool.give(buffer);
                                self.pool.publish();
                            }
                        }
                        (0.., Some(buffer)) if own.forgotten => {
                            self.pool.give(buffer);
                            self.pool.publish();
                        }
                        (0.., Some(buffer)) => own.ready.push_back(Piece {
                            buffer,
                            bytes: result as usize,
                            kind: own.kind,
                        }),
                        (0.., None) => {}
                        // No free buffer: the receive is requested again later.
                        (error, _)
                            if matches!(-error, libc::ENOBUFS | libc::ECANCELED | libc::EINTR) => {}
                        (error, _) => own.error = Some(-error),
                    }
                }
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may write to the buffers as long as a receive request is pending.
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
        let _ = self.push(&cancel.user_data(CANCEL));
        let give_up = clock::now() + FAREWELL.as_nanos() as u64;
        let is_busy = |ring: &Self| {
            ring.slots
                .iter()
                .any(|slot| slot.armed || slot.waits_for_room)
        };
        while is_busy(self) && clock::now() < give_up {
            if self.enter(1, Duration::from_millis(100)).is_err() {
                break;
            }
            self.harvest();
        }
        if is_busy(self) {
            // Leaks the memory: the kernel may still write to it.
            let another = Box::new(*self.message);
            mem::forget(mem::replace(&mut self.message, another));
            return;
        }
        let _ = self.ring.submitter().unregister_buf_ring(GROUP);
        // No request is pending, and no slice is left: those borrow the ring.
        self.pool.unmap();
    }
}

/// Returns the payload after the header of a received message, and the size of the datagrams in it.
fn joined(whole: &[u8]) -> (&[u8], Option<u16>) {
    // struct io_uring_recvmsg_out: lengths of name, control and payload, and flags.
    let word = |at: usize| {
        let bytes = whole.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let control_bytes = word(4).unwrap_or(0).min(CONTROL_BYTES);
    let Some(payload) = whole.get(MESSAGE_BYTES..) else {
        return (&[], None);
    };
    let control = whole.get(16..16 + control_bytes).unwrap_or_default();
    (payload, segment(control))
}

/// Returns the datagram size (UDP_GRO) if that is the first control message.
fn segment(control: &[u8]) -> Option<u16> {
    // struct cmsghdr: a length of word size, level, type; then the data, aligned.
    const WORD: usize = mem::size_of::<usize>();
    const DATA: usize = (WORD + 8).next_multiple_of(WORD);
    let integer = |at: usize| {
        let bytes = control.get(at..at + 4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let is_size = integer(WORD)? == libc::SOL_UDP && integer(WORD + 4)? == libc::UDP_GRO;
    let size = integer(DATA).filter(|_| is_size)?;
    u16::try_from(size).ok().filter(|&size| size > 0)
}

/// Probes whether this process may use io_uring as this module does, with a socket pair.
///
/// # Errors
/// As [`Ring::new`], and `Unsupported` without multishot receives.
pub fn trial() -> io::Result<()> {
    let (near, far) = socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    let mut ring = Ring::new(2, 64)?;
    let far = ring.add(&far, Kind::Stream);
    ring.receive(far)?;
    ring.look()?;
    let near_slot = ring.add(&near, Kind::Stream);
    for _ in 0..2 {
        ring.send(near_slot, b"trial", Duration::from_secs(1))?;
        let received = match ring.receive(far)? {
            Some(received) => Some(received),
            None => {
                ring.wait(Duration::from_secs(1))?;
                ring.receive(far)?
            }
        };
        match received {
            Some(Received::Piece(piece)) if ring.payload(&piece).0 == b"trial" => {
                ring.recycle(piece);
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::set_udp_coalescing;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    /// Prints the reason and returns false where io_uring is unavailable.
    fn works() -> bool {
        match trial() {
            Ok(()) => true,
            Err(error) => {
                println!("no io_uring here: {error}");
                false
            }
        }
    }

    fn next(ring: &mut Ring, slot: usize) -> Option<Vec<u8>> {
        loop {
            match ring.receive(slot).unwrap() {
                Some(Received::Piece(piece)) => {
                    let payload = ring.payload(&piece).0.to_vec();
                    ring.recycle(piece);
                    return Some(payload);
                }
                Some(Received::End) => return None,
                None => assert!(ring.wait(Duration::from_secs(5)).unwrap(), "nothing came"),
            }
        }
    }

    #[test]
    fn streams_arrive_whole_and_end() {
        if !works() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let sender = std::thread::spawn(move || {
            let mut ring = Ring::new(2, 64).unwrap();
            let slot = ring.add(&near, Kind::Stream);
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
        let mut ring = Ring::new(4, 10_000).unwrap();
        let slot = ring.add(&far, Kind::Stream);
        std::thread::sleep(Duration::from_millis(100));
        let mut received = Vec::new();
        while let Some(payload) = next(&mut ring, slot) {
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
        if !works() {
            return;
        }
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        let mut ring = Ring::new(4, 2_048).unwrap();
        let (out, slot) = (
            ring.add(&near, Kind::Datagrams),
            ring.add(&far, Kind::Datagrams),
        );
        for length in [1, 700, 1_472] {
            let payload = vec![length as u8; length];
            assert_eq!(ring.send(out, &payload, Duration::ZERO).unwrap(), length);
        }
        for length in [1, 700, 1_472] {
            assert_eq!(next(&mut ring, slot).unwrap(), vec![length as u8; length]);
        }
        assert!(!ring.wait(Duration::from_millis(5)).unwrap());
    }

    #[test]
    fn joined_datagrams_tell_their_size() {
        if !works() {
            return;
        }
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        if let Err(error) =
            crate::sys::socket::set_udp_segment(&near, 100).and_then(|()| set_udp_coalescing(&far))
        {
            println!("this kernel has no UDP GSO or GRO: {error}");
            return;
        }
        let mut ring = Ring::new(4, 65_536).unwrap();
        let slot = ring.add(&far, Kind::Joined);
        near.send(&[7; 350]).unwrap();
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() < 350 {
            match ring.receive(slot).unwrap() {
                Some(Received::Piece(piece)) => {
                    let (payload, segment) = ring.payload(&piece);
                    let size = segment.map_or(payload.len(), usize::from);
                    lengths.extend(payload.chunks(size).map(<[u8]>::len));
                    ring.recycle(piece);
                }
                Some(Received::End) => panic!("datagrams do not end"),
                None => assert!(ring.wait(Duration::from_secs(5)).unwrap()),
            }
        }
        assert_eq!(lengths, [100, 100, 100, 50]);
    }

    #[test]
    fn who_is_forgotten_leaves_its_buffers_to_the_others() {
        if !works() {
            return;
        }
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (gone, stays) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let mut ring = Ring::new(4, 64).unwrap();
        let (gone_slot, stays_slot) = (
            ring.add(&gone, Kind::Datagrams),
            ring.add(&stays, Kind::Datagrams),
        );
        assert!(ring.receive(gone_slot).unwrap().is_none());
        ring.look().unwrap();
        // This socket holds all buffers but one.
        for _ in 0..3 {
            near.send_to(&[1], gone.local_addr().unwrap()).unwrap();
        }
        while ring.slots[gone_slot].ready.len() < 3 {
            assert!(ring.wait(Duration::from_secs(5)).unwrap());
        }
        ring.forget(gone_slot);
        assert!(ring.receive(stays_slot).unwrap().is_none());
        ring.look().unwrap();
        for number in 0..3 {
            near.send_to(&[number], stays.local_addr().unwrap())
                .unwrap();
        }
        while ring.slots[stays_slot].ready.len() < 3 {
            assert!(ring.wait(Duration::from_secs(5)).unwrap());
            assert!(ring.slots[stays_slot].armed, "it ran out of buffers");
        }
    }

    #[test]
    fn a_send_without_room_is_taken_back() {
        if !works() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut ring = Ring::new(2, 64).unwrap();
        let slot = ring.add(&near, Kind::Stream);
        let payload = vec![1; 1 << 20];
        let mut taken = 0;
        loop {
            match ring.send(slot, &payload, Duration::from_millis(10)) {
                Ok(bytes) => taken += bytes,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        let full = ring.send(slot, &payload, Duration::ZERO).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        ring.watch_room(slot).unwrap();
        ring.look().unwrap();
        drop(near);
        let mut room = vec![0; taken];
        far.read_exact(&mut room).unwrap();
        assert!(room.iter().all(|&byte| byte == 1));
    }
}
