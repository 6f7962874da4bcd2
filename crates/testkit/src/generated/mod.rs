//! Generated captures. They cover every kind of traffic, file format and fault of the external
//! captures, so that tests do not depend on files outside the repository.

mod connection_capture;
mod files;
mod messages;
mod packets;
mod streams;

use crate::need;
use crate::traffic::{self, Capture};
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use wire::LinkType;

/// A set of capture files for a test.
#[derive(Clone, Debug)]
pub struct Captures {
    /// The directory that contains the files.
    pub root: PathBuf,
    /// The files, in a fixed order.
    pub paths: Vec<PathBuf>,
    /// True for external captures, false for generated ones.
    pub is_external: bool,
}

impl Captures {
    /// Removes all captures except those whose names start with one of the prefixes `begins`.
    #[must_use]
    pub fn with_name_prefixes(mut self, begins: &[&str]) -> Self {
        let all = std::mem::take(&mut self.paths).into_iter();
        let named = |path: &PathBuf| begins.iter().any(|begin| self.name(path).starts_with(begin));
        let paths = all.filter(named).collect();
        Self { paths, ..self }
    }

    /// Returns the path of a capture relative to [`Captures::root`], as text.
    #[must_use]
    pub fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// Returns all generated captures, sorted by path. Writes the files if they do not exist.
///
/// # Panics
/// If the files cannot be written.
#[must_use]
pub fn generated_captures() -> Captures {
    let root = generated_folder();
    let mut paths: Vec<PathBuf> =
        generate_all_captures().into_iter().map(|(name, _)| root.join(name)).collect();
    paths.sort();
    Captures { root: root.to_owned(), paths, is_external: false }
}

/// Returns the path of the generated capture with this name, such as `streams/gap.pcap`.
///
/// # Panics
/// If no generated capture has this name.
#[must_use]
pub fn capture_path(name: &str) -> PathBuf {
    let path = generated_folder().join(name);
    assert!(path.is_file(), "no capture of this name is made: {}", path.display());
    path
}

/// Number of generated captures with mixed traffic, and number of scenes in each of them. A scene
/// has about twenty frames ([`traffic::mixed_traffic`]).
const MIXED_CAPTURE_COUNTS: (u64, usize) = (48, 6);

/// Returns the names and contents of all generated captures.
fn generate_all_captures() -> Vec<(String, Vec<u8>)> {
    let mut all = vec![("web.pcap".to_owned(), traffic::web_capture().to_pcap())];
    for seed in 1..=MIXED_CAPTURE_COUNTS.0 {
        let capture = traffic::mixed_traffic(seed, MIXED_CAPTURE_COUNTS.1);
        let format = files::FILE_FORMATS[seed as usize % files::FILE_FORMATS.len()];
        let name = format!("mixed/{seed:02}.{}", format.extension());
        all.push((name, format.encode(&[(LinkType::ETHERNET, &capture.frames)])));
    }
    let mut add = |folder: &str, captures: Vec<(&str, Capture)>| {
        for (name, capture) in captures {
            all.push((format!("{folder}/{name}.pcap"), capture.to_pcap()));
        }
    };
    add("streams", streams::stream_captures());
    add("fragments", packets::fragment_captures());
    add("frames", packets::frame_captures());
    add("http", messages::http_captures());
    add("dns", messages::dns_captures());
    add("tls", messages::tls_captures());
    add("text", messages::text_protocol_captures());
    all.extend(packets::link_type_captures());
    all.extend(files::damaged_files());
    all
}

/// Returns the directory of the generated captures. Creates the directory with all files if it does
/// not exist. The name of the directory is a hash of the contents, so test programs of different
/// revisions do not overwrite each other's files.
fn generated_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let all = generate_all_captures();
        let mut hasher = DefaultHasher::new();
        for (name, bytes) in &all {
            hasher.write(name.as_bytes());
            hasher.write(bytes);
        }
        let target = need::target_directory().join("captures");
        let folder = target.join(format!("{:016x}", hasher.finish()));
        if folder.is_dir() {
            return folder;
        }
        let draft = target.join(format!("draft-{}", std::process::id()));
        for (name, bytes) in &all {
            let path = draft.join(name);
            let parent = path.parent().expect("a name in the folder");
            fs::create_dir_all(parent).expect("a folder in the target directory");
            fs::write(path, bytes).expect("a capture");
        }
        // Another test program may have created the directory first.
        if fs::rename(&draft, &folder).is_err() {
            assert!(folder.is_dir(), "{} cannot be made", folder.display());
            fs::remove_dir_all(draft).expect("a draft of our own");
        }
        folder
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn generated_captures_are_reproducible_with_unique_names() {
        let (one, other) = (generate_all_captures(), generate_all_captures());
        assert!(one == other);
        let names: BTreeSet<&String> = one.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), one.len());
        assert!(one.len() > 100, "{}", one.len());
    }

    #[test]
    fn generated_capture_is_found_by_its_name() {
        let generated = generated_captures();
        assert!(generated.paths.is_sorted() && generated.paths.iter().all(|path| path.is_file()));
        assert_eq!(generated.name(&capture_path("web.pcap")), "web.pcap");
        assert!(generated.paths.contains(&capture_path("streams/gap.pcap")));
    }
}
