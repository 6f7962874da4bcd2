//! Changes of attributes.

use super::{Outcome, Server};
use crate::entries::{Part, Text};
use crate::protocol::{AttributeChange, Header, errno};

impl Server {
    /// Changes the attributes of an object. A file that is written has no length that could be
    /// set: what is written is passed on.
    pub(super) fn set_attributes(
        &self,
        header: &Header,
        change: AttributeChange,
    ) -> Result<Outcome, i32> {
        let key = self.key(header.inode)?;
        let written = matches!(key.part, Part::Stream(_) | Part::Text(Text::Argument(_)));
        let AttributeChange { mode, uid, gid, size: _ } = change;
        if !written || (mode, uid, gid) != (None, None, None) {
            let why = "permissions, owners, times and lengths are those of the paths";
            return Err(self.fail(header.uid, errno::EROFS, why.to_owned()));
        }
        Ok(Outcome::Attributes(self.attributes(&key, header.inode)?))
    }
}
