//! Imports between the top-level modules of a crate, and the circles that they make.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::source::{SourceFile, repository, rust_files};

/// Modules, each with those that it imports.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// Code before the first module of unit tests.
fn outside_tests(file: &SourceFile) -> &str {
    let end = file
        .code
        .find("#[cfg(test)]\nmod tests {")
        .unwrap_or(file.code.len());
    &file.code[..end]
}

/// Names that follow `prefix` in paths; `{…}` lists are opened.
fn names_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    let first_word = |text: &'a str| {
        let end = text
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        &text[..end]
    };
    for (at, _) in code.match_indices(prefix) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.push(first_word(rest));
            continue;
        };
        // Only the first level of a list names modules of the crate.
        let (mut depth, mut begins) = (0, true);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                _ if begins && c.is_alphabetic() => {
                    names.push(first_word(&list[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// Imports between the top-level modules of `crates/NAME/src`, tests left out.
pub fn modules(name: &str) -> Graph {
    let folder = format!("crates/{name}/src/");
    let Ok(entries) = fs::read_dir(repository().join(&folder)) else {
        return Graph::new();
    };
    let mut graph: Graph = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .map(|file| file.trim_end_matches(".rs").to_owned())
        .filter(|module| module != "lib" && module != "main")
        .map(|module| (module, BTreeSet::new()))
        .collect();
    let all: BTreeSet<String> = graph.keys().cloned().collect();
    for file in rust_files() {
        let Some(below) = file.path.strip_prefix(&folder) else {
            continue;
        };
        if below.ends_with("tests.rs") || below.contains("/tests/") {
            continue;
        }
        let module = below
            .split('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".rs");
        let depth = below.matches('/').count() + usize::from(!below.ends_with("mod.rs"));
        let code = outside_tests(file);
        let to_root = "super::".repeat(depth);
        let imported = names_after(code, "crate::")
            .into_iter()
            .chain(names_after(code, &to_root));
        let imported: Vec<String> = imported.map(str::to_owned).collect();
        if let Some(edges) = graph.get_mut(module) {
            edges.extend(
                imported
                    .into_iter()
                    .filter(|to| to != module && all.contains(to)),
            );
        }
    }
    graph
}

/// Modules that can be reached from `start`.
fn reached(graph: &Graph, start: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start.to_owned()];
    while let Some(module) = open.pop() {
        for next in graph.get(&module).into_iter().flatten() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    reached
}

/// Groups of modules that import each other in a circle, each sorted.
pub fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<String>> = graph
        .keys()
        .map(|module| (module, reached(graph, module)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, from) in &reach {
        let circle: Vec<String> = from
            .iter()
            .filter(|other| reach.get(other).is_some_and(|back| back.contains(*module)))
            .cloned()
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}
