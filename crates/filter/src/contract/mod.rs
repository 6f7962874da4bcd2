//! The contract: what a block is, what a filter may see and do, what it says of itself.
//!
//! - [`batch`]: up to 64 blocks side by side, one column per property, one bit per live lane;
//! - [`description`]: what planner, help, completion and tests know about a filter;
//! - [`parameter`]: what may be written for a parameter, and what it means;
//! - [`arguments`]: the typed arguments of one filter in a request;
//! - [`compiler`]: who knows the filter expressions that we do not;
//! - [`keys`]: who reads the keys that a request names;
//! - [`names`]: who answers the names in filter expressions;
//! - [`traits`]: the four traits an author chooses from, by right;
//! - [`turn`]: what a filter may ask for while it is called (count, edit, append, hold, release);
//! - [`kernel`]: chains of twins as one program;
//! - [`holds`]: held blocks, kept by the space, named by plain data;
//! - [`numbers`]: which numbers a filter may give to sessions;
//! - [`shown`]: what of its state a filter shows to others;
//! - [`state`]: session tables as plain data, saved and moved by one piece of code for all filters.
//!
//! The signatures carry the rules where the compiler can: a statistics filter gets no bytes, a
//! classifier cannot emit, nobody keeps `block.frame` beyond the turn, an unknown reason does not
//! build.

pub mod arguments;
pub mod batch;
pub mod compiler;
pub mod description;
pub mod edit;
pub mod holds;
pub mod kernel;
pub mod keys;
pub mod names;
pub mod numbers;
pub mod parameter;
pub mod shown;
pub mod state;
pub mod traits;
pub mod turn;

pub use arguments::{Arguments, Mistake, Value};
pub use batch::{Batch, Block, Columns, LANES, Lane, LaneMask, Room, Tags, lanes, mask_of};
pub use compiler::Compiler;
pub use description::{
    Ahead, Analysis, Classes, Description, Effect, Form, Forms, Gives, Keeps, Kind, Make, Needs,
    Reads, Relinks, Settles, Several, StateFacts, Usable, ValueRange, Warns,
};
pub use edit::{Edit, Editable, Workbench};
pub use holds::{Fate, HeldList, Holds};
pub use kernel::{PLAIN, expressible, joined, target};
pub use keys::{Key, Keys};
pub use names::{NameAnswer, NameQuery, Names};
pub use numbers::SessionNumbers;
pub use parameter::{COMMON, Parameter, STATE, STATE_MODE, Type, UNTRUSTED};
pub use shown::{Column, Field, Row, SESSION, Unit, Whose, columns};
pub use state::{Moved, PRIVATE, Session, Sessions, State};
pub use traits::{
    Classify, Delivered, Filter, HoldingLanes, Lanes, Report, Statistics, Stream, StreamBatches,
};
pub use turn::{
    Amount, Counter, Counts, Fill, Gateway, Keep, LaneContext, Output, Pin, Reason, StreamContext,
    Tell, Time,
};
pub use wire::LinkType;
