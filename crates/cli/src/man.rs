//! `streamline man`: the manual, made from what help and completion are made from.
//!
//! A page of section 1 for the command and for each of its commands, and one of section 7 for all
//! that can stand in a line.

use crate::arguments::{ABOUT, Arguments, FIRST, ManArguments, STATUS};
use crate::filters;
use crate::status::Status;
use crate::terminal;
use abi::text::Visible;
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use pipeline::explain::{self, Page};
use pipeline::language::nearest;
use std::fs;
use std::io;
use std::path::Path;

/// The page about what can stand in a line.
const FILTERS: &str = "streamline-filters";
/// The manual that all pages belong to.
const MANUAL: &str = "Streamline";

/// Pages are those of a version, not of a day; an argument of man(7) that holds nothing.
const NO_DATE: &str = "\"\"";

/// A page, as man(1) reads it.
struct Sheet {
    name: String,
    section: &'static str,
    text: String,
}

/// Prints a page, or writes all of them.
pub(crate) fn man(given: &ManArguments) -> Status {
    let sheets = match sheets() {
        Ok(sheets) => sheets,
        Err(told) => return failed("the manual", &told),
    };
    if let Some(folder) = &given.into {
        return match write(folder, &sheets) {
            Ok(()) => Status::Done,
            Err(told) => failed(&folder.display().to_string(), &told),
        };
    }
    let wanted = given.page.as_deref().unwrap_or_default();
    let wanted = wanted.trim_start_matches("streamline").trim_start_matches('-');
    // A command may be called as the page of section 7 is: `filters` means what is larger.
    match sheets.iter().rev().find(|sheet| sheet.called() == wanted) {
        Some(sheet) => terminal::print(&sheet.text),
        None => {
            let names = sheets.iter().map(Sheet::called).filter(|name| !name.is_empty());
            let hint = nearest(wanted, names)
                .map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
            let wanted = Visible(wanted);
            terminal::complain(&format!("the manual has no page `{wanted}`{hint}"));
            terminal::note(
                "`streamline man --into FOLDER` writes all; a filter stands in `filters`",
            );
            Status::Nothing
        }
    }
}

impl Sheet {
    /// Its name without that of the program.
    fn called(&self) -> &str {
        self.name.trim_start_matches("streamline").trim_start_matches('-')
    }
}

fn failed(what: &str, told: &io::Error) -> Status {
    terminal::complain(&format!("cannot write {what}: {told}"));
    Status::Failed
}

fn write(folder: &Path, sheets: &[Sheet]) -> io::Result<()> {
    for sheet in sheets {
        let folder = folder.join(format!("man{}", sheet.section));
        fs::create_dir_all(&folder)?;
        let file = folder.join(format!("{}.{}", sheet.name, sheet.section));
        sys::replace::replace_file(&file, sheet.text.as_bytes())?;
    }
    Ok(())
}

/// The whole manual: the command, its commands, what can stand in a line.
fn sheets() -> io::Result<Vec<Sheet>> {
    let mut whole = Arguments::command()
        .about("run one line of filters over packets, files or streams")
        .long_about(ABOUT)
        .override_usage("streamline COMMAND\nstreamline 'LINE'");
    whole.build();
    let mut sheets = vec![of_command(&whole, true)?];
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        sheets.push(of_command(command, false)?);
    }
    sheets.push(of_filters());
    Ok(sheets)
}

/// The page of a command.
fn of_command(command: &clap::Command, whole: bool) -> io::Result<Sheet> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page = Man::new(command.clone()).date(NO_DATE).source(source()).manual(MANUAL);
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
    // What else its help says stands there for a terminal, and is the options of a line.
    if command.get_after_help().is_some() {
        more.control("SH", [explain::OPTIONS_TITLE.to_uppercase().as_str()]);
        for (word, help) in explain::option_facts() {
            more.control("TP", []).text([bold(word)]).text([roman(help)]);
        }
    }
    if whole {
        more.control("SH", ["EXAMPLES"]);
        for (command, what) in FIRST {
            more.control("TP", []).text([bold(*command)]).text([roman(*what)]);
        }
    }
    more.control("SH", ["EXIT STATUS"]).text([roman(STATUS)]);
    more.control("SH", ["SEE ALSO"]);
    let others: &[(&str, &str)] =
        if whole { &[(FILTERS, "7")] } else { &[("streamline", "1"), (FILTERS, "7")] };
    see(&mut more, others);
    more.to_writer(&mut text)?;
    Ok(Sheet { name, section: "1", text: String::from_utf8_lossy(&text).into_owned() })
}

/// The page of all that can stand in a line.
fn of_filters() -> Sheet {
    let mut page = Roff::new();
    page.control("TH", [FILTERS, "7", NO_DATE, &source(), MANUAL]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{FILTERS} - what can stand in a line of streamline"))]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "A line is one or more pipelines: a source, filters, and a sink, with | between them. \
         This page has what streamline filters NAME prints of each.",
    )]);
    page.control("SH", [explain::COMMON_TITLE.to_uppercase().as_str()]);
    facts(&mut page, &explain::common());
    for (title, known) in filters::groups() {
        page.control("SH", [title.to_uppercase().as_str()]);
        known.iter().for_each(|known| part(&mut page, known));
    }
    page.control("SH", ["SEE ALSO"]);
    see(&mut page, &[("streamline", "1"), ("streamline-run", "1"), ("streamline-explain", "1")]);
    Sheet { name: FILTERS.to_owned(), section: "7", text: page.to_roff() }
}

/// One filter, source or sink within the page of all.
fn part(page: &mut Roff, known: &Page) {
    page.control("SS", [&*format!("{} - {}", known.name, known.summary)]);
    page.text([bold(known.name), roman(format!(" {}", known.usage))]);
    page.control("PP", []);
    paragraphs(page, known.details);
    // What they have in common is said once.
    for section in known.sections.iter().filter(|part| part.title != explain::COMMON_TITLE) {
        page.control("PP", []).text([roman(format!("{}:", section.title))]);
        facts(page, &section.facts);
    }
    page.control("PP", []).text([roman("Example:")]);
    page.control("PP", []).text([bold(known.example.as_str())]);
}

/// Writes facts under their labels.
fn facts(page: &mut Roff, facts: &[(&str, String)]) {
    for (what, text) in facts {
        page.control("TP", []).text([bold(*what)]).text([roman(text.as_str())]);
    }
}

/// Paragraphs as they are written: an empty line ends one, and what is set in stays as it is.
fn paragraphs(page: &mut Roff, text: &str) {
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

/// Other pages.
fn see(page: &mut Roff, others: &[(&str, &str)]) {
    for (number, (name, section)) in others.iter().enumerate() {
        let comma = if number + 1 < others.len() { "," } else { "" };
        page.text([bold(*name), roman(format!("({section}){comma}"))]);
    }
}

/// Returns the source line of the pages.
fn source() -> String {
    format!("streamline {}", env!("CARGO_PKG_VERSION"))
}
