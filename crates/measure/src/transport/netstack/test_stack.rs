//! Test helpers: a stack on a link that is empty or has one other stack.

use std::sync::mpsc;
use std::time::Duration;

use linerate_metric::stack::StackPlan;

use super::OnStack;
use crate::netstack::StackThread;
use crate::netstack::services::Front;

/// Runs `work` on a stack over this port with these settings.
pub(crate) fn on_stack<R: Send + 'static>(
    device: &str,
    keys: &[(&str, &str)],
    work: impl FnOnce(&mut OnStack) -> R + Send + 'static,
) -> R {
    let stack = started(device, "10.9.0.2/24", keys);
    let answer = lent(&stack, work);
    answer
        .recv_timeout(Duration::from_secs(60))
        .expect("an answer")
}

/// Starts a stack over this port with this address.
pub(crate) fn started(device: &str, address: &str, keys: &[(&str, &str)]) -> StackThread {
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
    StackThread::start(&plan, Vec::new(), Front::default()).expect("a stack")
}

/// Runs `work` on the stack's thread; the result arrives on the returned channel.
pub(crate) fn lent<R: Send + 'static>(
    stack: &StackThread,
    work: impl FnOnce(&mut OnStack) -> R + Send + 'static,
) -> mpsc::Receiver<R> {
    let (say, said) = mpsc::channel();
    let work = Box::new(move |stack: &mut OnStack| drop(say.send(work(stack))));
    stack.lend(work).expect("its thread");
    said
}
