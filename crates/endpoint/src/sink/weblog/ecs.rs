//! An exchange as an object of the Elastic Common Schema.
//!
//! The names come from the table of fields (`Field::ecs`); what the schema wants beside them
//! (category, duration, outcome) is added here.

use crate::clock::Rfc3339;
use crate::sink::told::Told;
use filter::Time;
use serde_json::{Map, Value, json};
use wire::record::{self, Field, FieldType};

/// The version of the schema whose names these are.
const VERSION: &str = "8.11.0";

/// The object of an exchange whose block has this time.
pub(super) fn object(told: &Told<'_>, time: Time) -> Value {
    let mut object = Map::new();
    for (field, value) in told.all() {
        if let (Some(path), Some(value)) = (field.ecs(), shown(told, field, value)) {
            put(&mut object, path, value);
        }
    }
    let start = told.time().unwrap_or(time);
    let end = told.end().unwrap_or(time);
    let outcome = match told.number(Field::Status) {
        None => "unknown",
        Some(status) if status >= 400 => "failure",
        Some(_) => "success",
    };
    let about = [
        ("@timestamp", json!(Rfc3339(start))),
        ("ecs.version", json!(VERSION)),
        ("event.kind", json!("event")),
        ("event.category", json!(["web"])),
        ("event.type", json!(["access"])),
        ("event.outcome", json!(outcome)),
        ("event.start", json!(Rfc3339(start))),
        ("event.end", json!(Rfc3339(end))),
        ("event.duration", json!(end.saturating_sub(start))),
        ("network.protocol", json!("http")),
        ("network.transport", json!("tcp")),
    ];
    for (path, value) in about {
        put(&mut object, path, value);
    }
    if let Some(address) = told.address(Field::Client) {
        let name = if address.is_ipv4() { "ipv4" } else { "ipv6" };
        put(&mut object, "network.type", json!(name));
    }
    host(&mut object, told);
    url(&mut object, told);
    bytes(&mut object, told);
    Value::Object(object)
}

/// The value of a field; nothing if it cannot be read.
fn shown(told: &Told<'_>, field: Field, value: &[u8]) -> Option<Value> {
    Some(match field.shape() {
        FieldType::Text => json!(String::from_utf8_lossy(value)),
        FieldType::List => json!([String::from_utf8_lossy(value)]),
        FieldType::Number => json!(record::number(value)?),
        FieldType::Flag => json!(record::number(value)? != 0),
        FieldType::Time => json!(Rfc3339(record::number(value)?)),
        FieldType::Address => json!(told.address(field)?),
    })
}

/// `url.domain` is the host without its port.
fn host(object: &mut Map<String, Value>, told: &Told<'_>) {
    let Some(host) = told.text(Field::Host).map(String::from_utf8_lossy) else { return };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, port.parse::<u16>().ok())
        }
        _ => (&*host, None),
    };
    put(object, "url.domain", json!(name.trim_start_matches('[').trim_end_matches(']')));
    if let Some(port) = port {
        put(object, "url.port", json!(port));
    }
}

/// `url.path` and `url.query`, where the request names a path.
fn url(object: &mut Map<String, Value>, told: &Told<'_>) {
    let Some(target) = told.text(Field::Url).filter(|target| target.starts_with(b"/")) else {
        return;
    };
    let target = String::from_utf8_lossy(target);
    match target.split_once('?') {
        Some((path, query)) => {
            put(object, "url.path", json!(path));
            put(object, "url.query", json!(query));
        }
        None => put(object, "url.path", json!(target)),
    }
}

/// Adds the total bytes of each message.
fn bytes(object: &mut Map<String, Value>, told: &Told<'_>) {
    for (path, head, body) in [
        ("http.request.bytes", Field::RequestHead, Field::RequestBody),
        ("http.response.bytes", Field::ResponseHead, Field::ResponseBody),
    ] {
        if let Some(head) = told.number(head) {
            let body = told.number(body).unwrap_or(0);
            put(object, path, json!(head.saturating_add(body)));
        }
    }
}

/// Puts a value where a dotted path says.
fn put(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            object.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = object.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}
