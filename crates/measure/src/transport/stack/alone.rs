//! A stack on a link on which nobody is, for tests.

use std::sync::mpsc;
use std::time::Duration;

use linerate_metric::stack::StackPlan;

use super::OnStack;
use crate::stack::StackThread;
use crate::stack::services::Front;

/// Does something on a stack over this port, with these keys.
pub(crate) fn on_stack<R: Send + 'static>(
    device: &str,
    keys: &[(&str, &str)],
    work: impl FnOnce(&mut OnStack) -> R + Send + 'static,
) -> R {
    let keys = keys.iter();
    let plan = StackPlan {
        device: device.to_owned(),
        addresses: vec!["10.9.0.2/24".to_owned()],
        profile: "default".to_owned(),
        configuration: keys
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..StackPlan::default()
    };
    let stack = StackThread::start(&plan, Vec::new(), Front::default()).expect("a stack");
    let (say, said) = mpsc::channel();
    let work = Box::new(move |stack: &mut OnStack| drop(say.send(work(stack))));
    stack.lend(work).expect("its thread");
    said.recv_timeout(Duration::from_secs(60))
        .expect("an answer")
}
