//! Texts of small experiments.

/// Returns the head of an experiment; further keys and its tables follow.
pub fn experiment_head(name: &str, title: &str) -> String {
    format!(
        r#"
name = "{name}"
title = "{title}"
question = "Does it run?"
without_root = "All of it."
"#
    )
}

/// Figure that most of them read: the median round-trip time.
pub const RTT_FIGURE: &str = r#"
[[figures]]
name = "trip"
from = ["/summary/rtt_ns/p50"]
unit = "nanos"
description = "median round trip"
"#;

/// Returns an experiment of round trips of two sizes without a network of its own. `remote` starts
/// the responder, or is empty; `measure` is the command without the size.
pub fn by_size(remote: &str, measure: &str) -> String {
    let head = experiment_head("small", "Small");
    format!(
        r#"{head}
[[knobs]]
name = "size"
values = ["64", "1K"]
{remote}
[[measure]]
host = "client"
run = "{measure} -l {{size}}"
{RTT_FIGURE}
[[tables]]
title = "Median"
figures = ["trip"]
rows = ["size"]
"#
    )
}
