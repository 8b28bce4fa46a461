//! Helpers of the tests with real labs.

use std::path::PathBuf;
use std::process::Command;

use linerate_lab::privileged;

/// Returns the path of the `labctl` example; `None` (with the reason printed) when it is not built.
pub fn labctl() -> Option<PathBuf> {
    let test_program = std::env::current_exe().expect("a test has a path");
    let path = test_program.parent()?.parent()?.join("examples/labctl");
    if path.exists() {
        Some(path)
    } else {
        println!(
            "skipped: {} is not built: run `cargo test` without --test",
            path.display()
        );
        None
    }
}

/// Runs a test where labs can be built: here, or again in a user namespace. `name` is the test's.
pub fn with_privilege(name: &str, test: impl FnOnce()) {
    if privileged() {
        test();
        return;
    }
    let Some(labctl) = labctl() else { return };
    let test_program = std::env::current_exe().expect("a test has a path");
    let rootless = |command: &mut Command| command.output().expect("labctl runs");
    let probe = rootless(Command::new(&labctl).args(["rootless", "true"]));
    if !probe.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&probe.stderr));
        return;
    }
    let output = rootless(
        Command::new(&labctl)
            .arg("rootless")
            .arg(test_program)
            .args(["--exact", name, "--nocapture"]),
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    // A wrong name selects no test, and that is a success.
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{name}: {stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns whether any process is in a network namespace, given as `net:[NUMBER]`, or holds it
/// open.
pub fn namespace_is_held(namespace: &str) -> bool {
    let links = |dir: PathBuf| {
        std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|target| target.to_string_lossy() == namespace)
    };
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted");
    processes.flatten().any(|process| {
        let tasks = std::fs::read_dir(process.path().join("task"));
        links(process.path().join("fd"))
            || tasks
                .into_iter()
                .flatten()
                .flatten()
                .any(|task| links(task.path().join("ns")))
    })
}

/// Waits up to three seconds for a condition.
pub fn soon(condition: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..300 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{condition}: not within 3 s");
}
