//! Tests of live traffic: the command `streamline` runs as users start it, on devices between
//! namespaces that each test creates. The results are compared with those of the programs that send
//! and receive the traffic.
//!
//! All tests need root, and are skipped with a message otherwise. Nothing leaves the namespaces.
#![forbid(unsafe_code)]

#[path = "../../crates/sys/tests/judge/mod.rs"]
mod judge;
#[path = "../common/scratch.rs"]
mod scratch;

mod adaptation;
mod bpf_filter;
mod change;
mod client;
mod crowded_program;
mod daemon_fixture;
mod daemon_restart;
mod delegated;
mod device;
mod first_job;
mod foreign_programs;
mod frame_sending;
mod frames;
mod hostile;
mod kernel;
mod kernel_redirect;
mod kernel_streams;
mod kernel_taps;
mod kernel_views;
mod live_changes;
mod live_counters;
mod long_requests;
mod nginx;
mod numbered_frames;
mod observer;
mod overload;
mod own_sockets;
mod privilege;
mod program_limits;
mod quotas;
mod recorded_path;
mod redirect;
mod redirected_frames;
mod rights;
mod second_job;
mod seed_lines;
mod shared_changes;
mod shared_program;
mod stalls;
mod streams;
mod taken_flow_changes;
mod taken_flows;
mod token;
mod users;
mod weblog;
