//! `streamline explain exec CMD…`: explains the effect of each part of `exec` on a program.

use super::preload_libraries::{self, PreloadLibrary};
use crate::arguments::shell::PreloadPart;
use crate::status::Status;
use crate::terminal;
use clap::ValueEnum as _;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Directory of the AppArmor profiles.
const APPARMOR_DIRECTORY: &str = "/etc/apparmor.d";

/// Prints, for each part that `exec` can take over, the effect on a program.
pub(crate) fn describe_exec(words: &[String]) -> Status {
    let Some(name) = words.first() else { return Status::Usage };
    let Some(path) = preload_libraries::find_executable(name) else {
        terminal::print_error(&format!("`{name}` was not found"));
        return Status::NotFound;
    };
    terminal::print_text(&format_exec_description(words, &path))
}

fn format_exec_description(words: &[String], path: &Path) -> String {
    let mut text = format!("exec {}\n", words.join(" "));
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:9} {value}");
    };
    line("program", &path.display().to_string());
    let refusal = words.first().and_then(|name| preload_libraries::preload_refusal(name));
    match &refusal {
        Some(why) => line("refused", &format!("no library can be preloaded: {why}")),
        None => line("preload", "the dynamic loader can preload libraries into it"),
    }
    if let Some(profile) = find_apparmor_profile(path) {
        let profile = profile.display();
        line(
            "apparmor",
            &match std::fs::read_to_string("/sys/module/apparmor/parameters/enabled") {
                Ok(is_on) if is_on.starts_with('Y') => {
                    format!("{profile} may refuse the libraries, unless it permits `mr` for them")
                }
                _ => format!("{profile} exists, but AppArmor is off"),
            },
        );
    }
    for part in PreloadPart::value_variants() {
        let is_on = if part.is_default() { "on by default" } else { "off by default" };
        text += "\n";
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:9} {value}");
        };
        line(part.name(), &format!("{is_on}: {}", part.purpose()));
        line("", part.measured_effect());
        match preload_libraries::find_library(part_library(*part)) {
            Ok(library) => line("", &library.display().to_string()),
            Err(why) => line("", &format!("missing: {why}")),
        }
        if *part == PreloadPart::Pcap {
            let named = words.first().is_some_and(|name| preload_libraries::uses_libpcap(name));
            line(
                "",
                if named {
                    "the program refers to libpcap"
                } else {
                    "the program does not refer to libpcap"
                },
            );
        }
    }
    if refusal.is_none() {
        let all: Vec<&str> = PreloadPart::value_variants().iter().map(|part| part.name()).collect();
        let _ = writeln!(
            text,
            "\nAll parts: streamline exec --with={} {}",
            all.join(","),
            words.join(" ")
        );
    }
    text
}

/// Returns the library through which `exec` takes over a part of a program's input or output.
pub(super) const fn part_library(part: PreloadPart) -> PreloadLibrary {
    match part {
        PreloadPart::Pcap => PreloadLibrary::Pcap,
        PreloadPart::Pipes => PreloadLibrary::Pipes,
        PreloadPart::Udp => PreloadLibrary::Udp,
    }
}

/// Finds the AppArmor profile of a program. Returns `None` if there is none or if it is disabled.
fn find_apparmor_profile(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let name = apparmor_profile_name(&path)?;
    let is_disabled = Path::new(APPARMOR_DIRECTORY).join("disable").join(&name).exists();
    let profile = Path::new(APPARMOR_DIRECTORY).join(name);
    (profile.is_file() && !is_disabled).then_some(profile)
}

/// Returns the conventional file name of a program's AppArmor profile, such as `usr.sbin.named` for
/// `/usr/sbin/named`. Returns `None` if the path of the program is relative or not valid UTF-8.
fn apparmor_profile_name(path: &Path) -> Option<String> {
    Some(path.to_str()?.strip_prefix('/')?.replace('/', "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_is_named_after_the_path_of_its_program() {
        assert_eq!(apparmor_profile_name(Path::new("/usr/sbin/named")).unwrap(), "usr.sbin.named");
        assert_eq!(apparmor_profile_name(Path::new("named")), None);
    }

    #[test]
    fn program_is_described_with_every_part() {
        let path = preload_libraries::find_executable("cat").unwrap();
        let text = format_exec_description(&["cat".to_owned(), "x".to_owned()], &path);
        assert!(text.starts_with("exec cat x\n  program   /"), "{text}");
        for part in PreloadPart::value_variants() {
            assert!(
                text.contains(part.purpose()) && text.contains(part.measured_effect()),
                "{text}"
            );
        }
        assert!(text.ends_with("exec --with=pcap,pipes,udp cat x\n"), "{text}");
    }
}
