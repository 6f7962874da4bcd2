//! Formatting of the kernel programs that all users share, one per interface and direction. `ps`
//! and `spaces` print their users and counters as tables, `top` prints them as a sentence.

use super::connect::user_name;
use super::table::format_table;
use crate::progress::format_bytes_short;
use member::client::{Client, mask_hidden_characters};
use member::protocol::{KernelProgram, KernelRequest, KernelStep};

/// Fetches the kernel programs that are visible to the user. Returns an empty list if the call
/// fails.
pub(super) fn fetch_programs(client: &Client) -> Vec<KernelProgram> {
    client.kernel_programs().map_or_else(|_| Vec::new(), |sharing| sharing.programs)
}

/// Returns the kernel programs that run filters of a path. Returns an empty list if there is no
/// daemon.
pub(super) fn programs_of_path(number: u32) -> Vec<KernelProgram> {
    let Ok(client) = Client::find(None) else { return Vec::new() };
    let mut programs = fetch_programs(&client);
    programs.retain(|program| program.lines.iter().any(|line| line.path == Some(number)));
    programs
}

/// Formats a table of the programs, and a table of their requests. The second table contains only
/// requests whose counters are visible to the user. Returns an empty string if there are no
/// programs.
pub(super) fn format_tables(programs: &[KernelProgram], columns: usize) -> String {
    if programs.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = programs.iter().map(program_cells).collect();
    let head = ["KERNEL", "PROGRAM", "FRAMES", "REQUESTS", "RINGS", "FILTERS (REQUESTS)"];
    let mut text = format!("\n{}", format_table(head, &rows, &[1, 2, 3], columns));
    let lines = programs.iter().flat_map(|program| {
        let known = program.lines.iter().filter(|line| line.taken.is_some());
        known.map(|line| request_cells(program, line))
    });
    let lines: Vec<_> = lines.collect();
    if !lines.is_empty() {
        let head = ["NO", "USER", "PROCESS", "KERNEL", "TAKEN", "GIVEN", "LOST", "NS/S"];
        text.push('\n');
        text.push_str(&format_table(head, &lines, &[0, 4, 5, 6, 7], columns));
    }
    text
}

/// Formats a program with the numbers of its requests and users, and the filters that several
/// requests use, such as `lo received: program 7, 2 requests of 2 users; for several: ip (2)`.
pub(super) fn program_sentence(program: &KernelProgram) -> String {
    let mut users: Vec<u32> = program.lines.iter().map(|line| line.uid).collect();
    users.sort_unstable();
    users.dedup();
    let several = program.steps.iter().filter(|step| step.lines > 1).map(format_filter);
    let several: Vec<String> = several.collect();
    let number = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut text = format!(
        "{}: program {}, {} of {}",
        attach_point(program),
        program.program,
        number(program.lines.len(), "request"),
        number(users.len(), "user"),
    );
    if !several.is_empty() {
        text.push_str(&format!("; for several: {}", several.join(" ")));
    }
    text
}

fn attach_point(program: &KernelProgram) -> String {
    let space = program
        .netns
        .as_ref()
        .map_or_else(String::new, |name| format!("{}/", mask_hidden_characters(name)));
    format!(
        "{space}{} {}",
        mask_hidden_characters(&program.interface),
        mask_hidden_characters(&program.side)
    )
}

/// Formats the filters of a kernel program that several requests share, and the number of its other
/// filters.
fn format_shared_filters(program: &KernelProgram) -> String {
    let (several, own): (Vec<&KernelStep>, Vec<&KernelStep>) =
        program.steps.iter().partition(|step| step.lines > 1);
    let mut text = several.into_iter().map(format_filter).collect::<Vec<_>>().join(" ");
    if !own.is_empty() {
        let comma = if text.is_empty() { "" } else { ", " };
        text.push_str(&format!("{comma}{} more", own.len()));
    }
    text
}

fn format_filter(step: &KernelStep) -> String {
    format!("{} ({})", mask_hidden_characters(&step.name), step.lines)
}

fn program_cells(program: &KernelProgram) -> [String; 6] {
    let rings = program.rings.iter().map(|ring| {
        let lines = if ring.lines > 1 { format!(" ({})", ring.lines) } else { String::new() };
        let whose = match (ring.uid, &ring.group) {
            (Some(uid), _) => user_name(uid),
            (None, Some(group)) => format!("group:{}", mask_hidden_characters(group)),
            (None, None) => "world".to_owned(),
        };
        format!("{whose} {}{lines}", format_bytes_short(ring.bytes))
    });
    [
        attach_point(program),
        program.program.to_string(),
        program.frames.to_string(),
        program.lines.len().to_string(),
        rings.collect::<Vec<_>>().join(", "),
        format_shared_filters(program),
    ]
}

fn request_cells(program: &KernelProgram, line: &KernelRequest) -> [String; 8] {
    let dash = || "-".to_owned();
    let count = |n: Option<u64>| n.map_or_else(dash, |n| n.to_string());
    [
        line.path.map_or_else(dash, |number| number.to_string()),
        user_name(line.uid),
        line.process.map_or_else(dash, |process| format_process(process, line.command.as_deref())),
        attach_point(program),
        count(line.taken),
        count(line.given.map(|given| given.blocks)),
        count(line.lost),
        count(line.kernel_ns),
    ]
}

/// Formats the name and the id of a process, such as `tcpdump[812]`.
fn format_process(process: u32, command: Option<&str>) -> String {
    format!("{}[{process}]", mask_hidden_characters(command.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use member::protocol::{Amount, KernelRing};

    #[test]
    fn shared_programs_are_formatted_as_tables_and_sentence() {
        let line = |path, uid, ours: bool| KernelRequest {
            path: Some(path),
            uid,
            process: ours.then_some(812),
            command: ours.then(|| "tcpdump".to_owned()),
            taken: ours.then_some(12),
            given: ours.then_some(Amount { blocks: 3, bytes: 60 }),
            lost: ours.then_some(0),
            kernel_ns: ours.then_some(113),
        };
        let step = |name: &str, lines| KernelStep { name: name.to_owned(), lines, blocks: 12 };
        let ring = |uid| KernelRing { uid: Some(uid), group: None, bytes: 8_500_000, lines: 1 };
        let program = KernelProgram {
            interface: "lo".to_owned(),
            side: "received".to_owned(),
            program: 7,
            frames: 12,
            lines: vec![line(1, 41_001, true), line(2, 41_002, false)],
            steps: vec![step("ip", 2), step("dport", 1)],
            rings: vec![ring(41_001), ring(41_002)],
            ..KernelProgram::default()
        };
        assert_eq!(
            program_sentence(&program),
            "lo received: program 7, 2 requests of 2 users; for several: ip (2)"
        );
        let page = format_tables(&[program], 120);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(
            lines[2],
            "lo received        7      12         2  41001 8.50 MB, 41002 8.50 MB  \
             ip (2), 1 more"
        );
        assert_eq!(lines[5], " 1  41001  tcpdump[812]  lo received     12      3     0   113");
        assert_eq!(lines.len(), 6, "of the other's line one is not told how much it had");
        assert_eq!(format_tables(&[], 80), "");
    }
}
