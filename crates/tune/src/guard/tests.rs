use super::recovery::{journals, newest_first};
use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;

struct Table(RefCell<BTreeMap<String, String>>);

impl Machine for Table {
    fn read(&self, key: &Key) -> Result<String, String> {
        self.0
            .borrow()
            .get(&key.name)
            .cloned()
            .ok_or_else(|| "not there".to_owned())
    }

    fn write(&self, key: &Key, value: &str, _: Option<u64>) -> Result<(), String> {
        if value == "bad" || key.name == "fixed" {
            return Err("invalid".to_owned());
        }
        self.0
            .borrow_mut()
            .insert(key.name.clone(), value.to_owned());
        Ok(())
    }

    fn find(&self, key: &Key, _: Option<&Device>) -> Place {
        match key.host == "of a lab that went down" {
            true => Place::Gone,
            false => Place::At(key.clone()),
        }
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
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("x"));
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

/// Settings that can no longer be written.
struct Stuck<'a>(&'a Table, RefCell<bool>);

impl Machine for Stuck<'_> {
    fn read(&self, key: &Key) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String> {
        match *self.1.borrow() && key.name == "a" {
            true => Err("no such device".to_owned()),
            false => self.0.write(key, value, limit_s),
        }
    }

    fn find(&self, key: &Key, device: Option<&Device>) -> Place {
        self.0.find(key, device)
    }
}

#[test]
fn what_cannot_go_back_stays_in_the_journal() {
    let (table, folder) = (table(), folder("stuck"));
    let stuck = Stuck(&table, RefCell::new(false));
    let mut guard = Guard::new(&stuck, Some(folder.clone()), owner("x"));
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

/// Settings of a machine without the interface that `a` belongs to.
struct Without<'a>(&'a Table);

impl Machine for Without<'_> {
    fn read(&self, key: &Key) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String> {
        match key.name == "a" {
            true => Err("no such device".to_owned()),
            false => self.0.write(key, value, limit_s),
        }
    }

    fn find(&self, key: &Key, _: Option<&Device>) -> Place {
        match key.name == "a" {
            true => Place::Gone,
            false => Place::At(key.clone()),
        }
    }
}

