//! Rollback guard for host settings: each old value is synced to disk before the new one is set.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::TuneError;
use crate::journal::Journal;

mod interface;
mod key;
mod recovery;
pub use interface::{Device, Place, Seen};
pub use key::{Key, Kind};
pub use recovery::{Restored, count_left, restore_left};

#[cfg(test)]
mod tests;

/// Access to the settings of a host.
pub trait Machine {
    /// Returns the current value.
    ///
    /// # Errors
    /// The reason as text if it cannot be read.
    fn read(&self, key: &Key) -> Result<String, String>;
    /// Sets a value; `limit_s` is the timeout of a command in seconds, if one is given.
    ///
    /// # Errors
    /// The reason as text if it cannot be set, or the timeout expired.
    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String>;
    /// Identity of the interface that the setting belongs to; `None` if it belongs to none or
    /// cannot be identified.
    fn device(&self, key: &Key) -> Option<Device> {
        let _ = key;
        None
    }
    /// Current location of a setting that had this key when it was saved, and belonged to this
    /// interface.
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

/// Owner of a journal, written as its first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Boot id of the machine: after a reboot kernel settings need no restore.
    pub boot: String,
    pub pid: u32,
    /// Start time of the process, clock ticks since boot: process ids are reused.
    pub started_ticks: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Old {
    key: Key,
    value: String,
    /// Identity of the interface: its name and namespace may have changed before the restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    /// Timeout of the restore, s, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within_s: Option<u64>,
}

/// Guard that restores the settings it changed; restores on drop.
pub struct Guard<M: Machine> {
    machine: M,
    folder: Option<PathBuf>,
    owner: Owner,
    around: Vec<Owner>,
    journal: Option<Journal>,
    olds: Vec<Old>,
}

impl<M: Machine> Guard<M> {
    /// Guard that has changed nothing and created no file yet.
    ///
    /// Without a directory nothing can be set, and [`Guard::keep_in_mind`] saves old values in
    /// memory only.
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

    /// Allows changing settings that these processes have changed too.
    ///
    /// They wait for this process, whose changes are restored before they continue.
    #[must_use]
    pub fn within(mut self, around: Vec<Owner>) -> Self {
        self.around = around;
        self
    }

    /// Sets a value after its old value was synced to disk.
    ///
    /// # Errors
    /// The reason as text if it cannot be set; then it is unchanged.
    pub fn set(&mut self, key: &Key, value: &str) -> Result<(), String> {
        let known = self.olds.iter().any(|old| old.key == *key);
        if !known {
            let old = self.machine.read(key)?;
            self.note_old(key, &old)
                .map_err(|error| error.to_string())?;
        }
        self.machine.write(key, value, None)
    }

    /// Returns the current value.
    ///
    /// # Errors
    /// The reason as text if it cannot be read.
    pub fn read(&self, key: &Key) -> Result<String, String> {
        self.machine.read(key)
    }

    /// Saves the old value of a setting that other code is about to change; only the first call per
    /// key counts.
    ///
    /// # Errors
    /// The journal cannot be written: then the setting must not be changed.
    pub fn note_old(&mut self, key: &Key, value: &str) -> Result<(), TuneError> {
        self.note_within(key, value, None)
    }

    /// Like [`Guard::note_old`], with a timeout for the restore.
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
        // Checked again: of two processes that start at the same time, each has saved its value by
        // now.
        self.alone(key)?;
        self.olds.push(old);
        Ok(())
    }

    /// Saves an old value in memory if the journal cannot be written; it is restored on drop, but
    /// not after a kill.
    pub fn keep_in_mind(&mut self, key: &Key, value: &str) {
        let old = self.old(key, value);
        self.olds.extend(old);
    }

    /// Entry to save; `None` if the key was saved before.
    fn old(&self, key: &Key, value: &str) -> Option<Old> {
        let is_known = self.olds.iter().any(|old| old.key == *key);
        (!is_known).then(|| Old {
            key: key.clone(),
            value: value.to_owned(),
            device: self.machine.device(key),
            within_s: None,
        })
    }

