//! The book's page that lists the C interface, generated from the comments in the header.

pub(crate) mod python;

use std::fmt::Write as _;

/// A function, a constant or a field, with its comment.
pub(crate) struct Item {
    pub(crate) name: String,
    /// Declaration of a function, value of a constant, type of a field.
    pub(crate) declaration: String,
    comment: String,
}

/// A structure with its comment.
struct CStructure {
    name: String,
    comment: String,
    fields: Vec<Item>,
}

/// The contents of the C header that cbindgen has generated.
#[derive(Default)]
pub(crate) struct Header {
    introduction: String,
    constants: Vec<Item>,
    structures: Vec<CStructure>,
    pub(crate) functions: Vec<Item>,
}

impl Header {
    /// Parses the text of a header.
    pub(crate) fn parse(text: &str) -> Self {
        let mut header = Self::default();
        for block in text.split("/*").skip(1) {
            let Some((comment, code)) = block.split_once("*/") else { continue };
            let comment = comment.lines().map(|line| line.trim_start_matches([' ', '*']));
            let comment = comment.collect::<Vec<_>>().join("\n").trim().to_owned();
            header.add(comment, code);
        }
        let introduction = text.split_once("*/").map_or("", |(comment, _)| comment);
        let lines = introduction.lines().skip(1);
        let lines = lines.map(|line| line.strip_prefix(" *").unwrap_or(line));
        let lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line));
        header.introduction = lines.collect::<Vec<_>>().join("\n").trim_end().to_owned();
        header
    }

    /// Adds the item that is declared after a comment.
    fn add(&mut self, comment: String, code: &str) {
        let code = code.trim_start();
        if let Some(rest) = code.strip_prefix("#define ") {
            let line = rest.lines().next().unwrap_or_default();
            if let Some((name, value)) = line.split_once(' ') {
                self.constants.push(item(name, value, comment));
            }
        } else if let Some(rest) = code.strip_prefix("typedef struct ") {
            let name = rest.split(' ').next().unwrap_or_default().to_owned();
            self.structures.push(CStructure { name, comment, fields: Vec::new() });
        } else if let Some((declaration, _)) = code.split_once(';') {
            let Some((head, _)) = declaration.split_once('(') else {
                let (kind, name) = declaration.rsplit_once([' ', '*']).unwrap_or_default();
                let pointer = if declaration.contains('*') { " *" } else { "" };
                let kind = format!("{}{pointer}", kind.trim_end_matches([' ', '*']));
                if let Some(structure) = self.structures.last_mut() {
                    structure.fields.push(item(name, &kind, comment));
                }
                return;
            };
            let name = head.rsplit([' ', '*']).next().unwrap_or_default();
            self.functions.push(item(name, &format!("{declaration};"), comment));
        }
    }

    /// Returns the names of the items without a complete comment.
    pub(crate) fn undocumented_items(&self) -> Vec<String> {
        let fields = self.structures.iter().flat_map(|structure| &structure.fields);
        let items = self.constants.iter().chain(fields).chain(&self.functions);
        let silent = items.filter(|item| !item.comment.trim_end().ends_with('.'));
        silent.map(|item| item.name.clone()).collect()
    }

    /// Formats the page.
    pub(crate) fn to_markdown(&self) -> String {
        let mut page = String::from(
            "# The C interface\n\nThis page is made of the comments in `streamline.h`, which is \
             made of the code. [From C](buffers/c.md)\nexplains streams with examples, [In a \
             program](13-library.md) requests.\n\n",
        );
        self.write_page_introduction(&mut page);
        page += "\n## Index\n\n| function | |\n|---|---|\n";
        for function in &self.functions {
            let (name, sentence) = (&function.name, first_sentence(&function.comment));
            let _ = writeln!(page, "| [`{name}`](#{name}) | {} |", self.table_cell(sentence));
        }
        page += "\n## Constants\n\n| constant | value | |\n|---|---|---|\n";
        for constant in &self.constants {
            let text = self.table_cell(&constant.comment);
            let _ = writeln!(page, "| `{}` | {} | {text} |", constant.name, constant.declaration);
        }
        for structure in &self.structures {
            let text = self.paragraph_to_markdown(&structure.comment);
            let _ = writeln!(page, "\n## struct {}\n\n{text}\n", structure.name);
            page += "| field | type | |\n|---|---|---|\n";
            for field in &structure.fields {
                let text = self.table_cell(&field.comment);
                let _ = writeln!(page, "| `{}` | `{}` | {text} |", field.name, field.declaration);
            }
        }
        page += "\n## Functions\n";
        for function in &self.functions {
            let _ =
                writeln!(page, "\n### {}\n\n```c\n{}\n```", function.name, function.declaration);
            for paragraph in function.comment.split("\n\n") {
                let _ = writeln!(page, "\n{}", self.paragraph_to_markdown(paragraph));
            }
        }
        page
    }

    /// Converts the comment of an item to the text of a cell in a Markdown table.
    fn table_cell(&self, text: &str) -> String {
        self.paragraph_to_markdown(text).replace('|', "\\|")
    }

    /// Writes the introduction of the page from the comment at the top of the header. The first
    /// word of each paragraph is bold. Indented lines become code, or a table if they describe
    /// values of `errno`.
    fn write_page_introduction(&self, page: &mut String) {
        let mut in_table = false;
        for paragraph in self.introduction.split("\n\n").skip(1) {
            let indented = paragraph.starts_with("    ");
            if indented && paragraph.trim_start().starts_with('E') {
                *page += "| errno | |\n|---|---|\n";
                for line in paragraph.lines() {
                    let (name, text) = line.trim().split_once(' ').unwrap_or_default();
                    let _ = writeln!(page, "| {name} | {} |", self.table_cell(text.trim()));
                }
                *page += "\n";
                in_table = true;
                continue;
            }
            if indented {
                let _ = writeln!(page, "```console\n$ {}\n```\n", paragraph.trim());
                continue;
            }
            let (word, rest) = paragraph.split_once(". ").unwrap_or(("", paragraph));
            let _ = writeln!(page, "**{word}.** {}\n", self.paragraph_to_markdown(rest));
        }
        assert!(in_table, "the header explains no errno");
        page.truncate(page.trim_end().len());
        *page += "\n";
    }

    /// Converts a paragraph of a comment to Markdown, in which functions are links.
    fn paragraph_to_markdown(&self, text: &str) -> String {
        let words = text.split_whitespace().map(|word| {
            let linked = self.functions.iter().find_map(|function| {
                let call = format!("{}()", function.name);
                let (before, after) = word.split_once(call.as_str())?;
                let link = format!("[`{call}`](#{})", function.name);
                before.is_empty().then(|| format!("{link}{after}"))
            });
            linked.unwrap_or_else(|| match word.strip_prefix(['*', '_']) {
                Some(_) => format!("\\{word}"),
                None => word.to_owned(),
            })
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

fn item(name: &str, declaration: &str, comment: String) -> Item {
    Item { name: name.to_owned(), declaration: declaration.trim().to_owned(), comment }
}

/// Returns a comment up to the first full stop at the end of a word.
fn first_sentence(comment: &str) -> &str {
    let end = comment.find(". ").or_else(|| comment.find(".\n"));
    end.map_or(comment, |end| &comment[..=end])
}
