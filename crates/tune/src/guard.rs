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
pub use interface::{InterfaceEntry, InterfaceIdentity, SettingLocation};
pub use key::{SettingKey, SettingKind};
pub use recovery::{RecoveryReport, count_unrestored, recover_settings};

#[cfg(test)]
mod tests;

/// Access to the settings of a host.
pub trait HostSettings {
    /// Returns the current value.
    ///
    /// # Errors
    /// The reason as text if it cannot be read.
    fn read(&self, key: &SettingKey) -> Result<String, String>;
    /// Sets a value; `timeout_s` is the timeout of a command in seconds, if one is given.
    ///
    /// # Errors
    /// The reason as text if it cannot be set, or the timeout expired.
    fn write(&self, key: &SettingKey, value: &str, timeout_s: Option<u64>) -> Result<(), String>;
    /// Identity of the interface that the setting belongs to; `None` if it belongs to none or
    /// cannot be identified.
    fn interface_identity(&self, key: &SettingKey) -> Option<InterfaceIdentity> {
        let _ = key;
        None
    }
    /// Current location of a setting that had this key when it was saved, and belonged to this
    /// interface.
    fn locate(&self, key: &SettingKey, device: Option<&InterfaceIdentity>) -> SettingLocation {
        let _ = device;
        SettingLocation::At(key.clone())
    }
}

impl<M: HostSettings> HostSettings for &M {
    fn read(&self, key: &SettingKey) -> Result<String, String> {
        (**self).read(key)
    }

    fn write(&self, key: &SettingKey, value: &str, timeout_s: Option<u64>) -> Result<(), String> {
        (**self).write(key, value, timeout_s)
    }

    fn interface_identity(&self, key: &SettingKey) -> Option<InterfaceIdentity> {
        (**self).interface_identity(key)
    }

    fn locate(&self, key: &SettingKey, device: Option<&InterfaceIdentity>) -> SettingLocation {
        (**self).locate(key, device)
    }
}

/// Owner of a journal, written as its first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalOwner {
    /// Boot id of the machine: after a reboot kernel settings need no restore.
    #[serde(rename = "boot")]
    pub boot_id: String,
    pub pid: u32,
    /// Start time of the process, clock ticks since boot: process ids are reused.
    pub started_ticks: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedSetting {
    key: SettingKey,
    value: String,
    /// Identity of the interface: its name and namespace may have changed before the restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<InterfaceIdentity>,
    /// Timeout of the restore, s, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "within_s")]
    timeout_s: Option<u64>,
}

/// Guard that restores the settings it changed; restores on drop.
pub struct RollbackGuard<M: HostSettings> {
    settings: M,
    journal_dir: Option<PathBuf>,
    owner: JournalOwner,
    enclosing_owners: Vec<JournalOwner>,
    journal: Option<Journal>,
    saved: Vec<SavedSetting>,
}

impl<M: HostSettings> RollbackGuard<M> {
    /// Guard that has changed nothing and created no file yet.
    ///
    /// Without a directory nothing can be set, and [`RollbackGuard::save_in_memory`] saves old
    /// values in memory only.
    #[must_use]
    pub fn new(settings: M, journal_dir: Option<PathBuf>, owner: JournalOwner) -> Self {
        Self {
            settings,
            journal_dir,
            owner,
            enclosing_owners: Vec::new(),
            journal: None,
            saved: Vec::new(),
        }
    }

    /// Allows changing settings that these processes have changed too.
    ///
    /// They wait for this process, whose changes are restored before they continue.
    #[must_use]
    pub fn with_enclosing_owners(mut self, enclosing_owners: Vec<JournalOwner>) -> Self {
        self.enclosing_owners = enclosing_owners;
        self
    }

    /// Sets a value after its old value was synced to disk.
    ///
    /// # Errors
    /// The reason as text if it cannot be set; then it is unchanged.
    pub fn set(&mut self, key: &SettingKey, value: &str) -> Result<(), String> {
        let is_saved = self
            .saved
            .iter()
            .any(|saved_setting| saved_setting.key == *key);
        if !is_saved {
            let saved_setting = self.settings.read(key)?;
            self.save_old_value(key, &saved_setting)
                .map_err(|error| error.to_string())?;
        }
        self.settings.write(key, value, None)
    }

    /// Returns the current value.
    ///
    /// # Errors
    /// The reason as text if it cannot be read.
    pub fn read(&self, key: &SettingKey) -> Result<String, String> {
        self.settings.read(key)
    }

