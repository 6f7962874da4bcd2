//! Pinning of a space's thread to a CPU.

/// Current CPU of a thread, and its affinity before it was pinned.
#[derive(Default)]
pub(super) struct CpuPin {
    /// CPU to which the thread is pinned, if any.
    pub(super) kept: Option<usize>,
    /// CPUs allowed before the first pinning.
    pub(super) before: Vec<usize>,
}

impl CpuPin {
    /// Pins the thread to a CPU; `None` restores the affinity from before the first pinning.
    /// Failures leave the affinity unchanged.
    pub(super) fn pin_to(&mut self, processor: Option<usize>) {
        if processor == self.kept {
            return;
        }
        if self.kept.is_none() {
            self.before = sys::process::allowed_processors().unwrap_or_default();
        }
        let kept = match processor {
            Some(processor) => sys::process::pin_to(processor),
            None => sys::process::pin_among(&self.before),
        };
        if kept.is_ok() {
            self.kept = processor;
        }
    }
}
