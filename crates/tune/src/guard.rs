//! Settings of a host that go back: each old value is on the disk before the new one is set.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::TuneError;
use crate::journal::Journal;

mod device;
mod key;
mod left;
pub use device::{Device, Place, Seen};
pub use key::{Key, Kind};
pub use left::{Restored, count_left, restore_left};

#[cfg(test)]
mod tests;

/// Who reads and writes settings.
pub trait Machine {
    /// The value now.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    fn read(&self, key: &Key) -> Result<String, String>;
    /// Sets a value; a command may take so many seconds for it, where that was said.
    ///
    /// # Errors
    /// Why it cannot be set, or that it has not come to an end by then, in words.
    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String>;
    /// Which interface it is a setting of; none where it is of no interface, or that is not told.
    fn device(&self, key: &Key) -> Option<Device> {
        let _ = key;
        None
    }
    /// Where the setting is now that had this key when it was noted, and was of this interface.
    fn find(&self, key: &Key, device: Option<&Device>) -> Place {
        let _ = device;
        Place::At(key.clone())
    }
}

impl<M: Machine> Machine for &M {
    fn read(&self, key: &Key) -> Result<String, String> {
        (**self).read(key)
    }

    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String> {
        (**self).write(key, value, limit_s)
    }

    fn device(&self, key: &Key) -> Option<Device> {
        (**self).device(key)
    }

    fn find(&self, key: &Key, device: Option<&Device>) -> Place {
        (**self).find(key, device)
    }
}

/// Whose journal it is: its first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Boot of the machine: after another one nothing is left to restore.
    pub boot: String,
    /// The process.
    pub pid: u32,
    /// When it started, in clock ticks since boot: process numbers come again.
    pub started_ticks: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Old {
    key: Key,
    value: String,
    /// The interface, whose name and network may be others by the time it goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    /// How long it may take to go back, s, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within_s: Option<u64>,
}

/// Settings that go back when it drops.
pub struct Guard<M: Machine> {
    machine: M,
    folder: Option<PathBuf>,
    owner: Owner,
    around: Vec<Owner>,
    journal: Option<Journal>,
    olds: Vec<Old>,
}

impl<M: Machine> Guard<M> {
    /// Nothing is changed and no file is made yet. Without a folder nothing can be set, and what others are about to
    /// change is kept in mind alone.
    #[must_use]
    pub fn new(machine: M, folder: Option<PathBuf>, owner: Owner) -> Self {
        Self {
            machine,
            folder,
            owner,
            around: Vec::new(),
            journal: None,
            olds: Vec::new(),
        }
    }

    /// Within what these processes do, which wait for this one: what they have set may be set anew, since it is back
    /// before they go on.
    #[must_use]
    pub fn within(mut self, around: Vec<Owner>) -> Self {
        self.around = around;
        self
    }

    /// Sets a value; the old one is on the disk before.
    ///
    /// # Errors
    /// Why it cannot be set, in words; then it is as it was.
    pub fn set(&mut self, key: &Key, value: &str) -> Result<(), String> {
        let known = self.olds.iter().any(|old| old.key == *key);
        if !known {
            let old = self.machine.read(key)?;
            self.note_old(key, &old)
                .map_err(|error| error.to_string())?;
        }
        self.machine.write(key, value, None)
    }

