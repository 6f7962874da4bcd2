//! Filters, sources and sinks of the calling program, and pipes that connect the program to a
//! request.
//!
//! A type that implements one of the traits is added with its description, like a catalog entry. A
//! closure is added with a name. A request refers to the end of a pipe by a path, as with `>(…)` in
//! a shell.

use abi::Class;
use endpoint::{Failure, OpenArguments, Sink, SinkEntry, SourceEntry};
use engine::build::{ProgramRegistry, RunSettings};
use engine::registry::MachineRegistry;
use filter::{
    Amount, Arguments, Batch, Block, Classes, Classify, ClassifyContext, Description,
    EndpointFacts, Filter, FilterKind, Forms, LinkType, Mistake, OutputForm, Parameter,
    ParameterType, Reason, Report, StateFacts, Time, ValueRange,
};
use pipeline::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The filters, sources, sinks and pipe ends that this program adds to the registry.
///
/// Descriptions are leaked and live as long as the process, so create one `RegistryAdditions` and
/// clone it into the options of each request. The filters, sources and sinks run only in threads of
/// this process.
#[derive(Clone, Default)]
pub struct RegistryAdditions {
    descriptions: Vec<&'static Description>,
    sources: &'static [SourceEntry],
    sinks: &'static [SinkEntry],
    /// Descriptors of pipe ends that requests use. A source or sink of a request opens such a
    /// descriptor again by its path. The descriptors stay open until all clones of this value are
    /// dropped.
    ends: Vec<Arc<OwnedFd>>,
}

impl RegistryAdditions {
    /// Adds a filter, given by its description for the registry.
    #[must_use]
    pub fn with_filter(mut self, description: &'static Description) -> Self {
        self.descriptions.push(description);
        self
    }

    /// Adds a source, given as an entry of the registry.
    #[must_use]
    pub fn with_source(mut self, entry: SourceEntry) -> Self {
        self.descriptions.push(entry.description);
        self.sources = Box::leak([self.sources, &[entry]].concat().into_boxed_slice());
        self
    }

    /// Adds a sink, given as an entry of the registry.
    #[must_use]
    pub fn with_sink(mut self, entry: SinkEntry) -> Self {
        self.descriptions.push(entry.description);
        self.sinks = Box::leak([self.sinks, &[entry]].concat().into_boxed_slice());
        self
    }

    /// Adds a filter that classifies each block with `classify`. Calls are serialized. If
    /// `classify` returns `None`, the block has no class, and a plain pipe drops the block. The
    /// same holds for the two largest numbers, which are no classes.
    ///
    /// ```
    /// # fn main() -> Result<(), streamline::OpenError> {
    /// # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
    /// use streamline::report::ReportForm;
    ///
    /// let own = streamline::RegistryAdditions::default()
    ///     .with_classifier("long", |block| Some(block.length() / 1000));
    /// let options = streamline::Options { own, ..streamline::Options::without_daemon() };
    /// let request = format!("replay {capture} | long |1 count");
    /// let results = streamline::open(&request, options)?.wait()?;
    /// assert!(results.report().pipeline_end_reports(ReportForm::Text).contains("blocks"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_classifier(
        self,
        name: &str,
        classify: impl FnMut(&Block<'_>) -> Option<u32> + Send + 'static,
    ) -> Self {
        let description = Description {
            kind: FilterKind::Classification,
            input_forms: Forms::ANY,
            classes: Classes::Number {
                meaning: "the answer of this program",
                range: ValueRange { low: 0, high: Class::ZERO.0 - 1 },
                names: &[],
            },
            reasons: CALLBACK_DROP_REASONS,
            state: StateFacts::pinned_to_space("it is a function of this program"),
            constructor: Some(callback_filter),
            ..register_callback(name, Callback::Classify(Arc::new(Mutex::new(classify))))
        };
        self.with_filter(Box::leak(Box::new(description)))
    }

