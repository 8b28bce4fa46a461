//! Settings of a host that go back: each old value is on the disk before the new one is set.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::TuneError;
use crate::journal::{self, Journal};

mod key;
pub use key::{Key, Kind};

/// Who reads and writes settings.
pub trait Machine {
    /// The value now.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    fn read(&self, key: &Key) -> Result<String, String>;
    /// Sets a value.
    ///
    /// # Errors
    /// Why it cannot be set, in words.
    fn write(&self, key: &Key, value: &str) -> Result<(), String>;
    /// Whether what had the setting is known to be no more: an interface that somebody took away, a lab's network.
    fn is_gone(&self, key: &Key) -> bool {
        let _ = key;
        false
    }
}

impl<M: Machine> Machine for &M {
    fn read(&self, key: &Key) -> Result<String, String> {
        (**self).read(key)
    }

    fn write(&self, key: &Key, value: &str) -> Result<(), String> {
        (**self).write(key, value)
    }

    fn is_gone(&self, key: &Key) -> bool {
        (**self).is_gone(key)
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
}

/// Settings that go back when it drops.
pub struct Guard<M: Machine> {
    machine: M,
    folder: PathBuf,
    owner: Owner,
    journal: Option<Journal>,
    olds: Vec<Old>,
}

impl<M: Machine> Guard<M> {
    /// Nothing is changed and no file is made yet.
    #[must_use]
    pub fn new(machine: M, folder: &Path, owner: Owner) -> Self {
        Self {
            machine,
            folder: folder.to_owned(),
            owner,
            journal: None,
            olds: Vec::new(),
        }
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
        let set = self.machine.write(key, value);
        if let (Err(_), false) = (&set, known) {
            let old = self.olds.iter().find(|old| old.key == *key);
            let same = old.is_some_and(|old| self.machine.read(key).as_ref() == Ok(&old.value));
            if same {
                // What cannot be set need not go back, which could not be done either.
                self.settled(key);
            }
        }
        set
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
        if self.olds.iter().any(|old| old.key == *key) {
            return Ok(());
        }
        let old = Old {
            key: key.clone(),
            value: value.to_owned(),
        };
        self.alone(key)?;
        self.note(&old)?;
        // Once more: of two that begin at the same time each has noted it by now.
        self.alone(key)?;
        self.olds.push(old);
        Ok(())
    }

