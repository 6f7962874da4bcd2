//! Statistics filters: reports on unchanged blocks (counts, histograms, contents).

pub mod count;
pub mod hist;
pub mod inspect;
