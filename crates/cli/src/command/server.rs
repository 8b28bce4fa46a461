//! `linerate server`: the far end of other hosts' tests.

use std::sync::Arc;

use linerate_measure::{Family, Server, ServerOptions};
use linerate_metric::exit;

use super::measure::stop_on_signals;
use crate::args::ServerArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::printer::while_printing;

/// Runs it; gives the exit code.
pub fn run(args: ServerArgs) -> u8 {
    let mut output = Output::serving(&args.output, args.one_off);
    serve(&args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn options(args: &ServerArgs) -> ServerOptions {
    ServerOptions {
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
    }
}

fn serve(args: &ServerArgs, output: &mut Output) -> Result<u8, Failure> {
    let server = Server::bind(&options(args))?;
    let stop = stop_on_signals()?;
    while_printing(output, |teller| {
        let teller = teller.clone();
        server.run(stop.as_flag(), Arc::new(move |event| teller.tell(event)))
    })??;
    // A server that is told to end has done what it was for.
    Ok(exit::OK)
}
