//! Stacks for tests, here and in crates above: alone on a link, or two with a link between them.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use linerate_record::stack::StackPlan;
use linerate_stack::Stack;
use linerate_sys::clock;

use crate::netstack::NetstackTransport;
use crate::stack_thread::StackThread;
use crate::stack_thread::open_stack::open_stack;

/// Runs `work` on a stack over this port with these settings.
pub fn run_on_stack<R: Send + 'static>(
    device: &str,
    keys: &[(&str, &str)],
    work: impl FnOnce(&mut NetstackTransport) -> R + Send + 'static,
) -> R {
    let stack = start_stack(device, "10.9.0.2/24", keys);
    let result = run_on_thread(&stack, work);
    result
        .recv_timeout(Duration::from_secs(60))
        .expect("an answer")
}

/// Starts a stack over this port with this address.
pub fn start_stack(device: &str, address: &str, keys: &[(&str, &str)]) -> StackThread {
    let keys = keys.iter();
    let plan = StackPlan {
        device: device.to_owned(),
        addresses: vec![address.to_owned()],
        profile: "default".to_owned(),
        configuration: keys
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..StackPlan::default()
    };
    StackThread::start(&plan, None).expect("a stack")
}

/// Runs `work` on the stack's thread; the result arrives on the returned channel.
pub fn run_on_thread<R: Send + 'static>(
    stack: &StackThread,
    work: impl FnOnce(&mut NetstackTransport) -> R + Send + 'static,
) -> mpsc::Receiver<R> {
    let (sender, receiver) = mpsc::channel();
    let work = Box::new(move |stack: &mut NetstackTransport| drop(sender.send(work(stack))));
    stack.run_work(work).expect("its thread");
    receiver
}

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
        let opened = open_stack(&plan, &Arc::default());
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
