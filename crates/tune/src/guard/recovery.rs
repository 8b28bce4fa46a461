//! Recovery of settings left changed by killed processes: their journals exist but are not locked.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Key, Kind, Machine, Old, Owner, Place, put_back};
use crate::TuneError;
use crate::journal::{self, Journal};

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Number of settings restored.
    pub settings: usize,
    /// Restored settings whose interface has another name or namespace now: the saved key and the
    /// current one.
    pub moved: Vec<(Key, Key)>,
    /// Number of settings whose interface or namespace no longer exists.
    pub gone: usize,
    /// Processes that still run: they restore their own journals.
    pub running: Vec<u32>,
    /// Errors of settings and journals that could not be restored.
    pub wrong: Vec<String>,
    /// Journals that remain because of these errors.
    pub journals: Vec<PathBuf>,
}

/// Restores settings that killed processes left changed.
///
/// An invalid journal is reported in the result and does not stop the others.
///
/// # Errors
/// A fully restored journal cannot be removed.
pub fn restore_left<M: Machine>(
    folder: &Path,
    machine: &M,
    boot: &str,
    runs: impl Fn(&Owner) -> bool,
) -> Result<Restored, TuneError> {
    let mut restored = Restored::default();
    for path in newest_first(folder) {
        let (owner, mut olds, journal) = match Journal::resume::<Owner, Old>(&path) {
            Ok(left) => left,
            // The process that holds the lock is alive and restores its changes itself.
            Err(TuneError::InUse { .. }) => {
                restored.running.extend(pid_of(&path));
                continue;
            }
            Err(TuneError::Headless { .. }) => {
                // The header is synced to disk before anything is changed.
                journal::remove(&path)?;
                continue;
            }
            Err(error) => {
                restored.wrong.push(error.to_string());
                restored.journals.push(path);
                continue;
            }
        };
        if owner.boot == boot && runs(&owner) {
            restored.running.push(owner.pid);
            continue;
        }
        olds.retain(|old| outlives(old, &owner, boot));
        let back = put_back(machine, olds);
        restored.settings += back.settings;
        restored.moved.extend(back.moved);
        restored.gone += back.gone;
        match back.wrong.is_empty() {
            true => journal.remove()?,
            false => restored.journals.push(path),
        }
        restored.wrong.extend(back.wrong);
    }
    Ok(restored)
}

/// Journals of a directory, most recently started process first.
///
/// A process that ran within another one and changed the same setting is restored before it.
pub(super) fn newest_first(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = journals(folder).collect();
    paths.sort_by_cached_key(|path| {
        let read = journal::read::<Owner, Old>(path).ok();
        let began = read.map(|(owner, ..)| owner.started_ticks);
        (Reverse((began, number_of(path))), path.clone())
    });
    paths
}

/// Process id of a journal's owner, from its header or else from its file name.
fn pid_of(path: &Path) -> Option<u32> {
    let read = journal::read::<Owner, Old>(path).ok();
    let named = || path.file_stem()?.to_str()?.split('-').next()?.parse().ok();
    read.map(|(owner, ..)| owner.pid).or_else(named)
}

/// Number of a journal among those of its process.
fn number_of(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.split('-').nth(1)?.parse().ok()
}

/// Process id of another owner, not in `around`, whose locked journal contains this setting.
///
/// Two owners of one setting would end with the first one's value, which the second saves as the
/// old one.
pub(super) fn also_changes(
    folder: &Path,
    own: Option<&Path>,
    around: &[Owner],
    key: &Key,
) -> Option<u32> {
    let others = journals(folder).filter(|path| Some(path.as_path()) != own);
    let holds = |path: &PathBuf| {
        let (owner, olds, _) = journal::read::<Owner, Old>(path).ok()?;
        let changes = olds.iter().any(|old| old.key == *key) && !around.contains(&owner);
        (changes && journal::is_held(path)).then_some(owner.pid)
    };
    others.filter_map(|path| holds(&path)).next()
}

/// Number of settings that killed processes left changed and whose interface still exists.
///
/// Changes nothing and skips what it cannot read.
#[must_use]
pub fn count_left<M: Machine>(
    folder: &Path,
    machine: &M,
    boot: &str,
    runs: impl Fn(&Owner) -> bool,
) -> usize {
    let left = |path: PathBuf| {
        let (owner, olds, _) = journal::read::<Owner, Old>(&path).ok()?;
        // Process ids inside a lab differ from those here, so a lock also means that the owner is
        // alive.
        let is_left = (owner.boot != boot || !runs(&owner)) && !journal::is_held(&path);
        let is_there = |old: &Old| machine.find(&old.key, old.device.as_ref()) != Place::Gone;
        let stands = |old: &&Old| outlives(old, &owner, boot) && is_there(old);
        is_left.then(|| olds.iter().filter(stands).count())
    };
    journals(folder).filter_map(left).sum()
}

/// Journals of a directory; none if it does not exist.
pub(super) fn journals(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
}

/// Returns whether a setting still needs a restore: a reboot resets kernel settings, but not what a
/// command wrote.
fn outlives(old: &Old, owner: &Owner, boot: &str) -> bool {
    owner.boot == boot || old.key.kind == Kind::Command
}
