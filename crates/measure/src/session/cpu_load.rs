//! CPU load during a test (`--load cpu`): threads that only keep CPUs busy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// CPU load threads; they stop on drop.
#[derive(Debug, Default)]
pub struct Burn {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Burn {
    /// Starts this number of load threads, at the priority of the caller.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(threads: u32) -> io::Result<Self> {
        let mut burn = Self::default();
        for _ in 0..threads {
            let stop = Arc::clone(&burn.stop);
            let body = move || {
                let mut turns = 0u64;
                while !stop.load(Relaxed) {
                    for _ in 0..10_000 {
                        turns = std::hint::black_box(turns.wrapping_mul(3).wrapping_add(1));
                    }
                }
            };
            let thread = std::thread::Builder::new()
                .name("cpu-load".to_owned())
                .stack_size(64 << 10)
                .spawn(body)?;
            burn.threads.push(thread);
        }
        Ok(burn)
    }
}

impl Drop for Burn {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // The thread body cannot panic.
            let _ = thread.join();
        }
    }
}
