//! Messages between a path and a filter in a process of its own: once the filter's name and
//! arguments, then blocks.
//!
//! A block is one block of a stream: its entry, as it lies in memory, then the bytes of its frame.
//! Both ends are the same program, so there is one form and no version of it.

use abi::{BLOCK_MAX, Class, DbufId, Entry, Extent, Flags, Marks, RichPointer};
use endpoint::Intake;
use filter::{Arguments, Block, Description, SessionNumbers, Value};
use pipeline::graph::Use;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Start parameters of a sandboxed filter, besides its name and arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    /// The ranges of classes that arcs of the filter name.
    pub(crate) asked: Vec<(u32, u32)>,
    /// The seed of a run that is repeated.
    pub(crate) seed: Option<u64>,
    /// The numbers that it may give to sessions.
    pub(crate) numbers: SessionNumbers,
    /// True if all nodes behind it take fragments.
    pub(crate) fragments: bool,
    /// True if the path runs by the time of its blocks.
    pub(crate) tells_time: bool,
    /// Offset from the monotonic clock to the path's clock, in ns.
    pub(crate) epoch: u64,
}

/// Bytes of a message before the frame.
pub(super) const HEAD: usize = size_of::<Entry>();
/// The longest message.
pub(super) const LONGEST: usize = BLOCK_MAX;

/// Returns the length of a block's message.
pub(super) const fn length_of(block: &Block<'_>) -> usize {
    HEAD + block.frame.len()
}

/// Writes a block; `room` is as long as [`length_of`] says.
pub(super) fn write(block: &Block<'_>, room: &mut [u8]) -> usize {
    let Some((head, frame)) = room.split_at_mut_checked(HEAD) else { return 0 };
    let mut entry = block.entry();
    if !entry.pointer.is_hole() {
        // As much as is handed over.
        entry.marks.captured = u32::try_from(block.frame.len()).unwrap_or(u32::MAX);
        entry.marks.wire_length = entry.marks.wire_length.max(entry.marks.captured);
    }
    head.copy_from_slice(entry.as_bytes());
    let length = frame.len().min(block.frame.len());
    frame[..length].copy_from_slice(&block.frame[..length]);
    HEAD + length
}

/// The defect in a block from an untrusted process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lie {
    /// It is shorter than an entry.
    Short,
    /// The view lies outside of the frame.
    View,
    /// A layer begins outside of the frame.
    Layer,
    /// A class that no block may have.
    Class,
    /// Flags that nobody knows.
    Flags,
    /// A source that the path does not have.
    Origin,
    /// A frame that was longer when it was captured than it was on the wire.
    Length,
    /// A message that is neither a block nor anything else.
    Record,
    /// Alleged filter state that is impossible.
    State,
    /// More than any filter may know or hold.
    TooMuch,
}

impl std::fmt::Display for Lie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Short => "it is shorter than its head",
            Self::View => "its view lies outside of its frame",
            Self::Layer => "one of its layers begins outside of its frame",
            Self::Class => "it has a class that no block may have",
            Self::Flags => "it has flags that do not exist",
            Self::Origin => "it names a source that the path does not have",
            Self::Length => "it is longer than its frame was on the wire",
            Self::Record => "it is nothing that is said",
            Self::State => "nothing that a filter can know",
            Self::TooMuch => "more than a filter may keep",
        })
    }
}

/// The flags that there are.
const KNOWN: Flags = Flags::FIRST
    .with(Flags::LAST)
    .with(Flags::BACKWARD)
    .with(Flags::CHECKSUM_UNSET)
    .with(Flags::END)
    .with(Flags::BROKEN);

/// The entry and the frame of a message, if it is a block that a path with so many sources has.
/// The pointer leads nowhere yet ([`placed`]).
pub(super) fn read(message: &[u8], origins: u16) -> Result<(Entry, &[u8]), Lie> {
    let (head, frame) = message.split_at_checked(HEAD).ok_or(Lie::Short)?;
    let entry = Entry::read_from_bytes(head).map_err(|_| Lie::Short)?;
    let Entry { pointer, context, mut marks } = entry;
    let here = u32::try_from(frame.len()).map_err(|_| Lie::View)?;
    if !pointer.is_hole() {
        let end = u64::from(marks.view) + u64::from(pointer.length());
        if end > u64::from(here) {
            return Err(Lie::View);
        }
        if marks.captured != here {
            return Err(Lie::Length);
        }
    } else if marks.captured > here && here > 0 {
        return Err(Lie::View);
    }
    let layers = [marks.network, marks.transport, marks.payload];
    if layers.iter().any(|at| *at != Marks::UNKNOWN && u32::from(*at) > marks.captured) {
        return Err(Lie::Layer);
    }
    if marks.wire_length < marks.captured {
        return Err(Lie::Length);
    }
    if pointer.class == Class::HELD {
        return Err(Lie::Class);
    }
    if !KNOWN.has(context.flags) {
        return Err(Lie::Flags);
    }
    if context.origin >= origins {
        return Err(Lie::Origin);
    }
    // Its place among copies is known here, and nobody else's to say.
    marks = marks.with_seq(0, false);
    Ok((Entry { pointer, context, marks }, frame))
}

