//! Detection of the hypervisor under this machine.

use super::Files;

/// Names by CPUID signature.
const SIGNATURES: &[(&str, &str)] = &[
    ("KVMKVMKVM", "KVM"),
    ("Linux KVM Hv", "KVM"),
    ("Microsoft Hv", "Hyper-V"),
    ("VMwareVMware", "VMware"),
    ("XenVMMXenVMM", "Xen"),
    ("VBoxVBoxVBox", "VirtualBox"),
    ("TCGTCGTCGTCG", "QEMU without KVM"),
    ("bhyve bhyve", "bhyve"),
    ("prl hyperv", "Parallels"),
    ("lrpepyh  vr", "Parallels"),
    ("ACRNACRNACRN", "ACRN"),
    ("QNXQVMBSQG", "QNX"),
    ("SRESRESRESRE", "Lockheed Martin LMHS"),
    ("Jailhouse", "Jailhouse"),
];

/// Names by text in the firmware's vendor and product.
///
/// Clouds that also rent bare metal under the same vendor name are missing here: other signs
/// identify them.
const PRODUCTS: &[(&str, &str)] = &[
    ("QEMU", "QEMU"),
    ("KVM", "KVM"),
    ("VMware", "VMware"),
    ("VirtualBox", "VirtualBox"),
    ("Bochs", "Bochs"),
    ("Parallels", "Parallels"),
    ("Virtual Machine", "Hyper-V"),
    ("Google Compute Engine", "KVM"),
    ("OpenStack", "KVM"),
    ("Apple Virtualization", "Apple Virtualization"),
    ("HVM domU", "Xen"),
    ("BHYVE", "bhyve"),
];

/// Detects the hypervisor from Xen's file, CPUID, the device tree and the firmware, in this order.
///
/// `signature` is from CPUID, `cpuinfo` the text of /proc/cpuinfo.
pub(super) fn find(files: &Files, signature: Option<&str>, cpuinfo: &str) -> Option<String> {
    if let Some(kind) = files.text("/sys/hypervisor/type") {
        return Some(match kind.as_str() {
            "xen" => "Xen".to_owned(),
            _ => kind,
        });
    }
    if let Some(signature) = signature {
        let known = SIGNATURES.iter().find(|(text, _)| *text == signature);
        return Some(known.map_or(signature, |(_, name)| name).to_owned());
    }
    if let Some(compatible) = files.text("/proc/device-tree/hypervisor/compatible") {
        return Some(match compatible.split('\0').next().unwrap_or_default() {
            "linux,kvm" => "KVM".to_owned(),
            "xen,xen" => "Xen".to_owned(),
            "vmware" => "VMware".to_owned(),
            other => other.to_owned(),
        });
    }
    let x86 = cpuinfo.lines().find(|line| line.starts_with("flags"));
    let flagged = x86.is_some_and(|flags| flags.split_whitespace().any(|f| f == "hypervisor"));
    // An x86 processor shows the flag under a hypervisor, so its absence means bare metal.
    if x86.is_some() && !flagged {
        return None;
    }
    product(files).or_else(|| flagged.then(|| "unnamed".to_owned()))
}

fn product(files: &Files) -> Option<String> {
    let text = ["sys_vendor", "product_name", "bios_vendor"]
        .iter()
        .filter_map(|name| files.text(&format!("/sys/class/dmi/id/{name}")))
        .collect::<Vec<_>>()
        .join(" ");
    let known = PRODUCTS.iter().find(|(word, _)| text.contains(word));
    known.map(|(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::system_files::tree;
    use super::*;

    type Case = (
        &'static [(&'static str, &'static str)],
        Option<&'static str>,
        &'static str,
        Option<&'static str>,
    );

    #[test]
    fn the_first_sign_wins() {
        let flagged = "flags\t\t: fpu hypervisor lahf_lm\n";
        let bare = "flags\t\t: fpu lahf_lm\n";
        let arm = "Features\t: fp asimd\n";
        let qemu: &[_] = &[("/sys/class/dmi/id/sys_vendor", "QEMU\n")];
        let table: [Case; 9] = [
            (&[], Some("KVMKVMKVM"), flagged, Some("KVM")),
            (&[], Some("NewHvNewHvNe"), flagged, Some("NewHvNewHvNe")),
            (&[], None, bare, None),
            (qemu, None, bare, None),
            (qemu, None, flagged, Some("QEMU")),
            (qemu, None, arm, Some("QEMU")),
            (&[], None, flagged, Some("unnamed")),
            (&[], None, arm, None),
            (
                &[("/sys/hypervisor/type", "xen\n")],
                Some("XenVMMXenVMM"),
                flagged,
                Some("Xen"),
            ),
        ];
        for (number, (layout, signature, cpuinfo, expected)) in table.into_iter().enumerate() {
            let (_directory, files) = tree(layout);
            assert_eq!(
                find(&files, signature, cpuinfo).as_deref(),
                expected,
                "row {number}"
            );
        }
    }

    #[test]
    fn device_trees_name_theirs() {
        let (_directory, files) = tree(&[(
            "/proc/device-tree/hypervisor/compatible",
            "xen,xen-4.17\0xen,xen\0",
        )]);
        assert_eq!(find(&files, None, "").as_deref(), Some("xen,xen-4.17"));
    }
}
