//! Headings of option groups in help, in one order for all commands.

/// Ports that frames are sent and received on.
pub const PORTS: &str = "Ports";
/// Rates, bursts and background load.
pub const LOAD: &str = "Load";
/// Number of flows, sizes and amounts.
pub const SIZES: &str = "Flows and sizes";
/// Content of generated frames.
pub const FRAMES: &str = "Frames";
/// Trials of a search, and the statistics that decide.
pub const SEARCH: &str = "Search and statistics";
/// Settings that a search may change.
pub const KNOBS: &str = "Knobs";
/// Wait modes, processors and scheduling of threads.
pub const CPU: &str = "Waiting and CPU";
/// Socket options.
pub const SOCKETS: &str = "Sockets";
/// Addresses, IP versions, access to the server.
pub const NETWORK: &str = "Network";
/// The user-space stack in place of the kernel's.
pub const STACK: &str = "User-space stack";
/// Protocols of other tools that a server answers.
pub const OTHER_TOOLS: &str = "Other tools";
/// Permissions and limits of a server.
pub const LIMITS: &str = "Access and limits";
/// Timelines, call times and further detail.
pub const DIAGNOSIS: &str = "Diagnosis";
/// Repeated runs and thresholds.
pub const CHECKS: &str = "Repeats and checks";
/// Selection of stored records.
pub const SELECTION: &str = "Selection";
/// Formats and files of results.
pub const OUTPUT: &str = "Output";

/// Headings in the order of help. Options without a heading, the common ones, come first.
const ORDER: [&str; 16] = [
    PORTS,
    LOAD,
    SIZES,
    FRAMES,
    SEARCH,
    KNOBS,
    CPU,
    SOCKETS,
    NETWORK,
    STACK,
    OTHER_TOOLS,
    LIMITS,
    DIAGNOSIS,
    CHECKS,
    SELECTION,
    OUTPUT,
];

/// Sorts the options of a command by heading. Within a group they keep the order of their fields.
pub fn sort(command: clap::Command) -> clap::Command {
    // clap lists headings in the order in which options first use them, and `mut_arg` moves an
    // option to the end.
    ORDER.iter().fold(command, |command, heading| {
        let ids: Vec<clap::Id> = (command.get_arguments())
            .filter(|arg| arg.get_help_heading() == Some(*heading))
            .map(|arg| arg.get_id().clone())
            .collect();
        (ids.iter()).fold(command, |command, id| command.mut_arg(id, |arg| arg))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &clap::Command) {
        let mut last = 0;
        for arg in command.get_arguments() {
            let Some(heading) = arg.get_help_heading() else {
                continue;
            };
            let position = ORDER.iter().position(|known| *known == heading);
            let position = position.unwrap_or_else(|| panic!("{heading} is not in ORDER"));
            assert!(position >= last, "{}: {heading}", command.get_name());
            last = position;
        }
        command.get_subcommands().for_each(check);
    }

    #[test]
    fn headings_have_one_order_in_all_commands() {
        check(&crate::args::command());
    }
}
