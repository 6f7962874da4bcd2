//! Parser for the entries of a `Cargo.toml` that the rules need: the package name, the lints and
//! the dependencies. The parser supports only the parts of TOML that occur in the manifests of this
//! tree: tables, keys, and the `package` key of inline tables.

/// The purpose for which a crate uses a dependency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DependencyUse {
    /// Used by the crate itself, or its build script.
    Product,
    /// Used only by the crate's tests (`dev-dependencies`).
    Tests,
}

/// A dependency that a `Cargo.toml` declares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Dependency {
    /// Name of the package, without the prefix `streamline-`.
    pub(super) name: String,
    pub(super) used: DependencyUse,
    /// Number of the line of the dependency in the manifest, from 1.
    pub(super) line: usize,
}

/// The entries of a `Cargo.toml` that the rules of `tidy` check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Manifest {
    /// The name of the package; empty in a manifest that only defines a workspace.
    pub(super) name: String,
    pub(super) dependencies: Vec<Dependency>,
    /// True if the package inherits the lints of the workspace.
    pub(super) lints: bool,
}

/// Parses the text of a `Cargo.toml`. `alias` returns the package name for the name of a workspace
/// dependency.
pub(super) fn parse_manifest(text: &str, alias: impl Fn(&str) -> String) -> Manifest {
    let mut manifest = Manifest::default();
    let mut table = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            table = header.trim_matches(|c| c == '[' || c == ']').to_owned();
            // `[dependencies.sys]` declares a dependency in its header.
            if let Some((used, name)) =
                parse_dependency_table_header(&table).and_then(|(u, rest)| Some((u, rest?)))
            {
                manifest.add_dependency(alias(name), used, number);
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match parse_dependency_table_header(&table) {
            Some((used, None)) => {
                let name = unquote(key.split('.').next().unwrap_or(key));
                let name = package_key(value).map_or_else(|| alias(name), str::to_owned);
                manifest.add_dependency(name, used, number);
            }
            Some((_, Some(_))) if key == "package" => {
                if let Some(last) = manifest.dependencies.last_mut() {
                    last.name = without_package_prefix(unquote(value)).to_owned();
                }
            }
            _ if table == "package" && key == "name" => manifest.name = unquote(value).to_owned(),
            _ if table == "lints" && key == "workspace" => manifest.lints = value == "true",
            _ => {}
        }
    }
    manifest
}

/// Returns the names of the workspace dependencies, with their packages.
pub(super) fn workspace_aliases(text: &str) -> Vec<(String, String)> {
    let mut here = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            here = line == "[workspace.dependencies]";
        } else if let (true, Some((key, value))) = (here, line.split_once('=')) {
            let name = unquote(key.trim());
            found.push((name.to_owned(), package_key(value).unwrap_or(name).to_owned()));
        }
    }
    found
}

impl Manifest {
    fn add_dependency(&mut self, name: String, used: DependencyUse, number: usize) {
        let name = without_package_prefix(&name).to_owned();
        self.dependencies.push(Dependency { name, used, line: number + 1 });
    }
}

/// Parses the header of a dependency table, such as `dev-dependencies` or `dependencies.NAME`.
/// Returns the purpose for which the crate uses these dependencies and, if the header contains it,
/// the name of a dependency. Returns `None` for any other table.
fn parse_dependency_table_header(table: &str) -> Option<(DependencyUse, Option<&str>)> {
    let table = match table.strip_prefix("target.") {
        // `target.'cfg(unix)'.dependencies`: the condition does not matter.
        Some(rest) => rest.rsplit_once("'.").map_or(rest, |(_, last)| last),
        None => table,
    };
    let (kind, name) = table.split_once('.').map_or((table, None), |(k, n)| (k, Some(n)));
    match kind {
        "dependencies" | "build-dependencies" => Some((DependencyUse::Product, name.map(unquote))),
        "dev-dependencies" => Some((DependencyUse::Tests, name.map(unquote))),
        _ => None,
    }
}

/// Returns the value of the `package` key of a TOML inline table, without the prefix of package
/// names.
fn package_key(value: &str) -> Option<&str> {
    let at = value.find("package")?;
    let rest = value[at + "package".len()..].trim_start().strip_prefix('=')?;
    rest.trim_start().strip_prefix('"')?.split('"').next().map(without_package_prefix)
}

fn unquote(text: &str) -> &str {
    text.trim().trim_matches(|c| c == '"' || c == '\'')
}

fn without_package_prefix(package: &str) -> &str {
    package.strip_prefix(super::rules::PACKAGE_PREFIX).unwrap_or(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_is_parsed_in_every_form() {
        let text = "[package]\nname = \"streamline-x\"\n[lints]\nworkspace = true\n\
            [dependencies]\nabi.workspace = true\n\"wire\" = { path = \"../wire\" }\n\
            bytes = { package = \"streamline-buffer\", path = \"../buffer\" }\n\
            short.workspace = true\n\
            [dependencies.sys]\nworkspace = true\n\
            [dependencies.other]\npackage = \"streamline-engine\"\n\
            [target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n\
            [dev-dependencies]\ntestkit.workspace = true\n\
            [build-dependencies]\nstreamline-ebpf = \"1\"\n";
        let alias =
            |name: &str| if name == "short" { "streamline-filter" } else { name }.to_owned();
        let manifest = parse_manifest(text, alias);
        let names: Vec<_> = manifest.dependencies.iter().map(|d| d.name.as_str()).collect();
        let all = ["abi", "wire", "buffer", "filter", "sys", "engine", "libc", "testkit", "ebpf"];
        assert_eq!(names, all);
        assert_eq!(manifest.name, "streamline-x");
        assert!(manifest.lints);
        assert_eq!(manifest.dependencies[7].used, DependencyUse::Tests);
        assert_eq!(manifest.dependencies[8].used, DependencyUse::Product);
        assert_eq!(manifest.dependencies[0].line, 6);
    }

    #[test]
    fn workspace_dependencies_have_aliases() {
        let text = "[workspace.dependencies]\n\
            abi = { package = \"streamline-abi\", path = \"a\" }\n\
            libc = \"0.2\"\n[profile.dev]\ndebug = 1\n";
        let found = workspace_aliases(text);
        assert_eq!(found[0], ("abi".to_owned(), "abi".to_owned()));
        assert_eq!(found[1], ("libc".to_owned(), "libc".to_owned()));
        assert_eq!(found.len(), 2);
    }
}
