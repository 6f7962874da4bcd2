//! The processor binding of a space of a running path, in the words of `streamline set`.
//!
//! It is no edit: processors belong to a machine, not to a request, so the request stays as it is.

use crate::edit::Misfit;

/// A space and its processor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keep {
    /// Its name, as `streamline spaces` shows it.
    pub space: String,
    /// The processor that it keeps to; none: any.
    pub processor: Option<usize>,
}

impl Keep {
    /// Reads `pin SPACE PROCESSOR|any`; nothing where the words say something else.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Option<Self>, Misfit> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let ["pin", said @ ..] = words.as_slice() else { return Ok(None) };
        let usage = |what: &str| {
            Misfit(format!(
                "{what}: write `pin SPACE PROCESSOR`, as `pin thread0 1`, or `pin SPACE any`"
            ))
        };
        let [space, processor] = said else {
            return Err(usage("a space and a processor are needed"));
        };
        let processor = match *processor {
            "any" => None,
            number => {
                let known =
                    number.parse().map_err(|_| usage(&format!("`{number}` is no processor")));
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
    fn a_space_and_a_processor_are_words() {
        let keep = |processor| Some(Keep { space: "thread0".to_owned(), processor });
        assert_eq!(Keep::parse(&["pin", "thread0", "1"]), Ok(keep(Some(1))));
        assert_eq!(Keep::parse(&["pin", "thread0", "any"]), Ok(keep(None)));
        assert_eq!(Keep::parse(&["remove", "pin"]), Ok(None));
        for wrong in
            [&["pin"][..], &["pin", "thread0"], &["pin", "thread0", "-1"], &["pin", "a", "b", "c"]]
        {
            let why = Keep::parse(wrong).unwrap_err().to_string();
            assert!(why.contains("pin SPACE any"), "{wrong:?}: {why}");
        }
    }
}
