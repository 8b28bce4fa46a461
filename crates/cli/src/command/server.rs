//! `linerate server`: the server of tests.

use std::sync::Arc;
use std::time::Duration;

use linerate_host::snapshot::cpu_quota::read_cpu_quota;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_report::store::RecordStore;
use linerate_server::options::{Grant, InteropOptions, ServerOptions};
use linerate_server::server::Server;
use linerate_session::dial::AddressFamily;

use super::measure::stop_on_signals;
use crate::args::ServerArgs;
use crate::failure::CommandFailure;
use crate::key_source::KeySource;
use crate::output::CommandOutput;
use crate::printer::run_with_printer;
use crate::privilege;
use crate::privilege::PrivilegeNeeds;

/// Runs the command and returns the exit code.
pub fn run(args: ServerArgs) -> u8 {
    let mut output = CommandOutput::for_server(&args.output, args.one_off);
    serve(&args, &mut output).unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    })
}

fn server_options(args: &ServerArgs) -> Result<ServerOptions, CommandFailure> {
    Ok(ServerOptions {
        key: args.key.as_ref().map(KeySource::read).transpose()?,
        port: args.port,
        address: args.bind.as_ref().and_then(|local| local.address),
        interface: args.bind.as_ref().and_then(|local| local.interface.clone()),
        family: match (args.ipv4, args.ipv6) {
            (true, _) => AddressFamily::V4,
            (_, true) => AddressFamily::V6,
            _ => AddressFamily::Any,
        },
        single_test: args.one_off,
        grants: args.grant.clone(),
        tuning: (args.grant.contains(&Grant::Tune)).then(crate::remote_tuning::remote_tuning),
        interop: protocol_options(args),
        ..ServerOptions::default()
    })
}

fn protocol_options(args: &ServerArgs) -> InteropOptions {
    let access = &args.access;
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    InteropOptions {
        extra_ports: access.also.clone(),
        // A server on any free port should not take well-known ones.
        well_known_ports: args.port != 0,
        protocols: (!access.allow_dialect.is_empty()).then(|| access.allow_dialect.clone()),
        allowed_networks: access.allow.clone(),
        max_tests: access.max_tests.map(usize::from),
        max_rate_bps: access.max_rate.map(|rate| rate.0),
        max_time_ns: access.max_time.map(ns),
    }
}

fn serve(args: &ServerArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    let network = crate::lab_network::lab_network();
    let in_lab = network.is_some();
    let server = Server::bind(&server_options(args)?)?.in_network(network);
    // The first read may mount hidden cgroups, with the privileges that are dropped below.
    let _ = read_cpu_quota();
    // Before the first thread: threads inherit the capabilities of the thread that starts them.
    drop_privileges(args, &server, in_lab)?;
    let stop = stop_on_signals()?;
    run_with_printer(output, |events| {
        let events = events.clone();
        server.run(stop.atomic(), Arc::new(move |event| events.send(event)))
    })??;
    // A server that is stopped by a signal has succeeded.
    Ok(exit_codes::OK)
}

/// Keeps the capabilities that the grants need. A server that cannot drop the others does not
/// serve.
fn drop_privileges(args: &ServerArgs, server: &Server, in_lab: bool) -> Result<(), CommandFailure> {
    let ports = server.extra_ports().into_iter().chain([server.port()]);
    let store = RecordStore::open_default().map(|store| store.dir().to_owned());
    let record_dirs: Vec<_> = (store.ok().filter(|_| !args.output.no_store))
        .into_iter()
        .chain(args.output.output.clone())
        .collect();
    let dropped = privilege::drop_privileges(&PrivilegeNeeds {
        grants: &args.grant,
        lowest_port: ports.min().unwrap_or(0),
        in_lab,
        record_dirs: &record_dirs,
    });
    dropped.map_err(|error| CommandFailure {
        problem: ErrorReport::new(
            format!("cannot drop unneeded privileges ({error})"),
            "the server",
            "start it as an unprivileged user",
        ),
        code: exit_codes::MISSING,
    })
}

#[cfg(test)]
mod tests {
    use linerate_server::options::GRANTS;

    #[test]
    fn every_grant_is_in_the_help_and_the_guide() {
        let command = crate::args::command();
        let server = command.find_subcommand("server").unwrap();
        let mut arguments = server.get_arguments();
        let grant = arguments.find(|arg| arg.get_id() == "grant").unwrap();
        let help = grant.get_help().unwrap().to_string();
        let guide = include_str!("../../../../docs/GUIDE.md");
        for (name, grant) in GRANTS {
            assert_eq!(name.parse(), Ok(*grant));
            assert!(help.contains(&format!("{name} (")), "{name}: {help}");
            assert!(guide.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
