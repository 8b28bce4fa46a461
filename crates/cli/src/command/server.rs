//! `linerate server`: the far end of other hosts' tests.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use linerate_measure::{Family, Server, ServerOptions};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_report::store::Store;

use super::measure::stop_on_signals;
use crate::args::ServerArgs;
use crate::failure::Failure;
use crate::output::Output;

/// Runs it; gives the exit code.
pub fn run(args: ServerArgs) -> u8 {
    let output = Output::serving(&args.output);
    let output = Arc::new(Mutex::new(output));
    serve(&args, &output).unwrap_or_else(|failure| {
        output.lock().expect("no holder panics").failure(&failure);
        failure.code
    })
}

fn options(args: &ServerArgs) -> Result<ServerOptions, Failure> {
    let (address, interface) = match args.bind.as_deref() {
        None => (None, None),
        Some(text) => match text.split_once('%') {
            Some((address, interface)) => (Some(address), Some(interface.to_owned())),
            None => (Some(text), None),
        },
    };
    let address = match address.filter(|address| !address.is_empty()) {
        None => None,
        Some(text) => Some(text.parse::<IpAddr>().map_err(|_| {
            Failure::usage(Problem::new(
                "not an IP address",
                format!("-B {text}"),
                "give an address that `ip address` lists, or %INTERFACE",
            ))
        })?),
    };
    Ok(ServerOptions {
        port: args.port,
        address,
        interface,
        family: match (args.ipv4, args.ipv6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        },
        once: args.one_off,
        grants: args.grant.clone(),
    })
}

fn serve(args: &ServerArgs, output: &Arc<Mutex<Output>>) -> Result<u8, Failure> {
    let server = Server::bind(&options(args)?)?;
    let stop = stop_on_signals()?;
    let sink = Arc::clone(output);
    let (store, json) = (!args.output.no_store, args.output.json);
    let emit = move |event: Event| {
        let mut output = sink.lock().expect("no holder panics");
        if matches!(event.what, What::Ready { .. }) {
            output.ready(&event);
            return;
        }
        output.event(&event);
        if let What::Finished { record } = &event.what {
            if json {
                // One document for each test; with -1, one in all.
                output.say(&record.to_json());
            }
            if let Some(error) = store
                .then(|| Store::open_default().and_then(|store| store.store(record)))
                .and_then(Result::err)
            {
                output.remark(&format!("warning: {error}"));
            }
        }
    };
    server.run(stop.as_flag(), Arc::new(emit))?;
    // A server that is told to end has done what it was for.
    Ok(exit::OK)
}
