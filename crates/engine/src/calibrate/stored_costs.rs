//! The persisted cost table: the file `costs` in the user's state directory.
//!
//! The file also records the time of the measurement and the machine. A table from another kernel
//! or processor is not used. A malformed file is reported, and the built-in table is used.

use pipeline::plan::Costs;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The first line of the cost table file, by which the file is recognized.
const HEADER_LINE: &str = "streamline costs of a machine";
/// Maximum size in bytes of a cost table file. Larger files are not read.
const COSTS_FILE_BYTES_MAX: u64 = 4 << 20;

/// A persisted cost table, with the time and the machine of its measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredCosts {
    /// Time of the measurement, in seconds since the Unix epoch.
    pub measured: u64,
    /// The kernel release of the measured machine.
    pub release: String,
    /// The processor model of the measured machine.
    pub processor: String,
    /// The cost table.
    pub costs: Costs,
}

/// Returns the user's state directory: `$XDG_STATE_HOME/streamline`, else
/// `$HOME/.local/state/streamline`. Ignores a variable that is unset or is not an absolute path.
/// Returns `None` if it ignores both.
#[must_use]
pub fn state_directory() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("streamline"))
}

/// Returns the path of the cost table in this state directory.
#[must_use]
pub fn costs_file_path(directory: &Path) -> PathBuf {
    directory.join("costs")
}

/// Reads the table in this directory. Returns `None` if there is no file.
///
/// # Errors
///
/// Fails with a message if the file cannot be read, is too large or is malformed.
pub fn load_stored_costs(directory: &Path) -> Result<Option<StoredCosts>, String> {
    let path = costs_file_path(directory);
    let name = path.display();
    let length = match fs::metadata(&path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {name}: {error}")),
    };
    if length > COSTS_FILE_BYTES_MAX {
        return Err(format!("{name} is too long for a table"));
    }
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {name}: {error}"))?;
    StoredCosts::parse(&text).map(Some).map_err(|why| format!("{name}: {why}"))
}

impl StoredCosts {
    /// Creates a cost table to be stored, with the current time and this machine as time and place
    /// of the measurement.
    #[must_use]
    pub fn measured_now(costs: Costs) -> Self {
        let measured = sys::clock::realtime_ns() / 1_000_000_000;
        let release = sys::machine::Machine::detect().release;
        Self { measured, release, processor: processor_model(), costs }
    }

    /// Fails if the table was measured with another kernel or on another processor. The error names
    /// the kernel and the processor of the measurement.
    pub fn check_machine(&self) -> Result<(), String> {
        let (release, processor) = (sys::machine::Machine::detect().release, processor_model());
        match self.release == release && self.processor == processor {
            true => Ok(()),
            false => Err(format!("measured on Linux {}, {}", self.release, self.processor)),
        }
    }

    /// Formats the age of the table in minutes, hours or days, such as `3 days ago`, or as `just
    /// now`.
    #[must_use]
    pub fn format_age(&self) -> String {
        let now = sys::clock::realtime_ns() / 1_000_000_000;
        match now.saturating_sub(self.measured) {
            0..120 => "just now".to_owned(),
            s @ 120..7_200 => format!("{} minutes ago", s / 60),
            s @ 7_200..172_800 => format!("{} hours ago", s / 3_600),
            s => format!("{} days ago", s / 86_400),
        }
    }

    /// Writes the table to a file in this directory, atomically. Creates the directory if it is
    /// missing. Returns the path of the file.
    pub fn store(&self, directory: &Path) -> Result<PathBuf, String> {
        let path = costs_file_path(directory);
        let why = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        fs::create_dir_all(directory).map_err(why)?;
        let new = directory.join(format!("costs.{}", std::process::id()));
        let mut file = fs::File::create(&new).map_err(why)?;
        let written = file.write_all(self.to_text().as_bytes()).and_then(|()| file.sync_all());
        let moved = written.and_then(|()| fs::rename(&new, &path));
        if moved.is_err() {
            let _ = fs::remove_file(&new);
        }
        moved.map(|()| path.clone()).map_err(why)
    }

    fn to_text(&self) -> String {
        let Self { measured, release, processor, costs } = self;
        let costs = costs.text();
        format!(
            "{HEADER_LINE}\nmeasured {measured}\nkernel {release}\nprocessor {processor}\n{costs}"
        )
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(5, '\n');
        let mut line = |word: &str| {
            let line = parts.next().and_then(|line| line.strip_prefix(word));
            line.ok_or_else(|| format!("no line `{}`", word.trim()))
        };
        line(HEADER_LINE)?;
        let measured = line("measured ")?.parse().map_err(|_| "no time".to_owned())?;
        let (release, processor) = (line("kernel ")?.to_owned(), line("processor ")?.to_owned());
        let costs = Costs::parse(line("")?)?;
        Ok(Self { measured, release, processor, costs })
    }
}

/// Returns the processor model, as the kernel names it, or `unknown`.
fn processor_model() -> String {
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
    fn stored_cost_table_is_read_back() {
        let directory =
            std::env::temp_dir().join(format!("streamline-kept-{}", std::process::id()));
        assert_eq!(load_stored_costs(&directory), Ok(None));
        let mut kept = StoredCosts::measured_now(Costs {
            version: pipeline::plan::COSTS_VERSION,
            ..Costs::default()
        });
        kept.costs.call = 1.5;
        let path = kept.store(&directory).unwrap();
        assert_eq!(path, directory.join("costs"));
        let found = load_stored_costs(&directory).unwrap().unwrap();
        assert_eq!(found, kept);
        assert!(found.check_machine().is_ok() && found.format_age() == "just now");
        let there = StoredCosts { release: "4.0".to_owned(), ..kept };
        assert!(there.check_machine().is_err());
        fs::write(&path, "something else\n").unwrap();
        assert!(load_stored_costs(&directory).unwrap_err().contains("no line `streamline costs"));
        fs::remove_dir_all(&directory).unwrap();
    }
}
