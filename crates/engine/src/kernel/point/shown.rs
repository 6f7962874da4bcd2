//! The state of attach points as reported to `doctor`, `ps` and tests.

use super::line::{Owned, Whose};
use super::version::Version;
use super::{Line, Point, Points, State};
use filter::{Amount, Attach};
use std::sync::{Arc, PoisonError, Weak};

/// The state of an attach point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The user whose sockets it covers, if it is no interface.
    pub user: Option<u32>,
    /// The number of the program, as the kernel counts programs.
    pub program: u32,
    /// Number of runs, counted by the kernel while its statistics are enabled.
    pub runs: u64,
    /// Number of requests in its program.
    pub lines: usize,
    /// Number of owners with a ring of frames.
    pub owners: usize,
    /// Number of replacements of its program.
    pub replaced: u64,
    /// Its filters: what each is called, how many lines use it, and how many blocks came to it
    /// since the program was put in its place.
    pub steps: Vec<(String, usize, u64)>,
    /// Frames that programs here were given, all together.
    pub frames: u64,
    /// The lines, in the order in which they came.
    pub each: Vec<ShownLine>,
    /// The rings of frames.
    pub rings: Vec<ShownRing>,
}

/// A ring of frames: whose it is, bytes, how many lines lead there.
pub type ShownRing = (Whose, u64, usize);

/// A line that runs at an attach point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownLine {
    /// The number that it has here.
    pub number: u32,
    /// The owner's user id.
    pub owner: u32,
    /// Frames that came while it was here.
    pub taken: Amount,
    /// Frames delivered to it, all exits together.
    pub given: Amount,
    /// Frames that could not be copied for it.
    pub lost: u64,
    /// Its filters: what each is called, how many lines use it, and how many blocks came to it
    /// while the line was here.
    pub steps: Vec<(String, usize, u64)>,
}

impl Points {
    /// Returns the state of all attach points.
    #[must_use]
    pub fn shown(&self) -> Vec<(Attach, Shown)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let points = known.iter().filter_map(Weak::upgrade);
        points.filter_map(|point| Some((point.attach.clone(), point.shown()?))).collect()
    }
}

impl Point {
    /// Returns the state of this attach point.
    pub(super) fn shown(&self) -> Option<Shown> {
        let state = self.state();
        let version = &state.running.as_ref()?.version;
        let owned = state.lines.iter().map(|line| &line.owner);
        let mut rings: Vec<(*const Owned, ShownRing)> = Vec::new();
        for owner in owned {
            let at = Arc::as_ptr(owner);
            match rings.iter_mut().find(|(known, _)| *known == at) {
                Some((_, (.., lines))) => *lines += 1,
                None => {
                    let bytes = owner.records.own_shape().size().map_or(0, u64::from);
                    rings.push((at, (owner.whose.clone(), bytes, 1)));
                }
            }
        }
        let info = version.program().info().ok()?;
        let retired = state.retired.iter().map(Version::ran).sum::<u64>();
        Some(Shown {
            user: self.sockets.as_ref().map(|sockets| sockets.whose().0),
            program: info.id,
            runs: info.runs,
            lines: state.lines.len(),
            owners: rings.len(),
            replaced: state.replaced,
            steps: version.steps(),
            frames: state.frames + retired + version.ran(),
            each: state.lines.iter().map(|line| state.shown(line, version)).collect(),
            rings: rings.into_iter().map(|(_, ring)| ring).collect(),
        })
    }
}

impl State {
    /// Returns the counters of a request so far.
    fn shown(&self, line: &Line, running: &Version) -> ShownLine {
        let counted = self.counted(line, running);
        let sum = |sum: Amount, more: &Amount| Amount {
            blocks: sum.blocks + more.blocks,
            bytes: sum.bytes + more.bytes,
        };
        ShownLine {
            number: line.number,
            owner: line.uid,
            taken: counted.ran,
            given: counted.handed.iter().fold(Amount::default(), sum),
            lost: line.failed(),
            steps: running.steps_of(line.number, &counted.entered),
        }
    }
}