    /// Adds a sink that calls `take` for each block. Calls are serialized, and must return quickly,
    /// because the path waits for them. An error returned by `take` ends the path.
    ///
    /// ```
    /// # fn main() -> Result<(), streamline::OpenError> {
    /// # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::sync::Arc;
    ///
    /// let bytes = Arc::new(AtomicU64::new(0));
    /// let sum = Arc::clone(&bytes);
    /// let own = streamline::RegistryAdditions::default().with_sink_fn("sum", move |block| {
    ///     sum.fetch_add(u64::from(block.length()), Ordering::Relaxed);
    ///     Ok(())
    /// });
    /// let options = streamline::Options { own, ..streamline::Options::without_daemon() };
    /// streamline::open(&format!("replay {capture} | udp | sum"), options)?.wait()?;
    /// assert!(bytes.load(Ordering::Relaxed) > 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_sink_fn(
        self,
        name: &str,
        take: impl FnMut(&Block<'_>) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let description = Description {
            kind: FilterKind::Sink,
            input_forms: Forms::ANY,
            output_form: OutputForm::Nothing,
            ..register_callback(name, Callback::Each(Arc::new(Mutex::new(take))))
        };
        self.with_sink(SinkEntry::new(Box::leak(Box::new(description)), open_callback_sink))
    }

    /// Creates a pipe from a sink to this program. Returns the pipe's reading end, and the path
    /// that the request uses in place of a file. The reader sees end of file when the path has
    /// ended and all clones of this `RegistryAdditions` are dropped; a full pipe blocks the path.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
    /// use std::io::{BufRead, BufReader};
    ///
    /// let mut own = streamline::RegistryAdditions::default();
    /// let (log, path) = own.pipe_from_sink()?;
    /// let options = streamline::Options { own, ..streamline::Options::without_daemon() };
    /// let request = format!("replay {capture} | tcp | http |exchange weblog {path}");
    /// let running = streamline::open(&request, options)?;
    /// assert!(BufReader::new(log).lines().count() > 0);
    /// running.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pipe_from_sink(&mut self) -> Result<(File, String), sys::Error> {
        let (reader, writer) = sys::descriptor::pipe()?;
        Ok((File::from(reader), self.add_descriptor(writer)))
    }

    /// Creates a pipe from this program to a source. Returns the pipe's writing end, and the path
    /// that the request uses in place of a file. The source ends when the writing end is dropped.
    pub fn pipe_to_source(&mut self) -> Result<(File, String), sys::Error> {
        let (reader, writer) = sys::descriptor::pipe()?;
        Ok((File::from(writer), self.add_descriptor(reader)))
    }

    /// Makes a descriptor of this program available to a request. Returns the path with which the
    /// request refers to it. The descriptor is closed when all clones of this `RegistryAdditions`
    /// are dropped; [`open`](crate::open) drops the clone in its options.
    pub fn add_descriptor(&mut self, descriptor: OwnedFd) -> String {
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        self.ends.push(Arc::new(descriptor));
        path
    }

    /// Returns true if no filter, source, sink or pipe end was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.descriptions.is_empty() && self.ends.is_empty()
    }

    /// Returns the settings with which the paths of a request are built, including the sources and
    /// sinks of this value.
    pub(crate) fn settings(&self) -> RunSettings {
        RunSettings { sources: self.sources, sinks: self.sinks, ..RunSettings::default() }
    }

    /// Returns the registry with which a running request of this program is changed, or `None` if
    /// the program has added no filter, source or sink. It keeps no pipe end open.
    pub(crate) fn registry_for_changes(&self) -> Option<ProgramRegistry> {
        let registry = || Self { ends: Vec::new(), ..self.clone() };
        (!self.descriptions.is_empty()).then(|| ProgramRegistry(Arc::new(registry())))
    }

    fn find_description(&self, name: &str) -> Option<&'static Description> {
        self.descriptions.iter().copied().find(|known| known.name == name)
    }
}

impl fmt::Debug for RegistryAdditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.descriptions.iter().map(|known| known.name).collect();
        f.debug_struct("Own").field("names", &names).field("ends", &self.ends).finish()
    }
}

impl Registry for RegistryAdditions {
    fn find(&self, name: &str) -> Option<&'static Description> {
        self.find_description(name).or_else(|| MachineRegistry::Local.find(name))
    }

    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        self.find_description(name).or_else(|| MachineRegistry::Local.find_filter(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let own = self.find_description(name).filter(|known| known.kind == FilterKind::Source);
        own.or_else(|| MachineRegistry::Local.find_source(name))
    }

    fn endpoint_facts(&self, entry: &Description) -> &'static EndpointFacts {
        let is_it = |own: &Description| own.name == entry.name && own.kind == entry.kind;
        let source = || self.sources.iter().find(|own| is_it(own.description));
        let sink = || self.sinks.iter().find(|own| is_it(own.description));
        let own = source().map(|own| &own.facts).or_else(|| sink().map(|own| &own.facts));
        own.unwrap_or_else(|| MachineRegistry::Local.endpoint_facts(entry))
    }

    fn names(&self) -> Vec<&'static str> {
        let own = self.descriptions.iter().map(|known| known.name);
        own.chain(MachineRegistry::Local.names()).collect()
    }

    fn base(&self) -> Option<&dyn Registry> {
        Some(&MachineRegistry::Local)
    }

    fn is_added_by_program(&self, name: &str) -> bool {
        self.find_description(name).is_some()
    }

    fn spaces(&self) -> Vec<&str> {
        MachineRegistry::Local.spaces()
    }

    fn argument_refusal(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        match self.find_description(entry.name) {
            Some(own) if arguments.flag("untrusted") => {
                let why =
                    format!("`{}` is a function of this program, which no other has", own.name);
                Some(Mistake::new("untrusted", why))
            }
            Some(own) => own.constructor.and_then(|make| make(arguments).err()),
            None => MachineRegistry::Local.argument_refusal(entry, arguments),
        }
    }

    fn source_links(&self, source: &Description, arguments: &Arguments) -> Option<Vec<LinkType>> {
        match self.sources.iter().find(|entry| entry.description.name == source.name) {
            Some(own) => (own.link_types)(arguments),
            None => MachineRegistry::Local.source_links(source, arguments),
        }
    }

    fn one_way_reason(&self, source: &Description, arguments: &Arguments) -> Option<String> {
        match self.find_description(source.name) {
            Some(_) => None,
            None => MachineRegistry::Local.one_way_reason(source, arguments),
        }
    }
}

