//! The runner with a test program that is a script.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Acts as a test program of five tests.
const PROGRAM: &str = r#"#!/bin/sh
case "$*" in
--list*) printf '%s: test\n' good::one good::two bad elsewhere late ;;
*good::*) printf '\ntest result: ok. 1 passed;\n' ;;
*elsewhere*) printf 'skipped: no such device\n\ntest result: ok. 1 passed;\n' ;;
*) echo 'left is not right'; exit 101 ;;
esac
"#;

const GROUPS: &str = r#"
[groups]
"x/it::good" = "waiting"
"x/it::good::two" = "exclusive"
[nightly]
"x/it::late" = "takes an hour"
"#;

/// Runs the runner in `dir` with these variables.
fn run(dir: &Path, groups: &str, variables: &[(&str, &str)]) -> (Output, String) {
    let package = dir.join("x");
    let program = package.join("it");
    fs::create_dir_all(&package).unwrap();
    fs::write(&program, PROGRAM).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let message = format!(
        r#"{{"executable":"{}","manifest_path":"{}/Cargo.toml","profile":{{"test":true}},"target":{{"kind":["test"],"name":"it"}}}}"#,
        program.display(),
        package.display()
    );
    fs::write(dir.join("messages"), message).unwrap();
    fs::write(dir.join("groups"), groups).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_linerate-test-runner"))
        .args(["messages", "groups", "logs"])
        .current_dir(dir)
        .env_remove("ONLY")
        .env_remove("NIGHTLY")
        .env_remove("BACKGROUND")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn a_failure_fails_the_run_and_skips_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (output, text) = run(dir.path(), GROUPS, &[]);
    assert!(!output.status.success());
    for part in [
        "==> FAILED x/it::bad",
        "left is not right",
        "x/it::elsewhere: no such device",
        "x/it::late: make nightly: takes an hour",
        "s (2 tests), exclusive",
        "s (1 tests)",
        "tests: 2 passed, 1 failed, 2 skipped",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn only_selects_by_group_and_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (only, summary) in [
        ("exclusive", "tests: 1 passed, 0 failed, 0 skipped"),
        ("good,elsewhere", "tests: 2 passed, 0 failed, 1 skipped"),
    ] {
        let (output, text) = run(dir.path(), GROUPS, &[("ONLY", only)]);
        assert!(output.status.success() && text.contains(summary), "{text}");
    }
    assert!(
        !run(dir.path(), GROUPS, &[("ONLY", "nothing")])
            .0
            .status
            .success()
    );
}

#[test]
fn nightly_tests_and_a_background_command_can_fail_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let (output, text) = run(dir.path(), GROUPS, &[("NIGHTLY", "1")]);
    assert!(
        !output.status.success() && text.contains("0 passed, 1 failed"),
        "{text}"
    );
    let variables = [("ONLY", "good"), ("BACKGROUND", "echo warned; exit 1")];
    let (output, text) = run(dir.path(), GROUPS, &variables);
    assert!(
        !output.status.success() && text.contains("warned"),
        "{text}"
    );
}

#[test]
fn a_name_of_the_groups_that_no_test_has_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let groups = "[groups]\n\"x/it::gone\" = \"pure\"\n";
    let (output, _) = run(dir.path(), groups, &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("x/it::gone"));
}
