//! Test programs of a build, their tests, and the group of each test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

/// Set of tests that may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Computes, and depends on no time.
    Pure,
    /// Waits most of the time: for processes, timers and networks.
    Waiting,
    /// Measures rates or times.
    Exclusive,
}

/// One test function.
pub struct Test {
    /// `CRATE/PROGRAM::MODULE::FUNCTION`.
    pub id: String,
    /// Name within its program.
    pub name: String,
    pub executable: PathBuf,
    /// Directory of the package: where cargo runs its tests.
    pub package_dir: PathBuf,
    pub group: Group,
    /// Of the tests with the same lock one runs at a time.
    pub lock: Option<String>,
    /// Reason why only `make nightly` runs the test.
    pub nightly: Option<String>,
}

/// The file of groups. Keys are beginnings of identifiers, of which the longest decides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: BTreeMap<String, Group>,
    #[serde(default)]
    locks: BTreeMap<String, String>,
    #[serde(default)]
    nightly: BTreeMap<String, String>,
}

/// Returns the value of the longest key that `id` begins with.
fn longest<'a, T>(map: &'a BTreeMap<String, T>, id: &str) -> Option<&'a T> {
    map.iter()
        .filter(|(key, _)| id.starts_with(*key))
        .max_by_key(|(key, _)| key.len())
        .map(|(_, value)| value)
}

/// Lists all tests of the programs that cargo's messages name.
pub fn list(messages: &str, rules: &str) -> Result<Vec<Test>, String> {
    let rules: Rules = toml::from_str(rules).map_err(|error| error.to_string())?;
    let mut tests = Vec::new();
    for message in messages.lines() {
        let message: Value = serde_json::from_str(message).map_err(|error| error.to_string())?;
        let (Some(executable), Some(true)) = (
            message["executable"].as_str(),
            message["profile"]["test"].as_bool(),
        ) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let package_dir = manifest.parent().unwrap_or(Path::new(""));
        let package = package_dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let program = match message["target"]["kind"][0].as_str() {
            Some("lib") => "lib",
            _ => message["target"]["name"].as_str().unwrap_or_default(),
        };
        for name in names(executable)? {
            let id = format!("{package}/{program}::{name}");
            tests.push(Test {
                group: *longest(&rules.groups, &id).unwrap_or(&Group::Pure),
                lock: longest(&rules.locks, &id).cloned(),
                nightly: longest(&rules.nightly, &id).cloned(),
                id,
                name,
                executable: executable.into(),
                package_dir: package_dir.to_owned(),
            });
        }
    }
    let mut keys = rules
        .groups
        .keys()
        .chain(rules.locks.keys())
        .chain(rules.nightly.keys());
    match keys.find(|key| !tests.iter().any(|test| test.id.starts_with(*key))) {
        Some(key) => Err(format!("no test begins with {key}, which the groups name")),
        None => Ok(tests),
    }
}

/// Names of the tests in a program.
fn names(executable: &str) -> Result<Vec<String>, String> {
    let output = Command::new(executable)
        .args(["--list", "--format", "terse"])
        .output()
        .map_err(|error| format!("{executable}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{executable} --list: {}", output.status));
    }
    let list = String::from_utf8_lossy(&output.stdout);
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}
