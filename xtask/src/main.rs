//! The verbs of the workspace: `cargo xtask VERB`. The project has no other scripts.
//!
//! Input: the working tree, and cargo. Output: text, and an exit status: 0 for success, 1 for a
//! failure, 2 for a usage error. Uses only the standard library, so that it builds in seconds on a
//! machine with only Rust.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod cargo;
mod ci;
mod dist;
mod examples;
mod install;
mod kernels;
mod lines;
mod outcome;
mod silence_watchdog;
mod skips;
mod test;
mod tidy;

use outcome::Outcome;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A verb of `cargo xtask`: its name, arguments, summary and function.
struct Verb {
    name: &'static str,
    usage: &'static str,
    summary: &'static str,
    run: fn(&Path, &[String]) -> Outcome,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "test",
        usage: "[--strict] [--corpus DIR] [CARGO TEST ARGUMENTS]",
        summary: "all tests of all crates, documentation included; counts and skips at the end; \
                  --corpus: those that take captures of others, from this folder",
        run: test::test,
    },
    Verb {
        name: "install",
        usage: "[--prefix DIR] [--bench]",
        summary: "the program, its libraries, manual, completions and examples, built for release; \
                  DESTDIR is respected",
        run: install::install,
    },
    Verb {
        name: "uninstall",
        usage: "[--prefix DIR]",
        summary: "removes what `install` put there, by its manifest",
        run: install::uninstall,
    },
    Verb {
        name: "dist",
        usage: "[--dirty] [--quick] [--no-static] [--try[=SUITE] | --try-only[=SUITE]]",
        summary: "the packages of a release, in target/dist: .deb, tarballs, components, sums; \
                  --quick builds without optimization; --try installs, upgrades and removes them \
                  in a virtual machine, --try-only those that are there",
        run: dist::dist,
    },
    Verb {
        name: "tidy",
        usage: "[--ratchet | --report | --list RULE [CRATE] | --arrows CRATE]",
        summary: "rules of the tree: arrows, fences, sizes, words; --ratchet lowers the ceilings, \
                  --report counts by crate, --list names places, --arrows those between files",
        run: tidy::tidy,
    },
    Verb {
        name: "ci",
        usage: "[--strict]",
        summary: "fmt, clippy, doc, tidy, test, deny: everything that must be green",
        run: ci::ci,
    },
    Verb {
        name: "unsafe",
        usage: "",
        summary: "the table of unsafe blocks, functions and impls per file",
        run: tidy::print_unsafe_table,
    },
    Verb {
        name: "lines",
        usage: "",
        summary: "lines of code of each crate under crates/ but testkit: no blanks, no comments, \
                  and without what only tests, loom, miri or a feature compile",
        run: lines::lines,
    },
    Verb {
        name: "examples",
        usage: "",
        summary: "every example and every request of the book through `streamline check`",
        run: |root, _| examples::check_examples(root).into(),
    },
    Verb {
        name: "model",
        usage: "[TEST]",
        summary: "loom models of the rings, in a release build of their own",
        run: test::model,
    },
    Verb {
        name: "miri",
        usage: "[TEST]",
        summary: "unit tests of the crates with unsafe code, interpreted by Miri; needs nightly",
        run: test::miri,
    },
    Verb {
        name: "fuzz",
        usage: "smoke",
        summary: "random and broken bytes for everything that reads bytes, with optimization",
        run: test::fuzz,
    },
    Verb {
        name: "netns",
        usage: "[TEST]",
        summary: "the packages whose tests need root; a skip fails",
        run: test::netns,
    },
    Verb {
        name: "mutants",
        usage: "[FILTER]",
        summary: "twins with one slip in them: does the exam catch them? takes minutes",
        run: test::mutants,
    },
    Verb {
        name: "kernels",
        usage: "[6.1] [6.12] [--strict]",
        summary: "old kernels in emulation: what of our programs they load, a tap that runs there",
        run: kernels::kernels,
    },
    Verb {
        name: "bench",
        usage: "[NAME…] [--json] [--plot[=DIR]]",
        summary: "runs streamline-bench, built for release, with these arguments",
        run: test::bench,
    },
    Verb { name: "help", usage: "", summary: "this list", run: print_help },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "help".to_owned());
    let rest: Vec<String> = arguments.collect();
    let root = workspace_root();
    let outcome = match VERBS.iter().find(|verb| verb.name == name) {
        Some(verb) => (verb.run)(&root, &rest),
        None => Outcome::Usage(format!("no verb is called `{name}`")),
    };
    match outcome {
        Outcome::Success => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::FAILURE,
        Outcome::Usage(why) => {
            eprintln!("error: {why}; `cargo xtask help` lists all");
            ExitCode::from(2)
        }
    }
}

fn print_help(_: &Path, _: &[String]) -> Outcome {
    println!("cargo xtask VERB\n");
    for verb in VERBS {
        println!("  {}\n      {}", format!("{} {}", verb.name, verb.usage).trim(), verb.summary);
    }
    Outcome::Success
}

/// Returns the root of the workspace: the directory above this crate.
fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
