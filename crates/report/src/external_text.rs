//! Text from outside: records of others, names and messages of peers, file and host names.
//!
//! Such text is cleaned where it enters and once more where it leaves, so that no table, sentence or
//! page has to think of it. [`parse_json`] returns documents whose texts cannot control a terminal.
//! [`printable`] lets nothing pass to a terminal but text and the colours of
//! [`TextStyle`](crate::TextStyle).

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::style::{COLOR_SEQUENCES, is_bidi_control};

/// Parses JSON; control characters are removed from all its texts and names but for line ends and
/// tabs.
///
/// # Errors
/// Those of [`serde_json::from_str`].
pub fn parse_json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    if !may_have_control_characters(text) {
        return serde_json::from_str(text);
    }
    let cleaned = clean_value(serde_json::from_str(text)?);
    // Errors give the place in the text, which a value does not have.
    serde_json::from_value(cleaned).or_else(|_| serde_json::from_str(text))
}

/// Returns whether a text of JSON can have such characters: the first 32 are always escaped.
fn may_have_control_characters(json: &str) -> bool {
    let mut escaped = json.split('\\').skip(1);
    escaped.any(|rest| matches!(rest.as_bytes().first(), Some(b'u' | b'b' | b'f' | b'r')))
        || json.chars().any(is_unprintable)
}

fn clean_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text)),
        Value::Array(values) => values.into_iter().map(clean_value).collect(),
        Value::Object(fields) => (fields.into_iter())
            .map(|(name, value)| (clean(&name), clean_value(value)))
            .collect(),
        value => value,
    }
}

pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|&c| !is_unprintable(c)).collect()
}

/// Returns whether a character could control a terminal, or change the direction of writing.
fn is_unprintable(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || is_bidi_control(c)
}

/// Returns the text for a terminal or a pipe: without characters that could control it, except for
/// the colours that this program uses where `has_colors`.
#[must_use]
pub fn printable(text: &str, has_colors: bool) -> Cow<'_, str> {
    if !text.chars().any(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split('\x1b');
    let mut cleaned = clean(parts.next().unwrap_or_default());
    for part in parts {
        let sequence = COLOR_SEQUENCES.iter().find(|code| part.starts_with(**code));
        if let Some(sequence) = sequence.filter(|_| has_colors) {
            cleaned.push('\x1b');
            cleaned.push_str(sequence);
        }
        let rest = sequence.map_or(part, |sequence| &part[sequence.len()..]);
        cleaned.push_str(&clean(rest));
    }
    Cow::Owned(cleaned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_names_of_a_document_are_cleaned() {
        for (json, cleaned) in [
            (r#"["a\u001b]0;TITLE\u0007b"]"#, r#"["a]0;TITLEb"]"#),
            (r#"["\u001B[2J\b\f\r\u0000\u007f"]"#, r#"["[2J"]"#),
            ("[\"\u{9b}31m\u{202e}x\u{7f}\"]", r#"["31mx"]"#),
            (
                r#"{"\u001b[1mname":{"x":["\u009b1m"]}}"#,
                r#"{"[1mname":{"x":["1m"]}}"#,
            ),
            (
                r#"["line\nline\ttab \"\\\"","ü"]"#,
                r#"["line\nline\ttab \"\\\"","ü"]"#,
            ),
            (
                r#"[1.5,-3,true,null,18446744073709551615]"#,
                r#"[1.5,-3,true,null,18446744073709551615]"#,
            ),
        ] {
            let value: Value = parse_json(json).unwrap();
            assert_eq!(value.to_string(), cleaned, "{json}");
        }
        assert_eq!(
            parse_json::<Vec<u8>>("[\"\\u001b\"]").unwrap_err().line(),
            1
        );
    }

    #[test]
    fn only_text_and_own_colors_are_printed() {
        for (text, plain, colored) in [
            ("plain\n\ttext", "plain\n\ttext", "plain\n\ttext"),
            ("\x1b[32mok\x1b[0m", "ok", "\x1b[32mok\x1b[0m"),
            (
                "x\x1b]0;TITLE\x07\x1b[2Jy",
                "x]0;TITLE[2Jy",
                "x]0;TITLE[2Jy",
            ),
            ("\x1b[32;5mx", "[32;5mx", "[32;5mx"),
            ("\x1b\x1b[1mx\r", "x", "\x1b[1mx"),
            ("\u{9b}2J\u{202e}", "2J", "2J"),
        ] {
            assert_eq!(printable(text, false), plain);
            assert_eq!(printable(text, true), colored);
        }
    }
}
