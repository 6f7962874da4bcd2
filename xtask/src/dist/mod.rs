//! `dist`: the packages of a release, in `target/dist`.
//!
//! ```text
//! streamline_VERSION-1_ARCH.deb         program, daemon, manual, completions
//! libstreamline_VERSION-1_ARCH.deb      library for C and Python programs
//! libstreamline-dev_VERSION-1_ARCH.deb  files that C compilers need
//! streamline-page_VERSION-1_ARCH.deb    live page
//! streamline-VERSION-ARCH-linux-gnu.tar.gz    the same for other distributions, below /usr/local
//! streamline-VERSION-ARCH-linux-static.tar.gz the program alone, which needs no C library
//! streamline-VERSION.cdx.json           components with licences and checksums (CycloneDX)
//! Containerfile                         recipe of a container image
//! SHA256SUMS                            checksums of all of them
//! ```
//!
//! Input: a working tree without changes, cargo-deb, GNU tar and gzip, and lintian if it is
//! installed. The same commit and toolchain produce the same bytes everywhere (see [`release`]).

mod debian;
mod release;
mod sbom;
mod stage;
mod trial;

use crate::cargo;
use crate::install::PRODUCT_PACKAGES;
use crate::install::file_list::{self, InstallFile, InstallSource, write_atomically};
use crate::outcome::Outcome;
use debian::DebianRelease;
use release::{Release, STATIC_TARGET, program_output};
use std::path::{Path, PathBuf};
use std::process::Command;
use trial::DEFAULT_SUITE;

/// Installation prefix of the files in the Debian packages.
const DEBIAN_PREFIX: &str = "/usr";
/// Installation prefix of the files in the tarballs.
const TARBALL_PREFIX: &str = "/usr/local";

