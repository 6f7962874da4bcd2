//! Filters, sources and sinks of the program around, and ends of streams in it.
//!
//! A type that implements a trait of the contract comes with its description, as in the catalog; a
//! closure comes with a name. Ends are pipes: a request names one by its path, as a shell does with
//! `>(…)`.

use abi::Class;
use endpoint::{Failure, Opening, Sink, SinkEntry, SourceEntry};
use engine::build::Settings;
use engine::catalogue::House;
use filter::{
    Amount, Arguments, Batch, Block, Classes, Classify, Compiler, Description, EndpointFacts,
    Filter, Forms, Gives, Keys, Kind, LinkType, Mistake, Names, Parameter, Reason, Report,
    StateFacts, Tell, Time, Type, ValueRange,
};
use pipeline::Catalogue;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Filters, sources, sinks and ends of this program, for its requests.
///
/// Descriptions live as long as the program, as those of the catalog do: an `Own` is made once and
/// cloned into the options of many requests. Filters here run in threads of this process only.
#[derive(Clone, Default)]
pub struct Own {
    descriptions: Vec<&'static Description>,
    sources: &'static [SourceEntry],
    sinks: &'static [SinkEntry],
    /// The far sides of ends, until a source or sink has opened them.
    ends: Vec<Arc<OwnedFd>>,
}

impl Own {
    /// Adds a filter: a type with its description.
    #[must_use]
    pub fn filter(mut self, description: &'static Description) -> Self {
        self.descriptions.push(description);
        self
    }

    /// Adds a source: a type with its description.
    #[must_use]
    pub fn source(mut self, entry: SourceEntry) -> Self {
        self.descriptions.push(entry.description);
        self.sources = Box::leak([self.sources, &[entry]].concat().into_boxed_slice());
        self
    }

    /// Adds a sink: a type with its description.
    #[must_use]
    pub fn sink(mut self, entry: SinkEntry) -> Self {
        self.descriptions.push(entry.description);
        self.sinks = Box::leak([self.sinks, &[entry]].concat().into_boxed_slice());
        self
    }

    /// Adds a filter that classifies each block by this function, which is called by one thread at
    /// a time; `None` answers nothing, and a plain pipe drops the block.
    ///
    /// ```
    /// # fn main() -> Result<(), streamline::OpenError> {
    /// # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
    /// let own = streamline::Own::default().classify("long", |block| Some(block.length() / 1000));
    /// let options = streamline::Options { own, ..streamline::Options::alone() };
    /// let request = format!("replay {capture} | long |1 count");
    /// let results = streamline::open(&request, options)?.wait()?;
    /// assert!(results.report().line_ends(streamline::report::Form::Text).contains("blocks"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn classify(
        self,
        name: &str,
        classify: impl FnMut(&Block<'_>) -> Option<u32> + Send + 'static,
    ) -> Self {
        let description = Description {
            kind: Kind::Classification,
            takes: Forms::ANY,
            classes: Classes::Number {
                what: "the answer of this program",
                range: ValueRange { low: 0, high: u32::MAX },
                names: &[],
            },
            reasons: REASONS,
            state: StateFacts::pinned("it is a function of this program"),
            user: Some(called),
            ..described(name, Given::Classify(Arc::new(Mutex::new(classify))))
        };
        self.filter(Box::leak(Box::new(description)))
    }

