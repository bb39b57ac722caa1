//! Goal: each request is an event of the trace at both ends, and a line of the log, in runs that
//! ask for it.
//! Method: a bench of real processes; its file is read as Perfetto reads it.

use crate::support;
use std::collections::BTreeMap;

use serde_json::Value;

/// By event's name and id: its begin and its end, in microseconds.
fn spans(trace: &str) -> BTreeMap<(String, String), (f64, f64)> {
    let list = trace.trim_end().trim_end_matches(',').to_owned() + "]";
    let events: Vec<Value> = serde_json::from_str(&list).unwrap();
    let mut spans = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let text = |field: &str| event[field].as_str().unwrap().to_owned();
        let name = (text("name"), text("id"));
        let at = event["ts"].as_f64().unwrap();
        match event["ph"].as_str() {
            Some("b") => assert!(spans.insert(name, (at, f64::NAN)).is_none(), "{event}"),
            _ => spans.get_mut(&name).expect("it has begun").1 = at,
        }
    }
    spans
}

#[test]
fn a_trace_has_each_request_at_both_ends() {
    for van in ["tcp", "shm"] {
        let path = support::folder(&format!("trace-{van}")).join("trace.json");
        let line = format!("bench latency --smoke --van {van} --op push,pull --sizes 8,100KiB");
        let mut bench = support::caravan(&line);
        let output = bench.env("CARAVAN_TRACE", &path).output().unwrap();
        assert!(output.status.success(), "{}", support::text(&output.stderr));
        let trace = std::fs::read_to_string(&path).unwrap();
        let spans = spans(&trace);
        for op in ["push", "pull"] {
            let asked: Vec<_> = spans.iter().filter(|((name, _), _)| name == op).collect();
            assert!(asked.len() > 10, "{van} {op}: {}", asked.len());
            for ((_, id), (posted, answered)) in asked {
                let (began, ended) = spans[&(format!("serve {op}"), id.clone())];
                let order = [*posted, began, ended, *answered];
                assert!(order.is_sorted(), "{van} {op} {id}: {order:?}");
            }
        }
    }
}

#[test]
fn a_log_has_each_message_where_it_is_asked_for() {
    let line = "bench latency --smoke --van tcp --op push --sizes 8";
    let said = |filter: &str| {
        let output = support::caravan(line).env("RUST_LOG", filter).output().unwrap();
        assert!(output.status.success());
        support::text(&output.stderr)
    };
    let messages = said("warn,caravan::messages=trace");
    for part in ["push to node", "push from node", "reply to node", "reply from node"] {
        assert!(messages.contains(part), "{part}");
    }
    assert!(!said("warn").contains("to node"));
}
