//! Answers the openings of UDP flows until their run starts.
//!
//! From its first opening on a flow has a socket of its own, to which the kernel gives everything
//! that its client sends. When the answer is lost the client repeats its opening, and somebody has
//! to answer it again: the thread of the flow waits for the start and does not read.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use linerate_dialect::control::Token;
use linerate_dialect::control::flow::{OPENING_BYTES, answer, read_opening};
use linerate_host::sys::datagram;
use linerate_host::sys::socket::{self, Flags};

/// Openings that are answered at once on one flow.
const AT_ONCE: usize = 8;

/// The UDP flows of a run that has not started.
#[derive(Default)]
pub struct Greeter(Vec<Flow>);

struct Flow {
    socket: OwnedFd,
    token: Token,
    /// Of an unconnected socket: whose openings are answered.
    asker: Option<IpAddr>,
}

impl Greeter {
    /// Looks after a flow too.
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

    /// Answers what has been opened again meanwhile; takes nothing else off a socket.
    pub fn answer(&self) {
        for flow in &self.0 {
            for _ in 0..AT_ONCE {
                let mut room = [0; OPENING_BYTES + 1];
                let now = Flags::DONT_WAIT;
                // Looked at before it is taken: payload belongs to the flow's thread.
                let peeked = datagram::receive_from(&flow.socket, &mut room, Flags::PEEK.and(now));
                let Ok((bytes, from)) = peeked else {
                    break;
                };
                let foreign = flow.asker.is_some_and(|asker| {
                    from.socket_address().is_none_or(|from| from.ip() != asker)
                });
                if foreign {
                    // Anybody can send to such a socket: theirs would hide our client's behind it.
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
                // What is lost again is asked for again.
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
        // Another address of loopback is another host to it.
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
