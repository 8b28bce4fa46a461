//! Starting the threads of a run, all of them or none.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, JoinHandle};

use crate::MeasureError;
use crate::forward::modes::ModeSpec;
use crate::forward::worker::{Done, Work};

/// A thread that waits for its work.
pub(super) struct Hired {
    pub(super) give: Sender<Work>,
    pub(super) thread: JoinHandle<Option<Done>>,
}

/// All that a thread does; nothing where it gets no work.
pub(super) type Job = Box<dyn FnOnce() -> Option<Done> + Send>;

/// Starts a thread, or cannot.
pub(super) type Spawn<'a> = &'a mut dyn FnMut(Builder, Job) -> io::Result<JoinHandle<Option<Done>>>;

/// Starts so many threads, before any queue is taken from its port and before anybody waits for the others: where one
/// of them cannot be had, those that can are sent home.
pub(super) fn hire(
    count: u32,
    mode: &ModeSpec,
    spawn: Spawn<'_>,
) -> Result<Vec<Hired>, MeasureError> {
    let mut hired = Vec::new();
    for core in 0..count {
        let (give, work) = mpsc::channel::<Work>();
        let mode = mode.clone();
        let job: Job = Box::new(move || work.recv().ok().map(|work| mode.run(work)));
        match spawn(Builder::new().name(format!("forward-{core}")), job) {
            Ok(thread) => hired.push(Hired { give, thread }),
            Err(source) => {
                for Hired { give, thread } in hired {
                    drop(give);
                    let _ = thread.join();
                }
                return Err(MeasureError::Thread {
                    thread: format!("forwarding thread {} of {count}", core + 1),
                    source,
                });
            }
        }
    }
    Ok(hired)
}
