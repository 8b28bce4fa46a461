//! Words that the tree does without, and the length of sentences.

/// Openers of a doc comment that name neither the thing nor the action.
const INDEFINITE: [&str; 22] = [
    "What", "Whether", "How", "Who", "Whom", "Whose", "Where", "When", "Which", "Why", "It", "One",
    "Those", "Each", "All", "Its", "That", "Nothing", "Nobody", "Somebody", "Whoever", "Of",
];

/// Words that make persons of programs.
pub const PERSONIFIED: [&str; 17] = [
    "nobody", "somebody", "anybody", "whoever", "whom", "told", "tells", "tell", "says", "said",
    "asks", "asked", "heard", "knows", "beside", "alike", "besides",
];

/// Parts that no identifier has: the words of an earlier private language.
const DENIED: [&str; 31] = [
    "house",
    "hall",
    "lobby",
    "porch",
    "knock",
    "stranger",
    "crumbs",
    "seat",
    "greeter",
    "desk",
    "patrol",
    "footing",
    "manner",
    "correspondence",
    "speech",
    "hire",
    "lookout",
    "breath",
    "nudge",
    "glance",
    "onward",
    "teller",
    "sight",
    "alike",
    "turner",
    "doing",
    "told",
    "untold",
    "heard",
    "vain",
    "whom",
];

/// True if a doc comment's first word is indefinite.
pub fn is_indefinite(text: &str) -> bool {
    let first = text
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or_default();
    INDEFINITE.contains(&first) || first == "As" || text.starts_with("The same")
}

/// Lower-case words of a text.
pub fn of(text: &str) -> impl Iterator<Item = String> {
    let words = text
        .split(|c: char| !c.is_ascii_alphabetic())
        .filter(|word| !word.is_empty());
    words.map(str::to_lowercase)
}

/// True if a part of a `snake_case` or `CamelCase` name is denied.
pub fn has_denied_part(identifier: &str) -> bool {
    let mut part = String::new();
    let mut was_lower = false;
    for c in identifier.chars().chain(['_']) {
        let begins = !c.is_ascii_alphabetic() || (c.is_ascii_uppercase() && was_lower);
        if begins {
            if DENIED.contains(&part.as_str()) {
                return true;
            }
            part.clear();
        }
        was_lower = c.is_ascii_lowercase();
        part.extend(c.is_ascii_alphabetic().then_some(c.to_ascii_lowercase()));
    }
    false
}

/// Text of a document's paragraphs: without code, tables and headings, links as their text.
fn paragraphs(document: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut in_code = false;
    for line in document.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let is_text = !in_code
            && !["```", "|", "    ", "#"]
                .iter()
                .any(|start| line.starts_with(start))
            && !line.trim().is_empty();
        if !is_text || line.starts_with("- ") || line.starts_with("* ") {
            paragraphs.push(String::new());
        }
        if is_text {
            let last = paragraphs.last_mut().expect("one at least");
            last.push_str(line.trim());
            last.push(' ');
        }
    }
    paragraphs
}

/// Sentences of a document with at least three words; code in a sentence is one word.
pub fn sentences(document: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    for paragraph in paragraphs(document) {
        let mut sentence = String::new();
        for (number, piece) in paragraph.split('`').enumerate() {
            sentence.push_str(if number % 2 == 1 { "x" } else { piece });
        }
        let mut rest = sentence.as_str();
        while let Some(end) = rest.find(['.', '!', '?']) {
            let whole = rest[end + 1..].starts_with(' ');
            let Some(next) = whole.then_some(end + 1).or_else(|| {
                let further = rest[end + 1..].find(". ");
                further.map(|at| end + 1 + at + 1)
            }) else {
                break;
            };
            sentences.push(rest[..next].trim().to_owned());
            rest = &rest[next..];
        }
        sentences.push(rest.trim().to_owned());
    }
    sentences.retain(|sentence| in_sentence(sentence) >= 3);
    sentences
}

/// Number of words in a sentence; addresses of links are none.
pub fn in_sentence(sentence: &str) -> usize {
    let mut text = String::new();
    let mut address = 0_usize;
    let mut before = ' ';
    for c in sentence.chars() {
        match c {
            '(' if before == ']' || address > 0 => address += 1,
            ')' if address > 0 => address -= 1,
            _ if address == 0 => text.push(c),
            _ => {}
        }
        before = c;
    }
    text.split(|c: char| !c.is_ascii_alphabetic() && c != '\'' && c != '-')
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()))
        .count()
}

/// Cells of each row of a document's tables, without headings and rules.
pub fn table_rows(document: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let lines: Vec<&str> = document.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let is_rule = |line: &&&str| line.starts_with("|-");
        let is_heading = lines.get(number + 1).as_ref().is_some_and(is_rule);
        if line.starts_with("| ") && !is_heading {
            let cells = line
                .trim_matches('|')
                .split(" | ")
                .map(|cell| cell.trim().to_owned());
            rows.push(cells.collect());
        }
    }
    rows
}

/// Names in backticks that are Rust identifiers or paths.
pub fn code_names(cell: &str) -> Vec<String> {
    let is_name = |text: &&str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_alphanumeric() || c == '_' || c == ':')
    };
    cell.split('`')
        .skip(1)
        .step_by(2)
        .filter(is_name)
        .map(str::to_owned)
        .collect()
}