    /// Rejects a setting that another guard also changes.
    ///
    /// User commands are exempt: they are identified by knob names, which need not mean the same
    /// thing.
    fn alone(&self, key: &Key) -> Result<(), TuneError> {
        let Some(folder) = self.folder.as_ref().filter(|_| key.kind != Kind::Command) else {
            return Ok(());
        };
        let own = self.journal.as_ref().map(Journal::path);
        let setting = || format!("{} of {}", key.name, key.host);
        match recovery::also_changes(folder, own, &self.around, key) {
            None => Ok(()),
            Some(pid) if pid == self.owner.pid => Err(TuneError::Twice { setting: setting() }),
            Some(pid) => Err(TuneError::Shared {
                setting: setting(),
                pid,
            }),
        }
    }

    /// Discards the saved value of a setting that already has it again.
    pub fn settled(&mut self, key: &Key) {
        self.olds.retain(|old| old.key != *key);
    }

    /// Restores one setting; does nothing if it was never set.
    ///
    /// # Errors
    /// The reason as text if it cannot be set.
    pub fn reset(&mut self, key: &Key) -> Result<(), String> {
        match self.olds.iter().find(|old| old.key == *key) {
            Some(old) => set_back(&self.machine, key, old),
            None => Ok(()),
        }
    }

    /// Creates the journal before anything is set, so that a missing directory is reported at once.
    ///
    /// # Errors
    /// The journal cannot be written: then nothing can be set.
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
        // A server has one guard per client whose settings it applies, a forwarder one per port.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = self.folder.as_ref().ok_or(TuneError::NoFolder)?;
        loop {
            let number = NUMBER.fetch_add(1, Relaxed);
            let path = folder.join(format!("{}-{number}.jsonl", self.owner.pid));
            match Journal::create(&path, &self.owner) {
                // A killed process used this number: in a lab process ids start again and collide
                // soon.
                Err(TuneError::Journal { source, .. })
                    if source.kind() == ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }

    /// Restores all settings; returns the errors. Settings that failed stay saved, and the journal
    /// remains for them.
    pub fn restore(&mut self) -> Vec<String> {
        let back = put_back(&self.machine, std::mem::take(&mut self.olds));
        self.olds = back.left;
        if self.olds.is_empty() {
            self.forget();
        }
        back.wrong
    }

    /// Returns the commands that restore these settings manually, each with its host.
    #[must_use]
    pub fn ways_back(&self, keys: &[Key]) -> Vec<String> {
        let olds = self.olds.iter().filter(|old| keys.contains(&old.key));
        olds.map(|old| format!("{}  # {}", old.key.command(&old.value), old.key.host))
            .collect()
    }

    /// Keeps these settings as they are now and restores all others; returns the errors.
    pub fn keep(&mut self, keys: &[Key]) -> Vec<String> {
        keys.iter().for_each(|key| self.settled(key));
        let wrong = self.restore();
        if let Some(whole) = self.journal.take() {
            // This journal still contains the kept settings, which a restore from it would reset.
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
            // If the removal fails, a later restore only repeats what is done here.
            let _ = journal.remove();
        }
    }
}

impl<M: Machine> Drop for Guard<M> {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

/// Result of a restore.
#[derive(Default)]
struct Back {
    /// Number of settings restored.
    settings: usize,
    /// Restored settings that have moved: the saved key and the current one.
    moved: Vec<(Key, Key)>,
    /// Number of settings whose interface or namespace no longer exists.
    gone: usize,
    /// Settings that could not be restored, in their original order.
    left: Vec<Old>,
    wrong: Vec<String>,
}

/// Restores a value under its current key.
///
/// An error counts as success if the setting has the old value: a value is saved before it is set,
/// so the change itself may have failed.
fn set_back<M: Machine>(machine: &M, key: &Key, old: &Old) -> Result<(), String> {
    machine
        .write(key, &old.value, old.within_s)
        .or_else(|why| match machine.read(key) {
            Ok(now) if now == old.value => Ok(()),
            _ => Err(why),
        })
}

/// Restores settings in the reverse order of the changes.
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
