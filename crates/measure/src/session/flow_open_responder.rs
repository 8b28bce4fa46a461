//! Confirms repeated openings of UDP flows until the test starts.
//!
//! Each flow has a connected socket from its first opening on. When the confirmation is lost, the
//! client repeats its opening. The flow's thread waits for the start and does not read, so the
//! repeated opening is confirmed here.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use linerate_dialect::control::Token;
use linerate_dialect::control::flow::{OPENING_BYTES, answer, read_opening};
use linerate_host::sys::datagram;
use linerate_host::sys::socket::{self, Flags};

/// Openings confirmed per flow in one call.
const AT_ONCE: usize = 8;

/// UDP flows of a test that has not started.
#[derive(Default)]
pub struct Greeter(Vec<Flow>);

struct Flow {
    socket: OwnedFd,
    token: Token,
    /// Client address, for an unconnected socket: openings of other addresses are discarded.
    asker: Option<IpAddr>,
}

impl Greeter {
    /// Adds a flow.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn add(&mut self, flow: &impl AsFd, token: Token, asker: Option<IpAddr>) -> io::Result<()> {
        self.0.push(Flow {
            socket: socket::watch(flow)?,
            token,
            asker,
        });
        Ok(())
    }

    /// Confirms repeated openings; leaves payload in the socket.
    pub fn answer(&self) {
        for flow in &self.0 {
            for _ in 0..AT_ONCE {
                let mut room = [0; OPENING_BYTES + 1];
                let now = Flags::DONT_WAIT;
                // Peeked first: payload belongs to the flow's thread.
                let peeked = datagram::receive_from(&flow.socket, &mut room, Flags::PEEK.and(now));
                let Ok((bytes, from)) = peeked else {
                    break;
                };
                let foreign = flow.asker.is_some_and(|asker| {
                    from.socket_address().is_none_or(|from| from.ip() != asker)
                });
                if foreign {
                    // Any host can send to an unconnected socket: its datagram is discarded,
                    // because it would hide the client's opening behind it.
                    if socket::receive(&flow.socket, &mut room, now).is_err() {
                        break;
                    }
                    continue;
                }
                if read_opening(&room[..bytes]) != Some(flow.token) {
                    break;
                }
                if socket::receive(&flow.socket, &mut room, now).is_err() {
                    break;
                }
                let answer = answer(flow.token);
                // When the confirmation is lost, the client repeats its opening.
                let _ = match flow.asker {
                    None => socket::send(&flow.socket, &answer, now),
                    Some(_) => datagram::send_to(&flow.socket, &answer, now, &from),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_dialect::control::flow::{opening, read_answer};
    use std::net::UdpSocket;

    #[test]
    fn openings_are_answered_and_payload_stays() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        let token = Token([7; 16]);
        let mut greeter = Greeter::default();
        greeter.add(&far, token, None).unwrap();
        greeter.answer();
        for _ in 0..2 {
            near.send(&opening(token)).unwrap();
        }
        near.send(b"payload").unwrap();
        near.send(&opening(token)).unwrap();
        greeter.answer();
        greeter.answer();
        let mut room = [0; 100];
        for _ in 0..2 {
            let bytes = near.recv(&mut room).unwrap();
            assert_eq!(read_answer(&room[..bytes]), Some(token));
        }
        near.set_nonblocking(true).unwrap();
        assert!(near.recv(&mut room).is_err());
        assert_eq!(far.recv(&mut room).unwrap(), 7);
    }

    #[test]
    fn strangers_do_not_hide_an_opening() {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = far.local_addr().unwrap();
        // Another loopback address acts as another host.
        let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let token = Token([7; 16]);
        let mut greeter = Greeter::default();
        let asker = Some("127.0.0.1".parse().unwrap());
        greeter.add(&far, token, asker).unwrap();
        for _ in 0..3 {
            stranger.send_to(b"noise", address).unwrap();
        }
        stranger.send_to(&opening(token), address).unwrap();
        client.send_to(&opening(token), address).unwrap();
        greeter.answer();
        let mut room = [0; 100];
        let bytes = client.recv(&mut room).unwrap();
        assert_eq!(read_answer(&room[..bytes]), Some(token));
        stranger.set_nonblocking(true).unwrap();
        assert!(stranger.recv(&mut room).is_err());
    }
}
