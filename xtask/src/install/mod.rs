//! `install` and `uninstall`: the product, built for release, below a prefix.
//!
//! ```text
//! PREFIX/bin            streamline, streamline-page; streamline-bench with --bench
//! PREFIX/lib            libstreamline.so, libstreamline.a, pkgconfig/streamline.pc
//! PREFIX/lib/streamline libstreamline_sockets.so, libstreamline_pcap.so and libstreamline_udp.so,
//!                       which `streamline sh` and `streamline exec` load before programs
//! PREFIX/include        streamline.h
//! PREFIX/share          man pages, completions of bash, zsh and fish
//! PREFIX/share/streamline   examples, Python module, licences, dashboard for Grafana, and the
//!                           manifest of the installed files
//! ```
//!
//! PREFIX is `/usr/local` for root and `~/.local` for other users. With the prefix `/usr` or
//! `/usr/local` the systemd files and an example policy of the daemon are installed too. `DESTDIR`
//! is prepended to the paths of written files, but not to paths in their contents. Each file is
//! written under a temporary name and then renamed, so that running programs keep the old file.
//! Files of an earlier installation that are no longer installed are removed.

pub(crate) mod file_list;
mod manifest;

use crate::cargo;
use crate::outcome::Outcome;
use file_list::{InstallFile, InstallSource};
use manifest::InstallManifest;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The directory below the prefix that contains the manifest and the examples.
const SHARE_DIRECTORY: &str = "share/streamline";

/// Packages that make up the product, without the benchmarks.
pub(crate) const PRODUCT_PACKAGES: [&str; 6] = [
    "streamline-cli",
    "streamline-page",
    "streamline-sockets",
    "streamline-pcap",
    "streamline-udp",
    "streamline-capi",
];

/// The prefix of an installation, and the directory for staging (`DESTDIR`).
#[derive(Clone, PartialEq, Eq, Debug)]
struct InstallPaths {
    /// Directory from which the files are used after the installation.
    prefix: PathBuf,
    /// `DESTDIR`: a directory that is prepended to all paths while files are written.
    staging: Option<PathBuf>,
}

impl InstallPaths {
    /// Reads the prefix from the arguments. Returns the directories of the installation, and the
    /// arguments that do not concern the prefix.
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

