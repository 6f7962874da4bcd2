//! Tests of the HTTP parser with messages that are split at every offset, from this project and
//! from the strict test cases of llhttp. `wire::http` must accept, reject and delimit messages in
//! the same way as llhttp, wherever the input is split. A case in `../shared/cases/llhttp` consists
//! of the input and the events that llhttp reports. The events within a head are not compared. For
//! a rejected message, only the body before the fault is compared.

use std::path::{Path, PathBuf};

use streamline_wire::http::{Body, BodyPart, Head, HeadError, ParseMode, RequestMethod, StartLine};

/// Cases in which this crate deliberately differs from llhttp: file, number of the case in the
/// file, and reason.
const EXCLUDED_CASES: &[(&str, usize, &str)] = &[
    ("request/invalid.md", 13, "a method may be any token (RFC 9110 §9.1); llhttp knows a list"),
    ("request/method.md", 11, "ICE/1.0 is not HTTP"),
    ("request/method.md", 14, "PRI of HTTP/1.1 is not the preface of HTTP/2 (RFC 9113 §3.4)"),
    ("response/sample.md", 1, "RTSP/1.1 is no HTTP"),
    ("response/sample.md", 2, "ICE/1.1 is no HTTP"),
];

/// Minimum number of llhttp's test cases that must run, so that a partly missing set of cases is
/// noticed. Lenient and excluded cases do not count.
const LLHTTP_CASES_MIN: usize = 120;

/// A test case of llhttp, or of this project in the same form.
struct LlhttpCase {
    file: String,
    number: usize,
    kind: String,
    skip_body: bool,
    input: Vec<u8>,
    log: Vec<String>,
}

/// A message of a test case, as a parser has reported it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct HttpMessage {
    begin: usize,
    head: usize,
    body: Vec<u8>,
    /// Offset of the end of the message in the input; `None` if the end was not reached.
    end: Option<usize>,
}

/// The events that llhttp or this crate reports for a case.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct ParserEvents {
    messages: Vec<HttpMessage>,
    refused: bool,
    switched: bool,
}

impl ParserEvents {
    /// Removes the events on which this crate and llhttp may differ. Of a rejected message, only
    /// the body before the fault remains.
    fn without_tolerated_differences(mut self) -> Self {
        if self.refused {
            self.messages.retain(|message| message.end.is_some() || !message.body.is_empty());
        }
        self
    }
}

fn read_cases(folder: &Path) -> Vec<LlhttpCase> {
    let mut cases = Vec::new();
    for direction in ["request", "response"] {
        let files = std::fs::read_dir(folder.join(direction)).expect("a folder");
        let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
        files.sort();
        for file in files {
            let name = file.file_name().expect("a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&file).expect("a text");
            cases.extend(parse_cases(&format!("{direction}/{name}"), &text));
        }
    }
    cases
}

fn parse_cases(file: &str, text: &str) -> Vec<LlhttpCase> {
    let parts = text.split("\n## case ").skip(usize::from(!text.starts_with("## case ")));
    let mut cases = Vec::new();
    for part in parts {
        let part = part.trim_start_matches("## case ");
        let number = part.lines().next().and_then(|line| line.trim().parse().ok());
        let between = |from: &str, to: &str| {
            let at = part.find(from)? + from.len();
            Some(part[at..at + part[at..].find(to)?].to_owned())
        };
        let fields = (number, between("\"type\": \"", "\""), between("```http\n", "\n```"));
        let (Some(number), Some(kind), Some(input)) = fields else {
            panic!("{file}: a case without number, type or input: {part}");
        };
        let log = between("```log\n", "```").unwrap_or_default();
        cases.push(LlhttpCase {
            file: file.to_owned(),
            number,
            kind,
            skip_body: part.contains("\"skipBody\": true"),
            input: decode_case(&input),
            log: log.lines().map(str::to_owned).collect(),
        });
    }
    cases
}

/// Decodes the input of a case: joins lines that end in a backslash, converts LF to CR LF, and
/// expands escapes.
fn decode_case(text: &str) -> Vec<u8> {
    let text = text.replace("\\\n", "").replace('\n', "\r\n");
    let text = text.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t");
    text.replace("\\f", "\u{c}").replace("\\xff", "\u{ff}").into_bytes()
}

fn parse_fault_offset(line: &str) -> usize {
    let digits = line.trim_start_matches("off=").split(' ').next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("no offset: {line}"))
}

