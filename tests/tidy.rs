//! Budgets of language and structure: how plainly the tree speaks, and how its modules import each
//! other.
//!
//! Each test measures the whole tree as text and names the places above the budget. A budget only
//! ever goes down. `docs/GLOSSARY.md` has the terms.

#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use source::{SourceFile, packages, repository, rust_files};

/// Share of doc comments of one crate that may open with an indefinite word, in percent.
const INDEFINITE_OPENERS_PERCENT: f64 = 6.0;

/// Personified words in 10,000 words of comments.
const PERSONIFIED_PER_10000: f64 = 5.0;

/// Type names with three definitions or more.
const REPEATED_TYPE_NAMES: usize = 25;

/// Words of a sentence in the documents that nine of ten sentences keep within.
const SENTENCE_WORDS: usize = 26;

/// Sentences of more than 35 words in all documents.
const LONG_SENTENCES: usize = 10;

/// Modules of one crate that import each other in a circle.
const CIRCLE_MODULES: usize = 4;

/// Share of the code in one crate, in percent.
const LARGEST_CRATE_PERCENT: f64 = 15.0;

/// The first places of a list, one a line.
fn places(list: &[String]) -> String {
    let shown: Vec<&str> = list.iter().take(40).map(String::as_str).collect();
    format!("{} places, the first:\n{}", list.len(), shown.join("\n"))
}

#[test]
fn doc_comments_open_with_the_thing_or_the_action() {
    let mut all: BTreeMap<String, usize> = BTreeMap::new();
    let mut indefinite: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files().iter().filter(|file| !file.is_test()) {
        for (line, text) in file.doc_openings() {
            *all.entry(file.package()).or_default() += 1;
            if words::is_indefinite(&text) {
                let place = format!("{}:{line}: {text}", file.path);
                indefinite.entry(file.package()).or_default().push(place);
            }
        }
    }
    for (package, list) in &indefinite {
        let share = 100.0 * list.len() as f64 / all[package] as f64;
        assert!(
            share <= INDEFINITE_OPENERS_PERCENT,
            "{package}: {share:.1} % of {} doc comments open with What, Whether, Its, …: {}",
            all[package],
            places(list)
        );
    }
}

#[test]
fn comments_do_not_personify() {
    let mut total = 0;
    let mut personified = Vec::new();
    for file in rust_files() {
        for comment in &file.comments {
            for word in words::of(&comment.text) {
                total += 1;
                if words::PERSONIFIED.contains(&word.as_str()) {
                    personified.push(format!("{}:{}: {word}", file.path, comment.line));
                }
            }
        }
    }
    let share = 1e4 * personified.len() as f64 / f64::from(total);
    assert!(
        share <= PERSONIFIED_PER_10000,
        "{share:.1} personified words in 10,000 words of comments: {}",
        places(&personified)
    );
}

#[test]
fn identifiers_have_no_denied_word() {
    let mut denied = Vec::new();
    for file in rust_files() {
        for (line, identifier) in file.identifiers() {
            if words::has_denied_part(identifier) {
                denied.push(format!("{}:{line}: {identifier}", file.path));
            }
        }
    }
    assert!(
        denied.is_empty(),
        "denied words in names: {}",
        places(&denied)
    );
}

#[test]
fn type_names_are_defined_once() {
    let mut definitions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files().iter().filter(|file| !file.is_test()) {
        for name in file.type_names() {
            definitions
                .entry(name)
                .or_default()
                .insert(file.path.clone());
        }
    }
    let repeated: Vec<String> = definitions
        .iter()
        .filter(|(_, files)| files.len() >= 3)
        .map(|(name, files)| format!("{name}: {} definitions", files.len()))
        .collect();
    assert!(
        repeated.len() <= REPEATED_TYPE_NAMES,
        "type names with three definitions or more: {}",
        places(&repeated)
    );
}

#[test]
fn sentences_in_documents_are_short() {
    let mut lengths = Vec::new();
    let mut long = Vec::new();
    for path in source::documents() {
        let text = fs::read_to_string(repository().join(&path)).expect("a document");
        for sentence in words::sentences(&text) {
            let length = words::in_sentence(&sentence);
            lengths.push(length);
            if length > 35 {
                long.push(format!("{path}: {length} words: {sentence}"));
            }
        }
    }
    lengths.sort_unstable();
    let nine_of_ten = lengths[lengths.len() * 9 / 10];
    assert!(
        nine_of_ten <= SENTENCE_WORDS && long.len() <= LONG_SENTENCES,
        "9 of 10 sentences have up to {nine_of_ten} words; more than 35 words: {}",
        places(&long)
    );
}

