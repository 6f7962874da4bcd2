//! The destinations of metrics, in the syntax of the option `--metrics`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// A destination to which metrics are published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsTarget {
    /// An address on which `GET /metrics` is answered.
    Address(SocketAddr),
    /// A Unix socket on which `GET /metrics` is answered.
    Socket(PathBuf),
    /// A file that is replaced with new metrics at intervals.
    File(PathBuf),
}

impl fmt::Display for MetricsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for MetricsTarget {
    type Err = String;

    /// Parses `[ADDRESS]:PORT`, `unix:PATH`, or a file name. A port without an address is on the
    /// loopback interface. Fails with the reason.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let named = (!path.is_empty()).then(|| Self::Socket(PathBuf::from(path)));
            return named.ok_or_else(|| "`unix:` needs the path of a socket".to_owned());
        }
        if text.is_empty() {
            return Err("it is empty: name an address such as :9464, or a file".to_owned());
        }
        if text == "-" {
            let why = "metrics are rewritten every few seconds, which is not possible on standard \
                       output: name a file, or an address such as :9464";
            return Err(why.to_owned());
        }
        let Some((host, port)) = text.rsplit_once(':').filter(|_| !text.contains('/')) else {
            return Ok(Self::File(PathBuf::from(text)));
        };
        let is_number = !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
        if !is_number {
            return Err(format!(
                "`{port}` is not a port: write [ADDRESS]:PORT, or ./{text} for a file of this name"
            ));
        }
        let port = port.parse::<u16>().map_err(|_| format!("the port {port} is above 65535"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip = match host {
            "" | "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().map_err(|_| {
                format!("`{host}` is not an IP address: write 0.0.0.0:{port} for all interfaces")
            })?,
        };
        Ok(Self::Address(SocketAddr::new(ip, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_target_parses_as_address_socket_or_file() {
        let address = |text: &str| Ok(MetricsTarget::Address(text.parse().unwrap()));
        let file = |text: &str| Ok(MetricsTarget::File(PathBuf::from(text)));
        for (text, target) in [
            (":9464", address("127.0.0.1:9464")),
            ("localhost:0", address("127.0.0.1:0")),
            ("0.0.0.0:80", address("0.0.0.0:80")),
            ("[::1]:9464", address("[::1]:9464")),
            ("unix:/run/m", Ok(MetricsTarget::Socket(PathBuf::from("/run/m")))),
            ("web.prom", file("web.prom")),
            ("./a:1", file("./a:1")),
        ] {
            assert_eq!(text.parse(), target, "{text}");
        }
        for (text, why) in [
            ("", "empty"),
            ("-", "standard output"),
            ("unix:", "path"),
            ("web:prom", "./web:prom"),
            (":70000", "65535"),
            ("host:1", "IP address"),
        ] {
            let refused = text.parse::<MetricsTarget>().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
