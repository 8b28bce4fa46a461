//! Test helpers: a stack on a link that is empty or has one other stack.

use std::sync::mpsc;
use std::time::Duration;

use linerate_record::stack::StackPlan;

use super::NetstackTransport;
use crate::netstack::StackThread;

/// Runs `work` on a stack over this port with these settings.
pub(crate) fn run_on_stack<R: Send + 'static>(
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
pub(crate) fn start_stack(device: &str, address: &str, keys: &[(&str, &str)]) -> StackThread {
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
pub(crate) fn run_on_thread<R: Send + 'static>(
    stack: &StackThread,
    work: impl FnOnce(&mut NetstackTransport) -> R + Send + 'static,
) -> mpsc::Receiver<R> {
    let (sender, receiver) = mpsc::channel();
    let work = Box::new(move |stack: &mut NetstackTransport| drop(sender.send(work(stack))));
    stack.run_work(work).expect("its thread");
    receiver
}
