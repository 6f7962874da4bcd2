//! The processor binding of a space of a running path, as set by `streamline set … pin`.
//!
//! A binding does not change the text of the request, because processor numbers are specific to a
//! machine.

use crate::edit::InvalidEdit;

/// The binding of a space to a processor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceBinding {
    /// The name of the space, as in `streamline spaces`.
    pub space: String,
    /// The processor number; `None` removes the binding.
    pub processor: Option<usize>,
}

impl SpaceBinding {
    /// Parses `pin SPACE PROCESSOR|any`; returns `None` if the words are another command. Fails if
    /// the words after `pin` are invalid.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Option<Self>, InvalidEdit> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let ["pin", words @ ..] = words.as_slice() else { return Ok(None) };
        let usage = |what: &str| {
            InvalidEdit(format!(
                "{what}: write `pin SPACE PROCESSOR`, as `pin thread0 1`, or `pin SPACE any`"
            ))
        };
        let [space, processor] = words else {
            return Err(usage("a space and a processor are needed"));
        };
        let processor = match *processor {
            "any" => None,
            number => {
                let known =
                    number.parse().map_err(|_| usage(&format!("`{number}` is not a processor")));
                Some(known?)
            }
        };
        Ok(Some(Self { space: (*space).to_owned(), processor }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_command_parses_space_and_processor() {
        let binding = |processor| Some(SpaceBinding { space: "thread0".to_owned(), processor });
        assert_eq!(SpaceBinding::parse(&["pin", "thread0", "1"]), Ok(binding(Some(1))));
        assert_eq!(SpaceBinding::parse(&["pin", "thread0", "any"]), Ok(binding(None)));
        assert_eq!(SpaceBinding::parse(&["remove", "pin"]), Ok(None));
        for wrong in
            [&["pin"][..], &["pin", "thread0"], &["pin", "thread0", "-1"], &["pin", "a", "b", "c"]]
        {
            let why = SpaceBinding::parse(wrong).unwrap_err().to_string();
            assert!(why.contains("pin SPACE any"), "{wrong:?}: {why}");
        }
    }
}
