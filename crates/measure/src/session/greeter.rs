//! Answers the openings of UDP flows until their run starts.
//!
//! From its first opening on a flow has a socket of its own, to which the kernel gives everything
//! that its client sends. When the answer is lost the client repeats its opening, and somebody has
//! to answer it again: the thread of the flow waits for the start and does not read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use linerate_dialect::control::Token;
use linerate_dialect::control::flow::{OPENING_BYTES, answer, read_opening};
use linerate_host::sys::socket::{self, Flags};

/// Openings that are answered at once on one flow.
const AT_ONCE: usize = 8;

/// The UDP flows of a run that has not started.
#[derive(Default)]
pub struct Greeter(Vec<(OwnedFd, Token)>);

impl Greeter {
    /// Looks after a flow too.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn add(&mut self, flow: &impl AsFd, token: Token) -> io::Result<()> {
        self.0.push((socket::watch(flow)?, token));
        Ok(())
    }

    /// Answers what has been opened again meanwhile; takes nothing else off a socket.
    pub fn answer(&self) {
        for (flow, token) in &self.0 {
            for _ in 0..AT_ONCE {
                let mut room = [0; OPENING_BYTES + 1];
                let now = Flags::DONT_WAIT;
                // Looked at before it is taken: payload belongs to the flow's thread.
                let Ok(bytes) = socket::receive(flow, &mut room, Flags::PEEK.and(now)) else {
                    break;
                };
                if read_opening(&room[..bytes]) != Some(*token) {
                    break;
                }
                if socket::receive(flow, &mut room, now).is_err() {
                    break;
                }
                // What is lost again is asked for again.
                let _ = socket::send(flow, &answer(*token), now);
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
        greeter.add(&far, token).unwrap();
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
}
