//! Servers whose results are hostile.

use linerate_protocol::control::{EndResults, FlowsAttached};
use serde_json::{Value, json};

use super::*;

/// Replaces every number, or every text, that the results accept in its place.
fn poison(results: &EndResults, poison: &Value) -> EndResults {
    fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => (fields.iter())
                .for_each(|(name, value)| leaves(value, &format!("{path}/{name}"), found)),
            Value::Array(items) => (0..)
                .zip(items)
                .for_each(|(index, value)| leaves(value, &format!("{path}/{index}"), found)),
            _ => found.push(path.to_owned()),
        }
    }
    let mut value = serde_json::to_value(results).unwrap();
    let mut paths = Vec::new();
    leaves(&value, "", &mut paths);
    let mut poisoned = results.clone();
    for path in paths {
        // Names with a slash have no path.
        let Some(leaf) = value.pointer_mut(&path) else {
            continue;
        };
        if leaf.is_number() != poison.is_number() || leaf.is_string() != poison.is_string() {
            continue;
        }
        let kept = std::mem::replace(leaf, poison.clone());
        match serde_json::from_value(value.clone()) {
            Ok(accepted) => poisoned = accepted,
            Err(_) => *value.pointer_mut(&path).unwrap() = kept,
        }
    }
    poisoned
}

/// Serves one client, whose own results are poisoned and sent back as those of this end.
fn serve(listener: &TcpListener, value: &Value) {
    let (mut peer, accept) = ManualPeer::proposed(listener);
    peer.send(accept);
    let (mut data, _) = listener.accept().unwrap();
    let sink = std::thread::spawn(move || std::io::copy(&mut data, &mut std::io::sink()));
    peer.send(FlowsAttached {});
    while let Ok(Some(frame)) = peer.receive() {
        if let Frame::Results(results) = frame {
            let mut hostile = poison(&results, value);
            hostile.role = linerate_record::facts::Role::Server;
            peer.send(hostile);
        }
    }
    let _ = sink.join().unwrap();
}

/// Figures that no measurement has, and texts that control a terminal, end no client: it has a
/// record, which can be stored and read, or says that the server failed.
#[test]
fn hostile_results_do_a_client_no_harm() {
    for value in [
        json!(0),
        json!(u64::MAX),
        json!(1e308),
        json!("x\u{1b}]0;TITLE\u{7}\u{1b}[2J<img src=x>"),
    ] {
        let sent = value.clone();
        let (port, server) = manual_server(move |listener| serve(listener, &sent));
        let mut plan = plan(RunKind::Throughput, TransportProtocol::Tcp, port);
        plan.wait = Some(PerEnd::same(WaitMode::Block));
        let started = Instant::now();
        match run_for(plan, Duration::ZERO) {
            Ok(record) => {
                let text = serde_json::to_string(&record).unwrap();
                serde_json::from_str::<Record>(&text).unwrap();
            }
            Err(error) => assert_eq!(error.exit_code(), exit_codes::PEER, "{value}: {error}"),
        }
        assert!(started.elapsed() < LONG, "{value}");
        server.join().unwrap();
    }
}
