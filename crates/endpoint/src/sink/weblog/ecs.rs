//! Formatting of an HTTP exchange as an object of the Elastic Common Schema.
//!
//! Most field names are those of the field table (`Field::ecs`). Category, duration, outcome and
//! other derived fields are added here.

use crate::sink::message::MessageRecord;
use crate::timestamp_text::Rfc3339;
use filter::Time;
use serde_json::{Map, Value, json};
use wire::record::{self, Field, FieldType};

/// Version of the Elastic Common Schema.
const ECS_VERSION: &str = "8.11.0";

/// Returns the Elastic Common Schema object for an HTTP exchange. `time` is the time of the block
/// with the record, and is used if the record itself contains no time.
pub(super) fn exchange_object(record: &MessageRecord<'_>, time: Time) -> Value {
    let mut object = Map::new();
    for (field, value) in record.fields() {
        if let (Some(path), Some(value)) = (field.ecs(), field_value(record, field, value)) {
            insert_at_path(&mut object, path, value);
        }
    }
    let start = record.time().unwrap_or(time);
    let end = record.end_time().unwrap_or(time);
    let outcome = match record.number(Field::Status) {
        None => "unknown",
        Some(status) if status >= 400 => "failure",
        Some(_) => "success",
    };
    let derived = [
        ("@timestamp", json!(Rfc3339(start))),
        ("ecs.version", json!(ECS_VERSION)),
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
    for (path, value) in derived {
        insert_at_path(&mut object, path, value);
    }
    if let Some(address) = record.address(Field::Client) {
        let name = if address.is_ipv4() { "ipv4" } else { "ipv6" };
        insert_at_path(&mut object, "network.type", json!(name));
    }
    add_host(&mut object, record);
    add_url(&mut object, record);
    add_sizes(&mut object, record);
    Value::Object(object)
}

/// Converts the value of a record field to JSON. Returns `None` if it is malformed.
fn field_value(record: &MessageRecord<'_>, field: Field, value: &[u8]) -> Option<Value> {
    Some(match field.shape() {
        FieldType::Text => json!(String::from_utf8_lossy(value)),
        FieldType::RepeatedText => json!([String::from_utf8_lossy(value)]),
        FieldType::Number => json!(record::decode_number(value)?),
        FieldType::Flag => json!(record::decode_number(value)? != 0),
        FieldType::Time => json!(Rfc3339(record::decode_number(value)?)),
        FieldType::Address => json!(record.address(field)?),
    })
}

/// Adds `url.domain` (the host without its port) and `url.port`.
fn add_host(object: &mut Map<String, Value>, record: &MessageRecord<'_>) {
    let Some(host) = record.text(Field::Host).map(String::from_utf8_lossy) else { return };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, port.parse::<u16>().ok())
        }
        _ => (&*host, None),
    };
    insert_at_path(object, "url.domain", json!(name.trim_start_matches('[').trim_end_matches(']')));
    if let Some(port) = port {
        insert_at_path(object, "url.port", json!(port));
    }
}

/// Adds `url.path` and `url.query` if the request target is a path.
fn add_url(object: &mut Map<String, Value>, record: &MessageRecord<'_>) {
    let Some(target) = record.text(Field::Url).filter(|target| target.starts_with(b"/")) else {
        return;
    };
    let target = String::from_utf8_lossy(target);
    match target.split_once('?') {
        Some((path, query)) => {
            insert_at_path(object, "url.path", json!(path));
            insert_at_path(object, "url.query", json!(query));
        }
        None => insert_at_path(object, "url.path", json!(target)),
    }
}

/// Adds the sizes of the request and the response in bytes, each including its head and body. Omits
/// a size if the record does not contain the length of the head.
fn add_sizes(object: &mut Map<String, Value>, record: &MessageRecord<'_>) {
    for (path, head, body) in [
        ("http.request.bytes", Field::RequestHead, Field::RequestBody),
        ("http.response.bytes", Field::ResponseHead, Field::ResponseBody),
    ] {
        if let Some(head) = record.number(head) {
            let body = record.number(body).unwrap_or(0);
            insert_at_path(object, path, json!(head.saturating_add(body)));
        }
    }
}

/// Inserts a value at a dotted path, and creates the objects on the path. Does nothing if the path
/// leads through a value that is not an object.
fn insert_at_path(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            object.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = object.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert_at_path(inner, rest, value);
            }
        }
    }
}
