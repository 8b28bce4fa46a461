//! Confusion matrix: injected fault against first finding.

use std::collections::BTreeMap;

use linerate_record::finding::{Finding, FindingKind};

/// Expected result of a healthy run.
pub const HEALTHY: &str = "healthy";

/// Case names by (injected fault, first finding).
#[derive(Default)]
pub struct ConfusionMatrix(pub BTreeMap<(String, String), Vec<String>>);

impl ConfusionMatrix {
    /// Adds a case; returns whether its first finding is right.
    pub fn add(&mut self, name: &str, fault: &str, findings: &[Finding]) -> bool {
        let causes = findings.iter().any(Finding::is_cause);
        let is_known = |finding: &&Finding| finding.kind != FindingKind::Unknown;
        let first = match findings.iter().find(is_known) {
            _ if fault == HEALTHY && !causes => HEALTHY.to_owned(),
            Some(finding) => finding.cause.to_string(),
            None => "nothing".to_owned(),
        };
        let right = first == fault;
        let cell = self.0.entry((fault.to_owned(), first)).or_default();
        cell.push(name.to_owned());
        right
    }

    /// Prints the matrix, with the names of the wrong cases.
    pub fn print(&self, title: &str) {
        println!("{title}: injected fault, first finding, cases");
        for ((fault, first), names) in &self.0 {
            let (mark, wrong_names) = match fault == first {
                true => (' ', String::new()),
                false => ('!', format!("  {}", names.join(", "))),
            };
            println!(
                "{mark} {fault:<28} {first:<28} {:>3}{wrong_names}",
                names.len()
            );
        }
    }

    /// Returns the names of the wrong cases.
    pub fn wrong_cases(&self) -> Vec<&String> {
        let cells = self.0.iter();
        cells
            .filter(|((fault, first), _)| fault != first)
            .flat_map(|(_, names)| names)
            .collect()
    }
}
