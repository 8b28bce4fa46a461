//! Detection of the hypervisor under this machine.

use super::SystemFiles;

/// Names by CPUID signature.
const CPUID_SIGNATURES: &[(&str, &str)] = &[
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
const FIRMWARE_PRODUCTS: &[(&str, &str)] = &[
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
pub(super) fn detect(
    files: &SystemFiles,
    signature: Option<&str>,
    cpuinfo: &str,
) -> Option<String> {
    if let Some(kind) = files.read_text("/sys/hypervisor/type") {
        return Some(match kind.as_str() {
            "xen" => "Xen".to_owned(),
            _ => kind,
        });
    }
    if let Some(signature) = signature {
        let entry = CPUID_SIGNATURES.iter().find(|(text, _)| *text == signature);
        return Some(entry.map_or(signature, |(_, name)| name).to_owned());
    }
    if let Some(compatible) = files.read_text("/proc/device-tree/hypervisor/compatible") {
        return Some(match compatible.split('\0').next().unwrap_or_default() {
            "linux,kvm" => "KVM".to_owned(),
            "xen,xen" => "Xen".to_owned(),
            "vmware" => "VMware".to_owned(),
            unknown_name => unknown_name.to_owned(),
        });
    }
    let x86_flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    let has_hypervisor_flag =
        x86_flags.is_some_and(|flags| flags.split_whitespace().any(|f| f == "hypervisor"));
    // An x86 processor shows the flag under a hypervisor, so its absence means bare metal.
    if x86_flags.is_some() && !has_hypervisor_flag {
        return None;
    }
    detect_by_firmware(files).or_else(|| has_hypervisor_flag.then(|| "unnamed".to_owned()))
}

fn detect_by_firmware(files: &SystemFiles) -> Option<String> {
    let text = ["sys_vendor", "product_name", "bios_vendor"]
        .iter()
        .filter_map(|name| files.read_text(&format!("/sys/class/dmi/id/{name}")))
        .collect::<Vec<_>>()
        .join(" ");
    let entry = FIRMWARE_PRODUCTS
        .iter()
        .find(|(text_part, _)| text.contains(text_part));
    entry.map(|(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::system_files::tree;
    use super::*;

    type DetectionCase = (
        &'static [(&'static str, &'static str)],
        Option<&'static str>,
        &'static str,
        Option<&'static str>,
    );

    #[test]
    fn the_first_sign_wins() {
        let virtual_cpuinfo = "flags\t\t: fpu hypervisor lahf_lm\n";
        let bare_metal_cpuinfo = "flags\t\t: fpu lahf_lm\n";
        let arm_cpuinfo = "Features\t: fp asimd\n";
        let qemu: &[_] = &[("/sys/class/dmi/id/sys_vendor", "QEMU\n")];
        let table: [DetectionCase; 9] = [
            (&[], Some("KVMKVMKVM"), virtual_cpuinfo, Some("KVM")),
            (
                &[],
                Some("NewHvNewHvNe"),
                virtual_cpuinfo,
                Some("NewHvNewHvNe"),
            ),
            (&[], None, bare_metal_cpuinfo, None),
            (qemu, None, bare_metal_cpuinfo, None),
            (qemu, None, virtual_cpuinfo, Some("QEMU")),
            (qemu, None, arm_cpuinfo, Some("QEMU")),
            (&[], None, virtual_cpuinfo, Some("unnamed")),
            (&[], None, arm_cpuinfo, None),
            (
                &[("/sys/hypervisor/type", "xen\n")],
                Some("XenVMMXenVMM"),
                virtual_cpuinfo,
                Some("Xen"),
            ),
        ];
        for (number, (layout, signature, cpuinfo, expected)) in table.into_iter().enumerate() {
            let (_directory, files) = tree(layout);
            assert_eq!(
                detect(&files, signature, cpuinfo).as_deref(),
                expected,
                "row {number}"
            );
        }
    }

    #[test]
    fn device_trees_name_the_hypervisor() {
        let (_directory, files) = tree(&[(
            "/proc/device-tree/hypervisor/compatible",
            "xen,xen-4.17\0xen,xen\0",
        )]);
        assert_eq!(detect(&files, None, "").as_deref(), Some("xen,xen-4.17"));
    }
}
