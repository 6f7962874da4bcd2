//! Statistics filters, which report on blocks and leave them unchanged: counts, histograms,
//! contents.

pub mod count;
pub mod hist;
pub mod inspect;
