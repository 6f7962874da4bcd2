//! `streamline schema`: prints the JSON schemas of the outputs of `--json`.

use crate::status::Status;
use crate::terminal;
use abi::text::VisibleText;
use pipeline::language::find_nearest_word;

/// All schemas, each with its name, the output that it describes, and its text.
const SCHEMAS: &[(&str, &str, &str)] = &[
    ("check", "check --json", include_str!("../../../docs/schema/check.v1.json")),
    ("doctor", "doctor --json", include_str!("../../../docs/schema/doctor.v1.json")),
    (
        "doctor-subject",
        "doctor rx|tx|kernel --json",
        include_str!("../../../docs/schema/doctor-subject.v1.json"),
    ),
    ("examples", "examples --json", include_str!("../../../docs/schema/examples.v1.json")),
    ("explain", "explain --json", include_str!("../../../docs/schema/explain.v1.json")),
    ("filters", "filters --json", include_str!("../../../docs/schema/filters.v1.json")),
    (
        "line-end",
        "run --json, reports on standard output",
        include_str!("../../../docs/schema/line-end.v1.json"),
    ),
    ("log", "daemon --log=json", include_str!("../../../docs/schema/log.v1.json")),
    ("ps", "ps --json", include_str!("../../../docs/schema/ps.v1.json")),
    ("run", "run --json, the report", include_str!("../../../docs/schema/run.v1.json")),
    ("set", "set --json", include_str!("../../../docs/schema/set.v1.json")),
    ("spaces", "spaces --json", include_str!("../../../docs/schema/spaces.v1.json")),
    ("start", "start --json", include_str!("../../../docs/schema/start.v1.json")),
    ("state", "state --json NAME", include_str!("../../../docs/schema/state.v1.json")),
    ("states", "state --json", include_str!("../../../docs/schema/states.v1.json")),
    ("stop", "stop --json", include_str!("../../../docs/schema/stop.v1.json")),
    ("top", "top --json PATH", include_str!("../../../docs/schema/top.v1.json")),
    ("why", "why --json", include_str!("../../../docs/schema/why.v1.json")),
];

/// Prints the names of all schemas, one per line.
pub(crate) fn print_schema_names() -> Status {
    terminal::print_text(&schema_names().map(|name| format!("{name}\n")).collect::<String>())
}

/// Returns the names of all schemas.
fn schema_names() -> impl Iterator<Item = &'static str> {
    SCHEMAS.iter().map(|(name, _, _)| *name)
}

/// Prints the schema called `name`, or lists all schemas if `name` is `None`.
pub(crate) fn print_schema(name: Option<&str>) -> Status {
    let Some(name) = name else {
        let line =
            |(name, output, _): &(&str, &str, &str)| format!("  {name:14}  streamline {output}\n");
        return terminal::print_text(&SCHEMAS.iter().map(line).collect::<String>());
    };
    match SCHEMAS.iter().find(|(known, _, _)| *known == name) {
        Some((_, _, text)) => terminal::print_text(text),
        None => {
            let meant = find_nearest_word(name, schema_names());
            let hint = meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
            terminal::print_error(&format!("no schema is called `{}`{hint}", VisibleText(name)));
            terminal::print_note("`streamline schema` lists all");
            Status::NotFound
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::CommandFactory;

    #[test]
    fn each_command_with_json_has_a_schema() {
        let command = Arguments::command();
        let json = |command: &&clap::Command| {
            command.get_arguments().any(|argument| argument.get_long() == Some("json"))
        };
        let names: Vec<&str> =
            command.get_subcommands().filter(json).map(clap::Command::get_name).collect();
        assert!(names.len() >= 10, "{names:?}");
        for name in names {
            let known = SCHEMAS.iter().any(|(known, _, _)| *known == name);
            assert!(known, "`{name} --json` has no schema");
        }
    }
}
