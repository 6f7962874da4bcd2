//! A source and a sink that copy like a Unix pipe: the source copies each block from a user buffer
//! into the dbuf, and the sink copies each block from the ring into a user buffer. [Th §5.2.1,
//! "slslow"]

use crate::parallel::DIGEST_SINK;
use abi::{BlockMetadata, Class, Entry, Marks, RichPointer};
use endpoint::{
    Failure, Intake, OpenArguments, Sink, SinkEntry, Source, SourceCounters, SourceEntry,
    SourceProperties, SourceStatus,
};
use filter::{
    Amount, Batch, Description, FilterKind, Form, Forms, OutputForm, Parameter, ParameterType,
    Report, Time,
};

/// Size in bytes of each block that the source generates and the sink receives.
const BLOCK_SIZE: usize = 1024;

/// The sources that benches add to the catalog.
pub(crate) const SOURCES: &[SourceEntry] = &[SourceEntry::new(&COPYING_SOURCE, open_source)];
/// The sinks that benches add to the catalog.
pub(crate) const SINKS: &[SinkEntry] = &[SinkEntry::new(&COPYING_SINK, open_sink), DIGEST_SINK];

const COPYING_SOURCE: Description = Description {
    name: "bench_write",
    summary: "writes blocks of 1 KB from a user's buffer",
    kind: FilterKind::Source,
    input_forms: Forms::NONE,
    output_form: OutputForm::Form(Form::Bytes),
    parameters: &[Parameter::required(
        "count",
        ParameterType::Number { low: 1, high: u64::MAX },
        "blocks",
    )],
    ..Description::FILTER_DEFAULTS
};

const COPYING_SINK: Description = Description {
    name: "bench_read",
    summary: "reads blocks into a user's buffer",
    kind: FilterKind::Sink,
    output_form: OutputForm::Nothing,
    ..Description::FILTER_DEFAULTS
};

/// A buffer of a user's program, aligned to a cache line like the buffer of the matcher in `pipes`.
#[repr(align(64))]
struct UserBuffer([u8; BLOCK_SIZE]);

struct CopyingSource {
    user: Box<UserBuffer>,
    left: u64,
    given: Amount,
}

fn open_source(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let left = opening.arguments.number("count").unwrap_or(0);
    Ok(Box::new(CopyingSource {
        user: Box::new(UserBuffer([2; BLOCK_SIZE])),
        left,
        given: Amount::default(),
    }))
}

impl Source for CopyingSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let wanted = self.left.min(intake.room() as u64) as usize;
        let Some(mut draft) = intake.pool.draft(BLOCK_SIZE, wanted * BLOCK_SIZE) else {
            return Ok(SourceStatus::Wait { until: None, readable: false });
        };
        let blocks = draft.len() / BLOCK_SIZE;
        for room in draft.as_chunks_mut::<BLOCK_SIZE>().0 {
            room.copy_from_slice(std::hint::black_box(&self.user.0));
        }
        let written = draft.commit(blocks * BLOCK_SIZE);
        let dbuf = intake.pool.id();
        let put = intake.append_block_entries((0..blocks).map(|block| {
            let place = written.subrange((block * BLOCK_SIZE) as u32, BLOCK_SIZE as u32);
            let pointer = RichPointer::new(dbuf, place, Class::YES);
            Entry::new(pointer, BlockMetadata::default(), Marks::for_plain_block(BLOCK_SIZE as u32))
        }));
        self.given.blocks += put as u64;
        self.given.bytes += (put * BLOCK_SIZE) as u64;
        self.left -= blocks as u64;
        Ok(if self.left == 0 { SourceStatus::End } else { SourceStatus::Blocks })
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { block_max: BLOCK_SIZE, ..SourceProperties::default() }
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters::lossless(self.given)
    }
}

struct CopyingSink {
    user: Box<UserBuffer>,
    blocks: u64,
}

fn open_sink(_: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(CopyingSink { user: Box::new(UserBuffer([0; BLOCK_SIZE])), blocks: 0 }))
}

impl Sink for CopyingSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        batch.for_each_view(|bytes| {
            if let Some(user) = self.user.0.get_mut(..bytes.len()) {
                user.copy_from_slice(bytes);
                std::hint::black_box(user.as_mut_ptr());
            }
        });
        self.blocks += u64::from(batch.live_lanes().count_ones());
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::from_rows(vec![("blocks".to_owned(), self.blocks)]))
    }
}
