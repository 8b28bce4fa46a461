//! Settings that processes left that were killed: their journals are there, and nobody holds them.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Key, Kind, Machine, Old, Owner, Place, put_back};
use crate::TuneError;
use crate::journal::{self, Journal};

/// What a restore came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Settings that were set back.
    pub settings: usize,
    /// Those of them whose interface has another name or is in another network by now: where they were, and where
    /// they are.
    pub moved: Vec<(Key, Key)>,
    /// Those of networks and interfaces that are gone: nothing is there to be set back.
    pub gone: usize,
    /// Journals of processes that still run: theirs to restore.
    pub running: Vec<u32>,
    /// What could not be set back, and why.
    pub wrong: Vec<String>,
    /// Where that is written down.
    pub journals: Vec<PathBuf>,
}

/// Sets back what processes left that were killed. A journal that is no use stops nothing: what it is and why is
/// in the outcome, and the others are gone through all the same.
///
/// # Errors
/// A journal whose settings are all back cannot be removed.
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
            // Who holds it lives, and sets back what it changed.
            Err(TuneError::InUse { .. }) => {
                restored.running.extend(pid_of(&path));
                continue;
            }
            Err(TuneError::Headless { .. }) => {
                // The first line is on the disk before anything is changed.
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

/// The journals of a folder, those of processes that began last in front: what a command changed within another one,
/// which had changed it as well, goes back before.
pub(super) fn newest_first(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = journals(folder).collect();
    paths.sort_by_cached_key(|path| {
        let read = journal::read::<Owner, Old>(path).ok();
        let began = read.map(|(owner, ..)| owner.started_ticks);
        (Reverse((began, number_of(path))), path.clone())
    });
    paths
}

/// Whose journal it is: told by its first line, or else by its name.
fn pid_of(path: &Path) -> Option<u32> {
    let read = journal::read::<Owner, Old>(path).ok();
    let named = || path.file_stem()?.to_str()?.split('-').next()?.parse().ok();
    read.map(|(owner, ..)| owner.pid).or_else(named)
}

/// Which of the journals of its process it is.
fn number_of(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.split('-').nth(1)?.parse().ok()
}

/// Who else holds a journal with this setting in it, but for those `around`: two that change one setting would leave
/// it at what the first made of it, because the second notes that as what was there before.
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

/// How many settings processes left that were killed, of places that are there. Changes nothing, and passes over what
/// it cannot read.
#[must_use]
pub fn count_left<M: Machine>(
    folder: &Path,
    machine: &M,
    boot: &str,
    runs: impl Fn(&Owner) -> bool,
) -> usize {
    let left = |path: PathBuf| {
        let (owner, olds, _) = journal::read::<Owner, Old>(&path).ok()?;
        // Of a lab its processes have other numbers than here: whoever holds it lives as well.
        let is_left = (owner.boot != boot || !runs(&owner)) && !journal::is_held(&path);
        let is_there = |old: &Old| machine.find(&old.key, old.device.as_ref()) != Place::Gone;
        let stands = |old: &&Old| outlives(old, &owner, boot) && is_there(old);
        is_left.then(|| olds.iter().filter(stands).count())
    };
    journals(folder).filter_map(left).sum()
}

/// The journals of a folder; none where nothing was ever changed.
pub(super) fn journals(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
}

/// After another boot the kernel forgot its settings; what a command wrote elsewhere is there still.
fn outlives(old: &Old, owner: &Owner, boot: &str) -> bool {
    owner.boot == boot || old.key.kind == Kind::Command
}
