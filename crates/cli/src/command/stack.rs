//! `linerate stack`: our own stack as a host on a port.

use linerate_measure::stack::host::{self, HostOptions, Told};
use linerate_metric::event::{Event, What};
use linerate_metric::exit;
use linerate_metric::stack::{StackFacts, StackInterval};
use linerate_metric::units::format_count;
use linerate_report::text::stack as words;

use super::measure::stop_on_signals;
use crate::args::StackHostArgs;
use crate::failure::Failure;
use crate::output::{Output, print};
use crate::plan::stack;

/// Runs it; gives the exit code.
pub fn run(args: &StackHostArgs) -> u8 {
    let mut output = Output::serving(&args.output, false).labelled(args.label.as_deref());
    serve(args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn serve(args: &StackHostArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    let mut plan = stack::host(&args.stack)?;
    plan.stamp_payload = args.stamp_payload;
    let options = HostOptions {
        plan,
        services: args.serve.clone(),
        duration: args.time,
        interval: (!args.interval.is_zero()).then_some(args.interval),
    };
    let stop = stop_on_signals()?;
    let quiet = args.output.quiet;
    let plain = !output.is_json() && !output.is_stream();
    let (record, failure) = host::run(&options, &stop.as_flag(), &mut |told| match told {
        Told::Ready(facts) => {
            let services: Vec<_> = args.serve.iter().map(ToString::to_string).collect();
            let ready = format!(
                "READY dev={} ip={} services={}",
                facts.device,
                facts.addresses.join(","),
                services.join(",")
            );
            match plain {
                true => print(&ready),
                false => output.remark(&ready),
            }
            if !quiet {
                output.progress(&before(facts, output));
            }
        }
        Told::Interval(interval) if !quiet => output.progress(&line(interval)),
        Told::Interval(_) => {}
        Told::Test(event) => test(&event, output),
        Told::Doubt(doubt) => output.remark(&format!("warning: {}", doubt.why)),
    })?;
    output.record(&record, &[])?;
    if let Some(error) = failure {
        let failure = Failure::from(error);
        match output.is_json() {
            // The document is out already.
            true => output.remark(&format!("error: {}", failure.problem)),
            false => output.failure(&failure),
        }
        return Ok(failure.code);
    }
    Ok(if record.interrupted && args.time.is_some() {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// What happens to a test of our own server. The one document of `--json` is the host's.
fn test(event: &Event, output: &mut Output) {
    if !output.is_json() {
        return output.event(event, jiff::Timestamp::now());
    }
    match &event.what {
        What::Finished { record } => output.put_away(record),
        What::Failed { problem } => output.remark(&format!("error: {problem}")),
        _ => {}
    }
}

/// What it is, before anything happens: its configuration, and what that takes.
fn before(facts: &StackFacts, output: &Output) -> String {
    let style = output.style();
    format!(
        "{}\n\n{}\n",
        words::configuration(facts, style),
        words::memory(&facts.memory, style)
    )
}

/// `12.0-13.0 s  udp: in_datagrams 1,234, ...`.
fn line(interval: &StackInterval) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut text = format!(
        "{:.1}-{:.1} s",
        seconds(interval.start_ns),
        seconds(interval.end_ns)
    );
    if interval.counters.is_empty() {
        text.push_str("  nothing");
    }
    for (protocol, counters) in &interval.counters {
        let counted: Vec<_> = (counters.iter())
            .map(|(name, count)| format!("{name} {}", format_count(*count)))
            .collect();
        text.push_str(&format!("  {protocol}: {}", counted.join(", ")));
    }
    text
}
