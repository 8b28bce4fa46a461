//! Golden files of all help pages. After an intended change:
//! `INSTA_UPDATE=always cargo test -p linerate --test cli help`.

use crate::common::TestDir;
use insta::assert_snapshot;

/// Help pages: name of the golden file, and the arguments that print the page.
const PAGES: &[(&str, &str)] = &[
    ("welcome", ""),
    ("help", "--help"),
    ("help_demo", "demo --help"),
    ("help_server", "server --help"),
    ("help_throughput", "throughput --help"),
    ("help_latency", "latency --help"),
    ("help_ttcp", "ttcp --help"),
    ("help_target_code", "target-code --help"),
    ("help_stack", "stack --help"),
    ("help_forward", "forward --help"),
    ("help_generate", "generate --help"),
    ("help_capacity", "capacity --help"),
    ("help_compare", "compare --help"),
    ("help_sweep", "sweep --help"),
    ("help_tune", "tune --help"),
    ("help_explain", "explain --help"),
    ("help_lab", "lab --help"),
    ("help_lab_up", "lab up --help"),
    ("help_lab_exec", "lab exec --help"),
    ("help_lab_list", "lab list --help"),
    ("help_lab_down", "lab down --help"),
    ("help_run", "run --help"),
    ("help_runs", "runs --help"),
    ("help_runs_list", "runs list --help"),
    ("help_runs_show", "runs show --help"),
    ("help_runs_restore", "runs restore --help"),
    ("help_runs_rm", "runs rm --help"),
    ("help_runs_tag", "runs tag --help"),
    ("help_runs_note", "runs note --help"),
    ("help_runs_trend", "runs trend --help"),
    ("help_runs_export", "runs export --help"),
    ("help_runs_import", "runs import --help"),
    ("help_report", "report --help"),
    ("help_doctor", "doctor --help"),
    ("help_completions", "completions --help"),
    ("help_man", "man --help"),
];

#[test]
fn pages() {
    let dir = TestDir::new();
    for (name, args) in PAGES {
        let page = dir.run(args).expect(0);
        assert_eq!(page.stderr, "", "{args}");
        for line in page.stdout.lines() {
            assert!(line.chars().count() <= 100, "too wide: {line}");
        }
        assert_snapshot!(*name, page.stdout);
    }
}

/// Detects a command that was added without a golden page, or without examples.
#[test]
fn every_command_has_a_page_with_examples() {
    let dir = TestDir::new();
    let mut waiting = vec![String::new()];
    while let Some(args) = waiting.pop() {
        let help_args = format!("{args} --help");
        let help_args = help_args.trim();
        let page = dir.run(help_args).expect(0).stdout;
        assert!(
            PAGES.iter().any(|(_, words)| *words == help_args),
            "`{help_args}` has no golden file"
        );
        let commands = page
            .lines()
            .skip_while(|line| *line != "Commands:")
            .skip(1)
            .take_while(|line| line.starts_with("  "))
            .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
            .filter(|command| *command != "help");
        let subcommands: Vec<_> = commands.map(|name| format!("{args} {name}")).collect();
        assert!(
            page.contains("Examples") || matches!(help_args, "lab list --help" | "lab down --help"),
            "`{help_args}` shows no example"
        );
        waiting.extend(subcommands);
    }
}

#[test]
fn short_help_and_version() {
    let dir = TestDir::new();
    let long = dir.run("--help").expect(0).stdout;
    assert_eq!(dir.run("-h").expect(0).stdout, long);
    let version = format!("linerate {}\n", env!("CARGO_PKG_VERSION"));
    for args in ["-V", "--version"] {
        assert_eq!(dir.run(args).expect(0).stdout, version, "{args}");
    }
}

#[test]
fn completions() {
    let dir = TestDir::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = dir.run(&format!("completions {shell}")).expect(0).stdout;
        assert!(script.contains("throughput"), "{shell}: {script}");
        // The generator for fish completes no arguments.
        assert!(
            shell == "fish" || script.contains("udp-hops"),
            "{shell}: {script}"
        );
    }
}
