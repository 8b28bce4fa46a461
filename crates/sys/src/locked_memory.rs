//! Memory locking (mlockall).

use std::io;

/// Guard that keeps all memory of this process resident, later allocations included.
#[derive(Debug)]
pub struct LockedMemory(());

/// Locks all memory of this process.
///
/// # Errors
/// `PermissionDenied` or `OutOfMemory` where the limit (RLIMIT_MEMLOCK) is too low for this user.
pub fn lock_all() -> io::Result<LockedMemory> {
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    if result == 0 {
        Ok(LockedMemory(()))
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        // SAFETY: the call takes no arguments and cannot fail for this process.
        unsafe { libc::munlockall() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_locked_or_an_error() {
        match lock_all() {
            Ok(guard) => drop(guard),
            Err(error) => println!("needs CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK: {error}"),
        }
    }
}