    /// Refuses what another process changes as well. Commands of the user's are left out: they are told apart by
    /// the names that they were given, which need not mean the same thing.
    fn alone(&self, key: &Key) -> Result<(), TuneError> {
        if key.kind == Kind::Command {
            return Ok(());
        }
        let own = self.journal.as_ref().map(Journal::path);
        match also_changes(&self.folder, own, key) {
            None => Ok(()),
            Some(pid) => Err(TuneError::Shared {
                setting: format!("{} of {}", key.name, key.host),
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
            Some(old) => self.machine.write(key, &old.value),
            None => Ok(()),
        }
    }

    fn note(&mut self, old: &Old) -> Result<(), TuneError> {
        if self.journal.is_none() {
            // A server has one for each client whose settings it makes.
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Relaxed);
            let path = (self.folder).join(format!("{}-{number}.jsonl", self.owner.pid));
            self.journal = Some(Journal::create(&path, &self.owner)?);
        }
        match &mut self.journal {
            Some(journal) => journal.append(old),
            None => Ok(()),
        }
    }

    /// Sets all back. Says what could not be; that is still to be set back, and the journal stays for it.
    pub fn restore(&mut self) -> Vec<String> {
        let wrong;
        (self.olds, wrong) = put_back(&self.machine, std::mem::take(&mut self.olds));
        if self.olds.is_empty() {
            self.forget();
        }
        wrong
    }

    /// Leaves all as it is now.
    pub fn keep(mut self) {
        self.olds.clear();
        self.forget();
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

/// Sets back in the order opposite to that of the changes; gives what could not be, in its old order, and why. What is
/// gone took its settings along.
fn put_back<M: Machine>(machine: &M, olds: Vec<Old>) -> (Vec<Old>, Vec<String>) {
    let mut left = Vec::new();
    let mut wrong = Vec::new();
    for old in olds.into_iter().rev() {
        if let Err(why) = machine.write(&old.key, &old.value)
            && !machine.is_gone(&old.key)
        {
            wrong.push(format!("{} of {}: {why}", old.key.name, old.key.host));
            left.insert(0, old);
        }
    }
    (left, wrong)
}

/// What a restore came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Settings that were set back.
    pub settings: usize,
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
    for path in journals(folder) {
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
        let all = olds.len();
        olds.retain(|old| !machine.is_gone(&old.key));
        let settings = olds.len();
        restored.gone += all - settings;
        let (_, wrong) = put_back(machine, olds);
        restored.settings += settings - wrong.len();
        match wrong.is_empty() {
            true => journal.remove()?,
            false => restored.journals.push(path),
        }
        restored.wrong.extend(wrong);
    }
    Ok(restored)
}

/// Whose journal it is: told by its first line, or else by its name.
fn pid_of(path: &Path) -> Option<u32> {
    let read = journal::read::<Owner, Old>(path).ok();
    let named = || path.file_stem()?.to_str()?.split('-').next()?.parse().ok();
    read.map(|(owner, ..)| owner.pid).or_else(named)
}

/// Who else holds a journal with this setting in it: two that change one setting would leave it at what the first
/// made of it, because the second notes that as what was there before.
fn also_changes(folder: &Path, own: Option<&Path>, key: &Key) -> Option<u32> {
    let others = journals(folder).filter(|path| Some(path.as_path()) != own);
    let holds = |path: &PathBuf| {
        let (_, olds, _) = journal::read::<Owner, Old>(path).ok()?;
        (olds.iter().any(|old| old.key == *key) && journal::is_held(path)).then(|| pid_of(path))?
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
        let is_left = owner.boot != boot || !runs(&owner);
        let stands = |old: &&Old| outlives(old, &owner, boot) && !machine.is_gone(&old.key);
        is_left.then(|| olds.iter().filter(stands).count())
    };
    journals(folder).filter_map(left).sum()
}

/// The journals of a folder; none where nothing was ever changed.
fn journals(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
}

/// After another boot the kernel forgot its settings; what a command wrote elsewhere is there still.
fn outlives(old: &Old, owner: &Owner, boot: &str) -> bool {
    owner.boot == boot || old.key.kind == Kind::Command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    struct Table(RefCell<BTreeMap<String, String>>);

    impl Machine for Table {
        fn read(&self, key: &Key) -> Result<String, String> {
            self.0
                .borrow()
                .get(&key.name)
                .cloned()
                .ok_or_else(|| "not there".to_owned())
        }

        fn write(&self, key: &Key, value: &str) -> Result<(), String> {
            if value == "bad" || key.name == "fixed" {
                return Err("invalid".to_owned());
            }
            self.0
                .borrow_mut()
                .insert(key.name.clone(), value.to_owned());
            Ok(())
        }

        fn is_gone(&self, key: &Key) -> bool {
            key.host == "of a lab that went down"
        }
    }

    fn table() -> Table {
        let settings = [("a", "1"), ("b", "2"), ("fixed", "3")];
        Table(RefCell::new(
            settings.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ))
    }

    fn key(name: &str) -> Key {
        Key {
            host: "client".to_owned(),
            namespace: 7,
            cookie: None,
            kind: Kind::Sysctl,
            name: name.to_owned(),
        }
    }

    fn owner(boot: &str) -> Owner {
        Owner {
            boot: boot.to_owned(),
            pid: 4711,
            started_ticks: 9,
        }
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("linerate-guard-{name}-{}", std::process::id()))
    }

    #[test]
    fn all_goes_back_when_it_drops() {
        let (table, folder) = (table(), folder("drop"));
        let before = table.0.borrow().clone();
        let mut guard = Guard::new(&table, &folder, owner("x"));
        guard.set(&key("a"), "10").unwrap();
        guard.set(&key("a"), "11").unwrap();
        guard.set(&key("b"), "12").unwrap();
        assert!(guard.set(&key("c"), "1").is_err());
        assert!(guard.set(&key("fixed"), "1").is_err());
        assert!(guard.set(&key("b"), "bad").is_err());
        guard.reset(&key("a")).unwrap();
        assert_eq!(table.0.borrow()["a"], "1");
        assert_eq!(guard.restore(), [""; 0], "what is fixed need not go back");
        drop(guard);
        assert_eq!(*table.0.borrow(), before);
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            0,
            "no journal is left"
        );
        fs::remove_dir(&folder).unwrap();
    }

