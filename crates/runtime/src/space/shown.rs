//! Published state of filters (`state=NAME`). [Th §5.3.3], FEATURES M3
//!
//! The state itself stays plain data that one thread owns. Changes are copied into a table that
//! others read ([`buffer::state`]), between two passes and never while blocks are walked: at most
//! every [`BETWEEN`] while blocks come, and at once when none do. An observed value is at most that
//! old, and exact where the path is at rest. Readers cost the filter nothing.
//! docs/book/decisions/0035-seen-state.md

use super::Space;
use super::node::Part;
use abi::access::AccessList;
use buffer::name;
use buffer::state::{Column, Shape, Writer};
use filter::{Arguments, Description, Filter, STATE, STATE_MODE, Whose};
use sys::process::identity;

/// Maximum delay before a change is published, in ns.
const BETWEEN: u64 = 10_000_000;
/// Maximum number of sessions with a row; others are counted.
const ROWS: usize = 1 << 14;

/// Published state of one filter.
#[derive(Debug)]
pub struct Showing {
    table: Writer,
    whose: Whose,
    /// Time from which it is written again.
    due: u64,
    /// True if all rows are to be written, changed or not.
    again: bool,
}

impl Showing {
    /// Takes the name that these arguments ask for, if they do.
    pub fn open(
        title: &str,
        description: &Description,
        arguments: &Arguments,
    ) -> Result<Option<Self>, name::Error> {
        let Some((name, (whose, columns))) = arguments.text(STATE.name).zip(description.shown())
        else {
            return Ok(None);
        };
        let named = |column: &filter::Column| {
            let unit = column.unit.name().to_owned();
            column.names().map(|name| Column { name, unit: unit.clone() }).collect::<Vec<_>>()
        };
        let columns = columns.iter().flat_map(named).collect();
        let rows = if whose == Whose::Private { 1 } else { ROWS };
        let mode = arguments.text(STATE_MODE.name).and_then(|m| u32::from_str_radix(m, 8).ok());
        let access = AccessList { mode: mode.unwrap_or(0o600), ..AccessList::private(identity()) };
        let shape = Shape { filter: title.to_owned(), columns, rows };
        let table = Writer::create(name, access, shape)?;
        Ok(Some(Self { table, whose, due: 0, again: true }))
    }

    /// Another filter has what the old one knew.
    pub fn is_renewed(&mut self) {
        self.again = true;
    }

    /// Writes what changed.
    fn write(&mut self, filter: &mut Filter, now: u64) {
        let Some(state) = filter.state() else { return };
        let again = std::mem::take(&mut self.again);
        if again {
            self.table.clear();
        }
        state.show(self.whose, again, &mut |at, row| self.table.put(at, row));
        self.table.end(now);
        self.due = now.saturating_add(BETWEEN);
    }
}

impl Space {
    /// Returns true if any filter here publishes its state.
    pub(super) fn shows(&self) -> bool {
        self.graph.nodes.iter().any(|node| node.shown.is_some())
    }

    /// Writes what changed of what filters here show: all of it if nothing moves, else what is due.
    #[cold]
    pub(super) fn show(&mut self, moved: bool) {
        let now = sys::clock::monotonic();
        for node in &mut self.graph.nodes {
            if let (Some(shown), Part::Filter(filter)) = (&mut node.shown, &mut node.part)
                && (!moved || now >= shown.due)
            {
                shown.write(filter, now);
            }
        }
    }
}
