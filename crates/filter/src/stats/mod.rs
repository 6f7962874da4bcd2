//! Statistics filters. They report counts, histograms or properties of contents, and pass blocks
//! unchanged.

pub mod count;
pub mod hist;
pub mod inspect;
