//! Arguments of filters, extracted from the examples in the catalog.

use crate::contract::Description;

/// Returns the arguments of a filter in the example of its catalog entry: the words after its name,
/// up to the next pipe.
///
/// # Panics
///
/// Panics if the example does not contain the filter.
#[must_use]
pub fn example_words(description: &Description) -> Vec<String> {
    let stages = split_stages(description.example);
    let own = stages.into_iter().find(|stage| stage.first().is_some_and(|w| w == description.name));
    let own = own.unwrap_or_else(|| panic!("`{}` is not in its own example", description.name));
    own.into_iter().skip(1).collect()
}

/// Returns the lists of arguments with which the twin of a filter is tested.
pub(super) fn twin_argument_lists(description: &Description) -> Vec<Vec<String>> {
    match description.twin_test_arguments {
        [] => vec![example_words(description)],
        texts => texts.iter().map(|text| split_stages(text).concat()).collect(),
    }
}

/// Splits a request at its pipes, and each stage into words.
fn split_stages(text: &str) -> Vec<Vec<String>> {
    let mut stages = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quoted = false;
    let end_word = |word: &mut Option<String>, stages: &mut Vec<Vec<String>>| {
        if let (Some(word), Some(stage)) = (word.take(), stages.last_mut()) {
            stage.push(word);
        }
    };
    for letter in text.chars() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            _ if quoted => word.get_or_insert_default().push(letter),
            ' ' | '|' | '(' | ')' | '+' | '!' => {
                end_word(&mut word, &mut stages);
                if letter == '|' {
                    stages.push(Vec::new());
                }
            }
            letter => word.get_or_insert_default().push(letter),
        }
    }
    end_word(&mut word, &mut stages);
    stages
}
