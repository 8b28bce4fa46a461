//! Tests of the history in a temporary directory.

use linerate_record::expect::FigureUnit;
use linerate_record::plan::{Plan, RunKind, TransportProtocol};
use linerate_record::record::{Record, Summary};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};

use super::*;

fn run(id: &str, day: i8, goodput: f64) -> Record {
    let started = jiff::civil::date(2026, 11, day)
        .to_zoned(jiff::tz::TimeZone::UTC)
        .unwrap()
        .timestamp();
    let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "far.example");
    Record {
        summary: Summary {
            goodput_bps: Some(goodput),
            ..Summary::default()
        },
        ..Record::new(id.to_owned(), started, plan)
    }
}

fn history_dir(runs: &[Record]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = RecordStore::in_dir(dir.path().join("runs"));
    for run in runs {
        store.store(run).unwrap();
    }
    dir
}

fn ids(history: &History, filter: &HistoryFilter) -> Vec<String> {
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
fn copies_of_a_server_are_hidden_by_default() {
    use linerate_record::facts::Role;
    let mut all = ten();
    for number in [4, 9] {
        all[number].recorded_by = Some(Role::Server);
    }
    all[2].label = Some("Before".into());
    let dir = history_dir(&all);
    let history = History::open(dir.path()).unwrap();
    let filter = HistoryFilter::default();
    assert_eq!(ids(&history, &filter).len(), 8);
    assert_eq!(history.find("last").unwrap().id, "r09");
    assert_eq!(history.find("last~4").unwrap().id, "r04");
    // A copy is found by its id.
    assert_eq!(history.find("r10").unwrap().recorded_by, Some(Role::Server));
    let copies = HistoryFilter {
        copies: true,
        ..filter.clone()
    };
    assert_eq!(ids(&history, &copies).len(), 10);
    let named = HistoryFilter {
        label: Some("before".into()),
        ..filter
    };
    assert_eq!(ids(&history, &named), ["r03"]);
    assert!(!history.is_empty().unwrap());
}

#[test]
fn a_server_lists_clients_and_directions() {
    use linerate_record::plan::Direction;
    use linerate_record::record::ServedClient;
    let mut all: Vec<Record> = ten().into_iter().take(4).collect();
    for run in &mut all[1..] {
        run.plan.host = "10.77.0.2".to_owned();
        run.plan.peer_protocol = Some("iperf3".to_owned());
        run.served_client = Some(ServedClient {
            address: "10.77.0.1:40000".to_owned(),
            agent: "iperf3 3.12".to_owned(),
        });
    }
    all[2].plan.directions = vec![Direction::Receive];
    all[2].summary.goodput_bps = None;
    all[2].summary.offered_bps = Some(5e9);
    all[3].plan.directions.push(Direction::Receive);
    let dir = history_dir(&all);
    let history = History::open(dir.path()).unwrap();
    let entries = history.entries(&HistoryFilter::default()).unwrap();
    let text = crate::text::history::render_list(&entries, &crate::TextStyle::PLAIN);
    let rows: Vec<&str> = text.lines().skip(1).collect();
    for (row, expected) in rows.iter().zip([
        ["  far.example  ", "goodput 9.00 Gb/s"],
        ["  from 10.77.0.1 (iperf3)  ", "goodput 9.00 Gb/s"],
        ["  to 10.77.0.1 (iperf3)  ", "offered 5.00 Gb/s"],
        ["  bidirectional, 10.77.0.1 (iperf3)  ", "goodput 9.00 Gb/s"],
    ]) {
        assert!(expected.iter().all(|part| row.contains(part)), "{text}");
    }
    let of_client = HistoryFilter {
        hosts: vec!["10.77.0.1".to_owned()],
        ..HistoryFilter::default()
    };
    assert_eq!(ids(&history, &of_client), ["r02", "r03", "r04"]);
    assert!(entries_to_csv(&entries).contains(",iperf3,10.77.0.1,"));
}

/// Entries of layout 6 had other keys; those of layout 1 lacked the recording role.
#[test]
fn an_index_of_an_earlier_layout_is_read_again() {
    for layout in [1, 6] {
        let dir = history_dir(&ten());
        drop(History::open(dir.path()).unwrap());
        let index = rusqlite::Connection::open(dir.path().join("index.sqlite")).unwrap();
        index.pragma_update(None, "user_version", layout).unwrap();
        let changes = [
            ("far.example", "gone.example"),
            ("\"caveats\"", "\"doubts\""),
        ];
        for (from, to) in changes {
            let update = "UPDATE document SET entry = replace(entry, ?1, ?2)";
            assert_eq!(index.execute(update, [from, to]).unwrap(), 10);
        }
        drop(index);
        let history = History::open(dir.path()).unwrap();
        assert_eq!(ids(&history, &HistoryFilter::default()).len(), 10);
        let last = history.find("last").unwrap();
        assert_eq!(last.target, "far.example", "layout {layout}");
    }
}

#[test]
fn filters_select_matching_documents() {
    let dir = history_dir(&ten());
    let history = History::open(dir.path()).unwrap();
    history.tag("r03", &["odd".into()], &[]).unwrap();
    history
        .tag("r07", &["odd".into(), "x".into()], &[])
        .unwrap();
    let history = history.reopen().unwrap();
    let all = HistoryFilter::default();
    assert_eq!(ids(&history, &all).len(), 10);
    for (filter, expected) in [
        (
            HistoryFilter {
                tags: vec!["odd".into()],
                ..all.clone()
            },
            vec!["r03", "r07"],
        ),
        (
            HistoryFilter {
                limit: Some(2),
                ..all.clone()
            },
            vec!["r09", "r10"],
        ),
        (
            HistoryFilter {
                kinds: vec!["latency".into()],
                ..all.clone()
            },
            vec![],
        ),
        (
            HistoryFilter {
                hosts: vec!["elsewhere".into()],
                ..all.clone()
            },
            vec![],
        ),
        (
            HistoryFilter {
                hosts: vec!["far.example".into()],
                thresholds: vec!["goodput>9.004G".parse().unwrap()],
                ..all.clone()
            },
            vec!["r05"],
        ),
        (
            HistoryFilter {
                since: Some("2026-11-09T00:00:00Z".parse().unwrap()),
                ..all.clone()
            },
            vec!["r09", "r10"],
        ),
        (
            HistoryFilter {
                until: Some("2026-11-02T00:00:00Z".parse().unwrap()),
                ..all.clone()
            },
            vec!["r01"],
        ),
        (
            HistoryFilter {
                thresholds: vec!["p99<1s".parse().unwrap()],
                ..all.clone()
            },
            vec![],
        ),
    ] {
        assert_eq!(ids(&history, &filter), expected, "{filter:?}");
    }
    assert_eq!(history.find("last").unwrap().id, "r10");
    assert_eq!(history.find("last~3").unwrap().id, "r07");
    assert_eq!(history.find("04").unwrap().id, "r04");
    assert!(matches!(
        history.find("r"),
        Err(ReportError::NoUniqueMatch { matches: 10, .. })
    ));
    assert!(matches!(
        history.find(""),
        Err(ReportError::NoUniqueMatch { .. })
    ));
    assert!(matches!(
        history.find("last~99"),
        Err(ReportError::NoUniqueMatch { matches: 0, .. })
    ));
}

#[test]
fn changes_of_files_are_indexed() {
    let dir = history_dir(&ten());
    let history = History::open(dir.path()).unwrap();
    history.tag("r01", &["kept".into()], &[]).unwrap();
    history.note("r01", Timestamp::UNIX_EPOCH, "why").unwrap();
    // Files that appear, change and disappear while the index is closed.
    std::fs::remove_file(history.file("r02")).unwrap();
    let store = RecordStore::in_dir(dir.path().join("runs"));
    store.store(&run("r11", 11, 1e9)).unwrap();
    store.store(&run("r03", 3, 5e9)).unwrap();
    store
        .put_document("unrelated", "{\"schema\":\"other/1\"}")
        .unwrap();
    store.put_document("torn", "{\"sche").unwrap();
    store
        .put_document("misnamed", &run("r12", 12, 1e9).to_json())
        .unwrap();
    let history = history.reopen().unwrap();
    let listed = ids(&history, &HistoryFilter::default());
    assert_eq!(listed.len(), 10);
    assert!(!listed.contains(&"r02".to_owned()) && listed.contains(&"r11".to_owned()));
    assert_eq!(history.find("r03").unwrap().figures["goodput"], 5e9);
    assert_eq!(history.unreadable_files().unwrap().len(), 3);
    let first = history.find("r01").unwrap();
    assert!(first.tags.contains("kept") && first.notes[0].text == "why");
    // All data survives without the index.
    drop(history);
    for name in ["index.sqlite", "index.sqlite-wal", "index.sqlite-shm"] {
        let _ = std::fs::remove_file(dir.path().join(name));
    }
    let history = History::open(dir.path()).unwrap();
    assert_eq!(history.find("r01").unwrap(), first);
    history.remove("r01").unwrap();
    let history = history.reopen().unwrap();
    assert!(history.find("r01").is_err());
    assert!(!dir.path().join("marks/r01.json").exists());
}

#[test]
fn a_damaged_index_is_made_again() {
    let dir = history_dir(&ten());
    let path = dir.path().join("index.sqlite");
    for damage in [0usize, 1, 4096, 5000] {
        drop(History::open(dir.path()).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len().min(damage + 3000);
        let Some(part) = bytes.get_mut(damage..end) else {
            continue;
        };
        part.fill(0xa5);
        std::fs::write(&path, bytes).unwrap();
        let history = History::open(dir.path()).unwrap();
        assert_eq!(history.index_warning(), None, "damaged at {damage}");
        assert_eq!(
            ids(&history, &HistoryFilter::default()).len(),
            10,
            "damaged at {damage}"
        );
    }
    // A truncated file, another kind of file, an empty file.
    for text in ["SQLite format 3\0", "hello, this is no database at all", ""] {
        std::fs::write(&path, text).unwrap();
        let history = History::open(dir.path()).unwrap();
        assert_eq!(
            ids(&history, &HistoryFilter::default()).len(),
            10,
            "{text:?}"
        );
    }
}

#[test]
fn an_index_of_a_newer_version_is_left_alone() {
    let dir = history_dir(&ten());
    drop(History::open(dir.path()).unwrap());
    let path = dir.path().join("index.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let history = History::open(dir.path()).unwrap();
    assert!(
        history
            .index_warning()
            .is_some_and(|warning| warning.contains("newer"))
    );
    assert_eq!(ids(&history, &HistoryFilter::default()).len(), 10);
    drop(history);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let version: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    assert_eq!(version, 99);
}

#[test]
fn many_at_a_time_lose_nothing() {
    let dir = history_dir(&ten());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = dir.path();
            scope.spawn(move || {
                for round in 0..5 {
                    let history = History::open(path).unwrap();
                    let tag = format!("t{thread}-{round}");
                    history.tag("r05", &[tag], &[]).unwrap();
                    assert_eq!(ids(&history, &HistoryFilter::default()).len(), 10);
                }
            });
        }
    });
    let history = History::open(dir.path()).unwrap();
    assert_eq!(history.find("r05").unwrap().tags.len(), 40);
}

