//! Rust files of the tree as text: comments, identifiers and type names.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A comment and the line it begins in.
pub struct Comment {
    pub text: String,
    pub line: usize,
}

/// A Rust file; `code` is its text with comments and strings taken out, line ends kept.
pub struct SourceFile {
    /// From the repository's root, with `/`.
    pub path: String,
    pub text: String,
    pub code: String,
    pub comments: Vec<Comment>,
}

impl SourceFile {
    pub fn new(path: &str, text: &str) -> Self {
        let (code, comments) = split(text);
        let (path, text) = (path.to_owned(), text.to_owned());
        Self {
            path,
            text,
            code,
            comments,
        }
    }

    /// The crate's folder name, or the first folder outside `crates/`.
    pub fn package(&self) -> String {
        let mut folders = self.path.split('/');
        match folders.next() {
            Some("crates") => folders.next().unwrap_or_default().to_owned(),
            other => other.unwrap_or_default().to_owned(),
        }
    }

    pub fn is_test(&self) -> bool {
        let folders = ["tests", "benches", "examples", "fuzz"];
        self.path.split('/').any(|part| folders.contains(&part))
            || self.path.ends_with("test.rs")
            || self.path.ends_with("tests.rs")
    }

    /// The first line of each `///` block.
    pub fn doc_openings(&self) -> Vec<(usize, String)> {
        let mut openings = Vec::new();
        let mut previous = None;
        for comment in &self.comments {
            if let Some(text) = comment.text.strip_prefix("///") {
                if previous != Some(comment.line) {
                    openings.push((comment.line, text.trim().to_owned()));
                }
                previous = Some(comment.line + 1);
            }
        }
        openings
    }

    /// Words of the code, with their lines; keywords are among them.
    pub fn identifiers(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().flat_map(|(number, line)| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
                .map(move |word| (number + 1, word))
        })
    }

    /// Names that follow `struct`, `enum`, `trait` and `type`.
    pub fn type_names(&self) -> Vec<String> {
        let words: Vec<&str> = self.identifiers().map(|(_, word)| word).collect();
        words
            .windows(2)
            .filter(|pair| ["struct", "enum", "trait", "type"].contains(&pair[0]))
            .filter(|pair| pair[1].starts_with(char::is_uppercase))
            .map(|pair| pair[1].to_owned())
            .collect()
    }
}

/// Length of the raw string that begins at the start of `text`, if one does.
fn raw_string(text: &str) -> Option<usize> {
    let start = text.find('r').filter(|at| *at <= 1)?;
    let hashes = text[start + 1..]
        .bytes()
        .take_while(|byte| *byte == b'#')
        .count();
    let opening = start + 1 + hashes;
    text[..start]
        .bytes()
        .all(|byte| matches!(byte, b'b' | b'c'))
        .then_some(())?;
    text[opening..].starts_with('"').then_some(())?;
    let closing = format!("\"{}", "#".repeat(hashes));
    let end = text[opening + 1..].find(&closing)?;
    Some(opening + 1 + end + closing.len())
}

/// Length of the string in quotes at the start of `text`.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the character literal at the start of `text`; none for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut rest = text.char_indices().skip(1);
    let (_, first) = rest.next()?;
    if first == '\\' {
        rest.next()?;
    }
    let (at, _) = if first == '\\' {
        rest.find(|(_, c)| *c == '\'')?
    } else {
        rest.next()?
    };
    text[at..].starts_with('\'').then_some(at + 1)
}

/// Code without comments and strings, and the comments.
fn split(text: &str) -> (String, Vec<Comment>) {
    let (mut code, mut comments) = (String::with_capacity(text.len()), Vec::new());
    let (mut at, mut line, mut in_word) = (0, 1, false);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let comment = if rest.starts_with("//") {
            Some(rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            Some(rest.find("*/").map_or(rest.len(), |end| end + 2))
        } else {
            None
        };
        let literal = match c {
            'r' | 'b' | 'c' if !in_word => raw_string(rest),
            '"' => Some(string(rest)),
            '\'' => character(rest),
            _ => None,
        };
        let skipped = comment.or(literal).unwrap_or(0);
        let newlines = rest[..skipped].matches('\n').count();
        if comment.is_some() {
            comments.push(Comment {
                text: rest[..skipped].to_owned(),
                line,
            });
        }
        if skipped == 0 {
            code.push(c);
            line += usize::from(c == '\n');
            at += c.len_utf8();
        } else {
            code.push_str(&"\n".repeat(newlines));
            code.push(' ');
            line += newlines;
            at += skipped;
        }
        in_word = skipped == 0 && (c.is_alphanumeric() || c == '_');
    }
    (code, comments)
}

/// Root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Paths below the root that end with one of `endings`, sorted.
fn paths(endings: &[&str]) -> Vec<String> {
    let root = repository();
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                if !["target", ".git", "snapshots", "fixtures"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let below = path.strip_prefix(&root).expect("below the root");
                found.push(below.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// All Rust files of the tree, read once.
pub fn rust_files() -> &'static [SourceFile] {
    static FILES: LazyLock<Vec<SourceFile>> = LazyLock::new(|| {
        let read = |path: String| {
            let text = fs::read_to_string(repository().join(&path)).expect("a Rust file");
            SourceFile::new(&path, &text)
        };
        paths(&[".rs"]).into_iter().map(read).collect()
    });
    &FILES
}

/// Documents whose sentences are counted; tables of figures and of changes are not.
pub fn documents() -> Vec<String> {
    let mut documents = paths(&[".md"]);
    documents.retain(|path| !path.ends_with("BENCHMARKS.md") && !path.ends_with("CHANGELOG.md"));
    documents
}

/// Folder names below `crates/`.
pub fn packages() -> Vec<String> {
    let entries = fs::read_dir(repository().join("crates")).expect("crates/");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}
