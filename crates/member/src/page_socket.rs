//! The socket over which a user requests the address of a live page that serves several users. The
//! address contains a token for this user.
//!
//! The process that serves the page may run as a different user than the daemon, so the socket
//! has its own directory beside the daemon's: `/run/streamline-page` beside `/run/streamline`.

use crate::client::{CALL_TIMEOUT, Caller, ClientError};
use crate::daemon_directories::{self, MACHINE_DIRECTORY};
use crate::faults::NOT_YOUR_PAGE_ERROR;
use crate::varlink::interface::{self, PAGE_INTERFACE};
use crate::varlink::{Call, Fault, Reply};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use sys::local_socket::{self, Framing};

/// File name of the page's socket.
pub const PAGE_SOCKET: &str = "io.streamline.page";

/// Parameters of `Open`, which returns the address of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenPageParameters {
    /// True to invalidate the earlier tokens of the caller; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<bool>,
}

#[derive(Serialize, Deserialize)]
struct PageAddress {
    url: String,
}

/// Returns the directory of the page's socket beside the daemon's `directory` or, if that is
/// `None`, beside the directory of the machine-wide daemon.
#[must_use]
pub fn page_socket_directory(directory: Option<&Path>) -> PathBuf {
    let directory = directory.unwrap_or_else(|| Path::new(MACHINE_DIRECTORY));
    // Appending to the text of a path that ends in a slash would name a file in the directory.
    let mut name = directory.components().as_path().as_os_str().to_owned();
    name.push("-page");
    name.into()
}

/// Handles a call on the page's socket, and returns the bytes of the reply. `open` returns the URL
/// for the caller.
pub fn reply_to_call(
    call: &[u8],
    open: impl FnOnce(OpenPageParameters) -> Result<String, Fault>,
) -> Vec<u8> {
    let reply = Call::read(call).map_err(|_| Fault::invalid_parameter("method")).and_then(|call| {
        let (named, method) = call.interface_and_method();
        if named == interface::SERVICE_INTERFACE.name {
            return interface::execute_service_call(&call, PAGE_INTERFACE)
                .map(|value| Reply::new(&value));
        }
        match (named == PAGE_INTERFACE.name, method) {
            (true, "Open") => {
                let url = open(call.deserialize_parameters()?)?;
                Ok(Reply::new(&PageAddress { url }))
            }
            (true, _) => Err(Fault::method_not_found(&call.method)),
            (false, _) => Err(Fault::interface_not_found(named)),
        }
    });
    reply.unwrap_or_else(|fault| Reply::from(&fault)).to_bytes()
}

/// Requests the URL of the page beside the daemon's `directory` or, if that is `None`, beside the
/// first standard directory that has a page. Returns `None` if there is no page for this user.
/// Fails with [`ClientError::UntrustedDaemon`] unless root or this user serves the page.
pub fn find_page_url(
    directory: Option<&Path>,
    given: OpenPageParameters,
) -> Result<Option<String>, ClientError> {
    let places = match directory {
        Some(directory) => vec![directory.to_owned()],
        None => daemon_directories::search_directories(),
    };
    for place in &places {
        match request_page_url(&page_socket_directory(Some(place)), given) {
            Ok(Some(url)) => return Ok(Some(url)),
            Ok(None) => {}
            Err(ClientError::Refused(fault)) if fault.name == NOT_YOUR_PAGE_ERROR => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn request_page_url(
    directory: &Path,
    given: OpenPageParameters,
) -> Result<Option<String>, ClientError> {
    let path = directory.join(PAGE_SOCKET);
    let socket = match local_socket::connect_to(&path, Framing::Packets, CALL_TIMEOUT) {
        Ok(socket) => socket,
        Err(error) if [ENOENT, ECONNREFUSED, EACCES].contains(&error.errno) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let (uid, _) = sys::descriptor::peer_uid_and_gid(&socket)?;
    if uid != 0 && uid != sys::process::effective_ids().0 {
        return Err(ClientError::UntrustedDaemon { directory: directory.to_owned(), uid });
    }
    let PageAddress { url } = Caller::new(socket).call("io.streamline.page.Open", &given)?;
    Ok(Some(url))
}

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const ECONNREFUSED: i32 = 111;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn reply(call: &str) -> Reply {
        let open = |given: OpenPageParameters| match given.renew {
            Some(true) => Err(crate::faults::too_many_tokens(3)),
            _ => Ok("http://there/".to_owned()),
        };
        Reply::read(&reply_to_call(call.as_bytes(), open)).unwrap()
    }

    #[test]
    fn page_socket_replies_with_the_url_or_an_error() {
        let opened = reply(r#"{"method":"io.streamline.page.Open"}"#);
        let opened: Value = opened.deserialize_result().unwrap();
        assert_eq!(opened["url"], "http://there/");
        let calls = [
            (
                r#"{"method":"io.streamline.page.Open","parameters":{"renew":true}}"#,
                "TooManyTokens",
            ),
            (r#"{"method":"io.streamline.page.Open","parameters":{"uid":0}}"#, "InvalidParameter"),
            (r#"{"method":"io.streamline.page.Close"}"#, "MethodNotFound"),
            (r#"{"method":"io.streamline.List"}"#, "InterfaceNotFound"),
            ("GET / HTTP/1.1", "InvalidParameter"),
        ];
        for (call, error) in calls {
            let name = reply(call).error.unwrap_or_default();
            assert_eq!(name.rsplit('.').next(), Some(error), "{call}");
        }
        let about = reply(r#"{"method":"org.varlink.service.GetInfo"}"#);
        let about: Value = about.deserialize_result().unwrap();
        assert_eq!(about["interfaces"][1], PAGE_INTERFACE.name);
    }

    #[test]
    fn page_socket_is_beside_the_daemon_directory() {
        assert_eq!(page_socket_directory(None), Path::new("/run/streamline-page"));
        for directory in ["/tmp/d", "/tmp/d/", "/tmp/d//", "/tmp/d/."] {
            assert_eq!(page_socket_directory(Some(Path::new(directory))), Path::new("/tmp/d-page"));
        }
        let nowhere = Path::new("/nonexistent/streamline");
        assert_eq!(find_page_url(Some(nowhere), OpenPageParameters::default()), Ok(None));
    }
}
