//! What a search over knobs found: the changes, their proof, and what was tried in vain.

use linerate_metric::figure;
use linerate_metric::tuning::Tuning;
use linerate_metric::units::{format_bytes, format_nanos};

use super::comparison::{signed, verdict_words};
use super::table::table;
use crate::style::{Paint, Style, clean, hang, wrap};
use crate::words;

/// What `tune` found.
pub(super) fn tuning(found: &Tuning, style: &Style) -> String {
    let name = clean(&found.goal);
    let title = format!("{name} of {}: {} runs", clean(&found.command), found.runs);
    let mut blocks = vec![style.paint(Paint::Bold, &title)];
    match &found.proof {
        Some(proof) => {
            let value = |value: f64| figure::format(&found.goal, value);
            let side = |side: &linerate_metric::comparison::Side| {
                words::or_unknown(side.value, |v| value(v.median))
            };
            let bytes = |value: Option<f64>| words::or_unknown(value, |v| format_bytes(v as u64));
            let cost = |value: Option<f64>| words::or_unknown(value, format_nanos);
            let row =
                |what: &str, before: String, after: String| vec![what.to_owned(), before, after];
            let rows = vec![
                row(&name, side(&proof.a), side(&proof.b)),
                row(
                    "buffers",
                    bytes(found.memory_bytes[0]),
                    bytes(found.memory_bytes[1]),
                ),
                row("cpu", cost(found.cpu_ns[0]), cost(found.cpu_ns[1])),
            ];
            blocks.push(table(&["", "start (A)", "tuned (B)"], rows, 1, style));
            blocks.push(wrap(&verdict_words(proof), style.width).join("\n"));
        }
        None => blocks.push(
            wrap(
                "Nothing that was tried makes it better by more than noise.",
                style.width,
            )
            .join("\n"),
        ),
    }
    if !found.changes.is_empty() {
        let rows = found
            .changes
            .iter()
            .map(|change| {
                vec![
                    clean(&change.knob).into_owned(),
                    clean(&change.from).into_owned(),
                    clean(&change.to).into_owned(),
                    words::or_unknown(change.without, |ratio| signed(ratio.median - 1.0)),
                ]
            })
            .collect();
        let heading = format!("{name} without it");
        let mut text = table(&["change", "from", "to", &heading], rows, 3, style);
        text.push_str("\n\n");
        let command = format!("linerate {}", clean(&found.tuned_command));
        text.push_str(&hang("run:  ", "run:  ", &command, style.width));
        for command in found.changes.iter().flat_map(|change| &change.commands) {
            text.push('\n');
            text.push_str(&hang("set:  ", "set:  ", &clean(command), style.width));
        }
        if found.kept {
            text.push_str("\nThese settings were left in place.");
        }
        blocks.push(text);
    }
    if !found.vain.is_empty() {
        let mut lines = vec!["Tried in vain:".to_owned()];
        for vain in &found.vain {
            let said = format!("{}={}: {}", vain.knob, vain.value, vain.why);
            lines.push(hang("  ", "  ", &clean(&said), style.width));
        }
        blocks.push(lines.join("\n"));
    }
    blocks.join("\n\n")
}
