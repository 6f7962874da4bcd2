//! The catalog: all filters, listed by hand, in the order in which a packet meets them.
//!
//! A filter listed here has help, a man page, completion, counters, catalog tests, the twin exam
//! and a name in PipesFS; no other registration is needed.

use crate::contract::Description;
use crate::{application, content, general, link, network, stats, transport};

/// All filters.
pub const FILTERS: &[&Description] = &[
    &link::eth::ETH,
    &link::vlan::VLAN,
    &link::strip::STRIP,
    &network::ip::IP,
    &network::ipproto::IPPROTO,
    &network::rewrite::REWRITE,
    &transport::tcp::TCP,
    &transport::tcp::UNTCP,
    &transport::udp::UDP,
    &transport::sport::SPORT,
    &transport::dport::DPORT,
    &transport::token::TOKEN,
    &transport::vxlan::VXLAN,
    &general::bpf::BPF,
    &general::sample::SAMPLE,
    &general::ratelimit::RATELIMIT,
    &general::split::SPLIT,
    &general::shard::SHARD,
    &application::http::HTTP,
    &application::dns::DNS,
    &application::tls::TLS,
    &application::signature::SSH,
    &application::signature::TELNET,
    &application::signature::RTSP,
    &application::signature::MPEG,
    &content::r#match::MATCH,
    &content::regex::REGEX,
    &content::blank::BLANK,
    &content::compress::COMPRESS,
    &content::decompress::DECOMPRESS,
    &stats::count::COUNT,
    &stats::hist::HIST,
    &stats::inspect::INSPECT,
];

/// Returns the filter with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Description> {
    FILTERS.iter().copied().find(|description| description.name == name)
}
