//! Statistics filters: they report on blocks (counts, histograms, contents) and pass them
//! unchanged.

pub mod count;
pub mod hist;
pub mod inspect;
