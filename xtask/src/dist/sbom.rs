//! The list of components of a release in the format CycloneDX 1.5: each package that is linked
//! into the product, with version, licence, checksum and dependencies.
//!
//! The packages come from `cargo tree`, the checksums from `Cargo.lock`.

use super::release::{Release, program_output};
use crate::cargo;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A package that is linked into the product, with its licence and its direct dependencies.
#[derive(Default, Debug, PartialEq, Eq)]
struct LinkedPackage {
    licence: String,
    dependencies: BTreeSet<PackageVersion>,
}

/// Name and version that identify a package in `Cargo.lock`.
type PackageVersion = (String, String);

/// Returns the list of components that are linked into these packages of the workspace, as
/// CycloneDX JSON.
pub(super) fn component_list(
    root: &Path,
    release: &Release,
    packages: &[&str],
) -> Result<String, String> {
    let mut tree = cargo::cargo_command(root);
    tree.args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "depth"]);
    tree.args(["--format", "\t{p}\t{l}"]);
    tree.args(packages.iter().flat_map(|package| ["--package", package]));
    let components = parse_tree(&program_output(&mut tree)?);
    let lock = std::fs::read_to_string(root.join("Cargo.lock"));
    let checksums = parse_checksums(&lock.map_err(|why| format!("Cargo.lock: {why}"))?);
    let time = release.commit_date("+%Y-%m-%dT%H:%M:%SZ")?;
    Ok(format_list(release, &time, &components, &checksums))
}

/// Parses the output of `cargo tree` into packages with their dependencies. Its lines, such as
/// `1<TAB>libc v0.2.1<TAB>MIT`, begin with the depth in the tree.
fn parse_tree(text: &str) -> BTreeMap<PackageVersion, LinkedPackage> {
    let mut components: BTreeMap<PackageVersion, LinkedPackage> = BTreeMap::new();
    let mut parents: Vec<PackageVersion> = Vec::new();
    for line in text.lines() {
        let mut parts = line.split('\t');
        let (Some(depth), Some(about)) = (parts.next(), parts.next()) else { continue };
        let Ok(depth) = depth.parse::<usize>() else { continue };
        let mut words = about.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let package = (name.to_owned(), version.trim_start_matches('v').to_owned());
        parents.truncate(depth);
        if let Some(parent) = parents.last() {
            let parent = components.entry(parent.clone()).or_default();
            parent.dependencies.insert(package.clone());
        }
        // `(*)` marks packages whose dependencies are listed above.
        let licence = parts.next().unwrap_or_default().trim_end_matches(" (*)").to_owned();
        components.entry(package.clone()).or_default().licence = licence;
        parents.push(package);
    }
    components
}

/// Parses the SHA-256 sums in the text of a `Cargo.lock`.
fn parse_checksums(lock: &str) -> BTreeMap<PackageVersion, String> {
    let mut sums = BTreeMap::new();
    for entry in lock.split("[[package]]") {
        let value = |key: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (value("name = "), value("version = "), value("checksum = "))
        {
            sums.insert((name, version), sum);
        }
    }
    sums
}

fn format_list(
    release: &Release,
    time: &str,
    components: &BTreeMap<PackageVersion, LinkedPackage>,
    checksums: &BTreeMap<PackageVersion, String>,
) -> String {
    let version = quote_json(&release.version);
    let mut rows = Vec::new();
    let mut edges = Vec::new();
    for (package @ (name, number), component) in components {
        // The licence expressions of old packages have a slash for `or`.
        let licence = component.licence.replace('/', " OR ");
        let hashes = checksums.get(package).map_or_else(String::new, |sum| {
            format!(",\"hashes\":[{{\"alg\":\"SHA-256\",\"content\":{}}}]", quote_json(sum))
        });
        rows.push(format!(
            "{{\"type\":\"library\",\"bom-ref\":{reference},\"name\":{},\"version\":{},\
             \"licenses\":[{{\"expression\":{}}}],\"purl\":{reference}{hashes}}}",
            quote_json(name),
            quote_json(number),
            quote_json(&licence),
            reference = quote_json(&package_url(package)),
        ));
        let used: Vec<String> =
            component.dependencies.iter().map(|used| quote_json(&package_url(used))).collect();
        edges.push(format!(
            "{{\"ref\":{},\"dependsOn\":[{}]}}",
            quote_json(&package_url(package)),
            used.join(",")
        ));
    }
    format!(
        "{{\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.5\",\"version\":1,\n\
         \"metadata\":{{\"timestamp\":{},\"component\":{{\"type\":\"application\",\"bom-ref\":\
         \"product\",\"name\":\"streamline\",\"version\":{version},\"licenses\":[{{\"expression\":\
         \"Apache-2.0 OR MIT\"}}],\"properties\":[{{\"name\":\"commit\",\"value\":{}}}]}}}},\n\
         \"components\":[\n{}\n],\n\"dependencies\":[\n{}\n]}}\n",
        quote_json(time),
        quote_json(&release.commit),
        rows.join(",\n"),
        edges.join(",\n"),
    )
}

/// Returns the package URL (purl) of a package. In the list of components, the URL also serves as
/// the reference to the package.
fn package_url((name, version): &PackageVersion) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// Returns the text as a JSON string.
fn quote_json(text: &str) -> String {
    let escape = |letter: char| match letter {
        '"' | '\\' => format!("\\{letter}"),
        letter if letter.is_control() => format!("\\u{:04x}", u32::from(letter)),
        letter => letter.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_and_lock_give_packages_with_dependencies_and_sums() {
        let tree = "0\tstreamline-cli v0.2.0 (/src/cli)\tMIT\n1\tlibc v0.2.1\tMIT/Apache-2.0\n\
                    1\tserde v1.0.0 (proc-macro)\tMIT\n2\tlibc v0.2.1\tMIT/Apache-2.0 (*)\n\n\
                    0\tstreamline-sockets v0.2.0 (/src/sockets)\tMIT\n\
                    1\tlibc v0.2.1\tMIT/Apache-2.0 (*)\n";
        let components = parse_tree(tree);
        let libc = ("libc".to_owned(), "0.2.1".to_owned());
        let serde = ("serde".to_owned(), "1.0.0".to_owned());
        let cli = &components[&("streamline-cli".to_owned(), "0.2.0".to_owned())];
        assert_eq!(cli.dependencies, BTreeSet::from([libc.clone(), serde.clone()]));
        assert_eq!(components[&serde].dependencies, BTreeSet::from([libc.clone()]));
        assert_eq!((components.len(), components[&libc].licence.as_str()), (4, "MIT/Apache-2.0"));
        let lock = "version = 4\n\n[[package]]\nname = \"libc\"\nversion = \"0.2.1\"\n\
                    checksum = \"abc\"\n\n[[package]]\nname = \"xtask\"\nversion = \"0.2.0\"\n";
        assert_eq!(parse_checksums(lock), BTreeMap::from([(libc, "abc".to_owned())]));
    }
}
