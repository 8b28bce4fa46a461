//! Kernel timestamps of packets (SO_TIMESTAMPING).
//!
//! Timestamps of sent packets arrive in the socket's error queue after the call; those of received
//! packets arrive with the packet. Both use CLOCK_REALTIME; [`RealtimeConverter`] converts them to
//! the monotonic clock used everywhere else.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::clock::{self, Nanos};
use super::control_message::{self, ErrorQueueEntry};
use super::socket::MessageFlags;

/// Point in the transmit path at which the kernel takes a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxTimestampPoint {
    /// Passed to the queueing discipline (SCM_TSTAMP_SCHED).
    Scheduled,
    /// Passed to the driver (SCM_TSTAMP_SND).
    Driver,
}

/// Software and hardware timestamp of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketTimestamp {
    /// Kernel timestamp on CLOCK_REALTIME.
    pub software_ns: Option<Nanos>,
    /// Device timestamp on the device's own clock.
    pub hardware_ns: Option<Nanos>,
}

/// Timestamp of a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxTimestampEvent {
    /// Identity of the packet: datagrams are numbered from 0 by send call, streams by the last byte
    /// of each call.
    pub id: u32,
    pub point: TxTimestampPoint,
    pub timestamp: PacketTimestamp,
}

/// Enables timestamps of all packets sent and received from now on.
///
/// Numbering of sent packets starts with the next send call (of a stream with its next byte).
///
/// # Errors
/// Errors of `setsockopt`.
pub fn enable_timestamps(socket: &impl AsRawFd, stream: bool) -> io::Result<()> {
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
    let with_software = libc::SOF_TIMESTAMPING_OPT_TX_SWHW;
    // Counts a stream's bytes from this call on, even if some are unacknowledged (Linux 6.2).
    let stream_ids = if stream { OPT_ID_TCP } else { 0 };
    let mut result = Ok(());
    for extra in [with_software | stream_ids, with_software, 0] {
        result = set_timestamping(socket, basic | extra);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Waits until the kernel timestamps received packets; returns false if it does not within
/// `timeout`.
///
/// The kernel enables receive timestamps in a worker thread after the first socket of the machine
/// requested them; on a busy machine that can take long. Until then packets arrive without
/// timestamps.
///
/// # Errors
/// Errors of socket calls, for example without a loopback interface that is up.
pub fn wait_for_rx_timestamps(timeout: Duration) -> io::Result<bool> {
    const PAUSE_NS: Nanos = 200_000;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    set_timestamping(
        &socket,
        libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE,
    )?;
    let until = clock::now() + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    loop {
        socket.send(&[0])?;
        // The datagram to itself has usually arrived when the call returns, or shortly after.
        clock::sleep_until(clock::now() + PAUSE_NS);
        match receive_with_timestamp(&socket, &mut [0; 1], MessageFlags::DONT_WAIT) {
            Ok((_, timestamp)) if timestamp.software_ns.is_some() => return Ok(true),
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

fn set_timestamping(socket: &impl AsRawFd, flags: libc::c_uint) -> io::Result<()> {
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
const CONTROL_BYTES: usize = 512;

/// Parses `struct scm_timestamping`: three timespecs, the first from the kernel, the third from the
/// device.
fn parse_timestamp(data: &[u8]) -> PacketTimestamp {
    const TIME_T_BYTES: usize = mem::size_of::<libc::time_t>();
    let field = |index: usize| -> Option<i64> {
        let bytes = data.get(index * TIME_T_BYTES..(index + 1) * TIME_T_BYTES)?;
        if TIME_T_BYTES == 8 {
            Some(i64::from_ne_bytes(bytes.try_into().ok()?))
        } else {
            Some(i64::from(i32::from_ne_bytes(bytes.try_into().ok()?)))
        }
    };
    let time = |index: usize| {
        let (seconds, nanos) = (field(2 * index)?, field(2 * index + 1)?);
        let ns = u64::try_from(seconds).ok()? * 1_000_000_000 + u64::try_from(nanos).ok()?;
        (ns > 0).then_some(ns)
    };
    PacketTimestamp {
        software_ns: time(0),
        hardware_ns: time(2),
    }
}

/// Receives on a connected socket, with the receive timestamp.
///
/// # Errors
/// Errors of `recvmsg`.
#[inline]
pub fn receive_with_timestamp(
    socket: &impl AsRawFd,
    buffer: &mut [u8],
    flags: MessageFlags,
) -> io::Result<(usize, PacketTimestamp)> {
    let mut timestamp = PacketTimestamp::default();
    let bytes = control_message::receive_with_control::<CONTROL_BYTES>(
        socket,
        buffer,
        flags.raw(),
        |level, kind, data| {
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
                timestamp = parse_timestamp(data);
            }
        },
    )?;
    Ok((bytes, timestamp))
}

/// `SIOCGSTAMPNS_NEW` of linux/sockios.h (Linux 5.1): 0x89, 7, two 64-bit words.
const SIOCGSTAMPNS_NEW: libc::Ioctl = libc::_IOR::<[i64; 2]>(0x89, 7);

/// Returns the receive timestamp of the datagram that the socket returned last, on CLOCK_REALTIME.
///
/// The first call makes the kernel timestamp received packets of the whole machine from then on, at
/// about 20 ns each. `None` before a timestamped packet, and always for a stream.
#[must_use]
pub fn read_last_rx_timestamp(socket: &impl AsRawFd) -> Option<Nanos> {
    let mut time = [0_i64; 2];
    // SAFETY: the request writes one __kernel_timespec, two 64-bit words, which is the array.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSTAMPNS_NEW, time.as_mut_ptr()) };
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
pub fn next_tx_timestamp(socket: &impl AsRawFd) -> io::Result<Option<TxTimestampEvent>> {
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    let (mut timestamp, mut tx_point) = (PacketTimestamp::default(), None);
    let received = control_message::receive_with_control::<CONTROL_BYTES>(
        socket,
        &mut [],
        flags,
        |level, kind, data| {
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) {
                timestamp = parse_timestamp(data);
            } else if let Some(entry) = ErrorQueueEntry::parse(level, kind, data) {
                tx_point = parse_tx_point(&entry).or(tx_point);
            }
        },
    );
    match received {
        Ok(_) => Ok(tx_point.map(|(id, point)| TxTimestampEvent {
            id,
            point,
            timestamp,
        })),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns number and transmit point of an error queue entry; `None` if it is no timestamp.
fn parse_tx_point(entry: &ErrorQueueEntry) -> Option<(u32, TxTimestampPoint)> {
    const ORIGIN_TIMESTAMPING: u8 = 4;
    let point = match (entry.origin, entry.info) {
        (ORIGIN_TIMESTAMPING, 0) => TxTimestampPoint::Driver,
        (ORIGIN_TIMESTAMPING, 1) => TxTimestampPoint::Scheduled,
        _ => return None,
    };
    Some((entry.data, point))
}

/// Converter from CLOCK_REALTIME to CLOCK_MONOTONIC.
///
/// Both clocks run at the same rate; only setting the system time changes their difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealtimeConverter {
    /// Real time minus monotonic time.
    offset_ns: i64,
    /// Half the duration of the best reading of both clocks.
    error_ns: Nanos,
}

impl RealtimeConverter {
    /// Reads both clocks several times and keeps the closest pair.
    #[must_use]
    pub fn measure() -> Self {
        const TRIES: usize = 64;
        let mut best = Self {
            offset_ns: 0,
            error_ns: Nanos::MAX,
        };
        for _ in 0..TRIES {
            let before = clock::now();
            let real = clock::now_realtime();
            let after = clock::now();
            let error_ns = (after - before).div_ceil(2);
            if error_ns < best.error_ns {
                best = Self {
                    offset_ns: real.wrapping_sub(before + (after - before) / 2) as i64,
                    error_ns,
                };
            }
        }
        best
    }

    /// Converts a real time to monotonic time.
    #[inline]
    #[must_use]
    pub fn to_monotonic(&self, real_ns: Nanos) -> Nanos {
        real_ns.wrapping_sub(self.offset_ns as u64)
    }

    /// Returns the error bound of a converted time.
    #[must_use]
    pub fn error_ns(&self) -> Nanos {
        self.error_ns
    }

    /// Returns the step between the two clocks since an earlier reading.
    #[must_use]
    pub fn step_since(&self, earlier: &Self) -> Nanos {
        self.offset_ns.abs_diff(earlier.offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::socket::send;

    #[test]
    fn rx_timestamps_are_present_after_the_wait() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(local.local_addr().unwrap()).unwrap();
        enable_timestamps(&local, false).unwrap();
        assert!(wait_for_rx_timestamps(Duration::from_secs(20)).unwrap());
        local.send(b"x").unwrap();
        let (bytes, timestamp) =
            receive_with_timestamp(&local, &mut [0; 4], MessageFlags::NONE).unwrap();
        assert_eq!(bytes, 1);
        assert!(timestamp.software_ns.is_some(), "{timestamp:?}");
    }

    #[test]
    fn control_messages_are_parsed() {
        let mut data = vec![0; mem::size_of::<libc::time_t>() * 6];
        assert_eq!(parse_timestamp(&data), PacketTimestamp::default());
        let time_t_bytes = mem::size_of::<libc::time_t>();
        for (index, value) in [(0, 7u8), (1, 9), (4, 1), (5, 2)] {
            let at = index * time_t_bytes
                + if cfg!(target_endian = "big") {
                    time_t_bytes - 1
                } else {
                    0
                };
            data[at] = value;
        }
        let timestamp = parse_timestamp(&data);
        assert_eq!(timestamp.software_ns, Some(7_000_000_009));
        assert_eq!(timestamp.hardware_ns, Some(1_000_000_002));
        assert_eq!(parse_timestamp(&data[..3]), PacketTimestamp::default());
        let entry = |origin, info| ErrorQueueEntry {
            errno: 42,
            origin,
            code: 0,
            info,
            data: 77,
        };
        assert_eq!(
            parse_tx_point(&entry(4, 1)),
            Some((77, TxTimestampPoint::Scheduled))
        );
        assert_eq!(
            parse_tx_point(&entry(4, 0)),
            Some((77, TxTimestampPoint::Driver))
        );
        assert_eq!(parse_tx_point(&entry(4, 2)), None, "an acknowledgement");
        assert_eq!(
            parse_tx_point(&entry(2, 1)),
            None,
            "an ICMP error is no stamp"
        );
    }

    #[test]
    fn timestamps_lie_between_the_calls() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        remote.connect(local.local_addr().unwrap()).unwrap();
        if let Err(error) = enable_timestamps(&local, false).and(enable_timestamps(&remote, false))
        {
            println!("skipped: no SO_TIMESTAMPING here ({error})");
            return;
        }
        let mut complete = 0;
        // Receive timestamps start shortly after the first socket requests them.
        for number in 0..50 {
            let converter = RealtimeConverter::measure();
            let before = clock::now();
            send(&local, b"datagram", MessageFlags::NONE).unwrap();
            let (bytes, rx_ns) =
                receive_with_timestamp(&remote, &mut [0; 64], MessageFlags::NONE).unwrap();
            let after = clock::now();
            assert_eq!(bytes, 8);
            let mut tx_ns = [None; 2];
            while let Some(event) = next_tx_timestamp(&local).unwrap() {
                assert_eq!(event.id, number);
                let point = usize::from(event.point == TxTimestampPoint::Driver);
                tx_ns[point] = event.timestamp.software_ns;
            }
            let ([_, Some(driver)], Some(rx_ns)) = (tx_ns, rx_ns.software_ns) else {
                std::thread::sleep(std::time::Duration::from_millis(2));
                continue;
            };
            complete += 1;
            let slack = converter.error_ns() + 1_000;
            let (driver, rx_ns) = (
                converter.to_monotonic(driver),
                converter.to_monotonic(rx_ns),
            );
            assert!(before < driver + slack && driver < rx_ns + slack);
            assert!(rx_ns < after + slack);
        }
        assert!(complete > 10, "{complete}");
    }

    #[test]
    fn the_last_rx_timestamp_belongs_to_the_received_datagram() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        assert_eq!(read_last_rx_timestamp(&remote), None, "nothing came yet");
        // Receive timestamps start shortly after the first socket requests them.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let before = clock::now_realtime();
        local.send(b"one").unwrap();
        let sent = clock::now_realtime();
        std::thread::sleep(std::time::Duration::from_millis(20));
        remote.recv(&mut [0; 8]).unwrap();
        let rx_ns = read_last_rx_timestamp(&remote).unwrap();
        assert!(before <= rx_ns, "{before} {rx_ns}");
        if rx_ns > sent {
            println!("skipped: arrivals are not stamped here");
        }
        let stream = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(read_last_rx_timestamp(&stream), None);
    }

    #[test]
    fn stream_timestamps_are_numbered_by_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_remote, _) = listener.accept().unwrap();
        if let Err(error) = enable_timestamps(&local, true) {
            println!("skipped: no SO_TIMESTAMPING here ({error})");
            return;
        }
        local.write_all(&[0; 100]).unwrap();
        local.write_all(&[0; 50]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut ids = Vec::new();
        while let Some(event) = next_tx_timestamp(&local).unwrap() {
            if event.point == TxTimestampPoint::Driver {
                ids.push(event.id);
            }
        }
        assert_eq!(ids, [99, 149]);
    }

    #[test]
    fn realtime_converts_to_monotonic_time() {
        let converter = RealtimeConverter::measure();
        let (real, mono) = (clock::now_realtime(), clock::now());
        assert!(converter.to_monotonic(real).abs_diff(mono) < 10_000_000);
        assert!(RealtimeConverter::measure().step_since(&converter) < 10_000_000);
    }
}
