//! Debian packages, made by cargo-deb and checked by lintian.
//!
//! The packages contain the files of [`crate::install`], some of them at other paths
//! ([`debian_path`]). There are four packages: `streamline`, `libstreamline` with the libraries
//! that other programs load, `libstreamline-dev` with the files that only compilers need, and
//! `streamline-page`. The manifests that cargo-deb reads are in `dist/debian`; the lists of files
//! are generated.

use super::release::Release;
use super::stage;
use crate::cargo;
use crate::install::file_list::{InstallFile, write_atomically};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum total size in bytes of the stripped programs and libraries in the package `streamline`.
const CORE_PACKAGE_BYTES_MAX: usize = 15 << 20;

/// Debian revision of the packages: the number after the hyphen in their versions.
const DEBIAN_REVISION: &str = "1";

/// The packages, each with the manifest `NAME.toml` in `dist/debian`.
const DEBIAN_PACKAGES: [&str; 4] =
    ["streamline", "libstreamline", "libstreamline-dev", "streamline-page"];

/// The release from which Debian packages are made, and the root of the working tree.
#[derive(Debug)]
pub(super) struct DebianRelease<'a> {
    pub(super) root: &'a Path,
    pub(super) release: &'a Release,
}

impl DebianRelease<'_> {
    /// Makes all packages from the installed files, below `scratch`, and puts them into `output`.
    /// Returns their paths.
    pub(super) fn pack(
        &self,
        files: &[InstallFile],
        scratch: &Path,
        output: &Path,
    ) -> Result<Vec<PathBuf>, String> {
        if !self.release.quick {
            check_size(files)?;
        }
        DEBIAN_PACKAGES
            .iter()
            .map(|name| self.pack_package(name, files, (scratch, output)))
            .collect()
    }

    fn pack_package(
        &self,
        name: &str,
        files: &[InstallFile],
        (scratch, output): (&Path, &Path),
    ) -> Result<PathBuf, String> {
        let home = scratch.join(name);
        stage::create_empty_directory(&home).map_err(|why| format!("{}: {why}", home.display()))?;
        let mut all = self.documents(name)?;
        all.extend(files.iter().filter_map(|file| {
            let to = debian_path(&file.to)?;
            // In Debian, libraries have no execute permission.
            let is_library = to.extension().is_some_and(|end| end == "so");
            let mode = if is_library { 0o644 } else { file.mode };
            (debian_package_of_file(&to) == name).then(|| InstallFile { to, mode, ..file.clone() })
        }));
        stage::write_files(&home, &all).map_err(|why| why.to_string())?;
        self.write_manifest(name, &home, &all).map_err(|why| why.to_string())?;
        let mut deb = cargo::cargo_command(&home);
        deb.args(["deb", "--no-build", "--no-strip", "--quiet", "--output"]).arg(output);
        deb.args(["--deb-revision", DEBIAN_REVISION]);
        if self.release.quick {
            deb.arg("--fast");
        }
        deb.env("SOURCE_DATE_EPOCH", &self.release.epoch).env_remove("CARGO_TARGET_DIR");
        if !cargo::run_command(&mut deb) {
            return Err(format!("cargo-deb has not made {name}"));
        }
        let start = format!("{name}_{}-{}_", self.release.version, DEBIAN_REVISION);
        let made = fs::read_dir(output).map_err(|why| why.to_string())?.flatten();
        let made = made.map(|entry| entry.path()).find(|path| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&start))
        });
        made.ok_or_else(|| format!("cargo-deb has not made {start}*.deb"))
    }

    /// Returns the documents of the package `name`: the licence, the changelog of the project, and
    /// the exceptions to lintian's rules.
    fn documents(&self, name: &str) -> Result<Vec<InstallFile>, String> {
        let read =
            |path: &str| fs::read(self.root.join(path)).map_err(|why| format!("{path}: {why}"));
        let documents = Path::new("usr/share/doc").join(name);
        let file = |to: PathBuf, bytes| InstallFile::new(to, "documents", bytes);
        let mut files = vec![
            file(documents.join("copyright"), read("dist/debian/copyright")?),
            file(documents.join("changelog"), read("CHANGELOG.md")?),
        ];
        if let Ok(overrides) = read(&format!("dist/debian/{name}.lintian-overrides")) {
            files.push(file(Path::new("usr/share/lintian/overrides").join(name), overrides));
        }
        Ok(files)
    }

    /// Writes the manifest, the packaging changelog, and an empty crate for cargo-deb.
    fn write_manifest(
        &self,
        name: &str,
        home: &Path,
        files: &[InstallFile],
    ) -> std::io::Result<()> {
        let dist = self.root.join("dist");
        let version = &self.release.version;
        let text = fs::read_to_string(dist.join("debian").join(format!("{name}.toml")))?;
        let mut text = text
            .replace("@VERSION@", version)
            .replace("@REVISION@", DEBIAN_REVISION)
            .replace("@DIST@", &dist.display().to_string())
            .replace("@CHANGELOG@", "changelog.debian");
        text.push_str("assets = [\n");
        for file in files {
            let to = file.to.display();
            let _ = writeln!(text, "  [\"{to}\", \"{to}\", \"{:o}\"],", file.mode);
        }
        text.push_str("]\n\n[workspace]\n\n[lib]\npath = \"empty.rs\"\n");
        write_atomically(&home.join("Cargo.toml"), text.as_bytes(), 0o644)?;
        write_atomically(&home.join("empty.rs"), b"", 0o644)?;
        let date = self.release.commit_date("+%a, %d %b %Y %H:%M:%S +0000");
        let author = text.lines().find_map(|line| line.strip_prefix("maintainer = "));
        let changes = format!(
            "{name} ({version}-{DEBIAN_REVISION}) unstable; urgency=medium\n\n  * Release \
             {version}, commit {}.\n    What changed is in changelog.gz.\n\n -- {}  {}\n",
            self.release.commit,
            author.unwrap_or_default().trim_matches('"'),
            date.map_err(std::io::Error::other)?,
        );
        write_atomically(&home.join("changelog.debian"), changes.as_bytes(), 0o644)
    }
}

