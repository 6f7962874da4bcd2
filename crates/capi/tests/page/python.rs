//! The book's page that lists the Python interface, generated from the docstrings in the module.

use std::fmt::Write as _;

/// A public class, function or method of the module.
struct PythonDefinition {
    /// Name; for a method, preceded by the class name.
    name: String,
    signature: String,
    docstring: String,
}

/// Formats the page of a module, whose lines are indented by 4 spaces for each level. Fails if a
/// public definition has no docstring.
pub(crate) fn to_markdown(module: &str) -> Result<String, String> {
    let mut page = String::from(
        "# The Python interface\n\nThis page is made of the docstrings in `streamline.py`, whose \
         examples a test runs in `examples`. [In a\nprogram](13-library.md) says what a request \
         beside a program does.\n",
    );
    write_docstring(&mut page, &docstring_at(&module.lines().collect::<Vec<_>>()));
    for definition in public_definitions(module) {
        let PythonDefinition { name, signature, docstring } = definition;
        if docstring.is_empty() {
            return Err(format!("`{name}` has no docstring"));
        }
        let level = if name.contains('.') { "###" } else { "##" };
        let _ = write!(page, "\n{level} {name}\n\n```python\n{signature}\n```\n");
        write_docstring(&mut page, &docstring);
    }
    Ok(page)
}

/// Returns the public definitions in the order of the module.
fn public_definitions(module: &str) -> Vec<PythonDefinition> {
    let lines: Vec<&str> = module.lines().collect();
    let mut found = Vec::new();
    let mut class = "";
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let is_member = code.len() < line.len();
        let Some((kind, rest)) = code.split_once(' ') else { continue };
        let name = rest.split(['(', ':']).next().unwrap_or_default();
        if !["class", "def"].contains(&kind) {
            continue;
        }
        if !is_member {
            class = if kind == "class" { name } else { "" };
        }
        if name.starts_with('_') || class.starts_with('_') || line.starts_with("     ") {
            continue;
        }
        let name = if is_member { format!("{class}.{name}") } else { name.to_owned() };
        let docstring = docstring_at(&lines[at + 1..]);
        found.push(PythonDefinition {
            name,
            signature: code.trim_end_matches(':').to_owned(),
            docstring,
        });
    }
    found
}

/// Returns the docstring that begins in the first of these lines, without its indentation; empty if
/// there is none.
fn docstring_at(lines: &[&str]) -> String {
    const TRIPLE_QUOTES: &str = "\"\"\"";
    let Some(first) = lines.first() else { return String::new() };
    let Some(text) = first.trim_start().strip_prefix(TRIPLE_QUOTES) else { return String::new() };
    let indent = first.len() - first.trim_start().len();
    if let Some((text, _)) = text.split_once(TRIPLE_QUOTES) {
        return text.to_owned();
    }
    let mut docstring = text.to_owned();
    for line in &lines[1..] {
        let line = line.get(indent..).unwrap_or_default();
        let (text, is_last) = match line.split_once(TRIPLE_QUOTES) {
            Some((text, _)) => (text, true),
            None => (line, false),
        };
        docstring = format!("{docstring}\n{text}");
        if is_last {
            break;
        }
    }
    docstring.trim_end().to_owned()
}

/// Writes the paragraphs of a docstring: indented ones as code, and lines of the form `parameter:
/// …` as a list.
fn write_docstring(page: &mut String, docstring: &str) {
    for paragraph in docstring.split("\n\n") {
        if paragraph.starts_with("    ") {
            let code = paragraph.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
            let code = code.collect::<Vec<_>>().join("\n");
            let _ = write!(page, "\n```python\n{code}\n```\n");
            continue;
        }
        page.push('\n');
        for line in paragraph.lines() {
            let parameter = line.split_once(": ").filter(|(name, _)| !name.contains(' '));
            let _ = match parameter {
                Some((name, text)) => writeln!(page, "- `{name}`: {text}"),
                None => writeln!(page, "{line}"),
            };
        }
    }
}