fn expected_events(case: &LlhttpCase) -> ParserEvents {
    let mut events = ParserEvents::default();
    let mut begin = 0;
    for line in &case.log {
        if line.ends_with("message begin") {
            begin = parse_fault_offset(line);
        } else if line.contains("headers complete") {
            let head = parse_fault_offset(line);
            events.messages.push(HttpMessage { begin, head, ..HttpMessage::default() });
        } else if line.contains("span[body]") {
            let length = line.split("len=").nth(1).expect("a length").split(' ').next();
            let length: usize = length.and_then(|n| n.parse().ok()).expect("a number");
            let from = parse_fault_offset(line);
            let message = events.messages.last_mut().expect("a body after a head");
            message.body.extend(&case.input[from..from + length]);
        } else if line.ends_with("message complete") {
            events.messages.last_mut().expect("a message").end = Some(parse_fault_offset(line));
        } else if line.contains("error code=22") {
            events.switched = true;
        } else if line.contains("error code=") {
            events.refused = true;
        }
    }
    events
}

/// A reader that parses one direction of a connection, which it receives in pieces.
struct PieceReader<'c> {
    case: &'c LlhttpCase,
    events: ParserEvents,
    /// Bytes of an incomplete head, which begins at offset `at`.
    held: Vec<u8>,
    at: usize,
    open: Option<Body>,
    closed: bool,
}

impl PieceReader<'_> {
    fn read_piece(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() && !self.events.refused && !self.events.switched {
            match self.open {
                Some(body) => piece = self.read_body(body, piece),
                None => piece = self.read_head(piece),
            }
        }
    }

    fn read_head<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let before = self.held.len();
        self.held.extend(piece);
        let blank = self.held.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        if self.closed && !blank {
            self.events.refused = true;
        }
        let requests = self.case.kind.starts_with("request");
        let read = match requests {
            true => Head::parse_request(&self.held, ParseMode::Strict),
            false => Head::parse_response(&self.held, ParseMode::Strict),
        };
        let head = match read {
            Err(HeadError::Incomplete) => return &[],
            Err(HeadError::Fault(_)) => {
                self.events.refused = true;
                return &[];
            }
            Ok(_) if self.events.refused => return &[],
            Ok(head) => head,
        };
        let message = HttpMessage {
            begin: self.at + head.begin,
            head: self.at + head.end,
            ..HttpMessage::default()
        };
        self.events.messages.push(message);
        let method = if self.case.skip_body { RequestMethod::Head } else { RequestMethod::Other };
        let body = match requests {
            true if self.case.skip_body => Ok(Body::default()),
            true => Body::after_request_head(&head, ParseMode::Strict),
            false => Ok(Body::after_response_head(&head, method, ParseMode::Strict)),
        };
        self.closed |= !head.is_persistent();
        let switches = match head.start {
            StartLine::Request { .. } => head.may_switch_protocol(),
            StartLine::Response { .. } => false,
        };
        let end = head.end;
        self.at += end;
        self.held.clear();
        match body {
            Ok(body) => {
                self.open = Some(body);
                self.end_message(body, switches);
            }
            Err(_) => self.events.refused = true,
        }
        &piece[end - before..]
    }

    fn read_body<'p>(&mut self, mut body: Body, piece: &'p [u8]) -> &'p [u8] {
        let message = self.events.messages.last_mut().expect("a body after a head");
        let taken = match body.take_prefix(piece) {
            Ok(BodyPart::Data(length)) => {
                message.body.extend(&piece[..length]);
                length
            }
            Ok(BodyPart::Framing(length)) => length,
            Ok(BodyPart::End) => 0,
            Err(_) => {
                self.events.refused = true;
                0
            }
        };
        self.at += taken;
        self.open = Some(body);
        let last = self.case.log.iter().any(|line| line.contains("error code=22"));
        self.end_message(body, last);
        &piece[taken..]
    }

    fn end_message(&mut self, body: Body, switches: bool) {
        if body.has_ended() || body.switches_protocol() {
            self.events.messages.last_mut().expect("a message").end = Some(self.at);
            self.events.switched = body.switches_protocol() || switches;
            self.open = None;
        }
    }
}

fn parse_case_in_pieces(case: &LlhttpCase, cut: usize) -> ParserEvents {
    let mut reader = PieceReader {
        case,
        events: ParserEvents::default(),
        held: Vec::new(),
        at: 0,
        open: None,
        closed: false,
    };
    let (first, second) = case.input.split_at(cut);
    reader.read_piece(first);
    reader.read_piece(second);
    reader.events
}

