//! docs/CAUSES.md is the rendering of the rules' references, and the references match the code.
//!
//! `LINERATE_UPDATE=1` writes the page. `tests/bank/references.rs` compares the references with the
//! findings of the bank.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use linerate_explain::causes_page::causes_page;
use linerate_explain::{CONSEQUENCES, RULES};
use linerate_record::ids::CauseId;

/// Largest number of words in a sentence of a reference.
const SENTENCE_WORDS: usize = 25;

/// Openers of sentences that name nothing.
const OPENERS: &[&str] = &[
    "What", "Whether", "Whose", "Which", "Who", "Where", "Nothing", "Nobody",
];

/// Texts with digits that are names and formulas, not thresholds.
const NUMBERS_IN_NAMES: &[&str] = &[
    "IPv4",
    "IPv6",
    "RFC 896",
    "IEEE 802.3az",
    "iproute2 6.3",
    "1 - (1 - p)^k",
    "1 / (1 - ",
    "1 - spread",
    "had it at 0",
    "half duplex",
    "Half duplex",
];

/// Numbers as words.
const NUMBER_WORDS: &[&str] = &[
    "half", "Half", "third", "quarter", "tenth", "twice", "Twice", "four", "five",
];

fn page_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/CAUSES.md")
}

/// Page, written first with `LINERATE_UPDATE=1`.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    if std::env::var_os("LINERATE_UPDATE").is_some() {
        fs::write(page_path(), causes_page()).expect("docs/CAUSES.md is writable");
    }
    fs::read_to_string(page_path()).expect("docs/CAUSES.md")
});

/// Returns the sections of the page: id and text.
fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = PAGE.split("\n## ").skip(1);
    sections.map(|section| section.split_once('\n').expect("a heading has a text"))
}

/// Returns the source of a rule up to its tests.
fn rule_source(id: CauseId) -> String {
    let path = format!(
        "{}/src/rules/{}.rs",
        env!("CARGO_MANIFEST_DIR"),
        id.as_str().replace('-', "_")
    );
    let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let end = source.find("#[cfg(test)]").unwrap_or(source.len());
    source[..end].to_owned()
}

/// Returns the body of the method `reference` of a rule, without the names of the evidence.
fn reference_source(id: CauseId) -> String {
    let source = rule_source(id);
    let start = source.find("fn reference(").expect("a reference");
    let length = source[start..].find("\n    }\n").expect("its end");
    let body = &source[start..start + length];
    let (before, rest) = body.split_once("evidence: &[").expect("evidence");
    let (_, after) = rest.split_once(']').expect("the end of the evidence");
    before.to_owned() + after
}

/// Returns the string literals of a source, with the lines of each joined.
fn string_literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find('"') {
        let mut literal = String::new();
        let mut letters = rest[start + 1..].char_indices();
        let mut end = rest.len();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    end = start + 1 + at + 1;
                    break;
                }
                '\\' => literal.extend(letters.next().map(|(_, escaped)| escaped)),
                letter => literal.push(letter),
            }
        }
        literals.push(literal.split_whitespace().collect::<Vec<_>>().join(" "));
        rest = &rest[end..];
    }
    literals
}

/// Returns a text without the parts between two delimiters.
fn without_parts(text: &str, open: char, close: char) -> String {
    let mut is_inside = false;
    let mut kept = String::new();
    for letter in text.chars() {
        match is_inside {
            true => is_inside = letter != close,
            false if letter == open => is_inside = true,
            false => kept.push(letter),
        }
    }
    kept
}

#[test]
fn the_page_is_the_rendering_of_the_references() {
    let rendered = causes_page();
    let differs = rendered.lines().zip(PAGE.lines()).find(|(a, b)| a != b);
    assert!(
        *PAGE == rendered,
        "docs/CAUSES.md differs from the rules: {differs:?}; LINERATE_UPDATE=1 writes it"
    );
}

#[test]
fn every_rule_has_its_section_in_order() {
    let headings: Vec<&str> = sections().map(|(id, _)| id).collect();
    let ids: Vec<CauseId> = RULES.iter().map(|rule| rule.id()).collect();
    assert_eq!(ids, CauseId::ALL);
    assert_eq!(
        headings,
        ids.iter().map(|id| id.as_str()).collect::<Vec<_>>()
    );
}