    /// A machine whose settings cannot be written any more.
    struct Stuck<'a>(&'a Table, RefCell<bool>);

    impl Machine for Stuck<'_> {
        fn read(&self, key: &Key) -> Result<String, String> {
            self.0.read(key)
        }

        fn write(&self, key: &Key, value: &str) -> Result<(), String> {
            match *self.1.borrow() && key.name == "a" {
                true => Err("no such device".to_owned()),
                false => self.0.write(key, value),
            }
        }

        fn is_gone(&self, key: &Key) -> bool {
            self.0.is_gone(key)
        }
    }

    #[test]
    fn what_cannot_go_back_stays_in_the_journal() {
        let (table, folder) = (table(), folder("stuck"));
        let stuck = Stuck(&table, RefCell::new(false));
        let mut guard = Guard::new(&stuck, &folder, owner("x"));
        guard.set(&key("a"), "10").unwrap();
        guard.set(&key("b"), "20").unwrap();
        *stuck.1.borrow_mut() = true;
        assert_eq!(guard.restore(), ["a of client: no such device"]);
        drop(guard);
        assert_eq!(table.0.borrow()["b"], "2");
        assert_eq!(journals(&folder).count(), 1, "it is the only word of it");
        *stuck.1.borrow_mut() = false;
        let restored = restore_left(&folder, &&stuck, "x", |_| false).unwrap();
        assert_eq!((restored.settings, restored.wrong.len()), (2, 0));
        assert_eq!(table.0.borrow()["a"], "1");
        assert_eq!(journals(&folder).count(), 0);
        fs::remove_dir(&folder).unwrap();
    }

    /// A machine without the interface that `a` is a setting of.
    struct Without<'a>(&'a Table);

    impl Machine for Without<'_> {
        fn read(&self, key: &Key) -> Result<String, String> {
            self.0.read(key)
        }

        fn write(&self, key: &Key, value: &str) -> Result<(), String> {
            match self.is_gone(key) {
                true => Err("no such device".to_owned()),
                false => self.0.write(key, value),
            }
        }

        fn is_gone(&self, key: &Key) -> bool {
            key.name == "a"
        }
    }

    #[test]
    fn what_is_gone_need_not_go_back() {
        let (table, folder) = (table(), folder("gone"));
        let mut guard = Guard::new(Without(&table), &folder, owner("x"));
        guard.note_old(&key("a"), "1").unwrap();
        guard.set(&key("b"), "20").unwrap();
        assert_eq!(guard.restore(), [""; 0]);
        assert_eq!(table.0.borrow()["b"], "2");
        assert_eq!(journals(&folder).count(), 0);
        drop(guard);
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn one_journal_that_is_no_use_keeps_no_other_from_its_settings() {
        let (table, folder) = (table(), folder("mixed"));
        // The first by name: held by one that lives.
        let mut living = Guard::new(&table, &folder, owner("x"));
        living.set(&key("b"), "20").unwrap();
        fs::write(folder.join("1-0.jsonl"), "").unwrap();
        fs::write(folder.join("2-0.jsonl"), "no journal\n").unwrap();
        let left = Old {
            key: key("a"),
            value: "1".to_owned(),
        };
        drop(
            Journal::create(&folder.join("9999-0.jsonl"), &owner("x"))
                .and_then(|mut journal| journal.append(&left)),
        );
        table.0.borrow_mut().insert("a".to_owned(), "10".to_owned());
        let restored = restore_left(&folder, &&table, "x", |_| false).unwrap();
        assert_eq!(table.0.borrow()["a"], "1");
        assert_eq!(
            (restored.settings, restored.running.as_slice()),
            (1, &[4711][..])
        );
        assert_eq!(restored.wrong.len(), 1, "{restored:?}");
        assert!(restored.journals[0].ends_with("2-0.jsonl"), "{restored:?}");
        assert!(
            !folder.join("1-0.jsonl").exists(),
            "nothing was changed by then"
        );
        drop(living);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_one_changes_no_other_changes_at_the_same_time() {
        let (table, folder) = (table(), folder("two"));
        let mut first = Guard::new(&table, &folder, owner("x"));
        first.set(&key("a"), "10").unwrap();
        let mut second = Guard::new(&table, &folder, owner("x"));
        let told = second.set(&key("a"), "20").unwrap_err();
        assert!(told.contains("process 4711"), "{told}");
        second.set(&key("b"), "20").unwrap();
        assert_eq!(table.0.borrow()["a"], "10");
        drop(first);
        second.set(&key("a"), "20").unwrap();
        drop(second);
        assert_eq!(
            (
                table.0.borrow()["a"].as_str(),
                table.0.borrow()["b"].as_str()
            ),
            ("1", "2")
        );
        fs::remove_dir(&folder).unwrap();
    }

    /// What a kill leaves of a guard: its journal, which nobody holds any more.
    fn killed<M: Machine>(mut guard: Guard<M>) {
        drop(guard.journal.take());
        std::mem::forget(guard);
    }

    #[test]
    fn what_a_killed_process_left_goes_back() {
        let (table, folder) = (table(), folder("kill"));
        let before = table.0.borrow().clone();
        let mut guard = Guard::new(&table, &folder, owner("x"));
        guard.set(&key("a"), "10").unwrap();
        guard.set(&key("b"), "12").unwrap();
        // Killed: nothing drops.
        killed(guard);
        let running = restore_left(&folder, &table, "x", |_| true).unwrap();
        assert_eq!((running.running, running.settings), (vec![4711], 0));
        assert_eq!(
            count_left(&folder, &table, "x", |_| true),
            0,
            "it sets back itself"
        );
        assert_eq!(count_left(&folder, &table, "x", |_| false), 2);
        let restored = restore_left(&folder, &table, "x", |_| false).unwrap();
        assert_eq!((restored.settings, restored.wrong.len()), (2, 0));
        assert_eq!(*table.0.borrow(), before);
        let again = restore_left(&folder, &table, "x", |_| false).unwrap();
        assert_eq!(again, Restored::default());
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn what_others_change_goes_back_by_the_first_note_even_after_a_boot() {
        let (table, folder) = (table(), folder("note"));
        let mut guard = Guard::new(&table, &folder, owner("old"));
        let knob = Key::of_command("window");
        guard.note_old(&knob, "flash 1").unwrap();
        guard.note_old(&knob, "flash 2").unwrap();
        guard.set(&key("a"), "10").unwrap();
        killed(guard);
        assert_eq!(count_left(&folder, &table, "new", |_| false), 1);
        let restored = restore_left(&folder, &table, "new", |_| false).unwrap();
        assert_eq!((restored.settings, restored.wrong.len()), (1, 0));
        assert_eq!(table.0.borrow()["window"], "flash 1");
        assert_eq!(
            table.0.borrow()["a"],
            "10",
            "a setting of the kernel's is not ours any more"
        );
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn what_a_network_had_that_is_gone_is_neither_left_nor_wrong() {
        let (table, folder) = (table(), folder("network"));
        let mut guard = Guard::new(&table, &folder, owner("x"));
        let lost = Key {
            host: "of a lab that went down".to_owned(),
            ..key("b")
        };
        guard.set(&lost, "20").unwrap();
        guard.set(&key("a"), "10").unwrap();
        killed(guard);
        assert_eq!(count_left(&folder, &table, "x", |_| false), 1);
        let restored = restore_left(&folder, &table, "x", |_| false).unwrap();
        let told = (restored.settings, restored.gone, restored.wrong.len());
        assert_eq!(told, (1, 1, 0), "{restored:?}");
        assert_eq!(table.0.borrow()["b"], "20", "another network's");
        assert_eq!(journals(&folder).count(), 0, "nothing is left to be done");
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn after_another_boot_nothing_is_left_to_restore() {
        let (table, folder) = (table(), folder("boot"));
        let mut guard = Guard::new(&table, &folder, owner("old"));
        guard.set(&key("a"), "10").unwrap();
        killed(guard);
        let restored = restore_left(&folder, &table, "new", |_| false).unwrap();
        assert_eq!(restored, Restored::default());
        assert_eq!(table.0.borrow()["a"], "10", "it is not ours any more");
        fs::remove_dir(&folder).unwrap();
    }
}
