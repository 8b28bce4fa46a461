//! CPU load during a test (`--load cpu`): threads that only keep CPUs busy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// CPU load threads; they stop on drop.
#[derive(Debug, Default)]
pub struct CpuLoad {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl CpuLoad {
    /// Starts this number of load threads, at the priority of the caller.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(threads: u32) -> io::Result<Self> {
        let mut load = Self::default();
        for _ in 0..threads {
            let stop = Arc::clone(&load.stop);
            let body = move || {
                let mut state = 0u64;
                while !stop.load(Relaxed) {
                    for _ in 0..10_000 {
                        state = std::hint::black_box(state.wrapping_mul(3).wrapping_add(1));
                    }
                }
            };
            let thread = std::thread::Builder::new()
                .name("cpu-load".to_owned())
                .stack_size(64 << 10)
                .spawn(body)?;
            load.threads.push(thread);
        }
        Ok(load)
    }
}

impl Drop for CpuLoad {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // The thread body cannot panic.
            let _ = thread.join();
        }
    }
}
