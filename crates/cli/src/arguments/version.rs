//! Output of `streamline --version`.

/// Formats the version, the commit, the target and the optional features of this build, one per
/// line.
pub(super) fn version_details() -> String {
    let features = match cfg!(target_feature = "crt-static") {
        false => "libpcap for expressions that only libpcap knows; libraries for sh and exec",
        true => "none (static: without libpcap, and without libraries for sh and exec)",
    };
    format!(
        "{}\ncommit: {}\ntarget: {}\nfeatures: {features}",
        env!("CARGO_PKG_VERSION"),
        env!("STREAMLINE_COMMIT"),
        env!("STREAMLINE_TARGET"),
    )
}
