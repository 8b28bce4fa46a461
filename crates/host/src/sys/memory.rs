//! Memory that stays where it is.

use std::io;

/// Keeps all memory of this process resident while it lives, what it takes later included.
#[derive(Debug)]
pub struct LockedMemory(());

/// Locks it.
///
/// # Errors
/// `PermissionDenied` or `OutOfMemory` where the limit (RLIMIT_MEMLOCK) is too low for this user.
pub fn lock() -> io::Result<LockedMemory> {
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
        // SAFETY: the call takes nothing; it cannot fail for the own process.
        unsafe { libc::munlockall() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_locked_or_refused() {
        match lock() {
            Ok(held) => drop(held),
            Err(error) => println!("needs CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK: {error}"),
        }
    }
}
