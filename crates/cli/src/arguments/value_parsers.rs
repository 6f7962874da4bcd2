//! Parsers of the values of options.

use engine::kernel::InjectedRefusal;
use engine::registry::MachineRegistry;
use std::path::PathBuf;

/// Parses the name of a file. Refuses `-`, because standard output is not possible.
pub(crate) fn parse_file_name(word: &str) -> Result<PathBuf, String> {
    match word {
        "-" => {
            Err("standard output is not possible here: name a file (`./-` for a file called `-`)"
                .to_owned())
        }
        name => Ok(name.into()),
    }
}

/// Parses the value of the option that simulates a kernel refusal: `nothing`, `loading`,
/// `attaching`, or the name of a filter. Fails with a message for the user.
pub(super) fn parse_injected_refusal(word: &str) -> Result<InjectedRefusal, String> {
    match word {
        "nothing" => Ok(InjectedRefusal::Nothing),
        "loading" => Ok(InjectedRefusal::Loading),
        "attaching" => Ok(InjectedRefusal::Attaching),
        name => {
            let filter =
                MachineRegistry::descriptions().find(|description| description.name == name);
            let filter = filter.ok_or_else(|| format!("no filter is called `{name}`"))?;
            Ok(InjectedRefusal::Filter(filter.name))
        }
    }
}
