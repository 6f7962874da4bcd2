//! The contract between filters and the rest of the system: blocks, the rights of a filter, its
//! description.
//!
//! - [`batch`]: up to 64 blocks, one column per property, one mask bit per live lane;
//! - [`traits`]: the six traits that a filter can implement, by right;
//! - [`context`]: contexts passed to a filter call (count, edit, append, hold, release);
//! - [`edit`]: editing one block at a time;
//! - [`holds`]: held blocks, which the space stores and a session refers to by plain data;
//! - [`state`]: sessions as plain data, saved and moved by one implementation for all filters;
//! - [`session_numbers`]: the session numbers of a filter;
//! - [`published`]: published state;
//! - [`report`]: reports of filters and sinks;
//! - [`description`]: facts for planner, help, completion and tests;
//! - [`signature`]: the effect of a filter on the stream;
//! - [`state_facts`]: facts about the state of a filter;
//! - [`parameter`] and [`value`]: parameters, and parsing of their values;
//! - [`arguments`]: the typed arguments of one filter in a request;
//! - [`compiler`], [`keys`], [`name_resolver`]: services that do I/O for a filter;
//! - [`kernel`]: chains of twins as one eBPF program.
//!
//! The compiler enforces these rules through types: a statistics filter has no access to bytes, a
//! classifier cannot emit, no filter keeps `block.frame` beyond the call, and an unknown reason
//! does not compile.

pub mod arguments;
pub mod batch;
pub mod compiler;
pub mod context;
pub mod description;
pub mod edit;
pub mod holds;
pub mod kernel;
pub mod keys;
pub mod name_resolver;
pub mod parameter;
pub mod published;
pub mod report;
pub mod session_numbers;
pub mod signature;
pub mod state;
pub mod state_facts;
pub mod traits;
pub mod value;

pub use arguments::Arguments;
pub use batch::{
    Batch, BatchMemory, Block, Columns, LANES, Lane, LaneMask, MetadataView, first_lanes_mask,
    lanes,
};
pub use compiler::ExpressionCompiler;
pub use context::{
    Amount, ClassifyContext, Counter, Counts, FillFn, Gateway, LaneContext, OldBytes, Output,
    PinId, Reason, StreamContext, Time,
};
pub use description::{
    ArgumentAnalysis, ArgumentCheck, Description, FilterConstructor, FixedParameterFn, InputNeeds,
    OutputLinkTypesFn, PushdownTest, UsableInput,
};
pub use edit::{Edit, EditBackend, EditableBlock};
pub use holds::{BlockFate, HeldList, HoldTable};
pub use kernel::{PASS_THROUGH_TWIN, check_twin_chain, emit_chain_program, program_target};
pub use keys::{Key, KeyReader};
pub use name_resolver::{NameAnswer, NameQuery, NameResolver};
pub use parameter::{
    COMMON_PARAMETERS, Parameter, ParameterType, STATE_MODE_PARAMETER, STATE_PARAMETER,
    UNTRUSTED_PARAMETER,
};
pub use published::{Column, Field, PublishedSessions, RowCallback, SESSION_COLUMN, Unit};
pub use report::{DeliveredItems, Report};
pub use session_numbers::SessionNumbers;
pub use signature::{
    Classes, Effect, FilterKind, FilterRight, Form, Forms, OutputForm, ReadDepth, ValueRange,
};
pub use state::{
    FilterState, KeyHasher, MovedSession, PRIVATE_SESSION_KEY, Session, Sessions, session_columns,
};
pub use state_facts::{StateFacts, StateScope, WorkerRule};
pub use traits::{Classify, Filter, HoldingLanes, LaneFilter, Statistics, Stream};
pub use value::{Mistake, Value};
pub use wire::LinkType;
