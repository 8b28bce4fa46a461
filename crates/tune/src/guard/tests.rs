use super::recovery::{journal_paths, journals_newest_first};
use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;

struct MemorySettings(RefCell<BTreeMap<String, String>>);

impl HostSettings for MemorySettings {
    fn read(&self, key: &SettingKey) -> Result<String, String> {
        self.0
            .borrow()
            .get(&key.name)
            .cloned()
            .ok_or_else(|| "not there".to_owned())
    }

    fn write(&self, key: &SettingKey, value: &str, _: Option<u64>) -> Result<(), String> {
        if value == "bad" || key.name == "fixed" {
            return Err("invalid".to_owned());
        }
        self.0
            .borrow_mut()
            .insert(key.name.clone(), value.to_owned());
        Ok(())
    }

    fn locate(&self, key: &SettingKey, _: Option<&InterfaceIdentity>) -> SettingLocation {
        match key.host == "of a lab that went down" {
            true => SettingLocation::Removed,
            false => SettingLocation::At(key.clone()),
        }
    }
}

fn memory_settings() -> MemorySettings {
    let settings = [("a", "1"), ("b", "2"), ("fixed", "3")];
    MemorySettings(RefCell::new(
        settings.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
    ))
}

fn key(name: &str) -> SettingKey {
    SettingKey {
        host: "client".to_owned(),
        namespace_inode: 7,
        namespace_cookie: None,
        kind: SettingKind::Sysctl,
        name: name.to_owned(),
    }
}

fn owner(boot: &str) -> JournalOwner {
    JournalOwner {
        boot_id: boot.to_owned(),
        pid: 4711,
        started_ticks: 9,
    }
}

fn journal_dir(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("linerate-guard-{name}-{}", std::process::id()))
}

#[test]
fn all_goes_back_when_it_drops() {
    let (table, dir) = (memory_settings(), journal_dir("drop"));
    let before = table.0.borrow().clone();
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("a"), "11").unwrap();
    guard.set(&key("b"), "12").unwrap();
    assert!(guard.set(&key("c"), "1").is_err());
    assert!(guard.set(&key("fixed"), "1").is_err());
    assert!(guard.set(&key("b"), "bad").is_err());
    guard.restore_one(&key("a")).unwrap();
    assert_eq!(table.0.borrow()["a"], "1");
    assert_eq!(
        guard.restore_all(),
        [""; 0],
        "what is fixed need not go back"
    );
    drop(guard);
    assert_eq!(*table.0.borrow(), before);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "no journal is left");
    fs::remove_dir(&dir).unwrap();
}

/// Settings that can no longer be written.
struct UnwritableSettings<'a>(&'a MemorySettings, RefCell<bool>);

impl HostSettings for UnwritableSettings<'_> {
    fn read(&self, key: &SettingKey) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &SettingKey, value: &str, timeout_s: Option<u64>) -> Result<(), String> {
        match *self.1.borrow() && key.name == "a" {
            true => Err("no such device".to_owned()),
            false => self.0.write(key, value, timeout_s),
        }
    }

    fn locate(&self, key: &SettingKey, device: Option<&InterfaceIdentity>) -> SettingLocation {
        self.0.locate(key, device)
    }
}

#[test]
fn unrestored_settings_stay_in_the_journal() {
    let (table, dir) = (memory_settings(), journal_dir("stuck"));
    let stuck = UnwritableSettings(&table, RefCell::new(false));
    let mut guard = RollbackGuard::new(&stuck, Some(dir.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("b"), "20").unwrap();
    *stuck.1.borrow_mut() = true;
    assert_eq!(guard.restore_all(), ["a of client: no such device"]);
    drop(guard);
    assert_eq!(table.0.borrow()["b"], "2");
    assert_eq!(journal_paths(&dir).count(), 1, "it is the only word of it");
    *stuck.1.borrow_mut() = false;
    let restored = recover_settings(&dir, &&stuck, "x", |_| false).unwrap();
    assert_eq!((restored.restored, restored.errors.len()), (2, 0));
    assert_eq!(table.0.borrow()["a"], "1");
    assert_eq!(journal_paths(&dir).count(), 0);
    fs::remove_dir(&dir).unwrap();
}

/// Settings of a machine without the interface that `a` belongs to.
struct MissingInterface<'a>(&'a MemorySettings);