/// Runs lintian on the packages. Fails if lintian reports errors or warnings. Returns true if the
/// packages were checked, or false if lintian is not installed.
pub(super) fn check_with_lintian(packages: &[PathBuf]) -> Result<bool, String> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags"]);
    // These warnings do not apply: the maintainer's address has no real domain, and the first
    // upload of a package need not close a bug report here.
    lintian.arg("bogus-mail-host,initial-upload-closes-no-bugs").args(packages);
    match lintian.status() {
        Ok(status) if status.success() => Ok(true),
        Ok(status) => Err(format!("lintian ended with {status}")),
        Err(_) => Ok(false),
    }
}

/// Checks that the programs and libraries of the package `streamline` have at most
/// [`CORE_PACKAGE_BYTES_MAX`] bytes in total, and prints their total size.
fn check_size(files: &[InstallFile]) -> Result<(), String> {
    let is_core = |file: &&InstallFile| {
        let package = debian_path(&file.to).map(|path| debian_package_of_file(&path));
        file.mode == 0o755 && package == Some(DEBIAN_PACKAGES[0])
    };
    let size: usize = files.iter().filter(is_core).map(|file| file.bytes.len()).sum();
    println!("core: {} kB of {} kB", size >> 10, CORE_PACKAGE_BYTES_MAX >> 10);
    match size <= CORE_PACKAGE_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "the program and its libraries have {size} bytes of {CORE_PACKAGE_BYTES_MAX}"
        )),
    }
}

/// Returns the name of the Debian package that contains the file at this path.
fn debian_package_of_file(path: &Path) -> &'static str {
    let [program, library, development, page] = DEBIAN_PACKAGES;
    let is_of = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    if is_of(&["usr/include", "usr/lib/pkgconfig", "usr/lib/libstreamline.a"]) {
        development
    } else if is_of(&[
        "usr/lib/libstreamline.so",
        "usr/lib/streamline/libstreamline_pcap.so",
        "usr/lib/streamline/libstreamline_udp.so",
        "usr/lib/python3",
    ]) {
        library
    } else if path.file_stem().is_some_and(|name| name == page) {
        page
    } else {
        program
    }
}

/// Returns the path of an installed file in a Debian package, or `None` if no package has it.
fn debian_path(to: &Path) -> Option<PathBuf> {
    let name = to.file_name()?.to_str()?;
    Some(match to.parent()?.to_str()? {
        // The licences are in the file `copyright`.
        "share/streamline" if name.starts_with("LICENSE") => return None,
        "share/streamline/python" => Path::new("usr/lib/python3/dist-packages").join(name),
        "share/zsh/site-functions" => Path::new("usr/share/zsh/vendor-completions").join(name),
        _ => Path::new("usr").join(to),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_installed_file_is_in_one_package() {
        for (to, path, package) in [
            ("bin/streamline", "usr/bin/streamline", "streamline"),
            ("bin/streamline-page", "usr/bin/streamline-page", "streamline-page"),
            (
                "lib/systemd/system/streamline-page.service",
                "usr/lib/systemd/system/streamline-page.service",
                "streamline-page",
            ),
            ("lib/libstreamline.so", "usr/lib/libstreamline.so", "libstreamline"),
            ("lib/libstreamline.a", "usr/lib/libstreamline.a", "libstreamline-dev"),
            (
                "lib/streamline/libstreamline_udp.so",
                "usr/lib/streamline/libstreamline_udp.so",
                "libstreamline",
            ),
            (
                "lib/streamline/libstreamline_sockets.so",
                "usr/lib/streamline/libstreamline_sockets.so",
                "streamline",
            ),
            ("include/streamline.h", "usr/include/streamline.h", "libstreamline-dev"),
            (
                "share/streamline/python/streamline.py",
                "usr/lib/python3/dist-packages/streamline.py",
                "libstreamline",
            ),
        ] {
            let placed = debian_path(Path::new(to)).unwrap();
            assert_eq!((placed.to_str(), debian_package_of_file(&placed)), (Some(path), package));
        }
        assert_eq!(debian_path(Path::new("share/streamline/LICENSE-MIT")), None);
    }

    #[test]
    fn packages_replace_files_of_earlier_versions() {
        // Without these fields dpkg refuses to overwrite the file of an earlier version.
        for (file, package) in [
            ("share/man/man1/streamline-page.1", "streamline-page"),
            ("lib/streamline/libstreamline_udp.so", "libstreamline"),
        ] {
            assert_eq!(debian_package_of_file(&debian_path(Path::new(file)).unwrap()), package);
            let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/debian");
            let text = fs::read_to_string(manifests.join(format!("{package}.toml"))).unwrap();
            for field in ["breaks", "replaces"] {
                let line = format!("{field} = \"streamline (<< @VERSION@-@REVISION@)\"\n");
                assert!(text.contains(&line), "{package}: {line}");
            }
        }
    }
}
