//! The file in which a table of costs is kept: `costs` in the state folder of the user.
//!
//! It says when and on which machine it was measured. A table of another kernel or processor is not
//! used; what is wrong with a file is told, and the built-in table stands.

use super::figures::Calibration;
use pipeline::plan::Costs;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The first line of the file.
const HEAD: &str = "streamline costs of a machine";
/// The most bytes that are read.
const BYTES_MAX: u64 = 4 << 20;

/// A table that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Time of measurement, in seconds since 1970.
    pub measured: u64,
    /// The release of the kernel on which it was measured.
    pub release: String,
    /// The model of the processor.
    pub processor: String,
    /// The table.
    pub costs: Costs,
}

/// The folder of the user for what is to outlive a run: `$XDG_STATE_HOME/streamline`, by default in
/// `~/.local/state`; none if neither is set.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("streamline"))
}

/// Returns the path of the table in a folder.
#[must_use]
pub fn path(folder: &Path) -> PathBuf {
    folder.join("costs")
}

/// The table of this folder: none if there is none, or what is wrong with it.
pub fn load(folder: &Path) -> Result<Option<Kept>, String> {
    let path = path(folder);
    let name = path.display();
    let length = match fs::metadata(&path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {name}: {error}")),
    };
    if length > BYTES_MAX {
        return Err(format!("{name} is too long for a table"));
    }
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {name}: {error}"))?;
    Kept::parse(&text).map(Some).map_err(|why| format!("{name}: {why}"))
}

impl Kept {
    /// A table that was measured now, here.
    #[must_use]
    pub fn now(costs: Costs) -> Self {
        let measured = sys::clock::real() / 1_000_000_000;
        let release = sys::machine::Machine::detect().release;
        Self { measured, release, processor: processor(), costs }
    }

    /// Builds the table of a finished calibration.
    #[must_use]
    pub fn of(calibration: &Calibration) -> Self {
        Self::now(calibration.costs.clone())
    }

    /// Checks that it was measured on this machine; the error names the kernel and processor of the
    /// other.
    pub fn is_here(&self) -> Result<(), String> {
        let (release, processor) = (sys::machine::Machine::detect().release, processor());
        match self.release == release && self.processor == processor {
            true => Ok(()),
            false => Err(format!("measured on Linux {}, {}", self.release, self.processor)),
        }
    }

    /// Describes its age in words.
    #[must_use]
    pub fn age(&self) -> String {
        let now = sys::clock::real() / 1_000_000_000;
        match now.saturating_sub(self.measured) {
            0..120 => "just now".to_owned(),
            s @ 120..7_200 => format!("{} minutes ago", s / 60),
            s @ 7_200..172_800 => format!("{} hours ago", s / 3_600),
            s => format!("{} days ago", s / 86_400),
        }
    }

    /// Keeps it in this folder, whole or not at all.
    pub fn keep(&self, folder: &Path) -> Result<PathBuf, String> {
        let path = path(folder);
        let why = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        fs::create_dir_all(folder).map_err(why)?;
        let new = folder.join(format!("costs.{}", std::process::id()));
        let mut file = fs::File::create(&new).map_err(why)?;
        let written = file.write_all(self.text().as_bytes()).and_then(|()| file.sync_all());
        let moved = written.and_then(|()| fs::rename(&new, &path));
        if moved.is_err() {
            let _ = fs::remove_file(&new);
        }
        moved.map(|()| path.clone()).map_err(why)
    }

    fn text(&self) -> String {
        let Self { measured, release, processor, costs } = self;
        let costs = costs.text();
        format!("{HEAD}\nmeasured {measured}\nkernel {release}\nprocessor {processor}\n{costs}")
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(5, '\n');
        let mut line = |word: &str| {
            let line = parts.next().and_then(|line| line.strip_prefix(word));
            line.ok_or_else(|| format!("no line `{}`", word.trim()))
        };
        line(HEAD)?;
        let measured = line("measured ")?.parse().map_err(|_| "no time".to_owned())?;
        let (release, processor) = (line("kernel ")?.to_owned(), line("processor ")?.to_owned());
        let costs = Costs::parse(line("")?)?;
        Ok(Self { measured, release, processor, costs })
    }
}

/// The model of the processor, as the kernel names it.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |line: &str| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "model name" | "CPU part").then(|| value.trim().to_owned())
    };
    text.lines().find_map(named).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_kept_whole() {
        let folder = std::env::temp_dir().join(format!("streamline-kept-{}", std::process::id()));
        assert_eq!(load(&folder), Ok(None));
        let mut kept =
            Kept::now(Costs { version: pipeline::plan::COSTS_VERSION, ..Costs::default() });
        kept.costs.call = 1.5;
        let path = kept.keep(&folder).unwrap();
        assert_eq!(path, folder.join("costs"));
        let found = load(&folder).unwrap().unwrap();
        assert_eq!(found, kept);
        assert!(found.is_here().is_ok() && found.age() == "just now");
        let there = Kept { release: "4.0".to_owned(), ..kept };
        assert!(there.is_here().is_err());
        fs::write(&path, "something else\n").unwrap();
        assert!(load(&folder).unwrap_err().contains("no line `streamline costs"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
