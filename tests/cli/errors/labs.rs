//! Errors of lab files and labs.

use super::*;
use crate::common::without_user_namespaces;

/// Invalid lab files; the crate `lab` tests the details of each.
#[test]
fn lab_files() {
    let dir = TestDir::new();
    for (name, text, named) in [
        ("no.toml", "what is this?", "line 1"),
        ("unknown.toml", "[hosts.a]\ncolour = \"red\"\n", "colour"),
        (
            "nobody.toml",
            "[hosts.a]\n[[links]]\nbetween = [\"a\", \"b\"]\n",
            "b",
        ),
        (
            "rate.toml",
            "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = [\"a\", \"b\"]\nrate = \"fast\"\n",
            "fast",
        ),
        (
            "mtu.toml",
            "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = [\"a\", \"b\"]\nmtu = 3\n",
            "mtu",
        ),
        ("empty.toml", "", "host"),
    ] {
        std::fs::write(dir.path().join(name), text).expect("a file");
        let args = format!("lab up {name}");
        println!("{args}");
        let plain = dir.run(&args).expect(2);
        let message = join_lines(&plain.stderr);
        assert!(
            message.contains(named) && message.contains("help"),
            "{name}: {message}"
        );
        let error = dir.run(&format!("{args} --json")).expect(2).json();
        let error = error["error"].to_string();
        assert!(error.contains(named), "{name}: {error}");
    }
}

#[test]
fn labs_that_are_not_there() {
    let dir = TestDir::new();
    for args in [
        "lab exec no-such-lab/client -- true",
        "lab down no-such-lab",
    ] {
        let ended = dir.run(args).expect(1);
        assert!(ended.stderr.contains("no-such-lab"), "{ended:?}");
        assert!(ended.stderr.contains("help"), "{ended:?}");
    }
    let name = format!("t{}/x", std::process::id());
    let ended = dir.run(&format!("lab up --hops 0 --name {name}"));
    assert!(matches!(ended.exit_code(), 1 | 2), "{ended:?}");
    assert!(ended.stderr.contains(&name), "{ended:?}");
}

/// A lab needs a privilege or a user namespace, and the error names it.
#[test]
fn a_lab_where_user_namespaces_are_forbidden() {
    let Some(dir) = TestDir::unprivileged() else {
        skip!("cannot become an unprivileged user here");
    };
    let args = "lab up --hops 0";
    match (
        without_user_namespaces(&dir, args),
        without_user_namespaces(&dir, args),
    ) {
        (Ok(plain), Ok(json)) => {
            let expected = expected_error(
                4,
                "user namespaces",
                "lab",
                "sysctl -w user.max_user_namespaces",
            );
            check_error(plain, json, &expected);
        }
        (Err(reason), _) | (_, Err(reason)) => skip!("{reason}"),
    }
}
