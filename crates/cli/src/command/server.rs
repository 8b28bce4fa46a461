//! `linerate server`: the server of tests.

use std::sync::Arc;
use std::time::Duration;

use linerate_measure::{Family, Grant, PeerOptions, Server, ServerOptions};
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_report::store::Store;

use super::measure::stop_on_signals;
use crate::args::ServerArgs;
use crate::failure::Failure;
use crate::key_source::Source;
use crate::output::Output;
use crate::printer::while_printing;
use crate::privilege::{self, Needs};

/// Runs the command and returns the exit code.
pub fn run(args: ServerArgs) -> u8 {
    let mut output = Output::serving(&args.output, args.one_off);
    serve(&args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn options(args: &ServerArgs) -> Result<ServerOptions, Failure> {
    Ok(ServerOptions {
        key: args.key.as_ref().map(Source::read).transpose()?,
        port: args.port,
        address: args.bind.as_ref().and_then(|local| local.address),
        interface: args.bind.as_ref().and_then(|local| local.interface.clone()),
        family: match (args.ipv4, args.ipv6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        },
        once: args.one_off,
        grants: args.grant.clone(),
        settings: (args.grant.contains(&Grant::Tune)).then(crate::remote::maker),
        peers: peers(args),
    })
}

fn peers(args: &ServerArgs) -> PeerOptions {
    let guests = &args.guests;
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    PeerOptions {
        also: guests.also.clone(),
        // A server on any free port should not take well-known ones.
        well_known: args.port != 0,
        only: (!guests.allow_dialect.is_empty()).then(|| guests.allow_dialect.clone()),
        allow: guests.allow.clone(),
        max_tests: guests.max_tests.map(usize::from),
        max_rate_bps: guests.max_rate.map(|rate| rate.0),
        max_time_ns: guests.max_time.map(ns),
    }
}

fn serve(args: &ServerArgs, output: &mut Output) -> Result<u8, Failure> {
    let network = crate::lab_network::around();
    let in_lab = network.is_some();
    let server = Server::bind(&options(args)?)?.within(network);
    // Before the first thread: threads inherit the capabilities of the thread that starts them.
    give_up_privileges(args, &server, in_lab)?;
    let stop = stop_on_signals()?;
    while_printing(output, |teller| {
        let teller = teller.clone();
        server.run(stop.as_flag(), Arc::new(move |event| teller.tell(event)))
    })??;
    // A server that is stopped by a signal has succeeded.
    Ok(exit::OK)
}

/// Keeps the capabilities that the grants need. A server that cannot drop the others does not
/// serve.
fn give_up_privileges(args: &ServerArgs, server: &Server, in_lab: bool) -> Result<(), Failure> {
    let ports = server.also().into_iter().chain([server.port()]);
    let store = Store::open_default().map(|store| store.folder().to_owned());
    let folders: Vec<_> = (store.ok().filter(|_| !args.output.no_store))
        .into_iter()
        .chain(args.output.output.clone())
        .collect();
    let given = privilege::give_up(&Needs {
        grants: &args.grant,
        lowest_port: ports.min().unwrap_or(0),
        in_lab,
        folders: &folders,
    });
    given.map_err(|error| Failure {
        problem: Problem::new(
            format!("cannot drop unneeded privileges ({error})"),
            "the server",
            "start it as an unprivileged user",
        ),
        code: exit::MISSING,
    })
}

#[cfg(test)]
mod tests {
    use linerate_measure::GRANTS;

    #[test]
    fn every_grant_is_in_the_help_and_the_readme() {
        let command = crate::args::command();
        let server = command.find_subcommand("server").unwrap();
        let mut arguments = server.get_arguments();
        let grant = arguments.find(|arg| arg.get_id() == "grant").unwrap();
        let help = grant.get_help().unwrap().to_string();
        let readme = include_str!("../../../../README.md");
        for (name, grant) in GRANTS {
            assert_eq!(name.parse(), Ok(*grant));
            assert!(help.contains(&format!("{name} (")), "{name}: {help}");
            assert!(readme.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