impl HostSettings for MissingInterface<'_> {
    fn read(&self, key: &SettingKey) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &SettingKey, value: &str, timeout_s: Option<u64>) -> Result<(), String> {
        match key.name == "a" {
            true => Err("no such device".to_owned()),
            false => self.0.write(key, value, timeout_s),
        }
    }

    fn locate(&self, key: &SettingKey, _: Option<&InterfaceIdentity>) -> SettingLocation {
        match key.name == "a" {
            true => SettingLocation::Removed,
            false => SettingLocation::At(key.clone()),
        }
    }
}

#[test]
fn vanished_objects_are_not_restored() {
    let (table, dir) = (memory_settings(), journal_dir("gone"));
    let mut guard = RollbackGuard::new(MissingInterface(&table), Some(dir.clone()), owner("x"));
    guard.save_old_value(&key("a"), "1").unwrap();
    guard.set(&key("b"), "20").unwrap();
    assert_eq!(guard.restore_all(), [""; 0]);
    assert_eq!(table.0.borrow()["b"], "2");
    assert_eq!(journal_paths(&dir).count(), 0);
    drop(guard);
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn an_invalid_journal_does_not_block_others() {
    let (table, dir) = (memory_settings(), journal_dir("mixed"));
    // The first journal by name is locked by a living guard.
    let mut living = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    living.set(&key("b"), "20").unwrap();
    fs::write(dir.join("1-0.jsonl"), "").unwrap();
    fs::write(dir.join("2-0.jsonl"), "no journal\n").unwrap();
    let leftover = SavedSetting {
        key: key("a"),
        value: "1".to_owned(),
        device: None,
        timeout_s: None,
    };
    drop(
        Journal::create(&dir.join("9999-0.jsonl"), &owner("x"))
            .and_then(|mut journal| journal.append(&leftover)),
    );
    table.0.borrow_mut().insert("a".to_owned(), "10".to_owned());
    let restored = recover_settings(&dir, &&table, "x", |_| false).unwrap();
    assert_eq!(table.0.borrow()["a"], "1");
    assert_eq!(
        (restored.restored, restored.running_pids.as_slice()),
        (1, &[4711][..])
    );
    assert_eq!(restored.errors.len(), 1, "{restored:?}");
    assert!(
        restored.failed_journals[0].ends_with("2-0.jsonl"),
        "{restored:?}"
    );
    assert!(
        !dir.join("1-0.jsonl").exists(),
        "nothing was changed by then"
    );
    drop(living);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_setting_has_one_owner_at_a_time() {
    let (table, dir) = (memory_settings(), journal_dir("two"));
    let mut first = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    first.set(&key("a"), "10").unwrap();
    let other_owner = JournalOwner {
        pid: 4712,
        ..owner("x")
    };
    let mut second = RollbackGuard::new(&table, Some(dir.clone()), other_owner);
    let error = second.set(&key("a"), "20").unwrap_err();
    assert!(error.contains("process 4711"), "{error}");
    second.set(&key("b"), "20").unwrap();
    assert_eq!(table.0.borrow()["a"], "10");
    // Another port of the same command is rejected too: the first restore would leave the other
    // one's value.
    let mut same_process = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    let error = same_process.set(&key("a"), "20").unwrap_err();
    assert!(error.contains("another port of this command"), "{error}");
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
    fs::remove_dir(&dir).unwrap();
}

/// A run within a search that set the same knob: whichever process dies, the original value is
/// restored.
#[test]
fn nested_changes_are_restored_first() {
    let (table, dir) = (memory_settings(), journal_dir("within"));
    let owner_started = |pid, started_ticks| JournalOwner {
        pid,
        started_ticks,
        ..owner("x")
    };
    let (outer, inner) = (owner_started(20, 100), owner_started(10, 101));
    let mut first = RollbackGuard::new(&table, Some(dir.clone()), outer.clone());
    first.set(&key("a"), "10").unwrap();
    let nested_guard = || {
        RollbackGuard::new(&table, Some(dir.clone()), inner.clone())
            .with_enclosing_owners(vec![outer.clone()])
    };
    let mut second = nested_guard();
    second.set(&key("a"), "20").unwrap();
    drop(second);
    assert_eq!(table.0.borrow()["a"], "10");
    let mut second = nested_guard();
    second.set(&key("a"), "30").unwrap();
    simulate_kill(second);
    simulate_kill(first);
    let order = journals_newest_first(&dir);
    let name = |at: usize| order[at].file_name().unwrap().to_str().unwrap();
    assert!(
        name(0).starts_with("10-") && name(1).starts_with("20-"),
        "{order:?}"
    );
    let restored = recover_settings(&dir, &table, "x", |_| false).unwrap();
    assert_eq!((restored.restored, restored.errors.len()), (2, 0));
    assert_eq!(table.0.borrow()["a"], "1");
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn settings_without_a_journal_are_restored_on_drop() {
    let table = memory_settings();
    // A file is not a directory, even for root.
    for unusable_dir in [None, Some(PathBuf::from("/dev/null/journals"))] {
        let mut guard = RollbackGuard::new(&table, unusable_dir.clone(), owner("x"));
        assert!(guard.create_journal().is_err(), "{unusable_dir:?}");
        assert!(guard.set(&key("b"), "20").is_err(), "{unusable_dir:?}");
        assert!(
            guard.save_old_value(&key("a"), "1").is_err(),
            "{unusable_dir:?}"
        );
        guard.save_in_memory(&key("a"), "1");
        guard.save_in_memory(&key("a"), "the first note holds");
        table.write(&key("a"), "10", None).unwrap();
        drop(guard);
        assert_eq!(table.0.borrow()["a"], "1", "{unusable_dir:?}");
        assert_eq!(table.0.borrow()["b"], "2", "{unusable_dir:?}");
    }
}

/// Settings of a machine on which the interface of `a` was renamed to `b`.
struct RenamedInterface<'a>(&'a MemorySettings);

impl HostSettings for RenamedInterface<'_> {
    fn read(&self, key: &SettingKey) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &SettingKey, value: &str, timeout_s: Option<u64>) -> Result<(), String> {
        self.0.write(key, value, timeout_s)
    }

    fn interface_identity(&self, _: &SettingKey) -> Option<InterfaceIdentity> {
        Some(InterfaceIdentity {
            index: 5,
            address: Some("02:07".to_owned()),
            kind: None,
        })
    }

    fn locate(&self, key: &SettingKey, device: Option<&InterfaceIdentity>) -> SettingLocation {
        match device.is_some_and(|device| *device == self.interface_identity(key).unwrap()) {
            true => SettingLocation::At(SettingKey {
                name: "b".to_owned(),
                ..key.clone()
            }),
            false => SettingLocation::Unknown("several have its address".to_owned()),
        }
    }
}

