//! Hypervisor signature in CPUID.

/// Reads the signature of up to twelve characters of a hypervisor (CPUID leaf 0x4000_0000).
///
/// `None` on bare metal and on processors without CPUID.
#[must_use]
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub fn hypervisor_signature() -> Option<String> {
    #[cfg(target_arch = "x86")]
    use std::arch::x86::__cpuid;
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::__cpuid;

    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    if __cpuid(1).ecx & HYPERVISOR_PRESENT == 0 {
        return None;
    }
    let leaf = __cpuid(0x4000_0000);
    let bytes: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .filter(|&byte| byte != 0)
        .collect();
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Returns `None`: this architecture has no CPUID.
#[must_use]
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
pub fn hypervisor_signature() -> Option<String> {
    None
}
