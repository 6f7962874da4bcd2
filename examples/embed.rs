//! Counts the URLs in a capture (`embed 'replay web.pcap'`), or in live traffic (`embed 'rx eth0'
//! 100`, which stops after 100 exchanges).

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let source = words.next().ok_or("usage: embed SOURCE [EXCHANGES]")?;
    let most = words.next().map_or(Ok(usize::MAX), |most| most.parse())?;

    let mut own = streamline::RegistryAdditions::default();
    let (log, path) = own.pipe_from_sink()?;
    let request = format!("{source} | tcp | http |exchange weblog {path}");
    let running = streamline::open(&request, streamline::Options { own, ..Default::default() })?;

    let mut urls = BTreeMap::<String, u64>::new();
    for (at, line) in BufReader::new(log).lines().enumerate() {
        let line = line?;
        if at + 1 == most {
            running.stop();
        }
        // 10.0.0.1 - - [23/Nov/2026:15:00:00 +0000] "GET /index.html HTTP/1.1" 200 …
        let url = line.split(' ').nth(6).unwrap_or("-");
        *urls.entry(url.to_owned()).or_default() += 1;
    }
    let results = running.wait()?;
    urls.iter().for_each(|(url, times)| println!("{times} {url}"));
    eprintln!("{}", results.report().summary_sentence());
    Ok(())
}