#[test]
fn relocated_settings_are_restored_at_their_new_location() {
    let (table, dir) = (memory_settings(), journal_dir("renamed"));
    let mut guard = RollbackGuard::new(RenamedInterface(&table), Some(dir.clone()), owner("x"));
    guard.save_old_value(&key("a"), "20").unwrap();
    assert_eq!(guard.restore_all(), [""; 0]);
    assert_eq!(table.0.borrow()["b"], "20");
    guard.save_old_value(&key("a"), "30").unwrap();
    simulate_kill(guard);
    let restored = recover_settings(&dir, &RenamedInterface(&table), "x", |_| false).unwrap();
    assert_eq!((restored.restored, restored.removed), (1, 0));
    assert_eq!(restored.relocated, [(key("a"), key("b"))]);
    assert_eq!(table.0.borrow()["b"], "30");
    // An older version saved no interface: the setting is not guessed, and its journal is kept.
    let old = r#"{"key":{"host":"client","namespace":7,"kind":"sysctl","name":"a"},"value":"40"}"#;
    let head = serde_json::to_string(&owner("x")).unwrap();
    fs::write(dir.join("9-0.jsonl"), format!("{head}\n{old}\n")).unwrap();
    let restored = recover_settings(&dir, &RenamedInterface(&table), "x", |_| false).unwrap();
    assert_eq!(restored.errors, ["a of client: several have its address"]);
    assert_eq!(restored.failed_journals.len(), 1);
    fs::remove_dir_all(&dir).unwrap();
}

/// Settings that log the timeout of each write.
struct TimeoutLog<'a>(&'a MemorySettings, RefCell<Vec<Option<u64>>>);

