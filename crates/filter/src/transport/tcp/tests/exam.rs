//! Known streams, cut up at random.
