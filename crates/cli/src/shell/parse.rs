//! Parser for shell commands that are plain pipelines.
//!
//! A plain pipeline consists of simple commands separated by `|`. A command of literal words is
//! executed directly. A builtin, or a command with an assignment, expansion or redirection, is
//! executed by a separate shell. Any other text (lists, compound commands, comments,
//! here-documents) is not a plain pipeline, and `/bin/sh` runs it unchanged. The same is true of
//! ambiguous texts: a pipeline over kernel pipes is slower, but cannot differ in meaning.

/// One command of a shell pipeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// A program with its arguments, which is executed directly.
    Program(Vec<String>),
    /// A command that needs a shell, which executes it.
    Shell {
        /// The text of the command, as written in the pipeline.
        text: String,
        /// First word of the text if it is a literal program name and not a builtin, otherwise
        /// `None`.
        program: Option<String>,
    },
}

/// Shell builtins that differ from the program of the same name, or that have no such program.
const BUILTINS: &[&str] = &[
    ".", ":", "[", "alias", "bg", "break", "cd", "chdir", "command", "continue", "echo", "eval",
    "exec", "exit", "export", "false", "fg", "getopts", "hash", "jobs", "kill", "local", "printf",
    "pwd", "read", "readonly", "return", "set", "shift", "source", "test", "time", "times", "trap",
    "true", "type", "ulimit", "umask", "unalias", "unset", "wait",
];
/// Reserved words of the shell that start or continue compound commands.
const RESERVED_WORDS: &[&str] = &[
    "!", "case", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "select",
    "then", "until", "while", "{", "}", "[[",
];

/// Splits a plain pipeline into stages. Fails with the reason why the text is not a plain pipeline.
pub(super) fn parse_pipeline(text: &str) -> Result<Vec<Stage>, String> {
    let text = join_continued_lines(text);
    split_at_pipes(trim_blanks(&text))?.into_iter().map(parse_stage).collect()
}

/// Removes each backslash-newline pair outside single quotes, as a shell does. Within a comment, a
/// shell would keep the pair, but a text with a comment is not a plain pipeline.
fn join_continued_lines(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None | Some('"'), '\\') => {
                match letters.next() {
                    Some('\n') => {}
                    escaped => joined.extend(Some('\\').into_iter().chain(escaped)),
                }
                continue;
            }
            _ => {}
        }
        joined.push(letter);
    }
    joined
}

/// Returns true if a shell separates words at this character. A shell treats any other white space,
/// such as a carriage return or a no-break space, as part of a word.
fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n')
}

/// Removes blanks from both ends of a command, except an escaped blank at the end.
fn trim_blanks(text: &str) -> &str {
    let text = text.trim_start_matches(is_blank);
    let end = text.trim_end_matches(is_blank);
    let backslashes = end.len() - end.trim_end_matches('\\').len();
    // An odd number of backslashes escapes the following blank, which has one byte.
    text.get(..end.len() + backslashes % 2).unwrap_or(text)
}

/// Splits at each `|` outside quotes. Fails with the reason why the text is not a plain pipeline.
fn split_at_pipes(text: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut from, mut last) = (0, ' ');
    let mut quote = None;
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => drop(letters.next()),
            (_, '`') => return Err("it holds `…`".into()),
            (_, '$') => check_expansion(text.get(at + 1..).unwrap_or_default(), quote)?,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, '(' | ')') => return Err("it holds parentheses".into()),
            (None, ';' | '\n') => return Err("it contains several commands".into()),
            // An `&` after `>` or `<` is part of a redirection, such as `2>&1`.
            (None, '&') if last != '>' && last != '<' => return Err("it holds `&`".into()),
            (None, '<') if letters.peek().is_some_and(|(_, next)| *next == '<') => {
                return Err("it holds a here-document".into());
            }
            (None, '#') if is_blank(last) || "|<>".contains(last) => {
                return Err("it holds a comment".into());
            }
            (None, '|') if last == '>' => {}
            (None, '|') => {
                if letters.peek().is_some_and(|(_, next)| matches!(next, '|' | '&')) {
                    return Err("it holds `||` or `|&`".into());
                }
                parts.push(text.get(from..at).unwrap_or_default());
                from = at + 1;
            }
            (None, _) => {}
        }
        last = letter;
    }
    if quote.is_some() {
        return Err("a quote is never closed".into());
    }
    parts.push(text.get(from..).unwrap_or_default());
    Ok(parts)
}

/// Fails if the text after a `$` is an expansion that can itself contain quotes or a `|`, such as
/// `${x:-a|b}` or `"$(a "b")"`.
fn check_expansion(after: &str, quote: Option<char>) -> Result<(), String> {
    if let Some(braced) = after.strip_prefix('{') {
        let name = braced.split('}').next().unwrap_or_default();
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err("it holds an expansion with an operator".into());
        }
    }
    if quote.is_some() && after.starts_with('(') {
        return Err("it holds `$(…)`".into());
    }
    if quote.is_none() && after.starts_with(['\'', '"']) {
        return Err("it holds quotes after `$`".into());
    }
    Ok(())
}

