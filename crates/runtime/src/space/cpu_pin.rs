//! Pinning of a space's thread to a CPU.

/// State of the pinning of a space's thread: the CPU to which it is pinned, and its previous
/// affinity.
#[derive(Default)]
pub(super) struct CpuPin {
    /// CPU to which the thread is pinned; `None` if it is not pinned.
    pub(super) pinned: Option<usize>,
    /// CPUs on which the thread was allowed to run before it was pinned.
    pub(super) unpinned_cpus: Vec<usize>,
}

impl CpuPin {
    /// Pins the thread to a CPU. `None` restores the affinity that the thread had before it was
    /// pinned. A failure leaves the affinity unchanged.
    pub(super) fn pin_to(&mut self, processor: Option<usize>) {
        if processor == self.pinned {
            return;
        }
        if self.pinned.is_none() {
            self.unpinned_cpus = sys::process::allowed_processors().unwrap_or_default();
        }
        let kept = match processor {
            Some(processor) => sys::process::pin_to_processor(processor),
            None => sys::process::pin_to_processors(&self.unpinned_cpus),
        };
        if kept.is_ok() {
            self.pinned = processor;
        }
    }
}