#[test]
fn modules_do_not_import_each_other_in_circles() {
    for name in source::packages() {
        let graph = imports::modules(&name);
        for circle in imports::circles(&graph) {
            assert!(
                circle.len() <= CIRCLE_MODULES,
                "{name}: {} modules import each other in a circle: {}",
                circle.len(),
                circle.join(" ")
            );
        }
    }
}

#[test]
fn no_crate_holds_most_of_the_code() {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for file in rust_files() {
        if file.path.starts_with("crates/") && file.path.contains("/src/") {
            *lines.entry(file.package()).or_default() += file.text.lines().count();
        }
    }
    let total: usize = lines.values().sum();
    for (name, count) in lines {
        let share = 100.0 * count as f64 / total as f64;
        assert!(
            share <= LARGEST_CRATE_PERCENT,
            "{name} holds {share:.1} % of the code of all crates"
        );
    }
}

/// rustdoc reads a whole crate to find no test in it: crates without any say `doctest = false`.
#[test]
fn doc_tests_are_off_only_where_none_is() {
    for package in packages().iter().filter(|name| *name != "cli") {
        let of_package = format!("crates/{package}/src/");
        // Fences come in pairs, and the second one has no language.
        let has_tests = (rust_files().iter())
            .filter(|file| file.path.starts_with(&of_package))
            .any(|file| {
                let lines = file
                    .comments
                    .iter()
                    .map(|it| it.text.trim_start_matches(['/', '!', ' ']));
                let mut fences = lines.filter(|line| line.starts_with("```")).step_by(2);
                fences.any(|fence| fence == "```")
            });
        let manifest =
            fs::read_to_string(repository().join(format!("crates/{package}/Cargo.toml")))
                .expect("a manifest");
        assert_eq!(
            manifest.contains("doctest = false"),
            !has_tests,
            "{package}"
        );
    }
}

#[test]
fn terms_of_the_glossary_are_names_in_the_code() {
    let glossary =
        fs::read_to_string(repository().join("docs/GLOSSARY.md")).expect("docs/GLOSSARY.md");
    let identifiers: BTreeSet<String> = rust_files()
        .iter()
        .flat_map(|file| {
            file.identifiers()
                .map(|(_, name)| name.to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    let mut missing = Vec::new();
    let mut terms = BTreeSet::new();
    for row in words::table_rows(&glossary) {
        assert!(
            terms.insert(row[0].clone()),
            "{} stands twice in the glossary",
            row[0]
        );
        for name in words::code_names(row.last().expect("a last column")) {
            if !name.split("::").all(|part| identifiers.contains(part)) {
                missing.push(format!("{}: {name}", row[0]));
            }
        }
    }
    assert!(terms.len() > 100, "the glossary has {} terms", terms.len());
    assert!(
        missing.is_empty(),
        "names of the glossary that no code has: {}",
        places(&missing)
    );
}

#[test]
fn places_above_a_budget_are_found() {
    let file = SourceFile::new(
        "crates/x/src/a.rs",
        "/// Whether it is.\nstruct House; // nobody \"knows\"\nlet text = \"the hall // lobby\";\n",
    );
    assert_eq!(file.doc_openings(), [(1, "Whether it is.".to_owned())]);
    assert!(words::is_indefinite("Whether it is."));
    assert!(!words::is_indefinite("Itself"));
    assert_eq!(file.comments.len(), 2);
    let denied: Vec<&str> = file
        .identifiers()
        .map(|(_, name)| name)
        .filter(|name| words::has_denied_part(name))
        .collect();
    assert_eq!(denied, ["House"], "strings and comments are no identifiers");
    assert_eq!(file.type_names(), ["House"]);
    assert!(words::has_denied_part("ask_whom") && !words::has_denied_part("whomever"));
    assert_eq!(
        words::sentences("One short one.\n\n| a | table |\n\nA `code x` here. Is it so?").len(),
        3
    );
    let circle = BTreeMap::from([
        ("a".to_owned(), BTreeSet::from(["b".to_owned()])),
        (
            "b".to_owned(),
            BTreeSet::from(["a".to_owned(), "c".to_owned()]),
        ),
        ("c".to_owned(), BTreeSet::new()),
    ]);
    assert_eq!(imports::circles(&circle), [["a", "b"]]);
}
