//! `install` and `uninstall`: the program with what the book uses, built for release, below a
//! folder.
//!
//! ```text
//! PREFIX/bin            streamline; streamline-bench with --bench
//! PREFIX/lib            libstreamline.so, libstreamline.a, pkgconfig/streamline.pc
//! PREFIX/lib/streamline libstreamline_sockets.so, which `streamline sh` loads before programs
//! PREFIX/include        streamline.h
//! PREFIX/share          man pages, completions of bash, zsh and fish
//! PREFIX/share/streamline   the examples, and the manifest: what was put where
//! ```
//!
//! Below `/usr` and `/usr/local` also the units of the machine's daemon. PREFIX is `/usr/local` for
//! root and `~/.local` for others. `DESTDIR` stands in front of all paths that are written, and of
//! none that is written into a file. A file is written beside its place and then renamed: a program
//! that runs goes on with the old one. What an earlier installation had and this one has not, goes.

mod manifest;
mod parts;

use crate::cargo;
use crate::outcome::Outcome;
use manifest::Installed;
use parts::InstalledFile;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The directory below the prefix that holds the manifest and the examples.
const SHARE: &str = "share/streamline";

/// The directories of an installation.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Folders {
    /// The directory in which the files are found after the installation.
    prefix: PathBuf,
    /// `DESTDIR`: a directory prepended to all paths while files are written.
    staging: Option<PathBuf>,
}

