use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn names_are_kebab_case_and_differ() {
    let names: BTreeSet<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), CHECKS.len());
    for name in names {
        let kebab = |character: char| character.is_ascii_lowercase() || character == '-';
        assert!(name.chars().all(kebab), "{name}");
    }
}

#[test]
fn checks_are_fast_and_leave_the_machine_unchanged() {
    let namespaces = || {
        ["user", "net", "mnt"]
            .map(|kind| std::fs::read_link(format!("/proc/thread-self/ns/{kind}")).ok())
    };
    let affinity = || linerate_sys::cpu::list_usable().ok();
    let before = (namespaces(), affinity());
    let started_at = Instant::now();
    let report = run_checks();
    let elapsed = started_at.elapsed();
    assert_eq!((namespaces(), affinity()), before);
    // Other tests share the processors, so the limit of two seconds is tripled.
    assert!(elapsed < Duration::from_secs(6), "{elapsed:?}");
    assert_eq!(report.checks.len(), CHECKS.len());
    for check in &report.checks {
        assert!(!check.detail.is_empty(), "{check:?}");
        assert!(!check.detail.contains('\n'), "{check:?}");
        if check.support == Support::Ok {
            assert_eq!(check.enable, None, "{check:?}");
        }
    }
}

#[test]
fn an_empty_machine_passes_through_every_check() {
    let directory = tempfile::tempdir().unwrap();
    let inputs = DoctorInputs::from_files(crate::snapshot::SystemFiles::below(directory.path()));
    for (name, check) in CHECKS {
        assert!(!check(&inputs).detail.is_empty(), "{name}");
    }
}

#[test]
#[ignore = "prints the results of this machine"]
fn print_report() {
    let started_at = Instant::now();
    let report = run_checks();
    println!("{:#?}", report.host);
    for link in crate::netlink::list_links().unwrap() {
        println!("{:#?}", crate::snapshot::read_interface(&link.name));
    }
    for check in &report.checks {
        println!("{:8?} {:28} {}", check.support, check.name, check.detail);
        if let Some(enable) = &check.enable {
            println!("{:37} -> {enable}", "");
        }
    }
    println!("{:?}", started_at.elapsed());
}