/// Copies the block of a message into an intake, if it is one; answers its length in view, or
/// nothing if there is no memory for it now.
pub(super) fn put(
    message: &[u8],
    origins: u16,
    intake: &mut Intake<'_>,
) -> Result<Option<u32>, Lie> {
    let (entry, frame) = read(message, origins)?;
    let entry = if entry.pointer.is_hole() {
        hole(entry)
    } else {
        // Of a block without bytes the place is one that nobody looks at.
        let copy = |room: &mut [u8]| {
            let room = room.get_mut(..frame.len()).unwrap_or_default();
            room.copy_from_slice(frame);
            frame.len().max(1)
        };
        match intake.pool.append(frame.len().max(1), copy) {
            Some((place, _)) => placed(entry, intake.pool.id(), place),
            None => return Ok(None),
        }
    };
    Ok(intake.put(entry).then_some(entry.pointer.length()))
}

/// The entry of a block whose frame lies here.
fn placed(entry: Entry, dbuf: DbufId, frame: Extent) -> Entry {
    let place = frame.within(entry.marks.view, entry.pointer.length());
    Entry { pointer: RichPointer::new(dbuf, place, entry.pointer.class), ..entry }
}

/// Placeholder address of a frame in a message; the receiver assigns a real one.
const NOWHERE: DbufId = match DbufId::new(1) {
    Some(id) => id,
    None => DbufId::HOLE,
};

/// The entry of a block whose frame lies by itself.
pub(super) fn apart(entry: Entry) -> Entry {
    match entry.pointer.is_hole() {
        true => hole(entry),
        false => placed(entry, NOWHERE, Extent::new(0, entry.marks.captured)),
    }
}

/// The entry of a block that has no bytes.
fn hole(entry: Entry) -> Entry {
    let pointer = RichPointer::hole(entry.pointer.length()).with_class(entry.pointer.class);
    Entry { pointer, ..entry }
}

/// The filter to run.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) arguments: Vec<(String, Value)>,
    pub(super) about: About,
}

impl Wanted {
    pub(super) fn of(used: &Use, about: About) -> Self {
        let arguments =
            used.arguments.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
        Self { name: used.description.name.to_owned(), arguments, about }
    }

    /// Its arguments, as the description of the filter has them.
    pub(super) fn arguments(&self, description: &'static Description) -> Arguments {
        let mut arguments = Arguments::default();
        for (name, value) in &self.arguments {
            if let Some(known) = description.parameter(name) {
                arguments.add(known.name, value.clone());
            }
        }
        let About { asked, seed, numbers, .. } = &self.about;
        arguments.asked_for(asked.clone()).seeded(*seed).numbering(*numbers)
    }

    pub(super) fn written(&self) -> Vec<u8> {
        let About { asked, seed, numbers, fragments, tells_time, epoch } = &self.about;
        let mut out = Vec::new();
        text(&mut out, self.name.as_bytes());
        number(&mut out, self.arguments.len() as u64);
        for (name, value) in &self.arguments {
            text(&mut out, name.as_bytes());
            match value {
                Value::Number(n) => tagged(&mut out, b'n', &n.to_le_bytes()),
                Value::Flag(flag) => tagged(&mut out, b'f', &[u8::from(*flag)]),
                Value::Text(text) => tagged(&mut out, b't', text.as_bytes()),
                Value::Bytes(bytes) => tagged(&mut out, b'b', bytes),
            }
        }
        number(&mut out, asked.len() as u64);
        for (low, high) in asked {
            number(&mut out, u64::from(*low));
            number(&mut out, u64::from(*high));
        }
        number(&mut out, u64::from(seed.is_some()));
        number(&mut out, seed.unwrap_or_default());
        numbers.words().into_iter().for_each(|word| number(&mut out, word.into()));
        number(&mut out, u64::from(*fragments));
        number(&mut out, u64::from(*tells_time));
        number(&mut out, *epoch);
        out
    }

