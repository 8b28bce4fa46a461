//! Rules and the sections of docs/CAUSES.md match one to one.

use std::collections::BTreeSet;

use linerate_explain::{CONSEQUENCES, RULES};

const CAUSES: &str = include_str!("../../../docs/CAUSES.md");

#[test]
fn every_rule_has_its_section_in_order() {
    let sections: Vec<&str> = CAUSES
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    let ids: Vec<&str> = RULES.iter().map(|rule| rule.id()).collect();
    assert_eq!(sections, ids);
}

#[test]
fn sections_have_all_parts() {
    for section in CAUSES.split("\n## ").skip(1) {
        let (id, text) = section.split_once('\n').expect("a heading has a text");
        for part in ["*Shows:*", "*Do:*", "*Wrong when:*"] {
            assert!(text.contains(part), "{id} lacks {part}");
        }
    }
}

#[test]
fn ids_are_unique_and_links_name_rules() {
    let ids: BTreeSet<&str> = RULES.iter().map(|rule| rule.id()).collect();
    assert_eq!(ids.len(), RULES.len());
    for (effect, cause) in CONSEQUENCES {
        assert!(
            ids.contains(effect) && ids.contains(cause),
            "{effect} {cause}"
        );
        assert!(
            !CONSEQUENCES.contains(&(cause, effect)),
            "{effect} and {cause} follow from each other"
        );
    }
    for id in ids {
        let plain = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(id.chars().all(plain), "{id}");
    }
}

/// The causes in a section's "Follows from" line match the table, in order.
#[test]
fn follows_from_is_the_table() {
    for section in CAUSES.split("\n## ").skip(1) {
        let (id, text) = section.split_once('\n').expect("a heading has a text");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("*Follows from:* "));
        let documented = line.map_or_else(Vec::new, |line| {
            let line = line.strip_suffix('.').expect("a full stop");
            line.split(", ").map(str::to_owned).collect()
        });
        let links = CONSEQUENCES.iter().filter(|(effect, _)| *effect == id);
        let links: Vec<String> = links
            .map(|(_, cause)| format!("[{cause}](#{cause})"))
            .collect();
        assert_eq!(documented, links, "{id}");
    }
}
