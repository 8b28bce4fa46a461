//! Tests of the history in a temporary directory.

use super::*;
use linerate_metric::expect::Unit;
use linerate_metric::plan::{Kind, Plan, Protocol};
use linerate_metric::record::{Record, Summary};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};

fn run(id: &str, day: i8, goodput: f64) -> Record {
    let started = jiff::civil::date(2026, 11, day)
        .to_zoned(jiff::tz::TimeZone::UTC)
        .unwrap()
        .timestamp();
    let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "far.example");
    Record {
        summary: Summary {
            goodput_bps: Some(goodput),
            ..Summary::default()
        },
        ..Record::new(id.to_owned(), started, plan)
    }
}

fn folder(runs: &[Record]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::at(folder.path().join("runs"));
    for run in runs {
        store.store(run).unwrap();
    }
    folder
}

fn ids(history: &History, filter: &Filter) -> Vec<String> {
    let entries = history.entries(filter).unwrap();
    entries.into_iter().map(|entry| entry.id).collect()
}

fn ten() -> Vec<Record> {
    (1..=10)
        .map(|n| {
            let goodput = if n <= 5 { 9e9 } else { 7e9 };
            run(&format!("r{n:02}"), n, goodput + f64::from(n) * 1e6)
        })
        .collect()
}

#[test]
fn what_a_server_kept_is_out_of_the_way() {
    use linerate_metric::facts::Role;
    let mut all = ten();
    for number in [4, 9] {
        all[number].kept_by = Some(Role::Server);
    }
    all[2].label = Some("Before".into());
    let folder = folder(&all);
    let history = History::open(folder.path()).unwrap();
    let own = Filter::default();
    assert_eq!(ids(&history, &own).len(), 8);
    assert_eq!(history.find("last").unwrap().id, "r09");
    assert_eq!(history.find("last~4").unwrap().id, "r04");
    // A copy is found by its id.
    assert_eq!(history.find("r10").unwrap().kept_by, Some(Role::Server));
    let copies = Filter {
        copies: true,
        ..own.clone()
    };
    assert_eq!(ids(&history, &copies).len(), 10);
    let named = Filter {
        label: Some("before".into()),
        ..own
    };
    assert_eq!(ids(&history, &named), ["r03"]);
    assert!(!history.is_empty().unwrap());
}

#[test]
fn a_server_lists_whom_it_served_and_which_way() {
    use linerate_metric::plan::Direction;
    use linerate_metric::record::Served;
    let mut all: Vec<Record> = ten().into_iter().take(4).collect();
    for run in &mut all[1..] {
        run.plan.host = "10.77.0.2".to_owned();
        run.plan.dialect = Some("iperf3".to_owned());
        run.served = Some(Served {
            client: "10.77.0.1:40000".to_owned(),
            agent: "iperf3 3.12".to_owned(),
        });
    }
    all[2].plan.directions = vec![Direction::Receive];
    all[2].summary.goodput_bps = None;
    all[2].summary.offered_bps = Some(5e9);
    all[3].plan.directions.push(Direction::Receive);
    let folder = folder(&all);
    let history = History::open(folder.path()).unwrap();
    let entries = history.entries(&Filter::default()).unwrap();
    let text = crate::text::history::runs(&entries, &crate::Style::PLAIN);
    let rows: Vec<&str> = text.lines().skip(1).collect();
    for (row, want) in rows.iter().zip([
        ["  far.example  ", "goodput 9.00 Gb/s"],
        ["  from 10.77.0.1 (iperf3)  ", "goodput 9.00 Gb/s"],
        ["  to 10.77.0.1 (iperf3)  ", "offered 5.00 Gb/s"],
        ["  bidirectional, 10.77.0.1 (iperf3)  ", "goodput 9.00 Gb/s"],
    ]) {
        assert!(want.iter().all(|part| row.contains(part)), "{text}");
    }
    let of_client = Filter {
        hosts: vec!["10.77.0.1".to_owned()],
        ..Filter::default()
    };
    assert_eq!(ids(&history, &of_client), ["r02", "r03", "r04"]);
    assert!(csv(&entries).contains(",iperf3,10.77.0.1,"));
}

#[test]
fn an_index_of_the_first_layout_is_read_again() {
    let folder = folder(&ten());
    drop(History::open(folder.path()).unwrap());
    // State left by a version without the recording role.
    let index = rusqlite::Connection::open(folder.path().join("index.sqlite")).unwrap();
    index.pragma_update(None, "user_version", 1).unwrap();
    index
        .execute(
            "UPDATE document SET entry = replace(entry, 'far.example', 'gone.example')",
            [],
        )
        .unwrap();
    drop(index);
    let history = History::open(folder.path()).unwrap();
    assert_eq!(history.find("last").unwrap().target, "far.example");
}