    /// Parses what [`Wanted::written`] wrote; `None` if it is something else.
    pub(super) fn read(mut from: &[u8]) -> Option<Self> {
        let from = &mut from;
        let word = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let name = word(take(from)?)?;
        let mut arguments = Vec::new();
        for _ in 0..taken(from)? {
            let name = word(take(from)?)?;
            let tag = take(from)?;
            let value = take(from)?;
            let value = match tag {
                b"n" => Value::Number(u64::from_le_bytes(value.try_into().ok()?)),
                b"f" => Value::Flag(value == [1]),
                b"t" => Value::Text(word(value)?),
                b"b" => Value::Bytes(value.to_vec()),
                _ => return None,
            };
            arguments.push((name, value));
        }
        let mut asked = Vec::new();
        for _ in 0..taken(from)? {
            let mut class = || u32::try_from(taken(from)?).ok();
            asked.push((class()?, class()?));
        }
        let seed = taken(from)? == 1;
        let seed = Some(taken(from)?).filter(|_| seed);
        let mut word = || u32::try_from(taken(from)?).ok();
        let numbers = SessionNumbers::of_words([word()?, word()?, word()?])?;
        let (fragments, tells_time) = (taken(from)? == 1, taken(from)? == 1);
        let epoch = taken(from)?;
        let about = About { asked, seed, numbers, fragments, tells_time, epoch };
        Some(Self { name, arguments, about })
    }
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn tagged(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    text(out, &[tag]);
    text(out, bytes);
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn taken(from: &mut &[u8]) -> Option<u64> {
    let (number, rest) = from.split_first_chunk::<8>()?;
    *from = rest;
    Some(u64::from_le_bytes(*number))
}

fn take<'b>(from: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = usize::try_from(taken(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::BlockMetadata;

    fn message(entry: Entry, frame: &[u8]) -> Vec<u8> {
        [entry.as_bytes(), frame].concat()
    }

    fn entry(view: u32, length: u32, captured: u32) -> Entry {
        let dbuf = DbufId::new(9).unwrap();
        let pointer = RichPointer::new(dbuf, Extent::new(77, length), Class(80));
        let mut marks = Marks::frame(1, captured, captured.max(1500));
        marks.view = view;
        Entry::new(
            pointer,
            BlockMetadata { time: 5, session: 3, ..BlockMetadata::default() },
            marks,
        )
    }

    #[test]
    fn j5_a_block_comes_back_as_it_went() {
        let honest = entry(14, 20, 60);
        let bytes = message(honest, &[7; 60]);
        let (read, frame) = read(&bytes, 1).unwrap();
        assert_eq!((read.context, read.marks, frame), (honest.context, honest.marks, &[7; 60][..]));
        let dbuf = DbufId::new(2).unwrap();
        let placed = placed(read, dbuf, Extent::new(4096, 60));
        assert_eq!(
            (placed.pointer.place, placed.pointer.class),
            (Extent::new(4110, 20), Class(80))
        );
        assert_eq!(placed.frame().place, Extent::new(4096, 60));
        let gap = Entry { pointer: RichPointer::hole(100), ..entry(0, 0, 0) };
        let (gap, none) = super::read(gap.as_bytes(), 1).unwrap();
        assert_eq!((hole(gap).pointer.length(), none.len()), (100, 0));
    }

    #[test]
    fn j5_no_lie_about_a_block_is_believed() {
        let lie = |entry: Entry, frame: &[u8]| read(&message(entry, frame), 2).err();
        let honest = entry(14, 20, 60);
        assert_eq!(lie(honest, &[0; 60]), None);
        assert_eq!(read(&honest.as_bytes()[..63], 2).err(), Some(Lie::Short));
        assert_eq!(lie(honest, &[0; 33]), Some(Lie::View));
        assert_eq!(lie(entry(u32::MAX, 20, 60), &[0; 60]), Some(Lie::View));
        assert_eq!(lie(honest, &[0; 59]), Some(Lie::Length));
        let marks = |change: &dyn Fn(&mut Marks)| {
            let mut lying = honest;
            change(&mut lying.marks);
            lying
        };
        for at in [61, u16::MAX - 1] {
            let layer = Some(Lie::Layer);
            assert_eq!(lie(marks(&|marks| marks.network = at), &[0; 60]), layer);
            assert_eq!(lie(marks(&|marks| marks.transport = at), &[0; 60]), layer);
            assert_eq!(lie(marks(&|marks| marks.payload = at), &[0; 60]), layer);
        }
        let short = marks(&|marks| marks.wire_length = 59);
        assert_eq!(lie(short, &[0; 60]), Some(Lie::Length));
        let held = Entry { pointer: honest.pointer.with_class(Class::HELD), ..honest };
        assert_eq!(lie(held, &[0; 60]), Some(Lie::Class));
        let context = |context: BlockMetadata| Entry { context, ..honest };
        let flags = context(BlockMetadata { flags: Flags(1 << 9), ..honest.context });
        assert_eq!(lie(flags, &[0; 60]), Some(Lie::Flags));
        let origin = context(BlockMetadata { origin: 2, ..honest.context });
        assert_eq!(lie(origin, &[0; 60]), Some(Lie::Origin));
    }

    #[test]
    fn j5_which_filter_it_is_comes_back_as_it_was_written() {
        let about = About {
            asked: vec![(80, 90), (1, 1)],
            seed: Some(7),
            numbers: SessionNumbers::initial(1, 3),
            fragments: true,
            tells_time: false,
            epoch: 3,
        };
        let arguments = vec![
            ("a".to_owned(), Value::Number(u64::MAX)),
            ("b".to_owned(), Value::Flag(true)),
            ("c".to_owned(), Value::Text("é".to_owned())),
            ("c".to_owned(), Value::Bytes(vec![0, 255])),
        ];
        let wanted = Wanted { name: "http".to_owned(), arguments, about };
        let bytes = wanted.written();
        let read = Wanted::read(&bytes).unwrap();
        assert_eq!((&read.name, &read.arguments), (&wanted.name, &wanted.arguments));
        assert_eq!(format!("{:?}", read.about), format!("{:?}", wanted.about));
        for cut in 0..bytes.len() {
            assert!(Wanted::read(&bytes[..cut]).is_none(), "{cut}");
        }
    }
}
