//! Statistics filters. They report counts, histograms or content properties, and pass blocks
//! unchanged.

pub mod count;
pub mod hist;
pub mod inspect;
