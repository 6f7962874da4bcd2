//! Live traffic: the command `streamline` as its users start it, on devices between name spaces
//! that each test makes for itself, judged by the programs at both ends.
//!
//! - `weblog`: nginx serves 20,000 requests, and our log is its log;
//! - `overload`: more than the reader can take, accounted for number by number, by place;
//! - `hostile`: what others made to break programs, at full speed;
//! - `device`: it vanishes, is renamed, goes down; it is in another name space, or loopback;
//! - `frames`: larger than the wire carries, without checksum, with tags, jumbo;
//! - `streams`: put together live as off a capture;
//! - `filter`: what the kernel already leaves out;
//! - `take`: frames that the host does not get;
//! - `kernel`: what runs there as a whole; `segment`: what is told of it;
//! - `taking`: frames that the host does not get, decided in the kernel;
//! - `kernel`: what runs there as a whole;
//! - `change`: what follows the kernel changes;
//! - `token`: what passes by a token;
//! - `shared`: several lines in one program; `crowd`: more than one takes; `handout`: of several
//!   users;
//! - `own`: what a user's own sockets exchange;
//! - `users`: of several users, by a daemon; `held`: changed while it runs; `keeps`: while the
//!   daemon is started again; `bounds`: who has too much, and whose a socket is;
//! - `privilege`: without any;
//! - `rights`: with some capabilities and not with others.
//!
//! All of them need root and say so. Nothing leaves the name spaces.
#![forbid(unsafe_code)]

#[path = "../../crates/sys/tests/judge/mod.rs"]
mod judge;
#[path = "../common/scratch.rs"]
mod scratch;

mod adapts;
mod bounds;
mod change;
mod client;
mod crowd;
mod device;
mod filter;
mod frames;
mod handout;
mod held;
mod hostile;
mod house;
mod keeps;
mod kernel;
mod long;
mod moves;
mod nginx;
mod numbers;
mod observer;
mod overload;
mod own;
mod privilege;
mod redirect;
mod rights;
mod segment;
mod send;
mod shared;
mod streams;
mod take;
mod taking;
mod time;
mod token;
mod users;
mod weblog;
