//! `streamline man`: prints or writes the manual, which is generated from the same definitions as
//! help and completion.
//!
//! Section 1 has a page for the program and one for each command; section 7 has one page for all
//! filters, sources and sinks.

use crate::arguments::{ABOUT_TEXT, Arguments, EXIT_STATUS_HELP, FIRST_EXAMPLES, ManArguments};
use crate::filters;
use crate::status::Status;
use crate::terminal;
use abi::text::VisibleText;
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use pipeline::explain::{self, HelpPage};
use pipeline::language::find_nearest_word;
use std::fs;
use std::io;
use std::path::Path;

/// Name of the page about filters, sources and sinks.
const FILTERS_PAGE_NAME: &str = "streamline-filters";
/// Title in the header of all manual pages.
const MANUAL_TITLE: &str = "Streamline";

/// Date of all manual pages. It is empty, because the contents of a page depend only on the version
/// of the program.
const NO_DATE: &str = "\"\"";

/// A manual page in roff.
struct ManualPage {
    name: String,
    section: &'static str,
    text: String,
}

/// Prints a page, or writes all pages into a directory.
pub(crate) fn man(arguments: &ManArguments) -> Status {
    let sheets = match generate_pages() {
        Ok(sheets) => sheets,
        Err(error) => return print_error("the manual", &error),
    };
    if let Some(folder) = &arguments.into {
        return match write_pages(folder, &sheets) {
            Ok(()) => Status::Done,
            Err(error) => print_error(&folder.display().to_string(), &error),
        };
    }
    let wanted = arguments.page.as_deref().unwrap_or_default();
    let wanted = wanted.trim_start_matches("streamline").trim_start_matches('-');
    // The search is in reverse order, so that `filters` selects the page in section 7 and not the
    // page of the command `filters`.
    match sheets.iter().rev().find(|sheet| sheet.short_name() == wanted) {
        Some(sheet) => terminal::print_text(&sheet.text),
        None => {
            let names = sheets.iter().map(ManualPage::short_name).filter(|name| !name.is_empty());
            let hint = find_nearest_word(wanted, names)
                .map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
            let wanted = VisibleText(wanted);
            terminal::print_error(&format!("the manual has no page `{wanted}`{hint}"));
            terminal::print_note(
                "`streamline man --into FOLDER` writes all pages; `filters` lists filters",
            );
            Status::NotFound
        }
    }
}

impl ManualPage {
    /// Returns the name of the page without the prefix `streamline-`.
    fn short_name(&self) -> &str {
        self.name.trim_start_matches("streamline").trim_start_matches('-')
    }
}

fn print_error(what: &str, error: &io::Error) -> Status {
    terminal::print_error(&format!("cannot write {what}: {error}"));
    Status::Failed
}

fn write_pages(folder: &Path, sheets: &[ManualPage]) -> io::Result<()> {
    for sheet in sheets {
        let folder = folder.join(format!("man{}", sheet.section));
        fs::create_dir_all(&folder)?;
        let file = folder.join(format!("{}.{}", sheet.name, sheet.section));
        sys::replace::replace_file(&file, sheet.text.as_bytes())?;
    }
    Ok(())
}

/// Generates all pages of the manual.
fn generate_pages() -> io::Result<Vec<ManualPage>> {
    let mut whole = Arguments::command()
        .about("run a request over packets, files or streams")
        .long_about(ABOUT_TEXT)
        .override_usage("streamline COMMAND\nstreamline 'REQUEST'");
    whole.build();
    let mut sheets = vec![command_page(&whole, true)?];
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        sheets.push(command_page(command, false)?);
    }
    sheets.push(filters_page());
    Ok(sheets)
}

