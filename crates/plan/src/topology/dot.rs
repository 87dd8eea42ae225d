//! The cables of a fabric in the language of Graphviz, as NVIDIA's reference tools keep them
//! (`topology.dot`): a node for each switch and host, with its kind in `role` or `function`,
//! and an edge with both ports for each cable.
//!
//! The file becomes one in the form of NVIDIA AIR, whose names say the same, with each link on the
//! line that it had.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::document::Text;
use rail_cni::fault::{Fault, Place};

/// The keys of a node that say what it is.
const ROLES: [&str; 3] = ["role", "function", "model"];

/// Whether the text is a graph.
pub fn is_dot(text: &Text) -> bool {
    let mut tokens = Tokens {
        rest: &text.bytes,
        line: 1,
    };
    let mut word = || match tokens.next_token() {
        Ok(Some(Token {
            kind: Kind::Word(word),
            ..
        })) => Some(word.to_ascii_lowercase()),
        _ => None,
    };
    let first = word();
    let kind = if first.as_deref() == Some("strict") {
        word()
    } else {
        first
    };
    matches!(kind.as_deref(), Some("graph" | "digraph"))
}

/// The cables in the form of AIR.
pub fn to_air(text: &Text) -> Result<Text, Fault> {
    let fault = |(line, problem): (u32, String)| {
        Fault::whole(problem).at(Place {
            line,
            ..Place::file(&text.file)
        })
    };
    let graph = Graph::parse(text).map_err(fault)?;
    let nodes: BTreeMap<&str, Value> = graph
        .nodes
        .iter()
        .map(|(name, is_host)| {
            (
                name.as_str(),
                json!({"model": if *is_host { "host" } else { "switch" }}),
            )
        })
        .collect();
    let mut json = format!("{{\"content\": {{\"nodes\": {}, \"links\": [", json!(nodes));
    let mut line = 1;
    for (number, (of_link, ends)) in graph.links.iter().enumerate() {
        let separator = if number == 0 { "" } else { "," };
        let feeds = "\n".repeat(of_link.saturating_sub(line) as usize);
        line = line.max(*of_link);
        let ends: Vec<_> = ends
            .iter()
            .map(|end| json!({"node": end.node, "interface": end.port}))
            .collect();
        json.push_str(&format!("{separator}{feeds}{}", json!(ends)));
    }
    json.push_str("]}}");
    Ok(Text {
        file: text.file.clone(),
        bytes: json.into_bytes(),
    })
}

/// One end of a cable.
struct End {
    node: String,
    port: String,
}

#[derive(Default)]
struct Graph {
    /// Whether it is a host, by name.
    nodes: BTreeMap<String, bool>,
    /// With the line of each.
    links: Vec<(u32, [End; 2])>,
}

impl Graph {
    fn parse(text: &Text) -> Result<Graph, (u32, String)> {
        let mut tokens = Tokens {
            rest: &text.bytes,
            line: 1,
        };
        let mut graph = Graph::default();
        // `strict graph NAME {`
        while let Some(token) = tokens.next_token()? {
            if token.kind == Kind::Sign('{') {
                break;
            }
        }
        let mut statement: Vec<Token> = Vec::new();
        while let Some(token) = tokens.next_token()? {
            // The end of a statement needs no sign: a name behind a name begins another one.
            let begins_another = matches!(token.kind, Kind::Word(_))
                && statement
                    .last()
                    .is_some_and(|last| matches!(last.kind, Kind::Word(_) | Kind::Sign(']')))
                && !statement.iter().any(|one| {
                    one.kind == Kind::Sign('[')
                        && statement
                            .last()
                            .is_some_and(|last| last.kind != Kind::Sign(']'))
                });
            match token.kind {
                Kind::Sign('{') => {
                    return Err((
                        token.line,
                        "has a subgraph: write its cables into the graph itself".to_owned(),
                    ));
                }
                Kind::Sign(';' | '}') => graph.add(std::mem::take(&mut statement))?,
                _ if begins_another => {
                    graph.add(std::mem::take(&mut statement))?;
                    statement.push(token);
                }
                _ => statement.push(token),
            }
        }
        graph.add(statement)?;
        Ok(graph)
    }

