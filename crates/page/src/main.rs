//! The command `streamline-page`, which `streamline page` runs: serves the live page.
#![forbid(unsafe_code)]

use clap::Parser;
use page::access::Token;
use page::captures::Captures;
use page::commands::Program;
use page::listener::{Address, Listener};
use page::live::Live;
use page::server::Server;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Exit status after a failure.
const FAILED: u8 = 1;

/// Show the running paths in a browser.
///
/// The page is at a loopback address or a Unix socket, and acts as the user who started it. Its
/// URL, which is printed, holds a token; whoever has the token can do on this machine what
/// `streamline` can do for this user. From another machine, reach it by `ssh -L
/// 7575:127.0.0.1:7575 HOST`. Paths cost nothing while no browser shows the page. ^C ends it; paths
/// go on.
#[derive(Parser, Debug)]
#[command(name = "streamline page", version)]
struct Arguments {
    /// The address to listen at: PORT, 127.0.0.1:PORT, [::1]:PORT or unix:PATH; port 0 stands for
    /// any free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7575")]
    listen: Address,
    /// Show the paths of the daemon in this folder
    #[arg(long, value_name = "FOLDER")]
    socket: Option<PathBuf>,
}

fn main() -> ExitCode {
    let given = Arguments::parse();
    match serve(given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // A failed write to standard error cannot be reported.
            let _ = writeln!(io::stderr(), "error: {why}");
            FAILED.into()
        }
    }
}

fn serve(given: Arguments) -> Result<(), String> {
    let signals = sys::signal::watch().map_err(|error| error.to_string())?;
    let listener =
        Listener::bind(&given.listen).map_err(|error| describe_bind(&given.listen, &error))?;
    let token = match &listener {
        Listener::Tcp(_) => Some(Token::random().map_err(|error| format!("no token: {error}"))?),
        Listener::Unix(..) => None,
    };
    let address = listener.describe().map_err(|error| error.to_string())?;
    let url = match &token {
        Some(token) => format!("{address}#token={}", token.text()),
        None => address,
    };
    let program = Program::find(given.socket.clone());
    let captures = Arc::new(Captures::default());
    let server =
        Server { live: Live::new(given.socket), token, program, captures: Arc::clone(&captures) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        while !sys::poll::readable(&[signals.as_fd()], None).contains(&true) {}
        ended.send(())
    });
    let _ = writeln!(io::stdout(), "{url}");
    let _ = io::stdout().flush();
    let served = runtime.block_on(async {
        tokio::select! {
            served = server.serve(&listener) => served,
            _ = end => Ok(()),
        }
    });
    runtime.shutdown_background();
    captures.stop_all();
    served.map_err(|error| format!("the page ended: {error}"))
}

fn describe_bind(address: &Address, error: &io::Error) -> String {
    let (place, used) = match address {
        Address::Tcp(address) => (address.to_string(), "`--listen 0` takes a free port"),
        Address::Unix(path) => (path.display().to_string(), "another page listens there"),
    };
    match error.kind() {
        ErrorKind::AddrInUse | ErrorKind::AlreadyExists => {
            format!("cannot listen at {place}: it is in use; {used}")
        }
        _ => format!("cannot listen at {place}: {error}"),
    }
}
