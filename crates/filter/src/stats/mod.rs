//! Filters that leave every block as it is and say something when asked: counts, histograms,
//! contents.

pub mod count;
pub mod hist;
pub mod inspect;