impl HostSettings for TimeoutLog<'_> {
    fn read(&self, key: &SettingKey) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &SettingKey, value: &str, timeout_s: Option<u64>) -> Result<(), String> {
        self.1.borrow_mut().push(timeout_s);
        self.0.write(key, value, timeout_s)
    }
}

/// The timeout of a command also applies to its restore; it was always ten minutes before.
#[test]
fn the_timeout_applies_to_the_restore_too() {
    let (table, dir) = (memory_settings(), journal_dir("time"));
    let machine = TimeoutLog(&table, RefCell::default());
    let mut guard = RollbackGuard::new(&machine, Some(dir.clone()), owner("x"));
    let knob = SettingKey::for_command("window");
    guard
        .save_with_timeout(&knob, "flash 1", Some(1_800))
        .unwrap();
    guard.save_old_value(&key("a"), "1").unwrap();
    assert_eq!(guard.restore_all(), [""; 0]);
    assert_eq!(machine.1.take(), [None, Some(1_800)]);
    guard
        .save_with_timeout(&knob, "flash 1", Some(1_800))
        .unwrap();
    simulate_kill(guard);
    let restored = recover_settings(&dir, &&machine, "x", |_| false).unwrap();
    assert_eq!((restored.restored, restored.errors.len()), (1, 0));
    assert_eq!(machine.1.take(), [Some(1_800)]);
    fs::remove_dir(&dir).unwrap();
}

/// Simulates a kill: the journal stays on disk, unlocked.
fn simulate_kill<M: HostSettings>(mut guard: RollbackGuard<M>) {
    drop(guard.journal.take());
    std::mem::forget(guard);
}

#[test]
fn settings_of_a_killed_process_are_restored() {
    let (table, dir) = (memory_settings(), journal_dir("kill"));
    let before = table.0.borrow().clone();
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("b"), "12").unwrap();
    // A killed process drops nothing.
    simulate_kill(guard);
    let running = recover_settings(&dir, &table, "x", |_| true).unwrap();
    assert_eq!((running.running_pids, running.restored), (vec![4711], 0));
    assert_eq!(
        count_unrestored(&dir, &table, "x", |_| true),
        0,
        "it sets back itself"
    );
    assert_eq!(count_unrestored(&dir, &table, "x", |_| false), 2);
    let restored = recover_settings(&dir, &table, "x", |_| false).unwrap();
    assert_eq!((restored.restored, restored.errors.len()), (2, 0));
    assert_eq!(*table.0.borrow(), before);
    let second_report = recover_settings(&dir, &table, "x", |_| false).unwrap();
    assert_eq!(second_report, RecoveryReport::default());
    fs::remove_dir(&dir).unwrap();
}

/// In a lab process ids start again, and so did journal numbers: a second search found its file
/// name taken.
#[test]
fn a_leftover_journal_with_the_same_pid_does_not_block() {
    let (table, dir) = (memory_settings(), journal_dir("number"));
    fs::create_dir_all(&dir).unwrap();
    let leftover: Vec<PathBuf> = (0..200)
        .map(|number| dir.join(format!("4711-{number}.jsonl")))
        .collect();
    leftover
        .iter()
        .for_each(|path| fs::write(path, "").unwrap());
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    guard.create_journal().unwrap();
    assert_eq!(journal_paths(&dir).count(), 201);
    assert_eq!(guard.set(&key("a"), "10"), Ok(()));
    drop(guard);
    assert_eq!(table.0.borrow()["a"], "1");
    assert_eq!(journal_paths(&dir).count(), 200, "its own alone is gone");
    fs::remove_dir_all(&dir).unwrap();
}