    /// Returns the path with the staging directory prepended.
    fn staged_path(&self, path: &Path) -> PathBuf {
        match &self.staging {
            Some(staging) => staging.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    fn manifest_path(&self) -> PathBuf {
        self.staged_path(&self.prefix.join(SHARE_DIRECTORY).join("manifest"))
    }
}

/// Returns true if the prefix is `/usr` or `/usr/local`, where all users' search paths find the
/// files.
fn is_system_wide(prefix: &Path) -> bool {
    ["/usr", "/usr/local"].iter().any(|known| prefix == Path::new(known))
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
    let (paths, rest) = match InstallPaths::parse(arguments) {
        Ok(parsed) => parsed,
        Err(why) => return Outcome::Usage(why),
    };
    if let Some(unknown) = rest.iter().find(|word| **word != "--bench") {
        return Outcome::Usage(format!(
            "`install` knows --prefix DIR and --bench, not `{unknown}`"
        ));
    }
    let bench = !rest.is_empty();
    let mut build = cargo::cargo_command(root);
    build.args(["build", "--release"]);
    build.args(PRODUCT_PACKAGES.iter().flat_map(|package| ["--package", package]));
    if bench {
        build.args(["--package", "streamline-bench"]);
    }
    if !cargo::run_command(&mut build) {
        return Outcome::Failed;
    }
    let built = cargo::target_directory(root).join("release");
    let source = InstallSource { built: &built, prefix: &paths.prefix, bench, libraries: true };
    let files = match file_list::read_all_files(root, &source) {
        Ok(files) => files,
        Err(error) => return report_failure("what is to be installed cannot be made", &error),
    };
    match write_files_and_manifest(&paths, &files) {
        Ok(()) => {
            print_summary(&paths, &files);
            Outcome::Success
        }
        Err(error) => report_failure("not installed", &error),
    }
}

/// The verb `uninstall`: removes the files that the manifest names, and the directories created for
/// them.
pub(crate) fn uninstall(_: &Path, arguments: &[String]) -> Outcome {
    let (paths, rest) = match InstallPaths::parse(arguments) {
        Ok(parsed) => parsed,
        Err(why) => return Outcome::Usage(why),
    };
    if let Some(unknown) = rest.first() {
        return Outcome::Usage(format!("`uninstall` knows --prefix DIR, not `{unknown}`"));
    }
    let path = paths.manifest_path();
    match InstallManifest::read(&path).and_then(|manifest| manifest.remove_installed_files(&paths))
    {
        Ok(files) => {
            println!("removed {files} files below {}", paths.prefix.display());
            Outcome::Success
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!(
                "nothing is installed below {}: no {}",
                paths.prefix.display(),
                path.display()
            );
            Outcome::Failed
        }
        Err(error) => report_failure("not all is removed", &error),
    }
}

fn report_failure(what: &str, error: &io::Error) -> Outcome {
    eprintln!("error: {what}: {error}");
    if error.kind() == io::ErrorKind::PermissionDenied {
        eprintln!("another place: `cargo xtask install --prefix ~/.local`, or as root");
    }
    Outcome::Failed
}

/// Writes all files and the manifest, and removes files that only the earlier manifest names. The
/// union of both manifests is written first, so that a failed installation can be removed.
fn write_files_and_manifest(paths: &InstallPaths, files: &[InstallFile]) -> io::Result<()> {
    let path = paths.manifest_path();
    let before = match InstallManifest::read(&path) {
        Ok(manifest) => manifest,
        Err(error) if error.kind() == io::ErrorKind::NotFound => InstallManifest::default(),
        Err(error) => return Err(error),
    };
    let mut manifest = before.clone();
    manifest.files.clear();
    manifest.files.extend(files.iter().map(|file| paths.prefix.join(&file.to)));
    let folders = manifest.files.iter().filter_map(|file| file.parent()).map(Path::to_owned);
    let mut folders: Vec<PathBuf> = folders.collect();
    folders.push(paths.prefix.join(SHARE_DIRECTORY));
    for folder in folders {
        manifest.create_directory(paths, &folder)?;
    }
    let stale: Vec<PathBuf> = before.files.difference(&manifest.files).cloned().collect();
    manifest.union(&before).write(&path)?;
    for file in files {
        file.write(&paths.staged_path(&paths.prefix.join(&file.to)))?;
    }
    for file in stale {
        manifest::remove_file(&paths.staged_path(&file))?;
    }
    manifest.write(&path)
}

/// Prints the directories of the installation, and how to add them to the search paths.
fn print_summary(paths: &InstallPaths, files: &[InstallFile]) {
    let prefix = paths.prefix.display();
    println!("\ninstalled below {}:", paths.staged_path(&paths.prefix).display());
    let mut printed: Vec<(&str, PathBuf)> = Vec::new();
    for file in files {
        let folder = file.to.parent().unwrap_or(&file.to).to_owned();
        if !printed.contains(&(file.what, folder.clone())) {
            printed.push((file.what, folder));
        }
    }
    for (what, folder) in &printed {
        let files =
            files.iter().filter(|file| file.to.parent() == Some(folder) && file.what == *what);
        let names: Vec<_> = files.filter_map(|file| file.to.file_name()?.to_str()).collect();
        let names =
            if names.len() > 3 { format!("{} files", names.len()) } else { names.join(" ") };
        println!("  {:44} {what}", format!("{}/{names}", folder.display()));
    }
    let destination = paths.staging.is_none();
    let bin = paths.prefix.join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if destination && !std::env::split_paths(&path).any(|folder| folder == bin) {
        println!("\n`streamline` is not found yet; for this and later shells:");
        println!("  export PATH=\"{prefix}/bin:$PATH\"");
        println!("  export MANPATH=\"{prefix}/share/man:\"");
    }
    if destination && !is_system_wide(&paths.prefix) {
        println!("\nC programs: export PKG_CONFIG_PATH=\"{prefix}/lib/pkgconfig\"");
        println!("zsh, before compinit: fpath+=(\"{prefix}/share/zsh/site-functions\")");
    } else if destination {
        println!("\nC programs: run `ldconfig` once, so that they find the library");
        println!(
            "the daemon of the machine: systemd-sysusers && systemd-tmpfiles --create && \\\n  \
                  systemctl daemon-reload && systemctl enable --now streamline.socket"
        );
    }
    println!("\nto begin with: streamline examples --write examples");
    println!("to remove it:  cargo xtask uninstall --prefix {prefix}");
}

#[cfg(test)]
mod tests;
