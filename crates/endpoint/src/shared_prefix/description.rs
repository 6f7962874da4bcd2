//! The description of the source `shared`.

use filter::{
    Description, Form, OutputForm, Parameter, ParameterType, StateFacts, WorkerRule, transport,
};

/// Description of `shared`, the source that reads the output of a shared prefix. A prefix is the
/// sequence of filters with which several requests begin.
pub(super) const SHARED: Description = Description {
    name: "shared",
    summary: "read the streams of a prefix that several requests share",
    details: "\
Reads the output of `prefix`, a request that ends with `tcp` or with a filter that finds messages in
its streams, from a process that runs it once for all requests of this user that begin with it. The
first request starts the process, and it ends after the last; `streamline ps` lists it. The classes
are those of the last filter of the prefix. With `--prefix=shared`, Streamline puts this source in
place of the start of a request.

Connections that began before this request joined are left out; of messages, those that did. Blocks
that the request is too slow to read are overwritten and counted: they become a hole in their
connection, and the end of each message that was open. If the process of the prefix ends, its
connections end, another process takes over, and a warning says so. Data that the prefix still holds
when this request stops, such as bytes that wait for a missing segment, is left out.

Reasons for a drop: `overwritten` (read too slowly), `prefix` (frames or blocks that the process of
the prefix has lost, in any of its filters), `unread` (in the ring at the end).",
    example: "shared \"rx eth0 | tcp\" | http |get count",
    output_form: OutputForm::Form(Form::Stream),
    classes: transport::tcp::TCP.classes,
    state: StateFacts::NONE.with_worker_rule(|_| {
        WorkerRule::Differs("each of its readers is one process", WorkerRule::DEFAULT_HINT)
    }),
    parameters: &[Parameter::required(
        "prefix",
        ParameterType::Text,
        "the start that the requests have in common",
    )],
    ..Description::SOURCE_DEFAULTS
};