#[test]
fn corpus_messages_match_llhttp_events() {
    let Some(folder) = testkit::case_directory() else { return };
    let folder = folder.join("llhttp");
    let (mut run, mut lenient, mut wrong) = (0, 0, Vec::new());
    for case in read_cases(&folder) {
        let excluded =
            EXCLUDED_CASES.iter().any(|(file, n, _)| *file == case.file && *n == case.number);
        if case.kind.contains("lenient") {
            lenient += 1;
            continue;
        }
        if excluded {
            continue;
        }
        run += 1;
        let wanted = expected_events(&case).without_tolerated_differences();
        for cut in 0..=case.input.len() {
            let found = parse_case_in_pieces(&case, cut).without_tolerated_differences();
            if found != wanted {
                let input = String::from_utf8_lossy(&case.input).into_owned();
                wrong.push(format!(
                    "{} case {} cut at {cut}: {input:?}\n  wanted {wanted:?}\n  found  {found:?}",
                    case.file, case.number
                ));
                break;
            }
        }
    }
    println!(
        "{run} cases, {lenient} lenient ones and {} excluded ones left out",
        EXCLUDED_CASES.len()
    );
    assert!(wrong.is_empty(), "{} of {run}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(run >= LLHTTP_CASES_MIN, "only {run} cases");
}

/// A message of a test case: its head as sent, its body as sent, the body as the parser must report
/// it, and true if the end of the body is reached.
type SentMessage<'s> = (&'s str, &'s str, &'s str, bool);

/// Builds a test case for the HTTP parser, and the events that the parser must report.
fn build_case(kind: &str, messages: &[SentMessage<'_>], rest: &str) -> (LlhttpCase, ParserEvents) {
    let mut input = String::new();
    let mut events = ParserEvents::default();
    for (head, sent, body, ended) in messages {
        let begin = input.len();
        input.push_str(head);
        let head = input.len();
        input.push_str(sent);
        let end = ended.then_some(input.len());
        events.messages.push(HttpMessage { begin, head, body: body.as_bytes().to_vec(), end });
    }
    input.push_str(rest);
    let case = LlhttpCase {
        file: "made".to_owned(),
        number: 0,
        kind: kind.to_owned(),
        skip_body: kind == "response to HEAD",
        input: input.into_bytes(),
        log: Vec::new(),
    };
    (case, events)
}

/// Joins lines to the head of an HTTP message.
macro_rules! head {
    ($($line:literal)*) => { concat!($($line, "\r\n",)* "\r\n") };
}

#[test]
fn http_messages_parse_alike_at_any_split() {
    let get = head!("GET /a HTTP/1.1" "Host: a");
    let chunked = head!("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked");
    let counted = head!("POST / HTTP/1.1" "Host: a" "Content-Length: 5");
    let open = head!("HTTP/1.1 200 OK" "Server: b");
    let five = head!("HTTP/1.1 200 OK" "Content-Length: 5");
    let cases = [
        build_case("request", &[(get, "", "", true)], ""),
        build_case("request", &[(get, "", "", true), (get, "", "", true)], ""),
        build_case("request", &[(counted, "hello", "hello", true), (get, "", "", true)], ""),
        build_case("request", &[(counted, "hel", "hel", false)], ""),
        build_case("request", &[(chunked, "5\r\nhello\r\n0\r\n\r\n", "hello", true)], ""),
        build_case("request", &[(chunked, "2;a=b\r\nhi\r\n0\r\nEnd: 1\r\n\r\n", "hi", true)], ""),
        build_case(
            "response",
            &[(five, "hello", "hello", true), (five, "again", "again", true)],
            "",
        ),
        build_case("response", &[(open, "all the rest", "all the rest", false)], ""),
        build_case("response", &[(head!("HTTP/1.1 204 No Content"), "", "", true)], ""),
        build_case("response", &[(head!("HTTP/1.1 304 X" "Content-Length: 5"), "", "", true)], ""),
        build_case("response to HEAD", &[(five, "", "", true)], ""),
    ];
    for (case, wanted) in cases {
        for cut in 0..=case.input.len() {
            let found = parse_case_in_pieces(&case, cut).without_tolerated_differences();
            let input = String::from_utf8_lossy(&case.input);
            assert_eq!(
                found,
                wanted.clone().without_tolerated_differences(),
                "cut at {cut}: {input:?}"
            );
        }
    }
}

#[test]
fn invalid_http_messages_are_rejected_at_any_split() {
    let wrong = [
        ("request", head!("GET /a HTTP/1.1" "Host : a")),
        ("request", head!("G\u{1}T /a HTTP/1.1" "Host: a")),
        ("request", head!("GET /a HTTP/1.1" "Host: a" "Content-Length: 5" "Content-Length: 6")),
        ("request", head!("POST / HTTP/1.1" "Content-Length: 5" "Transfer-Encoding: chunked")),
        ("request", head!("POST / HTTP/1.1" "Content-Length: 5x")),
        ("request", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
        ("response", head!("HTTP/1.1 2OO OK")),
        ("response", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n"),
    ];
    for (kind, input) in wrong {
        let (case, _) = build_case(kind, &[], input);
        for cut in 0..=case.input.len() {
            assert!(parse_case_in_pieces(&case, cut).refused, "cut at {cut}: {input:?}");
        }
    }
}
