//! Parsing of the FUSE requests that change the tree.

/// A change to the tree that the kernel requests. The inode number in the request header identifies
/// the directory that contains the entry to be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TreeEdit {
    /// Creates a directory with this name.
    MakeDirectory(String),
    /// Removes the directory with this name.
    RemoveDirectory(String),
    /// Removes the file or the link with this name.
    Unlink(String),
    /// Moves or renames an entry of a directory.
    Rename {
        /// Present name of the entry.
        from: String,
        /// Inode number of the directory into which the entry moves.
        directory: u64,
        /// Name that the entry gets in the new directory.
        to: String,
        /// Flags of renameat2(2).
        flags: u32,
    },
    /// Creates a symbolic link.
    MakeLink {
        /// Name of the link.
        name: String,
        /// Target of the link.
        target: String,
    },
    /// Adds another name for the object with this inode number.
    HardLink {
        /// Inode number of the object that gets an additional name.
        object: u64,
        /// Name of the additional directory entry.
        name: String,
    },
}

impl TreeEdit {
    /// Parses the arguments of the operation with this opcode. Returns `None` if they are malformed
    /// or if the operation does not change the tree.
    pub(super) fn read(opcode: u32, body: &[u8]) -> Option<Self> {
        let long = || Some(u64::from_le_bytes(*body.first_chunk()?));
        let texts = |at: usize| parse_two_texts(body.get(at..)?);
        Some(match opcode {
            6 => {
                let (name, target) = texts(0)?;
                Self::MakeLink { name, target: target? }
            }
            // The mode and the mask precede the name.
            9 => Self::MakeDirectory(texts(8)?.0),
            10 => Self::Unlink(texts(0)?.0),
            11 => Self::RemoveDirectory(texts(0)?.0),
            12 | 45 => {
                let head = if opcode == 12 { 8 } else { 16 };
                let flags = match opcode {
                    12 => 0,
                    _ => u32::from_le_bytes(*body.get(8..)?.first_chunk()?),
                };
                let (from, to) = texts(head)?;
                Self::Rename { from, directory: long()?, to: to?, flags }
            }
            13 => Self::HardLink { object: long()?, name: texts(8)?.0 },
            _ => return None,
        })
    }
}

/// Returns the text before the first zero byte, and the text between this byte and the next zero
/// byte, if there is one.
fn parse_two_texts(body: &[u8]) -> Option<(String, Option<String>)> {
    let end = body.iter().position(|byte| *byte == 0)?;
    // No object has a name that is not UTF-8, so such a name becomes the empty name.
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap_or_default();
    let rest = body.get(end + 1..).unwrap_or_default();
    let second = rest.iter().position(|byte| *byte == 0).map(|end| text(&rest[..end]));
    Some((text(&body[..end]), second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_tree_edits_are_parsed_with_their_names() {
        let rename = TreeEdit::Rename {
            from: "get".to_owned(),
            directory: 7,
            to: "put".to_owned(),
            flags: 1,
        };
        let body = [&7u64.to_le_bytes()[..], &1u64.to_le_bytes(), b"get\0put\0"].concat();
        assert_eq!(TreeEdit::read(45, &body), Some(rename));
        let body = [&[0; 8][..], b"count\0"].concat();
        assert_eq!(TreeEdit::read(9, &body), Some(TreeEdit::MakeDirectory("count".to_owned())));
        let link = TreeEdit::MakeLink { name: "x".to_owned(), target: "../y".to_owned() };
        assert_eq!(TreeEdit::read(6, b"x\0../y\0"), Some(link));
        assert_eq!(TreeEdit::read(6, b"x\0../y"), None, "a text ends with a zero");
        for opcode in [6, 9, 10, 11, 12, 13, 45] {
            for length in 0..40 {
                let _ = TreeEdit::read(opcode, &vec![b'a'; length]);
            }
        }
    }
}