#[test]
fn what_is_gone_need_not_go_back() {
    let (table, folder) = (table(), folder("gone"));
    let mut guard = Guard::new(Without(&table), Some(folder.clone()), owner("x"));
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
    // The first journal by name is locked by a living guard.
    let mut living = Guard::new(&table, Some(folder.clone()), owner("x"));
    living.set(&key("b"), "20").unwrap();
    fs::write(folder.join("1-0.jsonl"), "").unwrap();
    fs::write(folder.join("2-0.jsonl"), "no journal\n").unwrap();
    let left = Old {
        key: key("a"),
        value: "1".to_owned(),
        device: None,
        within_s: None,
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
    let mut first = Guard::new(&table, Some(folder.clone()), owner("x"));
    first.set(&key("a"), "10").unwrap();
    let other = Owner {
        pid: 4712,
        ..owner("x")
    };
    let mut second = Guard::new(&table, Some(folder.clone()), other);
    let told = second.set(&key("a"), "20").unwrap_err();
    assert!(told.contains("process 4711"), "{told}");
    second.set(&key("b"), "20").unwrap();
    assert_eq!(table.0.borrow()["a"], "10");
    // Another port of the same command is rejected too: the first restore would leave the other
    // one's value.
    let mut own = Guard::new(&table, Some(folder.clone()), owner("x"));
    let told = own.set(&key("a"), "20").unwrap_err();
    assert!(told.contains("another port of this command"), "{told}");
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

/// A run within a search that set the same knob: whichever process dies, the original value is
/// restored.
#[test]
fn what_a_command_within_another_one_changes_goes_back_before() {
    let (table, folder) = (table(), folder("within"));
    let began = |pid, started_ticks| Owner {
        pid,
        started_ticks,
        ..owner("x")
    };
    let (outer, inner) = (began(20, 100), began(10, 101));
    let mut first = Guard::new(&table, Some(folder.clone()), outer.clone());
    first.set(&key("a"), "10").unwrap();
    let within =
        || Guard::new(&table, Some(folder.clone()), inner.clone()).within(vec![outer.clone()]);
    let mut second = within();
    second.set(&key("a"), "20").unwrap();
    drop(second);
    assert_eq!(table.0.borrow()["a"], "10");
    let mut second = within();
    second.set(&key("a"), "30").unwrap();
    killed(second);
    killed(first);
    let order = newest_first(&folder);
    let name = |at: usize| order[at].file_name().unwrap().to_str().unwrap();
    assert!(
        name(0).starts_with("10-") && name(1).starts_with("20-"),
        "{order:?}"
    );
    let restored = restore_left(&folder, &table, "x", |_| false).unwrap();
    assert_eq!((restored.settings, restored.wrong.len()), (2, 0));
    assert_eq!(table.0.borrow()["a"], "1");
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn what_cannot_be_written_down_goes_back_while_its_process_lives() {
    let table = table();
    // A file is not a directory, even for root.
    for nowhere in [None, Some(PathBuf::from("/dev/null/journals"))] {
        let mut guard = Guard::new(&table, nowhere.clone(), owner("x"));
        assert!(guard.begin().is_err(), "{nowhere:?}");
        assert!(guard.set(&key("b"), "20").is_err(), "{nowhere:?}");
        assert!(guard.note_old(&key("a"), "1").is_err(), "{nowhere:?}");
        guard.keep_in_mind(&key("a"), "1");
        guard.keep_in_mind(&key("a"), "the first note holds");
        table.write(&key("a"), "10", None).unwrap();
        drop(guard);
        assert_eq!(table.0.borrow()["a"], "1", "{nowhere:?}");
        assert_eq!(table.0.borrow()["b"], "2", "{nowhere:?}");
    }
}

/// Settings of a machine on which the interface of `a` was renamed to `b`.
struct Renamed<'a>(&'a Table);

impl Machine for Renamed<'_> {
    fn read(&self, key: &Key) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String> {
        self.0.write(key, value, limit_s)
    }

    fn device(&self, _: &Key) -> Option<Device> {
        Some(Device {
            index: 5,
            address: Some("02:07".to_owned()),
            kind: None,
        })
    }

    fn find(&self, key: &Key, device: Option<&Device>) -> Place {
        match device.is_some_and(|device| *device == self.device(key).unwrap()) {
            true => Place::At(Key {
                name: "b".to_owned(),
                ..key.clone()
            }),
            false => Place::Unknown("several have its address".to_owned()),
        }
    }
}

#[test]
fn what_is_elsewhere_by_now_goes_back_there() {
    let (table, folder) = (table(), folder("renamed"));
    let mut guard = Guard::new(Renamed(&table), Some(folder.clone()), owner("x"));
    guard.note_old(&key("a"), "20").unwrap();
    assert_eq!(guard.restore(), [""; 0]);
    assert_eq!(table.0.borrow()["b"], "20");
    guard.note_old(&key("a"), "30").unwrap();
    killed(guard);
    let restored = restore_left(&folder, &Renamed(&table), "x", |_| false).unwrap();
    assert_eq!((restored.settings, restored.gone), (1, 0));
    assert_eq!(restored.moved, [(key("a"), key("b"))]);
    assert_eq!(table.0.borrow()["b"], "30");
    // An older version saved no interface: the setting is not guessed, and its journal is kept.
    let old = r#"{"key":{"host":"client","namespace":7,"kind":"sysctl","name":"a"},"value":"40"}"#;
    let head = serde_json::to_string(&owner("x")).unwrap();
    fs::write(folder.join("9-0.jsonl"), format!("{head}\n{old}\n")).unwrap();
    let restored = restore_left(&folder, &Renamed(&table), "x", |_| false).unwrap();
    assert_eq!(restored.wrong, ["a of client: several have its address"]);
    assert_eq!(restored.journals.len(), 1);
    fs::remove_dir_all(&folder).unwrap();
}

/// Settings that log the timeout of each write.
struct Patient<'a>(&'a Table, RefCell<Vec<Option<u64>>>);

impl Machine for Patient<'_> {
    fn read(&self, key: &Key) -> Result<String, String> {
        self.0.read(key)
    }

    fn write(&self, key: &Key, value: &str, limit_s: Option<u64>) -> Result<(), String> {
        self.1.borrow_mut().push(limit_s);
        self.0.write(key, value, limit_s)
    }
}

/// The timeout of a command also applies to its restore; it was always ten minutes before.
#[test]
fn what_takes_its_time_has_it_on_the_way_back_as_well() {
    let (table, folder) = (table(), folder("time"));
    let machine = Patient(&table, RefCell::default());
    let mut guard = Guard::new(&machine, Some(folder.clone()), owner("x"));
    let knob = Key::of_command("window");
    guard.note_within(&knob, "flash 1", Some(1_800)).unwrap();
    guard.note_old(&key("a"), "1").unwrap();
    assert_eq!(guard.restore(), [""; 0]);
    assert_eq!(machine.1.take(), [None, Some(1_800)]);
    guard.note_within(&knob, "flash 1", Some(1_800)).unwrap();
    killed(guard);
    let restored = restore_left(&folder, &&machine, "x", |_| false).unwrap();
    assert_eq!((restored.settings, restored.wrong.len()), (1, 0));
    assert_eq!(machine.1.take(), [Some(1_800)]);
    fs::remove_dir(&folder).unwrap();
}

