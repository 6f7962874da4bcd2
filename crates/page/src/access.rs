//! Access control for requests: the token, and the headers `Host` and `Origin`.
//!
//! The printed URL contains the token in its fragment, which browsers do not send to servers. The
//! page sends the token in the `Authorization` header. A cookie would also be sent to servers on
//! other ports of the same host, which may belong to other users, and with requests from other
//! sites.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};

/// A random secret that grants access to the page.
#[derive(Clone)]
pub struct Token(String);

/// Number of random bytes in a token.
const TOKEN_BYTES: usize = 24;

impl Token {
    /// Creates a token from the kernel's random number generator.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Creates a token from its text, which another process has generated.
    #[must_use]
    pub const fn from_text(text: String) -> Self {
        Self(text)
    }

    /// Returns the text of the token, as it appears in the URL.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns true if `authorization`, the value of an `Authorization` header, contains the token.
    /// Compares in constant time.
    #[must_use]
    pub fn matches_header(&self, authorization: Option<&str>) -> bool {
        let given = authorization.and_then(|value| value.strip_prefix("Bearer "));
        let Some(given) = given.filter(|given| given.len() == self.0.len()) else { return false };
        let differences = given.bytes().zip(self.0.bytes()).map(|(given, own)| given ^ own);
        differences.fold(0, |all, difference| all | difference) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

/// Returns true if the host in a `Host` header is a loopback address or `localhost`. Any port is
/// accepted, because the browser may use a tunnel. Any other name could belong to a hostile site
/// that resolves its name to this machine in order to read the page (DNS rebinding).
#[must_use]
pub fn is_own_host(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "[::1]", "localhost"].contains(&name)
}

/// Returns true if the `Origin` header is missing or is the origin of the page itself, so that no
/// other site has sent the request.
#[must_use]
pub fn is_own_origin(origin: Option<&str>, host: Option<&str>) -> bool {
    let Some(origin) = origin else { return true };
    origin.strip_prefix("http://").is_some_and(|name| Some(name) == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_matches_only_itself() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        let bearer = |token: &Token| format!("Bearer {}", token.text());
        assert!(one.matches_header(Some(&bearer(&one))));
        assert!(!one.matches_header(Some(&bearer(&other))));
        assert!(!one.matches_header(Some(one.text())));
        assert!(!one.matches_header(Some("Bearer ")));
        assert!(!one.matches_header(None));
        assert!(!format!("{one:?}").contains(one.text()));
    }

    #[test]
    fn only_loopback_host_names_are_accepted() {
        for own in ["127.0.0.1:7575", "localhost", "localhost:1", "[::1]:80", "[::1]"] {
            assert!(is_own_host(Some(own)), "{own}");
        }
        for other in ["evil.example", "evil.example:7575", "localhost.evil", "127.0.0.1.nip.io", ""]
        {
            assert!(!is_own_host(Some(other)), "{other}");
        }
        assert!(!is_own_host(None));
    }

    #[test]
    fn only_the_origin_of_the_page_is_accepted() {
        let host = Some("localhost:7575");
        assert!(is_own_origin(None, host));
        assert!(is_own_origin(Some("http://localhost:7575"), host));
        for other in ["http://localhost:7576", "https://localhost:7575", "null", "http://a.b"] {
            assert!(!is_own_origin(Some(other), host), "{other}");
        }
    }
}
