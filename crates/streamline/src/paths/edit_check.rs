//! Check of an edit before a path applies it.

use engine::registry::MachineRegistry;
use pipeline::binding::SpaceBinding;
use pipeline::edit::{Edit, PathMove};

/// Returns the request that a path would run after an edit, or `None` for an edit that only the
/// path can check, such as binding a space to a processor. Fails with a description of the mistake.
/// `words` are the arguments of `streamline set` after the path. Nothing is changed.
pub fn check_edit(line: &str, words: &[String]) -> Result<Option<String>, String> {
    let binding = SpaceBinding::parse(words).map_err(|mistake| mistake.to_string())?;
    if binding.is_some() || PathMove::parse(words).is_some() {
        return Ok(None);
    }
    let edit = Edit::parse(words).map_err(|mistake| mistake.to_string())?;
    let edited =
        edit.apply(line, &MachineRegistry::Local).map_err(|mistake| mistake.to_string())?;
    Ok(Some(edited.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_is_checked_without_a_running_path() {
        let check = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            check_edit("generate | dport | count", &words)
        };
        let edited = check(&["insert", "udp", "after", "generate"]).unwrap().unwrap();
        assert!(edited.starts_with("generate | udp | dport"), "{edited}");
        assert_eq!(check(&["pin", "thread0", "any"]), Ok(None));
        assert!(check(&["remove", "nothing"]).unwrap_err().contains("nothing"));
        assert!(check(&["reshape", "count"]).is_err());
    }
}
