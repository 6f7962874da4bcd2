//! The doors of a chain that copies, as a Unix pipe does: a source that writes every block from a
//! user's buffer into the dbuf, a sink that reads every block out of the ring into a user's buffer.
//! [Th §5.2.1, "slslow"]

use crate::parallel::DIGEST;
use abi::{BlockMetadata, Class, Entry, Marks, RichPointer};
use endpoint::{
    Failure, Given, Intake, Opening, Seen, Sink, SinkEntry, Source, SourceEntry, SourceProperties,
};
use filter::{Amount, Batch, Description, Form, Forms, Gives, Kind, Parameter, Report, Time, Type};

/// Bytes of a block.
const BLOCK: usize = 1024;

/// All sources of the bench.
pub(crate) const SOURCES: &[SourceEntry] = &[SourceEntry::new(&WRITER, writer)];
/// All sinks of the bench.
pub(crate) const SINKS: &[SinkEntry] = &[SinkEntry::new(&READER, reader), DIGEST];

const WRITER: Description = Description {
    name: "bench_write",
    summary: "writes blocks of 1 KB from a user's buffer",
    kind: Kind::Source,
    takes: Forms::NONE,
    gives: Gives::Form(Form::Bytes),
    parameters: &[Parameter::needed("count", Type::Number { low: 1, high: u64::MAX }, "blocks")],
    ..Description::EMPTY
};

const READER: Description = Description {
    name: "bench_read",
    summary: "reads blocks into a user's buffer",
    kind: Kind::Sink,
    gives: Gives::Nothing,
    ..Description::EMPTY
};

/// A user's buffer, where a cache line begins: so the matcher of the pipes has its own.
#[repr(align(64))]
struct User([u8; BLOCK]);

struct Writer {
    user: Box<User>,
    left: u64,
    given: Amount,
}

fn writer(opening: &Opening<'_>) -> Result<Box<dyn Source>, Failure> {
    let left = opening.arguments.number("count").unwrap_or(0);
    Ok(Box::new(Writer { user: Box::new(User([2; BLOCK])), left, given: Amount::default() }))
}

impl Source for Writer {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        let wanted = self.left.min(intake.room() as u64) as usize;
        let Some(mut draft) = intake.pool.draft(BLOCK, wanted * BLOCK) else {
            return Ok(Given::Wait { until: None, readable: false });
        };
        let blocks = draft.len() / BLOCK;
        for room in draft.as_chunks_mut::<BLOCK>().0 {
            room.copy_from_slice(std::hint::black_box(&self.user.0));
        }
        let written = draft.commit(blocks * BLOCK);
        let dbuf = intake.pool.id();
        let put = intake.put_all((0..blocks).map(|block| {
            let place = written.within((block * BLOCK) as u32, BLOCK as u32);
            let pointer = RichPointer::new(dbuf, place, Class::YES);
            Entry::new(pointer, BlockMetadata::default(), Marks::bare(BLOCK as u32))
        }));
        self.given.blocks += put as u64;
        self.given.bytes += (put * BLOCK) as u64;
        self.left -= blocks as u64;
        Ok(if self.left == 0 { Given::End } else { Given::Blocks })
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { block_max: BLOCK, ..SourceProperties::default() }
    }

    fn seen(&self) -> Seen {
        Seen::all(self.given)
    }
}

struct Reader {
    user: Box<User>,
    blocks: u64,
}

fn reader(_: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(Reader { user: Box::new(User([0; BLOCK])), blocks: 0 }))
}

impl Sink for Reader {
    fn take(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        batch.views(|bytes| {
            if let Some(user) = self.user.0.get_mut(..bytes.len()) {
                user.copy_from_slice(bytes);
                std::hint::black_box(user.as_mut_ptr());
            }
        });
        self.blocks += u64::from(batch.live().count_ones());
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::of_rows(vec![("blocks".to_owned(), self.blocks)]))
    }
}