/// Arguments of `cargo xtask dist`.
#[derive(Default)]
struct Options {
    /// True if the working tree may have uncommitted changes (`--dirty`).
    dirty: bool,
    /// True for a build without optimization, which is faster.
    quick: bool,
    /// True if the tarball with the static program is not made (`--no-static`).
    no_static: bool,
    /// Name of the Debian release on which the packages are installed and tested, or `None` if they
    /// are not tested.
    trial: Option<String>,
    /// True if the packages that are already in `target/dist` are tried, instead of new ones.
    no_build: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        for argument in arguments {
            let (word, suite) = argument.split_once('=').unwrap_or((argument, DEFAULT_SUITE));
            match word {
                "--dirty" => options.dirty = true,
                "--quick" => options.quick = true,
                "--no-static" => options.no_static = true,
                "--try" | "--try-only" => {
                    options.trial = Some(suite.to_owned());
                    options.no_build = word == "--try-only";
                }
                unknown => {
                    return Err(format!(
                        "`dist` knows --dirty, --quick, --no-static, --try[=SUITE] and \
                         --try-only[=SUITE], not `{unknown}`"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// The verb `dist`: builds the packages unless `--try-only` is given, and tries them with `--try`
/// or `--try-only`.
pub(crate) fn dist(root: &Path, arguments: &[String]) -> Outcome {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(why) => return Outcome::Usage(why),
    };
    let made = match options.no_build {
        true => packages_in(&cargo::target_directory(root).join("dist")),
        false => build_all_packages(root, &options),
    };
    let tried = made.and_then(|packages| match &options.trial {
        Some(suite) => trial::run_trial(&cargo::target_directory(root), suite, &packages),
        None => Ok(()),
    });
    match tried {
        Ok(()) => Outcome::Success,
        Err(why) => {
            eprintln!("error: dist: {why}");
            Outcome::Failed
        }
    }
}

/// Returns the Debian packages in a directory.
fn packages_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries =
        std::fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut packages: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect();
    packages.sort();
    match packages.is_empty() {
        true => Err(format!("{} has no packages", folder.display())),
        false => Ok(packages),
    }
}

/// Makes and checks all packages. Returns the Debian packages.
fn build_all_packages(root: &Path, options: &Options) -> Result<Vec<PathBuf>, String> {
    if !cargo::has_subcommand(root, "deb") {
        return Err("cargo-deb is missing; `cargo install --locked cargo-deb`".to_owned());
    }
    let with_static = !options.no_static;
    if with_static && !release::has_static_target() {
        return Err(format!(
            "the static program needs `rustup target add {STATIC_TARGET}`; --no-static omits it"
        ));
    }
    let release = Release::read(root, (options.dirty, options.quick))?;
    let output = cargo::target_directory(root).join("dist");
    let scratch = cargo::target_directory(root).join("dist-scratch");
    for folder in [&output, &scratch] {
        stage::create_empty_directory(folder)
            .map_err(|why| format!("{}: {why}", folder.display()))?;
    }
    let built = release::build_release(root, &release, None)?;
    strip_static_library(&built)?;
    let installed = |built: &Path, prefix: &str, libraries: bool| {
        let prefix = Path::new(prefix);
        let source = InstallSource { built, prefix, bench: false, libraries };
        file_list::read_all_files(root, &source).map_err(|why| why.to_string())
    };
    let debian = DebianRelease { root, release: &release };
    let files = installed(&built, DEBIAN_PREFIX, true)?;
    let packages = debian.pack(&files, &scratch, &output)?;
    let tarball = |files: Vec<InstallFile>, form: &str| {
        let machine = std::env::consts::ARCH;
        let name = format!("streamline-{}-{machine}-linux-{form}", release.version);
        let mut files = files;
        let readme = root.join(format!("dist/README.{form}"));
        let readme =
            std::fs::read(&readme).map_err(|why| format!("{}: {why}", readme.display()))?;
        files.push(InstallFile::new("README", "how to install", readme));
        stage::write_files(&scratch.join(&name), &files).map_err(|why| why.to_string())?;
        stage::pack_tarball(&scratch, &name, &output, &release)
    };
    tarball(installed(&built, TARBALL_PREFIX, true)?, "gnu")?;
    if with_static {
        let built = release::build_release(root, &release, Some(STATIC_TARGET))?;
        tarball(installed(&built, TARBALL_PREFIX, false)?, "static")?;
    }
    let components = sbom::component_list(root, &release, &PRODUCT_PACKAGES)?;
    let name = format!("streamline-{}.cdx.json", release.version);
    let recipe = std::fs::read(root.join("dist/container/Containerfile"));
    let recipe = recipe.map_err(|why| format!("dist/container/Containerfile: {why}"))?;
    for (name, bytes) in [(name.as_str(), components.as_bytes()), ("Containerfile", &recipe)] {
        write_atomically(&output.join(name), bytes, 0o644).map_err(|why| why.to_string())?;
    }
    write_checksums(&output)?;
    if !debian::check_with_lintian(&packages)? {
        println!("left out: lintian is not installed");
    }
    Ok(packages)
}

/// Removes the debug information of the standard library from the static library.
fn strip_static_library(built: &Path) -> Result<(), String> {
    let mut strip = Command::new("strip");
    strip.args(["--strip-debug", "--enable-deterministic-archives"]);
    program_output(strip.arg(built.join("libstreamline_c.a"))).map(drop)
}

/// Writes the checksums of all files in a directory, and prints them with the sizes.
fn write_checksums(output: &Path) -> Result<(), String> {
    let entries = std::fs::read_dir(output).map_err(|why| why.to_string())?.flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let names: Vec<_> = paths.iter().filter_map(|path| path.file_name()).collect();
    let sums = program_output(Command::new("sha256sum").args(names).current_dir(output))?;
    println!();
    for (path, sum) in paths.iter().zip(sums.lines()) {
        let size = std::fs::metadata(path).map_or(0, |about| about.len());
        println!("{size:>10}  {sum}");
    }
    println!("\nin {}", output.display());
    let path = output.join("SHA256SUMS");
    write_atomically(&path, sums.as_bytes(), 0o644).map_err(|why| why.to_string())
}
