//! Errors of lab files and labs.

use super::common::without_user_namespaces;
use super::*;

/// Invalid lab files; the crate `lab` tests the details of each.
#[test]
fn lab_files() {
    let room = Room::new();
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
        std::fs::write(room.path().join(name), text).expect("a file");
        let words = format!("lab up {name}");
        println!("{words}");
        let plain = room.run(&words).expect(2);
        let said = in_one_line(&plain.stderr);
        assert!(
            said.contains(named) && said.contains("help"),
            "{name}: {said}"
        );
        let error = room.run(&format!("{words} --json")).expect(2).json();
        let error = error["error"].to_string();
        assert!(error.contains(named), "{name}: {error}");
    }
}

#[test]
fn labs_that_are_not_there() {
    let room = Room::new();
    for words in [
        "lab exec no-such-lab/client -- true",
        "lab down no-such-lab",
    ] {
        let ended = room.run(words).expect(1);
        assert!(ended.stderr.contains("no-such-lab"), "{ended:?}");
        assert!(ended.stderr.contains("help"), "{ended:?}");
    }
    let name = format!("t{}/x", std::process::id());
    let ended = room.run(&format!("lab up --hops 0 --name {name}"));
    assert!(matches!(ended.code(), 1 | 2), "{ended:?}");
    assert!(ended.stderr.contains(&name), "{ended:?}");
}

/// A lab needs a privilege or a user namespace, and the error names it.
#[test]
fn a_lab_where_user_namespaces_are_forbidden() {
    let Some(room) = Room::ordinary() else {
        skip!("cannot become an unprivileged user here");
    };
    let words = "lab up --hops 0";
    match (
        without_user_namespaces(&room, words),
        without_user_namespaces(&room, words),
    ) {
        (Ok(plain), Ok(json)) => {
            let want = told(
                4,
                "user namespaces",
                "lab",
                "sysctl -w user.max_user_namespaces",
            );
            tells(plain, json, &want);
        }
        (Err(why), _) | (_, Err(why)) => skip!("{why}"),
    }
}