#[test]
fn trends_name_the_change() {
    let dir = history_dir(&ten());
    let history = History::open(dir.path()).unwrap();
    let entries = history.entries(&HistoryFilter::default()).unwrap();
    let trend = trend("goodput", FigureUnit::BitRate, &entries);
    assert_eq!(trend.points.len(), 10);
    assert_eq!(trend.plans, 1);
    let starts: Vec<_> = trend.levels.iter().map(|level| level.from).collect();
    assert_eq!(starts, [0, 5]);
    assert!(
        super::trend("p50", FigureUnit::Nanos, &entries)
            .points
            .is_empty()
    );
}

#[test]
fn exports_can_be_imported() {
    let dir = history_dir(&ten());
    let set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: "s1".to_owned(),
        kind: "repeat".to_owned(),
        started: Timestamp::UNIX_EPOCH,
        interrupted: false,
        result: SetResult::from_repeats(&ten()),
        runs: ten(),
    };
    RecordStore::in_dir(dir.path().join("runs"))
        .store_set(&set)
        .unwrap();
    let history = History::open(dir.path()).unwrap();
    history.tag("r04", &["=cmd".into()], &[]).unwrap();
    let history = history.reopen().unwrap();
    let entries = history.entries(&HistoryFilter::default()).unwrap();
    let without_members = HistoryFilter {
        skip_members: true,
        ..HistoryFilter::default()
    };
    assert_eq!(ids(&history, &without_members), ["s1"]);
    let file = dir.path().join("export.json");
    std::fs::write(&file, history.export_json(&entries).unwrap()).unwrap();

    let remote_dir = tempfile::tempdir().unwrap();
    let remote = History::open(remote_dir.path()).unwrap();
    // The set brings its runs, which are then already stored.
    let mut results = Vec::new();
    (remote.import(&file, false, &["lab".into()], &mut results)).unwrap();
    let count = |state: ImportResult| results.iter().filter(|(_, s)| *s == state).count();
    assert_eq!(
        (
            count(ImportResult::Imported),
            count(ImportResult::Unchanged)
        ),
        (11, 10)
    );
    let remote = remote.reopen().unwrap();
    let imported = remote.entries(&HistoryFilter::default()).unwrap();
    assert_eq!(imported.len(), entries.len());
    assert!(imported.iter().all(|entry| entry.tags.contains("lab")));
    assert!(remote.find("r04").unwrap().tags.contains("=cmd"));

    // Another document with the same id is rejected, unless it is to replace the stored one.
    let other_run = remote_dir.path().join("other.json");
    std::fs::write(&other_run, run("r01", 1, 1.0).to_json()).unwrap();
    for (replace, state) in [
        (false, ImportResult::Conflict),
        (true, ImportResult::Imported),
    ] {
        let mut results = Vec::new();
        (remote.import(&other_run, replace, &[], &mut results)).unwrap();
        assert_eq!(results, [("r01".to_owned(), state)]);
    }

    let text = entries_to_csv(&entries);
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
fn a_row_of_an_experiment_has_its_name() {
    let entry = HistoryEntry {
        kind: "set:experiment".to_owned(),
        experiment: Some("udp-hops".to_owned()),
        ..HistoryEntry::default()
    };
    let text = entries_to_csv(&[entry]);
    let cells = |line: usize| text.lines().nth(line).unwrap().split(',');
    let named = cells(0)
        .zip(cells(1))
        .find(|(name, _)| *name == "experiment");
    assert_eq!(named, Some(("experiment", "udp-hops")), "{text}");
}