#[test]
fn filters_find_what_they_say() {
    let folder = folder(&ten());
    let history = History::open(folder.path()).unwrap();
    history.tag("r03", &["odd".into()], &[]).unwrap();
    history
        .tag("r07", &["odd".into(), "x".into()], &[])
        .unwrap();
    let history = history.reopen().unwrap();
    let all = Filter::default();
    assert_eq!(ids(&history, &all).len(), 10);
    for (filter, want) in [
        (
            Filter {
                tags: vec!["odd".into()],
                ..all.clone()
            },
            vec!["r03", "r07"],
        ),
        (
            Filter {
                limit: Some(2),
                ..all.clone()
            },
            vec!["r09", "r10"],
        ),
        (
            Filter {
                kinds: vec!["latency".into()],
                ..all.clone()
            },
            vec![],
        ),
        (
            Filter {
                hosts: vec!["elsewhere".into()],
                ..all.clone()
            },
            vec![],
        ),
        (
            Filter {
                hosts: vec!["far.example".into()],
                thresholds: vec!["goodput>9.004G".parse().unwrap()],
                ..all.clone()
            },
            vec!["r05"],
        ),
        (
            Filter {
                since: Some("2026-11-09T00:00:00Z".parse().unwrap()),
                ..all.clone()
            },
            vec!["r09", "r10"],
        ),
        (
            Filter {
                until: Some("2026-11-02T00:00:00Z".parse().unwrap()),
                ..all.clone()
            },
            vec!["r01"],
        ),
        (
            Filter {
                thresholds: vec!["p99<1s".parse().unwrap()],
                ..all.clone()
            },
            vec![],
        ),
    ] {
        assert_eq!(ids(&history, &filter), want, "{filter:?}");
    }
    assert_eq!(history.find("last").unwrap().id, "r10");
    assert_eq!(history.find("last~3").unwrap().id, "r07");
    assert_eq!(history.find("04").unwrap().id, "r04");
    assert!(matches!(
        history.find("r"),
        Err(ReportError::Unknown { found: 10, .. })
    ));
    assert!(matches!(history.find(""), Err(ReportError::Unknown { .. })));
    assert!(matches!(
        history.find("last~99"),
        Err(ReportError::Unknown { found: 0, .. })
    ));
}

#[test]
fn files_are_the_truth() {
    let folder = folder(&ten());
    let history = History::open(folder.path()).unwrap();
    history.tag("r01", &["kept".into()], &[]).unwrap();
    history.note("r01", Timestamp::UNIX_EPOCH, "why").unwrap();
    // Files that appear, change and disappear while the index is closed.
    std::fs::remove_file(history.file("r02")).unwrap();
    let store = Store::at(folder.path().join("runs"));
    store.store(&run("r11", 11, 1e9)).unwrap();
    store.store(&run("r03", 3, 5e9)).unwrap();
    store.put("foreign", "{\"schema\":\"other/1\"}").unwrap();
    store.put("torn", "{\"sche").unwrap();
    store
        .put("misnamed", &run("r12", 12, 1e9).to_json())
        .unwrap();
    let history = history.reopen().unwrap();
    let found = ids(&history, &Filter::default());
    assert_eq!(found.len(), 10);
    assert!(!found.contains(&"r02".to_owned()) && found.contains(&"r11".to_owned()));
    assert_eq!(history.find("r03").unwrap().figures["goodput"], 5e9);
    assert_eq!(history.strange().unwrap().len(), 3);
    let first = history.find("r01").unwrap();
    assert!(first.tags.contains("kept") && first.notes[0].text == "why");
    // All data survives without the index.
    drop(history);
    for name in ["index.sqlite", "index.sqlite-wal", "index.sqlite-shm"] {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    let history = History::open(folder.path()).unwrap();
    assert_eq!(history.find("r01").unwrap(), first);
    history.remove("r01").unwrap();
    let history = history.reopen().unwrap();
    assert!(history.find("r01").is_err());
    assert!(!folder.path().join("marks/r01.json").exists());
}

#[test]
fn a_damaged_index_is_made_again() {
    let folder = folder(&ten());
    let path = folder.path().join("index.sqlite");
    for damage in [0usize, 1, 4096, 5000] {
        drop(History::open(folder.path()).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len().min(damage + 3000);
        let Some(part) = bytes.get_mut(damage..end) else {
            continue;
        };
        part.fill(0xa5);
        std::fs::write(&path, bytes).unwrap();
        let history = History::open(folder.path()).unwrap();
        assert_eq!(history.remark(), None, "damaged at {damage}");
        assert_eq!(
            ids(&history, &Filter::default()).len(),
            10,
            "damaged at {damage}"
        );
    }
    // A truncated file, another kind of file, an empty file.
    for text in ["SQLite format 3\0", "hello, this is no database at all", ""] {
        std::fs::write(&path, text).unwrap();
        let history = History::open(folder.path()).unwrap();
        assert_eq!(ids(&history, &Filter::default()).len(), 10, "{text:?}");
    }
}

#[test]
fn an_index_of_a_newer_version_is_left_alone() {
    let folder = folder(&ten());
    drop(History::open(folder.path()).unwrap());
    let path = folder.path().join("index.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let history = History::open(folder.path()).unwrap();
    assert!(
        history
            .remark()
            .is_some_and(|remark| remark.contains("newer"))
    );
    assert_eq!(ids(&history, &Filter::default()).len(), 10);
    drop(history);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let version: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    assert_eq!(version, 99);
}

#[test]
fn many_at_a_time_lose_nothing() {
    let folder = folder(&ten());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = folder.path();
            scope.spawn(move || {
                for turn in 0..5 {
                    let history = History::open(path).unwrap();
                    let tag = format!("t{thread}-{turn}");
                    history.tag("r05", &[tag], &[]).unwrap();
                    assert_eq!(ids(&history, &Filter::default()).len(), 10);
                }
            });
        }
    });
    let history = History::open(folder.path()).unwrap();
    assert_eq!(history.find("r05").unwrap().tags.len(), 40);
}