#[test]
fn sections_have_all_parts() {
    for (id, text) in sections() {
        for part in [
            "**Meaning**: ",
            "**Kind**: ",
            "**Shown when** (",
            "**Evidence**:",
            "**Cost**:",
            "**Remedy**:",
            "**Wrong when**:",
        ] {
            assert!(text.contains(part), "{id} lacks {part}");
        }
    }
    for rule in RULES {
        let reference = rule.reference();
        for detection in &reference.shown_when {
            assert!(!detection.all_of.is_empty(), "{}: {detection:?}", rule.id());
        }
        let names: BTreeSet<_> = reference.evidence.iter().collect();
        assert_eq!(names.len(), reference.evidence.len(), "{}", rule.id());
    }
}

#[test]
fn links_name_sections_and_files() {
    for &(effect, cause) in CONSEQUENCES {
        assert!(
            !CONSEQUENCES.contains(&(cause, effect)),
            "{effect} and {cause} follow from each other"
        );
    }
    for link in PAGE.split("](").skip(1) {
        let target = link.split(')').next().expect("a target");
        match target.strip_prefix('#') {
            Some(id) => assert!(id.parse::<CauseId>().is_ok(), "no section {target}"),
            None => {
                let file = target.split('#').next().expect("a file");
                let path = page_path().with_file_name("").join(file);
                assert!(path.exists(), "no file {target}");
            }
        }
    }
}

/// The causes in a section's "Follows from" item match the table, in order.
#[test]
fn follows_from_is_the_table() {
    for (id, text) in sections() {
        let text = text.replace("\n  ", " ");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("- **Follows from**: "));
        let documented = line.map_or_else(Vec::new, |line| {
            let line = line.strip_suffix('.').expect("a full stop");
            line.split(", ").map(str::to_owned).collect()
        });
        let links = CONSEQUENCES
            .iter()
            .filter(|(effect, _)| effect.as_str() == id);
        let links: Vec<String> = links
            .map(|(_, cause)| format!("[{cause}](#{cause})"))
            .collect();
        assert_eq!(documented, links, "{id}");
    }
}

#[test]
fn sentences_are_short() {
    let mut texts: Vec<String> = Vec::new();
    for line in PAGE.lines().filter(|line| !line.starts_with('|')) {
        let item = line.trim_start();
        let is_start = item.is_empty() || item.starts_with("- ") || item.starts_with('#');
        match texts.last_mut().filter(|_| !is_start) {
            Some(text) => *text += &format!(" {item}"),
            None => texts.push(item.to_owned()),
        }
    }
    for rule in RULES {
        texts.push(rule.reference().meaning.to_owned());
    }
    let mut faults = Vec::new();
    for text in texts {
        // Code and the address of a link are one word.
        let plain = without_parts(&text.replace("](", "<"), '<', ')');
        let plain: String = plain.split('`').step_by(2).collect::<Vec<_>>().join("x");
        for sentence in plain.split(". ") {
            let words = sentence.split_whitespace();
            let words = words.filter(|word| word.contains(char::is_alphanumeric));
            let words: Vec<&str> = words.collect();
            let is_list = sentence.starts_with("- **Follows from**");
            let has_opener = words.first().is_some_and(|first| OPENERS.contains(first));
            if has_opener || words.len() > SENTENCE_WORDS && !is_list {
                faults.push(format!("{} words: {sentence}", words.len()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A number in a condition comes from the constant that the rule compares with.
#[test]
fn no_threshold_is_a_second_literal() {
    let mut faults = Vec::new();
    for rule in RULES {
        for literal in string_literals(&reference_source(rule.id())) {
            let text = without_parts(&literal, '{', '}');
            let mut text = without_parts(&text, '`', '`');
            for name in NUMBERS_IN_NAMES {
                text = text.replace(name, "");
            }
            let has_word = NUMBER_WORDS.iter().any(|word| text.contains(word));
            if has_word || text.contains(|c: char| c.is_ascii_digit()) {
                faults.push(format!("{}: {literal}", rule.id()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Evidence with a literal name is in the reference of its rule.
#[test]
fn evidence_in_the_code_is_listed() {
    for rule in RULES {
        let source = rule_source(rule.id());
        let reference = rule.reference();
        for call in [".evidence(", ".evidence_if(", ".missing_evidence("] {
            for arguments in source.split(call).skip(1) {
                let Some(name) = arguments.trim_start().strip_prefix('"') else {
                    continue;
                };
                let name = name.split('"').next().expect("a name");
                assert!(
                    reference.evidence.iter().any(|(listed, _)| *listed == name),
                    "{} does not list {name}",
                    rule.id()
                );
            }
        }
    }
}
