//! Operations that change the tree, in threads that may block.

use super::{Outcome, Server};
use crate::protocol::{Header, TreeEdit, errno};

impl Server {
    /// Makes a change of the tree. Blocks for at most [`EDIT_LIMIT`](crate::edits::EDIT_LIMIT).
    pub(super) fn edit(&self, header: &Header, edit: &TreeEdit) -> Result<Outcome, i32> {
        let what = match edit {
            TreeEdit::MakeDirectory(name) => format!("mkdir {name}"),
            TreeEdit::RemoveDirectory(name) | TreeEdit::Unlink(name) => format!("rm {name}"),
            TreeEdit::Rename { from, to, .. } => format!("mv {from} {to}"),
            TreeEdit::MakeLink { name, .. } | TreeEdit::HardLink { name, .. } => {
                format!("ln {name}")
            }
        };
        let why = format!("{what}: the tree cannot be changed: `streamline set` edits a path");
        Err(self.fail(header.uid, errno::EROFS, why))
    }
}