/// Generates the manual page of a command, or of the whole program if `whole` is true.
fn command_page(command: &clap::Command, whole: bool) -> io::Result<ManualPage> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page =
        Man::new(command.clone()).date(NO_DATE).source(program_version()).manual(MANUAL_TITLE);
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    if command.get_arguments().any(|known| !known.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    if whole {
        page.render_subcommands_section(&mut text)?;
    }
    let mut more = Roff::new();
    // The after-help, which contains the options of a request, is formatted for terminals, so it is
    // formatted again in roff.
    if command.get_after_help().is_some() {
        more.control("SH", [explain::OPTIONS_TITLE.to_uppercase().as_str()]);
        for (word, help) in explain::option_facts() {
            more.control("TP", []).text([bold(word)]).text([roman(help)]);
        }
    }
    if whole {
        more.control("SH", ["EXAMPLES"]);
        for (command, what) in FIRST_EXAMPLES {
            more.control("TP", []).text([bold(*command)]).text([roman(*what)]);
        }
    }
    more.control("SH", ["EXIT STATUS"]).text([roman(EXIT_STATUS_HELP)]);
    more.control("SH", ["SEE ALSO"]);
    let others: &[(&str, &str)] = if whole {
        &[(FILTERS_PAGE_NAME, "7")]
    } else {
        &[("streamline", "1"), (FILTERS_PAGE_NAME, "7")]
    };
    write_references(&mut more, others);
    more.to_writer(&mut text)?;
    Ok(ManualPage { name, section: "1", text: String::from_utf8_lossy(&text).into_owned() })
}

/// Generates the page about filters, sources and sinks.
fn filters_page() -> ManualPage {
    let mut page = Roff::new();
    page.control("TH", [FILTERS_PAGE_NAME, "7", NO_DATE, &program_version(), MANUAL_TITLE]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{FILTERS_PAGE_NAME} - the words of a request"))]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "A request is one or more pipelines: a source, filters, and a sink, with | between them. \
         This page contains the description that streamline filters NAME prints for each.",
    )]);
    page.control("SH", [explain::COMMON_PARAMETERS_TITLE.to_uppercase().as_str()]);
    write_labeled_paragraphs(&mut page, &explain::common_parameters());
    for (title, known) in filters::entries_by_group() {
        page.control("SH", [title.to_uppercase().as_str()]);
        known.iter().for_each(|known| write_filter_entry(&mut page, known));
    }
    page.control("SH", ["SEE ALSO"]);
    write_references(
        &mut page,
        &[("streamline", "1"), ("streamline-run", "1"), ("streamline-explain", "1")],
    );
    ManualPage { name: FILTERS_PAGE_NAME.to_owned(), section: "7", text: page.to_roff() }
}

/// Writes the entry of one filter, source or sink.
fn write_filter_entry(page: &mut Roff, known: &HelpPage) {
    page.control("SS", [&*format!("{} - {}", known.name, known.summary)]);
    page.text([bold(known.name), roman(format!(" {}", known.usage))]);
    page.control("PP", []);
    write_paragraphs(page, known.details);
    // Common parameters are described once, at the top of the page.
    for section in
        known.sections.iter().filter(|part| part.title != explain::COMMON_PARAMETERS_TITLE)
    {
        page.control("PP", []).text([roman(format!("{}:", section.title))]);
        write_labeled_paragraphs(page, &section.facts);
    }
    page.control("PP", []).text([roman("Example:")]);
    page.control("PP", []).text([bold(known.example.as_str())]);
}

/// Writes a list of labeled paragraphs.
fn write_labeled_paragraphs(page: &mut Roff, paragraphs: &[(&str, String)]) {
    for (label, text) in paragraphs {
        page.control("TP", []).text([bold(*label)]).text([roman(text.as_str())]);
    }
}

/// Writes the paragraphs of `text`, which are separated by empty lines. Preserves indented lines.
fn write_paragraphs(page: &mut Roff, text: &str) {
    let mut as_it_is = false;
    for line in text.lines() {
        if line.starts_with(' ') != as_it_is && !line.is_empty() {
            as_it_is = !as_it_is;
            page.control(if as_it_is { "nf" } else { "fi" }, []);
        }
        match line.is_empty() {
            true => page.control("PP", []),
            false => page.text([roman(line)]),
        };
    }
    if as_it_is {
        page.control("fi", []);
    }
}

/// Writes references to other pages, given by name and section, separated by commas.
fn write_references(page: &mut Roff, others: &[(&str, &str)]) {
    for (number, (name, section)) in others.iter().enumerate() {
        let comma = if number + 1 < others.len() { "," } else { "" };
        page.text([bold(*name), roman(format!("({section}){comma}"))]);
    }
}

/// Returns the program version for the footer of the manual pages.
fn program_version() -> String {
    format!("streamline {}", env!("CARGO_PKG_VERSION"))
}
