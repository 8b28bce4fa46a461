//! Texts of small experiments.

/// The head of one: what follows are its tables, after keys of its own.
pub fn head(name: &str, title: &str) -> String {
    format!(
        r#"
name = "{name}"
title = "{title}"
question = "Does it run?"
without_root = "All of it."
"#
    )
}

/// The figure that most of them read.
pub const TRIP: &str = r#"
[[figures]]
name = "trip"
from = ["/summary/rtt_ns/p50"]
unit = "nanos"
says = "median round trip"
"#;

/// Round trips of two sizes without a network of its own. `far` starts what answers, or is empty; `measure`
/// is the command but for the size.
pub fn by_size(far: &str, measure: &str) -> String {
    let head = head("small", "Small");
    format!(
        r#"{head}
[[knobs]]
name = "size"
values = ["64", "1K"]
{far}
[[measure]]
host = "client"
run = "{measure} -l {{size}}"
{TRIP}
[[tables]]
title = "Median"
figures = ["trip"]
rows = ["size"]
"#
    )
}