/// An import can fail on a full disk or an invalid file after earlier documents were imported.
#[test]
fn documents_imported_before_a_failure_are_reported() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a.json"), run("r01", 1, 1e9).to_json()).unwrap();
    fs::write(
        from.path().join("b.json"),
        "{\"schema\": \"linerate/run/9\"}",
    )
    .unwrap();
    let dir = history_dir(&[]);
    let history = History::open(dir.path()).unwrap();
    let mut results = Vec::new();
    let failed = history.import(from.path(), false, &[], &mut results);
    assert!(
        matches!(failed, Err(ReportError::NotARecord { .. })),
        "{failed:?}"
    );
    assert_eq!(results, [("r01".to_owned(), ImportResult::Imported)]);
}

#[test]
fn waiting_for_a_damaged_index_in_use_has_a_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.sqlite");
    let held = index::lock_of(&path).unwrap();
    held.lock_shared().unwrap();
    let waiting = index::lock_of(&path).unwrap();
    assert!(!crate::store::lock_within(&waiting, std::time::Duration::ZERO).unwrap());
    drop(held);
    assert!(crate::store::lock_within(&waiting, std::time::Duration::ZERO).unwrap());
}

#[test]
fn an_imported_id_cannot_point_outside_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let history = History::open(dir.path()).unwrap();
    let file = dir.path().join("evil.json");
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
    let dir = history_dir(&ten());
    let history = History::open(dir.path()).unwrap();
    let entries = history.entries(&HistoryFilter::default()).unwrap();
    let bytes = entries_to_parquet(&entries).unwrap();
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
        let store = RecordStore::in_dir(disk.join("runs"));
        for run in ten() {
            store.store(&run).unwrap();
        }
        // Fills the rest of the disk.
        let mut filler = std::fs::File::create(disk.join("filler")).unwrap();
        while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
        let history = History::open(&disk).unwrap();
        assert!(history.index_warning().is_some());
        assert_eq!(ids(&history, &HistoryFilter::default()).len(), 10);
        let failed = history
            .tag("r01", &["x".into()], &[])
            .unwrap_err()
            .to_string();
        assert!(failed.contains("free some space"), "{failed}");
        drop(history);
        drop(filler);
        std::fs::remove_file(disk.join("filler")).unwrap();
        let history = History::open(&disk).unwrap();
        assert_eq!(history.index_warning(), None);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = "mount -t tmpfs -o size=4m none \"$0\" || exit 77; exec \"$@\"";
    let status = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", mounted])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "history::tests::on_a_full_disk_records_are_found_all_the_same",
        ])
        .env(INSIDE, dir.path())
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) if status.code() == Some(101) => panic!("failed on a full disk"),
        unexpected => {
            println!("skipped: no mount namespace for a small file system ({unexpected:?})")
        }
    }
}

/// An unreadable directory is not an empty one. Root can read any directory, so a file takes its
/// place.
#[test]
fn a_store_that_cannot_be_looked_at_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("runs"), "").unwrap();
    let opened = History::open(dir.path());
    assert!(matches!(opened, Err(ReportError::Read { .. })));
}
