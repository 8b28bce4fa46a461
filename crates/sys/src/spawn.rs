//! Starts the threads of a run, all of them or none.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Builder;

/// A thread that cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("{thread} cannot be started ({source})")]
pub struct SpawnError {
    /// Number of the thread, and of how many.
    pub thread: String,
    pub source: io::Error,
}

/// Starts `count` threads, which wait for their work until all have started. If one cannot be
/// started, the channels of the others close and they end.
pub fn spawn_all<W, H>(
    name: &str,
    purpose: &str,
    count: usize,
    mut spawn: impl FnMut(Builder, Receiver<W>) -> io::Result<H>,
) -> Result<Vec<(Sender<W>, H)>, SpawnError> {
    let start = |number| {
        let (sender, work) = mpsc::channel();
        let thread = spawn(Builder::new().name(format!("{name}-{number}")), work);
        thread
            .map(|thread| (sender, thread))
            .map_err(|source| SpawnError {
                thread: format!("{purpose} thread {} of {count}", number + 1),
                source,
            })
    };
    (0..count).map(start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn no_thread_works_unless_all_start() {
        for (limit, expected) in [(2, 0), (3, 3)] {
            let mut started = 0;
            let ran = &AtomicU32::new(0);
            let threads = std::thread::scope(|scope| {
                let threads = spawn_all("test", "trying", 3, |builder, work: Receiver<u32>| {
                    if started == limit {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    started += 1;
                    builder.spawn_scoped(scope, move || {
                        work.into_iter().for_each(|by| {
                            ran.fetch_add(by, Relaxed);
                        });
                    })
                })?;
                for (sender, _) in threads {
                    sender.send(1).expect("it waits");
                }
                Ok::<(), SpawnError>(())
            });
            assert_eq!(ran.load(Relaxed), expected);
            match threads {
                Ok(()) => assert_eq!(limit, 3),
                Err(error) => {
                    assert_eq!((error.thread.as_str(), limit), ("trying thread 3 of 3", 2));
                }
            }
        }
    }
}
