//! The fields of records, defined in one table of names and types.

/// The type of the value of a record field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldType {
    /// Text, stored as the bytes on the wire.
    Text,
    /// Text in a field that a record may contain several times.
    RepeatedText,
    /// A number, stored in little-endian bytes.
    Number,
    /// A flag, whose stored value is always 1.
    Flag,
    /// A time in nanoseconds since the Unix epoch.
    Time,
    /// An IPv4 address in 4 bytes, or an IPv6 address in 16 bytes.
    Address,
}

macro_rules! fields {
    ($($field:ident $json:literal $ecs:expr, $shape:ident, $about:literal;)*) => {
        /// A fact about a message, stored as a field of its record.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Field {
            $(#[doc = $about] $field,)*
        }

        impl Field {
            /// All fields in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$field,)*];

            /// Returns the key of the field in JSON objects.
            #[must_use]
            pub const fn json(self) -> &'static str {
                match self {
                    $(Self::$field => $json,)*
                }
            }

            /// Returns the name of the field in the Elastic Common Schema; `None` if the schema has
            /// none.
            #[must_use]
            pub const fn ecs(self) -> Option<&'static str> {
                match self {
                    $(Self::$field => $ecs,)*
                }
            }

            /// Returns the type of the field's value.
            #[must_use]
            pub const fn shape(self) -> FieldType {
                match self {
                    $(Self::$field => FieldType::$shape,)*
                }
            }

            /// Returns a description of the field in one sentence.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$field => $about,)*
                }
            }
        }
    };
}

fields! {
    Time "time" None, Time, "The time at which the message began.";
    End "end" Some("event.end"), Time, "The time at which the message, or the last message of an \
                                        exchange, ended.";
    ResponseTime "response_time" None, Time, "The time at which the response of an exchange began.";
    Client "client" Some("source.ip"), Address, "The client's address.";
    ClientPort "client_port" Some("source.port"), Number, "The client's port.";
    Server "server" Some("destination.ip"), Address, "The server's address.";
    ServerPort "server_port" Some("destination.port"), Number, "The server's port.";
    Method "method" Some("http.request.method"), Text, "The method of the request.";
    Url "url" Some("url.original"), Text, "The target of the request as it was sent.";
    Host "host" Some("url.domain"), Text, "The host that the request names.";
    Version "http_version" Some("http.version"), Text, "The version of the protocol.";
    Status "status" Some("http.response.status_code"), Number, "The status code of the response.";
    StatusText "status_text" None, Text, "The reason phrase of the response.";
    User "user" Some("user.name"), Text, "The user whom the request names.";
    UserAgent "user_agent" Some("user_agent.original"), Text, "The program that sent the request.";
    Referer "referer" Some("http.request.referrer"), Text,
        "The page from which the request was made, as it claims.";
    ContentType "content_type" Some("http.response.mime_type"), Text, "The media type of the body.";
    ContentEncoding "content_encoding" None, Text, "The coding of the body.";
    ContentLength "content_length" None, Number,
        "The length of the body as the head states it, in bytes.";
    RequestHead "request_head_bytes" None, Number, "The length of the request's head, in bytes.";
    RequestBody "request_body_bytes" Some("http.request.body.bytes"), Number,
        "The observed length of the request's body, in bytes.";
    ResponseHead "response_head_bytes" None, Number, "The length of the response's head, in bytes.";
    ResponseBody "response_body_bytes" Some("http.response.body.bytes"), Number,
        "The observed length of the response's body, in bytes.";
    Missing "missing_bytes" None, Number,
        "The number of lost bytes of the body, or of both bodies.";
    Incomplete "incomplete" None, Flag,
        "True if the message, or one of both, is incomplete.";
    Id "id" Some("dns.id"), Number, "The number of the DNS message.";
    Opcode "opcode" Some("dns.op_code"), Number, "The DNS operation.";
    Answer "answer" Some("dns.type"), Flag, "True if the DNS message is a response.";
    Rcode "rcode" Some("dns.response_code"), Number, "The DNS response code.";
    RcodeName "rcode_name" None, Text, "The name of the DNS response code.";
    Flags "flags" Some("dns.header_flags"), Text, "The flags of the DNS header that are set.";
    Name "name" Some("dns.question.name"), Text, "The requested name.";
    Type "type" Some("dns.question.type"), Text, "The requested type.";
    Class "question_class" Some("dns.question.class"), Text, "The requested class.";
    Answers "answers" Some("dns.answers.count"), Number,
        "The number of answers in the DNS message.";
    Data "data" Some("dns.answers.data"), RepeatedText, "The answers, as text.";
    Ttl "ttl" Some("dns.answers.ttl"), Number, "The least time to live of the answers, in seconds.";
    TlsVersion "tls_version" Some("tls.version"), Text, "The version of TLS.";
    ServerName "server_name" Some("tls.client.server_name"), Text,
        "The server name that the client requests (SNI).";
    Alpn "alpn" Some("tls.client.supported_protocols"), RepeatedText,
        "The application protocols that are offered or chosen (ALPN).";
    Cipher "cipher" Some("tls.cipher"), Text, "The cipher suite that the server chose.";
    Ciphers "ciphers" None, Number, "The number of cipher suites that the client offers.";
    Ja4 "ja4" Some("tls.client.ja4"), Text, "The client's fingerprint (JA4).";
    Resumed "resumed" Some("tls.resumed"), Flag, "True if an earlier session is resumed.";
    Questions "questions" None, Number,
        "The number of questions in the DNS message, if there are several; the first is described.";
}

impl Field {
    /// Returns the field with this number; `None` if the number is unknown.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