    /// Adds a sink that hands each block to this function, which is called by one thread at a time
    /// and must not keep the path waiting. An error ends the path.
    ///
    /// ```
    /// # fn main() -> Result<(), streamline::OpenError> {
    /// # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::sync::Arc;
    ///
    /// let bytes = Arc::new(AtomicU64::new(0));
    /// let sum = Arc::clone(&bytes);
    /// let own = streamline::Own::default().each("sum", move |block| {
    ///     sum.fetch_add(u64::from(block.length()), Ordering::Relaxed);
    ///     Ok(())
    /// });
    /// let options = streamline::Options { own, ..streamline::Options::alone() };
    /// streamline::open(&format!("replay {capture} | udp | sum"), options)?.wait()?;
    /// assert!(bytes.load(Ordering::Relaxed) > 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn each(
        self,
        name: &str,
        take: impl FnMut(&Block<'_>) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let description = Description {
            kind: Kind::Sink,
            takes: Forms::ANY,
            gives: Gives::Nothing,
            ..described(name, Given::Each(Arc::new(Mutex::new(take))))
        };
        self.sink(SinkEntry::new(Box::leak(Box::new(description)), called_sink))
    }

    /// Makes an end from which this program reads what a sink writes: its reader, and the path that
    /// the request names in place of a file. It ends with the path; a full pipe holds the path up.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
    /// use std::io::{BufRead, BufReader};
    ///
    /// let mut own = streamline::Own::default();
    /// let (log, path) = own.output()?;
    /// let options = streamline::Options { own, ..streamline::Options::alone() };
    /// let request = format!("replay {capture} | tcp | http |exchange weblog {path}");
    /// let running = streamline::open(&request, options)?;
    /// assert!(BufReader::new(log).lines().count() > 0);
    /// running.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn output(&mut self) -> Result<(File, String), sys::Error> {
        let (here, there) = sys::descriptor::pipe()?;
        Ok((File::from(here), self.end(there)))
    }

    /// Makes an end into which this program writes what a source reads: its writer, and the path
    /// that the request names in place of a file. The source ends when the writer is dropped.
    pub fn input(&mut self) -> Result<(File, String), sys::Error> {
        let (there, here) = sys::descriptor::pipe()?;
        Ok((File::from(here), self.end(there)))
    }

    /// Has a request name a descriptor of this program by the path that is returned. It is closed
    /// once the request is open.
    pub fn end(&mut self, far: OwnedFd) -> String {
        let path = format!("/proc/self/fd/{}", far.as_raw_fd());
        self.ends.push(Arc::new(far));
        path
    }

    /// Returns true if it adds nothing to the catalog.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.descriptions.is_empty() && self.ends.is_empty()
    }

    /// The settings of a build that finds its sources and sinks.
    pub(crate) fn settings(&self) -> Settings {
        Settings { sources: self.sources, sinks: self.sinks, ..Settings::default() }
    }

    fn own(&self, name: &str) -> Option<&'static Description> {
        self.descriptions.iter().copied().find(|known| known.name == name)
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.descriptions.iter().map(|known| known.name).collect();
        f.debug_struct("Own").field("names", &names).field("ends", &self.ends).finish()
    }
}

impl Catalogue for Own {
    fn find(&self, name: &str) -> Option<&'static Description> {
        self.own(name).or_else(|| House.find(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let own = self.own(name).filter(|known| known.kind == Kind::Source);
        own.or_else(|| House.find_source(name))
    }

    fn endpoint(&self, entry: &Description) -> &'static EndpointFacts {
        let is_it = |own: &Description| own.name == entry.name && own.kind == entry.kind;
        let source = || self.sources.iter().find(|own| is_it(own.description));
        let sink = || self.sinks.iter().find(|own| is_it(own.description));
        let own = source().map(|own| &own.facts).or_else(|| sink().map(|own| &own.facts));
        own.unwrap_or_else(|| House.endpoint(entry))
    }

    fn names(&self) -> Vec<&'static str> {
        let own = self.descriptions.iter().map(|known| known.name);
        own.chain(House.names()).collect()
    }

    fn spaces(&self) -> Vec<&str> {
        House.spaces()
    }

    fn refuses(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        match self.own(entry.name) {
            Some(own) if arguments.flag("untrusted") => {
                let why =
                    format!("`{}` is a function of this program, which no other has", own.name);
                Some(Mistake::new("untrusted", why))
            }
            Some(own) => own.user.and_then(|make| make(arguments).err()),
            None => House.refuses(entry, arguments),
        }
    }

    fn links(&self, source: &Description, arguments: &Arguments) -> Option<Vec<LinkType>> {
        match self.sources.iter().find(|entry| entry.description.name == source.name) {
            Some(own) => (own.links)(arguments),
            None => House.links(source, arguments),
        }
    }

    fn compiler(&self) -> Option<Arc<dyn Compiler>> {
        House.compiler()
    }

    fn answers(&self) -> Option<Arc<dyn Names>> {
        House.answers()
    }

    fn keys(&self) -> Option<Arc<dyn Keys>> {
        House.keys()
    }

    fn sees_one_way(&self, source: &Description, arguments: &Arguments) -> Option<String> {
        match self.own(source.name) {
            Some(_) => None,
            None => House.sees_one_way(source, arguments),
        }
    }
}

