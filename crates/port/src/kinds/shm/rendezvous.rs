//! Rendezvous of two processes over a Unix socket: the listening socket, and the messages
//! exchanged.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::PortError;

/// First bytes of every message; the last one is the protocol version. The kind of message follows,
/// and at [`FRAME_BYTES_OFFSET`] the sender's frame length.
const MAGIC: [u8; 8] = *b"linrt-m\x01";
/// Offset of the sender's maximum frame length in bytes, in native byte order; 0 if it is not
/// given.
const FRAME_BYTES_OFFSET: usize = 10;

/// Kind of message. A file descriptor accompanies it if there is memory to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HandshakeMessage {
    /// Client: request to connect (with the memory, if it has survived a server).
    Hello = 1,
    /// Server: connected (with the memory, unless the client provided it).
    Joined = 2,
    /// Server: another client is connected.
    Busy = 3,
    /// Either side: the memory or the message is not compatible.
    Incompatible = 4,
}

/// Directory of the sockets; created if it is missing.
pub(super) fn runtime_dir() -> Result<PathBuf, PortError> {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime_dir = runtime_dir.filter(|path| path.is_absolute() && path.is_dir());
    let uid = rustix::process::geteuid().as_raw();
    let path = match runtime_dir {
        Some(path) => path.join("linerate"),
        None => std::env::temp_dir().join(format!("linerate-{uid}")),
    };
    let failed = |situation: &str, source| PortError::File {
        path: path.clone(),
        situation: situation.to_owned(),
        next_step: "set XDG_RUNTIME_DIR to a directory of your own",
        source,
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("the directory cannot be created", Some(error)));
        }
        _ => {}
    }
    // In a directory that all users may write to, another user may have created it first.
    let metadata =
        fs::symlink_metadata(&path).map_err(|error| failed("it cannot be read", Some(error)))?;
    if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o022 != 0 {
        return Err(failed(
            "it is not a directory that only you can write to",
            None,
        ));
    }
    Ok(path)
}

/// A server's listening socket, and the lock that makes it the only server.
pub(super) struct RendezvousListener {
    listener: OwnedFd,
    socket_path: PathBuf,
    lock_path: PathBuf,
    _lock_file: File,
}

impl RendezvousListener {
    /// Binds the socket, and replaces files that a killed server left. `None` if another server has
    /// the lock.
    pub(super) fn bind(socket: &Path) -> io::Result<Option<Self>> {
        let lock_path = socket.with_extension("lock");
        let lock_file = loop {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true).mode(0o600);
            let file = options.open(&lock_path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                result => result?,
            }
            // The last owner may have removed the file between our opening and locking it.
            let named = fs::metadata(&lock_path).map(|facts| facts.ino());
            if named.is_ok_and(|inode| file.metadata().is_ok_and(|facts| facts.ino() == inode)) {
                break file;
            }
        };
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = new_socket()?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(socket)?)?;
        rustix::net::listen(&listener, 8)?;
        Ok(Some(Self {
            listener,
            socket_path: socket.to_owned(),
            lock_path,
            _lock_file: lock_file,
        }))
    }

    /// Accepts the next connection, if there is one.
    pub(super) fn accept(&self) -> Option<PeerConnection> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(&self.listener, flags);
        accepted.ok().map(PeerConnection)
    }
}

impl Drop for RendezvousListener {
    fn drop(&mut self) {
        // Errors leave a file, which the next server replaces.
        let _ = fs::remove_file(&self.socket_path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Connection to the other process. The kernel closes it when either process ends.
pub(super) struct PeerConnection(OwnedFd);

/// Result of a non-blocking receive.
pub(super) enum HandshakeEvent {
    /// No message has arrived.
    Pending,
    /// The peer has closed the connection.
    Closed,
    /// A message, its file descriptor, and the peer's maximum frame length in bytes (0: not given).
    Message(HandshakeMessage, Option<OwnedFd>, u16),
    /// A message that this version does not support.
    Unknown,
}

impl PeerConnection {
    /// Connects to a server.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let connection = new_socket()?;
        rustix::net::connect(&connection, &SocketAddrUnix::new(socket)?)?;
        Ok(Self(connection))
    }

    /// Sends a message. If that fails, the next [`PeerConnection::receive`] returns that the
    /// connection is closed.
    pub(super) fn send(
        &self,
        message_kind: HandshakeMessage,
        file: Option<BorrowedFd<'_>>,
        frame_bytes: u16,
    ) -> io::Result<()> {
        let mut message = [0; 16];
        message[..8].copy_from_slice(&MAGIC);
        message[8] = message_kind as u8;
        message[FRAME_BYTES_OFFSET..FRAME_BYTES_OFFSET + 2]
            .copy_from_slice(&frame_bytes.to_ne_bytes());
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let buffers = [IoSlice::new(&message)];
        rustix::net::sendmsg(&self.0, &buffers, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives a message without blocking.
    pub(super) fn receive(&self) -> HandshakeEvent {
        let mut message = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut message)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&self.0, &mut buffers, &mut ancillary, flags) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                return HandshakeEvent::Pending;
            }
            Err(_) => return HandshakeEvent::Closed,
            Ok(received) => received.bytes,
        };
        let mut file = None;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = part {
                file = files.next();
            }
        }
        if received == 0 {
            return HandshakeEvent::Closed;
        }
        if message[..8] != MAGIC {
            return HandshakeEvent::Unknown;
        }
        let kinds = [
            HandshakeMessage::Hello,
            HandshakeMessage::Joined,
            HandshakeMessage::Busy,
            HandshakeMessage::Incompatible,
        ];
        match kinds.into_iter().find(|&kind| kind as u8 == message[8]) {
            Some(kind) => {
                let frame_bytes = [message[FRAME_BYTES_OFFSET], message[FRAME_BYTES_OFFSET + 1]];
                HandshakeEvent::Message(kind, file, u16::from_ne_bytes(frame_bytes))
            }
            None => HandshakeEvent::Unknown,
        }
    }
}

impl AsFd for PeerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_exclusive_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("x.sock");
        let listener = RendezvousListener::bind(&socket).unwrap().unwrap();
        assert!(RendezvousListener::bind(&socket).unwrap().is_none());
        drop(listener);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // Files that a killed server leaves.
        fs::write(&socket, "").unwrap();
        fs::write(socket.with_extension("lock"), "").unwrap();
        assert!(RendezvousListener::bind(&socket).unwrap().is_some());
    }

    #[test]
    fn messages_and_files_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("x.sock");
        assert!(PeerConnection::connect(&socket).is_err());
        let listener = RendezvousListener::bind(&socket).unwrap().unwrap();
        assert!(listener.accept().is_none());
        let client = PeerConnection::connect(&socket).unwrap();
        let server = listener.accept().unwrap();
        assert!(matches!(server.receive(), HandshakeEvent::Pending));
        let file = File::open("/dev/null").unwrap();
        client
            .send(HandshakeMessage::Hello, Some(file.as_fd()), 1518)
            .unwrap();
        client.send(HandshakeMessage::Busy, None, 0).unwrap();
        assert!(matches!(
            server.receive(),
            HandshakeEvent::Message(HandshakeMessage::Hello, Some(_), 1518)
        ));
        assert!(matches!(
            server.receive(),
            HandshakeEvent::Message(HandshakeMessage::Busy, None, 0)
        ));
        rustix::io::write(&client, b"something else").unwrap();
        assert!(matches!(server.receive(), HandshakeEvent::Unknown));
        drop(client);
        assert!(matches!(server.receive(), HandshakeEvent::Closed));
    }
}
