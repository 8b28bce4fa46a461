//! Confusion matrix: injected fault against first finding.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use linerate_metric::finding::{Finding, FindingKind};

/// Expected result of a healthy run.
pub const HEALTHY: &str = "healthy";

/// Returns a directory of the bank.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/bank")
        .join(name)
}

/// Case names by (injected fault, first finding).
#[derive(Default)]
pub struct Confusion(pub BTreeMap<(String, String), Vec<String>>);

impl Confusion {
    /// Adds a case; returns whether its first finding is right.
    pub fn add(&mut self, name: &str, planted: &str, findings: &[Finding]) -> bool {
        let causes = findings.iter().any(Finding::is_cause);
        let known = |found: &&Finding| found.kind != FindingKind::Unknown;
        let first = match findings.iter().find(known) {
            _ if planted == HEALTHY && !causes => HEALTHY.to_owned(),
            Some(found) => found.cause.clone(),
            None => "nothing".to_owned(),
        };
        let right = first == planted;
        let cell = self.0.entry((planted.to_owned(), first)).or_default();
        cell.push(name.to_owned());
        right
    }

    /// Prints the matrix, with the names of the wrong cases.
    pub fn print(&self, what: &str) {
        println!("{what}: injected fault, first finding, cases");
        for ((planted, first), names) in &self.0 {
            let (mark, which) = match planted == first {
                true => (' ', String::new()),
                false => ('!', format!("  {}", names.join(", "))),
            };
            println!("{mark} {planted:<28} {first:<28} {:>3}{which}", names.len());
        }
    }

    /// Returns the names of the wrong cases.
    pub fn wrong(&self) -> Vec<&String> {
        let cells = self.0.iter();
        cells
            .filter(|((planted, first), _)| planted != first)
            .flat_map(|(_, names)| names)
            .collect()
    }
}
