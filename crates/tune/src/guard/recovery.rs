//! Recovery of settings left changed by killed processes: their journals exist but are not locked.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use super::{
    HostSettings, JournalOwner, SavedSetting, SettingKey, SettingKind, SettingLocation,
    restore_in_reverse,
};
use crate::TuneError;
use crate::journal::{self, Journal};

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of settings restored.
    pub restored: usize,
    /// Restored settings whose interface has another name or namespace now: the saved key and the
    /// current one.
    pub relocated: Vec<(SettingKey, SettingKey)>,
    /// Number of settings whose interface or namespace no longer exists.
    pub removed: usize,
    /// Processes that still run: they restore their own journals.
    pub running_pids: Vec<u32>,
    /// Errors of settings and journals that could not be restored.
    pub errors: Vec<String>,
    /// Journals that remain because of these errors.
    pub failed_journals: Vec<PathBuf>,
}

/// Restores settings that killed processes left changed.
///
/// An invalid journal is reported in the result and does not stop the others.
///
/// # Errors
/// A fully restored journal cannot be removed.
pub fn recover_settings<M: HostSettings>(
    journal_dir: &Path,
    settings: &M,
    boot_id: &str,
    is_running: impl Fn(&JournalOwner) -> bool,
) -> Result<RecoveryReport, TuneError> {
    let mut report = RecoveryReport::default();
    for path in journals_newest_first(journal_dir) {
        let (owner, mut saved, journal) = match Journal::resume::<JournalOwner, SavedSetting>(&path)
        {
            Ok(contents) => contents,
            // The process that holds the lock is alive and restores its changes itself.
            Err(TuneError::JournalLocked { .. }) => {
                report.running_pids.extend(pid_of(&path));
                continue;
            }
            Err(TuneError::JournalWithoutHeader { .. }) => {
                // The header is synced to disk before anything is changed.
                journal::remove(&path)?;
                continue;
            }
            Err(error) => {
                report.errors.push(error.to_string());
                report.failed_journals.push(path);
                continue;
            }
        };
        if owner.boot_id == boot_id && is_running(&owner) {
            report.running_pids.push(owner.pid);
            continue;
        }
        saved.retain(|saved_setting| needs_restore(saved_setting, &owner, boot_id));
        let result = restore_in_reverse(settings, saved);
        report.restored += result.restored;
        report.relocated.extend(result.relocated);
        report.removed += result.removed;
        match result.errors.is_empty() {
            true => journal.remove()?,
            false => report.failed_journals.push(path),
        }
        report.errors.extend(result.errors);
    }
    Ok(report)
}

/// Journals of a directory, most recently started process first.
///
/// A process that ran within another one and changed the same setting is restored before it.
pub(super) fn journals_newest_first(journal_dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = journal_paths(journal_dir).collect();
    paths.sort_by_cached_key(|path| {
        let read = journal::read::<JournalOwner, SavedSetting>(path).ok();
        let started_ticks = read.map(|(owner, ..)| owner.started_ticks);
        (Reverse((started_ticks, journal_number(path))), path.clone())
    });
    paths
}

/// Process id of a journal's owner, from its header or else from its file name.
fn pid_of(path: &Path) -> Option<u32> {
    let read = journal::read::<JournalOwner, SavedSetting>(path).ok();
    let pid_in_name = || path.file_stem()?.to_str()?.split('-').next()?.parse().ok();
    read.map(|(owner, ..)| owner.pid).or_else(pid_in_name)
}

/// Number of a journal among those of its process.
fn journal_number(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.split('-').nth(1)?.parse().ok()
}

/// Process id of another owner, not in `enclosing_owners`, whose locked journal contains this
/// setting.
///
/// Two owners of one setting would end with the first one's value, which the second saves as the
/// old one.
pub(super) fn find_other_owner(
    journal_dir: &Path,
    own_journal: Option<&Path>,
    enclosing_owners: &[JournalOwner],
    key: &SettingKey,
) -> Option<u32> {
    let other_journals =
        journal_paths(journal_dir).filter(|path| Some(path.as_path()) != own_journal);
    let owner_pid = |path: &PathBuf| {
        let (owner, saved, _) = journal::read::<JournalOwner, SavedSetting>(path).ok()?;
        let changes_setting = saved.iter().any(|saved_setting| saved_setting.key == *key)
            && !enclosing_owners.contains(&owner);
        (changes_setting && journal::is_locked(path)).then_some(owner.pid)
    };
    other_journals.filter_map(|path| owner_pid(&path)).next()
}

/// Number of settings that killed processes left changed and whose interface still exists.
///
/// Changes nothing and skips what it cannot read.
#[must_use]
pub fn count_unrestored<M: HostSettings>(
    journal_dir: &Path,
    settings: &M,
    boot_id: &str,
    is_running: impl Fn(&JournalOwner) -> bool,
) -> usize {
    let count_in_journal = |path: PathBuf| {
        let (owner, saved, _) = journal::read::<JournalOwner, SavedSetting>(&path).ok()?;
        // Process ids inside a lab differ from those here, so a lock also means that the owner is
        // alive.
        let is_orphaned =
            (owner.boot_id != boot_id || !is_running(&owner)) && !journal::is_locked(&path);
        let still_exists = |saved_setting: &SavedSetting| {
            settings.locate(&saved_setting.key, saved_setting.device.as_ref())
                != SettingLocation::Removed
        };
        let is_unrestored = |saved_setting: &&SavedSetting| {
            needs_restore(saved_setting, &owner, boot_id) && still_exists(saved_setting)
        };
        is_orphaned.then(|| saved.iter().filter(is_unrestored).count())
    };
    journal_paths(journal_dir)
        .filter_map(count_in_journal)
        .sum()
}

/// Journals of a directory; none if it does not exist.
pub(super) fn journal_paths(journal_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(journal_dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "jsonl")
    })
}

/// Returns whether a setting still needs a restore: a reboot resets kernel settings, but not what a
/// command wrote.
fn needs_restore(saved_setting: &SavedSetting, owner: &JournalOwner, boot_id: &str) -> bool {
    owner.boot_id == boot_id || saved_setting.key.kind == SettingKind::Command
}
