//! The rules for links in documents: each link leads to an existing file and, if it names a
//! heading, to an existing heading; and links in the book stay within the book, which is also
//! published alone.

use super::documents::prose_lines;
use super::findings::{Finding, Findings};
use super::tree::{File, Tree};
use std::collections::HashMap;

/// Directory of the book's pages.
const BOOK_DIRECTORY: &str = "docs/book/";

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let mut anchors: HashMap<&str, Vec<String>> = HashMap::new();
    for file in tree.files.iter().filter(|file| file.has_extension("md")) {
        anchors.insert(&file.path, heading_anchors(&file.text));
    }
    for file in tree.files.iter().filter(|file| file.has_extension("md")) {
        for (number, line) in prose_lines(&file.text) {
            for link in link_targets(line) {
                if let Some(what) = link_fault(tree, &anchors, file, link) {
                    found.push(Finding::at_line("paths", file, number, what));
                }
            }
        }
    }
}

/// Returns the targets of the links `[text](target)` in a line, if they lead to files.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target).filter(|target| !target.contains([':', ' ']))
}

/// Returns a description of the mistake in a link of `file`, or `None` if the link is correct.
/// `anchors` contains the heading anchors of each document.
fn link_fault(
    tree: &Tree,
    anchors: &HashMap<&str, Vec<String>>,
    file: &File,
    link: &str,
) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = match path {
        "" => file.path.clone(),
        path => resolve_path(folder, path),
    };
    if !tree.has_path(&path) {
        return Some(format!("the link leads to `{path}`, which does not exist"));
    }
    if file.path.starts_with(BOOK_DIRECTORY) && !path.starts_with(BOOK_DIRECTORY) {
        return Some(format!("the link leads out of the book, to `{path}`; write the path alone"));
    }
    let headings = anchors.get(path.as_str())?;
    (!anchor.is_empty() && !headings.iter().any(|heading| heading == anchor))
        .then(|| format!("`{path}` has no heading with the anchor `#{anchor}`"))
}

fn resolve_path(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors of the headings of a document, as mdBook and the usual forges form them: the
/// words in lower case, without punctuation, with hyphens for spaces. The anchor of the second
/// heading with the same words ends with `-1`.
pub(super) fn heading_anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut uses: HashMap<String, usize> = HashMap::new();
    for (_, line) in prose_lines(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let words = without_link_targets(heading.trim());
        let letters = words.chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            letter => letter.is_alphanumeric().then(|| letter.to_ascii_lowercase()),
        });
        let anchor: String = letters.collect();
        let earlier = uses.entry(anchor.clone()).or_default();
        anchors.push(match *earlier {
            0 => anchor,
            number => format!("{anchor}-{number}"),
        });
        *earlier += 1;
    }
    anchors
}

/// Replaces each Markdown link in a heading with the text of the link.
fn without_link_targets(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text + rest
}
