//! Facts of the host as a whole.

use linerate_record::facts::HostFacts;
use linerate_sys::{memory_info, scheduling};

use super::{SystemFiles, processor, sysctls};

pub(crate) fn read_host(files: &SystemFiles) -> HostFacts {
    let uname = rustix::system::uname();
    let text = |value: &std::ffi::CStr| {
        let value = value.to_string_lossy().into_owned();
        (!value.is_empty() && value != "(none)").then_some(value)
    };
    let architecture = text(uname.machine());
    HostFacts {
        role: None,
        hostname: text(uname.nodename()),
        boot_id: files.read_text("/proc/sys/kernel/random/boot_id"),
        kernel: text(uname.release()),
        distribution: read_distribution(files),
        cpu: processor::read_cpu(files),
        architecture,
        memory_bytes: files
            .read_text("/proc/meminfo")
            .and_then(|meminfo| memory_info::parse_bytes(&meminfo, "MemTotal")),
        clock_source: files
            .read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        wake_up_ns: None,
        started_as: scheduling::current_real_time_class(),
        interface: None,
        stack: None,
        sysctls: sysctls::read_sysctls(files),
    }
}

/// Returns the name of the distribution (os-release(5)).
fn read_distribution(files: &SystemFiles) -> Option<String> {
    ["/etc/os-release", "/usr/lib/os-release"]
        .iter()
        .find_map(|path| parse_distribution(&files.read_text(path)?))
}

fn parse_distribution(os_release: &str) -> Option<String> {
    let field = |name: &str| {
        os_release.lines().find_map(|line| {
            let value = line.trim().strip_prefix(name)?.strip_prefix('=')?;
            let value = unquote(value);
            (!value.is_empty()).then_some(value)
        })
    };
    field("PRETTY_NAME").or_else(|| match (field("NAME"), field("VERSION")) {
        (Some(name), Some(version)) => Some(format!("{name} {version}")),
        (name, _) => name,
    })
}

/// Unquotes a value as a shell does (os-release allows quotes, and `\` before `$`, `"`, `\`, `` `
/// ``).
fn unquote(value: &str) -> String {
    let value = value.trim();
    if let Some(inner) = value
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
    {
        return inner.to_owned();
    }
    let inner = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(value);
    let mut text = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            _ => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::system_files::tree;
    use super::*;

    #[test]
    fn distributions_are_parsed_from_os_release() {
        let table = [
            (
                "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
                Some("Debian GNU/Linux 12 (bookworm)"),
            ),
            ("NAME=Fedora\nVERSION='41 (x)'\n", Some("Fedora 41 (x)")),
            ("PRETTY_NAME=Alpine\\ Linux\n", Some("Alpine Linux")),
            ("NAME=Void\n", Some("Void")),
            ("PRETTY_NAME=\"A \\\"B\\\" C\"", Some("A \"B\" C")),
            ("PRETTY_NAME=\"\"\nID=x\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_distribution(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn without_proc_and_sys_the_rest_is_absent() {
        let (_directory, files) = tree(&[]);
        let host = read_host(&files);
        assert!(host.kernel.is_some());
        assert_eq!(host.boot_id, None);
        assert_eq!(host.memory_bytes, None);
        assert_eq!(host.clock_source, None);
        assert!(host.sysctls.is_empty());
    }
}