impl Folders {
    /// Reads the prefix from the arguments; returns the remaining arguments too.
    fn parse(arguments: &[String]) -> Result<(Self, Vec<&str>), String> {
        let (mut prefix, mut rest) = (None, Vec::new());
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word.strip_prefix("--prefix") {
                Some("") => prefix = Some(words.next().ok_or("`--prefix` needs a folder")?),
                Some(named) if named.starts_with('=') => prefix = Some(&named[1..]),
                _ => rest.push(word),
            }
        }
        let prefix = match prefix {
            Some("") => return Err("`--prefix` needs a folder".to_owned()),
            Some(named) => std::path::absolute(named)
                .map_err(|error| format!("the folder {named} cannot be found: {error}"))?,
            None => default_prefix()?,
        };
        let staging = std::env::var_os("DESTDIR").filter(|folder| !folder.is_empty());
        Ok((Self { prefix, staging: staging.map(PathBuf::from) }, rest))
    }

    /// Returns the path under which a file of the prefix is written.
    fn staged(&self, path: &Path) -> PathBuf {
        match &self.staging {
            Some(staging) => staging.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    fn manifest(&self) -> PathBuf {
        self.staged(&self.prefix.join(SHARE).join("manifest"))
    }

    /// Returns true if the prefix is on the default search paths of all users.
    fn is_system_wide(&self) -> bool {
        ["/usr", "/usr/local"].iter().any(|known| self.prefix == Path::new(known))
    }
}

fn default_prefix() -> Result<PathBuf, String> {
    if std::fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0) {
        return Ok(PathBuf::from("/usr/local"));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    home.map(|home| home.join(".local"))
        .ok_or_else(|| "HOME is not set: say --prefix DIR".to_owned())
}

/// The verb `install`: builds the product, and installs its files.
pub(crate) fn install(root: &Path, arguments: &[String]) -> Outcome {
    let (place, rest) = match Folders::parse(arguments) {
        Ok(parsed) => parsed,
        Err(why) => return Outcome::Usage(why),
    };
    if let Some(unknown) = rest.iter().find(|word| **word != "--bench") {
        return Outcome::Usage(format!(
            "`install` knows --prefix DIR and --bench, not `{unknown}`"
        ));
    }
    let bench = !rest.is_empty();
    let mut build = cargo::cargo(root);
    build.args(["build", "--release"]);
    let packages = ["streamline-cli", "streamline-sockets", "streamline-capi"];
    build.args(packages.iter().flat_map(|package| ["--package", package]));
    if bench {
        build.args(["--package", "streamline-bench"]);
    }
    if !cargo::run(&mut build) {
        return Outcome::Failed;
    }
    let parts = match parts::all(root, &place, bench) {
        Ok(parts) => parts,
        Err(error) => return failed("what is to be installed cannot be made", &error),
    };
    match write_all(&place, &parts) {
        Ok(()) => {
            print_summary(&place, &parts);
            Outcome::Well
        }
        Err(error) => failed("not installed", &error),
    }
}

/// The verb `uninstall`: removes the files that the manifest names, and the directories created for
/// them.
pub(crate) fn uninstall(_: &Path, arguments: &[String]) -> Outcome {
    let (place, rest) = match Folders::parse(arguments) {
        Ok(parsed) => parsed,
        Err(why) => return Outcome::Usage(why),
    };
    if let Some(unknown) = rest.first() {
        return Outcome::Usage(format!("`uninstall` knows --prefix DIR, not `{unknown}`"));
    }
    let path = place.manifest();
    match Installed::read(&path).and_then(|manifest| manifest.remove_all(&place)) {
        Ok(files) => {
            println!("removed {files} files below {}", place.prefix.display());
            Outcome::Well
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!(
                "nothing is installed below {}: no {}",
                place.prefix.display(),
                path.display()
            );
            Outcome::Failed
        }
        Err(error) => failed("not all is removed", &error),
    }
}

fn failed(what: &str, error: &io::Error) -> Outcome {
    eprintln!("error: {what}: {error}");
    if error.kind() == io::ErrorKind::PermissionDenied {
        eprintln!("another place: `cargo xtask install --prefix ~/.local`, or as root");
    }
    Outcome::Failed
}

/// Writes all files and the manifest. The manifest is written first, so that a failed installation
/// can be removed.
fn write_all(place: &Folders, parts: &[InstalledFile]) -> io::Result<()> {
    let path = place.manifest();
    let before = match Installed::read(&path) {
        Ok(manifest) => manifest,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Installed::default(),
        Err(error) => return Err(error),
    };
    let mut manifest = before.clone();
    manifest.files.clear();
    manifest.files.extend(parts.iter().map(|part| place.prefix.join(&part.to)));
    let folders = manifest.files.iter().filter_map(|file| file.parent()).map(Path::to_owned);
    let mut folders: Vec<PathBuf> = folders.collect();
    folders.push(place.prefix.join(SHARE));
    for folder in folders {
        manifest.create_folder(place, &folder)?;
    }
    let stale: Vec<PathBuf> = before.files.difference(&manifest.files).cloned().collect();
    manifest.union(&before).write(&path)?;
    for part in parts {
        part.write(&place.staged(&place.prefix.join(&part.to)))?;
    }
    for file in stale {
        manifest::remove(&place.staged(&file))?;
    }
    manifest.write(&path)
}

/// Prints the directories, and how to add them to the search paths.
fn print_summary(place: &Folders, parts: &[InstalledFile]) {
    let prefix = place.prefix.display();
    println!("\ninstalled below {}:", place.staged(&place.prefix).display());
    let mut printed: Vec<(&str, PathBuf)> = Vec::new();
    for part in parts {
        let folder = part.to.parent().unwrap_or(&part.to).to_owned();
        if !printed.contains(&(part.what, folder.clone())) {
            printed.push((part.what, folder));
        }
    }
    for (what, folder) in &printed {
        let files =
            parts.iter().filter(|part| part.to.parent() == Some(folder) && part.what == *what);
        let names: Vec<_> = files.filter_map(|part| part.to.file_name()?.to_str()).collect();
        let names =
            if names.len() > 3 { format!("{} files", names.len()) } else { names.join(" ") };
        println!("  {:44} {what}", format!("{}/{names}", folder.display()));
    }
    let destination = place.staging.is_none();
    let bin = place.prefix.join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if destination && !std::env::split_paths(&path).any(|folder| folder == bin) {
        println!("\n`streamline` is not found yet; for this and later shells:");
        println!("  export PATH=\"{prefix}/bin:$PATH\"");
        println!("  export MANPATH=\"{prefix}/share/man:\"");
    }
    if destination && !place.is_system_wide() {
        println!("\nC programs: export PKG_CONFIG_PATH=\"{prefix}/lib/pkgconfig\"");
        println!("zsh, before compinit: fpath+=(\"{prefix}/share/zsh/site-functions\")");
    } else if destination {
        println!("\nC programs: run `ldconfig` once, so that they find the library");
        println!(
            "the daemon of the machine: systemd-sysusers && systemctl daemon-reload && \\\n  \
                  systemctl enable --now streamline.socket"
        );
    }
    println!("\nto begin with: streamline examples --write examples");
    println!("to remove it:  cargo xtask uninstall --prefix {prefix}");
}

#[cfg(test)]
mod tests;
