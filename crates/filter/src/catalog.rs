//! The catalog: a hand-written list of all filters, in processing order.
//!
//! Help, man page, completion, counters, catalog tests, twin tests and PipesFS are derived from
//! this list; filters are registered nowhere else.

use crate::contract::Description;
use crate::{application, content, general, link, network, stats, transport};

/// All filters, in processing order.
pub static FILTERS: &[&Description] = &[
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
    &general::split::SPLIT_RR,
    &general::join::JOIN,
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
    &content::pcap::PCAP_FILTER,
    &content::compress::COMPRESS,
    &content::decompress::DECOMPRESS,
    &stats::count::COUNT,
    &stats::hist::HIST,
    &stats::inspect::INSPECT,
];

/// Returns the description of the filter with this name, or `None` if the catalog has none.
#[must_use]
pub fn find(name: &str) -> Option<&'static Description> {
    FILTERS.iter().copied().find(|description| description.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v3_copy_of_a_description_is_the_same_entry() {
        for description in FILTERS {
            let copy = Description { ..**description };
            assert!(copy.is_same_entry(description));
            assert_eq!(FILTERS.iter().filter(|other| copy.is_same_entry(other)).count(), 1);
        }
    }
}
