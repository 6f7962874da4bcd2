//! Lexer for pcap-filter expressions.
//!
//! Input: the text. Output: its lexemes with a final [`Token::End`], or the first error. As in
//! pcap-filter's scanner, the longest match wins; among equally long matches, keywords take
//! precedence over addresses, addresses over numbers, and numbers over names. So `25-53` is one
//! name, `tcp-syn` a number, and twelve hexadecimal digits a link address even if all are decimal.
//! The time is linear in the length of the text, because each byte is inspected a bounded number of
//! times.

use super::ast::Span;
use super::error::{ErrorKind, ExpressionError};
use super::token::{Keyword, Lexeme, Symbol, Token};
use super::word_tables;

/// Splits `text` into lexemes.
pub(super) fn lex_expression(text: &str) -> Result<Vec<Lexeme>, ExpressionError> {
    let bytes = text.as_bytes();
    let mut lexemes = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            at += 1;
            continue;
        }
        let (token, length) = next_token(text, at)?;
        lexemes.push(Lexeme { token, span: at..at + length });
        at += length;
    }
    lexemes.push(Lexeme { token: Token::End, span: at..at });
    Ok(lexemes)
}

fn next_token(text: &str, at: usize) -> Result<(Token, usize), ExpressionError> {
    let rest = &text.as_bytes()[at..];
    match rest[0] {
        b'$' => match hexadecimal_run_length(&rest[1..], 2) {
            0 => Err(invalid_text_error(
                at..at + 1,
                "`$` must be followed by one or two hexadecimal digits",
                None,
            )),
            digits => {
                let value = u8::from_str_radix(&text[at + 1..at + 1 + digits], 16);
                Ok((Token::Mac8(value.unwrap_or(0)), 1 + digits))
            }
        },
        b'\\' => {
            let length = escaped_length(&rest[1..]);
            if length == 0 {
                return Err(invalid_text_error(
                    at..at + 1,
                    "`\\` must be followed by a name",
                    None,
                ));
            }
            Ok((Token::Escaped, 1 + length))
        }
        byte if byte.is_ascii_alphanumeric() || byte == b':' => lex_address_or_word(text, at),
        _ => lex_symbol(rest).ok_or_else(|| {
            let length = text[at..].chars().next().map_or(1, char::len_utf8);
            let what = format!("`{}` has no meaning here", &text[at..at + length]);
            invalid_text_error(at..at + length, &what, None)
        }),
    }
}

/// Returns the longest link address, IPv6 address or word at offset `at`, with its length.
fn lex_address_or_word(text: &str, at: usize) -> Result<(Token, usize), ExpressionError> {
    let rest = &text.as_bytes()[at..];
    let word = leading_name_length(rest);
    let mac = lex_mac(rest);
    let ip6 = ipv6_address_length(rest);
    let broken = incomplete_mac_length(rest);
    let mac_length = mac.map_or(0, |(_, length)| length);
    let longest = word.max(mac_length).max(ip6).max(broken);
    let slice = &text[at..at + longest];
    if longest == 0 {
        return Ok((Token::Symbol(Symbol::Colon), 1));
    }
    if longest == word
        && let Some(token) = find_keyword(slice)
    {
        return Ok((token, longest));
    }
    if let Some((address, length)) = mac
        && length == longest
    {
        return Ok((Token::Mac(address), longest));
    }
    if longest == word {
        return classify_word(slice, at..at + longest).map(|token| (token, longest));
    }
    if longest == ip6 {
        return match slice.parse() {
            Ok(address) => Ok((Token::Ip6(address), longest)),
            Err(_) => Err(invalid_text_error(
                at..at + longest,
                &format!("invalid IPv6 address `{slice}`"),
                None,
            )),
        };
    }
    let what = format!("invalid Ethernet address `{slice}`");
    let hint = "six parts of one or two hexadecimal digits, such as 00:11:22:aa:bb:cc";
    Err(invalid_text_error(at..at + longest, &what, Some(hint)))
}

fn find_keyword(word: &str) -> Option<Token> {
    if let Some((_, protocol)) =
        word_tables::PROTOCOL_KEYWORDS.iter().find(|(name, _)| *name == word)
    {
        return Some(Token::Protocol(*protocol));
    }
    if word_tables::UNSUPPORTED_KEYWORDS.split(' ').any(|foreign| foreign == word) {
        return Some(Token::Word(Keyword::Unsupported));
    }
    word_tables::KEYWORDS.iter().find(|(name, _)| *name == word).map(|(_, word)| Token::Word(*word))
}