#[test]
fn trends_name_the_change() {
    let folder = folder(&ten());
    let history = History::open(folder.path()).unwrap();
    let entries = history.entries(&Filter::default()).unwrap();
    let trend = trend("goodput", Unit::BitRate, &entries);
    assert_eq!(trend.points.len(), 10);
    assert_eq!(trend.plans, 1);
    let starts: Vec<_> = trend.levels.iter().map(|level| level.from).collect();
    assert_eq!(starts, [0, 5]);
    assert!(super::trend("p50", Unit::Nanos, &entries).points.is_empty());
}

#[test]
fn what_is_exported_can_be_imported() {
    let folder = folder(&ten());
    let set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: "s1".to_owned(),
        kind: "repeat".to_owned(),
        started: Timestamp::UNIX_EPOCH,
        interrupted: false,
        result: SetResult::of_repeats(&ten()),
        runs: ten(),
    };
    Store::at(folder.path().join("runs"))
        .store_set(&set)
        .unwrap();
    let history = History::open(folder.path()).unwrap();
    history.tag("r04", &["=cmd".into()], &[]).unwrap();
    let history = history.reopen().unwrap();
    let entries = history.entries(&Filter::default()).unwrap();
    let whole = Filter {
        whole: true,
        ..Filter::default()
    };
    assert_eq!(ids(&history, &whole), ["s1"]);
    let file = folder.path().join("export.json");
    std::fs::write(&file, history.export_json(&entries).unwrap()).unwrap();

    let other = tempfile::tempdir().unwrap();
    let there = History::open(other.path()).unwrap();
    // The set brings its runs, which are then already stored.
    let mut arrived = Vec::new();
    (there.import(&file, false, &["lab".into()], &mut arrived)).unwrap();
    let taken = |state: Arrived| arrived.iter().filter(|(_, s)| *s == state).count();
    assert_eq!((taken(Arrived::Taken), taken(Arrived::Same)), (11, 10));
    let there = there.reopen().unwrap();
    let back = there.entries(&Filter::default()).unwrap();
    assert_eq!(back.len(), entries.len());
    assert!(back.iter().all(|entry| entry.tags.contains("lab")));
    assert!(there.find("r04").unwrap().tags.contains("=cmd"));

    // Another document with the same id is rejected, unless it is to replace the stored one.
    let other_run = other.path().join("other.json");
    std::fs::write(&other_run, run("r01", 1, 1.0).to_json()).unwrap();
    for (replace, state) in [(false, Arrived::Differs), (true, Arrived::Taken)] {
        let mut arrived = Vec::new();
        (there.import(&other_run, replace, &[], &mut arrived)).unwrap();
        assert_eq!(arrived, [("r01".to_owned(), state)]);
    }

    let text = csv(&entries);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 12);
    assert!(lines[0].starts_with("id,kind,started,label") && lines[0].contains("goodput_bps"));
    assert!(text.contains(",'=cmd,"), "{text}");
    let first = lines.iter().find(|line| line.starts_with("r01,"));
    assert!(
        first.is_some_and(|line| line.contains(",9001000000,")),
        "{text}"
    );
}

