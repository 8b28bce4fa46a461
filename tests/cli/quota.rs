//! Runs in a cgroup with a CPU quota.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::{TestDir, skip};

/// A cgroup with 30 % of a CPU, removed at the end.
struct Cgroup(PathBuf);

impl Cgroup {
    fn with_quota() -> Result<Self, std::io::Error> {
        let name = format!("linerate-test-{}", std::process::id());
        let v1 = PathBuf::from("/sys/fs/cgroup/cpu");
        let (parent, settings) = match v1.is_dir() {
            true => (
                v1,
                [
                    ("cpu.cfs_period_us", "100000"),
                    ("cpu.cfs_quota_us", "30000"),
                ]
                .as_slice(),
            ),
            false => (
                PathBuf::from("/sys/fs/cgroup"),
                [("cpu.max", "30000 100000")].as_slice(),
            ),
        };
        let cgroup = Self(parent.join(name));
        std::fs::create_dir(&cgroup.0)?;
        for (file, value) in settings {
            std::fs::write(cgroup.0.join(file), value)?;
        }
        Ok(cgroup)
    }

    /// Returns a command that enters the cgroup first.
    fn linerate(&self, dir: &TestDir, args: &str) -> Command {
        let script = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", self.0.display());
        let binary = dir.binary().display().to_string();
        let fixed = ["-c".to_owned(), script, "sh".to_owned(), binary];
        let args = args.split_whitespace().map(str::to_owned);
        dir.command("sh", fixed.into_iter().chain(args))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_quota_is_the_cause_and_is_not_spun_away() {
    let dir = TestDir::new();
    let cgroup = match Cgroup::with_quota() {
        Ok(cgroup) => cgroup,
        Err(error) => skip!("no cgroup with a quota here: {error}"),
    };
    let server = dir.server("-q --no-store");
    for (args, note) in [
        (
            "forward --dev ring:0 --tx-first 4 -t 1 --json",
            "core-disturbed",
        ),
        (
            "latency 127.0.0.1 -u --wait spin -t 1 -p PORT --json",
            "crowded-cores",
        ),
    ] {
        let args = args.replace("PORT", &server.port.to_string());
        let output = cgroup.linerate(&dir, &args).output().unwrap();
        let record: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{args}: {error}: {output:?}"));
        let has = |list: &str, [key, value]: [&str; 2], [part, text]: [&str; 2]| {
            let items = record[list].as_array().map_or(&[][..], Vec::as_slice);
            items.iter().any(|item| {
                item[key] == value && item[part].as_str().is_some_and(|it| it.contains(text))
            })
        };
        let name = cgroup.0.file_name().and_then(|name| name.to_str()).unwrap();
        assert!(
            has("findings", ["cause", "cpu-quota"], ["command", name]),
            "{record:#}"
        );
        assert!(
            has(
                "validity",
                ["doubt", note],
                ["why", "the CPU quota was used up"]
            ),
            "{record:#}"
        );
    }
    // A receiver would spin otherwise.
    let args = format!(
        "throughput 127.0.0.1 -R -t 1 -p {} -C reno --json",
        server.port
    );
    let output = cgroup.linerate(&dir, &args).output().unwrap();
    let record: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{args}: {error}: {output:?}"));
    assert_eq!(record["plan"]["wait"]["client"], "block", "{record:#}");
    server.stop().expect(0);
}
