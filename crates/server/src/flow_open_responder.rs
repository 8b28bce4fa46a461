//! Confirms repeated openings of UDP flows until the test starts.
//!
//! Each flow has a connected socket from its first opening on. When the confirmation is lost, the
//! client repeats its opening. The flow's thread waits for the start and does not read, so the
//! repeated opening is confirmed here.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use linerate_protocol::control::FlowToken;
use linerate_protocol::control::flow::{OPENING_BYTES, read_opening, reply};
use linerate_sys::datagram;
use linerate_sys::socket;
use linerate_sys::socket::MessageFlags;

/// Openings confirmed per flow in one call.
const MAX_OPENINGS_PER_CALL: usize = 8;

/// UDP flows of a test that has not started.
#[derive(Default)]
pub struct FlowOpenResponder(Vec<OpeningFlow>);

struct OpeningFlow {
    socket: OwnedFd,
    token: FlowToken,
    /// Client address, for an unconnected socket: openings of other addresses are discarded.
    client: Option<IpAddr>,
}

impl FlowOpenResponder {
    /// Adds a flow.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn add(
        &mut self,
        flow: &impl AsFd,
        token: FlowToken,
        client: Option<IpAddr>,
    ) -> io::Result<()> {
        self.0.push(OpeningFlow {
            socket: socket::clone_handle(flow)?,
            token,
            client,
        });
        Ok(())
    }

    /// Confirms repeated openings; leaves payload in the socket.
    pub fn confirm_repeated(&self) {
        for flow in &self.0 {
            for _ in 0..MAX_OPENINGS_PER_CALL {
                let mut buffer = [0; OPENING_BYTES + 1];
                let no_wait = MessageFlags::DONT_WAIT;
                // Peeked first: payload belongs to the flow's thread.
                let peeked = datagram::receive_from(
                    &flow.socket,
                    &mut buffer,
                    MessageFlags::PEEK.union(no_wait),
                );
                let Ok((bytes, from)) = peeked else {
                    break;
                };
                let is_other_sender = flow
                    .client
                    .is_some_and(|client| from.to_std().is_none_or(|from| from.ip() != client));
                if is_other_sender {
                    // Any host can send to an unconnected socket: its datagram is discarded,
                    // because it would hide the client's opening behind it.
                    if socket::receive(&flow.socket, &mut buffer, no_wait).is_err() {
                        break;
                    }
                    continue;
                }
                if read_opening(&buffer[..bytes]) != Some(flow.token) {
                    break;
                }
                if socket::receive(&flow.socket, &mut buffer, no_wait).is_err() {
                    break;
                }
                let confirmation = reply(flow.token);
                // When the confirmation is lost, the client repeats its opening.
                let _ = match flow.client {
                    None => socket::send(&flow.socket, &confirmation, no_wait),
                    Some(_) => datagram::send_to(&flow.socket, &confirmation, no_wait, &from),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use linerate_protocol::control::flow::{opening, read_reply};

    use super::*;

    #[test]
    fn openings_are_confirmed_and_payload_stays() {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        server.connect(client.local_addr().unwrap()).unwrap();
        let token = FlowToken([7; 16]);
        let mut responder = FlowOpenResponder::default();
        responder.add(&server, token, None).unwrap();
        responder.confirm_repeated();
        for _ in 0..2 {
            client.send(&opening(token)).unwrap();
        }
        client.send(b"payload").unwrap();
        client.send(&opening(token)).unwrap();
        responder.confirm_repeated();
        responder.confirm_repeated();
        let mut buffer = [0; 100];
        for _ in 0..2 {
            let bytes = client.recv(&mut buffer).unwrap();
            assert_eq!(read_reply(&buffer[..bytes]), Some(token));
        }
        client.set_nonblocking(true).unwrap();
        assert!(client.recv(&mut buffer).is_err());
        assert_eq!(server.recv(&mut buffer).unwrap(), 7);
    }

    #[test]
    fn other_senders_do_not_hide_an_opening() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        // Another loopback address acts as another host.
        let other = UdpSocket::bind("127.0.0.2:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let token = FlowToken([7; 16]);
        let mut responder = FlowOpenResponder::default();
        let client = Some("127.0.0.1".parse().unwrap());
        responder.add(&server, token, client).unwrap();
        for _ in 0..3 {
            other.send_to(b"noise", address).unwrap();
        }
        other.send_to(&opening(token), address).unwrap();
        sender.send_to(&opening(token), address).unwrap();
        responder.confirm_repeated();
        let mut buffer = [0; 100];
        let bytes = sender.recv(&mut buffer).unwrap();
        assert_eq!(read_reply(&buffer[..bytes]), Some(token));
        other.set_nonblocking(true).unwrap();
        assert!(other.recv(&mut buffer).is_err());
    }
}