    /// Saves the old value of a setting that other code is about to change; only the first call per
    /// key counts.
    ///
    /// # Errors
    /// The journal cannot be written: then the setting must not be changed.
    pub fn save_old_value(&mut self, key: &SettingKey, value: &str) -> Result<(), TuneError> {
        self.save_with_timeout(key, value, None)
    }

    /// Like [`RollbackGuard::save_old_value`], with a timeout for the restore.
    ///
    /// # Errors
    /// As [`RollbackGuard::save_old_value`].
    pub fn save_with_timeout(
        &mut self,
        key: &SettingKey,
        value: &str,
        timeout_s: Option<u64>,
    ) -> Result<(), TuneError> {
        let Some(saved_setting) = self.new_entry(key, value) else {
            return Ok(());
        };
        let saved_setting = SavedSetting {
            timeout_s,
            ..saved_setting
        };
        self.check_exclusive(key)?;
        self.append_entry(&saved_setting)?;
        // Checked again: of two processes that start at the same time, each has saved its value by
        // now.
        self.check_exclusive(key)?;
        self.saved.push(saved_setting);
        Ok(())
    }

    /// Saves an old value in memory if the journal cannot be written; it is restored on drop, but
    /// not after a kill.
    pub fn save_in_memory(&mut self, key: &SettingKey, value: &str) {
        let saved_setting = self.new_entry(key, value);
        self.saved.extend(saved_setting);
    }

    /// Entry to save; `None` if the key was saved before.
    fn new_entry(&self, key: &SettingKey, value: &str) -> Option<SavedSetting> {
        let is_known = self
            .saved
            .iter()
            .any(|saved_setting| saved_setting.key == *key);
        (!is_known).then(|| SavedSetting {
            key: key.clone(),
            value: value.to_owned(),
            device: self.settings.interface_identity(key),
            timeout_s: None,
        })
    }

    /// Rejects a setting that another guard also changes.
    ///
    /// User commands are exempt: they are identified by knob names, which need not mean the same
    /// thing.
    fn check_exclusive(&self, key: &SettingKey) -> Result<(), TuneError> {
        let Some(journal_dir) = self
            .journal_dir
            .as_ref()
            .filter(|_| key.kind != SettingKind::Command)
        else {
            return Ok(());
        };
        let own_journal = self.journal.as_ref().map(Journal::path);
        let setting_text = || format!("{} of {}", key.name, key.host);
        match recovery::find_other_owner(journal_dir, own_journal, &self.enclosing_owners, key) {
            None => Ok(()),
            Some(pid) if pid == self.owner.pid => Err(TuneError::DuplicateSetting {
                setting: setting_text(),
            }),
            Some(pid) => Err(TuneError::SettingInUse {
                setting: setting_text(),
                pid,
            }),
        }
    }

    /// Discards the saved value of a setting that already has it again.
    pub fn discard_saved(&mut self, key: &SettingKey) {
        self.saved.retain(|saved_setting| saved_setting.key != *key);
    }

    /// Restores one setting; does nothing if it was never set.
    ///
    /// # Errors
    /// The reason as text if it cannot be set.
    pub fn restore_one(&mut self, key: &SettingKey) -> Result<(), String> {
        match self
            .saved
            .iter()
            .find(|saved_setting| saved_setting.key == *key)
        {
            Some(saved_setting) => restore_value(&self.settings, key, saved_setting),
            None => Ok(()),
        }
    }

    /// Creates the journal before anything is set, so that a missing directory is reported at once.
    ///
    /// # Errors
    /// The journal cannot be written: then nothing can be set.
    pub fn create_journal(&mut self) -> Result<(), TuneError> {
        self.open_journal().map(drop)
    }

    fn append_entry(&mut self, saved_setting: &SavedSetting) -> Result<(), TuneError> {
        self.open_journal()?.append(saved_setting)
    }

    fn open_journal(&mut self) -> Result<&mut Journal, TuneError> {
        let journal = match self.journal.take() {
            Some(journal) => journal,
            None => self.create_journal_file()?,
        };
        Ok(self.journal.insert(journal))
    }