    /// A node, a cable, or a default, which says nothing of the cables.
    fn add(&mut self, statement: Vec<Token>) -> Result<(), (u32, String)> {
        let Some(first) = statement.first() else {
            return Ok(());
        };
        let line = first.line;
        let split = statement
            .iter()
            .position(|token| token.kind == Kind::Sign('['))
            .unwrap_or(statement.len());
        let (path, attributes) = statement.split_at(split);
        let wrong = || {
            (line, "is neither a node (\"NAME\" [role=\"host\"]) nor a cable (\"NODE\":\"PORT\" -- \"NODE\":\"PORT\")".to_owned())
        };
        let ends: Vec<&[Token]> = path.split(|token| token.kind == Kind::Edge).collect();
        let end = |tokens: &[Token]| match tokens {
            [
                Token {
                    kind: Kind::Word(node),
                    ..
                },
                Token {
                    kind: Kind::Sign(':'),
                    ..
                },
                Token {
                    kind: Kind::Word(port),
                    ..
                },
            ] => Some(End {
                node: node.clone(),
                port: port.clone(),
            }),
            _ => None,
        };
        match ends.as_slice() {
            [
                [
                    Token {
                        kind: Kind::Word(key),
                        ..
                    },
                    Token {
                        kind: Kind::Sign('='),
                        ..
                    },
                    ..,
                ],
            ] if !key.is_empty() => Ok(()),
            [
                [
                    Token {
                        kind: Kind::Word(name),
                        ..
                    },
                ],
            ] => {
                if !["graph", "node", "edge"].contains(&name.as_str()) {
                    *self.nodes.entry(name.clone()).or_default() |= is_host(attributes);
                }
                Ok(())
            }
            [one, other] => {
                let ends = [end(one).ok_or_else(wrong)?, end(other).ok_or_else(wrong)?];
                for end in &ends {
                    self.nodes.entry(end.node.clone()).or_default();
                }
                self.links.push((line, ends));
                Ok(())
            }
            _ => Err(wrong()),
        }
    }
}

/// Whether the attributes `[role="host" ...]` are those of a host.
fn is_host(attributes: &[Token]) -> bool {
    attributes.windows(3).any(|three| match three {
        [
            Token {
                kind: Kind::Word(key),
                ..
            },
            Token {
                kind: Kind::Sign('='),
                ..
            },
            Token {
                kind: Kind::Word(value),
                ..
            },
        ] => {
            ROLES.contains(&key.as_str())
                && ["host", "server"].contains(&value.to_ascii_lowercase().as_str())
        }
        _ => false,
    })
}

/// A token, and its line.
struct Token {
    kind: Kind,
    line: u32,
}

#[derive(PartialEq, Eq)]
enum Kind {
    /// A name or a number, in quotes or not.
    Word(String),
    /// `--` or `->`.
    Edge,
    Sign(char),
}

struct Tokens<'a> {
    rest: &'a [u8],
    line: u32,
}

impl Tokens<'_> {
    fn next_token(&mut self) -> Result<Option<Token>, (u32, String)> {
        self.skip()?;
        let line = self.line;
        let Some(first) = self.rest.first() else {
            return Ok(None);
        };
        let is_word =
            |byte: &u8| byte.is_ascii_alphanumeric() || b"_./".contains(byte) || *byte >= 128;
        let kind = match first {
            b'"' => {
                return self.quoted().map(|text| {
                    Some(Token {
                        kind: Kind::Word(text),
                        line,
                    })
                });
            }
            b'-' if matches!(self.rest.get(1), Some(b'-' | b'>')) => {
                self.take(2);
                Kind::Edge
            }
            byte if is_word(byte) || *byte == b'-' => {
                // Graphviz wants quotes around a name with hyphens, and people forget them.
                let is_inner = |at: usize| {
                    let edge = matches!(self.rest.get(at..at + 2), Some(b"--" | b"->"));
                    self.rest
                        .get(at)
                        .is_some_and(|byte| is_word(byte) || (*byte == b'-' && !edge))
                };
                let length = (0..).take_while(|at| is_inner(*at)).count();
                Kind::Word(String::from_utf8_lossy(self.take(length)).into_owned())
            }
            byte => {
                let sign = char::from(*byte);
                self.take(1);
                Kind::Sign(sign)
            }
        };
        Ok(Some(Token { kind, line }))
    }

    fn quoted(&mut self) -> Result<String, (u32, String)> {
        let line = self.line;
        let (mut text, mut at) = (Vec::new(), 1);
        loop {
            match self.rest.get(at) {
                None => return Err((line, "a quote has no end".to_owned())),
                Some(b'"') => break,
                Some(b'\\') if self.rest.get(at + 1) == Some(&b'"') => {
                    text.push(b'"');
                    at += 2;
                }
                Some(byte) => {
                    text.push(*byte);
                    at += 1;
                }
            }
        }
        self.take(at + 1);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Skips spaces and comments.
    fn skip(&mut self) -> Result<(), (u32, String)> {
        loop {
            let length = match self.rest {
                [byte, ..] if byte.is_ascii_whitespace() => 1,
                // A byte order mark.
                [0xef, 0xbb, 0xbf, ..] => 3,
                [b'#', ..] | [b'/', b'/', ..] => {
                    self.rest.iter().take_while(|byte| **byte != b'\n').count()
                }
                [b'/', b'*', rest @ ..] => match rest.windows(2).position(|two| two == b"*/") {
                    Some(end) => end + 4,
                    None => return Err((self.line, "a comment has no end".to_owned())),
                },
                _ => return Ok(()),
            };
            self.take(length);
        }
    }

    fn take(&mut self, length: usize) -> &[u8] {
        let (taken, rest) = self.rest.split_at(length.min(self.rest.len()));
        let feeds = taken.iter().filter(|byte| **byte == b'\n').count();
        self.line = self
            .line
            .saturating_add(u32::try_from(feeds).unwrap_or(u32::MAX));
        self.rest = rest;
        taken
    }
}