/// Classifies a run of letters, digits, dots, dashes and underscores that is not a keyword.
fn classify_word(slice: &str, span: Span) -> Result<Token, ExpressionError> {
    if is_number(slice) {
        return parse_number(slice)
            .map(Token::Number)
            .map_err(|what| invalid_text_error(span, &what, None));
    }
    let parts = slice.split('.').count();
    if (2..=4).contains(&parts) && slice.split('.').all(is_number) {
        return Ok(Token::Dotted);
    }
    if let Some((_, value)) = word_tables::NUMBER_KEYWORDS.iter().find(|(name, _)| *name == slice) {
        return Ok(Token::Number(*value));
    }
    Ok(Token::Name)
}

fn is_number(part: &str) -> bool {
    match part.strip_prefix("0x").or_else(|| part.strip_prefix("0X")) {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// Parses a 32-bit number: hexadecimal after `0x`, octal after `0`, else decimal.
pub(super) fn parse_number(text: &str) -> Result<u32, String> {
    let (digits, radix, name) = if let Some(digits) = text.strip_prefix("0x") {
        (digits, 16, "hexadecimal")
    } else if let Some(digits) = text.strip_prefix("0X") {
        (digits, 16, "hexadecimal")
    } else if text.len() > 1 && text.starts_with('0') {
        (&text[1..], 8, "octal")
    } else {
        (text, 10, "decimal")
    };
    let mut value: u32 = 0;
    for digit in digits.chars() {
        let digit = digit
            .to_digit(radix)
            .ok_or_else(|| format!("number {text} contains a digit that is not {name}"))?;
        value = value
            .checked_mul(radix)
            .and_then(|value| value.checked_add(digit))
            .ok_or_else(|| format!("{name} number {text} overflows 32 bits"))?;
    }
    Ok(value)
}

/// Returns the length in bytes of the name at the start of `rest`; 0 if there is none. A name
/// begins with a letter or digit, and ends with a letter, a digit or a dot.
fn leading_name_length(rest: &[u8]) -> usize {
    if !rest[0].is_ascii_alphanumeric() {
        return 0;
    }
    let run = rest
        .iter()
        .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        .count();
    rest[..run].iter().rposition(|b| b.is_ascii_alphanumeric() || *b == b'.').map_or(0, |i| i + 1)
}

fn escaped_length(rest: &[u8]) -> usize {
    rest.iter().take_while(|b| !matches!(b, b' ' | b'!' | b'(' | b')' | b'\n' | b'\t')).count()
}

fn hexadecimal_run_length(rest: &[u8], max: usize) -> usize {
    rest.iter().take(max).take_while(|b| b.is_ascii_hexdigit()).count()
}

/// Parses a six-byte link address: `b:b:b:b:b:b` (also with `-` or `.`), `xxxx.xxxx.xxxx`, or 12
/// hexadecimal digits. Returns the address and the length of its text; `None` if the text is not an
/// address.
fn lex_mac(rest: &[u8]) -> Option<([u8; 6], usize)> {
    let longest = [lex_separated_mac(rest), lex_grouped_mac(rest), lex_unseparated_mac(rest)];
    longest.into_iter().flatten().max_by_key(|(_, length)| *length)
}

fn lex_separated_mac(rest: &[u8]) -> Option<([u8; 6], usize)> {
    let mut address = [0u8; 6];
    let mut at = 0;
    let mut separator = None;
    for (index, byte) in address.iter_mut().enumerate() {
        if index > 0 {
            let found = *rest.get(at)?;
            if !matches!(found, b':' | b'-' | b'.') || separator.is_some_and(|s| s != found) {
                return None;
            }
            separator = Some(found);
            at += 1;
        }
        let digits = hexadecimal_run_length(rest.get(at..)?, 2);
        *byte = hexadecimal_value(rest.get(at..at + digits)?)?;
        at += digits;
    }
    Some((address, at))
}

fn lex_grouped_mac(rest: &[u8]) -> Option<([u8; 6], usize)> {
    let rest = rest.get(..14)?;
    if rest[4] != b'.' || rest[9] != b'.' {
        return None;
    }
    let digits = [&rest[0..4], &rest[5..9], &rest[10..14]].concat();
    lex_unseparated_mac(&digits).map(|(address, _)| (address, 14))
}

fn lex_unseparated_mac(rest: &[u8]) -> Option<([u8; 6], usize)> {
    let digits = rest.get(..12)?;
    let mut address = [0u8; 6];
    for (byte, pair) in address.iter_mut().zip(digits.chunks(2)) {
        *byte = hexadecimal_value(pair)?;
    }
    Some((address, 12))
}

fn hexadecimal_value(digits: &[u8]) -> Option<u8> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns the length of the longest prefix that has the form of an IPv6 address, or 0 if there is
/// none.
fn ipv6_address_length(rest: &[u8]) -> usize {
    let mut at = 0;
    let mut groups = 0;
    let mut gap = false;
    let mut longest = 0;
    if rest.starts_with(b"::") {
        (gap, at, longest) = (true, 2, 2);
    }
    loop {
        let tail = &rest[at..];
        let may_end_dotted = if gap { groups <= 5 } else { groups == 6 };
        if may_end_dotted && let Some(length) = dotted_ipv4_length(tail) {
            longest = longest.max(at + length);
        }
        let digits = hexadecimal_run_length(tail, 4);
        if digits == 0 || groups == if gap { 7 } else { 8 } {
            return longest;
        }
        groups += 1;
        at += digits;
        if gap || groups == 8 {
            longest = longest.max(at);
        }
        if !gap && groups <= 7 && rest[at..].starts_with(b"::") {
            gap = true;
            at += 2;
            longest = longest.max(at);
        } else if rest.get(at) == Some(&b':') {
            at += 1;
        } else {
            return longest;
        }
    }
}

/// Returns the length of the dotted IPv4 address at the start of `rest`, or `None` if there is
/// none. For example, the IPv6 address `::ffff:1.2.3.4` ends with one.
fn dotted_ipv4_length(rest: &[u8]) -> Option<usize> {
    let run = rest.iter().take(64).take_while(|b| b.is_ascii_alphanumeric() || **b == b'.').count();
    let text = std::str::from_utf8(&rest[..run]).ok()?;
    let mut length = 0;
    let mut parts = text.split('.');
    for index in 0..4 {
        let part = parts.next()?;
        let digits = if index < 3 || is_number(part) {
            part.len()
        } else {
            part.bytes().take_while(u8::is_ascii_digit).count()
        };
        if !is_number(&part[..digits]) {
            return None;
        }
        length += digits + usize::from(index > 0);
    }
    Some(length)
}

/// Returns the length of two or more groups of one or two hexadecimal digits, each followed by one
/// or more colons, or 0 if there are fewer. As in pcap-filter, such an incomplete address is not
/// parsed as arithmetic.
fn incomplete_mac_length(rest: &[u8]) -> usize {
    let mut at = 0;
    let mut parts = 0;
    loop {
        let digits = hexadecimal_run_length(&rest[at..], 2);
        if digits == 0 || rest.get(at + digits) != Some(&b':') {
            return if parts >= 2 { at } else { 0 };
        }
        let colons = rest[at + digits..].iter().take_while(|b| **b == b':').count();
        at += digits + colons;
        parts += 1;
    }
}

fn lex_symbol(rest: &[u8]) -> Option<(Token, usize)> {
    let pair = rest.get(..2).unwrap_or(&[]);
    let token = match pair {
        b"&&" => Token::Word(Keyword::And),
        b"||" => Token::Word(Keyword::Or),
        b">=" => Token::Symbol(Symbol::GreaterOrEqual),
        b"<=" => Token::Symbol(Symbol::LessOrEqual),
        b"!=" => Token::Symbol(Symbol::NotEqual),
        b"==" => Token::Symbol(Symbol::Equal),
        b"<<" => Token::Symbol(Symbol::ShiftLeft),
        b">>" => Token::Symbol(Symbol::ShiftRight),
        _ => return one_byte_symbol(rest[0]).map(|token| (token, 1)),
    };
    Some((token, 2))
}

fn one_byte_symbol(byte: u8) -> Option<Token> {
    Some(Token::Symbol(match byte {
        b'!' => return Some(Token::Word(Keyword::Not)),
        b'(' => Symbol::Open,
        b')' => Symbol::Close,
        b'[' => Symbol::BracketOpen,
        b']' => Symbol::BracketClose,
        b'+' => Symbol::Plus,
        b'-' => Symbol::Minus,
        b'*' => Symbol::Star,
        b'/' => Symbol::Slash,
        b'%' => Symbol::Percent,
        b'&' => Symbol::Ampersand,
        b'|' => Symbol::Bar,
        b'^' => Symbol::Caret,
        b'=' => Symbol::Equal,
        b'<' => Symbol::Less,
        b'>' => Symbol::Greater,
        _ => return None,
    }))
}

fn invalid_text_error(span: Span, what: &str, hint: Option<&str>) -> ExpressionError {
    ExpressionError {
        span,
        message: what.to_owned(),
        hint: hint.map(str::to_owned),
        kind: ErrorKind::Invalid,
    }
}