    fn create_journal_file(&self) -> Result<Journal, TuneError> {
        // A server has one guard per client whose settings it applies, a forwarder one per port.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let journal_dir = self.journal_dir.as_ref().ok_or(TuneError::NoStateDir)?;
        loop {
            let number = NUMBER.fetch_add(1, Relaxed);
            let path = journal_dir.join(format!("{}-{number}.jsonl", self.owner.pid));
            match Journal::create(&path, &self.owner) {
                // A killed process used this number: in a lab process ids start again and collide
                // soon.
                Err(TuneError::JournalAccess { source, .. })
                    if source.kind() == ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }

    /// Restores all settings; returns the errors. Settings that failed stay saved, and the journal
    /// remains for them.
    pub fn restore_all(&mut self) -> Vec<String> {
        let result = restore_in_reverse(&self.settings, std::mem::take(&mut self.saved));
        self.saved = result.failed;
        if self.saved.is_empty() {
            self.remove_journal();
        }
        result.errors
    }

    /// Returns the commands that restore these settings manually, each with its host.
    #[must_use]
    pub fn restore_commands(&self, keys: &[SettingKey]) -> Vec<String> {
        let saved = self
            .saved
            .iter()
            .filter(|saved_setting| keys.contains(&saved_setting.key));
        saved
            .map(|saved_setting| {
                format!(
                    "{}  # {}",
                    saved_setting.key.shell_command(&saved_setting.value),
                    saved_setting.key.host
                )
            })
            .collect()
    }

    /// Keeps these settings as they are now and restores all others; returns the errors.
    pub fn keep_only(&mut self, keys: &[SettingKey]) -> Vec<String> {
        keys.iter().for_each(|key| self.discard_saved(key));
        let errors = self.restore_all();
        if let Some(previous_journal) = self.journal.take() {
            // This journal still contains the kept settings, which a restore from it would reset.
            let saved = self.saved.clone();
            match saved
                .iter()
                .try_for_each(|saved_setting| self.append_entry(saved_setting))
            {
                Ok(()) => drop(previous_journal.remove()),
                Err(_) => {
                    self.remove_journal();
                    self.journal = Some(previous_journal);
                }
            }
        }
        errors
    }

    fn remove_journal(&mut self) {
        if let Some(journal) = self.journal.take() {
            // If the removal fails, a later restore only repeats what is done here.
            let _ = journal.remove();
        }
    }
}

impl<M: HostSettings> Drop for RollbackGuard<M> {
    fn drop(&mut self) {
        let _ = self.restore_all();
    }
}

/// Result of a restore.
#[derive(Default)]
struct RestoreResult {
    /// Number of settings restored.
    restored: usize,
    /// Restored settings that have moved: the saved key and the current one.
    relocated: Vec<(SettingKey, SettingKey)>,
    /// Number of settings whose interface or namespace no longer exists.
    removed: usize,
    /// Settings that could not be restored, in their original order.
    failed: Vec<SavedSetting>,
    errors: Vec<String>,
}

/// Restores a value under its current key.
///
/// An error counts as success if the setting has the old value: a value is saved before it is set,
/// so the change itself may have failed.
fn restore_value<M: HostSettings>(
    settings: &M,
    key: &SettingKey,
    saved_setting: &SavedSetting,
) -> Result<(), String> {
    settings
        .write(key, &saved_setting.value, saved_setting.timeout_s)
        .or_else(|reason| match settings.read(key) {
            Ok(now) if now == saved_setting.value => Ok(()),
            _ => Err(reason),
        })
}

/// Restores settings in the reverse order of the changes.
fn restore_in_reverse<M: HostSettings>(settings: &M, saved: Vec<SavedSetting>) -> RestoreResult {
    let mut result = RestoreResult::default();
    for saved_setting in saved.into_iter().rev() {
        let outcome = match settings.locate(&saved_setting.key, saved_setting.device.as_ref()) {
            SettingLocation::Removed => {
                result.removed += 1;
                continue;
            }
            SettingLocation::At(key) => restore_value(settings, &key, &saved_setting).map(|()| key),
            SettingLocation::Unknown(reason) => Err(reason),
        };
        match outcome {
            Ok(key) => {
                result.restored += 1;
                if key != saved_setting.key {
                    result.relocated.push((saved_setting.key, key));
                }
            }
            Err(reason) => {
                let error_text = format!(
                    "{} of {}: {reason}",
                    saved_setting.key.name, saved_setting.key.host
                );
                result.errors.push(error_text);
                result.failed.insert(0, saved_setting);
            }
        }
    }
    result
}