/// Simulates a kill: the journal stays on disk, unlocked.
fn killed<M: Machine>(mut guard: Guard<M>) {
    drop(guard.journal.take());
    std::mem::forget(guard);
}

#[test]
fn what_a_killed_process_left_goes_back() {
    let (table, folder) = (table(), folder("kill"));
    let before = table.0.borrow().clone();
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("b"), "12").unwrap();
    // A killed process drops nothing.
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

/// In a lab process ids start again, and so did journal numbers: a second search found its file
/// name taken.
#[test]
fn a_journal_that_a_process_of_this_number_left_is_in_nobodys_way() {
    let (table, folder) = (table(), folder("number"));
    fs::create_dir_all(&folder).unwrap();
    let left: Vec<PathBuf> = (0..200)
        .map(|number| folder.join(format!("4711-{number}.jsonl")))
        .collect();
    left.iter().for_each(|path| fs::write(path, "").unwrap());
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("x"));
    guard.begin().unwrap();
    assert_eq!(journals(&folder).count(), 201);
    assert_eq!(guard.set(&key("a"), "10"), Ok(()));
    drop(guard);
    assert_eq!(table.0.borrow()["a"], "1");
    assert_eq!(journals(&folder).count(), 200, "its own alone is gone");
    fs::remove_dir_all(&folder).unwrap();
}

/// A process in a lab has another id outside of it, so only the lock shows that it is alive.
#[test]
fn what_somebody_holds_is_not_left() {
    let (table, folder) = (table(), folder("held"));
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    assert_eq!(count_left(&folder, &table, "x", |_| false), 0);
    killed(guard);
    assert_eq!(count_left(&folder, &table, "x", |_| false), 1);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_others_change_goes_back_by_the_first_note_even_after_a_boot() {
    let (table, folder) = (table(), folder("note"));
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("old"));
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
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("x"));
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
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("old"));
    guard.set(&key("a"), "10").unwrap();
    killed(guard);
    let restored = restore_left(&folder, &table, "new", |_| false).unwrap();
    assert_eq!(restored, Restored::default());
    assert_eq!(table.0.borrow()["a"], "10", "it is not ours any more");
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn what_is_kept_stays_and_all_else_goes_back() {
    let (table, folder) = (table(), folder("keep"));
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("b"), "20").unwrap();
    assert_eq!(
        guard.ways_back(&[key("a")]),
        ["sysctl -w a='1'  # client"],
        "what it was"
    );
    assert_eq!(guard.keep(&[key("a")]), [""; 0]);
    drop(guard);
    let now = |name: &str| table.0.borrow()[name].clone();
    assert_eq!([now("a"), now("b")], ["10", "2"]);
    assert_eq!(journals(&folder).count(), 0, "nothing is left to be done");
    fs::remove_dir(&folder).unwrap();
}

/// The journal that remains for failed settings must not contain the kept ones.
#[test]
fn what_is_kept_is_not_restored_with_what_could_not_go_back() {
    let (table, folder) = (table(), folder("kept"));
    let stuck = Stuck(&table, RefCell::new(false));
    let mut guard = Guard::new(&stuck, Some(folder.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    guard.set(&key("b"), "20").unwrap();
    *stuck.1.borrow_mut() = true;
    assert_eq!(guard.keep(&[key("b")]), ["a of client: no such device"]);
    killed(guard);
    *stuck.1.borrow_mut() = false;
    assert_eq!(journals(&folder).count(), 1, "it is the only word of `a`");
    let restored = restore_left(&folder, &&stuck, "x", |_| false).unwrap();
    assert_eq!((restored.settings, restored.wrong.len()), (1, 0));
    let now = |name: &str| table.0.borrow()[name].clone();
    assert_eq!([now("a"), now("b")], ["1", "20"]);
    assert_eq!(journals(&folder).count(), 0);
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn what_could_not_be_set_is_no_trouble_after_a_kill() {
    let (table, folder) = (table(), folder("refused"));
    let mut guard = Guard::new(&table, Some(folder.clone()), owner("x"));
    guard.set(&key("a"), "10").unwrap();
    assert!(guard.set(&key("fixed"), "1").is_err());
    killed(guard);
    let restored = restore_left(&folder, &table, "x", |_| false).unwrap();
    assert_eq!(restored.wrong, [""; 0]);
    assert_eq!(table.0.borrow()["a"], "1");
    assert_eq!(journals(&folder).count(), 0, "nothing is left to be done");
    fs::remove_dir(&folder).unwrap();
}
