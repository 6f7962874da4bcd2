//! Requests of all kinds for the tests of failing steps: sources, sinks, kernel and threads,
//! replicas, programs, cycles, joins.

use std::path::Path;

/// A request for the tests of failing steps. In its text, `{}` stands for a directory, and
/// `CAPTURE` for a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestShape {
    text: &'static str,
    /// True if every test run includes the request. Only a few requests are in every run.
    pub(crate) in_every_run: bool,
    /// True if the test also records the run of the request.
    pub(crate) recorded: bool,
}

impl RequestShape {
    /// Returns the request for the given directory and capture.
    pub(crate) fn request_text_for(&self, folder: &Path, capture: &Path) -> String {
        let text = self.text.replace("{}", &folder.display().to_string());
        text.replace("CAPTURE", &capture.display().to_string())
    }
}

const fn shape(text: &'static str) -> RequestShape {
    RequestShape { text, in_every_run: false, recorded: false }
}

const fn shape_tested_in_every_run(text: &'static str) -> RequestShape {
    RequestShape { in_every_run: true, ..shape(text) }
}

const fn recorded_shape(text: &'static str) -> RequestShape {
    RequestShape { recorded: true, ..shape(text) }
}

/// All requests for the tests of failing steps.
pub(crate) const REQUEST_SHAPES: &[RequestShape] = &[
    // Requests that read files or generate blocks.
    shape_tested_in_every_run("generate count=9 | count"),
    shape("generate count=9 flows=3 seq=yes | dport | (|9 count + |80 discard)"),
    shape("replay CAPTURE | hist length"),
    shape("replay CAPTURE | ip |tcp count ; replay CAPTURE | ip |udp count"),
    shape("replay CAPTURE | (bpf \"udp\" ++ bpf \"icmp\") +* !bpf \"port 53\" | print"),
    shape("replay CAPTURE | dport | (|dns inspect + |http count)"),
    shape("replay CAPTURE | bpf \"tcp port 80\" | tcp | http |exchange weblog {}/log"),
    shape("replay CAPTURE | udp | dns | json"),
    shape("read CAPTURE | count"),
    shape("replay CAPTURE | drop"),
    // Requests that write files.
    shape_tested_in_every_run("replay CAPTURE | pcap {}/out.pcap"),
    shape_tested_in_every_run("replay CAPTURE | tcp | files {}/files"),
    shape("replay CAPTURE | tcp | http | files {}/messages"),
    shape("replay CAPTURE | tcp | pcap {}/each per=connection"),
    shape("replay CAPTURE | pcap {}/one.pcap ; replay CAPTURE | pcap {}/two.pcap"),
    shape("replay CAPTURE | (bpf \"tcp\" | pcap {}/tcp.pcap) + (!bpf \"tcp\" | pcap {}/rest.pcap)"),
    shape("replay CAPTURE | freeze {}/frozen when=\"port 53\""),
    // Requests in several threads.
    shape_tested_in_every_run("replay CAPTURE | ip @thread1 | count @thread2 | discard"),
    shape("replay CAPTURE | ip | udp @thread1 | count @thread2 | pcap {}/out.pcap @thread3"),
    shape("generate count=9 | count @thread1 ; generate count=9 | count @thread2"),
    shape(
        "replay CAPTURE | dport | (|dns count @thread1 + |http count @thread2) | discard @thread3",
    ),
    // Requests with replicas of filters.
    shape_tested_in_every_run(
        "--parallel=2 replay CAPTURE | bpf \"tcp port 80\" | regex \"a.b\" | pcap {}/out.pcap",
    ),
    shape("--parallel=2 replay CAPTURE | tcp | http | count"),
    shape("--parallel=3 generate count=99 flows=9 | regex \"a+b\" | discard"),
    // Requests that start programs.
    shape_tested_in_every_run("generate count=9 | exec \"cat\" | count"),
    shape("generate count=9 | exec \"cat > /dev/null\""),
    shape("exec \"echo hello\" | count"),
    shape("generate count=9 | exec \"cat\" | exec \"cat\" | files {}/bytes"),
    shape("generate count=9 | exec \"cat\" | count ; generate count=9 | exec \"cat\" | discard"),
    shape("generate count=9 | (exec \"cat\" | count) + (exec \"cat\" | files {}/bytes)"),
    // Requests with cycles.
    shape("replay CAPTURE | dport --name=X |53,80 (inspect | dport --name=X) + |all discard"),
    // Requests that read an interface in threads.
    shape_tested_in_every_run("rx@thread0 server0 | count"),
    shape("rx@thread0 server0 promisc=yes | bpf \"tcp\" | pcap {}/out.pcap"),
    shape("rx@thread0 server0 both=yes | tcp | files {}/files"),
    shape("rx@thread0 server0 ring=1MB | udp @thread1 | dns | print"),
    shape("tx@thread0 server0 | count"),
    shape("rx@thread0 server0 | count ; tx@thread0 server0 | count"),
    shape("rx@thread0 server0 | bpf \"udp port 53\" | tx server0 qdisc=yes"),
    shape("generate count=9 | tx server0"),
    shape("generate count=9 | tx server0 by=packet"),
    shape("rx@thread0 | count"),
    // Requests that observe an interface in the kernel.
    shape_tested_in_every_run("rx server0 | ip | udp | dport |53 count"),
    shape("rx server0 | count"),
    shape("rx server0 both=yes | ip | count"),
    shape("tx server0 | ip | udp | dport |53 pcap {}/out.pcap"),
    shape_tested_in_every_run(
        "rx server0 | udp | dport |53 pcap {}/a.pcap ; rx server0 | udp | dport |80 count",
    ),
    shape("rx server0 | bpf \"tcp port 80\" | hist length"),
    shape("rx server0 ring=1MB | ip | tcp | http | json"),
    shape("rx server0 | ip | udp | dns @thread1 | print @thread2"),
    shape("rx server0 | ip | (|tcp count + |udp hist length)"),
    shape("rx server0 | ip | udp | dport |53 exec \"cat\" | count"),
    shape("rx server0 | sample every=3 | count ; tx server0 | sample every=3 | count"),
    shape("rx server0 | count ; rx@thread0 server0 | count"),
    // Requests that take frames from the host.
    shape_tested_in_every_run("rx server0 take | count"),
    shape("rx server0 take | ip | udp | dport |53 count"),
    shape("rx server0 take promisc=yes | pcap {}/out.pcap"),
    shape("rx server0 take ring=1MB | tx server0"),
    shape("rx@thread0 server0 take | count"),
    shape("rx server0 take | ip | udp | dport | (|53 drop + |80 count)"),
    // Requests that are also recorded.
    recorded_shape("replay CAPTURE | tcp | http | count"),
    recorded_shape("rx@thread0 server0 | count"),
    recorded_shape("replay CAPTURE | ip @thread1 | pcap {}/out.pcap"),
];
