//! The only FFI of the house.
