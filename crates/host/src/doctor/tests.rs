use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn names_are_kebab_case_and_differ() {
    let names: BTreeSet<&str> = PROBES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), PROBES.len());
    for name in names {
        let kebab = |character: char| character.is_ascii_lowercase() || character == '-';
        assert!(name.chars().all(kebab), "{name}");
    }
}

#[test]
fn this_machine_is_examined_in_time_and_left_alone() {
    let namespaces = || {
        ["user", "net", "mnt"]
            .map(|kind| std::fs::read_link(format!("/proc/thread-self/ns/{kind}")).ok())
    };
    let affinity = || crate::sys::cpu::usable().ok();
    let before = (namespaces(), affinity());
    let began = Instant::now();
    let examination = examine();
    let took = began.elapsed();
    assert_eq!((namespaces(), affinity()), before);
    // Other tests share the processors, so the limit of two seconds is tripled.
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_eq!(examination.checks.len(), PROBES.len());
    for check in &examination.checks {
        assert!(!check.found.is_empty(), "{check:?}");
        assert!(!check.found.contains('\n'), "{check:?}");
        if check.ability == Ability::Ok {
            assert_eq!(check.enable, None, "{check:?}");
        }
    }
}

#[test]
fn an_empty_machine_answers_every_check() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::on(crate::snapshot::Files::below(directory.path()));
    for (name, probe) in PROBES {
        assert!(!probe(&ground).found.is_empty(), "{name}");
    }
}

#[test]
#[ignore = "prints the results of this machine"]
fn print() {
    let began = Instant::now();
    let examination = examine();
    println!("{:#?}", examination.host);
    for link in crate::snapshot::netlink::links().unwrap() {
        println!("{:#?}", crate::snapshot::interface(&link.name));
    }
    for check in &examination.checks {
        println!("{:8?} {:28} {}", check.ability, check.name, check.found);
        if let Some(enable) = &check.enable {
            println!("{:37} -> {enable}", "");
        }
    }
    println!("{:?}", began.elapsed());
}
