//! Comparison of documents as text.

use super::sentence_note;
use super::table::table;
use crate::comparison::SideBySide;
use crate::differences::{NONE, grid};
use crate::markdown::{INTERVALS, figure};
use crate::phrases;
use crate::style::{Style, clean, wrap};

/// Renders one row per figure and one column per document; two documents get a ratio column.
#[must_use]
pub fn side_by_side(sides: &SideBySide, style: &Style) -> String {
    let two = sides.sides.len() == 2;
    let mut headings = vec!["figure".to_owned()];
    headings.extend(
        sides
            .sides
            .iter()
            .map(|side| clean(&side.name).into_owned()),
    );
    if two {
        headings.push("second/first".to_owned());
    }
    let rows = sides
        .figures()
        .map(|known| {
            let name = known.name();
            let mut row = vec![clean(&name).into_owned()];
            row.extend(sides.sides.iter().map(|side| {
                let value = side.figures.get(&name);
                phrases::or_unknown(value, |value| figure(known.unit, value))
            }));
            if two {
                let ratio = sides.ratio(&name);
                row.push(phrases::or_unknown(ratio, phrases::ratio));
            }
            row
        })
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut text = String::new();
    for sentence in &sides.verdict {
        text.push_str(&wrap(&clean(sentence), style.width).join("\n"));
        text.push_str("\n\n");
    }
    text.push_str(&differences(sides, style));
    text.push_str(&table(&headings, rows, 1, style));
    text.push_str("\n\n");
    text.push_str(&sentence_note(INTERVALS, style, style.width));
    for side in &sides.sides {
        for doubt in &side.doubts {
            text.push('\n');
            let doubt = format!("{}: {}", clean(&side.name), clean(doubt));
            text.push_str(&sentence_note(&doubt, style, style.width));
        }
    }
    text
}

/// Renders the differences in options and hosts; empty for one document.
fn differences(sides: &SideBySide, style: &Style) -> String {
    if sides.sides.len() < 2 {
        return String::new();
    }
    if sides.differences.is_empty() {
        return format!("{}\n\n", wrap(NONE, style.width).join("\n"));
    }
    let clean_of = |texts: Vec<String>| -> Vec<String> {
        texts.iter().map(|text| clean(text).into_owned()).collect()
    };
    let (headings, rows) = grid(&sides.differences, &sides.names());
    let headings = clean_of(headings);
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let rows = rows.into_iter().map(clean_of).collect();
    format!("{}\n\n", table(&headings, rows, 1, style))
}
