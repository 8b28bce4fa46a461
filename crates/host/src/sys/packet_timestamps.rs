//! Kernel timestamps of packets (SO_TIMESTAMPING).
//!
//! Timestamps of sent packets arrive in the socket's error queue after the call; those of received
//! packets arrive with the packet. Both use CLOCK_REALTIME; [`Bridge`] converts them to the
//! monotonic clock used everywhere else.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::clock::{self, Nanos};
use super::control_message::{self, Notice};
use super::socket::Flags;

/// Point in the transmit path at which the kernel takes a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Passed to the queueing discipline (SCM_TSTAMP_SCHED).
    Queued,
    /// Passed to the driver (SCM_TSTAMP_SND).
    Driver,
}

/// Software and hardware timestamp of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Kernel timestamp on CLOCK_REALTIME.
    pub software_ns: Option<Nanos>,
    /// Device timestamp on the device's own clock.
    pub hardware_ns: Option<Nanos>,
}

/// Timestamp of a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Identity of the packet: datagrams are numbered from 0 by send call, streams by the last byte
    /// of each call.
    pub id: u32,
    pub place: Place,
    pub stamp: Stamp,
}

/// Enables timestamps of all packets sent and received from now on.
///
/// Numbering of sent packets starts with the next send call (of a stream with its next byte).
///
/// # Errors
/// Errors of `setsockopt`.
pub fn enable(socket: &impl AsRawFd, stream: bool) -> io::Result<()> {
    let basic = libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_RAW_HARDWARE
        | libc::SOF_TIMESTAMPING_RX_SOFTWARE
        | libc::SOF_TIMESTAMPING_RX_HARDWARE
        | libc::SOF_TIMESTAMPING_TX_SCHED
        | libc::SOF_TIMESTAMPING_TX_SOFTWARE
        | libc::SOF_TIMESTAMPING_TX_HARDWARE
        | libc::SOF_TIMESTAMPING_OPT_ID
        | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    // Without this flag the kernel takes no software timestamp if the device takes one (Linux
    // 4.14).
    let both = libc::SOF_TIMESTAMPING_OPT_TX_SWHW;
    // Counts a stream's bytes from this call on, even if some are unacknowledged (Linux 6.2).
    let by_byte = if stream { OPT_ID_TCP } else { 0 };
    let mut tried = Ok(());
    for more in [both | by_byte, both, 0] {
        tried = set(socket, basic | more);
        if tried.is_ok() {
            break;
        }
    }
    tried
}

