//! Validates JSON outputs against the published schemas with the Python module `jsonschema`.

use super::CommandResult;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::need;

/// Python program that validates lines `NAME OBJECT` against the schemas in a directory. A field
/// that is missing in the schema is an error here, although readers of the format must accept such
/// fields.
const VALIDATOR_SCRIPT: &str = r#"
import json, sys
from jsonschema import Draft202012Validator
def close(part):
    if isinstance(part, dict):
        if 'properties' in part: part.setdefault('additionalProperties', False)
        for inner in part.values(): close(inner)
    elif isinstance(part, list):
        for inner in part: close(inner)
schemas = {}
for line in sys.stdin:
    name, _, text = line.partition(' ')
    if name not in schemas:
        schema = json.load(open(f'{sys.argv[1]}/{name}.v1.json'))
        Draft202012Validator.check_schema(schema)
        close(schema)
        schemas[name] = Draft202012Validator(schema)
    for error in schemas[name].iter_errors(json.loads(text)):
        print(name, list(error.absolute_path), error.message[:300])
print('checked', *sorted(schemas))
"#;

/// Validates JSON outputs, each given with the name of its schema. Returns one line for each error,
/// followed by the line `checked NAME …`. Reports a skip and returns `None` if `jsonschema` is not
/// installed.
pub(crate) fn validate_outputs(outputs: &[(&str, String)]) -> Option<String> {
    // Python modules of the distribution are available only to the interpreter of the distribution.
    let python = Path::new("/usr/bin/python3");
    let tried = Command::new(python).args(["-c", "import jsonschema"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        return need::report_skip("needs the Python module jsonschema");
    }
    let schemas = testkit::cases::workspace_root().join("docs/schema");
    let mut judge = Command::new(python);
    judge.args(["-c", VALIDATOR_SCRIPT]).arg(schemas);
    judge.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut judge = judge.spawn().unwrap();
    let mut input = judge.stdin.take().unwrap();
    for (name, text) in outputs {
        let objects = text.lines().filter(|line| line.starts_with('{'));
        let mut count = 0;
        for object in objects {
            writeln!(input, "{name} {object}").unwrap();
            count += 1;
        }
        assert!(count > 0, "{name} has no object: {text}");
    }
    drop(input);
    let judged = CommandResult::from(judge.wait_with_output().unwrap());
    assert_eq!(judged.status, Some(0), "{}", judged.err);
    Some(judged.out)
}
