//! Test helpers: two stacks with a link between them.

use std::sync::Arc;

use linerate_record::stack::StackPlan;
use linerate_stack::Stack;
use linerate_sys::clock;

use super::open_stack;

/// Creates two stacks with the addresses 10.9.0.1 and 10.9.0.2; `name` must be unique.
pub fn stack_pair(name: &str) -> [Stack; 2] {
    stack_pair_with(name, &[])
}

/// Creates two stacks, the second one with these settings.
pub fn stack_pair_with(name: &str, settings: &[(&str, &str)]) -> [Stack; 2] {
    [("server", 1, &[][..]), ("client", 2, settings)].map(|(role, host, settings)| {
        let plan = StackPlan {
            device: format!("shm:{name}-{},role={role}", std::process::id()),
            addresses: vec![format!("10.9.0.{host}/24")],
            profile: "default".to_owned(),
            configuration: settings
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..StackPlan::default()
        };
        let opened = open_stack::open_stack(&plan, &Arc::default());
        opened.unwrap_or_else(|error| panic!("{error}")).0
    })
}

/// Polls both stacks until `done` returns true.
pub fn poll_until(stacks: &mut [Stack; 2], mut done: impl FnMut(&mut [Stack; 2]) -> bool) {
    let deadline = clock::now() + 30_000_000_000;
    while !done(stacks) {
        assert!(clock::now() < deadline, "timed out");
        for stack in stacks.iter_mut() {
            stack.poll(clock::now());
        }
    }
}