type Classifier = dyn FnMut(&Block<'_>) -> Option<u32> + Send;
type BlockConsumer = dyn FnMut(&Block<'_>) -> Result<(), String> + Send;

/// A callback of the calling program, which a filter or a sink calls.
#[derive(Clone)]
enum Callback {
    Classify(Arc<Mutex<Classifier>>),
    Each(Arc<Mutex<BlockConsumer>>),
}

/// All callbacks of the calling program, by number. A request refers to a callback by this number,
/// in an argument, because a filter is constructed from its arguments alone.
static CALLBACKS: Mutex<BTreeMap<u64, Callback>> = Mutex::new(BTreeMap::new());

/// Name of the parameter that contains the callback's number.
const CALLBACK_NUMBER_PARAMETER: &str = "function";

fn lock_ignoring_poison<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a callback. Returns a description whose only parameter is the callback's number.
fn register_callback(name: &str, callback: Callback) -> Description {
    let mut all = lock_ignoring_poison(&CALLBACKS);
    let number = all.len() as u64;
    all.insert(number, callback);
    let text: &'static str = Box::leak(number.to_string().into_boxed_str());
    let kind = ParameterType::Number { low: number, high: number };
    let function = Parameter::with_default(
        CALLBACK_NUMBER_PARAMETER,
        kind,
        text,
        "the function of this program",
    );
    Description {
        name: Box::leak(name.to_owned().into_boxed_str()),
        summary: "a function of this program",
        parameters: Box::leak(Box::new([function])),
        ..Description::FILTER_DEFAULTS
    }
}

fn find_callback(arguments: &Arguments) -> Option<Callback> {
    lock_ignoring_poison(&CALLBACKS).get(&arguments.number(CALLBACK_NUMBER_PARAMETER)?).cloned()
}

/// The reasons for which a filter that calls a callback drops blocks.
const CALLBACK_DROP_REASONS: &[&str] = &["unanswered"];
const UNANSWERED_REASON: Reason =
    Description { reasons: CALLBACK_DROP_REASONS, ..Description::FILTER_DEFAULTS }
        .reason("unanswered");

struct CallbackFilter(Arc<Mutex<Classifier>>);

impl Classify for CallbackFilter {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        match lock_ignoring_poison(&self.0)(block) {
            Some(class) if class < Class::ZERO.0 => Class::from_natural(class),
            _ => cx.answer_absent(UNANSWERED_REASON),
        }
    }
}

fn callback_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    match find_callback(arguments) {
        Some(Callback::Classify(function)) => Ok(Filter::classify(CallbackFilter(function))),
        _ => Err(Mistake::new(CALLBACK_NUMBER_PARAMETER, "this program has no such function")),
    }
}

struct CallbackSink {
    function: Arc<Mutex<BlockConsumer>>,
    name: u64,
    taken: Amount,
}

impl Sink for CallbackSink {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let mut function = lock_ignoring_poison(&self.function);
        for (_, block) in batch.blocks() {
            let target = || format!("function {}", self.name);
            function(&block).map_err(|why| Failure::new("call", target(), why))?;
            self.taken.blocks += 1;
            self.taken.bytes += u64::from(block.length());
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        let Amount { blocks, bytes } = self.taken;
        Ok(Report::from_rows(vec![("blocks".to_owned(), blocks), ("bytes".to_owned(), bytes)]))
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.taken)
    }
}

fn open_callback_sink(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let name = opening.arguments.number(CALLBACK_NUMBER_PARAMETER).unwrap_or_default();
    match find_callback(opening.arguments) {
        Some(Callback::Each(function)) => {
            Ok(Box::new(CallbackSink { function, name, taken: Amount::default() }))
        }
        _ => Err(Failure::new("call", "a function", "this program has no such function")),
    }
}