#[test]
fn a_row_of_an_experiment_says_which() {
    let entry = Entry {
        kind: "set:experiment".to_owned(),
        experiment: Some("udp-hops".to_owned()),
        ..Entry::default()
    };
    let text = csv(&[entry]);
    let cells = |line: usize| text.lines().nth(line).unwrap().split(',');
    let named = cells(0)
        .zip(cells(1))
        .find(|(name, _)| *name == "experiment");
    assert_eq!(named, Some(("experiment", "udp-hops")), "{text}");
}

/// An import can fail on a full disk or an invalid file after earlier documents were imported.
#[test]
fn what_was_taken_before_an_import_failed_is_known() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a.json"), run("r01", 1, 1e9).to_json()).unwrap();
    fs::write(
        from.path().join("b.json"),
        "{\"schema\": \"linerate/run/9\"}",
    )
    .unwrap();
    let folder = folder(&[]);
    let history = History::open(folder.path()).unwrap();
    let mut arrived = Vec::new();
    let failed = history.import(from.path(), false, &[], &mut arrived);
    assert!(
        matches!(failed, Err(ReportError::Foreign { .. })),
        "{failed:?}"
    );
    assert_eq!(arrived, [("r01".to_owned(), Arrived::Taken)]);
}

#[test]
fn a_damaged_index_that_somebody_uses_is_not_waited_for_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.sqlite");
    let used = index::lock_of(&path).unwrap();
    used.lock_shared().unwrap();
    let other = index::lock_of(&path).unwrap();
    assert!(!crate::store::locked_within(&other, std::time::Duration::ZERO).unwrap());
    drop(used);
    assert!(crate::store::locked_within(&other, std::time::Duration::ZERO).unwrap());
}

#[test]
fn an_id_of_an_import_cannot_lead_out_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let history = History::open(folder.path()).unwrap();
    let file = folder.path().join("evil.json");
    std::fs::write(&file, run("../evil", 1, 1.0).to_json()).unwrap();
    assert!(matches!(
        history.import(&file, false, &[], &mut Vec::new()),
        Err(ReportError::BadId { .. })
    ));
    assert!(history.tag("../evil", &["x".into()], &[]).is_err());
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_is_read_back() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    let folder = folder(&ten());
    let history = History::open(folder.path()).unwrap();
    let entries = history.entries(&Filter::default()).unwrap();
    let bytes = parquet(&entries).unwrap();
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let rows: Vec<_> = reader
        .get_row_iter(None)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(rows.len(), 10);
    let line = rows[0].to_string();
    assert!(
        line.contains("r01") && line.contains("goodput_bps: 9001000000"),
        "{line}"
    );
    assert!(line.contains("p50_ns: null"), "{line}");
}

/// Fills a small file system. The test runs itself again inside a mount namespace.
#[test]
fn on_a_full_disk_records_are_found_all_the_same() {
    const INSIDE: &str = "LINERATE_TEST_FULL_HISTORY";
    if let Some(disk) = std::env::var_os(INSIDE) {
        let disk = PathBuf::from(disk);
        let store = Store::at(disk.join("runs"));
        for run in ten() {
            store.store(&run).unwrap();
        }
        // Fills the rest of the disk.
        let mut filler = std::fs::File::create(disk.join("filler")).unwrap();
        while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
        let history = History::open(&disk).unwrap();
        assert!(history.remark().is_some());
        assert_eq!(ids(&history, &Filter::default()).len(), 10);
        let failed = history
            .tag("r01", &["x".into()], &[])
            .unwrap_err()
            .to_string();
        assert!(failed.contains("free some space"), "{failed}");
        drop(history);
        drop(filler);
        std::fs::remove_file(disk.join("filler")).unwrap();
        let history = History::open(&disk).unwrap();
        assert_eq!(history.remark(), None);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mounted = "mount -t tmpfs -o size=4m none \"$0\" || exit 77; exec \"$@\"";
    let status = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", mounted])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "history::tests::on_a_full_disk_records_are_found_all_the_same",
        ])
        .env(INSIDE, folder.path())
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) if status.code() == Some(101) => panic!("failed on a full disk"),
        other => println!("skipped: no mount namespace for a small file system ({other:?})"),
    }
}

/// An unreadable directory is not an empty one. Root can read any directory, so a file takes its
/// place.
#[test]
fn a_store_that_cannot_be_looked_at_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("runs"), "").unwrap();
    let opened = History::open(folder.path());
    assert!(matches!(opened, Err(ReportError::Read { .. })));
}
