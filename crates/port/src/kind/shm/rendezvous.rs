//! Where two processes meet, and what they say to each other there.

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

/// What every message begins with; the last byte is the version of what is said. The word follows, and at
/// [`FRAME_AT`] how long the frames of whoever says it are.
const MAGIC: [u8; 8] = *b"linrt-m\x01";
/// Where the longest frame stands, in bytes, as the machine holds numbers; 0 where it is not said.
const FRAME_AT: usize = 10;

/// What is said. A file goes with it where there is memory to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Word {
    /// The client: here I am (with the memory, if it has outlived a server).
    Hello = 1,
    /// The server: we are joined (with the memory, unless it was the client's).
    Joined = 2,
    /// The server: I have a client.
    Taken = 3,
    /// Either: this memory or what you say does not fit.
    Unfit = 4,
}

/// The folder where sockets lie; made when it is missing.
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
        next_step: "set XDG_RUNTIME_DIR to a folder of your own",
        source,
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("the folder cannot be made", Some(error)));
        }
        _ => {}
    }
    // In a folder that all may write to, somebody else may have been there first.
    let facts =
        fs::symlink_metadata(&path).map_err(|error| failed("it cannot be read", Some(error)))?;
    if !facts.is_dir() || facts.uid() != uid || facts.mode() & 0o022 != 0 {
        return Err(failed("it is not a folder that is yours alone", None));
    }
    Ok(path)
}

/// A server's place: its socket, and the lock that makes it the only one.
pub(super) struct Place {
    listener: OwnedFd,
    socket: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Place {
    /// Takes the place, over what a server that was killed left there. `None` when it is taken.
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
            // Its last owner may have removed the file between our opening and locking it.
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

    /// The next process that came, if any.
    pub(super) fn accept(&self) -> Option<Talk> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(&self.listener, flags);
        accepted.ok().map(Talk)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Errors leave a file that the next server replaces.
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock);
    }
}

/// A conversation with the other process. The kernel ends it when either process ends.
pub(super) struct Talk(OwnedFd);

/// What came, if anything.
pub(super) enum Heard {
    /// Nothing yet.
    Nothing,
    /// The other has hung up.
    End,
    /// A word, the file that came with it, and the bytes of the other's longest frame (0: not said).
    Word(Word, Option<OwnedFd>, u16),
    /// Something that this version does not know.
    Unknown,
}

impl Talk {
    /// Goes to a server.
    pub(super) fn to(socket: &Path) -> io::Result<Self> {
        let talk = new_socket()?;
        rustix::net::connect(&talk, &SocketAddrUnix::new(socket)?)?;
        Ok(Self(talk))
    }

    /// Says a word. One that cannot be sent ends the conversation on the next [`Talk::hear`].
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

    /// What the other said, without waiting.
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
        // What a killed server leaves.
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