    /// The value now.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    pub fn read(&self, key: &Key) -> Result<String, String> {
        self.machine.read(key)
    }

    /// Notes what sets something back that others are about to change; the first note holds.
    ///
    /// # Errors
    /// The journal cannot be written: then it must not be changed.
    pub fn note_old(&mut self, key: &Key, value: &str) -> Result<(), TuneError> {
        self.note_within(key, value, None)
    }

    /// The same of what may take so many seconds to go back, where that is said.
    ///
    /// # Errors
    /// As [`Guard::note_old`].
    pub fn note_within(
        &mut self,
        key: &Key,
        value: &str,
        within_s: Option<u64>,
    ) -> Result<(), TuneError> {
        let Some(old) = self.old(key, value) else {
            return Ok(());
        };
        let old = Old { within_s, ..old };
        self.alone(key)?;
        self.note(&old)?;
        // Once more: of two that begin at the same time each has noted it by now.
        self.alone(key)?;
        self.olds.push(old);
        Ok(())
    }

    /// The same where the journal cannot be written, of what is changed all the same: it goes back when this drops, and
    /// a kill leaves it.
    pub fn keep_in_mind(&mut self, key: &Key, value: &str) {
        let old = self.old(key, value);
        self.olds.extend(old);
    }

    /// What is to be noted; none where it was.
    fn old(&self, key: &Key, value: &str) -> Option<Old> {
        let is_known = self.olds.iter().any(|old| old.key == *key);
        (!is_known).then(|| Old {
            key: key.clone(),
            value: value.to_owned(),
            device: self.machine.device(key),
            within_s: None,
        })
    }

    /// Refuses what another process changes as well. Commands of the user's are left out: they are told apart by
    /// the names that they were given, which need not mean the same thing.
    fn alone(&self, key: &Key) -> Result<(), TuneError> {
        let Some(folder) = self.folder.as_ref().filter(|_| key.kind != Kind::Command) else {
            return Ok(());
        };
        let own = self.journal.as_ref().map(Journal::path);
        let setting = || format!("{} of {}", key.name, key.host);
        match left::also_changes(folder, own, &self.around, key) {
            None => Ok(()),
            Some(pid) if pid == self.owner.pid => Err(TuneError::Twice { setting: setting() }),
            Some(pid) => Err(TuneError::Shared {
                setting: setting(),
                pid,
            }),
        }
    }

    /// Forgets a setting that stands where it was already.
    pub fn settled(&mut self, key: &Key) {
        self.olds.retain(|old| old.key != *key);
    }

    /// Sets a value back to what it was before; nothing happens to what was never set.
    ///
    /// # Errors
    /// Why it cannot be set, in words.
    pub fn reset(&mut self, key: &Key) -> Result<(), String> {
        match self.olds.iter().find(|old| old.key == *key) {
            Some(old) => set_back(&self.machine, key, old),
            None => Ok(()),
        }
    }

    /// Makes the journal before anything is to be set: whoever has no place for it learns that at once.
    ///
    /// # Errors
    /// It cannot be written: then nothing can be set.
    pub fn begin(&mut self) -> Result<(), TuneError> {
        self.begun().map(drop)
    }

    fn note(&mut self, old: &Old) -> Result<(), TuneError> {
        self.begun()?.append(old)
    }

    fn begun(&mut self) -> Result<&mut Journal, TuneError> {
        let journal = match self.journal.take() {
            Some(journal) => journal,
            None => self.create()?,
        };
        Ok(self.journal.insert(journal))
    }

    fn create(&self) -> Result<Journal, TuneError> {
        // A server has one for each client whose settings it makes, and a forwarder one for each port.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = self.folder.as_ref().ok_or(TuneError::NoFolder)?;
        loop {
            let number = NUMBER.fetch_add(1, Relaxed);
            let path = folder.join(format!("{}-{number}.jsonl", self.owner.pid));
            match Journal::create(&path, &self.owner) {
                // A killed process had this number, which comes again soon: in each lab they begin anew.
                Err(TuneError::Journal { source, .. })
                    if source.kind() == ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }

    /// Sets all back. Says what could not be; that is still to be set back, and the journal stays for it.
    pub fn restore(&mut self) -> Vec<String> {
        let back = put_back(&self.machine, std::mem::take(&mut self.olds));
        self.olds = back.left;
        if self.olds.is_empty() {
            self.forget();
        }
        back.wrong
    }

    /// The commands that set these back by hand, each with its host: for whoever leaves them as they are.
    #[must_use]
    pub fn ways_back(&self, keys: &[Key]) -> Vec<String> {
        let olds = self.olds.iter().filter(|old| keys.contains(&old.key));
        olds.map(|old| format!("{}  # {}", old.key.command(&old.value), old.key.host))
            .collect()
    }

    /// Leaves these as they are now, and sets all else back. Says what could not be; that is still to be set back.
    pub fn keep(&mut self, keys: &[Key]) -> Vec<String> {
        keys.iter().for_each(|key| self.settled(key));
        let wrong = self.restore();
        if let Some(whole) = self.journal.take() {
            // What is kept is in that one as well, and whoever restores by it would set it back.
            let olds = self.olds.clone();
            match olds.iter().try_for_each(|old| self.note(old)) {
                Ok(()) => drop(whole.remove()),
                Err(_) => {
                    self.forget();
                    self.journal = Some(whole);
                }
            }
        }
        wrong
    }

    fn forget(&mut self) {
        if let Some(journal) = self.journal.take() {
            // A journal that stays makes a later restore set what is set already.
            let _ = journal.remove();
        }
    }
}

impl<M: Machine> Drop for Guard<M> {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

/// What setting back came to.
#[derive(Default)]
struct Back {
    /// Settings that are back.
    settings: usize,
    /// Those of them that are elsewhere by now: where they were, and where they are.
    moved: Vec<(Key, Key)>,
    /// Those that are nowhere: what is gone took its settings along.
    gone: usize,
    /// What could not be set back, in its old order, and why.
    left: Vec<Old>,
    wrong: Vec<String>,
}

/// Sets a value back, where its key is by now. What could never be set stands as it did, and need not go back, which
/// could not be done either: it is noted before it is tried.
fn set_back<M: Machine>(machine: &M, key: &Key, old: &Old) -> Result<(), String> {
    machine
        .write(key, &old.value, old.within_s)
        .or_else(|why| match machine.read(key) {
            Ok(now) if now == old.value => Ok(()),
            _ => Err(why),
        })
}

/// Sets back in the order opposite to that of the changes.
fn put_back<M: Machine>(machine: &M, olds: Vec<Old>) -> Back {
    let mut back = Back::default();
    for old in olds.into_iter().rev() {
        let set = match machine.find(&old.key, old.device.as_ref()) {
            Place::Gone => {
                back.gone += 1;
                continue;
            }
            Place::At(key) => set_back(machine, &key, &old).map(|()| key),
            Place::Unknown(why) => Err(why),
        };
        match set {
            Ok(key) => {
                back.settings += 1;
                if key != old.key {
                    back.moved.push((old.key, key));
                }
            }
            Err(why) => {
                let wrong = format!("{} of {}: {why}", old.key.name, old.key.host);
                back.wrong.push(wrong);
                back.left.insert(0, old);
            }
        }
    }
    back
}