/// A process in a lab has another id outside of it, so only the lock shows that it is alive.
#[test]
fn a_locked_journal_is_not_left_over() {
    let (table, dir) = (memory_settings(), journal_dir("held"));
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    assert_eq!(count_unrestored(&dir, &table, "x", |_| false), 0);
    simulate_kill(guard);
    assert_eq!(count_unrestored(&dir, &table, "x", |_| false), 1);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_first_note_restores_settings_that_others_change_even_after_a_boot() {
    let (table, dir) = (memory_settings(), journal_dir("note"));
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("old"));
    let knob = SettingKey::for_command("window");
    guard.save_old_value(&knob, "flash 1").unwrap();
    guard.save_old_value(&knob, "flash 2").unwrap();
    guard.set(&key("a"), "10").unwrap();
    simulate_kill(guard);
    assert_eq!(count_unrestored(&dir, &table, "new", |_| false), 1);
    let restored = recover_settings(&dir, &table, "new", |_| false).unwrap();
    assert_eq!((restored.restored, restored.errors.len()), (1, 0));
    assert_eq!(table.0.borrow()["window"], "flash 1");
    assert_eq!(
        table.0.borrow()["a"],
        "10",
        "a setting of the kernel's is not ours any more"
    );
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn settings_of_a_removed_namespace_are_neither_left_nor_errors() {
    let (table, dir) = (memory_settings(), journal_dir("network"));
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    let lost = SettingKey {
        host: "of a lab that went down".to_owned(),
        ..key("b")
    };
    guard.set(&lost, "20").unwrap();
    guard.set(&key("a"), "10").unwrap();
    simulate_kill(guard);
    assert_eq!(count_unrestored(&dir, &table, "x", |_| false), 1);
    let restored = recover_settings(&dir, &table, "x", |_| false).unwrap();
    let counts = (restored.restored, restored.removed, restored.errors.len());
    assert_eq!(counts, (1, 1, 0), "{restored:?}");
    assert_eq!(table.0.borrow()["b"], "20", "another network's");
    assert_eq!(journal_paths(&dir).count(), 0, "nothing is left to be done");
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn after_another_boot_nothing_is_left_to_restore() {
    let (table, dir) = (memory_settings(), journal_dir("boot"));
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("old"));
    guard.set(&key("a"), "10").unwrap();
    simulate_kill(guard);
    let restored = recover_settings(&dir, &table, "new", |_| false).unwrap();
    assert_eq!(restored, RecoveryReport::default());
    assert_eq!(table.0.borrow()["a"], "10", "it is not ours any more");
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn kept_settings_stay_and_all_others_are_restored() {
    let (table, dir) = (memory_settings(), journal_dir("keep"));
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("b"), "20").unwrap();
    assert_eq!(
        guard.restore_commands(&[key("a")]),
        ["sysctl -w a='1'  # client"],
        "what it was"
    );
    assert_eq!(guard.keep_only(&[key("a")]), [""; 0]);
    drop(guard);
    let now = |name: &str| table.0.borrow()[name].clone();
    assert_eq!([now("a"), now("b")], ["10", "2"]);
    assert_eq!(journal_paths(&dir).count(), 0, "nothing is left to be done");
    fs::remove_dir(&dir).unwrap();
}

/// The journal that remains for failed settings must not contain the kept ones.
#[test]
fn kept_settings_are_not_restored_with_unrestored_ones() {
    let (table, dir) = (memory_settings(), journal_dir("kept"));
    let stuck = UnwritableSettings(&table, RefCell::new(false));
    let mut guard = RollbackGuard::new(&stuck, Some(dir.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("b"), "20").unwrap();
    *stuck.1.borrow_mut() = true;
    assert_eq!(
        guard.keep_only(&[key("b")]),
        ["a of client: no such device"]
    );
    simulate_kill(guard);
    *stuck.1.borrow_mut() = false;
    assert_eq!(journal_paths(&dir).count(), 1, "it is the only word of `a`");
    let restored = recover_settings(&dir, &&stuck, "x", |_| false).unwrap();
    assert_eq!((restored.restored, restored.errors.len()), (1, 0));
    let now = |name: &str| table.0.borrow()[name].clone();
    assert_eq!([now("a"), now("b")], ["1", "20"]);
    assert_eq!(journal_paths(&dir).count(), 0);
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn a_setting_that_could_not_be_set_is_no_error_after_a_kill() {
    let (table, dir) = (memory_settings(), journal_dir("refused"));
    let mut guard = RollbackGuard::new(&table, Some(dir.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    assert!(guard.set(&key("fixed"), "1").is_err());
    simulate_kill(guard);
    let restored = recover_settings(&dir, &table, "x", |_| false).unwrap();
    assert_eq!(restored.errors, [""; 0]);
    assert_eq!(table.0.borrow()["a"], "1");
    assert_eq!(journal_paths(&dir).count(), 0, "nothing is left to be done");
    fs::remove_dir(&dir).unwrap();
}
