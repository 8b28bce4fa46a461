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
/// and at [`FRAME_AT`] the sender's frame length.
const MAGIC: [u8; 8] = *b"linrt-m\x01";
/// Offset of the sender's maximum frame length in bytes, in native byte order; 0 if it is not
/// given.
const FRAME_AT: usize = 10;

/// Kind of message. A file descriptor accompanies it if there is memory to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Word {
    /// Client: request to connect (with the memory, if it has survived a server).
    Hello = 1,
    /// Server: connected (with the memory, unless the client provided it).
    Joined = 2,
    /// Server: another client is connected.
    Taken = 3,
    /// Either side: the memory or the message is not compatible.
    Unfit = 4,
}

/// Directory of the sockets; created if it is missing.
pub(super) fn folder() -> Result<PathBuf, PortError> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let given = given.filter(|path| path.is_absolute() && path.is_dir());
    let uid = rustix::process::geteuid().as_raw();
    let path = match given {
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
    let facts =
        fs::symlink_metadata(&path).map_err(|error| failed("it cannot be read", Some(error)))?;
    if !facts.is_dir() || facts.uid() != uid || facts.mode() & 0o022 != 0 {
        return Err(failed(
            "it is not a directory that only you can write to",
            None,
        ));
    }
    Ok(path)
}

/// A server's listening socket, and the lock that makes it the only server.
pub(super) struct Place {
    listener: OwnedFd,
    socket: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Place {
    /// Binds the socket, and replaces files that a killed server left. `None` if another server has
    /// the lock.
    pub(super) fn take(socket: &Path) -> io::Result<Option<Self>> {
        let lock = socket.with_extension("lock");
        let held = loop {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true).mode(0o600);
            let file = options.open(&lock)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                other => other?,
            }
            // The last owner may have removed the file between our opening and locking it.
            let named = fs::metadata(&lock).map(|facts| facts.ino());
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
            socket: socket.to_owned(),
            lock,
            _held: held,
        }))
    }

    /// Accepts the next connection, if there is one.
    pub(super) fn accept(&self) -> Option<Talk> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(&self.listener, flags);
        accepted.ok().map(Talk)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Errors leave a file, which the next server replaces.
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock);
    }
}

/// Connection to the other process. The kernel closes it when either process ends.
pub(super) struct Talk(OwnedFd);

/// Result of a non-blocking receive.
pub(super) enum Heard {
    /// No message has arrived.
    Nothing,
    /// The peer has closed the connection.
    End,
    /// A message, its file descriptor, and the peer's maximum frame length in bytes (0: not given).
    Word(Word, Option<OwnedFd>, u16),
    /// A message that this version does not support.
    Unknown,
}

impl Talk {
    /// Connects to a server.
    pub(super) fn to(socket: &Path) -> io::Result<Self> {
        let talk = new_socket()?;
        rustix::net::connect(&talk, &SocketAddrUnix::new(socket)?)?;
        Ok(Self(talk))
    }

    /// Sends a message. If that fails, the next [`Talk::hear`] returns that the connection is
    /// closed.
    pub(super) fn say(
        &self,
        word: Word,
        file: Option<BorrowedFd<'_>>,
        frame_bytes: u16,
    ) -> io::Result<()> {
        let mut message = [0; 16];
        message[..8].copy_from_slice(&MAGIC);
        message[8] = word as u8;
        message[FRAME_AT..FRAME_AT + 2].copy_from_slice(&frame_bytes.to_ne_bytes());
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let pieces = [IoSlice::new(&message)];
        rustix::net::sendmsg(&self.0, &pieces, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives a message without blocking.
    pub(super) fn hear(&self) -> Heard {
        let mut message = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut message)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&self.0, &mut pieces, &mut ancillary, flags) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Heard::Nothing,
            Err(_) => return Heard::End,
            Ok(received) => received.bytes,
        };
        let mut file = None;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = part {
                file = files.next();
            }
        }
        if received == 0 {
            return Heard::End;
        }
        if message[..8] != MAGIC {
            return Heard::Unknown;
        }
        let words = [Word::Hello, Word::Joined, Word::Taken, Word::Unfit];
        match words.into_iter().find(|&word| word as u8 == message[8]) {
            Some(word) => {
                let frame_bytes = [message[FRAME_AT], message[FRAME_AT + 1]];
                Heard::Word(word, file, u16::from_ne_bytes(frame_bytes))
            }
            None => Heard::Unknown,
        }
    }
}

impl AsFd for Talk {
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
    fn a_place_has_one_owner_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("x.sock");
        let place = Place::take(&socket).unwrap().unwrap();
        assert!(Place::take(&socket).unwrap().is_none());
        drop(place);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Files that a killed server leaves.
        fs::write(&socket, "").unwrap();
        fs::write(socket.with_extension("lock"), "").unwrap();
        assert!(Place::take(&socket).unwrap().is_some());
    }

    #[test]
    fn words_and_files_arrive() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("x.sock");
        assert!(Talk::to(&socket).is_err());
        let place = Place::take(&socket).unwrap().unwrap();
        assert!(place.accept().is_none());
        let client = Talk::to(&socket).unwrap();
        let server = place.accept().unwrap();
        assert!(matches!(server.hear(), Heard::Nothing));
        let file = File::open("/dev/null").unwrap();
        client.say(Word::Hello, Some(file.as_fd()), 1518).unwrap();
        client.say(Word::Taken, None, 0).unwrap();
        assert!(matches!(
            server.hear(),
            Heard::Word(Word::Hello, Some(_), 1518)
        ));
        assert!(matches!(server.hear(), Heard::Word(Word::Taken, None, 0)));
        rustix::io::write(&client, b"something else").unwrap();
        assert!(matches!(server.hear(), Heard::Unknown));
        drop(client);
        assert!(matches!(server.hear(), Heard::End));
    }
}