type ClassifyFn = dyn FnMut(&Block<'_>) -> Option<u32> + Send;
type EachFn = dyn FnMut(&Block<'_>) -> Result<(), String> + Send;

/// A function of this program.
#[derive(Clone)]
enum Given {
    Classify(Arc<Mutex<ClassifyFn>>),
    Each(Arc<Mutex<EachFn>>),
}

/// All functions that were given. Their numbers travel as arguments, since whatever makes a filter
/// gets nothing but its arguments.
static GIVEN: Mutex<BTreeMap<u64, Given>> = Mutex::new(BTreeMap::new());

/// The parameter with the number of the function.
const FUNCTION: &str = "function";

fn locked<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A description with this name, whose arguments lead to a function.
fn described(name: &str, given: Given) -> Description {
    let mut all = locked(&GIVEN);
    let number = all.len() as u64;
    all.insert(number, given);
    let text: &'static str = Box::leak(number.to_string().into_boxed_str());
    let kind = Type::Number { low: number, high: number };
    let function = Parameter::named(FUNCTION, kind, text, "the function of this program");
    Description {
        name: Box::leak(name.to_owned().into_boxed_str()),
        summary: "a function of this program",
        parameters: Box::leak(Box::new([function])),
        ..Description::EMPTY
    }
}

fn given(arguments: &Arguments) -> Option<Given> {
    locked(&GIVEN).get(&arguments.number(FUNCTION)?).cloned()
}

/// The only reason of a filter that is a function.
const REASONS: &[&str] = &["unanswered"];
const UNANSWERED: Reason =
    Description { reasons: REASONS, ..Description::EMPTY }.reason("unanswered");

struct CalledFilter(Arc<Mutex<ClassifyFn>>);

impl Classify for CalledFilter {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut Tell<'_>) -> Class {
        match locked(&self.0)(block) {
            Some(class) => Class::natural(class),
            None => cx.absent(UNANSWERED),
        }
    }
}

fn called(arguments: &Arguments) -> Result<Filter, Mistake> {
    match given(arguments) {
        Some(Given::Classify(function)) => Ok(Filter::classify(CalledFilter(function))),
        _ => Err(Mistake::new(FUNCTION, "this program has no such function")),
    }
}

struct CalledSink {
    function: Arc<Mutex<EachFn>>,
    name: u64,
    taken: Amount,
}

impl Sink for CalledSink {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let mut function = locked(&self.function);
        for (_, block) in batch.blocks() {
            let target = format!("function {}", self.name);
            function(&block).map_err(|why| Failure::new("call", target, why))?;
            self.taken.blocks += 1;
            self.taken.bytes += u64::from(block.length());
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        let Amount { blocks, bytes } = self.taken;
        Ok(Report::of_rows(vec![("blocks".to_owned(), blocks), ("bytes".to_owned(), bytes)]))
    }

    fn written(&self) -> Option<Amount> {
        Some(self.taken)
    }
}

fn called_sink(opening: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    let name = opening.arguments.number(FUNCTION).unwrap_or_default();
    match given(opening.arguments) {
        Some(Given::Each(function)) => {
            Ok(Box::new(CalledSink { function, name, taken: Amount::default() }))
        }
        _ => Err(Failure::new("call", "a function", "this program has no such function")),
    }
}