/// Waits until the kernel timestamps received packets; returns false if it does not within
/// `patience`.
///
/// The kernel enables receive timestamps in a worker thread after the first socket of the machine
/// requested them; on a busy machine that can take long. Until then packets arrive without
/// timestamps.
///
/// # Errors
/// Errors of socket calls, for example without a loopback interface that is up.
pub fn await_arrivals(patience: Duration) -> io::Result<bool> {
    const PAUSE_NS: Nanos = 200_000;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    set(
        &socket,
        libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE,
    )?;
    let until = clock::now() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    loop {
        socket.send(&[0])?;
        // The datagram to itself has usually arrived when the call returns, or shortly after.
        clock::sleep_until(clock::now() + PAUSE_NS);
        match receive(&socket, &mut [0; 1], Flags::DONT_WAIT) {
            Ok((_, stamp)) if stamp.software_ns.is_some() => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if clock::now() >= until {
            return Ok(false);
        }
    }
}

/// SOF_TIMESTAMPING_OPT_ID_TCP of linux/net_tstamp.h.
const OPT_ID_TCP: libc::c_uint = 1 << 16;

fn set(socket: &impl AsRawFd, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the option is one unsigned int, readable through the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            mem::size_of_val(&flags) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Buffer for the control messages of one call: timestamps, and an entry of the error queue.
const CONTROL: usize = 512;

/// Parses `struct scm_timestamping`: three timespecs, the first from the kernel, the third from the
/// device.
fn stamp_of(data: &[u8]) -> Stamp {
    const WORD: usize = mem::size_of::<libc::time_t>();
    let word = |index: usize| -> Option<i64> {
        let part = data.get(index * WORD..(index + 1) * WORD)?;
        if WORD == 8 {
            Some(i64::from_ne_bytes(part.try_into().ok()?))
        } else {
            Some(i64::from(i32::from_ne_bytes(part.try_into().ok()?)))
        }
    };
    let time = |index: usize| {
        let (seconds, nanos) = (word(2 * index)?, word(2 * index + 1)?);
        let ns = u64::try_from(seconds).ok()? * 1_000_000_000 + u64::try_from(nanos).ok()?;
        (ns > 0).then_some(ns)
    };
    Stamp {
        software_ns: time(0),
        hardware_ns: time(2),
    }
}

/// Receives on a connected socket, with the receive timestamp.
///
/// # Errors
/// Errors of `recvmsg`.
#[inline]
pub fn receive(socket: &impl AsRawFd, room: &mut [u8], flags: Flags) -> io::Result<(usize, Stamp)> {
    let mut stamp = Stamp::default();
    let bytes =
        control_message::receive::<CONTROL>(socket, room, flags.raw(), |level, kind, data| {
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
                stamp = stamp_of(data);
            }
        })?;
    Ok((bytes, stamp))
}

/// `SIOCGSTAMPNS_NEW` of linux/sockios.h (Linux 5.1): 0x89, 7, two 64-bit words.
const LAST_ARRIVAL: libc::Ioctl = libc::_IOR::<[i64; 2]>(0x89, 7);

/// Returns the receive timestamp of the datagram that the socket returned last, on CLOCK_REALTIME.
///
/// The first call makes the kernel timestamp received packets of the whole machine from then on, at
/// about 20 ns each. `None` before a timestamped packet, and always for a stream.
#[must_use]
pub fn last_arrival(socket: &impl AsRawFd) -> Option<Nanos> {
    let mut time = [0_i64; 2];
    // SAFETY: the request writes one __kernel_timespec, two 64-bit words, which is the array.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), LAST_ARRIVAL, time.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    let [seconds, nanos] = time.map(|word| u64::try_from(word).ok());
    seconds?.checked_mul(1_000_000_000)?.checked_add(nanos?)
}

/// Takes the next transmit timestamp from the error queue; `None` when there is none.
///
/// # Errors
/// Errors of `recvmsg`.
pub fn departure(socket: &impl AsRawFd) -> io::Result<Option<Departure>> {
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    let (mut stamp, mut passed) = (Stamp::default(), None);
    let received =
        control_message::receive::<CONTROL>(socket, &mut [], flags, |level, kind, data| {
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
                stamp = stamp_of(data);
            } else if let Some(notice) = Notice::of(level, kind, data) {
                passed = passage_of(&notice).or(passed);
            }
        });
    match received {
        Ok(_) => Ok(passed.map(|(id, place)| Departure { id, place, stamp })),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns number and transmit point of an error queue entry; `None` if it is no timestamp.
fn passage_of(notice: &Notice) -> Option<(u32, Place)> {
    const ORIGIN_TIMESTAMPING: u8 = 4;
    let place = match (notice.origin, notice.info) {
        (ORIGIN_TIMESTAMPING, 0) => Place::Driver,
        (ORIGIN_TIMESTAMPING, 1) => Place::Queued,
        _ => return None,
    };
    Some((notice.data, place))
}

/// Converter from CLOCK_REALTIME to CLOCK_MONOTONIC.
///
/// Both clocks run at the same rate; only setting the system time changes their difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Real time minus monotonic time.
    ahead_ns: i64,
    /// Half the duration of the best reading of both clocks.
    error_ns: Nanos,
}

impl Bridge {
    /// Reads both clocks several times and keeps the closest pair.
    #[must_use]
    pub fn now() -> Self {
        const TRIES: usize = 64;
        let mut best = Self {
            ahead_ns: 0,
            error_ns: Nanos::MAX,
        };
        for _ in 0..TRIES {
            let before = clock::now();
            let real = clock::real();
            let after = clock::now();
            let error_ns = (after - before).div_ceil(2);
            if error_ns < best.error_ns {
                best = Self {
                    ahead_ns: real.wrapping_sub(before + (after - before) / 2) as i64,
                    error_ns,
                };
            }
        }
        best
    }

    /// Converts a real time to monotonic time.
    #[inline]
    #[must_use]
    pub fn monotonic(&self, real_ns: Nanos) -> Nanos {
        real_ns.wrapping_sub(self.ahead_ns as u64)
    }

    /// Returns the error bound of a converted time.
    #[must_use]
    pub fn error_ns(&self) -> Nanos {
        self.error_ns
    }

    /// Returns the step between the two clocks since an earlier reading.
    #[must_use]
    pub fn moved_since(&self, earlier: &Self) -> Nanos {
        self.ahead_ns.abs_diff(earlier.ahead_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::send;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn arrivals_are_stamped_once_they_were_waited_for() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(near.local_addr().unwrap()).unwrap();
        enable(&near, false).unwrap();
        assert!(await_arrivals(Duration::from_secs(20)).unwrap());
        near.send(b"x").unwrap();
        let (bytes, stamp) = receive(&near, &mut [0; 4], Flags::NONE).unwrap();
        assert_eq!(bytes, 1);
        assert!(stamp.software_ns.is_some(), "{stamp:?}");
    }

    #[test]
    fn control_messages_are_read_as_the_kernel_lays_them_out() {
        let mut data = vec![0; mem::size_of::<libc::time_t>() * 6];
        assert_eq!(stamp_of(&data), Stamp::default());
        let word = mem::size_of::<libc::time_t>();
        for (index, value) in [(0, 7u8), (1, 9), (4, 1), (5, 2)] {
            let at = index * word
                + if cfg!(target_endian = "big") {
                    word - 1
                } else {
                    0
                };
            data[at] = value;
        }
        let stamp = stamp_of(&data);
        assert_eq!(stamp.software_ns, Some(7_000_000_009));
        assert_eq!(stamp.hardware_ns, Some(1_000_000_002));
        assert_eq!(stamp_of(&data[..3]), Stamp::default());
        let notice = |origin, info| Notice {
            errno: 42,
            origin,
            code: 0,
            info,
            data: 77,
        };
        assert_eq!(passage_of(&notice(4, 1)), Some((77, Place::Queued)));
        assert_eq!(passage_of(&notice(4, 0)), Some((77, Place::Driver)));
        assert_eq!(passage_of(&notice(4, 2)), None, "an acknowledgement");
        assert_eq!(passage_of(&notice(2, 1)), None, "an ICMP error is no stamp");
    }

    #[test]
    fn stamps_lie_between_the_calls() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        if let Err(error) = enable(&near, false).and(enable(&far, false)) {
            println!("skipped: no SO_TIMESTAMPING here ({error})");
            return;
        }
        let mut seen = 0;
        // Receive timestamps start shortly after the first socket requests them.
        for number in 0..50 {
            let bridge = Bridge::now();
            let before = clock::now();
            send(&near, b"datagram", Flags::NONE).unwrap();
            let (bytes, arrived) = receive(&far, &mut [0; 64], Flags::NONE).unwrap();
            let after = clock::now();
            assert_eq!(bytes, 8);
            let mut departed = [None; 2];
            while let Some(departure) = departure(&near).unwrap() {
                assert_eq!(departure.id, number);
                let place = usize::from(departure.place == Place::Driver);
                departed[place] = departure.stamp.software_ns;
            }
            let ([_, Some(driver)], Some(arrived)) = (departed, arrived.software_ns) else {
                std::thread::sleep(std::time::Duration::from_millis(2));
                continue;
            };
            seen += 1;
            let slack = bridge.error_ns() + 1_000;
            let (driver, arrived) = (bridge.monotonic(driver), bridge.monotonic(arrived));
            assert!(before < driver + slack && driver < arrived + slack);
            assert!(arrived < after + slack);
        }
        assert!(seen > 10, "{seen}");
    }

    #[test]
    fn the_last_arrival_is_that_of_what_was_received() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        assert_eq!(last_arrival(&far), None, "nothing came yet");
        // Receive timestamps start shortly after the first socket requests them.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let before = clock::real();
        near.send(b"one").unwrap();
        let sent = clock::real();
        std::thread::sleep(std::time::Duration::from_millis(20));
        far.recv(&mut [0; 8]).unwrap();
        let arrived = last_arrival(&far).unwrap();
        assert!(before <= arrived, "{before} {arrived}");
        if arrived > sent {
            println!("skipped: arrivals are not stamped here");
        }
        let stream = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(last_arrival(&stream), None);
    }

    #[test]
    fn a_stream_is_numbered_by_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        if let Err(error) = enable(&near, true) {
            println!("skipped: no SO_TIMESTAMPING here ({error})");
            return;
        }
        near.write_all(&[0; 100]).unwrap();
        near.write_all(&[0; 50]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut ids = Vec::new();
        while let Some(departure) = departure(&near).unwrap() {
            if departure.place == Place::Driver {
                ids.push(departure.id);
            }
        }
        assert_eq!(ids, [99, 149]);
    }

    #[test]
    fn the_bridge_carries_now_to_now() {
        let bridge = Bridge::now();
        let (real, mono) = (clock::real(), clock::now());
        assert!(bridge.monotonic(real).abs_diff(mono) < 10_000_000);
        assert!(Bridge::now().moved_since(&bridge) < 10_000_000);
    }
}
