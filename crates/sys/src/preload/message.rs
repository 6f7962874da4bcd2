//! Messages of preloaded libraries to the user.
//!
//! The standard error of a program may not reach the user: tshark, for example, parses the standard
//! error of dumpcap as a protocol. `streamline exec` therefore duplicates its own standard error to
//! a separate descriptor, which the programs of the command inherit.

use super::{borrow_descriptor, inode, write_all};
use std::io::Write as _;
use std::os::fd::BorrowedFd;

/// Name of the environment variable that contains the descriptor for messages to the user and its
/// inode, such as `900:17`.
pub const MESSAGES_VARIABLE: &str = "STREAMLINE_MESSAGES";

/// Writes a line to the descriptor that the variable [`MESSAGES_VARIABLE`] names, or to standard
/// error if the variable is not set. Writes nothing if the variable is set but its descriptor is
/// closed or refers to another file. May block.
pub fn print_message(text: &str) {
    let line = format!("streamline: {text}\n");
    match std::env::var(MESSAGES_VARIABLE) {
        Ok(value) => {
            if let Some(messages) = find_message_descriptor(&value) {
                write_all(messages, line.as_bytes());
            }
        }
        // A failure cannot be reported anywhere.
        Err(_) => drop(std::io::stderr().write_all(line.as_bytes())),
    }
}

/// Returns the descriptor that `value` names (the text of [`MESSAGES_VARIABLE`]), if the descriptor
/// is open and still refers to the file with the stated inode; `None` otherwise.
fn find_message_descriptor(value: &str) -> Option<BorrowedFd<'static>> {
    let (number, known) = value.split_once(':')?;
    let (number, known) = (number.parse().ok()?, known.parse().ok()?);
    if inode(number) == Some(known) { borrow_descriptor(number) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn descriptor_is_used_only_while_it_is_the_same_file() {
        let file = File::open("/dev/null").unwrap();
        let (number, known) = (file.as_raw_fd(), file.metadata().unwrap().ino());
        assert!(find_message_descriptor(&format!("{number}:{known}")).is_some());
        assert!(find_message_descriptor(&format!("{number}:{}", known + 1)).is_none());
        assert!(
            find_message_descriptor("-1:5").is_none() && find_message_descriptor("900").is_none()
        );
    }
}