fn parse_stage(text: &str) -> Result<Stage, String> {
    let text = trim_blanks(text);
    if text.is_empty() {
        return Err("a command is missing".into());
    }
    let first: String = text.chars().take_while(|c| !is_blank(*c)).collect();
    if RESERVED_WORDS.contains(&first.as_str()) {
        return Err(format!("`{first}` begins a compound command"));
    }
    let plain = literal_words(text).filter(|words| {
        words.first().is_some_and(|word| !BUILTINS.contains(&word.as_str()) && !word.contains('='))
    });
    Ok(plain.map_or_else(
        || {
            let simple = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
            let named = first.chars().all(simple)
                && !first.starts_with('-')
                && !BUILTINS.contains(&first.as_str());
            Stage::Shell { text: text.to_owned(), program: named.then_some(first) }
        },
        Stage::Program,
    ))
}

/// Returns the words of a command without their quotes, or `None` if it needs expansion or
/// redirection.
fn literal_words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            c if is_blank(c) => words.extend(word.take()),
            '\'' => loop {
                let word = word.get_or_insert_default();
                match letters.next()? {
                    '\'' => break,
                    c => word.push(c),
                }
            },
            '"' => loop {
                let word = word.get_or_insert_default();
                match letters.next()? {
                    '"' => break,
                    '$' => return None,
                    '\\' => match letters.next()? {
                        '\n' => {}
                        c @ ('"' | '\\' | '$' | '`') => word.push(c),
                        c => word.extend(['\\', c]),
                    },
                    c => word.push(c),
                }
            },
            '\\' => word.get_or_insert_default().push(letters.next().filter(|c| *c != '\n')?),
            '$' | '*' | '?' | '[' | '<' | '>' | '&' | '{' => return None,
            '~' if word.is_none() => return None,
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program_stage(words: &[&str]) -> Stage {
        Stage::Program(words.iter().map(|word| (*word).to_owned()).collect())
    }

    fn shell_stage(text: &str, program: Option<&str>) -> Stage {
        Stage::Shell { text: text.to_owned(), program: program.map(str::to_owned) }
    }

    #[test]
    fn literal_commands_are_split_into_words() {
        let stages = parse_pipeline("cat f | grep 'a | b' | wc -l\n").unwrap();
        assert_eq!(
            stages,
            [
                program_stage(&["cat", "f"]),
                program_stage(&["grep", "a | b"]),
                program_stage(&["wc", "-l"])
            ]
        );
        assert_eq!(
            parse_pipeline(r#"a "b \"c\" \d" e\ f '' "" x''y"#).unwrap(),
            [program_stage(&["a", r#"b "c" \d"#, "e f", "", "", "xy"])]
        );
    }

    #[test]
    fn continued_lines_are_one_command() {
        let stages = parse_pipeline("cat f \\\n  | gr\\\nep \"x\\\ny\" 'z\\\n' \\\n").unwrap();
        let grep = program_stage(&["grep", "xy", "z\\\n"]);
        assert_eq!(stages, [program_stage(&["cat", "f"]), grep]);
    }

    #[test]
    fn words_end_only_at_blanks_of_the_shell() {
        let stages = parse_pipeline("a b\u{a0}c\rd | e f\r\n").unwrap();
        assert_eq!(stages, [program_stage(&["a", "b\u{a0}c\rd"]), program_stage(&["e", "f\r"])]);
        let stages = parse_pipeline(r"a b\ | c $d\ | e f\\ ").unwrap();
        let shell = shell_stage(r"c $d\ ", Some("c"));
        assert_eq!(stages, [program_stage(&["a", "b "]), shell, program_stage(&["e", r"f\"])]);
    }

    #[test]
    fn command_with_expansion_goes_to_a_shell() {
        assert_eq!(
            parse_pipeline("cat $F | grep x > out 2>&1").unwrap(),
            [shell_stage("cat $F", Some("cat")), shell_stage("grep x > out 2>&1", Some("grep"))]
        );
        assert_eq!(
            parse_pipeline("A=1 sort *.txt | echo a").unwrap(),
            [shell_stage("A=1 sort *.txt", None), shell_stage("echo a", None)]
        );
        assert_eq!(
            parse_pipeline("a ${F}x | b \"$F $\"").unwrap(),
            [shell_stage("a ${F}x", Some("a")), shell_stage("b \"$F $\"", Some("b"))]
        );
        assert_eq!(parse_pipeline("a ~/x | b >| c").unwrap()[1], shell_stage("b >| c", Some("b")));
    }

    #[test]
    fn lists_and_compound_commands_are_not_plain() {
        for text in [
            "a; b",
            "a && b",
            "a || b",
            "a & b",
            "(a | b)",
            "a | while read l; do b; done",
            "a |",
            "| a",
            "a `b`",
            "a $(b)",
            "a # b",
            "a <<E",
            "a 'b",
            "! a | b",
            "a | { b; }",
            "",
            "a |& b",
            "a ${x:-b|c} | d",
            "a \"${x:-\"b|c\"}\" | d",
            "a \"$(b \"c|d\")\" | e",
            "a $'b' | c",
            "a >#b | c",
        ] {
            assert!(parse_pipeline(text).is_err(), "{text}");
        }
    }
}
